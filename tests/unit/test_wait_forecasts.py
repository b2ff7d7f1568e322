"""How long jobs are told that they will wait, and how far that holds."""

import random
from collections import Counter
from math import inf

import pytest

from bench.nasa import ORDERS, Replay, replay
from tests.textbook_easy import Job, Policy
from tests.unit.building import NOW, Outcome, StateBuilder, nodes, simple
from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.queue_position import StartForecast
from trainmaster_dispatcher.domain.wait_forecasts import (
    ForecastOutcome,
    JobKind,
    WaitForecast,
    WaitForecasts,
    calibration_of,
)
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.queries.dry_run import try_out
from trainmaster_dispatcher.scheduling.queries.queue_position import moment, quotas_of
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster, forecast_start
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.services.gauges import note_forecasts

KIND = JobKind.of(1, 0.25, 60.0)


def learned(*ratios: float, kind: JobKind = KIND) -> WaitForecasts:
    waits = WaitForecasts()
    for ratio in ratios:
        waits.note(kind, 1000.0, 1000.0 * ratio)
    return waits


def test_nothing_is_told_from_fewer_than_twenty_waits() -> None:
    assert learned(*[1.0] * 19).forecast(KIND, 100.0) is None
    assert learned(*[1.0] * 20).forecast(KIND, 100.0) == WaitForecast(100.0, 100.0, 20)


def test_the_told_waits_are_quantiles_of_the_ratios_times_the_drain_time() -> None:
    found = learned(*(number / 100 for number in range(1, 100))).forecast(KIND, 2000.0)
    assert found is not None
    assert found == pytest.approx((1000.0, 1860.0, 99))


def test_only_the_last_two_hundred_waits_count() -> None:
    assert learned(*[9.0] * 500, *[2.0] * 200).forecast(KIND, 10.0) == WaitForecast(20.0, 20.0, 200)


def test_a_kind_of_which_little_is_known_is_told_what_its_queue_waits() -> None:
    waits = learned(*[3.0] * 30)
    other = JobKind.of(1, 0.25, 6000.0)
    assert other != KIND
    waits.note(other, 100.0, 100.0)
    # 30 ratios of 3 and one of 1, of the whole queue.
    assert waits.forecast(other, 10.0) == WaitForecast(30.0, 30.0, 31)
    assert waits.forecast(JobKind.of(2, 0.25, 60.0), 10.0) is None, "of another queue nothing is known"


def test_waits_and_drain_times_below_a_second_count_as_one() -> None:
    waits = WaitForecasts()
    for _ in range(20):
        waits.note(KIND, 0.0, 0.0)
    assert waits.forecast(KIND, 0.0) == WaitForecast(1.0, 1.0, 20)


def test_kinds_that_were_not_seen_for_longest_are_forgotten() -> None:
    waits = learned(*[1.0] * 20)
    for queue in range(2, 5100):
        waits.note(JobKind.of(queue, 0.25, 60.0), 1.0, 1.0)
    assert waits.forecast(KIND, 1.0) is None
    assert len(waits._ratios) <= 10_000


@pytest.mark.parametrize(
    ("part", "seconds", "width", "length"),
    [(1.0, 1.0, 0, 0), (0.5, 9.9, -1, 0), (0.26, 10.0, -2, 1), (0.0, inf, -20, -1), (3.0, 0.0, 0, 0)],
)
def test_kinds_are_powers_of_two_of_the_width_and_of_ten_of_the_run_time(
    part: float, seconds: float, width: int, length: int
) -> None:
    assert JobKind.of(7, part, seconds) == (7, width, length)


@pytest.mark.parametrize("seed", range(5))
def test_of_waits_that_repeat_themselves_the_told_parts_hold(seed: int) -> None:
    chance, waits, outcomes = random.Random(seed), WaitForecasts(), []
    for number in range(2000):
        drain = chance.uniform(10.0, 10_000.0)
        wait = drain * chance.lognormvariate(0.0, 1.5)
        outcomes.append(ForecastOutcome(number, 1, waits.forecast(KIND, drain), wait))
        waits.note(KIND, drain, wait)
    held = calibration_of(outcomes)
    assert held.jobs == 1980
    assert 0.45 < held.within_half / held.jobs < 0.55
    assert 0.9 < held.within_most / held.jobs < 0.96


def test_a_calibration_counts_jobs_that_were_told_something() -> None:
    forecast = WaitForecast(10.0, 20.0, 50)
    outcomes = [ForecastOutcome(number, 1, forecast, wait) for number, wait in enumerate((5.0, 10.0, 15.0, 20.0, 21.0))]
    assert calibration_of([*outcomes, ForecastOutcome(9, 1, None, 1.0)]) == (5, 2, 4)
    assert calibration_of([]) == (0, 0, 0)


def test_jobs_that_each_need_everything_wait_for_exactly_their_drain_time() -> None:
    jobs = [Job(number, 50.0 * number, 100.0, 4) for number in range(1, 201)]
    engine = Replay([4], ORDERS[Policy.EASY], forecasts=True)
    starts = replay(engine, jobs)
    assert len(engine.outcomes) == 199, "all but the first have waited"
    for one in engine.outcomes:
        assert one.waited == starts[one.job_id] - 50.0 * one.job_id
        if one.forecast is not None:
            assert one.forecast.half == one.forecast.most == pytest.approx(one.waited)
    assert sum(one.forecast is not None for one in engine.outcomes) > 100


# Over a state


def experienced(*ratios: float) -> WaitForecaster:
    """Return a forecaster that has learned these ratios of jobs of one core in the first queue, whatever their run time."""
    forecaster = WaitForecaster()
    for ratio in ratios:
        forecaster._waits.note(JobKind.of(1, 0.25, 100.0), 1000.0, 1000.0 * ratio)
    return forecaster


def full() -> StateBuilder:
    """Four cores, in use for 300, 200, 100 and 100 more seconds, and two jobs of 100 seconds that wait."""
    builder = StateBuilder().cluster("c", nodes(1, cpu=4))
    for name, limit in (("r1", 300.0), ("r2", 200.0), ("r3", 100.0), ("r4", 100.0)):
        builder.run(name, simple(limit=limit), on="c")
    return builder.job("first", simple(limit=100.0), age=20).job("second", simple(limit=100.0), age=10)


def counted() -> Counter[str]:
    """Return how many jobs of the first queue started when, by the metric."""
    (family,) = metrics.wait_forecasts.collect()
    samples = [one for one in family.samples if one.name.endswith("_total") and one.labels["queue"] == "main"]
    return Counter({one.labels["outcome"]: int(one.value) for one in samples})


def decided(builder: StateBuilder) -> Outcome:
    plan = decide(builder.engine, builder.now)
    builder.engine.carry_over(plan)
    return Outcome(plan, builder.state, builder.ids)


def start_of(builder: StateBuilder, name: str, forecaster: WaitForecaster) -> StartForecast | None:
    reasons = decided(builder).plan.reasons
    return forecast_start(forecaster, builder.engine, builder.ids[name], builder.now, reasons)


def test_the_drain_time_counts_what_runs_and_what_is_before_the_job() -> None:
    found = start_of(full(), "second", experienced(*[2.0] * 20))
    # 700 core seconds run and 100 wait before it, on four cores: 200 seconds; twice that was waited so far.
    assert found == StartForecast(half_by=moment(NOW + 400), most_by=moment(NOW + 400), jobs=20)


def test_a_job_with_a_time_of_its_reservation_is_told_no_other() -> None:
    builder = full()
    assert start_of(builder, "first", experienced(*[2.0] * 20)) is None
    assert builder.engine.carried.reservations[builder.ids["first"]].at < inf


def test_jobs_that_wait_for_something_else_are_told_nothing() -> None:
    builder = (
        full()
        .queue("closed", limits={"cpu": 1})
        .job("large", simple(cpu=9))
        .job("quota", simple(cpu=3), queue="closed")
    )
    forecaster = experienced(*[1.0] * 20)
    for queue_id in builder.queues.values():
        for _ in range(20):
            forecaster._waits.note(JobKind.of(queue_id, 1.0, 100.0), 1.0, 1.0)
    assert start_of(builder, "large", forecaster) is None, "it fits nowhere"
    assert start_of(builder, "quota", forecaster) is None, "it never has the quota"
    assert start_of(builder, "second", forecaster) is not None
    assert forecast_start(forecaster, builder.engine, 99, NOW, {}) is None, "there is no such job"


def test_it_learns_from_jobs_that_had_to_wait_and_counts_how_far_it_held() -> None:
    builder, forecaster = full(), experienced(*[1.0] * 20)
    assert forecaster.observe(builder.state, decided(builder).plan, NOW) == []
    for name in ("r1", "r2", "r3", "r4"):
        builder.ended(name)
    builder.later(15.0)
    outcome = decided(builder)
    assert outcome.started == ["first", "second"]
    assert forecaster.observe(builder.state, outcome.plan, builder.now) == [], "they are not in the state as started"
    for start in outcome.plan.starts:
        builder.state.put_run(start.run(builder.now))
    outcomes = forecaster.observe(builder.state, outcome.plan, builder.now)
    # The youngest of the class is followed; of it 200 seconds were told.
    assert [(one.job_id, one.waited, one.forecast) for one in outcomes] == [
        (builder.ids["second"], 15.0, WaitForecast(200.0, 200.0, 20))
    ]
    before = counted()
    none, gone = outcomes[0]._replace(forecast=None), outcomes[0]._replace(queue_id=99)
    note_forecasts(builder.state, [*outcomes, none, gone, outcomes[0]._replace(waited=200.5)])
    assert counted() - before == Counter(half=1, later=1)


def test_a_job_that_ends_otherwise_teaches_nothing() -> None:
    builder, forecaster = full(), WaitForecaster()
    forecaster.observe(builder.state, decided(builder).plan, NOW)
    assert list(forecaster._followed) == [builder.ids["second"]]
    builder.state.drop_job(builder.ids["second"])
    builder.later(5.0)
    assert forecaster.observe(builder.state, decided(builder).plan, builder.now) == []
    assert not forecaster._followed


def test_a_dry_run_tells_by_when_such_jobs_start() -> None:
    builder = full()
    shape, job = simple(limit=100.0), WaitingJob(0, 0, "new", 1, 2, 0, 0, NOW, 0)
    decided(builder)
    quotas = quotas_of(builder.engine, NOW)
    trial = try_out(builder.engine, quotas, job, shape, NOW, forecaster=experienced(*[2.0] * 20))
    assert trial is not None
    # Beside the 700 core seconds that run, two jobs are before it: 225 seconds.
    assert trial.place.forecast == StartForecast(half_by=moment(NOW + 450), most_by=moment(NOW + 450), jobs=20)
    assert len(builder.state.jobs) == 2
    untold = try_out(builder.engine, quotas, job, shape, NOW)
    assert untold is not None
    assert untold.place.forecast is None
