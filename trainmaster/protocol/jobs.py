"""The job specification: what a user submits, in YAML or JSON, ``kind: Job``."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.base import Name12, Name24, Name40, QueuePath, Strict, bounded
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.quantities import Quantity, Resources, parse_resources
from trainmaster.protocol.scoring import Profile
from trainmaster.protocol.states import ClusterKind, FailureCategory, JobState

LabelKey = Annotated[
    str,
    StringConstraints(
        max_length=317, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    ),
]
RegionName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
Labels = Annotated[dict[LabelKey, LabelValue], bounded(100)]
Selector = Labels
EnvName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
ResourceName = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=r"^[a-zA-Z0-9./_-]+$")]
Text = Annotated[str, StringConstraints(max_length=32_768)]

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")

LONGEST_STOP_GRACE = 600.0
"""Seconds that members may take to end at most, whatever a specification says: others wait for their places."""
MOST_MEMBERS = 10_000
"""The largest gang: member indexes have at most five digits, and a cluster's agent creates them in one go."""


class Port(Strict):
    """A port that a member listens on; its number reaches every member's environment."""

    name: Name12
    port: Annotated[int, Field(ge=1, le=65535)]


class Toleration(Strict):
    """As in Kubernetes: the taints a member's node may have."""

    key: Annotated[str, StringConstraints(max_length=317)] = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, StringConstraints(max_length=63)] = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a node with this taint may take the member."""
        if self.effect not in ("", effect):
            return False
        if self.operator == "Exists":
            return self.key in ("", key)
        return (self.key, self.value) == (key, value)


class AffinityTerm(Strict):
    """One required expression over node labels; all terms of a member must hold."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[Annotated[str, StringConstraints(max_length=63)], ...], bounded(1000)] = ()

    @model_validator(mode="after")
    def _values_fit_operator(self) -> Self:
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"operator {self.operator} needs at least one value")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        if self.operator in ("Gt", "Lt") and not (len(self.values) == 1 and _WHOLE_NUMBER.fullmatch(self.values[0])):
            raise ValueError(f"operator {self.operator} takes one whole number")
        return self

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets the term. A label that is no whole number is neither greater nor less."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                if value is None or not _WHOLE_NUMBER.fullmatch(value):
                    return False
                number, bound = int(value), int(self.values[0])
                return number > bound if self.operator == "Gt" else number < bound


class MemberTemplate(Strict):
    """What each member of a role runs and needs."""

    image: Annotated[str, StringConstraints(max_length=1024)] = ""
    command: Annotated[tuple[Text, ...], bounded(4096)] = ()
    args: Annotated[tuple[Text, ...], bounded(4096)] = ()
    env: Annotated[dict[EnvName, Text], bounded(2000)] = Field(default_factory=dict)
    working_dir: Text = ""
    resources: Annotated[dict[ResourceName, Quantity], bounded(64)] = Field(default_factory=dict)
    ports: Annotated[tuple[Port, ...], bounded(100)] = ()
    node_selector: Selector = Field(default_factory=dict)
    node_affinity: Annotated[tuple[AffinityTerm, ...], bounded(100)] = ()
    tolerations: Annotated[tuple[Toleration, ...], bounded(100)] = ()
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """On Kubernetes: the number of the user that the member's processes are; None: the one that the cluster's agent gives."""
    run_as_group: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Their group, which volumes belong to as well; None: of the same number as the user."""

    @field_validator("resources")
    @classmethod
    def _parse(cls, value: dict[str, str]) -> dict[str, str]:
        parse_resources(value)
        return value

    @field_validator("env")
    @classmethod
    def _no_reserved_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.startswith("TRAINMASTER_"):
                raise ValueError(f"{name}: names that begin with TRAINMASTER_ are set by the agent")
        return value

    @field_validator("ports")
    @classmethod
    def _ports_differ(cls, value: tuple[Port, ...]) -> tuple[Port, ...]:
        if len({port.name for port in value}) < len(value) or len({port.port for port in value}) < len(value):
            raise ValueError("two ports of a member have the same name or number")
        return value

    @property
    def amounts(self) -> Resources:
        return parse_resources(self.resources)


_LONGEST_RESTART_BACK_OFF = 3600.0


class MemberFailure(Strict):
    """What the failure of one member means: the run fails, that member alone starts again, or all do, so many times."""

    action: Literal["failRun", "restartMember", "restartGang"] = "failRun"
    limit: Annotated[int, Field(ge=0, le=1000)] = 3
    """Restarts of each member alone; of the whole gang, counted for the run."""
    back_off: Duration = "0s"
    """Between a failure and the restart; for the gang, once all of its members have ended."""

    @field_validator("back_off")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if parse_duration(value) > _LONGEST_RESTART_BACK_OFF:
            raise ValueError("backOff is at most 1h: the run keeps its place meanwhile")
        return value


class Role(Strict):
    """Identical members of a job. ``template`` says what they run, or ``podTemplate`` gives the whole pod."""

    name: Name12
    replicas: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] = 1
    min_replicas: Annotated[int, Field(ge=0, le=MOST_MEMBERS)] | None = None
    max_per_node: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] | None = None
    """How many of its members one node takes at most: with 1, the loss of a node costs a single member."""
    member_failure: MemberFailure | None = None
    """What the failure of one of its members means; None: what the job says."""
    template: MemberTemplate | None = None
    pod_template: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_template(self) -> Self:
        if (self.template is None) == (self.pod_template is None):
            raise ValueError("a role has exactly one of template and podTemplate")
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is more than replicas {self.replicas}")
        return self


class Topology(Strict):
    """How close the members must, or should, be: a level of the clusters' topology such as ``rack``."""

    required: LabelKey | None = None
    preferred: LabelKey | None = None
    numa: Literal["none", "bestEffort", "restricted", "singleNode"] = "none"


class Preference(Strict):
    """Clusters that a job prefers to others, by their labels; ``region``, ``kind``, ``provider`` and ``name`` are labels, too."""

    selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1), bounded(20)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


class Placement(Strict):
    """Where the job may go. What is left empty does not restrict."""

    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    kinds: Annotated[tuple[ClusterKind, ...], bounded(10)] = ()
    regions: Annotated[tuple[RegionName, ...], bounded(100)] = ()
    preferred: Annotated[tuple[Preference, ...], bounded(20)] = ()
    selector: Selector = Field(default_factory=dict)
    datasets: Annotated[tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], bounded(100)] = ()
    profile: Profile | None = None
    """By what the best of the clusters that fit is found, before what its priority class and its queue say."""
    emulated_gang: bool = True
    """Whether a cluster will do that only emulates a gang's start: members may come one by one before all have places."""


_RETRIED = (
    FailureCategory.EXIT,
    FailureCategory.SIGNAL,
    FailureCategory.OOM,
    FailureCategory.EVICTED,
    FailureCategory.NODE_LOST,
)


class Retries(Strict):
    """When a failed run is tried again. Returned, preempted and lost runs use none of these."""

    limit: Annotated[int, Field(ge=0, le=1000)] = 0
    exit_codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], bounded(255)] = ()
    categories: Annotated[tuple[FailureCategory, ...], bounded(20)] = _RETRIED
    back_off: Duration = "2s"
    most_back_off: Duration = "10m"


class RequeueAfter(Strict):
    """After this long without contact to the cluster the job may start elsewhere."""

    requeue_after: Duration

    @field_validator("requeue_after")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if parse_duration(value) < 1:
            raise ValueError("requeueAfter is at least 1s")
        return value


class Notify(Strict):
    """A webhook for transitions of this job."""

    url: Annotated[str, StringConstraints(max_length=2000, pattern=r"^https?://[^\s]+$")]
    states: Annotated[tuple[JobState, ...], bounded(20)] = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    """Which transitions are told. Not called ``on``, which YAML reads as ``true``."""


_LONGEST_CHECKPOINT = 600.0


class Checkpoint(Strict):
    """What members are sent before their run ends for another job or is suspended, and how long they get to save their state."""

    signal: Literal["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM"] = "SIGUSR1"
    wait: Duration = "30s"

    @field_validator("wait")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if not 0 < parse_duration(value) <= _LONGEST_CHECKPOINT:
            raise ValueError("wait is more than 0s and at most 10m: another job waits for the place meanwhile")
        return value


class Elastic(Strict):
    """The run may be resized while it goes on, between ``minReplicas`` and ``replicas`` of its roles."""

    step: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] = 1
    """Members that are added at a time."""
    cool_down: Duration = "30s"
    """The least time between a change of size and the next growth."""


class Success(Strict):
    """When a run has succeeded, though others of its members go on: once all members of this role have."""

    role: Name12


# Shared by all specifications that say nothing: pydantic would copy a plain default deeply for each of them.
_ANYWHERE_IN_IT, _ANYWHERE, _NO_RETRIES, _FAIL_RUN = Topology(), Placement(), Retries(), MemberFailure()


class JobSpec(Strict):
    """A whole job. Raises pydantic's ValidationError with the path of each mistake."""

    kind: Literal["Job"] = "Job"
    name: Name24
    queue: QueuePath
    priority_class: Name40 | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    labels: Labels = Field(default_factory=dict)
    roles: Annotated[tuple[Role, ...], bounded(16)]
    min_member: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] | None = None
    topology: Topology = Field(default_factory=lambda: _ANYWHERE_IN_IT)
    placement: Placement = Field(default_factory=lambda: _ANYWHERE)
    time_limit: Duration | None = None
    stop_grace: Duration = "10s"
    checkpoint: Checkpoint | None = None
    elastic: Elastic | None = None
    retries: Retries = Field(default_factory=lambda: _NO_RETRIES)
    member_failure: MemberFailure = Field(default_factory=lambda: _FAIL_RUN)
    """Of roles that do not say otherwise."""
    success: Success | None = None
    """None: once all members have succeeded."""
    on_disconnect: Literal["wait"] | RequeueAfter | None = None
    notify: Annotated[tuple[Notify, ...], bounded(8)] = ()
    suspend: bool = False

    @model_validator(mode="after")
    def _gang_fits_roles(self) -> Self:
        # Counted here and not by pydantic, which would count roles with mistakes as missing.
        if not 1 <= len(self.roles) <= 16:
            raise ValueError(f"a job has 1 to 16 roles, this one has {len(self.roles)}")
        names = [role.name for role in self.roles]
        if len(set(names)) < len(names):
            raise ValueError("two roles have the same name")
        total = sum(role.replicas for role in self.roles)
        if total > MOST_MEMBERS:
            raise ValueError(f"the roles have {total} members together, at most {MOST_MEMBERS} are allowed")
        if self.min_member is not None and self.min_member > total:
            raise ValueError(f"minMember {self.min_member} is more than the {total} members of the roles")
        return self

    @model_validator(mode="after")
    def _can_be_resized(self) -> Self:
        if self.elastic is None:
            return self
        if not any(role.min_replicas is not None and role.min_replicas < role.replicas for role in self.roles):
            raise ValueError("elastic needs a role with minReplicas below replicas: sizes are between the two")
        if any(role.min_replicas == 0 for role in self.roles):
            raise ValueError("a role of an elastic job keeps at least one member: minReplicas is 1 or more")
        if self.min_member is not None:
            raise ValueError("elastic goes by the minReplicas of each role, so minMember has to be left out")
        if self.topology.required is not None or any(role.max_per_node is not None for role in self.roles):
            raise ValueError("elastic cannot be kept together with topology.required or maxPerNode")
        return self

    @model_validator(mode="after")
    def _success_can_come(self) -> Self:
        if self.success is None:
            return self
        deciding = next((role for role in self.roles if role.name == self.success.role), None)
        if deciding is None:
            names = ", ".join(role.name for role in self.roles)
            raise ValueError(f"success.role {self.success.role!r} is no role of the job; there are: {names}")
        if deciding.min_replicas == 0:
            raise ValueError("the role that success waits for keeps at least one member: minReplicas is 1 or more")
        return self

    @property
    def grace_seconds(self) -> float:
        """Seconds between SIGTERM and SIGKILL: what it says, or the longest there is, where an older release stored more."""
        return min(parse_duration(self.stop_grace), LONGEST_STOP_GRACE)

    @property
    def members(self) -> int:
        return sum(role.replicas for role in self.roles)

    def failure_of(self, role: Role) -> MemberFailure:
        """What the failure of a member of this role means."""
        return self.member_failure if role.member_failure is None else role.member_failure
