"""Routes that agents call: those of the agent protocol."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, ValidationError

from trainmaster.protocol.agent import (
    DesiredAnswer,
    Empty,
    OutputAnswer,
    OutputPush,
    SessionName,
    StreamPush,
    SyncAnswer,
    SyncRequest,
)
from trainmaster.protocol.arrays import ArrayState, ElementsAnswer, ElementsPush
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.member_use import UsePush
from trainmaster.protocol.sync_parts import read_elements, read_output, read_push, read_sync, read_use
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster_dispatcher.api.context import Agent, App, State
from trainmaster_dispatcher.api.limits import StreamKind
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import After
from trainmaster_dispatcher.services import agents, array_reports, logs, member_use, output
from trainmaster_dispatcher.store.redis_channels import CLUSTERS

router = documented_router("/agent/v1", "agents")

Stream = Annotated[str, Path(description="Id of the stream, or of a run.")]

_SESSION = (Code.SESSION_SUPERSEDED, Code.CLUSTER_HELD)


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(by_alias=True), media_type="application/json")


@router.post("/sync", **contract(takes=SyncRequest, gives=SyncAnswer, refuses=(*_SESSION, Code.PROTOCOL_UNSUPPORTED)))
async def sync_cluster(request: Request, state: App, caller: Agent) -> Response:
    """State of a cluster's runs and capacity; renews the session lease."""
    body = await _body(request, state, read_sync)
    return _json(await agents.sync(state.stores, caller, body))


@router.get("/desired", **contract(gives=DesiredAnswer, refuses=_SESSION))
async def show_desired(
    request: Request,
    state: App,
    caller: Agent,
    session: Annotated[SessionName, Query(description="Session of the agent, as in its syncs.")],
    after: After = 0,
    wait: Annotated[float, Query(ge=0, le=60, description="The most seconds that the answer is held.")] = 60,
) -> Response:
    """Return what changed for the cluster after a version; held until something changes, at most a third of the lease."""
    stream = state.limits.open_stream(
        request.scope, StreamKind.POLL, lambda: state.stores.channels.wake_here(CLUSTERS, [caller.cluster_id or 0])
    )
    body = await agents.desired(state.stores, caller, session, after, wait, stream.check)
    return Response(body, media_type="application/json")


@router.post("/streams/{stream}", **contract(takes=StreamPush, gives=Empty, refuses=(*_SESSION, Code.STREAM_CLOSED)))
async def push_stream(
    stream: Stream,
    request: Request,
    state: App,
    caller: Agent,
) -> Response:
    """Log chunks for a follower, or, under a run's id, the tail that is kept with the run."""
    body = await _body(request, state, read_push)
    await logs.push(state.stores, caller, stream, body)
    return Response(b"{}", media_type="application/json")


@router.post("/output/{run}", **contract(takes=OutputPush, gives=OutputAnswer, refuses=(*_SESSION, Code.NOT_FOUND)))
async def store_output(
    run: Annotated[str, Path(description="Id of the run.")], request: Request, state: App, caller: Agent
) -> Response:
    """Output of a run's members, to be stored; the answer says up to where it is."""
    body = await _body(request, state, read_output)
    return _json(await output.take(state.stores, caller, run, body))


@router.post("/use", **contract(takes=UsePush, gives=Empty, refuses=_SESSION))
async def report_use(request: Request, state: App, caller: Agent) -> Response:
    """Use of the members of the cluster's running runs; runs that are not live there are passed over."""
    body = await _body(request, state, read_use)
    await member_use.take(state.stores, caller, body)
    return Response(b"{}", media_type="application/json")


@router.get("/arrays/{run}", **contract(gives=ArrayState, refuses=(*_SESSION, Code.NOT_FOUND)))
async def show_array(
    run: Annotated[str, Path(description="Id of the run.")],
    state: App,
    caller: Agent,
    session: Annotated[SessionName, Query(description="Session of the agent, as in its syncs.")],
) -> Response:
    """Return what the agent has to know to run the elements of a live run's array."""
    return _json(await array_reports.state(state.stores, caller, run, session))


@router.post("/arrays/{run}", **contract(takes=ElementsPush, gives=ElementsAnswer, refuses=(*_SESSION, Code.NOT_FOUND)))
async def report_elements(
    run: Annotated[str, Path(description="Id of the run.")], request: Request, state: App, caller: Agent
) -> Response:
    """Ended elements of a run's array, to be stored; the answer says what of it is not to be run."""
    body = await _body(request, state, read_elements)
    return _json(await array_reports.take(state.stores, caller, run, body))


_Read = TypeVar("_Read")


async def _body(request: Request, state: State, read: Callable[[bytes], _Read]) -> _Read:
    """Return the body of a call. Raises ProblemError INVALID_SPEC for a mistake in it."""
    try:
        return await state.agent_bodies.read(await request.body(), read)
    except ValidationError as error:
        mistakes = mistakes_of(error)
        raise ProblemError(Code.INVALID_SPEC, worded(mistakes[0]), mistakes=mistakes) from error
