"""The context of one cycle: the values that the attempts of all classes read, and those that they record for later attempts."""

from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.domain.run_times import RunSeconds
from trainmaster_dispatcher.scheduling.cycle.consolidation import Consolidation
from trainmaster_dispatcher.scheduling.cycle.engine import Carried, QuotaRefusal
from trainmaster_dispatcher.scheduling.cycle.start_rules import StartRules
from trainmaster_dispatcher.scheduling.packing.gang_packing import Size
from trainmaster_dispatcher.scheduling.preemption.victims import VictimSearch
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.reservations.advance import AdvanceReservations
from trainmaster_dispatcher.scheduling.reservations.backfill import Reservations
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, SchedulingKey
from trainmaster_dispatcher.scheduling.selection.cluster_ranking import ClusterRankings
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Queue
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey


class QueueTerms(NamedTuple):
    """The terms of a queue that decide where its jobs may go and whether they fit."""

    access: Access
    limit: float
    """The time limit of jobs without one of their own, in seconds."""
    entitled: tuple[int, ...]
    """The advance reservations that the queue is entitled to."""


@dataclass(frozen=True, slots=True)
class CycleContext:
    """The values shared by the attempts of one cycle."""

    index: ClusterIndex
    rankings: ClusterRankings
    quotas: QuotaTree
    reservations: Reservations
    victims: VictimSearch
    advance: AdvanceReservations
    before: Carried
    """The values taken over from the previous decision."""
    blocked: dict[tuple[SchedulingKey, RunSeconds], tuple[Reason, list[int]]]
    """By scheduling key and run time: the reason why it is blocked, and the clusters that lack capacity for it."""
    now: float
    consolidation: Consolidation
    start_rules: StartRules
    quota_refusals: dict[ClassKey, QuotaRefusal] = field(default_factory=dict)
    """The cached refusals of the engine."""
    blocked_shapes: dict[QueueTerms, dict[int, Reason]] = field(default_factory=dict)
    """The reasons of blocked jobs that avoid no cluster, by the terms of their queue, then by shape."""
    blocked_in_queue: dict[int, dict[int, Reason] | None] = field(default_factory=dict)
    """By queue: its part of ``blocked_shapes``; None where each class needs an attempt of its own."""
    terms: dict[int, QueueTerms] = field(default_factory=dict)
    """By queue."""
    prepared: dict[tuple[int, int], "PreparedClass"] = field(default_factory=dict)
    """By queue and shape."""
    closed_queues: dict[int, tuple[str, Queue | None]] = field(default_factory=dict)
    """By queue: the fault of the nearest queue that cannot be used, and the nearest one that starts no jobs."""


class PreparedClass(NamedTuple):
    """The values that hold for a class during a whole cycle. ``stops``: why the class cannot start in this cycle at all."""

    sizes: list[Size]
    stops: Reason | None


def terms_of(cycle: CycleContext, queue: Queue) -> QueueTerms:
    """Return the terms of a queue."""
    found = cycle.terms.get(queue.id)
    if found is None:
        limit, access = cycle.index.state.limit_of(None, queue.id), cycle.index.state.access_of(queue)
        found = cycle.terms[queue.id] = QueueTerms(access, limit, cycle.advance.entitled(queue.id))
    return found


def closed_queue(cycle: CycleContext, queue: Queue) -> tuple[str, Queue | None]:
    """Return the fault of the nearest queue that cannot be used, and the nearest one that starts no jobs."""
    found = cycle.closed_queues.get(queue.id)
    if found is None:
        ancestry = cycle.index.state.ancestry(queue.id)
        fault = next((above.fault for above in ancestry if above.fault), "")
        closed = next((above for above in ancestry if not above.state.starts_jobs), None)
        found = cycle.closed_queues[queue.id] = fault, closed
    return found
