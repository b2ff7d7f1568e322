"""OpenAPI v3 of the group, which ``kubectl explain`` reads: a schema for each kind, made of the models by which objects are parsed."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from trainmaster import __version__
from trainmaster_dispatcher.api.kube.objects import GROUP, VERSION
from trainmaster_dispatcher.api.kube.resources import RESOURCES, ApiResource
from trainmaster_dispatcher.api.openapi import Described

Wire = dict[str, Any]
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
        "uid": {"type": "string", "description": "Identity of the object."},
        "creationTimestamp": {"type": "string", "format": "date-time", "description": "Time at which it was made."},
    },
}


def root() -> Wire:
    """Return the documents that there are."""
    return {
        "paths": {
            f"apis/{GROUP}/{VERSION}": {"serverRelativeURL": f"/openapi/v3/apis/{GROUP}/{VERSION}?hash={__version__}"}
        }
    }


@lru_cache(maxsize=1)
def document() -> Wire:
    """Return the document of the group."""
    schemas: Wire = {}
    for one in RESOURCES.values():
        _add(schemas, one)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Trainmaster", "version": __version__},
        "paths": {path: item for one in RESOURCES.values() for path, item in _paths(one)},
        "components": {"schemas": schemas},
    }


def _add(schemas: Wire, one: ApiResource) -> None:
    if one.schema is None:
        return
    made = one.schema.model_json_schema(
        by_alias=True, ref_template=f"{_REFERENCE}{{model}}", schema_generator=Described
    )
    for name, schema in made.pop("$defs", {}).items():
        schemas[f"{_PREFIX}{name}"] = plain(schema)
    properties = {key: value for key, value in made.get("properties", {}).items() if key not in ("kind", "name")}
    required = [name for name in made.get("required", ()) if name in properties]
    spec = plain({**made, "properties": properties, "required": required})
    if not required:
        spec.pop("required", None)
    schemas[f"{_PREFIX}{one.kind}"] = {
        "type": "object",
        "description": spec.get("description", ""),
        "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": one.kind}],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"Always {one.kind}."},
            "metadata": _METADATA,
            "spec": spec,
            "status": {"type": "object", "description": "What is observed of the object; read-only."},
        },
    }


def plain(schema: Any) -> Any:
    """Return a schema without what kubectl does not show well: examples and titles, and null as one of two types."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: plain(value)
        for key, value in schema.items()
        if key not in ("title", "examples", "example", "discriminator")
    }
    types = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
    if len(types) == 1 and "anyOf" in found:
        del found["anyOf"]
        found = {**types[0], **found}
    return found


def _paths(one: ApiResource) -> Iterable[tuple[str, Wire]]:
    base = f"/apis/{GROUP}/{VERSION}"
    kind = {"group": GROUP, "version": VERSION, "kind": one.kind}
    answer = {
        "200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": f"{_REFERENCE}{one.kind}"}}}}
    }
    within = "/namespaces/{namespace}" if one.is_namespaced else ""
    for path, action in ((f"{base}{within}/{one.plural}", "list"), (f"{base}{within}/{one.plural}/{{name}}", "get")):
        yield (
            path,
            {"get": {"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind, "responses": answer}},
        )
