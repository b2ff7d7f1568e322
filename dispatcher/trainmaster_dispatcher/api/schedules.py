"""Routes of schedules. One is addressed by its name, and by its queue where several queues have one of that name."""

from typing import Annotated, Any

import orjson
from fastapi import Path, Query, Request, Response

from trainmaster.protocol.base import QueuePath
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.schedules import (
    CronJobManifest,
    ScheduleChange,
    ScheduleName,
    SchedulePage,
    ScheduleRun,
    ScheduleSpec,
    ScheduleView,
)
from trainmaster_dispatcher.api.context import App, JobChanger, JobReader, JobSubmitter, State, answer, note, once
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import LATER_SUBMISSION, Cursor, Limit, OnBehalfOf
from trainmaster_dispatcher.services import auditing, schedules
from trainmaster_dispatcher.services.schedule_parsing import WantedSchedule, of_schedule, read_schedule
from trainmaster_dispatcher.services.schedules import ScheduleWriting
from trainmaster_dispatcher.services.submission_parsing import PreparedSubmission, mistaken, parse_json
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.keys import Caller

router = documented_router("/v1/schedules", "schedules")

InPath = Annotated[ScheduleName, Path(description="Name of the schedule.")]
InQueue = Annotated[
    QueuePath | None, Query(description="Queue of the schedule; needed where several queues have one of its name.")
]
_MOST_MARKS = 300_000


async def prepared_job(request: Request, state: State, caller: Caller, wanted: WantedSchedule) -> PreparedSubmission:
    """Return the checked job of a schedule. Raises ProblemError with the paths that its fields have in the schedule."""
    body = dumps(wanted.first_job().body).encode()
    try:
        return await state.parser.prepare(body, caller.key_id, request, await state.admissions.known())
    except ProblemError as error:
        raise of_schedule(error, wanted.kind, wanted.spec) from error


async def _writing(request: Request, state: State, caller: Caller, user: str | None, value: Any) -> ScheduleWriting:
    if not isinstance(value, dict):
        raise ProblemError(Code.MALFORMED_BODY, "the body is a schedule; it has to be a JSON object")
    wanted = read_schedule(value)
    submitter = await state.stores.on_behalf.submitter(caller, user)
    prepared = await prepared_job(request, state, caller, wanted)
    return ScheduleWriting(wanted, submitter, prepared, None if submitter is caller else caller)


async def _shown(tx: Transaction, row: Any) -> dict[str, Any]:
    return schedules.view_of((await schedules.read(tx, [row]))[0])


@router.post(
    "",
    **contract(
        takes=(ScheduleSpec, CronJobManifest),
        gives=ScheduleView,
        status=201,
        is_once=True,
        refuses=(*LATER_SUBMISSION, Code.ALREADY_EXISTS),
    ),
)
async def create_schedule(
    request: Request,
    state: App,
    caller: JobSubmitter,
    user: Annotated[OnBehalfOf | None, Query(alias="onBehalfOf")] = None,
) -> Response:
    """Create a schedule, or a CronJob of Kubernetes as one. Its first job is checked as a submission is."""
    body = await request.body()
    writing = await _writing(request, state, caller, user, parse_json(body, _MOST_MARKS))
    identified = body if writing.through is None else body + b"\n" + writing.caller.name.encode()
    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, dict[str, Any]]:
        try:
            row = await schedules.create(tx, state.stores, writing)
        except ProblemError as error:
            raise of_schedule(error, writing.wanted.kind, writing.wanted.spec) from error
        shown = await _shown(tx, row)
        details.update(auditing.change_of(None, row.spec))
        return 201, shown

    target = f"{writing.wanted.queue}/{writing.wanted.name}"
    made = await once(request, state, caller, identified, work, action="put schedule", target=target, details=details)
    made.headers["Location"] = f"/v1/schedules/{orjson.loads(bytes(made.body))['name']}?queue={writing.wanted.queue}"
    return made


@router.get("", **contract(gives=SchedulePage, refuses=(Code.UNKNOWN_QUEUE,)))
async def list_schedules(
    state: App,
    caller: JobReader,
    queue: Annotated[QueuePath | None, Query(description="Only schedules of this queue and of those below it.")] = None,
    cursor: Cursor | None = None,
    limit: Limit = 100,
) -> Response:
    """List a page of schedules, newest first, without their specifications."""
    async with state.stores.database.reading() as tx:
        found, following = await schedules.page(tx, caller, queue, cursor, limit)
    shown = [schedules.view_of(one, with_spec=False) for one in found]
    return answer({"schedules": shown, "next": following})


@router.get("/{name}", **contract(gives=ScheduleView))
async def show_schedule(name: InPath, state: App, caller: JobReader, queue: InQueue = None) -> Response:
    """Show one schedule with its specification, its next due time and its jobs that have not ended."""
    async with state.stores.database.reading() as tx:
        return answer(await _shown(tx, await schedules.find(tx, caller, name, queue)))


@router.put(
    "/{name}",
    **contract(
        takes=(ScheduleSpec, CronJobManifest),
        gives=ScheduleView,
        is_once=True,
        refuses=(*LATER_SUBMISSION, Code.JOB_OF_ANOTHER),
    ),
)
async def replace_schedule(
    name: InPath, request: Request, state: App, caller: JobSubmitter, queue: InQueue = None
) -> Response:
    """Replace the specification of a schedule. Whoever changes what its jobs do is the one whose jobs they are from then on."""
    body = await request.body()
    writing = await _writing(request, state, caller, None, parse_json(body, _MOST_MARKS))
    if writing.wanted.name != name:
        path = "name" if writing.wanted.kind is None else "metadata.name"
        raise mistaken(_named_otherwise(path, writing.wanted.name, name))
    return await _change(request, state, caller, queue or writing.wanted.queue, body, writing)


@router.patch(
    "/{name}", **contract(takes=ScheduleChange, gives=ScheduleView, refuses=(*LATER_SUBMISSION, Code.JOB_OF_ANOTHER))
)
async def patch_schedule(
    name: InPath, request: Request, state: App, caller: JobSubmitter, queue: InQueue = None
) -> Response:
    """Change a schedule by a merge patch (RFC 7396) of its specification; ``{"suspend": true}`` suspends it."""
    body = await request.body()
    patch = parse_json(body, _MOST_MARKS)
    if not isinstance(patch, dict):
        raise ProblemError(Code.MALFORMED_BODY, "the body is a merge patch; it has to be a JSON object")
    async with state.stores.database.reading() as tx:
        row = await schedules.find(tx, caller, name, queue)
    wanted = schedules.wanted_after(row, patch)
    prepared = await prepared_job(request, state, caller, wanted)
    writing = ScheduleWriting(wanted, caller, prepared, managed_fields=row.managed_fields)
    return await _change(request, state, caller, row.queue, body, writing, patch)


def _named_otherwise(path: str, given: str, name: str) -> Mistake:
    return Mistake(path=path, message=f"the body names {given!r}, the address {name!r}")


async def _change(
    request: Request,
    state: State,
    caller: Caller,
    queue: str,
    body: bytes,
    writing: ScheduleWriting,
    patch: dict[str, Any] | None = None,
) -> Response:
    """Change a schedule; answer with it. ``patch``: of which the wanted schedule is made."""
    wanted = writing.wanted
    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, dict[str, Any]]:
        before = await schedules.find(tx, caller, wanted.name, queue, locks=True)
        if patch is not None and schedules.wanted_after(before, patch).spec != wanted.spec:
            raise ProblemError(Code.CONFLICT, f"schedule {wanted.name!r} was just changed; try again")
        try:
            after = await schedules.change(tx, state.stores, before, writing)
        except ProblemError as error:
            raise of_schedule(error, wanted.kind, wanted.spec) from error
        details.update(auditing.change_of(before.spec, after.spec))
        return 200, await _shown(tx, after)

    target = f"{queue}/{wanted.name}"
    return await once(request, state, caller, body, work, action="put schedule", target=target, details=details)


@router.delete("/{name}", **contract(status=204, refuses=(Code.JOB_OF_ANOTHER,)))
async def delete_schedule(
    name: InPath,
    state: App,
    caller: JobChanger,
    queue: InQueue = None,
    keeps_jobs: Annotated[
        bool,
        Query(
            alias="keepJobs",
            description="Leave its jobs alone; without it they are deleted, and running ones cancelled.",
        ),
    ] = False,
) -> Response:
    """Delete a schedule and soon after it its jobs: those that have not ended are cancelled."""
    async with state.stores.database.transaction() as tx:
        row = await schedules.find(tx, caller, name, queue, locks=True)
        await schedules.delete(tx, caller, row, keeps_jobs=keeps_jobs)
        target = f"{row.queue}/{row.name}"
        await note(
            tx, caller, "delete schedule", target, {**auditing.change_of(row.spec, None), "keepJobs": keeps_jobs}
        )
    return Response(status_code=204)


@router.post(
    "/{name}/run",
    **contract(
        gives=ScheduleRun, status=201, is_once=True, refuses=(*LATER_SUBMISSION, Code.QUEUE_FULL, Code.CONFLICT)
    ),
)
async def run_schedule(
    name: InPath, request: Request, state: App, caller: JobSubmitter, queue: InQueue = None
) -> Response:
    """Submit a job of a schedule now, as the caller's own: beside its due times, whatever its policy, also while it is suspended."""
    body = await request.body()
    async with state.stores.database.reading() as tx:
        row = await schedules.find(tx, caller, name, queue)
    document = schedules.document_now(row)
    try:
        text = dumps(document.body).encode()
        prepared = await state.parser.prepare(text, caller.key_id, request, await state.admissions.known())
    except ProblemError as error:
        raise of_schedule(error, row.kind, row.spec) from error
    submission = schedules.submission_of(document, prepared, caller, None)
    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, dict[str, Any]]:
        locked = await schedules.find(tx, caller, name, row.queue, locks=True)
        submitted = await schedules.run_now(tx, state.stores, locked, document, submission)
        details.update({**auditing.jobs_of(submitted.ids), "schedule": f"{row.queue}/{row.name}"})
        return 201, {"id": submitted.ids[0]}

    target = auditing.number_of_jobs(1)
    made = await once(request, state, caller, body, work, action="submit", target=target, details=details)
    made.headers["Location"] = f"/v1/jobs/{orjson.loads(bytes(made.body))['id']}"
    return made
