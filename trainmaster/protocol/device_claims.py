"""Devices of Dynamic Resource Allocation as resources, and what ResourceClaimTemplates and ResourceClaims of a cluster ask for. Pure.

Agents report the templates in the namespaces of jobs among the capabilities of their clusters. A pod that names a template is counted
by what the template asked for when the job was submitted, and runs only where the template asks for just that. They report the claims
there as well. The devices of a claim are its owner's: a pod that names one has them beside others, is not counted by them, and runs
only where a claim of that name is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import JsonNode

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the extended resource name that its devices have in any cluster (KEP-5004)."""
_TEMPLATE, _CLAIM = "claimtemplate:", "claim:"
_DEVICES, _FAULT = " devices=", " uncountable="
_LONGEST = 253
"""Characters of a capability."""
_MOST_REQUESTS = 32


def device_resource(device_class: str) -> str:
    """Return the resource as which the devices of a class are counted."""
    return f"{IMPLICIT_PREFIX}{device_class}"


class ClaimTemplate(NamedTuple):
    """A ResourceClaimTemplate of a cluster, or a ResourceClaim (``is_claim``).

    ``devices``: number by device class; ``fault``: why it cannot be counted.
    """

    name: str
    devices: tuple[tuple[str, int], ...] = ()
    fault: str = ""
    is_claim: bool = False

    @property
    def capability(self) -> str:
        """The template or claim as a capability; too long a one is cut, so that it is not countable."""
        named = f"{_CLAIM if self.is_claim else _TEMPLATE}{self.name}"
        if self.fault:
            return f"{named}{_FAULT}{self.fault}"[:_LONGEST]
        counts = ",".join(f"{name}:{count}" for name, count in self.devices)
        found = f"{named}{_DEVICES}{counts}"
        return found if len(found) <= _LONGEST else f"{named}{_FAULT}it names too many classes"[:_LONGEST]

    @property
    def words(self) -> str:
        return ", ".join(f"{count} of {name}" for name, count in self.devices)


def claim_template(name: str, devices: Mapping[str, int]) -> ClaimTemplate:
    """Return the template that asks for these numbers of devices by class."""
    return ClaimTemplate(name, tuple(sorted(devices.items())))


def parse_claim_template(capability: str) -> ClaimTemplate | None:
    """Return the template that a capability reports; None for a capability of another sort."""
    return _parse(capability, _TEMPLATE) if capability.startswith(_TEMPLATE) else None


def parse_claim(capability: str) -> ClaimTemplate | None:
    """Return the claim that a capability reports or names; None for a capability of another sort."""
    return _parse(capability, _CLAIM)._replace(is_claim=True) if capability.startswith(_CLAIM) else None


def claim_named(name: str) -> str:
    """Return the capability that a pod needs which names a claim, whatever devices the claim has."""
    return f"{_CLAIM}{name}"


def offers_claim(capability: str, offered: Iterable[str]) -> bool:
    """Return whether a cluster with these capabilities has the claim that a capability names."""
    wanted = parse_claim(capability)
    return wanted is not None and any(one.name == wanted.name for one in map(parse_claim, offered) if one is not None)


def _parse(capability: str, prefix: str) -> ClaimTemplate:
    name, is_counted, counts = capability.removeprefix(prefix).partition(_DEVICES)
    if not is_counted:
        name, _, fault = name.partition(_FAULT)
        return ClaimTemplate(name, fault=fault or "its agent does not say what it asks for")
    devices = []
    for one in counts.split(","):
        device_class, _, count = one.rpartition(":")
        if not device_class or not count.isdecimal():
            return ClaimTemplate(name, fault="its agent reports it in a way that this dispatcher does not know")
        devices.append((device_class, int(count)))
    return ClaimTemplate(name, tuple(devices))


def read_claim_template(obj: Mapping[str, Any]) -> ClaimTemplate:
    """Return what a ResourceClaimTemplate asks for. Only exact numbers of whole devices can be counted."""
    return _read(str(obj["metadata"]["name"]), JsonNode(obj, "", []).get("spec").get("spec").get("devices"))


def read_resource_claim(obj: Mapping[str, Any]) -> ClaimTemplate:
    """Return what a ResourceClaim asks for."""
    found = _read(str(obj["metadata"]["name"]), JsonNode(obj, "", []).get("spec").get("devices"))
    return found._replace(is_claim=True)


def _read(name: str, devices: JsonNode) -> ClaimTemplate:
    requests = list(devices.get("requests").items())
    if devices.get("constraints").items():
        return ClaimTemplate(name, fault="it has constraints between devices, such as matchAttribute")
    if not requests or len(requests) > _MOST_REQUESTS:
        return ClaimTemplate(name, fault="it has no requests" if not requests else "it has too many requests")
    counts: dict[str, int] = {}
    for request in requests:
        exactly = request.get("exactly")
        if fault := _fault_of(request, exactly):
            return ClaimTemplate(name, fault=f"its request {request.get('name').text() or ''} {fault}")
        count = exactly.get("count").value
        device_class = exactly.get("deviceClassName").text() or ""
        counts[device_class] = counts.get(device_class, 0) + (count if isinstance(count, int) else 1)
    return claim_template(name, counts)


def _fault_of(request: JsonNode, exactly: JsonNode) -> str:
    """Return why a request cannot be counted; empty if it can."""
    if not exactly.is_set:
        return "has alternatives (firstAvailable)" if request.get("firstAvailable").is_set else "is of an unknown kind"
    mode = exactly.get("allocationMode").value
    if mode not in (None, "ExactCount"):
        return f"takes as many devices as there are (allocationMode {mode})"
    if exactly.get("adminAccess").value:
        return "watches devices of others (adminAccess)"
    if exactly.get("capacity").is_set:
        return "takes a part of a device (capacity)"
    return "" if exactly.get("deviceClassName").text() else "names no device class"


def named_templates(pod_template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each ResourceClaimTemplate that a pod names; a claim is made for each."""
    spec = JsonNode(pod_template, "", []).get("spec")
    for index, one in enumerate(spec.get("resourceClaims").items()):
        name = one.get("resourceClaimTemplateName").value
        if isinstance(name, str) and name:
            yield f"spec.resourceClaims[{index}].resourceClaimTemplateName", name


def named_claims(pod_template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each ResourceClaim that a pod names."""
    spec = JsonNode(pod_template, "", []).get("spec")
    for index, one in enumerate(spec.get("resourceClaims").items()):
        name = one.get("resourceClaimName").value
        if isinstance(name, str) and name:
            yield f"spec.resourceClaims[{index}].resourceClaimName", name


def claimed(pod_template: Mapping[str, Any], templates: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the devices by resource that a pod has by claims. ``templates``: number by class of each template that is counted."""
    found: dict[str, int] = {}
    for _, name in named_templates(pod_template):
        for device_class, count in templates.get(name, {}).items():
            resource = device_resource(device_class)
            found[resource] = found.get(resource, 0) + count
    return found


def uncounted_claims(
    pod_template: Mapping[str, Any], templates: Mapping[str, Mapping[str, int]]
) -> tuple[Mistake, ...]:
    """Return a mistake for each claim of a pod whose template is not counted. Paths start at the pod template."""
    return tuple(
        Mistake(path=path, message=f"ResourceClaimTemplate {name} was not counted when the job was submitted")
        for path, name in named_templates(pod_template)
        if not templates.get(name)
    )


def why_no_claim_template(capability: str, offered: Iterable[str]) -> str | None:
    """Return why a cluster does not have a template or claim that a pod names; None for a capability of another sort."""
    if (claim := parse_claim(capability)) is not None:
        return f"its agent reports no ResourceClaim {claim.name} in the namespaces of jobs"
    wanted = parse_claim_template(capability)
    if wanted is None:
        return None
    named = f"ResourceClaimTemplate {wanted.name}"
    found = next(
        (one for one in map(parse_claim_template, offered) if one is not None and one.name == wanted.name), None
    )
    if found is None:
        return f"its agent reports no {named} in the namespaces of jobs"
    if found.fault:
        return f"its {named} cannot be counted: {found.fault}"
    return f"its {named} asks for {found.words}, and the job was counted with {wanted.words}"
