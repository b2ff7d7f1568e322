"""Consolidation inside a group of equal nodes, where what is free in one piece depends on the node of each member."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import Outcome, StateBuilder, gang, nodes, role
from trainmaster.protocol.ids import job_id
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.state.declared_objects import MoveTerms

TERMS = MoveTerms(after=600.0, most_lost=600.0, most_an_hour=10)


def of_gpus(gpus: int, members: int = 1, **more: Any) -> Shape:
    return gang(role(members, gpu=gpus), capabilities=("checkpoint",), **more)


def spread(*on: Sequence[int], members: int = 1, gpus: int = 8, returned: bool = True, **more: Any) -> StateBuilder:
    """Return a cluster of equal nodes with 8 GPUs, where each number is a run with that many GPUs on its node: a0, a1, b0 and so on.

    A job ``wide`` has waited for an hour, and was returned by the cluster for want of room.
    """
    builder = StateBuilder().queue("main", consolidation=TERMS).cluster("c", nodes(len(on), "g", gpu=8))
    for letter, sizes in zip("abcdefgh", on, strict=False):
        for number, many in enumerate(sizes):
            name = f"{letter}{number}"
            builder.run(name, of_gpus(many, **more), on="c", placement={"g": {"worker": 1}}, ago=7200)
    builder.job("wide", of_gpus(gpus, members), age=3600)
    if returned:
        builder.returned_for_room("wide", by="c")
    return read(builder, on)


def read(builder: StateBuilder, on: Sequence[Sequence[int]]) -> StateBuilder:
    names = [
        (f"{letter}{number}", "g", f"node-{letter}")
        for letter, of in zip("abcdefgh", on, strict=False)
        for number in range(len(of))
    ]
    return builder.on_nodes("c", *names)


def evicted(outcome: Outcome) -> set[str]:
    names = {number: name for name, number in outcome.ids.items()}
    return {names[one.job_id] for start in outcome.plan.starts for one in start.evicts}


def test_by_groups_alone_the_job_fits_where_it_was_returned() -> None:
    builder = spread([4], [4], returned=False)
    assert builder.cycle().started == ["wide"]
    assert evicted(builder.cycle()) == set()


def test_a_run_is_moved_that_leaves_a_node_to_a_job_which_was_returned() -> None:
    outcome = spread([4], [3]).cycle()
    assert outcome.started == ["wide"]
    assert evicted(outcome) == {"b0"}
    whom = job_id("wide", outcome.ids["wide"])
    assert outcome.start("wide").evicts[0].why == f"moved to other room on c, for {whom}, which fits only in one piece"


def test_the_nodes_are_asked_for_and_nothing_is_moved_before_they_are_known() -> None:
    builder = spread([4], [3])
    builder.state.member_nodes = {}
    outcome = builder.applied()
    assert outcome.started == []
    assert outcome.plan.needs_nodes == {builder.clusters["c"]}
    read(builder.later(1), ([4], [3]))
    outcome = builder.cycle()
    assert outcome.plan.needs_nodes == set()
    assert evicted(outcome) == {"b0"}
    builder.later(31)
    assert builder.cycle().plan.needs_nodes == {builder.clusters["c"]}, "what was read half a minute ago is read again"


def test_nothing_is_asked_for_where_nothing_may_be_moved() -> None:
    builder = spread([4], [3]).queue("main", consolidation=None)
    builder.state.member_nodes = {}
    assert builder.cycle().plan.needs_nodes == set()


def test_all_runs_of_the_node_are_moved_that_has_the_fewest() -> None:
    assert evicted(spread([1, 1, 1], [2, 2], [1, 1, 1, 1]).cycle()) == {"b0", "b1"}


def test_a_gang_gets_as_many_nodes_as_it_needs() -> None:
    builder = spread([2, 2], [2], [4], [2], [8], members=2)
    assert evicted(builder.cycle()) == {"b0", "d0"}


def test_a_run_is_moved_only_to_a_node_that_has_room_for_it_in_one_piece() -> None:
    """Six GPUs are free beside the node that is cleared, but on two nodes: a run of four has no room there."""
    assert evicted(spread([4], [5], [5]).cycle()) == set()
    builder = spread([4], [5], [5]).cluster("d", nodes(1, gpu=4))
    assert [one.why.partition(",")[0] for one in builder.cycle().start("wide").evicts] == ["moved to other room on d"]


def test_nothing_is_moved_if_a_node_has_room_already() -> None:
    """The cluster returned the job for a reason that its nodes do not show: a move would not help."""
    assert spread([4], [4], []).cycle().started == []


def test_nothing_is_moved_where_a_node_is_expected_to_be_free_soon() -> None:
    assert spread([4], [4], time_limit_seconds=7300.0).cycle().started == []
    assert spread([4], [4], time_limit_seconds=9000.0).cycle().started == ["wide"]


def test_members_without_a_known_node_count_as_packed_beside_the_others() -> None:
    builder = spread([2], [2])
    builder.run("new", of_gpus(2), on="c", placement={"g": {"worker": 1}}, ago=7200)
    assert evicted(read(builder, ([2], [2])).cycle()) in ({"a0"}, {"b0"})
    builder.run("second", of_gpus(6), on="c", placement={"g": {"worker": 1}}, ago=7200)
    assert read(builder, ([2], [2])).cycle().started == []


def test_nodes_that_do_not_match_the_runs_are_not_used() -> None:
    builder = spread([4], [3])
    builder.on_nodes("c", ("a0", "g", "x"), ("b0", "g", "y"), attempt=2)
    assert builder.cycle().started == [], "those of an earlier attempt"
    builder.on_nodes("c", ("a0", "g", "x"), ("a0", "g", "y"), ("b0", "g", "y"))
    assert builder.cycle().started == [], "more members than the run has"


def test_nodes_of_a_group_that_has_become_smaller_are_not_used() -> None:
    builder = spread([4], [3], [2])
    builder.cluster("c", nodes(2, "g", gpu=8))
    assert builder.cycle().started == []


def test_runs_are_moved_once_a_day_for_the_same_job() -> None:
    builder = spread([4], [3])
    assert evicted(builder.applied()) == {"b0"}
    builder.ended("wide").ended("b0").run("e0", of_gpus(3), on="c", placement={"g": {"worker": 1}}, ago=9)
    builder.job("wide", of_gpus(8), age=3600).returned_for_room("wide", by="c").later(60)
    builder.on_nodes("c", ("a0", "g", "node-a"), ("e0", "g", "node-b"))
    assert builder.cycle().started == [], "the cluster has returned it though a node was cleared"
    assert builder.later(86_400).on_nodes("c", ("a0", "g", "node-a"), ("e0", "g", "node-b")).cycle().started == ["wide"]


def test_where_capacity_lacks_that_run_is_moved_which_is_alone_on_its_node() -> None:
    """Any run of 5 is in the way by groups; in truth two of them are beside others."""
    on = ([5, 1], [5, 2], [5])
    builder = spread(*on, returned=False).cluster("d", nodes(1, gpu=5))
    assert evicted(builder.cycle()) == {"c0"}
    builder.state.member_nodes = None
    assert evicted(builder.cycle()) == {"a0"}, "if nobody reads the nodes"


sizes = st.lists(st.lists(st.integers(1, 5), max_size=4).filter(lambda of: sum(of) <= 8), min_size=2, max_size=5)


def fits(free: list[int], needs: Sequence[int]) -> bool:
    """Return whether members with these needs fit on nodes with these free amounts; every way is tried."""
    if not needs:
        return True
    for place in {amount: place for place, amount in enumerate(free)}.values():
        if free[place] >= needs[0]:
            free[place] -= needs[0]
            found = fits(free, needs[1:])
            free[place] += needs[0]
            if found:
                return True
    return False


@given(on=sizes, gpus=st.integers(4, 8), members=st.integers(1, 2))
def test_what_is_moved_leaves_room_on_the_real_nodes(on: list[list[int]], gpus: int, members: int) -> None:
    """Every move is needed, the gang fits where it leaves, and all that is moved has room beside it."""
    outcome = spread(*on, gpus=gpus, members=members).cycle()
    gone = evicted(outcome)
    wide = [gpus] * members
    every = {
        f"{letter}{number}": many for letter, of in zip("abcdefgh", on, strict=False) for number, many in enumerate(of)
    }

    def left(moved: set[str]) -> list[int]:
        runs = [(name, many) for name, many in every.items() if name not in moved]
        return [8 - sum(many for name, many in runs if name[0] == letter) for letter in "abcdefgh"[: len(on)]]

    if fits(left(set()), wide):
        assert not gone
    elif gone:
        assert fits(left(gone), [*wide, *sorted((every[name] for name in gone), reverse=True)])
        assert not any(fits(left(gone - {name}), wide) for name in gone)
    if members == 1 and len(gone) != 1 and not fits(left(set()), wide):
        # A single member has no choice of nodes; where several are put also decides who has room beside them.
        assert not any(fits(left({name}), [gpus, every[name]]) for name in every)
