"""Parts of devices: fitted on whole devices, counted, charged and priced by the part, and never promised twice."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.building import GPU, StateBuilder, amounts, gang, nodes, role
from trainmaster.cluster_model.shared_devices import (
    Devices,
    after,
    drain,
    fitting,
    largest_parts,
    part_of,
    sum_of_parts,
)
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Sharing
from trainmaster.protocol.device_parts import device_of, is_part, memory_resource, part_resource
from trainmaster.protocol.jobs import JobSpec, MemberTemplate, Role
from trainmaster.protocol.quantities import format_resources
from trainmaster_dispatcher.domain.prices import MICROS, PricedResource, PriceHistory, Rate, Tariff
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.domain.usage import HOUR, UsagePart, UsageSpan, usage_of
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Shortfall, fit, size_choices, take
from trainmaster_dispatcher.scheduling.packing.node_buckets import drain_parts
from trainmaster_dispatcher.scheduling.state.flavors import Flavor

PART, MEMORY = part_resource(GPU), memory_resource(GPU)
KAI = Sharing(device=GPU, memory=80 * 2**30)
THIRDS = Sharing(device=GPU, resource=f"{GPU}.shared", replicas=3)


def gpus(count: int = 1, name: str = "gpus", *, gpu: int = 1, sharing: Sharing = KAI, **more: Any) -> NodeGroup:
    return nodes(count, name, sharing=sharing, cpu=100, gpu=gpu, **more)


def part(fraction: str, size: int = 1, **more: Any) -> Shape:
    return gang(role(size, gpu_part={"fraction": fraction}, **more))


def free_of(*groups: NodeGroup) -> FreeCapacity:
    return FreeCapacity.empty(CapacityReport(groups=groups, runtime="kubernetes", scheduler="kai"))


def fitted(shape: Shape, free: FreeCapacity) -> Fitted | Shortfall:
    return fit(shape, size_choices(shape)[0].members, free)


def fits(shape: Shape, *groups: NodeGroup) -> bool:
    return isinstance(fitted(shape, free_of(*groups)), Fitted)


class TestSpecification:
    def test_a_part_is_an_amount_beside_the_resources(self) -> None:
        template = MemberTemplate.model_validate({"resources": {"cpu": "2"}, "gpu": {"fraction": 0.25}})
        assert template.amounts == {"cpu": 2000, PART: 250}
        assert format_resources(template.amounts) == "cpu 2, part of nvidia.com/gpu 0.25"
        assert (device_of(PART), is_part(PART), is_part(GPU)) == (GPU, True, False)

    def test_memory_is_another_amount(self) -> None:
        template = MemberTemplate.model_validate({"gpu": {"memory": "20Gi", "resource": "amd.com/gpu"}})
        assert template.amounts == {memory_resource("amd.com/gpu"): 20 * 2**30}
        assert format_resources(template.amounts) == "memory of amd.com/gpu 20Gi"

    @pytest.mark.parametrize(
        ("gpu", "why"),
        [
            ({}, "exactly one of fraction and memory"),
            ({"fraction": "0.5", "memory": "1Gi"}, "exactly one of fraction and memory"),
            ({"fraction": "1"}, "a fraction is more than 0 and less than 1"),
            ({"fraction": "0"}, "a fraction is more than 0 and less than 1"),
            ({"fraction": "2"}, "a fraction is more than 0 and less than 1"),
            ({"fraction": "0.5", "resource": "cpu"}, "resource must be that of a device"),
            ({"memory": "0"}, "memory must be above 0"),
        ],
    )
    def test_what_is_no_part(self, gpu: dict[str, str], why: str) -> None:
        with pytest.raises(ValidationError, match=why):
            MemberTemplate.model_validate({"gpu": gpu})

    def test_whole_gpus_and_a_part_exclude_each_other(self) -> None:
        with pytest.raises(ValidationError, match=r"gpu is a part of one nvidia\.com/gpu"):
            MemberTemplate.model_validate({"resources": {GPU: "1"}, "gpu": {"fraction": "0.5"}})

    def test_a_node_of_its_own_is_for_members_with_whole_devices(self) -> None:
        spec = {"kind": "Job", "name": "a", "queue": "q", "topology": {"exclusive": "node"}}
        template = {"command": ["true"], "gpu": {"fraction": "0.5"}}
        with pytest.raises(ValidationError, match=r"topology\.exclusive gives each member whole GPUs"):
            JobSpec.model_validate(spec | {"roles": [{"name": "main", "template": template}]})

    @pytest.mark.parametrize(
        ("annotations", "found"),
        [
            ({"gpu-fraction": "0.5"}, {PART: 500}),
            ({"gpu-memory": "2000"}, {MEMORY: 2000 * 2**20}),
            ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "1"}, {PART: 500}),
        ],
    )
    def test_annotations_of_a_pod_template_count(self, annotations: dict[str, str], found: dict[str, int]) -> None:
        pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
        assert Role.model_validate({"name": "worker", "podTemplate": pod}).amounts == found

    @pytest.mark.parametrize(
        "annotations",
        [
            {"gpu-fraction": "1.5"},
            {"gpu-fraction": "half"},
            {"gpu-memory": "2Gi"},
            {"gpu-memory": "0"},
            {"gpu-fraction": "0.5", "gpu-memory": "2000"},
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
        ],
    )
    def test_annotations_that_cannot_be_counted_are_refused(self, annotations: dict[str, str]) -> None:
        pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
        with pytest.raises(ValueError, match=r"metadata\.annotations"):
            _ = Role.model_validate({"name": "worker", "podTemplate": pod}).amounts


class TestDevices:
    @given(
        whole=st.integers(0, 4),
        open_=st.lists(st.integers(1, 999), max_size=4),
        parts=st.lists(st.integers(1, 1000), max_size=12),
    )
    def test_each_part_is_on_one_device(self, whole: int, open_: list[int], parts: list[int]) -> None:
        """The same choices with devices that have names: none gives more than it has."""
        devices = Devices(whole, tuple(sorted(open_)))
        named = [1000] * whole + open_
        for one in parts:
            members = fitting(KAI, devices, one)
            assert members == sum(free // one for free in named)
            if not members:
                assert max(named, default=0) < one
                continue
            devices = after(KAI, devices, one, 1)
            place = min((free, index) for index, free in enumerate(named) if free >= one)[1]
            named[place] -= one
            assert min(named) >= 0
            assert sorted(free for free in named if 0 < free < 1000) == [free for free in devices.open if free < 1000]
            assert named.count(1000) == devices.whole + devices.open.count(1000)
            assert sum(named) == sum_of_parts(KAI, devices)[PART]
            assert max(named) == largest_parts(KAI, devices)[PART]

    def test_members_that_find_nothing_take_devices_that_do_not_exist(self) -> None:
        assert after(KAI, Devices(1), 600, 3) == Devices(-2, (400,))

    @given(st.integers(0, 3), st.lists(st.integers(1, 999), max_size=4), st.integers(0, 6000))
    def test_an_amount_in_pieces_is_taken_of_what_there_is(self, whole: int, open_: list[int], taken: int) -> None:
        before = Devices(whole, tuple(sorted(open_)))
        left = drain(KAI, before, taken)
        there = sum_of_parts(KAI, before)[PART]
        assert sum_of_parts(KAI, left)[PART] == max(0, there - taken)
        assert left.whole == min(whole, (there - taken) // 1000) or left.whole >= 0

    def test_memory_depends_on_the_device(self) -> None:
        assert part_of(KAI, {MEMORY: 20 * 2**30}) == 250
        assert part_of(KAI, {MEMORY: 20 * 2**30 + 1}) == 251
        assert part_of(Sharing(device=GPU), {MEMORY: 1}) > 1000
        assert part_of(KAI, {MEMORY: 81 * 2**30}) > 1000
        assert part_of(KAI, {part_resource("amd.com/gpu"): 1}) > 1000

    def test_a_member_gets_one_replica(self) -> None:
        assert fitting(THIRDS, Devices(5), 333) == 5
        assert fitting(THIRDS, Devices(5), 100) == 5
        assert fitting(THIRDS, Devices(5), 334) == 0
        assert after(THIRDS, Devices(5), 100, 2) == Devices(3)


class TestFit:
    def test_two_halves_of_two_devices_are_no_free_device(self) -> None:
        free = free_of(gpus(2))
        for _ in range(2):
            found = fitted(part("0.6"), free)
            assert isinstance(found, Fitted)
            take(free, found)
        assert isinstance(fitted(part("0.5"), free), Shortfall)
        assert isinstance(fitted(gang(role(gpu=1)), free), Shortfall)
        assert isinstance(fitted(part("0.4", 2), free), Fitted)
        assert isinstance(fitted(part("0.4", 3), free), Shortfall)

    def test_parts_share_a_device_so_that_whole_ones_stay_free(self) -> None:
        free = free_of(gpus(1, gpu=2))
        for _ in range(2):
            found = fitted(part("0.5"), free)
            assert isinstance(found, Fitted)
            take(free, found)
        assert isinstance(fitted(gang(role(gpu=1)), free), Fitted)
        assert isinstance(fitted(gang(role(gpu=2)), free), Shortfall)

    def test_nodes_with_a_device_in_use_come_first(self) -> None:
        free = free_of(gpus(4, gpu=2))
        for _ in range(6):
            found = fitted(part("0.3"), free)
            assert isinstance(found, Fitted)
            take(free, found)
        assert isinstance(fitted(gang(role(3, gpu=2)), free), Fitted)

    def test_what_others_have_of_a_device_is_not_free(self) -> None:
        shared = KAI.model_copy(update={"open": (300, 1000)})
        assert fits(part("0.3"), gpus(gpu=0, sharing=shared))
        assert fits(part("0.9"), gpus(gpu=0, sharing=shared))
        assert not fits(part("0.6", 2), gpus(gpu=0, sharing=shared))
        assert not fits(gang(role(gpu=1)), gpus(gpu=0, sharing=shared))

    @pytest.mark.parametrize(("members", "left"), [(0, 2000), (1, 1400), (3, 200), (4, 0)])
    def test_parts_that_run_although_they_do_not_fit_are_taken_in_pieces(self, members: int, left: int) -> None:
        free = free_of(gpus(2))
        drain_parts(free.groups, ["gpus"], {PART: 600, "cpu": 1000}, members)
        assert sum(one.count for one in free.groups["gpus"]) == 2
        assert free.total()[PART] == left
        untouched = free_of(gpus(2))
        drain_parts(untouched.groups, ["gpus"], {"cpu": 1000}, 5)
        assert untouched.total()[PART] == 2000

    def test_only_groups_that_share_their_devices_are_taken(self) -> None:
        assert not fits(part("0.5"), nodes(3, cpu=100, gpu=8))
        assert fitted(part("0.5"), free_of(nodes(3, cpu=100, gpu=8))) == Shortfall(
            "no node offers parts of nvidia.com/gpu"
        )
        found = fitted(part("0.5"), free_of(nodes(3, "whole", cpu=100, gpu=8), gpus(1, "shared")))
        assert isinstance(found, Fitted)
        assert set(found.placement) == {"shared"}

    def test_the_sentence_names_the_part(self) -> None:
        shared = KAI.model_copy(update={"open": (300,)})
        found = fitted(part("0.5"), free_of(gpus(gpu=0, sharing=shared)))
        assert found == Shortfall("needs 0.5 part of nvidia.com/gpu on one node, the best node has 0.3")

    def test_replicas_are_counted_one_by_one(self) -> None:
        group = nodes(1, cpu=100, sharing=THIRDS).model_copy(update={"free": {"cpu": 100_000, f"{GPU}.shared": 3}})
        assert fits(part("0.3", 3), group)
        assert not fits(part("0.1", 4), group)
        assert not fits(part("0.34"), group)
        assert not fits(gang(role(gpu=1)), group)

    def test_memory_fits_by_the_product(self) -> None:
        large = gpus(1, "large")
        small = gpus(1, "small", sharing=Sharing(device=GPU, memory=16 * 2**30))
        wanted = gang(role(gpu_part={"memory": "20Gi"}))
        assert fits(wanted, large)
        assert not fits(wanted, small)
        found = fitted(gang(role(3, gpu_part={"memory": "10Gi"})), free_of(small))
        assert isinstance(found, Shortfall)


class TestCharge:
    def builder(self, **quotas: Any) -> StateBuilder:
        found = StateBuilder().queue("main", **quotas)
        return found.cluster("west", gpus(4, gpu=4, labels={"nvidia.com/gpu.product": "H100"}))

    def test_parts_count_on_the_quota_of_whole_devices(self) -> None:
        built = self.builder(limits={"gpu": 2}).jobs(5, "half", part("0.5"))
        outcome = built.applied()
        assert len(outcome.started) == 4
        sentence = str(outcome.reason("half5").sentence)
        assert "uses 2 of its 2 nvidia.com/gpu" in sentence
        assert "needs 0.5 more" in sentence

    def test_a_quota_may_be_a_part(self) -> None:
        outcome = self.builder(limits={"gpu": "1.5"}).jobs(4, "half", part("0.5")).applied()
        assert len(outcome.started) == 3

    def test_whole_devices_and_parts_together(self) -> None:
        built = self.builder(limits={"gpu@product=H100": 2}).job("whole", gang(role(gpu=1)))
        outcome = built.jobs(4, "part", part("0.4")).applied()
        assert sorted(Counter(name.rstrip("0123456789") for name in outcome.started).items()) == [
            ("part", 2),
            ("whole", 1),
        ]

    def test_memory_is_charged_as_the_part_of_the_device_that_it_is(self) -> None:
        built = self.builder(limits={"gpu": 1}).jobs(5, "mem", gang(role(gpu_part={"memory": "20Gi"})))
        outcome = built.applied()
        assert len(outcome.started) == 4
        assert built.state.used[built.queues["main"]][Flavor(GPU, "H100", "private")] == 1000

    def test_what_has_ended_is_no_longer_charged(self) -> None:
        built = self.builder(limits={"gpu": 1})
        for number in range(3):
            built.job(f"mem-{number}", gang(role(gpu_part={"memory": "40Gi"})))
        first = built.applied().started
        assert len(first) == 2
        assert not built.applied().started
        built.completed(first[0])
        assert len(built.applied().started) == 1

    def test_usage_and_cost_are_those_of_the_part(self) -> None:
        place = PricedResource(PART, "H100")
        tariff = Tariff({PricedResource(GPU, "H100"): Rate(4 * 10**18, 1)})
        found = usage_of([UsageSpan(0, HOUR, {place: 250})], PriceHistory((0,), (tariff,)))
        used = found[UsagePart(0, PricedResource(GPU, "H100"))]
        assert (used.amount, used.cost) == (HOUR // 4, 10**9)
        assert MICROS * 3600 == HOUR


class TestMig:
    """Devices of MIG are whole devices: by resources of their own, or by the product of a node's GPUs."""

    def test_a_profile_is_a_resource_with_a_quota_of_its_own(self) -> None:
        profile = "nvidia.com/mig-1g.10gb"
        group = nodes(1, cpu=64).model_copy(update={"free": {"cpu": 64_000, profile: 7}})
        built = StateBuilder().queue("main", limits={profile: 2}).cluster("west", group)
        outcome = built.jobs(3, "mig", gang(RoleShape("worker", 1, 1, {profile: 1}))).applied()
        assert len(outcome.started) == 2
        assert f"uses 2 of its 2 {profile}" in outcome.reason("mig3").sentence

    def test_a_profile_is_a_product_with_a_quota_of_its_own(self) -> None:
        product = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
        whole = nodes(1, "whole", labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, cpu=64, gpu=8)
        divided = nodes(1, "divided", labels={"nvidia.com/gpu.product": product}, cpu=64, gpu=56)
        built = StateBuilder().queue("main", limits={f"gpu@product={product}": 3}).cluster("west", whole, divided)
        selected = gang(role(gpu=1, node_selector=(("nvidia.com/gpu.product", product),)))
        outcome = built.jobs(4, "mig", selected).applied()
        assert len(outcome.started) == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_random_jobs_never_oversubscribe_a_device(seed: int) -> None:
    """Jobs that need parts, and whole devices, start and end in any order: what is promised always fits on the devices."""
    random = Random(seed)
    built = (
        StateBuilder(now=1000.0)
        .cluster("west", gpus(4, "small", gpu=1), gpus(3, "large", gpu=4))
        .cluster("east", gpus(2, "east", gpu=2, sharing=KAI.model_copy(update={"open": (400, 700)})))
    )
    devices = {"small": ([], 4), "large": ([], 12), "east": ([400, 400, 700, 700], 4)}
    sizes: dict[str, int] = {}
    running: set[str] = set()
    for number in range(1000):
        name = f"job-{number}"
        thousandths = 1000 if random.random() < 0.2 else random.randint(1, 999)
        shape = gang(role(gpu=1)) if thousandths == 1000 else part(f"{thousandths}m")
        built.job(name, shape)
        sizes[name] = thousandths
        if number % 5 == 4:
            running |= set(built.applied().started)
            taken: dict[str, list[int]] = {name: [] for name in devices}
            for run in built.state.runs.values():
                (group,) = (group for group, _ in run.placement)
                taken[group].append(sizes[next(name for name, key in built.ids.items() if key == run.job_id)])
            for group, parts in taken.items():
                assert _can_be_packed(parts, *devices[group], random), (group, parts)
            for one in sorted(running):
                if random.random() < 0.4:
                    built.completed(one)
                    running.discard(one)
    assert len(running) < 1000
    assert amounts(gpu=1) == {GPU: 1}


def _can_be_packed(parts: list[int], open_: list[int], whole: int, random: Random) -> bool:
    """Return whether parts find devices: largest first, or in any of many orders, each by first fit; whole ones need a free device."""
    order = sorted(parts, reverse=True)
    for _ in range(500):
        left = [*sorted(open_), *[1000] * whole]
        for one in order:
            place = next((index for index, free in enumerate(left) if free >= one), None)
            if place is None:
                break
            left[place] -= one
        else:
            return True
        random.shuffle(order)
    return False
