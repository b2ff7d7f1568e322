"""OpenAPI v3 of the group, which ``kubectl explain`` reads: a schema for each kind, made of the models by which objects are parsed."""

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import orjson
from pydantic import BaseModel

from trainmaster import __version__
from trainmaster_dispatcher.api.kube.bodies import PATCH_TYPES
from trainmaster_dispatcher.api.kube.discovery import CORE_VERSIONS, GROUPS
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.api.openapi import Described

Wire = dict[str, Any]
_TITLE = "Trainmaster"
_PREFIX = "dev.trainmaster.v1."
_REFERENCE = f"#/components/schemas/{_PREFIX}"
_METADATA = {
    "type": "object",
    "description": "Standard object's metadata: name, namespace, labels and uid.",
    "properties": {
        "name": {"type": "string", "description": "Name of the object."},
        "namespace": {"type": "string", "description": "Namespace of the object: that of a job's queue."},
        "labels": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Labels of the object.",
        },
        "annotations": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Annotations of the object.",
        },
        "generateName": {
            "type": "string",
            "description": "Begin of a name that the dispatcher makes: that of the job's id.",
        },
        "resourceVersion": {"type": "string", "description": "Version of the object, which each change raises."},
        "uid": {"type": "string", "description": "Identity of the object."},
        "creationTimestamp": {"type": "string", "format": "date-time", "description": "Time at which it was made."},
    },
}


ALL_GROUPS: Mapping[str, Mapping[str, list[ApiResource]]] = {"": CORE_VERSIONS, **GROUPS}
"""Resources by group and version, with those of the core group, which has no name."""
_OF_WORKLOADS = (
    "{} that is queued, placed on a cluster and run there as it is. It names its queue by the annotation"
    " trainmaster.dev/queue, or is of the queue of its namespace."
)


@cache
def root() -> Wire:
    """Return the documents that there are. Clients keep a document until its hash changes."""
    return {
        "paths": {
            place: {"serverRelativeURL": f"/openapi/v3/{place}?hash={_digest(document(name, version))}"}
            for name, versions in ALL_GROUPS.items()
            for version in versions
            for place in (_place(name, version),)
        }
    }


def empty_document() -> Wire:
    """Return the document of OpenAPI v2, without schemas: those are in v3.

    kubectl asks for it when a file has a kind that is not served here, and says so only after it has got it.
    """
    return {"swagger": "2.0", "info": {"title": _TITLE, "version": __version__}, "paths": {}, "definitions": {}}


def empty_message() -> bytes:
    """Return that document in protobuf, as client-go reads it: https://github.com/google/gnostic/blob/main/openapiv2/OpenAPIv2.proto"""
    info = _text(1, _TITLE.encode()) + _text(2, __version__.encode())
    return _text(1, b"2.0") + _text(2, info)


def _text(number: int, value: bytes) -> bytes:
    """Return a field of bytes shorter than 128 in the encoding of protobuf."""
    return bytes([number << 3 | 2, len(value)]) + value


def _place(group: str, version: str) -> str:
    """Return the begin of the addresses of a version of a group."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _digest(found: Wire) -> str:
    return sha256(orjson.dumps(found)).hexdigest()[:32].upper()


@cache
def document(name: str, version: str) -> Wire:
    """Return the document of a version of a group. Raises KeyError for one that does not exist."""
    schemas: Wire = {}
    resources = ALL_GROUPS[name][version]
    for one in resources:
        _add(schemas, one)
    return {
        "openapi": "3.0.0",
        "info": {"title": _TITLE, "version": __version__},
        "paths": {path: item for one in resources for path, item in _paths(one)},
        "components": {"schemas": schemas},
    }


def _add(schemas: Wire, one: ApiResource) -> None:
    spec = _part(schemas, one.schema, without=("kind", "name"))
    status = _part(schemas, one.status, without=())
    if one.workload is not None:
        # Its fields are its own controller's, of whichever version a cluster has.
        spec = status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        spec = {**spec, "description": f"Specification, as {one.workload.needs or 'Kubernetes'} reads it."}
    description = _OF_WORKLOADS.format(one.workload.name) if one.workload is not None else spec.get("description")
    schemas[f"{_PREFIX}{one.kind}"] = {
        "type": "object",
        "description": description or status.get("description", ""),
        "x-kubernetes-group-version-kind": [{"group": one.group, "version": one.version, "kind": one.kind}],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {one.group_version}."},
            "kind": {"type": "string", "description": f"Always {one.kind}."},
            "metadata": _METADATA,
            "spec": spec,
            "status": {**status, "description": "What is observed of the object; read-only."},
        },
    }


def _part(schemas: Wire, model: type[BaseModel] | None, *, without: Iterable[str]) -> Wire:
    """Return the schema of a part of an object, made of a model; any object where there is none. Others that it names are added."""
    if model is None:
        return {"type": "object"}
    made = model.model_json_schema(by_alias=True, ref_template=f"{_REFERENCE}{{model}}", schema_generator=Described)
    for name, schema in made.pop("$defs", {}).items():
        schemas[f"{_PREFIX}{name}"] = plain(schema)
    properties = {key: value for key, value in made.get("properties", {}).items() if key not in without}
    required = [name for name in made.get("required", ()) if name in properties]
    found: Wire = plain({**made, "properties": properties, "required": required})
    if not required:
        found.pop("required", None)
    return found


def plain(schema: Any) -> Any:
    """Return a schema of JSON Schema as OpenAPI 3.0 has it, which clients in Go parse strictly, without what kubectl does not show
    well: examples and titles, and null as one of two types.
    """
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: plain(value)
        for key, value in schema.items()
        if key not in ("title", "examples", "example", "discriminator")
    }
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        if exclusive in found:
            found |= {bound: found[exclusive], exclusive: True}
    if "const" in found:
        found["enum"] = [found.pop("const")]
    types = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
    if len(types) == 1 and "anyOf" in found:
        del found["anyOf"]
        found = {**types[0], **found}
    return found


_WRITING = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}, "description": description}
    for name, description in (
        ("dryRun", "All: store nothing; answer with the object that it would be."),
        ("fieldManager", "Name of who changes the fields."),
        (
            "fieldValidation",
            "Strict, or none: unknown fields are refused. Warn or Ignore: they are left out, with a warning.",
        ),
        ("force", "Take fields over that others manage; for apply."),
    )
]
"""Parameters of changes. kubectl looks here for those that a server knows."""
_METHODS = {"create": ("post", False), "update": ("put", True), "patch": ("patch", True), "delete": ("delete", True)}
"""By verb: the method, and whether it is one of an object."""


def _paths(one: ApiResource) -> Iterable[tuple[str, Wire]]:
    base = f"/{_place(one.group, one.version)}"
    kind = {"group": one.group, "version": one.version, "kind": one.kind}
    schema = {"schema": {"$ref": f"{_REFERENCE}{one.kind}"}}
    answer = {"200": {"description": "OK", "content": {"application/json": schema}}}
    within = "/namespaces/{namespace}" if one.is_namespaced else ""
    of_all: Wire = {"get": _operation("list", kind, answer)}
    of_one: Wire = {"get": _operation("get", kind, answer)}
    for verb, (method, is_of_one) in _METHODS.items():
        if verb in one.verbs:
            changed = _operation(verb, kind, answer) | {"parameters": _WRITING}
            if method == "patch":
                changed["requestBody"] = {"content": {media.value: schema for media in PATCH_TYPES}}
            (of_one if is_of_one else of_all)[method] = changed
    yield f"{base}{within}/{one.plural}", of_all
    yield f"{base}{within}/{one.plural}/{{name}}", of_one


def _operation(action: str, kind: Wire, answer: Wire) -> Wire:
    return {"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind, "responses": answer}
