"""What an agent counts of its cluster, and what it does not: scenarios of nodes and pods."""

from typing import Any

import pytest

from tests.unit.dra_objects import claim, device, device_class, resource_slice
from trainmaster.protocol.agent import ClusterHealth, NodeGroup
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.inventory import Counts, Inventory, Kind
from trainmaster_agent.capacity.requests import bound_requests

GIB = 2**30
OWN = ("trainmaster.dev/agent", "here")


def node(name: str = "n1", ready: bool = True, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "10"} | spec.pop("allocatable", {})
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def pod(name: str = "p1", on: str = "n1", own: bool = False, phase: str = "Running", **requests: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": name, "labels": {OWN[0]: OWN[1]} if own else {}, "annotations": {}},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": phase, "qosClass": "Burstable"},
    }


def inventory(*objects: dict[str, Any], **config: Any) -> Inventory:
    made = Inventory(CapacityConfig.model_validate(config), OWN)
    for obj in objects:
        (made.pod_put if "containers" in obj["spec"] else made.node_put)(obj)
    return made


def only_group(made: Inventory) -> NodeGroup:
    (group,) = made.report().groups
    return group


def free(made: Inventory) -> dict[str, int]:
    return only_group(made).free


def test_nodes_alike_are_one_group() -> None:
    made = inventory(node("n1"), node("n2"), node("n3", allocatable={"cpu": "4"}))
    assert sorted((group.count, group.free["cpu"]) for group in made.report().groups) == [(1, 4000), (2, 8000)]
    assert made.group_of("n1") == made.group_of("n2") != made.group_of("n3")
    assert made.group_of("n4") is None


def test_foreign_pods_are_taken_off_and_the_rest_is_floored() -> None:
    made = inventory(node(), pod(cpu="1100m", memory="100Mi"))
    assert free(made) == {"cpu": 6500, "memory": 31 * GIB}


def test_own_pods_are_not_taken_off_but_are_not_free_now() -> None:
    made = inventory(node(), pod(own=True, cpu="1100m"), pod("p2", cpu="1"))
    assert free(made)["cpu"] == 7000
    assert made.free_now("n1") == {"cpu": 5900, "memory": 32 * GIB, "pods": 8}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_takes_nothing(phase: str) -> None:
    made = inventory(node(), pod(cpu="4"))
    made.pod_put(pod(cpu="4", phase=phase))
    assert free(made)["cpu"] == 8000


def test_a_bound_pod_counts_before_it_runs_and_an_unbound_one_does_not() -> None:
    made = inventory(node(), pod(cpu="1", phase="Pending"), pod("p2", on="", cpu="1", phase="Pending"))
    assert free(made)["cpu"] == 7000


def test_a_pod_that_comes_back_elsewhere_under_its_name_moves() -> None:
    made = inventory(node("n1"), node("n2"), pod(cpu="8"))
    made.pod_put(pod(on="n2", cpu="8"))
    made.report()
    assert (made.free_now("n1")["cpu"], made.free_now("n2")["cpu"]) == (8000, 0)


def test_more_than_there_is_is_nothing_and_never_less() -> None:
    made = inventory(node(), pod(cpu="9"))
    assert free(made) == {"memory": 32 * GIB}
    assert made.free_now("n1")["cpu"] == 0


def test_a_resize_in_place_counts_with_what_the_container_holds_still() -> None:
    resized = pod(cpu="1")
    resized["status"]["containerStatuses"] = [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]
    assert free(inventory(node(), resized))["cpu"] == 5000


def test_nodes_that_take_no_pods_are_in_no_group_and_are_counted_apart() -> None:
    made = inventory(
        node("ready"),
        node("cordoned", unschedulable=True),
        node("leaving", taints=[{"key": "ToBeDeletedByClusterAutoscaler", "value": "17", "effect": "NoSchedule"}]),
        node("gone", ready=False),
        node("theirs", labels={"team": "infra"}),
        node("full", allocatable={"pods": "1"}),
        pod(on="full"),
        ignoreNodes={"matchLabels": {"team": "infra"}},
    )
    assert only_group(made).count == 1
    assert made.counts() == Counts(ready=1, full=1, cordoned=2, not_ready=1, ignored=1)
    assert made.free_now("full") == made.free_now("cordoned") == made.free_now("nowhere") == {}


def test_own_pods_on_a_cordoned_node_are_in_a_group_with_nothing_free() -> None:
    product = {"nvidia.com/gpu.product": "H100"}
    made = inventory(node("n1"), node("n2", labels=product, unschedulable=True), pod(on="n2", own=True, cpu="1"))
    out = next(group for group in made.report().groups if group.name == made.group_of("n2"))
    assert (out.count, out.free, out.labels) == (1, {}, product)
    assert [taint.effect for taint in out.taints] == ["NoSchedule"]
    made.pod_drop("team/p1")
    assert only_group(made).name == made.group_of("n1")
    assert made.group_of("n2") is None


def test_taints_that_matter_are_reported() -> None:
    taints = [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "batch", "effect": "NoSchedule"},
    ]
    group = only_group(inventory(node(taints=taints), ignoreTaints=["batch"]))
    assert [(taint.key, taint.value) for taint in group.taints] == [
        ("gpu", "yes"),
        ("node.kubernetes.io/disk-pressure", ""),
    ]


def test_labels_that_jobs_may_select_by_are_reported_and_others_are_not() -> None:
    labels = {"nvidia.com/gpu.product": "H100", "pool": "a", "pod-template": "x"}
    group = only_group(inventory(node(labels=labels), labels=["pool"]))
    assert group.labels == {"nvidia.com/gpu.product": "H100", "pool": "a"}
    assert group.name.startswith("h100-")


def test_products_are_told_by_group_where_nodes_have_several() -> None:
    made = inventory(
        node("n1", labels={"nvidia.com/gpu.product": "A100"}, allocatable={"nvidia.com/gpu": "4"}),
        node("n2", labels={"nvidia.com/gpu.product": "A100"}, allocatable={"nvidia.com/gpu": "2"}),
        node("n3", labels={"nvidia.com/gpu.product": "V100"}, allocatable={"nvidia.com/gpu": "4"}),
        node("n4"),
    )
    assert made.products_of(["x"]) == {}, "before the first report"
    made.report()
    group = {name: made.group_of(name) or "" for name in ("n1", "n2", "n3", "n4")}
    assert made.products_of([group["n1"], group["n2"]]) == {"nvidia.com/gpu.product": ("A100",)}
    assert made.products_of([group["n4"], "gone"]) == {}
    assert made.products_of([group["n1"], group["n3"]]) == {}, "all that there are"


def test_a_report_without_news_is_the_same_and_a_change_below_the_grid_is_no_news() -> None:
    made = inventory(node(), pod(cpu="100m"))
    first = made.report()
    assert first.version == made.report_version == 1
    made.pod_put(pod("p2", cpu="100m"))
    assert made.report() is first
    made.pod_put(pod("p3", cpu="1"))
    assert made.report().version == 2


def test_the_report_of_an_empty_cluster_is_a_report() -> None:
    made = inventory()
    assert made.report_version == 0
    assert made.report() == ((), (), (), ClusterHealth(), (), 1)
    assert made.report().version == 1


def test_group_of_is_as_last_reported() -> None:
    made = inventory(node())
    before = only_group(made).name
    made.pod_put(pod(cpu="4"))
    assert made.group_of("n1") == before
    assert made.group_of("n1") != only_group(made).name


def test_names_do_not_depend_on_history() -> None:
    made = inventory(node(), pod(cpu="1"))
    made.report()
    made.pod_drop("team/p1")
    assert made.report().groups == inventory(node()).report().groups


def test_what_is_missing_from_a_new_list_is_dropped() -> None:
    made = inventory(node("n1"), node("n2"), pod("p1", cpu="1"), pod("p2", cpu="1"))
    made.relisted(Kind.POD, {"team/p1"})
    made.relisted(Kind.NODE, {"n1"})
    assert (only_group(made).count, free(made)["cpu"]) == (1, 7000)


def test_a_pod_may_be_seen_before_its_node_and_outlive_it() -> None:
    made = inventory(pod(cpu="1"))
    assert made.report().groups == ()
    made.node_put(node())
    assert free(made)["cpu"] == 7000
    made.node_drop("n1")
    assert made.report().groups == ()
    made.pod_drop("team/p1")
    assert made.report().groups == ()


def zone(name: str, cpu: str, available: str, **more: str) -> dict[str, Any]:
    resources = [{"name": "cpu", "capacity": cpu, "allocatable": cpu, "available": available}]
    return {
        "name": name,
        "type": "Node",
        "resources": resources + [{"name": key, "allocatable": value} for key, value in more.items()],
    }


def numa(*zones: dict[str, Any], policy: str = "single-numa-node") -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "attributes": [{"name": "topologyManagerPolicy", "value": policy}],
        "zones": list(zones),
    }


def guaranteed(obj: dict[str, Any]) -> dict[str, Any]:
    obj["status"]["qosClass"] = "Guaranteed"
    return obj


def test_zones_have_what_foreign_pods_leave_of_them_and_own_pods_do_not_count() -> None:
    made = inventory(node(), guaranteed(pod("own", own=True, cpu="2")))
    made.numa_put(numa(zone("node-0", "4", "2"), zone("node-1", "4", "4", **{"nvidia.com/gpu": "1"})))
    group = only_group(made)
    assert group.numa is not None
    assert group.numa.policy == "singleNode"
    assert group.numa.zones == ({"cpu": 4000}, {"cpu": 4000, "nvidia.com/gpu": 1})
    made.pod_put(guaranteed(pod("foreign", cpu="1")))
    made.numa_put(numa(zone("node-0", "4", "1"), zone("node-1", "4", "4")))
    group = only_group(made)
    assert group.numa is not None
    assert group.numa.zones == ({"cpu": 3000}, {"cpu": 4000})


def test_a_foreign_device_is_taken_off_its_zone_whatever_its_pod_is_promised() -> None:
    foreign = pod(cpu="1")
    foreign["spec"]["containers"][0]["resources"]["requests"]["amd.com/gpu"] = "1"
    made = inventory(node(allocatable={"amd.com/gpu": "2"}), foreign)
    taken = zone("node-0", "4", "4")
    taken["resources"].append({"name": "amd.com/gpu", "allocatable": "2", "available": "1"})
    made.numa_put(numa(taken))
    group = only_group(made)
    assert group.numa is not None
    assert group.numa.zones == ({"cpu": 4000, "amd.com/gpu": 1},)


def test_zones_matter_only_where_the_kubelet_keeps_to_them() -> None:
    made = inventory(node())
    made.numa_put(numa(zone("node-0", "4", "4"), policy="best-effort"))
    group = only_group(made)
    assert group.numa is not None
    assert (group.numa.policy, group.numa.zones) == ("bestEffort", ())
    made.relisted(Kind.NUMA, ())
    assert only_group(made).numa is None


def test_the_older_form_of_a_numa_policy_is_read_too() -> None:
    made = inventory(node())
    made.numa_put({"metadata": {"name": "n1"}, "topologyPolicies": ["RestrictedContainerLevel"], "zones": []})
    group = only_group(made)
    assert group.numa is not None
    assert group.numa.policy == "restricted"


def test_what_cannot_be_counted_is_named() -> None:
    fraction = pod("p1")
    fraction["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    odd = pod("p2", cpu="100Ei")
    made = inventory(
        node(labels={"nvidia.com/mig.strategy": "mixed", "pool": "burst"}, allocatable={"nvidia.com/mig-1g.10gb": "7"}),
        fraction,
        odd,
        scalePools=[{"name": "burst", "labels": {"pool": "burst"}, "mostNodes": 5}],
    )
    made.devices.slice_put(resource_slice("n1"))
    assert free(made)["nvidia.com/mig-1g.10gb"] == 7
    assert made.report().not_counted == (
        "devices of ResourceSlices (DRA), while DeviceClasses and ResourceClaims and ResourceSlices cannot be read",
        "MIG devices other than those that GPUs are divided into now",
        "parts of GPUs that other pods share (KAI gpu-fraction and gpu-memory, HAMi, Volcano vGPU)",
        "requests that cannot be read, of pods such as team/p2",
    )
    assert [(pool.name, pool.count, pool.labels) for pool in made.report().pools] == [("burst", 4, {"pool": "burst"})]
    made.relisted(Kind.RESOURCE_SLICE, ())
    made.relisted(Kind.POD, ())
    made.node_drop("n1")
    assert made.report().not_counted == ()
    assert made.report().pools[0].count == 5


def test_the_short_way_to_requests_leaves_hard_ones_to_the_formula() -> None:
    hard = {
        "containers": [{"resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
        "overhead": {"cpu": "250m"},
    }
    assert bound_requests({"spec": hard}) == (pod_requests({"spec": hard}), True)


GPU = "deviceclass.resource.kubernetes.io/gpu"


def _with_devices(*objects: dict[str, Any]) -> Inventory:
    made = inventory(*objects)
    made.devices.class_put(device_class(extended="example.com/gpu"))
    made.devices.slice_put(resource_slice("n1", [device("d0"), device("d1"), device("d2")]))
    for kind, keys in ((Kind.DEVICE_CLASS, ["gpu"]), (Kind.RESOURCE_CLAIM, []), (Kind.RESOURCE_SLICE, ["n1-slice"])):
        made.relisted(kind, keys)
    return made


def test_devices_of_dra_are_free_capacity_of_their_node() -> None:
    made = _with_devices(node())
    assert (free(made)[GPU], free(made)["example.com/gpu"]) == (3, 3)
    assert made.report().not_counted == ()
    made.devices.claim_put(claim("c", [("n1", "d0")], namespace="others"))
    assert (free(made)[GPU], made.free_now("n1")["example.com/gpu"]) == (2, 2)
    made.relisted(Kind.RESOURCE_CLAIM, ())
    assert free(made)[GPU] == 3
    made.relisted(Kind.RESOURCE_SLICE, ())
    assert GPU not in free(made)


def test_devices_are_counted_on_a_node_that_joins_later() -> None:
    made = _with_devices()
    assert made.report().groups == ()
    made.node_put(node())
    assert free(made)[GPU] == 3


def test_devices_are_promised_only_once_all_claims_are_known() -> None:
    made = inventory(node())
    made.devices.class_put(device_class())
    made.devices.slice_put(resource_slice("n1", [device("d0")]))
    made.relisted(Kind.DEVICE_CLASS, ["gpu"])
    made.relisted(Kind.RESOURCE_SLICE, ["n1-slice"])
    assert GPU not in free(made)
    assert made.report().not_counted == ("devices of ResourceSlices (DRA), while ResourceClaims cannot be read",)


def test_devices_of_our_own_pods_stay_in_the_report_and_are_not_free_now() -> None:
    made = _with_devices(node())
    made.pod_put(pod("p", on="", own=True, phase="Pending"))
    made.devices.claim_put(claim("c", [("n1", "d0")], pod="p", namespace="team"))
    assert (free(made)[GPU], free(made)["example.com/gpu"]) == (3, 2)
    for phase in ("Pending", "Running", "Succeeded"):
        made.pod_put(pod("p", own=True, phase=phase))
        assert (free(made)[GPU], made.free_now("n1")[GPU], made.free_now("n1")["example.com/gpu"]) == (3, 2, 2)
    made.relisted(Kind.POD, ())
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 2)
    made.devices.claim_drop("team/c")
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 3)


def test_devices_that_our_pods_share_are_ours_also_before_and_after_these() -> None:
    made = _with_devices(node())
    shared = claim("run-r1-main-0", [("n1", "d0"), ("n1", "d1")], namespace="team")
    shared["metadata"]["labels"] = {OWN[0]: OWN[1]}
    unallocated = {**shared, "status": {}}
    made.devices.claim_put(unallocated)
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 3)
    made.devices.claim_put(shared)
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 1)
    for index in range(2):
        made.pod_put(pod(f"p{index}", own=True, phase="Running"))
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 1)
    made.relisted(Kind.POD, ())
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 1)
    made.devices.claim_put(unallocated)
    assert (free(made)[GPU], made.free_now("n1")[GPU]) == (3, 3)


def test_claims_of_others_that_several_pods_share_are_subtracted_even_if_one_of_ours_has_them() -> None:
    made = _with_devices(node())
    other = claim("shared", [("n1", "d0")], namespace="team")
    for labels in ({}, {OWN[0]: "another-agent"}):
        other["metadata"]["labels"] = labels
        other["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "1"}]
        made.pod_put(pod("p", own=True, phase="Running"))
        made.devices.claim_put(other)
        assert (free(made)[GPU], made.free_now("n1")[GPU]) == (2, 2)


def test_what_a_device_plugin_offers_is_not_counted_again() -> None:
    made = _with_devices(node(allocatable={"example.com/gpu": "1"}))
    assert (free(made)[GPU], free(made)["example.com/gpu"]) == (3, 1)


def test_pods_of_others_that_request_a_class_by_name_are_subtracted_once() -> None:
    made = _with_devices(node())
    requests: dict[str, Any] = {GPU: "1"}
    made.pod_put(pod("p", **requests))
    assert free(made)[GPU] == 3
    made.devices.claim_put(claim("c", [("n1", "d0")], pod="p", namespace="team", extended=True))
    assert free(made)[GPU] == 2
