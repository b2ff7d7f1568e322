"""CEL selectors of DeviceClasses, as kube-scheduler evaluates them: https://kubernetes.io/docs/reference/using-api/cel/. Pure.

An expression that this evaluator does not know raises `SelectorError`: its result is never guessed.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import cel

_UNIT = 1000
"""Quantities are whole numbers of thousandths, so that CEL compares them exactly."""
_MOST = 2**63 - 1
_LONGEST = 10_000
"""Characters of an expression; the limit of Kubernetes."""
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NUMBER = r"(?:0|[1-9][0-9]*)"
_WORD = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_WORD}(?:\.{_WORD})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_DOMAIN = re.compile(r"device\s*\.\s*(attributes|capacity)\s*\[\s*(?:\"([^\"\\]+)\"|'([^'\\]+)')\s*\]")
_TESTS_DOMAIN = re.compile(r"\bin\s+device\s*\.")

DeviceValue = dict[str, Any]
"""The variable ``device`` of an expression."""


class SelectorError(ValueError):
    """An expression that cannot be evaluated, or not for some device."""


class DeviceSelector:
    """A compiled expression. Raises SelectorError for one that cannot be compiled."""

    def __init__(self, expression: str) -> None:
        if len(expression) > _LONGEST:
            raise SelectorError(f"has more than {_LONGEST} characters")
        try:
            self._program = cel.compile(expression)
        except Exception as error:
            raise SelectorError(_words(error)) from error
        # Kubernetes has an empty map for each domain that a device does not have, but ``in`` does not find it.
        self._domains = () if _TESTS_DOMAIN.search(expression) else tuple(_DOMAIN.findall(expression))

    def matches(self, device: DeviceValue) -> bool:
        """Return whether a device satisfies the expression. Raises SelectorError where that cannot be known."""
        value = device
        for field, *names in self._domains:
            name = names[0] or names[1]
            if name not in value[field]:
                value = value | {field: value[field] | {name: {}}}
        try:
            found = self._program.execute(cel.Context({"device": value}, _FUNCTIONS))
        except Exception as error:
            raise SelectorError(_words(error)) from error
        if not isinstance(found, bool):
            raise SelectorError(f"gives {type(found).__name__} and not true or false")
        return found


@lru_cache(maxsize=1024)
def selector_of(expression: str) -> DeviceSelector:
    """Return the compiled expression. Raises SelectorError."""
    return DeviceSelector(expression)


def device_value(driver: str, device: Mapping[str, Any]) -> DeviceValue:
    """Return the variable of a device in a ResourceSlice. Raises ValueError for one that cannot be read."""
    attributes = _by_domain(driver, device.get("attributes") or {}, _attribute)
    capacity = _by_domain(driver, device.get("capacity") or {}, lambda one: scaled_quantity(str(one["value"])))
    several = bool(device.get("allowMultipleAllocations"))
    return {"driver": driver, "attributes": attributes, "capacity": capacity, "allowMultipleAllocations": several}


def scaled_quantity(text: str) -> int:
    """Return a quantity in thousandths. Raises ValueError for one that is no quantity, or has no whole number of thousandths."""
    match = _QUANTITY.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise ValueError(f"{text[:64]!r} is not a quantity")
    number, suffix, exponent = match.groups()
    try:
        value = Decimal(number) * _UNIT
        if suffix in _BINARY:
            value *= 2 ** _BINARY[suffix]
        else:
            value = value.scaleb(int(exponent or _POWERS.get(suffix or "", 0)))
        whole = int(value)
    except (InvalidOperation, OverflowError) as error:
        raise ValueError(f"{text!r} is too large") from error
    if whole != value or abs(whole) > _MOST:
        raise ValueError(f"{text!r} cannot be compared exactly here")
    return whole


def _by_domain(driver: str, fields: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        domain, slash, rest = name.rpartition("/")
        found.setdefault(domain if slash else driver, {})[rest] = read(value)
    return found


def _attribute(value: Mapping[str, Any]) -> Any:
    ((kind, given),) = value.items()
    if kind == "version":
        return _semver(given)
    if kind == "versions":
        return [_semver(one) for one in given]
    return given


def _words(error: Exception) -> str:
    """Return the first line of an error in short."""
    text = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {text[0][:200]}" if isinstance(error, KeyError) else text[0][:200]


# Versions are maps, and quantities are numbers, so that == compares them; functions tell them apart by that.


def _semver(text: str) -> dict[str, Any]:
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version")
    major, minor, patch, before = match.groups()
    return {"major": int(major), "minor": int(minor), "patch": int(patch), "prerelease": before or ""}


def _order(version: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key by which versions are ordered: https://semver.org/#spec-item-11."""
    before = version["prerelease"]
    words = [(0, int(one), "") if one.isdigit() else (1, 0, one) for one in before.split(".")] if before else []
    return (version["major"], version["minor"], version["patch"], not before, words)


def _compare_to(one: Any, other: Any) -> int:
    read: Callable[[Any], Any] = _order if isinstance(one, dict) else _number
    first, second = read(one), read(other)
    return int(first > second) - int(first < second)


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("is neither a quantity nor a version")
    return value


def _sign(amount: int) -> int:
    return (_number(amount) > 0) - (_number(amount) < 0)


def _as_integer(amount: int) -> int:
    whole, rest = divmod(_number(amount), _UNIT)
    if rest:
        raise ValueError("is no whole number")
    return whole


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": scaled_quantity,
    "isQuantity": lambda text: _QUANTITY.fullmatch(text) is not None,
    "semver": _semver,
    "isSemver": lambda text: _SEMVER.fullmatch(text) is not None,
    "compareTo": _compare_to,
    "isGreaterThan": lambda one, other: _compare_to(one, other) > 0,
    "isLessThan": lambda one, other: _compare_to(one, other) < 0,
    "sign": _sign,
    "isInteger": lambda amount: _number(amount) % _UNIT == 0,
    "asInteger": _as_integer,
    "major": lambda version: version["major"],
    "minor": lambda version: version["minor"],
    "patch": lambda version: version["patch"],
    "lowerAscii": lambda text: "".join(one.lower() if one.isascii() else one for one in text),
    "upperAscii": lambda text: "".join(one.upper() if one.isascii() else one for one in text),
}
