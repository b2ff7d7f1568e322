"""Score of an early start: until nodes were added and the job's data was moved."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import Applies, DependsOn, Score, half_at

SCORE = Score(
    name="wait",
    unit="seconds",
    measure=attrgetter("wait"),
    curve=half_at(300.0, "wait"),
    words=lambda best, second: "it is expected to start sooner there",
    depends_on=DependsOn.CLUSTER,
    applies=Applies.WITH_DATA,
)
