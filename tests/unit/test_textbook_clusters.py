"""Several machines by the book: cases that can be checked by hand, and the engine on several clusters beside them."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.clusters import measure, wide_alone
from bench.model_logs import lublin_log
from bench.nasa import simulate_engine
from bench.swf import LoggedJob
from tests import textbook_easy
from tests.textbook_backfill import Policy, simulate
from tests.textbook_clusters import Choice, simulate_clusters
from tests.textbook_planning import ESTIMATES, Planning, last_two, predictions

LAST_TWO = predictions(last_two)


def jobs_of(*rows: tuple[float, float, int]) -> list[LoggedJob]:
    """Return jobs with these submissions, run times and processors, whose estimates are exact."""
    return [LoggedJob(number, at, run, many, run, 1, 1) for number, (at, run, many) in enumerate(rows, start=1)]


@pytest.mark.parametrize("planning", [ESTIMATES, LAST_TWO], ids=lambda planning: planning.name)
@pytest.mark.parametrize("choice", Choice)
def test_on_one_machine_every_choice_is_easy(choice: Choice, planning: Planning) -> None:
    jobs = lublin_log(seed=3, count=400, processors=32, load=0.9)
    assert simulate_clusters(jobs, [32], planning, choice) == simulate(jobs, 32, Policy.EASY, planning)


def test_a_job_is_sent_where_it_would_start_first() -> None:
    # The first two fill the machines until 100 and 50; the third goes behind the second. The fourth would start at 100 on the first
    # machine, and at 90 on the other, behind the third.
    jobs = jobs_of((0, 100, 8), (0, 50, 4), (1, 40, 4), (2, 10, 4), (3, 10, 8))
    starts = simulate_clusters(jobs, [8, 4], ESTIMATES, Choice.EARLIEST)
    assert starts == {1: 0, 2: 0, 3: 50, 4: 90, 5: 100}


def test_machines_take_turns_and_narrow_ones_are_left_out() -> None:
    jobs = jobs_of((0, 10, 4), (0, 10, 4), (0, 10, 8), (0, 10, 4))
    assert simulate_clusters(jobs, [8, 4], ESTIMATES, Choice.ROUND_ROBIN) == {1: 0, 2: 0, 3: 10, 4: 10}


def test_a_job_that_is_wider_than_every_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="job 1 wants 9 processors; the widest machine has 8"):
        simulate_clusters(jobs_of((0, 1, 9)), [8, 4], ESTIMATES, Choice.RANDOM)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(1, 6)), min_size=1, max_size=25),
    st.permutations([6, 4, 3]),
)
def test_the_engine_starts_every_job_and_fills_no_cluster_twice(
    rows: list[tuple[int, int, int]], clusters: list[int]
) -> None:
    """``simulate_engine`` raises if a job never starts. Of all clusters together, no more is in use than there is."""
    jobs = jobs_of(*((float(at), float(run), many) for at, run, many in rows))
    starts = simulate_engine(jobs, clusters, textbook_easy.Policy.EASY)
    changes = sorted(
        (at, many)
        for job in jobs
        for at, many in ((starts[job.number], job.processors), (starts[job.number] + job.run, -job.processors))
    )
    assert max(accumulate(many for _, many in changes)) <= sum(clusters)
    assert all(starts[job.number] >= job.submit for job in jobs)


def test_the_engine_waits_less_on_unequal_clusters_than_any_rule_that_chooses_at_arrival() -> None:
    jobs = lublin_log(seed=4, count=1500, processors=32, load=1.4)
    found = measure(jobs, [32, 16, 8], "limits")
    waits = {name: figures["mean_wait"] for name, figures in found.items()}
    assert waits["engine"] < min(waits[choice] for choice in Choice), waits


def test_wide_jobs_alone_have_a_cluster_of_all_whole_blocks() -> None:
    # 80 and 48 processors hold three blocks of 32: the fourth job waits for the first, the one of 64 for the second and third.
    jobs = jobs_of((0, 100, 32), (0, 90, 32), (0, 80, 32), (0, 50, 16), (0, 70, 32), (0, 10, 64))
    assert wide_alone(jobs, [80, 48], "limits") == pytest.approx((80 + 100) / 6)
    assert wide_alone(jobs, [128], "limits") == pytest.approx(80 / 6)
