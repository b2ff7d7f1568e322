"""What an agent and the dispatcher say to each other: the three calls of the agent protocol.

Level-triggered: each side states what it holds; losing, repeating or reordering messages changes nothing.
``docs/reference/agent-protocol.md`` tells it in words.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from trainmaster.protocol.base import Lenient
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import FailureCategory, RunState, StopCause

PROTOCOL = 1
"""The newest protocol version; the dispatcher serves this one and the one before."""


HOST_LEVEL = "kubernetes.io/hostname"
"""The narrowest topology level, in no topology path: every node is a domain of its own."""


MOST_NODES = 100_000
"""In one group; beyond what Kubernetes is made for."""


class Taint(Lenient):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


MOST_ZONES = 64
"""NUMA zones of a node; the largest servers have 32."""


class Numa(Lenient):
    """The NUMA zones of each node of a group."""

    policy: Literal["none", "bestEffort", "restricted", "singleNode"] = "none"
    """What the nodes hold their members to: the policy of the kubelet's topology manager."""
    zones: Annotated[tuple[Resources, ...], Field(max_length=MOST_ZONES)] = ()
    """What each zone has free beside our own members, of the resources that belong to zones. Others belong to the whole node."""


MOST_SECONDS_AGO = 366 * 86_400.0


class NodeGroup(Lenient):
    """Nodes alike in what matters. ``free`` is per node: allocatable minus what others use, never minus our own members."""

    name: str
    count: int = Field(ge=0, le=MOST_NODES)
    free: Resources
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    topology: tuple[tuple[str, str], ...] = ()
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


class CapacityReport(Lenient):
    """What an agent says its cluster has."""

    groups: Annotated[tuple[NodeGroup, ...], AfterValidator(_names_differ)]
    runtime: str
    scheduler: str
    capabilities: tuple[str, ...] = ()
    dies_without_agent: bool = False
    """Whether members are sure to be dead once their deadline passes, though agent and link are gone."""
    pools: Annotated[tuple[Pool, ...], AfterValidator(_names_differ)] = ()
    datasets: tuple[str, ...] = ()
    not_counted: tuple[str, ...] = ()
    start_seconds: Annotated[float, Field(ge=0)] = 0.0
    """How long a gang that has nodes may take to start there at most, as its images are loaded; its time costs meanwhile."""
    closed: str = ""
    """A sentence why this cluster can start nothing now, such as ``the API server does not answer``. What runs goes on."""


class RunEnd(Lenient):
    """How a run ended."""

    category: FailureCategory | None = None
    exit_code: int | None = None
    signal: int | None = None
    member: str | None = None
    message: str = ""


class MemberReport(Lenient):
    """One member as its runtime sees it."""

    role: str
    index: int
    state: Literal["pending", "running", "succeeded", "failed", "stopped"]
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    message: str = ""


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

    run: str
    generation: int
    seq: int
    state: RunState
    message: str = ""
    end: RunEnd | None = None
    placement: dict[str, dict[str, int]] | None = None
    """Members by node group and role, once they have nodes."""
    members: tuple[MemberReport, ...] = ()
    sizes: dict[str, int] | None = None
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

    protocol: int = PROTOCOL
    session: str
    """A random id, new with each start of the agent process."""
    holder: str
    """Where the agent's own records live; the same after a restart that kept them."""
    place: str = ""
    """Where members live, such as the identity of a Kubernetes cluster or of one boot of a machine. An agent in the same place can
    verify that no member of a run is alive, whoever started it. Empty: it cannot."""
    number: int
    """Counts the syncs of this session from 1; an answer to an older one is not used."""
    agent_version: str = ""
    runs: tuple[RunReport, ...] = ()
    full: bool = False
    """Whether ``runs`` lists every run held, not only the changed ones."""
    held_count: int = 0
    held_digest: int = 0
    capacity: CapacityReport | None = None
    epoch: str = ""
    """Installation and store epoch as the agent last heard them."""


class SyncAnswer(Lenient):
    """What the dispatcher makes of a sync. The lease counts from the moment the agent sent the request."""

    number: int
    epoch: str
    lease_seconds: float
    settled: tuple[str, ...] = ()
    """Runs whose end is in the store: the agent may forget them."""
    unknown: tuple[str, ...] = ()
    """Runs that the store does not hold as live on this cluster: stopped after two agreeing answers, one lease apart."""
    send_full: bool = False
    send_capacity: bool = False


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

    role: str
    index: int
    offset: int
    data: str
    next_offset: int
    """Where the next chunk begins, in bytes of the member's own output."""


class StreamPush(Lenient):
    """Chunks for a follower, or, under the id of the run itself, the tail that is kept with the run."""

    session: str
    chunks: tuple[LogChunk, ...] = ()
    end: bool = False


def run_digest(run: RunRef) -> int:
    """A signed 64-bit fingerprint of a run; the XOR over a set tells whether two sides hold the same set."""
    raw = hashlib.blake2b(b"%d:%d" % run, digest_size=8).digest()
    return int.from_bytes(raw, "big", signed=True)
