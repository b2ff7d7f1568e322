"""Streams to members over WebSockets: commands, attached processes and ports.

Users connect to a job, agents to a stream that a user has opened, and other apis to this one with the frames of agents that they got.
"""

import asyncio
import hmac
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.member_streams import (
    COMMANDS,
    LARGEST_FRAME,
    LASTING_HEADER,
    LASTING_NAME,
    LONGEST_COMMAND,
    MOST_ARGUMENTS,
    MOST_PORTS,
    OFFSET_HEADER,
    Channel,
    MemberStreamKind,
    MemberStreamOpening,
    MemberStreamOptions,
    failure,
    frame,
)
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster_dispatcher.api.context import State, any_caller, note, with_permission
from trainmaster_dispatcher.api.limits import StreamKind
from trainmaster_dispatcher.api.openapi import documented_router
from trainmaster_dispatcher.services.member_streams import (
    FrameLine,
    MemberStreamMeetings,
    NotedLine,
    OpenedStream,
    WantedMember,
    claim,
    copy_both,
    open_stream,
)
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.member_streams import ApiAddress

log = logging.getLogger(__name__)

users_router = documented_router("/v1/jobs", "jobs")
agents_router = documented_router("/agent/v1", "agents")

_NORMAL, _GOING_AWAY, _FAILED = 1000, 1001, 1011
_LONGEST_REASON = 120
"""The most bytes of the words with which a WebSocket is closed (RFC 6455)."""
_STATUS = bytes((Channel.STATUS,))
_CONNECT_SECONDS = 5.0
_PING_SECONDS = 20.0
_CODES = {400: Code.INVALID_PARAMETER, 403: Code.FORBIDDEN, 404: Code.NOT_FOUND}
_FLAGS = ("stdin", "stdout", "stderr", "tty")
_OF_MEMBER = ("role", "index", "attempt")
_OF_KIND = {
    MemberStreamKind.EXEC: ("command", "container", *_FLAGS, "lasting", "received"),
    MemberStreamKind.ATTACH: ("container", *_FLAGS, "offset"),
    MemberStreamKind.PORT_FORWARD: ("ports",),
}
_MOST_DIGITS = 18
_TRUE, _FALSE = ("true", "1"), ("false", "0", "")


class SocketLine:
    """A WebSocket of this server as one side of a stream."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.failure = ""

    async def receive(self) -> bytes | str | None:
        """Return the next frame or text; None after the last one."""
        with suppress(WebSocketDisconnect, RuntimeError):
            message = await self._socket.receive()
            if message["type"] == "websocket.receive":
                data: bytes | str = message["text"] if message.get("bytes") is None else message["bytes"]
                return data
            self.failure = _failure(message.get("code"), message.get("reason"))
        return None

    async def send(self, data: bytes | str) -> None:
        """Send a frame or a text. What nobody receives any more is dropped."""
        name = "text" if isinstance(data, str) else "bytes"
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._socket.send({"type": "websocket.send", name: data})

    async def close(self, why: str = "") -> None:
        """Close; ``why``: the failure, if it is one."""
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._socket.close(_FAILED if why else _NORMAL, _shortened(why))


class EndOfCommand:
    """An agent's side of a command or an attached process, whose last frame says how it ended."""

    def __init__(self, cluster: str, line: FrameLine) -> None:
        self._cluster = cluster
        self._line = line
        self._has_ended = False

    @property
    def failure(self) -> str:
        """The reason for which the stream was cut before the command had ended; else empty."""
        if self._has_ended:
            return ""
        return f"cluster {self._cluster}: {self._line.failure or 'the stream was cut'}; the command may go on there"

    async def receive(self) -> bytes | str | None:
        """Return the next frame or text; None after the last one."""
        data = await self._line.receive()
        if isinstance(data, bytes) and data[:1] == _STATUS:
            self._has_ended = True
        return data

    async def send(self, data: bytes | str) -> None:
        """Send a frame or a text."""
        await self._line.send(data)

    async def close(self, why: str = "") -> None:
        """Close; ``why``: the failure, if it is one."""
        await self._line.close(why)


class PeerLine:
    """A connection to another api as one side of a stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.failure = ""

    async def receive(self) -> bytes | str | None:
        """Return the next frame or text; None after the last one."""
        try:
            return await self._socket.recv()
        except ConnectionClosed:
            self.failure = _failure(self._socket.close_code, self._socket.close_reason)
            return None

    async def send(self, data: bytes | str) -> None:
        """Send a frame or a text. What nobody receives any more is dropped."""
        with suppress(ConnectionClosed):
            await self._socket.send(data)

    async def close(self, why: str = "") -> None:
        """Close; ``why``: the failure, if it is one."""
        await self._socket.close(_FAILED if why else _NORMAL, _shortened(why))


def _failure(code: int | None, reason: str | None) -> str:
    """Return why a peer has closed, empty for an end without failure."""
    if code in (_NORMAL, _GOING_AWAY):
        return ""
    return reason or "the connection to the agent was cut"


def _shortened(why: str) -> str:
    return why.encode()[:_LONGEST_REASON].decode(errors="ignore")


# -- users


@users_router.websocket("/{job_id}/exec")
async def run_command(socket: WebSocket, job_id: str) -> None:
    """Run a command in a member."""
    await _serve_user(socket, job_id, MemberStreamKind.EXEC)


@users_router.websocket("/{job_id}/attach")
async def attach(socket: WebSocket, job_id: str) -> None:
    """Attach to the first process of a member."""
    await _serve_user(socket, job_id, MemberStreamKind.ATTACH)


@users_router.websocket("/{job_id}/portforward")
async def forward_ports(socket: WebSocket, job_id: str) -> None:
    """Connect to ports of a member."""
    await _serve_user(socket, job_id, MemberStreamKind.PORT_FORWARD)


async def _serve_user(socket: WebSocket, job: str, kind: MemberStreamKind) -> None:
    state: State = socket.app.state.trainmaster
    caller = await with_permission(socket, Permission.JOBS_CONNECT)
    query = socket.query_params
    known = (*_OF_MEMBER, *_OF_KIND[kind])
    for name in query:
        if name not in known:
            hint = did_you_mean(name, known)
            raise _wrong(name, f"this call has no query parameter of this name; it has {', '.join(known)}{hint}")
    wanted = WantedMember(
        job,
        query.get("role"),
        _whole(query, "index", 0) or 0,
        _whole(query, "attempt", 1) if "attempt" in query else None,
    )
    await serve_stream(socket, state, caller, wanted, read_options(socket, kind))


def _wrong(name: str, message: str) -> ProblemError:
    return ProblemError(Code.INVALID_PARAMETER, f"{name[:100]}: {message}")


def _whole(query: Mapping[str, str], name: str, least: int, digits: int = 6) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isdecimal() and text.isascii()) or len(text) > digits or int(text) < least:
        raise _wrong(name, f"must be a whole number from {least} on, not {text[:100]!r}")
    return int(text)


def read_options(socket: WebSocket, kind: MemberStreamKind) -> MemberStreamOptions:
    """Return the wanted stream as the parameters say, those of Kubernetes. Raises ProblemError INVALID_PARAMETER."""
    query = socket.query_params
    command = query.getlist("command")
    if kind is MemberStreamKind.EXEC and not command:
        raise _wrong("command", "is missing: give the command and each of its arguments, in order")
    if len(command) > MOST_ARGUMENTS or sum(len(one) for one in command) > LONGEST_COMMAND:
        raise _wrong("command", f"may have at most {MOST_ARGUMENTS} arguments and {LONGEST_COMMAND} characters")
    if any("\x00" in one for one in command):
        raise _wrong("command", "has a NUL character, which no argument may hold")
    offered = socket.scope.get("subprotocols") or []
    protocols = tuple(one for one in offered if one in kind.protocols)
    if not protocols:
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"offer a sub-protocol (Sec-WebSocket-Protocol) that is served here: {', '.join(kind.protocols)}",
        )
    flags = {name: _flag(query, name) for name in _FLAGS if name in query}
    lasting = query.get("lasting", "")
    if lasting and not re.fullmatch(LASTING_NAME, lasting):
        raise _wrong("lasting", f"must be 32 random hexadecimal digits in lower case, not {lasting[:100]!r}")
    received = _whole(query, "received", 0, _MOST_DIGITS)
    if received is not None and not lasting:
        raise _wrong("received", "is for a command with the parameter lasting")
    return MemberStreamOptions(
        kind=kind,
        protocols=protocols,
        container=query.get("container", "")[:63],
        command=tuple(command),
        ports=_ports(query.getlist("ports"), protocols[0]) if kind is MemberStreamKind.PORT_FORWARD else (),
        lasting=lasting,
        received=received,
        offset=_whole(query, "offset", 0, _MOST_DIGITS),
        **flags,
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    text = query[name].lower()
    if text not in (*_TRUE, *_FALSE):
        raise _wrong(name, f"must be true or false, not {text[:100]!r}")
    return text in _TRUE


def _ports(given: list[str], protocol: str) -> tuple[int, ...]:
    """Return the wanted ports. In the sub-protocol of SPDY each connection names its own."""
    texts = [text for one in given for text in one.split(",") if text]
    if not texts and protocol in COMMANDS:
        raise _wrong("ports", "is missing: give the port of the member")
    if len(texts) > MOST_PORTS:
        raise _wrong("ports", f"may have at most {MOST_PORTS} ports")
    for text in texts:
        if not (text.isdecimal() and text.isascii()) or not 1 <= int(text[:6]) <= 65_535:
            raise _wrong("ports", f"must be numbers from 1 to 65535, not {text[:100]!r}")
    return tuple(int(text) for text in texts)


async def serve_stream(
    socket: WebSocket,
    state: State,
    caller: Caller,
    wanted: WantedMember,
    options: MemberStreamOptions,
    *,
    with_status: bool = False,
) -> None:
    """Serve a stream until it is over. ``with_status``: the client shows why a command was not run only if a frame says so.

    Raises ProblemError as long as the WebSocket has not begun.
    """
    stream = state.limits.open_stream(socket.scope, StreamKind.MEMBERS, lambda: None)

    async def audit(tx: Transaction, job: str, details: Mapping[str, Any]) -> None:
        await note(tx, caller, options.kind.value, job, details)

    gauge = metrics.member_streams.labels(options.kind.value)
    opened = await open_stream(state.stores, state.member_streams, caller, wanted, options, audit)
    gauge.inc()
    try:
        protocol = opened.opening.protocol
        if not protocol and not (with_status and options.kind is not MemberStreamKind.PORT_FORWARD):
            raise _refusal(opened)
        if protocol and protocol not in options.protocols:
            message = f"cluster {opened.cluster} chose a sub-protocol that was not offered: {protocol[:100]}"
            raise ProblemError(Code.WRONG_STATE, message)
        await socket.accept(protocol or options.protocols[0], _headers_of(opened.opening))
        user = NotedLine(SocketLine(socket), lambda: state.active_jobs.note(opened.job_key), stream.passed)
        why = f"cluster {opened.cluster}: {opened.opening.message}"
        agent = opened.agent.line
        if options.kind is MemberStreamKind.PORT_FORWARD:
            await user.close(await copy_both(user, agent, stream.check))
            return
        is_cut = False
        if protocol:
            command = EndOfCommand(opened.cluster, agent)
            why = await copy_both(user, command, stream.check)
            is_cut = why == command.failure
        if why:
            status = failure(opened.opening.status or 500, why, is_cut=is_cut)
            await user.send(frame(Channel.STATUS, orjson.dumps(status)))
        # Where a frame has the words, a failure in the close would be printed in place of them.
        await user.close()
        opened.agent.lost = user.failure
    except asyncio.CancelledError:
        opened.agent.lost = "this api is stopping"
        raise
    finally:
        gauge.dec()
        opened.agent.over.set()


def _headers_of(opening: MemberStreamOpening) -> list[tuple[bytes, bytes]]:
    """Return the headers that say how the stream can be connected to again."""
    found = [] if opening.offset is None else [(OFFSET_HEADER, f"{opening.offset}")]
    if opening.lasting > 0:
        found.append((LASTING_HEADER, f"{opening.lasting:.0f}"))
    return [(name.lower().encode(), value.encode()) for name, value in found]


def _refusal(opened: OpenedStream) -> ProblemError:
    code = _CODES.get(opened.opening.status, Code.WRONG_STATE)
    return ProblemError(code, f"cluster {opened.cluster}: {opened.opening.message}")


# -- agents


@agents_router.websocket("/member-streams/{stream}")
async def connect_stream(socket: WebSocket, stream: str) -> None:
    """Connect a stream that a user has opened."""
    state: State = socket.app.state.trainmaster
    caller = await any_caller(socket)
    if caller.role is not KeyRole.AGENT:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    api = await claim(state.stores, caller, socket.query_params.get("session", ""), stream)
    await socket.accept()
    line = SocketLine(socket)
    if api.process != state.member_streams.process:
        why = await _pass_on(api, stream, line)
    else:
        why = await state.member_streams.meet(stream, line)
    await line.close(why)


async def _pass_on(api: ApiAddress, stream: str, agent: SocketLine) -> str:
    """Copy an agent's frames to the api of the stream's user; return the failure, empty for none."""
    host = f"[{api.host}]" if ":" in (api.host or "") else api.host
    try:
        async with connect(
            f"ws://{host}:{api.port}/streams/{stream}",
            additional_headers={"Authorization": f"Bearer {api.secret}"},
            compression=None,
            proxy=None,
            open_timeout=_CONNECT_SECONDS,
            ping_interval=_PING_SECONDS,
            ping_timeout=None,
            max_size=LARGEST_FRAME,
            max_queue=4,
            close_timeout=None,
        ) as socket:
            user = PeerLine(socket)
            why = await copy_both(user, agent, lambda: None)
            await user.close(why)
            return why or user.failure
    except (OSError, TimeoutError, InvalidHandshake) as error:
        log.warning("a stream was not passed on to the api at %s, port %d: %s", host, api.port, error)
        return "the api of the stream's user cannot be reached"


def make_peer_app(meetings: MemberStreamMeetings) -> Starlette:
    """Return the endpoint for other apis, which have the frames of agents for streams of this one's users."""

    async def take(socket: WebSocket) -> None:
        given = socket.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {meetings.secret}".encode()):
            await socket.send_denial_response(Response("this is for the apis", 401))
            return
        await socket.accept()
        line: FrameLine = SocketLine(socket)
        await line.close(await meetings.meet(socket.path_params["stream"], line))

    return Starlette(routes=[WebSocketRoute("/streams/{stream}", take)])
