"""Quota and queues of Kueue for tests and benchmarks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.cluster.api import ApiClient, ApiError
from tests.waiting import eventually

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_QUEUE = "all"


async def set_kueue_quota(api: ApiClient, amounts: Mapping[str, str], flavor: str = "any") -> None:
    """Make the one ClusterQueue with this quota by resource, for any node or those of a flavor, or change its quota."""
    quotas = [{"name": resource, "nominalQuota": amount} for resource, amount in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": flavor, "resources": quotas}]}
    queue = _of_kueue("ClusterQueue", _QUEUE, {"namespaceSelector": {}, "resourceGroups": [group]})
    queues = await _answered(lambda: api.get(f"{KUEUE}/clusterqueues"))
    if queues["items"]:
        await _answered(lambda: api.patch(f"{KUEUE}/clusterqueues/{_QUEUE}", queue))
        return
    await _answered(lambda: api.post(f"{KUEUE}/resourceflavors", _of_kueue("ResourceFlavor", "any", {})))
    await _answered(lambda: api.post(f"{KUEUE}/clusterqueues", queue))


async def make_kueue_topology(api: ApiClient, name: str, levels: Sequence[str]) -> None:
    """Make a Topology of node labels, wide to narrow, and the flavor of its name, for all nodes."""
    spec = {"levels": [{"nodeLabel": level} for level in levels]}
    await _answered(lambda: api.post(f"{KUEUE}/topologies", _of_kueue("Topology", name, spec)))
    flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": name}
    await _answered(lambda: api.post(f"{KUEUE}/resourceflavors", _of_kueue("ResourceFlavor", name, flavor)))


async def remove_kueue_topologies(api: ApiClient) -> None:
    """Remove all Topologies and their flavors, which no ClusterQueue may use any more."""
    for flavor in (await api.get(f"{KUEUE}/resourceflavors"))["items"]:
        if flavor["spec"].get("topologyName"):
            await api.delete(f"{KUEUE}/resourceflavors/{flavor['metadata']['name']}")
    await api.delete(f"{KUEUE}/topologies")

    async def are_gone() -> bool:
        return not (await api.get(f"{KUEUE}/topologies"))["items"]

    await eventually(are_gone, 30)


async def make_kueue_queue(api: ApiClient, namespace: str, name: str = "default", cluster_queue: str = _QUEUE) -> None:
    """Make a LocalQueue of a namespace."""
    queue = _of_kueue("LocalQueue", name, {"clusterQueue": cluster_queue})
    await api.post(f"{KUEUE}/namespaces/{namespace}/localqueues", queue)


async def make_kueue_cohort(api: ApiClient, cohort: str, queues: Sequence[str], cpu: str) -> None:
    """Make ClusterQueues with this quota of CPU each, that borrow from one another and take back what they have lent."""
    quota = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": cpu}]}
    spec = {
        "cohortName": cohort,
        "namespaceSelector": {},
        "preemption": {"reclaimWithinCohort": "Any"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
    }
    for queue in queues:
        await api.post(f"{KUEUE}/clusterqueues", _of_kueue("ClusterQueue", queue, spec))


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
