"""The scheduling engine beside the textbook: a strict queue is first come first served, any other is EASY."""

import random
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from bench.nasa import simulate_engine
from bench.swf import LoggedJob
from tests import textbook_backfill
from tests.textbook_easy import Job, Policy, Result, simulate
from tests.textbook_planning import last_two_equivalent, predictions
from trainmaster.protocol.states import OrderBy

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


def repeated(seed: int, jobs: int) -> list[LoggedJob]:
    """Return jobs of few widths and two estimates, so that most are equivalent to others, which took another time."""
    draw = random.Random(seed)
    return [
        LoggedJob(job.number, job.submit, job.run, draw.choice((1, 4, 7, 16)), draw.choice((128.0, 4000.0)), 1, 1)
        for job in workload(seed, jobs)
    ]


@given(st.builds(repeated, st.integers(0, 10**9), st.integers(1, 60)))
def test_with_predicted_run_times_a_queue_is_easy_with_predictions_job_for_job(jobs: list[LoggedJob]) -> None:
    """D. Tsafrir, Y. Etsion and D. Feitelson, 2007: shadow times and candidates by predictions, corrected once they are outlasted."""
    estimates = {job.number: job.estimate for job in jobs}
    ours = simulate_engine(jobs, PROCESSORS, Policy.EASY, lambda job: estimates[job.number], predicts=True)
    planning = predictions(last_two_equivalent)
    assert ours == textbook_backfill.simulate(jobs, PROCESSORS, textbook_backfill.Policy.EASY, planning)


@given(st.builds(repeated, st.integers(0, 10**9), st.integers(1, 60)))
def test_with_the_shortest_behind_a_blocked_job_first_a_queue_is_easy_plus_plus_job_for_job(
    jobs: list[LoggedJob],
) -> None:
    """The same paper's EASY++: candidates are tried by predicted run time, the shortest first; whoever is next is so by age."""
    estimates = {job.number: job.estimate for job in jobs}
    ours = simulate_engine(
        jobs,
        PROCESSORS,
        Policy.EASY,
        lambda job: estimates[job.number],
        lambda _job: "ann",
        OrderBy.SHORTEST_BACKFILL,
        predicts=True,
    )
    planning = predictions(last_two_equivalent)
    assert ours == textbook_backfill.simulate(jobs, PROCESSORS, textbook_backfill.Policy.EASY_SJBF, planning)


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
