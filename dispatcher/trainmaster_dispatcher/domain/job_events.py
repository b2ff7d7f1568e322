"""Kinds of a job's events, for its history, its watchers and its webhooks."""

from enum import StrEnum

from trainmaster.protocol.states import RunState


class JobEventKind(StrEnum):
    """The kind of an event of a job. Stored events may have other kinds, of newer and older releases."""

    SUBMITTED = "submitted"
    """Reported from the job's row; no row of ``events`` has this kind."""
    NOW = "now"
    """Reported from the job's row in place of its newest event, if retention has removed that event."""
    CHANGED = "changed"
    """The job's priority or class was changed."""
    DELETED = "deleted"
    """The job's object was deleted by the Kubernetes API; the job is cancelled, unless it has ended."""
    HELD = "held"
    RELEASED = "released"
    """The job's hold has ended by the clock."""
    DISPATCHED = "dispatched"
    PREEMPT = "preempt"
    RESIZE = "resize"
    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"
    RETRY = "retry"
    DEADLINE_AT_RISK = "deadline.atRisk"
    """The queued job ends after its deadline even if it starts now and runs for as long as expected."""
    DEADLINE_MISSED = "deadline.missed"
    """The job has not ended by its deadline."""
    ELEMENTS_STARTED = "elements.started"
    """The job of an element of the array has started."""
    ELEMENTS_ENDED = "elements.ended"
    """No element of the array is left to run, or it was cancelled and none runs any more."""
    SESSION_WARNING = "session.warning"
    """The job's session is about to be ended."""
    GPU_IDLE = "gpu.idle"
    """The GPUs of the running job do nothing."""
    RUN_LEASED = "run.leased"
    RUN_ACCEPTED = "run.accepted"
    RUN_PENDING = "run.pending"
    RUN_RUNNING = "run.running"
    RUN_STOPPING = "run.stopping"
    RUN_SUCCEEDED = "run.succeeded"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_SUSPENDED = "run.suspended"
    RUN_PREEMPTED = "run.preempted"
    RUN_RETURNED = "run.returned"
    RUN_LOST = "run.lost"
    RUN_MOVED = "run.moved"
    """The members of the run are on other nodes."""
    RUN_RESIZED = "run.resized"
    """A resize of the run has ended."""
    RUN_STATUS = "run.status"
    """The object as which the run exists on its cluster has another status."""
    RUN_ADOPTED = "run.adopted"
    """An agent reported the run, which was missing in a restored store."""
    RUN_MISSING = "run.missing"
    """The agent was ordered to verify that the run does not exist any more."""
    RUN_UNVERIFIED = "run.unverified"
    """It is unknown whether the run still exists."""
    RUN_ORPHANED = "run.orphaned"
    """The agent that started the run was replaced by one without its records."""
    RUN_FOUND = "run.found"
    """The agent that started the run is connected again."""

    @property
    def is_about_deadline(self) -> bool:
        return self in ABOUT_DEADLINES

    @property
    def ended_run(self) -> RunState | None:
        """Return the state in which the run of the event has ended; None for other events."""
        return _ENDS.get(self)

    @staticmethod
    def of_run(state: RunState) -> "JobEventKind":
        """Return the event of a run that has come to a state."""
        return _OF_RUN[state]


ABOUT_DEADLINES = (JobEventKind.DEADLINE_AT_RISK, JobEventKind.DEADLINE_MISSED)
"""Events by which the state of a job does not change."""
_OF_RUN = {state: JobEventKind(f"run.{state.value}") for state in RunState}
_ENDS = {kind: state for state, kind in _OF_RUN.items() if state.is_terminal}
