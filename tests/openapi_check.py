"""Every answer that a test gets from the api is one that its OpenAPI document describes: status, media type, and each field."""

from functools import cache
from typing import Any

import httpx
import jsonschema
import orjson

from trainmaster_dispatcher.api.app import make_routes
from trainmaster_dispatcher.api.openapi import path_pattern
from trainmaster_dispatcher.services.settings import Settings

_JSON = ("application/json", "application/problem+json")


async def check_answer(answer: httpx.Response) -> None:
    """Raise AssertionError where an answer is not as described. For the event hooks of a client."""
    request = answer.request
    found = _operation(request.method, request.url.path)
    if found is None:
        return
    operation, where = found
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    described = operation["responses"].get(str(answer.status_code))
    assert described is not None, f"{where} answered {answer.status_code}, which is not described"
    if answer.status_code == 204:
        return
    content = described.get("content", {})
    assert media_type in content or not content, f"{where} answered {answer.status_code} with {media_type}"
    if media_type not in _JSON or not content:
        return
    value = orjson.loads(await answer.aread())
    mistakes = list(_validator(orjson.dumps(content[media_type]["schema"])).iter_errors(value))
    assert not mistakes, f"{where} {answer.status_code}: " + "; ".join(_described(one) for one in mistakes[:3])


CHECKED: dict[str, list[Any]] = {"response": [check_answer]}
"""Event hooks of a client whose answers are checked."""


def _described(mistake: jsonschema.ValidationError) -> str:
    best = mistake if not mistake.context else min(mistake.context, key=lambda one: -len(one.path))
    return f"{best.json_path}: {best.message[:300]}"


@cache
def document() -> dict[str, Any]:
    """Return the document of an api that serves everybody."""
    settings = Settings.model_validate({"database_url": "postgresql://nobody/nothing", "redis_url": None})
    made: dict[str, Any] = make_routes(settings).openapi()
    return made


@cache
def _paths() -> list[str]:
    """Return all paths, those with the fewest parameters first."""
    return sorted(document()["paths"], key=lambda path: (path.count("{"), -len(path)))


def _operation(method: str, path: str) -> tuple[dict[str, Any], str] | None:
    for template in _paths():
        operation = document()["paths"][template].get(method.lower())
        if operation is not None and path_pattern(template).fullmatch(path):
            return operation, f"{method} {template}"
    return None


@cache
def _validator(schema: bytes) -> jsonschema.Draft202012Validator:
    schemas = {name: _closed(one) for name, one in document()["components"]["schemas"].items()}
    return jsonschema.Draft202012Validator(orjson.loads(schema) | {"components": {"schemas": schemas}})


def _closed(schema: Any) -> Any:
    """Return a schema that allows only the fields that it names."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _closed(value) for key, value in schema.items()}
    if out.get("type") == "object" and "properties" in out:
        out.setdefault("additionalProperties", False)
    return out
