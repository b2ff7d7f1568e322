"""Kubernetes quantities and their units.

CPU is counted in thousandths of a core, everything else (bytes, devices) in whole units; both round up, as in Kubernetes.
Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

import re
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from trainmaster.protocol.base import text_schema
from trainmaster.protocol.json_limits import shown

Resources = dict[str, int]
"""Amounts by resource name: thousandths for ``cpu``, bytes for ``memory`` and storage, a count for devices. Parts of devices:
``device_parts``."""

_FORM = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
_SUFFIX = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgtpeKMGTPE])(i)?[bB]?")
_MOST = 2**62
_LONGEST = 64
_NOT_ONE = "is not a Kubernetes quantity; write a number with an optional suffix, such as 500m, 2, 1.5 or 4Gi"
_EXACT = Context(prec=2 * _LONGEST, rounding=ROUND_CEILING)
"""Decimal context with enough digits that only the final result is rounded, upwards."""


def parse_quantity(resource: str, text: str) -> int:
    """Return the amount of ``resource`` that ``text`` means, in that resource's unit, rounded up.

    Raises ValueError for text that is not a quantity, is longer than 64 characters, is negative, or is above 2**62 units.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"{text[:_LONGEST]!r}... {_NOT_ONE}; it has at most {_LONGEST} characters")
    amount = _amount(text, is_cpu=resource == "cpu")
    if amount > _MOST:
        of = f" of {resource[:_LONGEST]}" if resource else ""
        raise ValueError(f"{text!r} is too large for a quantity{of}")
    return amount


@lru_cache(maxsize=4096)
def _amount(text: str, *, is_cpu: bool) -> int:
    """Return the amount of a short text; for one above 2**62 units, only some amount above."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} {_NOT_ONE}{_meant(text)}")
    number, suffix, exponent = match.groups()
    value = _EXACT.multiply(Decimal(number), _SUFFIX.get(suffix or "", Decimal(1)))
    if exponent:
        value = _EXACT.scaleb(value, int(exponent))
    if value < 0:
        raise ValueError(f"{text!r} is negative; a quantity is 0 or more")
    scaled = _EXACT.scaleb(value, 3) if is_cpu else value
    return _MOST + 1 if scaled > _MOST else int(_EXACT.to_integral_value(scaled))


def _meant(text: str) -> str:
    """Return which quantities one with a unit of bytes may be meant to be: 8Gi and 8G for 8GB."""
    match = _BYTES.fullmatch(text)
    if match is None:
        return ""
    number, unit, is_binary = match.group(1), match.group(2).upper(), match.group(3)
    decimal = "k" if unit == "K" else unit
    meant = f"{number}{unit}i" if is_binary else f"{number}{unit}i or {number}{decimal}"
    return f"; did you mean {meant}?"


@lru_cache(maxsize=16_384)
def format_quantity(resource: str, amount: int) -> str:
    """Return the amount as people read it: ``1500`` thousandths of CPU is ``1.5``, 2**30 bytes are ``1Gi``."""
    if resource == "cpu" or resource.startswith("part:"):
        return f"{Decimal(amount).scaleb(-3):.3f}".rstrip("0").rstrip(".")
    if resource in ("memory", "ephemeral-storage") or resource.startswith(("hugepages-", "memory:")):
        for suffix, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount >= size:
                return f"{amount / size:.2f}".rstrip("0").rstrip(".") + suffix
    return str(amount)


def format_apart(resource: str, one: int, other: int) -> tuple[str, str]:
    """Return texts of two different amounts that differ: to the last byte where rounding would hide the difference."""
    texts = format_quantity(resource, one), format_quantity(resource, other)
    return texts if texts[0] != texts[1] else (str(one), str(other))


def format_resources(resources: Resources) -> str:
    """Return resources as one line for people: ``cpu 2, memory 4Gi``."""
    return (
        ", ".join(f"{format_name(name)} {format_quantity(name, amount)}" for name, amount in sorted(resources.items()))
        or "nothing"
    )


def format_name(resource: str) -> str:
    """Return the name of a resource as people read it: ``part of nvidia.com/gpu`` of the one that counts parts of devices."""
    kind, colon, device = resource.partition(":")
    return f"{kind} of {device.replace(':', '/')}" if colon else resource


def _to_text(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a quantity such as 500m, 2, 1.5 or 4Gi, not {shown(value)}")  # noqa: TRY004 - pydantic reports these alone
    # Adding 0 makes 0.0 of -0.0, which JSON can hold and a number of at least 0 allows.
    return str(value + 0)


@lru_cache(maxsize=4096)
def _check(value: str) -> str:
    parse_quantity("", value)
    if value.startswith("-"):  # a zero, which is stored as it was written, and the API's form has no sign for
        raise ValueError(f"{value!r} has a minus; a quantity is 0 or more")
    return value


Quantity = Annotated[
    str,
    BeforeValidator(_to_text),
    AfterValidator(_check),
    text_schema(
        r"^[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?$",
        _LONGEST,
        "500m",
        "4Gi",
        also={"type": "number", "minimum": 0},
    ),
]
"""A quantity as text; numbers are accepted too, as YAML may produce them."""


def parse_resources(quantities: dict[str, str]) -> Resources:
    """Return the amounts by resource of a mapping of quantities; resources of amount 0 are left out."""
    amounts: Resources = {}
    for name, text in quantities.items():
        if amount := parse_quantity(name, text):
            amounts[name] = amount
    return amounts
