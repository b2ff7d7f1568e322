"""The job specification: what a user submits, in YAML or JSON, ``kind: Job``."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.arrays import JobArray
from trainmaster.protocol.base import Name12, Name24, Name40, QueuePath, Strict, bounded, example, worded_pattern
from trainmaster.protocol.dependencies import Predecessor
from trainmaster.protocol.device_claims import claimed, device_resource
from trainmaster.protocol.device_parts import DEFAULT_DEVICE, memory_resource, part_resource, thousandths
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.files import JobInputs, JobOutputs, check_outputs
from trainmaster.protocol.groups import GroupName
from trainmaster.protocol.hami_requests import HAMI_RESOURCES
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.labels import LabelKey, Labels, LabelValue
from trainmaster.protocol.mounts import (
    MOST_FILE_BYTES,
    SHARED_MEMORY,
    FileText,
    MemberVolume,
    MountPath,
    SecretKey,
    is_below,
)
from trainmaster.protocol.notices import Chat, EmailAddresses, WebhookUrl, check_one_channel
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import Quantity, Resources, parse_quantity, parse_resources
from trainmaster.protocol.scoring import Profile
from trainmaster.protocol.sessions import SessionSpec
from trainmaster.protocol.start_times import Deadline, StartAfter
from trainmaster.protocol.states import ClusterKind, DependencyFailure, FailureCategory, JobState

RegionName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Selector = Labels
EnvName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=256,
        pattern=worded_pattern(
            r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", "letters, digits, '_', '-' and '.', and no digit at the beginning"
        ),
    ),
]
ResourceName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=317,
        pattern=worded_pattern(
            r"^[a-zA-Z0-9./_-]+$", "a resource such as cpu or nvidia.com/gpu: letters, digits, '.', '/', '_' and '-'"
        ),
    ),
]
Text = Annotated[str, StringConstraints(max_length=32_768)]

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")

LONGEST_STOP_GRACE = 600.0
"""The longest grace in seconds, whatever a specification says: other jobs wait for the places."""
MOST_MEMBERS = 10_000
"""The largest gang: member indexes have at most five digits, and an agent creates all members at once."""
MOST_DEVICES = 32
"""The most devices of a claim in Kubernetes."""
MOST_SHARING = 256
"""The most pods that share a claim in Kubernetes, by the length of its ``status.reservedFor``."""
_MOST_TERMS = 100
_MOST_AFFINITY_VALUES = 2_000


class Port(Strict):
    """A port that a member listens on; its number is in every member's environment."""

    name: Name12
    """Name of the port, by which its environment variables are named."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Number of the port."""


class Toleration(Strict):
    """A toleration as in Kubernetes: taints that a member's node may have."""

    key: Annotated[str, StringConstraints(max_length=317)] = ""
    """Key of the taint; empty, with ``Exists``, for all keys."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """``Equal`` compares the value; ``Exists`` does not."""
    value: Annotated[str, StringConstraints(max_length=63)] = ""
    """Value of the taint, for ``Equal``."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty for all effects."""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Return whether it tolerates a taint."""
        if self.effect not in ("", effect):
            return False
        if self.operator == "Exists":
            return self.key in ("", key)
        return (self.key, self.value) == (key, value)


class AffinityTerm(Strict):
    """One required expression over node labels; all terms of a member must hold."""

    key: LabelKey
    """Key of the node label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """Comparison of the label with ``values``."""
    values: Annotated[tuple[Annotated[str, StringConstraints(max_length=63)], ...], bounded(1000)] = ()
    """Values to compare with: one or more for ``In`` and ``NotIn``, one whole number for ``Gt`` and ``Lt``, else none."""

    @model_validator(mode="after")
    def _values_fit_operator(self) -> Self:
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"operator {self.operator} needs at least one value")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        if self.operator in ("Gt", "Lt") and not (len(self.values) == 1 and _WHOLE_NUMBER.fullmatch(self.values[0])):
            raise ValueError(f"operator {self.operator} takes one whole number")
        return self

    @cached_property
    def _known_values(self) -> frozenset[str]:
        return frozenset(self.values)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether ``labels`` meet the term."""
        return self.admits(labels.get(self.key))

    def admits(self, value: str | None) -> bool:
        """Return whether a node whose label has this value, None for no label, meets the term.

        A label that is not a whole number is neither greater nor less.
        """
        match self.operator:
            case "In":
                return value in self._known_values
            case "NotIn":
                return value not in self._known_values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                if value is None or not _WHOLE_NUMBER.fullmatch(value):
                    return False
                number, bound = int(value), int(self.values[0])
                return number > bound if self.operator == "Gt" else number < bound


class DeviceRequest(Strict):
    """Devices of Dynamic Resource Allocation that each member gets, of one device class."""

    name: Annotated[
        str,
        StringConstraints(
            max_length=63,
            pattern=worded_pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "lower-case letters, digits and '-'"),
        ),
    ]
    """Name of the request, unique in the template."""
    device_class: Annotated[
        str,
        StringConstraints(
            max_length=253,
            pattern=worded_pattern(
                r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
                "the name of a DeviceClass: lower-case letters, digits, '-' and '.'",
            ),
        ),
    ] = Field(alias="class")
    """Name of the DeviceClass."""
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 1
    """Number of devices."""
    selectors: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=10_240)], ...], bounded(32)
    ] = ()
    """CEL expressions that each device has to satisfy, beside those of its class."""
    shared_by: Annotated[int, Field(ge=2, le=MOST_SHARING)] | None = None
    """Number of members, next to each other by index, that share the devices by one claim and so a node; None: each has its own."""


class GpuPart(Strict):
    """A part of one GPU that each member gets; it shares the GPU with other members. Give ``fraction`` or ``memory``."""

    fraction: Quantity | None = None
    """Fraction of a GPU, more than 0 and less than 1, such as ``0.5``; a thousandth is the smallest."""
    memory: Quantity | None = None
    """Memory on a GPU, such as ``20Gi``: which part of a GPU that is depends on its product."""
    resource: ResourceName = DEFAULT_DEVICE
    """Resource that counts whole GPUs of the sort."""

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if (self.fraction is None) == (self.memory is None):
            raise ValueError("exactly one of fraction and memory has to be given")
        if "/" not in self.resource:
            raise ValueError(f"resource must be that of a device, such as {DEFAULT_DEVICE}, not {self.resource}")
        if not self.amounts:
            raise ValueError("memory must be above 0")
        return self

    @property
    def amounts(self) -> Resources:
        """The part as an amount of the resource that counts such parts."""
        if self.fraction is not None:
            return {part_resource(self.resource): thousandths(self.fraction)}
        found = parse_quantity("memory", self.memory or "0")
        return {memory_resource(self.resource): found} if found else {}


class MemberTemplate(Strict):
    """Command and needs of each member of a role."""

    image: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Container image; needed where members are pods."""
    command: Annotated[tuple[Text, ...], bounded(4096, least=1)] = ()
    """Program and its first arguments; without it, the image's entry point."""
    args: Annotated[tuple[Text, ...], bounded(4096)] = ()
    """Arguments after ``command``."""
    env: Annotated[dict[EnvName, Text], bounded(2000)] = Field(default_factory=dict)
    """Environment variables. Names that begin with ``TRAINMASTER_`` are reserved."""
    working_dir: Text = ""
    """Working directory; empty: the image's, or one of the run's own."""
    resources: Annotated[dict[ResourceName, Quantity], bounded(64)] = Field(default_factory=dict)
    """Amounts that each member requests, by resource, such as ``cpu``, ``memory`` or ``nvidia.com/gpu``."""
    devices: Annotated[tuple[DeviceRequest, ...], bounded(16)] = ()
    """Devices of Dynamic Resource Allocation that each member gets, beside ``resources``."""
    gpu: GpuPart | None = None
    """Part of one GPU that each member gets, instead of whole GPUs among ``resources``."""
    ports: Annotated[tuple[Port, ...], bounded(100)] = ()
    """Ports that each member listens on."""
    node_selector: Selector = Field(default_factory=dict)
    """Labels that the member's node must have."""
    node_affinity: Annotated[tuple[AffinityTerm, ...], bounded(100)] = ()
    """Terms that the labels of the member's node must meet; all of them must hold."""
    tolerations: Annotated[tuple[Toleration, ...], bounded(100)] = ()
    """Taints that the member's node may have."""
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """On Kubernetes: user id of the member's processes; None: the one that the cluster's agent sets."""
    run_as_group: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """On Kubernetes: group id of the processes and of their volumes; None: the same number as the user."""
    volumes: Annotated[tuple[MemberVolume, ...], bounded(50)] = ()
    """Volumes of each member."""
    secret_env: Annotated[dict[EnvName, SecretKey], bounded(200)] = Field(default_factory=dict)
    """Environment variables with entries of Secrets."""
    shared_memory: Quantity | None = None
    """Most that the member keeps in ``/dev/shm``; it counts as part of its memory."""
    files: Annotated[dict[MountPath, FileText], bounded(100)] = Field(default_factory=dict)
    """Small files, by path, with their text."""

    @field_validator("resources")
    @classmethod
    def _parse(cls, value: dict[str, str]) -> dict[str, str]:
        parse_resources(value)
        if names := sorted(HAMI_RESOURCES & value.keys()):
            raise ValueError(f"{names[0]} is not given here: `gpu` gives a member a part of a GPU")
        return value

    @field_validator("devices")
    @classmethod
    def _one_claim(cls, value: tuple[DeviceRequest, ...]) -> tuple[DeviceRequest, ...]:
        if len({one.name for one in value}) < len(value):
            raise ValueError("two requests of devices have the same name")
        if (count := sum(one.count for one in value)) > MOST_DEVICES:
            raise ValueError(
                f"a member has at most {MOST_DEVICES} devices, as Kubernetes allocates to a claim, not {count}"
            )
        if len({one.shared_by for one in value}) > 1:
            raise ValueError("all devices of a template have the same sharedBy, or none has it: they are one claim")
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

    @model_validator(mode="after")
    def _mounts_fit(self) -> Self:
        if not self.has_mounts:
            return self
        paths = [one.path for one in self.volumes] + list(self.files)
        paths += [SHARED_MEMORY] if self.shared_memory is not None else []
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(f"two volumes or files have the path {path}")
        for path in self.files:
            if folder := next((one.path for one in self.volumes if one.read_only and is_below(path, one.path)), None):
                raise ValueError(f"the file {path} cannot be in the volume at {folder}, which is readOnly")
        for name in self.secret_env:
            if name in self.env or name.startswith("TRAINMASTER_"):
                raise ValueError(f"secretEnv has {name}, which env has, too, or the agent sets")
        if sum(len(text.encode()) for text in self.files.values()) > MOST_FILE_BYTES:
            raise ValueError(
                f"files have more than {MOST_FILE_BYTES} bytes together: put them into a volume or the image"
            )
        self._sizes_fit()
        return self

    def _sizes_fit(self) -> None:
        sizes = [one.scratch for one in self.volumes if one.scratch is not None]
        sizes += [] if self.shared_memory is None else [self.shared_memory]
        if any(parse_quantity(_DISK, size) <= 0 for size in sizes):
            raise ValueError("scratch and sharedMemory have to be above 0")
        if self.shared_memory is not None:
            memory = self.resources.get("memory")
            if memory is None or parse_quantity("memory", self.shared_memory) > parse_quantity("memory", memory):
                raise ValueError(
                    "sharedMemory is part of the member's memory: request at least as much in resources.memory"
                )
        scratch = sum(parse_quantity(_DISK, one.scratch) for one in self.volumes if one.scratch is not None)
        if scratch > parse_quantity(_DISK, self.resources.get(_DISK, "0")):
            raise ValueError(
                f"scratch is on the node's disk: request at least as much {_DISK} in resources, all volumes together"
            )

    @property
    def has_mounts(self) -> bool:
        """Return whether the member has volumes, secrets, shared memory or files, which only pods can have."""
        return bool(self.volumes or self.secret_env or self.files) or self.shared_memory is not None

    @model_validator(mode="after")
    def _whole_gpus_or_a_part(self) -> Self:
        if self.gpu is not None and self.gpu.resource in self.resources:
            raise ValueError(
                f"gpu is a part of one {self.gpu.resource}, so resources cannot have whole ones: leave out one of the two"
            )
        if self.gpu is not None and self.members_per_claim > 1:
            raise ValueError("gpu, a part of one GPU, cannot be combined with sharedBy of devices")
        return self

    @property
    def members_per_claim(self) -> int:
        """Number of members that share one claim of devices; 1: each has its own, or there are no devices."""
        return (self.devices[0].shared_by or 1) if self.devices else 1

    @property
    def amounts(self) -> Resources:
        """Amounts of each member: the resources that it requests, its devices, shared or not, and its part of a GPU."""
        amounts = self.own_amounts
        for name, amount in self.shared_amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
        return amounts

    @property
    def own_amounts(self) -> Resources:
        """Amounts that each member has for itself: ``amounts`` without devices that it shares."""
        amounts = parse_resources(self.resources)
        if self.gpu is not None:
            amounts |= self.gpu.amounts
        if self.members_per_claim == 1:
            _add_devices(amounts, self.devices)
        return amounts

    @property
    def shared_amounts(self) -> Resources:
        """Devices that ``members_per_claim`` members share; nothing where each member has its own."""
        amounts: Resources = {}
        if self.members_per_claim > 1:
            _add_devices(amounts, self.devices)
        return amounts

    @property
    def unit_amounts(self) -> Resources:
        """Amounts of ``members_per_claim`` members together, with the devices that they share counted once."""
        many = self.members_per_claim
        amounts = {name: amount * many for name, amount in self.own_amounts.items()}
        for name, amount in self.shared_amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
        return amounts


def _add_devices(amounts: Resources, devices: Iterable[DeviceRequest]) -> None:
    """Add the devices of requests to amounts."""
    for one in devices:
        resource = device_resource(one.device_class)
        amounts[resource] = amounts.get(resource, 0) + one.count


_DISK = "ephemeral-storage"
_LONGEST_RESTART_BACK_OFF = 3600.0


class MemberFailure(Strict):
    """Consequence of a member's failure: the run fails, or that member, or all members restart, up to ``limit`` times."""

    action: Literal["failRun", "restartMember", "restartGang"] = "failRun"
    """Consequence of the failure: the run fails, the member restarts, or all members restart."""
    limit: Annotated[int, Field(ge=0, le=1000)] = 3
    """The most restarts: of each member alone, or of the whole gang."""
    back_off: Duration = "0s"
    """Time between a failure and the restart; for the gang, after all of its members have ended."""

    @field_validator("back_off")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if parse_duration(value) > _LONGEST_RESTART_BACK_OFF:
            raise ValueError("backOff is at most 1h: the run keeps its capacity meanwhile")
        return value


DeviceCounts = dict[
    Annotated[str, StringConstraints(min_length=1, max_length=253)], Annotated[int, Field(ge=1, le=MOST_DEVICES)]
]
"""Numbers of devices by device class."""


class Role(Strict):
    """Identical members of a job. ``template`` describes them, or ``podTemplate`` gives the whole pod."""

    name: Name12
    """Name of the role, unique in the job."""
    replicas: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] = 1
    """Number of members; of an elastic job, the most."""
    min_replicas: Annotated[int, Field(ge=0, le=MOST_MEMBERS)] | None = None
    """The fewest members with which the run may start; by default ``replicas``."""
    max_per_node: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] | None = None
    """The most members of the role on one node: with 1, the loss of a node costs a single member."""
    member_failure: MemberFailure | None = None
    """Consequence of a member's failure; None: the job's."""
    template: MemberTemplate | None = None
    """Command and needs of each member. Give this or ``podTemplate``."""
    pod_template: dict[str, Any] | None = None
    """Kubernetes pod template: ``metadata`` with labels and annotations, and ``spec``. Give this or ``template``."""
    claim_templates: Annotated[
        dict[Annotated[str, StringConstraints(min_length=1, max_length=253)], Annotated[DeviceCounts, bounded(32)]],
        bounded(32),
    ] = Field(default_factory=dict)
    """Devices that each ResourceClaimTemplate of ``podTemplate`` asks for, by device class. Set at submission by what the agents of
    clusters report; what is given is replaced."""

    @model_validator(mode="after")
    def _one_template(self) -> Self:
        if (self.template is None) == (self.pod_template is None):
            raise ValueError("a role has exactly one of template and podTemplate")
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is more than replicas {self.replicas}")
        if (many := self.members_per_claim) > 1:
            self._is_whole_claims(many)
        return self

    def _is_whole_claims(self, many: int) -> None:
        """Refuse numbers of members by which some would share a claim with fewer than ``many``."""
        if self.replicas % many:
            raise ValueError(
                f"sharedBy {many} gives each {many} members one claim, so replicas is a multiple of it, not {self.replicas}"
            )
        if self.min_replicas not in (None, self.replicas):
            raise ValueError(
                f"with sharedBy all members start together: minReplicas {self.min_replicas} has to be left out"
            )
        if self.max_per_node is not None and self.max_per_node % many:
            raise ValueError(
                f"members that share a claim have one node: maxPerNode is a multiple of sharedBy {many}, not {self.max_per_node}"
            )

    @property
    def members_per_claim(self) -> int:
        """Number of members that share one claim of devices; 1: each has its own, or there are no devices."""
        return 1 if self.template is None else self.template.members_per_claim

    @property
    def unit_amounts(self) -> Resources:
        """Amounts of ``members_per_claim`` members together. Raises ValueError for a quantity that is invalid."""
        return self.amounts if self.template is None else self.template.unit_amounts

    @property
    def amounts(self) -> Resources:
        """Amounts of each member: its requests, and its devices by claims. Raises ValueError for a quantity that is invalid."""
        if self.template is not None:
            return self.template.amounts
        pod = self.pod_template or {}
        amounts = pod_requests(pod)
        if self.claim_templates:
            for name, count in claimed(pod, self.claim_templates).items():
                amounts[name] = amounts.get(name, 0) + count
        return amounts


class Topology(Strict):
    """Required or preferred distance between members, as a level of the clusters' topology such as ``rack``."""

    required: LabelKey | None = None
    """Topology level, such as ``rack``: all members are placed in one domain of it."""
    preferred: LabelKey | None = None
    """Topology level: members are spread over as few of its domains as possible."""
    numa: Literal["none", "bestEffort", "restricted", "singleNode"] = "none"
    """NUMA policy that each member's node has to enforce for it."""
    exclusive: Literal["node"] | None = None
    """``node``: each member has a node for itself, without other members and pods, except those that every node has."""


class Preference(Strict):
    """Clusters that a job prefers, by their labels; ``region``, ``kind``, ``provider`` and ``name`` are labels, too."""

    selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1), bounded(20)]
    """Labels that a preferred cluster has."""
    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """Weight of the preference among those of the job."""


class Placement(Strict):
    """Constraints on where the job may run. Empty fields do not restrict."""

    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters where the job may run; empty: all."""
    kinds: Annotated[tuple[ClusterKind, ...], bounded(10)] = ()
    """Kinds of clusters where the job may run; empty: all that its queue allows."""
    regions: Annotated[tuple[RegionName, ...], bounded(100)] = ()
    """Regions where the job may run; empty: all."""
    preferred: Annotated[tuple[Preference, ...], bounded(20)] = ()
    """Clusters that the job prefers."""
    selector: Selector = Field(default_factory=dict)
    """Labels that the cluster must have."""
    datasets: Annotated[tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], bounded(100)] = ()
    """Names of the datasets that the job reads."""
    profile: Profile | None = None
    """Profile that ranks the clusters that fit; overrides those of its priority class and its queue."""
    emulated_gang: bool = True
    """True if a cluster that only emulates gangs is acceptable: members may start one by one before all have nodes."""


_RETRIED = (
    FailureCategory.EXIT,
    FailureCategory.SIGNAL,
    FailureCategory.OOM,
    FailureCategory.EVICTED,
    FailureCategory.NODE_LOST,
)


class Retries(Strict):
    """Retries of a failed run. Returned, preempted and lost runs use none of these."""

    limit: Annotated[int, Field(ge=0, le=1000)] = 0
    """The most retries of the job."""
    exit_codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], bounded(255)] = ()
    """Exit codes after which a run with the category ``exit`` is retried; empty: all."""
    categories: Annotated[tuple[FailureCategory, ...], bounded(20)] = _RETRIED
    """Categories of failures after which a run is retried."""
    back_off: Duration = "2s"
    """Pause before the first retry; it doubles with each further one."""
    most_back_off: Duration = "10m"
    """The longest pause before a retry."""


class RequeueAfter(Strict):
    """Time without contact to its cluster after which the job may start elsewhere."""

    requeue_after: Duration
    """Time without contact after which the members are ended and the job is queued again."""

    @field_validator("requeue_after")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if parse_duration(value) < 1:
            raise ValueError("requeueAfter is at least 1s")
        return value


def _wait_or_requeue(value: Any) -> Any:
    """Return the model for a mapping: of a union, mistakes would be those of each of its types."""
    if isinstance(value, Mapping):
        return RequeueAfter.model_validate(value)
    if value not in ("wait", None) and not isinstance(value, RequeueAfter):
        raise ValueError(f"must be wait, or a mapping such as {{requeueAfter: 15m}}, not {shown(value)}")
    return value


class Notify(Strict):
    """A receiver of messages about this job's transitions, or about the end of its group: a webhook, e-mail or a chat."""

    url: WebhookUrl | None = None
    """Webhook: address that gets a signed POST for each of these transitions."""
    email: EmailAddresses | None = None
    """E-mail addresses that get a message for each of these transitions; their domains are those that an admin allows."""
    chat: Chat | None = None
    """Incoming webhook of a chat service that gets a message for each of these transitions."""
    states: Annotated[tuple[JobState, ...], bounded(20, least=1)] = (
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
    )
    """Transitions to report. Not called ``on``, which YAML reads as ``true``."""
    deadline: bool = False
    """True to report also that the deadline of the job is at risk, and that it was missed."""
    group: bool = False
    """True to report, instead of the job's transitions, that its group has ended: once for all its jobs."""

    @field_validator("states")
    @classmethod
    def _some_state(cls, value: tuple[JobState, ...]) -> tuple[JobState, ...]:
        if not value:
            raise ValueError("needs at least one state: without any the webhook would get no message")
        return value

    @model_validator(mode="after")
    def _is_about_one_thing(self) -> Self:
        check_one_channel(self.url, self.email, self.chat)
        if self.group and (self.deadline or "states" in self.model_fields_set):
            raise ValueError("group: true reports the end of the group alone: leave out states and deadline")
        return self


_LONGEST_CHECKPOINT = 600.0


class Checkpoint(Strict):
    """Signal to members before their run is preempted or suspended, and the time they get to save their state."""

    signal: Literal["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM"] = "SIGUSR1"
    """Signal that the members get."""
    wait: Duration = "30s"
    """Time between the signal and SIGTERM."""

    @field_validator("wait")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if not 0 < parse_duration(value) <= _LONGEST_CHECKPOINT:
            raise ValueError("wait is more than 0s and at most 10m: another job waits for that capacity meanwhile")
        return value


class Elastic(Strict):
    """Allows resizing the running job between ``minReplicas`` and ``replicas`` of its roles."""

    step: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] = 1
    """Number of members that are added at a time."""
    cool_down: Duration = "30s"
    """The shortest time between a change of size and the next growth."""


class Success(Strict):
    """Role that decides the success of a run: it has succeeded once all members of the role have, although others go on."""

    role: Name12
    """Role whose members decide: the run has succeeded once all of them have."""


# Shared by all specifications that leave it out: pydantic would deep-copy a plain default for each of them.
_ANYWHERE_IN_IT, _ANYWHERE, _NO_RETRIES, _FAIL_RUN = Topology(), Placement(), Retries(), MemberFailure()
_RESTART_WORKER = MemberFailure(action="restartMember", limit=100)


class WorkloadObject(Strict):
    """The object of another API as which the job runs on its cluster, where the object's own controller makes the pods.

    A job has it where it was submitted as a manifest of that API. Its pod templates are those of the roles.
    """

    api_version: Annotated[str, StringConstraints(min_length=1, max_length=317)]
    """Group and version, such as ``batch/v1``."""
    kind: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Kind, such as ``Job``."""
    manifest: dict[str, Any]
    """The object: ``metadata`` with labels and annotations, and ``spec`` without pod templates."""

    @property
    def name(self) -> str:
        """Return the name of its kind for people, such as ``batch/v1 Job``."""
        return f"{self.api_version} {self.kind}"


class JobSpec(Strict):
    """A whole job. Raises pydantic's ValidationError with the path of each mistake."""

    model_config = example(
        kind="Job",
        name="bert",
        queue="research/vision",
        labels={"team": "vision"},
        roles=[
            {
                "name": "worker",
                "replicas": 4,
                "template": {
                    "image": "registry.example.com/train:1",
                    "command": ["python", "train.py"],
                    "resources": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
                },
            }
        ],
        timeLimit="12h",
        retries={"limit": 2},
    )

    kind: Literal["Job", "Session"] = "Job"
    """Kind of this document. A ``Session`` is a job with ``session``."""
    name: Name24
    """Name of the job; the first part of its id."""
    queue: QueuePath
    """Path of the queue; one without queues below it."""
    priority_class: Name40 | None = None
    """Priority class; by default the queue's, or the installation's."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Priority among jobs of one class in the queue; higher ones go first."""
    labels: Labels = Field(default_factory=dict)
    """Labels, by which jobs can be selected and usage can be counted."""
    group: GroupName | None = None
    """Group of jobs of its queue to which it belongs; the first job of a name begins the group."""
    roles: Annotated[tuple[Role, ...], bounded(16, least=1)]
    """Roles of the job, each with equal members."""
    min_member: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] | None = None
    """The fewest members in all with which the run may start, instead of ``minReplicas`` of each role."""
    topology: Topology = Field(default_factory=lambda: _ANYWHERE_IN_IT)
    """Distance between members in the topology of a cluster."""
    placement: Placement = Field(default_factory=lambda: _ANYWHERE)
    """Constraints on the cluster."""
    time_limit: Duration | None = None
    """The longest run; a longer one is ended as failed with the category ``deadline``."""
    stop_grace: Duration = "10s"
    """Time between SIGTERM and SIGKILL when the run is stopped, at most 10m."""
    checkpoint: Checkpoint | None = None
    """Signal before the run is preempted or suspended; None: there is none."""
    elastic: Elastic | None = None
    """Resizing of the running job; None: its size is fixed."""
    array: JobArray | None = None
    """Elements: tasks that the members run one after the other, or jobs of their own; None: each member runs its command once."""
    retries: Retries = Field(default_factory=lambda: _NO_RETRIES)
    """Retries of failed runs."""
    member_failure: MemberFailure = Field(default_factory=lambda: _FAIL_RUN)
    """Default consequence of a member's failure, for roles without their own."""
    success: Success | None = None
    """Role whose members decide when the run has succeeded; None: it has once all members have."""
    on_disconnect: Annotated[Literal["wait"] | RequeueAfter | None, BeforeValidator(_wait_or_requeue)] = None
    """Consequence of a lost contact to its cluster: ``wait`` for it, or be queued again after a time. None acts as ``wait``."""
    notify: Annotated[tuple[Notify, ...], bounded(8)] = ()
    """Webhooks, e-mail and chats for the job's transitions."""
    suspend: bool = False
    """True to submit the job held until it is resumed."""
    start_after: StartAfter | None = None
    """Time before which the job does not start: a moment, or a delay after the submission."""
    deadline: Deadline | None = None
    """Time by which the job should have ended: a moment, or a delay after the submission. It never ends the job."""
    after: Annotated[tuple[Predecessor, ...], bounded(100)] = ()
    """Jobs after which it starts: once all of these conditions are met."""
    on_dependency_failure: DependencyFailure = DependencyFailure.CANCEL
    """Consequence of a condition that can no longer be met: the job is cancelled, or stays held."""
    workload: WorkloadObject | None = None
    """The object of another API as which it runs; None: the agent starts its members itself."""
    session: SessionSpec | None = None
    """Terms of an interactive session; None: the job is none."""
    inputs: JobInputs = ()
    """Files that each member has in its folder before its command starts."""
    outputs: JobOutputs = ()
    """Files and folders that the member of rank 0 leaves, which are stored as artifacts of the run."""

    @field_validator("roles")
    @classmethod
    def _names_differ(cls, value: tuple[Role, ...]) -> tuple[Role, ...]:
        names = [role.name for role in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two roles have the name {name!r}")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        # One validator, as each costs a call for every specification of ten thousand.
        self._gang_fits_roles()
        self._is_found_quickly()
        self._can_be_resized()
        self._has_whole_nodes()
        self._shares_devices()
        self._success_can_come()
        self._runs_elements()
        if self.group is None and any(hook.group for hook in self.notify):
            raise ValueError("a webhook with group: true reports the end of the job's group: give the job a group")
        self._has_files()
        return self

    def _gang_fits_roles(self) -> None:
        # Counted here because pydantic would count roles with mistakes as missing.
        if not 1 <= len(self.roles) <= 16:
            raise ValueError(f"a job has 1 to 16 roles, this one has {len(self.roles)}")
        total = sum(role.replicas for role in self.roles)
        if total > MOST_MEMBERS:
            raise ValueError(f"the roles have {total} members together, at most {MOST_MEMBERS} are allowed")
        if self.min_member is not None and self.min_member > total:
            raise ValueError(f"minMember {self.min_member} is more than the {total} members of the roles")

    def _is_found_quickly(self) -> None:
        # The scheduler evaluates each for every group of nodes of every cluster.
        templates = [one for role in self.roles if (one := role.template) is not None and one.node_affinity]
        if not templates:
            return
        terms = sum(len(one.node_affinity) for one in templates)
        if terms > _MOST_TERMS:
            raise ValueError(
                f"the roles have {terms} terms of nodeAffinity together, at most {_MOST_TERMS} are allowed"
            )
        values = sum(len(term.values) for one in templates for term in one.node_affinity)
        if values > _MOST_AFFINITY_VALUES:
            raise ValueError(
                f"nodeAffinity of the roles has {values} values together, at most {_MOST_AFFINITY_VALUES} are allowed"
            )

    def _can_be_resized(self) -> None:
        if self.elastic is None:
            return
        if not any(role.min_replicas is not None and role.min_replicas < role.replicas for role in self.roles):
            raise ValueError("elastic needs a role with minReplicas below replicas: sizes are between the two")
        if any(role.min_replicas == 0 for role in self.roles):
            raise ValueError("a role of an elastic job keeps at least one member: minReplicas is 1 or more")
        if self.min_member is not None:
            raise ValueError("elastic goes by the minReplicas of each role, so minMember has to be left out")
        if self.topology.required is not None or any(role.max_per_node is not None for role in self.roles):
            raise ValueError("elastic cannot be combined with topology.required or maxPerNode")
        if self.topology.exclusive is not None:
            raise ValueError("elastic cannot be combined with topology.exclusive")

    def _has_whole_nodes(self) -> None:
        if self.topology.exclusive is None:
            return
        if any(role.template is not None and role.template.gpu is not None for role in self.roles):
            raise ValueError("topology.exclusive gives each member whole GPUs: gpu, a part of one, has to be left out")
        shared = next((role for role in self.roles if (role.max_per_node or 1) > 1), None)
        if shared is not None:
            raise ValueError(
                f"topology.exclusive gives each member a node of its own: maxPerNode of role {shared.name!r} has to be 1 or "
                f"left out, not {shared.max_per_node}"
            )

    def _shares_devices(self) -> None:
        sharing = next((role.name for role in self.roles if role.members_per_claim > 1), None)
        if sharing is None:
            return
        topology = self.topology
        conflicts = {
            "minMember": self.min_member is not None,
            "elastic": self.elastic is not None,
            "topology.exclusive": topology.exclusive is not None,
            f"topology.numa {topology.numa}": topology.numa in ("restricted", "singleNode"),
            "placement.emulatedGang false": not self.placement.emulated_gang,
        }
        for field, is_given in conflicts.items():
            if is_given:
                raise ValueError(f"devices of role {sharing!r} are shared: sharedBy cannot be combined with {field}")

    def _success_can_come(self) -> None:
        if self.success is None:
            return
        deciding = next((role for role in self.roles if role.name == self.success.role), None)
        if deciding is None:
            names = ", ".join(role.name for role in self.roles)
            raise ValueError(f"success.role {self.success.role!r} is no role of the job; there are: {names}")
        if deciding.min_replicas == 0:
            raise ValueError("the role that success waits for keeps at least one member: minReplicas is 1 or more")

    def _runs_elements(self) -> None:
        if any(one.elementwise for one in self.after) and (self.array is None or not self.array.has_jobs):
            raise ValueError("after with elementwise: the job has to be an array with mode: jobs")
        if self.array is None:
            return
        if self.array.has_jobs:
            if self.session is not None:
                raise ValueError("array cannot be combined with session")
            return
        if len(self.roles) > 1:
            raise ValueError("the members that run the elements of an array are of one role: leave out the others")
        template = self.roles[0].template
        if template is None:
            raise ValueError("a role that runs the elements of an array has a template: podTemplate has to be left out")
        if self.array.call is None and not template.command and not template.image:
            raise ValueError(
                "the role has no command, and no image with an entry point in its place: an array executes it once for each element"
            )
        if self.array.call is not None and (template.command or template.args):
            raise ValueError("array.call takes the place of the role's command and args: leave them out")
        conflicts = {
            "workload": self.workload is not None,
            "success": self.success is not None,
            "session": self.session is not None,
        }
        for field, is_given in conflicts.items():
            if is_given:
                raise ValueError(f"array cannot be combined with {field}")

    def _has_files(self) -> None:
        if not self.has_files:
            return
        check_outputs(self.outputs)
        if self.workload is not None:
            raise ValueError(
                "inputs and outputs cannot be combined with workload: the object's controller makes the pods"
            )
        without = next((role for role in self.roles if role.template is None), None)
        if without is not None:
            raise ValueError(
                f"inputs and outputs need roles with a template: role {without.name!r} has a podTemplate, which can mount a volume"
            )
        for role in self.roles:
            folder = "" if role.template is None else role.template.working_dir
            if folder and (not folder.startswith("/") or folder == "/"):
                raise ValueError(
                    f"with inputs and outputs the workingDir of role {role.name!r} is an absolute path, and not '/'"
                )
        if self.outputs and self.topology.numa in ("restricted", "singleNode"):
            raise ValueError(
                f"outputs cannot be combined with topology.numa {self.topology.numa}: a pod with a container that stores them is not"
                " of the class whose CPUs are kept to a zone"
            )

    @property
    def executes_entry_points(self) -> bool:
        """Return whether its members execute the entry point of their image for each task of its array."""
        if self.array is None or self.array.has_jobs or self.array.call is not None:
            return False
        return not any(role.template is not None and role.template.command for role in self.roles)

    @property
    def has_files(self) -> bool:
        """Return whether members get files, or leave some."""
        return bool(self.inputs or self.outputs)

    @property
    def grace_seconds(self) -> float:
        """Seconds between SIGTERM and SIGKILL, at most the longest allowed: an older release may have stored more."""
        return min(parse_duration(self.stop_grace), LONGEST_STOP_GRACE)

    @property
    def members(self) -> int:
        return sum(role.replicas for role in self.roles)

    def failure_of(self, role: Role) -> MemberFailure:
        """Return the consequence of a failure of this role's members.

        A member that runs tasks of an array restarts, where nothing else is given: the others go on with theirs.
        """
        if role.member_failure is not None:
            return role.member_failure
        runs_tasks = self.array is not None and not self.array.has_jobs
        return _RESTART_WORKER if runs_tasks and self.member_failure == _FAIL_RUN else self.member_failure
