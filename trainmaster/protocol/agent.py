"""Messages between agent and dispatcher: the three calls of the agent protocol.

Level-triggered: each side states what it holds; lost, repeated or reordered messages do no harm.
``docs/reference/agent-protocol.md`` describes it.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError

from trainmaster.protocol.admission_policy import AdmissionPolicy, QueueAdmission, longest_match
from trainmaster.protocol.base import Lenient, bounded, example
from trainmaster.protocol.files import MemberFiles
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster.protocol.json_limits import is_too_large
from trainmaster.protocol.member_streams import OpenMemberStream
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.results import MOST_RESULTS, mistake_in
from trainmaster.protocol.states import FailureCategory, RunState, StopCause

PROTOCOL = 1
"""The newest protocol version; the dispatcher serves this one and the previous one."""


HOST_LEVEL = "kubernetes.io/hostname"
"""The narrowest topology level, in no topology path: every node is a domain of its own."""


MOST_NODES = 100_000
"""The most nodes of one group; beyond what Kubernetes is built for."""
MOST_GROUPS = 20_000
"""The most groups of one report. Agents of Kubernetes clusters merge groups to stay below it."""


LONGEST_SENTENCE = 4096
"""The most characters of a sentence. An agent passes on foreign messages, so longer ones are cut, not refused."""
MOST_NOTES = 1000
"""The most sentences of a list; further ones are dropped."""
MOST_RUNS = 100_000
"""The most runs of one sync."""
MOST_SYNC_VALUES = 1_000_000
"""The most JSON values of one sync; a run with one member has about 25, a node group about 40."""
MOST_PUSH_VALUES = 250_000
"""The most JSON values of one push; a chunk has 6."""
MOST_CHUNKS = 20_000
"""The most chunks of one push; a member's output is one chunk or a few."""
MOST_MARKS, MOST_LIVES = 5_000, 1_000
"""The most times and restarts of one piece of output."""
_MOST_SECONDS = 10 * 365 * 86_400.0

Sentence = Annotated[
    str, AfterValidator(lambda text: text if len(text) <= LONGEST_SENTENCE else text[:LONGEST_SENTENCE])
]
"""A sentence for people."""
Notes = Annotated[tuple[Sentence, ...], bounded(MOST_NOTES, first_only=True, cuts=True)]
Word = Annotated[str, StringConstraints(max_length=253)]
"""A name of Kubernetes or of this protocol, not one that a job chooses."""
LabelName = Annotated[str, StringConstraints(max_length=317)]
SessionName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Small = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Large = Annotated[int, Field(ge=0, le=2**62)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Free = Annotated[dict[LabelName, Large], bounded(500, first_only=True)]
Members = Annotated[dict[Word, Count], bounded(100, first_only=True)]
"""By role."""
Spread = Annotated[dict[Word, Members], bounded(10_000, first_only=True)]
"""Members by node group and role."""


class Taint(Lenient):
    """A taint of a node."""

    key: LabelName
    """Key of the taint."""
    value: Word = ""
    """Value of the taint."""
    effect: Word = "NoSchedule"
    """Effect of the taint."""


MOST_ZONES = 64
"""The most NUMA zones of a node; the largest servers have 32."""


class Numa(Lenient):
    """NUMA zones of each node of a group."""

    policy: Literal["none", "bestEffort", "restricted", "singleNode"] = "none"
    """Policy of the kubelet's topology manager, which the nodes enforce."""
    zones: Annotated[tuple[Free, ...], bounded(MOST_ZONES, first_only=True)] = ()
    """Free amounts of each zone beside our own members, of resources that belong to zones. Others belong to the whole node."""


MOST_SHARED_DEVICES = 1000
"""The most devices of a node that several pods share."""


class Sharing(Lenient):
    """Devices of each node of a group of which members can have parts."""

    device: LabelName
    """Resource that counts whole devices of the sort, by which jobs name them."""
    resource: LabelName = ""
    """Resource of ``free`` that counts what of them is free; empty: ``device`` itself."""
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """1: members share a device in any parts. More: ``resource`` counts the replicas into which each device is divided by this number,
    and a member gets one of them."""
    open: Annotated[
        tuple[Annotated[int, Field(ge=0, le=1000)], ...], bounded(MOST_SHARED_DEVICES, first_only=True)
    ] = ()
    """Free thousandths of each device that other pods than our members have parts of. ``free`` does not count these devices."""
    memory: Large = 0
    """Bytes of memory of each device; 0 if that is not known."""
    step: Annotated[int, Field(ge=1, le=1000)] = 1
    """Thousandths to whose multiples a fraction is rounded up; memory is not."""
    least: Annotated[int, Field(ge=1, le=1000)] = 1
    """The fewest thousandths of a device that a member takes, where the number of members on one is limited."""


MOST_SECONDS_AGO = 366 * 86_400.0


class NodeGroup(Lenient):
    """Equivalent nodes. ``free`` is per node: allocatable minus others' use, never minus our own members."""

    name: Word
    """Name of the group, unique in the report."""
    count: int = Field(ge=0, le=MOST_NODES)
    """Number of nodes."""
    free: Free
    """Free amounts on each node, by resource."""
    labels: Annotated[dict[LabelName, Word], bounded(1000, first_only=True)] = {}
    """Labels of each node."""
    taints: Annotated[tuple[Taint, ...], bounded(500, first_only=True)] = ()
    """Taints of each node."""
    topology: Annotated[tuple[tuple[LabelName, Word], ...], bounded(32, first_only=True)] = ()
    """Topology domains from wide to narrow, such as (("zone", "a"), ("rack", "r1")), without the host itself."""
    numa: Numa | None = None
    """NUMA zones, where the agent knows them."""
    sharing: Sharing | None = None
    """Devices that members can share; None: only whole devices are offered."""
    occupied: bool = False
    """True if pods of others, beside one per node of a DaemonSet and static ones, are bound to each of the nodes."""


class Pool(NodeGroup):
    """Nodes that the cluster's autoscaler adds for waiting gangs. ``count``: how many more it could add now."""

    most: int = Field(ge=0, le=MOST_NODES)
    """The most nodes of the pool."""
    nodes: int = Field(default=0, ge=0, le=MOST_NODES)
    """Number of nodes that it has, those that are ordered included."""
    blocked: Sentence = ""
    """Reason for which the autoscaler adds no nodes now, other than that the pool has its most; empty if it would."""


_Groups = TypeVar("_Groups", bound=tuple[NodeGroup, ...])


def _names_differ(groups: _Groups) -> _Groups:
    if len({group.name for group in groups}) < len(groups):
        raise ValueError("two node groups have the same name")
    return groups


class ReportedAdmission(Lenient):
    """Policies by which an agent checks templates before it starts their members."""

    needs_image: bool = False
    """True if members are pods, which need an image."""
    policy: AdmissionPolicy = AdmissionPolicy()
    """Policy of queues that have none of their own here."""
    queues: Annotated[tuple[QueueAdmission, ...], bounded(1000, first_only=True)] = ()
    """Policies of queues, and those below them, that have their own in this cluster."""

    def policy_of(self, queue: str) -> AdmissionPolicy:
        found = longest_match(((one.queue, one.policy) for one in self.queues), queue)
        return self.policy if found is None else found

    @property
    def names(self) -> int:
        """Number of names and queues listed."""
        policies = [self.policy, *(one.policy for one in self.queues)]
        lists = [value for one in policies for value in one.__dict__.values() if isinstance(value, tuple)]
        return len(self.queues) + sum(map(len, lists))


MOST_ADMISSION_NAMES = 2000
"""The most names in an agent's report of its policies: an api reads all of it every few seconds."""


def _readable_admission(value: Any) -> Any:
    """Return None for policies that are unreadable, as a newer agent's may be, or too long: that agent checks by itself."""
    if value is None or isinstance(value, ReportedAdmission):
        return value
    try:
        found = ReportedAdmission.model_validate(value)
    except ValidationError:
        return None
    return found if found.names <= MOST_ADMISSION_NAMES else None


MOST_TROUBLED = 20
"""The most nodes in trouble that a report names."""
MOST_PRODUCTS = 100
"""The most device products whose use by others a report counts apart."""


class TroubledNode(Lenient):
    """A node in trouble."""

    node: Word
    """Name of the node."""
    trouble: Sentence
    """Sentence that says what is wrong with it."""


class ClusterHealth(Lenient):
    """Numbers of the nodes of a cluster, by state and by trouble. A node can be in several of the last three."""

    ready: Count = 0
    """Nodes that are ready and open, whether they have free capacity or not."""
    cordoned: Count = 0
    """Nodes that are closed by an admin or are about to be removed."""
    not_ready: Count = 0
    """Nodes that are not ready."""
    flapping: Count = 0
    """Nodes that became ready again at least 3 times in the last hour."""
    device_errors: Count = 0
    """Nodes with fewer healthy devices than they have, or with a condition that reports a device error."""
    troubled: Annotated[tuple[TroubledNode, ...], bounded(MOST_TROUBLED, first_only=True)] = ()
    """Some of the nodes in trouble, by name."""


class OthersUse(Lenient):
    """Amounts that pods of others use on the nodes that take members."""

    product: Word = ""
    """Product of the devices; empty for resources that are no devices, and for devices without a known product."""
    amounts: Free
    """Amounts by resource."""


class CapacityReport(Lenient):
    """An agent's report of its cluster's capacity."""

    groups: Annotated[tuple[NodeGroup, ...], bounded(MOST_GROUPS, first_only=True), AfterValidator(_names_differ)]
    """Groups of equivalent nodes."""
    runtime: Word
    """Name of the runtime."""
    scheduler: Word
    """Name of the scheduler in the cluster."""
    capabilities: Annotated[tuple[Word, ...], bounded(1000, first_only=True)] = ()
    """Names of the agent's abilities."""
    dies_without_agent: bool = False
    """True if members are certainly dead after their deadline even without agent and connection."""
    pools: Annotated[tuple[Pool, ...], bounded(MOST_GROUPS, first_only=True), AfterValidator(_names_differ)] = ()
    """Nodes that an autoscaler could add."""
    datasets: Annotated[tuple[Word, ...], bounded(10_000, first_only=True)] = ()
    """Names of the datasets in the cluster."""
    not_counted: Notes = ()
    """Sentences on nodes or amounts that are left out."""
    start_seconds: Seconds = 0.0
    """The longest start of a gang that has nodes, while images are pulled; its time is charged meanwhile."""
    admission: Annotated[ReportedAdmission | None, BeforeValidator(_readable_admission)] = None
    """Admission policies; None: the cluster has none or does not report them."""
    closed: Sentence = ""
    """Reason for which this cluster can start nothing now, such as ``the API server does not answer``. Running members go on."""
    health: ClusterHealth | None = None
    """Numbers of nodes by state and trouble; None: the agent does not know them, or is of an earlier release."""
    others: Annotated[tuple[OthersUse, ...], bounded(MOST_PRODUCTS, first_only=True)] = ()
    """Amounts that ``free`` of the groups does not count as they are used by others. Members of ours are not among them."""


class RunEnd(Lenient):
    """The end of a run."""

    category: FailureCategory | None = None
    """Category of the failure; None for a success."""
    exit_code: Small | None = None
    """Exit code of the member that ended the run."""
    signal: Small | None = None
    """Signal that ended that member."""
    member: Word | None = None
    """Name of that member."""
    message: Sentence = ""
    """Message for people."""
    lacks_room: bool = False
    """True for a returned run that only lacked free capacity when its placement time-out ended: its job is tried again."""


class MemberReport(Lenient):
    """One member as its runtime sees it."""

    role: Word
    """Role of the member."""
    index: Count
    """Index of the member in its role."""
    state: Literal["pending", "running", "succeeded", "failed", "stopped"]
    """State of the member."""
    node: Word = ""
    """Name of its node."""
    group: Word = ""
    """Group of its node in the capacity report."""
    exit_code: Small | None = None
    """Exit code of its process."""
    signal: Small | None = None
    """Signal that ended its process."""
    restarts: Count = 0
    """Number of its restarts."""
    message: Sentence = ""
    """Message for people."""


class Absence(StrEnum):
    """An agent's knowledge of a run that it was ordered to stop and of which it has no record."""

    UNRECORDED = "unrecorded"
    """The records have no such run. This is also true of lost records."""
    VERIFIED = "verified"
    """The agent has also searched for its members and ended those it found: none of them is alive."""


NOT_HELD_SEQ = 1_000_000
"""``seq`` of a report on a run that its agent does not hold. Agents of releases without ``absence`` are recognised by it."""


MOST_STATUS_BYTES = 16 * 1024
"""The most bytes of an object's status as JSON."""
MOST_STATUS_FIELDS = 100
"""The most fields of an object's status."""


def _bounded_status(status: Any) -> Any:
    if is_too_large(status):
        return {}
    try:
        return status if len(orjson.dumps(status)) <= MOST_STATUS_BYTES else {}
    except orjson.JSONEncodeError:  # nested too deep
        return {}


ObjectStatus = Annotated[dict[str, Any], bounded(MOST_STATUS_FIELDS), BeforeValidator(_bounded_status)]
"""The status of an object of Kubernetes. Of one that is too large nothing is taken: agents shorten it."""


MOST_REPORTED_RESULTS_BYTES = 16 * 1024
"""The most bytes of results as an agent writes them: some numbers are longer than the member wrote them."""


def _checked_results(results: Any) -> Any:
    """Return results that can be stored. Raises ValueError for others."""
    if isinstance(results, dict) and len(results) <= MOST_RESULTS:
        if is_too_large(results):
            raise ValueError("have too many values")
        if wrong := mistake_in(results):
            raise ValueError(wrong)
        if len(orjson.dumps(results)) > MOST_REPORTED_RESULTS_BYTES:
            raise ValueError(f"have more than {MOST_REPORTED_RESULTS_BYTES} bytes")
    return results


RunResults = Annotated[dict[str, Any], bounded(MOST_RESULTS)]
"""Results of a run, by name."""


class RunReport(Lenient):
    """A run as its agent holds it. ``seq`` rises with each change of this run at the agent, across its restarts."""

    run: Word
    """Id of the run."""
    generation: Count
    """Generation of the order that the agent has executed."""
    seq: Count
    """Number of the report, which rises with each change of the run."""
    state: RunState
    """State of the run."""
    message: Sentence = ""
    """Message for people."""
    end: RunEnd | None = None
    """End of the run, once it has ended."""
    placement: Spread | None = None
    """Members by node group and role, once they have nodes."""
    members: Annotated[tuple[MemberReport, ...], bounded(MOST_MEMBERS, first_only=True)] = ()
    """States of its members."""
    sizes: Members | None = None
    """Current members by role, once a resize was ordered. Fewer than requested: there was no free capacity for the others."""
    ended_seconds_ago: Annotated[float, Field(ge=0, le=MOST_SECONDS_AGO)] = 0.0
    """Seconds since its end, where that could not be reported at once: its time is charged until then."""
    absence: Absence | None = None
    """Set if the agent does not hold the run; ``state`` is then the one that the stop order asks for."""
    object_status: ObjectStatus | None = None
    """Status of the object as which the run exists on its cluster, of a job with a ``workload``. Null: nothing new."""
    results: Annotated[RunResults | None, BeforeValidator(_checked_results)] = None
    """Results that the member of rank 0 has left, of a run that has succeeded or failed."""
    results_error: Sentence = ""
    """Reason why what it has left cannot be read."""

    @property
    def is_held(self) -> bool:
        """Return whether the agent has a record of the run."""
        return self.absence is None and self.seq < NOT_HELD_SEQ


class SyncRequest(Lenient):
    """The agent's state, sent on change and at least every third of the lease."""

    model_config = example(
        protocol=1,
        session="b1c5e0f2",
        holder="west-agent-0",
        number=1,
        agentVersion="0.1.0",
        runs=[{"run": "bert-7k2p9xq.1", "generation": 1, "seq": 3, "state": "running"}],
        full=True,
        heldCount=1,
    )

    protocol: Small = PROTOCOL
    """Version of the protocol."""
    session: SessionName
    """A random id, new at each start of the agent process."""
    holder: SessionName
    """Identity of the agent's records; the same after a restart that kept them."""
    place: Word = ""
    """Identity of where members live, such as a Kubernetes cluster or one boot of a machine. An agent in the same place can
    verify that no member of a run is alive, whoever started it. Empty: it cannot."""
    number: Large
    """Number of this sync in its session, from 1; an answer to an older one is ignored."""
    agent_version: Word = ""
    """Version of the agent."""
    cluster: Word = ""
    """The cluster's name in the agent's own configuration, which has to be that of its key's cluster. Empty: it names none."""
    runs: Annotated[tuple[RunReport, ...], bounded(MOST_RUNS, first_only=True)] = ()
    """Runs that changed since the dispatcher acknowledged them."""
    full: bool = False
    """True if ``runs`` lists every run held, not only changed ones."""
    held_count: Count = 0
    """Number of runs held that have not ended."""
    held_digest: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Fingerprint of these runs."""
    capacity: CapacityReport | None = None
    """Capacity of the cluster, if it changed or was requested."""
    epoch: Word = ""
    """Installation and store epoch that the agent last received."""
    desired_version: int = 0
    """The highest version of the desired state that this process received; a store behind it was restored."""


class RefusedPart(Lenient):
    """A part of a sync that could not be read; all other parts were."""

    part: str
    """``capacity``, or the id of the reported run."""
    code: str
    """Stable code of the mistake."""
    message: str
    """Sentence on the mistake."""
    left_out: tuple[str, ...] = ()
    """Fields that were left out of a run's report; empty if the whole report was refused."""


class SyncAnswer(Lenient):
    """Answer to a sync. The lease counts from the time the agent sent the request."""

    model_config = example(number=1, epoch="5f1d:1", leaseSeconds=15.0, sendCapacity=True)

    number: int
    """Number of the sync that is answered."""
    epoch: str
    """Installation and store epoch."""
    lease_seconds: float
    """Length of the lease in seconds."""
    settled: tuple[str, ...] = ()
    """Runs whose end is stored: the agent may forget them."""
    unknown: tuple[str, ...] = ()
    """Runs that are not live on this cluster in the store: stopped after two agreeing answers, one lease apart."""
    quarantined: tuple[str, ...] | None = None
    """Runs that the store has forgotten and that go on nevertheless. None: this dispatcher does not quarantine runs."""
    send_full: bool = False
    """True to request the list of all runs."""
    send_capacity: bool = False
    """True to request the capacity."""
    refused: tuple[RefusedPart, ...] = ()
    """Parts of the sync that could not be read."""
    output_bytes: int = 0
    """The most bytes of each member's output that are stored: the first and the last half. 0: the last 64 KiB alone."""
    takes_use: bool = False
    """True if this dispatcher takes reports of what members use."""


class StartRun(Lenient):
    """A run to start."""

    run: str
    """Id of the run."""
    job: str
    """Id of the job."""
    queue: str
    """Path of the job's queue."""
    attempt: int
    """Number of the attempt."""
    token: int
    """Token of the decision to start it."""
    generation: int
    """Generation of the order."""
    spec: dict[str, Any]
    """The job's specification in wire form."""
    sizes: dict[str, int]
    """Members per role to start."""
    pins: MemberPlacement = {}
    """Members by node group and role that the plan assumed; a hint unless the runtime places by itself."""
    placement_timeout_seconds: float
    """Seconds after which members that did not start are given up."""
    disconnect_seconds: float | None = None
    """D: every member must be dead this many seconds after the last answered sync was sent; None: members wait."""
    installation: str = ""
    """The dispatcher's installation, which distinguishes members from those of another one on the same machine."""
    traceparent: str = ""
    """The run's span in the trace of its submission, as W3C writes it in ``traceparent``; members get it. Empty: there is none."""
    member_files: MemberFiles | None = None
    """Address and secret by which members call their agent for files; the agent sets it, in its own records."""
    reads_entry_point: bool = False
    """True if members execute the entry point of their image for each element; the agent sets it, in its own records."""


class ResizeRun(Lenient):
    """A run to resize. It keeps its members with the lowest indexes; new ones get the lowest free indexes."""

    run: str
    """Id of the run."""
    generation: int
    """Generation of the order."""
    sizes: dict[str, int]
    """Members by role."""
    pins: MemberPlacement = {}
    """Members by node group and role that the plan assumed for the whole run; a hint."""
    grace_seconds: float = 10.0
    """Seconds between SIGTERM and SIGKILL for members that leave."""


class StopRun(Lenient):
    """A run to stop: SIGTERM, ``grace_seconds`` later SIGKILL.

    With ``checkpoint_seconds`` the members' own processes get ``checkpoint_signal`` first, and SIGTERM that much later.
    """

    run: str
    """Id of the run."""
    generation: int
    """Generation of the order."""
    cause: StopCause
    """Reason of the stop."""
    grace_seconds: float
    """Seconds between SIGTERM and SIGKILL."""
    checkpoint_seconds: float = 0.0
    """Seconds between the checkpoint signal and SIGTERM."""
    checkpoint_signal: str = ""
    """Name of the checkpoint signal; empty: there is none."""

    @property
    def longest(self) -> float:
        """Seconds until SIGKILL."""
        return self.checkpoint_seconds + self.grace_seconds


class StreamStart(Lenient):
    """Where a log stream begins with the output of one member."""

    role: str
    """Role of the member."""
    index: int
    """Index of the member in its role."""
    offset: int
    """Offset in bytes."""


class OpenStream(Lenient):
    """A log stream that somebody follows. Ends by itself when a push is answered with ``stream-closed``."""

    stream: str
    """Id of the stream."""
    run: str
    """Id of the run."""
    roles: tuple[str, ...] = ()
    """Roles of the wanted members; empty: all."""
    index: int | None = None
    """Index of the wanted members; None: all."""
    follow: bool = True
    """True to go on with new output."""
    tail_bytes: int = 65_536
    """Bytes before the end of the output at which to begin."""
    tail_lines: int | None = None
    """Lines before the end at which to begin; None: as ``tail_bytes`` says."""
    since: float | None = None
    """Seconds since the epoch: only output that was first seen then or later; None: whenever."""
    starts: tuple[StreamStart, ...] = ()
    """Members whose output was followed before, and where that goes on, in place of all of these."""


class DesiredAnswer(Lenient):
    """Changes of the desired state for this cluster after the requested version."""

    model_config = example(
        version=17, stop=[{"run": "bert-7k2p9xq.1", "generation": 2, "cause": "cancel", "graceSeconds": 10.0}]
    )

    version: int
    """Version to give as ``after`` next."""
    start: tuple[StartRun, ...] = ()
    """Runs to start."""
    stop: tuple[StopRun, ...] = ()
    """Runs to stop."""
    resize: tuple[ResizeRun, ...] = ()
    """Runs to resize."""
    streams: tuple[OpenStream, ...] = ()
    """Log streams to serve."""
    member_streams: tuple[OpenMemberStream, ...] = ()
    """Streams to members to serve."""


class Empty(Lenient):
    """An empty object."""


class OutputMark(Lenient):
    """Time at which output was first seen."""

    offset: Large
    """Offset in bytes of the member's own output: what follows was first seen at this time."""
    at: Annotated[float, Field(ge=0, le=1e11)]
    """Seconds since the epoch."""


class LogChunk(Lenient):
    """Output of one member from byte ``offset`` on; bytes that are not UTF-8 are replaced."""

    role: Word
    """Role of the member."""
    index: Count
    """Index of the member in its role."""
    offset: Large
    """Offset of the chunk, in bytes of the member's own output."""
    data: Annotated[str, StringConstraints(max_length=2**20)]
    """Output."""
    next_offset: Large
    """Offset of the next chunk, in bytes of the member's own output."""
    marks: Annotated[tuple[OutputMark, ...], bounded(MOST_MARKS, first_only=True)] = ()
    """Times, in order; empty where they are unknown."""


class OutputPiece(LogChunk):
    """A piece of a member's output that is stored. Without ``data`` it only asks up to where output is stored."""

    lives: Annotated[tuple[Large, ...], bounded(MOST_LIVES, first_only=True)] = ()
    """Offsets at which the output of the member's restarts begins, in order."""


class OutputPush(Lenient):
    """Output of a run's members to be stored, beside the tails."""

    model_config = example(
        session="b1c5e0f2",
        pieces=[{"role": "worker", "index": 0, "offset": 0, "data": "step 1\n", "nextOffset": 7}],
    )

    session: SessionName
    """Session of the agent, as in its syncs."""
    pieces: Annotated[tuple[OutputPiece, ...], bounded(MOST_CHUNKS, first_only=True)] = ()
    """Pieces, for each member in the order of its output."""


class StoredOutput(Lenient):
    """Up to where a member's output is stored."""

    role: str
    """Role of the member."""
    index: int
    """Index of the member in its role."""
    next_offset: int
    """Offset of the next piece to send, in bytes of the member's own output."""


class OutputAnswer(Lenient):
    """Answer to pieces of output."""

    model_config = example(stored=[{"role": "worker", "index": 0, "nextOffset": 7}])

    stored: tuple[StoredOutput, ...] = ()
    """The members of the pieces."""


class StreamPush(Lenient):
    """Chunks for a follower, or, under the run's own id, the tail that is stored with the run."""

    model_config = example(
        session="b1c5e0f2",
        chunks=[{"role": "worker", "index": 0, "offset": 0, "data": "step 1\n", "nextOffset": 7}],
    )

    session: SessionName
    """Session of the agent, as in its syncs."""
    chunks: Annotated[tuple[OutputPiece, ...], bounded(MOST_CHUNKS, first_only=True)] = ()
    """Chunks, in order."""
    end: bool = False
    """True if no more chunks follow."""


def run_digest(run: RunRef) -> int:
    """Return a signed 64-bit fingerprint of a run; the XOR over a set shows whether two sides hold the same set."""
    raw = hashlib.blake2b(b"%d:%d" % run, digest_size=8).digest()
    return int.from_bytes(raw, "big", signed=True)
