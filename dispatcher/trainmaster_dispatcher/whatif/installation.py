"""An installation as input for simulations: its clusters as a simulated fleet, and what its admins have declared. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol import resource_kinds
from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.quantities import format_quantity
from trainmaster.protocol.resource_kinds import Kind

KINDS: Sequence[Kind] = ("Queue", "PriorityClass", "PriceBook", "Cluster", "Dataset", "BurstPolicy")
"""The declared kinds that a simulation uses."""
_SHOWN_ONLY = ("status", "jobs", "isLeaf", "usage", "warnings")
"""Fields that the API shows of such an object in addition to what was declared."""


def fleet_of(clusters: Sequence[Mapping[str, Any]]) -> Fleet:
    """Return the nodes that agents report now, without what others use of them; topologies are left out.

    ``clusters``: as the API shows them. Raises ProblemError INVALID_SPEC if no cluster has any nodes.
    """
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
        raise ProblemError(Code.INVALID_SPEC, "no cluster has reported any nodes; give a fleet")
    return Fleet.model_validate({"seed": 1, "clusters": found})


def documents_of(shown: Mapping[Kind, Iterable[Mapping[str, Any]]]) -> list[Document]:
    """Return all that was declared, as if it came from files. ``shown``: by kind, as the API shows it."""
    out = []
    for kind, items in shown.items():
        fields = {field.alias or name for name, field in resource_kinds.KINDS[kind].spec.model_fields.items()}
        for item in items:
            known = {key: value for key, value in item.items() if key in fields and key not in _SHOWN_ONLY}
            place = f"{kind} {item.get('path', item.get('name'))}"
            out.append(Document({**known, "kind": kind}, place, is_stored=True))
    return out
