"""Planned nodes of members: found by best fit within the dispatcher's plan, divided among members, and preferred by their pods."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_capacity_inventory import inventory, node, pod
from tests.unit.test_kubernetes_manifests import A_GPU, PLANNED, PREFERRED, made, role
from tests.unit.workload_manifests import SAMPLES
from trainmaster.cluster_model.packing import Assignment, PackingShortfall
from trainmaster.protocol.agent import StartRun
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.capacity.node_index import AllowedNodes
from trainmaster_agent.kube.pods import PodSight, see
from trainmaster_agent.placement.gates import GATE, opening_patch
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.node_plan import divide
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, facts_of

RUN, OTHER = "bert-7k2p9xq-r1", "gpt-7k2p9xq-r1"
PODS: dict[str, dict[str, object]] = {"worker": {}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def facts(replicas: int, cpu: str, preferred: str | None = None) -> Facts:
    template = {"image": "train:1", "command": ["train"], "resources": {"cpu": cpu}}
    worker = {"name": "worker", "replicas": replicas, "template": template}
    topology = {"topology": {"preferred": preferred}} if preferred else {}
    start = StartRun(
        run=RUN,
        job=RUN.removesuffix("-r1"),
        queue="research/nlp",
        attempt=1,
        token=1,
        generation=1,
        spec={"kind": "Job", "name": "bert", "queue": "research/nlp", "roles": [worker], **topology},
        sizes={"worker": replicas},
        placement_timeout_seconds=300,
    )
    return facts_of(start)


def bound(run: str, name: str, on: str) -> PodSight:
    labels = {"trainmaster.dev/agent": "north", "trainmaster.dev/run": run, "trainmaster.dev/role": "worker"}
    metadata = {"name": name, "namespace": "jobs", "uid": name, "labels": {**labels, "trainmaster.dev/index": "0"}}
    sight = see({"metadata": metadata, "spec": {"nodeName": on, "containers": []}, "status": {"phase": "Pending"}})
    assert sight is not None
    return sight


class TestTheDispatchersPlan:
    """Two groups: nodes of 8 and of 4 CPU."""

    def test_decides_the_node_group_even_if_another_one_would_fit_better(self) -> None:
        ledger = inventory(node("big"), node("small", allocatable={"cpu": "4"}))
        ledger.report()
        capacity = NodeCapacity(ledger)
        big = ledger.group_of("big")
        assert big is not None
        wanted = facts(2, "2")
        assert capacity.follow(RUN, wanted, {big: {"worker": 2}}, PODS, None) == {"big": {"worker": 2}}
        assert capacity.find(RUN, wanted, {"worker": 2}, PODS, None) == {"small": {"worker": 2}}

    def test_may_split_a_role_over_groups(self) -> None:
        ledger = inventory(node("big"), node("small", allocatable={"cpu": "4"}))
        ledger.report()
        plan = {str(ledger.group_of("big")): {"worker": 1}, str(ledger.group_of("small")): {"worker": 2}}
        found = NodeCapacity(ledger).follow(RUN, facts(3, "2"), plan, PODS, None)
        assert found == {"big": {"worker": 1}, "small": {"worker": 2}}

    def test_is_not_followed_where_its_group_is_full_or_gone(self) -> None:
        ledger = inventory(node("big"), node("small", allocatable={"cpu": "4"}), pod(on="small", own=True, cpu="3"))
        ledger.report()
        capacity, small = NodeCapacity(ledger), str(ledger.group_of("small"))
        assert capacity.follow(RUN, facts(2, "2"), {small: {"worker": 2}}, PODS, None) is None
        assert capacity.follow(RUN, facts(2, "2"), {"gone": {"worker": 2}}, PODS, None) is None
        assert capacity.follow(RUN, facts(2, "2"), {}, PODS, None) is None

    def test_fills_the_fullest_node_of_its_group(self) -> None:
        ledger = inventory(*(node(f"n{number}") for number in range(4)), pod(on="n2", own=True, cpu="5"))
        ledger.report()
        plan = {str(ledger.group_of("n1")): {"worker": 1}}
        assert NodeCapacity(ledger).follow(RUN, facts(1, "3"), plan, PODS, None) == {"n2": {"worker": 1}}


RACK = "rack"
LEVELS = {"levels": [{"level": RACK, "label": "example.com/rack"}]}


def in_rack(name: str, rack: str, cpu: str = "8") -> dict[str, Any]:
    return node(name, labels={"example.com/rack": rack}, allocatable={"cpu": cpu})


class TestAPreferredLevel:
    """Two racks: best fit alone would begin with the small node of the one and go on in the other."""

    def test_keeps_a_gang_together_where_a_domain_has_room(self) -> None:
        ledger = inventory(in_rack("a1", "a", "2"), in_rack("b1", "b"), in_rack("b2", "b"), **LEVELS)
        wanted = facts(4, "2", preferred=RACK)
        assert NodeCapacity(ledger).find(RUN, wanted, {"worker": 4}, PODS, None) == {"b1": {"worker": 4}}
        loose = facts(4, "2")
        assert NodeCapacity(ledger).find(RUN, loose, {"worker": 4}, PODS, None) == {
            "a1": {"worker": 1},
            "b1": {"worker": 3},
        }

    def test_gives_way_where_none_has(self) -> None:
        ledger = inventory(in_rack("a1", "a", "4"), in_rack("b1", "b", "4"), **LEVELS)
        found = NodeCapacity(ledger).find(RUN, facts(4, "2", preferred=RACK), {"worker": 4}, PODS, None)
        assert found == {"a1": {"worker": 2}, "b1": {"worker": 2}}

    def test_leads_those_who_come_later_to_the_others(self) -> None:
        ledger = inventory(in_rack("a1", "a", "2"), in_rack("b1", "b"), in_rack("b2", "b"), **LEVELS)
        find = NodeCapacity(ledger).find
        assert find(RUN, facts(1, "2", preferred=RACK), {"worker": 1}, PODS, None, "b1") == {"b1": {"worker": 1}}
        assert find(RUN, facts(1, "2"), {"worker": 1}, PODS, None, "b1") == {"a1": {"worker": 1}}

    def test_never_breaks_the_required_one(self) -> None:
        """Racks of the same name in two zones, and a zone that has no room for all in one of its racks."""
        ledger = inventory(
            *(
                node(f"{zone}{rack}", labels={"topology.kubernetes.io/zone": zone, "example.com/rack": rack})
                for zone in "yz"
                for rack in "ab"
            ),
            levels=[{"level": "zone", "label": "topology.kubernetes.io/zone"}, *LEVELS["levels"]],
        )
        wanted = facts(2, "8", preferred=RACK)
        found = NodeCapacity(ledger).find(RUN, wanted, {"worker": 2}, PODS, "zone")
        assert not isinstance(found, PackingShortfall)
        assert len({name[0] for name in found}) == 1, found


class TestReservedNodes:
    def test_are_not_planned_for_another_run_until_all_pods_are_bound(self) -> None:
        ledger = inventory(node("n1"), node("n2"))
        capacity, both = NodeCapacity(ledger), facts(2, "8")
        first = capacity.find(RUN, both, {"worker": 2}, PODS, None)
        assert not isinstance(first, PackingShortfall)
        capacity.keep(RUN, both, first)
        assert isinstance(capacity.find(OTHER, both, {"worker": 1}, PODS, None), PackingShortfall)
        capacity.settle(RUN, [], has_run=False)
        capacity.settle(RUN, [bound(RUN, "a", "n1")], has_run=False)
        assert isinstance(capacity.find(OTHER, both, {"worker": 1}, PODS, None), PackingShortfall), (
            "a controller makes more"
        )
        capacity.settle(RUN, [bound(RUN, "a", "n1"), bound(RUN, "b", "")], has_run=False)
        assert isinstance(capacity.find(OTHER, both, {"worker": 1}, PODS, None), PackingShortfall), (
            "one has no node yet"
        )
        capacity.settle(RUN, [bound(RUN, "a", "n1"), bound(RUN, "b", "n2")], has_run=False)
        assert not isinstance(capacity.find(OTHER, both, {"worker": 1}, PODS, None), PackingShortfall), "pods count now"

    def test_of_a_gang_that_has_run_are_free_once_no_pod_awaits_a_node(self) -> None:
        """The controller of an object makes no pods for members that have ended."""
        ledger = inventory(node("n1"), node("n2"))
        capacity, both = NodeCapacity(ledger), facts(2, "8")
        capacity.keep(RUN, both, {"n1": {"worker": 1}, "n2": {"worker": 1}})
        capacity.settle(RUN, [bound(RUN, "a", "")], has_run=True)
        assert isinstance(capacity.find(OTHER, both, {"worker": 2}, PODS, None), PackingShortfall)
        capacity.settle(RUN, [bound(RUN, "a", "n1")], has_run=True)
        assert not isinstance(capacity.find(OTHER, both, {"worker": 2}, PODS, None), PackingShortfall)


@given(st.integers(1, 6).flatmap(lambda most: st.tuples(st.just(most), st.lists(st.integers(1, most), max_size=8))))
def test_members_are_divided_so_that_a_node_has_at_most_one_of_those_that_repel_each_other(
    drawn: tuple[int, list[int]],
) -> None:
    """Members repel each other if their indexes have the same remainder by the most that a node may have."""
    most, counts = drawn
    places: Assignment = {f"n{number}": {"worker": count} for number, count in enumerate(counts)}
    members = [("worker", index) for index in range(sum(counts))]
    found = divide(members, places)
    assert Counter(found.values()) == {name: roles["worker"] for name, roles in places.items()}
    for name in places:
        hands = [index % most for (_, index), on in found.items() if on == name]
        assert len(hands) == len(set(hands))


def test_roles_are_divided_apart() -> None:
    places: Assignment = {"n1": {"ps": 1, "worker": 1}, "n2": {"worker": 2}}
    members = [("worker", 0), ("worker", 1), ("worker", 5), ("ps", 0)]
    assert divide(members, places) == {("ps", 0): "n1", ("worker", 0): "n1", ("worker", 1): "n2", ("worker", 5): "n2"}


def wish(node: str) -> dict[str, Any]:
    return {
        "weight": 100,
        "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    }


class TestAPod:
    def test_prefers_its_node(self) -> None:
        spec = made(role(replicas=2)).pod("worker", 1, node="n7")["spec"]
        assert spec["affinity"] == {"nodeAffinity": {PREFERRED: [wish("n7")]}}
        assert "affinity" not in made(role(replicas=2)).pod("worker", 1)["spec"]

    def test_of_a_gang_is_not_spread_over_nodes_as_pods_of_a_service_are(self) -> None:
        (constraint,) = made(role(replicas=2), prefers_nodes=True).pod("worker", 0)["spec"]["topologySpreadConstraints"]
        assert (constraint["whenUnsatisfiable"], "labelSelector" in constraint) == ("ScheduleAnyway", False)
        own = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
        template = {"spec": {"containers": [{"name": "main", "image": "i"}], "topologySpreadConstraints": own}}
        pod = made(role(replicas=2, podTemplate=template), prefers_nodes=True).pod("worker", 0)
        assert pod["spec"]["topologySpreadConstraints"] == own
        assert "topologySpreadConstraints" not in made(role(replicas=2)).pod("worker", 0)["spec"]

    def test_prefers_the_planned_product_as_well(self) -> None:
        terms = made(role(template=A_GPU), **PLANNED).pod("worker", 0, node="n7")["spec"]["affinity"]["nodeAffinity"]
        assert [sorted(one["preference"]) for one in terms[PREFERRED]] == [["matchExpressions"], ["matchFields"]]

    def test_is_left_alone_where_the_job_prefers_nodes_itself(self) -> None:
        own = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": []}}]}}
        manifests = made(role(podTemplate={"spec": {"containers": [{"name": "main", "image": "i"}], "affinity": own}}))
        assert manifests.pod("worker", 0, node="n7")["spec"]["affinity"] == own
        assert manifests.preference("worker", "n7") == {}

    def test_repels_others_as_before(self) -> None:
        affinity = made(role(replicas=4, maxPerNode=2)).pod("worker", 3, node="n7")["spec"]["affinity"]
        assert sorted(affinity) == ["nodeAffinity", "podAntiAffinity"]

    def test_behind_a_gate_gets_its_wish_when_the_gate_is_opened(self) -> None:
        affinity = made(role(replicas=4, maxPerNode=2)).preference("worker", "n7")
        assert opening_patch([{"name": GATE}], {}, affinity) == {
            "spec": {"schedulingGates": None, "affinity": {"nodeAffinity": {PREFERRED: [wish("n7")]}}}
        }


def on_hosts(*names: str) -> dict[str, Any]:
    return {"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}


def hosts(*names: str) -> AllowedNodes:
    return AllowedNodes("kubernetes.io/hostname", names)


class TestAPodThatIsKeptAmongNodes:
    def test_requires_one_of_them(self) -> None:
        spec = made(role(replicas=2)).pod("worker", 1, node="n7", among=(hosts("n5", "n7"),))["spec"]
        terms = [{"matchExpressions": [on_hosts("n5", "n7")]}]
        assert spec["affinity"] == {"nodeAffinity": {PREFERRED: [wish("n7")], REQUIRED: {"nodeSelectorTerms": terms}}}
        assert "affinity" not in made(role(replicas=2)).pod("worker", 1, among=())["spec"]

    def test_requires_what_the_job_requires_as_well_in_each_of_its_terms(self) -> None:
        ssd = {"key": "disk", "operator": "In", "values": ["ssd"]}
        fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
        own = {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ssd]}, {"matchFields": fields}]}}
        }
        manifests = made(role(podTemplate={"spec": {"containers": [{"name": "main", "image": "i"}], "affinity": own}}))
        affinity = manifests.pod("worker", 0, among=(hosts("n5"),))["spec"]["affinity"]
        assert affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
            {"matchExpressions": [ssd, on_hosts("n5")]},
            {"matchFields": fields, "matchExpressions": [on_hosts("n5")]},
        ]

    def test_has_a_node_that_all_lists_allow(self) -> None:
        pools = AllowedNodes("pool", ("a", "b"))
        spec = made(role(replicas=2)).pod("worker", 1, among=(hosts("n5"), pools))["spec"]
        in_pools = {"key": "pool", "operator": "In", "values": ["a", "b"]}
        terms = [{"matchExpressions": [on_hosts("n5"), in_pools]}]
        assert spec["affinity"] == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}

    def test_may_be_made_by_a_controller(self) -> None:
        spec = translated(SAMPLES["batch/v1 Job"].manifest).spec
        body = made(*spec["roles"], workload=spec["workload"]).workload(among=(hosts("n1"),)).body
        required = body["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][REQUIRED]
        assert required == {"nodeSelectorTerms": [{"matchExpressions": [on_hosts("n1")]}]}


def test_pods_that_a_controller_makes_prefer_the_nodes_of_their_role() -> None:
    spec = translated(SAMPLES["batch/v1 Job"].manifest).spec
    (name,) = (one["name"] for one in spec["roles"])
    body = made(*spec["roles"], workload=spec["workload"], prefers_nodes=True).workload({name: {"n2", "n1"}}).body
    assert body["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {PREFERRED: [wish("n1"), wish("n2")]}}
    assert "topologySpreadConstraints" not in body["spec"]["template"]["spec"], "TrainJobs have no such field"
