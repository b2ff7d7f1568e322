"""Label and field selectors as kubectl writes them. Pure.

The grammar is that of ``k8s.io/apimachinery/pkg/labels``: requirements with commas between, all of which must hold.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from trainmaster.protocol.errors import Code, Mistake, ProblemError

_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"^(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(rf"^(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})$")
_EXISTS = re.compile(rf"^(?P<negation>!?)\s*(?P<key>{_KEY})$")
_FIELD = re.compile(r"^(?P<path>[^=!]+)(?P<operator>==|=|!=)(?P<value>.*)$", re.DOTALL)
_BETWEEN = re.compile(r",(?![^(]*\))")
_LONGEST = 4096


class Operator(StrEnum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    EXISTS_NOT = "!"


class Requirement(NamedTuple):
    """One requirement of a label selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it. As in Kubernetes, ``notin`` holds where the label is missing."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.EXISTS_NOT:
                return value is None


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Return the requirements of a label selector. Raises ProblemError INVALID_PARAMETER."""
    if len(text) > _LONGEST:
        raise refused("labelSelector", f"has {len(text)} characters; {_LONGEST} at most")
    return tuple(_requirement(part.strip()) for part in _BETWEEN.split(text) if text.strip())


def _requirement(part: str) -> Requirement:
    if found := _SET.match(part):
        operator = Operator.IN if found["operator"] == "in" else Operator.NOT_IN
        return Requirement(found["key"], operator, frozenset(one.strip() for one in found["values"].split(",")))
    if found := _EQUALITY.match(part):
        operator = Operator.NOT_IN if found["operator"] == "!=" else Operator.IN
        return Requirement(found["key"], operator, frozenset({found["value"]}))
    if found := _EXISTS.match(part):
        return Requirement(found["key"], Operator.EXISTS_NOT if found["negation"] else Operator.EXISTS)
    raise refused(
        "labelSelector", f"{part[:100]!r} is not key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
    )


class FieldRequirement(NamedTuple):
    """One requirement of a field selector."""

    path: str
    value: str
    is_negated: bool

    def holds(self, value: str) -> bool:
        return (value == self.value) is not self.is_negated


def parse_fields(text: str, known: Iterable[str], resource: str) -> tuple[FieldRequirement, ...]:
    """Return the requirements of a field selector. Raises ProblemError INVALID_PARAMETER, also for fields that are unknown."""
    found, fields = [], tuple(known)
    for part in (one.strip() for one in text.split(",") if one.strip()):
        parsed = _FIELD.match(part)
        if parsed is None:
            raise refused("fieldSelector", f"{part[:100]!r} is not field=value or field!=value")
        if parsed["path"] not in fields:
            message = f"{resource} are not selected by {parsed['path'][:100]!r}, but by: {', '.join(fields)}"
            raise refused("fieldSelector", message)
        found.append(FieldRequirement(parsed["path"], parsed["value"], parsed["operator"] == "!="))
    return tuple(found)


def refused(parameter: str, message: str) -> ProblemError:
    """Return the error for a parameter of a call that means nothing."""
    return ProblemError(
        Code.INVALID_PARAMETER, f"{parameter}: {message}", mistakes=(Mistake(path=parameter, message=message),)
    )
