"""Pools of nodes as the cluster's autoscalers report them, merged with the configuration."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.autoscaler_texts import INITIALIZING, LINES_1_28, YAML_1_30, YAML_1_36
from tests.unit.test_capacity_inventory import GIB, OWN, node, pod
from trainmaster.protocol.agent import Pool
from trainmaster_agent.capacity.autoscaler_status import (
    AutoscalerStatus,
    NodeGroupStatus,
    UnreadableStatusError,
    lasting,
    read_status,
    written_at,
)
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.capacity.inventory import Inventory, Kind

AT = 1_795_860_020.0
"""2026-11-28T10:00:20Z."""
QUOTA = "Instance 'h100-1' creation failed: Quota 'NVIDIA_H100_GPUS' exceeded. Limit: 0.0 in region europe-west4."


def config_map(text: str = YAML_1_36, at: str = "2026-11-28 10:00:20.123456789 +0000 UTC") -> dict[str, Any]:
    annotations = {"cluster-autoscaler.kubernetes.io/last-updated": at}
    metadata = {"name": "cluster-autoscaler-status", "namespace": "kube-system", "annotations": annotations}
    return {"metadata": metadata, "data": {"status": text}}


def node_pool(name: str = "gpu", **fields: Any) -> dict[str, Any]:
    spec = {
        "limits": {"cpu": "64", "nvidia.com/gpu": "4"},
        "template": {
            "metadata": {"labels": {"team": "research"}},
            "spec": {
                "requirements": [
                    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                    {
                        "key": "node.kubernetes.io/instance-type",
                        "operator": "In",
                        "values": ["g5.4xlarge", "g5.8xlarge"],
                    },
                ],
                "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            },
        },
    }
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
    status = {"resources": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "1", "nodes": "1"}, "conditions": [ready]}
    return {
        "metadata": {"name": name},
        "spec": spec | fields.pop("spec", {}),
        "status": status | fields.pop("status", {}),
    }


class AutoscaledCluster:
    """An inventory, and the time."""

    def __init__(self, *objects: dict[str, Any], **config: Any) -> None:
        self.now = AT
        self.inventory = Inventory(CapacityConfig.model_validate(config), OWN, lambda: self.now)
        for obj in objects:
            (self.inventory.pod_put if "containers" in obj["spec"] else self.inventory.node_put)(obj)

    def pools(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.inventory.report().pools}

    def sizes(self) -> dict[str, tuple[int, int, int]]:
        """Return by pool the nodes that it has, may have and can get now."""
        return {name: (pool.nodes, pool.most, pool.count) for name, pool in self.pools().items()}


A100 = {"name": "a100", "labels": {"pool": "a100"}, "resources": {"cpu": "30", "nvidia.com/gpu": "4"}}


def test_every_version_of_the_status_is_read() -> None:
    assert read_status(YAML_1_36).groups == (
        NodeGroupStatus("a100", 4, 10),
        NodeGroupStatus("h100", 0, 4, f"in back-off after a scale-up that failed: QUOTA_EXCEEDED: {QUOTA}"),
        NodeGroupStatus("cpu", 4, 6, "unhealthy: 1 of 4 nodes are ready"),
    )
    (google,) = read_status(YAML_1_30).groups
    assert (google.name.rpartition("/")[2], google[1:]) == ("gke-west-gpu-0a1b2c3d-grp", (1, 3, ""))
    assert read_status(LINES_1_28).groups == (
        NodeGroupStatus("eks-gpu-16c5a8f2-1111-2222-3333-444455556666", 3, 8),
        NodeGroupStatus(
            "eks-spot-16c5a8f2-7777-2222-3333-444455556666", 2, 5, "in back-off after a scale-up that failed"
        ),
    )
    assert read_status(INITIALIZING) == AutoscalerStatus()


@pytest.mark.parametrize("text", [YAML_1_36, YAML_1_30, LINES_1_28])
def test_of_an_unhealthy_cluster_no_group_grows(text: str) -> None:
    assert read_status(text).blocked == ""
    changed = text.replace("Healthy (ready=4", "Unhealthy (ready=4").replace("status: Healthy", "status: Unhealthy")
    assert "too many of the cluster's nodes are not ready" in read_status(changed).blocked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "not a mapping"),
        ("a: [", "not YAML"),
        ("nodeGroups: 3", "nodeGroups of"),
        ("nodeGroups: [{health: {}}]", "nodeGroups[0]"),
        ("nodeGroups: [{name: a, health: 3}]", "nodeGroups[0].health"),
        ("nodeGroups: [{name: a, health: {maxSize: many}}]", "maxSize of nodeGroups[0]"),
        ("clusterWide: []\nnodeGroups: []", "clusterWide"),
    ],
)
def test_what_is_no_status_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(UnreadableStatusError) as caught:
        read_status(text)
    assert words in str(caught.value)


counts = st.integers(-5, 10**7)
group = st.fixed_dictionaries(
    {"name": st.text("abc-/:", min_size=1)},
    optional={
        "health": st.fixed_dictionaries(
            {},
            optional={
                "status": st.sampled_from(["Healthy", "Unhealthy", "New"]),
                "nodeCounts": st.fixed_dictionaries({}, optional={"registered": st.just({"total": 3, "ready": 2})}),
                "cloudProviderTarget": counts,
                "maxSize": counts,
            },
        ),
        "scaleUp": st.fixed_dictionaries(
            {}, optional={"status": st.sampled_from(["Backoff", "NoActivity"]), "backoffInfo": st.none()}
        ),
    },
)


@given(st.lists(group, max_size=4), st.integers(0, 5))
def test_a_report_of_pools_is_one_that_the_dispatcher_takes(groups: list[dict[str, Any]], most: int) -> None:
    cluster = AutoscaledCluster(scalePools=[A100 | {"name": "abc", "mostNodes": most}])
    cluster.inventory.pool_reports.status_put(config_map(json.dumps({"nodeGroups": groups})))
    for pool in cluster.pools().values():
        assert 0 <= pool.count <= pool.most <= most
        assert pool.count == 0 or not pool.blocked


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UnreadableStatusError):
        assert read_status(text).groups == ()


def test_only_the_times_of_a_status_are_not_lasting() -> None:
    later = YAML_1_36.replace("10:00:20", "10:00:30")
    assert later != YAML_1_36
    assert lasting(later) == lasting(YAML_1_36)
    assert lasting(YAML_1_36.replace("maxSize: 10", "maxSize: 9")) != lasting(YAML_1_36)
    assert read_status(lasting(YAML_1_36)) == read_status(YAML_1_36)
    assert written_at(config_map()) == AT
    assert written_at(config_map(at="soon")) is None
    assert written_at(config_map(at="2026-13-28 10:00:20 +0000 UTC")) is None


def test_nodes_of_a_group_are_recognised_by_a_label_and_show_what_one_more_offers() -> None:
    daemon = pod("d", "n2", cpu="500m", memory="1Gi")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d"}]
    taint = {"key": "gpu", "value": "", "effect": "NoSchedule"}
    labels = {"group": "a100", "node.kubernetes.io/instance-type": "big"}
    cluster = AutoscaledCluster(
        node("n1", labels={"group": "a100", "node.kubernetes.io/instance-type": "small"}),
        node("n2", labels=labels, allocatable={"cpu": "16"}, taints=[taint]),
        node("n3", labels={"kubernetes.io/arch": "amd64"}),
        daemon,
        pod("busy", "n2", cpu="10"),
        autoscaler={"nodeLabel": "group"},
        labels=["group"],
    )
    cluster.inventory.pool_reports.status_put(config_map())
    assert cluster.sizes() == {"a100": (4, 10, 6)}
    pool = cluster.pools()["a100"]
    assert pool.free == {"cpu": 15500, "memory": 31 * GIB}
    assert pool.labels == {"group": "a100"}, "only labels that all nodes of the group have"
    assert [one.key for one in pool.taints] == ["gpu"]
    (note,) = cluster.inventory.report().not_counted
    assert note.startswith("nodes that the autoscaler may add to cpu, h100: what a node offers is not known")
    cluster.inventory.node_drop("n1")
    assert cluster.pools()["a100"].labels == labels
    cluster.inventory.node_drop("n2")
    assert cluster.pools() == {}


def test_a_group_without_nodes_is_described_by_hand_and_needs_no_size() -> None:
    cluster = AutoscaledCluster(
        scalePools=[A100, A100 | {"name": "other", "nodeGroup": "h100"}, A100 | {"name": "lost"}]
    )
    assert cluster.sizes() == {}
    cluster.inventory.pool_reports.status_put(config_map())
    assert cluster.sizes() == {"a100": (4, 10, 6), "other": (0, 4, 0)}
    pool = cluster.pools()["other"]
    assert pool.free == {"cpu": 30_000, "nvidia.com/gpu": 4}
    assert pool.blocked.endswith(QUOTA)
    notes = cluster.inventory.report().not_counted
    assert notes[0] == "pools without mostNodes of which no autoscaler reports a node group: lost"


def test_of_two_limits_the_lower_one_counts() -> None:
    cluster = AutoscaledCluster(scalePools=[A100 | {"mostNodes": 5}, A100 | {"name": "cpu", "mostNodes": 99}])
    assert cluster.sizes() == {"a100": (0, 5, 5), "cpu": (0, 99, 99)}
    cluster.inventory.pool_reports.status_put(config_map())
    assert cluster.sizes() == {"a100": (4, 5, 1), "cpu": (4, 6, 0)}


def test_an_autoscaler_that_is_silent_adds_nothing() -> None:
    cluster = AutoscaledCluster(scalePools=[A100])
    cluster.inventory.pool_reports.status_put(config_map())
    cluster.now += 599
    assert cluster.sizes() == {"a100": (4, 10, 6)}
    cluster.now += 10
    assert cluster.sizes() == {"a100": (4, 10, 0)}
    assert "has reported nothing for ten minutes" in cluster.pools()["a100"].blocked
    cluster.inventory.pool_reports.status_put(config_map(at="2026-11-28 10:10:20 +0000 UTC"))
    assert cluster.sizes() == {"a100": (4, 10, 6)}


def test_without_its_report_a_pool_is_what_the_configuration_says() -> None:
    cluster = AutoscaledCluster(scalePools=[A100 | {"mostNodes": 5}])
    cluster.inventory.pool_reports.status_put(config_map())
    cluster.inventory.relisted(Kind.AUTOSCALER, ["kube-system/cluster-autoscaler-status"])
    assert cluster.sizes() == {"a100": (4, 5, 1)}
    cluster.inventory.relisted(Kind.AUTOSCALER, [])
    assert cluster.sizes() == {"a100": (0, 5, 5)}
    cluster.inventory.pool_reports.status_put({**config_map(), "data": None})
    assert cluster.sizes() == {"a100": (0, 5, 5)}


def test_addresses_of_groups_are_shortened_and_their_pools_matched_by_a_pattern() -> None:
    name = (
        "https://www.googleapis.com/compute/v1/projects/p/zones/europe-west4-a/instanceGroups/gke-west-gpu-0a1b2c3d-grp"
    )
    cluster = AutoscaledCluster(
        node("n1", labels={"cloud.google.com/gke-nodepool": "gpu"}),
        autoscaler={"nodeLabel": "cloud.google.com/gke-nodepool", "groupName": "*/gke-west-{value}-????????-grp"},
    )
    cluster.inventory.pool_reports.status_put(config_map(YAML_1_30))
    assert cluster.sizes() == {"gke-west-gpu-0a1b2c3d-grp": (1, 3, 2)}
    other = AutoscaledCluster(scalePools=[A100 | {"nodeGroup": name}])
    other.inventory.pool_reports.status_put(config_map(YAML_1_30))
    assert other.sizes() == {"a100": (1, 3, 2)}


@pytest.mark.parametrize("config", [{"groupName": "x"}, {"groupName": "{value}{value}"}, {"namespace": "Kube"}])
def test_a_pattern_has_the_value_once(config: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        CapacityConfig.model_validate({"autoscaler": config})


def test_a_node_group_is_named_once() -> None:
    with pytest.raises(ValidationError, match="node group of scale pools 'a100' is given twice"):
        CapacityConfig.model_validate({"scalePools": [A100, A100 | {"name": "b", "nodeGroup": "a100"}]})


GPU_NODE = {"cpu": "15900m", "memory": "60Gi", "nvidia.com/gpu": "1"}


def test_a_node_pool_of_karpenter_grows_to_the_limit_of_its_scarcest_resource() -> None:
    label = {"karpenter.sh/nodepool": "gpu"}
    cluster = AutoscaledCluster(node("n1", labels=label, allocatable=GPU_NODE), node("n2", labels=label))
    cluster.inventory.pool_reports.node_pool_put(node_pool())
    assert cluster.sizes() == {"gpu": (1, 4, 3)}
    assert cluster.pools()["gpu"].free == {"cpu": 15500, "memory": 60 * GIB, "nvidia.com/gpu": 1}
    cluster.inventory.pool_reports.node_pool_put(node_pool(spec={"limits": {"cpu": "63"}}))
    assert cluster.sizes() == {"gpu": (1, 3, 2)}, "a machine has 16 CPUs, of which pods get 15.5"
    cluster.inventory.pool_reports.node_pool_put(node_pool(spec={"limits": {"cpu": "20"}}))
    assert cluster.sizes() == {"gpu": (1, 1, 0)}
    assert cluster.pools()["gpu"].blocked == "the limit of its NodePool on cpu leaves no further node"
    cluster.inventory.pool_reports.node_pool_put(node_pool(spec={"limits": None}))
    assert cluster.sizes() == {"gpu": (1, 1001, 1000)}
    cluster.inventory.pool_reports.node_pool_put(node_pool(spec={"replicas": 3}))
    assert cluster.sizes() == {}


def test_a_node_pool_that_is_not_ready_adds_nothing() -> None:
    cluster = AutoscaledCluster(scalePools=[A100 | {"name": "gpu"}])
    failed = {"type": "Ready", "status": "False", "reason": "NodeClassNotReady", "message": "NodeClass gpu not found"}
    cluster.inventory.pool_reports.node_pool_put(node_pool(status={"conditions": [failed]}))
    assert cluster.sizes() == {"gpu": (1, 1, 0)}
    pool = cluster.pools()["gpu"]
    assert pool.blocked == "its NodePool is not ready: NodeClassNotReady: NodeClass gpu not found"
    assert pool.labels == {"pool": "a100", "kubernetes.io/arch": "amd64"}, "template labels that jobs may select by"
    assert [taint.key for taint in pool.taints] == ["gpu"]
    going = node_pool()
    going["metadata"]["deletionTimestamp"] = "2026-11-28T10:00:20Z"
    cluster.inventory.pool_reports.node_pool_put(going)
    assert cluster.pools()["gpu"].blocked == "it is being deleted"
    cluster.inventory.relisted(Kind.NODE_POOL, [])
    assert cluster.sizes() == {}


def test_a_node_pool_whose_nodes_are_not_known_is_not_counted() -> None:
    cluster = AutoscaledCluster()
    cluster.inventory.pool_reports.node_pool_put(node_pool())
    assert cluster.sizes() == {}
    (note,) = cluster.inventory.report().not_counted
    assert note.startswith("nodes that the autoscaler may add to gpu: ")


@given(limit=st.integers(0, 40), used=st.integers(0, 40), cpu=st.integers(1, 16), most=st.none() | st.integers(0, 9))
def test_no_limit_is_ever_passed(limit: int, used: int, cpu: int, most: int | None) -> None:
    cluster = AutoscaledCluster(scalePools=[A100 | {"name": "gpu", "resources": {"cpu": str(cpu)}, "mostNodes": most}])
    made = node_pool(spec={"limits": {"cpu": str(limit)}}, status={"resources": {"cpu": str(used)}})
    cluster.inventory.pool_reports.node_pool_put(made)
    pool = cluster.pools()["gpu"]
    assert used + pool.count * cpu <= max(limit, used)
    assert most is None or pool.count <= most
    if most is None:
        assert used + (pool.count + 1) * cpu > limit


events = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2", "n3"]),
        st.sampled_from([None, "a100", "cpu"]),
        st.sampled_from(["8", "16"]),
        st.sampled_from(["put", "put", "drop", "not ready", "report"]),
    ),
    max_size=12,
)


@given(events)
def test_pools_follow_from_what_exists_and_not_from_what_has_been(
    history: list[tuple[str, str | None, str, str]],
) -> None:
    config: dict[str, Any] = {"autoscaler": {"nodeLabel": "group"}, "labels": ["group"]}
    live, last = AutoscaledCluster(**config), dict[str, dict[str, Any]]()
    for name, of, cpu, what in history:
        if what == "report":
            live.pools()
        elif what == "drop":
            live.inventory.node_drop(name)
            last.pop(name, None)
        else:
            last[name] = node(name, what == "put", {"group": of} if of else {}, allocatable={"cpu": cpu})
            live.inventory.node_put(last[name])
    anew = AutoscaledCluster(*last.values(), **config)
    for cluster in (live, anew):
        cluster.inventory.pool_reports.status_put(config_map())
    assert live.pools() == anew.pools()
    assert live.pools().keys() == {
        one["metadata"]["labels"]["group"]
        for one in last.values()
        if "group" in one["metadata"]["labels"] and one["status"]["conditions"][0]["status"] == "True"
    }
