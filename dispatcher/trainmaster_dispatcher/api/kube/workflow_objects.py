"""Workflows as objects of Kubernetes. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from trainmaster.protocol.base import format_time
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.states import StepState, WorkflowState
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster.protocol.workflows import StepView, WorkflowSpec
from trainmaster_dispatcher.api.kube.bodies import Desired
from trainmaster_dispatcher.api.kube.job_changes import job_name, of_object
from trainmaster_dispatcher.api.kube.objects import Wire, moment, reason_word, uid_of
from trainmaster_dispatcher.api.kube.resources import WORKFLOWS
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.services.workflow_objects import ReadWorkflow
from trainmaster_dispatcher.store.workflows import WorkflowRow

_IN_METADATA: Final = ("kind", "name", "labels")
"""Fields of a specification that are metadata of the object."""
_CONDITIONS: Final = {
    WorkflowState.RUNNING: "Running",
    WorkflowState.SUCCEEDED: "Complete",
    WorkflowState.FAILED: "Failed",
    WorkflowState.CANCELLED: "Failed",
}
_BAD: Final = (StepState.FAILED, StepState.CANCELLED)


def workflow_uid(text: str) -> str:
    """Return the identity of the object of a workflow, by its id."""
    return uid_of("Workflow", text)


def workflow_object(one: ReadWorkflow) -> Wire:
    """Return a workflow as an object."""
    row = one.row
    metadata: Wire = {
        "name": one.name,
        **({} if row.object_name else {"generateName": f"{row.name}-"}),
        "namespace": row.namespace,
        "uid": workflow_uid(one.id),
        "resourceVersion": str(row.version),
        "generation": 1,
        "creationTimestamp": moment(format_time(row.created_at)),
    }
    if row.deleted_at is not None:
        metadata |= {"deletionTimestamp": moment(format_time(row.deleted_at)), "deletionGracePeriodSeconds": 0}
    fields = {"labels": row.labels, "annotations": row.annotations, "managedFields": row.managed_fields}
    metadata |= {field: value for field, value in fields.items() if value}
    return {
        "apiVersion": WORKFLOWS.group_version,
        "kind": WORKFLOWS.kind,
        "metadata": metadata,
        "spec": {field: value for field, value in row.spec.items() if field not in _IN_METADATA},
        "status": _status(one),
    }


def _status(one: ReadWorkflow) -> Wire:
    row, view = one.row, one.view
    message = message_of(view.steps, view.state)
    shown = "cancelling" if view.is_cancelling else view.state.value
    condition = {
        "type": _CONDITIONS[view.state],
        "status": "True",
        "reason": reason_word(shown),
        "message": message,
        "lastTransitionTime": moment(format_time(row.ended_at or row.created_at)),
    }
    known = {
        "submittedThrough": row.submitted_through,
        "endedAt": None if row.ended_at is None else format_time(row.ended_at),
        "message": message,
    }
    return {
        "id": one.id,
        "state": shown,
        "attempt": row.attempt,
        "progress": f"{sum(step.state.is_terminal for step in view.steps)}/{len(view.steps)}",
        "submittedBy": row.submitted_by or "",
        **{field: value for field, value in known.items() if value},
        "steps": [_step(step) for step in view.steps],
        "conditions": [condition],
    }


def _step(step: StepView) -> Wire:
    found: Wire = step.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {field: value for field, value in found.items() if value not in ("", {}, [])}


def message_of(steps: Sequence[StepView], state: WorkflowState) -> str:
    """Return what is known about a workflow, in a line: the step that did not succeed, or what runs, or what is waited for."""
    if state is WorkflowState.SUCCEEDED:
        return ""
    if bad := next((one for one in steps if one.state in _BAD), None):
        return f"step {bad.name}: {bad.message or bad.state.value}"
    if running := [one for one in steps if one.state is StepState.RUNNING]:
        return f"running: {', '.join(_progress(one) for one in running)}"
    waiting = next((one for one in steps if one.state is StepState.WAITING and one.message), None)
    return "" if waiting is None else f"step {waiting.name}: {waiting.message}"


def _progress(step: StepView) -> str:
    if step.total in (None, 1):
        return step.name
    return f"{step.name} {step.jobs.get('succeeded', 0)}/{step.total}"


def document_of(wanted: Desired, queue: str) -> Wire:
    """Return the document of a workflow that an object wants. Raises ProblemError INVALID_SPEC."""
    check_no_metadata(wanted.spec)
    name = job_name(wanted.name or wanted.prefix)
    labels = {"labels": wanted.labels} if wanted.labels else {}
    return {**wanted.spec, "kind": "Workflow", "name": name, "queue": queue, **labels}


def check_no_metadata(spec: Mapping[str, Any]) -> None:
    """Raise ProblemError INVALID_SPEC for fields of a specification that are metadata of an object."""
    strange = [field for field in _IN_METADATA if field in spec]
    if strange:
        raise mistaken(*(Mistake(path=f"spec.{field}", message="is no field of this kind") for field in strange))


def check_fixed(row: WorkflowRow, spec: Mapping[str, Any]) -> None:
    """Raise ProblemError INVALID_SPEC for each field that differs in meaning from that of a workflow: all are fixed."""
    check_no_metadata(spec)
    if spec == {field: value for field, value in row.spec.items() if field not in _IN_METADATA}:
        return
    known = _wire(row, row.spec)
    try:
        given = _wire(row, spec)
    except ValidationError as error:
        raise of_object(mistaken(*mistakes_of(error))) from error
    message = (
        "is fixed once the workflow is submitted; only labels and annotations can be changed: submit another workflow"
    )
    differing = sorted(field for field in known.keys() | given.keys() if known.get(field) != given.get(field))
    if differing:
        raise mistaken(*(Mistake(path=f"spec.{field}", message=message) for field in differing))


def _wire(row: WorkflowRow, spec: Mapping[str, Any]) -> Wire:
    known = {field: row.spec[field] for field in _IN_METADATA if field in row.spec}
    found: Wire = WorkflowSpec.model_validate({"queue": row.queue, **spec, **known}).to_wire()
    return found
