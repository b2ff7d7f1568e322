"""The yardsticks for packing: each chooses the node that its definition says, and what is allocated is counted as said."""

import pytest

from tests.textbook_packing import Filled, Heuristic, Node, Request, fill

LARGE = Node((64.0, 64.0, 8.0), "A")
SMALL = Node((8.0, 64.0, 1.0), "A")
OTHER = Node((8.0, 64.0, 1.0), "B")
ONE = Request((1.0, 1.0, 1.0), ())
ALL = Request((8.0, 8.0, 8.0), ())
ONLY_B = Request((1.0, 1.0, 1.0), ("B",))


@pytest.mark.parametrize(
    ("heuristic", "allocated"),
    [
        (Heuristic.FIRST_FIT, Filled(1, 1, 1)),
        (Heuristic.BEST_FIT, Filled(9, 9, 0)),
        (Heuristic.DOT_PRODUCT, Filled(9, 9, 0)),
        (Heuristic.FGD, Filled(9, 9, 0)),
    ],
)
def test_only_first_fit_takes_a_large_node_for_a_small_task(heuristic: Heuristic, allocated: Filled) -> None:
    assert fill([LARGE, SMALL], [ONE, ALL], heuristic) == allocated


def test_fragmentation_is_that_of_the_workload() -> None:
    """One GPU of a model that others need is left to them; which model that is follows from the tasks alone."""
    only_a = Request((1.0, 1.0, 1.0), ("A",))
    assert fill([OTHER, SMALL], [ONE, ONLY_B], Heuristic.FGD) == Filled(2, 2, 0)
    assert fill([OTHER, SMALL], [ONE, only_a], Heuristic.FGD) == Filled(2, 2, 0)
    assert fill([OTHER, SMALL], [ONE, ONLY_B], Heuristic.BEST_FIT) == Filled(1, 1, 1)


@pytest.mark.parametrize("heuristic", Heuristic)
def test_tasks_after_one_that_fails_go_on_and_are_counted_apart(heuristic: Heuristic) -> None:
    assert fill([SMALL], [ALL, ONE, ONE], heuristic) == Filled(0, 1, 2)


@pytest.mark.parametrize("heuristic", Heuristic)
def test_no_node_is_given_more_than_it_has_or_a_task_of_another_model(heuristic: Heuristic) -> None:
    assert fill([SMALL], [ONLY_B, Request((9.0, 1.0, 0.0), ()), Request((8.0, 65.0, 0.0), ())], heuristic).failed == 3
    assert fill([SMALL, OTHER], [ONE] * 3, heuristic) == Filled(2, 2, 1)
