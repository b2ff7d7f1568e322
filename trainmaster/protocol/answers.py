"""Answers of the API that hold several objects, or show more of one than was declared."""

from typing import Any

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.base import Lenient, Strict, Timestamp
from trainmaster.protocol.bursting import BurstPolicySpec, PolicyFigures
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.queue_position import Factors, QueueFigures, Trial
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.simulations import SimulationView
from trainmaster.protocol.states import KeyRole, RunState
from trainmaster.protocol.tenants import (
    ClusterSpec,
    DatasetSpec,
    EventView,
    JobView,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
)


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
    """A job of a dry run. ``held``: it would wait to be resumed. ``trial`` is missing where no leading scheduler answered."""

    name: str
    queue: str
    held: bool
    trial: Trial | None = None


class DryRun(Lenient):
    """What would become of jobs. ``live``: whether the leading scheduler was asked."""

    live: bool
    jobs: tuple[TriedJob, ...]


class JobPage(Lenient):
    """Jobs, the newest first; ``next`` is the cursor of the following page."""

    jobs: tuple[JobView, ...]
    next: str | None


class EventPage(Lenient):
    """Transitions of one job, the oldest first."""

    events: tuple[EventView, ...]


class JobReason(Reason):
    """Why a job is where it is; of one that is queued, also its place."""

    job: str
    state: str
    live: bool | None = None
    """Of a queued job: whether the leading scheduler told its place. If not, ``ageSeconds`` is the age of the stored reason."""
    age_seconds: float | None = None
    queue: str | None = None
    position: int | None = None
    jobs_ahead: int | None = None
    jobs_in_queue: int | None = None
    factors: Factors | None = None


class JobAction(Lenient):
    """What an action did to a job. ``changed``: false where it was done before."""

    id: str
    changed: bool
    state: str


class BulkAnswer(Lenient):
    """How many jobs a filter matched and how many were changed."""

    matched: int
    changed: int
    dry_run: bool


class QueueView(QueueSpec):
    """A queue with its jobs by state."""

    is_leaf: bool
    jobs: dict[str, int]
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

    state: str
    cordoned: bool
    draining: bool
    closed: str
    """Why no new job is sent to it; empty where jobs are."""
    last_contact: Timestamp | None
    agent_version: str
    live_runs: int | None = None
    stopping_runs: int | None = None
    orphaned_runs: int | None = None
    quarantined_runs: int | None = None
    runtime: str | None
    scheduler: str | None
    capacity: dict[str, str]
    nodes: int
    groups: tuple[NodeGroup, ...]
    capabilities: tuple[str, ...]


class ClusterList(Lenient):
    """Clusters that the caller's jobs may go to."""

    clusters: tuple[ClusterView, ...]


class CordonAnswer(Lenient):
    """Whether a cluster is closed to new jobs."""

    name: str
    cordoned: bool


class DrainAnswer(Lenient):
    """How many runs of a cluster were asked to stop, how many are left, and whether its agent is in contact."""

    name: str
    stopped: int
    live_runs: int
    reachable: bool


class LostRuns(Lenient):
    """How many runs of a cluster were declared lost."""

    name: str
    lost: int


class QuarantinedRun(Lenient):
    """A run that an agent holds and that the store has forgotten."""

    run: str
    state: RunState
    stopping: bool
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
    hint: str
    role: KeyRole
    queues: tuple[str, ...]
    cluster: str | None
    created_at: Timestamp
    expires_at: Timestamp | None
    revoked_at: Timestamp | None


class KeyList(Lenient):
    """All API keys."""

    keys: tuple[KeyView, ...]


class NewKey(Lenient):
    """An API key with its secret, which is told this once."""

    id: int
    name: str
    role: KeyRole
    key: str


class AgentKey(Lenient):
    """A key for the agent of a cluster, and the keys that it had before by their ids."""

    cluster: str
    created: bool | None = None
    """Of ``join``: whether the cluster was made by it."""
    key: NewKey
    other_keys: tuple[int, ...]
    revoked: tuple[int, ...] = ()


class AuditEntry(Lenient):
    """One change, or one refused call."""

    at: Timestamp
    actor: str
    action: str
    target: str
    request_id: str | None
    address: str | None
    details: dict[str, Any] | None


class AuditPage(Lenient):
    """Changes and refused calls, the newest first."""

    audit: tuple[AuditEntry, ...]
    next: str | None


class PriceBookList(Lenient):
    """Price books."""

    price_books: tuple[PriceBookSpec, ...]


class DatasetList(Lenient):
    """Data that was declared."""

    datasets: tuple[DatasetSpec, ...]


class BurstPolicyView(BurstPolicySpec):
    """A burst policy, and how it stands."""

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
    """The secrets that sign a queue's messages; the previous ones sign as well until ``previousUntil``."""

    queue: str
    version: int
    secrets: tuple[str, ...]
    previous: tuple[str, ...] = ()
    previous_until: Timestamp | None = None


class DeadLetter(Lenient):
    """A webhook message that was given up."""

    id: int
    job: str
    queue: str
    seq: int
    hook: int
    url: str
    states: tuple[str, ...]
    attempts: int
    error: str
    created_at: Timestamp
    dead_at: Timestamp


class DeadLetterPage(Lenient):
    """Webhook messages that were given up, the newest first."""

    dead: tuple[DeadLetter, ...]
    next: str | None
