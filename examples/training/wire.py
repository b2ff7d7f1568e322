"""Frames over TCP: one byte for the kind, four for the length (big-endian), then the body."""

import socket
import struct
import time

_HEAD = struct.Struct(">cI")
_LONGEST = 16 * 1024 * 1024
_RETRY_SECONDS = 0.1

HELLO, PARAMETERS, GRADIENT, END = b"H", b"P", b"G", b"E"


class LinkError(Exception):
    """The other side has gone, does not answer in time or says what was not asked for."""


def connect(address: tuple[str, int], timeout: float) -> socket.socket:
    """Return a connection to ``address``, retried until ``timeout`` seconds have passed: members start in any order."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            link = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise LinkError(f"no connection to {address[0]}:{address[1]} in {timeout:.0f} s: {error}") from error
            time.sleep(_RETRY_SECONDS)
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link


def send(link: socket.socket, kind: bytes, body: bytes) -> None:
    try:
        link.sendall(_HEAD.pack(kind, len(body)) + body)
    except OSError as error:
        raise LinkError(f"sending failed: {error}") from error


def receive(link: socket.socket, *kinds: bytes) -> tuple[bytes, bytes]:
    """Return kind and body of the next frame, which must be one of ``kinds``."""
    kind, length = _HEAD.unpack(_exactly(link, _HEAD.size))
    if kind not in kinds or length > _LONGEST:
        raise LinkError(f"unexpected frame of kind {kind!r} and {length} bytes")
    return kind, _exactly(link, length)


def _exactly(link: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = link.recv(size - len(parts))
        except OSError as error:
            raise LinkError(f"receiving failed: {error}") from error
        if not part:
            raise LinkError("the other side has closed the connection")
        parts += part
    return bytes(parts)
