"""Members with a NUMA policy behind gates: nodes are found only where a zone is free, whatever zones the kubelets have chosen."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_capacity_inventory import inventory, node, pod
from trainmaster.cluster_model.numa_zones import NodeZones
from trainmaster.cluster_model.packing import Need, Node, PackingShortfall, place
from trainmaster.protocol.agent import HOST_LEVEL, StartRun
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.capacity.node_index import AllowedNodes
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, facts_of

GPU = "nvidia.com/gpu"
PODS: dict[str, dict[str, object]] = {"worker": {}}


def topology(name: str, *zones: dict[str, tuple[int, int]], policy: str = "single-numa-node") -> dict[str, Any]:
    """Return a NodeResourceTopology; of each resource of a zone what there is, and what is available."""
    return {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": policy}],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [
                    {"name": resource, "capacity": str(most), "allocatable": str(most), "available": str(left)}
                    for resource, (most, left) in zone.items()
                ],
            }
            for number, zone in enumerate(zones)
        ],
    }


def facts(gpus: int, replicas: int = 1, numa: str = "singleNode") -> Facts:
    template = {"image": "train:1", "command": ["train"], "resources": {"cpu": "1", GPU: str(gpus)}}
    start = StartRun(
        run="bert-7k2p9xq-r1",
        job="bert-7k2p9xq",
        queue="research",
        attempt=1,
        token=1,
        generation=1,
        spec={
            "kind": "Job",
            "name": "bert",
            "queue": "research",
            "topology": {"numa": numa},
            "roles": [{"name": "worker", "replicas": replicas, "template": template}],
        },
        sizes={"worker": replicas},
        placement_timeout_seconds=300,
    )
    return facts_of(start)


def capacity_of(made: Inventory) -> NodeCapacity:
    capacity = NodeCapacity(made)
    capacity.binds_zones = True
    return capacity


def found(capacity: NodeCapacity, wanted: Facts, many: int = 1) -> Any:
    return capacity.find("bert-7k2p9xq-r1", wanted, {"worker": many}, PODS, None)


def with_gpus(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    return node(name, allocatable={"cpu": "64", "pods": "110", GPU: str(gpus)}, **more)


class TestTheLedger:
    def test_sees_that_no_zone_has_what_the_node_has(self) -> None:
        made = inventory(with_gpus("n1", 8))
        made.numa_put(topology("n1", {GPU: (4, 2)}, {GPU: (4, 2)}))
        assert isinstance(found(capacity_of(made), facts(4)), PackingShortfall)
        assert found(capacity_of(made), facts(2)) == {"n1": {"worker": 1}}
        assert found(capacity_of(made), facts(4, numa="none")) == {"n1": {"worker": 1}}

    def test_asks_the_kubelet_to_keep_the_policy(self) -> None:
        made = inventory(with_gpus("n1", 8))
        shortfall = found(capacity_of(made), facts(1))
        assert "reports no NUMA zones" in shortfall.sentence
        made.numa_put(topology("n1", {GPU: (8, 8)}, policy="restricted"))
        assert "policy is restricted, and the job asks for singleNode" in found(capacity_of(made), facts(1)).sentence
        assert found(capacity_of(made), facts(1, numa="restricted")) == {"n1": {"worker": 1}}

    def test_a_pod_that_the_report_does_not_have_yet_may_be_in_any_zone(self) -> None:
        made = inventory(with_gpus("n1", 8))
        made.numa_put(topology("n1", {GPU: (4, 4)}, {GPU: (4, 4)}))
        assert found(capacity_of(made), facts(2), 4) == {"n1": {"worker": 4}}
        made.pod_put(pod(own=True, **{GPU: "2"}))
        assert found(capacity_of(made), facts(2), 2) == {"n1": {"worker": 2}}
        assert isinstance(found(capacity_of(made), facts(2), 3), PackingShortfall)
        made.numa_put(topology("n1", {GPU: (4, 2)}, {GPU: (4, 4)}))
        assert found(capacity_of(made), facts(2), 3) == {"n1": {"worker": 3}}

    def test_a_pod_that_has_ended_may_still_be_in_the_report(self) -> None:
        """The next one may have the other zone, although the sum of all requests is that of the report."""
        made = inventory(with_gpus("n1", 8), pod("old", own=True, **{GPU: "4"}))
        made.numa_put(topology("n1", {GPU: (4, 0)}, {GPU: (4, 4)}))
        made.pod_drop("team/old")
        made.pod_put(pod("new", own=True, **{GPU: "4"}))
        assert isinstance(found(capacity_of(made), facts(4)), PackingShortfall)
        made.numa_put(topology("n1", {GPU: (4, 4)}, {GPU: (4, 0)}))
        assert found(capacity_of(made), facts(4)) == {"n1": {"worker": 1}}

    def test_zones_promised_to_another_run_are_not_free(self) -> None:
        made = inventory(with_gpus("n1", 8))
        made.numa_put(topology("n1", {GPU: (4, 4)}, {GPU: (4, 4)}))
        capacity = capacity_of(made)
        capacity.keep("other-7k2p9xq-r1", facts(2), {"n1": {"worker": 1}})
        assert isinstance(found(capacity, facts(4)), PackingShortfall), "the other one may get either zone"
        capacity.drop("other-7k2p9xq-r1")
        assert found(capacity, facts(4), 2) == {"n1": {"worker": 2}}

    def test_a_node_whose_zones_are_all_too_small_is_refused_for_ever(self) -> None:
        made = inventory(with_gpus("n1", 8))
        made.numa_put(topology("n1", {GPU: (4, 4)}, {GPU: (4, 4)}))
        assert capacity_of(made).never(facts(8), PODS) is not None
        assert capacity_of(made).never(facts(4), PODS) is None


class TestNodesThatEnforceAPolicy:
    def test_are_those_with_it_or_a_stricter_one(self) -> None:
        made = inventory(with_gpus("n1", 8), with_gpus("n2", 8), with_gpus("n3", 8), with_gpus("n4", 8))
        for name, policy in (("n1", "single-numa-node"), ("n2", "restricted"), ("n3", "best-effort")):
            made.numa_put(topology(name, {GPU: (4, 4)}, policy=policy))
        assert capacity_of(made).enforcing("singleNode") == AllowedNodes(HOST_LEVEL, ("n1",))
        assert capacity_of(made).enforcing("restricted") == AllowedNodes(HOST_LEVEL, ("n1", "n2"))

    def test_need_no_names_where_all_do_or_no_policy_is_known(self) -> None:
        made = inventory(with_gpus("n1", 8), with_gpus("n2", 8))
        assert capacity_of(made).enforcing("singleNode") is None
        made.numa_put(topology("n1", {GPU: (4, 4)}))
        made.numa_put(topology("n2", {GPU: (4, 4)}, policy="none"))
        assert capacity_of(made).enforcing("singleNode") == AllowedNodes(HOST_LEVEL, ("n1",))
        made.numa_put(topology("n2", {GPU: (4, 4)}))
        assert capacity_of(made).enforcing("singleNode") is None
        for name in ("n1", "n2"):
            made.numa_put(topology(name, {GPU: (4, 4)}, policy="none"))
        assert capacity_of(made).enforcing("singleNode") == AllowedNodes(HOST_LEVEL, ())


@dataclass
class World:
    """Nodes whose kubelets choose any zone that has room, and reports that come when they come."""

    chance: random.Random
    made: Inventory
    left: dict[str, list[int]]
    """Devices that are really free in each zone, by node."""
    most: dict[str, list[int]]
    members: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Node, zone and devices, by the pod's name."""
    number: int = 0

    def admit(self, name: str, gpus: int) -> bool:
        """Let a kubelet choose a zone; False where no zone has room."""
        zones = [number for number, left in enumerate(self.left[name]) if left >= gpus]
        if not zones:
            return False
        zone = self.chance.choice(zones)
        self.left[name][zone] -= gpus
        self.number += 1
        self.members[f"p{self.number}"] = name, zone, gpus
        self.made.pod_put(pod(f"p{self.number}", on=name, own=True, **{GPU: str(gpus)}))
        return True

    def end(self) -> None:
        if self.members:
            name = self.chance.choice(sorted(self.members))
            node_name, zone, gpus = self.members.pop(name)
            self.left[node_name][zone] += gpus
            self.made.pod_drop(f"team/{name}")

    def report(self, name: str) -> None:
        pairs = zip(self.most[name], self.left[name], strict=True)
        self.made.numa_put(topology(name, *({GPU: pair} for pair in pairs)))


def a_world(seed: int) -> World:
    chance = random.Random(seed)
    most = {f"n{number}": [chance.choice((2, 4, 8)) for _ in range(chance.randint(1, 4))] for number in range(3)}
    made = inventory(*(with_gpus(name, sum(zones)) for name, zones in most.items()))
    world = World(chance, made, {name: list(zones) for name, zones in most.items()}, most)
    for name in most:
        world.report(name)
    return world


@given(st.integers(0, 100_000))
def test_a_member_is_placed_only_where_its_zone_is_free(seed: int) -> None:
    world = a_world(seed)
    capacity = capacity_of(world.made)
    placed = 0
    for _ in range(40):
        match world.chance.choice(("start", "start", "start", "end", "report")):
            case "end":
                world.end()
            case "report":
                world.report(world.chance.choice(sorted(world.most)))
            case _:
                gpus, many = world.chance.choice((1, 2, 4)), world.chance.randint(1, 4)
                places = found(capacity, facts(gpus, many), many)
                if isinstance(places, PackingShortfall):
                    continue
                for name, roles in places.items():
                    for _ in range(roles["worker"]):
                        assert world.admit(name, gpus), (
                            f"{name} has {world.left[name]} and was given {places} of {gpus}"
                        )
                        placed += 1
    assert placed, "the first of all finds an empty cluster"


def test_a_cluster_that_reports_at_once_is_filled_to_the_last_zone() -> None:
    """The lower bound is no excuse: with reports that are up to date each free zone is found."""
    for seed in range(30):
        world = a_world(seed)
        capacity = capacity_of(world.made)
        while any(left >= 2 for zones in world.left.values() for left in zones):
            places = found(capacity, facts(2))
            assert not isinstance(places, PackingShortfall), world.left
            (name,) = places
            assert world.admit(name, 2)
            world.report(name)
        assert isinstance(found(capacity, facts(2)), PackingShortfall)


def every_choice(zones: tuple[int, ...], members: tuple[int, ...]) -> Iterator[bool]:
    """Yield, for each way in which a kubelet may choose zones for members that come in this order, whether all were admitted."""
    if not members:
        yield True
        return
    able = [number for number, left in enumerate(zones) if left >= members[0]]
    if not able:
        yield False
    for number in able:
        left = (*zones[:number], zones[number] - members[0], *zones[number + 1 :])
        yield from every_choice(left, members[1:])


def test_roles_of_other_sizes_are_on_a_node_only_if_any_order_and_any_choice_admits_them() -> None:
    """All nodes of up to three zones, with all pairs of roles that have up to two members each."""
    zones = [sizes for many in (1, 2, 3) for sizes in product((2, 4, 5), repeat=many)]
    roles = list(product(range(1, 5), (1, 2)))
    admitted = 0
    for sizes, pair in product(zones, product(roles, repeat=2)):
        amounts: list[Resources] = [{GPU: size} for size in sizes]
        one = Node("n1", {GPU: sum(sizes)}, zones=NodeZones.of("singleNode", amounts, amounts))
        needs = [Need(f"r{number}", many, {GPU: size}, numa="singleNode") for number, (size, many) in enumerate(pair)]
        if isinstance(place([one], {"n1": {GPU: sum(sizes)}}, needs), PackingShortfall):
            continue
        admitted += 1
        for order in set(permutations([size for size, many in pair for _ in range(many)])):
            assert all(every_choice(sizes, order)), f"{sizes} do not always admit {order}"
    assert admitted > 100
