"""The room on a cluster: free amounts of its nodes, after our own live runs were subtracted.

A report says what nodes have beside our members; the dispatcher subtracts its own live runs itself, so free capacity is never
promised twice, however old the report. Where a run's members are is known by node group; inside a group they are laid out
best-fit, as the fit itself does it. Nodes of a group that have the same left are one entry with a count, so a cluster of five
hundred nodes costs hardly more than one of five.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from trainmaster.dispatcher.domain.shapes import RoleShape
from trainmaster.dispatcher.scheduling.view import LoadKey, View
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.quantities import Resources


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """So many nodes of a group, each with these amounts still free."""

    group: NodeGroup
    free: Resources
    count: int

    def takes(self, needs: Resources) -> bool:
        free = self.free
        return all(free.get(name, 0) >= amount for name, amount in needs.items())

    def leftover(self, needs: Resources) -> tuple[int, int, int, int]:
        """Sort key of best fit: scarce devices first, then CPU and memory left after taking ``needs``."""
        devices = wanted = 0
        for name, amount in self.free.items():
            if "/" in name:
                if name in needs:
                    wanted += amount - needs[name]
                else:
                    devices += amount
        free = self.free
        return (
            devices,
            wanted,
            free.get("cpu", 0) - needs.get("cpu", 0),
            free.get("memory", 0) - needs.get("memory", 0),
        )

    def holds(self, needs: Resources) -> int:
        """How many members with these needs find place on one of them."""
        free = self.free
        return min((free.get(name, 0) // amount for name, amount in needs.items() if amount), default=MOST_MEMBERS)


def fill(
    nodes: list[Nodes], needs: Resources, count: int, suiting: Container[int] | None = None
) -> tuple[int, dict[str, int]]:
    """Lay out members best-fit; how many found no place, and how many each group took. ``nodes`` is changed.

    ``suiting`` are the ``id`` of the groups that may be used; None means all. A node that takes a member becomes a still better
    fit than the others, so one order serves all members.
    """
    placed: dict[str, int] = {}
    fitting = [one for one in nodes if (suiting is None or id(one.group) in suiting) and one.takes(needs)]
    if len(fitting) > 1:
        fitting.sort(key=lambda one: one.leftover(needs))
    for one in fitting:
        each = min(one.holds(needs), count)
        whole = min(one.count, count // each)
        rest = min(count - whole * each, each) if whole < one.count else 0
        _split(nodes, one, needs, ((whole, each), (1, rest)) if rest else ((whole, each),))
        placed[one.group.name] = placed.get(one.group.name, 0) + whole * each + rest
        count -= whole * each + rest
        if not count:
            break
    return count, placed


def _split(nodes: list[Nodes], one: Nodes, needs: Resources, parts: Iterable[tuple[int, int]]) -> None:
    """Let some of the nodes of an entry take members: pairs of how many nodes, and how many members each of them takes."""
    place = next(index for index, other in enumerate(nodes) if other is one)
    left = one.count
    fresh = []
    for many, members in parts:
        free = dict(one.free)
        for name, amount in needs.items():
            free[name] = free.get(name, 0) - amount * members
        fresh.append(Nodes(one.group, free, many))
        left -= many
    if left:
        nodes[place] = Nodes(one.group, one.free, left)
    else:
        del nodes[place]
    for entry in fresh:
        _join(nodes, entry)


def _join(nodes: list[Nodes], entry: Nodes) -> None:
    for index, other in enumerate(nodes):
        if other.group is entry.group and other.free == entry.free:
            nodes[index] = Nodes(other.group, other.free, other.count + entry.count)
            return
    nodes.append(entry)


class Room:
    """All nodes of one cluster."""

    def __init__(self, nodes: Iterable[Nodes]) -> None:
        self.nodes = [one for one in nodes if one.count]
        self._total: Resources | None = None

    @classmethod
    def empty(cls, report: CapacityReport) -> "Room":
        """The cluster without any run of ours."""
        return cls(Nodes(group, group.free, group.count) for group in report.groups)

    @classmethod
    def of(cls, view: View, cluster_id: int) -> "Room":
        """The cluster as it is now, by the view."""
        return laid_out(view, view.clusters[cluster_id].report, view.load.get(cluster_id, {}))

    def subtract(self, group: str, needs: Resources, count: int) -> None:
        """Take away members of live runs, wherever in their group they are laid out.

        A free amount below zero means that the cluster has shrunk under its runs; nothing new fits there until it is made up.
        """
        suiting = {id(one.group) for one in self.nodes if one.group.name == group}
        missing, _ = fill(self.nodes, needs, count, suiting or None)
        if missing and self.nodes:
            self._take_in_pieces(needs, missing, suiting)
        self._total = None

    def _take_in_pieces(self, needs: Resources, count: int, suiting: set[int]) -> None:
        """For members that this layout has no node for: their cluster knows where they are, and what they use is not free."""
        for name, amount in needs.items():
            missing = amount * count
            for one in [one for one in self.nodes if not suiting or id(one.group) in suiting]:
                free = max(one.free.get(name, 0), 0)
                if free and missing:
                    whole = min(one.count, missing // free)
                    rest = missing - whole * free if whole < one.count else 0
                    parts = [(whole, free)] if whole else []
                    _split(self.nodes, one, {name: 1}, [*parts, (1, rest)] if rest else parts)
                    missing -= whole * free + rest
            if missing:
                first = next(one for one in self.nodes if not suiting or id(one.group) in suiting)
                _split(self.nodes, first, {name: 1}, [(1, missing)])

    def put(self, nodes: list[Nodes]) -> None:
        """Let the nodes be as a packing leaves them."""
        self.nodes = nodes
        self._total = None

    def total(self) -> Resources:
        """What is free on all nodes together."""
        if self._total is None:
            self._total = {}
            for one in self.nodes:
                for name, amount in one.free.items():
                    self._total[name] = self._total.get(name, 0) + amount * one.count
        return self._total


def laid_out(view: View, report: CapacityReport | None, load: Mapping[LoadKey, int]) -> Room:
    """What is left of a cluster under this load."""
    room = Room.empty(report) if report is not None else Room(())
    if load:
        capacity = room.total()
        needs = {key: needs_of_load(view, key) for key in load}
        # In an order of its own, so that the layout does not depend on the order in which runs came. Large members first,
        # and those whose group is not known last.
        for key in sorted(load, key=lambda key: (key.group == "", -dominant(needs[key], capacity), key)):
            room.subtract(key.group, needs[key], load[key])
    return room


def needs_of_load(view: View, key: LoadKey) -> Resources:
    """What each of these members needs."""
    return next((part.needs for part in view.shapes[key.shape_id].roles if part.name == key.role), {})


def dominant(needs: Resources, total: Resources) -> float:
    """The largest share that ``needs`` has of ``total``, over the resources that exist (Ghodsi et al., NSDI 2011)."""
    return max((amount / total[name] for name, amount in needs.items() if total.get(name, 0) > 0), default=0.0)


def by_size(roles: Iterable[RoleShape], total: Resources) -> list[RoleShape]:
    """Roles with the largest member first, which is the order in which a packing is tried."""
    return sorted(roles, key=lambda role: (-dominant(role.needs, total), role.name))
