"""Parts of a device that several members share, as amounts beside those of whole devices.

A member that needs a part needs an amount of one of two resources: thousandths of a device, or bytes of its memory. Their names have
colons, which names of Kubernetes' resources never have, so that no specification, quota or price can name them.
"""

from typing import Any, Final

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.quantities import Resources, format_quantity, parse_quantity

DEFAULT_DEVICE: Final = "nvidia.com/gpu"
WHOLE: Final = 1000
"""The thousandths of a whole device."""
_PART, _MEMORY = "part:", "memory:"
_FRACTION, _MIB, _NUMBER = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
"""The annotations of a pod by which KAI gives it parts of GPUs: https://github.com/kai-scheduler/KAI-Scheduler."""
_LONGEST = 64


def part_resource(device: str) -> str:
    """Return the resource that counts thousandths of one device."""
    return _PART + device.replace("/", ":")


def memory_resource(device: str) -> str:
    """Return the resource that counts bytes of the memory of one device."""
    return _MEMORY + device.replace("/", ":")


def is_part(resource: str) -> bool:
    """Return whether a resource is a part of a device, as thousandths or as memory."""
    return resource.startswith((_PART, _MEMORY))


def is_memory_part(resource: str) -> bool:
    """Return whether a resource is a part of a device's memory."""
    return resource.startswith(_MEMORY)


def device_of(resource: str) -> str:
    """Return the device of which a resource is a part; any other resource itself."""
    return resource.partition(":")[2].replace(":", "/") if is_part(resource) else resource


def thousandths(text: str) -> int:
    """Return a fraction of a device in thousandths, rounded up. Raises ValueError unless it is above 0 and below 1."""
    found = parse_quantity("cpu", text)
    if not 0 < found < WHOLE:
        raise ValueError(f"{text!r} is no part of a device: a fraction is more than 0 and less than 1, such as 0.5")
    return found


def part_in_thousandths(resource: str, amount: int, memory: int) -> int:
    """Return an amount of a part in thousandths of a device, rounded up. ``memory``: bytes of the device; 0, if unknown: all of it."""
    if not is_memory_part(resource):
        return amount
    return -(-amount * WHOLE // memory) if memory else WHOLE


def is_device(resource: str) -> bool:
    """Return whether a resource is a device, or a part of one."""
    return "/" in resource or is_part(resource)


def counted(resource: str, amount: int, memory: int = 0) -> int:
    """Return an amount as quotas and limits count it: devices in thousandths. ``memory``: bytes of the device of a part of memory."""
    if "/" in resource:
        return amount * WHOLE
    return part_in_thousandths(resource, amount, memory) if is_part(resource) else amount


def parse_counted(resource: str, text: str) -> int:
    """Return the amount of a quota or limit as ``counted`` counts it, rounded up. Raises ValueError for text that is no quantity."""
    return parse_quantity("cpu" if is_device(resource) else resource, text)


def format_counted(resource: str, amount: int) -> str:
    """Return an amount of a quota or limit as people read it."""
    return format_quantity("cpu" if is_device(resource) else resource, amount)


def annotated_part(pod_template: dict[str, Any], mistakes: list[Mistake]) -> Resources:
    """Return the part of a GPU that a pod has by KAI's annotations; what cannot be counted becomes a mistake."""
    annotations = JsonNode(pod_template, "", mistakes).get("metadata").get("annotations")
    fraction, memory, number = (annotations.get(name) for name in (_FRACTION, _MIB, _NUMBER))
    if number.is_set and number.value != "1":
        number.refuse("must be left out: a member has a part of one device")
    if fraction.is_set and memory.is_set:
        memory.refuse(f"cannot be given with {_FRACTION}")
    elif fraction.is_set:
        try:
            return {part_resource(DEFAULT_DEVICE): thousandths(_text(fraction))}
        except ValueError as error:
            fraction.refuse(str(error))
    elif memory.is_set:
        text = _text(memory)
        if text.isdecimal() and 0 < int(text) < 2**40:
            return {memory_resource(DEFAULT_DEVICE): int(text) * 2**20}
        memory.refuse(f"must be a number of MiB above 0, not {shown(memory.value)}")
    return {}


def _text(node: JsonNode) -> str:
    value = node.value
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"must be a text such as '0.5', not {shown(value)}")
    return value
