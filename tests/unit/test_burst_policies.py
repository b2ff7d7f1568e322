"""Burst policies: what an admin may write, when they open, how fast jobs go by them and for how long."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmaster.protocol.bursting import BurstPolicySpec, Day, HoursSpec, SpotUse
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_dispatcher.domain.budgets import Budget, Span
from trainmaster_dispatcher.domain.burst_policies import Bounds, BurstPolicy, Hours, Ramp, policy_of

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = {"start": "18:00", "end": "06:00"}
NEEDED = {"name": "overflow", "queues": ["research"], "budget": {"day": 100}}


def written(**fields: Any) -> BurstPolicySpec:
    return BurstPolicySpec.model_validate({**NEEDED, **fields})


def policy(**fields: Any) -> BurstPolicy:
    return policy_of(1, written(**fields))


def open_in(*hours: dict[str, Any], zone: str | None = None) -> BurstPolicy:
    """Return a policy with these hours, all in one time zone if one is named."""
    return policy(hours=[one | ({"timeZone": zone} if zone else {}) for one in hours])


def at(text: str) -> float:
    """Return the seconds since the epoch of a moment that is written with its offset from UTC."""
    return datetime.fromisoformat(text).timestamp()


# Hours. 2026-11-02 is a Monday.

OPENS: dict[str, tuple[BurstPolicy, str, str]] = {
    "now, without any hours": (open_in(), "2026-11-02T12:34:56Z", "2026-11-02T12:34:56Z"),
    "now, in the middle of them": (
        open_in({"start": "08:00", "end": "17:00"}),
        "2026-11-02T12:34:56.789Z",
        "2026-11-02T12:34:56.789Z",
    ),
    "now, in their first moment": (open_in(NIGHT), "2026-11-02T18:00:00Z", "2026-11-02T18:00:00Z"),
    "at their begin, a moment before it": (open_in(NIGHT), "2026-11-02T17:59:59.999Z", "2026-11-02T18:00:00Z"),
    "at their begin, hours before it": (open_in({"start": "08:30"}), "2026-11-02T01:00:00Z", "2026-11-02T08:30:00Z"),
    "the next day, where they have just ended": (
        open_in({"start": "08:00", "end": "17:00"}),
        "2026-11-02T17:00:00Z",
        "2026-11-03T08:00:00Z",
    ),
    "now, before midnight": (open_in(NIGHT), "2026-11-02T23:59:59Z", "2026-11-02T23:59:59Z"),
    "now, after midnight": (open_in(NIGHT), "2026-11-03T05:59:59Z", "2026-11-03T05:59:59Z"),
    "in the evening, where the night is over": (open_in(NIGHT), "2026-11-03T06:00:00Z", "2026-11-03T18:00:00Z"),
    "now, on the morning after the last night of theirs": (
        open_in(NIGHT | {"days": ["fri"]}),
        "2026-11-07T05:59:59Z",
        "2026-11-07T05:59:59Z",
    ),
    "a week later, where the only night is over": (
        open_in(NIGHT | {"days": ["fri"]}),
        "2026-11-07T06:00:00Z",
        "2026-11-13T18:00:00Z",
    ),
    "a week later to the minute, where the only minute is over": (
        open_in({"start": "10:00", "end": "10:01", "days": ["mon"]}),
        "2026-11-02T10:01:00Z",
        "2026-11-09T10:00:00Z",
    ),
    "not on the morning before the first night of theirs": (
        open_in(NIGHT | {"days": ["fri"]}),
        "2026-11-06T05:00:00Z",
        "2026-11-06T18:00:00Z",
    ),
    "on Saturday, where they are at weekends": (
        open_in({"days": ["sat", "sun"]}),
        "2026-11-04T12:00:00Z",
        "2026-11-07T00:00:00Z",
    ),
    "now, at midnight between two whole days": (
        open_in({"days": ["sat", "sun"], "start": "00:00", "end": "24:00"}),
        "2026-11-08T00:00:00Z",
        "2026-11-08T00:00:00Z",
    ),
    "next Saturday, where the weekend has ended at 24:00": (
        open_in({"days": ["sat", "sun"], "end": "24:00"}),
        "2026-11-09T00:00:00Z",
        "2026-11-14T00:00:00Z",
    ),
    "on the next day, where they begin at 24:00": (
        open_in({"days": ["mon"], "start": "24:00", "end": "06:00"}),
        "2026-11-02T05:00:00Z",
        "2026-11-03T00:00:00Z",
    ),
    "for a whole day, where they end when they begin": (
        open_in({"days": ["mon"], "start": "08:00", "end": "08:00"}),
        "2026-11-03T07:59:59Z",
        "2026-11-03T07:59:59Z",
    ),
    "a week later, where that whole day is over": (
        open_in({"days": ["mon"], "start": "08:00", "end": "08:00"}),
        "2026-11-03T08:00:00Z",
        "2026-11-09T08:00:00Z",
    ),
    "with the first of several": (
        open_in({"start": "20:00", "end": "21:00"}, {"start": "12:00", "end": "13:00"}, {"days": ["sun"]}),
        "2026-11-02T11:00:00Z",
        "2026-11-02T12:00:00Z",
    ),
    "with the next of several": (
        open_in({"start": "20:00", "end": "21:00"}, {"start": "12:00", "end": "13:00"}),
        "2026-11-02T13:00:00Z",
        "2026-11-02T20:00:00Z",
    ),
    "now, in the last of several": (
        open_in({"start": "20:00", "end": "21:00"}, {"start": "12:00", "end": "13:00"}, {"days": ["mon"]}),
        "2026-11-02T16:00:00Z",
        "2026-11-02T16:00:00Z",
    ),
    "with the first of several, each by its own clock": (
        open_in(NIGHT | {"timeZone": "America/New_York"}, NIGHT | {"timeZone": "Asia/Tokyo"}),
        "2026-11-02T22:00:00Z",
        "2026-11-02T23:00:00Z",
    ),
    "by the clock there": (open_in(NIGHT, zone="Europe/Berlin"), "2026-11-02T16:00:00Z", "2026-11-02T17:00:00Z"),
    "on the day that it is there": (
        open_in({"days": ["tue"]}, zone="Asia/Tokyo"),
        "2026-11-02T14:00:00Z",
        "2026-11-02T15:00:00Z",
    ),
    "now, where it is a day later in UTC than in the night that began there": (
        open_in({"days": ["sun"], "start": "20:00", "end": "19:00"}, zone="America/Los_Angeles"),
        "2026-11-02T18:00:00-08:00",
        "2026-11-02T18:00:00-08:00",
    ),
    "an hour earlier in summer": (open_in(NIGHT, zone="Europe/Berlin"), "2026-07-01T12:00:00Z", "2026-07-01T16:00:00Z"),
}


@pytest.mark.parametrize("sentence", OPENS)
def test_it_opens(sentence: str) -> None:
    one, now, opens = OPENS[sentence]
    assert one.opens_at(at(now)) == at(opens)


SKIPPED = {
    "hours that the clock skips do not come": (("02:00", "03:00"), "2026-03-30T02:00+02:00"),
    "hours that begin where it skips begin when it does": (("02:30", "03:15"), "2026-03-29T03:00+02:00"),
    "hours that end where it skips end when it does": (("01:30", "02:30"), "2026-03-29T01:30+01:00"),
}


@pytest.mark.parametrize("sentence", SKIPPED)
def test_when_the_clock_is_put_forward(sentence: str) -> None:
    (start, end), opens = SKIPPED[sentence]
    policy = open_in({"start": start, "end": end}, zone="Europe/Berlin")
    found = policy.opens_at(at("2026-03-29T00:00+01:00"))
    assert found == at(opens)
    assert policy.opens_at(found) == found
    assert policy.opens_at(at("2026-03-29T03:15+02:00")) > at("2026-03-29T03:15+02:00")


def test_a_time_without_quotation_marks_is_understood_as_yaml_reads_it() -> None:
    spec = HoursSpec.model_validate({"start": 18 * 60, "end": 24 * 60})
    assert (spec.start, spec.end) == ("18:00", "24:00")


# In Berlin, 02:00 is followed by 03:00 on 2026-03-29, and 02:00 to 03:00 comes twice on 2026-10-25.
CHANGES: dict[str, tuple[tuple[str, str], str, str, float]] = {
    "a night is an hour shorter": (("18:00", "06:00"), "2026-03-28T18:00+01:00", "2026-03-29T06:00+02:00", 11),
    "a night is an hour longer": (("18:00", "06:00"), "2026-10-24T18:00+02:00", "2026-10-25T06:00+01:00", 13),
    "a whole day is an hour shorter": (("00:00", "23:59"), "2026-03-29T00:00+01:00", "2026-03-29T23:59+02:00", 22.983),
    "a whole day is an hour longer": (("00:00", "23:59"), "2026-10-25T00:00+02:00", "2026-10-25T23:59+01:00", 24.983),
    "few hours around it are one less": (("01:00", "04:00"), "2026-03-29T01:00+01:00", "2026-03-29T04:00+02:00", 2),
    "few hours around it are one more": (("01:00", "04:00"), "2026-10-25T01:00+02:00", "2026-10-25T04:00+01:00", 4),
    "they end in time though 02:00 never comes": (
        ("00:00", "02:00"),
        "2026-03-29T00:00+01:00",
        "2026-03-29T03:00+02:00",
        2,
    ),
    "they begin in time though 02:00 never comes": (
        ("02:00", "05:00"),
        "2026-03-29T03:00+02:00",
        "2026-03-29T05:00+02:00",
        2,
    ),
    "the hour that comes twice counts both times": (
        ("02:00", "03:00"),
        "2026-10-25T02:00+02:00",
        "2026-10-25T03:00+01:00",
        2,
    ),
    "they end before the hour that comes twice": (
        ("00:00", "02:00"),
        "2026-10-25T00:00+02:00",
        "2026-10-25T02:00+02:00",
        2,
    ),
    "they begin after the hour that comes twice": (
        ("03:00", "05:00"),
        "2026-10-25T03:00+01:00",
        "2026-10-25T05:00+01:00",
        2,
    ),
    "what is later that day goes by the new clock": (
        ("18:00", "20:00"),
        "2026-03-29T18:00+02:00",
        "2026-03-29T20:00+02:00",
        2,
    ),
    "what is the day before goes by the old clock": (
        ("18:00", "20:00"),
        "2026-03-28T18:00+01:00",
        "2026-03-28T20:00+01:00",
        2,
    ),
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_where_clocks_are_put_forward_or_back(sentence: str) -> None:
    (start, end), begins, ends, lasts = CHANGES[sentence]
    one = open_in({"start": start, "end": end}, zone="Europe/Berlin")
    begin, last = at(begins), at(ends) - 1
    assert (at(ends) - begin) / 3600 == pytest.approx(lasts, abs=0.001)
    assert one.opens_at(begin - 1) == begin
    assert one.opens_at(begin) == begin
    assert one.opens_at((begin + last) / 2) == (begin + last) / 2
    assert one.opens_at(last) == last
    assert one.opens_at(last + 1) > last + 1


# The oracle knows only what a wall clock shows in each minute.

WEEKS = 2
LOOKED_AHEAD = 9
"""Days behind them in which hours may begin."""
MINUTES = WEEKS * 7 * 24 * 60
DAYS = list(Day)
CLOCKS = {
    "UTC, over a leap day": ("UTC", "2028-02-20"),
    "Berlin, put forward": ("Europe/Berlin", "2026-03-22"),
    "Berlin, put back": ("Europe/Berlin", "2026-10-18"),
    "New York, put back": ("America/New_York", "2026-10-25"),
    "Lord Howe, put forward by half an hour": ("Australia/Lord_Howe", "2026-09-27"),
    "Kolkata, over the end of a year": ("Asia/Kolkata", "2026-12-25"),
}


@lru_cache
def shown(zone: str, first: str) -> tuple[float, Sequence[tuple[int, int]]]:
    """Return when the weeks begin, and the weekday and minute of the day that a clock shows in each minute from then on."""
    begin = datetime.fromisoformat(first).replace(tzinfo=UTC)
    there = ZoneInfo(zone)
    out = []
    for minute in range(MINUTES + LOOKED_AHEAD * 24 * 60):
        local = (begin + timedelta(minutes=minute)).astimezone(there)
        out.append((local.weekday(), local.hour * 60 + local.minute))
    return begin.timestamp(), out


def is_shown_within(hours: tuple[list[Day], int, int], weekday: int, minute: int) -> bool:
    days, start, end = hours
    if end <= start:
        end += 24 * 60
    today, yesterday = DAYS[weekday], DAYS[weekday - 1]
    return (today in days and start <= minute < end) or (yesterday in days and start <= minute + 24 * 60 < end)


def clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


# Not between 01:00 and 03:00, where clocks are changed: what then counts as begin and end is in the table above.
minutes_of_day = st.integers(0, 60) | st.integers(180, 24 * 60)
some_days = st.lists(st.sampled_from(Day), min_size=1, max_size=7, unique=True)
some_hours = st.lists(st.tuples(some_days, minutes_of_day, minutes_of_day), min_size=1, max_size=3)


@given(st.sampled_from(sorted(CLOCKS)), some_hours, st.lists(st.floats(0, 60 * (MINUTES - 1)), max_size=20))
def test_it_is_open_while_a_clock_shows_its_hours_and_else_opens_when_one_next_will(
    case: str, hours: list[tuple[list[Day], int, int]], moments: list[float]
) -> None:
    """Asked at drawn moments, and around each minute in which it opens or closes within two weeks."""
    zone, first = CLOCKS[case]
    begin, clocks = shown(zone, first)
    is_open = [any(is_shown_within(one, *shows) for one in hours) for shows in clocks]
    opens = [0] * len(clocks)
    for minute in reversed(range(len(clocks))):
        opens[minute] = minute if is_open[minute] or minute + 1 == len(clocks) else opens[minute + 1]
    one = open_in(*({"days": days, "start": clock(start), "end": clock(end)} for days, start, end in hours), zone=zone)
    turns = [minute for minute in range(1, MINUTES) if is_open[minute] is not is_open[minute - 1]]
    edges = [60.0 * minute + beside for minute in turns for beside in (-0.5, 0, 0.5)]
    for after in [*edges, *moments]:
        now, minute = begin + after, int(after // 60)
        expected = now if is_open[minute] else begin + 60 * opens[minute]
        assert one.opens_at(now) == expected, datetime.fromtimestamp(now, ZoneInfo(zone)).isoformat()
        assert expected >= now


# Ramps


def ramp(jobs: int, every: float) -> BurstPolicy:
    return policy(atMost={"ramp": {"jobs": jobs, "every": every}})


RAMPS: dict[str, tuple[BurstPolicy, list[float], float]] = {
    "now, without a ramp": (policy(), [999.0] * 100, 1000),
    "now, as the first": (ramp(2, 60), [], 1000),
    "now, as the last of those allowed": (ramp(2, 60), [990], 1000),
    "when the one before is long enough ago": (ramp(1, 60), [990], 1050),
    "when the one before the last is long enough ago": (ramp(2, 60), [950, 990], 1010),
    "whatever order they are told in": (ramp(2, 60), [990, 950], 1010),
    "now, exactly so long after": (ramp(1, 60), [940], 1000),
    "when enough of too many are long enough ago": (ramp(2, 60), [950, 960, 970, 980], 1030),
    "now, where all are long ago": (ramp(1, 60), [1, 2, 3, 939], 1000),
}


@pytest.mark.parametrize("sentence", RAMPS)
def test_the_next_job_may_start(sentence: str) -> None:
    one, starts, opens = RAMPS[sentence]
    assert one.ramp_opens_at(starts, 1000) == opens


gaps = st.lists(st.sampled_from([0.0, 0.0, 1.0, 7.0]) | st.floats(0, 5000), max_size=60)


@given(st.integers(1, 6), st.sampled_from([1.0, 60.0, 3600.0]), gaps)
def test_never_more_jobs_start_within_the_time_of_a_ramp_and_none_waits_without_need(
    jobs: int, every: float, gaps: list[float]
) -> None:
    """Jobs come one by one; each starts when it is told that it may, and nobody before it."""
    one, now, starts = ramp(jobs, every), 1.8e9, list[float]()
    for gap in gaps:
        now += gap
        opens_at = one.ramp_opens_at(starts, now)
        assert opens_at >= now
        if opens_at > now:
            recent = [start for start in starts if now - every < start]
            assert len(recent) >= jobs, "it might have started at once"
            assert one.ramp_opens_at(starts, opens_at) == opens_at, "then it may indeed"
        now = opens_at
        starts.append(now)
    for first, next_one in zip(starts, starts[jobs:], strict=False):
        assert next_one - first >= every - 1e-6


# Time limits


@pytest.mark.parametrize(
    ("own", "policys", "queues", "limit"),
    [
        (60.0, "1h", 7200.0, 60.0),
        (86400.0, "1h", 7200.0, 86400.0),
        (None, "1h", 60.0, 3600.0),
        (None, "1h", None, 3600.0),
        (None, None, 7200.0, 7200.0),
        (None, None, None, None),
        (0.0, "1h", 7200.0, 0.0),
    ],
)
def test_a_time_limit_is_the_jobs_own_else_the_policys_else_the_queues(
    own: float | None, policys: str | None, queues: float | None, limit: float | None
) -> None:
    assert policy(timeLimit=policys).limit_for(own, queues) == limit


def test_a_run_is_bounded_by_its_wait_until_it_runs_and_by_its_limit_from_then_on() -> None:
    bounds = Bounds(wait=300, limit=3600, grace=10, rate=5)
    assert bounds.total == 3910
    assert bounds.until(1000, None) == 1000 + bounds.total
    assert bounds.until(1000, 1000) == 4610, "the wait is over"
    assert bounds.until(1000, 1200) == 4810


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1))
def test_a_run_that_starts_within_its_wait_never_ends_later_than_was_committed(
    wait: float, limit: float, grace: float, part: float
) -> None:
    bounds = Bounds(wait, limit, grace, 1)
    assert bounds.until(1.8e9, 1.8e9 + part * wait) <= bounds.until(1.8e9, None)


# Reading

WHOLE: dict[str, Any] = {
    "name": "nights",
    "queues": ["research", "org/team_a"],
    "clusters": ["rented-b", "rented-a"],
    "choose": "order",
    "when": {
        "after": "10m",
        "expectedWait": "1h30m",
        "utilisation": {"above": 0.9, "until": 0.7},
        "classAtLeast": "high",
    },
    "atMost": {
        "jobs": 20,
        "nodes": 5,
        "resources": {"cpu": 1.5, "memory": "4Gi", "nvidia.com/gpu": 8},
        "ramp": {"jobs": 2, "every": "5m"},
    },
    "budget": {"hour": 0.1, "day": "100.000000001", "month": 2000, "job": 7, "warnAt": [0.5, 1]},
    "timeLimit": "2h",
    "spot": "only",
    "hours": [
        NIGHT | {"days": ["fri", "mon"], "timeZone": "Europe/Berlin"},
        {"start": "00:00", "end": "24:00", "days": ["sun"]},
    ],
    "paused": True,
    "description": "at night",
}


def test_what_an_admin_wrote_is_read_in_seconds_billionths_and_units() -> None:
    assert policy_of(7, BurstPolicySpec.model_validate(WHOLE)) == BurstPolicy(
        id=7,
        name="nights",
        queues=("research", "org/team_a"),
        budget=Budget(
            {Span.HOUR: NANOS // 10, Span.DAY: 100 * NANOS + 1, Span.MONTH: 2000 * NANOS},
            7 * NANOS,
        ),
        clusters=("rented-b", "rented-a"),
        in_order=True,
        after=600.0,
        expected_wait=5400.0,
        utilisation=(0.9, 0.7),
        class_at_least="high",
        jobs=20,
        nodes=5,
        resources={"cpu": 1500, "memory": 4 * 2**30, "nvidia.com/gpu": 8000},
        ramp=Ramp(2, 300.0),
        time_limit=7200.0,
        spot=SpotUse.ONLY,
        hours=(
            Hours(frozenset({0, 4}), 18 * 60, 30 * 60, BERLIN),
            Hours(frozenset({6}), 0, 24 * 60, UTC),
        ),
        paused=True,
        warn_at=(0.5, 1.0),
    )


def test_what_is_not_written_does_not_restrict() -> None:
    one = policy()
    assert one == BurstPolicy(
        id=1,
        name="overflow",
        queues=("research",),
        budget=Budget({Span.DAY: 100 * NANOS}),
        warn_at=(0.5, 0.8, 0.95),
    )
    assert (one.jobs, one.nodes, one.ramp, one.time_limit, one.hours) == (None, None, None, None, ())


def test_a_policy_that_opens_by_utilisation_closes_below_the_same_part_unless_told_otherwise() -> None:
    assert policy(when={"utilisation": {"above": 0.9}}).utilisation == (0.9, 0.9)
    assert policy(when={"utilisation": {"above": 0.9, "until": 0.9}}).utilisation == (0.9, 0.9)


def test_a_budget_of_nothing_is_a_budget() -> None:
    assert policy(budget={"hour": 0}).budget == Budget({Span.HOUR: 0})


# Mistakes

MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no queue": ({"queues": []}, "queues", "must have at least 1 entry, this has none"),
    "a queue that cannot be": ({"queues": ["research", "a//b"]}, "queues[1]", "each part of a queue path"),
    "a name that cannot be": ({"name": "Overflow"}, "name", "a-z, 0-9 and '-'"),
    "no budget at all": ({"budget": {}}, "budget", "at least one of hour, day and month"),
    "a budget for jobs alone": ({"budget": {"job": 5}}, "budget", "one per job does not limit the total"),
    "a negative budget": ({"budget": {"day": -1}}, "budget.day", "must be at least 0, not -1"),
    "a budget without an end": ({"budget": {"day": float("inf")}}, "budget.day", "finite"),
    "a budget of too many places": ({"budget": {"day": "0.0000000001"}}, "budget.day", "9 decimal places"),
    "a warning at nothing": ({"budget": {"day": 1, "warnAt": [0]}}, "budget.warnAt[0]", "must be more than 0, not 0"),
    "a warning above the whole": (
        {"budget": {"day": 1, "warnAt": [0.5, 80]}},
        "budget.warnAt[1]",
        "must be at most 1, not 80",
    ),
    "an unknown time zone": (
        {"hours": [NIGHT, {"timeZone": "Europe/Berln"}]},
        "hours[1].timeZone",
        "there is no time zone 'Europe/Berln'",
    ),
    "a time zone that is a folder": ({"hours": [{"timeZone": "Europe"}]}, "hours[0].timeZone", "no time zone"),
    "a time zone that leads elsewhere": ({"hours": [{"timeZone": "../passwd"}]}, "hours[0].timeZone", "no time zone"),
    "a time zone without a name": ({"hours": [{"timeZone": ""}]}, "hours[0].timeZone", "no time zone"),
    "no day": ({"hours": [{"days": []}]}, "hours[0].days", "at least one of mon"),
    "an unknown day": ({"hours": [{"days": ["monday"]}]}, "hours[0].days[0]", "must be one of mon, tue"),
    "a time of one digit": ({"hours": [{"start": "8:30"}]}, "hours[0].start", "write for example 08:30"),
    "a time without a colon": ({"hours": [{"start": "0830"}]}, "hours[0].start", "write for example 08:30"),
    "a time with seconds": ({"hours": [{"start": "08:30:00"}]}, "hours[0].start", "write for example 08:30"),
    "a time in other digits": ({"hours": [{"start": "0٨:30"}]}, "hours[0].start", "write for example 08:30"),
    "a negative time": ({"hours": [{"start": "-1:30"}]}, "hours[0].start", "write for example 08:30"),
    "a minute too many": ({"hours": [{"end": "08:60"}]}, "hours[0].end", "the last one is 24:00"),
    "a time after the last": ({"hours": [{"end": "24:01"}]}, "hours[0].end", "the last one is 24:00"),
    "an order without clusters": ({"choose": "order"}, "", "choose: order needs the list of clusters"),
    "a time limit of nothing": ({"timeLimit": "0s"}, "", "timeLimit: must be above 0s"),
    "a negative time limit": ({"timeLimit": -5}, "timeLimit", "not a duration"),
    "a negative wait": ({"when": {"after": -1}}, "when.after", "not a duration"),
    "a negative expected wait": ({"when": {"expectedWait": "-1m"}}, "when.expectedWait", "not a duration"),
    "an until above its above": (
        {"when": {"utilisation": {"above": 0.7, "until": 0.9}}},
        "when.utilisation",
        "until must not be higher than above, which is 0.7",
    ),
    "a part in per cent": (
        {"when": {"utilisation": {"above": 90}}},
        "when.utilisation.above",
        "must be at most 1, not 90",
    ),
    "an until without an above": ({"when": {"utilisation": {"until": 0.9}}}, "when.utilisation.above", "is missing"),
    "a negative number of jobs": ({"atMost": {"jobs": -1}}, "atMost.jobs", "must be at least 0, not -1"),
    "a part of a job": ({"atMost": {"jobs": 1.5}}, "atMost.jobs", "must be a whole number, not 1.5"),
    "a negative number of nodes": ({"atMost": {"nodes": -1}}, "atMost.nodes", "must be at least 0, not -1"),
    "a negative amount": ({"atMost": {"resources": {"cpu": -1}}}, "atMost.resources.cpu", "is negative"),
    "an amount that is none": ({"atMost": {"resources": {"cpu": "many"}}}, "atMost.resources.cpu", "quantity"),
    "an amount too large for its resource": (
        {"atMost": {"resources": {"cpu": "4Ei"}}},
        "atMost.resources",
        "too large",
    ),
    "a ramp of no jobs": (
        {"atMost": {"ramp": {"jobs": 0, "every": "1m"}}},
        "atMost.ramp.jobs",
        "must be at least 1, not 0",
    ),
    "a ramp of no time": ({"atMost": {"ramp": {"jobs": 1, "every": "0s"}}}, "atMost.ramp.every", "1s to 1d"),
    "a ramp of days": ({"atMost": {"ramp": {"jobs": 1, "every": "2d"}}}, "atMost.ramp.every", "1s to 1d"),
    "an unknown field": ({"window": "18:00"}, "window", "this field is not known"),
    "an unknown field within": ({"when": {"afer": "5m"}}, "when.afer", "this field is not known"),
    "an unknown choice": ({"choose": "cheapest"}, "choose", "must be one of score, order, not 'cheapest'"),
    "an unknown use of spot nodes": ({"spot": "yes"}, "spot", "must be one of allowed, only, never, not 'yes'"),
    "another kind": ({"kind": "Queue"}, "kind", "must be BurstPolicy, not 'Queue'"),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_told_with_its_place(sentence: str) -> None:
    fields, path, message = MISTAKES[sentence]
    with pytest.raises(ValidationError) as caught:
        written(**fields)
    (mistake,) = mistakes_of(caught.value)
    assert mistake.path == path
    assert message in mistake.message


@pytest.mark.parametrize("name", ["name", "queues", "budget"])
def test_a_policy_needs(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BurstPolicySpec.model_validate({key: value for key, value in NEEDED.items() if key != name})
    assert [mistake.path for mistake in mistakes_of(caught.value)] == [name]


# What is accepted

clock_times = st.integers(0, 24 * 60).map(clock)
durations = st.integers(0, 10**6) | st.sampled_from(["0s", "500ms", "10m", "1h30m", "2d"])
parts = st.floats(0.01, 1)
money = st.integers(0, 10**9) | st.decimals(0, 10**6, places=9).map(str) | st.sampled_from([0.1, 1e-9, "1e3", "5.00"])
names = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
written_hours = st.fixed_dictionaries(
    {},
    optional={
        "days": st.lists(st.sampled_from([day.value for day in Day]), min_size=1),
        "start": clock_times,
        "end": clock_times,
        "timeZone": st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    },
)
whens = st.fixed_dictionaries(
    {},
    optional={
        "after": durations,
        "expectedWait": durations,
        "utilisation": st.lists(parts, min_size=1, max_size=2).map(
            lambda both: {"above": max(both)} | ({"until": min(both)} if len(both) > 1 else {})
        ),
        "classAtLeast": names,
    },
)
amounts = st.fixed_dictionaries(
    {},
    optional={
        "jobs": st.integers(0, 10**6),
        "nodes": st.integers(0, 10**6),
        "resources": st.dictionaries(
            st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from([0, 1, 1.5, "500m", "4Gi", "1e3"])
        ),
        "ramp": st.fixed_dictionaries(
            {"jobs": st.integers(1, 10**6), "every": st.sampled_from([1, 90, "5m", "24h", "1d"])}
        ),
    },
)
budgets = st.dictionaries(st.sampled_from(["hour", "day", "month", "job"]), money).map(lambda found: {"day": 1} | found)
documents = st.fixed_dictionaries(
    {"name": names, "queues": st.just(["a", "b/c_d"]), "budget": budgets},
    optional={
        "kind": st.just("BurstPolicy"),
        "clusters": st.lists(names, max_size=3),
        "choose": st.just("score"),
        "when": whens,
        "atMost": amounts,
        "timeLimit": st.none() | st.integers(1, 10**6) | st.just("1h30m"),
        "spot": st.sampled_from(["allowed", "only", "never"]),
        "hours": st.lists(written_hours, max_size=3),
        "paused": st.booleans(),
        "description": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    },
)


@given(documents)
def test_what_is_accepted_means_the_same_when_it_was_stored(document: dict[str, Any]) -> None:
    spec = BurstPolicySpec.model_validate(document)
    stored = BurstPolicySpec.model_validate(json.loads(json.dumps(spec.to_wire())))
    assert stored == spec
    assert stored.to_wire() == spec.to_wire()
    assert policy_of(1, stored) == policy_of(1, spec)


@given(documents)
def test_what_the_api_shows_can_be_put_again(document: dict[str, Any]) -> None:
    spec = BurstPolicySpec.model_validate(document)
    shown = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert BurstPolicySpec.model_validate(json.loads(json.dumps(shown))) == spec


def test_what_is_written_whole_is_stored_whole_and_what_is_not_written_is_not_stored() -> None:
    stored = BurstPolicySpec.model_validate(WHOLE).to_wire()
    assert stored.keys() == WHOLE.keys()
    assert stored["budget"] == {
        "hour": "0.1",
        "day": "100.000000001",
        "month": "2000",
        "job": "7",
        "warnAt": [0.5, 1.0],
    }
    assert stored["hours"] == [
        NIGHT | {"days": ["fri", "mon"], "timeZone": "Europe/Berlin"},
        {"days": ["sun"]},
    ]
    assert written().to_wire() == {"name": "overflow", "queues": ["research"], "budget": {"day": "100"}}
