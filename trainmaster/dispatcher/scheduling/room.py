"""The room on a cluster: free amounts node by node, after our own live runs were subtracted.

A report says what nodes have beside our members; the dispatcher subtracts its own live runs itself, so free capacity is never
promised twice, however old the report. Where a run's members are is known by node group; inside a group they are laid out
best-fit, as the fit itself does it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trainmaster.dispatcher.domain.shapes import RoleShape, Shape
from trainmaster.dispatcher.scheduling.view import LiveRun, View
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.quantities import Resources


@dataclass(slots=True)
class Node:
    """One node of a group with what is still free on it."""

    group: NodeGroup
    free: Resources

    def takes(self, needs: Resources) -> bool:
        free = self.free
        return all(free.get(name, 0) >= amount for name, amount in needs.items())

    def leftover(self, needs: Resources) -> tuple[int, ...]:
        """Sort key of best fit: scarce devices first, then CPU and memory left after taking ``needs``."""
        free = self.free
        devices = sum(amount for name, amount in free.items() if "/" in name and name not in needs)
        wanted = sum(free.get(name, 0) - amount for name, amount in needs.items() if "/" in name)
        return (
            devices,
            wanted,
            free.get("cpu", 0) - needs.get("cpu", 0),
            free.get("memory", 0) - needs.get("memory", 0),
        )

    def holds(self, needs: Resources) -> int:
        """How many members with these needs find place."""
        free = self.free
        return min((free.get(name, 0) // amount for name, amount in needs.items() if amount), default=MOST_MEMBERS)

    def take(self, needs: Resources, count: int = 1) -> None:
        for name, amount in needs.items():
            self.free[name] = self.free.get(name, 0) - amount * count


class Room:
    """All nodes of one cluster."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self._of_group: dict[str, list[Node]] = {}
        for node in nodes:
            self._of_group.setdefault(node.group.name, []).append(node)
        self._total: Resources | None = None

    @classmethod
    def empty(cls, report: CapacityReport) -> "Room":
        """The cluster without any run of ours."""
        return cls([Node(group, dict(group.free)) for group in report.groups for _ in range(group.count)])

    @classmethod
    def of(cls, view: View, cluster_id: int) -> "Room":
        """The cluster as it is now, by the view."""
        report = view.clusters[cluster_id].report
        room = cls.empty(report) if report is not None else cls([])
        for job_id in sorted(view.runs_on.get(cluster_id, ())):
            run = view.runs[job_id]
            room.subtract(run, view.shapes[run.shape_id])
        return room

    def subtract(self, run: LiveRun, shape: Shape) -> None:
        """Take away a live run, wherever in its groups it is laid out.

        A free amount below zero means that the cluster has shrunk under its runs; nothing new fits there until it is made up.
        """
        needs = {role.name: role.needs for role in shape.roles}
        missing = dict(run.sizes)
        for group, roles in run.placement:
            for role, count in roles:
                # An agent's word moves members; it never makes more of them than the run has.
                placed = min(max(count, 0), missing.get(role, 0))
                missing[role] = missing.get(role, 0) - placed
                _take_anywhere(self._of_group.get(group, self.nodes), needs.get(role, {}), placed)
        for role, count in missing.items():
            _take_anywhere(self.nodes, needs.get(role, {}), count)
        self._total = None

    def take(self, node: Node, needs: Resources, count: int) -> None:
        """Take members from one of its nodes."""
        node.take(needs, count)
        self._total = None

    def total(self) -> Resources:
        """What is free on all nodes together."""
        if self._total is None:
            self._total = {}
            for node in self.nodes:
                for name, amount in node.free.items():
                    self._total[name] = self._total.get(name, 0) + amount
        return self._total


def _take_anywhere(nodes: list[Node], needs: Resources, count: int) -> None:
    for _ in range(count):
        fitting = [node for node in nodes if node.takes(needs)]
        if fitting:
            min(fitting, key=lambda node: node.leftover(needs)).take(needs)
        elif nodes:
            _take_in_pieces(nodes, needs)


def _take_in_pieces(nodes: list[Node], needs: Resources) -> None:
    """For a member that this layout has no node for: its cluster knows where it is, and what it uses is not free, wherever."""
    for name, amount in needs.items():
        missing = amount
        for node in nodes:
            part = min(missing, max(node.free.get(name, 0), 0))
            node.take({name: part})
            missing -= part
        nodes[0].take({name: missing})


def dominant(needs: Resources, total: Resources) -> float:
    """The largest share that ``needs`` has of ``total``, over the resources that exist (Ghodsi et al., NSDI 2011)."""
    return max((amount / total[name] for name, amount in needs.items() if total.get(name, 0) > 0), default=0.0)


def by_size(roles: Iterable[RoleShape], total: Resources) -> list[RoleShape]:
    """Roles with the largest member first, which is the order in which a packing is tried."""
    return sorted(roles, key=lambda role: (-dominant(role.needs, total), role.name))
