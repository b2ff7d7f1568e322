"""Cron expressions: what is read, and moments compared with a search minute by minute."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster_dispatcher.domain.cron import Cron, CronError, count_until, latest_until, next_after, parse

_UTC = ZoneInfo("UTC")
_BERLIN, _NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


READ = {
    "a number": ("5 4 * * *", (5,), (4,)),
    "a list, in any order, with empty parts": ("30,0,,15 0 * * *", (0, 15, 30), (0,)),
    "a range": ("0 9-11 * * *", (0,), (9, 10, 11)),
    "a step from the begin": ("*/20 0 * * *", (0, 20, 40), (0,)),
    "a step in a range": ("0 8-18/5 * * *", (0,), (8, 13, 18)),
    "a number with a step goes on to the end": ("50/5 0 * * *", (50, 55), (0,)),
    "a question mark is a star": ("? 3 ? * ?", tuple(range(60)), (3,)),
    "hourly": ("@hourly", (0,), tuple(range(24))),
    "daily": ("@daily", (0,), (0,)),
}


@pytest.mark.parametrize(("expression", "minutes", "hours"), READ.values(), ids=READ.keys())
def test_fields_are_read(expression: str, minutes: tuple[int, ...], hours: tuple[int, ...]) -> None:
    assert (parse(expression).minutes, parse(expression).hours) == (minutes, hours)


def test_names_of_months_and_days() -> None:
    found = parse("0 0 * JAN-mar,dec Sun,wed-FRI")
    assert (sorted(found.months), sorted(found.weekdays)) == ([1, 2, 3, 12], [0, 3, 4, 5])


REFUSED = {
    "too few fields": ("0 3 * *", "must have 5 fields"),
    "six fields": ("0 0 3 * * *", "must have 5 fields"),
    "empty": ("", "must have 5 fields"),
    "minute too large": ("60 * * * *", "minute: must be from 0 to 59, not 60"),
    "Sunday is 0, and not 7": ("0 0 * * 7", "day of week: must be from 0 to 6, not 7"),
    "day 0": ("0 0 0 * *", "day of month: must be from 1 to 31"),
    "a range backwards": ("0 5-3 * * *", "hour: the range '5-3' ends before it begins"),
    "step 0": ("*/0 * * * *", "minute: a step must be a whole number of at least 1"),
    "no number": ("x * * * *", "minute: must be a number, not 'x'"),
    "no name": ("0 0 * foo *", "month: must be a number or one of jan, feb"),
    "an empty list": (", * * * *", "minute: is empty"),
    "a star in a range": ("*-5 * * * *", "minute: must be a number"),
    "every": ("@every 5m", "instead of @every"),
    "an unknown name": ("@noon", "is none of @yearly"),
    "a time zone": ("CRON_TZ=UTC 0 3 * * *", "give timeZone"),
    "never due": ("0 0 30 2 *", "is never due"),
    "too long": ("0" * 201, "at most 200"),
}


@pytest.mark.parametrize(("expression", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_mistakes_are_named(expression: str, message: str) -> None:
    with pytest.raises(CronError, match=message.replace("*", r"\*")):
        parse(expression)


DAYS = {
    "only the day of the month": ("0 0 13 * *", [13]),
    "only the day of the week": ("0 0 * * fri", [3, 10, 17, 24, 31]),
    "both: one is enough": ("0 0 13 * fri", [3, 10, 13, 17, 24, 31]),
    "a star in one: both count, so the other decides": ("0 0 */1 * fri", [3, 10, 17, 24, 31]),
    "a step restricts as numbers do": ("0 0 */15 * fri", [1, 3, 10, 16, 17, 24, 31]),
    "a step of days of the week": ("0 0 5 * */6", [4, 5, 11, 12, 18, 19, 25, 26]),
}


@pytest.mark.parametrize(("expression", "days"), DAYS.values(), ids=DAYS.keys())
def test_days_of_month_and_week(expression: str, days: list[int]) -> None:
    cron = parse(expression)
    july = [datetime(2026, 7, day, tzinfo=UTC).date() for day in range(1, 32)]
    assert [day.day for day in july if cron.has_day(day)] == days


# In 2026, Berlin skips 02:00-03:00 on 29 March, and has 02:00-03:00 twice on 25 October.
CLOCK_CHANGES = {
    "a time that is skipped is due at the end of the gap": (
        "30 2 * * *",
        _BERLIN,
        "2026-03-28T12:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
    ),
    "several that are skipped are due once": (
        "*/20 2 * * *",
        _BERLIN,
        "2026-03-29T00:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"],
    ),
    "one that is skipped and one at the end of the gap are due once": (
        "0 2,3 * * *",
        _BERLIN,
        "2026-03-29T00:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"],
    ),
    "a time that comes twice is due at the first": (
        "30 2 * * *",
        _BERLIN,
        "2026-10-25T00:00+02:00",
        ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
    ),
    "and not again, seen from between the two": (
        "30 2 * * *",
        _BERLIN,
        "2026-10-25T02:10+01:00",
        ["2026-10-26T02:30+01:00"],
    ),
    "every hour goes by the hours that pass": (
        "0 * * * *",
        _BERLIN,
        "2026-10-25T01:30+02:00",
        ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
    ),
    "every hour over a gap": (
        "30 * * * *",
        _BERLIN,
        "2026-03-29T01:00+01:00",
        ["2026-03-29T01:30+01:00", "2026-03-29T03:30+02:00"],
    ),
    "every other hour is of local times": (
        "0 */2 * * *",
        _NEW_YORK,
        "2026-03-08T00:30-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-08T04:00-04:00"],
    ),
    "a day that a zone skipped": (
        "15 8 30 12 *",
        ZoneInfo("Pacific/Apia"),
        "2011-12-29T20:00-10:00",
        ["2011-12-31T00:00+14:00", "2012-12-30T08:15+14:00"],
    ),
    "29 February": ("0 0 29 2 *", _UTC, "2096-03-01T00:00+00:00", ["2104-02-29T00:00+00:00"]),
}


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), CLOCK_CHANGES.values(), ids=CLOCK_CHANGES.keys())
def test_changes_of_the_clock(expression: str, zone: ZoneInfo, after: str, expected: list[str]) -> None:
    now, found = _at(after), []
    for _ in expected:
        following = next_after(parse(expression), zone, now)
        assert following is not None
        found.append(following)
        now = following
    assert found == [_at(one) for one in expected]


def test_the_last_one_is_found_in_any_span_of_time() -> None:
    cron, now = parse("0 0 1 1 *"), _at("2026-11-28T10:00+00:00")
    assert latest_until(cron, _UTC, _at("2020-05-01T00:00+00:00"), now) == _at("2026-01-01T00:00+00:00")
    assert latest_until(cron, _UTC, _at("2026-01-01T00:00+00:00"), now) is None
    assert latest_until(parse("* * * * *"), _UTC, _at("1999-01-01T00:00+00:00"), now) == now
    assert count_until(parse("* * * * *"), _UTC, _at("1999-01-01T00:00+00:00"), now, 101) == 101


def _parts(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.integers(1, most).map(lambda step: f"*/{step}"),
        st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.tuples(number, number, st.integers(1, 9)).map(lambda one: f"{min(one[:2])}-{max(one[:2])}/{one[2]}"),
        st.lists(number, min_size=1, max_size=4).map(lambda numbers: ",".join(map(str, numbers))),
    )


_EXPRESSIONS = st.tuples(
    _parts(0, 59), _parts(0, 23), st.one_of(st.just("*"), _parts(1, 28)), st.just("*"), _parts(0, 6)
).map(" ".join)
_ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "America/St_Johns",  # a minute after midnight, until 2011
    "Asia/Kathmandu",
    "America/Havana",  # midnight is skipped, and 00:00-01:00 comes twice
]
# Around changes of the clock of these zones, and anywhere.
_BEGINS = st.one_of(
    st.sampled_from(
        ["2026-03-08", "2026-03-29", "2026-10-04", "2026-10-25", "2026-11-01", "2026-04-05", "2010-03-14"]
    ).map(lambda day: _at(f"{day}T00:00+00:00")),
    st.integers(0, 21 * 365 * 86_400).map(
        lambda seconds: datetime(2009, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    ),
)


def _due_in(cron: Cron, zone: ZoneInfo, begin: datetime, minutes: int) -> list[datetime]:
    """Return the due times later than ``begin``, by looking at the local clock minute by minute."""
    found: list[datetime] = []
    first = begin.replace(second=0, microsecond=0) - timedelta(days=2)
    before = (first - timedelta(minutes=1)).astimezone(zone).replace(tzinfo=None)
    shown: set[datetime] = set()
    for number in range(minutes + 2 * 1440 + 1):
        now = first + timedelta(minutes=number)
        local = now.astimezone(zone).replace(tzinfo=None)
        # What the clock shows, and for an expression of local times what it has skipped.
        names = [local]
        if not cron.is_hourly:
            skipped = int((local - before).total_seconds()) // 60 - 1
            names += [local - timedelta(minutes=back) for back in range(1, skipped + 1)]
            names = [one for one in names if one not in shown]
        shown |= set(names)
        before = local
        if any(
            one.minute in cron.minutes and one.hour in cron.hours and cron.has_day(one.date()) for one in names
        ) and (now > begin):
            found.append(now)
    return found


@settings(max_examples=60, deadline=None)
@given(_EXPRESSIONS, st.sampled_from(_ZONES), _BEGINS, st.integers(0, 86_399))
def test_due_times_are_those_that_the_clock_shows(expression: str, name: str, day: datetime, second: int) -> None:
    cron, zone, begin = parse(expression), ZoneInfo(name), day + timedelta(seconds=second)
    minutes = 3 * 1440
    end = begin.replace(second=0, microsecond=0) + timedelta(minutes=minutes)
    expected = _due_in(cron, zone, begin, minutes)
    found: list[datetime] = []
    following = next_after(cron, zone, begin)
    while following is not None and following <= end:
        found.append(following)
        following = next_after(cron, zone, following)
    assert found == expected
    assert latest_until(cron, zone, begin, end) == (expected[-1] if expected else None)
    assert count_until(cron, zone, begin, end, 101) == min(len(expected), 101)
