"""Score of clusters that have the job's data."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import PART, Applies, DependsOn, Score

SCORE = Score(
    name="data",
    unit="part",
    measure=attrgetter("local"),
    curve=PART,
    words=lambda best, second: "more of its data is there",
    depends_on=DependsOn.CLUSTER,
    applies=Applies.WITH_DATA,
)
