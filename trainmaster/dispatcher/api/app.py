"""The application: routers, error mapping, start and end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from trainmaster import __version__
from trainmaster.dispatcher.api import agents, jobs, tenants
from trainmaster.dispatcher.api.asgi import Envelope, request_id
from trainmaster.dispatcher.api.context import State
from trainmaster.dispatcher.api.parsing import Parser
from trainmaster.dispatcher.services.settings import Settings
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import agents as agent_store
from trainmaster.dispatcher.store.database import DuplicateError, StoreAwayError, map_error
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.mistakes import mistakes_of

log = logging.getLogger(__name__)


def make_app(settings: Settings) -> Envelope:
    """The whole api as an ASGI application."""
    app = FastAPI(
        title="Trainmaster",
        version=__version__,
        summary="Multi-cluster dispatcher for AI and batch jobs",
        lifespan=_lifespan,
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.settings = settings
    for router in (jobs.router, tenants.router, agents.router):
        app.include_router(router)
    app.add_api_route("/healthz", _alive, include_in_schema=False)
    app.add_api_route("/readyz", _ready, include_in_schema=False)
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(ValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(DuplicateError, _on_duplicate)
    app.add_exception_handler(Exception, _on_error)
    return Envelope(app, settings.largest_body_bytes)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    stores = Stores.open(settings)
    parser = Parser(settings.inline_body_bytes, settings.most_jobs_per_call)
    app.state.trainmaster = State(stores, parser)
    beat = asyncio.create_task(_beat(stores), name="service-heartbeat")
    try:
        yield
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
        parser.close()
        await stores.close()


async def _beat(stores: Stores) -> None:
    """Note that agents can be served, so that no run is called lost right after an outage of the service itself."""
    seconds = stores.settings.lease_seconds
    while True:
        try:
            async with stores.database.transaction() as tx:
                await agent_store.beat(tx, seconds)
        except ProblemError as error:
            log.warning("the service's heartbeat could not be stored: %s", error)
        except Exception:
            # Without a heartbeat no run would ever be called lost again.
            log.exception("the service's heartbeat failed")
        await asyncio.sleep(seconds / 4)


async def _alive() -> dict[str, str]:
    return {"status": "alive", "version": __version__}


async def _ready(request: Request) -> Response:
    state: State = request.app.state.trainmaster
    await state.stores.database.ping()
    soft = "away" if state.stores.soft.is_away else "ok"
    return Response(orjson.dumps({"status": "ready", "postgres": "ok", "redis": soft}), media_type="application/json")


def problem_response(error: ProblemError, instance: str) -> Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if error.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    body: dict[str, Any] = error.to_problem(instance) | {"requestId": request_id.get()}
    return Response(
        orjson.dumps(body), status_code=error.code.status, media_type="application/problem+json", headers=headers
    )


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - registered for it alone
    if isinstance(error, StoreAwayError):
        log.warning("503: %s", error.__cause__ or error, extra={"request_id": request_id.get()})
    return problem_response(error, request.url.path)


async def _on_invalid(request: Request, error: Exception) -> Response:
    if isinstance(error, ValidationError):
        mistakes = mistakes_of(error)
    else:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for these two alone
        mistakes = tuple(
            Mistake(path=".".join(str(part) for part in item["loc"][1:]), message=item["msg"])
            for item in error.errors()
        )
    detail = f"{mistakes[0].path}: {mistakes[0].message}"
    return problem_response(ProblemError(Code.INVALID_PARAMETER, detail, mistakes=mistakes), request.url.path)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
    code = Code.METHOD_NOT_ALLOWED if error.status_code == 405 else Code.NOT_FOUND
    if error.status_code not in (404, 405):
        code = Code.MALFORMED_BODY
    detail = f"there is nothing at {request.url.path}" if code is Code.NOT_FOUND else str(error.detail)
    return problem_response(ProblemError(code, detail), request.url.path)


async def _on_duplicate(request: Request, error: Exception) -> Response:
    problem = ProblemError(Code.CONFLICT, f"something like it exists already ({error})")
    return problem_response(problem, request.url.path)


async def _on_error(request: Request, error: Exception) -> Response:
    mapped = map_error(error)
    if isinstance(mapped, ProblemError):
        return problem_response(mapped, request.url.path)
    log.error("unexpected error", exc_info=error, extra={"request_id": request_id.get()})
    return problem_response(
        ProblemError(Code.INTERNAL, "the dispatcher made a mistake; its log has the details under this request id"),
        request.url.path,
    )
