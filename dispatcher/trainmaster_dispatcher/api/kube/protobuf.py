"""Objects in protobuf, as kubectl and clients of Kubernetes that know its types send them. Pure.

An object is four bytes, then a message ``Unknown`` with the object's version and kind and, as bytes, the object's own message. Answers
are in JSON, which all these clients accept. What has the value that a missing field has too is left out, as in JSON.

https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding-idl
https://protobuf.dev/programming-guides/encoding/
"""

import base64
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

import orjson

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.kube.protobuf_messages import MESSAGES

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
_KINDS = {
    ("batch/v1", "Job"): "Job",
    ("batch/v1", "CronJob"): "CronJob",
    ("v1", "Pod"): "Pod",
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): "SelfSubjectAccessReview",
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): "SelfSubjectRulesReview",
    ("authentication.k8s.io/v1", "SelfSubjectReview"): "SelfSubjectReview",
}
_OPTIONS = "DeleteOptions"
"""Options are sent with the version of whatever they are about."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_DEPTH = 40
_LONGEST_VARINT = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: tuple[object, ...] = ("", 0, False, {}, [])

Raw = int | bytes
"""A value as it is in a message: a number, or bytes."""


class MalformedMessageError(Exception):
    """The bytes are no message, or have what is not known here."""


class Field(NamedTuple):
    """A field of a message. ``name`` empty: the fields of its type are those of the message."""

    name: str
    type: str
    is_list: bool
    is_map: bool
    is_optional: bool


def decode(body: bytes) -> dict[str, Any]:
    """Return the object in a body, as JSON has it. Raises ProblemError MALFORMED_BODY or UNSUPPORTED_MEDIA_TYPE."""
    try:
        if not body.startswith(MAGIC):
            raise MalformedMessageError("it does not begin with the four bytes of an object of Kubernetes")
        outer = dict(_fields_in(body[len(MAGIC) :]))
        meta = dict(_fields_in(_bytes_of(outer.get(1, b""))))
        version, kind = (_bytes_of(meta.get(number, b"")).decode() for number in (1, 2))
        message = _OPTIONS if kind == _OPTIONS else _KINDS.get((version, kind))
        if message is None:
            known = ", ".join(f"{kind} of {version}" for version, kind in _KINDS)
            raise ProblemError(
                Code.UNSUPPORTED_MEDIA_TYPE,
                f"{kind[:100]!r} of {version[:100]!r} is read as application/json or application/yaml; protobuf is read for {known}",
            )
        return {"apiVersion": version, "kind": kind, **_message(_bytes_of(outer.get(2, b"")), message, 0)}
    except (MalformedMessageError, UnicodeDecodeError, orjson.JSONDecodeError, OverflowError) as error:
        raise ProblemError(Code.MALFORMED_BODY, f"the body is no object in protobuf: {error}") from error


def _message(data: bytes, name: str, depth: int) -> dict[str, Any]:
    """Return the fields of a message, by their names in JSON. Raises MalformedMessageError for one that is not known."""
    if depth > _MOST_DEPTH:
        raise MalformedMessageError("messages are nested too deep")
    fields = _messages()[name]
    value: dict[str, Any] = {}
    for number, raw in _fields_in(data):
        field = fields.get(number)
        if field is None:
            raise MalformedMessageError(f"field {number} of {name} is not known here")
        if field.type == "-":
            continue
        if field.is_map:
            key, item = _entry(_bytes_of(raw), field.type, depth)
            value.setdefault(field.name, {})[key] = item
        elif field.is_list:
            value.setdefault(field.name, []).extend(_items(raw, field.type, depth))
        elif not field.name:
            value |= _message(_bytes_of(raw), field.type, depth + 1)
        else:
            item = _value(raw, field.type, depth)
            if item is not None and (field.is_optional or item not in _NOTHING):
                value[field.name] = item
    return value


def _items(raw: Raw, kind: str, depth: int) -> list[Any]:
    """Return the items that one field of a list has: several where numbers are packed."""
    if kind == "int" and isinstance(raw, bytes):
        items, at = [], 0
        while at < len(raw):
            number, at = _varint(raw, at)
            items.append(_signed(number))
        return items
    return [_value(raw, kind, depth)]


def _entry(data: bytes, kind: str, depth: int) -> tuple[str, Any]:
    """Return key and value of an entry of a map."""
    parts = dict(_fields_in(data))
    return _bytes_of(parts.get(1, b"")).decode(), _value(parts.get(2, b""), kind, depth)


def _value(raw: Raw, kind: str, depth: int) -> Any:
    """Return a value as JSON has it."""
    match kind:
        case "":
            return _bytes_of(raw).decode()
        case "int" | "bool":
            if not isinstance(raw, int):
                raise MalformedMessageError("a number was expected")
            return bool(raw) if kind == "bool" else _signed(raw)
        case "double":
            return struct.unpack("<d", struct.pack("<Q", raw))[0] if isinstance(raw, int) else 0.0
        case "bytes":
            return base64.b64encode(_bytes_of(raw)).decode()
        case "Quantity" | "FieldsV1" | "RawExtension":
            text = _bytes_of(dict(_fields_in(_bytes_of(raw))).get(1, b""))
            return text.decode() if kind == "Quantity" else orjson.loads(text or b"{}")
        case "Time" | "MicroTime":
            return _time(dict(_fields_in(_bytes_of(raw))))
        case "IntOrString":
            parts = dict(_fields_in(_bytes_of(raw)))
            return _bytes_of(parts.get(3, b"")).decode() if parts.get(1) else _signed(_number_of(parts.get(2, 0)))
        case _:
            return _message(_bytes_of(raw), kind, depth + 1)


def _time(parts: Mapping[int, Raw]) -> str | None:
    """Return a time, None for the zero time of Go and for an empty one."""
    seconds, nanos = (_signed(_number_of(parts.get(number, 0))) for number in (1, 2))
    if not parts or (seconds, nanos) == (0, 0):
        return None
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return f"{moment.isoformat().removesuffix('+00:00')}Z" if moment.year > 1 else None


def _fields_in(data: bytes) -> Iterator[tuple[int, Raw]]:
    """Yield number and value of each field. Raises MalformedMessageError."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > end:
            raise MalformedMessageError("it ends too early" if size is not None else f"wire type {wire} is not known")
        part, at = data[at : at + size], at + size
        yield number, part if wire == _BYTES else int.from_bytes(part, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where the next value begins."""
    value = 0
    for shift in range(_LONGEST_VARINT):
        if at >= len(data):
            raise MalformedMessageError("it ends too early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise MalformedMessageError("a number has too many bytes")


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _number_of(raw: Raw) -> int:
    if not isinstance(raw, int):
        raise MalformedMessageError("a number was expected")
    return raw


def _bytes_of(raw: Raw) -> bytes:
    if not isinstance(raw, bytes):
        raise MalformedMessageError("bytes were expected where a number is")
    return raw


@cache
def _messages() -> Mapping[str, Mapping[int, Field]]:
    """Return the fields of all messages, by number."""
    found: dict[str, dict[int, Field]] = {}
    fields: dict[int, Field] = {}
    for word in MESSAGES.replace(" = ", "= ").split():
        if word.endswith("="):
            fields = found[word[:-1]] = {}
            continue
        number, plus, inlined = word.partition("+")
        if plus:
            fields[int(number)] = Field("", inlined, is_list=False, is_map=False, is_optional=False)
            continue
        key, name, kind = [*word.split(":"), ""][:3]
        is_optional = word.endswith("?")
        name, kind = name.removesuffix("?"), kind.removesuffix("?")
        is_list, is_map = kind.startswith("*"), kind.startswith("{")
        fields[int(key)] = Field(name, kind.strip("*{}"), is_list, is_map, is_optional)
    return found
