"""Parts of GPUs by HAMi: what its annotations and resources mean, how nodes are reported, and what pods get."""

import json
from typing import Any

import pytest

from tests.unit.building import nodes
from tests.unit.test_capacity_inventory import inventory, node, only_group, pod
from tests.unit.test_kubernetes_manifests import made, role
from trainmaster.cluster_model.shared_devices import Devices, fitting, part_of
from trainmaster.protocol.admission import check_pod_template
from trainmaster.protocol.agent import Sharing
from trainmaster.protocol.device_parts import memory_resource, part_resource
from trainmaster.protocol.jobs import MemberTemplate, Role
from trainmaster_agent.capacity.hami_gpus import Taken, taken_gpus
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.capacity.shared_gpus import RENAMED, GpuParts, GpuSharing
from trainmaster_agent.placement.choose import (
    HAMI_SCHEDULER,
    PlacementConfig,
    PlacementUnavailableError,
    ServedApis,
    choose,
)

GPU, MIB, PERCENT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)
PART, MEMORY = part_resource(GPU), memory_resource(GPU)
DEVICE = {"id": "GPU-0", "count": 10, "devmem": 80_000, "devcore": 100, "type": "NVIDIA-A100", "health": True}
HAMI = GpuParts(GpuSharing.HAMI)
SHARING = Sharing(device=GPU, memory=80_000 * 2**20, step=10, least=91)


def gpu(number: int, **fields: Any) -> dict[str, Any]:
    return {**DEVICE, "id": f"GPU-{number}", "mode": "hami-core", **fields}


def hami_node(*gpus: dict[str, Any], name: str = "n1", splits: int = 40, text: str | None = None) -> dict[str, Any]:
    found = node(name, allocatable={GPU: str(splits), "pods": "50"})
    register = json.dumps(list(gpus) or [gpu(number) for number in range(4)]) if text is None else text
    found["metadata"]["annotations"] = {"hami.io/node-nvidia-register": register}
    return found


def user(name: str, allocated: str, requests: dict[str, str] | None = None, own: bool = False) -> dict[str, Any]:
    found = pod(name, own=own, cpu="1")
    found["spec"]["containers"][0]["resources"]["requests"] |= {GPU: "1", **(requests or {})}
    found["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = allocated
    return found


def hami(*objects: dict[str, Any]) -> Inventory:
    return inventory(*objects, gpuSharing="hami")


def sharing_of(made: Inventory) -> Sharing:
    found = only_group(made).sharing
    assert found is not None
    return found


class TestNodes:
    def test_gpus_are_those_that_are_registered_and_not_the_places_for_pods(self) -> None:
        group = only_group(hami(hami_node()))
        assert group.free[GPU] == 4
        assert group.sharing == Sharing(device=GPU, memory=80_000 * 2**20, step=10, least=91)

    @pytest.mark.parametrize(
        ("fields", "count"),
        [
            ({}, 2),
            ({"health": False}, 1),
            ({"mode": "mig"}, 1),
            ({"mode": "mps"}, 2),
            ({"devcore": 50}, 1),
            ({"devmem": 0}, 1),
        ],
    )
    def test_gpus_that_members_cannot_have_are_left_out(self, fields: dict[str, Any], count: int) -> None:
        assert only_group(hami(hami_node(gpu(0), gpu(1, **fields)))).free[GPU] == count

    def test_what_go_leaves_out_of_the_annotation_is_false(self) -> None:
        sick = gpu(1)
        del sick["health"]
        assert only_group(hami(hami_node(gpu(0), sick))).free[GPU] == 1

    def test_the_smallest_memory_and_the_fewest_places_of_its_gpus_count(self) -> None:
        found = sharing_of(hami(hami_node(gpu(0, devmem=40_000, count=100), gpu(1, count=3))))
        assert (found.memory, found.least) == (40_000 * 2**20, 251)

    @pytest.mark.parametrize(
        "text", ["", "{}", "[1]", '[{"health": true}]', "no", '[{"id": "a", "health": true, "devmem": "x"}]']
    )
    def test_gpus_whose_registration_cannot_be_read_are_not_counted(self, text: str) -> None:
        found = hami(hami_node(text=text))
        group = only_group(found)
        assert (group.free.get(GPU), group.sharing) == (None, None)
        assert found.report().not_counted == ("GPUs of 1 nodes that have not registered them with HAMi, such as n1",)
        found.node_put(hami_node())
        assert only_group(found).free[GPU] == 4
        assert found.report().not_counted == ()

    def test_a_node_whose_device_plugin_is_gone_offers_none(self) -> None:
        found = hami(hami_node(splits=0))
        group = only_group(found)
        assert (group.free.get(GPU), group.sharing) == (None, None)
        assert found.report().not_counted == ()

    def test_handshakes_change_no_report(self) -> None:
        found, later = hami(hami_node()), hami_node()
        before = found.report().version
        later["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2026-01-01 00:00:00"
        found.node_put(later)
        assert found.report().version == before

    def test_without_hami_as_the_way_of_sharing_parts_of_others_are_named(self) -> None:
        found = inventory(hami_node(), user("p1", "GPU-0,NVIDIA,20000,0:;", {MIB: "20000"}))
        assert any("HAMi" in note for note in found.report().not_counted)


class TestPodsOfOthers:
    def test_of_a_gpu_that_they_use_the_rest_is_free(self) -> None:
        found = hami(
            hami_node(),
            user("p1", "GPU-0,NVIDIA,20000,0:;", {MIB: "20000"}),
            user("p2", "GPU-0,NVIDIA,20000,0:;", {MIB: "20000"}),
            user("p3", "GPU-1,NVIDIA,8000,70:;", {PERCENT: "10", CORES: "70"}),
        )
        group = only_group(found)
        assert (sharing_of(found).open, group.free[GPU]) == ((300, 500), 2)
        found.pod_drop("team/p2")
        found.pod_put(user("p3", "GPU-1,NVIDIA,8000,70:;") | {"status": {"phase": "Succeeded"}})
        group = only_group(found)
        assert (sharing_of(found).open, group.free[GPU]) == ((750,), 3)

    def test_whole_ones_leave_nothing(self) -> None:
        found = hami(hami_node(), user("p1", "GPU-2,NVIDIA,80000,100:GPU-3,NVIDIA,80000,100:;", {GPU: "2"}))
        assert (sharing_of(found).open, only_group(found).free[GPU]) == ((), 2)

    def test_the_places_of_a_gpu_are_taken_by_the_smallest_parts_too(self) -> None:
        pods = [user(f"p{number}", "GPU-0,NVIDIA,1,0:;", {MIB: "1"}) for number in range(9)]
        found = hami(hami_node(), *pods)
        assert sharing_of(found).open == (181,)
        assert fitting(SHARING, Devices(0, (181,)), SHARING.least) == 1
        found.pod_put(user("p9", "GPU-0,NVIDIA,1,0:;", {MIB: "1"}))
        assert sharing_of(found).open == ()

    def test_a_gpu_without_free_cores_takes_nobody(self) -> None:
        assert sharing_of(hami(hami_node(), user("p1", "GPU-0,NVIDIA,1,100:;"))).open == ()

    def test_parts_on_gpus_that_are_not_offered_take_nothing_of_the_others(self) -> None:
        found = hami(hami_node(gpu(0), gpu(1, health=False)), user("p1", "GPU-1,NVIDIA,9,0:;", {MIB: "9"}))
        assert (sharing_of(found).open, only_group(found).free[GPU]) == ((), 1)

    def test_pods_that_hami_gave_none_have_whole_ones(self) -> None:
        bare = pod("p1", cpu="1")
        bare["spec"]["containers"][0]["resources"]["requests"][GPU] = "3"
        assert only_group(hami(hami_node(), bare)).free[GPU] == 1

    def test_what_cannot_be_read_counts_as_whole_ones_and_is_named(self) -> None:
        found = hami(hami_node(), user("p1", "GPU-0,NVIDIA,many,0:;", {MIB: "9"}))
        assert only_group(found).free[GPU] == 3
        assert any("HAMi" in note for note in found.report().not_counted)

    def test_devices_of_several_containers_and_of_mig_are_read(self) -> None:
        found = user("p1", ";GPU-0[1-0],NVIDIA,9,3:GPU-1,NVIDIA,8,0:;;")
        assert taken_gpus(found) == (Taken("GPU-0", 9, 3), Taken("GPU-1", 8, 0))


def test_our_own_members_change_no_report_but_are_not_free_now() -> None:
    found = hami(hami_node())
    before = only_group(found)
    found.pod_put(user("p1", "GPU-0,NVIDIA,40000,50:;", {PERCENT: "50", CORES: "50"}, own=True))
    found.pod_put(user("p2", "GPU-1,NVIDIA,80000,100:;", {PERCENT: "100", CORES: "100"}, own=True))
    after = only_group(found)
    assert (after.free, after.sharing) == (before.free, before.sharing)
    assert (found.free_now("n1")[GPU], found.free_now("n1")[PART]) == (2, 2500)
    found.pod_put(user("p3", "GPU-2,NVIDIA,8000,0:;", {MIB: "8"}))
    assert (found.free_now("n1")[GPU], found.free_now("n1")[PART]) == (1, 2400)
    bare = pod("p4", cpu="1")
    bare["spec"]["containers"][0]["resources"]["requests"][GPU] = "1"
    found.pod_put(bare)
    assert found.free_now("n1")[GPU] == 0
    usable = found.usable("n1")
    assert usable is not None
    assert (usable.allocatable[PART], usable.free[PART]) == (3900, 2400)


class TestRequests:
    @pytest.mark.parametrize(
        ("resources", "found"),
        [
            ({GPU: "1", PERCENT: "25"}, {PART: 250}),
            ({GPU: "1", PERCENT: "25", CORES: "40"}, {PART: 400}),
            ({GPU: 1, MIB: 8000}, {MEMORY: 8000 * 2**20}),
            ({MIB: "8000"}, {MEMORY: 8000 * 2**20}),
            ({GPU: "1", MIB: "8000", CORES: "0"}, {MEMORY: 8000 * 2**20}),
            ({GPU: "1", CORES: "30"}, {GPU: 1}),
            ({CORES: "30"}, {GPU: 1}),
            ({GPU: "2", PERCENT: "100", CORES: "100"}, {GPU: 2}),
            ({GPU: "2", "nvidia.com/priority": "1"}, {GPU: 2}),
            ({"nvidia.com/priority": "1"}, {}),
        ],
    )
    @pytest.mark.parametrize("kind", ["limits", "requests"])
    def test_hamis_resources_are_parts_of_gpus(
        self, kind: str, resources: dict[str, Any], found: dict[str, int]
    ) -> None:
        template = {"spec": {"containers": [{"name": "a", "image": "i", "resources": {kind: resources}}]}}
        assert Role.model_validate({"name": "w", "podTemplate": template}).amounts == found

    @pytest.mark.parametrize(
        ("containers", "why"),
        [
            ([{GPU: "2", PERCENT: "50"}], "a part of one device"),
            ([{GPU: "0", PERCENT: "50"}], "a part of one device"),
            ([{GPU: "1", PERCENT: "50"}, {GPU: "1"}], "a part of one device"),
            ([{GPU: "1", PERCENT: "50"}, {MIB: "7"}], "a part of one device"),
            ([{GPU: "1", PERCENT: "0"}], "above 0 and at most 100"),
            ([{GPU: "1", PERCENT: "101"}], "above 0 and at most 100"),
            ([{GPU: "1", CORES: "101"}], "at most 100"),
            ([{GPU: "1", MIB: "0"}], "MiB above 0"),
            ([{GPU: "1", MIB: "8Gi"}], "MiB above 0"),
            ([{GPU: "1", MIB: "9", PERCENT: "5"}], "cannot be given with"),
            ([{GPU: "1", MIB: "9", CORES: "5"}], "cannot be given with"),
        ],
    )
    def test_what_cannot_be_counted_is_refused(self, containers: list[dict[str, str]], why: str) -> None:
        made = [
            {"name": f"c{number}", "image": "i", "resources": {"limits": one}} for number, one in enumerate(containers)
        ]
        with pytest.raises(ValueError, match=why):
            _ = Role.model_validate({"name": "w", "podTemplate": {"spec": {"containers": made}}}).amounts

    def test_containers_without_gpus_beside_the_part_change_nothing(self) -> None:
        containers = [
            {"name": "a", "image": "i", "resources": {"limits": {GPU: "1", PERCENT: "50"}}},
            {"name": "b", "image": "i", "resources": {"limits": {GPU: "0"}}},
            {"name": "c", "image": "i"},
        ]
        assert Role.model_validate({"name": "w", "podTemplate": {"spec": {"containers": containers}}}).amounts == {
            PART: 500
        }

    def test_annotations_of_kai_beside_them_are_refused(self) -> None:
        container = {"name": "a", "image": "i", "resources": {"limits": {GPU: "1", PERCENT: "50"}}}
        template = {"metadata": {"annotations": {"gpu-fraction": "0.5"}}, "spec": {"containers": [container]}}
        with pytest.raises(ValueError, match="leave out one of the two"):
            _ = Role.model_validate({"name": "w", "podTemplate": template}).amounts

    def test_a_template_says_gpu_instead(self) -> None:
        with pytest.raises(ValueError, match="gives a member a part of a GPU"):
            MemberTemplate.model_validate({"resources": {GPU: "1", MIB: "8000"}})

    def test_annotations_by_which_hami_counts_are_the_agents(self) -> None:
        template = {
            "metadata": {"annotations": {"hami.io/vgpu-devices-allocated": ""}},
            "spec": {"containers": [{"name": "a", "image": "i"}]},
        }
        (mistake,) = check_pod_template(template, None)
        assert "hami.io" in mistake.path


class TestCounting:
    @pytest.mark.parametrize("places", [*range(1, 130), 999, 1000, 5000])
    def test_a_gpu_has_no_more_members_than_places_for_pods(self, places: int) -> None:
        sharing = sharing_of(hami(hami_node(gpu(0, count=places))))
        members = fitting(sharing, Devices(1), part_of(sharing, {PART: 1, MEMORY: 1}))
        assert places * 0.9 <= members <= places or members == 100 == 1000 // sharing.step

    @pytest.mark.parametrize(
        ("needs", "part"),
        [
            ({PART: 333}, 340),
            ({PART: 999}, 1000),
            ({PART: 50}, 91),
            ({MEMORY: 20_001 * 2**20}, 251),
            ({MEMORY: 1}, 91),
        ],
    )
    def test_fractions_are_rounded_up_as_hami_gives_them(self, needs: dict[str, int], part: int) -> None:
        assert part_of(SHARING, needs) == part

    def test_a_group_is_read_with_its_steps(self) -> None:
        assert nodes(1, "a", sharing=SHARING, gpu=1).sharing == SHARING


def limits(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    resources = pod["spec"]["containers"][container]["resources"]
    of_gpus = [{name: str(text) for name, text in resources[kind].items() if "nvidia" in name} for kind in resources]
    assert all(one == of_gpus[0] for one in of_gpus)
    return of_gpus[0]


def template_with(*containers: dict[str, str]) -> dict[str, Any]:
    made = [{"name": f"c{number}", "image": "i", "resources": {"limits": one}} for number, one in enumerate(containers)]
    return role(podTemplate={"spec": {"containers": made}})


class TestPods:
    @pytest.mark.parametrize(
        ("gpu", "found"),
        [
            ({"fraction": "0.5"}, {GPU: "1", PERCENT: "50", CORES: "50"}),
            ({"fraction": "0.333"}, {GPU: "1", PERCENT: "34", CORES: "34"}),
            ({"memory": "1000001Ki"}, {GPU: "1", MIB: "977"}),
        ],
    )
    def test_parts_are_requested_on_gpus_that_are_shared_already(
        self, gpu: dict[str, str], found: dict[str, str]
    ) -> None:
        pod = made(role(template={"gpu": gpu}), gpu_parts=HAMI).pod("worker", 0)
        assert limits(pod) == found
        assert pod["metadata"]["annotations"]["hami.io/gpu-scheduler-policy"] == "binpack"

    def test_annotations_of_kai_are_requests_of_hami(self) -> None:
        template = {
            "metadata": {"annotations": {"gpu-fraction": "0.5"}},
            "spec": {"containers": [{"name": "a", "image": "i"}]},
        }
        pod = made(role(podTemplate=template), gpu_parts=HAMI).pod("worker", 0)
        assert limits(pod) == {GPU: "1", PERCENT: "50", CORES: "50"}

    def test_whole_ones_are_whole(self) -> None:
        pod = made(role(template={"resources": {GPU: "2"}}), gpu_parts=HAMI).pod("worker", 0)
        assert limits(pod) == {GPU: "2", PERCENT: "100", CORES: "100"}
        pod = made(template_with({"cpu": "1"}, {GPU: "1"}), gpu_parts=HAMI).pod("worker", 0)
        assert limits(pod, 1) == {GPU: "1", PERCENT: "100", CORES: "100"}

    @pytest.mark.parametrize(
        "asks",
        [{GPU: "1", CORES: "30"}, {GPU: "1", PERCENT: "20"}, {GPU: "1", MIB: "9"}, {GPU: "2", PERCENT: "100"}],
    )
    def test_what_a_pod_template_asks_of_hami_stays(self, asks: dict[str, str]) -> None:
        assert limits(made(template_with(asks), gpu_parts=HAMI).pod("worker", 0)) == asks

    @pytest.mark.parametrize("asks", [{PERCENT: "20"}, {MIB: "9"}, {CORES: "30"}])
    def test_the_gpu_that_hami_adds_is_there_without_its_webhook(self, asks: dict[str, str]) -> None:
        pod = made(template_with(asks), gpu_parts=HAMI).pod("worker", 0)
        assert pod["spec"]["containers"][0]["resources"]["limits"] == asks | {GPU: "1"}

    def test_pods_without_gpus_stay_as_they_are(self) -> None:
        assert made(role(), gpu_parts=HAMI).pod("worker", 0) == made(role()).pod("worker", 0)

    def test_elsewhere_hamis_resources_are_what_the_cluster_gives(self) -> None:
        asks = template_with({"cpu": "1"}, {GPU: "1", PERCENT: "30"})
        pod = made(asks, gpu_parts=GpuParts(GpuSharing.KAI)).pod("worker", 0)
        assert limits(pod, 1) == {}
        annotations = pod["metadata"]["annotations"]
        assert (annotations["gpu-fraction"], annotations["gpu-fraction-container-name"]) == ("0.3", "c1")
        pod = made(asks, gpu_parts=GpuParts(GpuSharing.REPLICAS, RENAMED)).pod("worker", 0)
        assert limits(pod, 1) == {RENAMED: "1"}
        pod = made(template_with({GPU: "2", CORES: "100"}), gpu_parts=GpuParts()).pod("worker", 0)
        assert limits(pod) == {GPU: "2"}

    def test_what_a_member_takes_of_its_node_and_of_quotas(self) -> None:
        needs = {"cpu": 1000, PART: 500}
        assert HAMI.on_node(needs) == needs
        assert HAMI.on_node({GPU: 2}) == {GPU: 2, PART: 2000}
        assert HAMI.on_node({MEMORY: 8000}) == {}
        found = hami(hami_node(), hami_node(gpu(0, devmem=40_000), name="n2"))
        assert found.gpu_parts == HAMI._replace(memory=80_000 * 2**20)
        assert found.gpu_parts.on_node({MEMORY: 20_000 * 2**20}) == {PART: 250}
        found.node_drop("n1")
        assert found.gpu_parts.on_node({MEMORY: 20_000 * 2**20}) == {PART: 500}
        assert HAMI.requested(needs) == {"cpu": 1000, GPU: 1}
        assert GpuParts(GpuSharing.KAI).requested(needs) == {"cpu": 1000}


class TestScheduler:
    @pytest.mark.parametrize("scheduler", ["auto", "gates", "native"])
    def test_pods_go_to_hamis(self, scheduler: str) -> None:
        config = PlacementConfig.model_validate({"scheduler": scheduler})
        placement = choose(config, ServedApis(native="v1alpha2"), is_hami=True)
        assert getattr(placement, "scheduler_name", None) == HAMI_SCHEDULER

    def test_its_name_can_be_given(self) -> None:
        config = PlacementConfig(scheduler="gates", scheduler_name="gpus")
        assert getattr(choose(config, ServedApis(), is_hami=True), "scheduler_name", None) == "gpus"

    def test_others_do_not_know_its_gpus(self) -> None:
        for config in (PlacementConfig(scheduler="yunikorn"), PlacementConfig()):
            with pytest.raises(PlacementUnavailableError, match="must be native, gates or kueue, not"):
                choose(config, ServedApis(volcano=True), is_hami=True)
