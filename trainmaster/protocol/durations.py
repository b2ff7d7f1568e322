"""Durations as people write them: ``90s``, ``10m``, ``1h30m``, ``2d``."""

import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from trainmaster.protocol.base import text_schema
from trainmaster.protocol.json_limits import shown

DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
"""The pattern of a duration in JSON Schemas."""
MOST_CHARACTERS = 32
"""The most characters of a duration. Checked before the text is parsed."""
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MOST = 10 * 365 * 86400.0


def parse_duration(text: str) -> float:
    """Return the seconds of the duration ``text``.

    Raises ValueError when it is not a duration, has more than 32 characters or is longer than ten years.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a duration has at most {MOST_CHARACTERS} characters, this one has {len(text)}")
    return _seconds(text)


@lru_cache(maxsize=4096)
def _seconds(text: str) -> float:
    if not _WHOLE.fullmatch(text):
        meant = (
            f"; it has no unit: did you mean {text}s, {text}m, {text}h or {text}d?" if _NUMBER.fullmatch(text) else ""
        )
        raise ValueError(f"{text!r} is not a duration; write for example 500ms, 30s, 10m, 1h30m or 2d{meant}")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if seconds > _MOST:
        raise ValueError(f"{text!r} is longer than ten years")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration with at most two units: ``1h30m``, ``45s``, ``0.3s``."""
    if seconds < 0:
        return "0s"
    if seconds < 10:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    rest = round(seconds)
    out = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= size:
            out.append(f"{rest // size}{unit}")
            rest %= size
    return "".join(out[:2]) or "0s"


def _to_text(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a duration such as 30s, 10m or 1h30m, not {shown(value)}")  # noqa: TRY004 - pydantic reports these alone
    # Adding 0 makes 0.0 of -0.0, which JSON can hold and a number of at least 0 allows.
    return f"{value + 0}s"


@lru_cache(maxsize=4096)
def _check(value: str) -> str:
    parse_duration(value)
    return value


Duration = Annotated[
    str,
    BeforeValidator(_to_text),
    AfterValidator(_check),
    text_schema(
        DURATION,
        MOST_CHARACTERS,
        "30s",
        "1h30m",
        least=2,
        also={"type": "number", "minimum": 0},
    ),
]
"""A duration as text; a bare number means seconds."""
