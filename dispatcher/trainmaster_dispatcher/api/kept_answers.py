"""Answers to calls without a key that are not made again for each call: documents and files as bytes, pages of one second."""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Generic, TypeVar

from fastapi import Request, Response

Made = TypeVar("Made")

KEPT_SECONDS = 1.0
_GZIP = re.compile(r"(?:^|,)\s*(?:gzip|\*)\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?\s*(?:,|$)", re.IGNORECASE)
"""``Accept-Encoding`` that allows gzip."""


class KeptDocument:
    """Content that never changes, with its ETag; compressed for callers that accept it. ``headers``: of each answer.

    ``compressed``: the content by gzip; empty: it is never compressed; None: it is compressed when that is first wanted.
    """

    def __init__(
        self,
        content: bytes,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        compressed: bytes | None = None,
    ) -> None:
        self._content = content
        self._media_type = media_type
        self._headers = dict(headers or {})
        self._given = compressed
        self._tag = sha256(content).hexdigest()[:32]

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._content, mtime=0) if self._given is None else self._given

    def answer(self, request: Request) -> Response:
        """Return the content, or 304 to a caller that has it already."""
        is_short = self._given != b"" and bool(_GZIP.search(request.headers.get("accept-encoding", "")))
        tags = {short: f'"{self._tag}{"-gzip" * short}"' for short in (False, True)}
        headers = {**self._headers, "ETag": tags[is_short], "Vary": "Accept-Encoding"}
        known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
        if known & {"*", *tags.values()}:
            return Response(status_code=304, headers=headers)
        if not is_short:
            return Response(self._content, media_type=self._media_type, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(self._compressed, media_type=self._media_type, headers=headers)


class KeptForASecond(Generic[Made]):
    """The result or the exception of ``make``, for all who ask within a second. It runs once at a time; others wait for it."""

    def __init__(self, make: Callable[[], Awaitable[Made]]) -> None:
        self._make = make
        self._made: asyncio.Task[Made] | None = None
        self._until = 0.0

    async def get(self) -> Made:
        """Return what was made. A caller that hangs up does not end the work, for which others may wait."""
        loop = asyncio.get_running_loop()
        if self._made is None or (self._made.done() and loop.time() >= self._until):
            self._made = asyncio.create_task(self._run())
        return await asyncio.shield(self._made)

    async def _run(self) -> Made:
        try:
            return await self._make()
        finally:
            self._until = asyncio.get_running_loop().time() + KEPT_SECONDS
