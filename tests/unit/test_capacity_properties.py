"""What holds for every history of nodes and pods."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_capacity_inventory import OWN, guaranteed, node, numa, pod, zone
from tests.unit.test_capacity_topology import exact, hyper_node, topology
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import parse_quantity
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.groups import OUT
from trainmaster_agent.capacity.inventory import Capacity, Inventory, Kind
from trainmaster_agent.capacity.requests import bound_requests

GPU, RACK = "nvidia.com/gpu", "topology.kubernetes.io/rack"
NODES = [f"n{index}" for index in range(24)]
names = st.sampled_from(NODES)


@st.composite
def some_node(draw: st.DrawFn) -> dict[str, Any]:
    labels = {RACK: draw(st.sampled_from("ab")), "particular": draw(names)} if draw(st.booleans()) else {}
    allocatable = {
        "cpu": draw(st.sampled_from(["4", "64", "63900m"])),
        "memory": draw(st.sampled_from(["8Gi", "700Gi", "1000000000"])),
        GPU: draw(st.sampled_from(["0", "3", "8"])),
        "pods": draw(st.sampled_from(["2", "10"])),
    }
    taints = [{"key": "t", "value": draw(names), "effect": "NoSchedule"}] if draw(st.integers(0, 4)) == 0 else []
    return node(
        draw(names),
        draw(st.integers(0, 9)) > 0,
        labels,
        allocatable=allocatable,
        taints=taints,
        unschedulable=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def some_pod(draw: st.DrawFn) -> dict[str, Any]:
    requests = {
        "cpu": draw(st.sampled_from(["0", "1m", "1500m", "70"])),
        "memory": draw(st.sampled_from(["0", "1", "3Gi"])),
    }
    if draw(st.booleans()):
        requests[GPU] = draw(st.sampled_from(["1", "4"]))
    name, phase = f"p{draw(st.integers(0, 40))}", draw(st.sampled_from(["Running", "Pending", "Failed"]))
    made = pod(name, draw(names), draw(st.booleans()), phase, **requests)
    return guaranteed(made) if draw(st.booleans()) else made


def zones_of(name: str, left: int) -> dict[str, Any]:
    return numa(zone("0", "4", str(left)), zone("1", "4", "4")) | {"metadata": {"name": name}}


hyper_nodes = st.builds(lambda name, at: hyper_node(name, 1, ("Node", exact(at))), st.sampled_from("xy"), names)
Event = tuple[str, Any]
event = st.one_of(
    st.tuples(st.just("node"), some_node()),
    st.tuples(st.just("node"), some_node()),
    st.tuples(st.just("pod"), some_pod()),
    st.tuples(st.just("pod"), some_pod()),
    st.tuples(st.just("numa"), st.builds(zones_of, names, st.integers(0, 4))),
    st.tuples(st.just("hyper"), hyper_nodes),
    st.tuples(st.just("topology"), st.builds(topology, st.sampled_from("ab"), st.sampled_from(["particular", RACK]))),
    st.tuples(st.just("drop node"), names),
    st.tuples(st.just("drop pod"), st.integers(0, 40).map("team/p{}".format)),
    st.tuples(st.just("relist"), st.sampled_from([Kind.NUMA, Kind.HYPER_NODE, Kind.KAI_TOPOLOGY])),
    st.tuples(st.just("report"), st.none()),
)


class World:
    """What there is in the end: objects by kind and key, put into an inventory in any order."""

    def __init__(self, most_groups: int) -> None:
        self.config = CapacityConfig.model_validate({"mostGroups": most_groups, "labels": ["particular"]})
        self.live = Inventory(self.config, OWN)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def happen(self, what: str, value: Any) -> None:
        kinds = {Kind.NUMA: "numa", Kind.HYPER_NODE: "hyper", Kind.KAI_TOPOLOGY: "topology"}
        match what:
            case "report":
                self.live.report()
            case "relist":
                self.live.relisted(value, ())
                self.objects = {key: obj for key, obj in self.objects.items() if key[0] != kinds[value]}
            case "drop node":
                self.live.node_drop(value)
                self.objects.pop(("node", value), None)
            case "drop pod":
                self.live.pod_drop(value)
                self.objects.pop(("pod", value.partition("/")[2]), None)
            case _:
                put(self.live, what, value)
                self.objects[what, value["metadata"]["name"]] = value

    def anew(self) -> Inventory:
        made = Inventory(self.config, OWN)
        for (what, _), obj in sorted(self.objects.items(), reverse=True):
            put(made, what, obj)
        return made

    def exact_free(self, name: str) -> dict[str, int]:
        """Return allocatable minus what foreign pods that have not ended request, never less than zero."""
        obj = self.objects["node", name]
        free = {key: parse_quantity(key, text) for key, text in obj["status"]["allocatable"].items() if key != "pods"}
        for (what, _), other in self.objects.items():
            is_foreign = what == "pod" and OWN[0] not in other["metadata"]["labels"]
            if is_foreign and other["spec"]["nodeName"] == name and other["status"]["phase"] != "Failed":
                for key, amount in pod_requests(other).items():
                    free[key] = free.get(key, 0) - amount
        return {key: max(0, amount) for key, amount in free.items()}


def put(made: Inventory, what: str, obj: dict[str, Any]) -> None:
    match what:
        case "node":
            made.node_put(obj)
        case "pod":
            made.pod_put(obj)
        case "numa":
            made.numa_put(obj)
        case "hyper":
            made.hyper_node_put(obj)
        case "topology":
            made.topology_put(Kind.KAI_TOPOLOGY, obj)


def after(events: list[Event], most_groups: int) -> tuple[World, Capacity]:
    world = World(most_groups)
    for what, value in events:
        world.happen(what, value)
    return world, world.live.report()


def fleet(particular: bool, step: int) -> list[Event]:
    """Return all nodes, no two of them equal."""
    made = []
    for index, name in enumerate(NODES):
        labels = {RACK: "ab"[index % 2], "particular": name if particular else "x", GPU + ".product": f"P{index // 8}"}
        allocatable = {"cpu": f"{100 + index * step}", "memory": f"{500 + index * step}Gi", GPU: "8"}
        made.append(("node", node(name, labels=labels, allocatable=allocatable)))
    return made


begins = st.sampled_from([[], [], fleet(True, 0), fleet(False, 1), fleet(True, 40)])
histories = st.builds(lambda begin, events: [*begin, *events], begins, st.lists(event, min_size=5, max_size=120))


@given(histories, st.sampled_from([10, 1500]))
def test_a_report_depends_on_what_is_there_and_not_on_what_was(events: list[Event], most_groups: int) -> None:
    world, report = after(events, most_groups)
    fresh = world.anew()
    assert fresh.report()[:2] == report[:2]
    assert fresh.counts() == world.live.counts()
    for name in NODES:
        assert fresh.group_of(name) == world.live.group_of(name)
        assert fresh.free_now(name) == world.live.free_now(name)


@given(histories)
def test_groups_have_what_is_free_less_at_most_a_grid_unit(events: list[Event]) -> None:
    world, report = after(events, 1500)
    groups = {group.name: group for group in report.groups if OUT.key not in {taint.key for taint in group.taints}}
    members = dict.fromkeys(groups, 0)
    for name in NODES:
        group = groups.get(world.live.group_of(name) or "")
        if group is None:
            continue
        members[group.name] += 1
        for resource, amount in world.exact_free(name).items():
            unit = {"cpu": 500, "memory": 2**30}.get(resource, 1)
            assert 0 <= amount - group.free.get(resource, 0) < unit
    assert members == {name: group.count for name, group in groups.items()}
    assert sum(members.values()) == world.live.counts().ready


@given(histories)
def test_there_are_never_more_groups_than_allowed_and_none_promises_what_is_not_there(events: list[Event]) -> None:
    world, report = after(events, 10)
    assert len(report.groups) <= 10
    assert len(report.groups) < 10 or sum(group.count for group in report.groups) >= 10
    by_name = {group.name: group for group in report.groups}
    for name in NODES:
        group = by_name.get(world.live.group_of(name) or "")
        if group is not None and group.free:
            free = world.exact_free(name)
            assert all(free[resource] >= amount for resource, amount in group.free.items())


amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", GPU]),
    st.sampled_from(["1", "0", "250m", "1Gi", "1e3", 2, 0.5, "4Ei", "-1", "x", None, True]),
    max_size=3,
)
resources = st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts})
containers = st.lists(
    st.fixed_dictionaries({}, optional={"resources": resources | st.none(), "restartPolicy": st.just("Always")}),
    max_size=3,
)
templates = st.fixed_dictionaries(
    {"containers": containers},
    optional={"initContainers": containers, "overhead": amounts, "resources": resources},
)


def without_idle_limits(spec: dict[str, Any]) -> dict[str, Any]:
    """Return ``spec`` without the limits of resources that are requested too."""
    made = []
    for one in spec["containers"]:
        given = one.get("resources") or {}
        requests = given.get("requests") or {}
        limits = {name: text for name, text in (given.get("limits") or {}).items() if name not in requests}
        made.append(one | {"resources": {"requests": requests, "limits": limits}})
    return spec | {"containers": made}


@given(templates)
def test_the_short_way_to_requests_tells_what_the_formula_tells(spec: dict[str, Any]) -> None:
    requests, is_read = bound_requests({"spec": spec})
    try:
        expected = pod_requests({"spec": spec})
    except ValueError:
        # It does not mind a limit that cannot be read where there is a request as well.
        assert not is_read or requests == pod_requests({"spec": without_idle_limits(spec)})
    else:
        assert (requests, is_read) == (expected, True)
