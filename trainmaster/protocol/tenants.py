"""Objects that admins declare: queues, priority classes, clusters and keys; and the views of these and of jobs."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.admission_policy import AdmissionPolicy
from trainmaster.protocol.agent import MOST_NODES
from trainmaster.protocol.base import Lenient, Name40, QueuePath, Strict, Timestamp, WrittenTime, bounded
from trainmaster.protocol.bursting import HoursSpec
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, Labels, RegionName
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.prices import Factor
from trainmaster.protocol.quantities import Quantity, parse_quantity
from trainmaster.protocol.quota import FlavorName, QuotaSpec, parse_flavor
from trainmaster.protocol.scoring import Profile
from trainmaster.protocol.states import (
    ClusterKind,
    HoldCause,
    JobState,
    KeyRole,
    Order,
    Preemption,
    QueueState,
    RunState,
)


def _positive(text: str | None) -> str | None:
    if text is not None and parse_quantity("memory", text) <= 0:
        raise ValueError(f"must be above 0, not {text}")
    return text


class QueueSpec(Strict):
    """A queue of the tenant tree, named by its path. Jobs go to queues without children."""

    kind: Literal["Queue"] = "Queue"
    path: QueuePath
    weight: Annotated[float, Field(ge=0.000_001, le=1_000_000)] = 1.0
    resources: Annotated[dict[FlavorName, QuotaSpec], bounded(200)] = Field(default_factory=dict)
    """Guarantees and limits of this queue and all below it, by flavor. ``limits: {cpu: 10}`` is short for only limits."""
    order: Order = Order.BEST_EFFORT
    """Whether jobs behind one that cannot start may pass it."""
    default_time_limit: Duration | None = None
    """Assumed run time of a job without a time limit, for reservations; it does not end the job."""
    preemption: Preemption = Preemption.ANY_BORROWER
    """Runs of this queue that may be preempted for others."""
    min_run_time: Duration = "0s"
    """Time after its dispatch in which a run of this queue is not preempted."""
    most_stop_grace: Duration | None = None
    """The longest ``stopGrace`` of jobs submitted to this queue and those below it; at most, and by default, 10m."""
    state: QueueState = QueueState.OPEN
    """Open; held: takes jobs and starts none; draining: starts jobs and takes none; stopped: neither."""
    max_queued: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """The most waiting jobs in this queue; further submissions are refused with 429."""
    max_queued_per_user: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """The most waiting jobs of one API key in this queue."""
    max_running: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """The most jobs dispatched or running at a time in this queue and all below it."""
    allowed_kinds: Annotated[tuple[ClusterKind, ...], bounded(10)] = (ClusterKind.PRIVATE, ClusterKind.EDGE)
    allowed_regions: Annotated[tuple[RegionName, ...], bounded(100)] = ()
    """Clusters where jobs of this queue and of those below it may run; without any, every cluster."""
    default_priority_class: Name40 | None = None
    priority_classes: Annotated[tuple[Name40, ...], bounded(100)] = ()
    """Priority classes that jobs of this queue, and of those below it that name none, may have. Without any: see
    ``domain.priority_classes``."""
    profile: Profile | None = None
    """Profile that ranks clusters for jobs of this queue, and of those below it that name none."""
    admission: AdmissionPolicy | None = None
    """Admission policy for jobs of this queue, and of those below it that have none; without any, the default."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """Expand short forms: ``limits`` by resource are quotas with only a limit, and ``held: true`` is a state."""
        if not isinstance(value, Mapping):
            return value
        value = dict(value)
        limits = value.pop("limits", None)
        if isinstance(limits, Mapping):
            resources = value.get("resources") or {}
            twice = sorted(resources.keys() & limits.keys()) if isinstance(resources, Mapping) else []
            if twice:
                raise ValueError(f"{twice[0]} is in both limits and resources; give its limit in only one of them")
            value["resources"] = {**resources, **{name: {"limit": text} for name, text in limits.items()}}
        elif limits is not None:
            value["limits"] = limits
        held = value.pop("held", None)
        if held is True and "state" not in value:
            value["state"] = QueueState.HELD
        elif held not in (None, False):
            raise ValueError("held and state mean the same; give only state")
        return value

    @field_validator("most_stop_grace")
    @classmethod
    def _within_the_longest(cls, value: str | None) -> str | None:
        if value is not None and parse_duration(value) > LONGEST_STOP_GRACE:
            raise ValueError("is at most 10m")
        return value

    @field_validator("resources")
    @classmethod
    def _quotas_go_together(cls, value: dict[str, QuotaSpec]) -> dict[str, QuotaSpec]:
        for flavor, quota in value.items():
            try:
                quota.check(parse_flavor(flavor)[0])
            except ValueError as error:
                raise ValueError(f"{flavor}: {error}") from error
        return value

    @property
    def parent(self) -> str | None:
        head, slash, _ = self.path.rpartition("/")
        return head if slash else None


class PriorityClassSpec(Strict):
    """A named service class: jobs of a class with a higher value go first inside a queue."""

    kind: Literal["PriorityClass"] = "PriorityClass"
    name: Name40
    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    preemptible: bool = True
    longest_wait: Duration | None = None
    profile: Profile | None = None
    """Profile that ranks clusters for its jobs; overrides their queue's."""
    default: bool = False
    description: Annotated[str, StringConstraints(max_length=1000)] = ""


class ClusterSpec(Strict):
    """A cluster as its owner declares it; its agent reports its capacity."""

    kind: Literal["Cluster"] = "Cluster"
    name: Name40
    cluster_kind: ClusterKind = ClusterKind.PRIVATE
    region: Annotated[str, StringConstraints(max_length=63)] = ""
    provider: Annotated[str, StringConstraints(max_length=63)] = ""
    labels: Labels = Field(default_factory=dict)
    price_book: Name40 | None = None
    """Price book with its prices; without one it costs nothing."""
    price_correction: Factor = Decimal(1)
    """Factor between its invoices and the price book: 1.07 if invoices are 7 % higher."""
    uplink: Annotated[Quantity | None, AfterValidator(_positive)] = None
    """Bandwidth to other clusters in bytes per second, such as 1Gi; if unknown, transfers count as taking no time."""
    connected: Annotated[tuple[HoursSpec, ...], bounded(100)] = ()
    """Hours in which runs are sent there; without any, at all times. Running jobs go on outside of them."""
    only_queues: Annotated[tuple[QueuePath, ...], bounded(1000)] = ()
    """Queues whose jobs may run there, with those below them; without any, all."""
    placement_timeout: Duration = "5m"
    description: Annotated[str, StringConstraints(max_length=1000)] = ""


class DatasetSpec(Strict):
    """Data that jobs name in ``placement.datasets``: its size, its clusters, and where it may be read."""

    kind: Literal["Dataset"] = "Dataset"
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    size: Annotated[Quantity, AfterValidator(_positive)]
    """Size in bytes, such as 500Gi."""
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters that have it, beside those whose agents report it."""
    regions: Annotated[tuple[RegionName, ...], bounded(100)] = ()
    """Regions where jobs that read it may run; without any, all."""
    remote: bool = False
    """Whether jobs may run on clusters without it: it is copied there, with the cost and time of the transfer."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""


class JoinSpec(Strict):
    """A cluster that is to get an agent. Created unless it exists; fields left out keep their value, or get the default."""

    name: Name40
    cluster_kind: ClusterKind | None = None
    labels: Labels = Field(default_factory=dict)


class RotateSpec(Strict):
    """Another key for a cluster's agent."""

    revoke_old: bool = False
    """Revoke the old keys at once: an agent with one is cut off until it has the new key."""


class DrainSpec(Strict):
    """How to handle the runs of a cluster that is closed to new ones."""

    let_finish: bool = False
    """Whether runs may finish; else they are stopped, with time to save their state, and their jobs queued again."""


class DeclareLostSpec(Strict):
    """An admin's declaration that nothing runs on a cluster any more."""

    force: bool = False
    """Even if its agent is in contact."""
    orphans: bool = False
    """Only runs of which the cluster's agent has no record, because another agent was sent them."""


class StopQuarantinedSpec(Strict):
    """Quarantined runs of a cluster to stop; all if none is named."""

    runs: Annotated[tuple[Annotated[str, StringConstraints(max_length=100)], ...], bounded(10_000)] = ()


class ReservationSpec(Strict):
    """Whole nodes reserved for a queue, and for those below it, on each of these clusters in a time window."""

    kind: Literal["Reservation"] = "Reservation"
    name: Name40
    queue: QueuePath
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters on which the nodes are reserved; without any, on every cluster."""
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    node_selector: Labels = Field(default_factory=dict)
    """Labels of the nodes to reserve; without any, any nodes."""
    start: WrittenTime
    end: WrittenTime
    description: Annotated[str, StringConstraints(max_length=1000)] = ""

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.end <= self.start:
            raise ValueError("end must be later than start")
        return self


class KeySpec(Strict):
    """A new API key. The secret is shown once, in the answer."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    role: KeyRole
    queues: Annotated[tuple[QueuePath, ...], bounded(1000)] = ()
    """For users: queues, with all below them, that the key may use."""
    cluster: Name40 | None = None
    """For agents: the one cluster that the key opens."""
    expires_in: Duration | None = None


class RunView(Lenient):
    """One attempt of a job, in answers."""

    id: str
    attempt: int
    cluster: str
    state: RunState
    message: str = ""
    category: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    why_here: str = ""
    scores: dict[str, Any] = {}
    leased_at: Timestamp
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    members: list[dict[str, Any]] = []
    placement: MemberPlacement = {}
    burst: dict[str, Any] | None = None
    """For a run by a burst policy: the policy, the price per hour, and the most that the run may cost."""


class JobView(Lenient):
    """A job in answers. ``shown_state`` is what people see: a wish such as ``cancelling`` overrides the state."""

    id: str
    name: str
    queue: str
    priority_class: str
    priority: int
    state: JobState
    shown_state: str
    hold_cause: HoldCause | None = None
    hold_until: Timestamp | None = None
    message: str = ""
    attempt: int
    retries_used: int
    version: int
    cluster: str | None = None
    submitted_at: Timestamp
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    submitted_by: str = ""
    labels: dict[str, str] = {}
    parameters: dict[str, Any] | None = None
    """The job's own values, if it comes from a table of parameter sets."""
    spec: dict[str, Any] | None = None
    runs: list[RunView] = []
    undelivered: int = 0
    """Number of undelivered webhook messages; only in answers on a single job."""


class EventView(Lenient):
    """One transition of a job; ``seq`` is the version that it created."""

    seq: int
    at: Timestamp
    kind: str
    states: list[str] = []
    attempt: int | None = None
    cluster: str | None = None
    actor: str = ""
    message: str = ""
    details: dict[str, Any] = {}
