"""The policies by the book: cases that can be checked by hand, and what holds for all of them."""

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.swf import LoggedJob
from tests import textbook_easy
from tests.textbook_backfill import Outcome, Policy, outcome, simulate
from tests.textbook_easy import Starts
from tests.textbook_machine import Order
from tests.textbook_planning import ESTIMATES, EXACT, INCREMENTS, Planning, corrected, last_two, predictions

LAST_TWO = predictions(last_two)
PLANNINGS = (EXACT, ESTIMATES, LAST_TWO)

Row = tuple[float, float, int, float] | tuple[float, float, int, float, int]
"""Submission, run time, processors, estimate, and a user other than 1."""


def jobs_of(rows: Iterable[Row]) -> list[LoggedJob]:
    return [
        LoggedJob(number, row[0], row[1], row[2], row[3], row[4] if len(row) == 5 else 1, 1)
        for number, row in enumerate(rows, start=1)
    ]


def in_order(starts: Starts) -> list[float]:
    return [at for _, at in sorted(starts.items())]


# Ten processors. Job 1 holds six until 100 and says 200; job 2 wants eight and has to wait for its end.
RUNNING, HEAD = (0.0, 100.0, 6, 200.0), (1.0, 50.0, 8, 50.0)

CASES: dict[str, tuple[Policy, Planning, list[Row], list[float]]] = {
    "first come first served needs no estimate": (
        Policy.FCFS,
        ESTIMATES,
        [RUNNING, HEAD, (2, 5, 1, 5)],
        [0, 100, 100],
    ),
    "with EASY a job passes that is estimated to end before the head is estimated to start": (
        # It really runs until 152, and delays the head, which could have started at 100, as the estimate of job 1 allows.
        Policy.EASY,
        ESTIMATES,
        [RUNNING, HEAD, (2, 150, 4, 198)],
        [0, 152, 2],
    ),
    "with exact times it would not": (Policy.EASY, EXACT, [RUNNING, HEAD, (2, 150, 4, 198)], [0, 100, 150]),
    "a job with too long an estimate does not pass": (
        Policy.EASY,
        ESTIMATES,
        [RUNNING, HEAD, (2, 5, 4, 199)],
        [0, 100, 150],
    ),
    "EASY tries candidates in the order of the queue": (
        Policy.EASY,
        ESTIMATES,
        [RUNNING, HEAD, (2, 90, 4, 90), (2, 10, 4, 10)],
        [0, 102, 2, 92],
    ),
    "and with SJBF the shortest first": (
        Policy.EASY_SJBF,
        ESTIMATES,
        [RUNNING, HEAD, (2, 90, 4, 90), (2, 10, 4, 10)],
        [0, 102, 12, 2],
    ),
    "EASY lets a job pass that delays another than the head": (
        # Job 3 could start at 250; job 4 takes two of its processors until 302.
        Policy.EASY,
        ESTIMATES,
        [(0, 200, 6, 200), HEAD, (2, 10, 10, 10), (3, 299, 2, 299)],
        [0, 200, 302, 3],
    ),
    "conservative backfill does not": (
        Policy.CONSERVATIVE,
        ESTIMATES,
        [(0, 200, 6, 200), HEAD, (2, 10, 10, 10), (3, 299, 2, 299)],
        [0, 200, 250, 260],
    ),
    "conservative backfill finds holes between reservations": (
        # Job 2 has 200 to 250, job 3 250 to 260. Job 4 fits before, job 5 on the two processors beside job 2.
        Policy.CONSERVATIVE,
        ESTIMATES,
        [(0, 200, 6, 200), HEAD, (2, 10, 10, 10), (3, 197, 4, 197), (4, 50, 2, 50)],
        [0, 200, 250, 3, 200],
    ),
    "an early end compresses the schedule in the queue's order": (
        # Job 1 leaves at 100 and not at 200: job 2 moves from 200 to 100, job 3 from 250 to 150, job 4 from 260 to 160.
        Policy.CONSERVATIVE,
        ESTIMATES,
        [RUNNING, HEAD, (2, 10, 10, 10), (3, 299, 2, 299)],
        [0, 100, 150, 160],
    ),
}


@pytest.mark.parametrize(("policy", "planning", "rows", "starts"), CASES.values(), ids=CASES)
def test_by_hand(policy: Policy, planning: Planning, rows: list[Row], starts: list[float]) -> None:
    assert in_order(simulate(jobs_of(rows), 10, policy, planning)) == starts


# -- slack

# Job 2 waits 60 seconds for job 1, and job 3 none: a mean wait of 20. Job 3 then holds six processors until 260, and job 4, which
# wants the whole machine, has its reservation there.
EARLIER: list[Row] = [(0, 60, 10, 60), (0, 40, 10, 40), (160, 100, 6, 100), (170, 50, 10, 50)]


def test_with_slack_a_job_passes_that_delays_another_by_no_more_than_the_mean_wait() -> None:
    """Job 5 starts at 180 and would end at 280 or 281: 20 seconds after the reservation of job 4, or 21."""
    in_time, too_late = (jobs_of([*EARLIER, (180, run, 4, run)]) for run in (100, 101))
    assert in_order(outcome(in_time, 10, Policy.SLACK, ESTIMATES).starts) == [0, 60, 160, 280, 180]
    assert in_order(outcome(too_late, 10, Policy.SLACK, ESTIMATES).starts) == [0, 60, 160, 260, 310]
    assert in_order(outcome(too_late, 10, Policy.SLACK, ESTIMATES, slack_factor=1.1).starts) == [0, 60, 160, 281, 180]


def test_slack_is_used_up() -> None:
    """Job 5 delays job 4 to 275; job 6 would delay it to 281, which is later than 280."""
    jobs = jobs_of([*EARLIER, (180, 95, 2, 95), (181, 100, 2, 100)])
    assert in_order(outcome(jobs, 10, Policy.SLACK, ESTIMATES).starts) == [0, 60, 160, 275, 180, 325]


# -- predictions


def test_predictions_are_the_estimate_until_a_user_has_two_jobs_that_ended() -> None:
    job, ended = LoggedJob(9, 0, 5, 1, 100, 1, 1), jobs_of([(0, 10, 1, 90), (0, 20, 1, 90), (0, 60, 1, 90)])
    assert [last_two(job, ended[:count]) for count in range(4)] == [100, 100, 15, 40]


def test_a_prediction_lets_a_job_pass_that_its_estimate_would_hold_back() -> None:
    """User 2 has run jobs of 10 seconds twice; the third is estimated at 500 seconds and predicted at 10."""
    history: list[Row] = [(0, 10, 1, 500, 2), (0, 10, 1, 500, 2)]
    rows: list[Row] = [*history, (20, 100, 6, 100), (21, 50, 8, 50), (22, 10, 4, 500, 2)]
    assert in_order(simulate(jobs_of(rows), 10, Policy.EASY, LAST_TWO))[2:] == [20, 120, 22]
    assert in_order(simulate(jobs_of(rows), 10, Policy.EASY, ESTIMATES))[2:] == [20, 120, 170]


def test_a_prediction_that_is_exceeded_is_corrected() -> None:
    """Job 3 is predicted to run from 20 to 30. At 30, it gets another minute, and at 90 another five.

    Job 4 wants the whole machine, and expects it at 30, then at 90, then at 390. So job 5, of 50 seconds, starts at 30, and job 6,
    of 290, at 90. Job 3 really ends at 200.
    """
    history: list[Row] = [(0, 10, 1, 500, 2), (0, 10, 1, 500, 2)]
    rows: list[Row] = [*history, (20, 180, 6, 1000, 2), (21, 50, 10, 50), (22, 50, 4, 50), (23, 290, 4, 290)]
    result = outcome(jobs_of(rows), 10, Policy.EASY, LAST_TWO)
    assert in_order(result.starts)[2:] == [20, 380, 30, 90]
    assert result.first_reservations[4] == 30


def test_corrections_grow_up_to_the_estimate() -> None:
    job = LoggedJob(1, 0, 9000, 1, 10000, 1, 1)
    planned, steps = 100.0, []
    for corrections in range(6):
        planned = corrected(job, planned, corrections)
        steps.append(planned)
    assert steps == [160, 460, 1360, 3160, 6760, 10000]
    assert corrected(job, 150, len(INCREMENTS)) == 10000


def test_waiting_jobs_are_predicted_anew_when_one_of_their_user_ends() -> None:
    """Job 5 is estimated at 500 seconds when it arrives at 2. At 10, two jobs of its user have ended."""
    rows: list[Row] = [(0, 5, 1, 500, 2), (0, 10, 1, 500, 2), (0, 100, 5, 100), (1, 50, 8, 50), (2, 10, 5, 500, 2)]
    assert in_order(simulate(jobs_of(rows), 10, Policy.EASY, LAST_TWO))[3:] == [100, 10]


def test_reservations_are_made_anew_when_a_prediction_is_exceeded() -> None:
    """Job 3 is predicted to end at 30; at 30, it is corrected to 90, and job 5 fits before job 4, which has the whole machine."""
    history: list[Row] = [(0, 10, 1, 500, 2), (0, 10, 1, 500, 2)]
    rows: list[Row] = [*history, (20, 60, 6, 1000, 2), (21, 50, 10, 50), (22, 40, 4, 40)]
    assert in_order(simulate(jobs_of(rows), 10, Policy.CONSERVATIVE, LAST_TWO))[2:] == [20, 80, 30]


# -- orders

ALL = 10
# Job 1 ends early: only then reservations are moved in the order of the queue.
ORDERED: list[Row] = [(0, 100, ALL, 101), (1, 50, ALL, 50), (10, 10, ALL, 10), (95, 2, ALL, 2)]


@pytest.mark.parametrize("policy", Policy)
def test_orders_of_the_queue_by_hand(policy: Policy) -> None:
    """At 100, expansion factors less 1 are 99 / 50, 90 / 10 and 5 / 2; at 110, 109 / 50 and 15 / 2."""
    arrival, shortest, expansion = (
        in_order(simulate(jobs_of(ORDERED), ALL, policy, ESTIMATES, order))[1:]
        for order in (Order.ARRIVAL, Order.SHORTEST, Order.EXPANSION)
    )
    assert arrival == [100, 150, 160]
    if policy is Policy.CONSERVATIVE:
        # The second that job 1 left is enough for job 2 alone to move, and the others are moved before it.
        assert shortest == expansion == [100, 151, 161]
    elif policy is Policy.SLACK:
        assert shortest == expansion == [100, 150, 160], "at 150, job 3 is tried and delays nobody"
    else:
        assert shortest == [112, 102, 100]
        assert expansion == [112, 100, 110]


# -- what holds for all

rows_of_jobs = st.tuples(
    st.integers(0, 60), st.integers(1, 30), st.integers(1, 8), st.integers(0, 40), st.integers(1, 3)
)
workloads = st.lists(rows_of_jobs, min_size=1, max_size=25).map(
    lambda rows: jobs_of((float(at), float(run), size, float(run + more), user) for at, run, size, more, user in rows)
)
combinations = st.sampled_from(list(product(Policy, PLANNINGS, Order)))


def used_at(jobs: Sequence[LoggedJob], starts: Starts, at: float) -> int:
    return sum(job.processors for job in jobs if starts[job.number] <= at < starts[job.number] + job.run)


@given(workloads, combinations)
def test_every_job_starts_after_its_submission_and_no_processor_is_given_twice(
    jobs: list[LoggedJob], combination: tuple[Policy, Planning, Order]
) -> None:
    starts = simulate(jobs, 8, *combination)
    assert starts.keys() == {job.number for job in jobs}
    assert all(starts[job.number] >= job.submit for job in jobs)
    assert all(used_at(jobs, starts, at) <= 8 for at in starts.values())


@given(workloads, st.integers(2, 4))
def test_of_several_reservations_the_first_is_that_of_easy_and_all_hold_with_exact_times(
    jobs: list[LoggedJob], depth: int
) -> None:
    """No job starts after the time that was reserved for it first: what goes before it later delays none that has a reservation."""
    result = outcome(jobs, 8, Policy.EASY, EXACT, depth=depth)
    assert result.starts.keys() == {job.number for job in jobs}
    assert all(result.starts[number] <= at for number, at in result.first_reservations.items())
    assert (
        outcome(jobs, 8, Policy.EASY, EXACT, depth=10**6).starts == outcome(jobs, 8, Policy.CONSERVATIVE, EXACT).starts
    )


@given(workloads, st.sampled_from((Policy.FCFS, Policy.EASY)))
def test_with_exact_times_they_are_those_of_the_other_book(jobs: list[LoggedJob], policy: Policy) -> None:
    assert simulate(jobs, 8, policy, EXACT) == textbook_easy.simulate(jobs, 8, textbook_easy.Policy(policy.value))


@given(workloads)
def test_exact_estimates_are_exact_times(jobs: list[LoggedJob]) -> None:
    exact = jobs_of((job.submit, job.run, job.processors, job.run, job.user) for job in jobs)
    for policy, order in product(Policy, Order):
        assert simulate(exact, 8, policy, ESTIMATES, order) == simulate(jobs, 8, policy, EXACT, order)


@given(workloads, st.sampled_from(PLANNINGS))
def test_first_come_first_served_starts_in_order_of_submission(jobs: list[LoggedJob], planning: Planning) -> None:
    starts = simulate(jobs, 8, Policy.FCFS, planning)
    in_line = [starts[job.number] for job in sorted(jobs, key=lambda job: (job.submit, job.number))]
    assert in_line == sorted(in_line)
    assert starts == simulate(jobs, 8, Policy.FCFS, EXACT), "it plans nothing"


@given(
    workloads,
    st.sampled_from((EXACT, ESTIMATES)),
    st.sampled_from((Policy.EASY, Policy.EASY_SJBF, Policy.CONSERVATIVE)),
)
def test_no_job_starts_later_than_the_first_reservation_it_had(
    jobs: list[LoggedJob], planning: Planning, policy: Policy
) -> None:
    """Holds where no job runs longer than planned: with EASY for the head of the queue, with conservative backfill for all."""
    result = outcome(jobs, 8, policy, planning)
    assert all(result.starts[number] <= at for number, at in result.first_reservations.items())
    if policy is Policy.CONSERVATIVE:
        assert result.first_reservations.keys() == result.starts.keys()


@given(workloads, st.sampled_from(Order))
def test_conservative_reservations_hold_in_any_order_of_the_queue(jobs: list[LoggedJob], order: Order) -> None:
    result = outcome(jobs, 8, Policy.CONSERVATIVE, ESTIMATES, order)
    assert all(result.starts[number] <= at for number, at in result.first_reservations.items())


@given(workloads, st.sampled_from((EXACT, ESTIMATES)), st.sampled_from((0.0, 0.5, 2.0)))
def test_no_job_starts_later_than_its_slack_allows(
    jobs: list[LoggedJob], planning: Planning, slack_factor: float
) -> None:
    result = outcome(jobs, 8, Policy.SLACK, planning, slack_factor=slack_factor)
    assert result.latest.keys() == result.starts.keys()
    assert all(result.starts[number] <= at for number, at in result.latest.items())


def plain_conservative(jobs: Sequence[LoggedJob], processors: int) -> Starts:
    """Return starts second after second: each job, in order of submission, at the first second from which it fits throughout."""
    starts: Starts = {}
    placed: list[LoggedJob] = []
    for job in sorted(jobs, key=lambda job: (job.submit, job.number)):
        at = job.submit
        while any(used_at(placed, starts, at + step) + job.processors > processors for step in range(int(job.run))):
            at += 1
        starts[job.number] = at
        placed.append(job)
    return starts


@given(workloads)
def test_with_exact_times_conservative_backfill_places_each_job_once(jobs: list[LoggedJob]) -> None:
    assert simulate(jobs, 8, Policy.CONSERVATIVE, EXACT) == plain_conservative(jobs, 8)


def test_a_job_that_is_not_allowed_is_refused() -> None:
    refused: dict[str, Row] = {
        "job 1 wants 11 processors; the machine has 10": (0, 1, 11, 1),
        "job 1 runs 0 seconds; allowed: above 0, at most its estimate 1": (0, 0, 1, 1),
        "job 1 runs 2 seconds; allowed: above 0, at most its estimate 1": (0, 2, 1, 1),
    }
    for message, row in refused.items():
        with pytest.raises(ValueError, match=message):
            simulate(jobs_of([row]), 10, Policy.EASY, ESTIMATES)


def test_an_outcome_says_when_jobs_start() -> None:
    jobs = jobs_of([(0, 10, 10, 10), (0, 10, 10, 10)])
    assert outcome(jobs, 10, Policy.CONSERVATIVE, ESTIMATES) == Outcome({1: 0, 2: 10}, {1: 0, 2: 10}, {1: 0, 2: 10})
