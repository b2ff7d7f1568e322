"""What schedulers cannot honour is said before anything is created; and what is peculiar to one of them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.test_placement_gangs import (
    ALONE,
    ELASTIC,
    ELASTIC_WORKERS,
    LAUNCHER,
    ON_A_RACK,
    RACK,
    RUN,
    WHOLE,
    a_gang,
    a_pod,
    a_role,
)
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.placement.coscheduling import POD_GROUPS, Coscheduling
from trainmaster_agent.placement.gates import GATE, Gates, opening_patch
from trainmaster_agent.placement.kai import Kai
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.port import Gang, PlacementPort
from trainmaster_agent.placement.provisioned import Provisioned
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.volcano import Volcano
from trainmaster_agent.placement.yunikorn import YuniKorn, application, task_groups

ZONE = "topology.kubernetes.io/zone"
KUEUE = Kueue(queues=QueueRules(default="user-queue"), levels=(RACK,))
ON_ONE_NUMA_ZONE = a_gang(a_role("main", 1), numa="singleNode")
THREE_ROLES = a_gang(LAUNCHER, a_role("server", 2), a_role("worker", 4), required=RACK)
ON_WHOLE_NODES = a_gang(a_role("worker", 2), is_exclusive=True)

LACKS: dict[str, tuple[PlacementPort, Gang, str]] = {
    "native without the gate for topology": (Native(), ON_A_RACK, f"within one {RACK}"),
    "native and roles with a least": (Native(), ELASTIC, "role launcher, which needs 1"),
    "native and NUMA": (Native(), ON_ONE_NUMA_ZONE, "does not know NUMA zones"),
    "gates and NUMA": (Gates(), ON_ONE_NUMA_ZONE, "does not know NUMA zones"),
    "volcano without that tier": (Volcano(tiers={ZONE: 2}), ON_A_RACK, f"within one {RACK}; it knows {ZONE}"),
    "volcano without its plugin": (Volcano(), ON_ONE_NUMA_ZONE, "does not know NUMA zones"),
    "kai without that level": (Kai(topologies={ZONE: "t"}), ON_A_RACK, f"within one {RACK}; it knows {ZONE}"),
    "kai and a role that may be missing": (
        Kai(),
        a_gang(a_role("helper", 2, least=0), a_role("worker", 4)),
        "without role helper",
    ),
    "yunikorn and a level": (YuniKorn(), ON_A_RACK, f"within one {RACK}"),
    "coscheduling and a level": (Coscheduling(), ON_A_RACK, f"within one {RACK}"),
    "coscheduling and roles with a least": (Coscheduling(), ELASTIC, "role launcher, which needs 1"),
    "coscheduling and restricted": (
        Coscheduling(numa=True),
        a_gang(a_role("main", 1), numa="restricted"),
        "coscheduling looks after the NUMA zones of members with singleNode only",
    ),
    "kueue and a gang that may start smaller": (KUEUE, ELASTIC_WORKERS, "all 8 members or none"),
    "kueue without a queue": (
        Kueue(),
        WHOLE,
        "the agent's configuration names no LocalQueue of Kueue for queue research/vision",
    ),
    "kueue and too many roles": (KUEUE, a_gang(*(a_role(f"r{n}", 1) for n in range(9))), "at most 8 roles"),
    "kueue and three roles on a rack": (KUEUE, THREE_ROLES, "two roles together only where"),
    "kueue without that level": (Kueue(queues=KUEUE.queues), ON_A_RACK, f"within one {RACK}"),
    "kueue with a topology and whole nodes": (
        KUEUE,
        ON_WHOLE_NODES,
        "Kueue with a topology here chooses nodes by free amounts",
    ),
    "yunikorn and whole nodes": (YuniKorn(), ON_WHOLE_NODES, "YuniKorn here chooses nodes by free amounts"),
}


@pytest.mark.parametrize(("placement", "gang", "sentence"), LACKS.values(), ids=LACKS.keys())
def test_what_is_lacking_with(placement: PlacementPort, gang: Gang, sentence: str) -> None:
    assert sentence in (placement.lacks(gang) or "")


HONOURED: dict[str, tuple[PlacementPort, Gang]] = {
    "volcano and roles with a least": (Volcano(), ELASTIC),
    "volcano with its NUMA plugin": (Volcano(numa=True), ON_ONE_NUMA_ZONE),
    "coscheduling with its NUMA plugin": (Coscheduling(numa=True), ON_ONE_NUMA_ZONE),
    "kai with its NUMA plugin and restricted": (Kai(numa=True), a_gang(a_role("main", 1), numa="restricted")),
    "kai and three roles on a rack": (Kai(topologies={RACK: "t"}), THREE_ROLES),
    "kai and a role that has no members now": (
        Kai(),
        a_gang(a_role("helper", 0), a_role("main", 1), a_role("worker", 2)),
    ),
    "yunikorn and roles with a least": (YuniKorn(), ELASTIC),
    "gates and a level": (Gates(), ON_A_RACK),
    "gates and roles with a least": (Gates(), ELASTIC),
    "kueue and whole nodes": (Kueue(queues=KUEUE.queues), ON_WHOLE_NODES),
    "gates and whole nodes": (Gates(), ON_WHOLE_NODES),
    "kueue and a role alone on a rack": (KUEUE, a_gang(a_role("worker", 8), required=RACK)),
}


@pytest.mark.parametrize(("placement", "gang"), HONOURED.values(), ids=HONOURED.keys())
def test_nothing_is_lacking_with(placement: PlacementPort, gang: Gang) -> None:
    assert placement.lacks(gang) is None


CAPABILITIES: dict[str, tuple[PlacementPort, str]] = {
    "native": (Native(), "exclusiveNodes gang gangStrict resize"),
    "native with topology": (Native(topology=True), "exclusiveNodes gang gangStrict resize topology"),
    "gates": (Gates(), "exclusiveNodes gang resize topology"),
    "volcano": (Volcano(), "exclusiveNodes gang gangStrict resize"),
    "volcano with all": (Volcano(tiers={RACK: 1}, numa=True), "exclusiveNodes gang gangStrict numa resize topology"),
    "kai with all": (Kai(topologies={RACK: "t"}, numa=True), "exclusiveNodes gang gangStrict numa resize topology"),
    "yunikorn": (YuniKorn(), "gang resize"),
    "coscheduling": (Coscheduling(numa=True), "exclusiveNodes gang gangStrict numa resize"),
    "kueue": (Kueue(queues=KUEUE.queues), "exclusiveNodes gang"),
    "kueue with a topology": (KUEUE, "gang topology"),
}


@pytest.mark.parametrize(("placement", "words"), CAPABILITIES.values(), ids=CAPABILITIES.keys())
def test_capabilities_of(placement: PlacementPort, words: str) -> None:
    assert sorted(placement.capabilities) == words.split()
    assert placement.emulated == (placement.name == "gates")


OTHERS = (Volcano(), Kai(), YuniKorn(), KUEUE)


def test_pods_that_share_claims_are_placed_one_by_one_where_kube_scheduler_places_them() -> None:
    shared = [one.for_shared_claims for one in (Gates("mine"), Native(scheduler_name="mine"), Coscheduling("mine"))]
    assert shared == [Gates("mine")] * 3
    assert Provisioned(Native(), "best-effort-atomic-scale-up.autoscaling.x-k8s.io").for_shared_claims == Gates()
    assert [one.for_shared_claims for one in OTHERS] == [None] * len(OTHERS)


def spec_of(placement: PlacementPort, gang: Gang) -> dict[str, Any]:
    (one,) = placement.objects(gang)
    spec: dict[str, Any] = one.body["spec"]
    return spec


def dressed(placement: PlacementPort, gang: Gang) -> dict[str, Any]:
    pod = a_pod(gang, gang.roles[-1])
    placement.dress(gang, gang.roles[-1], pod)
    return pod


def test_a_single_member_with_a_level_is_a_group_of_its_own() -> None:
    gang = a_gang(a_role("main", 1), required=RACK)
    assert spec_of(Native(topology=True), gang)["schedulingPolicy"] == {"gang": {"minCount": 1}}
    assert dressed(Gates(), gang)["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_single_exclusive_member_waits_behind_a_gate_for_an_empty_node() -> None:
    alone = a_gang(a_role("main", 1), is_exclusive=True)
    assert dressed(Gates(), alone)["spec"]["schedulingGates"] == [{"name": GATE}]
    assert "schedulingGates" not in dressed(Gates(), a_gang(a_role("main", 1)))["spec"]


def test_gates_of_others_stay_when_ours_is_opened() -> None:
    pod = a_pod(WHOLE, LAUNCHER)
    pod["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    Gates().dress(WHOLE, LAUNCHER, pod)
    gates = pod["spec"]["schedulingGates"]
    assert gates == [{"name": "example.com/quota"}, {"name": GATE}]
    assert opening_patch(gates, {RACK: "r7"}) == {
        "spec": {"schedulingGates": [{"name": "example.com/quota"}], "nodeSelector": {RACK: "r7"}}
    }


def test_the_last_gate_is_taken_off_with_the_field() -> None:
    assert opening_patch([{"name": GATE}], {}) == {"spec": {"schedulingGates": None}}


def test_a_wish_is_passed_on_where_the_scheduler_knows_the_level() -> None:
    gang = a_gang(a_role("worker", 4), preferred=RACK)
    assert spec_of(Volcano(tiers={RACK: 1}), gang)["networkTopology"] == {"mode": "soft"}
    assert "networkTopology" not in spec_of(Volcano(), gang)
    assert spec_of(Kai(topologies={RACK: "t"}), gang)["topologyConstraint"] == {
        "topology": "t",
        "preferredTopologyLevel": RACK,
    }
    assert dressed(KUEUE, gang)["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == RACK
    assert all(placement.lacks(gang) is None for placement in (Native(), YuniKorn(), Coscheduling(), Volcano(), Kai()))


def test_kai_takes_a_wish_only_within_the_topology_of_the_required_level() -> None:
    gang = a_gang(a_role("worker", 4), required=ZONE, preferred=RACK)
    required = {"topology": "t", "requiredTopologyLevel": ZONE}
    assert spec_of(Kai(topologies={ZONE: "t", RACK: "t"}), gang)["topologyConstraint"] == {
        **required,
        "preferredTopologyLevel": RACK,
    }
    assert spec_of(Kai(topologies={ZONE: "t", RACK: "other"}), gang)["topologyConstraint"] == required


@pytest.mark.parametrize("placement", [Kai(), Coscheduling(), Volcano()], ids=lambda one: one.name)
def test_nodes_decide_the_numa_policy_where_the_scheduler_knows_only_theirs(placement: Any) -> None:
    assert not placement.follows_numa_of_nodes
    assert replace(placement, numa=True).follows_numa_of_nodes is (placement.name != "volcano")


@pytest.mark.parametrize(("numa", "policy"), [("restricted", "restricted"), ("singleNode", "single-numa-node")])
def test_volcano_is_told_of_strict_numa_policies(numa: str, policy: str) -> None:
    pod = dressed(Volcano(numa=True), a_gang(a_role("main", 1), numa=numa))
    assert pod["metadata"]["annotations"]["volcano.sh/numa-topology-policy"] == policy


def test_volcano_is_not_told_of_a_numa_wish_which_would_leave_out_nodes() -> None:
    pod = dressed(Volcano(numa=True), a_gang(a_role("main", 1), numa="bestEffort"))
    assert "volcano.sh/numa-topology-policy" not in pod["metadata"]["annotations"]


def test_volcano_minima_of_roles_never_exceed_the_whole() -> None:
    spec = spec_of(Volcano(), a_gang(LAUNCHER, a_role("worker", 8, least=4), least=2))
    assert spec["minMember"] == sum(spec["minTaskMember"].values()) == 5


def test_volcano_is_not_told_of_a_role_that_may_be_missing() -> None:
    assert spec_of(Volcano(), a_gang(a_role("helper", 2, least=0), a_role("worker", 4)))["minTaskMember"] == {
        "worker": 4
    }


def test_members_beyond_the_minima_of_roles_are_dealt_to_roles_where_only_roles_count() -> None:
    gang = a_gang(a_role("server", 2, least=1), a_role("worker", 8, least=1), least=5)
    assert spec_of(Kai(), gang)["subGroups"] == [{"name": "server", "minMember": 1}, {"name": "worker", "minMember": 4}]
    assert [group["minMember"] for group in task_groups(gang)] == [1, 4]


def test_places_held_by_yunikorn_are_where_the_members_may_go() -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    (group,) = task_groups(a_gang(a_role("worker", 2, tolerations=tolerations, nodeSelector={"gpu": "h100"})))
    assert group["tolerations"] == tolerations
    assert group["nodeSelector"] == {"gpu": "h100"}


def test_a_role_that_a_gang_may_start_without_has_no_task_group() -> None:
    gang = a_gang(a_role("worker", 2), a_role("helper", 2, least=0))
    assert [group["name"] for group in task_groups(gang)] == ["worker"]
    assert "yunikorn.apache.org/task-group-name" not in dressed(YuniKorn(), gang)["metadata"]["annotations"]


@pytest.mark.parametrize("placement", [Volcano(preemptible=True), Kai(preemptible=True), YuniKorn(preemptible=True)])
def test_members_may_be_taken_only_where_the_owner_says_so(placement: PlacementPort) -> None:
    kind = type(placement)
    taken, kept = (str([one.objects(WHOLE), dressed(one, WHOLE)]) for one in (placement, kind()))
    assert taken != kept


@pytest.mark.parametrize("placement", [Native(scheduler_name="s"), Gates("s"), Kueue(scheduler_name="s")])
def test_another_profile_may_be_named(placement: PlacementPort) -> None:
    assert dressed(placement, WHOLE)["spec"]["schedulerName"] == "s"


def test_coscheduling_does_not_hold_places_longer_than_the_run_waits() -> None:
    assert spec_of(Coscheduling(), a_gang(a_role("worker", 2), timeout=30.4))["scheduleTimeoutSeconds"] == 30
    assert Coscheduling().objects(ALONE) == ()


def test_the_priority_class_is_on_a_native_group_from_1_37_on() -> None:
    assert "priorityClassName" not in spec_of(Native("v1alpha2", priority_class="p"), WHOLE)
    assert spec_of(Native("v1beta1", priority_class="p"), WHOLE)["priorityClassName"] == "p"


def test_a_group_of_kueue_has_the_name_of_the_run_even_for_one_member() -> None:
    pod = dressed(KUEUE, ALONE)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == RUN
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "1"


def test_a_gang_that_starts_again_is_another_application_of_yunikorn() -> None:
    """YuniKorn takes pods that join an application whose gang has been placed one by one."""
    first, again = application(ELASTIC), application(replace(ELASTIC, round=1))
    assert (first, again) == ("llama-3f9k2-r1-0b8e7c1e", "llama-3f9k2-r1-0b8e7c1e-1")
    longest = application(replace(ELASTIC, run="r" * 63, round=12))
    assert (len(longest), longest[-12:]) == (63, "-0b8e7c1e-12")


def test_a_member_that_does_not_join_its_gang_again_stays_with_its_scheduler() -> None:
    pod = a_pod(ELASTIC, ELASTIC.roles[0])
    Coscheduling().dress_alone(pod)
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
    assert "scheduling.x-k8s.io/pod-group" not in pod["metadata"]["labels"]


FULL = "0/2 nodes are available: 2 Insufficient cpu."
REJECTED = "0/2 nodes are available: 1 rejection in Unreserve, 1 optimistic rejection in PostFilter."
UNTRIED: dict[str, tuple[Gang, tuple[str, ...], bool]] = {
    "all are rejected because of one another": (a_gang(a_role("worker", 2)), (REJECTED, REJECTED), True),
    "their group was not known yet": (
        a_gang(a_role("worker", 2)),
        ("0/1 nodes are available: 1 PodGroup not found.", REJECTED),
        True,
    ),
    "one finds no node": (a_gang(a_role("worker", 2)), (REJECTED, FULL), False),
    "one was not tried yet": (a_gang(a_role("worker", 2)), (REJECTED, ""), False),
    "it has no pods": (a_gang(a_role("worker", 2)), (), False),
    "it is no gang": (a_gang(a_role("worker", 1)), (REJECTED,), False),
}


@pytest.mark.parametrize(("gang", "messages", "is_untried"), UNTRIED.values(), ids=UNTRIED.keys())
def test_coscheduling_tries_a_gang_again_by_a_change_of_its_group_alone_if(
    gang: Gang, messages: tuple[str, ...], is_untried: bool
) -> None:
    pods = [
        PodSight(f"{RUN}-worker-{index}", "jobs", f"uid-{index}", 1, RUN, "worker", index, "waiting", message=words)
        for index, words in enumerate(messages)
    ]
    found = Coscheduling().tries_again_after(gang, pods)
    assert found == (POD_GROUPS if is_untried else None)
    assert Volcano().tries_again_after(gang, pods) is None
