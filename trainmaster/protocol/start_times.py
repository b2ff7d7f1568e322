"""Start times and deadlines as people write them: a moment such as ``2037-01-01T00:00:00Z``, or a delay after the submission such as
``2h``.
"""

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from trainmaster.protocol.base import text_schema
from trainmaster.protocol.durations import MOST_CHARACTERS, parse_duration
from trainmaster.protocol.json_limits import shown

_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].*")
_FIRST_YEAR, _LAST_YEAR = 1969, 3000
_LONGEST = max(MOST_CHARACTERS, 40)
_FORMS = "a moment with its zone, such as 2037-01-01T08:00:00Z, or a delay after the submission, such as 2h"


class StartTime(NamedTuple):
    """A start time, or a deadline. ``seconds``: since the epoch, or with ``is_delay`` after the submission."""

    seconds: float
    is_delay: bool

    def at(self, submitted: float) -> float:
        """Return the moment, in seconds since the epoch, for a job that was submitted at ``submitted``."""
        return self.seconds + submitted if self.is_delay else self.seconds


def parse_start_time(text: str) -> StartTime:
    """Return the start time or deadline ``text``. Raises ValueError when it is none, or a delay of more than ten years."""
    if len(text) > _LONGEST:
        raise ValueError(f"such a time has at most {_LONGEST} characters, this one has {len(text)}")
    return _parse(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> StartTime:
    if not _MOMENT.fullmatch(text):
        try:
            return StartTime(parse_duration(text), is_delay=True)
        except ValueError as error:
            raise ValueError(f"must be {_FORMS}: {error}") from None
    try:
        moment = datetime.fromisoformat(text.upper())
        if moment.tzinfo is None:
            raise ValueError("it has no zone")
        if not _FIRST_YEAR < moment.year < _LAST_YEAR:
            raise ValueError(f"it is not between the years {_FIRST_YEAR} and {_LAST_YEAR}")
        return StartTime(moment.timestamp(), is_delay=False)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a moment: {error}; write {_FORMS}") from None


def _to_text(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be {_FORMS}, not {shown(value)}")  # noqa: TRY004 - pydantic reports these alone
    return f"{value + 0}s"  # adding 0 makes 0.0 of -0.0


def _check(value: str) -> str:
    parse_start_time(value)
    return value


StartAfter = Annotated[
    str,
    BeforeValidator(_to_text),
    AfterValidator(_check),
    text_schema(
        r"^(([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+|[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].+)$",
        _LONGEST,
        "2h",
        "2037-01-01T08:00:00Z",
        least=2,
        also={"type": "number", "minimum": 0},
    ),
]
"""A start time as text; a bare number means seconds after the submission."""
Deadline = StartAfter
"""A deadline as text, of the same form."""
