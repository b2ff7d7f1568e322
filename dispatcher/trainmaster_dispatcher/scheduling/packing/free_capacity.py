"""The room on a cluster: free amounts of its nodes, after our own live runs were subtracted.

A report says what nodes have beside our members; the dispatcher subtracts its own live runs itself, so free capacity is never
promised twice, however old the report. Where a run's members are is known by node group; inside a group they are laid out
best-fit, as the fit itself does it. Nodes of a group that have the same left are one entry with a count, so a cluster of five
hundred nodes costs hardly more than one of five. What a group is left with depends on what runs in it alone, and is worked out
again only when that has changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakValueDictionary

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleKey, RoleShape, Terms
from trainmaster_dispatcher.scheduling.packing.best_fit import Ranking, fill
from trainmaster_dispatcher.scheduling.packing.bin_layout import MemberKind, lay_out
from trainmaster_dispatcher.scheduling.packing.eligibility import allows
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket, split
from trainmaster_dispatcher.scheduling.packing.numa import zones_of
from trainmaster_dispatcher.scheduling.state.flavors import Product, product_of
from trainmaster_dispatcher.scheduling.state.state import COMING, Cluster, LoadKey, SchedulerState

_MOST_KINDS = 10_000


@lru_cache(maxsize=4096)
def devices_among(names: tuple[str, ...]) -> frozenset[str]:
    """The resources among these that are devices."""
    return frozenset(name for name in names if "/" in name)


Suiting = dict[tuple[Terms, Product | None], tuple[str, ...]]
"""Node groups that suit members, by what these ask of nodes and the product that they are bound to."""


class Kinds(dict[tuple[int, str], MemberKind]):
    """Members by shape and role, for all empty rooms that have as much of everything."""

    __slots__ = ("__weakref__",)


class FreeCapacity:
    """All nodes of one cluster, by group. ``suiting`` is shared by all rooms of a cluster: which groups suit members."""

    def __init__(self, groups: Groups, suiting: Suiting | None = None) -> None:
        self.groups = groups
        self.suiting: Suiting = {} if suiting is None else suiting
        self._total: Resources | None = None
        self._rankings: dict[tuple[int, frozenset[str]], Ranking] | None = None
        """By the identity of the tuple of groups, and devices."""
        self.by_role: dict[RoleKey, Ranking] | None = None
        """The same by what roles ask for, as far as they have asked."""
        self._most: dict[int, Resources] = {}
        self.names: tuple[str, ...] = ()
        """Of an empty room: the resources that any of its nodes has, in the order of tuples of amounts."""
        self.pending: dict[LoadKey, int] = {}
        """Members of runs that wait for nodes that are to come, and that no node has room for until then."""
        self.kinds = Kinds()
        """Of an empty room: members that were on it or on one with as much of everything."""

    def rank(self, before: "FreeCapacity | None" = None) -> None:
        """Keep the nodes in order from now on, as a room that many are to be fitted into. ``before``: the same cluster, earlier."""
        self._rankings, self.by_role = {}, {}
        if before is not None and before._rankings and before.suiting is self.suiting:
            self._rankings, self.by_role = before._rankings, before.by_role
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
    def empty(cls, report: CapacityReport) -> "FreeCapacity":
        """The cluster without any run of ours."""
        room = cls(
            {
                group.name: (NodeBucket(group, group.free, group.count, zones_of(group)),)
                for group in report.groups
                if group.count
            }
        )
        names = {name for group in report.groups for name in group.free}
        room.names = tuple(sorted(names, key=lambda name: ("/" in name, name != "cpu", name != "memory", name)))
        return room

    @property
    def nodes(self) -> list[NodeBucket]:
        """All entries."""
        return [one for entries in self.groups.values() for one in entries]

    def copy(self) -> "FreeCapacity":
        """A room that may be changed without this one."""
        return FreeCapacity(dict(self.groups), self.suiting)

    def subtract(
        self, group: str, needs: Resources, count: int, max_per_node: int | None = None, numa: str = ""
    ) -> None:
        """Take away members of live runs, wherever in their group they are laid out; with no such group, anywhere.

        ``max_per_node`` and ``numa``: how many of them one node has at most, and what binds them to its zones, as far as that can be.

        A free amount below zero means that the cluster has shrunk under its runs; nothing new fits there until it is made up.
        """
        suiting = (group,) if group in self.groups else tuple(self.groups)
        missing, _ = fill(self.groups, needs, count, suiting, max_per_node=max_per_node, numa=numa)
        if missing and (max_per_node is not None or numa):
            missing, _ = fill(self.groups, needs, missing, suiting)
        if missing and suiting:
            self._take_in_pieces(needs, missing, suiting)
        self.forget()

    def forget(self) -> None:
        """What was worked out from the groups is to be worked out anew."""
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
                    split(self.groups, one, {name: 1}, [*parts, (1, rest)] if rest else parts)
                    missing -= whole * free + rest
            if missing:
                first = self.groups[suiting[0]][0]
                split(self.groups, first, {name: 1}, [(1, missing)])

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


def _fill_suiting(state: SchedulerState, cluster_id: int, key: LoadKey, count: int, room: FreeCapacity) -> int:
    """Lay members out on nodes that they may be on; how many found no place.

    Where quota depends on the product of a device, they are bound to the one of the pool that they were sent to.
    """
    role = next((role for role in state.shapes[key.shape_id].roles if role.name == key.role), None)
    if role is None:
        return 0
    names = [name for name, entries in room.groups.items() if entries and allows(role, entries[0].group)]
    if any("/" in name and state.lines.products_matter(name) for name in role.needs):
        product = state.product_at(cluster_id, key.group)
        names = [name for name in names if product_of(room.groups[name][0].group) == product]
    missing, _ = fill(room.groups, role.needs, count, names, max_per_node=role.max_per_node, numa=role.numa)
    return missing


def grown(
    room: FreeCapacity, state: SchedulerState, cluster_id: int, *, alone: bool = False, ever: bool = False
) -> FreeCapacity:
    """The nodes of a cluster as they are in ``room``, and those that could come; ``alone``: only these.

    Nodes that others wait for are taken off. Names of what could come begin with ``COMING``. ``ever``: if all nodes of pools came.
    """
    report = state.clusters[cluster_id].report
    pools = report.pools if report is not None else ()
    groups: Groups = {} if alone else dict(room.groups)
    for pool in pools:
        many = pool.most if ever else pool.count
        if many:
            coming = pool.model_copy(update={"name": COMING + pool.name})
            groups[coming.name] = (NodeBucket(coming, pool.free, many, zones_of(coming)),)
    for key, count in room.pending.items():
        if key.group in groups:
            most = _most_on_a_node(state, key, count)
            fill(groups, needs_of_load(state, key), count, (key.group,), max_per_node=most)
    return FreeCapacity(groups)


@dataclass(slots=True)
class _LaidOut:
    """The nodes of a group under the state's own load: valid for this mapping at this revision."""

    members: Mapping[LoadKey, int]
    revision: int
    entries: Sequence[NodeBucket]


class ClusterLayouts:
    """What clusters have free, empty and under load, each node group laid out once until the load in it changes.

    The values follow from the state alone. A fork of the state has layouts of its own that share what is laid out already.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._empty: dict[int, tuple[Cluster, FreeCapacity]] = {}
        """By cluster, valid for this object."""
        self._laid: dict[int, dict[str, _LaidOut]] = {}
        """By cluster and node group."""
        self._kinds: WeakValueDictionary[tuple[tuple[str, int], ...], Kinds] = WeakValueDictionary()
        """By the total capacity of an empty cluster: what is known of members on it."""

    def fork(self, state: SchedulerState) -> "ClusterLayouts":
        """Return layouts of a fork of the state; both use the same caches."""
        layouts = ClusterLayouts(state)
        layouts._empty, layouts._laid, layouts._kinds = self._empty, self._laid, self._kinds
        return layouts

    def forget(self, cluster_id: int) -> None:
        """Drop what is laid out of a cluster that has changed itself."""
        self._empty.pop(cluster_id, None)
        self._laid.pop(cluster_id, None)

    def empty(self, cluster_id: int) -> FreeCapacity:
        """Return the cluster without any of our runs; not to be changed."""
        cluster = self.state.clusters[cluster_id]
        known = self._empty.get(cluster_id)
        if known is not None and known[0] is cluster:
            return known[1]
        room = FreeCapacity.empty(cluster.report) if cluster.report is not None else FreeCapacity({})
        room.rank()
        room.kinds = self._kinds.setdefault(_of_everything(room), room.kinds)
        self._laid.pop(cluster_id, None)
        self._empty[cluster_id] = cluster, room
        return room

    def now(self, cluster_id: int) -> FreeCapacity:
        """Return the cluster under the load of the live runs there."""
        return self.under(cluster_id, self.state.load.get(cluster_id, {}))

    def under(self, cluster_id: int, load: Load) -> FreeCapacity:
        """Return the cluster under this load. Groups whose load is the state's own are not laid out again."""
        state = self.state
        report = state.clusters[cluster_id].report
        if report is None:
            return FreeCapacity({})
        empty = self.empty(cluster_id)
        groups: Groups = {name: self.group(cluster_id, name, load.get(name)) for name in empty.groups}
        room = FreeCapacity(groups, empty.suiting)
        strays = {key: count for name, members in load.items() if name not in groups for key, count in members.items()}
        for _, key, _ in _ordered(state, strays, empty):
            if key.group.startswith(COMING):
                # They take whatever node is free that may hold them, though others were thought of; the rest waits for new ones.
                missing = _fill_suiting(state, cluster_id, key, strays[key], room)
                if missing:
                    room.pending[key] = missing
                continue
            most, numa = _most_on_a_node(state, key, strays[key]), _numa_of_load(state, key)
            room.subtract(key.group, needs_of_load(state, key), strays[key], most, numa)
        return room

    def group(self, cluster_id: int, name: str, members: Mapping[LoadKey, int] | None) -> Sequence[NodeBucket]:
        """Return the nodes of one group under these members."""
        empty, state = self.empty(cluster_id), self.state
        entries = empty.groups[name]
        if members is None or not members:
            return entries
        own: Load = state.load.get(cluster_id, {})
        if own.get(name) is not members:
            return _under(state, name, entries, members, empty)
        laid = self._laid.setdefault(cluster_id, {})
        revision = state.load_revisions[cluster_id][name]
        known = laid.get(name)
        if known is None or known.members is not members or known.revision != revision:
            known = laid[name] = _LaidOut(members, revision, _under(state, name, entries, members, empty))
        return known.entries


def _of_everything(room: FreeCapacity) -> tuple[tuple[str, int], ...]:
    total = room.total()
    return tuple([(name, total.get(name, 0)) for name in room.names])


def _under(
    state: SchedulerState, name: str, entries: Sequence[NodeBucket], members: Mapping[LoadKey, int], empty: FreeCapacity
) -> Sequence[NodeBucket]:
    """The entries of a group under the members that are in it."""
    ordered = _ordered(state, members, empty)
    laid = lay_out(entries, [(kind.need, kind.devices, members[key]) for _, key, kind in ordered], empty.names)
    if laid is not None:
        return laid
    room = FreeCapacity({name: entries})
    for _, key, _ in ordered:
        most, numa = _most_on_a_node(state, key, members[key]), _numa_of_load(state, key)
        room.subtract(name, needs_of_load(state, key), members[key], most, numa)
    return room.groups[name]


def _ordered(
    state: SchedulerState, members: Mapping[LoadKey, int], empty: FreeCapacity
) -> list[tuple[float, LoadKey, MemberKind]]:
    """In an order of its own, so that a layout does not depend on the order in which runs came: large members first."""
    kinds = empty.kinds
    out = []
    for key in members:
        kind = kinds.get(key[1:])
        if kind is None:
            if len(kinds) > _MOST_KINDS:
                kinds.clear()
            kind = _kind(needs_of_load(state, key), empty)
            if _most_on_a_node(state, key, 1) is not None:
                kind = kind._replace(need=None)
            kinds[key.shape_id, key.role] = kind
        out.append((kind.rank, key, kind))
    out.sort()
    return out


def _kind(needs: Resources, empty: FreeCapacity) -> MemberKind:
    names, total = empty.names, empty.total()
    known = all(name in total for name, amount in needs.items() if amount)
    need = tuple([needs.get(name, 0) for name in names]) if known else None
    devices = tuple([place for place, name in enumerate(names) if "/" in name and name in needs])
    return MemberKind(-dominant(needs, total), need, devices)


def _most_on_a_node(state: SchedulerState, key: LoadKey, count: int) -> int | None:
    """How many of so many equivalent members one node has at most, all jobs that they are of together."""
    for role in state.shapes[key.shape_id].roles:
        if role.name == key.role and role.max_per_node is not None:
            return role.max_per_node * -(-count // role.replicas)
    return None


def _numa_of_load(state: SchedulerState, key: LoadKey) -> str:
    """What binds these members to zones of their nodes."""
    return next((role.numa for role in state.shapes[key.shape_id].roles if role.name == key.role), "")


def needs_of_load(state: SchedulerState, key: LoadKey) -> Resources:
    """What each of these members needs."""
    for role in state.shapes[key.shape_id].roles:
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
