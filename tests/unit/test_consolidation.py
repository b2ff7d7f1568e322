"""Consolidation: runs that are moved so that a gang fits which needs their room in one piece."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, Outcome, StateBuilder, gang, nodes, role
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.state.declared_objects import MoveTerms
from trainmaster_dispatcher.scheduling.state.from_specs import queue_of

TERMS = MoveTerms(after=600.0, most_lost=600.0, most_an_hour=10)
SAVING = ("checkpoint",)


def of_gpus(gpus: int, members: int = 1, **more: Any) -> Shape:
    return gang(role(members, gpu=gpus), **more)


def in_pieces(*free: int, terms: MoveTerms | None = TERMS, saves: bool = True, ago: float = 7200.0) -> StateBuilder:
    """Return a cluster of nodes with 8 GPUs in racks of their own, on each of which a run leaves these numbers of them free.

    A job for a whole node has waited for an hour. ``saves``: whether the runs save their state.
    """
    racks = [nodes(1, f"node{place}", gpu=8, at=(("rack", f"r{place}"),)) for place in range(len(free))]
    builder = StateBuilder().queue("main", consolidation=terms).cluster("c", *racks)
    for place, many in enumerate(free):
        if many < 8:
            shape = of_gpus(8 - many, capabilities=SAVING if saves else ())
            builder.run(f"r{place}", shape, on="c", placement={f"node{place}": {"worker": 1}}, ago=ago)
    return builder.job("whole", of_gpus(8), age=3600)


def evicted(outcome: Outcome) -> dict[str, str]:
    """Return why each run ends."""
    names = {number: name for name, number in outcome.ids.items()}
    return {names[one.job_id]: one.why for start in outcome.plan.starts for one in outcome.start(start.job.name).evicts}


def test_the_one_run_is_moved_that_leaves_a_whole_node_and_fits_beside_another() -> None:
    outcome = in_pieces(6, 3, 4).cycle()
    assert outcome.started == ["whole"]
    ((name, why),) = evicted(outcome).items()
    whom = job_id("whole", outcome.ids["whole"])
    assert (name, why) == ("r0", f"moved to other room on c, for {whom}, which fits only in one piece")
    start = outcome.start("whole")
    assert start.placement == {"node0": {"worker": 1}}
    assert start.why == f"c, where one run is moved for it: {why}"


def test_nothing_is_moved_unless_a_queue_allows_it() -> None:
    assert in_pieces(6, 3, 4, terms=None).cycle().started == []


def test_what_a_queue_allows_holds_for_those_below_that_say_nothing() -> None:
    builder = in_pieces(6, 3, 4, terms=None).queue("main", consolidation=TERMS).queue("main/x").queue("main/y")
    builder.queue("main/y", consolidation=TERMS._replace(most_an_hour=0))
    assert builder.moved("r0", "main/x").cycle().started == ["whole"]
    builder.moved("r0", "main/y").moved("r1", "main/y").moved("r2", "main/y")
    assert builder.later(60).cycle().started == []


@pytest.mark.parametrize("age", [0, 599])
def test_nothing_is_moved_before_the_job_has_waited(age: float) -> None:
    builder = in_pieces(6, 3, 4).ended("whole").job("late", of_gpus(8), age=age)
    assert builder.cycle().started == []
    builder.engine.carry_over(builder.cycle().plan)
    assert builder.later(601 - age).cycle().started == ["late"]


def test_nothing_is_moved_without_room_for_it_elsewhere() -> None:
    assert in_pieces(4, 3, 3).cycle().started == []


def test_a_run_is_moved_to_another_cluster_where_it_may_run() -> None:
    builder = in_pieces(4, 3).cluster("d", nodes(1, gpu=4))
    assert [why.partition(",")[0] for why in evicted(builder.cycle()).values()] == ["moved to other room on d"]
    barred = in_pieces(4, 3).cluster("d", nodes(1, gpu=4), cordoned=True)
    assert barred.cycle().started == []


def test_a_run_that_would_lose_much_work_is_not_moved() -> None:
    assert in_pieces(6, 3, 4, saves=False).cycle().started == []
    assert evicted(in_pieces(6, 3, 4, saves=False, ago=500.0).cycle()).keys() == {"r0"}


def test_the_run_that_loses_least_is_moved() -> None:
    """All have room elsewhere; the one that saves its state loses nothing."""
    builder = in_pieces(6, 6, 6, saves=False, ago=300.0)
    builder.run("r1", of_gpus(2, capabilities=SAVING), on="c", placement={"node1": {"worker": 1}}, ago=9000.0)
    assert evicted(builder.cycle()).keys() == {"r1"}


def test_no_run_of_a_class_that_is_not_preemptible_and_none_that_its_queue_protects_is_moved() -> None:
    assert in_pieces(6, 3, 4).lasting("normal").cycle().started == []
    protected = in_pieces(6, 3, 4, ago=100.0).queue("main", consolidation=TERMS, min_run_time=200.0)
    assert protected.cycle().started == []


def test_nothing_is_moved_for_a_job_that_is_expected_to_start_soon_anyway() -> None:
    builder = in_pieces(6, 3, 4)
    ending = of_gpus(5, time_limit_seconds=7300.0)
    builder.run("r1", ending, on="c", placement={"node1": {"worker": 1}}, ago=7200.0)
    assert builder.cycle().started == []


def test_the_fewest_runs_are_moved() -> None:
    """A node with one run is cleared, of several the one with the smallest, before a node with two."""
    racks = [nodes(1, f"node{place}", gpu=8, at=(("rack", f"r{place}"),)) for place in range(3)]
    builder = StateBuilder().queue("main", consolidation=TERMS).cluster("c", *racks)
    for name, place, gpus in (("a", 0, 1), ("b", 0, 1), ("c", 1, 4), ("d", 2, 2)):
        builder.run(name, of_gpus(gpus, capabilities=SAVING), on="c", placement={f"node{place}": {"worker": 1}}, ago=50)
    assert evicted(builder.job("whole", of_gpus(8), age=3600).cycle()).keys() == {"d"}
    builder.run("d", of_gpus(2), on="c", placement={"node2": {"worker": 1}}, ago=9000)
    assert evicted(builder.later(60).cycle()).keys() == {"c"}
    builder.run("c", of_gpus(4), on="c", placement={"node1": {"worker": 1}}, ago=9000)
    assert evicted(builder.later(60).cycle()).keys() == {"a", "b"}


def test_a_gang_that_needs_one_rack_gets_it() -> None:
    groups = [
        nodes(1, f"{rack}{number}", gpu=8, at=(("rack", rack),)) for rack in ("x", "y", "z") for number in range(2)
    ]
    builder = StateBuilder().queue("main", consolidation=TERMS).cluster("c", *groups)
    for rack in ("x", "y", "z"):
        builder.run(f"in-{rack}", of_gpus(8, capabilities=SAVING), on="c", placement={f"{rack}0": {"worker": 1}}, ago=9)
    builder.job("gang", of_gpus(8, members=2, required_level="rack"), age=3600)
    outcome = builder.cycle()
    assert outcome.started == ["gang"]
    assert len(evicted(outcome)) == 1


def test_quota_holds_while_the_moved_runs_still_run() -> None:
    assert in_pieces(6, 3, 4).queue("main", consolidation=TERMS, limits={"gpu": 15}).cycle().started == []
    builder = in_pieces(6, 3, 4).queue("main", consolidation=TERMS, limits={"gpu": 2 + 5 + 4 + 8})
    assert builder.cycle().started == ["whole"]


def test_no_more_runs_are_moved_in_an_hour_than_allowed() -> None:
    terms = TERMS._replace(most_an_hour=1)
    builder = in_pieces(6, 6, 6, terms=terms)
    assert builder.job("second", of_gpus(8), age=3500).applied().started == ["whole"]
    builder.ended("r0").ended("whole").run("again", of_gpus(8), on="c", placement={"node0": {"worker": 1}})
    assert builder.later(60).applied().started == []
    assert builder.later(3500).applied().started == []
    assert builder.later(100).applied().started == ["second"]


def test_a_job_is_not_moved_twice_and_nothing_is_moved_for_one_that_was() -> None:
    builder = in_pieces(6, 2, 3)
    assert builder.applied().started == ["whole"]
    assert set(evicted(builder.cycle())) == set()
    # The moved run starts again, whole ends, and another such job comes: r0 stays.
    builder.requeued("r0").later(60)
    assert builder.applied().started == ["r0"]
    state = builder.state
    builder.ended("whole").run("blocker", of_gpus(1), on="c", placement={"node0": {"worker": 1}}, ago=9000)
    builder.job("next", of_gpus(8), age=3600).later(60)
    assert "r0" not in evicted(builder.cycle())
    # Nor are others moved for it, if it waits again.
    builder.ended("next").requeued("r0").run("fill", of_gpus(2), on="c", placement={"node1": {"worker": 1}}, ago=9)
    waiting = state.jobs[builder.ids["r0"]]
    state.put_waiting(replace(waiting, shape_id=builder.shape(of_gpus(8)), waits_since=NOW - 9000))
    assert builder.later(60).cycle().started == []


def test_nothing_is_moved_where_a_run_is_being_stopped() -> None:
    builder = in_pieces(6, 3, 4)
    assert builder.stopping("r1").cycle().started == []


def test_the_terms_of_a_queue_are_read() -> None:
    spec = QueueSpec.model_validate({"path": "a", "consolidation": {"after": "5m", "maxMovesPerHour": 3}})
    assert queue_of(1, None, spec).consolidation == MoveTerms(300.0, 600.0, 3)
    assert queue_of(1, None, QueueSpec(path="a")).consolidation is None


small = st.integers(1, 4)


@given(
    runs=st.lists(st.tuples(st.integers(0, 3), small, st.booleans()), max_size=10),
    wide=st.lists(st.integers(5, 8), min_size=1, max_size=3),
    later=st.lists(st.tuples(st.integers(0, 3), small), max_size=6),
)
def test_moves_end(runs: list[tuple[int, int, bool]], wide: list[int], later: list[tuple[int, int]]) -> None:
    """Each move starts a job that waited; all that is moved has room at once, no job is moved twice, and after some cycles none is."""
    racks = [nodes(1, f"node{place}", gpu=8, at=(("rack", f"r{place}"),)) for place in range(4)]
    builder = StateBuilder().queue("main", consolidation=TERMS).cluster("c", *racks, lease=10.0**9)
    left = [8] * 4
    for number, (place, gpus, saves) in enumerate(runs):
        if gpus <= left[place]:
            left[place] -= gpus
            shape = of_gpus(gpus, capabilities=SAVING if saves else ())
            builder.run(f"r{number}", shape, on="c", placement={f"node{place}": {"worker": 1}}, ago=9000)
    for number, gpus in enumerate(wide):
        builder.job(f"wide{number}", of_gpus(gpus), age=3600)
    for number, (_, gpus) in enumerate(later):
        builder.job(f"later{number}", of_gpus(gpus), age=100)
    names = {number: name for name, number in builder.ids.items()}
    moved: list[int] = []
    for _ in range(12):
        outcome = builder.applied()
        ends = [one.job_id for start in outcome.plan.starts for one in start.evicts]
        moved += ends
        for number in ends:
            builder.requeued(names[number])
        again = builder.later(1).applied()
        assert not builder.state.jobs.keys() & set(ends), (ends, again.started)
        assert not any(start.evicts for start in again.plan.starts if start.job.id in ends)
        moved += [one.job_id for start in again.plan.starts for one in start.evicts]
        for start in again.plan.starts:
            for one in start.evicts:
                builder.requeued(names[one.job_id])
        builder.later(60)
    assert len(moved) == len(set(moved))
    assert not any(start.evicts for start in builder.applied().plan.starts)
