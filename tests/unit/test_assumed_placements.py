"""Runs whose placement is only assumed are counted where they fit beside those whose placement was reported."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, gang, nodes, role, simple
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle.assumed_placements import AssumedPlacements
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, add_members
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, load_of
from trainmaster_dispatcher.scheduling.state.state import SchedulerState


def in_a_slice(members: int) -> Shape:
    """Return a gang that needs all its members in one slice, each with all four devices of a host."""
    return gang(role(members, gpu=4), required_level="slice")


def two_slices() -> StateBuilder:
    groups = (nodes(4, name, gpu=4, at=(("slice", name),)) for name in ("a", "b"))
    return StateBuilder().cluster("c", *groups)


def on(group: str, members: int) -> dict[str, dict[str, int]]:
    return {group: {"worker": members}}


def counted_in(builder: StateBuilder, *names: str) -> list[list[str]]:
    return [[group for group, _ in builder.state.runs[builder.ids[name]].placement] for name in names]


def test_a_run_is_counted_elsewhere_when_another_was_reported_on_its_nodes() -> None:
    """``first`` was planned on ``b``; the cluster's own scheduler placed it on ``a``, so ``half`` can only be on ``b``."""
    builder = two_slices()
    builder.run("half", in_a_slice(2), on="c", placement=on("a", 2), assumed=True)
    builder.run("first", in_a_slice(4), on="c", placement=on("b", 4), assumed=True)
    builder.job("second", in_a_slice(4))
    assert builder.cycle().started == []
    assert counted_in(builder, "half", "first") == [["a"], ["b"]]
    builder.run("first", in_a_slice(4), on="c", placement=on("a", 4))
    assert builder.cycle().started == []
    assert counted_in(builder, "half", "first") == [["b"], ["a"]]
    builder.ended("half")
    assert builder.cycle().started == ["second"]


def test_a_run_is_counted_as_planned_again_when_its_nodes_take_it() -> None:
    builder = two_slices()
    builder.run("half", in_a_slice(2), on="c", placement=on("a", 2), assumed=True)
    builder.run("first", in_a_slice(4), on="c", placement=on("a", 4))
    builder.cycle()
    assert counted_in(builder, "half") == [["b"]]
    builder.ended("first")
    builder.cycle()
    assert counted_in(builder, "half") == [["a"]]


def test_a_reported_run_stays_where_it_was_reported() -> None:
    builder = two_slices()
    builder.run("half", in_a_slice(2), on="c", placement=on("a", 2))
    builder.run("first", in_a_slice(4), on="c", placement=on("a", 4))
    builder.cycle()
    assert counted_in(builder, "half", "first") == [["a"], ["a"]]


def test_a_run_that_fits_nowhere_else_stays_where_it_was_planned() -> None:
    builder = two_slices()
    builder.run("half", in_a_slice(2), on="c", placement=on("a", 2), assumed=True)
    builder.run("first", in_a_slice(4), on="c", placement=on("a", 4))
    builder.run("other", in_a_slice(3), on="c", placement=on("b", 3))
    builder.cycle()
    assert counted_in(builder, "half") == [["a"]]


def test_a_run_that_waits_for_victims_stays_where_it_was_planned() -> None:
    builder = two_slices()
    builder.run("first", in_a_slice(4), on="c", placement=on("a", 4))
    first = builder.ids["first"]
    builder.state.put_run(replace(builder.state.runs[first], is_stopping=True))
    builder.run("half", in_a_slice(2), on="c", placement=on("a", 2), assumed=True)
    builder.cycle()
    assert counted_in(builder, "half") == [["a"]]


def test_a_run_keeps_the_product_that_it_is_charged_for() -> None:
    builder = StateBuilder()
    labels = [{"nvidia.com/gpu.product": product} for product in ("A", "A", "B")]
    groups = zip("abc", (1, 1, 1), labels, strict=True)
    builder.cluster("c", *(nodes(count, name, gpu=4, cpu=8, labels=of) for name, count, of in groups))
    builder.queue("main", limits={"gpu@product=A": 8})
    builder.run("one", simple(gpu=4), on="c", placement=on("a", 1), assumed=True)
    builder.run("two", simple(gpu=4), on="c", placement=on("a", 1))
    builder.cycle()
    assert counted_in(builder, "one") == [["b"]]
    builder.run("three", simple(gpu=4), on="c", placement=on("b", 1))
    builder.cycle()
    assert counted_in(builder, "one") == [["a"]], "product B is free, and its members cannot be there"


def test_a_copy_for_a_question_counts_as_the_state_does() -> None:
    builder = two_slices()
    builder.run("half", in_a_slice(2), on="c", placement=on("a", 2), assumed=True)
    builder.run("first", in_a_slice(4), on="c", placement=on("a", 4))
    builder.cycle()
    fork = builder.engine.fork()
    fork.begin(NOW)
    assert fork.state.runs[builder.ids["half"]].placement == (("b", (("worker", 2),)),)


RUNS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=9
)
"""Runs by number of members, devices of each, group, whether it is assumed, and whether its members need one group."""


@given(RUNS)
@example([(1, 1, "a", False, False), (1, 1, "a", False, False), (1, 1, "c", True, False), (2, 3, "c", True, False)])
def test_what_is_counted_elsewhere_fits_there_and_what_is_not_fits_nowhere_else(
    runs: list[tuple[int, int, str, bool, bool]],
) -> None:
    builder = StateBuilder()
    builder.cluster(
        "c", *(nodes(count, name, gpu=4, at=(("slice", name),)) for name, count in zip("abc", (2, 2, 1), strict=True))
    )
    for number, (members, gpu, group, assumed, close) in enumerate(runs):
        shape = gang(role(members, gpu=gpu), required_level="slice" if close else None)
        builder.run(f"r{number}", shape, on="c", placement=on(group, members), assumed=assumed)
    state, cluster = builder.state, builder.clusters["c"]
    planned = dict(state.runs)
    before = overflows(state, cluster)
    AssumedPlacements().revise(ClusterLayouts(state), [cluster])
    after = overflows(state, cluster)
    moved = [run for run in state.runs.values() if run.placement != planned[run.job_id].placement]
    assert all(run.is_assumed and before[planned[run.job_id].placement[0][0]] for run in moved)
    assert all(
        replace(run, placement=planned[job_id].placement) == planned[job_id] for job_id, run in state.runs.items()
    )
    left, more = sum(after.values()), sum(before.values())
    assert left < more if moved else left == more
    for run in state.runs.values():
        (group, *_) = [name for name, _ in planned[run.job_id].placement]
        if run not in moved and run.is_assumed and after[group]:
            assert not helps(state, run, group)


def overflows(state: SchedulerState, cluster: int) -> dict[str, int]:
    layouts = ClusterLayouts(state)
    return {name: layouts.overflow(cluster, name) for name in "abc"}


def helps(state: SchedulerState, run: LiveRun, group: str) -> bool:
    """Return whether fewer members of the group lack a node without the run, and it fits in other groups."""
    layouts = ClusterLayouts(state)
    if layouts.overflow(run.cluster_id, group, dict(load_of(run))) >= layouts.overflow(run.cluster_id, group):
        return False
    load = dict(state.load[run.cluster_id])
    add_members(load, load_of(run), -1)
    fitted = fit(state.shapes[run.shape_id], dict(run.sizes), layouts.under(run.cluster_id, load))
    return isinstance(fitted, Fitted) and group not in fitted.placement
