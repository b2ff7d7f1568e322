"""What the API answers, as values, beside the models of the protocol."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from trainmaster.protocol.base import Lenient, Timestamp
from trainmaster.protocol.queue_position import Factors, Trial
from trainmaster.protocol.quota import QuotaSpec
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import ClusterKind, KeyRole, Order, Preemption, QueueState
from trainmaster.protocol.tenants import JobView


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant: all conditions hold. ``name`` may have ``*``; ``queue`` means all below it, too."""

    queue: str | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    priority_class: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    cluster: str | None = None

    def to_query(self) -> Iterator[tuple[str, str | None]]:
        yield "queue", self.queue
        yield from (("state", state) for state in self.states)
        yield "name", self.name
        yield "priorityClass", self.priority_class
        yield from (("label", f"{key}={value}") for key, value in self.labels.items())
        yield "cluster", self.cluster

    def to_wire(self) -> dict[str, Any]:
        fields = {
            "queue": self.queue,
            "states": list(self.states),
            "name": self.name,
            "priorityClass": self.priority_class,
            "labels": self.labels,
            "cluster": self.cluster,
        }
        return {key: value for key, value in fields.items() if value}


class Page(Lenient):
    """Some jobs, newest first, and the cursor of the next page."""

    jobs: tuple[JobView, ...]
    next: str | None = None


class Acted(Lenient):
    """What an action did to one job."""

    id: str
    changed: bool
    state: str


class BulkActed(Lenient):
    """What an action did to many: those that matched and were not changed were in no state for it."""

    matched: int
    changed: int
    dry_run: bool = False


class Why(Reason):
    """Why a job is where it is. The last seven are of queued jobs only."""

    job: str
    state: str
    live: bool | None = None
    """Whether the leading scheduler has answered; if not, the place is not known."""
    age_seconds: float | None = None
    """How old the verdict is that is shown instead."""
    queue: str | None = None
    position: int | None = None
    """1 is next among the queued jobs of its queue."""
    jobs_ahead: int | None = None
    jobs_in_queue: int | None = None
    factors: Factors | None = None


class Tried(Lenient):
    """A job of a dry run, which is valid; ``trial`` is None where no leading scheduler has answered."""

    name: str
    queue: str
    held: bool = False
    """Whether it would wait for ``resume`` first."""
    trial: Trial | None = None


class UsageView(Lenient):
    """What the live runs of a queue and of all below it take. Shares are parts of the whole capacity, by the queue's weight."""

    running: int
    used: dict[str, str] = Field(default_factory=dict)
    """By line, such as ``cpu`` or ``cpu@kind=public``."""
    share: float
    share_beyond_guarantee: float


class QueueView(Lenient):
    """A queue with its jobs by state; only leaves have jobs of their own."""

    path: str
    weight: float = 1.0
    resources: dict[str, QuotaSpec] = Field(default_factory=dict)
    """Guarantees and limits by line, such as ``cpu`` or ``nvidia.com/gpu@product=H100``."""
    max_queued: int | None = None
    max_queued_per_user: int | None = None
    max_running: int | None = None
    allowed_kinds: tuple[ClusterKind, ...] = ()
    default_priority_class: str | None = None
    priority_classes: tuple[str, ...] = ()
    """Which classes users may give to its jobs; without any, what a queue above it says, or the rule of the installation."""
    order: Order = Order.BEST_EFFORT
    preemption: Preemption = Preemption.ANY_BORROWER
    min_run_time: str = "0s"
    default_time_limit: str | None = None
    state: QueueState = QueueState.OPEN
    description: str = ""
    is_leaf: bool = True
    jobs: dict[str, int] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """In what its guarantees go beyond what the clusters have."""
    usage: UsageView | None = None
    """None where it was not asked for, or no leading scheduler has answered."""


class ClusterView(Lenient):
    """A cluster with its contact and what its agent reports. ``capacity`` is what others leave to Trainmaster."""

    name: str
    cluster_kind: ClusterKind = ClusterKind.PRIVATE
    region: str = ""
    provider: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    state: str
    cordoned: bool = False
    draining: bool = False
    closed: str = ""
    """Why its agent can start nothing there now."""
    last_contact: Timestamp | None = None
    agent_version: str = ""
    live_runs: int = 0
    stopping_runs: int = 0
    quarantined_runs: int = 0
    """Live runs that the store has forgotten since it was restored from a backup."""
    orphaned_runs: int = 0
    """Live runs of which its agent has no record, because another agent was sent them."""
    runtime: str | None = None
    scheduler: str | None = None
    capacity: dict[str, str] = Field(default_factory=dict)
    nodes: int = 0
    groups: tuple[dict[str, Any], ...] = ()
    capabilities: tuple[str, ...] = ()


class Drained(Lenient):
    """What a drain did: runs that were asked to stop now, and runs that are there still, these included."""

    name: str
    stopped: int
    live_runs: int
    reachable: bool = True


class QuarantinedRun(Lenient):
    """A run that a cluster's agent holds and that the store has forgotten since it was restored."""

    run: str
    state: str
    stopping: bool = False
    since: Timestamp


class DeclaredLost(Lenient):
    """How many runs of a cluster were called lost."""

    name: str
    lost: int


class DeadLetter(Lenient):
    """A webhook message that was given up. ``hook`` is the index in the job's ``notify``."""

    id: int
    job: str
    queue: str
    seq: int
    hook: int
    url: str | None = None
    states: tuple[str, ...] = ()
    attempts: int
    error: str = ""
    created_at: Timestamp
    dead_at: Timestamp


class WebhookSecrets(Lenient):
    """What signs webhook messages of a queue's jobs: any of ``secrets``, and until then any of ``previous``."""

    queue: str
    version: int
    secrets: tuple[str, ...]
    previous: tuple[str, ...] = ()
    previous_until: Timestamp | None = None


class DeadLetters(Lenient):
    """Some of them, newest first, and the cursor of the next page."""

    dead: tuple[DeadLetter, ...]
    next: str | None = None


class AuditEntry(Lenient):
    """Who did what to what, or what was refused to whom, in which request and from which address."""

    at: Timestamp
    actor: str
    """The name of the key; empty where a call showed no valid one."""
    action: str
    target: str
    request_id: str = ""
    address: str = ""
    details: dict[str, Any] = Field(default_factory=dict)
    """Of a change: ``before`` and ``after``; of a submission ``jobs``; of refused calls ``code``, ``detail`` and ``count``."""


class AuditEntries(Lenient):
    """Some of them, newest first, and the cursor of the next page."""

    audit: tuple[AuditEntry, ...]
    next: str | None = None


class KeyView(Lenient):
    """An API key without its secret."""

    id: int
    name: str
    hint: str = ""
    role: KeyRole
    queues: tuple[str, ...] = ()
    cluster: str | None = None
    created_at: Timestamp
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None


class NewKey(Lenient):
    """An API key just made. ``key`` is the secret, told this once."""

    id: int
    name: str
    role: KeyRole
    key: str


class AgentKey(Lenient):
    """A key for a cluster's agent, just made."""

    cluster: str
    created: bool = False
    """Whether the cluster was made with it."""
    key: NewKey
    other_keys: tuple[int, ...] = ()
    """Keys of the cluster's agent that are valid beside it."""
    revoked: tuple[int, ...] = ()
