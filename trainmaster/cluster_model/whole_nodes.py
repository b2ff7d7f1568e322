"""Nodes for a single member each (``topology.exclusive``): which of them a member may have by the devices that it requests. Pure.

A member is charged what it requests, and nobody else can use the rest of its node. So that no device lies idle uncharged, it gets only
nodes all of whose devices it requests.
"""

from collections.abc import Mapping
from typing import NamedTuple

from trainmaster.protocol.device_claims import IMPLICIT_PREFIX


class IdleDevice(NamedTuple):
    """A device of which a node offers more than a member requests."""

    name: str
    offered: int
    requested: int

    @property
    def sentence(self) -> str:
        requests = f"the member requests {self.requested}" if self.requested else "the member requests none"
        return f"{self.offered} {self.name}, {requests}"


def idle_device(offered: Mapping[str, int], requested: Mapping[str, int]) -> IdleDevice | None:
    """Return a device that would lie idle on an empty node with a member that has the node for itself; None if none would.

    Resources with ``/`` in their names are devices. Devices of Dynamic Resource Allocation (DRA) may be counted under several classes,
    so a class that a member with devices does not name is ignored; a member without any device gets no node that offers some.
    """
    has_devices = any("/" in name and amount for name, amount in requested.items())
    for name, amount in sorted(offered.items()):
        if "/" not in name or requested.get(name, 0) >= amount:
            continue
        if has_devices and name.startswith(IMPLICIT_PREFIX) and not requested.get(name):
            continue
        return IdleDevice(name, amount, requested.get(name, 0))
    return None
