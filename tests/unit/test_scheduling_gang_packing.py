"""Whole-gang fit: where all members find nodes at once, and what is said when they do not."""

import pytest
import yaml

from tests.unit.building import GPU, StateBuilder, amounts, gang, nodes, role, simple
from trainmaster.protocol.agent import HOST_LEVEL, CapacityReport, NodeGroup, Taint
from trainmaster.protocol.jobs import AffinityTerm, JobSpec, Toleration
from trainmaster_dispatcher.domain.shapes import Shape, shape_from, shape_of
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Shortfall, fit, size_choices, take


def free_of(*groups: NodeGroup) -> FreeCapacity:
    return FreeCapacity.empty(CapacityReport(groups=groups, runtime="local", scheduler="local"))


def tried(shape: Shape, *groups: NodeGroup) -> dict[str, dict[str, int]] | str:
    outcome = fit(shape, size_choices(shape)[0].members, free_of(*groups))
    return outcome.placement if isinstance(outcome, Fitted) else outcome.sentence


def rack(name: str, count: int, zone: str = "a", cpu: int = 4) -> NodeGroup:
    return nodes(count, f"{zone}-{name}", at=(("zone", zone), ("rack", name)), cpu=cpu)


GPU_TAINT = Taint(key=GPU, value="present", effect="NoSchedule")
FITS: dict[str, tuple[Shape, list[NodeGroup], dict[str, dict[str, int]]]] = {
    "one member on one node": (simple(), [nodes()], {"nodes": {"worker": 1}}),
    "several members on one node": (simple(4), [nodes()], {"nodes": {"worker": 4}}),
    "a gang over several nodes": (simple(7, cpu=2), [nodes(4)], {"nodes": {"worker": 7}}),
    "members apart, over groups": (
        gang(role(3, max_per_node=1)),
        [nodes(2, "a", cpu=4), nodes(2, "b", cpu=8)],
        {"a": {"worker": 2}, "b": {"worker": 1}},
    ),
    "two on a node at most": (gang(role(5, max_per_node=2)), [nodes(3, cpu=4)], {"nodes": {"worker": 5}}),
    "one role apart, another one anywhere": (
        gang(role(2, "server", cpu=1, max_per_node=1), role(6, "worker", cpu=1)),
        [nodes(2, cpu=4)],
        {"nodes": {"server": 2, "worker": 6}},
    ),
    "members that need nothing": (gang(role(9, cpu=0)), [nodes()], {"nodes": {"worker": 9}}),
    "several roles, the largest member first": (
        gang(role(4, "small", cpu=1), role(1, "big", cpu=4)),
        [nodes(1, "a", cpu=4), nodes(1, "b", cpu=4)],
        {"a": {"big": 1}, "b": {"small": 4}},
    ),
    "roles that share a node": (
        gang(role(1, "launcher", cpu=1), role(1, "worker", cpu=3)),
        [nodes()],
        {"nodes": {"launcher": 1, "worker": 1}},
    ),
    "the tightest node": (simple(), [nodes(1, "large", cpu=9), nodes(1, "small", cpu=2)], {"small": {"worker": 1}}),
    "nodes without devices for those who need none": (
        simple(),
        [nodes(1, "gpu", cpu=2, gpu=8), nodes(1, "plain", cpu=64)],
        {"plain": {"worker": 1}},
    ),
    "extended resources": (
        simple(2, gpu=4, cpu=1),
        [nodes(9, "plain", cpu=8), nodes(1, "gpu", cpu=8, gpu=8)],
        {"gpu": {"worker": 2}},
    ),
    "a node selector": (
        gang(role(node_selector=(("disk", "ssd"),))),
        [nodes(1, "hdd", labels={"disk": "hdd"}), nodes(1, "ssd", labels={"disk": "ssd"})],
        {"ssd": {"worker": 1}},
    ),
    "a number that must be greater": (
        gang(role(affinity=(AffinityTerm(key="speed", operator="Gt", values=("100",)),))),
        [
            nodes(1, "slow", labels={"speed": "25"}),
            nodes(1, "odd", labels={"speed": "--5"}),
            nodes(1, "fast", labels={"speed": "400"}),
        ],
        {"fast": {"worker": 1}},
    ),
    "all terms of the affinity": (
        gang(
            role(
                affinity=(
                    AffinityTerm(key="gpu", operator="Exists"),
                    AffinityTerm(key="gpu", operator="NotIn", values=("t4",)),
                    AffinityTerm(key="broken", operator="DoesNotExist"),
                )
            )
        ),
        [
            nodes(1, "none"),
            nodes(1, "t4", labels={"gpu": "t4"}),
            nodes(1, "broken", labels={"gpu": "h100", "broken": ""}),
            nodes(1, "h100", labels={"gpu": "h100"}),
        ],
        {"h100": {"worker": 1}},
    ),
    "a taint that is tolerated": (
        gang(role(tolerations=(Toleration(key=GPU, operator="Exists"),))),
        [nodes(1, "gpu", taints=(GPU_TAINT,))],
        {"gpu": {"worker": 1}},
    ),
    "a taint that only prefers": (
        simple(),
        [nodes(1, "gpu", taints=(GPU_TAINT.model_copy(update={"effect": "PreferNoSchedule"}),))],
        {"gpu": {"worker": 1}},
    ),
    "one rack for all members": (
        gang(role(8), required_level="rack"),
        [rack("r1", 1), rack("r2", 2)],
        {"a-r2": {"worker": 8}},
    ),
    "the smallest rack that suffices": (
        gang(role(3), required_level="rack"),
        [rack("r1", 3), rack("r2", 1)],
        {"a-r2": {"worker": 3}},
    ),
    "a wider level may spread over racks": (
        gang(role(8), required_level="zone"),
        [rack("r1", 1), rack("r2", 1)],
        {"a-r1": {"worker": 4}, "a-r2": {"worker": 4}},
    ),
    "a preferred rack where one has room for all": (
        gang(role(5), preferred_level="rack"),
        [rack("r1", 1), rack("r2", 2)],
        {"a-r2": {"worker": 5}},
    ),
    "several racks where none has": (
        gang(role(8), preferred_level="rack"),
        [rack("r1", 1), rack("r2", 1)],
        {"a-r1": {"worker": 4}, "a-r2": {"worker": 4}},
    ),
    "anywhere where nobody knows of racks": (
        gang(role(2), preferred_level="rack"),
        [nodes(2, cpu=1)],
        {"nodes": {"worker": 2}},
    ),
    "roles in another order where the largest first finds no place": (
        gang(role(3, "a", cpu=3), role(1, "b", cpu=4)),
        [nodes(1, "six", cpu=6), nodes(1, "eight", cpu=8)],
        {"six": {"a": 2}, "eight": {"a": 1, "b": 1}},
    ),
    "the same inside a rack": (
        gang(role(3, "a", cpu=3), role(1, "b", cpu=4), required_level="rack"),
        [
            nodes(1, "six", cpu=6, at=(("rack", "r1"),)),
            nodes(1, "eight", cpu=8, at=(("rack", "r1"),)),
        ],
        {"six": {"a": 2}, "eight": {"a": 1, "b": 1}},
    ),
    "one host for all members": (
        gang(role(3), required_level=HOST_LEVEL),
        [nodes(5, "small", cpu=2), nodes(1, "large", cpu=3)],
        {"large": {"worker": 3}},
    ),
}
MISSES: dict[str, tuple[Shape, list[NodeGroup], str]] = {
    "no order of roles helps": (
        gang(role(2, "a", cpu=3), role(1, "b", cpu=4)),
        [nodes(2, cpu=5)],
        "room for 1 of the 2 members of role 'a'",
    ),
    "no node is large enough": (simple(cpu=5), [nodes(9)], "needs 5 cpu on one node, the best node has 4"),
    "no node has the device": (simple(gpu=1), [nodes()], f"needs 1 {GPU} on one node, the best node has 0"),
    "no node has all at once": (
        simple(cpu=4, memory="4Gi"),
        [nodes(1, "a", cpu=4, memory="1Gi"), nodes(1, "b", cpu=1, memory="4Gi")],
        "no single node has all that a member of role 'worker' needs",
    ),
    "almost enough memory is said to the byte": (
        simple(memory=2**32),
        [nodes(1, memory=2**32 - 1)],
        f"needs {2**32} memory on one node, the best node has {2**32 - 1}",
    ),
    "only some members have room": (simple(9), [nodes(2)], "room for 8 of the 9 members of role 'worker'"),
    "members apart on too few nodes": (
        gang(role(3, max_per_node=1)),
        [nodes(2)],
        "room for 2 of the 3 members of role 'worker', with at most 1 on a node",
    ),
    "together there would be enough, on one node there is not": (
        simple(cpu=3),
        [nodes(9, cpu=2)],
        "needs 3 cpu on one node, the best node has 2",
    ),
    "the other roles take what is there": (
        gang(role(1, "big", cpu=3), role(1, "small", cpu=2)),
        [nodes()],
        "needs 2 cpu on one node, the best node has 1 beside the other roles",
    ),
    "no node is selected": (
        gang(role(node_selector=(("disk", "ssd"),))),
        [nodes(labels={"disk": "hdd"})],
        "no node matches what role 'worker' selects or tolerates: a label disk=ssd is needed",
    ),
    "a taint is not tolerated": (
        simple(),
        [nodes(taints=(GPU_TAINT,))],
        f"no node matches what role 'worker' selects or tolerates: taint {GPU_TAINT.key}={GPU_TAINT.value}:NoSchedule "
        "is not tolerated",
    ),
    "what keeps it off most nodes comes first": (
        gang(role(node_selector=(("disk", "ssd"),))),
        [nodes(1, name="taken", labels={"disk": "ssd"}, taints=(GPU_TAINT,)), nodes(2, name="slow")],
        "no node matches what role 'worker' selects or tolerates: a label disk=ssd is needed; on others, "
        f"taint {GPU_TAINT.key}={GPU_TAINT.value}:NoSchedule is not tolerated",
    ),
    "there is no node": (simple(), [], "no node matches what role 'worker' selects or tolerates"),
    "no rack has room": (
        gang(role(8), required_level="rack"),
        [rack("r1", 1), rack("r2", 1, cpu=7)],
        "no rack has room for all members; in the last one looked at, room for 7 of the 8 members of role 'worker'",
    ),
    "the only rack has no room": (
        gang(role(8), required_level="rack"),
        [rack("r1", 1)],
        "room for 4 of the 8 members of role 'worker' in one rack",
    ),
    "racks of one name in two zones are two racks": (
        gang(role(8), required_level="rack"),
        [rack("r1", 1, zone="a"), rack("r1", 1, zone="b")],
        "no rack has room for all members; in the last one looked at, room for 4 of the 8 members of role 'worker'",
    ),
    "no node knows the level": (
        gang(role(), required_level="rack"),
        [nodes()],
        "no node has the topology level 'rack'",
    ),
    "no host has room": (
        gang(role(5), required_level=HOST_LEVEL),
        [nodes(2)],
        f"no {HOST_LEVEL} has room for all members; in the last one looked at, room for 4 of the 5 members of role 'worker'",
    ),
}


@pytest.mark.parametrize(("shape", "groups", "placement"), FITS.values(), ids=FITS)
def test_a_gang_takes(shape: Shape, groups: list[NodeGroup], placement: dict[str, dict[str, int]]) -> None:
    assert tried(shape, *groups) == placement


@pytest.mark.parametrize(("shape", "groups", "sentence"), MISSES.values(), ids=MISSES)
def test_a_gang_does_not_fit_where(shape: Shape, groups: list[NodeGroup], sentence: str) -> None:
    assert tried(shape, *groups) == sentence


def test_a_try_changes_nothing_and_a_take_takes() -> None:
    space = free_of(nodes(2))
    before = dict(space.total())
    outcome = fit(simple(3), {"worker": 3}, space)
    assert isinstance(outcome, Fitted)
    assert isinstance(fit(simple(9), {"worker": 9}, space), Shortfall)
    assert [(one.free, one.count) for one in space.nodes] == [({"cpu": 4000}, 2)]
    assert space.total() == before
    take(space, outcome)
    assert space.total() == {"cpu": 5000}


SIZES: dict[str, tuple[Shape, list[dict[str, int]]]] = {
    "a plain gang has one size": (simple(4), [{"worker": 4}]),
    "an elastic role has two": (gang(role(8, least=2)), [{"worker": 8}, {"worker": 2}]),
    "a role that may be missing": (
        gang(role(1, "launcher"), role(4, least=0)),
        [{"launcher": 1, "worker": 4}, {"launcher": 1, "worker": 0}],
    ),
    "minMember above the minima of the roles is met in proportion": (
        gang(role(4, "a", least=1), role(4, "b", least=1), least=6),
        [{"a": 4, "b": 4}, {"a": 3, "b": 3}],
    ),
    "minMember of all members leaves one size": (gang(role(8, least=2), least=8), [{"worker": 8}]),
    "a gang is never empty": (gang(role(3, least=0), least=1), [{"worker": 3}, {"worker": 1}]),
}


@pytest.mark.parametrize(("shape", "sizes"), SIZES.values(), ids=SIZES)
def test_the_sizes_to_try(shape: Shape, sizes: list[dict[str, int]]) -> None:
    choices = size_choices(shape)
    assert [choice.members for choice in choices] == sizes
    for choice in choices:
        assert choice.needs.get("cpu", 0) == 1000 * choice.total


# -- the room that our own runs leave


def test_members_that_run_apart_leave_no_node_whole() -> None:
    builder = StateBuilder().cluster("c", nodes(2, cpu=4)).job("j", simple(cpu=4))
    apart = gang(role(2, cpu=1, max_per_node=1))
    assert builder.run("r", apart, on="c", placement={"nodes": {"worker": 2}}).cycle().started == []
    together = StateBuilder().cluster("c", nodes(2, cpu=4)).job("j", simple(cpu=4))
    assert together.run("r", simple(2), on="c", placement={"nodes": {"worker": 2}}).cycle().started == ["j"]


def test_runs_that_are_where_they_should_not_be_are_still_counted() -> None:
    """A cluster that has put four members on three nodes has them there."""
    builder = (
        StateBuilder()
        .cluster("c", nodes(3, cpu=2))
        .run("r", gang(role(4, cpu=1, max_per_node=1)), on="c", placement={"nodes": {"worker": 4}})
    )
    assert ClusterLayouts(builder.state).now(1).total() == amounts(cpu=2)


def left(builder: StateBuilder, cluster: str = "c") -> list[dict[str, int]]:
    nodes = ClusterLayouts(builder.state).now(builder.clusters[cluster]).nodes
    return [one.free for one in nodes for _ in range(one.count)]


ROOMS: dict[str, tuple[StateBuilder, list[dict[str, int]]]] = {
    "a run takes from the group that it was placed in": (
        StateBuilder()
        .cluster("c", nodes(1, "a", cpu=4), nodes(1, "b", cpu=4))
        .run("r", simple(2), on="c", placement={"b": {"worker": 2}}),
        [{"cpu": 4000}, {"cpu": 2000}],
    ),
    "members without a place yet take the tightest node": (
        StateBuilder().cluster("c", nodes(1, "a", cpu=4), nodes(1, "b", cpu=2)).run("r", simple(), on="c"),
        [{"cpu": 4000}, {"cpu": 1000}],
    ),
    "members of a group that is gone take from the others": (
        StateBuilder().cluster("c", nodes(1, "a", cpu=4)).run("r", simple(3), on="c", placement={"z": {"worker": 3}}),
        [{"cpu": 1000}],
    ),
    "an agent's word makes no more members than the run has": (
        StateBuilder()
        .cluster("c", nodes(1, "a", cpu=4))
        .run("r", simple(2), on="c", placement={"a": {"worker": 10**15}}),
        [{"cpu": 2000}],
    ),
    "members that fit no node in this layout use what is free all the same": (
        StateBuilder()
        .cluster("c", nodes(2, cpu=4))
        .run("one", simple(cpu=1), on="c", placement={"nodes": {"worker": 1}})
        .run("two", simple(2, cpu=2), on="c", placement={"nodes": {"worker": 2}})
        .run("three", simple(cpu=3), on="c", placement={"nodes": {"worker": 1}}),
        [{"cpu": 0}, {"cpu": 0}],
    ),
    "a cluster that has shrunk under its runs owes": (
        StateBuilder().cluster("c", nodes(1, "a", cpu=2)).run("r", simple(1, cpu=3), on="c"),
        [{"cpu": -1000}],
    ),
    "runs elsewhere take nothing here": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes()).run("r", simple(4), on="d"),
        [{"cpu": 4000}],
    ),
    "a cluster that has not reported has no nodes": (StateBuilder().cluster("c", silent=True).run("r", on="c"), []),
}


@pytest.mark.parametrize(("builder", "free"), ROOMS.values(), ids=ROOMS)
def test_the_room_left(builder: StateBuilder, free: list[dict[str, int]]) -> None:
    assert left(builder) == free


def test_nothing_new_starts_where_the_cluster_has_shrunk_under_its_runs() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=2)).run("r", simple(cpu=3), on="c").job("j", simple(cpu="0.5"))
    assert (
        builder.cycle().reason("j").sentence
        == "It waits for free capacity; c: needs 0.5 cpu on one node, the best node has 0."
    )


def test_amounts_of_the_builder_are_those_of_kubernetes() -> None:
    assert amounts(cpu="1.5", memory="1Gi", gpu=2) == {"cpu": 1500, "memory": 2**30, GPU: 2}


LEAST_SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "minMember alone, in proportion": (
        "roles: [{name: s, replicas: 2}, {name: w, replicas: 8}]\nminMember: 5",
        {"s": 1, "w": 4},
    ),
    "one of each role at least": (
        "roles: [{name: s, replicas: 2}, {name: w, replicas: 8}]\nminMember: 1",
        {"s": 1, "w": 1},
    ),
    "many small roles": (
        "roles: [{name: a}, {name: b}, {name: c}, {name: w, replicas: 97}]\nminMember: 10",
        {"a": 1, "b": 1, "c": 1, "w": 7},
    ),
    "minReplicas of some, all of the others": (
        "roles: [{name: s, replicas: 2}, {name: w, replicas: 8, minReplicas: 3}]",
        {"s": 2, "w": 3},
    ),
    "minReplicas filled up to minMember": (
        "roles: [{name: s, replicas: 4, minReplicas: 1}, {name: w, replicas: 8, minReplicas: 2}]\nminMember: 6",
        {"s": 2, "w": 4},
    ),
    "minMember of all": ("roles: [{name: s, replicas: 2}, {name: w, replicas: 8}]\nminMember: 10", {"s": 2, "w": 8}),
}


@pytest.mark.parametrize(("text", "least"), LEAST_SIZES.values(), ids=LEAST_SIZES)
def test_the_least_size_of_a_job_is(text: str, least: dict[str, int]) -> None:
    data = yaml.safe_load(f"kind: Job\nname: a\nqueue: q\n{text}")
    for part in data["roles"]:
        part["template"] = {"command": ["true"]}
    sizes = size_choices(shape_from(shape_of(JobSpec.model_validate(data))))
    assert sizes[0].members == {part["name"]: part.get("replicas", 1) for part in data["roles"]}
    assert sizes[-1].members == least
    assert len(sizes) == (1 if least == sizes[0].members else 2)
