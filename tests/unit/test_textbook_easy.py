"""The textbook scheduler itself: cases that can be checked by hand, and the known figures of a real log."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.swf import divide_gaps, parse_swf, read_swf
from tests.textbook_easy import Job, Policy, Result, Starts, bounded_slowdown, simulate

Row = tuple[float, float, int]
"""Submission, run time, processors."""


def jobs_of(rows: Iterable[Row]) -> list[Job]:
    return [Job(number, submit, run, processors) for number, (submit, run, processors) in enumerate(rows, start=1)]


# Ten processors. Job 1 holds six until 100, job 2 wants eight and therefore has to wait until then.
RUNNING, HEAD = (0.0, 100.0, 6), (1.0, 50.0, 8)

CASES: dict[str, tuple[Policy, list[Row], list[float]]] = {
    "what fits starts at once": (Policy.FCFS, [(0, 10, 4), (0, 10, 6), (3, 1, 1)], [0, 0, 10]),
    "first come first served lets nobody pass": (Policy.FCFS, [RUNNING, HEAD, (2, 5, 1)], [0, 100, 100]),
    "the queue goes on as soon as its head has started": (
        Policy.FCFS,
        [RUNNING, HEAD, (2, 5, 2), (2, 5, 2)],
        [0, 100, 100, 105],
    ),
    "with EASY a job passes that ends before the head can start": (
        Policy.EASY,
        [RUNNING, HEAD, (2, 5, 4)],
        [0, 100, 2],
    ),
    "it may end at the very moment": (Policy.EASY, [RUNNING, HEAD, (2, 98, 4)], [0, 100, 2]),
    "it may not end later": (Policy.EASY, [RUNNING, HEAD, (2, 99, 4)], [0, 100, 150]),
    "a long job passes on processors that the head leaves": (
        Policy.EASY,
        [RUNNING, HEAD, (2, 1000, 2)],
        [0, 100, 2],
    ),
    "not on more than these": (Policy.EASY, [RUNNING, HEAD, (2, 1000, 3)], [0, 100, 150]),
    "what one job took of them another cannot have": (
        Policy.EASY,
        [RUNNING, HEAD, (2, 1000, 1), (2, 1000, 1), (2, 1000, 1)],
        [0, 100, 2, 2, 150],
    ),
    "what ends in time takes none of them": (
        Policy.EASY,
        [RUNNING, HEAD, (2, 50, 2), (2, 1000, 2)],
        [0, 100, 2, 2],
    ),
    "but both need processors that are free": (
        Policy.EASY,
        [RUNNING, HEAD, (2, 50, 3), (2, 1000, 2)],
        [0, 100, 2, 52],
    ),
    "all that ends at the moment itself is free then": (
        Policy.EASY,
        [(0, 100, 3), (0, 100, 4), (1, 50, 5), (2, 1000, 3), (2, 1000, 2)],
        [0, 0, 100, 2, 100],
    ),
    "only the head has a reservation, and others may be delayed": (
        # Job 3 could start at 150. Job 4, which ends at 180, takes two of the processors it needs, but none of the head's.
        Policy.EASY,
        [RUNNING, HEAD, (2, 10, 10), (3, 177, 2)],
        [0, 100, 180, 3],
    ),
    "the reservation is computed anew at each event": (
        # No processor is free at 2; at 3, when job 3 ends, job 4 still ends in time.
        Policy.EASY,
        [RUNNING, HEAD, (1, 2, 4), (2, 90, 4)],
        [0, 100, 1, 3],
    ),
}


@pytest.mark.parametrize(("policy", "rows", "starts"), CASES.values(), ids=CASES)
def test_by_hand(policy: Policy, rows: list[Row], starts: list[float]) -> None:
    assert [at for _, at in sorted(simulate(jobs_of(rows), 10, policy).items())] == starts


def test_a_job_wider_than_the_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="job 1 wants 11 processors; the machine has 10"):
        simulate(jobs_of([(0, 1, 11)]), 10, Policy.EASY)


def test_bounded_slowdown_counts_short_runs_as_ten_seconds() -> None:
    assert bounded_slowdown(wait=99, run=1) == 10
    assert bounded_slowdown(wait=100, run=100) == 2
    assert bounded_slowdown(wait=3, run=1) == 1, "never below one"


def test_means_are_over_all_jobs() -> None:
    jobs = jobs_of([(0, 20, 1), (5, 20, 1)])
    assert Result.of(jobs, {1: 0, 2: 25}) == Result(mean_wait=10, mean_bounded_slowdown=1.5)


workloads = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=25).map(
    lambda rows: jobs_of((float(submit), float(run), processors) for submit, run, processors in rows)
)


def used_at(jobs: list[Job], starts: Starts, at: float) -> int:
    return sum(job.processors for job in jobs if starts[job.number] <= at < starts[job.number] + job.run)


@given(workloads, st.sampled_from(Policy))
def test_no_job_starts_early_and_no_processor_is_given_twice(jobs: list[Job], policy: Policy) -> None:
    starts = simulate(jobs, 8, policy)
    assert all(starts[job.number] >= job.submit for job in jobs)
    assert all(used_at(jobs, starts, at) <= 8 for at in starts.values())


@given(workloads)
def test_first_come_first_served_starts_each_job_as_soon_as_those_before_it_let_it(jobs: list[Job]) -> None:
    """Against a plain construction: second after second, one job after another."""
    expected: Starts = {}
    placed: list[Job] = []
    at = 0.0
    for job in sorted(jobs, key=lambda job: (job.submit, job.number)):
        at = max(at, job.submit)
        while used_at(placed, expected, at) + job.processors > 8:
            at += 1
        expected[job.number] = at
        placed.append(job)
    assert simulate(jobs, 8, Policy.FCFS) == expected


@given(workloads)
def test_with_easy_the_head_starts_no_later_than_what_ran_before_it_was_the_head_allows(jobs: list[Job]) -> None:
    """Nothing that starts while a job is at the head of the queue delays it."""
    starts = simulate(jobs, 8, Policy.EASY)
    order = sorted(jobs, key=lambda job: (job.submit, job.number))
    for place, head in enumerate(order):
        since = max([head.submit, *(starts[before.number] for before in order[:place])])
        if starts[head.number] > since:
            running = [job for job in jobs if starts[job.number] < since or job in order[:place]]
            at = since
            while used_at(running, starts, at) + head.processors > 8:
                at += 1
            assert starts[head.number] <= at


# -- the log

LINES = """\
; MaxProcs: 128
    1        0     -1   1451  128     -1    -1   -1     -1    -1 -1   1   1  -1 -1 -1 -1 -1
    2       10     -1     -1  128     -1    -1   -1     -1    -1 -1   1   1  -1 -1 -1 -1 -1
    3       20     -1      5    0     -1    -1   -1     -1    -1 -1   1   1  -1 -1 -1 -1 -1

    4       31     -1      7    2     -1    -1   -1     -1    -1 -1   1   1  -1 -1 -1 -1 -1
"""


def test_jobs_that_never_ran_are_left_out_of_a_log() -> None:
    assert parse_swf(LINES.splitlines()) == [Job(1, 0, 1451, 128), Job(4, 31, 7, 2)]


@pytest.mark.parametrize(
    ("line", "message"),
    [("1 2 3", "line 1: 3 fields; a job has 18"), ("1 soon" + " -1" * 16, "line 1: could not convert .*'soon'")],
    ids=["few fields", "a word"],
)
def test_a_line_that_is_no_job_is_named(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_swf([line])


def test_divided_gaps_bring_jobs_closer_and_leave_the_rest() -> None:
    jobs = jobs_of([(100, 7, 1), (140, 7, 2), (141, 7, 3)])
    assert divide_gaps(jobs, 2) == jobs_of([(100, 7, 1), (120, 7, 2), (120, 7, 3)])
    with pytest.raises(ValueError, match="divisor 0 is not allowed"):
        divide_gaps(jobs, 0)


def test_the_nasa_log_at_1_4_times_its_load_gives_the_known_waits(shared: Path) -> None:
    jobs = divide_gaps(read_swf(shared / "data" / "NASA-iPSC-1993-3.1-cln.swf.gz"), 1.4)
    waits = {policy: Result.of(jobs, simulate(jobs, 128, policy)).mean_wait for policy in Policy}
    assert waits == pytest.approx({Policy.FCFS: 6600, Policy.EASY: 1600}, rel=0.05)
