"""Score of clusters that the job prefers."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import PART, Applies, DependsOn, Score

SCORE = Score(
    name="affinity",
    unit="part",
    measure=attrgetter("preferred"),
    curve=PART,
    words=lambda best, second: "the job prefers it",
    depends_on=DependsOn.CLUSTER,
    applies=Applies.WITH_PREFERENCES,
)
