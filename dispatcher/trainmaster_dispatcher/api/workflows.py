"""Routes of workflows."""

from dataclasses import replace
from typing import Annotated, Any

import orjson
from fastapi import Query, Request, Response

from trainmaster.protocol import ids
from trainmaster.protocol.base import QueuePath
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import WorkflowState
from trainmaster.protocol.workflows import (
    SubmittedWorkflow,
    WorkflowCancel,
    WorkflowPage,
    WorkflowSpec,
    WorkflowView,
)
from trainmaster_dispatcher.api.context import App, JobChanger, JobReader, JobSubmitter, State, answer, once, read_model
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import LATER_SUBMISSION, Cursor, Limit, OnBehalfOf, WorkflowId
from trainmaster_dispatcher.services import workflows
from trainmaster_dispatcher.services.submission_parsing import mistaken, parse_json
from trainmaster_dispatcher.services.workflow_parsing import WantedWorkflow, of_workflow, read_workflow
from trainmaster_dispatcher.services.workflows import WorkflowWriting
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.keys import Caller

router = documented_router("/v1/workflows", "workflows")

_MOST_MARKS = 300_000


@router.post(
    "",
    **contract(takes=WorkflowSpec, gives=SubmittedWorkflow, status=201, is_once=True, refuses=LATER_SUBMISSION),
)
async def submit_workflow(
    request: Request,
    state: App,
    caller: JobSubmitter,
    user: Annotated[OnBehalfOf | None, Query(alias="onBehalfOf")] = None,
) -> Response:
    """Submit a workflow. The jobs of its steps are checked now, and submitted once the conditions of their steps are met."""
    body = await request.body()
    value = parse_json(body, _MOST_MARKS)
    if not isinstance(value, dict):
        raise ProblemError(Code.MALFORMED_BODY, "the body is a workflow; it has to be a JSON object")
    wanted = read_workflow(value)
    submitter = await state.stores.on_behalf.submitter(caller, user)
    writing, warnings = await prepared_workflow(request, state, caller, submitter, wanted, value)
    identified = body if writing.through is None else body + b"\n" + submitter.name.encode()
    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, dict[str, Any]]:
        try:
            row = await workflows.create(tx, state.stores, writing)
        except ProblemError as error:
            raise of_workflow(error) from error
        made = ids.workflow_id(row.name, row.id)
        details["workflow"] = made
        if writing.through is not None:
            details["onBehalfOf"] = submitter.name
        return 201, {"id": made, **({"warnings": warnings} if warnings else {})}

    made = await once(
        request, state, caller, identified, work, action="submit workflow", target=wanted.spec.name, details=details
    )
    made.headers["Location"] = f"/v1/workflows/{orjson.loads(bytes(made.body))['id']}"
    return made


async def prepared_workflow(
    request: Request, state: State, caller: Caller, submitter: Caller, wanted: WantedWorkflow, value: dict[str, Any]
) -> tuple[WorkflowWriting, list[dict[str, str]]]:
    """Return a workflow with its checked jobs, and warnings. Raises ProblemError with the paths that fields have in the workflow."""
    try:
        text = dumps(wanted.documents()).encode()
        prepared = await state.parser.prepare(text, caller.key_id, request, await state.admissions.known())
    except ProblemError as error:
        raise of_workflow(error) from error
    found = await state.admissions.warnings(caller, prepared.named) if prepared.named else ()
    placed = of_workflow(mistaken(*found)).mistakes if found else ()
    warnings = [{"path": one.path, "message": one.message} for one in (*workflows.warnings_of(wanted), *placed)]
    spec = {key: one for key, one in value.items() if key != "kind"}
    through = None if submitter is caller else caller
    return WorkflowWriting(wanted, spec, submitter, replace(prepared, many=True), through), warnings


@router.get("", **contract(gives=WorkflowPage, refuses=(Code.UNKNOWN_QUEUE,)))
async def list_workflows(
    state: App,
    caller: JobReader,
    queue: Annotated[QueuePath | None, Query(description="Only workflows of this queue and of those below it.")] = None,
    states: Annotated[
        list[WorkflowState] | None, Query(alias="state", description="Only workflows in one of these states.")
    ] = None,
    cursor: Cursor | None = None,
    limit: Limit = 100,
) -> Response:
    """List a page of workflows, newest first, without their specifications."""
    async with state.stores.database.reading() as tx:
        return answer(await workflows.page(tx, caller, queue, states or (), cursor, limit))


@router.get("/{workflow_id}", **contract(gives=WorkflowView, refuses=(Code.BAD_ID,)))
async def show_workflow(workflow_id: WorkflowId, state: App, caller: JobReader) -> Response:
    """Show one workflow: its steps, what they wait for, and their jobs."""
    async with state.stores.database.reading() as tx:
        return answer(await workflows.show(tx, await workflows.find(tx, caller, workflow_id)))


@router.post(
    "/{workflow_id}/cancel",
    **contract(
        takes=WorkflowCancel,
        is_optional=True,
        gives=WorkflowView,
        is_once=True,
        refuses=(Code.BAD_ID, Code.JOB_OF_ANOTHER, Code.WRONG_STATE),
    ),
)
async def cancel_workflow(workflow_id: WorkflowId, request: Request, state: App, caller: JobChanger) -> Response:
    """Cancel a workflow: its jobs are cancelled, steps that wait are skipped, and then its cleanup steps run."""
    body = await request.body()
    options = read_model(WorkflowCancel, body) if body else WorkflowCancel()

    async def work(tx: Transaction) -> tuple[int, Any]:
        row = await workflows.find(tx, caller, workflow_id, locks=True)
        row = await workflows.cancel(tx, state.stores, caller, row, runs_cleanup=options.cleanup)
        return 200, await workflows.show(tx, row)

    details = {} if options.cleanup else {"cleanup": False}
    return await once(request, state, caller, body, work, action="cancel workflow", target=workflow_id, details=details)


@router.post(
    "/{workflow_id}/resume",
    **contract(gives=WorkflowView, is_once=True, refuses=(Code.BAD_ID, Code.JOB_OF_ANOTHER, Code.WRONG_STATE)),
)
async def resume_workflow(workflow_id: WorkflowId, request: Request, state: App, caller: JobChanger) -> Response:
    """Let a workflow that failed or was cancelled go on: jobs that have not succeeded are tried again, and the steps after them."""
    body = await request.body()

    async def work(tx: Transaction) -> tuple[int, Any]:
        row = await workflows.find(tx, caller, workflow_id, locks=True)
        return 200, await workflows.show(tx, await workflows.resume(tx, state.stores, caller, row))

    return await once(request, state, caller, body, work, action="resume workflow", target=workflow_id)
