"""Objects that admins declare: queues, priority classes, clusters and keys; and the views of these and of jobs."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.admission_policy import AdmissionPolicy
from trainmaster.protocol.agent import MOST_NODES
from trainmaster.protocol.arrays import ElementCounts, ElementOf
from trainmaster.protocol.base import (
    Lenient,
    Name40,
    Namespace,
    QueuePath,
    Strict,
    Timestamp,
    WrittenTime,
    bounded,
    example,
    text_schema,
)
from trainmaster.protocol.bursting import HoursSpec
from trainmaster.protocol.durations import DURATION, MOST_CHARACTERS, Duration, parse_duration
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, RegionName, ResourceName
from trainmaster.protocol.labels import Labels
from trainmaster.protocol.member_use import JobUse
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.prices import Factor, PriceFactor
from trainmaster.protocol.quantities import Quantity, parse_quantity, parse_resources
from trainmaster.protocol.quota import FlavorName, QuotaSpec, canonical_flavor, parse_flavor
from trainmaster.protocol.scoring import Profile
from trainmaster.protocol.start_conditions import StartsWhenSpec
from trainmaster.protocol.states import (
    ClusterKind,
    DeadlineState,
    FairBy,
    HoldCause,
    JobActions,
    JobState,
    KeyRole,
    Order,
    OrderBy,
    Preemption,
    QueueState,
    RunState,
)
from trainmaster.protocol.usage import CostOfJob


def _positive(text: str | None) -> str | None:
    if text is not None and parse_quantity("memory", text) <= 0:
        raise ValueError(f"must be above 0, not {text}")
    return text


_MOST_FLAVORS = 200
LONGEST_OVERLAP = 30 * 86_400.0
"""Seconds for which the old secret of a rotated key may stay valid."""


def _by_canonical_flavor(quotas: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return quotas by the canonical names of their flavors; names that are none stay, for the model to refuse. Raises ValueError."""
    out: dict[Any, Any] = {}
    for name, quota in quotas.items():
        try:
            flavor = canonical_flavor(name) if isinstance(name, str) else name
        except ValueError:
            flavor = name
        if flavor in out:
            raise ValueError(f"resources: {name} is the same flavor as another one of these; give it once")
        out[flavor] = quota
    return out


class ConsolidationSpec(Strict):
    """Permission to move runs so that a job fits which needs their room in one piece."""

    after: Duration = "10m"
    """Time that such a job must have waited before runs are moved for it."""
    max_lost_work: Duration = "10m"
    """The longest time that a run without ``checkpoint`` may have run: a move costs it that work."""
    max_moves_per_hour: Annotated[int, Field(ge=0, le=100_000)] = 10
    """The most runs of the queue and of those below it that are moved in an hour."""


class IdleGpusThen(StrEnum):
    """Measures against jobs whose GPUs do nothing."""

    NOTIFY = "notify"
    RELEASE = "release"


def _seconds_of_idle(value: str) -> str:
    if not 300 <= parse_duration(value) <= 39_600:
        raise ValueError("is from 5m to 11h: a day of use is kept as it was sampled")
    return value


def _percent_of_idle(value: Any) -> Any:
    number = value[:-1].strip() if isinstance(value, str) and value.endswith("%") else ""
    return int(number) if number.isdecimal() and number.isascii() and len(number) <= 3 else value


_IDLE_SCHEMA = text_schema(
    r"^([5-9]|[1-9][0-9]|[1-5][0-9]{2}|6[0-5][0-9]|660)m$|^([1-9]|10)h([1-5]?[0-9]m)?$|^11h$",
    MOST_CHARACTERS,
    "30m",
    "1h30m",
    least=2,
    also={"anyOf": [{"type": "string", "pattern": DURATION}, {"type": "number", "minimum": 0}]},
)


class IdleGpusSpec(Strict):
    """Policy for running jobs whose GPUs are all at work for less than a part of the time."""

    after: Annotated[Duration, AfterValidator(_seconds_of_idle), _IDLE_SCHEMA] = "1h"
    """Time for which all samples have to show that, from 5m to 11h. Nothing is known of a time without samples."""
    below: Annotated[int, Field(ge=1, le=50), BeforeValidator(_percent_of_idle)] = 5
    """Percent of the time at work, from 1 to 50, below which a member's GPUs are idle; ``5%`` may be written, too."""
    then: IdleGpusThen = IdleGpusThen.NOTIFY
    """Measure: ``notify`` warns the user once; ``release`` also suspends the job, if it goes on for as long again."""


UserWeight = Annotated[float, Field(ge=0.000_001, le=1_000_000)]


class QueueSpec(Strict):
    """A queue of the tenant tree, named by its path. Jobs go to queues without children."""

    model_config = example(
        kind="Queue",
        path="research/vision",
        weight=2,
        resources={"nvidia.com/gpu": {"guaranteed": "16", "limit": "48"}},
        defaultTimeLimit="4h",
    )

    kind: Literal["Queue"] = "Queue"
    """Kind of this document."""
    path: QueuePath
    """Path of the queue in the tree; the queue above it must exist."""
    weight: Annotated[float, Field(ge=0.000_001, le=1_000_000)] = 1.0
    """Weight among its siblings beyond guarantees: a queue of weight 3 gets three times as much as one of weight 1."""
    resources: Annotated[dict[FlavorName, QuotaSpec], bounded(_MOST_FLAVORS)] = Field(default_factory=dict)
    """Guarantees and limits of this queue and all below it, by flavor. ``limits: {cpu: 10}`` is short for only limits."""
    order: Order = Order.BEST_EFFORT
    """Rule for jobs behind one that cannot start: ``strict``, they wait; ``bestEffort``, they may pass it."""
    order_by: OrderBy | None = None
    """Order of jobs inside a class in this queue, and in those below it that say nothing: ``age``; ``slowdown``, by wait plus
    expected run time in run times, so that short jobs do not wait as long as long ones; ``shortestBackfill``, by age, but of the
    jobs behind one that lacks capacity the shortest go first; or ``deadline``, by their deadlines. Without it: ``age``.
    """
    fair_by: FairBy | None = None
    """Sharing of the turns of one class in this queue, and in those below it that say nothing: ``user``, between the users who
    submitted jobs, by what they use; ``none``, by age alone. Without it: ``user``, and ``none`` in a queue whose order is ``strict``.
    """
    user_weights: Annotated[dict[Name40, UserWeight], bounded(10_000)] = Field(default_factory=dict)
    """Weights of users among each other in this queue and in those below it, by the names of their keys; 1 for others."""
    max_running_per_user: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """The most jobs that one user has dispatched or running at a time in this queue and all below it."""
    limits_per_user: Annotated[dict[ResourceName, Quantity], bounded(64)] = Field(default_factory=dict)
    """The most of each resource that the jobs of one user use at a time in this queue and all below it."""
    default_time_limit: Duration | None = None
    """Assumed run time of a job without a time limit, for reservations; it does not end the job."""
    preemption: Preemption = Preemption.ANY_BORROWER
    """Runs of this queue that may be preempted for others."""
    min_run_time: Duration = "0s"
    """Time after its dispatch in which a run of this queue is not preempted."""
    consolidation: ConsolidationSpec | None = None
    """Permission to move runs of this queue, and of those below it that say nothing; without it, none are moved."""
    idle_gpus: IdleGpusSpec | None = None
    """Policy for running jobs of this queue, and of those below it that say nothing, whose GPUs do nothing; without it, there is
    none.
    """
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
    starts_when: StartsWhenSpec | None = None
    """Conditions under which jobs of this queue, and of all below it, start: hours, quiet clusters, low prices. Those of all queues
    above must hold, too.
    """
    allowed_kinds: Annotated[tuple[ClusterKind, ...], bounded(10)] = (ClusterKind.PRIVATE, ClusterKind.EDGE)
    """Kinds of clusters where jobs of this queue may run."""
    allowed_regions: Annotated[tuple[RegionName, ...], bounded(100)] = ()
    """Regions of the clusters where jobs of this queue and of those below it may run; without any, all."""
    default_priority_class: Name40 | None = None
    """Priority class of jobs of this queue that name none; by default the installation's."""
    priority_classes: Annotated[tuple[Name40, ...], bounded(100)] = ()
    """Priority classes that users may give to jobs of this queue, and of those below it that name none. Without any: the
    default class, and preemptible classes that are no higher.
    """
    job_actions: JobActions | None = None
    """Jobs of this queue, and of those below it that say nothing, that users may cancel, suspend, resume, retry and change: ``own``,
    those submitted by keys of the same name, or ``any``. Without it: ``own``.
    """
    profile: Profile | None = None
    """Profile that ranks clusters for jobs of this queue, and of those below it that name none."""
    price_factor: PriceFactor | None = None
    """Factor between cost and charge of its jobs, and of those of queues below it that have none; None: 1."""
    admission: AdmissionPolicy | None = None
    """Admission policy for jobs of this queue, and of those below it that have none; without any, the default."""
    namespace: Namespace | None = None
    """Namespace of its jobs in the Kubernetes API, which other queues may have, too; None: its path with ``-`` in place of ``/``.
    A new object that names no queue goes to the only queue of its namespace.
    """
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""

    @classmethod
    def long_form(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input with its short forms expanded, and each flavor under its canonical name: ``limits`` by resource are quotas
        with only a limit, and ``held: true`` is a state. Raises ValueError.
        """
        out = dict(value)
        limits = out.pop("limits", None)
        if isinstance(limits, Mapping):
            resources = out.get("resources") or {}
            twice = sorted(resources.keys() & limits.keys()) if isinstance(resources, Mapping) else []
            if twice:
                raise ValueError(f"{twice[0]} is in both limits and resources; give its limit in only one of them")
            out["resources"] = {**resources, **{name: {"limit": text} for name, text in limits.items()}}
        elif limits is not None:
            out["limits"] = limits
        held = out.pop("held", None)
        if held is True and "state" not in out:
            out["state"] = QueueState.HELD
        elif held not in (None, False):
            raise ValueError("held and state mean the same; give only state")
        if isinstance(resources := out.get("resources"), Mapping) and len(resources) <= _MOST_FLAVORS:
            out["resources"] = _by_canonical_flavor(resources)
        return out

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        return cls.long_form(value) if isinstance(value, Mapping) else value

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

    @field_validator("limits_per_user")
    @classmethod
    def _are_amounts(cls, value: dict[str, str]) -> dict[str, str]:
        parse_resources(value)
        return value

    @model_validator(mode="after")
    def _shares_no_fixed_order(self) -> Self:
        if self.order is Order.STRICT and self.fair_by is FairBy.USER:
            raise ValueError("fairBy: user and order: strict contradict each other: give only one of them")
        return self

    @property
    def parent(self) -> str | None:
        head, slash, _ = self.path.rpartition("/")
        return head if slash else None


class PriorityClassSpec(Strict):
    """A named service class: jobs of a class with a higher value go first inside a queue."""

    model_config = example(kind="PriorityClass", name="urgent", value=1000, preemptible=False, longestWait="10m")

    kind: Literal["PriorityClass"] = "PriorityClass"
    """Kind of this document."""
    name: Name40
    """Name of the class."""
    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    """Rank of the class: jobs of a class with a higher value go first."""
    preemptible: bool = True
    """True if runs of this class may be preempted."""
    longest_wait: Duration | None = None
    """Wait after which a job is urgent: it goes before others of its queue, and what it lacks is kept for it; None: never."""
    profile: Profile | None = None
    """Profile that ranks clusters for its jobs; overrides their queue's."""
    price_factor: PriceFactor | None = None
    """Factor between the cost of its jobs and their charge, besides the factor of their queue; None: 1."""
    default: bool = False
    """True if jobs that name no class have this one; there is one default."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""


class ClusterSpec(Strict):
    """A cluster as an admin declares it; its agent reports its capacity."""

    model_config = example(
        kind="Cluster", name="west", clusterKind="private", region="eu-central", labels={"tier": "training"}
    )

    kind: Literal["Cluster"] = "Cluster"
    """Kind of this document."""
    name: Name40
    """Name of the cluster."""
    cluster_kind: ClusterKind = ClusterKind.PRIVATE
    """Kind of the cluster; jobs go to public ones only by burst policies."""
    region: Annotated[str, StringConstraints(max_length=63)] = ""
    """Region of the cluster, which jobs, queues and datasets may require."""
    provider: Annotated[str, StringConstraints(max_length=63)] = ""
    """Provider of the cluster, a label for jobs' preferences and selectors."""
    labels: Labels = Field(default_factory=dict)
    """Labels, by which jobs select or prefer clusters."""
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
    """Time after which a run whose members did not start there is returned and its job queued again."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""


class DatasetSpec(Strict):
    """Data that jobs name in ``placement.datasets``: its size, its clusters, and where it may be read."""

    model_config = example(kind="Dataset", name="imagenet", size="150Gi", clusters=["west"], remote=True)

    kind: Literal["Dataset"] = "Dataset"
    """Kind of this document."""
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Name of the dataset."""
    size: Annotated[Quantity, AfterValidator(_positive)]
    """Size in bytes, such as 500Gi."""
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters that have it, beside those whose agents report it."""
    regions: Annotated[tuple[RegionName, ...], bounded(100)] = ()
    """Regions where jobs that read it may run; without any, all."""
    remote: bool = False
    """True if jobs may run on clusters without it: it is copied there, with the cost and time of the transfer."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""


class JoinSpec(Strict):
    """A cluster that is to get an agent. Created unless it exists; fields left out keep their value, or get the default."""

    model_config = example(name="west", clusterKind="private", labels={"tier": "training"})

    name: Name40
    """Name of the cluster, as in the address."""
    cluster_kind: ClusterKind | None = None
    """Kind of the cluster; by default private."""
    labels: Labels = Field(default_factory=dict)
    """Labels of the cluster."""


class RotateSpec(Strict):
    """Another key for a cluster's agent."""

    model_config = example(revokeOld=False)

    revoke_old: bool = False
    """Revoke the old keys at once: an agent with one is cut off until it has the new key."""


class KeySignIn(Strict):
    """The API key with which somebody signs in by a browser."""

    model_config = example(key="tmk_...")

    key: str = Field(min_length=1, max_length=500)
    """Secret of the key."""


class RotateKeySpec(Strict):
    """Another secret for an API key: a new key of the same name and role."""

    model_config = example(overlap="1h", expiresIn="90d")

    overlap: Duration = "1h"
    """Time for which the old secret stays valid; 0s: it is invalid at once."""
    expires_in: Duration | None = None
    """Time above 0s after which the new key is invalid; without it, as long as the old one was to live in all."""

    @field_validator("expires_in")
    @classmethod
    def _lives_for_a_while(cls, value: str | None) -> str | None:
        if value is not None and parse_duration(value) <= 0:
            raise ValueError("must be above 0s: the key would be invalid at once")
        return value

    @field_validator("overlap")
    @classmethod
    def _is_no_second_key(cls, value: str) -> str:
        if parse_duration(value) > LONGEST_OVERLAP:
            raise ValueError("is at most 30d: a key that two programs use is two keys")
        return value


class DrainSpec(Strict):
    """Handling of the runs of a cluster that is closed to new ones."""

    model_config = example(letFinish=True)

    let_finish: bool = False
    """True if runs may finish; else they are stopped, with time to save their state, and their jobs queued again."""


class DeclareLostSpec(Strict):
    """An admin's declaration that nothing runs on a cluster any more."""

    model_config = example(force=False)

    force: bool = False
    """True to do so even if its agent is in contact."""
    orphans: bool = False
    """True for only those runs of which the cluster's agent has no record, because another agent was sent them."""


class StopQuarantinedSpec(Strict):
    """Quarantined runs of a cluster to stop; all if none is named."""

    model_config = example(runs=["bert-7k2p9xq.1"])

    runs: Annotated[tuple[Annotated[str, StringConstraints(max_length=100)], ...], bounded(10_000)] = ()
    """Ids of the runs."""


class ReservationSpec(Strict):
    """Whole nodes reserved for a queue, and for those below it, on each of these clusters in a time window."""

    model_config = example(
        kind="Reservation",
        name="night",
        queue="research/vision",
        clusters=["west"],
        nodes=4,
        start="2030-01-01T20:00:00Z",
        end="2030-01-02T06:00:00Z",
    )

    kind: Literal["Reservation"] = "Reservation"
    """Kind of this document."""
    name: Name40
    """Name of the reservation."""
    queue: QueuePath
    """Path of the queue whose jobs, and those of queues below it, may use the nodes."""
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters on which the nodes are reserved; without any, on every cluster."""
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    """Number of nodes on each cluster."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels of the nodes to reserve; without any, any nodes."""
    start: WrittenTime
    """Start of the window."""
    end: WrittenTime
    """End of the window, later than its start."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.end <= self.start:
            raise ValueError("end must be later than start")
        return self


UserPattern = Annotated[str, StringConstraints(min_length=1, max_length=100)]
"""A user's name, or the beginning of names and a ``*``."""


class KeySpec(Strict):
    """A new API key. The secret is shown once, in the answer."""

    model_config = example(name="vision-team", role="user", queues=["research/vision"], expiresIn="90d")

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """Name of the key, for people; the audit shows it."""
    role: KeyRole
    """Role of the key."""
    queues: Annotated[tuple[QueuePath, ...], bounded(1000)] = ()
    """Queues, with all below them, for which the key has the role. The roles queue-admin, submitter and viewer need at least one;
    operator, auditor and finance are for the whole installation without any.
    """
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters that an owner's key may look after; only for the role owner."""
    cluster: Name40 | None = None
    """Cluster whose agent has the key; only for the role agent."""
    on_behalf_of: Annotated[tuple[UserPattern, ...], bounded(1000)] = ()
    """Users for whom the key may submit jobs, which are theirs then; only for roles that may submit.
    A * at the end stands for any text.
    """
    expires_in: Duration | None = None
    """Time above 0s after which the key is invalid; without it, the key does not expire."""

    @field_validator("on_behalf_of")
    @classmethod
    def _has_stars_at_ends(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if "*" in one[:-1]:
                raise ValueError(f"a * stands for any text at the end of a name alone, not as in {one!r}")
        return value

    @field_validator("expires_in")
    @classmethod
    def _lives(cls, value: str | None) -> str | None:
        if value is not None and parse_duration(value) <= 0:
            raise ValueError("must be above 0s: the key would be invalid at once")
        return value


class RunView(Lenient):
    """One attempt of a job, in answers."""

    id: str
    """Id of the run."""
    attempt: int
    """Number of the attempt, from 1."""
    cluster: str
    """Cluster of the run."""
    state: RunState
    """State of the run."""
    message: str = ""
    """Message for people, such as the reason of a failure."""
    category: str | None = None
    """Category of the failure that ended the run."""
    exit_code: int | None = None
    """Exit code of the member that ended the run."""
    signal: int | None = None
    """Signal that ended that member."""
    why_here: str = ""
    """Sentence that explains the choice of the cluster."""
    scores: dict[str, Any] = {}
    """Scores of the clusters that were compared."""
    leased_at: Timestamp
    """Time of the decision to start it."""
    started_at: Timestamp | None = None
    """Time at which its members ran."""
    ended_at: Timestamp | None = None
    """Time of its end."""
    silent_since: Timestamp | None = None
    """Time of the last contact with its cluster's agent, where that is out of contact: what it has done since then is not known."""
    members: list[dict[str, Any]] = []
    """States of its members, where the agent reported them."""
    placement: MemberPlacement = {}
    """Members by node group and role."""
    burst: dict[str, Any] | None = None
    """For a run by a burst policy: the policy, the price per hour, and the most that the run may cost."""
    results: dict[str, Any] | None = None
    """Results that its member of rank 0 has left, if it has succeeded or failed and there are any."""
    results_error: str = ""
    """Reason why what that member has left cannot be read."""


class JobView(Lenient):
    """A job in answers. ``shown_state`` is what people see: a wish such as ``cancelling`` overrides the state."""

    model_config = example(
        id="bert-7k2p9xq",
        name="bert",
        queue="research/vision",
        priorityClass="normal",
        priority=0,
        state="running",
        shownState="running",
        attempt=1,
        retriesUsed=0,
        version=4,
        cluster="west",
        submittedAt="2026-11-24T08:00:00.000Z",
        startedAt="2026-11-24T08:00:12.000Z",
        submittedBy="vision-team",
        labels={"team": "vision"},
    )

    id: str
    """Id of the job."""
    name: str
    """Name of the job."""
    queue: str
    """Path of its queue."""
    priority_class: str
    """Its priority class."""
    priority: int
    """Its priority within the class."""
    state: JobState
    """State of the job."""
    shown_state: str
    """State as people see it: a request such as ``cancelling`` overrides the state."""
    hold_cause: HoldCause | None = None
    """Reason for which a held job is held."""
    hold_until: Timestamp | None = None
    """Time at which a held job is queued again by itself."""
    deadline: Timestamp | None = None
    """Time by which it should have ended."""
    deadline_state: DeadlineState | None = None
    """Standing towards its deadline; missing for a job that has none, or has failed or was cancelled before."""
    message: str = ""
    """Message for people, such as the reason of a failure."""
    attempt: int
    """Number of its latest attempt; 0 before the first."""
    retries_used: int
    """Number of retries used."""
    version: int
    """Version of the job, which rises with each transition."""
    cluster: str | None = None
    """Cluster of its latest run."""
    submitted_at: Timestamp
    """Time of its submission."""
    started_at: Timestamp | None = None
    """Time at which it first ran; each of its runs has its own."""
    ended_at: Timestamp | None = None
    """Time of its end."""
    ran_seconds: float | None = None
    """Seconds for which those of its runs that have ended were running, together; missing where none was."""
    running_since: Timestamp | None = None
    """Time at which its present run began to run."""
    submitted_by: str = ""
    """User whose job it is: the name of the API key that submitted it, or the user on whose behalf one did."""
    submitted_through: str | None = None
    """Name of the API key that submitted it on behalf of ``submittedBy``."""
    labels: dict[str, str] = {}
    """Its labels."""
    group: str | None = None
    """Name of its group of jobs."""
    parameters: dict[str, Any] | None = None
    """The job's own values, if it comes from a table of parameter sets."""
    spec: dict[str, Any] | None = None
    """Its specification; only in answers on a single job."""
    runs: list[RunView] = []
    """Its runs, oldest first; only in answers on a single job."""
    undelivered: int = 0
    """Number of undelivered webhook messages; only in answers on a single job."""
    use: JobUse | None = None
    """Use of its latest run, beside what was requested; only in answers on a single job."""
    cost: CostOfJob | None = None
    """Cost of its runs until now, as usage reports have it; missing before it has nodes, and where their clusters have no prices;
    only in answers on a single job.
    """
    elements: ElementCounts | None = None
    """Its elements by state, if it is an array; only in answers on a single job."""
    element_of: ElementOf | None = None
    """The array that it runs an element of, if it does; only in answers on a single job."""
    results: dict[str, Any] | None = None
    """Results of its latest run that has succeeded or failed, if it has left any; only in answers on a single job."""
    results_error: str = ""
    """Reason why what that run has left cannot be read; only in answers on a single job."""

    def ran_until(self, moment: datetime) -> float | None:
        """Return the seconds for which runs of the job were running until ``moment``; None where none has. Time between runs does
        not count.
        """
        if self.running_since is None:
            return self.ran_seconds
        return (self.ran_seconds or 0.0) + max(0.0, (moment - self.running_since).total_seconds())


class EventView(Lenient):
    """One transition of a job; ``seq`` is the version that it created."""

    model_config = example(
        seq=1, at="2026-11-24T08:00:00.000Z", kind="submitted", states=["queued"], actor="vision-team"
    )

    seq: int
    """Version of the job that the transition created."""
    at: Timestamp
    """Time of the transition."""
    kind: str
    """Kind of the transition."""
    states: list[str] = []
    """States that the job entered by it, in order."""
    attempt: int | None = None
    """Attempt that it belongs to."""
    cluster: str | None = None
    """Cluster of that attempt."""
    actor: str = ""
    """Name of the API key that caused it; empty if the system did."""
    message: str = ""
    """Message for people."""
    details: dict[str, Any] = {}
    """Further values, by kind of the transition."""


class JobEventView(EventView):
    """A transition of one of many jobs."""

    model_config = example(
        job="bert-7k2p9xq",
        queue="research/vision",
        seq=1,
        at="2026-11-24T08:00:00.000Z",
        kind="submitted",
        states=["queued"],
        actor="vision-team",
        position="MToxMDM0OjU6MToxNzY0MDYyODgw",
    )

    job: str
    """Id of the job."""
    queue: str
    """Path of its queue."""
    position: str
    """Position behind this transition, from which a page or a stream goes on."""
