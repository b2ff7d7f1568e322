"""A cluster from which runs are removed hypothetically, to see whether a gang fits there once they have ended."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.protocol.quantities import Resources
from trainmaster_dispatcher.domain.shapes import RoleKey, RoleShape
from trainmaster_dispatcher.scheduling.packing.free_capacity import (
    ClusterLayouts,
    FreeCapacity,
    add_members,
    taken_by_load,
)
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, eligible_groups, fit
from trainmaster_dispatcher.scheduling.packing.node_buckets import Groups, NodeBucket
from trainmaster_dispatcher.scheduling.packing.node_layout import NodeLayout
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Product
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, LoadKey
from trainmaster_dispatcher.scheduling.state.state import SchedulerState


class Victim(NamedTuple):
    """A run to be ended, and by which of the two rules; or members of an elastic run that are to leave."""

    run: LiveRun
    by_class: bool
    charge: Amounts
    members: tuple[tuple[LoadKey, int], ...]
    keeps: dict[str, int] | None = None
    """Of an elastic run that only gives members back: the number of members of each role that stay."""
    moves_to: int | None = None
    """Of a run that is moved: the cluster where it has room at once."""

    @property
    def key(self) -> tuple[int, bool]:
        """The identity of the victim: one run may both give members back and end."""
        return self.run.job_id, self.keeps is None


_UNKNOWN: Collection[str] = ()
"""The groups of a cluster that has members whose group is unknown."""


class ClearedCluster:
    """A cluster after everything that is stopping has ended: its load, and what is left of its groups."""

    def __init__(self, layouts: ClusterLayouts, cluster_id: int, load: dict[str, dict[LoadKey, int]]) -> None:
        self.layouts = layouts
        self.cluster_id = cluster_id
        self.load = load
        self._packed_groups: dict[
            str, tuple[Mapping[LoadKey, int] | None, Sequence[NodeBucket], Resources, Resources]
        ] = {}
        """By group: the load under which it was packed, its nodes, their free amounts in all, and the largest on one node."""
        self._totals: tuple[Resources, Resources] | None = None
        self._takers: dict[tuple[RoleKey, Product | None], tuple[str, ...]] = {}
        """By role and product: the groups with a node that takes a member; valid until the load moves."""

    def move(self, members: Iterable[tuple[LoadKey, int]], sign: int) -> None:
        add_members(self.load, members, sign)
        self._totals = None
        self._takers.clear()

    def takers(self, role: RoleShape, product: Product | None, eligible: Iterable[str]) -> tuple[str, ...]:
        """Return those of the groups eligible for a role that have a node with enough free for one member; without strays."""
        known = self._takers.get((role.key, product))
        if known is None:
            known = self._takers[role.key, product] = tuple(
                name for name in eligible if any(one.takes_one(role) for one in self.group(name)[0])
            )
        return known

    @property
    def has_strays(self) -> bool:
        """Return whether the cluster has members whose group is unknown."""
        known = self.layouts.empty(self.cluster_id).groups
        return any(members and name not in known for name, members in self.load.items())

    def group(self, name: str) -> tuple[Sequence[NodeBucket], Resources, Resources]:
        """Return the nodes of a group, the sum of their free amounts, and the largest free amounts on one of them.

        For a cluster without strays.
        """
        members = self.load.get(name)
        known = self._packed_groups.get(name)
        if known is None or known[0] is not members:
            entries = self.layouts.group(self.cluster_id, name, members)
            free: Resources = {}
            most: Resources = {}
            for one in entries:
                for resource, amount in one.sums().items():
                    free[resource] = free.get(resource, 0) + amount * one.count
                    most[resource] = max(most.get(resource, 0), one.free[resource])
            known = self._packed_groups[name] = members, entries, free, most
        return known[1:]

    def total(self) -> Resources:
        """Return the sum of the free amounts of all nodes."""
        if self._totals is None:
            self._totals = self._add_up()
        return self._totals[0]

    def most(self) -> Resources:
        """Return the largest free amounts on one node; for a cluster without strays."""
        if self._totals is None:
            self._totals = self._add_up()
        return self._totals[1]

    def _add_up(self) -> tuple[Resources, Resources]:
        total: Resources = {}
        most: Resources = {}
        if self.has_strays:
            return self.layouts.under(self.cluster_id, self.load).total(), most
        for name in self.layouts.empty(self.cluster_id).groups:
            _, free, on_one = self.group(name)
            for resource, amount in free.items():
                total[resource] = total.get(resource, 0) + amount
                most[resource] = max(most.get(resource, 0), on_one[resource])
        return total, most


@dataclass(slots=True)
class WhatIf:
    """A cluster from which runs are removed hypothetically one by one, until a gang fits there within quota."""

    cleared: ClearedCluster
    quotas: QuotaTree
    key: ClassKey
    size: Size
    need: Amounts
    """On every flavor, as far as known before the gang is placed: by product where the quota is by product, or the
    cluster has only one."""
    product: Product | None = None
    """The only product of a device that the gang may use."""
    nodes: NodeLayout | None = None
    """The nodes one by one, where they are known and what counts is in which pieces they are free; of a cluster without strays."""
    load: dict[str, dict[LoadKey, int]] = field(init=False)
    _free: Resources = field(init=False)
    _freed: dict[str, Resources] = field(default_factory=dict)
    """By group: the amounts freed in it."""
    _packed_groups: dict[str, tuple[Mapping[LoadKey, int] | None, Sequence[NodeBucket]]] = field(default_factory=dict)
    _groups: Collection[str] = field(init=False)
    _role: RoleShape | None = None
    """The role of the gang's only member; None for a gang of several."""
    _eligible: tuple[str, ...] = ()
    """The groups that are eligible for it."""
    _shared: frozenset[str] = frozenset()
    """Resources of which sums say too little, see ``FreeCapacity.shared``."""
    _was_over: bool = False
    """Whether quota was an obstacle at the beginning: then any run that ends may be the one that helps."""

    def __post_init__(self) -> None:
        self.load = dict(self.cleared.load)
        self._free = dict(self.cleared.total())
        self._shared = self.cleared.layouts.empty(self.cleared.cluster_id).shared
        self._groups = _UNKNOWN
        if not self.cleared.has_strays:
            self._groups = self.cleared.layouts.empty(self.cleared.cluster_id).groups
            if self.size.total == 1:
                roles = self.state.shapes[self.key.shape_id].roles
                self._role = next(role for role in roles if self.size.members.get(role.name))
                empty = self.cleared.layouts.empty(self.cleared.cluster_id)
                self._eligible = eligible_groups(self._role, empty, self.product)
        self._was_over = self.quotas.obstacle(self.key.queue_id, self.need) is not None

    @property
    def state(self) -> SchedulerState:
        return self.cleared.layouts.state

    def is_near(self) -> bool:
        """Return whether enough is free in all, ignoring nodes, except that the only member of a gang must fit on one node."""
        if self._role is None:
            return self.has_total()
        total, most = self.cleared.total(), self.cleared.most()
        return all(
            most.get(name, 0) + self._free.get(name, 0) - total.get(name, 0) >= amount or name in self._shared
            for name, amount in self._role.needs.items()
        )

    def has_total(self) -> bool:
        """Return whether the sum of the free amounts of all nodes is enough."""
        return all(
            self._free.get(name, 0) >= amount or name in self._shared for name, amount in self.size.needs.items()
        )

    def could_ever_fit(self) -> bool:
        """Return whether an eligible node has enough for the only member of a gang once all else has ended; of others, True."""
        if self._role is None:
            return True
        most = self.cleared.layouts.empty(self.cleared.cluster_id).most(self._eligible)
        return all(most.get(name, 0) >= amount for name, amount in self._role.needs.items())

    def fits(self, queue: Queue) -> Fitted | None:
        """Return how the gang fits, within quota; None if it does not."""
        if not self.has_total() or self.quotas.obstacle(queue.id, self.need) is not None or not self._has_node():
            return None
        outcome = fit(self.state.shapes[self.key.shape_id], self.size.members, self._free_capacity(), self.product)
        return outcome if isinstance(outcome, Fitted) else None

    def may_have_helped(self, victim: Victim) -> bool:
        """Return whether to try again after this victim. For a gang of one, only the groups of the victim have changed."""
        if self.nodes is not None and not self._was_over:
            return self.nodes.helps(victim.run.job_id, self.state.shapes[self.key.shape_id].roles)
        if self._role is None or self._was_over:
            return True
        return any(key.group in self._eligible and self._has(key.group) for key, _ in victim.members)

    def _has_node(self) -> bool:
        """Return whether any node has enough free for the gang's only member, without which no packing has; of other gangs, True.

        Groups from which nothing was removed are looked up, so that each victim costs its own groups alone.
        """
        if self._role is None:
            return True
        load, before, role = self.load, self.cleared.load, self._role
        takers = self.cleared.takers(self._role, self.product, self._eligible)
        if any(load.get(name) is before.get(name) for name in takers):
            return True
        return any(
            one.takes_one(role) for name in self._freed if name in self._eligible for one in self._entries_of(name)
        )

    def _has(self, name: str) -> bool:
        """Return whether one node of a group may have enough for the member: its largest free amounts plus all that was freed."""
        most, freed = self.cleared.group(name)[2], self._freed.get(name, {})
        return all(
            most.get(resource, 0) + freed.get(resource, 0) >= amount or resource in self._shared
            for resource, amount in self.size.needs.items()
        )

    def _free_capacity(self) -> FreeCapacity:
        if self._groups is _UNKNOWN:
            return self.cleared.layouts.under(self.cleared.cluster_id, self.load)
        groups: Groups = {}
        for name in self._groups:
            groups[name] = self._entries_of(name)
        return FreeCapacity(groups, self.cleared.layouts.empty(self.cleared.cluster_id).eligible)

    def _entries_of(self, name: str) -> Sequence[NodeBucket]:
        """Return the nodes of a group with what is left of its load; each is packed again only when that has changed."""
        if self.nodes is not None:
            return self.nodes.entries(name)
        members = self.load.get(name)
        if members is self.cleared.load.get(name):
            return self.cleared.group(name)[0]
        known = self._packed_groups.get(name)
        if known is None or known[0] is not members:
            entries = self.cleared.layouts.group(self.cleared.cluster_id, name, members)
            known = self._packed_groups[name] = members, entries
        return known[1]

    def free_capacity(self) -> FreeCapacity:
        """Return what is free once the runs that were removed have ended; it may be changed."""
        return self._free_capacity()

    def let_go(self, victim: Victim) -> None:
        self._move(victim, -1)

    def put_back(self, victim: Victim) -> None:
        self._move(victim, 1)

    def _move(self, victim: Victim, sign: int) -> None:
        self.quotas.add(victim.run.queue_id, victim.charge, running=int(victim.keeps is None), sign=sign)
        add_members(self.load, victim.members, sign)
        if self.nodes is not None and sign < 0:
            self.nodes.remove(victim.run.job_id)
        elif self.nodes is not None:
            self.nodes.put_back(victim.run.job_id)
        groups = self.cleared.layouts.empty(self.cleared.cluster_id).groups
        for key, count in victim.members:
            freed = self._freed.setdefault(key.group, {})
            for name, amount in taken_by_load(self.state, key, groups).items():
                self._free[name] = self._free.get(name, 0) - sign * amount * count
                freed[name] = freed.get(name, 0) - sign * amount * count

    def charge_of(self, fitted: Fitted) -> Amounts:
        members = ((group, role, count) for group, roles in fitted.placement.items() for role, count in roles.items())
        return self.state.flavors.charge(self.state.places_at(self.cleared.cluster_id, self.key.shape_id, members))
