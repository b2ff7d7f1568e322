"""Score of a placement in one domain of the level that the job prefers, before several."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import Applies, Curve, DependsOn, Score

SCORE = Score(
    name="topology",
    unit="domains",
    measure=attrgetter("domains"),
    curve=Curve(lambda domains: 1.0 / domains, "1 / domains"),
    words=lambda best, second: "it is spread over fewer domains there",
    depends_on=DependsOn.PLACEMENT,
    applies=Applies.WITH_LEVEL,
)
