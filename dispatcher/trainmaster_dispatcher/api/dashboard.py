"""Routes of the dashboard: one page for all its addresses, and the files that it loads. Everything else it has from ``/v1``.

/, /jobs, /jobs/ID ... ──▶ index.html, asked for again each time
/static/NAME-HASH.js   ──▶ kept by browsers for a year
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.kept_answers import KeptDocument
from trainmaster_dispatcher.web.assets import HEADERS, INDEX, STATIC, Asset, addresses, built_at, read_assets

_FOR_EVER: Mapping[str, str] = {"Cache-Control": "public, max-age=31536000, immutable"}
_ASK_AGAIN: Mapping[str, str] = {"Cache-Control": "no-cache"}
_NOT_BUILT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Trainmaster</title></head>
<body>
<h1>The dashboard is not built</h1>
<p>This checkout has its sources alone: run <code>scripts/build-web</code>, and load this page again. The API answers all the same;
<a href="/docs">its reference</a> can make calls.</p>
</body>
</html>
"""


@dataclass
class Dashboard:
    """The files of a folder, in memory once they are built; read again once they are built again."""

    folder: Path
    _documents: Mapping[str, KeptDocument] = field(default_factory=dict)
    _read_at: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add_routes(self, app: FastAPI) -> None:
        for address in addresses():
            app.add_api_route(address, self.page, include_in_schema=False)
        app.add_api_route(f"/{STATIC}/{{name:path}}", self.file, include_in_schema=False)

    async def page(self, request: Request) -> Response:
        """Return the page, or one that says that it was not built."""
        document = (await self._current()).get(INDEX)
        if document is None:
            return Response(
                _NOT_BUILT, status_code=503, media_type="text/html", headers={**HEADERS, "Cache-Control": "no-store"}
            )
        return document.answer(request)

    async def file(self, request: Request) -> Response:
        """Return a file of the page. Raises ProblemError NOT_FOUND."""
        document = (await self._current()).get(f"{STATIC}/{request.path_params['name']}")
        if document is None:
            raise ProblemError(Code.NOT_FOUND, f"there is nothing at {request.url.path}")
        return document.answer(request)

    async def _current(self) -> Mapping[str, KeptDocument]:
        if built_at(self.folder) == self._read_at:
            return self._documents
        async with self._reading:
            at = built_at(self.folder)
            # While it is built again, there is no page for a moment: the one before is shown until then.
            if at not in (0, self._read_at):
                self._documents = await asyncio.to_thread(_documents_of, self.folder)
                self._read_at = at
        return self._documents


def _documents_of(folder: Path) -> dict[str, KeptDocument]:
    return {name: _document(name, asset) for name, asset in read_assets(folder).items()}


def _document(name: str, asset: Asset) -> KeptDocument:
    kept = _ASK_AGAIN if name == INDEX else _FOR_EVER
    return KeptDocument(asset.content, asset.media_type, {**HEADERS, **kept}, compressed=asset.compressed)
