"""What an agent and the dispatcher say to each other: the three calls of the agent protocol.

Level-triggered: each side states what it holds; losing, repeating or reordering messages changes nothing.
``docs/reference/agent-protocol.md`` tells it in words.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError

from trainmaster.protocol.admission_policy import AdmissionPolicy, QueueAdmission, longest_match
from trainmaster.protocol.base import Lenient
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.states import FailureCategory, RunState, StopCause

PROTOCOL = 1
"""The newest protocol version; the dispatcher serves this one and the one before."""


HOST_LEVEL = "kubernetes.io/hostname"
"""The narrowest topology level, in no topology path: every node is a domain of its own."""


MOST_NODES = 100_000
"""In one group; beyond what Kubernetes is made for."""
MOST_GROUPS = 20_000
"""In one report. Kubernetes' agents coarsen what they see to fewer."""


MOST_TOLD = 4096
"""Characters of a sentence. An agent hands on what others say, so longer ones are cut, not refused."""
MOST_NOTES = 1000
"""Sentences of a list; further ones are cut off."""
MOST_RUNS = 200_000
"""In one sync."""
MOST_CHUNKS = 20_000
"""In one push; a member's output is one chunk or a few."""
_MOST_SECONDS = 10 * 365 * 86_400.0

Told = Annotated[str, AfterValidator(lambda text: text if len(text) <= MOST_TOLD else text[:MOST_TOLD])]
"""A sentence for people."""
Notes = Annotated[tuple[Told, ...], AfterValidator(lambda notes: notes[:MOST_NOTES])]
Word = Annotated[str, StringConstraints(max_length=253)]
"""A name of Kubernetes, or of this protocol, that is no job's own."""
LabelName = Annotated[str, StringConstraints(max_length=317)]
SessionName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Small = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Large = Annotated[int, Field(ge=0, le=2**62)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Free = Annotated[dict[LabelName, Large], Field(max_length=500)]
Members = Annotated[dict[Word, Count], Field(max_length=100)]
"""By role."""
Spread = Annotated[dict[Word, Members], Field(max_length=10_000)]
"""Members by node group and role."""


class Taint(Lenient):
    key: LabelName
    value: Word = ""
    effect: Word = "NoSchedule"


MOST_ZONES = 64
"""NUMA zones of a node; the largest servers have 32."""


class Numa(Lenient):
    """The NUMA zones of each node of a group."""

    policy: Literal["none", "bestEffort", "restricted", "singleNode"] = "none"
    """What the nodes hold their members to: the policy of the kubelet's topology manager."""
    zones: Annotated[tuple[Free, ...], Field(max_length=MOST_ZONES)] = ()
    """What each zone has free beside our own members, of the resources that belong to zones. Others belong to the whole node."""


MOST_SECONDS_AGO = 366 * 86_400.0


class NodeGroup(Lenient):
    """Equivalent nodes in what matters. ``free`` is per node: allocatable minus what others use, never minus our own members."""

    name: Word
    count: int = Field(ge=0, le=MOST_NODES)
    free: Free
    labels: Annotated[dict[LabelName, Word], Field(max_length=1000)] = {}
    taints: Annotated[tuple[Taint, ...], Field(max_length=500)] = ()
    topology: Annotated[tuple[tuple[LabelName, Word], ...], Field(max_length=32)] = ()
    """Ordered from wide to narrow, such as (("zone", "a"), ("rack", "r1")); the host itself is not in it."""
    numa: Numa | None = None
    """Where the agent knows it."""


class Pool(NodeGroup):
    """Nodes that the cluster's autoscaler adds where a gang waits for them. ``count``: how many more it could add now."""

    most: int = Field(ge=0, le=MOST_NODES)
    """How many there may be in all."""


_Groups = TypeVar("_Groups", bound=tuple[NodeGroup, ...])


def _names_differ(groups: _Groups) -> _Groups:
    if len({group.name for group in groups}) < len(groups):
        raise ValueError("two node groups have the same name")
    return groups


class ReportedAdmission(Lenient):
    """What an agent checks templates by before it starts their members."""

    needs_image: bool = False
    """Whether members are pods, which run nothing without an image."""
    policy: AdmissionPolicy = AdmissionPolicy()
    queues: Annotated[tuple[QueueAdmission, ...], Field(max_length=1000)] = ()
    """Of queues, and those below them, that have a policy of their own there."""

    def policy_of(self, queue: str) -> AdmissionPolicy:
        found = longest_match(((one.queue, one.policy) for one in self.queues), queue)
        return self.policy if found is None else found

    @property
    def names(self) -> int:
        """How many names and queues it lists."""
        policies = [self.policy, *(one.policy for one in self.queues)]
        lists = [value for one in policies for value in one.__dict__.values() if isinstance(value, tuple)]
        return len(self.queues) + sum(map(len, lists))


MOST_ADMISSION_NAMES = 2000
"""In what an agent reports of its policies: an api reads all of it every few seconds."""


def _readable_admission(value: Any) -> Any:
    """None for what cannot be read, as the policy of a newer agent may not be, or is too long: that agent checks by itself."""
    if value is None or isinstance(value, ReportedAdmission):
        return value
    try:
        found = ReportedAdmission.model_validate(value)
    except ValidationError:
        return None
    return found if found.names <= MOST_ADMISSION_NAMES else None


class CapacityReport(Lenient):
    """What an agent says its cluster has."""

    groups: Annotated[tuple[NodeGroup, ...], Field(max_length=MOST_GROUPS), AfterValidator(_names_differ)]
    runtime: Word
    scheduler: Word
    capabilities: Annotated[tuple[Word, ...], Field(max_length=1000)] = ()
    dies_without_agent: bool = False
    """Whether members are sure to be dead once their deadline passes, though agent and link are gone."""
    pools: Annotated[tuple[Pool, ...], Field(max_length=MOST_GROUPS), AfterValidator(_names_differ)] = ()
    datasets: Annotated[tuple[Word, ...], Field(max_length=10_000)] = ()
    not_counted: Notes = ()
    start_seconds: Seconds = 0.0
    """How long a gang that has nodes may take to start there at most, as its images are loaded; its time costs meanwhile."""
    admission: Annotated[ReportedAdmission | None, BeforeValidator(_readable_admission)] = None
    """None: it runs whatever its capabilities allow, or does not say."""
    closed: Told = ""
    """A sentence why this cluster can start nothing now, such as ``the API server does not answer``. What runs goes on."""


class RunEnd(Lenient):
    """How a run ended."""

    category: FailureCategory | None = None
    exit_code: Small | None = None
    signal: Small | None = None
    member: Word | None = None
    message: Told = ""


class MemberReport(Lenient):
    """One member as its runtime sees it."""

    role: Word
    index: Count
    state: Literal["pending", "running", "succeeded", "failed", "stopped"]
    node: Word = ""
    exit_code: Small | None = None
    signal: Small | None = None
    restarts: Count = 0
    message: Told = ""


class Absence(StrEnum):
    """What an agent knows of a run that it was asked to stop and of which it has no record."""

    UNRECORDED = "unrecorded"
    """Its records name no such run. Records that were lost name none, either."""
    VERIFIED = "verified"
    """In addition it has looked where its members would be and has ended what it found: none of them is alive there."""


NOT_HELD_SEQ = 1_000_000
"""``seq`` of a report on a run that its agent does not hold. Agents of releases without ``absence`` are known by it."""


class RunReport(Lenient):
    """A run as its agent holds it. ``seq`` rises with each change of this run at the agent, across its restarts."""

    run: Word
    generation: Count
    seq: Count
    state: RunState
    message: Told = ""
    end: RunEnd | None = None
    placement: Spread | None = None
    """Members by node group and role, once they have nodes."""
    members: Annotated[tuple[MemberReport, ...], Field(max_length=MOST_MEMBERS)] = ()
    sizes: Members | None = None
    """Members by role that the runtime keeps the run at, once it was asked to resize it. Less than was asked for: it found no room."""
    ended_seconds_ago: Annotated[float, Field(ge=0, le=MOST_SECONDS_AGO)] = 0.0
    """How long ago it ended, where that could not be told at once: its time is charged until then."""
    absence: Absence | None = None
    """Set where the agent does not hold the run; ``state`` is then the one that the stop asks for."""

    @property
    def is_held(self) -> bool:
        """Whether the agent has a record of the run."""
        return self.absence is None and self.seq < NOT_HELD_SEQ


class SyncRequest(Lenient):
    """The agent's side of the state, sent on change and at least every third of the lease."""

    protocol: Small = PROTOCOL
    session: SessionName
    """A random id, new with each start of the agent process."""
    holder: SessionName
    """Where the agent's own records live; the same after a restart that kept them."""
    place: Word = ""
    """Where members live, such as the identity of a Kubernetes cluster or of one boot of a machine. An agent in the same place can
    verify that no member of a run is alive, whoever started it. Empty: it cannot."""
    number: Large
    """Counts the syncs of this session from 1; an answer to an older one is not used."""
    agent_version: Word = ""
    runs: Annotated[tuple[RunReport, ...], Field(max_length=MOST_RUNS)] = ()
    full: bool = False
    """Whether ``runs`` lists every run held, not only the changed ones."""
    held_count: Count = 0
    held_digest: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    capacity: CapacityReport | None = None
    epoch: Word = ""
    """Installation and store epoch as the agent last heard them."""
    desired_version: int = 0
    """The highest version of what is desired that this process was told of; a store that is behind it was restored."""


class RefusedPart(Lenient):
    """A part of a sync that could not be taken as it was; all other parts were."""

    part: str
    """``capacity``, or the run that was reported."""
    code: str
    message: str
    left_out: tuple[str, ...] = ()
    """Fields without which a run's report was taken; empty if it was not taken at all."""


class SyncAnswer(Lenient):
    """What the dispatcher makes of a sync. The lease counts from the moment the agent sent the request."""

    number: int
    epoch: str
    lease_seconds: float
    settled: tuple[str, ...] = ()
    """Runs whose end is in the store: the agent may forget them."""
    unknown: tuple[str, ...] = ()
    """Runs that the store does not hold as live on this cluster: stopped after two agreeing answers, one lease apart."""
    quarantined: tuple[str, ...] | None = None
    """Runs that the store has forgotten and that go on all the same. None: this dispatcher knows no such runs."""
    send_full: bool = False
    send_capacity: bool = False
    refused: tuple[RefusedPart, ...] = ()


class StartRun(Lenient):
    """A run to start, with all the agent needs."""

    run: str
    job: str
    queue: str
    attempt: int
    token: int
    generation: int
    spec: dict[str, Any]
    """The job specification in wire form."""
    sizes: dict[str, int]
    """Members per role to start."""
    pins: dict[str, dict[str, int]] = {}
    """Members by node group and role that the plan assumed; a hint unless the runtime places by itself."""
    placement_timeout_seconds: float
    disconnect_seconds: float | None = None
    """D: every member must be dead this long after the last lease was asked for; None: they wait."""
    installation: str = ""
    """The dispatcher's installation, by which members are told from those of another one on the same machine."""


class ResizeRun(Lenient):
    """A run to bring to other sizes. It keeps its members with the lowest indexes; new ones get the lowest free indexes."""

    run: str
    generation: int
    sizes: dict[str, int]
    """Members by role."""
    pins: dict[str, dict[str, int]] = {}
    """Members by node group and role that the plan assumed for the whole run; a hint."""
    grace_seconds: float = 10.0
    """For members that leave, between SIGTERM and SIGKILL."""


class StopRun(Lenient):
    """A run to stop. SIGTERM, ``grace_seconds`` later SIGKILL.

    With ``checkpoint_seconds`` the members' own processes get ``checkpoint_signal`` first, and SIGTERM only that much later.
    """

    run: str
    generation: int
    cause: StopCause
    grace_seconds: float
    checkpoint_seconds: float = 0.0
    checkpoint_signal: str = ""

    @property
    def longest(self) -> float:
        """Seconds until SIGKILL."""
        return self.checkpoint_seconds + self.grace_seconds


class OpenStream(Lenient):
    """A log stream that somebody follows. Ends by itself when a push is answered with ``stream-closed``."""

    stream: str
    run: str
    roles: tuple[str, ...] = ()
    index: int | None = None
    follow: bool = True
    tail_bytes: int = 65_536


class DesiredAnswer(Lenient):
    """What changed for this cluster after the version that was asked for."""

    version: int
    start: tuple[StartRun, ...] = ()
    stop: tuple[StopRun, ...] = ()
    resize: tuple[ResizeRun, ...] = ()
    streams: tuple[OpenStream, ...] = ()


class LogChunk(Lenient):
    """Output of one member from byte ``offset`` on; what is no UTF-8 is replaced."""

    role: Word
    index: Count
    offset: Large
    data: Annotated[str, StringConstraints(max_length=2**20)]
    next_offset: Large
    """Where the next chunk begins, in bytes of the member's own output."""


class StreamPush(Lenient):
    """Chunks for a follower, or, under the id of the run itself, the tail that is kept with the run."""

    session: SessionName
    chunks: Annotated[tuple[LogChunk, ...], Field(max_length=MOST_CHUNKS)] = ()
    end: bool = False


def run_digest(run: RunRef) -> int:
    """A signed 64-bit fingerprint of a run; the XOR over a set tells whether two sides hold the same set."""
    raw = hashlib.blake2b(b"%d:%d" % run, digest_size=8).digest()
    return int.from_bytes(raw, "big", signed=True)
