"""Base models: strict for people's input, lenient for messages between processes.

People's mistakes are reported (unknown fields are errors with their path); agents of a newer or older version may send
fields that this side does not know, which are ignored.
"""

import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, core_schema


def format_time(value: datetime) -> str:
    """Return a moment as answers have it: RFC 3339 in UTC with milliseconds."""
    return _format_time(value.astimezone(UTC))


def _format_time(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Timestamp = Annotated[AwareDatetime, PlainSerializer(_format_time, return_type=str, when_used="json")]
"""A moment, RFC 3339 in UTC with milliseconds when written as JSON."""

_DATE_FIRST = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")


def _written_time(value: object) -> object:
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE_FIRST.match(value)):
        return value
    from trainmaster.protocol.json_limits import shown  # which imports this module

    raise ValueError(
        f"a time is written as in RFC 3339 with its zone, such as 2026-11-28T08:00:00Z, not {shown(value)}"
    )


WrittenTime = Annotated[Timestamp, BeforeValidator(_written_time)]
"""A moment in a request. Numbers, which could mean seconds or milliseconds, are refused."""

ALSO = "x-also-accepts"
"""The extension of JSON Schema with which the API describes short forms that it reads beside the usual one."""


def text_schema(
    pattern: str,
    most: int,
    *examples: str,
    least: int = 1,
    also: dict[str, Any] | None = None,
    description: str = "",
) -> WithJsonSchema:
    """Return the JSON Schema of a text that a validator of its own checks.

    ``also``: the schema of other values that are read as such a text. Answers never have them: generated clients need not know them.
    """
    schema: dict[str, Any] = {"type": "string", "minLength": least, "maxLength": most, "pattern": pattern}
    if examples:
        schema["examples"] = list(examples)
    if also:
        schema[ALSO] = also
    if description:
        schema["description"] = description
    return WithJsonSchema(schema)


_MOST_UNKNOWN = 16
"""The most unknown fields of one mapping that are mistakes of their own."""
_NAMED, _LONGEST_NAME = 3, 100


class Closed(BaseModel):
    """Model with camelCase on the wire, frozen, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_enum_values=False,
        allow_inf_nan=False,
    )

    def __eq__(self, other: object) -> bool:
        # Fields that a specification leaves out are one object for all of them, and each is compared when it is written.
        return self is other or super().__eq__(other)

    __hash__ = BaseModel.__hash__  # pydantic replaces it in frozen models

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON form without defaults, so that stored specs stay small and keep their meaning across versions."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


PATTERNS: dict[str, str] = {}
"""The words for what a regular expression allows, by the expression, as ``must be ...`` goes on."""


def worded_pattern(pattern: str, words: str) -> str:
    """Return a regular expression for a field whose mistakes are explained by ``words``, which say what a value must be."""
    PATTERNS[pattern] = words
    return pattern


def _integral(value: Any) -> Any:
    """Return the whole number for one that JSON writes with a fraction of zero, which JSON Schema counts as whole."""
    return int(value) if type(value) is float and value.is_integer() else value


_ENTRIES = ("schema", "items_schema", "keys_schema", "values_schema", "steps")


def _exact(schema: Any, *, is_inside: bool = False) -> Any:
    """Return the schema of a model with numbers and flags that are read from numbers and flags alone, not from texts or each other.

    ``is_inside``: the schema is of a part of the model; models in it have rules of their own.
    """
    if not isinstance(schema, dict):
        return schema
    kind = schema["type"]
    if kind == "model":
        return schema if is_inside else {**schema, "schema": _exact(schema["schema"], is_inside=True)}
    if kind in ("float", "bool"):
        return {**schema, "strict": True}
    if kind == "int":
        whole = cast(CoreSchema, {**schema, "strict": True})
        return schema if schema.get("strict") else core_schema.no_info_before_validator_function(_integral, whole)
    changed = dict(schema)
    for key in _ENTRIES:
        if key in changed:
            inner = changed[key]
            is_list = isinstance(inner, list)
            changed[key] = (
                [_exact(one, is_inside=is_inside) for one in inner] if is_list else _exact(inner, is_inside=is_inside)
            )
    if kind == "model-fields":
        changed["fields"] = {name: _exact(one, is_inside=True) for name, one in schema["fields"].items()}
    elif kind == "union":
        choices = schema["choices"]
        changed["choices"] = [
            (_exact(one[0], is_inside=True), one[1]) if isinstance(one, tuple) else _exact(one, is_inside=True)
            for one in choices
        ]
    return changed


class Strict(Closed):
    """Model of people's input: fields by the names of the wire alone, and numbers and flags written as such.

    A mapping with very many unknown fields is refused as a whole. The constructor takes the names of Python.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast(CoreSchema, _exact(handler(source)))

    @classmethod
    def model_validate(
        cls,
        obj: Any,
        *,
        strict: bool | None = None,
        extra: Literal["allow", "ignore", "forbid"] | None = None,
        from_attributes: bool | None = None,
        context: Any | None = None,
        by_alias: bool | None = None,
        by_name: bool | None = False,
    ) -> Self:
        """Read a document. Raises ValidationError."""
        return super().model_validate(
            obj,
            strict=strict,
            extra=extra,
            from_attributes=from_attributes,
            context=context,
            by_alias=by_alias,
            by_name=by_name,
        )

    @classmethod
    def model_validate_json(
        cls,
        json_data: str | bytes | bytearray,
        *,
        strict: bool | None = None,
        extra: Literal["allow", "ignore", "forbid"] | None = None,
        context: Any | None = None,
        by_alias: bool | None = None,
        by_name: bool | None = False,
    ) -> Self:
        """Read a document as JSON text. Raises ValidationError."""
        return super().model_validate_json(
            json_data, strict=strict, extra=extra, context=context, by_alias=by_alias, by_name=by_name
        )

    @classmethod
    def long_form(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return people's input with the short forms of this model expanded; what cannot be read stays as it is. Raises ValueError."""
        return dict(value)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, value: Any) -> Any:
        """Refuse a mapping with very many unknown fields as a whole: a mistake for each would take a kilobyte."""
        if type(value) is not dict or len(value) <= _MOST_UNKNOWN:  # called for each model of each specification
            return value
        fields = cls.__pydantic_fields__
        if len(value) <= len(fields) + _MOST_UNKNOWN:
            return value
        known = fields.keys() | {info.alias for info in fields.values()}
        unknown = [name for name in value if name not in known]
        if len(unknown) > _MOST_UNKNOWN:
            first = ", ".join(str(name)[:_LONGEST_NAME] for name in unknown[:_NAMED])
            raise ValueError(f"has {len(unknown)} fields that are not known; the first: {first}")
        return value


class Lenient(BaseModel):
    """Model of messages between processes: unknown fields are ignored, so that versions may differ."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, allow_inf_nan=False
    )


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a model with an example of it in wire form, which the OpenAPI document shows."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


MOST_MISTAKES = 20
"""The most mistakes that are collected of the entries of one list or mapping."""
_COLLECTIONS = ("list", "tuple", "set", "frozenset", "dict")
_SIZED = (list, tuple, dict)


@dataclass(frozen=True)
class Bounded:
    """The validator of ``bounded``. pydantic alone counts entries after it has collected the mistakes of all of them."""

    most: int
    least: int
    """In the JSON Schema alone."""
    first_only: bool = False
    cuts: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = _failing_fast(handler(source))
        if self.first_only and not self.cuts:
            # Several times in each report of each run: nothing is collected, so that a look at the length is enough.
            return core_schema.no_info_before_validator_function(self._counter(), inner)
        return core_schema.no_info_wrap_validator_function(self._checker(), inner)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        inner = handler.resolve_ref_schema(made)
        entries = "Items" if inner.get("type") == "array" else "Properties"
        if not self.cuts:
            inner[f"max{entries}"] = self.most
        if self.least:
            inner[f"min{entries}"] = self.least
        return made

    def _counter(self) -> Callable[[Any], Any]:
        most = self.most

        def count(value: Any) -> Any:
            if isinstance(value, _SIZED) and len(value) > most:
                raise _too_many(value, most)
            return value

        return count

    def _checker(self) -> Callable[[Any, ValidatorFunctionWrapHandler], Any]:
        most = self.most

        def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
            # Several times for each specification of a call that may have ten thousand.
            if isinstance(value, _SIZED) and len(value) > most:
                if not self.cuts or isinstance(value, dict):
                    raise _too_many(value, most)
                value = value[:most]
            try:
                return validate(value)
            except ValidationError as error:
                if self.first_only or not isinstance(value, _SIZED) or len(value) < 2:
                    raise
                title, found = error.title, _mistakes_of_entries(value, validate)
            if not found:  # a mistake of the whole, not of an entry
                return validate(value)
            raise ValidationError.from_exception_data(title, found)

        return check


def _too_many(value: Sized, most: int) -> ValueError:
    return ValueError(f"has {len(value)} entries, at most {most} are allowed")


def bounded(most: int, least: int = 0, *, first_only: bool = False, cuts: bool = False) -> Bounded:
    """Return a validator that refuses a list or mapping of more than ``most`` entries before any of them is looked at.

    The first 20 mistakes in entries are collected, or with ``first_only`` those of the first entry that has any.

    ``least`` is only described: who wants it checked says so in a validator, in words of its own. ``cuts``: further entries of a
    list are dropped instead.
    """
    return Bounded(most, least, first_only, cuts)


def _failing_fast(schema: CoreSchema) -> CoreSchema:
    """Return the schema of a list or mapping with the validation ended by the first entry with a mistake."""
    changed: Any = dict(schema)
    if changed["type"] in _COLLECTIONS:
        changed["fail_fast"] = True
    elif "schema" in changed:
        changed["schema"] = _failing_fast(changed["schema"])
    else:
        raise TypeError(f"no list or mapping: {changed['type']}")
    return cast(CoreSchema, changed)


def _mistakes_of_entries(value: Any, validate: ValidatorFunctionWrapHandler) -> list[InitErrorDetails]:
    """Return the first mistakes of the entries, each with its place in the whole."""
    found: list[InitErrorDetails] = []
    of_mapping = isinstance(value, dict)
    for index, entry in enumerate(value.items() if of_mapping else value):
        try:
            validate(dict((entry,)) if of_mapping else [entry])
        except ValidationError as error:
            for one in error.errors(include_url=False):
                if not one["loc"]:  # too few entries, as the others are missing here
                    continue
                loc = one["loc"] if of_mapping else (index, *one["loc"][1:])
                found.append(InitErrorDetails(type=one["type"], loc=loc, input=one["input"], ctx=one.get("ctx", {})))
        if len(found) >= MOST_MISTAKES:
            break
    return found[:MOST_MISTAKES]


def _name_check(limit: int, what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not value or len(value) > limit:
            raise ValueError(f"{what} must have 1 to {limit} characters, this one has {len(value)}")
        body = value.replace("-", "a")
        if not (body.isascii() and body.isalnum() and body == body.lower()) or value[0] == "-" or value[-1] == "-":
            raise ValueError(f"{what} may hold a-z, 0-9 and '-', and neither begins nor ends with '-'; got {value!r}")
        return value

    return AfterValidator(check)


def _name_schema(limit: int, *examples: str) -> WithJsonSchema:
    return text_schema(f"^[a-z0-9]([-a-z0-9]{{0,{limit - 2}}}[a-z0-9])?$", limit, *examples)


Name24 = Annotated[str, _name_check(24, "a name"), _name_schema(24, "train")]
Name12 = Annotated[str, _name_check(12, "a role name"), _name_schema(12, "worker")]
Name40 = Annotated[str, _name_check(40, "a name"), _name_schema(40, "private")]
Namespace = Annotated[str, _name_check(63, "a namespace"), _name_schema(63, "team-a")]


@lru_cache(maxsize=4096)
def _path_check(value: str) -> str:
    parts = value.split("/") if len(value) <= 200 else []
    if not value or not 1 <= len(parts) <= 10:
        raise ValueError("a queue path has 1 to 10 parts joined by '/' and at most 200 characters")
    for part in parts:
        body = part.replace("-", "a").replace("_", "a")
        if not part or not (body.isascii() and body.isalnum() and body == body.lower()):
            raise ValueError(f"each part of a queue path may hold a-z, 0-9, '-' and '_'; got {part!r} in {value!r}")
    return value


QueuePath = Annotated[
    str,
    AfterValidator(_path_check),
    text_schema("^[-a-z0-9_]+(/[-a-z0-9_]+){0,9}$", 200, "default", "research/vision"),
]
