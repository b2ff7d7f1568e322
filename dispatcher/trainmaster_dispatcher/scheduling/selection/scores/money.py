"""Score of a low expected cost of the run."""

from trainmaster_dispatcher.scheduling.selection.scores.base import DependsOn, Score, half_at, itself

SCORE = Score(
    name="money",
    unit="installation's currency",
    measure=itself,
    curve=half_at(10.0, "cost"),
    words=lambda best, second: f"it is expected to cost {best.cost:.2f} there and {second.cost:.2f} on the other",
    depends_on=DependsOn.COST,
    is_always_shown=True,
)
