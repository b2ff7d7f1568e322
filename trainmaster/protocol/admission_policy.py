"""Admission policies of queues and clusters, as they are declared, and the matching of names."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints

from trainmaster.protocol.base import QueuePath, Strict, bounded

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^*\s]*\*?$")]
"""A name, or a prefix followed by ``*``; ``*`` alone matches every name."""
VolumeType = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Patterns = Annotated[tuple[Pattern, ...], bounded(500)]
Rule = TypeVar("Rule")

MOST_CONTAINERS = 16
HARMLESS_ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "kubectl.kubernetes.io/default-container",
    "prometheus.io/*",
    "container.apparmor.security.beta.kubernetes.io/*",
    "container.seccomp.security.alpha.kubernetes.io/*",
    "seccomp.security.alpha.kubernetes.io/pod",
)
"""Annotations with a domain that need no allowance; the Pod Security Standards check the values of the last three."""


class AdmissionPolicy(Strict):
    """The parts of a cluster that templates and pod templates may use.

    The default allows the least. Lists hold names, or prefixes such as ``data-*``.
    """

    level: Literal["restricted", "baseline"] = "restricted"
    service_accounts: Patterns = ()
    """Service accounts that members may use; only their tokens may be mounted."""
    secrets: Patterns = ()
    """Secrets that members may read, or use to pull images."""
    config_maps: Patterns = ()
    """ConfigMaps that members may read."""
    claims: Patterns = ()
    """PersistentVolumeClaims that members may mount, or copy into a volume of their own."""
    csi_drivers: Patterns = ()
    """Drivers of inline CSI volumes."""
    volume_types: Annotated[tuple[VolumeType, ...], bounded(100)] | None = None
    """Narrows the types of volumes that the level allows, such as ``emptyDir``; None leaves them as they are."""
    runtime_classes: Patterns = ()
    resource_claims: Patterns = ()
    """ResourceClaims and ResourceClaimTemplates (DRA)."""
    images: Patterns = ("*",)
    """Images, matched as written: ``registry.example.com/team/*``."""
    annotations: Patterns = ()
    """Annotations beside those without a domain and a few harmless ones."""
    labels: Patterns = ()
    """Labels of domains by which other software grants rights or changes pods, such as workload identities and service meshes."""
    tolerations: Patterns | None = None
    """Keys of taints that may be tolerated, ``*`` for all at once; None: every named taint but those of control planes."""
    node_labels: Patterns | None = None
    """Keys of node labels by which members may select nodes; None: all but those of control planes."""
    most_containers: Annotated[int, Field(ge=1, le=100)] = MOST_CONTAINERS


class QueueAdmission(Strict):
    """Admission policy for pod templates of a queue, and of all below it, on one cluster."""

    queue: QueuePath
    policy: AdmissionPolicy


def longest_match(rules: Iterable[tuple[str, Rule]], queue: str) -> Rule | None:
    """Return the rule of the longest path that the queue is at or below."""
    best: tuple[int, Rule] | None = None
    for path, rule in rules:
        if (queue == path or queue.startswith(f"{path}/")) and (best is None or len(path) > best[0]):
            best = (len(path), rule)
    return None if best is None else best[1]


def is_allowed(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)
