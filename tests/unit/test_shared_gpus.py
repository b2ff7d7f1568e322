"""The agent's side of parts of GPUs: how nodes are reported that share them, and what pods get to have a part."""

from typing import Any

import pytest

from tests.unit.test_capacity_inventory import inventory, node, only_group, pod
from tests.unit.test_kubernetes_manifests import made, role
from trainmaster.protocol.agent import Sharing
from trainmaster.protocol.device_parts import part_resource
from trainmaster_agent.capacity.shared_gpus import GPU_GROUP, RENAMED, GpuParts, GpuSharing
from trainmaster_agent.runtime.kubernetes.kai_config_maps import config_maps_of

GPU = "nvidia.com/gpu"
GPUS = {"nvidia.com/gpu.memory": "80000"}
MEMORY = 80_000 * 2**20


def gpu_node(
    name: str = "n1", gpus: int = 4, resource: str = GPU, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    return node(name, labels=GPUS | (labels or {}), allocatable={resource: str(gpus)})


def holder(name: str, group: str, on: str = "n1") -> dict[str, Any]:
    """Return the pod by which KAI holds a GPU."""
    made = pod(name, on=on)
    made["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1"}}
    made["metadata"]["labels"] = {GPU_GROUP: group}
    return made


def sharer(name: str, group: str, own: bool = False, **annotations: str) -> dict[str, Any]:
    made = pod(name, own=own, cpu="1")
    made["metadata"]["labels"] |= {GPU_GROUP: group}
    made["metadata"]["annotations"] = {key.replace("_", "-"): text for key, text in annotations.items()}
    return made


class TestKai:
    def test_nodes_offer_any_parts(self) -> None:
        group = only_group(inventory(gpu_node(), gpuSharing="kai"))
        assert group.sharing == Sharing(device=GPU, memory=MEMORY)
        assert group.free[GPU] == 4

    def test_a_gpu_that_only_our_members_share_counts_as_free(self) -> None:
        before = inventory(gpu_node(), pod("p9", own=True, cpu="2"), gpuSharing="kai")
        shared = inventory(
            gpu_node(),
            *(holder("h1", "a"), sharer("s1", "a", own=True, gpu_fraction="0.5")),
            *(sharer("s2", "a", own=True, gpu_memory="1000"),),
            gpuSharing="kai",
        )
        assert only_group(shared) == only_group(before)

    def test_of_a_gpu_that_others_share_the_rest_is_free(self) -> None:
        found = inventory(
            gpu_node(),
            *(holder("h1", "a"), sharer("s1", "a", gpu_fraction="0.5"), sharer("s2", "a", gpu_memory="8000")),
            *(
                holder("h2", "b"),
                sharer("s3", "b", gpu_fraction="0.25"),
                sharer("s4", "b", own=True, gpu_fraction="0.7"),
            ),
            gpuSharing="kai",
        )
        group = only_group(found)
        assert group.sharing is not None
        assert (group.sharing.open, group.free[GPU]) == ((400, 750), 2)
        assert found.report().not_counted == ()
        found.pod_drop("team/s1")
        found.pod_drop("team/s2")
        group = only_group(found)
        assert group.sharing is not None
        assert (group.sharing.open, group.free[GPU]) == ((750,), 3)

    def test_a_pod_that_gets_its_place_later_counts_from_then_on(self) -> None:
        found = inventory(gpu_node(), holder("h1", "a"), gpuSharing="kai")
        late = sharer("s1", "a", gpu_fraction="0.5")
        del late["metadata"]["labels"][GPU_GROUP]
        found.pod_put(late)
        assert only_group(found).free[GPU] == 4
        found.pod_put(sharer("s1", "a", gpu_fraction="0.5"))
        group = only_group(found)
        assert group.sharing is not None
        assert (group.sharing.open, group.free[GPU]) == ((500,), 3)

    def test_without_it_such_a_gpu_is_named_among_what_is_not_counted(self) -> None:
        found = inventory(gpu_node(), holder("h1", "a"), sharer("s1", "a", gpu_fraction="0.5"))
        assert only_group(found).sharing is None
        assert any("KAI" in note for note in found.report().not_counted)


class TestReplicas:
    def test_nodes_that_divide_their_gpus_offer_those_parts(self) -> None:
        group = only_group(inventory(gpu_node(gpus=16, labels={"nvidia.com/gpu.replicas": "4"})))
        assert group.sharing == Sharing(device=GPU, replicas=4)
        assert group.free[GPU] == 16

    def test_replicas_of_their_own_name_are_those_of_the_cluster(self) -> None:
        found = inventory(
            gpu_node("n1", 8, RENAMED, labels={"nvidia.com/gpu.replicas": "2"}),
            gpu_node("n2", 8, labels={"nvidia.com/gpu.replicas": "4"}),
        )
        assert found.gpu_parts == GpuParts(GpuSharing.REPLICAS, RENAMED)
        sharing = {(group.sharing and group.sharing.replicas) for group in found.report().groups}
        assert sharing == {2, None}
        found.node_drop("n1")
        assert found.gpu_parts == GpuParts(GpuSharing.REPLICAS, GPU)
        assert only_group(found).sharing == Sharing(device=GPU, replicas=4)

    @pytest.mark.parametrize("labels", [{}, {"nvidia.com/gpu.replicas": "1"}, {"nvidia.com/gpu.replicas": "many"}])
    def test_whole_gpus_are_not_shared(self, labels: dict[str, str]) -> None:
        assert only_group(inventory(gpu_node(labels=labels))).sharing is None

    def test_nothing_is_offered_where_the_owner_says_so(self) -> None:
        found = inventory(gpu_node(labels={"nvidia.com/gpu.replicas": "4"}), gpuSharing="none")
        assert only_group(found).sharing is None

    def test_groups_without_sharing_keep_their_names(self) -> None:
        """Runs name the groups of their plan: an agent that is replaced by a newer one reports them under the same names."""
        assert only_group(inventory(node())).name == "nodes-4pgig0ajafp5"


KAI, SHARED = GpuParts(GpuSharing.KAI), GpuParts(GpuSharing.REPLICAS, RENAMED)


class TestPods:
    def test_kai_gets_annotations(self) -> None:
        pod = made(role(template={"gpu": {"fraction": "0.5"}}), gpu_parts=KAI).pod("worker", 0)
        assert pod["metadata"]["annotations"]["gpu-fraction"] == "0.5"
        pod = made(role(template={"gpu": {"memory": "1000001Ki"}}), gpu_parts=KAI).pod("worker", 0)
        assert pod["metadata"]["annotations"]["gpu-memory"] == "977"

    def test_a_replica_is_requested_on_nodes_whose_replicas_are_large_enough(self) -> None:
        affinity = [{"key": "pool", "operator": "In", "values": ["a"]}]
        pod = made(role(template={"gpu": {"fraction": "0.3"}, "nodeAffinity": affinity}), gpu_parts=SHARED).pod(
            "worker", 0
        )
        resources = pod["spec"]["containers"][0]["resources"]
        assert (resources["requests"][RENAMED], resources["limits"][RENAMED]) == ("1", "1")
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = required["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": "pool", "operator": "In", "values": ["a"]},
            {"key": "nvidia.com/gpu.replicas", "operator": "Gt", "values": ["1"]},
            {"key": "nvidia.com/gpu.replicas", "operator": "Lt", "values": ["4"]},
        ]

    def test_annotations_of_a_pod_template_get_a_replica_for_the_container_that_they_name(self) -> None:
        annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "second"}
        containers = [{"name": "first", "image": "a"}, {"name": "second", "image": "b"}]
        template = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
        pod = made(role(podTemplate=template), gpu_parts=SHARED).pod("worker", 0)
        first, second = pod["spec"]["containers"]
        assert RENAMED not in (first.get("resources") or {}).get("limits", {})
        assert second["resources"]["limits"] == {RENAMED: "1"}

    def test_what_a_member_takes_of_its_node(self) -> None:
        needs = {"cpu": 1000, part_resource(GPU): 500}
        assert KAI.on_node(needs) == {"cpu": 1000}
        assert SHARED.on_node(needs) == {"cpu": 1000, RENAMED: 1}
        assert GpuParts().on_node(needs) == needs


class TestConfigMapsOfKai:
    def stored(self, **metadata: Any) -> dict[str, Any]:
        containers = [{"name": "first"}, {"name": "second"}]
        return {"metadata": {"name": "a-0", "uid": "u1", **metadata}, "spec": {"containers": containers}}

    def test_they_have_the_names_that_admission_gave_and_belong_to_the_pod(self) -> None:
        found = config_maps_of(self.stored(annotations={"runai/shared-gpu-configmap": "a-x-shared-gpu"}))
        assert [one["metadata"]["name"] for one in found] == ["a-x-shared-gpu-0", "a-x-shared-gpu-0-evar"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "a-0", "uid": "u1"}
        assert all(one["metadata"]["ownerReferences"] == [owner] for one in found)

    def test_the_container_that_gets_the_part_is_in_their_names(self) -> None:
        annotations = {"runai/shared-gpu-configmap": "a-x-shared-gpu", "gpu-fraction-container-name": "second"}
        found = config_maps_of(self.stored(annotations=annotations))
        assert [one["metadata"]["name"] for one in found] == ["a-x-shared-gpu-1", "a-x-shared-gpu-1-evar"]

    def test_a_pod_that_admission_did_not_see_has_none(self) -> None:
        assert config_maps_of(self.stored()) == []
        assert config_maps_of(self.stored(annotations={"gpu-fraction": "0.5"})) == []
