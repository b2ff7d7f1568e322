"""Objects of Dynamic Resource Allocation as an API server delivers them, for tests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DRIVER = "gpu.example.com"
API = "resource.k8s.io/v1"


def device_class(name: str = "gpu", *expressions: str, extended: str = "", created: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": one}} for one in expressions]}
    if extended:
        spec["extendedResourceName"] = extended
    metadata = {"name": name} | ({"creationTimestamp": created} if created else {})
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def device(
    name: str, *, taint: str = "", consumes: Mapping[str, str] | None = None, **attributes: str
) -> dict[str, Any]:
    """Return a device; ``consumes``: by counter of the set ``parts``."""
    made: dict[str, Any] = {"name": name, "attributes": {key: {"string": text} for key, text in attributes.items()}}
    if taint:
        made["taints"] = [{"key": "example.com/broken", "effect": taint}]
    if consumes:
        counters = {key: {"value": text} for key, text in consumes.items()}
        made["consumesCounters"] = [{"counterSet": "parts", "counters": counters}]
    return made


def resource_slice(
    node: str = "",
    devices: Iterable[dict[str, Any]] = (),
    *,
    name: str = "",
    generation: int = 1,
    many: int = 1,
    counters: Mapping[str, str] | None = None,
    pool: str = "",
    **spec: Any,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "driver": DRIVER,
        "pool": {"name": pool or node or "shared", "generation": generation, "resourceSliceCount": many},
        **({"nodeName": node} if node else {}),
        **spec,
    }
    if counters:
        body["sharedCounters"] = [
            {"name": "parts", "counters": {key: {"value": text} for key, text in counters.items()}}
        ]
    if devices:
        body["devices"] = list(devices)
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name or f"{node}-slice"}, "spec": body}


def claim(
    name: str,
    devices: Sequence[tuple[str, str]],
    *,
    of: str = "gpu",
    pod: str = "",
    extended: bool = False,
    admin: bool = False,
    namespace: str = "jobs",
) -> dict[str, Any]:
    """Return an allocated claim; ``devices``: pools and names."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if pod:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": pod, "controller": True}]
    if extended:
        metadata["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    results = [
        {"request": "one", "driver": DRIVER, "pool": pool, "device": one, **({"adminAccess": True} if admin else {})}
        for pool, one in devices
    ]
    requests = [{"name": "one", "exactly": {"deviceClassName": of, "count": len(devices)}}]
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
