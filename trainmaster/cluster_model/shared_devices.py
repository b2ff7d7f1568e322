"""Devices of a node that several members share: whether a part is free on one of them, and what is left of them. Pure.

A part is always on one device: two halves of two devices are no free device. Best fit: a member takes its part of the device that has
the least left of those that have enough, and of a whole device only if no other has. Which device a member gets is decided in its
cluster; as for nodes, what is counted is what best fit needs.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from trainmaster.protocol.agent import Sharing
from trainmaster.protocol.device_parts import (
    WHOLE,
    device_of,
    is_memory_part,
    is_part,
    memory_resource,
    part_in_thousandths,
    part_resource,
)
from trainmaster.protocol.quantities import Resources

IMPOSSIBLE = WHOLE + 1
"""A part that no device has."""


class Devices(NamedTuple):
    """The free devices of a node. ``whole``: their number, or that of replicas; ``open``: free thousandths of each device of which
    a part is in use, ascending.
    """

    whole: int
    open: tuple[int, ...] = ()


def counted_resource(sharing: Sharing) -> str:
    """Return the resource that counts the free devices, or their replicas."""
    return sharing.resource or sharing.device


def replica(sharing: Sharing) -> int:
    """Return the largest part that a member gets, in thousandths: a device, or one of its replicas."""
    return WHOLE // sharing.replicas


def part_of(sharing: Sharing, needs: Resources) -> int:
    """Return the part of a device that a member with these needs takes, in thousandths; ``IMPOSSIBLE`` if no device has it."""
    part = 0
    for name, amount in needs.items():
        if is_part(name):
            part = max(part, _part(sharing, name, amount))
    return part


def _part(sharing: Sharing, name: str, amount: int) -> int:
    if device_of(name) != sharing.device or (is_memory_part(name) and not sharing.memory):
        return IMPOSSIBLE
    part = part_in_thousandths(name, amount, sharing.memory)
    if not is_memory_part(name):
        part = -(-part // sharing.step) * sharing.step
    part = max(part, sharing.least)
    return part if part <= replica(sharing) else IMPOSSIBLE


def fitting(sharing: Sharing, devices: Devices, part: int) -> int:
    """Return the number of members that each find this part of a device."""
    if part > replica(sharing):
        return 0
    whole = max(devices.whole, 0)
    if sharing.replicas > 1:
        return whole
    return whole * (WHOLE // part) + sum([one // part for one in devices.open])


def after(sharing: Sharing, devices: Devices, part: int, members: int) -> Devices:
    """Return the devices after members take a part each; for one that finds none, a whole device, also of those that do not exist."""
    if sharing.replicas > 1:
        return Devices(devices.whole - members, devices.open)
    whole, left = devices.whole, list(devices.open)
    for _ in range(members):
        place = bisect_left(left, part)
        if place == len(left):
            there = WHOLE if whole > 0 else 0
            whole -= 1
        else:
            there = left.pop(place)
        if there > part:
            insort(left, there - part)
    return Devices(whole, tuple(left))


def drain(sharing: Sharing, devices: Devices, thousandths: int) -> Devices:
    """Return the devices after an amount is taken in any pieces, of those in use first; what is missing is a number below zero."""
    if sharing.replicas > 1:
        return Devices(devices.whole - -(-thousandths // replica(sharing)), devices.open)
    left = []
    for one in devices.open:
        taken = min(one, thousandths)
        thousandths -= taken
        if one > taken:
            left.append(one - taken)
    whole = devices.whole - -(-thousandths // WHOLE)
    if thousandths % WHOLE and whole >= 0:
        insort(left, WHOLE - thousandths % WHOLE)
    return Devices(whole, tuple(left))


def largest_parts(sharing: Sharing, devices: Devices) -> Resources:
    """Return the largest part that a member can get, as thousandths and as memory."""
    if devices.whole > 0:
        return _as_resources(sharing, replica(sharing))
    return _as_resources(sharing, devices.open[-1] if devices.open else 0)


def sum_of_parts(sharing: Sharing, devices: Devices) -> Resources:
    """Return the parts that all members together can get at most, as thousandths and as memory."""
    return _as_resources(sharing, max(devices.whole, 0) * replica(sharing) + sum(devices.open))


def _as_resources(sharing: Sharing, part: int) -> Resources:
    found = {part_resource(sharing.device): part}
    if sharing.memory:
        found[memory_resource(sharing.device)] = part * sharing.memory // WHOLE
    return found
