"""Requests that are suggested for recurring jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain.efficiency import RecurringUse, suggestions_for
from trainmaster_dispatcher.domain.member_use import RequestedAmounts

GIB = 2**30
EACH = RequestedAmounts(4000, 16 * GIB)


def use(runs: int = 3, cpu: int | None = 1000, peak: int | None = GIB, *, short: bool = False) -> RecurringUse:
    return RecurringUse(runs, cpu, peak, short, 10.0)


def test_less_is_suggested_where_less_was_used() -> None:
    cpu, memory = suggestions_for(use(), EACH)
    assert (cpu.suggested, memory.suggested) == (1200, 1280 * 2**20)
    assert cpu.sentence(3) == (
        "request cpu 1.2 instead of 4, from 3 runs: the members of a run used at most, on average, 1, and 20 % are added"
    )
    assert memory.sentence(3) == (
        "request memory 1.25Gi instead of 16Gi, from 3 runs: the peak of a member was 1Gi, and 25 % are added"
    )


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_nothing_is_suggested_from_fewer_than_three_runs(runs: int) -> None:
    assert suggestions_for(use(runs), EACH) == []


def test_nothing_is_suggested_where_nothing_is_known_or_nothing_was_requested() -> None:
    assert suggestions_for(use(cpu=None, peak=None), EACH) == []
    assert suggestions_for(use(), RequestedAmounts()) == []


def test_little_is_not_worth_a_change() -> None:
    assert suggestions_for(use(cpu=3200, peak=13 * GIB), EACH) == []


def test_no_less_memory_is_suggested_where_a_limit_was_reached() -> None:
    assert [one.resource for one in suggestions_for(use(short=True), EACH)] == ["cpu"]


def test_more_memory_is_suggested_where_it_was_short() -> None:
    (more,) = suggestions_for(use(cpu=None, peak=16 * GIB, short=True), EACH)
    assert (more.resource, more.requested, more.suggested > 19 * GIB) == ("memory", 16 * GIB, True)


@given(st.integers(1, 10**6), st.integers(1, 2**45), st.booleans(), st.integers(1, 10**6), st.integers(1, 2**45))
def test_a_suggestion_is_never_below_what_was_observed(
    cpu: int, peak: int, short: bool, asks: int, memory: int
) -> None:
    for one in suggestions_for(use(5, cpu, peak, short=short), RequestedAmounts(asks, memory)):
        assert one.suggested > one.observed
        assert one.margin_percent >= 19.9
