"""The application: routers, error mapping, start and end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainmaster import __version__
from trainmaster.metrics import exporter
from trainmaster.metrics.kinds import Process
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.validation_errors import mistake_of, mistakes_of, own_errors, worded
from trainmaster_dispatcher.api import (
    access,
    agents,
    browser_sign_ins,
    bursts,
    changes,
    clusters,
    dashboard,
    datasets,
    declarations,
    docs_pages,
    doctor,
    events,
    files,
    groups,
    jobs,
    member_streams,
    notices,
    openapi,
    prices,
    schedules,
    series,
    sessions,
    simulations,
    tenants,
    top,
    webhooks,
    workflows,
)
from trainmaster_dispatcher.api.asgi import Envelope, Receive, Scope, Send, request_id
from trainmaster_dispatcher.api.audience import Audience
from trainmaster_dispatcher.api.browser_sessions import BrowserSessions
from trainmaster_dispatcher.api.context import State, note_refusal, readable
from trainmaster_dispatcher.api.early_refusals import EarlyRefusals
from trainmaster_dispatcher.api.kept_answers import KeptDocument, KeptForASecond
from trainmaster_dispatcher.api.kube import declared_routes as kube_declared_routes
from trainmaster_dispatcher.api.kube import event_routes as kube_event_routes
from trainmaster_dispatcher.api.kube import job_routes as kube_job_routes
from trainmaster_dispatcher.api.kube import pod_routes as kube_pod_routes
from trainmaster_dispatcher.api.kube import reviews as kube_reviews
from trainmaster_dispatcher.api.kube import routes as kube_routes
from trainmaster_dispatcher.api.kube import run_routes as kube_run_routes
from trainmaster_dispatcher.api.kube import scale_routes as kube_scale_routes
from trainmaster_dispatcher.api.kube import schedule_routes as kube_schedule_routes
from trainmaster_dispatcher.api.kube import workflow_routes as kube_workflow_routes
from trainmaster_dispatcher.api.parsing import Parser
from trainmaster_dispatcher.containment import run_for_ever
from trainmaster_dispatcher.domain.default_requests import read_requests
from trainmaster_dispatcher.http_connections import CannotListenError, serving_beside
from trainmaster_dispatcher.services import agents as agent_service
from trainmaster_dispatcher.services import gauges
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.issuers import read_issuers
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most
from trainmaster_dispatcher.store import agents as agent_store
from trainmaster_dispatcher.store.database import DuplicateError, StoreAwayError, map_error
from trainmaster_dispatcher.web.assets import ASSETS

log = logging.getLogger(__name__)

_KEYS_SECONDS = 1.0
_REFUSALS_SECONDS = 1.0
_ACTIVE_SECONDS = 10.0
_ROUTERS = {
    Audience.USERS: (
        "/v1",
        (
            jobs.router,
            top.router,
            series.router,
            member_streams.users_router,
            changes.router,
            events.router,
            tenants.router,
            access.router,
            browser_sign_ins.router,
            clusters.router,
            declarations.router,
            prices.router,
            bursts.router,
            datasets.router,
            schedules.router,
            workflows.router,
            groups.router,
            sessions.router,
            files.router,
            simulations.router,
            simulations.queues_router,
            webhooks.router,
            notices.router,
            doctor.router,
        ),
    ),
    Audience.AGENTS: ("/agent/v1", (agents.router, files.agents_router, member_streams.agents_router)),
}
"""The prefix and the name of each audience's routes."""
_KUBERNETES_ROUTERS = (
    kube_job_routes.router,
    kube_event_routes.router,
    kube_run_routes.router,
    kube_schedule_routes.router,
    kube_schedule_routes.cron_job_router,
    kube_workflow_routes.router,
    kube_pod_routes.changes_router,
    kube_pod_routes.router,
    kube_declared_routes.router,
    kube_scale_routes.router,
    kube_reviews.router,
    kube_job_routes.workload_router,
    kube_routes.router,
)
"""In this order: of two routes with the same path, the first one answers."""


def make_app(settings: Settings, audience: Audience = Audience.ALL, assets: Path = ASSETS) -> Envelope:
    """Return the api as an ASGI application, with the routes of its audience. Each audience has health and metrics.

    ``assets``: the folder of the dashboard's files.
    """
    routes = make_routes(settings, audience, assets)

    def state() -> State | None:
        found: State | None = getattr(routes.state, "trainmaster", None)
        return found

    app = EarlyRefusals(routes, state)
    most, most_of_agents = settings.most_body_bytes_at_once, settings.most_agent_body_bytes_at_once
    ahead = None
    if settings.sessions_domain and audience.includes(Audience.USERS):
        from trainmaster_dispatcher.api.session_proxy import SessionProxy  # h11 is not loaded without a domain

        ahead = SessionProxy(settings.sessions_domain, state)
    return Envelope(app, settings.largest_body_bytes, most, most_of_agents, routes, ahead)


def make_routes(settings: Settings, audience: Audience = Audience.ALL, assets: Path = ASSETS) -> FastAPI:
    """Return the application without the bounds of ``Envelope``: its routes and their description."""
    app = FastAPI(
        title="Trainmaster",
        version=__version__,
        summary="Multi-cluster dispatcher for AI and batch jobs",
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect would be made of the Host header, which the caller chooses.
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
    )
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign] # as FastAPI's documentation extends it
    app.state.settings = settings
    app.state.audience = audience
    if audience.includes(Audience.USERS):
        _serve(app, _KUBERNETES_ROUTERS)
    for other, (prefix, routers) in _ROUTERS.items():
        if audience.includes(other):
            _serve(app, routers)
        else:
            app.mount(prefix, _for_others(audience, other))
    for other, (prefix, _) in _ROUTERS.items():
        if audience.includes(other):
            app.add_api_route(docs_pages.DOCUMENTS[other], _document_of(other, prefix), include_in_schema=False)
    app.add_api_route("/docs", _swagger, include_in_schema=False)
    app.add_api_route("/docs/files/{name}", docs_pages.file, include_in_schema=False)
    app.add_api_route("/redoc", _redoc, include_in_schema=False)
    app.add_api_route("/healthz", _alive, include_in_schema=False)
    app.add_api_route("/readyz", _ready_of(app), include_in_schema=False)
    app.add_api_route("/metrics", _metrics_page(), include_in_schema=False)
    if settings.dashboard and audience.includes(Audience.USERS):
        # The last ones, so that no call of the API is compared with them.
        dashboard.Dashboard(assets).add_routes(app)
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(ValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(DuplicateError, _on_duplicate)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_error)
    return app


def _serve(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Add the routes of ``routers`` as they are.

    ``include_router`` would analyse each handler's parameters again in every application, at its first call.
    """
    for router in routers:
        app.router.routes.extend(router.routes)


def _for_others(audience: Audience, other: Audience) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return a handler that refuses calls of ``other``, which this process does not serve."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        raise ProblemError(
            Code.NOT_FOUND, f"this api serves only {audience}; {other} have to call an api that serves {other}"
        )

    return refuse


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    serves_users = app.state.audience.includes(Audience.USERS)
    issuers = read_issuers(settings) if serves_users else ()
    stores = Stores.open(settings)
    parser = Parser(settings.inline_body_bytes, _most(settings), memory=settings.parser_memory_bytes)
    state = State(stores, parser, issuers)
    if state.issuers:
        from trainmaster_dispatcher.api.sign_ins import SignIns  # cryptography is not loaded without an issuer

        state.sign_ins = SignIns(stores, state.keyring, state.issuers)
        state.sign_ins.begin()
    if serves_users:
        state.browser = BrowserSessions(stores, state.keyring, state.sign_ins, state.issuers)
    app.state.trainmaster = state
    # Only an api that agents can call may note that they can be served: runs are declared lost by that.
    serves_agents = app.state.audience.includes(Audience.AGENTS)
    beats = (
        [asyncio.create_task(run_for_ever("service-heartbeat", lambda: _beat(stores)), name="service-heartbeat")]
        if serves_agents
        else []
    )
    if serves_agents:
        beats.append(
            asyncio.create_task(
                run_for_ever("desired-versions", lambda: agent_service.watch_desired(stores)), name="desired-versions"
            )
        )
    if app.state.audience.includes(Audience.USERS):
        beats.append(asyncio.create_task(run_for_ever("followers", state.followers.watch), name="followers"))
        beats.append(asyncio.create_task(run_for_ever("event-feed", state.events.watch), name="event-feed"))
        beats.append(asyncio.create_task(run_for_ever("page-changes", state.page_changes.watch), name="page-changes"))
    beats.append(asyncio.create_task(run_for_ever("revoked-keys", lambda: _end_streams(state)), name="revoked-keys"))
    gauges.watch(stores)
    beats.append(
        asyncio.create_task(run_for_ever("postgres-ping", lambda: gauges.ping_for_ever(stores)), name="postgres-ping")
    )
    beats.append(
        asyncio.create_task(run_for_ever("refused-calls", lambda: _store_refusals(state)), name="refused-calls")
    )
    beats.append(asyncio.create_task(run_for_ever("active-jobs", lambda: _store_active(state)), name="active-jobs"))
    try:
        async with AsyncExitStack() as stack:
            if app.state.audience.includes(Audience.USERS):
                await _prepare_streams(state, stack)
            yield
            state.member_streams.listen = None
    finally:
        for beat in beats:
            beat.cancel()
        await asyncio.gather(*beats, return_exceptions=True)
        parser.close()
        state.agent_bodies.close()
        await state.group_commits.close()
        await state.leader.close()
        if state.sign_ins is not None:
            await state.sign_ins.close()
        await stores.close()


async def _prepare_streams(state: State, stack: AsyncExitStack) -> None:
    """Let the api listen for streams of its users whose agents have reached another api: at once at a fixed port, else when there is
    a stream. Raises CannotListenError.
    """
    settings, meetings = state.stores.settings, state.member_streams
    app = member_streams.make_peer_app(meetings)
    serving = partial(serving_beside, app, settings.stream_host, settings.stream_port, settings.connection_bounds)

    async def listen() -> tuple[str | None, int]:
        return await stack.enter_async_context(serving(web_sockets=True))

    meetings.listen = listen
    if settings.stream_port:
        try:
            await meetings.address()
        except CannotListenError as error:
            raise CannotListenError(f"TRAINMASTER_STREAM_HOST and _PORT: {error}") from error


def _most(settings: Settings) -> Most:
    return Most(
        settings.most_jobs_per_call,
        settings.most_parameter_sets,
        read_requests(settings.default_requests),
        settings.default_memory_limit,
    )


async def _beat(stores: Stores) -> None:
    """Note that agents can be served, so that no run is declared lost right after an outage of the service itself."""
    seconds = stores.settings.lease_seconds
    while True:
        try:
            async with stores.database.transaction() as tx:
                await agent_store.beat(tx, seconds)
        except ProblemError as error:
            log.warning("the service's heartbeat could not be stored: %s", error)
        except Exception:
            # Without a heartbeat no run would ever be declared lost again.
            log.exception("the service's heartbeat failed")
        await asyncio.sleep(seconds / 4)


async def _end_streams(state: State) -> None:
    """End the streams whose key was revoked or has expired; new calls with such a key are refused without this."""
    while True:
        await asyncio.sleep(_KEYS_SECONDS)
        if not state.limits.has_streams:
            continue
        try:
            await state.keyring.refresh()
        except ProblemError as error:
            log.warning("keys of open streams could not be looked at: %s", error)
        except Exception:
            log.exception("keys of open streams could not be looked at")
        state.limits.end_streams(state.keyring.has_same_rights)


async def _store_refusals(state: State) -> None:
    """Store refused calls for the audit."""
    while True:
        await asyncio.sleep(_REFUSALS_SECONDS)
        try:
            await state.refusals.store(state.stores.database)
        except ProblemError as error:
            log.warning("refused calls could not be stored: %s", error)
        except Exception:
            log.exception("storing refused calls failed")


async def _store_active(state: State) -> None:
    """Store which jobs users work in, so that sessions in use go on."""
    while True:
        await asyncio.sleep(_ACTIVE_SECONDS)
        try:
            await state.active_jobs.store(state.stores.database)
        except ProblemError as error:
            log.warning("which sessions are in use could not be stored: %s", error)
        except Exception:
            log.exception("storing which sessions are in use failed")


async def _alive() -> dict[str, str]:
    return {"status": "alive", "version": __version__}


def _ready_of(app: FastAPI) -> Callable[[], Awaitable[Response]]:
    """Return a handler that asks the store at most once a second."""

    async def ask() -> bytes:
        state: State = app.state.trainmaster
        await state.stores.database.ping()
        redis = "away" if state.stores.channels.is_away else "ok"
        return orjson.dumps({"status": "ready", "postgres": "ok", "redis": redis})

    kept = KeptForASecond(ask)

    async def answer() -> Response:
        return Response(await kept.get(), media_type="application/json")

    return answer


def _document_of(audience: Audience, prefix: str) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers with the OpenAPI document of an audience's calls, made once."""
    kept: KeptDocument | None = None

    async def answer(request: Request) -> Response:
        nonlocal kept
        if kept is None:
            made = openapi.part_of(request.app, prefix, f"Trainmaster for {audience}")
            kept = KeptDocument(orjson.dumps(made), "application/json")
        return kept.answer(request)

    return answer


async def _swagger(request: Request) -> Response:
    return docs_pages.swagger(request.app.state.audience)


async def _redoc(request: Request) -> Response:
    return docs_pages.redoc(request.app.state.audience)


def _metrics_page() -> Callable[[], Awaitable[Response]]:
    """Return a handler that writes the page of metrics at most once a second, in a thread: it takes some milliseconds."""
    kept = KeptForASecond(partial(asyncio.to_thread, exporter.page, Process.API))

    async def answer() -> Response:
        page, content_type = await kept.get()
        return Response(page, media_type=content_type)

    return answer


def problem_response(error: ProblemError, instance: str) -> Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.pause_seconds)
    if error.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    body: dict[str, Any] = error.to_problem(instance) | {"requestId": request_id.get()}
    return Response(
        readable(body), status_code=error.code.status, media_type="application/problem+json", headers=headers
    )


async def _on_gone(request: Request, error: Exception) -> Response:
    """Answer a caller that hung up before its body was read; nobody reads this answer, and it is no error of the service."""
    return Response(status_code=400)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - registered for it alone
    note_refusal(request, error)
    if isinstance(error, StoreAwayError):
        log.warning("503: %s", error.__cause__ or error)
        gauges.note_problem(error)
    return problem_response(error, request.url.path)


async def _on_invalid(request: Request, error: Exception) -> Response:
    if isinstance(error, ValidationError):
        mistakes = mistakes_of(error)
    else:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for these two alone
        mistakes = tuple(mistake_of({**item, "loc": item["loc"][1:]}) for item in own_errors(error.errors()))
    detail = worded(mistakes[0])
    return problem_response(ProblemError(Code.INVALID_PARAMETER, detail, mistakes=mistakes), request.url.path)


def _allowed_at(request: Request, error: HTTPException) -> list[str]:
    """Return the methods that an address takes. Probes and pages are in no document."""
    described = openapi.methods_at(request.app, request.url.path)
    known = (error.headers or {}).get("Allow", "")
    return described or openapi.with_implied(one.strip() for one in known.split(",") if one.strip())


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
    allowed = _allowed_at(request, error) if error.status_code == 405 else []
    if allowed and request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": ", ".join(allowed)})
    code = Code.METHOD_NOT_ALLOWED if error.status_code == 405 else Code.NOT_FOUND
    if error.status_code not in (404, 405):
        code = Code.MALFORMED_BODY
    methods = ", ".join(allowed)
    detail = str(error.detail)
    if code is Code.NOT_FOUND:
        detail = f"there is nothing at {request.url.path}"
        if request.url.path == "/":
            detail += "; the API begins at /v1, and /docs describes it"
    elif code is Code.METHOD_NOT_ALLOWED:
        detail = f"{request.url.path} does not take {request.method}" + (f"; it takes {methods}" if methods else "")
    answer = problem_response(ProblemError(code, detail), request.url.path)
    if methods:
        answer.headers["Allow"] = methods
    return answer


async def _on_duplicate(request: Request, error: Exception) -> Response:
    problem = ProblemError(Code.CONFLICT, f"an object with this name or key exists already ({error})")
    return problem_response(problem, request.url.path)


async def _on_error(request: Request, error: Exception) -> Response:
    mapped = map_error(error)
    if isinstance(mapped, ProblemError):
        return problem_response(mapped, request.url.path)
    log.error("unexpected error", exc_info=error)
    return problem_response(
        ProblemError(Code.INTERNAL, "the dispatcher had an unexpected error; its log has it under this requestId"),
        request.url.path,
    )
