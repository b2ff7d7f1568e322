"""Default requests of members that request nothing: without them, quota, fair share and prices would not count these
members at all."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.jobs import JobSpec, Role
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import parse_quantity


def read_requests(text: str) -> dict[str, str]:
    """Return the quantities in a text such as ``cpu=100m,memory=64Mi``. Raises ValueError for anything else."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, quantity = part.partition("=")
        if not equals or name not in ("cpu", "memory") or name in found:
            raise ValueError(f"{part!r} is not cpu=QUANTITY or memory=QUANTITY, each given once")
        if parse_quantity(name, quantity) <= 0:
            raise ValueError(f"{part!r} must be above 0")
        found[name] = quantity
    return found


def read_memory_limit(text: str) -> str:
    """Return a quantity of memory, or nothing. Raises ValueError for anything else."""
    if text and parse_quantity("memory", text) <= 0:
        raise ValueError(f"{text!r} must be above 0")
    return text


def with_requests(spec: JobSpec, defaults: Mapping[str, str], memory_limit: str = "") -> JobSpec:
    """Return the job with these requests for each member that does not request the resource.

    ``memory_limit``: of a container of a ``podTemplate`` whose request of memory is added here, unless it or its pod has a limit;
    empty: none. Raises ValueError for bad quantities.
    """
    if not defaults:
        return spec
    roles = [_with_requests(role, defaults, memory_limit) for role in spec.roles]
    if all(new is old for new, old in zip(roles, spec.roles, strict=True)):
        return spec
    return spec.model_copy(update={"roles": tuple(roles)})


def _with_requests(role: Role, defaults: Mapping[str, str], memory_limit: str) -> Role:
    if role.template is not None:
        requested = role.template.resources
        missing = {name: text for name, text in defaults.items() if _is_nothing(name, requested.get(name))}
        if not missing:
            return role
        template = role.template.model_copy(update={"resources": {**requested, **missing}})
        return role.model_copy(update={"template": template})
    pod = role.pod_template or {}
    amounts = pod_requests(pod)
    missing = {name: text for name, text in defaults.items() if not amounts.get(name)}
    return role.model_copy(update={"pod_template": _pod_with(pod, missing, memory_limit)}) if missing else role


def _is_nothing(name: str, text: str | None) -> bool:
    # Most quantities begin with another digit, and need not be parsed.
    return text is None or (not text.startswith(tuple("123456789")) and parse_quantity(name, text) == 0)


def _pod_with(pod: dict[str, Any], missing: Mapping[str, str], memory_limit: str) -> dict[str, Any]:
    """Return a pod template whose first container requests what is missing; as Kubernetes does with a LimitRange."""
    spec = pod["spec"]
    first, *others = spec["containers"]
    resources = first.get("resources") or {}
    # A limit of 0 beside it would be refused, and such a container requests nothing by its limit.
    limits = {
        name: text
        for name, text in (resources.get("limits") or {}).items()
        if name not in missing or _is_some(name, text)
    }
    least = {name: _lower(name, text, limits.get(name)) for name, text in missing.items()}
    merged = {**resources, "requests": {**(resources.get("requests") or {}), **least}}
    if memory_limit and "memory" in missing and "memory" not in limits and not _limits_memory(spec):
        limits["memory"] = _higher("memory", memory_limit, least["memory"])
    if limits or "limits" in resources:
        merged["limits"] = limits
    return {**pod, "spec": {**spec, "containers": [{**first, "resources": merged}, *others]}}


def _limits_memory(spec: Mapping[str, Any]) -> bool:
    return "memory" in ((spec.get("resources") or {}).get("limits") or {})


def _higher(name: str, text: str, request: str) -> str:
    return text if parse_quantity(name, text) >= parse_quantity(name, request) else request


def _is_some(name: str, text: Any) -> bool:
    return parse_quantity(name, str(text)) > 0


def _lower(name: str, text: str, limit: Any) -> str:
    """Return the request, or the limit where that is lower: no request may be above it."""
    return text if limit is None or parse_quantity(name, str(limit)) >= parse_quantity(name, text) else str(limit)
