"""The room on a cluster: free amounts of its nodes, after our own live runs were subtracted.

A report says what nodes have beside our members; the dispatcher subtracts its own live runs itself, so free capacity is never
promised twice, however old the report. Where a run's members are is known by node group; inside a group they are laid out
best-fit, as the fit itself does it. Nodes of a group that have the same left are one entry with a count, so a cluster of five
hundred nodes costs hardly more than one of five. What a group is left with depends on what runs in it alone, and is worked out
again only when that has changed.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from trainmaster.dispatcher.domain.shapes import RoleShape
from trainmaster.dispatcher.scheduling.ranking import Ranking
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


_MOST_KINDS = 10_000

Groups = dict[str, Sequence[Nodes]]
"""The entries of each group by its name. Entries are never changed in place: who changes a group puts others in their stead."""


def fill(
    groups: Groups, needs: Resources, count: int, suiting: Iterable[str] | None = None, ranking: Ranking | None = None
) -> tuple[int, dict[str, int]]:
    """Lay out members best-fit; how many found no place, and how many each group took. ``groups`` is changed.

    ``suiting`` are the groups that may be used; None means all. A node that takes a member becomes a still better fit than the
    others, so one order serves all members. ``ranking``: that order, where the groups are as it knows them.
    """
    placed: dict[str, int] = {}
    usable = groups if suiting is None else suiting
    if count == 1:
        best = _tightest(groups, needs, usable) if ranking is None else ranking.tightest(needs)
        if best is None:
            return 1, placed
        _split(groups, best, needs, ((1, 1),))
        return 0, {best.group.name: 1}
    for one in _best(groups, needs, usable) if ranking is None else ranking.best(needs):
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


def _best(groups: Groups, needs: Resources, suiting: Iterable[str]) -> list[Nodes]:
    """The entries that have room for a member, the one that it leaves fullest first."""
    fitting = [
        (one.leftover(needs), order, one)
        for order, name in enumerate(suiting)
        for one in groups[name]
        if one.takes(needs)
    ]
    if len(fitting) > 1:
        fitting.sort(key=_rank)
    return [one for _, _, one in fitting]


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


@lru_cache(maxsize=4096)
def devices_among(names: tuple[str, ...]) -> frozenset[str]:
    """The resources among these that are devices."""
    return frozenset(name for name in names if "/" in name)


class Room:
    """All nodes of one cluster, by group. ``suiting`` is shared by all rooms of a cluster: which groups suit members."""

    def __init__(self, groups: Groups, suiting: dict[Any, tuple[str, ...]] | None = None) -> None:
        self.groups = groups
        self.suiting = {} if suiting is None else suiting
        self._total: Resources | None = None
        self._rankings: dict[tuple[int, frozenset[str]], Ranking] | None = None
        """By the identity of the tuple of groups, and devices."""
        self._most: dict[int, Resources] = {}
        self.names: tuple[str, ...] = ()
        """Of an empty room: the resources that any of its nodes has, in the order of tuples of amounts."""
        self.kinds: dict[tuple[int, str], MemberKind] = {}
        """Of an empty room: members that were on it, by shape and role."""

    def rank(self, before: "Room | None" = None) -> None:
        """Keep the nodes in order from now on, as a room that many are to be fitted into. ``before``: the same cluster, earlier."""
        self._rankings = {}
        if before is not None and before._rankings and before.suiting is self.suiting:
            self._rankings = before._rankings
            for ranking in self._rankings.values():
                ranking.follow(self.groups)

    def ranking(self, suiting: tuple[str, ...], needs: Resources) -> Ranking | None:
        """The nodes of these groups for members with these needs; None for a room whose nodes are not kept in order.

        ``suiting`` is one of the tuples in ``self.suiting``, which live as long as the room.
        """
        if self._rankings is None:
            return None
        devices = devices_among(tuple(needs))
        ranking = self._rankings.get((id(suiting), devices))
        if ranking is None:
            ranking = self._rankings[id(suiting), devices] = Ranking(suiting, devices)
            ranking.follow(self.groups)
        return ranking

    def most(self, suiting: tuple[str, ...]) -> Resources:
        """What is free on a single node of these groups at most, of each resource."""
        most = self._most.get(id(suiting))
        if most is None:
            most = self._most[id(suiting)] = {}
            for name in suiting:
                for one in self.groups[name]:
                    for resource, amount in one.free.items():
                        if amount > most.get(resource, 0):
                            most[resource] = amount
        return most

    @classmethod
    def empty(cls, report: CapacityReport) -> "Room":
        """The cluster without any run of ours."""
        room = cls({group.name: (Nodes(group, group.free, group.count),) for group in report.groups if group.count})
        names = {name for group in report.groups for name in group.free}
        room.names = tuple(sorted(names, key=lambda name: ("/" in name, name != "cpu", name != "memory", name)))
        return room

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
        self._forget()

    def _forget(self) -> None:
        self._total = None
        self._most.clear()
        for ranking in (self._rankings or {}).values():
            ranking.follow(self.groups)

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
        self._most.clear()
        if self._total is not None:
            self._total = self._total | {name: self._total.get(name, 0) - amount for name, amount in taken.items()}
        if self._rankings:
            for ranking in self._rankings.values():
                for name, entries in changed.items():
                    ranking.put(name, entries)

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
    empty = empty_room(view, cluster_id)
    groups: Groups = {name: laid_out_group(view, cluster_id, name, load.get(name)) for name in empty.groups}
    room = Room(groups, empty.suiting)
    strays = {key: count for name, members in load.items() if name not in groups for key, count in members.items()}
    for _, key in _ordered(view, strays, empty):
        room.subtract(key.group, needs_of_load(view, key), strays[key])
    return room


def laid_out_group(view: View, cluster_id: int, name: str, members: Mapping[LoadKey, int] | None) -> Sequence[Nodes]:
    """What the nodes of one group are left with under these members."""
    empty = empty_room(view, cluster_id)
    entries = empty.groups[name]
    if members is None or not members:
        return entries
    own: Load = view.load.get(cluster_id, {})
    if own.get(name) is not members:
        return _under(view, name, entries, members, empty)
    laid = view.laid.setdefault(cluster_id, {})
    if name not in laid:
        laid[name] = _under(view, name, entries, members, empty)
    found: Sequence[Nodes] = laid[name]
    return found


def empty_room(view: View, cluster_id: int) -> Room:
    """The cluster without any run of ours; not to be changed."""
    room: Room | None = view.empty_rooms.get(cluster_id)
    if room is None:
        report = view.clusters[cluster_id].report
        room = view.empty_rooms[cluster_id] = Room.empty(report) if report is not None else Room({})
        room.rank()
    return room


def _under(
    view: View, name: str, entries: Sequence[Nodes], members: Mapping[LoadKey, int], empty: Room
) -> Sequence[Nodes]:
    """The entries of a group under the members that are in it."""
    ordered = _ordered(view, members, empty)
    laid = lay_out(entries, [(kind.need, kind.devices, members[key]) for kind, key in ordered], empty.names)
    if laid is not None:
        return laid
    room = Room({name: entries})
    for _, key in ordered:
        room.subtract(name, needs_of_load(view, key), members[key])
    return room.groups[name]


Tuple = tuple[int, ...]
"""Amounts of the resources that a cluster has: CPU, memory, others, then devices."""


class MemberKind(NamedTuple):
    """Members alike on a cluster. ``rank`` puts those with the largest dominant share first."""

    rank: float
    need: Tuple | None
    """None where they need what the cluster does not have at all."""
    devices: tuple[int, ...]
    """The places of devices that they name."""


def lay_out(
    entries: Sequence[Nodes], members: Iterable[tuple[Tuple | None, tuple[int, ...], int]], names: Sequence[str]
) -> list[Nodes] | None:
    """What nodes of one group are left with under members, which are placed best-fit in this order; None if not all find place.

    The same as ``fill`` for one kind after the other, on tuples of amounts: a group with a hundred kinds of members is worked out
    anew each time that one of them comes or goes. Members: what one needs, the devices it names, how many there are.
    """
    group = entries[0].group
    left: dict[Tuple, int] = {}
    for one in entries:
        free = tuple([one.free.get(name, 0) for name in names])
        left[free] = left.get(free, 0) + one.count
    keys = sorted(left)
    devices = [place for place, name in enumerate(names) if "/" in name and group.free.get(name)]
    for need, wanted, count in members:
        if need is None:
            return None
        while count:
            found = _least_left(keys, need, devices, wanted) if devices else _first_fit(keys, need)
            if found is None:
                return None
            each = whole = 1
            if count > 1:
                each = min(
                    [there // amount for there, amount in zip(found, need, strict=True) if amount], default=count
                )
                each = min(each, count)
                whole = min(left[found], count // each)
            after = tuple([there - each * amount for there, amount in zip(found, need, strict=True)])
            if after != found:
                many = left[found]
                if many == whole:
                    del left[found]
                    del keys[bisect_left(keys, found)]
                else:
                    left[found] = many - whole
                if after in left:
                    left[after] += whole
                else:
                    left[after] = whole
                    insort(keys, after)
            count -= whole * each
    own = [(place, name) for place, name in enumerate(names) if name in group.free]
    return [Nodes(group, {name: free[place] for place, name in own}, left[free]) for free in keys]


def _first_fit(keys: list[Tuple], need: Tuple) -> Tuple | None:
    """Without devices, nodes sorted by CPU and memory stand in best-fit order."""
    for place in range(bisect_left(keys, need), len(keys)):
        free = keys[place]
        for there, amount in zip(free, need, strict=True):
            if there < amount:
                break
        else:
            return free
    return None


def _least_left(keys: list[Tuple], need: Tuple, devices: list[int], wanted: tuple[int, ...]) -> Tuple | None:
    """The node that a member leaves fullest: fewest devices that it does not need, then those that it does, then CPU, memory."""
    best: Tuple | None = None
    least: tuple[int, int, Tuple] | None = None
    for free in keys:
        for there, amount in zip(free, need, strict=True):
            if there < amount:
                break
        else:
            needed = sum([free[place] for place in wanted])
            rank = (sum([free[place] for place in devices]) - needed, needed, free)
            if least is None or rank < least:
                best, least = free, rank
    return best


def _ordered(view: View, members: Mapping[LoadKey, int], empty: Room) -> list[tuple[MemberKind, LoadKey]]:
    """In an order of its own, so that a layout does not depend on the order in which runs came: large members first."""
    kinds = empty.kinds
    out = []
    for key in members:
        kind = kinds.get((key.shape_id, key.role))
        if kind is None:
            if len(kinds) > _MOST_KINDS:
                kinds.clear()
            kind = _kind(needs_of_load(view, key), empty)
            if key.shape_id > 0:  # others are on trial, and the next one is another
                kinds[key.shape_id, key.role] = kind
        out.append((kind, key))
    if len(out) > 1:
        out.sort(key=_by_rank)
    return out


def _by_rank(item: tuple[MemberKind, LoadKey]) -> tuple[float, LoadKey]:
    return item[0].rank, item[1]


def _kind(needs: Resources, empty: Room) -> MemberKind:
    names = empty.names
    known = all(name in names for name, amount in needs.items() if amount)
    need = tuple([needs.get(name, 0) for name in names]) if known else None
    devices = tuple(place for place, name in enumerate(names) if "/" in name and name in needs)
    return MemberKind(-dominant(needs, empty.total()), need, devices)


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
