"""The room on a cluster: free amounts of its nodes, after our own live runs were subtracted.

A report says what nodes have beside our members; the dispatcher subtracts its own live runs itself, so free capacity is never
promised twice, however old the report. Where a run's members are is known by node group; inside a group they are laid out
best-fit, as the fit itself does it. Nodes of a group that have the same left are one entry with a count, so a cluster of five
hundred nodes costs hardly more than one of five. What a group is left with depends on what runs in it alone, and is worked out
again only when that has changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        for name, amount in needs.items():  # noqa: SIM110 - a generator would take three times as long here
            if free.get(name, 0) < amount:
                return False
        return True

    def leftover(self, needs: Resources) -> tuple[int, int, int, int]:
        """Sort key of best fit: scarce devices first, then CPU and memory left after taking ``needs``."""
        devices = wanted = 0
        free = self.free
        for name, amount in free.items():
            if "/" in name:
                if name in needs:
                    wanted += amount - needs[name]
                else:
                    devices += amount
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


Groups = dict[str, Sequence[Nodes]]
"""The entries of each group by its name. Entries are never changed in place: who changes a group puts others in their stead."""


def fill(
    groups: Groups, needs: Resources, count: int, suiting: Iterable[str] | None = None
) -> tuple[int, dict[str, int]]:
    """Lay out members best-fit; how many found no place, and how many each group took. ``groups`` is changed.

    ``suiting`` are the groups that may be used; None means all. A node that takes a member becomes a still better fit than the
    others, so one order serves all members.
    """
    placed: dict[str, int] = {}
    if count == 1:
        best = _tightest(groups, needs, groups if suiting is None else suiting)
        if best is None:
            return 1, placed
        _split(groups, best, needs, ((1, 1),))
        return 0, {best.group.name: 1}
    fitting = [
        (one.leftover(needs), order, one)
        for order, name in enumerate(groups if suiting is None else suiting)
        for one in groups[name]
        if one.takes(needs)
    ]
    if len(fitting) > 1:
        fitting.sort(key=_rank)
    for _, _, one in fitting:
        each = min(one.holds(needs), count)
        whole = min(one.count, count // each)
        rest = min(count - whole * each, each) if whole < one.count else 0
        _split(groups, one, needs, ((whole, each), (1, rest)) if rest else ((whole, each),))
        name = one.group.name
        placed[name] = placed.get(name, 0) + whole * each + rest
        count -= whole * each + rest
        if not count:
            break
    return count, placed


def _tightest(groups: Groups, needs: Resources, suiting: Iterable[str]) -> Nodes | None:
    """The node that one member leaves fullest: what ``fill`` finds for many, found with less work."""
    best: Nodes | None = None
    least: tuple[int, int, int, int] | None = None
    for name in suiting:
        for one in groups[name]:
            free = one.free
            for resource, amount in needs.items():
                if free.get(resource, 0) < amount:
                    break
            else:
                left = one.leftover(needs)
                if least is None or left < least:
                    best, least = one, left
    return best


def _rank(item: tuple[tuple[int, int, int, int], int, Nodes]) -> tuple[tuple[int, int, int, int], int]:
    return item[0], item[1]


def _split(groups: Groups, one: Nodes, needs: Resources, parts: Iterable[tuple[int, int]]) -> None:
    """Let some of the nodes of an entry take members: pairs of how many nodes, and how many members each of them takes."""
    entries = [other for other in groups[one.group.name] if other is not one]
    left = one.count
    for many, members in parts:
        free = dict(one.free)
        for name, amount in needs.items():
            free[name] = free.get(name, 0) - amount * members
        _join(entries, Nodes(one.group, free, many))
        left -= many
    if left:
        _join(entries, Nodes(one.group, one.free, left))
    groups[one.group.name] = entries


def _join(entries: list[Nodes], entry: Nodes) -> None:
    for index, other in enumerate(entries):
        if other.free == entry.free:
            entries[index] = Nodes(other.group, other.free, other.count + entry.count)
            return
    entries.append(entry)


class Room:
    """All nodes of one cluster, by group. ``suiting`` is shared by all rooms of a cluster: which groups suit a role."""

    def __init__(self, groups: Groups, suiting: dict[Any, tuple[str, ...]] | None = None) -> None:
        self.groups = groups
        self.suiting = {} if suiting is None else suiting
        self._total: Resources | None = None

    @classmethod
    def empty(cls, report: CapacityReport) -> "Room":
        """The cluster without any run of ours."""
        return cls({group.name: (Nodes(group, group.free, group.count),) for group in report.groups if group.count})

    @classmethod
    def of(cls, view: View, cluster_id: int) -> "Room":
        """The cluster as it is now, by the view."""
        return laid_out(view, cluster_id, view.load.get(cluster_id, {}))

    @property
    def nodes(self) -> list[Nodes]:
        """All entries."""
        return [one for entries in self.groups.values() for one in entries]

    def copy(self) -> "Room":
        """A room that may be changed without this one."""
        return Room(dict(self.groups), self.suiting)

    def subtract(self, group: str, needs: Resources, count: int) -> None:
        """Take away members of live runs, wherever in their group they are laid out; with no such group, anywhere.

        A free amount below zero means that the cluster has shrunk under its runs; nothing new fits there until it is made up.
        """
        suiting = (group,) if group in self.groups else tuple(self.groups)
        missing, _ = fill(self.groups, needs, count, suiting)
        if missing and suiting:
            self._take_in_pieces(needs, missing, suiting)
        self._total = None

    def _take_in_pieces(self, needs: Resources, count: int, suiting: tuple[str, ...]) -> None:
        """For members that this layout has no node for: their cluster knows where they are, and what they use is not free."""
        for name, amount in needs.items():
            missing = amount * count
            for one in [one for group in suiting for one in self.groups[group]]:
                free = max(one.free.get(name, 0), 0)
                if free and missing:
                    whole = min(one.count, missing // free)
                    rest = missing - whole * free if whole < one.count else 0
                    parts = [(whole, free)] if whole else []
                    _split(self.groups, one, {name: 1}, [*parts, (1, rest)] if rest else parts)
                    missing -= whole * free + rest
            if missing:
                first = self.groups[suiting[0]][0]
                _split(self.groups, first, {name: 1}, [(1, missing)])

    def put(self, changed: Groups, taken: Resources) -> None:
        """Let groups be as a packing leaves them that took so much."""
        self.groups.update(changed)
        if self._total is not None:
            self._total = self._total | {name: self._total.get(name, 0) - amount for name, amount in taken.items()}

    def total(self) -> Resources:
        """What is free on all nodes together."""
        if self._total is None:
            self._total = {}
            for entries in self.groups.values():
                for one in entries:
                    for name, amount in one.free.items():
                        self._total[name] = self._total.get(name, 0) + amount * one.count
        return self._total


Load = Mapping[str, Mapping[LoadKey, int]]
"""Members by their node group, empty where it is not known, and by what they need."""


def laid_out(view: View, cluster_id: int, load: Load) -> Room:
    """What is left of a cluster under this load. Groups whose load is the view's own are not worked out again."""
    report = view.clusters[cluster_id].report
    if report is None:
        return Room({})
    laid = view.laid.setdefault(cluster_id, {})
    own: Load = view.load.get(cluster_id, {})
    empty = empty_room(view, cluster_id)
    groups: Groups = {}
    for name, entries in empty.groups.items():
        members = load.get(name)
        if not members:
            groups[name] = entries
        elif own.get(name) is members:
            if name not in laid:
                laid[name] = _under(view, name, entries, members, empty.total())
            groups[name] = laid[name]
        else:
            groups[name] = _under(view, name, entries, members, empty.total())
    room = Room(groups, empty.suiting)
    strays = {key: count for name, members in load.items() if name not in groups for key, count in members.items()}
    for key in _ordered(view, strays, empty.total()):
        room.subtract(key.group, needs_of_load(view, key), strays[key])
    return room


def empty_room(view: View, cluster_id: int) -> Room:
    """The cluster without any run of ours; not to be changed."""
    room: Room | None = view.empty_rooms.get(cluster_id)
    if room is None:
        report = view.clusters[cluster_id].report
        room = view.empty_rooms[cluster_id] = Room.empty(report) if report is not None else Room({})
    return room


def _under(
    view: View, name: str, entries: Sequence[Nodes], members: Mapping[LoadKey, int], capacity: Resources
) -> Sequence[Nodes]:
    """The entries of a group under the members that are in it."""
    room = Room({name: entries})
    for key in _ordered(view, members, capacity):
        room.subtract(name, needs_of_load(view, key), members[key])
    return room.groups[name]


def _ordered(view: View, members: Mapping[LoadKey, int], capacity: Resources) -> list[LoadKey]:
    """In an order of its own, so that a layout does not depend on the order in which runs came: large members first."""
    if len(members) < 2:
        return list(members)
    return sorted(members, key=lambda key: (-dominant(needs_of_load(view, key), capacity), key))


def needs_of_load(view: View, key: LoadKey) -> Resources:
    """What each of these members needs."""
    for role in view.shapes[key.shape_id].roles:
        if role.name == key.role:
            return role.needs
    return {}


def dominant(needs: Resources, total: Resources) -> float:
    """The largest share that ``needs`` has of ``total``, over the resources that exist (Ghodsi et al., NSDI 2011)."""
    return max((amount / total[name] for name, amount in needs.items() if total.get(name, 0) > 0), default=0.0)


def by_size(roles: Iterable[RoleShape], total: Resources) -> list[RoleShape]:
    """Roles with the largest member first, which is the order in which a packing is tried."""
    return sorted(roles, key=lambda role: (-dominant(role.needs, total), role.name))


def add_members(load: dict[str, dict[LoadKey, int]], members: Iterable[tuple[LoadKey, int]], sign: int = 1) -> None:
    """Add members to a load, or with ``sign`` -1 take them off; groups that change get a mapping of their own."""
    for key, count in members:
        group = dict(load.get(key.group, {}))
        group[key] = group.get(key, 0) + sign * count
        if not group[key]:
            del group[key]
        load[key.group] = group
