"""Answers of the API that hold several objects, or show more of one than was declared."""

from typing import Any

from pydantic import ConfigDict, Field

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.base import Lenient, Strict, Timestamp
from trainmaster.protocol.bursting import BurstPolicySpec, PolicyFigures
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.queue_position import Factors, QueueFigures, Trial
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.simulations import SimulationView
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import (
    ClusterSpec,
    DatasetSpec,
    EventView,
    JobView,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
)

_IGNORES_UNKNOWN = ConfigDict(extra="ignore")
"""An api of a newer version may tell more of what was declared."""


class JobList(Strict):
    """Jobs that are submitted together: all or none are taken."""

    jobs: tuple[JobSpec, ...]


class JobSweep(Strict):
    """One specification and a table of parameters: a job for each set of them."""

    job: JobSpec
    parameters: tuple[dict[str, str | float], ...]


class SubmittedJob(Lenient):
    """A job that was taken."""

    id: str


class SubmittedJobs(Lenient):
    """Jobs that were taken, in the order in which they were given."""

    jobs: tuple[SubmittedJob, ...]


class TriedJob(Lenient):
    """A job of a dry run, which is valid; ``trial`` is None where no leading scheduler has answered."""

    name: str
    queue: str
    held: bool = False
    """Whether it would wait for ``resume`` first."""
    trial: Trial | None = None


class DryRun(Lenient):
    """What would become of jobs. ``live``: whether the leading scheduler was asked."""

    live: bool
    jobs: tuple[TriedJob, ...]


class JobPage(Lenient):
    """Some jobs, newest first, and the cursor of the next page."""

    jobs: tuple[JobView, ...]
    next: str | None = None


class EventPage(Lenient):
    """Transitions of one job, the oldest first."""

    events: tuple[EventView, ...]


class JobReason(Reason):
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


class JobAction(Lenient):
    """What an action did to one job."""

    id: str
    changed: bool
    state: str


class BulkAnswer(Lenient):
    """What an action did to many: those that matched and were not changed were in no state for it."""

    matched: int
    changed: int
    dry_run: bool = False


class QueueView(QueueSpec):
    """A queue with its jobs by state; only leaves have jobs of their own."""

    model_config = _IGNORES_UNKNOWN

    is_leaf: bool = True
    jobs: dict[str, int] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    usage: QueueFigures | None = None
    """Where it was asked for and the leading scheduler answered."""


class QueueList(Lenient):
    """Queues that the caller may see. ``live``: whether the leading scheduler told what they use; only where that was asked."""

    live: bool | None = None
    queues: tuple[QueueView, ...]


class PriorityClassList(Lenient):
    """Priority classes, the highest first."""

    priority_classes: tuple[PriorityClassSpec, ...]


class ReservationList(Lenient):
    """Reservations, by the beginning of their windows."""

    reservations: tuple[ReservationSpec, ...]


class ClusterView(ClusterSpec):
    """A cluster with its contact and capacity. Counts of runs are told to admins alone."""

    model_config = _IGNORES_UNKNOWN

    state: str
    cordoned: bool = False
    draining: bool = False
    closed: str = ""
    """Why no new job is sent to it; empty where jobs are."""
    last_contact: Timestamp | None = None
    agent_version: str = ""
    live_runs: int = 0
    stopping_runs: int = 0
    orphaned_runs: int = 0
    quarantined_runs: int = 0
    runtime: str | None = None
    scheduler: str | None = None
    capacity: dict[str, str] = Field(default_factory=dict)
    nodes: int = 0
    groups: tuple[NodeGroup, ...] = ()
    capabilities: tuple[str, ...] = ()


class ClusterList(Lenient):
    """Clusters that the caller's jobs may go to."""

    clusters: tuple[ClusterView, ...]


class CordonAnswer(Lenient):
    """Whether a cluster is closed to new jobs."""

    name: str
    cordoned: bool


class DrainAnswer(Lenient):
    """What a drain did: runs that were asked to stop now, and runs that are there still, these included."""

    name: str
    stopped: int
    live_runs: int
    reachable: bool = True


class LostRuns(Lenient):
    """How many runs of a cluster were called lost."""

    name: str
    lost: int


class QuarantinedRun(Lenient):
    """A run that a cluster's agent holds and that the store has forgotten since it was restored."""

    run: str
    state: str
    stopping: bool = False
    since: Timestamp


class QuarantinedRuns(Lenient):
    """Runs of one cluster that the store has forgotten."""

    runs: tuple[QuarantinedRun, ...]


class StoppedQuarantined(Lenient):
    """Quarantined runs that are being stopped."""

    name: str
    stopping: tuple[str, ...]


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


class KeyList(Lenient):
    """All API keys."""

    keys: tuple[KeyView, ...]


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


class AuditPage(Lenient):
    """Some of them, newest first, and the cursor of the next page."""

    audit: tuple[AuditEntry, ...]
    next: str | None = None


class PriceBookList(Lenient):
    """Price books."""

    price_books: tuple[PriceBookSpec, ...]


class DatasetList(Lenient):
    """Data that was declared."""

    datasets: tuple[DatasetSpec, ...]


class BurstPolicyView(BurstPolicySpec):
    """A burst policy, and how it stands."""

    model_config = _IGNORES_UNKNOWN

    status: PolicyFigures | None = None


class BurstPolicyList(Lenient):
    """Burst policies. ``live``: whether the leading scheduler told how they stand."""

    live: bool
    currency: str
    burst_policies: tuple[BurstPolicyView, ...]


class SimulationPage(Lenient):
    """Simulations, the latest first; ``next`` is the cursor of the following page."""

    simulations: tuple[SimulationView, ...]
    next: int | None


class WebhookSecrets(Lenient):
    """What signs webhook messages of a queue's jobs: any of ``secrets``, and until then any of ``previous``."""

    queue: str
    version: int
    secrets: tuple[str, ...]
    previous: tuple[str, ...] = ()
    previous_until: Timestamp | None = None


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


class DeadLetterPage(Lenient):
    """Some of them, newest first, and the cursor of the next page."""

    dead: tuple[DeadLetter, ...]
    next: str | None = None
