"""Score of clusters where the jobs ran that the job starts after, as their data is there."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import PART, Applies, DependsOn, Score

SCORE = Score(
    name="predecessors",
    unit="part",
    measure=attrgetter("predecessors"),
    curve=PART,
    words=lambda best, second: "more of the jobs that it starts after ran there",
    depends_on=DependsOn.CLUSTER,
    applies=Applies.WITH_PREDECESSORS,
)
