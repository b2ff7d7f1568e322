"""The table of what is served: discovery is read from it, and a request for anything else is a 404."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class ResourceId(NamedTuple):
    """``v1`` or ``group/version``, and the plural."""

    group_version: str
    plural: str


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of one version of a group."""

    group_version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()

    @property
    def id(self) -> ResourceId:
        return ResourceId(self.group_version, self.plural)

    @property
    def group(self) -> str:
        return self.group_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        """The name in messages: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def is_custom(self) -> bool:
        """Return whether a CustomResourceDefinition would serve it: those take no strategic merge, and their lists name kinds."""
        return "." in self.group and (not self.group.endswith(".k8s.io") or self.group.endswith(".x-k8s.io"))

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    @property
    def takes_blind_updates(self) -> bool:
        """True if PUT may leave out the resource version (``AllowUnconditionalUpdate`` of its strategy)."""
        return not self.is_custom and self.plural not in ("leases", "poddisruptionbudgets")


_KINDS = {
    "clusterqueues": "ClusterQueue",
    "compositepodgroups": "CompositePodGroup",
    "deviceclasses": "DeviceClass",
    "localqueues": "LocalQueue",
    "nodepools": "NodePool",
    "noderesourcetopologies": "NodeResourceTopology",
    "podgroups": "PodGroup",
    "priorityclasses": "PriorityClass",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "provisioningrequests": "ProvisioningRequest",
    "resourceflavors": "ResourceFlavor",
    "resourceslices": "ResourceSlice",
}
_CLUSTER_SCOPED = {
    "clusterqueues",
    "deviceclasses",
    "nodepools",
    "noderesourcetopologies",
    "resourceflavors",
    "resourceslices",
    "workloadpriorityclasses",
    "topologies",
}
_AUTHORIZATION = "authorization.k8s.io/v1"

PODS = Resource(
    "v1", "pods", "Pod", subresources=("attach", "binding", "eviction", "exec", "log", "portforward", "status")
)
NODES = Resource("v1", "nodes", "Node", namespaced=False, subresources=("status",))
NAMESPACES = Resource("v1", "namespaces", "Namespace", namespaced=False, subresources=("finalize", "status"))
QUOTAS = Resource("v1", "resourcequotas", "ResourceQuota", subresources=("status",))
DISRUPTION_BUDGETS = Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", subresources=("status",))
PRIORITY_CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", namespaced=False)
ACCESS_REVIEWS = Resource(_AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False)

_BUILT_IN = (
    PODS,
    NODES,
    NAMESPACES,
    QUOTAS,
    DISRUPTION_BUDGETS,
    PRIORITY_CLASSES,
    ACCESS_REVIEWS,
    Resource("v1", "configmaps", "ConfigMap"),
    Resource("v1", "secrets", "Secret"),
    Resource("v1", "services", "Service", subresources=("status",)),
    Resource("v1", "serviceaccounts", "ServiceAccount"),
    Resource("v1", "events", "Event"),
    Resource("v1", "limitranges", "LimitRange"),
    Resource("v1", "podtemplates", "PodTemplate"),
    Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim", subresources=("status",)),
    Resource("apps/v1", "deployments", "Deployment", subresources=("status",)),
    Resource("batch/v1", "jobs", "Job", subresources=("status",)),
    Resource("coordination.k8s.io/v1", "leases", "Lease"),
    Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
)


class Table:
    """What is served now."""

    def __init__(self) -> None:
        self._rows = {resource.id: resource for resource in _BUILT_IN}

    def serve(self, group_version: str, plurals: Iterable[str]) -> None:
        """Serve exactly these resources for this version of a group; names in the table's own list keep their kind.

        Unknown resources are namespaced and have a status subresource.
        """
        plurals = tuple(plurals)
        built_in = {resource.id: resource for resource in _BUILT_IN}
        self.withdraw(group_version)
        for plural in plurals:
            name = ResourceId(group_version, plural)
            kind = _KINDS.get(plural, plural.removesuffix("s").capitalize())
            self._rows[name] = built_in.get(name) or Resource(
                group_version, plural, kind, plural not in _CLUSTER_SCOPED, ("status",)
            )

    def withdraw(self, group_version: str) -> None:
        """Serve nothing of this version any more; what is stored stays stored, as when a feature gate is closed."""
        self._rows = {name: resource for name, resource in self._rows.items() if name.group_version != group_version}

    def find(self, group_version: str, plural: str) -> Resource | None:
        return self._rows.get(ResourceId(group_version, plural))

    def serves(self, group_version: str) -> bool:
        return any(name.group_version == group_version for name in self._rows)

    def of(self, group_version: str) -> list[Resource]:
        return [resource for resource in self._rows.values() if resource.group_version == group_version]

    def pod_groups(self) -> list[Resource]:
        """Return the native PodGroup resources, whichever versions are served."""
        return [one for one in self._rows.values() if (one.group, one.plural) == ("scheduling.k8s.io", "podgroups")]

    def all(self) -> list[Resource]:
        return list(self._rows.values())

    def groups(self) -> dict[str, list[str]]:
        """Return versions by group, without the core group, in the order of declaration."""
        groups: dict[str, list[str]] = {}
        for resource in self._rows.values():
            versions = groups.setdefault(resource.group, [])
            version = resource.group_version.rpartition("/")[2]
            if resource.group and version not in versions:
                versions.append(version)
        groups.pop("", None)
        return groups
