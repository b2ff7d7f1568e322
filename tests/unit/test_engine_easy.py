"""The scheduling engine beside the textbook: a strict queue is first come first served, any other is EASY."""

import random
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from bench.nasa import simulate_engine
from tests.textbook_easy import Job, Policy, Result, simulate

PROCESSORS = 16


def workload(seed: int, jobs: int = 60) -> list[Job]:
    """Return jobs that ask for about as much as the machine can do, in bursts: many short ones, few long ones, of all widths."""
    draw = random.Random(seed)
    at, out = 0, []
    for number in range(1, jobs + 1):
        at += draw.choice((0, 0, 1)) * draw.randint(1, 60)
        run = float(round(2 ** draw.uniform(0, 7)))
        out.append(Job(number, float(at), run, draw.choice((1, 1, 2, 3, 4, 7, 8, 11, 16))))
    return out


workloads = st.builds(workload, st.integers(0, 10**9), st.integers(1, 60))


@given(workloads)
def test_a_strict_queue_is_first_come_first_served_job_for_job(jobs: list[Job]) -> None:
    assert simulate_engine(jobs, PROCESSORS, Policy.FCFS) == simulate(jobs, PROCESSORS, Policy.FCFS)


@given(workloads)
def test_where_jobs_have_time_limits_a_queue_is_easy_job_for_job(jobs: list[Job]) -> None:
    """Holds for one cluster of equivalent nodes; the engine may be changed to do better, but not by accident."""
    assert simulate_engine(jobs, PROCESSORS, Policy.EASY) == simulate(jobs, PROCESSORS, Policy.EASY)


def test_where_jobs_have_time_limits_a_queue_waits_no_longer_than_with_easy() -> None:
    """The promise, on the mean of many workloads: on a single one, one job that starts otherwise may turn it either way."""
    ours, book = [], []
    for seed in range(40):
        jobs = workload(seed)
        ours.append(Result.of(jobs, simulate_engine(jobs, PROCESSORS, Policy.EASY)))
        book.append(Result.of(jobs, simulate(jobs, PROCESSORS, Policy.EASY)))
    assert fmean(result.mean_wait for result in book) > 10, "there is something to compare"
    for figure in ("mean_wait", "mean_bounded_slowdown"):
        mean, by_the_book = (fmean(getattr(result, figure) for result in results) for results in (ours, book))
        assert mean <= 1.02 * by_the_book, figure
