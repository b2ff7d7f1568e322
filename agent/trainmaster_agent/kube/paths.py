"""Addresses of objects in an API server: URL paths by API version, resource and namespace. Pure."""

from typing import NamedTuple


class Resource(NamedTuple):
    """A kind of object by its place in the API, such as ``("v1", "pods")`` or ``("batch/v1", "jobs")``."""

    version: str
    """Group and version; the core group has none."""
    plural: str
    kind: str = ""

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Return the path of one object, or, without ``name``, of all objects."""
        parts = ["/apis/" if "/" in self.version else "/api/", self.version]
        if namespace is not None:
            parts += ["/namespaces/", namespace]
        parts += ["/", self.plural]
        if name is not None:
            parts += ["/", name]
        if sub is not None:
            parts += ["/", sub]
        return "".join(parts)


PODS = Resource("v1", "pods", "Pod")
NODES = Resource("v1", "nodes", "Node")
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
SERVICES = Resource("v1", "services", "Service")
NAMESPACES = Resource("v1", "namespaces", "Namespace")
RESOURCE_QUOTAS = Resource("v1", "resourcequotas", "ResourceQuota")
EVENTS = Resource("v1", "events", "Event")
LEASES = Resource("coordination.k8s.io/v1", "leases", "Lease")
RESOURCE_CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate")
NODE_RESOURCE_TOPOLOGIES = Resource("topology.node.k8s.io/v1alpha2", "noderesourcetopologies", "NodeResourceTopology")


def key_of(obj: dict[str, object]) -> str:
    """Return ``namespace/name`` of an object, or its name where it has no namespace."""
    metadata: dict[str, str] = obj["metadata"]  # type: ignore[assignment]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else metadata["name"]
