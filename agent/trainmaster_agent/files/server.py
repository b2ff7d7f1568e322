"""The agent's calls for the files of members: it passes them on to the dispatcher, which checks each anew.

``/v1/files/RUN`` with the run's token; see ``program.py`` for the calls. Data passes through in parts, a few at a time.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from pydantic import BaseModel, ValidationError

from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.files import (
    PART_BYTES,
    FilesCall,
    FilesProblem,
    OutputFilesAnswer,
    OutputFilesSpec,
    RunFiles,
    UploadedPart,
)

_FRESH_SECONDS = 30.0
"""Seconds for which what the dispatcher said of a run's files is used for further members; addresses are valid for longer."""
_PARTS_AT_ONCE = 8
_MOST_RUNS = 10_000
_UPLOAD = re.compile(r"u-[0-9a-f]{1,64}")
_BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND, _CONFLICT, _UNAVAILABLE = 400, 401, 404, 409, 503
_FINAL = frozenset((Code.FILES_FULL, Code.FILES_OFF, Code.BODY_TOO_LARGE, Code.INVALID_SPEC))
"""Refusals that another try would meet, too. An upload that was cut is begun again."""


class FileCalls(Protocol):
    """The calls of the protocol that files need. Each raises ProblemError or UnreachableError."""

    async def files(self, run: str, session: str) -> RunFiles: ...

    async def read_input(self, run: str, session: str, number: int, offset: int, limit: int) -> bytes: ...

    async def begin_output(self, run: str, body: OutputFilesSpec) -> OutputFilesAnswer: ...

    async def write_output(self, run: str, session: str, upload: str, offset: int, data: bytes) -> UploadedPart: ...

    async def finish_output(self, run: str, upload: str, body: FilesCall) -> None: ...

    async def files_problem(self, run: str, body: FilesProblem) -> None: ...


@dataclass(frozen=True, slots=True)
class _Known:
    files: RunFiles
    at: float


class FileServer:
    """Serves the files of members for one agent session, as part of the agent's server for its members."""

    def __init__(self, calls: FileCalls) -> None:
        self._calls = calls
        self._session = ""
        self._known: dict[str, _Known] = {}
        self._parts = asyncio.Semaphore(_PARTS_AT_ONCE)

    def add_to(self, application: web.Application, session: str) -> None:
        """Add the routes to the server of an agent's session."""
        self._session = session
        base = "/v1/files/{run}"
        for method, path, handler in (
            ("GET", base, self._show),
            ("GET", base + "/inputs/{number}", self._read),
            ("POST", base + "/outputs", self._begin),
            ("PUT", base + "/uploads/{upload}", self._write),
            ("POST", base + "/uploads/{upload}", self._finish),
            ("POST", base + "/problem", self._note),
        ):
            application.router.add_route(method, path, self._checked(handler))

    async def files_of(self, run: str, *, fresh: bool = False) -> RunFiles:
        """Return a run's files, as the dispatcher has said within the last seconds. Raises ProblemError and UnreachableError."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(run)
        if known is not None and not fresh and now - known.at < _FRESH_SECONDS:
            return known.files
        files = await self._calls.files(run, self._session)
        self._known.pop(run, None)
        while len(self._known) >= _MOST_RUNS:
            del self._known[next(iter(self._known))]
        self._known[run] = _Known(files, now)
        return files

    def _checked(
        self, handler: Callable[[web.Request, str], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            run = request.match_info["run"]
            try:
                token = (await self.files_of(run)).token
                given = request.headers.get("Authorization", "").removeprefix("Bearer ")
                if not hmac.compare_digest(given.encode(), token.encode()):
                    return web.json_response({"error": "this is not the token of the run"}, status=_UNAUTHORIZED)
                return await handler(request, run)
            except ProblemError as error:
                return web.json_response({"error": error.detail}, status=_status_of(error))
            except UnreachableError as error:
                return web.json_response({"error": str(error)}, status=_UNAVAILABLE)
            except (ValidationError, ValueError) as error:
                return web.json_response({"error": str(error)}, status=_BAD_REQUEST)

        return answer

    async def _show(self, _request: web.Request, run: str) -> web.Response:
        files = await self.files_of(run)
        return _json(files.model_copy(update={"token": ""}))

    async def _read(self, request: web.Request, run: str) -> web.Response:
        number, offset = int(request.match_info["number"]), int(request.query.get("offset", "0"))
        async with self._parts:
            data = await self._calls.read_input(run, self._session, number, offset, PART_BYTES)
        return web.Response(body=data, content_type="application/octet-stream")

    async def _begin(self, request: web.Request, run: str) -> web.Response:
        given = await request.json()
        body = OutputFilesSpec.model_validate({**given, "session": self._session})
        return _json(await self._calls.begin_output(run, body))

    async def _write(self, request: web.Request, run: str) -> web.Response:
        offset = int(request.query.get("offset", "0"))
        async with self._parts:
            data = await request.read()
            await self._calls.write_output(run, self._session, _upload_in(request), offset, data)
        return web.json_response({})

    async def _finish(self, request: web.Request, run: str) -> web.Response:
        await self._calls.finish_output(run, _upload_in(request), FilesCall(session=self._session))
        return web.json_response({})

    async def _note(self, request: web.Request, run: str) -> web.Response:
        given = await request.json()
        body = FilesProblem.model_validate({**given, "session": self._session})
        await self._calls.files_problem(run, body)
        return web.json_response({})


def _upload_in(request: web.Request) -> str:
    upload = request.match_info["upload"]
    if not _UPLOAD.fullmatch(upload):
        raise ValueError("this is no id of an upload")
    return upload


def _status_of(error: ProblemError) -> int:
    if error.code is Code.NOT_FOUND:
        return _NOT_FOUND
    return _CONFLICT if error.code in _FINAL else _UNAVAILABLE


def _json(model: BaseModel) -> web.Response:
    return web.Response(body=model.model_dump_json(by_alias=True).encode(), content_type="application/json")
