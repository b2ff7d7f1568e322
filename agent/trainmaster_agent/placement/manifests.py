"""Parts of manifests that the placements share. Pure."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.placement.port import Gang

_BINARY = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def metadata(gang: Gang, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of the object that represents the gang: the run's name, labels and owner."""
    found: dict[str, Any] = {
        "name": gang.run,
        "namespace": gang.namespace,
        "labels": dict(gang.labels),
        "ownerReferences": [dict(gang.owner)],
    }
    if annotations:
        found["annotations"] = dict(annotations)
    return found


def annotate(pod: dict[str, Any], annotations: Mapping[str, str]) -> None:
    pod["metadata"].setdefault("annotations", {}).update(annotations)


def label(pod: dict[str, Any], labels: Mapping[str, str]) -> None:
    pod["metadata"].setdefault("labels", {}).update(labels)


def run_of_label(obj: Mapping[str, Any]) -> str | None:
    """Return the run of an object of ours, by its label."""
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels.get(LABEL_RUN)


def quantities(amounts: Resources) -> dict[str, str]:
    """Return amounts as exact Kubernetes quantities, because schedulers compare them with the pods' requests."""
    return {name: _quantity(name, amount) for name, amount in sorted(amounts.items())}


def _quantity(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if amount and (name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")):
        for suffix, size in _BINARY:
            if amount % size == 0:
                return f"{amount // size}{suffix}"
    return str(amount)
