"""Score of clusters that have not returned or lost runs lately."""

from operator import attrgetter

from trainmaster_dispatcher.scheduling.selection.scores.base import Applies, DependsOn, Score, half_at

_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def step_of(trouble: float) -> float:
    """Return trouble in coarse steps, so that its decay does not change scores all the time; 0 if it is negligible."""
    return max((step for step in _STEPS if step <= trouble), default=0.0)


SCORE = Score(
    name="reliability",
    unit="runs",
    measure=attrgetter("trouble"),
    curve=half_at(4.0, "trouble"),
    words=lambda best, second: "fewer runs were returned or lost there lately",
    depends_on=DependsOn.CLUSTER,
    applies=Applies.WITH_TROUBLE,
)
