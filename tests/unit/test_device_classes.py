"""The devices of DeviceClasses on each node."""

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.dra_objects import DRIVER, claim, device, device_class, resource_slice
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.device_classes import DeviceLedger, further
from trainmaster_agent.capacity.device_objects import Counter, Device

GPU = "deviceclass.resource.kubernetes.io/gpu"
BIG = "deviceclass.resource.kubernetes.io/big"
OWN_LABEL = ("trainmaster.dev/agent", "north")
FOUR = [device(f"d{index}", model="a100" if index < 2 else "t4") for index in range(4)]
A100 = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model == 'a100'"


class Devices(DeviceLedger):
    """A ledger with objects; ``own``: requests of our own pods by key."""

    def __init__(self, *objects: dict[str, Any], own: dict[str, Resources] | None = None) -> None:
        super().__init__(OWN_LABEL)
        self.own_pods = own or {}
        for one in objects:
            puts = {"DeviceClass": self.class_put, "ResourceSlice": self.slice_put, "ResourceClaim": self.claim_put}
            puts[one["kind"]](one)

    def usable(self, node: str = "n1") -> Resources:
        return dict(self.on_node(node, self.own_pods.get).usable)

    def used(self, node: str = "n1") -> Resources:
        return dict(self.on_node(node, self.own_pods.get).own)


def test_devices_are_counted_by_class_and_node() -> None:
    made = Devices(
        device_class(), device_class("big", A100), resource_slice("n1", FOUR), resource_slice("n2", FOUR[2:])
    )
    assert made.usable() == {GPU: 4, BIG: 2}
    assert made.usable("n2") == {GPU: 2}
    assert made.usable("n3") == {}
    assert made.changed_nodes() == {"n1", "n2"}
    assert made.notes() == ()


def test_an_extended_name_counts_the_same_devices_and_belongs_to_the_latest_class() -> None:
    old = device_class("gpu", extended="example.com/gpu", created="2026-01-01T00:00:00Z")
    new = device_class("big", A100, extended="example.com/gpu", created="2026-02-01T00:00:00Z")
    assert Devices(old, resource_slice("n1", FOUR)).usable() == {GPU: 4, "example.com/gpu": 4}
    assert Devices(old, new, resource_slice("n1", FOUR)).usable() == {GPU: 4, BIG: 2, "example.com/gpu": 2}


def test_devices_with_taints_are_missing() -> None:
    devices = [
        device("d0", taint="NoSchedule"),
        device("d1", taint="NoExecute"),
        device("d2", taint="None"),
        device("d3"),
    ]
    assert Devices(device_class(), resource_slice("n1", devices)).usable() == {GPU: 2}


def test_only_the_newest_generation_of_a_pool_counts_once_it_is_complete() -> None:
    old, new = resource_slice("n1", FOUR), resource_slice("n1", FOUR[:1], name="new", generation=2, many=2)
    made = Devices(device_class(), old, new)
    assert made.usable() == {}
    assert made.notes() == (f"devices of pools of which ResourceSlices are missing: {DRIVER}/n1",)
    made.slice_put(resource_slice("n1", FOUR[1:2], name="new-2", generation=2, many=2))
    assert made.usable() == {GPU: 2}
    made.slice_drop("new-2")
    assert made.usable() == {}


def test_devices_that_others_have_are_missing_under_each_name() -> None:
    made = Devices(device_class(), device_class("big", A100), resource_slice("n1", FOUR), claim("c", [("n1", "d0")]))
    assert made.usable() == {GPU: 3, BIG: 1}
    made.claim_drop("jobs/c")
    assert made.usable() == {GPU: 4, BIG: 2}


def test_devices_of_our_own_pods_are_missing_only_under_other_names() -> None:
    taken = claim("c", [("n1", "d0")], of="big", pod="p")
    made = Devices(device_class(), device_class("big", A100), resource_slice("n1", FOUR), taken, own={"jobs/p": {}})
    assert (made.usable(), made.used()) == ({GPU: 3, BIG: 2}, {BIG: 1})
    made.own_pods.clear()
    assert (made.usable(), made.used()) == ({GPU: 3, BIG: 2}, {BIG: 1}), (
        "the claim of a pod that is gone is about to go"
    )
    made.claim_drop("jobs/c")
    assert (made.usable(), made.used()) == ({GPU: 4, BIG: 2}, {})


def test_a_claim_is_ours_as_soon_as_its_pod_is_known() -> None:
    taken = claim("c", [("n1", "d0")], pod="p")
    made = Devices(device_class(), resource_slice("n1", FOUR), taken)
    assert made.usable() == {GPU: 3}
    made.changed_nodes()
    made.own_pods["jobs/p"] = {}
    made.pod_changed("jobs/p")
    assert made.changed_nodes() == {"n1"}
    assert made.usable() == {GPU: 4}


def test_devices_that_our_pods_request_as_extended_resources_belong_to_the_requested_name() -> None:
    taken = claim("c", [("n1", "d0")], pod="p", extended=True)
    made = Devices(device_class(extended="example.com/gpu"), resource_slice("n1", FOUR), taken)
    made.own_pods = {"jobs/p": {"example.com/gpu": 1}}
    assert (made.usable(), made.used()) == ({GPU: 3, "example.com/gpu": 4}, {"example.com/gpu": 1})
    made.own_pods = {"jobs/p": {GPU: 1}}
    assert made.used() == {GPU: 1}
    made.own_pods = {"jobs/p": {GPU: 1, "example.com/gpu": 1}}  # it is not known which device is which
    assert (made.usable(), made.used()) == ({GPU: 3, "example.com/gpu": 3}, {})


def test_claims_that_only_watch_devices_take_none() -> None:
    made = Devices(device_class(), resource_slice("n1", FOUR), claim("c", [("n1", "d0")], admin=True))
    assert made.usable() == {GPU: 4}


def test_a_class_whose_selectors_cannot_be_evaluated_is_not_counted() -> None:
    bad = device_class("big", f"device.attributes['{DRIVER}'].none == 'x'")
    made = Devices(device_class(), bad, resource_slice("n1", FOUR))
    assert made.usable() == {GPU: 4}
    assert made.notes()[0].startswith("devices of DeviceClass big: its selectors cannot be evaluated: ")
    made.class_put(device_class("big", A100))
    assert (made.usable(), made.notes()) == ({GPU: 4, BIG: 2}, ())
    made.class_put(device_class("big", "device.driver =="))
    assert made.usable() == {GPU: 4}
    assert "big" in made.notes()[0]
    made.class_drop("big")
    assert made.notes() == ()


def test_a_class_is_counted_again_once_the_slice_is_gone_that_it_cannot_be_compared_with() -> None:
    odd = resource_slice("n2", [device("d0")])
    made = Devices(
        device_class("big", f"device.attributes['{DRIVER}'].model == 'a100'"), resource_slice("n1", FOUR), odd
    )
    assert made.usable() == {}
    made.changed_nodes()
    made.slice_drop("n2-slice")
    assert "n1" in made.changed_nodes()
    assert made.usable() == {BIG: 2}


def test_devices_that_several_nodes_share_are_not_counted() -> None:
    every = resource_slice(devices=FOUR, allNodes=True, name="every")
    made = Devices(device_class(), every, resource_slice("n1", FOUR))
    assert made.usable() == {GPU: 4}
    assert made.notes() == (f"devices of ResourceSlices that several nodes share, of {DRIVER}",)


def test_each_device_of_a_slice_may_have_a_node_of_its_own() -> None:
    devices = [device("d0") | {"nodeName": "n1"}, device("d1") | {"nodeName": "n2"}, device("d2") | {"allNodes": True}]
    made = Devices(device_class(), resource_slice(devices=devices, perDeviceNodeSelection=True, name="each"))
    assert (made.usable(), made.usable("n2")) == ({GPU: 1}, {GPU: 1})
    assert "share" in made.notes()[0]


def test_devices_that_claims_share_by_capacity_are_not_counted() -> None:
    made = Devices(
        device_class(), resource_slice("n1", [device("d0") | {"allowMultipleAllocations": True}, device("d1")])
    )
    assert made.usable() == {GPU: 1}
    assert "allowMultipleAllocations" in made.notes()[0]


def test_slices_without_any_class_are_named() -> None:
    assert Devices(resource_slice("n1", FOUR)).notes() == (
        f"devices of ResourceSlices (DRA) without a DeviceClass: {DRIVER}",
    )


def test_parts_of_a_device_share_its_counters() -> None:
    parts = [
        device("whole", consumes={"memory": "40Gi"}, model="a100"),
        *(device(f"half-{one}", consumes={"memory": "20Gi"}, model="half") for one in "ab"),
        *(device(f"part-{one}", consumes={"memory": "10Gi"}, model="part") for one in "abcd"),
    ]
    counters = resource_slice("n1", counters={"memory": "40Gi"}, name="counters", many=2)
    half = device_class("half", f"device.attributes['{DRIVER}'].model == 'half'")
    made = Devices(device_class(), device_class("big", A100), half, counters, resource_slice("n1", parts, many=2))
    halves = "deviceclass.resource.kubernetes.io/half"
    assert made.usable() == {GPU: 4, BIG: 1, halves: 2}
    made.claim_put(claim("c", [("n1", "part-a")]))
    assert made.usable() == {GPU: 3, BIG: 0, halves: 1}
    made.claim_put(claim("d", [("n1", "half-a")], of="half", pod="p"))
    assert made.usable() == {GPU: 1, BIG: 0, halves: 0}
    made.own_pods = {"jobs/p": {}}
    assert (made.usable(), made.used()) == ({GPU: 1, BIG: 0, halves: 1}, {halves: 1})


def _device(index: int, consumes: dict[Counter, int]) -> Device:
    return Device(f"d{index}", "n1", {}, is_closed=False, is_divided=False, consumes=tuple(sorted(consumes.items())))


def _fits(left: dict[Counter, int], chosen: tuple[Device, ...]) -> bool:
    need: dict[Counter, int] = {}
    for one in chosen:
        for counter, amount in one.consumes:
            need[counter] = need.get(counter, 0) + amount
    return all(left.get(counter, 0) >= amount for counter, amount in need.items())


def _most(left: dict[Counter, int], devices: list[Device]) -> int:
    """Return the largest number of devices that can be allocated together, by trying all sets."""
    return max(size for size in range(len(devices) + 1) if any(_fits(left, one) for one in combinations(devices, size)))


_COUNTERS: list[Counter] = [("parts", "a"), ("parts", "b")]
_AMOUNTS = st.dictionaries(st.sampled_from(_COUNTERS), st.integers(0, 6), max_size=2)


@given(st.integers(0, 12), st.lists(st.integers(0, 6), max_size=7))
def test_with_one_counter_as_many_parts_are_counted_as_there_can_be(size: int, amounts: list[int]) -> None:
    left = {_COUNTERS[0]: size}
    devices = [_device(index, {_COUNTERS[0]: amount}) for index, amount in enumerate(amounts)]
    assert further(left, devices) == _most(left, devices)


@given(st.dictionaries(st.sampled_from(_COUNTERS), st.integers(0, 12), max_size=2), st.lists(_AMOUNTS, max_size=7))
def test_with_several_counters_never_more_parts_are_counted_than_there_can_be(
    left: dict[Counter, int], amounts: list[dict[Counter, int]]
) -> None:
    devices = [_device(index, consumes) for index, consumes in enumerate(amounts)]
    counted, most = further(left, devices), _most(left, devices)
    assert counted <= most
    assert bool(counted) == bool(most)
