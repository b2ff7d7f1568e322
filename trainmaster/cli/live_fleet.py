"""An installation as it is, for simulations: its clusters as a simulated fleet, and what its admins have declared."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.cli.documents import Document

if TYPE_CHECKING:
    from trainmaster.client.calls import Kind
    from trainmaster.client.http import Client
    from trainmaster.simulation.fleet import Fleet

_DECLARED: "Sequence[Kind]" = ("Queue", "PriorityClass", "PriceBook", "Cluster", "Dataset", "BurstPolicy")
_SHOWN_ONLY = ("status", "jobs", "isLeaf", "usage", "warnings")
"""What the API shows of such a thing beside what was declared."""


def fleet_of(clusters: Sequence[dict[str, Any]]) -> "Fleet":
    """The nodes that agents report now, without what others use of them; topologies are not taken over. Raises UsageError."""
    from trainmaster.cli.errors import UsageError
    from trainmaster.protocol.quantities import format_quantity
    from trainmaster.simulation.fleet import Fleet

    found = []
    for cluster in clusters:
        groups = [
            {
                "name": f"n{number}",
                "count": group["count"],
                "resources": {name: format_quantity(name, amount) for name, amount in group["free"].items() if amount},
                "labels": group.get("labels", {}),
                "taints": [
                    {"key": taint["key"], "value": taint.get("value", ""), "effect": taint["effect"]}
                    for taint in group.get("taints", ())
                ],
            }
            for number, group in enumerate(cluster.get("groups", ()), start=1)
            if group["count"]
        ]
        if groups:
            kind, region = cluster["clusterKind"], cluster.get("region", "")
            found.append({"name": cluster["name"], "kind": kind, "region": region, "groups": groups})
    if not found:
        raise UsageError("no cluster has reported any nodes; give a fleet with --fleet")
    return Fleet.model_validate({"seed": 1, "clusters": found})


def declared_of(client: "Client") -> list[Document]:
    """All that was declared, as if it came from files."""
    from trainmaster.protocol.base import Strict
    from trainmaster.protocol.bursting import BurstPolicySpec
    from trainmaster.protocol.prices import PriceBookSpec
    from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec

    models: tuple[type[Strict], ...] = (
        *(QueueSpec, PriorityClassSpec, PriceBookSpec, ClusterSpec, DatasetSpec, BurstPolicySpec),
    )
    out = []
    for kind, model in zip(_DECLARED, models, strict=True):
        fields = {field.alias or name for name, field in model.model_fields.items()}
        for item in client.objects(kind):
            known = {key: value for key, value in item.items() if key in fields and key not in _SHOWN_ONLY}
            out.append(Document({**known, "kind": kind}, f"{kind} {item.get('path', item.get('name'))}"))
    return out
