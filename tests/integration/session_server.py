"""A server of a session: answers what it was asked for, and echoes messages of WebSockets. Runs as a member."""

import asyncio
import json
import sys
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

_LARGE = b"abc" * 1_000_000


async def _echo(socket: ServerConnection) -> None:
    assert socket.request is not None
    await socket.send(socket.request.path)
    async for message in socket:
        if message == "close":
            await socket.close(4001, "as you wish")
        else:
            await socket.send(message)


def _refuse_others(socket: ServerConnection, request: Request) -> Response | None:
    return None if request.path.startswith("/socket") else socket.respond(HTTPStatus.NOT_FOUND, "no socket here\n")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sockets: int) -> None:
    """Answer requests of one connection; a WebSocket's is passed on to the server of those."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET /socket") or b"upgrade: websocket" in head.lower():
                await _join(head, reader, writer, sockets)
                return
            await _answer(head, reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    size = 0
    if headers.get("transfer-encoding") == "chunked":
        while many := int(await reader.readline(), 16):
            size += len(await reader.readexactly(many))
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        size = len(await reader.readexactly(int(headers.get("content-length", "0"))))
    if target == "/endless":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"z" * 65_536 + b"\r\n")
            await writer.drain()
    body = json.dumps({"method": method, "target": target, "headers": headers, "size": size}).encode()
    status = "200 OK" if target.startswith(("/echo", "/large")) else "404 Not Found"
    body = _LARGE if target == "/large" else body
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    writer.write(b"" if method == "HEAD" else body)
    await writer.drain()


async def _join(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sockets: int) -> None:
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", sockets)
    other_writer.write(head)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
        target.close()

    await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))


async def _main(port: int) -> None:
    # At a port of its own: the library answers no other requests than those of WebSockets.
    async with serve(_echo, "127.0.0.1", 0, subprotocols=[Subprotocol("a")], process_request=_refuse_others) as sockets:
        inner = next(iter(sockets.sockets)).getsockname()[1]
        server = await asyncio.start_server(lambda reader, writer: _serve(reader, writer, inner), "127.0.0.1", port)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
