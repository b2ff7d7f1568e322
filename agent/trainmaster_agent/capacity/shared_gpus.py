"""GPUs of which members can have parts: how a cluster shares them, and what of them is free.

* With replicas, NVIDIA's device plugin offers each GPU several times (time-slicing or MPS): a member gets one of the replicas, on a
  node that divides its GPUs into so few that this is the part it needs. Parts of memory are not offered: time-slicing does not
  divide it.
* HAMi gives pods parts by resources that its scheduler counts: ``trainmaster_agent.capacity.hami_gpus``.
* KAI gives pods parts by annotations, and holds each shared GPU with a pod of its own, which requests the whole GPU:
  https://github.com/kai-scheduler/KAI-Scheduler, ``docs/gpu-sharing`` and ``pkg/binder/binding/resourcereservation``.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from trainmaster.protocol.agent import Sharing
from trainmaster.protocol.device_parts import (
    DEFAULT_DEVICE,
    WHOLE,
    annotated_part,
    device_of,
    is_memory_part,
    is_part,
    part_in_thousandths,
    part_resource,
)
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.capacity.nodes import Amounts

GPU_GROUP = "runai-gpu-group"
"""Label of KAI on pods that share a GPU, and on the pod that holds it."""
RENAMED = f"{DEFAULT_DEVICE}.shared"
"""Resource of replicas where the device plugin is told to rename them (``renameByDefault``)."""
REPLICAS_LABEL, _MEMORY = "nvidia.com/gpu.replicas", "nvidia.com/gpu.memory"
"""Labels of NVIDIA's GPU feature discovery: replicas of each GPU, and its memory in MiB."""
_MIB = 2**20


class GpuSharing(StrEnum):
    """Ways in which a cluster gives pods parts of GPUs."""

    NONE = "none"
    REPLICAS = "replicas"
    KAI = "kai"
    HAMI = "hami"


class GpuParts(NamedTuple):
    """The way in which a cluster gives pods parts of GPUs. ``replica``: the resource of replicas. ``memory``: the bytes of the largest
    GPU that HAMi divides; 0, if there is none.
    """

    way: GpuSharing = GpuSharing.NONE
    replica: str = DEFAULT_DEVICE
    memory: int = 0

    def on_node(self, needs: Resources) -> Resources:
        """Return what a member takes of what its node has: of parts that KAI gives, nothing, as KAI alone knows what is left.

        With HAMi, thousandths of all GPUs together: where the ledger finds too few, members need not be tried.
        """
        if self.way is GpuSharing.HAMI:
            return self._with_thousandths(needs)
        return self._with_parts(needs, self.replica if self.way is GpuSharing.REPLICAS else "")

    def requested(self, needs: Resources) -> Resources:
        """Return what a member's pod requests of the resources that quotas of namespaces count."""
        of = {GpuSharing.REPLICAS: self.replica, GpuSharing.HAMI: DEFAULT_DEVICE}
        return self._with_parts(needs, of.get(self.way, ""))

    def _with_thousandths(self, needs: Resources) -> Resources:
        """Return the needs with thousandths of GPUs beside whole ones and for parts, as the largest GPU of the cluster has them."""
        found, thousandths = dict(needs), needs.get(DEFAULT_DEVICE, 0) * WHOLE
        for name, amount in needs.items():
            if is_part(name) and device_of(name) == DEFAULT_DEVICE:
                del found[name]
                if self.memory or not is_memory_part(name):
                    thousandths += part_in_thousandths(name, amount, self.memory)
        return found | {part_resource(DEFAULT_DEVICE): thousandths} if thousandths else found

    def _with_parts(self, needs: Resources, resource: str) -> Resources:
        """Return the needs with one ``resource``, or nothing, in place of a part."""
        if not any(map(is_part, needs)):
            return needs
        found: Resources = {}
        for name, amount in needs.items():
            if not is_part(name) or self.way is GpuSharing.NONE or device_of(name) != DEFAULT_DEVICE:
                found[name] = found.get(name, 0) + amount
            elif resource:
                found[resource] = found.get(resource, 0) + 1
        return found


class Share(NamedTuple):
    """A pod's place on a GPU that KAI shares. ``part``: what it takes by its annotations; nothing for the pod that holds the GPU."""

    group: str
    part: Amounts


class TraitsOfSharing(NamedTuple):
    """The fields of ``Sharing`` as a node has them."""

    resource: str
    replicas: int
    open: tuple[int, ...]
    memory: int
    step: int = 1
    least: int = 1


class SharedGpus(NamedTuple):
    """GPUs of a node that KAI holds for pods that share them.

    ``open``: what of each is free beside pods of others, in thousandths, where there are such. ``ours``: the number of the rest.
    """

    open: tuple[int, ...] = ()
    ours: int = 0


def read_share(obj: Mapping[str, Any]) -> Share | None:
    """Return the place of a pod on a shared GPU; None for a pod that has none."""
    metadata = obj["metadata"]
    group = (metadata.get("labels") or {}).get(GPU_GROUP)
    if not group:
        return None
    return Share(str(group), tuple(annotated_part({"metadata": metadata}, []).items()))


def traits_of_sharing(
    parts: GpuParts, allocatable: Mapping[str, int], labels: Mapping[str, str], shared: SharedGpus
) -> TraitsOfSharing | None:
    """Return the sharing of a node's GPUs; None where members get whole ones only."""
    replicas, memory = _number(labels.get(REPLICAS_LABEL)), memory_of(labels)
    if parts.way is GpuSharing.REPLICAS and replicas > 1 and allocatable.get(parts.replica):
        return TraitsOfSharing(parts.replica, min(replicas, WHOLE), (), 0)
    if parts.way is GpuSharing.KAI and allocatable.get(DEFAULT_DEVICE) and replicas <= 1:
        return TraitsOfSharing(DEFAULT_DEVICE, 1, shared.open, memory)
    return None


def as_sharing(traits: TraitsOfSharing) -> Sharing:
    return Sharing(
        device=DEFAULT_DEVICE,
        resource="" if traits.resource == DEFAULT_DEVICE else traits.resource,
        replicas=traits.replicas,
        open=traits.open,
        memory=traits.memory,
        step=traits.step,
        least=traits.least,
    )


def shared_gpus(shares: Iterable[tuple[Share, bool]], memory: int) -> SharedGpus:
    """Return the shared GPUs of a node. ``shares``: the places of its pods on them, and whether the pods are ours.

    A report does not change with our own members, so a GPU that only they share counts as free.
    """
    taken: dict[str, int] = {}
    held = set[str]()
    for share, is_own in shares:
        if not share.part:
            held.add(share.group)
        elif not is_own:
            more = sum(part_in_thousandths(name, amount, memory) for name, amount in share.part)
            taken[share.group] = taken.get(share.group, 0) + more
    open_ = sorted(max(0, WHOLE - amount) for group, amount in taken.items() if group in held)
    return SharedGpus(tuple(open_), len(held - taken.keys()))


def memory_of(labels: Mapping[str, str]) -> int:
    """Return the bytes of memory of each GPU of a node; 0 if no label names them."""
    return _number(labels.get(_MEMORY)) * _MIB


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 0
