"""Pieces of manifests that the ways to several schedulers share. Pure."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.placement.port import Gang

_BINARY = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def metadata(gang: Gang, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of the one object that stands for the gang: it has the run's name, labels and owner."""
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
    """The run that an object of ours belongs to, by its label."""
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels.get(LABEL_RUN)


def quantities(amounts: Resources) -> dict[str, str]:
    """Amounts as Kubernetes quantities, to the last unit: schedulers compare them with what the pods request."""
    return {name: _quantity(name, amount) for name, amount in sorted(amounts.items())}


def _quantity(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if amount and (name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")):
        for suffix, size in _BINARY:
            if amount % size == 0:
                return f"{amount // size}{suffix}"
    return str(amount)
