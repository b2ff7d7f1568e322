"""What routes declare to those who call them: bodies and answers by their models, names of operations, problems.

Handlers read bodies and write answers by themselves; nothing here is in the way of a call but the look at its query parameters.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from trainmaster.protocol.errors import Code, Mistake, ProblemError

_REF = "#/components/schemas/{model}"
_MOST_NAMED = 40
"""Characters of an unknown parameter that are quoted."""

_PROBLEM = {
    "description": "An RFC 9457 problem; docs/reference/errors.md has a section for each code.",
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    # Some codes have members of their own, such as liveRuns.
    "additionalProperties": True,
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": [code.value for code in Code]},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "requestId": {"type": "string"},
        "mistakes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}},
    }
    for status in sorted({code.status for code in Code})
}
"""Answers that any call may get."""

_declared: dict[str, type[BaseModel]] = {}
"""Models of bodies and answers, by name."""


def contract(
    *,
    takes: type[BaseModel] | tuple[type[BaseModel], ...] | None = None,
    is_optional: bool = False,
    gives: type[BaseModel] | tuple[type[BaseModel], ...] | None = None,
    status: int = 200,
    media_type: str = "application/json",
    also: str = "",
    or_gives: Mapping[int, type[BaseModel]] | None = None,
) -> dict[str, Any]:
    """Return arguments of a route's decorator that declare its body and its answer.

    ``takes`` and ``gives``: the model, or several of which it is one. ``is_optional``: the body may be missing. ``media_type``: of
    the answer; one that is no JSON has no model. ``also``: another media type that the same call can answer with. ``or_gives``:
    models of answers with other statuses.
    """
    content: dict[str, Any] = {}
    if gives is not None or media_type != "application/json":
        content[media_type] = {"schema": {"type": "string"} if gives is None else _schema(gives)}
    if also:
        content[also] = {"schema": {"type": "string"}}
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    answers = {status: answer | ({"content": content} if content else {})}
    for other, model in (or_gives or {}).items():
        shown = {"application/json": {"schema": _schema(model)}}
        answers[other] = {"description": HTTPStatus(other).phrase, "content": shown}
    arguments: dict[str, Any] = {"status_code": status, "responses": answers}
    if takes is not None:
        body = {"required": not is_optional, "content": {"application/json": {"schema": _schema(takes)}}}
        arguments["openapi_extra"] = {"requestBody": body}
    return arguments


def _schema(models: type[BaseModel] | tuple[type[BaseModel], ...]) -> dict[str, Any]:
    every = models if isinstance(models, tuple) else (models,)
    for model in every:
        known = _declared.setdefault(model.__name__, model)
        if known is not model:
            raise TypeError(f"two models of the API are called {model.__name__}: {known!r}, {model!r}")
    refs = [{"$ref": _REF.format(model=model.__name__)} for model in every]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def operation_id(route: APIRoute) -> str:
    """Return the name of an operation for generated clients: that of its function."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


async def known_parameters(request: Request) -> None:
    """Refuse query parameters that a call does not have: a mistyped filter would otherwise mean all. Raises ProblemError."""
    if not request.query_params:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        name = unknown[0] if len(unknown[0]) <= _MOST_NAMED else unknown[0][:_MOST_NAMED] + "..."
        there = f"it has {', '.join(known)}" if known else "it has none"
        message = f"this call has no query parameter of this name; {there}"
        raise ProblemError(
            Code.INVALID_PARAMETER, f"{name}: {message}", mistakes=(Mistake(path=name, message=message),)
        )


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, made once."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        components = made.setdefault("components", {})
        components["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer"}}
        schemas = components.setdefault("schemas", {})
        schemas["Problem"] = _PROBLEM
        _, models = models_json_schema(
            [(model, "validation") for model in _declared.values()], by_alias=True, ref_template=_REF
        )
        schemas.update(models.get("$defs", {}))
        made["security"] = [{"apiKey": []}]
        for operation in _operations(made):
            # The first sentence of a handler's docstring is what the call does.
            text = operation.get("description", "")
            operation["summary"] = text.partition("\n")[0].partition(". ")[0].rstrip(".").replace("``", "")
    return app.openapi_schema or {}


def part_of(app: FastAPI, prefix: str, title: str) -> dict[str, Any]:
    """Return the document of the calls whose addresses begin with ``prefix``, with the schemas that these need and no others."""
    whole = document(app)
    paths = {path: methods for path, methods in whole["paths"].items() if path.startswith(prefix)}
    schemas = whole["components"]["schemas"]
    needed: dict[str, Any] = {}
    todo = list(_references(paths))
    while todo:
        name = todo.pop()
        if name not in needed:
            needed[name] = schemas[name]
            todo += _references(schemas[name])
    kept = {name: one for name, one in schemas.items() if name in needed}
    return whole | {
        "info": whole["info"] | {"title": title},
        "paths": paths,
        "components": whole["components"] | {"schemas": kept},
    }


def _references(value: Any) -> Iterator[str]:
    """The names of the schemas that a part of the document refers to."""
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref.rpartition("/")[2]
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def methods_at(app: FastAPI, path: str) -> list[str]:
    """Return the methods that are allowed at a path, empty where the document has none: several routes may have the same path."""
    there = {
        template: methods
        for template, methods in document(app)["paths"].items()
        if path_pattern(template).fullmatch(path)
    }
    # /v1/jobs/cancel is no job's address.
    fewest = min((template.count("{") for template in there), default=0)
    found = {method.upper() for template in there if template.count("{") == fewest for method in there[template]}
    if "GET" in found:
        found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []


@lru_cache(maxsize=256)
def path_pattern(template: str) -> re.Pattern[str]:
    """Return what matches the addresses of a path of the document."""
    # The path of a queue has slashes in it.
    pieces = re.split(r"(\{\w+\})", template)
    known = {"{path}": ".+"}
    return re.compile("".join(known.get(one, "[^/]+") if one[:1] == "{" else re.escape(one) for one in pieces))


def _operations(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in made["paths"].values():
        yield from methods.values()
