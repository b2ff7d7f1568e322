"""Score of a cluster away from the other runs of the job's queue."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import PART, DependsOn, Score

SCORE = Score(
    name="spread",
    unit="part",
    measure=attrgetter("elsewhere"),
    curve=PART,
    words=lambda best, second: "fewer of the runs of its queue are there",
    depends_on=DependsOn.QUEUE,
)
