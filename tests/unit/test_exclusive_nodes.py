"""Nodes that a member has for itself, on the side of the cluster: the agent's ledger and report, pods, and simulated nodes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulation_building import cluster, group, order, state, stop
from tests.unit.simulation_building import role as simulated_role
from tests.unit.test_capacity_inventory import GIB, inventory, node, pod
from tests.unit.test_kubernetes_manifests import RUN, made, role
from tests.unit.workload_manifests import SAMPLES
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.cluster_model.packing import Need, Node, PackingShortfall, place
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import RunState
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, facts_of

ALONE = {"topology": {"exclusive": "node"}}
PODS: dict[str, dict[str, object]] = {"worker": {}}
GPU = "nvidia.com/gpu"


def facts(replicas: int = 1, *, exclusive: bool = True, gpus: int = 0) -> Facts:
    resources = {"cpu": "1"} | ({GPU: str(gpus)} if gpus else {})
    template = {"image": "train:1", "command": ["train"], "resources": resources}
    spec: dict[str, Any] = {
        "name": "bert",
        "queue": "q",
        "roles": [{"name": "worker", "replicas": replicas, "template": template}],
    }
    start = StartRun(
        run=RUN,
        job=RUN.removesuffix("-r1"),
        queue="q",
        attempt=1,
        token=1,
        generation=1,
        spec=spec | (ALONE if exclusive else {}),
        sizes={"worker": replicas},
        placement_timeout_seconds=300,
    )
    return facts_of(start)


def of_daemon_set(obj: dict[str, Any], kind: str = "DaemonSet") -> dict[str, Any]:
    obj["metadata"]["ownerReferences"] = [{"kind": kind, "name": "d"}]
    return obj


def exclusive(obj: dict[str, Any]) -> dict[str, Any]:
    obj["metadata"]["labels"]["trainmaster.dev/exclusive"] = "node"
    return obj


def found(ledger: Inventory, wanted: Facts, run: str = RUN) -> dict[str, dict[str, int]] | str:
    sizes = {"worker": wanted.spec.roles[0].replicas}
    outcome = NodeCapacity(ledger).find(run, wanted, sizes, PODS, None)
    return outcome.sentence if isinstance(outcome, PackingShortfall) else outcome


class TestTheReport:
    def test_nodes_with_pods_of_others_are_groups_of_their_own(self) -> None:
        """The pod requests less than a step of the grid, so that both nodes have the same free amounts but for that."""
        ledger = inventory(node("quiet"), node("busy"), pod(on="busy", cpu="0"))
        ledger.report()
        groups = {one.name: one for one in ledger.report().groups}
        occupied = {name: groups[str(ledger.group_of(name))].occupied for name in ("quiet", "busy")}
        assert occupied == {"quiet": False, "busy": True}

    @pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
    def test_pods_that_each_node_has_share_no_node(self, kind: str) -> None:
        (only,) = (
            inventory(node(), of_daemon_set(pod(cpu="100m"), kind), pod("ours", own=True, cpu="1")).report().groups
        )
        assert not only.occupied

    def test_a_node_is_no_longer_shared_once_the_pod_has_ended(self) -> None:
        ledger = inventory(node(), pod(cpu="1"))
        (before,) = ledger.report().groups
        ledger.pod_put(pod(cpu="1", phase="Succeeded"))
        (after,) = ledger.report().groups
        assert (before.occupied, after.occupied) == (True, False)

    def test_an_exclusive_member_counts_as_what_it_requests_and_leaves_nothing(self) -> None:
        ledger = inventory(node(), exclusive(pod(own=True, cpu="1")))
        (only,) = ledger.report().groups
        assert only.free == {"cpu": 8000, "memory": 32 * GIB}
        assert ledger.free_now("n1") == {"cpu": 0, "memory": 0, "pods": 0}


class TestTheLedger:
    def test_finds_a_node_without_pods_of_others_and_without_members(self) -> None:
        ledger = inventory(
            node("n1"), node("n2"), node("n3"), pod(on="n1", cpu="1"), pod("p2", on="n2", own=True, cpu="1")
        )
        assert found(ledger, facts()) == {"n3": {"worker": 1}}
        assert "each on a node without other members, there is room for 1" in str(found(ledger, facts(2)))
        assert found(ledger, facts(2, exclusive=False)) != {"n3": {"worker": 2}}

    def test_gives_no_member_of_another_run_the_node_of_an_exclusive_one(self) -> None:
        ledger = inventory(node("n1"), exclusive(pod(own=True, cpu="1")))
        assert "the freest node has 0" in str(found(ledger, facts(exclusive=False)))

    def test_reserves_whole_nodes_until_the_members_are_bound(self) -> None:
        capacity = NodeCapacity(inventory(node("n1"), node("n2")))
        wanted = facts()
        first = capacity.find(RUN, wanted, {"worker": 1}, PODS, None)
        assert not isinstance(first, PackingShortfall)
        capacity.keep(RUN, wanted, first)
        (taken,) = first
        other = capacity.find("other-r1", facts(8, exclusive=False), {"worker": 8}, PODS, None)
        assert not isinstance(other, PackingShortfall)
        assert taken not in other
        assert isinstance(capacity.find("other-r1", facts(2), {"worker": 2}, PODS, None), PackingShortfall)
        capacity.drop(RUN)
        assert not isinstance(capacity.find("other-r1", facts(2), {"worker": 2}, PODS, None), PackingShortfall)

    def test_names_the_devices_that_would_lie_idle(self) -> None:
        ledger = inventory(node(allocatable={GPU: "8"}))
        words = f"it has 8 {GPU}, the member requests 4"
        assert words in str(found(ledger, facts(gpus=4)))
        assert words in str(NodeCapacity(ledger).never(facts(gpus=4), PODS))
        assert found(ledger, facts(gpus=8)) == {"n1": {"worker": 1}}


# -- the packer, against brute force


@st.composite
def sites(draw: st.DrawFn) -> tuple[list[Node], dict[str, Resources]]:
    made_nodes, free = [], {}
    for number in range(draw(st.integers(1, 4))):
        name = f"n{number}"
        gpus = draw(st.sampled_from((0, 0, 2)))
        offered: Resources = {"cpu": draw(st.sampled_from((2, 4)))} | ({GPU: gpus} if gpus else {})
        made_nodes.append(Node(name, offered, is_occupied=draw(st.booleans()), has_members=draw(st.booleans())))
        free[name] = dict(offered)
    return made_nodes, free


roles = st.lists(
    st.builds(
        lambda count, cpu, gpu: Need("", count, {"cpu": cpu} | ({GPU: gpu} if gpu else {}), exclusive=True),
        st.integers(1, 2),
        st.sampled_from((1, 2, 3)),
        st.sampled_from((0, 0, 2)),
    ),
    min_size=1,
    max_size=2,
)


def takes(one: Node, need: Need) -> bool:
    if one.is_occupied or one.has_members:
        return False
    devices = {name: amount for name, amount in one.allocatable.items() if "/" in name}
    return all(one.allocatable.get(name, 0) >= amount for name, amount in need.resources.items()) and all(
        need.resources.get(name) == amount for name, amount in devices.items()
    )


def exists(nodes: Sequence[Node], needs: Sequence[Need]) -> bool:
    members = [need for need in needs for _ in range(need.count)]
    return any(
        len({one.name for one in places}) == len(members)
        and all(takes(one, need) for one, need in zip(places, members, strict=True))
        for places in product(nodes, repeat=len(members))
    )


@given(sites(), roles)
def test_the_packer_places_each_member_alone_on_a_node_it_may_have(
    site: tuple[list[Node], dict[str, Resources]], needs: list[Need]
) -> None:
    nodes, free = site
    named = [replace(need, role=f"r{number}") for number, need in enumerate(needs)]
    outcome = place(nodes, free, named)
    if isinstance(outcome, PackingShortfall):
        assert not (len(named) == 1 and exists(nodes, named)), "a gang of one role that fits is found"
        return
    by_role = {need.role: need for need in named}
    by_name = {one.name: one for one in nodes}
    assert all(sum(on.values()) == 1 for on in outcome.values())
    assert all(takes(by_name[name], by_role[of]) for name, on in outcome.items() for of in on)
    for need in named:
        assert sum(on.get(need.role, 0) for on in outcome.values()) == need.count


def test_the_members_of_a_second_role_get_other_nodes() -> None:
    two = [Node(f"n{number}", {"cpu": 4}) for number in range(2)]
    needs = [Need(name, 1, {"cpu": 1}, exclusive=True) for name in ("head", "worker")]
    outcome = place(two, {one.name: dict(one.allocatable) for one in two}, needs)
    assert not isinstance(outcome, PackingShortfall)
    assert sorted(list(on) for on in outcome.values()) == [["head"], ["worker"]]


# -- pods


class TestPods:
    TERM: ClassVar[dict[str, Any]] = {
        "labelSelector": {"matchExpressions": [{"key": "trainmaster.dev/run", "operator": "Exists"}]},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/hostname",
    }

    @staticmethod
    def terms(spec: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = spec["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        return found

    def test_members_repel_all_members_of_any_run_and_are_repelled_by_them(self) -> None:
        manifest = made(role(replicas=2), topology={"exclusive": "node"}).pod("worker", 1)
        assert self.terms(manifest["spec"]) == [self.TERM]
        assert manifest["metadata"]["labels"]["trainmaster.dev/exclusive"] == "node"

    def test_one_rule_is_enough_where_a_role_says_one_per_node_itself(self) -> None:
        manifest = made(role(replicas=2, maxPerNode=1), topology={"exclusive": "node"}).pod("worker", 1)
        assert self.terms(manifest["spec"]) == [self.TERM]

    def test_the_affinity_of_a_pod_template_stays(self) -> None:
        own = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
        container = {"name": "main", "image": "train:1"}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}
        template = {"spec": {"containers": [container], "affinity": affinity}}
        worker = {"name": "worker", "replicas": 2, "podTemplate": template}
        first, second = self.terms(made(worker, topology={"exclusive": "node"}).pod("worker", 0)["spec"])
        assert (first["topologyKey"], second) == ("zone", self.TERM)

    @pytest.mark.parametrize("kind", [name for name in SAMPLES if name != "v1 Pod"])
    def test_pods_that_a_controller_makes_have_the_rule_as_well(self, kind: str) -> None:
        spec = translated(SAMPLES[kind].manifest).spec
        manifests = made(*spec["roles"], workload=spec["workload"], topology={"exclusive": "node"})
        assert manifests.is_workload
        text = json.dumps(manifests.workload().body)
        rule = json.dumps({"requiredDuringSchedulingIgnoredDuringExecution": [self.TERM]}, sort_keys=True)
        assert json.dumps(json.loads(text), sort_keys=True).count(rule) == len(spec["roles"])
        assert text.count("trainmaster.dev/exclusive") == len(spec["roles"])

    def test_other_members_have_no_rule(self) -> None:
        assert "affinity" not in made(role(replicas=2)).pod("worker", 0)["spec"]

    def test_members_know_that_they_are_alone(self) -> None:
        def local(**fields: Any) -> set[str]:
            env = made(role(replicas=2), **fields).pod("worker", 1)["spec"]["containers"][0]["env"]
            return {f"{one['name']}={one['value']}" for one in env if "TRAINMASTER_LOCAL" in one["name"]}

        assert local(topology={"exclusive": "node"}) == {"TRAINMASTER_LOCAL_RANK=0", "TRAINMASTER_LOCAL_SIZE=1"}
        assert local() == set(), "the node is not known before the pod is bound"


# -- the simulated cluster


def whole(run: str, *roles_: dict[str, Any], **fields: Any) -> StartRun:
    return order(run, *roles_, labels={"run-time": "1h"}, topology={"exclusive": "node"}, **fields)


class TestTheSimulatedCluster:
    def test_offers_it(self) -> None:
        assert Capability.EXCLUSIVE_NODES in cluster().report().capabilities

    def test_no_member_comes_beside_an_exclusive_one(self) -> None:
        sim = cluster(group(count=2, cpu=4))
        sim.start(whole("a"), 0.0)
        sim.start(order("b", simulated_role(replicas=4), labels={"run-time": "1h"}), 0.0)
        sim.start(order("c"), 0.0)
        assert [state(sim, run) for run in "abc"] == [RunState.RUNNING, RunState.RUNNING, RunState.PENDING]
        sim.stop(stop("a"), 1.0)
        while state(sim, "c") is RunState.PENDING:
            sim.advance(sim.next_event_at())
        assert state(sim, "c") is RunState.RUNNING

    def test_an_exclusive_member_waits_until_a_node_is_empty(self) -> None:
        sim = cluster(group(count=2, cpu=4))
        sim.start(order("a", simulated_role(cpu=1), labels={"run-time": "5s"}), 0.0)
        sim.start(whole("b", simulated_role(replicas=2)), 0.0)
        assert state(sim, "b") is RunState.PENDING
        sim.advance(5.0)
        assert state(sim, "b") is RunState.RUNNING

    def test_levels_and_plans_of_the_dispatcher_are_followed(self) -> None:
        sim = cluster(group("g1", count=2), group("g2", count=2))
        sim.start(whole("a", simulated_role(replicas=2), pins={"g2": {"worker": 2}}), 0.0)
        sim.start(order("b", simulated_role(replicas=8), labels={"run-time": "1h"}, pins={"g1": {"worker": 8}}), 0.0)
        assert [state(sim, run) for run in "ab"] == [RunState.RUNNING, RunState.RUNNING]

    def test_in_a_domain_of_a_level_only_empty_nodes_are_taken(self) -> None:
        sim = cluster(group(count=4, topology={"rack": 2}))
        sim.start(order("x", labels={"run-time": "1h"}), 0.0)
        near = {"exclusive": "node", "required": "rack"}
        for run in ("y", "z"):
            sim.start(order(run, simulated_role(replicas=2), labels={"run-time": "1h"}, topology=near), 0.0)
        assert [state(sim, run) for run in "xyz"] == [RunState.RUNNING, RunState.RUNNING, RunState.PENDING]

    def test_a_member_that_leaves_devices_idle_is_returned_with_the_reason(self) -> None:
        sim = cluster(group("gpu", count=1, gpus=8))
        sim.start(whole("a", simulated_role(gpus=4)), 0.0)
        run = sim.runs["a"]
        assert run.state is RunState.RETURNED
        assert "the member requests 4" in run.message

    def test_nodes_with_foreign_pods_are_reported_and_not_taken(self) -> None:
        foreign = [{"resources": {"cpu": "1"}, "nodes": 1, "every": "1h", "lasts": "1h"}]
        sim = cluster(group("busy", count=1, foreign=foreign), group("quiet", count=1))
        assert {one.name.partition(".")[0]: one.occupied for one in sim.report().groups} == {
            "busy": True,
            "quiet": False,
        }
        sim.start(whole("a"), 0.0)
        sim.start(whole("b"), 0.0)
        assert [state(sim, run) for run in "ab"] == [RunState.RUNNING, RunState.PENDING]
