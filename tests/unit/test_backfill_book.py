"""The figures of a schedule, and the bench that prints those of policies by the book."""

import pytest

from bench.backfill_book import CASES, run_log
from bench.swf import LoggedJob
from tests.textbook_backfill import Policy
from tests.textbook_figures import Figures


def test_figures_by_hand() -> None:
    jobs = [
        LoggedJob(1, submit=0, run=20, processors=1, estimate=20, user=1, executable=1),
        LoggedJob(2, submit=5, run=20, processors=1, estimate=20, user=2, executable=1),
        LoggedJob(3, submit=5, run=5, processors=1, estimate=20, user=2, executable=1),
    ]
    figures = Figures.of(jobs, {1: 0, 2: 25, 3: 45})
    assert figures == Figures(
        mean_wait=20,
        wait_95=40,
        longest_wait=40,
        mean_bounded_slowdown=(1 + 2 + 4.5) / 3,
        mean_wait_by_user={1: 0, 2: 30},
        jobs_by_user={1: 1, 2: 2},
    )
    assert Figures.of(jobs * 40, {1: 0, 2: 25, 3: 45}).wait_95 == 40
    with pytest.raises(ValueError, match="no jobs"):
        Figures.of([], {})


def figures_of(waits: dict[int, float], jobs: dict[int, int]) -> Figures:
    return Figures(0, 0, 0, 0, mean_wait_by_user=waits, jobs_by_user=jobs)


def test_the_worst_change_of_a_user_leaves_out_short_waits_and_users_of_few_jobs() -> None:
    jobs = {1: 10, 2: 10, 3: 10, 4: 9}
    before = figures_of({1: 1.0, 2: 200.0, 3: 100.0, 4: 100.0}, jobs)
    after = figures_of({1: 50.0, 2: 300.0, 3: 90.0, 4: 1000.0}, jobs)
    assert after.worst_change(before) == (2, 1.5)
    assert after.worst_change(before, floor=1) == (1, 50)
    assert after.worst_change(before, fewest=9) == (4, 10)
    with pytest.raises(ValueError, match="no user has 11 jobs"):
        after.worst_change(before, fewest=11)


def test_the_bench_compares_each_policy_with_easy_and_estimates() -> None:
    assert len(set(CASES)) == 22
    measured = run_log("lublin128", 300, [Policy.FCFS], users=True)
    assert (measured["jobs"], measured["processors"]) == (300, 128)
    easy, fcfs = measured["results"]
    assert (easy["policy"], easy["planning"], fcfs["policy"]) == ("easy", "estimates", "fcfs")
    assert easy["worst_user"]["times_as_long"] == 1
    assert easy["mean_wait"] < fcfs["mean_wait"]
    assert easy["mean_wait_by_user"].keys() == fcfs["mean_wait_by_user"].keys()
    assert len(measured["delayed_easy"]) == 3
    for delayed in measured["delayed_easy"]:
        assert delayed["users"] > 0
        assert (delayed["users_10_percent_worse"] > 0) == (delayed["worst_user"]["times_as_long"] > 1.1)
