"""Examples of bodies and answers in the OpenAPI document: those of the models, and values composed of them.

A model has an example of its own, or its required fields have examples: a list has one of its entries.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Schema = Mapping[str, Any]
_TIME = "2026-11-24T08:00:00.000Z"


class NoExampleError(LookupError):
    """A schema for which no example can be composed."""


def example_of(schema: Schema, components: Mapping[str, Schema]) -> Any:
    """Return an example of a schema. Raises NoExampleError with the path of the part that has none."""
    if examples := schema.get("examples"):
        return examples[0]
    if ref := schema.get("$ref"):
        return _model(ref.rpartition("/")[2], components)
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        with suppress(NoExampleError):
            return example_of(one, components)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array" and "items" in schema:
        return [example_of(schema["items"], components)]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    if schema.get("type") == "object":
        return _object(schema, components)
    if schema.get("type") == "null":
        return None
    if schema.get("type") == "boolean":
        return True
    if schema.get("format") == "date-time":
        return _TIME
    raise NoExampleError(str(schema)[:100])


def _model(name: str, components: Mapping[str, Schema]) -> Any:
    try:
        return example_of(components[name], components)
    except NoExampleError as error:
        raise NoExampleError(f"{name} needs a model_config = example(...): {error}") from error


def _object(schema: Schema, components: Mapping[str, Schema]) -> dict[str, Any]:
    """Return an object with the required fields; with all of them where none is required."""
    made = {}
    properties = schema.get("properties", {})
    for name, one in properties.items():
        if name in schema.get("required", properties):
            try:
                made[name] = example_of(one, components)
            except NoExampleError as error:
                raise NoExampleError(f"{name}: {error}") from error
    return made


def add_examples(content: dict[str, Any], components: Mapping[str, Schema]) -> None:
    """Give each JSON value of a body or an answer an example; where the value is of one of several models, one of each."""
    value = content.get("application/json")
    if value is None:
        return
    schema = value["schema"]
    if "anyOf" in schema:
        names = [one["$ref"].rpartition("/")[2] for one in schema["anyOf"]]
        value["examples"] = {name: {"value": example_of(components[name], components)} for name in names}
    else:
        value["example"] = example_of(schema, components)
