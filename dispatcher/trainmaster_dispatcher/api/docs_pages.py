"""The API reference for people: Swagger UI at ``/docs`` and Redoc at ``/redoc``. Both load everything from this api.

The two programs come with the distribution ``fastapi-offline``; only its files are used.
"""

from functools import lru_cache
from html import escape
from importlib.resources import files
from json import dumps

from starlette.requests import Request
from starlette.responses import Response

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.audience import Audience
from trainmaster_dispatcher.api.kept_answers import KeptDocument

_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The pages' Content-Security-Policy: scripts of this api alone, none of them inline."""
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_KEPT = {"Cache-Control": "public, max-age=86400"}
_PACKAGE = "fastapi_offline"
_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "redoc.standalone.js": "text/javascript",
    "favicon.png": "image/png",
}
DOCUMENTS = {Audience.USERS: "/openapi.json", Audience.AGENTS: "/agent/openapi.json"}
"""The address of each audience's OpenAPI document."""

# A key typed under Authorize stays in the page: it is lost when the page is loaded again.
_START = """"use strict";
const reference = document.getElementById("reference");
const known = JSON.parse(reference.dataset.documents);
const asked = new URLSearchParams(location.search).get("document");
const url = known.includes(asked) ? asked : known[0];
if (reference.dataset.page === "redoc") {
  Redoc.init(url, {}, reference);
} else {
  SwaggerUIBundle({
    url,
    domNode: reference,
    deepLinking: true,
    displayRequestDuration: true,
    docExpansion: "list",
    filter: true,
    persistAuthorization: false,
    validatorUrl: null,
  });
}
"""


def swagger(audience: Audience) -> Response:
    """Return the page that lists calls, takes a key and makes calls with it."""
    styles = '<link rel="stylesheet" href="/docs/files/swagger-ui.css">'
    return _page("docs", "swagger-ui-bundle.js", audience, styles)


def redoc(audience: Audience) -> Response:
    """Return the page for reading."""
    return _page("redoc", "redoc.standalone.js", audience, "")


def _page(page: str, program: str, audience: Audience, styles: str) -> Response:
    served = {one: url for one, url in DOCUMENTS.items() if audience.includes(one)}
    other, words = ("/redoc", "for reading") if page == "docs" else ("/docs", "to try calls with a key")
    calls = " | ".join(f'<a href="/{page}?document={url}">calls of {one}</a>' for one, url in served.items())
    programs = ", ".join(f'<a href="{url}">{url}</a>' for url in served.values())
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Trainmaster API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="/docs/files/favicon.png">{styles}</head><body>'
        f'<p style="font:14px sans-serif;margin:1em">Trainmaster API: {calls} | the same <a href="{other}">{words}</a> | '
        f"for programs: {programs}</p>"
        f'<div id="reference" data-page="{page}" data-documents="{escape(dumps(list(served.values())))}"></div>'
        "<noscript>This page needs JavaScript; docs/reference/rest-api.md has the same.</noscript>"
        f'<script src="/docs/files/{program}"></script><script src="/docs/files/start.js"></script></body></html>'
    )
    return Response(text, media_type="text/html", headers=_HEADERS)


async def file(request: Request) -> Response:
    """Return a file of the pages. Raises ProblemError NOT_FOUND."""
    name = request.path_params["name"]
    if name == "start.js":
        return Response(_START, media_type="text/javascript", headers=_HEADERS)
    if name not in _FILES:
        raise ProblemError(Code.NOT_FOUND, f"there is nothing at {request.url.path}")
    return _kept(name).answer(request)


@lru_cache(maxsize=len(_FILES))
def _kept(name: str) -> KeptDocument:
    content = (files(_PACKAGE) / "static" / name).read_bytes()
    return KeptDocument(content, _FILES[name], _HEADERS | _KEPT)
