"""The use of running jobs, beside what they requested: agents' reports of it, and answers to users.

The path of a sample: a runtime reads the use of its members, their agent sends it to the dispatcher by itself, beside the syncs, and
the store keeps the last one of each run with its sums.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainmaster.protocol.agent import Count, Sentence, SessionName, Word
from trainmaster.protocol.base import Lenient, Timestamp, bounded, example
from trainmaster.protocol.jobs import MOST_MEMBERS

MOST_USE_MEMBERS = 10_000
"""The most members of one report; agents send those of more members in several."""
MOST_USE_VALUES = 18 * MOST_USE_MEMBERS
"""The most JSON values of one report; a member of a run by itself has 17."""
MOST_USE_SECONDS = 3600
"""The longest interval between two samples."""
NEAR_LIMIT = 0.95
"""Part of its memory limit above which a member nearly runs out of memory."""
MOST_SERIES_VALUES = 100_000
"""The most values of an answer with the history of use; members beyond are left out."""
MOST_SERIES_STEPS = 3000
"""The most values of one series."""
FRESH_INTERVALS = 3
"""Intervals after which a sample is too old: what is used since then is unknown."""

Milli = Annotated[int, Field(ge=0, le=2**31 - 1)]
Percent = Annotated[int, Field(ge=0, le=100)]
Bytes = Annotated[int, Field(ge=0, le=2**49)]
"""Bytes of one member; the sum of all members of a run is below 2**63."""
UseSeconds = Annotated[int, Field(ge=0, le=MOST_USE_SECONDS)]
"""Seconds between two samples, as an agent's configuration has it; 0: there are none."""
USE_SECONDS = 30
"""The default of ``UseSeconds``."""
UseMetric = Literal["cpu", "memory", "gpu", "gpuMemory"]
TopSort = Literal["cpu", "memory", "gpu", "idle"]
TopGroup = Literal["queue", "cluster", "user"]

_BOUND = bounded(MOST_MEMBERS, first_only=True)


class RoleUse(Lenient):
    """The use of members of one role, as columns: the values at one position of the lists are of one member. Null: unknown.

    A list without values is left out: it is unknown for all.
    """

    role: Word
    """Role of the members."""
    indexes: Annotated[tuple[Count, ...], _BOUND]
    """Indexes of the members in their role."""
    cpu: Annotated[tuple[Milli | None, ...], _BOUND] = ()
    """Thousandths of a core, on average since the sample before."""
    memory: Annotated[tuple[Bytes | None, ...], _BOUND] = ()
    """Bytes of memory that cannot be freed at once."""
    gpu: Annotated[tuple[Percent | None, ...], _BOUND] = ()
    """Percent of the time in which the GPUs of the member were at work, on average over its GPUs."""
    gpu_memory: Annotated[tuple[Bytes | None, ...], _BOUND] = ()
    """Bytes of the memory of its GPUs."""
    restarts: Annotated[tuple[Count | None, ...], _BOUND] = ()
    """Number of times that the member, or a container of it, was started again in its run."""
    oom_kills: Annotated[tuple[Count | None, ...], _BOUND] = ()
    """Number of its lives in this run, and of its present containers or processes, that were last ended for lack of memory."""
    near_limit: Annotated[tuple[Annotated[int, Field(ge=0, le=1)] | None, ...], _BOUND] = ()
    """1: its memory is above 95 % of its limit; 0: it is not. Null without a limit."""

    @model_validator(mode="after")
    def _have_one_length(self) -> Self:
        many = len(self.indexes)
        columns = (self.cpu, self.memory, self.gpu, self.gpu_memory, self.restarts, self.oom_kills, self.near_limit)
        if any(column and len(column) != many for column in columns):
            raise ValueError(f"each list has to have {many} values, as indexes has, or none")
        return self


class RunUse(Lenient):
    """The use of the members of one run."""

    run: Word
    """Id of the run."""
    roles: Annotated[tuple[RoleUse, ...], bounded(100, first_only=True)]
    """Its members of which something is known."""

    @property
    def members(self) -> int:
        return sum(len(role.indexes) for role in self.roles)


class UsePush(Lenient):
    """An agent's report of what the members of its running runs use."""

    model_config = example(
        session="b1c5e0f2",
        seconds=30,
        runs=[
            {"run": "bert-7k2p9xq.1", "roles": [{"role": "worker", "indexes": [0], "cpu": [950], "memory": [2**31]}]}
        ],
    )

    session: SessionName
    """Session of the agent, as in its syncs."""
    seconds: Annotated[int, Field(ge=1, le=MOST_USE_SECONDS)]
    """Seconds from one sample to the next."""
    runs: Annotated[tuple[RunUse, ...], bounded(MOST_USE_MEMBERS, first_only=True)] = ()
    """Runs of whose members something is known."""
    missing: Sentence = ""
    """Reason for which some or all of the use is not known, and what to install or to allow; empty if nothing is missing."""

    @model_validator(mode="after")
    def _has_few_members(self) -> Self:
        if sum(run.members for run in self.runs) > MOST_USE_MEMBERS:
            raise ValueError(f"a report has at most {MOST_USE_MEMBERS} members; send those of more in several")
        return self


# Answers to users


class UsedAmount(Lenient):
    """An amount of a resource that is used, beside the requested one."""

    used: float | None = None
    """The amount in use; missing where it is unknown."""
    requested: float | None = None
    """The amount that was requested; missing where nothing was, or that is unknown."""
    percent: float | None = None
    """Percent of the requested amount that is used."""


class JobUse(Lenient):
    """Use of the members of a run, beside what was requested for them.

    Amounts are of the members of which they are known. Those of a sample that is too old are missing, as are those of a run that
    has ended: what was used then is in the averages.
    """

    attempt: int
    """Attempt of the run."""
    sampled_at: Timestamp | None = None
    """Time of the last sample; missing where there was none."""
    members: int = 0
    """Number of members in the last sample."""
    cpu: UsedAmount = UsedAmount()
    """Cores."""
    memory: UsedAmount = UsedAmount()
    """Bytes."""
    gpu: UsedAmount = UsedAmount()
    """GPUs at work: of 4 GPUs that are at work half of the time, 2 are used."""
    gpu_memory: int | None = None
    """Bytes of the GPUs' memory that are used."""
    peak_memory: int | None = None
    """The most bytes of memory that one of its members has used in a sample."""
    peak_cpu: float | None = None
    """The most cores that one of its members has used, on average over the time between two samples."""
    restarts: int | None = None
    """Number of restarts of its members, or of their containers; missing where it is unknown."""
    oom_kills: int | None = None
    """Number of times that its members or their containers were ended for lack of memory, as far as it is known; with the end of
    the run, if that was for lack of memory."""
    near_misses: int | None = None
    """Number of samples of its members with memory above 95 % of the limit; missing where no limit is known."""
    gpus_idle_since: Timestamp | None = None
    """Time since which all its GPUs do nothing, by the policy of its queue (``idleGpus``); missing where they work or it has none."""
    measured_seconds: float = 0.0
    """Seconds of the run for which its use was measured."""
    cpu_average: UsedAmount = UsedAmount()
    """Cores, on average over the measured time; what was requested for the members that the run has now, or had last."""
    gpu_average: UsedAmount = UsedAmount()
    """GPUs at work, on average over the measured time."""


class MemberUseView(Lenient):
    """Use of one member."""

    role: str
    """Role of the member."""
    index: int
    """Index of the member in its role."""
    node: str = ""
    """Name of its node."""
    cpu: float | None = None
    """Cores; missing where it is unknown."""
    memory: int | None = None
    """Bytes of memory."""
    peak_memory: int | None = None
    """The most bytes of memory in a sample of the run."""
    gpu: float | None = None
    """Percent of the time in which its GPUs were at work."""
    gpu_memory: int | None = None
    """Bytes of its GPUs' memory."""
    restarts: int | None = None
    """Number of restarts in its run; missing where it is unknown."""
    oom_kills: int | None = None
    """Number of times that it or a container of it was ended for lack of memory, as far as it is known."""
    near_misses: int | None = None
    """Number of samples in which its memory was above 95 % of its limit; missing where no limit is known."""


class UseSeries(Lenient):
    """The use of one member over time: one value for each step."""

    member: str
    """Role and index of the member, as ``worker-0``."""
    metric: UseMetric
    """Metric: cores, bytes, percent of the time in which its GPUs were at work, or bytes of their memory."""
    unit: str
    """Unit of the values: ``cores``, ``bytes`` or ``percent``."""
    start: Timestamp
    """Begin of the first step."""
    step: int
    """Seconds of each step."""
    values: tuple[float | None, ...]
    """Values, one for each step: averages of cores and GPUs, the most of memory; null where nothing is known."""


class UseOfJob(Lenient):
    """Use of a job's latest run and of each of its members."""

    model_config = example(
        job="bert-7k2p9xq",
        cluster="west",
        use={
            "attempt": 1,
            "sampledAt": "2026-11-24T08:00:00.000Z",
            "members": 1,
            "cpu": {"used": 0.95, "requested": 4},
        },
        members=[{"role": "worker", "index": 0, "node": "node-7", "cpu": 0.95, "memory": 2**31, "peakMemory": 2**31}],
    )

    job: str
    """Id of the job."""
    cluster: str | None = None
    """Cluster of its latest run."""
    use: JobUse | None = None
    """Use of the run; missing where nothing was ever known of it."""
    missing: str = ""
    """Reason for which something is not known, as the cluster's agent says."""
    members: tuple[MemberUseView, ...] = ()
    """Its members, by role and index."""
    series: tuple[UseSeries, ...] | None = None
    """History of all its runs since the requested time, by member and metric; missing where none was requested."""
    series_left_out: int | None = None
    """Number of members whose history is left out of a long answer."""


class TopJob(Lenient):
    """A running job with its use."""

    job: str
    """Id of the job."""
    queue: str
    """Path of its queue."""
    cluster: str
    """Cluster of the run."""
    user: str = ""
    """User whose job it is."""
    members: int
    """Number of members of the run."""
    use: JobUse
    """Its use."""


class TopSum(Lenient):
    """The use of the running jobs of one queue, cluster or user."""

    of: str
    """Queue, cluster or user."""
    jobs: int
    """Number of running jobs."""
    known: int
    """Number of those with a sample that is not too old. What is requested is that of these alone, too."""
    members: int
    """Number of members of all of them."""
    cpu: UsedAmount = UsedAmount()
    """Cores."""
    memory: UsedAmount = UsedAmount()
    """Bytes."""
    gpu: UsedAmount = UsedAmount()
    """GPUs at work."""


class ReportingCluster(Lenient):
    """A cluster with running jobs of the answer, and whether its agent reports what they use."""

    name: str
    """Name of the cluster."""
    reported_at: Timestamp | None = None
    """Time of its agent's last report; missing where it has never sent one."""
    missing: str = ""
    """Reason for which some or all of the use is not known."""


class TopAnswer(Lenient):
    """Running jobs with their use, or with ``by`` the sums of groups of them."""

    model_config = example(
        at="2026-11-24T08:00:10.000Z",
        running=1,
        jobs=[
            {
                "job": "bert-7k2p9xq",
                "queue": "research/vision",
                "cluster": "west",
                "user": "vision-team",
                "members": 1,
                "use": {"attempt": 1, "sampledAt": "2026-11-24T08:00:00.000Z", "members": 1, "cpu": {"used": 0.95}},
            }
        ],
        clusters=[{"name": "west", "reportedAt": "2026-11-24T08:00:00.000Z"}],
    )

    at: Timestamp
    """Time of the answer."""
    running: int
    """Number of running jobs that match, also beyond the limit."""
    jobs: tuple[TopJob, ...] = ()
    """Running jobs, in the order that was requested; empty with ``by``."""
    groups: tuple[TopSum, ...] = ()
    """Sums by group, with ``by``."""
    clusters: tuple[ReportingCluster, ...] = ()
    """The clusters of the running jobs."""
