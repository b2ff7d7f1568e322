"""WebSockets between browsers and ports of members: message by message, as the library has them on both sides."""

import asyncio
import contextlib
import logging
from collections import deque

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State as SocketState
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.member_streams import LARGEST_FRAME
from trainmaster_dispatcher.api.asgi import Receive, Scope, Send
from trainmaster_dispatcher.api.session_gate import Entry, SessionGate, Upstream
from trainmaster_dispatcher.domain import proxied_headers
from trainmaster_dispatcher.services.member_connections import MemberPortError

_LOOK_SECONDS = 2.0
_SILENT = logging.getLogger(f"{__name__}.library")
_SILENT.setLevel(logging.ERROR)
_NO_STATUS = (1005, 1006, 1015)
"""Codes that no frame may have (RFC 6455, section 7.4.1)."""
_NORMAL, _GOING_AWAY, _REVOKED = 1000, 1001, 1008
_LONGEST_REASON = 120


async def serve_web_socket(gate: SessionGate, entry: Entry, scope: Scope, receive: Receive, send: Send) -> None:
    """Connect a browser's WebSocket to the member. Raises ProblemError and MemberPortError before it is accepted."""
    upstream = await gate.connect(entry)
    try:
        line = _MemberSocket(upstream, scope)
        subprotocol = await line.open()
        first = await receive()
        if first["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        code, reason = await _copy_both(gate, entry, line, receive, send)
        with contextlib.suppress(RuntimeError, OSError):
            await send({"type": "websocket.close", "code": code, "reason": reason[:_LONGEST_REASON]})
    finally:
        upstream.close()


class _MemberSocket:
    """The member's side."""

    def __init__(self, upstream: Upstream, scope: Scope) -> None:
        self._upstream = upstream
        self._scope = scope
        self._writing = asyncio.Lock()
        self._waiting: deque[Frame] = deque()
        self._message: list[bytes] = []
        self._is_text = False
        self._size = 0
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        uri = WebSocketURI(False, "member", 80, path, scope["query_string"].decode("latin-1"))
        offered = [Subprotocol(one) for one in scope.get("subprotocols") or ()]
        self._socket = ClientProtocol(uri, subprotocols=offered or None, max_size=LARGEST_FRAME, logger=_SILENT)

    def check(self) -> None:
        """Raise ProblemError UNAUTHENTICATED when the user's key is no longer valid."""
        self._upstream.check()

    async def passed(self, size: int) -> None:
        """Count bytes that were passed on, and wait where the user's streams have passed on more than they may."""
        await self._upstream.passed(size)

    async def open(self) -> str | None:
        """Shake hands; return the chosen sub-protocol. Raises ProblemError WRONG_STATE, and MemberPortError."""
        request = self._socket.connect()
        headers, client = self._scope["headers"], self._scope["client"][0] if self._scope.get("client") else ""
        scheme = "https" if self._scope["scheme"] == "wss" else "http"
        request.headers.pop("Host", None)
        request.headers["Host"] = proxied_headers.value_of(headers, b"host").decode("latin-1")
        passed = proxied_headers.request_headers(headers, scheme=scheme, client=client, for_web_socket=True)
        for name, value in passed:
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._socket.send_request(request)
        await self._flush()
        while self._socket.state is SocketState.CONNECTING and self._socket.handshake_exc is None:
            data = await self._upstream.connection.read()
            if not data:
                raise MemberPortError("the member closed the connection without an answer")
            self._socket.receive_data(data)
        if isinstance(error := self._socket.handshake_exc, InvalidHandshake):
            raise ProblemError(Code.WRONG_STATE, f"the member opens no WebSocket: {error}")
        return self._socket.subprotocol

    async def send(self, data: bytes | str) -> None:
        if isinstance(data, str):
            self._socket.send_text(data.encode())
        else:
            self._socket.send_binary(data)
        await self._flush()

    async def close(self, code: int, reason: str) -> None:
        if self._socket.state is SocketState.OPEN:
            self._socket.send_close(_NORMAL if code in _NO_STATUS else code, reason)
            await self._flush()

    async def receive(self) -> bytes | str | None:
        """Return the next message; None after the last one."""
        while True:
            self._waiting.extend(event for event in self._socket.events_received() if isinstance(event, Frame))
            while self._waiting:
                message = self._add(self._waiting.popleft())
                if message is not None:
                    return message
            await self._flush()
            if self._socket.state is not SocketState.OPEN:
                return None
            data = await self._upstream.connection.read()
            if data:
                self._socket.receive_data(data)
            else:
                self._socket.receive_eof()

    @property
    def end(self) -> tuple[int, str]:
        """Code and reason with which the member has closed."""
        closed = self._socket.close_rcvd
        if closed is None:
            return _GOING_AWAY, ""
        return (_NORMAL if closed.code in _NO_STATUS else int(closed.code)), closed.reason

    def _add(self, frame: Frame) -> bytes | str | None:
        """Return the message that a frame completes; None where it completes none."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._message, self._is_text, self._size = [], frame.opcode is Opcode.TEXT, 0
        elif frame.opcode is not Opcode.CONT:
            return None
        self._message.append(bytes(frame.data))
        self._size += len(frame.data)
        if self._size > LARGEST_FRAME:
            raise MemberPortError("the member sent a message that is too large")
        if not frame.fin:
            return None
        whole = b"".join(self._message)
        self._message = []
        return whole.decode(errors="replace") if self._is_text else whole

    async def _flush(self) -> None:
        async with self._writing:
            for data in self._socket.data_to_send():
                if data:
                    await self._upstream.connection.write(data)


async def _copy_both(
    gate: SessionGate, entry: Entry, line: _MemberSocket, receive: Receive, send: Send
) -> tuple[int, str]:
    """Copy messages both ways until one side has closed, or the user may not go on; return code and reason for the browser."""

    async def to_member() -> None:
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                await line.close(
                    int(message.get("code") or _GOING_AWAY), str(message.get("reason") or "")[:_LONGEST_REASON]
                )
                return
            gate.note_use(entry)
            data: bytes | str = message["text"] if message.get("bytes") is None else message["bytes"]
            await line.send(data)
            await line.passed(len(data))

    async def to_browser() -> None:
        while (data := await line.receive()) is not None:
            gate.note_use(entry)
            await send({"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data})
            await line.passed(len(data))

    tasks = asyncio.create_task(to_member()), asyncio.create_task(to_browser())
    try:
        while True:
            line.check()
            await gate.check(entry)
            done, _ = await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done:
                return line.end
    except ProblemError as error:
        return _REVOKED, error.detail
    except (MemberPortError, OSError, WebSocketException) as error:  # one side is gone
        return _GOING_AWAY, str(error)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
