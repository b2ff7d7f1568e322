"""Objects that admins declare, as the scheduler reads them: queues, priority classes, clusters, reservations. They hold no jobs."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.states import ClusterKind, FairBy, Order, OrderBy, Preemption, QueueState
from trainmaster_dispatcher.domain.burst_policies import Hours
from trainmaster_dispatcher.domain.datasets import Holder
from trainmaster_dispatcher.domain.prices import FREE, Tariff
from trainmaster_dispatcher.domain.start_conditions import StartConditions
from trainmaster_dispatcher.domain.weights import Weights
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Quota


class MoveTerms(NamedTuple):
    """Permission to move runs of a queue for a job that needs their room in one piece. Times are in seconds."""

    after: float
    """The time that the job must have waited."""
    most_lost: float
    """The longest time that a run without a checkpoint may have run."""
    most_an_hour: int
    """The most runs that are moved in an hour."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as the plan reads it. ``quotas`` and ``max_running`` are for the queue and all queues below it."""

    id: int
    path: str
    parent_id: int | None
    weight: float = 1.0
    quotas: dict[Flavor, Quota] = field(default_factory=dict)
    max_running: int | None = None
    allowed_kinds: frozenset[ClusterKind] = frozenset({ClusterKind.PRIVATE, ClusterKind.EDGE})
    state: QueueState = QueueState.OPEN
    order: Order = Order.BEST_EFFORT
    time_limit: float | None = None
    """The time limit in seconds that is assumed for jobs without one of their own."""
    preemption: Preemption = Preemption.ANY_BORROWER
    """The rule for which of its runs may be ended for others."""
    min_run_time: float = 0.0
    """The seconds after its start in which a run of the queue is not ended for others."""
    consolidation: MoveTerms | None = None
    """How its runs may be moved; None: as in the queue above."""
    order_by: OrderBy | None = None
    """The order of its jobs inside a class; None: as in the queue above."""
    fair_by: FairBy | None = None
    """What its turns are shared between; None: as in the queue above."""
    user_weights: dict[str, float] = field(default_factory=dict)
    """The weights of users among each other, where they are not 1."""
    max_running_per_user: int | None = None
    """The most live runs of one user in the queue and all below it."""
    limits_per_user: dict[Flavor, int] = field(default_factory=dict)
    """The most that the runs of one user in the queue and all below it use, of resources as a whole."""
    weights: Weights | None = None
    """The score weights for its jobs, if the queue sets any itself."""
    price_factor: Decimal | None = None
    """What the cost of its jobs is multiplied by for their charge; None: as in the queue above."""
    regions: frozenset[str] = frozenset()
    """The regions where its jobs, and those of the queues below it, may run; empty for all."""
    fault: str = ""
    """Why nothing of the queue but its path can be read: until that is corrected, nothing starts in the queue or in those below it."""
    starts_when: StartConditions | None = None
    """The conditions under which its jobs, and those of all queues below it, start."""

    @property
    def limits_users(self) -> bool:
        """Return whether it limits what one user may have."""
        return self.max_running_per_user is not None or bool(self.limits_per_user)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    id: int
    name: str
    value: int
    preemptible: bool = True
    longest_wait: float | None = None
    """Seconds after which a waiting job is urgent."""
    weights: Weights | None = None
    """The score weights for its jobs, which take precedence over those of their queue."""
    price_factor: Decimal | None = None
    """What the cost of its jobs is multiplied by for their charge, besides the factor of their queue."""
    fault: str = ""
    """Why nothing of the class but its name and value can be read: until that is corrected, none of its jobs starts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the last report of its agent."""

    id: int
    name: str
    kind: ClusterKind
    labels: dict[str, str] = field(default_factory=dict)
    cordoned: bool = False
    report: CapacityReport | None = None
    tariff: Tariff = FREE
    """The current prices of the cluster."""
    placement_timeout: float = 300.0
    """The seconds that a run may wait there for its members to be placed."""
    uplink: float | None = None
    """Bytes per second between the cluster and others, if known."""
    connected: tuple[Hours, ...] = ()
    """The hours in which runs are sent there; empty for always."""
    only_queues: tuple[str, ...] = ()
    """The queues whose jobs, with those of the queues below, may run there; empty for all queues."""
    fault: str = ""
    """Why the stored cluster cannot be used: it has no report then, and nothing is sent there until that is corrected."""

    @property
    def region(self) -> str:
        return self.labels.get("region", "")

    @property
    def holder(self) -> Holder:
        """The cluster as a holder of data."""
        reported = frozenset(self.report.datasets) if self.report is not None else frozenset()
        return Holder(self.name, reported, self.tariff.egress, self.uplink)


class Access(NamedTuple):
    """The clusters that a queue opens to its jobs. ``regions`` None: all. ``paths``: its own and those above, where that matters.

    ``conditions``: the queues, it and those above, with conditions on the clusters where their jobs start.
    """

    kinds: frozenset[ClusterKind]
    regions: frozenset[str] | None = None
    paths: tuple[str, ...] = ()
    conditions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdvanceReservation:
    """Whole nodes that an admin reserves for a queue, and those below it, on each of these clusters in a window of time.

    Without ``clusters``, on every cluster. Times are seconds since the epoch.
    """

    id: int
    name: str
    queue_id: int
    clusters: tuple[str, ...]
    nodes: int
    selector: tuple[tuple[str, str], ...]
    begins_at: float
    ends_at: float
