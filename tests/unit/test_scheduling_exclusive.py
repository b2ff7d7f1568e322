"""Exclusive members: each has a node for itself, with all its devices, in the fit, under load, in forecasts and in preemption."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import GPU, NOW, StateBuilder, amounts, gang, nodes, role, simple
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.cluster_model.whole_nodes import idle_device
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.reasons import Check
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape, shape_from, shape_of
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Shortfall, fit, fit_many, size_choices, take
from trainmaster_dispatcher.scheduling.packing.node_layout import NodeLayout
from trainmaster_dispatcher.scheduling.packing.release_timeline import ReleaseTimeline
from trainmaster_dispatcher.scheduling.state.declared_objects import MoveTerms

CLASS = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


def room_of(*groups: NodeGroup) -> FreeCapacity:
    return FreeCapacity.empty(CapacityReport(groups=groups, runtime="kubernetes", scheduler="default"))


def alone(size: int = 1, name: str = "worker", **needs: Any) -> Shape:
    return gang(role(size, name, exclusive=True, **needs))


def fitted(shape: Shape, free: FreeCapacity) -> Fitted | Shortfall:
    return fit(shape, size_choices(shape)[0].members, free)


def placed(shape: Shape, free: FreeCapacity) -> dict[str, dict[str, int]]:
    outcome = fitted(shape, free)
    assert isinstance(outcome, Fitted)
    take(free, outcome)
    return outcome.placement


def sentence(shape: Shape, free: FreeCapacity) -> str:
    outcome = fitted(shape, free)
    assert isinstance(outcome, Shortfall)
    return outcome.sentence


class TestDevices:
    @pytest.mark.parametrize(
        ("offered", "requested", "idle"),
        [
            ({"cpu": 8}, {"cpu": 1}, None),
            ({"cpu": 8, GPU: 8}, {"cpu": 1, GPU: 8}, None),
            ({GPU: 8}, {GPU: 4}, "8 nvidia.com/gpu, the member requests 4"),
            ({GPU: 8}, {"cpu": 1}, "8 nvidia.com/gpu, the member requests none"),
            ({GPU: 8, "rdma/hca": 2}, {GPU: 8}, "2 rdma/hca, the member requests none"),
            ({GPU: 0}, {"cpu": 1}, None),
            ({CLASS: 8}, {CLASS: 4}, f"8 {CLASS}, the member requests 4"),
            ({CLASS: 8}, {"cpu": 1}, f"8 {CLASS}, the member requests none"),
            ({GPU: 8, CLASS: 8}, {GPU: 8}, None),
        ],
    )
    def test_what_would_lie_idle_is_named(
        self, offered: dict[str, int], requested: dict[str, int], idle: str | None
    ) -> None:
        found = idle_device(offered, requested)
        assert (None if found is None else found.sentence) == idle


class TestFit:
    def test_each_member_takes_a_whole_node_and_nothing_is_left_of_it(self) -> None:
        free = room_of(nodes(3, cpu=8, memory="8Gi"))
        assert placed(alone(2, cpu=1), free) == {"nodes": {"worker": 2}}
        assert sorted(one.free["cpu"] * one.count for one in free.nodes) == [0, 8000]
        assert free.total() == amounts(cpu=8, memory="8Gi")
        assert placed(simple(8, cpu=1), free) == {"nodes": {"worker": 8}}
        assert isinstance(fitted(simple(cpu=1), free), Shortfall)

    def test_members_of_two_roles_share_no_node(self) -> None:
        both = gang(role(1, "head", exclusive=True, cpu=1), role(2, exclusive=True, cpu=1))
        assert isinstance(fitted(both, room_of(nodes(2, cpu=8))), Shortfall)
        assert placed(both, room_of(nodes(3, cpu=8))) == {"nodes": {"head": 1, "worker": 2}}

    def test_members_that_request_nothing_are_alone_as_well(self) -> None:
        assert isinstance(fitted(alone(2, cpu=0), room_of(nodes(1, cpu=0))), Shortfall)

    def test_a_node_with_any_member_is_not_taken(self) -> None:
        free = room_of(nodes(1, cpu=8))
        placed(simple(cpu=1), free)
        assert sentence(alone(cpu=1), free) == (
            "exclusive members take whole nodes: each node that would do for role 'worker' has members on it"
        )

    def test_nodes_with_pods_of_others_are_not_taken(self) -> None:
        free = room_of(nodes(1, "quiet", cpu=8), nodes(2, "busy", occupied=True, cpu=8))
        assert placed(alone(cpu=1), free) == {"quiet": {"worker": 1}}
        assert sentence(alone(cpu=1), room_of(nodes(2, "busy", occupied=True, cpu=8))) == (
            "no node is eligible for a member of role 'worker' alone: exclusive members take whole nodes: other pods are bound "
            "to those of node group busy"
        )

    def test_devices_that_a_member_does_not_request_are_not_left_idle(self) -> None:
        group = nodes(1, "h100", cpu=8, gpu=8)
        assert isinstance(fitted(alone(cpu=1, gpu=8), room_of(group)), Fitted)
        assert sentence(alone(cpu=1, gpu=4), room_of(group)).endswith(
            "exclusive members take whole nodes: node group h100 has 8 nvidia.com/gpu, the member requests 4"
        )
        assert placed(alone(cpu=1), room_of(group, nodes(1, "plain", cpu=2))) == {"plain": {"worker": 1}}

    def test_what_is_missing_is_counted(self) -> None:
        outcome = sentence(alone(3, cpu=1), room_of(nodes(2, cpu=8)))
        assert outcome == "room for 2 of the 3 members of role 'worker', each on a node of its own"

    def test_a_level_holds_as_many_members_as_it_has_nodes(self) -> None:
        racks = [nodes(2, f"r{number}", cpu=8, at=(("rack", f"r{number}"),)) for number in range(2)]
        near = gang(role(2, exclusive=True, cpu=1), required_level="rack")
        free = room_of(*racks)
        placed(simple(cpu=1), free)
        assert placed(near, free) == {"r1": {"worker": 2}}
        assert isinstance(fitted(near, free), Shortfall)

    def test_many_equivalent_gangs_are_placed_as_one_after_the_other(self) -> None:
        free = room_of(nodes(5, cpu=8))
        gangs, together = fit_many(alone(2, cpu=1).roles[0], 2, 4, free)
        assert (len(gangs), together.taken) == (2, amounts(cpu=32))


# -- against brute force

_sizes = st.sampled_from([(1, 0), (2, 0), (2, 1), (4, 2)])


def sized(cpu: int, gpu: int) -> dict[str, Any]:
    return {"cpu": cpu, "gpu": gpu} if gpu else {"cpu": cpu}


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeGroup]:
    return [
        nodes(draw(st.integers(1, 2)), f"g{number}", **({"occupied": draw(st.booleans())} | sized(cpu, gpu)))
        for number, (cpu, gpu) in enumerate(draw(st.lists(_sizes, min_size=1, max_size=3)))
    ]


gangs = st.lists(
    st.builds(
        lambda size, exclusive, cpu, gpu: gang(role(size, exclusive=exclusive, **sized(cpu, gpu))),
        st.integers(1, 3),
        st.booleans(),
        st.integers(1, 2),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=4,
)


def may_have(group: NodeGroup, part: RoleShape) -> bool:
    """Return whether an exclusive member may have an empty node of a group, by the rules as they are written down."""
    devices = {name: amount for name, amount in group.free.items() if "/" in name}
    is_enough = all(group.free.get(name, 0) >= amount for name, amount in part.needs.items())
    return (
        not group.occupied and is_enough and all(part.needs.get(name, 0) == amount for name, amount in devices.items())
    )


def can_share(count: int, group: NodeGroup, members: list[RoleShape]) -> bool:
    """Return whether members find places on ``count`` nodes of a group, by trying all."""
    if not members:
        return True
    for places in product(range(count), repeat=len(members)):
        used = [dict.fromkeys(group.free, 0) for _ in range(count)]
        for place, member in zip(places, members, strict=True):
            for name, amount in member.needs.items():
                used[place][name] = used[place].get(name, 0) + amount
        if all(amount <= group.free.get(name, 0) for node in used for name, amount in node.items()):
            return True
    return False


@given(clusters(), gangs)
def test_no_member_is_beside_an_exclusive_one_and_none_that_fits_is_missed(
    groups: list[NodeGroup], shapes: list[Shape]
) -> None:
    free = room_of(*groups)
    on: dict[str, list[RoleShape]] = {group.name: [] for group in groups}
    for shape in shapes:
        (part,) = shape.roles
        untouched = sum(one.count for one in free.nodes if one.free == one.group.free and may_have(one.group, part))
        outcome = fitted(shape, free)
        if part.exclusive:
            assert isinstance(outcome, Fitted) == (untouched >= part.replicas)
        if isinstance(outcome, Fitted):
            take(free, outcome)
            for name, roles in outcome.placement.items():
                on[name] += [part] * roles["worker"]
    for group in groups:
        whole = [part for part in on[group.name] if part.exclusive]
        assert all(may_have(group, part) for part in whole)
        others = [part for part in on[group.name] if not part.exclusive]
        assert can_share(group.count - len(whole), group, others)
        left = [one for one in free.groups[group.name] for _ in range(one.count)]
        assert sum(not any(one.free.values()) for one in left) >= len(whole)
        for name, amount in group.free.items():
            used = amount * len(whole) + sum(part.needs.get(name, 0) for part in others)
            assert sum(one.free[name] for one in left) == amount * group.count - used


@given(clusters(), gangs)
def test_the_load_of_live_runs_leaves_what_their_starts_left(groups: list[NodeGroup], shapes: list[Shape]) -> None:
    builder = StateBuilder().cluster("c", *groups)
    free = room_of(*groups)
    for number, shape in enumerate(shapes):
        outcome = fitted(shape, free)
        if isinstance(outcome, Fitted):
            take(free, outcome)
            builder.run(f"r{number}", shape, on="c", placement=outcome.placement)
    now = ClusterLayouts(builder.state).now(builder.clusters["c"])
    assert {name: amount for name, amount in now.total().items() if amount} == {
        name: amount for name, amount in free.total().items() if amount
    }
    assert all(amount >= 0 for one in now.nodes for amount in one.free.values())


# -- under load, later, and instead of others


def held(group: str = "nodes", many: int = 1) -> dict[str, dict[str, int]]:
    return {group: {"worker": many}}


def test_a_live_exclusive_run_keeps_its_whole_node() -> None:
    builder = StateBuilder().cluster("c", nodes(2, cpu=4)).job("j", simple(4, cpu=1)).job("k", simple(cpu=1))
    outcome = builder.run("r", alone(cpu=1), on="c", placement=held()).cycle()
    assert outcome.started == ["j"]


def test_small_members_are_packed_beside_an_exclusive_one() -> None:
    """Three members of 3 CPU, packed first, would leave the exclusive one no empty node."""
    builder = StateBuilder().cluster("c", nodes(2, cpu=4)).job("j", simple(cpu=2))
    builder.run("a", simple(2, cpu=1), on="c", placement=held(many=2))
    assert builder.run("r", alone(cpu=1), on="c", placement=held()).cycle().started == ["j"]


def test_a_run_that_is_where_it_should_not_be_is_still_counted() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=4)).run("r", alone(2, cpu=1), on="c", placement=held(many=2))
    assert not any(amount > 0 for one in ClusterLayouts(builder.state).now(1).nodes for amount in one.free.values())


def earliest(builder: StateBuilder, shape: Shape) -> float:
    number = builder.shape(shape)
    timeline = ReleaseTimeline(builder.engine.layouts, builder.clusters["c"], NOW)
    return timeline.earliest(number, size_choices(shape)[0], NOW)


def test_an_exclusive_gang_fits_once_nodes_are_empty() -> None:
    builder = StateBuilder().cluster("c", nodes(2, cpu=4))
    builder.run("short", simple(2, cpu=2, limit=100), on="c", placement=held(many=2))
    builder.run("long", simple(cpu=1, limit=900), on="c", placement=held())
    assert earliest(builder, alone(cpu=1)) == NOW + 100
    assert earliest(builder, alone(2, cpu=1)) == NOW + 900


def test_one_exclusive_member_waits_for_the_last_run_of_a_node() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=4))
    builder.run("short", simple(cpu=1, limit=100), on="c", placement=held())
    builder.run("long", simple(cpu=1, limit=900), on="c", placement=held())
    assert earliest(builder, alone(cpu=1)) == NOW + 900


def test_the_end_of_an_exclusive_run_frees_its_whole_node() -> None:
    exclusive = gang(role(1, exclusive=True, cpu=1), time_limit_seconds=100)
    builder = StateBuilder().cluster("c", nodes(1, cpu=4)).run("r", exclusive, on="c", placement=held())
    assert earliest(builder, simple(cpu=4)) == NOW + 100
    assert earliest(builder, alone(cpu=1)) == NOW + 100


def evicted(builder: StateBuilder) -> list[str]:
    names = {number: name for name, number in builder.ids.items()}
    return sorted(names[one.job_id] for start in builder.cycle().plan.starts for one in start.evicts)


def test_all_runs_of_one_node_are_preempted_for_an_exclusive_job() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=4)).job("j", alone(cpu=1), of="high")
    for name in ("a", "b"):
        builder.run(name, simple(cpu=1), on="c", placement=held(), of="low")
    assert evicted(builder) == ["a", "b"]


def test_an_exclusive_run_is_preempted_for_what_its_node_has_beside_it() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=4)).job("j", simple(cpu=4), of="high")
    builder.run("r", alone(cpu=1), on="c", placement=held(), of="low")
    assert evicted(builder) == ["r"]


TERMS = MoveTerms(after=600.0, most_lost=600.0, most_an_hour=10)


def on_two_nodes(first: Shape, second: Shape, wide: Shape) -> StateBuilder:
    """Return a cluster of two nodes of 4 CPU with a run on each, and a job for which runs may be moved."""
    builder = StateBuilder().queue("main", consolidation=TERMS).cluster("c", nodes(2, "g", cpu=4))
    for name, shape in (("a", first), ("b", second)):
        builder.run(name, shape, on="c", placement=held("g"), ago=7200)
    builder.job("wide", wide, age=3600).returned_for_room("wide", by="c")
    return builder.on_nodes("c", ("a", "g", "n1"), ("b", "g", "n2"))


def saving(shape: Shape) -> Shape:
    return replace(shape, capabilities=("checkpoint",))


def test_a_run_is_moved_that_leaves_an_exclusive_job_a_node() -> None:
    assert len(evicted(on_two_nodes(saving(simple(cpu=1)), saving(simple(cpu=1)), alone(cpu=1)))) == 1


def test_no_run_is_moved_beside_an_exclusive_one() -> None:
    assert evicted(on_two_nodes(saving(alone(cpu=1)), saving(simple(cpu=1)), alone(cpu=1))) == []


def test_nodes_one_by_one_have_nothing_left_beside_an_exclusive_member() -> None:
    builder = on_two_nodes(alone(cpu=1), simple(cpu=1), simple(cpu=1))
    reported = builder.state.member_nodes
    assert reported is not None
    layout = NodeLayout(builder.engine.layouts, 1, builder.state.load[1], reported[1])
    assert sorted(one.free["cpu"] for one in layout.entries("g")) == [0, 3000]
    numbers = builder.ids
    layout.remove(numbers["b"])
    assert layout.helps(numbers["b"], alone(cpu=1).roles)
    layout.remove(numbers["a"])
    assert layout.helps(numbers["a"], simple(cpu=4).roles)
    layout.put_back(numbers["b"])
    layout.put_back(numbers["a"])
    assert sorted(one.free["cpu"] for one in layout.entries("g")) == [0, 3000]


def test_a_run_whose_node_has_others_does_not_help_an_exclusive_job() -> None:
    builder = StateBuilder().cluster("c", nodes(1, "g", cpu=4))
    for name in ("a", "b"):
        builder.run(name, simple(cpu=1), on="c", placement=held("g"))
    builder.on_nodes("c", ("a", "g", "n1"), ("b", "g", "n1"))
    reported = builder.state.member_nodes
    assert reported is not None
    layout = NodeLayout(builder.engine.layouts, 1, builder.state.load[1], reported[1])
    layout.remove(builder.ids["a"])
    assert not layout.helps(builder.ids["a"], alone(cpu=1).roles)
    layout.remove(builder.ids["b"])
    assert layout.helps(builder.ids["b"], alone(cpu=1).roles)


def test_a_job_that_no_node_may_have_alone_says_why() -> None:
    builder = StateBuilder().cluster("c", nodes(1, "h100", cpu=8, gpu=8)).job("j", alone(cpu=1, gpu=4))
    verdict = builder.cycle().verdict("j", "c")
    assert verdict.check is Check.NEVER_FITS
    assert "node group h100 has 8 nvidia.com/gpu, the member requests 4" in verdict.sentence


def test_it_is_charged_what_its_members_request() -> None:
    builder = StateBuilder().queue("main", limits={"cpu": 2}).cluster("c", nodes(2, cpu=8)).job("j", alone(2, cpu=1))
    assert builder.cycle().started == ["j"]


# -- the shape


def test_a_job_asks_for_the_capability_and_its_shape_says_so() -> None:
    template = {"command": ["train"], "resources": {"cpu": "1"}}
    wire = {
        "name": "j",
        "queue": "q",
        "topology": {"exclusive": "node"},
        "roles": [{"name": "w", "template": template}],
    }
    data = shape_of(JobSpec.model_validate(wire))
    assert Capability.EXCLUSIVE_NODES in data["capabilities"]
    shape = shape_from(data)
    assert [part.exclusive for part in shape.roles] == [True]
    assert "topology" not in shape_of(JobSpec.model_validate({**wire, "topology": {}}))
