"""Cron expressions as CronJobs of Kubernetes have them, and the moments that they name in a time zone. Pure: no clock.

Fields are read as Kubernetes reads them (robfig/cron, five fields): lists, ranges, steps, names of months and days, ``?`` for ``*``, a
number with a step goes on to the end of the field, and Sunday is 0. With both days restricted, either is enough; ``*/2`` restricts.

Changes of the clock: an expression for every hour follows the clock minute by minute, so it is due in each hour that passes. Any other
names local times, each of which is due once: the first of two, and for one that the clock skips the first moment after the gap.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_MOST_DAYS: Final = 366 * 9
"""Days within which an expression is due, if ever: 29 February may be eight years away."""
_LATEST: Final = datetime(9990, 1, 1, tzinfo=UTC)
LONGEST: Final = 200
"""Most characters of an expression."""
_NAMED: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class CronError(ValueError):
    """An expression is not one that Kubernetes takes; the text says which part, and what is allowed."""


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: Mapping[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


class _Values(NamedTuple):
    """The values of a field. ``is_any``: it is ``*``, alone or in a list, which says nothing about the other field of days."""

    values: frozenset[int]
    is_any: bool


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression that was read. Days of the week are numbered from Sunday, 0."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    needs_both_days: bool
    """Whether a day has to match both fields of days; otherwise one is enough."""

    @property
    def is_hourly(self) -> bool:
        """Return whether it is due in every hour of its days."""
        return len(self.hours) == 24

    def has_day(self, day: date) -> bool:
        """Return whether it is due on a day."""
        if day.month not in self.months:
            return False
        by_number, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_number and by_weekday) if self.needs_both_days else (by_number or by_weekday)

    def first_day(self, begin: date) -> date | None:
        """Return the first day of its days at or after ``begin``; None if there is none within nine years."""
        day = begin
        for _ in range(_MOST_DAYS):
            if self.has_day(day):
                return day
            if day.year >= _LATEST.year:
                return None
            day += _DAY
        return None


@lru_cache(maxsize=4096)
def parse(expression: str) -> Cron:
    """Return what an expression says. Raises CronError."""
    if len(expression) > LONGEST:
        raise CronError(f"has {len(expression)} characters, at most {LONGEST} are allowed")
    text = expression.strip()
    if text.startswith("@"):
        text = _of_name(text)
    parts = text.split()
    if parts and parts[0].upper().startswith(("TZ=", "CRON_TZ=")):
        raise CronError("names a time zone; leave it out there, and give timeZone")
    if len(parts) != len(_FIELDS):
        fields = "minute, hour, day of month, month, day of week"
        raise CronError(f"must have 5 fields ({fields}) or be one of {', '.join(_NAMED)}; it has {len(parts)}")
    minute, hour, day, month, weekday = (_values(part, field) for part, field in zip(parts, _FIELDS, strict=True))
    found = Cron(
        tuple(sorted(minute.values)),
        tuple(sorted(hour.values)),
        day.values,
        month.values,
        weekday.values,
        day.is_any or weekday.is_any,
    )
    if found.first_day(date(2000, 1, 1)) is None:
        raise CronError("is never due: no month of these has such a day")
    return found


def _of_name(text: str) -> str:
    if text in _NAMED:
        return _NAMED[text]
    if text.startswith("@every"):
        raise CronError("must name moments of the clock; instead of @every give steps, such as */15 * * * *")
    raise CronError(f"is none of {', '.join(_NAMED)}")


def _values(text: str, field: _Field) -> _Values:
    parts = [part for part in text.split(",") if part]
    if not parts:
        raise CronError(f"{field.name}: is empty")
    values: set[int] = set()
    is_any = False
    for part in parts:
        found = _range(part, field)
        values |= found.values
        is_any = is_any or found.is_any
    return _Values(frozenset(values), is_any)


def _range(text: str, field: _Field) -> _Values:
    """Return the values of ``*``, a number, a range or one of them with a step."""
    bounds, slash, step_text = text.partition("/")
    low, hyphen, high = bounds.partition("-")
    is_star = low in ("*", "?") and not hyphen
    if is_star:
        first, last = field.least, field.most
    else:
        first = _number(low, field)
        last = _number(high, field) if hyphen else field.most if slash else first
    step = 1
    if slash:
        if not _NUMBER.fullmatch(step_text) or int(step_text) == 0:
            raise CronError(f"{field.name}: a step must be a whole number of at least 1, not {step_text[:20]!r}")
        step = int(step_text)
    if first > last:
        raise CronError(f"{field.name}: the range {bounds[:20]!r} ends before it begins")
    return _Values(frozenset(range(first, last + 1, step)), is_star and step == 1)


def _number(text: str, field: _Field) -> int:
    named = field.names.get(text.lower())
    if named is not None:
        return named
    if not _NUMBER.fullmatch(text):
        names = f" or one of {', '.join(field.names)}" if field.names else ""
        raise CronError(f"{field.name}: must be a number{names}, not {text[:20]!r}")
    if not field.least <= int(text) <= field.most:
        raise CronError(f"{field.name}: must be from {field.least} to {field.most}, not {text}")
    return int(text)


def next_after(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first due time later than ``after``, in UTC; None if there is none within nine years.

    ``after`` has a time zone.
    """
    begin = after.astimezone(UTC)
    if begin >= _LATEST:
        return None
    return _next_by_clock(cron, zone, begin) if cron.is_hourly else _next_local(cron, zone, begin)


def _next_local(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the next due time of an expression whose local times are due once each.

    Local times in their order are at moments that never go back, so the first one whose moment is later is the one.
    """
    local = after.astimezone(zone).replace(tzinfo=None)
    day = cron.first_day(local.date() - _DAY)  # the day before: a gap may have skipped midnight
    while day is not None:
        for hour in cron.hours:
            for minute in cron.minutes:
                found = _moment(zone, datetime.combine(day, time(hour, minute)))
                if found > after:
                    return found
        day = cron.first_day(day + _DAY)
    return None


def _next_by_clock(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the next minute at which the local clock shows what an expression for every hour names."""
    now = after.replace(second=0, microsecond=0) + _MINUTE
    end = now + _DAY * _MOST_DAYS
    while now < end:
        local = now.astimezone(zone)
        if not cron.has_day(local.date()):
            day = cron.first_day(local.date() + _DAY)
            if day is None:
                return None
            now = max(_moment(zone, datetime.combine(day, time())), now + _MINUTE)
            continue
        ahead = next((one for one in cron.minutes if one >= local.minute), None)
        if ahead == local.minute:
            return now
        now += timedelta(minutes=(60 if ahead is None else ahead) - local.minute)
    return None


def _moment(zone: ZoneInfo, local: datetime) -> datetime:
    """Return the moment of a local time in UTC: the first of two, and for one that the clock skips the first moment after the gap."""
    found = local.replace(tzinfo=zone).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == local:
        return found
    return _end_of_gap(zone, local)


def _end_of_gap(zone: ZoneInfo, local: datetime) -> datetime:
    """Return the moment at which the clock skips a local time, by halves to the second: gaps are rarely longer than a day."""
    low, high = (local.replace(tzinfo=UTC) + timedelta(days=days) for days in (-2, 2))
    while high - low > timedelta(seconds=1):
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if middle.astimezone(zone).replace(tzinfo=None) < local:
            low = middle
        else:
            high = middle
    return high


def latest_until(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Return the last due time later than ``after`` and at most ``until``; None if there is none."""
    span = 2 * _HOUR
    while True:
        begin = max(after, until - span)
        found = next_after(cron, zone, begin)
        if found is not None and found <= until:
            break
        if begin <= after:
            return None
        span *= 4
    while (following := next_after(cron, zone, found)) is not None and following <= until:
        found = following
    return found


def count_until(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime, most: int) -> int:
    """Return how many due times are later than ``after`` and at most ``until``, counted up to ``most``."""
    count = 0
    found = next_after(cron, zone, after)
    while found is not None and found <= until and count < most:
        count += 1
        found = next_after(cron, zone, found)
    return count
