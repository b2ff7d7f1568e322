"""Detection of gang schedulers by their APIs. It cannot see whether they run, or with which plugins."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.protocol.agent import HOST_LEVEL
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import RefusedError
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.placement import coscheduling, kai, volcano
from trainmaster_agent.placement.kueue import KueueVersion
from trainmaster_agent.placement.native import NativeVersion, pod_group_spec, pod_groups
from trainmaster_agent.placement.provisioned import PROVISIONING_REQUESTS

log = logging.getLogger(__name__)

_HYPER_NODES = Resource("topology.volcano.sh/v1alpha1", "hypernodes")
_KAI_TOPOLOGIES = Resource("kai.scheduler/v1alpha1", "topologies")
_NATIVE_VERSIONS: tuple[NativeVersion, ...] = ("v1beta1", "v1alpha2")
_KUEUE_VERSIONS: tuple[KueueVersion, ...] = ("v1beta2", "v1beta1")
_PROBE = "trainmaster-probe"


@dataclass(frozen=True, slots=True)
class ServedApis:
    """The served APIs, and the objects that configure them."""

    native: NativeVersion | None = None
    native_topology: bool = False
    """Whether a native PodGroup keeps its topology constraint; False unless probed."""
    volcano: bool = False
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Tiers of Volcano's HyperNodes by the node label that they stand for, where known."""
    kai: bool = False
    kai_topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node labels, wide to narrow, by the Topology's name."""
    coscheduling: bool = False
    kueue: KueueVersion | None = None
    kueue_topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    provisioning: bool = False
    """Whether the cluster takes ProvisioningRequests."""


class _Discovery:
    def __init__(self, api: ApiServer, versions: frozenset[str]) -> None:
        self._api = api
        self._versions = versions

    @classmethod
    async def of(cls, api: ApiServer) -> "_Discovery":
        groups = (await api.call("GET", "/apis")).get("groups") or ()
        return cls(api, frozenset(one["groupVersion"] for group in groups for one in group["versions"]))

    async def serves(self, resource: Resource) -> bool:
        """Return whether the resource is served, by name: ``scheduling.k8s.io/v1beta1`` once was the version of PriorityClass."""
        if resource.version not in self._versions:
            return False
        answer = await self._api.call("GET", f"/apis/{resource.version}")
        return any(one["name"] == resource.plural for one in answer.get("resources") or ())

    async def items(self, resource: Resource) -> Sequence[Mapping[str, Any]]:
        """Return all objects of a resource; nothing where it is not served or may not be read."""
        if not await self.serves(resource):
            return ()
        try:
            found: Sequence[Mapping[str, Any]] = (await self._api.call("GET", resource.path())).get("items") or ()
        except RefusedError as error:
            log.warning("%s of %s cannot be read, they are ignored: %s", resource.plural, resource.version, error)
            return ()
        return found


async def detect(api: ApiServer, namespace: str | None = None) -> ServedApis:
    """Detect schedulers by API discovery; probe the native API for topology in ``namespace`` by a dry run. Raises KubeError."""
    there = await _Discovery.of(api)
    native = None
    for version in _NATIVE_VERSIONS:
        if native is None and await there.serves(pod_groups(version)):
            native = version
    kueue = None
    for candidate in _KUEUE_VERSIONS:
        if kueue is None and await there.serves(Resource(f"kueue.x-k8s.io/{candidate}", "workloads")):
            kueue = candidate
    topology = native is not None and namespace is not None and await probe_native(api, namespace, native)
    queued = () if kueue is None else await there.items(Resource(f"kueue.x-k8s.io/{kueue}", "topologies"))
    return ServedApis(
        native=native,
        native_topology=topology,
        volcano=await there.serves(volcano.POD_GROUPS),
        tiers=tiers_of(await there.items(_HYPER_NODES)),
        kai=await there.serves(kai.POD_GROUPS),
        kai_topologies=_levels_of(await there.items(_KAI_TOPOLOGIES)),
        coscheduling=await there.serves(coscheduling.POD_GROUPS),
        kueue=kueue,
        kueue_topologies=_levels_of(queued),
        provisioning=await there.serves(PROVISIONING_REQUESTS),
    )


async def probe_native(api: ApiServer, namespace: str, version: NativeVersion = "v1alpha2") -> bool:
    """Return whether the API keeps a PodGroup's topology constraint: with its feature gate off, it drops it silently.

    Nothing is stored. No API says whether the scheduler's own gate is on, too. Raises KubeError.
    """
    resource = pod_groups(version)
    body = {
        "apiVersion": resource.version,
        "kind": resource.kind,
        "metadata": {"name": _PROBE, "namespace": namespace},
        "spec": pod_group_spec(1, HOST_LEVEL),
    }
    stored = await api.call("POST", resource.path(namespace), query={"dryRun": "All"}, body=body)
    return bool((stored["spec"].get("schedulingConstraints") or {}).get("topology"))


def tiers_of(hyper_nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return tiers by node label, of HyperNodes whose ``tierName`` is a label, or whose members are the nodes with one label.

    For a label with several tiers, the lowest counts.
    """
    tiers: dict[str, int] = {}
    for one in hyper_nodes:
        spec = one["spec"]
        names = {spec.get("tierName") or ""}
        for member in spec.get("members") or ():
            labels = ((member.get("selector") or {}).get("labelMatch") or {}).get("matchLabels") or {}
            names |= set(labels) if len(labels) == 1 else set()
        for name in names - {""}:
            tiers[name] = min(spec["tier"], tiers.get(name, spec["tier"]))
    return tiers


def _levels_of(topologies: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    return {
        one["metadata"]["name"]: tuple(level["nodeLabel"] for level in one["spec"].get("levels") or ())
        for one in topologies
    }
