"""The free capacity of a cluster: free amounts of its nodes after the dispatcher's own live runs are subtracted.

A report contains what nodes have free besides our members; the dispatcher subtracts its own live runs itself, so free
capacity is never promised twice, however old the report is. The node group of each member of a run is known; inside a
group, members are packed best-fit, as for the fit itself. Nodes of a group with the same free amounts are one entry
with a count, so a cluster of five hundred nodes costs hardly more than one of five. What is left of a group depends
only on the runs in it, and is computed again only when they change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from weakref import WeakValueDictionary

from trainmaster.cluster_model.best_fit import dominant
from trainmaster.cluster_model.shared_devices import counted_resource
from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.device_parts import device_of, is_device, is_part, memory_resource, part_resource
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleKey, RoleShape, Terms
from trainmaster_dispatcher.scheduling.packing.best_fit import Ranking, fill
from trainmaster_dispatcher.scheduling.packing.bin_layout import MemberKind, in_rounds, lay_out
from trainmaster_dispatcher.scheduling.packing.eligibility import LabelIndex, allows
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket, drain_parts, split
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.scheduling.state.flavors import Product, product_of
from trainmaster_dispatcher.scheduling.state.live_runs import LoadKey
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_MOST_KINDS = 10_000


@lru_cache(maxsize=4096)
def devices_among(names: tuple[str, ...]) -> frozenset[str]:
    """Return the resources among ``names`` that are devices."""
    return frozenset(name for name in names if "/" in name)


class EligibleGroups(dict[tuple[Terms, Product | None], tuple[str, ...]]):
    """Eligible node groups, by what members ask of nodes and the product that they are bound to; for all objects of a cluster."""

    __slots__ = ("_groups", "_index", "spares")

    def __init__(self, groups: Groups, spares: Mapping[str, int] | None = None) -> None:
        """``spares``: see ``ClusterLayouts.spares``."""
        self._groups = groups
        self.spares = spares
        self._index: LabelIndex | None = None

    @property
    def index(self) -> LabelIndex:
        """The index of the cluster's groups, built when the first role is looked up."""
        if self._index is None:
            self._index = LabelIndex({name: entries[0].group for name, entries in self._groups.items()})
        return self._index


class Kinds(dict[tuple[int, str], MemberKind]):
    """Member kinds by shape and role, shared by all empty clusters with the same total capacity."""

    __slots__ = ("__weakref__",)


class FreeCapacity:
    """The free amounts of all nodes of one cluster, by group. ``eligible`` is shared by all objects of a cluster: the
    groups by members' terms."""

    def __init__(self, groups: Groups, eligible: EligibleGroups | None = None) -> None:
        self.groups = groups
        self.eligible = EligibleGroups(groups) if eligible is None else eligible
        self._total: Resources | None = None
        self._rankings: dict[tuple[int, frozenset[str]], Ranking] | None = None
        """Keys: the identity of the tuple of groups, and the devices."""
        self.by_role: dict[RoleKey, Ranking] | None = None
        """The same rankings by role key, filled when a role is looked up."""
        self._most: dict[int, Resources] = {}
        self.names: tuple[str, ...] = ()
        """Of an empty cluster: the resources that any of its nodes has, in the order of the tuples of amounts."""
        self.pending: dict[LoadKey, int] = {}
        """Members of runs that wait for nodes of a pool, and that no existing node has enough free for."""
        self.kinds = Kinds()
        """Of an empty cluster: the kinds of members seen on it or on one with the same total capacity."""

    def rank(self, before: "FreeCapacity | None" = None) -> None:
        """Keep the nodes sorted from now on, for many fits. ``before``: an earlier object of the same cluster, whose
        rankings are reused."""
        self._rankings, self.by_role = {}, {}
        if before is not None and before._rankings and before.eligible is self.eligible:
            self._rankings, self.by_role = before._rankings, before.by_role
            for ranking in self._rankings.values():
                ranking.follow(self.groups)

    def ranking(self, eligible: tuple[str, ...], needs: Resources) -> Ranking | None:
        """Return the sorted nodes of these groups for members with these needs; None if the nodes are not kept sorted.

        ``eligible`` must be one of the tuples in ``self.eligible``, which live as long as this object.
        """
        if self._rankings is None:
            return None
        devices = devices_among(tuple(needs))
        ranking = self._rankings.get((id(eligible), devices))
        if ranking is None:
            ranking = self._rankings[id(eligible), devices] = Ranking(eligible, devices, self.eligible.spares)
            ranking.follow(self.groups)
        return ranking

    def most(self, eligible: tuple[str, ...]) -> Resources:
        """Return the largest free amount on a single node of these groups of each resource that any of them offers."""
        most = self._most.get(id(eligible))
        if most is None:
            most = self._most[id(eligible)] = {}
            for name in eligible:
                for one in self.groups[name]:
                    for resource, amount in one.free.items():
                        if resource not in most or amount > most[resource]:
                            most[resource] = amount
        return most

    @classmethod
    def empty(cls, report: CapacityReport) -> "FreeCapacity":
        """Return the free capacity of the cluster without any run of ours."""
        free_capacity = cls(
            {group.name: (NodeBucket.of(group, group.count),) for group in report.groups if group.count}
        )
        names = {name for group in report.groups for name in group.free}
        free_capacity.names = tuple(
            sorted(names, key=lambda name: ("/" in name, name != "cpu", name != "memory", name))
        )
        return free_capacity

    @property
    def nodes(self) -> list[NodeBucket]:
        """All entries."""
        return [one for entries in self.groups.values() for one in entries]

    def copy(self) -> "FreeCapacity":
        """Return a copy that can be changed independently."""
        return FreeCapacity(dict(self.groups), self.eligible)

    def subtract(
        self,
        group: str,
        needs: Resources,
        count: int,
        max_per_node: int | None = None,
        numa: str = "",
        *,
        exclusive: bool = False,
    ) -> int:
        """Subtract members of live runs, wherever in their group they are packed; if the group does not exist, anywhere.

        Return the number of members that no node had enough free for.

        ``max_per_node``, ``numa`` (the largest number on one node, and the policy that binds to zones) and ``exclusive``
        (each takes a whole node) are followed as far as possible.

        A free amount below zero means that the cluster has shrunk below what its runs use; nothing new fits there until
        that is made up.
        """
        eligible = (group,) if group in self.groups else tuple(self.groups)
        missing, _ = fill(
            self.groups, needs, count, eligible, max_per_node=max_per_node, numa=numa, exclusive=exclusive
        )
        if missing and (max_per_node is not None or numa or exclusive):
            missing, _ = fill(self.groups, needs, missing, eligible)
        if missing and eligible:
            self._take_in_pieces(needs, missing, eligible)
        self.forget()
        return missing

    def forget(self) -> None:
        """Drop all cached values that were computed from the groups."""
        self._total = None
        self._most.clear()
        for ranking in (self._rankings or {}).values():
            ranking.follow(self.groups)

    def _take_in_pieces(self, needs: Resources, count: int, eligible: tuple[str, ...]) -> None:
        """Subtract members that this packing has no node for: they do run on their cluster, and what they use is not free."""
        drain_parts(self.groups, eligible, needs, count)
        for name, amount in needs.items():
            if is_part(name):
                continue
            missing = amount * count
            for one in [one for group in eligible for one in self.groups[group]]:
                free = max(one.free.get(name, 0), 0)
                if free and missing:
                    whole = min(one.count, missing // free)
                    rest = missing - whole * free if whole < one.count else 0
                    parts = [(whole, free)] if whole else []
                    split(self.groups, one, {name: 1}, [*parts, (1, rest)] if rest else parts)
                    missing -= whole * free + rest
            if missing:
                first = self.groups[eligible[0]][0]
                split(self.groups, first, {name: 1}, [(1, missing)])

    def put(self, changed: Groups, taken: Resources) -> None:
        """Replace groups by what a packing leaves of them; ``taken``: what the packing uses in all."""
        self.groups.update(changed)
        self._most.clear()
        if any(entries and entries[0].group.sharing is not None for entries in changed.values()):
            self._total = None
        if self._total is not None:
            self._total = self._total | {name: self._total.get(name, 0) - amount for name, amount in taken.items()}
        if self._rankings:
            for ranking in self._rankings.values():
                for name, entries in changed.items():
                    ranking.put(name, entries)

    def total(self) -> Resources:
        """Return the sum of the free amounts of all nodes."""
        if self._total is None:
            self._total = {}
            for entries in self.groups.values():
                for one in entries:
                    for name, amount in one.sums().items():
                        self._total[name] = self._total.get(name, 0) + amount * one.count
        return self._total

    @cached_property
    def shared(self) -> frozenset[str]:
        """The resources of devices that members share: their sums change by more, or less, than what members take or free."""
        return frozenset(
            name
            for entries in self.groups.values()
            for one in entries[:1]
            if (sharing := one.group.sharing) is not None
            for name in (
                counted_resource(sharing),
                part_resource(sharing.device),
                memory_resource(sharing.device),
            )
        )


Load = Mapping[str, Mapping[LoadKey, int]]
"""Members by their node group (empty if it is unknown) and by what they need."""


def _fill_eligible(
    state: SchedulerState, cluster_id: int, key: LoadKey, count: int, free_capacity: FreeCapacity
) -> int:
    """Pack members on nodes that they may be on; return the number of members without a node.

    Where quota depends on the product of a device, the members are bound to the product of the pool that they were sent
    to.
    """
    role = next((role for role in state.shapes[key.shape_id].roles if role.name == key.role), None)
    if role is None:
        return 0
    names = [name for name, entries in free_capacity.groups.items() if entries and allows(role, entries[0].group)]
    if any(is_device(name) and state.flavors.products_matter(device_of(name)) for name in role.needs):
        product = state.product_at(cluster_id, key.group)
        names = [name for name in names if product_of(free_capacity.groups[name][0].group) == product]
    missing, _ = fill(
        free_capacity.groups,
        role.needs,
        count,
        names,
        max_per_node=role.max_per_node,
        numa=role.numa,
        exclusive=role.exclusive,
    )
    return missing


def grown(
    free_capacity: FreeCapacity, state: SchedulerState, cluster_id: int, *, alone: bool = False, ever: bool = False
) -> FreeCapacity:
    """Return the nodes of ``free_capacity`` together with those that the pools of the cluster could add; ``alone``:
    only the latter.

    Nodes that other runs wait for are subtracted. Names of groups that could be added begin with ``COMING``. ``ever``:
    as if all nodes of the pools were added.
    """
    report = state.clusters[cluster_id].report
    pools = report.pools if report is not None else ()
    groups: Groups = {} if alone else dict(free_capacity.groups)
    for pool in pools:
        many = pool.most if ever else pool.count
        if many:
            coming = pool.model_copy(update={"name": COMING + pool.name})
            groups[coming.name] = (NodeBucket.of(coming, many),)
    for key, count in free_capacity.pending.items():
        if key.group in groups:
            most = _most_on_a_node(state, key, count)
            whole = is_exclusive(state, key)
            fill(groups, needs_of_load(state, key), count, (key.group,), max_per_node=most, exclusive=whole)
    return FreeCapacity(groups, EligibleGroups(groups, free_capacity.eligible.spares))


@dataclass(slots=True)
class _LaidOut:
    """The packed nodes of a group under the state's own load: valid for this mapping at this revision."""

    members: Mapping[LoadKey, int]
    revision: int
    entries: Sequence[NodeBucket]
    overflow: int


class ClusterLayouts:
    """The free capacity of clusters, empty and under load; each node group is packed once until its load changes.

    The values follow from the state alone. A fork of the state has a ``ClusterLayouts`` of its own that shares the
    cached values.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._empty: dict[int, tuple[Cluster, FreeCapacity]] = {}
        """By cluster, valid for this object."""
        self._laid: dict[int, dict[str, _LaidOut]] = {}
        """By cluster and node group."""
        self.spares: dict[int, Mapping[str, int]] = {}
        """By cluster and node group with devices: how freely members may take them, larger for devices that fewer others ask for."""
        self._kinds: WeakValueDictionary[tuple[tuple[str, int], ...], Kinds] = WeakValueDictionary()
        """By the total capacity of an empty cluster: the member kinds known for it."""

    def fork(self, state: SchedulerState) -> "ClusterLayouts":
        """Return layouts of a fork of the state; both use the same caches, as far as these do not depend on ``spares``."""
        layouts = ClusterLayouts(state)
        layouts._empty, layouts._laid, layouts._kinds = dict(self._empty), self._laid, self._kinds
        layouts.spares = dict(self.spares)
        return layouts

    def forget(self, cluster_id: int) -> None:
        """Drop the cached values of a cluster whose report has changed."""
        self._empty.pop(cluster_id, None)
        self._laid.pop(cluster_id, None)

    def put_spares(self, cluster_id: int, spares: Mapping[str, int] | None) -> None:
        """Replace the values of the groups of a cluster with devices."""
        if spares is None:
            self.spares.pop(cluster_id, None)
        else:
            self.spares[cluster_id] = spares
        self._empty.pop(cluster_id, None)

    def empty(self, cluster_id: int) -> FreeCapacity:
        """Return the free capacity of the cluster without any of our runs; it must not be changed."""
        cluster = self.state.clusters[cluster_id]
        known = self._empty.get(cluster_id)
        if known is not None and known[0] is cluster:
            return known[1]
        free_capacity = FreeCapacity.empty(cluster.report) if cluster.report is not None else FreeCapacity({})
        free_capacity.eligible.spares = self.spares.get(cluster_id)
        free_capacity.rank()
        free_capacity.kinds = self._kinds.setdefault(_of_everything(free_capacity), free_capacity.kinds)
        self._laid.pop(cluster_id, None)
        self._empty[cluster_id] = cluster, free_capacity
        return free_capacity

    def now(self, cluster_id: int) -> FreeCapacity:
        """Return the free capacity of the cluster under the load of its live runs."""
        return self.under(cluster_id, self.state.load.get(cluster_id, {}))

    def under(self, cluster_id: int, load: Load) -> FreeCapacity:
        """Return the free capacity of the cluster under ``load``. Groups whose load is the state's own are not packed again."""
        state = self.state
        report = state.clusters[cluster_id].report
        if report is None:
            return FreeCapacity({})
        empty = self.empty(cluster_id)
        groups: Groups = {name: self.group(cluster_id, name, load.get(name)) for name in empty.groups}
        free_capacity = FreeCapacity(groups, empty.eligible)
        strays = {key: count for name, members in load.items() if name not in groups for key, count in members.items()}
        for _, key, _ in _ordered(state, strays, empty):
            if key.group.startswith(COMING):
                # They take any free node that may hold them, even if other nodes were intended; the rest waits for new
                # nodes.
                missing = _fill_eligible(state, cluster_id, key, strays[key], free_capacity)
                if missing:
                    free_capacity.pending[key] = missing
                continue
            most, numa = _most_on_a_node(state, key, strays[key]), numa_of_load(state, key)
            whole = is_exclusive(state, key)
            free_capacity.subtract(key.group, needs_of_load(state, key), strays[key], most, numa, exclusive=whole)
        return free_capacity

    def group(self, cluster_id: int, name: str, members: Mapping[LoadKey, int] | None) -> Sequence[NodeBucket]:
        """Return the nodes of one group under these members."""
        empty, state = self.empty(cluster_id), self.state
        entries = empty.groups[name]
        if members is None or not members:
            return entries
        own: Load = state.load.get(cluster_id, {})
        if own.get(name) is not members:
            return under_members(state, name, entries, members, empty)
        return self._own_group(cluster_id, name, members).entries

    def _own_group(self, cluster_id: int, name: str, members: Mapping[LoadKey, int]) -> _LaidOut:
        """Return the nodes of one group under the state's own load."""
        laid = self._laid.setdefault(cluster_id, {})
        revision = self.state.load_revisions[cluster_id][name]
        known = laid.get(name)
        if known is None or known.members is not members or known.revision != revision:
            empty = self.empty(cluster_id)
            known = laid[name] = _LaidOut(
                members, revision, *_packed(self.state, name, empty.groups[name], members, empty)
            )
        return known

    def overflow(self, cluster_id: int, name: str, without: Mapping[LoadKey, int] | None = None) -> int:
        """Return the number of the state's own members of a group that its nodes, packed best-fit, have not enough free for.

        ``without``: members that are ignored.
        """
        members = self.state.load.get(cluster_id, {}).get(name)
        empty = self.empty(cluster_id)
        if not members or name not in empty.groups:
            return 0
        if not without:
            return self._own_group(cluster_id, name, members).overflow
        left = {key: count - without.get(key, 0) for key, count in members.items() if count > without.get(key, 0)}
        return _packed(self.state, name, empty.groups[name], left, empty)[1]


def _of_everything(free_capacity: FreeCapacity) -> tuple[tuple[str, int], ...]:
    total = free_capacity.total()
    return tuple([(name, total.get(name, 0)) for name in free_capacity.names])


def under_members(
    state: SchedulerState, name: str, entries: Sequence[NodeBucket], members: Mapping[LoadKey, int], empty: FreeCapacity
) -> Sequence[NodeBucket]:
    """Return the entries of a group after its members are packed."""
    return _packed(state, name, entries, members, empty)[0]


def _packed(
    state: SchedulerState, name: str, entries: Sequence[NodeBucket], members: Mapping[LoadKey, int], empty: FreeCapacity
) -> tuple[Sequence[NodeBucket], int]:
    """Return the entries of a group after its members are packed, and the number of members that no node has enough free for."""
    ordered = _ordered(state, members, empty)
    if any(kind.is_exclusive for _, _, kind in ordered):
        ordered = _exclusive_first(ordered, entries[0].group.free, empty.names)
    plain = [(kind.need, kind.devices, members[key]) for _, key, kind in ordered]
    if len(ordered) > 1 and any("/" in name for name in entries[0].group.free):
        laid = lay_out(entries, in_rounds((kind, members[key]) for _, key, kind in ordered), empty.names)
        if laid is not None:
            return laid, 0
    laid = lay_out(entries, plain, empty.names)
    if laid is not None:
        return laid, 0
    free_capacity, overflow = FreeCapacity({name: entries}), 0
    for _, key, _ in ordered:
        most, numa = _most_on_a_node(state, key, members[key]), numa_of_load(state, key)
        taken = taken_by_load(state, key, {name: entries})
        whole = is_exclusive(state, key)
        overflow += free_capacity.subtract(name, taken, members[key], most, numa, exclusive=whole)
    return free_capacity.groups[name], overflow


def _ordered(
    state: SchedulerState, members: Mapping[LoadKey, int], empty: FreeCapacity
) -> list[tuple[tuple[int, float], LoadKey, MemberKind]]:
    """Return the members sorted large ones first, so that a packing does not depend on the order in which runs came."""
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
            if is_exclusive(state, key):
                kind = kind._replace(is_exclusive=True)
            kinds[key.shape_id, key.role] = kind
        out.append((kind.rank, key, kind))
    out.sort()
    return out


_BEFORE_OTHERS = 1 << 40
"""More devices than a member requests."""


def _exclusive_first(
    ordered: Sequence[tuple[tuple[int, float], LoadKey, MemberKind]], free: Resources, names: Sequence[str]
) -> list[tuple[tuple[int, float], LoadKey, MemberKind]]:
    """Return the members with the exclusive ones first, each with a whole node's amounts as its need: they run on nodes without
    others. ``free``: what an empty node offers.

    Any other order might leave no node without members of small jobs.
    """
    whole = tuple([free.get(name, 0) for name in names])
    devices = tuple([place for place, name in enumerate(names) if "/" in name])
    first = [
        (rank, key, kind._replace(rank=(-_BEFORE_OTHERS, 0.0), need=whole, devices=devices))
        for rank, key, kind in ordered
        if kind.is_exclusive
    ]
    return [*first, *(one for one in ordered if not one[2].is_exclusive)]


def _kind(needs: Resources, empty: FreeCapacity) -> MemberKind:
    names, total = empty.names, empty.total()
    known = all(name in total for name, amount in needs.items() if amount)
    need = tuple([needs.get(name, 0) for name in names]) if known else None
    devices = tuple([place for place, name in enumerate(names) if "/" in name and name in needs])
    many = sum(amount for name, amount in needs.items() if "/" in name)
    return MemberKind((-many, -dominant(needs, total)), need, devices)


def _most_on_a_node(state: SchedulerState, key: LoadKey, count: int) -> int | None:
    """Return the largest number of these ``count`` equivalent members on one node, over all the jobs they belong to."""
    for role in state.shapes[key.shape_id].roles:
        if role.name == key.role and role.max_per_node is not None:
            return role.max_per_node * -(-count // role.replicas)
    return None


def is_exclusive(state: SchedulerState, key: LoadKey) -> bool:
    """Return whether each of these members has a node for itself."""
    return any(role.exclusive for role in state.shapes[key.shape_id].roles if role.name == key.role)


def taken_by_load(state: SchedulerState, key: LoadKey, groups: Groups) -> Resources:
    """Return what each of these members takes of its node: of an exclusive one, all that the node offers when it is empty."""
    if is_exclusive(state, key) and groups.get(key.group):
        return groups[key.group][0].group.free
    return needs_of_load(state, key)


def numa_of_load(state: SchedulerState, key: LoadKey) -> str:
    """Return the NUMA policy of these members, or an empty string."""
    return next((role.numa for role in state.shapes[key.shape_id].roles if role.name == key.role), "")


def needs_of_load(state: SchedulerState, key: LoadKey) -> Resources:
    """Return what each of these members needs."""
    for role in state.shapes[key.shape_id].roles:
        if role.name == key.role:
            return role.needs
    return {}


def by_size(roles: Iterable[RoleShape], total: Resources) -> list[RoleShape]:
    """Return the roles with the largest member first, the order in which a packing is tried."""
    return sorted(roles, key=lambda role: (-dominant(role.needs, total), role.name))


def add_members(load: dict[str, dict[LoadKey, int]], members: Iterable[tuple[LoadKey, int]], sign: int = 1) -> None:
    """Add members to a load, or with ``sign`` -1 remove them; groups that change get a new mapping."""
    for key, count in members:
        group = dict(load.get(key.group, {}))
        group[key] = group.get(key, 0) + sign * count
        if not group[key]:
            del group[key]
        load[key.group] = group
