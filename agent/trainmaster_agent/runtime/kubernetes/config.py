"""Configuration of a Kubernetes cluster's agent: ``agent.yaml``."""

import hashlib
from typing import Annotated, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.admission_policy import AdmissionPolicy, QueueAdmission, longest_match
from trainmaster.protocol.base import Name40, QueuePath, Strict, bounded, worded_pattern
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.member_use import USE_SECONDS, UseSeconds
from trainmaster.protocol.mounts import ObjectName
from trainmaster_agent.capacity.config import CapacityConfig
from trainmaster_agent.placement.choose import PlacementConfig
from trainmaster_agent.runtime.kubernetes.gpu_metrics import GpuMetrics
from trainmaster_agent.runtime.kubernetes.member_use import UseSource

_DIGITS = 12
"""Digits of a hash in a namespace's name: 48 bits."""

_NAMESPACE_WORDS = "a namespace of a-z, 0-9 and '-' that begins and ends with a letter or a digit"
Namespace = Annotated[
    str,
    StringConstraints(max_length=63, pattern=worded_pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", _NAMESPACE_WORDS)),
]
NamespaceRule = Annotated[
    str,
    StringConstraints(
        max_length=63,
        pattern=worded_pattern(
            r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?|([a-z0-9][-a-z0-9]{0,31})?\{(top|queue|last)\}([-a-z0-9]{0,11}[a-z0-9])?)$",
            f"{_NAMESPACE_WORDS}, with one of {{top}}, {{queue}} and {{last}} in it or none",
        ),
    ),
]


class RecordsExposedError(ValueError):
    """The records of runs would be stored in a namespace where jobs run."""


class QueueNamespace(Strict):
    """The namespace for runs of a queue and of all queues below it.

    ``{top}`` in the namespace stands for the first part of the queue's path, ``{queue}`` for the whole path, ``{last}`` for its last
    part, see ``fill``. Queues with the same last part share a namespace by ``{last}``.
    """

    queue: QueuePath
    namespace: NamespaceRule


class LeaseConfig(Strict):
    """The Lease by which replicas of the agent agree on the one that acts."""

    namespace: Namespace | None = None
    """Namespace of the Lease; None: the agent's own."""
    name: Name40 | None = None
    """Name of the Lease; None: ``trainmaster-agent-`` and the cluster's name."""
    duration: Duration = "10s"

    @field_validator("duration")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if not 2 <= parse_duration(value) <= 60:
            raise ValueError("the lease lasts 2s to 60s: after that long without renewal another replica acts")
        return value


class Patience(Strict):
    """Seconds that a problem which may pass by itself is tolerated."""

    image: Duration = "2m"
    """An image that cannot be pulled."""
    container: Duration = "30s"
    """A container that cannot be created as the template wants it."""
    start: Duration = "30m"
    """The gang's start: from a node for every member to all of them running."""
    opened: Duration = "20s"
    """With emulated gangs: from open gates to a node for every member; then all members are recreated and it is tried again."""


class AwaitNames(Strict):
    """The container that delays the start of a gang's members until the names of their peers resolve."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    """An image with ``sh`` and ``getent``, such as the agent's own."""
    timeout: Duration = "1m"
    """How long; then a member starts, although a name may be missing."""

    @field_validator("timeout")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if not 5 <= parse_duration(value) <= 600:
            raise ValueError("members wait 5s to 10m for names: a cluster's DNS may be 30s late")
        return value


_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?"
RegistryHost = Annotated[
    str,
    StringConstraints(
        pattern=worded_pattern(rf"^{_HOST}$", "the host of a registry as images name it, such as docker.io")
    ),
]
RegistryAddress = Annotated[
    str,
    StringConstraints(
        max_length=1000,
        pattern=worded_pattern(
            rf"^https?://{_HOST}(/[a-z0-9._-]+)*$",
            "https://HOST or http://HOST, with a path before its repositories or none",
        ),
    ),
]


class ImageEntryPoints(Strict):
    """The containers that read the entry points of images, for members of arrays without a command, from the images' registries."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    """The agent's own image."""
    pull_secrets: Annotated[tuple[ObjectName, ...], bounded(16)] = ()
    """Secrets of the type ``kubernetes.io/dockerconfigjson`` in the namespaces of jobs, by which registries are read; some may be
    missing there."""
    ca_config_map: ObjectName | None = None
    """ConfigMap in the namespaces of jobs whose ``ca.crt`` has certificates of authorities to trust beside the public ones."""
    registries: Annotated[dict[RegistryHost, RegistryAddress], bounded(64)] = Field(default_factory=dict)
    """Addresses of registries, by host, that are not reached at ``https://HOST``: mirrors, or those without https."""


class ArraysConfig(Strict):
    """The server at which members that run elements of arrays call the agent."""

    host: Annotated[str, StringConstraints(max_length=253)] = ""
    """Address on which it listens; empty: all of the agent's."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8471
    """Port on which it listens."""
    url: Annotated[
        str, StringConstraints(pattern=worded_pattern(r"^http://[^/]+$", "http://HOST:PORT"), max_length=1000)
    ]
    """Where members find it, such as ``http://trainmaster-agent-arrays.trainmaster.svc:8471``."""
    image_entry_points: ImageEntryPoints | None = None
    """How members execute the entry point of their image for each element; None: roles of arrays need a command here."""


class FilesConfig(Strict):
    """The containers that fetch and store files of members; they call the agent at the server of ``arrays``."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    """The agent's own image."""
    upload_time: Duration = "10m"
    """How long the outputs of a member may take to be stored once it has ended; its pod's grace is that long."""

    @field_validator("upload_time")
    @classmethod
    def _can_be_a_grace(cls, value: str) -> str:
        if not 10 <= parse_duration(value) <= 86_400:
            raise ValueError("uploads take 10s to 1d")
        return value

    @property
    def upload_seconds(self) -> int:
        return int(parse_duration(self.upload_time))


class KubernetesCluster(Strict):
    """One cluster and the settings of its agent."""

    cluster: Name40
    """The cluster's name at the dispatcher; also marks this agent's own objects."""
    namespace: NamespaceRule = "trainmaster-jobs-{top}"
    """Namespace of runs without a rule: each top-level queue has a namespace of its own."""
    namespaces: tuple[QueueNamespace, ...] = ()
    queues: tuple[QueuePath, ...] | None = None
    """Queues whose namespaces the agent may use, beside ``job_namespaces``; None: ``default`` if that is empty."""
    record_namespace: Namespace | None = None
    """Namespace of the records of runs, which hold whole specifications; None: the agent's own. Never one for jobs: those who submit
    jobs could read them there."""
    job_namespaces: tuple[Namespace, ...] = ()
    """All namespaces that the agent may use, beside those of ``queues``; empty: those that the rules name in full."""
    admission: AdmissionPolicy = Field(default_factory=AdmissionPolicy)
    admissions: Annotated[tuple[QueueAdmission, ...], bounded(1000)] = ()
    placement: PlacementConfig = Field(default_factory=PlacementConfig)
    capacity: CapacityConfig = Field(default_factory=CapacityConfig)
    lease: LeaseConfig = Field(default_factory=LeaseConfig)
    patience: Patience = Field(default_factory=Patience)
    tombstone: Duration = "1m"
    """How long the record of an ended run stays, as protection against a paused agent that resumes with old orders."""
    parallel: Annotated[int, Field(ge=1, le=256)] = 32
    """The most concurrent requests to the API server."""
    port: Annotated[int, Field(ge=1, le=65535)] = 29500
    """Rendezvous port of members that declare none."""
    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = 65532
    """User of members whose template names none, so that images built for root can run; None: the image's own."""
    await_names: AwaitNames | None = None
    """Whether members of a gang start once the names of their peers resolve; None: at once."""
    checkpoint: bool = True
    """Whether members may be sent their checkpoint signal; needs the permission to run a command in their containers."""
    member_streams: bool = True
    """Whether users may run commands in members, attach to them and connect to their ports; needs the permissions for that."""
    datasets: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = ()
    use_seconds: UseSeconds = USE_SECONDS
    """Time from one report of what members use to the next; 0: none are sent."""
    use_source: UseSource = "metrics"
    """Where the use of pods is read: in the cluster's metrics API, or at the kubelets, which needs the permission ``nodes/proxy``."""
    arrays: ArraysConfig | None = None
    """Where members of arrays call the agent; None: the cluster takes no arrays."""
    files: FilesConfig | None = None
    """How members get files and leave some; None: the cluster takes no jobs with files. Needs ``arrays``."""
    gpu_metrics: GpuMetrics | None = None
    """Where the use of GPUs is read; None: it is unknown."""

    @model_validator(mode="after")
    def _files_have_a_server(self) -> Self:
        if self.files is not None and self.arrays is None:
            raise ValueError("files needs arrays, the server at which members call the agent")
        return self

    @model_validator(mode="after")
    def _knows_its_namespaces(self) -> Self:
        named = list(self.job_namespaces)
        rules = [self.namespace, *(one.namespace for one in self.namespaces)]
        if not named:
            named = [rule for rule in rules if "{" not in rule]
            if any("{queue}" in rule or "{last}" in rule for rule in rules):
                raise ValueError(
                    "with {queue} or {last} in a rule, jobNamespaces lists all namespaces that may come of it"
                )
        queues = self.queues
        if queues is None:
            queues = () if self.job_namespaces else ("default",)
        named += [self.namespace_of(queue) for queue in queues]
        if not named:
            raise ValueError("queues or jobNamespaces has to name where runs may be created")
        object.__setattr__(self, "job_namespaces", tuple(dict.fromkeys(named)))
        return self

    def home(self, own: str) -> str:
        """Return the namespace of the records; ``own`` is the agent's. Raises RecordsExposedError if jobs run there."""
        home = self.record_namespace or own
        if home in self.job_namespaces:
            raise RecordsExposedError(
                f"namespace {home} is for jobs, and whoever submits jobs could read the records of runs there: "
                "give recordNamespace or lease.namespace another one"
            )
        return home

    def namespace_of(self, queue: str) -> str:
        """Return the namespace by the rule of the longest path that the queue is at or below."""
        rule = longest_match(((one.queue, one.namespace) for one in self.namespaces), queue)
        return fill(self.namespace if rule is None else rule, queue)

    def policy_of(self, queue: str) -> AdmissionPolicy:
        found = longest_match(((one.queue, one.policy) for one in self.admissions), queue)
        return self.admission if found is None else found


def fill(rule: str, queue: str) -> str:
    """Return the namespace that ``rule`` gives for ``queue``: at most 63 characters, and never the same for different values.

    A valid Kubernetes name stays as it is, unless it is too long or has two hyphens in a row. Of any other the readable part
    stays, followed by two hyphens and part of its SHA-256.
    """
    for word, value in (("{top}", queue.partition("/")[0]), ("{queue}", queue), ("{last}", queue.rpartition("/")[2])):
        if word in rule:
            return rule.replace(word, _as_name(value, 63 - len(rule) + len(word)))
    return rule


def _as_name(value: str, longest: int) -> str:
    readable = value.replace("/", "-").replace("_", "-").strip("-")
    if readable == value and "--" not in value and len(value) <= longest:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:_DIGITS]
    return f"{readable[: longest - _DIGITS - 2].strip('-') or 'q'}--{digest}"
