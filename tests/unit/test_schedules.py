"""Due times of schedules: jitter, missed windows and concurrency, as pure decisions."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.protocol.schedules import ConcurrencyPolicy
from trainmaster_dispatcher.domain.cron import parse
from trainmaster_dispatcher.domain.schedules import DueWindow, Outcome, Timing, job_suffix, outcome, window

_BASE = datetime(2026, 11, 28, 8, 0, tzinfo=UTC)
_HOURLY = Timing(parse("0 * * * *"), ZoneInfo("UTC"))


def _later(**span: float) -> datetime:
    return _BASE + timedelta(**span)


WINDOWS = {
    "nothing has come": ("0 * * * *", {"minutes": 59}, None),
    "one has come": ("0 * * * *", {"minutes": 60}, ({"hours": 1}, 1)),
    "of several, the newest": ("0 * * * *", {"hours": 5, "minutes": 59}, ({"hours": 5}, 5)),
    "many are counted up to 101": ("* * * * *", {"days": 30}, ({"days": 30}, 101)),
}


@pytest.mark.parametrize(("expression", "now", "expected"), WINDOWS.values(), ids=WINDOWS.keys())
def test_missed_windows(expression: str, now: dict[str, float], expected: tuple[dict[str, float], int] | None) -> None:
    timing = Timing(parse(expression), ZoneInfo("UTC"))
    found = window(timing, _BASE, _later(**now))
    assert found == (None if expected is None else DueWindow(_later(**expected[0]), expected[1]))


OUTCOMES = {
    "in time": (ConcurrencyPolicy.ALLOW, None, 0, 0, Outcome.SUBMIT),
    "very late without a deadline": (ConcurrencyPolicy.ALLOW, None, 86_400, 0, Outcome.SUBMIT),
    "at its deadline": (ConcurrencyPolicy.ALLOW, 60.0, 60, 0, Outcome.SUBMIT),
    "behind its deadline": (ConcurrencyPolicy.ALLOW, 60.0, 61, 0, Outcome.LATE),
    "beside others": (ConcurrencyPolicy.ALLOW, None, 0, 3, Outcome.SUBMIT),
    "forbidden beside others": (ConcurrencyPolicy.FORBID, None, 0, 1, Outcome.BLOCKED),
    "forbidden, and nothing there": (ConcurrencyPolicy.FORBID, None, 0, 0, Outcome.SUBMIT),
    "in place of others": (ConcurrencyPolicy.REPLACE, None, 0, 2, Outcome.REPLACE),
    "nothing to replace": (ConcurrencyPolicy.REPLACE, None, 0, 0, Outcome.SUBMIT),
    "blocked until its deadline": (ConcurrencyPolicy.FORBID, 60.0, 61, 1, Outcome.LATE),
}


@pytest.mark.parametrize(("policy", "deadline", "late", "active", "expected"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_outcomes(policy: ConcurrencyPolicy, deadline: float | None, late: int, active: int, expected: Outcome) -> None:
    timing = Timing(_HOURLY.cron, _HOURLY.zone, policy, deadline)
    assert outcome(timing, _later(hours=1), _later(hours=1, seconds=late), active) is expected


def test_names_of_jobs_have_minutes_since_the_epoch() -> None:
    assert job_suffix(datetime(1970, 1, 2, 0, 1, tzinfo=UTC)) == "-1441"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *"]), st.integers(0, 3600), st.integers(0, 99))
def test_jitter_is_fixed_for_each_due_time_and_keeps_their_order(expression: str, jitter: int, key: int) -> None:
    timing = Timing(parse(expression), ZoneInfo("UTC"), jitter=jitter, key=str(key))
    now, looks = _BASE, []
    for _ in range(5):
        due = timing.next_due(now)
        assert due is not None
        assert timedelta() <= timing.delay(due) <= timedelta(seconds=jitter)
        assert timing.delay(due) == timing.delay(due)
        looks.append(due + timing.delay(due))
        now = due
    assert looks == sorted(set(looks))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 900), st.lists(st.integers(1, 2000), min_size=1, max_size=40), st.integers(0, 99))
def test_each_due_time_is_dealt_with_at_most_once_whenever_one_looks(jitter: int, steps: list[int], key: int) -> None:
    timing = Timing(parse("*/10 * * * *"), ZoneInfo("UTC"), jitter=jitter, key=str(key))
    counts_from = now = _BASE
    dealt: list[datetime] = []
    for step in steps:
        now += timedelta(seconds=step)
        found = window(timing, counts_from, now)
        if found is not None:
            assert found.due + timing.delay(found.due) <= now
            dealt.append(found.due)
            counts_from = found.due
        look = timing.next_look(counts_from)
        assert look is not None
        assert look > now  # nothing that has come is left
    assert dealt == sorted(set(dealt))
