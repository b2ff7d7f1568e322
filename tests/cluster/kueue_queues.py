"""Quota and queues of Kueue for tests and benchmarks."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from tests.cluster.api import ApiClient, ApiError
from tests.waiting import eventually

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_QUEUE = "all"


async def set_kueue_quota(api: ApiClient, amounts: Mapping[str, str]) -> None:
    """Make the one ClusterQueue with this quota by resource, for any node, or change its quota."""
    quotas = [{"name": resource, "nominalQuota": amount} for resource, amount in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": "any", "resources": quotas}]}
    queue = _of_kueue("ClusterQueue", _QUEUE, {"namespaceSelector": {}, "resourceGroups": [group]})
    queues = await _answered(lambda: api.get(f"{KUEUE}/clusterqueues"))
    if queues["items"]:
        await _answered(lambda: api.patch(f"{KUEUE}/clusterqueues/{_QUEUE}", queue))
        return
    await _answered(lambda: api.post(f"{KUEUE}/resourceflavors", _of_kueue("ResourceFlavor", "any", {})))
    await _answered(lambda: api.post(f"{KUEUE}/clusterqueues", queue))


async def make_kueue_queue(api: ApiClient, namespace: str) -> None:
    """Make the LocalQueue ``default`` of a namespace."""
    queue = _of_kueue("LocalQueue", "default", {"clusterQueue": _QUEUE})
    await api.post(f"{KUEUE}/namespaces/{namespace}/localqueues", queue)


async def _answered(call: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer of a call that an API server may refuse for a while: its kind is new, or the webhook of it starts."""
    found: list[Any] = []

    async def is_answered() -> bool:
        with suppress(ApiError):
            found.append(await call())
        return bool(found)

    await eventually(is_answered, 30)
    return found[0]


def _of_kueue(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
