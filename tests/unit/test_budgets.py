"""Budgets are never exceeded, whatever runs do."""

from collections import defaultdict
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain.budgets import (
    HOUR,
    Budget,
    BudgetAccount,
    BudgetForecast,
    Commitment,
    Excess,
    Span,
    Window,
    forecast,
    window_at,
    windows,
)
from trainmaster_dispatcher.domain.prices import MICROS


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * MICROS


def test_windows_are_those_of_the_calendar() -> None:
    at = moment("2028-02-29T13:45:10")
    assert window_at(Span.HOUR, at) == Window(Span.HOUR, moment("2028-02-29T13:00:00"), moment("2028-02-29T14:00:00"))
    assert window_at(Span.DAY, at) == Window(Span.DAY, moment("2028-02-29T00:00:00"), moment("2028-03-01T00:00:00"))
    assert window_at(Span.MONTH, at) == Window(Span.MONTH, moment("2028-02-01T00:00:00"), moment("2028-03-01T00:00:00"))
    december = window_at(Span.MONTH, moment("2026-12-31T23:59:59"))
    assert december.end == moment("2027-01-01T00:00:00")
    assert [one.begin for one in windows(Span.DAY, at, at + 36 * HOUR)] == [
        moment("2028-02-29T00:00:00"),
        moment("2028-03-01T00:00:00"),
        moment("2028-03-02T00:00:00"),
    ]
    assert list(windows(Span.HOUR, at, at)) == []


def test_what_a_run_may_still_cost_is_split_over_the_hours_that_it_spans() -> None:
    at = moment("2026-11-01T10:30:00")
    run = Commitment(rate=1000, begin=at, end=at + 2 * HOUR)
    assert [run.within(window) for window in windows(Span.HOUR, run.begin, run.end)] == [500, 1000, 500]
    assert run.total == 2000
    account = BudgetAccount(Budget({Span.HOUR: 1200}))
    assert account.excess(run) is None
    account.start(1, run)
    second = run._replace(rate=700)
    nine = Window(Span.HOUR, moment("2026-11-01T11:00:00"), moment("2026-11-01T12:00:00"))
    assert account.excess(second) == Excess(nine, 1200, 0, 1000, 700)
    assert account.excess(second._replace(end=at + HOUR // 2)) is None, "it is over before the full hour"


def test_what_was_not_used_is_free_again() -> None:
    at = moment("2026-11-01T10:00:00")
    account = BudgetAccount(Budget({Span.DAY: 1000}))
    account.start(1, Commitment(100, at, at + 10 * HOUR))
    another = Commitment(100, at + HOUR, at + 3 * HOUR)
    assert account.excess(another) is not None
    account.end(1, at + HOUR)
    assert account.used(Span.DAY, at + HOUR) == 100
    assert account.excess(another) is None


def test_a_job_has_a_budget_of_its_own() -> None:
    account = BudgetAccount(Budget(per_job=150))
    run = Commitment(100, 0, HOUR)
    assert account.excess(run) is None
    assert account.excess(run, job_spent=60) == Excess(None, 150, 60, 0, 100)
    assert not account.budget.is_bounded


def test_thresholds_that_are_passed_are_told() -> None:
    at = moment("2026-11-01T10:00:00")
    account = BudgetAccount(Budget({Span.HOUR: 100, Span.DAY: 1000}))
    account.start(1, Commitment(90, at, at + HOUR))
    assert account.passed((0.5, 0.8, 1.0), at) == {}
    assert account.passed((0.5, 0.8, 1.0), at + HOUR * 2 // 3) == {Span.HOUR: 0.5}
    assert account.passed((0.5, 0.8, 1.0), at + HOUR - 1) == {Span.HOUR: 0.8}


def forecast_at_noon(*, burned: int, spent: int, committed: int = 0, limit: int = 1000) -> BudgetForecast:
    noon = moment("2026-11-01T12:00:00")
    return forecast(window_at(Span.DAY, noon), limit, spent, committed, burned, noon)


def test_spending_goes_on_as_in_the_last_24_hours() -> None:
    assert forecast_at_noon(burned=600, spent=200) == BudgetForecast(500, None)
    assert forecast_at_noon(burned=0, spent=200) == BudgetForecast(200, None)
    noon = moment("2026-11-01T12:00:00")
    assert forecast_at_noon(burned=1200, spent=700) == BudgetForecast(1300, noon + 6 * HOUR)
    assert forecast_at_noon(burned=1200, spent=1000) == BudgetForecast(1600, noon), "it is reached"


def test_what_live_runs_may_still_cost_is_expected_in_any_case() -> None:
    assert forecast_at_noon(burned=100, spent=200, committed=300) == BudgetForecast(500, None)
    assert forecast_at_noon(burned=1000, spent=200, committed=300) == BudgetForecast(700, None)


def test_what_was_spent_in_a_day_is_that_of_ended_and_of_live_runs() -> None:
    now = moment("2026-11-02T10:30:00")
    yesterday = now - 24 * HOUR
    account = BudgetAccount(Budget({Span.DAY: 1000}))
    account.start(1, Commitment(90, now - 2 * HOUR, now + 5 * HOUR))
    account.start(2, Commitment(60, yesterday - 3 * HOUR, yesterday + HOUR))
    ended = {
        moment("2026-11-01T09:00:00"): 1000,  # before the day
        moment("2026-11-01T10:00:00"): 100,  # half of it is in the day
        moment("2026-11-02T09:00:00"): 20,
        moment("2026-11-02T10:00:00"): 7,  # all of it, as this hour goes on
    }
    assert account.burned(yesterday, now, ended) == 180 + 60 + 50 + 20 + 7


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Draw runs that ask to start: minutes since the one before, rate, minutes of their limit, and minutes that they really run."""
    return draw(
        st.lists(
            st.tuples(st.integers(0, 300), st.integers(0, 5000), st.integers(1, 3000), st.integers(0, 3000)),
            max_size=40,
        )
    )


@given(histories(), st.dictionaries(st.sampled_from(Span), st.integers(0, 20_000), min_size=1))
def test_no_budget_is_ever_exceeded(history: list[tuple[int, int, int, int]], limits: dict[Span, int]) -> None:
    """Whatever is let start, ends when it wants to or at its limit; then every window of the whole history is added up."""
    account = BudgetAccount(Budget(limits))
    minute, now = 60 * MICROS, moment("2026-11-29T20:17:00")
    ends: dict[int, int] = {}
    went: list[Commitment] = []
    for job, (gap, rate, limit, runs) in enumerate(history):
        now += gap * minute
        for other, at in sorted(ends.items(), key=lambda item: item[1]):
            if at <= now:
                went.append(account.live[other]._replace(end=at))
                account.end(other, at)
                del ends[other]
        run = Commitment(rate, now, now + limit * minute)
        if account.excess(run) is None:
            account.start(job, run)
            ends[job] = now + min(runs, limit) * minute
    went += [account.live[job]._replace(end=at) for job, at in ends.items()]
    spent: dict[Window, int] = defaultdict(int)
    for run in went:
        for span in limits:
            for window in windows(span, run.begin, run.end):
                spent[window] += run.within(window)
    assert all(amount <= limits[window.span] for window, amount in spent.items())


@given(histories())
def test_a_run_that_fits_into_what_is_left_is_let(history: list[tuple[int, int, int, int]]) -> None:
    """Nothing is refused that could be paid for even if everything ran to its limit."""
    account = BudgetAccount(Budget({Span.DAY: 10_000}))
    minute, now = 60 * MICROS, moment("2026-11-29T20:17:00")
    for job, (gap, rate, limit, _) in enumerate(history):
        now += gap * minute
        run = Commitment(rate, now, now + limit * minute)
        excess = account.excess(run)
        if excess is None:
            account.start(job, run)
        else:
            assert excess.window is not None
            whole = sum(one.within(excess.window) for one in (*account.live.values(), run))
            assert whole > 10_000
