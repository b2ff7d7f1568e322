"""Ledger of a simulated cluster's nodes and the runs on them: a gang is placed completely or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from trainmaster.cluster_model.eligibility import is_tolerated
from trainmaster.cluster_model.packing import Assignment, Node, PackingShortfall, place
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.fake_cluster.plan import FakeSpec
from trainmaster.fake_cluster.pools import FakePool, Lot, SimulatedNode, Takes
from trainmaster.fake_cluster.run import FakeRun, Place
from trainmaster.protocol.agent import NodeGroup, Pool
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.quantities import Resources, parse_resources


class NodeLedger:
    """Accounting of the cluster: never more is assigned than its nodes have."""

    def __init__(self, cluster: FleetCluster) -> None:
        self.pools: list[FakePool] = []
        self._pool_of: dict[str, FakePool] = {}
        """Lots by the name of any group that was ever reported."""
        self._report: tuple[NodeGroup, ...] | None = None
        self._left: tuple[Pool, ...] | None = None
        self._seen: tuple[list[Node], dict[str, SimulatedNode]] | None = None
        """The nodes that are up, in the packer's form, and our nodes by their names."""
        grid = parse_resources(cluster.grid)
        for group in cluster.groups:
            paths, names = list(group.domains()), group.pool_names()
            for number, (name, path) in enumerate(zip(names, paths, strict=True)):
                least, most = (
                    whole // len(paths) + (number < whole % len(paths)) for whole in (group.count, group.most)
                )
                pool = FakePool(len(self.pools), name, group, path, (least, most), grid)
                self.pools.append(pool)
                for _ in range(least):
                    self.settle(pool.add(up=True))

    # Nodes

    def settle(self, node: SimulatedNode) -> list[FakeRun]:
        """Update the lot that a node is reported in; return our runs on it whose reported placement changes."""
        lot = node.pool.lot_of(node) if node.up else None
        if lot is node.lot:
            return []
        self._move(node, lot)
        return list(node.runs or ())

    def _move(self, node: SimulatedNode, lot: Lot | None) -> None:
        if node.lot is not None:
            node.lot.count -= 1
        node.lot = lot
        if lot is not None:
            lot.count += 1
            self._pool_of[lot.name] = lot.pool
        self._report = None

    def set_up(self, node: SimulatedNode, up: bool) -> list[FakeRun]:
        """Set whether a node takes members and is reported; return our runs whose reported placement changes."""
        node.pool.set_up(node, up)
        self._seen = self._left = None
        return self.settle(node)

    def report(self) -> tuple[NodeGroup, ...]:
        if self._report is None:
            self._report = tuple(chain.from_iterable(pool.report() for pool in self.pools))
        return self._report

    def node(self, name: str) -> SimulatedNode:
        """Return a node by its name. Raises KeyError."""
        pool_name, _, number = name.rpartition("-")
        for pool in self.pools:
            if pool.name == pool_name and number.isdigit() and int(number) < len(pool.nodes):
                return pool.nodes[int(number)]
        raise KeyError(f"there is no node {name}")

    def pools_left(self) -> tuple[Pool, ...]:
        """Return how many more nodes could be ordered, for each kind that can be ordered at all."""
        if self._left is None:
            self._left = tuple(
                Pool(
                    name=pool.name,
                    most=pool.most,
                    nodes=(nodes := sum(node.up or node.ordered or node.failed for node in pool.nodes)),
                    count=max(0, pool.most - nodes),
                    free={name: amount for name, amount in zip(pool.names, pool.amounts, strict=True) if amount},
                    labels=pool.labels,
                    taints=pool.taints,
                    topology=pool.topology,
                )
                for pool in self.pools
                if pool.most > pool.least
            )
        return self._left

    def order(self, node: SimulatedNode) -> None:
        """Note that a node was ordered."""
        node.ordered = True
        self._left = None

    def arrive(self, node: SimulatedNode) -> None:
        """Note that a node is no longer ordered: it has joined, or will not."""
        node.ordered = False
        self._left = None

    # Placement

    def give(self, run: FakeRun, plan: FakeSpec) -> bool:
        """Place a run if its gang fits now; return whether it did."""
        places = self._find(plan, run.pins)
        if places is None:
            return False
        run.places = run.placed = places
        for node, _, _ in places:
            if node.runs is None:
                node.runs = {}
            node.runs[run] = None
        return True

    def give_more(self, run: FakeRun, more: FakeSpec, pins: MemberPlacement) -> bool:
        """Give a run the places of further members if all of them fit now; their indexes follow those it has."""
        places = (self._fill_pins(more, pins) if pins else None) or self._fill(more)
        if places is None:
            return False
        run.places = run.placed = [*(run.places or ()), *places]
        for node, _, _ in places:
            if node.runs is None:
                node.runs = {}
            node.runs[run] = None
        return True

    def take_some(self, run: FakeRun, plan: FakeSpec, counts: Mapping[int, int]) -> list[SimulatedNode]:
        """Free the places of ``counts`` members by role, those of the highest indexes; return the nodes that are idle now."""
        missing, kept, idle = dict(counts), list[Place](), []
        for node, role, count in reversed(run.places or ()):
            gone = min(count, missing.get(role, 0))
            if gone:
                missing[role] -= gone
                self._free(plan, node, role, gone)
            if count > gone:
                kept.append((node, role, count - gone))
        kept.reverse()
        left = {id(node) for node, _, _ in kept}
        for node, _, _ in run.places or ():
            if id(node) not in left and node.runs is not None and run in node.runs:
                del node.runs[run]
                if not node.runs:
                    idle.append(node)
        run.places = run.placed = kept
        return idle

    def take_back(self, run: FakeRun, plan: FakeSpec) -> list[SimulatedNode]:
        """Free a run's places; return the nodes that are idle now."""
        idle = []
        for node, role, count in run.places or ():
            self._free(plan, node, role, count)
            if node.runs is not None:
                node.runs.pop(run, None)
                if not node.runs:
                    idle.append(node)
        run.places = None
        return idle

    def _find(self, plan: FakeSpec, pins: MemberPlacement) -> list[Place] | None:
        if plan.required is None and not plan.is_apart:
            places = self._fill_pins(plan, pins) if pins else None
            if places is None and plan.preferred is None:
                places = self._fill(plan)
            if places is not None or (len(plan.roles) == 1 and plan.preferred is None):
                return places
        found = self.search(plan)
        return None if isinstance(found, PackingShortfall) else self._book(plan, found)

    def _fill_pins(self, plan: FakeSpec, pins: MemberPlacement) -> list[Place] | None:
        """Return places in the groups that the dispatcher assumed; None if the members do not fit there."""
        places: list[Place] = []
        missing = [role.count for role in plan.roles]
        for group, roles in pins.items():
            pool = self._pool_of.get(group)
            for name, count in roles.items():
                role = plan.position(name)
                if pool is None or role is None or count > missing[role]:
                    self._undo(plan, places)
                    return None
                missing[role] -= count
                if self._fill_pool(plan, pool, role, count, places):
                    self._undo(plan, places)
                    return None
        if any(missing):
            self._undo(plan, places)
            return None
        return places

    def _fill(self, plan: FakeSpec) -> list[Place] | None:
        """Find places anywhere. Exact for one role: members are identical, so filling node by node misses none."""
        places: list[Place] = []
        for role, pools in self._order(plan):
            missing = plan.roles[role].count
            for pool in pools:
                missing = self._fill_pool(plan, pool, role, missing, places)
                if not missing:
                    break
            if missing:
                self._undo(plan, places)
                return None
        return places

    def _order(self, plan: FakeSpec) -> tuple[tuple[int, tuple[FakePool, ...]], ...]:
        """Return roles with the largest member first, and the pools that suit each, the best first."""
        if plan.order is None:
            roles = sorted(range(len(plan.roles)), key=lambda role: (-self._share(plan, role), role))
            plan.order = tuple((role, self._eligible_pools(plan, role)) for role in roles)
        return plan.order

    def _share(self, plan: FakeSpec, role: int) -> float:
        """Return a member's dominant share of a node, the smallest over the pools."""
        eligible = ((pool, self._eligibility(plan, pool)[role]) for pool in self.pools)
        return min(
            (
                max((amount / max(1, pool.amounts[position]) for position, amount in takes), default=0.0)
                for pool, takes in eligible
                if takes is not None
            ),
            default=0.0,
        )

    def _eligible_pools(self, plan: FakeSpec, role: int) -> tuple[FakePool, ...]:
        """Return the pools that suit a role; unwanted taints come last, then pools whose devices would stay idle."""
        need = plan.roles[role].need

        def key(pool: FakePool) -> tuple[int, int, int]:
            disliked = sum(not is_tolerated(taint, need.tolerations) for taint in pool.taints)
            idle_devices = sum("/" in name and name not in need.resources for name in pool.names)
            return disliked, idle_devices, pool.index

        return tuple(sorted((pool for pool in self.pools if self._eligibility(plan, pool)[role] is not None), key=key))

    def _fill_pool(self, plan: FakeSpec, pool: FakePool, role: int, missing: int, places: list[Place]) -> int:
        """Place members of a role in one pool; return how many did not fit."""
        takes = self._eligibility(plan, pool)[role]
        if takes is None:
            return missing
        each = plan.roles[role].need.members_per_unit
        missing //= each
        node = pool.hint
        while missing:
            count = 0 if node is None else _holds(node, takes, missing)
            if node is None or not count:
                node = pool.tightest(takes)
                if node is None:
                    return missing * each
                count = _holds(node, takes, missing)
            pool.take(node, takes, count)
            places.append((node, role, count * each))
            missing -= count
        return 0

    def _undo(self, plan: FakeSpec, places: Sequence[Place]) -> None:
        for node, role, count in places:
            self._free(plan, node, role, count)

    def _free(self, plan: FakeSpec, node: SimulatedNode, role: int, members: int) -> None:
        """Free what members of a role have on a node."""
        units = members // plan.roles[role].need.members_per_unit
        node.pool.take(node, self._eligibility(plan, node.pool)[role] or (), -units)

    def _eligibility(self, plan: FakeSpec, pool: FakePool) -> tuple[Takes | None, ...]:
        suits = plan.suits.get(pool.index)
        if suits is None:
            node = pool.as_node(pool.name)
            suits = plan.suits[pool.index] = tuple(
                pool.takes_of(role.need.resources, exclusive=role.need.exclusive) if role.need.suits(node) else None
                for role in plan.roles
            )
        return suits

    def _book(self, plan: FakeSpec, assignment: Assignment) -> list[Place]:
        _, by_name = self._view()
        places: list[Place] = []
        for name, roles in assignment.items():
            node = by_name[name]
            for role_name, count in roles.items():
                role = plan.position(role_name)
                takes = None if role is None else self._eligibility(plan, node.pool)[role]
                if role is None or takes is None:
                    raise AssertionError(f"a member of {role_name} was placed on {name}, which does not suit it")
                node.pool.take(node, takes, count)
                places.append((node, role, count * plan.roles[role].need.members_per_unit))
        return places

    # Slow searches over every node

    def search(self, plan: FakeSpec) -> Assignment | PackingShortfall:
        """Pack a gang by a search over every node, or return what is missing."""
        return _place(plan, *self._nodes_of(plan))

    def never(self, plan: FakeSpec) -> str:
        """Return why a gang would not fit even without runs and with all nodes; empty if it would."""
        if plan.never is None:
            nodes = [pool.as_node(f"{pool.name}-{n}") for pool in self.pools for n in range(pool.most)]
            found = _place(plan, nodes, {node.name: node.allocatable for node in nodes})
            plan.never = found.sentence if isinstance(found, PackingShortfall) else ""
        return plan.never

    def wanted(self, plan: FakeSpec) -> list[SimulatedNode]:
        """Return nodes that could be provisioned and would let a gang start; none if they would not."""
        nodes, free = self._nodes_of(plan)
        absent: dict[str, SimulatedNode] = {}
        further: list[Node] = []
        for pool in self.pools:
            for node in _absent(pool):
                absent[node.name] = node
                further.append(pool.as_node(node.name))
                free[node.name] = dict(further[-1].allocatable)
        found = _place(plan, [*nodes, *further], free) if further else PackingShortfall("")
        return [] if isinstance(found, PackingShortfall) else [absent[name] for name in sorted(found) if name in absent]

    def _nodes_of(self, plan: FakeSpec) -> tuple[list[Node], dict[str, Resources]]:
        """Return the nodes that are up, as the members of a plan find them, and their free amounts."""
        nodes, by_name = self._view()
        free = {name: node.pool.free_of(node) for name, node in by_name.items()}
        if plan.is_exclusive:
            nodes = [replace(node, has_members=free[node.name] != node.allocatable) for node in nodes]
        return nodes, free

    def _view(self) -> tuple[list[Node], dict[str, SimulatedNode]]:
        if self._seen is None:
            both = [pair for pool in self.pools for pair in pool.as_nodes()]
            self._seen = [node for _, node in both], {node.name: simulated for simulated, node in both}
        return self._seen


def _holds(node: SimulatedNode, takes: Takes, most: int) -> int:
    """Return how many members fit on a node, at most ``most``."""
    if not node.up:
        return 0
    free = node.free
    for position, amount in takes:
        fits = free[position] // amount
        if fits < most:
            if fits <= 0:
                return 0
            most = fits
    return most


def _absent(pool: FakePool) -> Iterator[SimulatedNode]:
    while len(pool.nodes) < pool.most:
        pool.add(up=False)
    return (node for node in pool.nodes if not (node.up or node.ordered or node.failed))


def _place(plan: FakeSpec, nodes: Sequence[Node], free: Mapping[str, Resources]) -> Assignment | PackingShortfall:
    needs = [role.need for role in plan.roles]
    if plan.required is not None:
        return place(nodes, free, needs, plan.required)
    if plan.preferred is not None:
        close = place(nodes, free, needs, plan.preferred)
        if not isinstance(close, PackingShortfall):
            return close
    return place(nodes, free, needs)
