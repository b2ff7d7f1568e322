"""GPUs that HAMi divides: those that its device plugin registers at a node, and what pods have of them.

The allocatable ``nvidia.com/gpu`` of such a node is the most pods on its GPUs, not their number:
https://github.com/Project-HAMi/HAMi, ``pkg/device/nvidia`` and ``pkg/device/devices.go``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from trainmaster.protocol.device_parts import DEFAULT_DEVICE, WHOLE
from trainmaster.protocol.hami_requests import HAMI_RESOURCES
from trainmaster_agent.capacity.nodes import Amounts
from trainmaster_agent.capacity.shared_gpus import TraitsOfSharing

REGISTERED = "hami.io/node-nvidia-register"
"""Annotation of a node: its GPUs, as JSON."""
ALLOCATED = "hami.io/vgpu-devices-allocated"
"""Annotation of a pod: its GPUs and its part of each, as ``ID,TYPE,MIB,CORES:`` for each, with ``;`` after each container."""
_MIG = "mig"
_ALL_CORES = 100
_PERCENT = WHOLE // 100
_MIB = 2**20
_MOST = 2**31


class HamiGpu(NamedTuple):
    """A GPU of a node. ``memory``: MiB; ``cores``: in percent of a GPU; ``members``: the most pods on it."""

    id: str
    memory: int
    cores: int
    members: int


class Taken(NamedTuple):
    """A pod's part of one GPU. ``memory``: MiB; ``cores``: in percent of a GPU."""

    gpu: str
    memory: int
    cores: int


def registered_gpus(obj: Mapping[str, Any]) -> tuple[HamiGpu, ...] | None:
    """Return the GPUs of a node that members can get; None for a node that has registered none.

    Left out are GPUs that are unhealthy, that HAMi divides by MIG, where what members get depends on the profiles of the moment, and
    those that have fewer cores than a whole GPU is given. Raises ValueError where the annotation cannot be read.
    """
    text = (obj["metadata"].get("annotations") or {}).get(REGISTERED)
    if not text:
        return None
    found = orjson.loads(text)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{REGISTERED} is no list of GPUs")
    # Go leaves out what is false, 0 or empty.
    sound = [one for one in found if one.get("health") is True and one.get("mode", "") != _MIG]
    gpus = [
        HamiGpu(_text(one, "id"), *(_number(one, name) for name in ("devmem", "devcore", "count"))) for one in sound
    ]
    return tuple(sorted(one for one in gpus if one.memory and one.members and one.cores >= _ALL_CORES))


def _text(of: Mapping[str, Any], name: str) -> str:
    found = of.get(name)
    if not isinstance(found, str) or not found:
        raise ValueError(f"a GPU of {REGISTERED} has no {name}")
    return found


def _number(of: Mapping[str, Any], name: str) -> int:
    found = of.get(name, 0)
    if not isinstance(found, int) or not 0 <= found < _MOST:
        raise ValueError(f"a GPU of {REGISTERED} has a {name} that is no number")
    return found


def taken_gpus(obj: Mapping[str, Any]) -> tuple[Taken, ...]:
    """Return what a pod has of GPUs; nothing for a pod that HAMi gave none. Raises ValueError where that cannot be read."""
    text = str((obj["metadata"].get("annotations") or {}).get(ALLOCATED) or "")
    found = []
    for one in text.replace(";", ":").split(":"):
        if not one.strip():
            continue
        words = one.split(",")
        if len(words) < 4 or not (words[2].isdecimal() and words[3].isdecimal()) or len(one) > 1000:
            raise ValueError(f"{ALLOCATED} of a pod is not of the form ID,TYPE,MIB,CORES")
        found.append(Taken(words[0].partition("[")[0], int(words[2]), int(words[3])))
    return tuple(found)


def offered(allocatable: Amounts, gpus: tuple[HamiGpu, ...]) -> Amounts:
    """Return a node's allocatable amounts with the number of its GPUs, none of them while its device plugin does not answer."""
    found = []
    for name, amount in allocatable:
        if name == DEFAULT_DEVICE:
            if gpus:
                found.append((name, len(gpus)))
        elif name not in HAMI_RESOURCES:
            found.append((name, amount))
    return tuple(found)


def requests_beside(requests: Amounts, taken: tuple[Taken, ...], *, is_own: bool, is_part: bool) -> Amounts:
    """Return a pod's requests without those that HAMi counts on its GPUs.

    Kept are whole GPUs of our members, and those of pods that HAMi gave none, which no other pod should get.
    """
    is_counted = is_part if is_own else bool(taken)
    return tuple(
        [pair for pair in requests if pair[0] not in HAMI_RESOURCES and not (is_counted and pair[0] == DEFAULT_DEVICE)]
    )


def in_use(gpus: tuple[HamiGpu, ...], taken: Iterable[Taken]) -> int:
    """Return the number of GPUs of which pods have anything."""
    names = {one.gpu for one in taken}
    return sum([gpu.id in names for gpu in gpus])


def left_of_gpus(gpus: tuple[HamiGpu, ...], taken: Iterable[Taken]) -> int:
    """Return the sum of what is left of a node's GPUs, in thousandths."""
    used = _by_gpu(taken)
    least = _least(gpus)
    return sum([_left(gpu, used[gpu.id], least) if gpu.id in used else WHOLE for gpu in gpus])


def traits_of_hami(gpus: tuple[HamiGpu, ...], taken: Iterable[Taken]) -> TraitsOfSharing | None:
    """Return the sharing of a node's GPUs beside what pods of others have taken; None for a node without any."""
    if not gpus:
        return None
    used, least = _by_gpu(taken), _least(gpus)
    open_ = [_left(gpu, used[gpu.id], least) for gpu in gpus if gpu.id in used]
    memory = min(gpu.memory for gpu in gpus) * _MIB
    return TraitsOfSharing(DEFAULT_DEVICE, 1, tuple(sorted(one for one in open_ if one)), memory, _PERCENT, least)


def _by_gpu(taken: Iterable[Taken]) -> dict[str, list[Taken]]:
    found: dict[str, list[Taken]] = {}
    for one in taken:
        found.setdefault(one.gpu, []).append(one)
    return found


def _least(gpus: tuple[HamiGpu, ...]) -> int:
    """Return the fewest thousandths of which a GPU has no more than places for pods."""
    return WHOLE // (min(gpu.members for gpu in gpus) + 1) + 1


def _left(gpu: HamiGpu, taken: list[Taken], least: int) -> int:
    """Return the free thousandths of a GPU: its memory, cores and places for pods all have to be enough."""
    memory = (gpu.memory - sum(one.memory for one in taken)) * WHOLE // gpu.memory
    cores = (gpu.cores - sum(one.cores for one in taken)) * _PERCENT
    places = gpu.members - len(taken)
    return max(0, min(memory, cores, (places + 1) * least - 1, WHOLE)) if places > 0 else 0
