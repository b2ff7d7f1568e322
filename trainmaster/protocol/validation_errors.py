"""pydantic's errors as mistakes in the words of users: the path that a person would write, what was given, what is allowed.

All messages about invalid input go through ``sentence_of``; none of pydantic's own sentences, which name types of Python, is shown.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from math import isfinite
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from trainmaster.protocol.base import PATTERNS, Closed
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import path_step, shown
from trainmaster.protocol.suggestions import LONGEST_NAME, did_you_mean, plain, similar

_MOST = 100
_LONGEST_PATH, _LONGEST_MESSAGE, _LONGEST_EXAMPLE = 500, 1000, 100
"""The most characters of quoted keys and texts, which come from outside."""
_KEY = "[key]"
"""pydantic's last part of the place of a mistake in the key of a mapping."""
_QUOTED = re.compile(r"'([^']*)'")

UNKNOWN_FIELD = "this field is not known"
"""The begin of the message of a mistake in the name of a field."""

Error = Mapping[str, Any]
"""One error of pydantic, with ``type``, ``loc``, ``msg``, ``input`` and, for most types, ``ctx``."""


def mistakes_of(error: ValidationError, prefix: str = "") -> tuple[Mistake, ...]:
    """Return the first 100 of pydantic's errors as mistakes. The path of a mistake in the whole is ``prefix``, which may be empty."""
    roots = _models_called(error.title)
    found = own_errors(error.errors(include_url=False))[:_MOST]
    return tuple(mistake_of(item, prefix, roots) for item in found)


def own_errors(errors: Sequence[Error]) -> list[Error]:
    """Return the errors without those that only follow from others: pydantic counts the entries of a list that are valid."""
    return [item for item in errors if item["type"] != "too_short" or not _has_wrong_entry(item, errors)]


def _has_wrong_entry(item: Error, errors: Sequence[Error]) -> bool:
    place = tuple(item["loc"])
    return any(len(one["loc"]) > len(place) and tuple(one["loc"][: len(place)]) == place for one in errors)


def mistake_of(item: Error, prefix: str = "", roots: Sequence[type[BaseModel]] = ()) -> Mistake:
    """Return one error as a mistake. ``roots``: the model of the whole, in which similar names of fields are searched."""
    place = list(item["loc"])
    is_key = bool(place) and place[-1] == _KEY
    if is_key:
        place.pop()
    path = prefix
    for part in place:
        path += path_step(part, is_first=not path)
    message = sentence_of(item)
    if is_key:
        message = f"the name {message}"
    if item["type"] == "extra_forbidden":
        message += _suggestion(place, roots)
    return Mistake(path=path[:_LONGEST_PATH], message=message[:_LONGEST_MESSAGE])


def worded(mistake: Mistake) -> str:
    """Return a mistake as one line: its path, if it is not the whole, and its message."""
    return f"{mistake.path}: {mistake.message}" if mistake.path else mistake.message


def sentence_of(item: Error) -> str:
    """Return what is wrong and what is allowed, without the place."""
    write = SENTENCES.get(item["type"])
    if write is not None:
        return write(item.get("ctx") or {}, item.get("input"))
    return f"is not valid: {shown(item.get('input'))}"


# -- Sentences

Context = Mapping[str, Any]
Write = Callable[[Context, Any], str]


def _must_be(what: str) -> Write:
    return lambda _, given: f"must be {what}, not {shown(given)}"


def _fixed(sentence: str) -> Write:
    return lambda _context, _given: sentence


def _number(what: str) -> Write:
    def write(_: Context, given: Any) -> str:
        hint = ""
        if isinstance(given, str) and len(given) <= LONGEST_NAME:
            with suppress(ValueError):
                number = float(given)
                hint = f"; write {number:.15g} without quotes" if isfinite(number) else ""
        return f"must be {what}, not {shown(given)}{hint}"

    return write


def _text(_: Context, given: Any) -> str:
    hint = ""
    if isinstance(given, bool | int | float):
        hint = f"; put it in quotes: {json.dumps(_scalar(given))}"
    return f"must be a text, not {shown(given)}{hint}"


def _scalar(given: bool | int | float) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)


def _list(_: Context, given: Any) -> str:
    hint = ""
    if isinstance(given, str) and len(given) <= _LONGEST_EXAMPLE:
        words = [given]
        with suppress(ValueError):
            words = shlex.split(given) or words
        hint = f"; as a list it is {json.dumps(words)}"
    elif isinstance(given, bool | int | float):
        hint = f"; as a list it is [{_scalar(given)}]"
    return f"must be a list, not {shown(given)}{hint}"


def _choice(context: Context, given: Any) -> str:
    known = _QUOTED.findall(context["expected"]) or [context["expected"]]
    allowed = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
    hint = did_you_mean(given, known) if isinstance(given, str) else ""
    return f"must be {allowed}, not {shown(given)}{hint}"


def _bound(words: str, key: str) -> Write:
    return lambda context, given: f"must be {words} {_bare(context[key])}, not {shown(given)}"


def _bare(bound: Any) -> str:
    return format(Decimal(f"{bound:.15g}"), "f") if isinstance(bound, float) else str(bound)


def _too_few(context: Context, given: Any) -> str:
    least, actual = context["min_length"], context["actual_length"]
    return f"must have at least {least} {'entry' if least == 1 else 'entries'}, this has {actual or 'none'}"


def _too_many(context: Context, given: Any) -> str:
    most, actual = context["max_length"], context.get("actual_length")
    return f"has {actual or 'more'} entries, at most {most} are allowed"


def _short_text(context: Context, given: Any) -> str:
    least = context["min_length"]
    return "must not be empty" if not given else f"must have at least {least} characters, this has {len(given)}"


def _long_text(context: Context, given: Any) -> str:
    many = len(given) if isinstance(given, str) else "more"
    return f"has {many} characters, at most {context['max_length']} are allowed"


def _pattern(context: Context, given: Any) -> str:
    return f"must be {PATTERNS.get(context['pattern'], 'written in another way')}, not {shown(given)}"


def _places(context: Context, given: Any) -> str:
    return f"has more than {context['decimal_places']} decimal places: {shown(given)}"


def _digits(context: Context, given: Any) -> str:
    return f"has more than {context.get('max_digits', context.get('whole_digits'))} digits"


def _own(context: Context, given: Any) -> str:
    """Return the sentence of a validator of this project."""
    return str(context.get("error", "is not valid"))


_mapping = _must_be("a mapping")
_whole = _number("a whole number")
_any_number = _number("a number")
_flag = _must_be("true or false")
_time = _must_be("a time as in RFC 3339 with its zone, such as 2026-11-28T08:00:00Z")
SENTENCES: Mapping[str, Write] = {
    "missing": _fixed("is missing; it is needed"),
    "extra_forbidden": _fixed(UNKNOWN_FIELD),
    "invalid_key": _must_be("a text"),
    "value_error": _own,
    "assertion_error": _own,
    "none_required": _must_be("left out"),
    "string_type": _text,
    "string_unicode": _fixed("has characters that are not valid Unicode"),
    "string_too_short": _short_text,
    "string_too_long": _long_text,
    "string_pattern_mismatch": _pattern,
    "bytes_type": _text,
    "int_type": _whole,
    "int_parsing": _must_be("a whole number"),
    "int_from_float": _whole,
    "int_parsing_size": _fixed("is a number with too many digits"),
    "float_type": _any_number,
    "float_parsing": _must_be("a number"),
    "decimal_type": _any_number,
    "decimal_parsing": _any_number,
    "decimal_max_places": _places,
    "decimal_max_digits": _digits,
    "decimal_whole_digits": _digits,
    "finite_number": _must_be("a finite number"),
    "bool_type": _flag,
    "bool_parsing": _flag,
    "list_type": _list,
    "tuple_type": _list,
    "set_type": _list,
    "frozen_set_type": _list,
    "iterable_type": _list,
    "dict_type": _mapping,
    "mapping_type": _mapping,
    "model_type": _mapping,
    "model_attributes_type": _mapping,
    "dataclass_type": _mapping,
    "literal_error": _choice,
    "enum": _choice,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "multiple_of": _bound("a multiple of", "multiple_of"),
    "too_short": _too_few,
    "too_long": _too_many,
    "datetime_type": _time,
    "datetime_parsing": _time,
    "datetime_object_invalid": _time,
    "datetime_from_date_parsing": _time,
    "timezone_aware": _fixed("needs a zone, such as the Z of 2026-11-28T08:00:00Z"),
    "json_type": _must_be("JSON"),
    "json_invalid": lambda context, _: f"is not JSON: {context['error']}",
    "recursion_loop": _fixed("contains itself"),
}
"""By pydantic's type of error."""


# -- Suggestions for unknown fields


_AMOUNTS = {"cpu": "cpu", "cpus": "cpu", "memory": "memory", "mem": "memory"}
"""Resources that people give as fields, and their names among ``resources``."""


def _suggestion(place: Sequence[str | int], roots: Sequence[type[BaseModel]]) -> str:
    """Return which known field an unknown one may be meant to be: of the same mapping, else of another part of the document."""
    *above, name = place
    if not isinstance(name, str) or not 1 < len(name) <= LONGEST_NAME:
        return ""
    models = list(roots)
    for part in above:
        if isinstance(part, str):
            named = [info.annotation for model in models for info in _fields(model).get(part, ())]
            # The key of a mapping is data: the models of its values are already known.
            models = [inner for annotation in named for inner in models_in(annotation)] if named else models
    known = [alias for model in models for alias in _fields(model)]
    found = similar(name, known)
    if found is None:
        amount = _AMOUNTS.get(plain(name))
        wanted = plain(name) if amount is None else "resources"
        elsewhere = [path + (f".{amount}" if amount else "") for root in roots for path in _paths(root, wanted)]
        found = elsewhere[0] if elsewhere else similar(name, known, 0.6)
    return f"; did you mean {found}?" if found else ""


def _fields(model: type[BaseModel]) -> dict[str, list[Any]]:
    return {info.alias or name: [info] for name, info in model.model_fields.items()}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, such as that of ``tuple[Role, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def _paths(model: type[BaseModel], wanted: str, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the paths of fields with this name in a document, those that are less deep first."""
    inner: list[tuple[type[BaseModel], str]] = []
    for alias, (info,) in _fields(model).items():
        if plain(alias) == wanted:
            yield f"{path}{alias}"
        mark = "[]." if "tuple[" in str(info.annotation) else "."
        inner += [(one, f"{path}{alias}{mark}") for one in models_in(info.annotation)]
    if depth < 3:
        for one, below in inner:
            yield from _paths(one, wanted, below, depth + 1)


def _models_called(title: str) -> list[type[BaseModel]]:
    """Return the model of people's input with this name; no two have the same."""
    todo: list[type[BaseModel]] = [Closed]
    while todo:
        model = todo.pop()
        if model.__name__ == title:
            return [model]
        todo += model.__subclasses__()
    return []
