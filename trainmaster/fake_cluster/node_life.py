"""Node life cycle: failures, provisioned nodes, and foreign pods that come and go."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from trainmaster.fake_cluster.fleet import Foreign
from trainmaster.fake_cluster.node_events import Visits
from trainmaster.fake_cluster.node_ledger import NodeLedger
from trainmaster.fake_cluster.plan import FakeSpec
from trainmaster.fake_cluster.pools import FakePool, SimulatedNode
from trainmaster.fake_cluster.run import FakeRun
from trainmaster.fake_cluster.seeded_random import DurationRange, draw
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.quantities import parse_resources


class NodeEvent(IntEnum):
    """Purpose of a node's timer."""

    FOREIGN_TURN = 0
    FOREIGN_COMES = 1
    FOREIGN_GOES = 2
    FAILURE_TURN = 3
    FAILS = 4
    RECOVERS = 5
    ARRIVES = 6
    IDLE = 7


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a node event on runs."""

    moved: list[FakeRun] = field(default_factory=list)
    """Runs whose placement is reported under another group name, though their members did not move."""
    lost: list[FakeRun] = field(default_factory=list)
    """Runs with members on a node that is gone."""
    freed: bool = False
    """Whether capacity was freed."""


NOTHING = Effect()
SetTimer = Callable[[float, NodeEvent, SimulatedNode, int], None]


class NodeLife:
    """Applies node events to the ledger; returns their effect on runs."""

    def __init__(self, ledger: NodeLedger, seed: int, set_timer: SetTimer) -> None:
        self._ledger = ledger
        self._seed = seed
        self._set = set_timer
        self._foreign: dict[int, tuple[tuple[Visits, tuple[int, ...]], ...]] = {}
        """By pool: the kinds of foreign pods, and the amounts that each takes."""
        self._failures: dict[int, Visits] = {}
        self._is_elastic = any(pool.most > pool.least for pool in ledger.pools)
        self._orders = self._coming = 0
        """Number of orders so far, and ordered nodes that have not joined yet."""
        for pool in ledger.pools:
            group = pool.group
            if group.foreign:
                self._foreign[pool.index] = tuple(_foreign(pool, kind) for kind in group.foreign)
            if group.failures is not None:
                every, lasts = parse_duration(group.failures.every), DurationRange.parse(group.failures.lasts)
                self._failures[pool.index] = Visits(every, group.failures.chance, lasts)

    def begin(self, now: float) -> None:
        """Place the foreign pods that would be running, had time passed before."""
        for pool in self._ledger.pools:
            for node in pool.nodes:
                for kind in range(len(self._foreign.get(pool.index, ()))):
                    if draw(self._seed, node.name, kind, "ever") < pool.group.foreign[kind].nodes:
                        self._foreign_turn(node, kind, now)
                if pool.index in self._failures:
                    self._failure_turn(node, now)

    def happen(self, event: NodeEvent, node: SimulatedNode, token: int, now: float) -> Effect:
        """Handle a timer; ``token`` is the kind of foreign pod, or identifies an idle time of the node."""
        match event:
            case NodeEvent.FOREIGN_TURN:
                return self._foreign_turn(node, token, now)
            case NodeEvent.FOREIGN_COMES:
                return self._foreign_comes(node, token, now)
            case NodeEvent.FOREIGN_GOES:
                return self._foreign_goes(node, token)
            case NodeEvent.FAILURE_TURN:
                return self._failure_turn(node, now)
            case NodeEvent.FAILS:
                return self.fail(node)
            case NodeEvent.RECOVERS:
                return self.recover(node)
            case NodeEvent.ARRIVES:
                return self._arrive(node, token, now)
            case NodeEvent.IDLE:
                return self._leave_idle(node, token)

    # Foreign pods

    def _foreign_turn(self, node: SimulatedNode, kind: int, now: float) -> Effect:
        visits, _ = self._foreign[node.pool.index][kind]
        visit = visits.at(self._seed, f"{node.name}/{kind}", now)
        self._set(visit.turn_ends, NodeEvent.FOREIGN_TURN, node, kind)
        if not visit.happens or visit.goes <= now:
            return NOTHING
        if visit.comes > now:
            self._set(visit.comes, NodeEvent.FOREIGN_COMES, node, kind)
            return NOTHING
        return self._foreign_comes(node, kind, now)

    def _foreign_comes(self, node: SimulatedNode, kind: int, now: float) -> Effect:
        """Start foreign pods if they fit: no member is evicted for them."""
        visits, used = self._foreign[node.pool.index][kind]
        if not node.up or any(amount > free for amount, free in zip(used, node.free, strict=True)):
            return NOTHING
        visit = visits.at(self._seed, f"{node.name}/{kind}", now)
        self._set(visit.goes, NodeEvent.FOREIGN_GOES, node, kind)
        node.pool.take(node, tuple(enumerate(used)), 1)
        if node.foreign is None:
            node.foreign = {}
        node.foreign[kind] = used
        return Effect(moved=self._ledger.settle(node))

    def _foreign_goes(self, node: SimulatedNode, kind: int) -> Effect:
        used = None if node.foreign is None else node.foreign.pop(kind, None)
        if used is None:
            return NOTHING
        node.pool.take(node, tuple(enumerate(used)), -1)
        return Effect(moved=self._ledger.settle(node), freed=True)

    # Failures

    def _failure_turn(self, node: SimulatedNode, now: float) -> Effect:
        visit = self._failures[node.pool.index].at(self._seed, f"{node.name}/failure", now)
        self._set(visit.turn_ends, NodeEvent.FAILURE_TURN, node, 0)
        if visit.happens and visit.goes > now:
            self._set(max(now, visit.comes), NodeEvent.FAILS, node, 0)
            self._set(visit.goes, NodeEvent.RECOVERS, node, 0)
        return NOTHING

    def fail(self, node: SimulatedNode) -> Effect:
        """Fail a node with everything on it."""
        if node.failed or not node.up:
            return NOTHING
        node.failed = True
        lost = list(node.runs or ())
        for kind in tuple(node.foreign or ()):
            self._foreign_goes(node, kind)
        self._ledger.set_up(node, up=False)
        return Effect(lost=lost)

    def recover(self, node: SimulatedNode) -> Effect:
        """Recover a failed node."""
        if not node.failed:
            return NOTHING
        node.failed = False
        self._ledger.set_up(node, up=True)
        return Effect(freed=True)

    # Provisioned nodes

    @property
    def is_coming(self) -> bool:
        """Return whether nodes are ordered."""
        return self._coming > 0

    def order(self, plan: FakeSpec, now: float) -> None:
        """Order the nodes that would let a gang start."""
        if not self._is_elastic:
            return
        self._orders += 1
        for node in self._ledger.wanted(plan):
            provisioning = node.pool.group.provisioning
            if provisioning is not None:
                self._ledger.order(node)
                self._coming += 1
                name = node.pool.name
                delay = DurationRange.parse(provisioning.delay).at(draw(self._seed, name, self._orders, "delay"))
                fails = draw(self._seed, name, self._orders, "fails") < provisioning.fail
                self._set(now + delay, NodeEvent.ARRIVES, node, int(fails))

    def _arrive(self, node: SimulatedNode, token: int, now: float) -> Effect:
        """Let an ordered node join; ``token``: whether the order has failed."""
        self._ledger.arrive(node)
        self._coming -= 1
        if token:
            return NOTHING
        self._ledger.set_up(node, up=True)
        self.mind_idle(node, now)
        return Effect(freed=True)

    def mind_idle(self, node: SimulatedNode, now: float) -> None:
        """Start the idle timer of a node without our members."""
        provisioning = node.pool.group.provisioning
        if provisioning is not None and node.up:
            node.idle_token += 1
            self._set(now + parse_duration(provisioning.idle), NodeEvent.IDLE, node, node.idle_token)

    def _leave_idle(self, node: SimulatedNode, token: int) -> Effect:
        there = sum(other.up for other in node.pool.nodes)
        if node.up and not node.runs and node.idle_token == token and there > node.pool.least:
            for kind in tuple(node.foreign or ()):
                self._foreign_goes(node, kind)
            self._ledger.set_up(node, up=False)
        return NOTHING


def _foreign(pool: FakePool, kind: Foreign) -> tuple[Visits, tuple[int, ...]]:
    amounts = parse_resources(kind.resources)
    visits = Visits(parse_duration(kind.every), kind.chance, DurationRange.parse(kind.lasts))
    return visits, tuple(amounts.get(name, 0) for name in pool.names)
