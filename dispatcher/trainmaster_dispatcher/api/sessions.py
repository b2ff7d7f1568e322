"""Routes of interactive sessions."""

from datetime import UTC, datetime, timedelta

from fastapi import Request, Response

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.sessions import SessionLinkSpec, SessionLinkView, SessionList, parse_host
from trainmaster_dispatcher.api.context import App, JobConnector, JobReader, answer, read_model
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import JobId, Limit, QueueFilter, SubmitterFilter
from trainmaster_dispatcher.services import session_access, sessions

router = documented_router("/v1", "sessions")

_OFF = "this installation opens no ports for browsers: an admin has to set TRAINMASTER_SESSIONS_DOMAIN; use: trainmaster port-forward"


@router.get("/sessions", **contract(gives=SessionList, refuses=(Code.UNKNOWN_QUEUE,)))
async def list_sessions(
    state: App,
    caller: JobReader,
    queue: QueueFilter = None,
    submitted_by: SubmitterFilter = None,
    limit: Limit = 100,
) -> Response:
    """List interactive sessions that have not ended, newest first, and when each ends by itself."""
    async with state.stores.database.reading() as tx:
        found = await sessions.page(tx, caller, queue=queue, submitted_by=submitted_by, limit=limit)
    return answer(found.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.post(
    "/jobs/{job_id}/session-links",
    **contract(
        takes=SessionLinkSpec,
        gives=SessionLinkView,
        refuses=(Code.BAD_ID, Code.JOB_OF_ANOTHER, Code.WRONG_STATE, Code.METHOD_NOT_ALLOWED),
    ),
)
async def link_session(job_id: JobId, request: Request, state: App, caller: JobConnector) -> Response:
    """Make a link by which one browser opens a port of a running job's first member. It counts once, and for a minute."""
    port = read_model(SessionLinkSpec, await request.body()).port
    domain = state.stores.settings.sessions_domain
    if not domain:
        raise ProblemError(Code.WRONG_STATE, _OFF)
    host = parse_host(f"{port}--{job_id}.{domain}", domain)
    if host is None or host.port != port:
        raise ProblemError(
            Code.NOT_FOUND, f"{job_id[:100]} has no port {port!r}: give a number, or a name of the session's"
        )
    async with state.stores.database.transaction() as tx:
        ticket = await session_access.make_ticket(tx, caller, host)
    place = f":{request.url.port}" if request.url.port else ""
    url = f"{request.url.scheme}://{host.label}.{domain}{place}/.trainmaster/enter?ticket={ticket}"
    expires = datetime.now(UTC) + timedelta(seconds=session_access.TICKET_SECONDS)
    return answer(SessionLinkView(url=url, expires_at=expires).model_dump(mode="json", by_alias=True))
