"""The API reference for people at ``/docs``: one page made of the OpenAPI document, without scripts and without other hosts."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of the page."""
_STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}code{font-size:14px}"
    "td{padding:.2rem .8rem .2rem 0;vertical-align:top}h2{margin-top:2rem}"
)


def render(document: Mapping[str, Any]) -> bytes:
    """Return the page of an OpenAPI document."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    body = "".join(_sections(document["paths"]))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>Every call needs <code>Authorization: Bearer KEY</code>. The whole document for programs: "
        f'<a href="/openapi.json">/openapi.json</a>.</p>{body}</html>'
    ).encode()


def _sections(paths: Mapping[str, Any]) -> Iterator[str]:
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            by_tag.setdefault(next(iter(operation.get("tags", ())), "other"), []).append((method, path, operation))
    for tag, operations in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>"
        for method, path, operation in operations:
            yield f"<h3><code>{method.upper()} {escape(path)}</code></h3><p>{escape(operation.get('description', ''))}</p>"
            if parameters := operation.get("parameters"):
                yield "<table>"
                for one in parameters:
                    needed = ", required" if one.get("required") else ""
                    yield f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}{needed}"
                yield "</table>"
