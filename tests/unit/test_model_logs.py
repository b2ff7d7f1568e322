"""Logs of model jobs have the shares, the load and the users that their models say."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice, pairwise
from math import log
from pathlib import Path
from random import Random

import pytest

from bench.model_estimates import VALUES_OF_A_USER, popular_values, with_estimates
from bench.model_logs import LONGEST, arrivals, gamma_distribution, lublin_jobs, lublin_log, offered_load
from bench.swf import LoggedJob, delay_jobs, divide_gaps, parse_log, parse_swf, read_log

DAY, MAXIMUM = 86400, 48 * 3600


@pytest.fixture(scope="module", params=[(1, 256, 0.85), (2, 128, 0.9)], ids=["256 processors", "128 processors"])
def made(request: pytest.FixtureRequest) -> tuple[list[LoggedJob], int, float]:
    seed, processors, load = request.param
    return lublin_log(seed, 10_000, processors, load), processors, load


def share(counted: int, jobs: list[LoggedJob]) -> float:
    return counted / len(jobs)


# -- sizes, run times and arrivals


def test_base_jobs_have_the_published_shares() -> None:
    """Rounding makes some jobs of the other kind powers of two; the second stage of sizes begins at 32 of 128 processors."""
    jobs = list(islice(lublin_jobs(Random(5), 128), 20_000))
    assert sum(job.processors == 1 for job in jobs) / len(jobs) == pytest.approx(0.2927, abs=0.01)
    powers = sum(job.processors & (job.processors - 1) == 0 for job in jobs) / len(jobs)
    assert 0.2927 + 0.6686 - 0.01 < powers < 0.99
    large = sum(job.processors > 45 for job in jobs) / sum(job.processors > 1 for job in jobs)
    assert large == pytest.approx(0.125 * 0.75, abs=0.01), (
        "the second stage without its first quarter, which rounds to 32"
    )
    assert max(job.processors for job in jobs) == 128


def test_wider_jobs_run_longer() -> None:
    """The share of long jobs, those of about six hours, grows by 0.003 for each processor from 0.3 on."""
    jobs = list(islice(lublin_jobs(Random(6), 128), 40_000))
    for size in (1, 32, 128):
        runs = [job.run for job in jobs if job.processors == size]
        around_six_hours = sum(8_000 <= run < 58_000 for run in runs) / len(runs)
        short, long = (
            gamma_distribution(log(58_000), *gamma) - gamma_distribution(log(8_000), *gamma)
            for gamma in ((6.57, 0.823), (639.1, 0.0156))
        )
        p = 0.6986 - 0.003 * size
        assert around_six_hours == pytest.approx(p * short + (1 - p) * long, abs=0.03), size
    assert min(job.run for job in jobs) >= 1
    assert max(job.run for job in jobs) <= LONGEST


@pytest.mark.parametrize(
    ("value", "shape", "scale", "probability"),
    [(1, 1, 1, 0.632121), (6, 2, 3, 0.593994), (32.3, 6.1271, 5.2740, 0.553)],
    ids=["exponential", "Erlang", "the daily cycle at its mean"],
)
def test_the_gamma_distribution_is_known_at_some_points(
    value: float, shape: float, scale: float, probability: float
) -> None:
    assert gamma_distribution(value, shape, scale) == pytest.approx(probability, abs=1e-3)


def test_arrivals_follow_the_day_at_any_load() -> None:
    for span in (40 * DAY, 200 * DAY):
        times = arrivals(Random(7), 20_000, span)
        assert times == sorted(times)
        assert (times[0], times[-1]) == (0, span)
        afternoon, night = (sum(first <= at % DAY / 3600 < first + 6 for at in times) / len(times) for first in (11, 0))
        assert afternoon > 0.35, "more than a quarter of the day's jobs"
        assert night < 0.12


def test_a_log_has_the_model_s_sizes_and_the_wanted_load(made: tuple[list[LoggedJob], int, float]) -> None:
    jobs, processors, load = made
    assert len(jobs) == 10_000
    assert [job.number for job in jobs] == list(range(1, 10_001))
    assert offered_load(jobs, processors) == pytest.approx(load, rel=0.05)
    assert share(sum(job.processors == 1 for job in jobs), jobs) == pytest.approx(0.2927, abs=0.05)
    assert share(sum(job.processors & (job.processors - 1) == 0 for job in jobs), jobs) > 0.92
    assert all(job.run == int(job.run) and job.submit == int(job.submit) for job in jobs)


# -- users


def test_few_users_submit_most_and_repeat_their_jobs(made: tuple[list[LoggedJob], int, float]) -> None:
    jobs, _, _ = made
    by_user = Counter(job.user for job in jobs)
    assert len(by_user) > 50
    assert share(sum(count for _, count in by_user.most_common(8)), jobs) > 0.4
    sizes_of_kinds = defaultdict(set)
    for job in jobs:
        sizes_of_kinds[job.user, job.executable].add(job.processors)
    assert all(len(sizes) == 1 for sizes in sizes_of_kinds.values())
    assert 3 < len(jobs) / len(sizes_of_kinds) < 5


def test_a_user_s_last_job_of_a_kind_says_how_long_the_next_runs(made: tuple[list[LoggedJob], int, float]) -> None:
    jobs, _, _ = made
    kinds = defaultdict(list)
    for job in jobs:
        kinds[job.user, job.executable].append(job.run)
    pairs = [pair for runs in kinds.values() for pair in pairwise(runs)]
    near = sum(1 / 2 <= after / before <= 2 for before, after in pairs) / len(pairs)
    assert near > 0.75
    assert 0.05 < share(sum(job.run <= 60 for job in jobs), jobs) < 0.35, "some fail at once"


def test_a_log_is_the_same_for_the_same_seed() -> None:
    assert lublin_log(3, 500, 64, 0.7) == lublin_log(3, 500, 64, 0.7)
    assert lublin_log(3, 500, 64, 0.7) != lublin_log(4, 500, 64, 0.7)


@pytest.mark.parametrize("arguments", [(1, 64, 0.5), (100, 2, 0.5), (100, 64, 0)])
def test_a_log_of_nothing_is_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="the minimum is 2 jobs, 4 processors"):
        lublin_log(1, *arguments)


# -- estimates


def test_most_estimates_are_popular_and_none_is_too_short(made: tuple[list[LoggedJob], int, float]) -> None:
    jobs, _, _ = made
    assert all(job.run <= job.estimate <= MAXIMUM for job in jobs)
    popular = popular_values(MAXIMUM)
    assert len(popular) == 20
    assert share(sum(job.estimate in popular for job in jobs), jobs) == pytest.approx(0.89, abs=0.06)
    assert MAXIMUM in dict(Counter(job.estimate for job in jobs).most_common(3))
    assert sum(job.run / job.estimate for job in jobs) / len(jobs) < 0.4, "users are cautious"


def test_a_user_has_few_values(made: tuple[list[LoggedJob], int, float]) -> None:
    jobs, _, _ = made
    values = defaultdict(set)
    for job in jobs:
        values[job.user].add(job.estimate)
    # Runs longer than all of a user's values take the next popular one.
    assert max(len(one) for one in values.values()) <= VALUES_OF_A_USER + 10
    assert sum(len(one) for one in values.values()) / len(values) <= VALUES_OF_A_USER + 2


def test_a_run_longer_than_the_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match="job 1 runs 61 seconds; the maximum estimate is 60"):
        with_estimates([LoggedJob(1, 0, 61, 1, 61, 1, 1)], seed=1, maximum=60)


# -- logs of the archive

LINES = """\
; MaxProcs: 128
    1        0     -1   1451  128     -1    -1   -1   3600    -1 -1   7   1   5 -1 -1 -1 -1
    2       10     -1     -1  128     -1    -1   -1     60    -1 -1   1   1  -1 -1 -1 -1 -1
    3       31     -1      7    2     -1    -1   -1      5    -1 -1   8   1  -1 -1 -1 -1 -1
    4       31     -1     90    2     -1    -1   -1     -1    -1 -1  -1   1   6 -1 -1 -1 -1
"""


def test_users_and_estimates_of_a_log_are_read() -> None:
    assert parse_log(LINES.splitlines()) == [
        LoggedJob(1, 0, 1451, 128, estimate=3600, user=7, executable=5),
        LoggedJob(3, 31, 7, 2, estimate=7, user=8, executable=-1),
        LoggedJob(4, 31, 90, 2, estimate=90, user=-1, executable=6),
    ]
    assert [job.number for job in parse_swf(LINES.splitlines())] == [1, 3, 4]
    assert divide_gaps(parse_log(LINES.splitlines()), 2)[1].submit == 16


def test_a_user_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"line 1: could not convert .*'root'; fields 9, 12 and 14 are numbers"):
        parse_log(["1 0 -1 5 2" + " -1" * 6 + " root" + " -1" * 6])


def test_the_nasa_log_gets_estimates(shared: Path) -> None:
    jobs = read_log(shared / "data" / "NASA-iPSC-1993-3.1-cln.swf.gz")
    assert len({job.user for job in jobs}) == 69
    estimated = with_estimates(jobs, seed=1, maximum=18 * 3600)
    assert all(job.run <= job.estimate for job in estimated)
    assert share(sum(job.estimate in popular_values(18 * 3600) for job in estimated), estimated) > 0.8


def test_delayed_jobs_are_the_same_jobs_up_to_a_minute_later() -> None:
    jobs = lublin_log(seed=1, count=200, processors=64, load=0.8)
    later = delay_jobs(jobs, 7, 60)
    assert later == delay_jobs(jobs, 7, 60) != delay_jobs(jobs, 8, 60)
    assert [job.submit for job in later] == sorted(job.submit for job in later)
    before = {job.number: job for job in jobs}
    delays = [job.submit - before[job.number].submit for job in later]
    assert {replace(job, submit=0.0) for job in later} == {replace(job, submit=0.0) for job in jobs}
    assert min(delays) >= 0
    assert max(delays) <= 60
    assert len(set(delays)) > 30
    assert delay_jobs(jobs, 7, 0) == jobs
