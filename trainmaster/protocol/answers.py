"""Answers of the API that hold several objects, or more fields than were declared."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.base import Lenient, Strict, Timestamp, bounded, text_schema
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
"""Declared objects in answers: an api of a newer version may send more fields."""


ParameterSet = Annotated[
    dict[
        Annotated[str, text_schema("^[A-Za-z_][A-Za-z0-9_]{0,62}$", 63, "rate")],
        Annotated[str, StringConstraints(max_length=4096)] | float,
    ],
    bounded(64, least=1),
]
"""The values of one job, by the names that stand in the specification as ``${name}``."""


class JobList(Strict):
    """Jobs to submit together: all are accepted or none."""

    jobs: Annotated[tuple[JobSpec, ...], bounded(10_000, least=1)]


class JobSweep(Strict):
    """One specification and a table of parameters: one job for each set."""

    job: JobSpec
    parameters: Annotated[tuple[ParameterSet, ...], bounded(100_000, least=1)]


class SubmittedJob(Lenient):
    """An accepted job."""

    id: str


class SubmittedJobs(Lenient):
    """Accepted jobs, in the given order."""

    jobs: tuple[SubmittedJob, ...]


class TriedJob(Lenient):
    """A valid job of a dry run; ``trial`` is None if no leading scheduler answered."""

    name: str
    queue: str
    held: bool = False
    """Whether it would be held until ``resume``."""
    trial: Trial | None = None


class DryRun(Lenient):
    """Result of a dry run. ``live``: whether the leading scheduler answered."""

    live: bool
    jobs: tuple[TriedJob, ...]


class JobPage(Lenient):
    """A page of jobs, newest first, and the cursor of the next page."""

    jobs: tuple[JobView, ...]
    next: str | None = None


class EventPage(Lenient):
    """Transitions of one job, oldest first."""

    events: tuple[EventView, ...]


class JobReason(Reason):
    """Why a job is in its state. The last seven fields are of queued jobs only."""

    job: str
    state: str
    live: bool | None = None
    """Whether the leading scheduler answered; if not, the place is unknown."""
    age_seconds: float | None = None
    """Age of the stored verdict that is shown instead."""
    queue: str | None = None
    position: int | None = None
    """Place among the queued jobs of its queue; 1 is next."""
    jobs_ahead: int | None = None
    jobs_in_queue: int | None = None
    factors: Factors | None = None


class JobAction(Lenient):
    """Result of an action on one job."""

    id: str
    changed: bool
    state: str


class BulkAnswer(Lenient):
    """Result of an action on many jobs: those matched but not changed were in no state for it."""

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
    """Set if it was requested and the leading scheduler answered."""


class QueueList(Lenient):
    """Queues that the caller may see. ``live``: whether the leading scheduler reported their usage; set only if requested."""

    live: bool | None = None
    queues: tuple[QueueView, ...]


class PriorityClassList(Lenient):
    """Priority classes, the highest first."""

    priority_classes: tuple[PriorityClassSpec, ...]


class ReservationList(Lenient):
    """Reservations, ordered by the start of their windows."""

    reservations: tuple[ReservationSpec, ...]


class ClusterView(ClusterSpec):
    """A cluster with its contact and capacity. Only admins get the numbers of runs."""

    model_config = _IGNORES_UNKNOWN

    state: str
    cordoned: bool = False
    draining: bool = False
    closed: str = ""
    """Why no new job is sent to it; empty if jobs are."""
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
    """Clusters that the caller's jobs may use."""

    clusters: tuple[ClusterView, ...]


class CordonAnswer(Lenient):
    """Whether a cluster is closed to new jobs."""

    name: str
    cordoned: bool


class DrainAnswer(Lenient):
    """Result of a drain: runs that were ordered to stop now, and runs left, these included."""

    name: str
    stopped: int
    live_runs: int
    reachable: bool = True


class LostRuns(Lenient):
    """Number of a cluster's runs that were declared lost."""

    name: str
    lost: int


class QuarantinedRun(Lenient):
    """A run that a cluster's agent holds and that the store lost when it was restored from a backup."""

    run: str
    state: str
    stopping: bool = False
    since: Timestamp


class QuarantinedRuns(Lenient):
    """Quarantined runs of one cluster."""

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
    """An API key just made. ``key`` is the secret, which is returned only once."""

    id: int
    name: str
    role: KeyRole
    key: str


class AgentKey(Lenient):
    """A key for a cluster's agent, just made."""

    cluster: str
    created: bool = False
    """Whether the cluster was made in the same call."""
    key: NewKey
    other_keys: tuple[int, ...] = ()
    """Other valid keys of the cluster's agent."""
    revoked: tuple[int, ...] = ()


class AuditEntry(Lenient):
    """A change or a refused call: by whom, on what, in which request and from which address."""

    at: Timestamp
    actor: str
    """Name of the key; empty if the call had no valid one."""
    action: str
    target: str
    request_id: str = ""
    address: str = ""
    details: dict[str, Any] = Field(default_factory=dict)
    """For a change ``before`` and ``after``; for a submission ``jobs``; for refused calls ``code``, ``detail`` and ``count``."""


class AuditPage(Lenient):
    """A page of entries, newest first, and the cursor of the next page."""

    audit: tuple[AuditEntry, ...]
    next: str | None = None


class PriceBookList(Lenient):
    """Price books."""

    price_books: tuple[PriceBookSpec, ...]


class DatasetList(Lenient):
    """Declared datasets."""

    datasets: tuple[DatasetSpec, ...]


class BurstPolicyView(BurstPolicySpec):
    """A burst policy and its state."""

    model_config = _IGNORES_UNKNOWN

    status: PolicyFigures | None = None


class BurstPolicyList(Lenient):
    """Burst policies. ``live``: whether the leading scheduler reported their state."""

    live: bool
    currency: str
    burst_policies: tuple[BurstPolicyView, ...]


class SimulationPage(Lenient):
    """Simulations, the latest first; ``next`` is the cursor of the next page."""

    simulations: tuple[SimulationView, ...]
    next: int | None


class WebhookSecrets(Lenient):
    """Secrets that sign webhook messages of a queue's jobs: ``secrets``, and until ``previous_until`` also ``previous``."""

    queue: str
    version: int
    secrets: tuple[str, ...]
    previous: tuple[str, ...] = ()
    previous_until: Timestamp | None = None


class DeadLetter(Lenient):
    """An undelivered webhook message. ``hook`` is the index in the job's ``notify``."""

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
    """A page of messages, newest first, and the cursor of the next page."""

    dead: tuple[DeadLetter, ...]
    next: str | None = None
