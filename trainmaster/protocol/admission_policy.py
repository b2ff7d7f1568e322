"""Admission policies of queues and clusters, as they are declared, and the matching of names."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints

from trainmaster.protocol.base import QueuePath, Strict, bounded, worded_pattern
from trainmaster.protocol.quantities import Quantity

Pattern = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=300,
        pattern=worded_pattern(
            r"^[^*\s]*\*?$", "a name, or the beginning of names and one '*' at the end, such as data-*"
        ),
    ),
]
"""A name, or a prefix followed by ``*``; ``*`` alone matches every name."""
VolumeType = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Patterns = Annotated[tuple[Pattern, ...], bounded(500)]
Rule = TypeVar("Rule")

MOST_CONTAINERS = 16
MOST_VOLUME_SIZE = "1Ti"
HARMLESS_ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "kubectl.kubernetes.io/default-container",
    "prometheus.io/*",
    "container.apparmor.security.beta.kubernetes.io/*",
    "container.seccomp.security.alpha.kubernetes.io/*",
    "seccomp.security.alpha.kubernetes.io/pod",
)
"""Annotations with a domain that need no allowance; the Pod Security Standards check the values of the last three."""
HARMLESS_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "component", "part-of"))
"""Labels with a domain that need no allowance: they describe a pod, and nothing acts on them."""
COMMON_TAINTS = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/*",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "habana.ai/gaudi",
    "gpu",
    "sku",
    "spot",
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "kubernetes.azure.com/scalesetpriority",
)
"""Keys of the taints that clusters commonly give to nodes with accelerators, and to nodes that may be reclaimed."""


class AdmissionPolicy(Strict):
    """Rules for pod templates and templates. The default allows the least. Lists hold names, or prefixes such as ``data-*``."""

    level: Literal["restricted", "baseline"] = "restricted"
    """Pod Security Standard that templates must meet."""
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
    # Dispatchers of the release before read no policy with unknown fields: reports leave these out at their defaults.
    storage_classes: Annotated[Patterns, Field(exclude_if=lambda value: value == ())] = ()
    """StorageClasses and VolumeAttributesClasses of ephemeral volumes, beside the cluster's default class."""
    most_volume_size: Annotated[Quantity, Field(exclude_if=lambda value: value == MOST_VOLUME_SIZE)] = MOST_VOLUME_SIZE
    """The most that the ephemeral volumes of one pod have together."""
    volume_types: Annotated[tuple[VolumeType, ...], bounded(100)] | None = None
    """Narrows the types of volumes that the level allows, such as ``emptyDir``; None leaves them as they are."""
    runtime_classes: Patterns = ()
    """Runtime classes that pods may name."""
    resource_claims: Patterns = ()
    """ResourceClaimTemplates and ResourceClaims (DRA)."""
    images: Patterns = ("*",)
    """Images, matched as written: ``registry.example.com/team/*``."""
    annotations: Patterns = ()
    """Annotations beside those without a domain and a few harmless ones."""
    labels: Patterns = ()
    """Labels beside those without a domain and a few harmless ones."""
    tolerations: Patterns | None = None
    """Keys of taints that may be tolerated, ``*`` for all at once; None: the common ones of accelerators and reclaimable nodes."""
    node_labels: Patterns | None = None
    """Keys of node labels by which members may select nodes; None: all but those of control planes."""
    most_containers: Annotated[int, Field(ge=1, le=100)] = MOST_CONTAINERS
    """The most containers of a pod, init containers included."""


class QueueAdmission(Strict):
    """Admission policy for pod templates of a queue, and of all below it, on one cluster."""

    queue: QueuePath
    """Path of the queue."""
    policy: AdmissionPolicy
    """Policy for the queue and all below it."""


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
