"""The OpenAPI document: models of bodies and answers, names of operations, problems.

Handlers parse bodies and write answers by themselves; this module takes part in a call only to check its query parameters.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, get_args, get_origin

from fastapi import APIRouter, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema
from starlette.routing import BaseRoute

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster_dispatcher.api import problem_answers
from trainmaster_dispatcher.api.examples import add_examples
from trainmaster_dispatcher.api.field_descriptions import descriptions_of
from trainmaster_dispatcher.api.problem_answers import header

PERMISSION = "trainmaster_permissions"
"""The attribute of a check of a route that has the permissions of which it needs one."""
_REF = "#/components/schemas/{model}"
_MOST_NAMED = 40
"""The most characters of an unknown parameter that are quoted."""

LOCATION = header("Address of the new object; missing where several were made.")
_ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The call is done once: repeated with this key and the same body, it gets the first answer again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}
_INFO = {
    "description": "No text of a body or a parameter may hold the character U+0000. No object of a body may have a field twice. A "
    "flag in a parameter of an address may be given as 0 or 1. Where a schema says `x-also-accepts`, that form is read, too; answers "
    "never have it.",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}
_BEARER = "An API key, which begins with `tmk_`, or an ID token of the installation's OpenID Connect issuer."

TAGS = {
    "jobs": "Jobs: submission, lists, actions on one or many of them, their events, elements and output, and why they wait.",
    "schedules": "Schedules, which submit jobs by the clock: as documents of their own, and as CronJobs of Kubernetes.",
    "workflows": "Workflows: jobs in steps that start after others and use their results.",
    "groups": "Groups: jobs of a queue that belong together; counted, closed, cancelled, and notified of once.",
    "sessions": "Interactive sessions: jobs that people work in, and links to their ports for browsers.",
    "tenants": "Queues, priority classes, reservations, API keys and role bindings, and the audit of what was changed or refused.",
    "clusters": "Clusters: their declarations, the keys of their agents, and actions on them such as drain.",
    "declarations": "Declared state as a whole: documents that are applied together, the history of objects, and rollback.",
    "prices": "Price books of clusters, usage and its cost, and the history of jobs as a workload.",
    "series": "History over time: capacity, use, guarantees, waits and cost of clusters, queues and burst policies.",
    "burst": "Burst policies, by which jobs may go to public clusters.",
    "datasets": "Data that jobs read: its size, and the clusters that have it.",
    "files": "Files of jobs: uploads that jobs name as inputs, and artifacts, which are the outputs that runs have left.",
    "simulations": "Simulations of a workload, which run in the background.",
    "webhooks": "Secrets that sign webhook messages, and messages that could not be delivered.",
    "notices": "What users are notified of about their jobs, by e-mail and chat.",
    "doctor": "Checks of the installation, for `trainmaster doctor`.",
    "agents": "The three calls of a cluster's agent: see docs/reference/agent-protocol.md.",
}
"""Tags of operations, with their descriptions, in the order of the reference."""

DECLARED_MODELS: dict[str, type[BaseModel]] = {}
"""Models of bodies and answers, by name."""


def contract(
    *,
    takes: type[BaseModel] | tuple[type[BaseModel], ...] | None = None,
    takes_bytes: bool = False,
    is_optional: bool = False,
    gives: type[BaseModel] | tuple[type[BaseModel], ...] | None = None,
    status: int = 200,
    media_type: str = "application/json",
    also: str = "",
    or_gives: Mapping[int, type[BaseModel]] | None = None,
    is_once: bool = False,
    refuses: Collection[Code] = (),
    needs_key: bool = True,
) -> dict[str, Any]:
    """Return arguments of a route's decorator that declare its body and its answer.

    ``takes`` and ``gives``: the model, or several of which the value is one. ``takes_bytes``: the body is data.
    ``is_optional``: the body may be missing.
    ``media_type``: of the answer; one that is no JSON has no model. ``also``: another media type that the same call can answer
    with. ``or_gives``: models of answers with other statuses. ``is_once``: the call takes an Idempotency-Key.
    ``refuses``: codes of problems beside those that follow from what the call takes; see ``problem_answers``.
    ``needs_key`` False: the call is open to everybody.
    """
    content: dict[str, Any] = {}
    if gives is not None or media_type != "application/json":
        content[media_type] = {"schema": {"type": "string"} if gives is None else _schema(gives)}
    if also:
        content[also] = {"schema": {"type": "string"}}
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status in (201, 202):
        answer["headers"] = {"Location": LOCATION}
    answers = {status: answer | ({"content": content} if content else {})}
    for other, model in (or_gives or {}).items():
        shown = {"application/json": {"schema": _schema(model)}}
        headers = {"headers": {"Location": LOCATION}} if other == HTTPStatus.CREATED else {}
        answers[other] = {"description": HTTPStatus(other).phrase, "content": shown, **headers}
    extra: dict[str, Any] = {}
    if takes is not None:
        body = {"required": not is_optional, "content": {"application/json": {"schema": _schema(takes)}}}
        extra["requestBody"] = body
    if takes_bytes:
        shown_bytes = {"schema": {"type": "string", "format": "binary"}}
        extra["requestBody"] = {"required": True, "content": {"application/octet-stream": shown_bytes}}
    if is_once:
        extra["parameters"] = [_ONCE]
    if refuses:
        extra[problem_answers.EXTENSION] = sorted(refuses)
    if not needs_key:
        extra["security"] = []
    return {"status_code": status, "responses": answers} | ({"openapi_extra": extra} if extra else {})


def _schema(models: type[BaseModel] | tuple[type[BaseModel], ...]) -> dict[str, Any]:
    every = models if isinstance(models, tuple) else (models,)
    for model in every:
        known = DECLARED_MODELS.setdefault(model.__name__, model)
        if known is not model:
            raise TypeError(f"two models of the API are called {model.__name__}: {known!r}, {model!r}")
    refs = [{"$ref": _REF.format(model=model.__name__)} for model in every]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def documented_router(prefix: str, tag: str) -> APIRouter:
    """Return a router for calls that the document describes, named by ``operation_id``. All have ``tag``."""
    return APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=operation_id)


def operation_id(route: APIRoute) -> str:
    """Return the name of an operation for generated clients: that of its function."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def check_parameters(request: Request) -> None:
    """Refuse query parameters that a call does not have, or has once and gets twice: a mistyped filter would otherwise select all.

    Raises ProblemError.
    """
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
        hint = did_you_mean(name, known)
        raise _wrong_parameter(name, f"this call has no query parameter of this name; {there}{hint}")
    given = request.query_params.multi_items()
    for name, value in given:
        if "\x00" in value:
            raise _wrong_parameter(name, "has a NUL character, which no text may hold")
    if len(request.query_params) == len(given):
        return
    for parameter in route.dependant.query_params:
        if not _is_list(parameter.field_info.annotation) and len(request.query_params.getlist(parameter.alias)) > 1:
            raise _wrong_parameter(parameter.alias, "this parameter is given twice")


def _wrong_parameter(name: str, message: str) -> ProblemError:
    return ProblemError(Code.INVALID_PARAMETER, f"{name}: {message}", mistakes=(Mistake(path=name, message=message),))


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(_is_list(inner) for inner in get_args(annotation))


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, made once."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        components = made.setdefault("components", {})
        components["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer", "description": _BEARER}}
        schemas = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):  # of FastAPI, which this API never answers with
            schemas.pop(name, None)
        schemas["Problem"] = problem_answers.PROBLEM
        _, models = models_json_schema(
            [(model, "validation") for model in DECLARED_MODELS.values()],
            by_alias=True,
            ref_template=_REF,
            schema_generator=Described,
        )
        schemas.update(models.get("$defs", {}))
        made["security"] = [{"apiKey": []}]
        made["info"] |= _INFO
        made["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
        for methods in made["paths"].values():
            _name_as_in_body(methods, schemas)
        _add_permissions(app, made)
        for _, operation in _operations(made):
            # The first sentence of a handler's docstring is the summary of the call.
            text = operation.get("description", "")
            operation["summary"] = text.partition("\n")[0].partition(". ")[0].rstrip(".").replace("``", "")
            for parameter in operation.get("parameters", ()):
                _describe_parameter(parameter)
            problem_answers.describe(operation)
        for schema in _objects(schemas):
            _plain_map(schema)
        for _, operation in _operations(made):
            for described in (operation.get("requestBody", {}), *operation["responses"].values()):
                content = described.get("content", {})
                if content.get("application/json") != {"schema": {}}:
                    add_examples(content, schemas)
                elif "application/x-ndjson" not in content:
                    # FastAPI adds it to an answer of another media type. Generators that know no NDJSON would leave out the answer.
                    del content["application/json"]
    return app.openapi_schema or {}


class Described(GenerateJsonSchema):
    """A generator with the descriptions of fields, and without titles: these are made of names, would add nothing, and generated
    clients would be named after them.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        """Return the value as it is: examples keep the order in which people write their fields."""
        return value

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        described = descriptions_of(model)
        for name, field in model.model_fields.items():
            shown = made.get("properties", {}).get(field.alias or name)
            if shown is not None and name in described:
                shown.setdefault("description", described[name])
        return made


def _describe_parameter(parameter: dict[str, Any]) -> None:
    """Give a parameter the schema of a given value, and the description of its type unless it has one of its own."""
    parameter["schema"] = schema = _given(parameter["schema"])
    schema.pop("title", None)
    text = schema.pop("description", None)
    if text is not None:
        parameter.setdefault("description", text)


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that is given, without null: a parameter that is left out is not null."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(others) != 1:
        return schema
    (given,) = others
    return {**{key: value for key, value in schema.items() if key != "anyOf"}, **given}


def _name_as_in_body(methods: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """Describe the name in the address of a declared object as its specification does."""
    body = methods.get("put", {}).get("requestBody")
    reference = {} if body is None else body["content"].get("application/json", {}).get("schema", {})
    if "$ref" not in reference:
        return
    spec = schemas[reference["$ref"].rpartition("/")[2]]
    properties, example = spec["properties"], spec["examples"][0]
    for operation in methods.values():
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                # A slash in a name would be one of the address; the path of a queue has them.
                name_schema = {"pattern": "^[^/]+$", **properties[parameter["name"]]}
                parameter["schema"] = name_schema | {"examples": [example[parameter["name"]]]}


def _plain_map(schema: dict[str, Any]) -> None:
    """Describe a mapping in the form that generators of clients support: a schema for its values and one for its names."""
    patterns = schema.get("patternProperties")
    if patterns is not None and len(patterns) == 1 and "properties" not in schema:
        del schema["patternProperties"]
        ((pattern, values),) = patterns.items()
        schema["additionalProperties"] = values
        schema["propertyNames"] = {"pattern": pattern, **schema.get("propertyNames", {})}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a part of the document, including the part itself."""
    if isinstance(value, dict):
        yield value
        for one in tuple(value.values()):
            yield from _objects(one)
    elif isinstance(value, list):
        for one in value:
            yield from _objects(one)


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
    tags = {tag for methods in paths.values() for operation in methods.values() for tag in operation["tags"]}
    return whole | {
        "info": whole["info"] | {"title": title},
        "tags": [tag for tag in whole["tags"] if tag["name"] in tags],
        "paths": paths,
        "components": whole["components"] | {"schemas": kept},
    }


def _references(value: Any) -> Iterator[str]:
    """Yield the names of the schemas that a part of the document refers to."""
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
    return with_implied(found)


def with_implied(methods: Iterable[str]) -> list[str]:
    """Return methods of an address, in order, with those that it takes because of them: HEAD beside GET, and OPTIONS beside any."""
    found = set(methods)
    if "GET" in found:
        found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []


@lru_cache(maxsize=256)
def path_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the addresses of a path of the document."""
    # The path of a queue has slashes in it.
    pieces = re.split(r"(\{\w+\})", template)
    known = {"{path}": ".+"}
    return re.compile("".join(known.get(one, "[^/]+") if one[:1] == "{" else re.escape(one) for one in pieces))


def _add_permissions(app: FastAPI, made: dict[str, Any]) -> None:
    """Add to each operation the permissions of which it needs one, as ``x-permission``."""
    for (method, path), permissions in permissions_of_routes(app.routes).items():
        if operation := made["paths"].get(path, {}).get(method.lower()):
            operation["x-permission"] = " or ".join(permissions)


def permissions_of_routes(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], tuple[Permission, ...]]:
    """Return the permissions of which a call needs one, by its method and the path of its route."""
    found: dict[tuple[str, str], tuple[Permission, ...]] = {}
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            found |= permissions_of_routes(included.routes)
        elif isinstance(route, APIRoute):
            needed = next(filter(None, map(_permissions_of, route.dependant.dependencies)), None)
            if needed is not None:
                path = route.path.replace(":path}", "}")
                found |= dict.fromkeys(((method, path) for method in route.methods or ()), needed)
    return found


def _permissions_of(dependant: Dependant) -> tuple[Permission, ...] | None:
    own: tuple[Permission, ...] | None = getattr(dependant.call, PERMISSION, None)
    return own or next(filter(None, map(_permissions_of, dependant.dependencies)), None)


def _operations(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for methods in made["paths"].values():
        yield from methods.items()
