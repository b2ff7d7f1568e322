"""Events of workflows: what happened to one or to a step of it, for people, watchers and webhooks. Pure."""

from enum import StrEnum
from typing import Final, NamedTuple

from trainmaster.protocol.states import StepState, WorkflowState


class WorkflowEventKind(StrEnum):
    """The kind of an event of a workflow. Stored events may have other kinds, of newer releases."""

    SUBMITTED = "submitted"
    CANCEL = "cancel"
    """Somebody cancels it: its jobs are being cancelled."""
    RESUME = "resume"
    """Somebody lets it go on after it had failed or was cancelled."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STEP_RUNNING = "step.running"
    STEP_SUCCEEDED = "step.succeeded"
    STEP_FAILED = "step.failed"
    STEP_CANCELLED = "step.cancelled"
    STEP_SKIPPED = "step.skipped"

    @property
    def entered(self) -> WorkflowState | None:
        """Return the state that the workflow enters by it; None if it stays as it was."""
        return _ENTERED.get(self)


_ENTERED: Final = {
    WorkflowEventKind.SUBMITTED: WorkflowState.RUNNING,
    WorkflowEventKind.RESUME: WorkflowState.RUNNING,
    WorkflowEventKind.SUCCEEDED: WorkflowState.SUCCEEDED,
    WorkflowEventKind.FAILED: WorkflowState.FAILED,
    WorkflowEventKind.CANCELLED: WorkflowState.CANCELLED,
}
_OF_STEPS: Final = {
    StepState.RUNNING: WorkflowEventKind.STEP_RUNNING,
    StepState.SUCCEEDED: WorkflowEventKind.STEP_SUCCEEDED,
    StepState.FAILED: WorkflowEventKind.STEP_FAILED,
    StepState.CANCELLED: WorkflowEventKind.STEP_CANCELLED,
    StepState.SKIPPED: WorkflowEventKind.STEP_SKIPPED,
}
WARNINGS: Final = frozenset({WorkflowEventKind.FAILED, WorkflowEventKind.STEP_FAILED})


class WorkflowEvent(NamedTuple):
    """Something that happened. ``step``: the name of the step, of the first failed one where the workflow has failed; else None.

    ``actor``: who did it; empty for the dispatcher.
    """

    kind: WorkflowEventKind
    step: str | None = None
    message: str = ""
    actor: str = ""


def kind_of_step(before: StepState, after: StepState) -> WorkflowEventKind | None:
    """Return the kind of the event by which a step comes to a state; None where nothing happened that is told."""
    return None if after is before else _OF_STEPS.get(after)


def kind_of_end(state: WorkflowState) -> WorkflowEventKind:
    """Return the kind of the event by which a workflow ends."""
    return WorkflowEventKind(state.value)
