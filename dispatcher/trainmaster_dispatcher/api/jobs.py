"""Routes of jobs."""

import random
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import orjson
from fastapi import Depends, Header, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from trainmaster.protocol import answers
from trainmaster.protocol.arrays import (
    CancelElements,
    CancelledElements,
    ElementsOfJob,
    JobsOfElements,
    ResultsOfElements,
)
from trainmaster.protocol.base import Name40, WrittenTime
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.states import JobState
from trainmaster.protocol.tenants import JobView
from trainmaster_dispatcher.api.asgi import client_address, request_id
from trainmaster_dispatcher.api.context import (
    App,
    JobChanger,
    JobLister,
    JobReader,
    JobSubmitter,
    State,
    answer,
    idempotency,
    note,
    once,
    once_in_parts,
    read_model,
    readable,
)
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import (
    After,
    Attempt,
    ClassFilter,
    Cursor,
    GroupFilter,
    JobId,
    JobNameFilter,
    LabelFilter,
    LastEventId,
    Limit,
    MemberIndex,
    NumberCursor,
    OnBehalfOf,
    PageLimit,
    QueueFilter,
    SearchText,
    SubmitterFilter,
)
from trainmaster_dispatcher.api.submission_spans import SubmissionSpan, submission_span
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.containment import note as note_error
from trainmaster_dispatcher.services import arrays, auditing, job_actions, job_queries, leader_queries, logs
from trainmaster_dispatcher.services.group_admission import places_of
from trainmaster_dispatcher.services.group_commit import CREATED, ByItselfError, PendingSubmission
from trainmaster_dispatcher.services.job_actions import (
    MOST_LABELS,
    Action,
    BulkAction,
    BulkCancel,
    BulkChange,
    BulkFilter,
    BulkRequest,
    CancelSpec,
    JobPatch,
    ShownState,
)
from trainmaster_dispatcher.services.shared_reads import visibility_of
from trainmaster_dispatcher.services.submit import Submission, submit_one
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import JOBS, wait_set

router = documented_router("/v1/jobs", "jobs")

LOOK_SECONDS = 1.0
COMMENT_SECONDS = 15.0
"""A stream sends a comment when it is silent for between half of this and all of it, at random, so that not all do so at once."""
_MOST_EVENTS = 1000
"""The most events that are read at once."""
_RECEIVED = re.compile(r"(?P<role>[a-z0-9][-a-z0-9]{0,62})-(?P<index>[0-9]{1,6}):(?P<offset>[0-9]{1,18})")
_LONGEST_RECEIVED = 8192
_LONGEST_EVENT_ID = 18
_CLASSES = (Code.UNKNOWN_PRIORITY_CLASS, Code.PRIORITY_CLASS_NOT_ALLOWED)
_FILTER = (Code.UNKNOWN_QUEUE, Code.UNKNOWN_PRIORITY_CLASS, Code.UNKNOWN_GROUP, Code.NOT_FOUND)
_ACTION = (Code.WRONG_STATE, Code.JOB_OF_ANOTHER)
_BULK = frozenset({"reprioritise", *Action})


@router.post(
    "",
    **contract(
        takes=(JobSpec, answers.JobList, answers.JobSweep),
        gives=(answers.SubmittedJob, answers.SubmittedJobs),
        status=201,
        or_gives={200: answers.DryRun},
        is_once=True,
        refuses=(
            Code.UNKNOWN_QUEUE,
            Code.NOT_A_LEAF,
            Code.QUEUE_CLOSED,
            Code.QUEUE_FULL,
            Code.CONFLICT,
            Code.POD_TEMPLATE_REFUSED,
            Code.DEVICES_NOT_COUNTED,
            Code.WEBHOOKS_OFF,
            Code.MAIL_OFF,
            Code.GROUP_CLOSED,
            Code.GROUP_OF_ANOTHER,
            *_CLASSES,
        ),
    ),
)
async def submit_jobs(
    request: Request,
    state: App,
    caller: JobSubmitter,
    is_dry: Annotated[
        bool, Query(alias="dryRun", description="Store nothing; say what would become of the jobs.")
    ] = False,
    user: Annotated[OnBehalfOf | None, Query(alias="onBehalfOf")] = None,
    closes_groups: Annotated[
        bool, Query(alias="closeGroup", description="Close the groups of the jobs: these are the last jobs in them.")
    ] = False,
) -> Response:
    """Submit one job, ``{"jobs": [...]}`` with up to 10,000, or ``{"job": {...}, "parameters": [...]}``; all or nothing.

    With ``dryRun`` nothing is stored: up to 100 jobs are checked, and what would become of each is said. Those of a table of
    parameters, however many, are tried as one.
    """
    with submission_span(request) as span:
        return await _submit(request, state, caller, user, span, is_dry=is_dry, closes_groups=closes_groups)


async def _submit(
    request: Request,
    state: State,
    caller: Caller,
    user: str | None,
    span: SubmissionSpan,
    *,
    is_dry: bool,
    closes_groups: bool,
) -> Response:
    body = await request.body()
    submitter = await state.stores.on_behalf.submitter(caller, user)
    prepared = await state.parser.prepare(body, caller.key_id, request, await state.admissions.known())
    if prepared.named:
        missing = await state.admissions.warnings(caller, prepared.named)
        prepared = replace(prepared, warnings=(*prepared.warnings, *missing))
    span.parsed(prepared, is_dry=is_dry)
    through = None if submitter is caller else caller
    submission = Submission(submitter, prepared, through, closes_groups=closes_groups, trace=span.trace)
    # The same key and body for another user is another submission, and so is one that closes groups.
    identified = body if submitter is caller else body + b"\n" + submitter.name.encode()
    identified += b"\ncloseGroup" if closes_groups else b""
    claim, body_hash = idempotency(request, caller, identified)
    if is_dry:
        return answer(await leader_queries.dry_run(state.stores, state.leader, submission))

    pending = PendingSubmission(submission, claim, body_hash, request_id.get(), client_address.get())
    if state.group_commits.takes(pending):
        with suppress(ByItselfError):
            payload = (await state.group_commits.submit(pending)).body
            return _created(Response(payload, status_code=CREATED, media_type="application/json"))

    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, Any]:
        done = await submit_one(tx, state.stores, submission)
        details.update(auditing.jobs_of(done.ids))
        if submission.through is not None:
            details["onBehalfOf"] = submitter.name
        if closes_groups:
            details["closedGroups"] = sorted({name for _, name in places_of(prepared)})
        return CREATED, prepared.answer(done.ids)

    target = auditing.number_of_jobs(len(prepared))
    return _created(
        await once(request, state, caller, identified, work, action="submit", target=target, details=details)
    )


def _created(answer: Response) -> Response:
    """Add the address of a job that was submitted alone."""
    body = bytes(answer.body)
    if body.startswith(b'{"id":'):
        answer.headers["Location"] = f"/v1/jobs/{orjson.loads(body)['id']}"
    return answer


@router.get("", **contract(gives=answers.JobPage, refuses=_FILTER))
async def list_jobs(
    state: App,
    caller: JobLister,
    queue: QueueFilter = None,
    state_filter: Annotated[
        list[ShownState] | None, Query(alias="state", description="Only jobs that are shown in one of these states.")
    ] = None,
    name: JobNameFilter | None = None,
    priority_class: ClassFilter = None,
    label: Annotated[
        list[LabelFilter] | None,
        Query(max_length=MOST_LABELS, description="Only jobs with all of these labels, each as `key=value`."),
    ] = None,
    group: GroupFilter = None,
    cluster: Annotated[
        Name40 | None, Query(description="Only jobs whose latest run is or was on this cluster.")
    ] = None,
    submitted_by: SubmitterFilter = None,
    since: Annotated[WrittenTime | None, Query(description="Only jobs submitted at or after this time.")] = None,
    until: Annotated[WrittenTime | None, Query(description="Only jobs submitted before this time.")] = None,
    search: SearchText = None,
    cursor: Cursor | None = None,
    limit: Limit = 100,
) -> Response:
    """List a page of jobs, newest first. ``label`` is ``key=value`` and may be repeated, as may ``state``.

    An owner sees the jobs whose latest run is or was on one of the owner's clusters.
    """
    wanted = BulkFilter(
        queue=queue,
        states=tuple(state_filter or ()),
        name=name,
        priority_class=priority_class,
        labels=labels_of(label or []),
        group=group,
        cluster=cluster,
        submitted_by=submitted_by,
        since=since,
        until=until,
        search=search,
    )

    async def read() -> dict[str, Any]:
        async with state.stores.database.reading() as tx:
            return await job_queries.list_jobs(tx, caller, wanted, cursor, limit)

    key = visibility_of(caller), wanted.model_dump_json(), cursor, limit
    return answer(await state.job_lists.get(key, read))


def labels_of(given: list[str]) -> dict[str, str]:
    """Return labels given as ``key=value``. Raises ProblemError INVALID_PARAMETER."""
    out = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise ProblemError(
                Code.INVALID_PARAMETER,
                f"label {item!r} is not key=value",
                mistakes=(Mistake(path="label", message=f"must be key=value, not {shown(item)}"),),
            )
        out[key] = value
    return out


@router.post(
    "/reprioritise", **contract(takes=BulkChange, gives=answers.BulkAnswer, is_once=True, refuses=(*_FILTER, *_CLASSES))
)
async def reprioritise_jobs(request: Request, state: App, caller: JobChanger) -> Response:
    """Change priority or priority class of all waiting jobs that match a filter."""
    return await _bulk(request, state, caller, None)


@router.post("/cancel", **contract(takes=BulkCancel, gives=answers.BulkAnswer, is_once=True, refuses=_FILTER))
async def cancel_jobs(request: Request, state: App, caller: JobChanger) -> Response:
    """Cancel all jobs that match a filter."""
    return await _bulk(request, state, caller, Action.CANCEL)


@router.post("/suspend", **contract(takes=BulkAction, gives=answers.BulkAnswer, is_once=True, refuses=_FILTER))
async def suspend_jobs(request: Request, state: App, caller: JobChanger) -> Response:
    """Suspend all jobs that match a filter."""
    return await _bulk(request, state, caller, Action.SUSPEND)


@router.post("/resume", **contract(takes=BulkAction, gives=answers.BulkAnswer, is_once=True, refuses=_FILTER))
async def resume_jobs(request: Request, state: App, caller: JobChanger) -> Response:
    """Resume all held jobs that match a filter."""
    return await _bulk(request, state, caller, Action.RESUME)


@router.post("/retry", **contract(takes=BulkAction, gives=answers.BulkAnswer, is_once=True, refuses=_FILTER))
async def retry_jobs(request: Request, state: App, caller: JobChanger) -> Response:
    """Try all failed or cancelled jobs that match a filter once more."""
    return await _bulk(request, state, caller, Action.RETRY)


async def _bulk(request: Request, state: State, caller: Caller, action: Action | None) -> Response:
    body = await request.body()
    wanted = read_model(BulkRequest, body)
    if (action is None) != (wanted.patch is not None):
        raise ProblemError(Code.INVALID_SPEC, "patch is for reprioritise, which needs it, and for nothing else")
    if wanted.grace is not None and action is not Action.CANCEL:
        raise ProblemError(Code.INVALID_SPEC, "grace is for cancel, and for nothing else")

    details: dict[str, Any] = {}

    async def work() -> tuple[int, Any]:
        result = await job_actions.bulk(state.stores, caller, wanted, action)
        details.update(
            {"matched": result.matched, "changed": result.changed, **auditing.jobs_of(result.ids, result.changed)}
        )
        if result.refused:
            details["refused"] = result.refused
        numbers = {"matched": result.matched, "changed": result.changed, "refused": result.refused}
        return 200, {**numbers, "dryRun": wanted.dry_run}

    if wanted.dry_run:
        idempotency(request, caller, body)  # a key is refused for its form here, too
        return answer((await work())[1])
    name = action.value if action else "reprioritise"
    target = orjson.dumps(wanted.to_wire()).decode()
    return await once_in_parts(
        request, state, caller, body, work, action=f"bulk {name}", target=target, details=details
    )


async def _names_a_job(job_id: JobId) -> None:
    """Refuse addresses of actions on many jobs, which take only POST: no job id has their form. Raises HTTPException."""
    if job_id in _BULK:
        raise HTTPException(405, "Method Not Allowed")


@router.get(
    "/{job_id}",
    **contract(gives=JobView, refuses=(Code.METHOD_NOT_ALLOWED,)),
    dependencies=[Depends(_names_a_job)],
)
async def show_job(job_id: JobId, state: App, caller: JobLister) -> Response:
    """Show one job with its specification and runs; to an owner without specification, a job of the owner's clusters."""
    async with state.stores.database.reading() as tx:
        return answer(await job_queries.show_job(tx, caller, job_id, state.stores.settings.currency))


@router.patch(
    "/{job_id}",
    **contract(
        takes=JobPatch,
        gives=JobView,
        refuses=(Code.METHOD_NOT_ALLOWED, Code.WRONG_STATE, Code.JOB_OF_ANOTHER, *_CLASSES),
    ),
    dependencies=[Depends(_names_a_job)],
)
async def patch_job(job_id: JobId, request: Request, state: App, caller: JobChanger) -> Response:
    """Change priority or priority class of a job that waits."""
    body = await request.body()
    change = read_model(JobPatch, body)
    async with state.stores.database.transaction() as tx:
        changed = await job_actions.patch(tx, state.stores, caller, job_id, change)
        details = change.to_wire() if changed is None else {**change.to_wire(), "changed": changed.details}
        await note(tx, caller, "patch", job_id, details)
    async with state.stores.database.transaction() as tx:
        return answer(await job_queries.show_job(tx, caller, job_id, state.stores.settings.currency))


async def _act(request: Request, state: State, caller: Caller, job_id: JobId, action: Action) -> Response:
    body = await request.body()

    details: dict[str, Any] = {}
    grace: float | None = None
    if action is Action.CANCEL and body.strip():
        given = read_model(CancelSpec, body).grace
        if given is not None:
            grace, details = parse_duration(given), {"grace": given}

    async def work(tx: Transaction) -> tuple[int, Any]:
        changed = await job_actions.act(tx, state.stores, caller, job_id, action, grace)
        if changed is not None:
            details.update(
                auditing.change_of(
                    job_actions.audited_state(changed.record.job), job_actions.audited_state(changed.job)
                )
            )
        row = await job_store.view(tx, await job_actions.find_key(tx, caller, job_id))
        return 200, {"id": job_id, "changed": changed is not None, "state": (row.wish or row.state) if row else ""}

    return await once(request, state, caller, body, work, action=action.value, target=job_id, details=details)


@router.post(
    "/{job_id}/cancel",
    **contract(takes=CancelSpec, is_optional=True, gives=answers.JobAction, is_once=True, refuses=_ACTION),
)
async def cancel_job(job_id: JobId, request: Request, state: App, caller: JobChanger) -> Response:
    """Cancel a job; shown as ``cancelling`` until every member is gone."""
    return await _act(request, state, caller, job_id, Action.CANCEL)


@router.post("/{job_id}/suspend", **contract(gives=answers.JobAction, is_once=True, refuses=_ACTION))
async def suspend_job(job_id: JobId, request: Request, state: App, caller: JobChanger) -> Response:
    """Hold a job; a running one is stopped and queued again by ``resume``."""
    return await _act(request, state, caller, job_id, Action.SUSPEND)


@router.post("/{job_id}/resume", **contract(gives=answers.JobAction, is_once=True, refuses=_ACTION))
async def resume_job(job_id: JobId, request: Request, state: App, caller: JobChanger) -> Response:
    """Let a held job go on."""
    return await _act(request, state, caller, job_id, Action.RESUME)


@router.post("/{job_id}/retry", **contract(gives=answers.JobAction, is_once=True, refuses=_ACTION))
async def retry_job(job_id: JobId, request: Request, state: App, caller: JobChanger) -> Response:
    """Try a failed or cancelled job once more, with fresh retries."""
    return await _act(request, state, caller, job_id, Action.RETRY)


@router.get("/{job_id}/elements", **contract(gives=ElementsOfJob))
async def list_elements(job_id: JobId, state: App, caller: JobReader) -> Response:
    """Return the elements of an array by state."""
    async with state.stores.database.reading() as tx:
        return answer(await arrays.show(tx, caller, job_id))


@router.get("/{job_id}/elements/jobs", **contract(gives=JobsOfElements, refuses=(Code.INVALID_PARAMETER,)))
async def list_jobs_of_elements(
    job_id: JobId,
    state: App,
    caller: JobReader,
    elements: Annotated[
        str | None, Query(description="Only of these elements, as ranges such as `0-99,105`.", max_length=10_000)
    ] = None,
    cursor: NumberCursor | None = None,
) -> Response:
    """Return the jobs of an array's elements, by element."""
    async with state.stores.database.reading() as tx:
        return answer(await arrays.jobs_of_elements(tx, caller, job_id, elements, cursor))


@router.get("/{job_id}/elements/results", **contract(gives=ResultsOfElements))
async def list_results_of_elements(
    job_id: JobId, state: App, caller: JobReader, cursor: NumberCursor | None = None
) -> Response:
    """Return what elements of an array returned, in the order in which it came."""
    async with state.stores.database.reading() as tx:
        return answer(await arrays.results(tx, caller, job_id, cursor or 0))


@router.post(
    "/{job_id}/elements/cancel",
    **contract(takes=CancelElements, gives=CancelledElements, is_once=True, refuses=(*_ACTION, Code.INVALID_SPEC)),
)
async def cancel_elements(job_id: JobId, request: Request, state: App, caller: JobChanger) -> Response:
    """Cancel elements of an array that have not ended; the others are run."""
    body = await request.body()
    wanted = read_model(CancelElements, body)

    async def work(tx: Transaction) -> tuple[int, Any]:
        return 200, await arrays.cancel(tx, caller, job_id, wanted)

    return await once(
        request, state, caller, body, work, action="cancel elements", target=job_id, details=wanted.to_wire()
    )


@router.get("/{job_id}/why", **contract(gives=answers.JobReason))
async def explain_job(job_id: JobId, state: App, caller: JobReader) -> Response:
    """Explain why the job is where it is and, while it is queued, its place."""
    return answer(await leader_queries.why(state.stores, state.leader, caller, job_id))


@router.get("/{job_id}/dependencies", **contract(gives=answers.JobDependencies))
async def show_dependencies(job_id: JobId, state: App, caller: JobReader) -> Response:
    """Return the jobs after which the job starts, and those that start after it."""
    async with state.stores.database.reading() as tx:
        return answer(await job_queries.dependencies(tx, caller, job_id))


@router.get(
    "/{job_id}/events",
    **contract(gives=answers.EventPage, also="text/event-stream", refuses=(Code.BAD_CURSOR,)),
)
async def list_events(
    job_id: JobId,
    request: Request,
    state: App,
    caller: JobReader,
    after: After = 0,
    limit: PageLimit = 1000,
    last_event_id: Annotated[
        LastEventId | None,
        Header(description="For a stream: the last event received, instead of `after`."),
    ] = None,
) -> Response:
    """List the job's transitions: JSON, or server-sent events when asked for with ``Accept: text/event-stream``."""
    if last_event_id is not None and not (last_event_id.isdecimal() and len(last_event_id) <= _LONGEST_EVENT_ID):
        raise ProblemError(Code.BAD_CURSOR, "Last-Event-ID is a number that this API gave out")
    async with state.stores.database.reading() as tx:
        key = await job_actions.find_key(tx, caller, job_id)
        if "text/event-stream" not in request.headers.get("accept", ""):
            rows = await job_store.events_after(tx, key, after, limit)
            return answer({"events": [job_queries.event_view(row) for row in rows]})
    stream = state.limits.open_stream(
        request.scope, StreamKind.EVENTS, lambda: state.stores.channels.wake_here(JOBS, [key])
    )
    events = server_sent(_events_of(state, stream, key, after if last_event_id is None else int(last_event_id)), job_id)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def server_sent(events: AsyncIterator[bytes], of: str) -> AsyncIterator[bytes]:
    """Yield the events of a stream; an unexpected error ends it alone, and its reader begins again after the last event."""
    try:
        async for event in events:
            yield event
    except Exception as error:  # noqa: BLE001 - noted with its traceback
        note_error(Part.STREAM, f"events of {of}", error)
        yield b": an error inside Trainmaster ended this stream; its log has it\n\n"


async def _events_of(state: State, stream: CountedStream, key: int, seq: int) -> AsyncIterator[bytes]:
    """Yield events as they are committed; end when all are sent after the job has ended, and when the caller's key is revoked.

    ``Followers`` wakes this stream when the job has changed, so that it need not poll.
    """
    with state.stores.channels.waiter(JOBS, key) as changed:
        while not stream.is_ended:
            try:
                happened = await state.followers.events_after(key, seq, _MOST_EVENTS)
            except ProblemError:
                yield b"event: away\ndata: the store does not answer; trying again\n\n"
                await wait_set(changed, LOOK_SECONDS)
                continue
            rows, job = happened.events, happened.standing
            for row in rows:
                seq = row.seq
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                    seq,
                    row.kind.encode(),
                    readable(job_queries.event_view(row)),
                )
            if job is None or (JobState(job.state).is_terminal and seq >= job.version):
                yield b"event: end\ndata: %s\n\n" % (job.state.encode() if job else b"gone")
                return
            # A comment needs no read: hundreds of idle streams would cost as many reads every few seconds.
            while len(rows) < _MOST_EVENTS and not await wait_set(changed, COMMENT_SECONDS * random.uniform(0.5, 1)):
                yield b": still here\n\n"
    yield b": the API key was revoked or has expired\n\n"


def _offsets_of(text: str) -> dict[tuple[str, int], int]:
    """Parse the header Trainmaster-Received. Raises ProblemError INVALID_PARAMETER."""
    found = [_RECEIVED.fullmatch(part) for part in text.split(",")] if text else []
    if not all(found):
        message = f"Trainmaster-Received: looks like main-0:4096,main-1:512, not {text[:100]!r}"
        raise ProblemError(Code.INVALID_PARAMETER, message)
    return {(one["role"], int(one["index"])): int(one["offset"]) for one in found if one}


@router.get("/{job_id}/logs", **contract(media_type="application/x-ndjson"))
async def read_logs(
    job_id: JobId,
    request: Request,
    state: App,
    caller: JobReader,
    follow: Annotated[bool, Query(description="Go on with new output until the job has ended.")] = False,
    role: Annotated[str | None, Query(description="Only members of this role.")] = None,
    index: MemberIndex | None = None,
    attempt: Attempt | None = None,
    tail_bytes: Annotated[
        int,
        Query(
            alias="tailBytes",
            ge=0,
            le=logs.WHOLE,
            description="Begin this many bytes before the end of each member's output; 1073741824 means the whole output.",
        ),
    ] = logs.TAIL_BYTES,
    first: Annotated[
        int | None,
        Query(
            alias="fromAttempt", ge=1, le=99_999, description="All attempts from this one on, instead of the last one."
        ),
    ] = None,
    tail_lines: Annotated[
        int | None,
        Query(alias="tailLines", ge=0, le=1_000_000, description="Begin this many lines before the end, instead."),
    ] = None,
    since: Annotated[
        WrittenTime | None, Query(description="Only output that was first seen at this time or later.")
    ] = None,
    previous: Annotated[
        bool, Query(description="Only the output of each member's life before its last restart.")
    ] = False,
    offset: Annotated[
        int | None, Query(ge=0, le=2**62, description="Begin at this byte of each member's stored output, instead.")
    ] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=2**62, description="At most this many bytes of each member's stored output.")
    ] = None,
    timestamps: Annotated[bool, Query(description="Say when output was first seen, in ``at``.")] = False,
    received: Annotated[
        str | None,
        Header(
            alias="Trainmaster-Received",
            max_length=_LONGEST_RECEIVED,
            description="For a connection that was lost: `next` of the last piece of each member in the run `fromAttempt`,"
            " such as `main-0:4096,main-1:512`; output goes on there.",
        ),
    ] = None,
) -> Response:
    """Output of the job's members, one JSON object per line: what is stored of it, then live output through the cluster's agent.

    A piece of output has the ``role`` and ``index`` of its member, ``data``, and ``offset`` and ``next``, its begin and end in bytes
    of the member's own output; ``missed`` are bytes before it that are not available, and ``at`` comes with ``timestamps``. A line
    with ``note`` says what happens, such as which run the next pieces are of; one with ``problem`` says what ended the stream. With
    ``follow``, the last line has ``end``, the state in which the job has ended.
    """
    options = logs.LogOptions(
        follow,
        role,
        index,
        attempt,
        tail_bytes,
        first,
        tail_lines,
        None if since is None else since.timestamp(),
        previous,
        offset,
        limit,
        timestamps,
        _offsets_of(received or ""),
    )
    key = await logs.find(state.stores, caller, job_id, options)
    stream = state.limits.open_stream(
        request.scope, StreamKind.LOGS, lambda: state.stores.channels.wake_here(JOBS, [key])
    )
    pieces = logs.read(state.stores, state.followers, key, job_id, options, stream.check)

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for piece in pieces:
                yield orjson.dumps(piece) + b"\n"
        except ProblemError as error:
            yield orjson.dumps({"problem": error.to_problem()}) + b"\n"
        except Exception as error:  # noqa: BLE001 - noted with its traceback
            note_error(Part.STREAM, f"logs of {job_id}", error)
            problem = ProblemError(Code.INTERNAL, "an error inside Trainmaster ended this stream; its log has it")
            yield orjson.dumps({"problem": problem.to_problem()}) + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})
