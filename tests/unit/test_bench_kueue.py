"""The benchmark after Kueue's: what is due when, the least time it takes, and the figures that are made of it."""

from dataclasses import replace

import orjson
import pytest

from bench.kueue import Row, figures, fleet, lateness, queues
from bench.kueue_load import BASELINE, LARGE_SCALE, Answered, Published, Scenario, WorkloadClass, calls_of, spec
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.services.submission_parsing import Most, prepare

SMALL = WorkloadClass("small", cpus=1, run_ms=200, every_ms=100, count=2, priority=50)
LARGE = WorkloadClass("large", cpus=20, run_ms=1000, every_ms=200, count=3, priority=200)
TINY = Scenario("tiny", cohorts=1, queues=2, classes=(SMALL, LARGE), published=Published(10.0, 0.5, {"large": 4.0}))


def test_the_scenarios_are_the_published_ones() -> None:
    assert (len(BASELINE.workloads()), BASELINE.capacity_cpus) == (15_000, 600)
    assert (len(LARGE_SCALE.workloads()), LARGE_SCALE.capacity_cpus) == (50_000, 20_000)
    assert BASELINE.cpu_seconds / BASELINE.capacity_cpus == pytest.approx(66.0)
    assert LARGE_SCALE.cpu_seconds / LARGE_SCALE.capacity_cpus == pytest.approx(4.025)


def test_each_queue_gets_the_workloads_of_a_class_at_its_interval() -> None:
    mine = [one for one in TINY.workloads() if one.queue == "cohort-0/queue-1"]
    assert [(one.kind.name, one.due_ms) for one in mine] == [
        ("small", 100),
        ("small", 200),
        ("large", 200),
        ("large", 400),
        ("large", 600),
    ]


def test_workloads_are_numbered_in_the_order_in_which_they_are_due() -> None:
    all_of_them = BASELINE.workloads()
    assert [one.number for one in all_of_them] == list(range(len(all_of_them)))
    assert [one.due_ms for one in all_of_them] == sorted(one.due_ms for one in all_of_them)


def test_what_is_due_in_one_tick_goes_in_one_call_at_its_end() -> None:
    calls = calls_of(replace(TINY, classes=(replace(SMALL, every_ms=15), LARGE)).workloads())
    assert [(call.send_ms, set(call.dues_ms)) for call in calls] == [
        (20, {15}),
        (40, {30}),
        (200, {200}),
        (400, {400}),
        (600, {600}),
    ]


def test_what_is_due_together_goes_in_several_calls_where_it_is_too_much_for_one() -> None:
    calls = calls_of(TINY.workloads(), most_jobs=3)
    assert [(call.send_ms, len(call.dues_ms)) for call in calls] == [(100, 2), (200, 3), (200, 1), (400, 2), (600, 2)]
    assert len({call.key for call in calls}) == len(calls)


def test_calls_bring_every_workload_once_and_never_before_it_is_due() -> None:
    calls = calls_of(LARGE_SCALE.workloads())
    jobs = [job for call in calls for job in orjson.loads(call.body)["jobs"]]
    items = sorted(int(job["roles"][0]["template"]["env"]["ITEM"]) for job in jobs)
    assert items == list(range(50_000))
    assert all(call.send_ms >= due for call in calls for due in call.dues_ms)


def test_what_is_submitted_and_declared_is_valid() -> None:
    body = orjson.dumps({"jobs": [spec(one) for one in TINY.workloads()]})
    assert len(prepare(body, Most())) == 10
    assert [QueueSpec.model_validate(queue).path for queue in queues(TINY)] == [
        "cohort-0",
        "cohort-0/queue-0",
        "cohort-0/queue-1",
    ]
    assert [FleetCluster.model_validate(cluster).name for cluster in fleet(TINY)] == ["cohort-0"]


def test_the_least_wall_time_is_that_of_the_work_where_there_is_too_much_of_it() -> None:
    # From 200 ms on, 120.4 CPU-seconds are due on 40 CPUs; the first workload is due at 100 ms.
    assert TINY.least_wall_seconds() == pytest.approx(0.2 + 120.4 / 40 - 0.1)


def test_the_least_wall_time_is_that_of_the_last_arrival_where_there_is_room() -> None:
    sparse = replace(TINY, classes=(SMALL,))
    assert sparse.least_wall_seconds() == pytest.approx(0.2 + 0.2 - 0.1)


def test_arrivals_allow_hardly_more_than_the_work_does_in_the_published_scenarios() -> None:
    assert 66.0 < BASELINE.least_wall_seconds() < 67.0
    assert 4.0 < LARGE_SCALE.least_wall_seconds() < 4.6


def test_lateness_counts_each_job_of_a_call_from_its_own_due_time() -> None:
    call = calls_of(TINY.workloads())[0]._replace(dues_ms=(100, 120))
    late = lateness([Answered(call, sent=0.12, acknowledged=0.17)])
    assert late["due_to_sent"]["max_seconds"] == pytest.approx(0.02)
    assert late["due_to_acknowledged"]["max_seconds"] == pytest.approx(0.07)
    assert late["due_to_acknowledged"]["mean_seconds"] == pytest.approx(0.06)
    assert late["load_began_to_last_acknowledged_seconds"] == pytest.approx(0.17)


def test_figures_are_those_of_the_rows_and_the_published_ones_are_made_alike() -> None:
    workloads, began = TINY.workloads(), 1_000_000.0
    rows = [
        Row(one.number, due + 0.1, due + 0.3, due + 0.4, due + 0.5 + one.kind.run_ms / 1000)
        for one in workloads
        for due in [began + one.due_ms / 1000]
    ]
    out = figures(TINY, workloads, began, rows, held_cpu_seconds=40.0)
    # The last workload is due at 0.6 s and ends 1.5 s later; the first is due at 0.1 s.
    assert out["wall_seconds"] == pytest.approx(2.0)
    assert out["utilisation"] == pytest.approx(120.8 / 40 / 2.0, abs=1e-3)
    assert out["held_share"] == pytest.approx(0.5)
    large = out["classes"]["large"]
    assert large["jobs"] == 6
    assert large["due_to_dispatched"]["mean_seconds"] == pytest.approx(0.3)
    assert large["due_to_running"]["mean_seconds"] == pytest.approx(0.4)
    assert large["stored_to_dispatched"]["mean_seconds"] == pytest.approx(0.2)
    assert large["held_beyond_run_time"]["mean_seconds"] == pytest.approx(0.2)
    published = out["published"]
    assert published["utilisation"] == pytest.approx(120.8 / 40 / 10.0, abs=1e-3)
    assert published["ratio_to_least"] == pytest.approx(10.0 / TINY.least_wall_seconds(), abs=1e-3)
    assert (published["held_share"], published["stored_to_dispatched_mean_seconds"]) == (0.5, {"large": 4.0})
    assert out["published_wall_to_this"] == pytest.approx(5.0)
