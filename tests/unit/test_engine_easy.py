"""The scheduling engine beside the textbook: the same schedule with a strict queue, no worse waits with backfill."""

import random
from importlib.util import find_spec
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nasa import simulate_engine
from tests.textbook_easy import Job, Policy, Result, simulate

PROCESSORS = 16

needs_backfill = pytest.mark.skipif(
    find_spec("trainmaster.dispatcher.scheduling.backfill") is None, reason="the engine makes no reservations yet"
)


def workload(seed: int, jobs: int = 60) -> list[Job]:
    """Jobs that ask for about as much as the machine can do, in bursts: many short ones, few long ones, of all widths."""
    draw = random.Random(seed)
    at, out = 0, []
    for number in range(1, jobs + 1):
        at += draw.choice((0, 0, 1)) * draw.randint(1, 60)
        run = float(round(2 ** draw.uniform(0, 7)))
        out.append(Job(number, float(at), run, draw.choice((1, 1, 2, 3, 4, 7, 8, 11, 16))))
    return out


seeds = st.integers(0, 10**9)


@given(seeds)
def test_a_strict_queue_is_first_come_first_served(seed: int) -> None:
    jobs = workload(seed)
    assert simulate_engine(jobs, PROCESSORS, Policy.FCFS) == simulate(jobs, PROCESSORS, Policy.FCFS)


@needs_backfill
def test_with_time_limits_the_default_queue_waits_no_longer_than_easy_by_the_book() -> None:
    """On the mean of many workloads: on a single one a schedule that starts one job otherwise may end up either way."""
    ours, book = [], []
    for seed in range(40):
        jobs = workload(seed)
        ours.append(Result.of(jobs, simulate_engine(jobs, PROCESSORS, Policy.EASY)))
        book.append(Result.of(jobs, simulate(jobs, PROCESSORS, Policy.EASY)))
    assert fmean(result.mean_wait for result in book) > 10, "there is something to compare"
    for figure in ("mean_wait", "mean_bounded_slowdown"):
        mean, by_the_book = (fmean(getattr(result, figure) for result in results) for results in (ours, book))
        assert mean <= 1.02 * by_the_book, figure
