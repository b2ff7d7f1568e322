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

    def take(self, needs: Resources) -> None:
        for name, amount in needs.items():
            self.free[name] = self.free.get(name, 0) - amount


class Room:
    """All nodes of one cluster."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

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

    def copy(self) -> "Room":
        return Room([Node(node.group, dict(node.free)) for node in self.nodes])

    def subtract(self, run: LiveRun, shape: Shape) -> None:
        """Take away a live run. Members for which there is no node left in their group take from the first that there is.

        A free amount below zero means that the cluster has shrunk under its runs; nothing new fits there until it is made up.
        """
        needs = {role.name: role.needs for role in shape.roles}
        placed: dict[str, int] = {}
        for group, roles in run.placement:
            nodes = [node for node in self.nodes if node.group.name == group]
            for role, count in roles:
                placed[role] = placed.get(role, 0) + count
                _take_anywhere(nodes or self.nodes, needs.get(role, {}), count)
        for role, size in run.sizes:
            _take_anywhere(self.nodes, needs.get(role, {}), size - placed.get(role, 0))

    def total(self) -> Resources:
        out: Resources = {}
        for node in self.nodes:
            for name, amount in node.free.items():
                out[name] = out.get(name, 0) + amount
        return out


def _take_anywhere(nodes: list[Node], needs: Resources, count: int) -> None:
    for _ in range(count):
        fitting = [node for node in nodes if node.takes(needs)]
        if fitting:
            min(fitting, key=lambda node: node.leftover(needs)).take(needs)
        elif nodes:
            nodes[0].take(needs)


def dominant(needs: Resources, total: Resources) -> float:
    """The largest share that ``needs`` has of ``total``, over the resources that exist (Ghodsi et al., NSDI 2011)."""
    return max((amount / total[name] for name, amount in needs.items() if total.get(name, 0) > 0), default=0.0)


def by_size(roles: Iterable[RoleShape], total: Resources) -> list[RoleShape]:
    """Roles with the largest member first, which is the order in which a packing is tried."""
    return sorted(roles, key=lambda role: (-dominant(role.needs, total), role.name))
