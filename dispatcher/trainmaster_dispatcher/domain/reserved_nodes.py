"""Reservations of more nodes than there are."""

from collections.abc import Mapping

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.tenants import ReservationSpec


def shortage(spec: ReservationSpec, reports: Mapping[str, CapacityReport]) -> str:
    """Return a sentence if no cluster of a reservation has as many nodes; empty if one has, or if none has reported its nodes.

    ``reports``: by cluster. Nodes that a cluster's autoscaler could add count, too.
    """
    named = spec.clusters or sorted(reports)
    there = {name: _nodes(reports[name], spec.node_selector) for name in named if name in reports}
    if not there:
        return ""
    most = max(there, key=lambda name: there[name])
    if there[most] >= spec.nodes:
        return ""
    of_labels = " with the labels of its nodeSelector" if spec.node_selector else ""
    have = f"the most has {most}, {there[most]}" if there[most] else "they have none"
    return f"reserves {spec.nodes} nodes{of_labels} on each of its clusters, and none of them has as many: {have}"


def _nodes(report: CapacityReport, selector: Mapping[str, str]) -> int:
    """Return how many nodes with these labels a cluster has or could get."""
    return sum(one.count for one in (*report.groups, *report.pools) if selector.items() <= one.labels.items())
