"""States of jobs and runs."""

from enum import IntEnum, StrEnum


class JobState(StrEnum):
    """State of a job. The transitions are in ``dispatcher/domain/job_machine.py``."""

    HELD = "held"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def has_live_run(self) -> bool:
        return self in (JobState.DISPATCHED, JobState.RUNNING)


class HoldCause(StrEnum):
    """Reason for which a job is held."""

    DEPENDENCY = "dependency"
    START_TIME = "startTime"
    USER = "user"
    SUSPENDED = "suspended"
    BACK_OFF = "backOff"
    UNPLACEABLE = "unplaceable"
    QUEUE_HELD = "queueHeld"

    @property
    def ends_by_itself(self) -> bool:
        return self in (HoldCause.START_TIME, HoldCause.BACK_OFF, HoldCause.DEPENDENCY)


class Condition(StrEnum):
    """Conditions on a predecessor."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"
    STARTED = "started"


class ConditionState(StrEnum):
    """State of a condition on a predecessor."""

    WAITING = "waiting"
    MET = "met"
    NEVER = "never"
    """It can no longer be met, unless a person has the predecessor tried again."""


class DependencyFailure(StrEnum):
    """Consequences for a job of a dependency that can no longer be met."""

    CANCEL = "cancel"
    HOLD = "hold"


class StepState(StrEnum):
    """States of a workflow's step."""

    WAITING = "waiting"
    RUNNING = "running"
    """At least one of its jobs was submitted, and not all have ended."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """It is not started: its conditions cannot be met any more, or the workflow stops."""

    @property
    def is_terminal(self) -> bool:
        return self not in (StepState.WAITING, StepState.RUNNING)


class WorkflowState(StrEnum):
    """States of a workflow."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self is not WorkflowState.RUNNING


class GroupState(StrEnum):
    """States of a group of jobs."""

    OPEN = "open"
    """It may get more jobs."""
    CLOSED = "closed"
    """It gets no more jobs, and not all of them have ended."""
    SUCCEEDED = "succeeded"
    """It is closed, and all its jobs have succeeded."""
    FAILED = "failed"
    """It is closed, all its jobs have ended, and at least one has failed."""
    CANCELLED = "cancelled"
    """It is closed, all its jobs have ended, none has failed, and at least one was cancelled."""

    @property
    def is_terminal(self) -> bool:
        return self not in (GroupState.OPEN, GroupState.CLOSED)


class Wish(StrEnum):
    """A user's request to a job that still has a live run; shown as its state at once."""

    CANCEL = "cancelling"
    SUSPEND = "suspending"


class RunState(StrEnum):
    """State of a run. The transitions are in ``dispatcher/domain/run_machine.py``."""

    LEASED = "leased"
    ACCEPTED = "accepted"
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    PREEMPTED = "preempted"
    RETURNED = "returned"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self.rank == _TERMINAL_RANK

    @property
    def has_results(self) -> bool:
        """Return whether the results of a run that has ended so count."""
        return self in (RunState.SUCCEEDED, RunState.FAILED)

    @property
    def rank(self) -> int:
        """Order along a run's life; all terminal states share the last rank."""
        return _RUN_RANK[self]


_TERMINAL_RANK = 5
_RUN_RANK = {
    RunState.LEASED: 0,
    RunState.ACCEPTED: 1,
    RunState.PENDING: 2,
    RunState.RUNNING: 3,
    RunState.STOPPING: 4,
    **dict.fromkeys(
        (
            RunState.SUCCEEDED,
            RunState.FAILED,
            RunState.CANCELLED,
            RunState.SUSPENDED,
            RunState.PREEMPTED,
            RunState.RETURNED,
            RunState.LOST,
        ),
        _TERMINAL_RANK,
    ),
}


class FailureCategory(StrEnum):
    """Kind of failure that ended a run; retry policies name these."""

    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    IMAGE = "image"
    CONFIG = "config"
    EVICTED = "evicted"
    NODE_LOST = "nodeLost"
    DEADLINE = "deadline"


class StopCause(StrEnum):
    """Reason why the dispatcher stops a run, which decides how the run ends."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    PREEMPT = "preempt"
    UNKNOWN = "unknown"

    @property
    def ends_as(self) -> RunState:
        return _STOP_ENDS[self]


_STOP_ENDS = {
    StopCause.CANCEL: RunState.CANCELLED,
    StopCause.SUSPEND: RunState.SUSPENDED,
    StopCause.PREEMPT: RunState.PREEMPTED,
    StopCause.UNKNOWN: RunState.CANCELLED,
}


class QueueState(StrEnum):
    """State of a queue: it decides if the queue accepts jobs and if it starts them. Running jobs go on in all states but one."""

    OPEN = "open"
    HELD = "held"
    DRAINING = "draining"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    """Running jobs are stopped, with time to save their state, and wait with the rest."""

    @property
    def takes_jobs(self) -> bool:
        return self in (QueueState.OPEN, QueueState.HELD, QueueState.SUSPENDED)

    @property
    def starts_jobs(self) -> bool:
        return self in (QueueState.OPEN, QueueState.DRAINING)


class Order(StrEnum):
    """Rule for jobs behind a job that cannot start: they wait for it, or may pass."""

    STRICT = "strict"
    BEST_EFFORT = "bestEffort"


class Preemption(StrEnum):
    """Runs of a queue that may be preempted: none, lower classes for higher ones of the same queue, or also borrowed capacity."""

    NEVER = "never"
    LOWER_CLASS = "lowerClass"
    ANY_BORROWER = "anyBorrower"


class JobActions(StrEnum):
    """Jobs of a queue that a user may cancel, suspend, resume, retry and change: those submitted by keys of the same name, or all."""

    OWN = "own"
    ANY = "any"


class FairBy(StrEnum):
    """Sharing of a queue's turns of one class: between the users who submitted its jobs, or not, so that age alone counts."""

    USER = "user"
    NONE = "none"


class OrderBy(StrEnum):
    """Order of jobs inside a class: by age; by what their wait is to their run time; by age as long as they fit, and the shortest
    first behind one that does not; or by their deadlines.
    """

    AGE = "age"
    SLOWDOWN = "slowdown"
    SHORTEST_BACKFILL = "shortestBackfill"
    DEADLINE = "deadline"


class DeadlineState(StrEnum):
    """Standing of a job towards its deadline: it is ahead; it passes before the job has run for as long as expected; it has passed
    before the job had ended; the job has succeeded in time.
    """

    AHEAD = "ahead"
    AT_RISK = "atRisk"
    MISSED = "missed"
    MET = "met"


class ClusterKind(StrEnum):
    """Kind of a cluster; jobs go to public ones by burst policies."""

    PRIVATE = "private"
    PUBLIC = "public"
    EDGE = "edge"


class KeyRole(StrEnum):
    """Role of an API key or of people. ``permissions.ROLE_PERMISSIONS`` has the permissions of each. ``user`` is the older name of
    ``submitter``, with the same rights.
    """

    ADMIN = "admin"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    FINANCE = "finance"
    QUEUE_ADMIN = "queue-admin"
    SUBMITTER = "submitter"
    USER = "user"
    VIEWER = "viewer"
    OWNER = "owner"
    AGENT = "agent"


class Exit(IntEnum):
    """Exit codes of the command line, documented in ``docs/reference/cli.md``."""

    SUCCEEDED = 0
    INTERNAL = 1
    USAGE = 2
    JOB_FAILED = 10
    JOB_CANCELLED = 11
    NOT_FINISHED = 12
    NOT_FOUND = 13
    BAD_REQUEST = 14
    DENIED = 15
    CONFLICT = 16
    DIFFERENT = 17
    UNHEALTHY = 18
    UNREACHABLE = 20
    MISSING_EXTRA = 21
    STORE_AWAY = 22
