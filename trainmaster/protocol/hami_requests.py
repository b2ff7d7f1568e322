"""Parts of GPUs that containers request by the resources of HAMi: https://github.com/Project-HAMi/HAMi.

``nvidia.com/gpu: 1`` with an amount of memory, ``nvidia.com/gpumem`` in MiB or ``nvidia.com/gpumem-percentage``, is a part of one GPU.
Without one a container gets all of the memory, so that its GPUs are whole ones, whatever it requests of their cores.
"""

from contextlib import suppress
from typing import Any, Final

from trainmaster.protocol.device_parts import DEFAULT_DEVICE, WHOLE, memory_resource, part_resource
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.quantities import Resources, parse_quantity

MEMORY: Final = "nvidia.com/gpumem"
"""MiB of the memory of each GPU."""
PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
"""Percentage of the memory of each GPU."""
CORES: Final = "nvidia.com/gpucores"
"""Percentage of the cores of each GPU."""
_AMOUNTS = (MEMORY, PERCENTAGE, CORES)
HAMI_RESOURCES: Final = frozenset((*_AMOUNTS, "nvidia.com/priority"))
"""Resources that say what of a GPU a container gets. No node has to offer them."""
_COUNTED = HAMI_RESOURCES | {DEFAULT_DEVICE}
_MOST_MIB = 2**31
_LONGEST = 64


def with_hami_parts(requests: Resources, spec: JsonNode) -> Resources:
    """Return a pod's requests with the part of a GPU, or the whole ones, in place of HAMi's resources.

    What cannot be counted becomes a mistake.
    """
    containers = [*spec.get("containers").items(), *spec.get("initContainers").items()]
    of_containers = [(requested(one.value), one.get("resources")) for one in containers]
    if all(HAMI_RESOURCES.isdisjoint(asks) for asks, _ in of_containers):
        return requests
    on_gpus = [
        (asks, at) for asks, at in of_containers if asks.get(DEFAULT_DEVICE) or not asks.keys().isdisjoint(_AMOUNTS)
    ]
    found = {name: amount for name, amount in requests.items() if name not in HAMI_RESOURCES}
    for asks, resources in on_gpus:
        part = _part(asks, resources)
        if part is None and DEFAULT_DEVICE not in asks:
            found[DEFAULT_DEVICE] = found.get(DEFAULT_DEVICE, 0) + 1
        if part is not None:
            if len(on_gpus) > 1 or asks.get(DEFAULT_DEVICE, 1) != 1:
                resources.refuse("must request one nvidia.com/gpu: a member has a part of one device")
            found.pop(DEFAULT_DEVICE, None)
            found |= part
    return found


def is_hami_part(requests: Resources) -> bool:
    """Return whether requests with HAMi's resources are a part of a GPU, not whole ones."""
    return MEMORY in requests or requests.get(PERCENTAGE, 100) < 100


def requested(container: Any) -> Resources:
    """Return what a container requests of GPUs; nothing that cannot be read. HAMi reads limits before requests."""
    resources = container.get("resources") if isinstance(container, dict) else None
    found: Resources = {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        for name, value in amounts.items() if isinstance(amounts, dict) else ():
            if name in _COUNTED and len(text := str(value)) <= _LONGEST:
                with suppress(ValueError):  # the requests' own check refuses it
                    found[name] = parse_quantity(name, text)
    return found


def _part(asks: Resources, resources: JsonNode) -> Resources | None:
    """Return the part that a container requests; None for whole GPUs."""
    memory, percentage, cores = (asks.get(name) for name in _AMOUNTS)
    if percentage is not None and not 0 < percentage <= 100:
        resources.refuse(f"{PERCENTAGE} must be above 0 and at most 100, not {percentage}")
    elif cores is not None and cores > 100:
        resources.refuse(f"{CORES} must be at most 100, not {cores}")
    elif memory is not None:
        if not 0 < memory < _MOST_MIB:
            resources.refuse(f"{MEMORY} must be a number of MiB above 0, not {memory}")
        elif percentage is not None:
            resources.refuse(f"{MEMORY} cannot be given with {PERCENTAGE}")
        elif cores:
            resources.refuse(
                f"{CORES} cannot be given with {MEMORY}, as it is not known which part of a GPU the memory is:"
                f" give {PERCENTAGE} instead"
            )
        return {memory_resource(DEFAULT_DEVICE): memory * 2**20}
    elif percentage is not None and percentage < 100:
        return {part_resource(DEFAULT_DEVICE): max(percentage, cores or 0) * (WHOLE // 100)}
    return None
