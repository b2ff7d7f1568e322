"""A public cluster whose nodes take a while to come, and sometimes do not: what is learnt of it, and that no job waits for ever."""

from typing import Any

import pytest

from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.states import ClusterKind, JobState
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.domain.provisioning import UNSEEN, learn
from trainmaster_dispatcher.whatif.engine import Declared, Simulation, StudyOutcome
from trainmaster_dispatcher.whatif.trace import Trace, TraceJob

JOBS = 300
LEAST, MOST = 180.0, 540.0
"""Seconds until a node is there: 3 to 9 minutes."""


def grown(seed: int, *, fail: float = 0.1, delay: str = "3m-9m", jobs: int = JOBS) -> StudyOutcome:
    """Return the outcome of jobs one after the other, each on a new node of a pool: of a cheap cluster, or of a dear
    one that never fails."""
    group: dict[str, Any] = {"name": "nodes", "count": 0, "resources": {"cpu": "4"}}
    pools: dict[str, dict[str, Any]] = {"cheap": {"delay": delay, "fail": fail}, "dear": {"delay": "1m"}}
    fleet = Fleet.model_validate(
        {
            "seed": seed,
            "clusters": [
                {
                    "name": name,
                    "kind": "public",
                    "groups": [{**group, "provisioning": {"most": 40, "idle": "1s", **provisioning}}],
                }
                for name, provisioning in pools.items()
            ],
        }
    )
    declared = Declared(
        queues=[QueueSpec(path="q", allowed_kinds=(ClusterKind.PUBLIC,))],
        clusters=[ClusterSpec(name=name, cluster_kind=ClusterKind.PUBLIC, price_book=name) for name in pools],
        books=[
            PriceBookSpec.model_validate({"name": name, "onDemand": {"cpu": price}})
            for name, price in (("cheap", 1), ("dear", 500))
        ],
    )
    role = {"name": "main", "template": {"command": ["train"], "resources": {"cpu": "4"}}}
    spec = JobSpec.model_validate({"name": "job", "queue": "q", "timeLimit": "5m", "roles": [role]})
    trace = Trace("pools", tuple(TraceJob(number, number * 3600.0, 60.0, spec) for number in range(1, jobs + 1)))
    return Simulation(fleet, declared).run(trace)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_learnt_comes_close_to_what_is_so_and_the_failed_ones_go_elsewhere(seed: int) -> None:
    outcome = grown(seed)
    learnt = outcome.learnt["cheap", "nodes"]
    assert learnt.p50 == pytest.approx((LEAST + MOST) / 2, rel=0.12)
    assert learnt.p95 == pytest.approx(LEAST + 0.95 * (MOST - LEAST), rel=0.06)
    assert 0.02 < learnt.failure_rate < 0.2
    assert MOST < learnt.timeout < 3 * MOST
    assert {record.machine.state for record in outcome.records} == {JobState.SUCCEEDED}
    failed = [record for record in outcome.records if record.machine.attempt > 1]
    assert 0.03 * JOBS < len(failed) < 0.2 * JOBS
    assert {record.cluster for record in failed} == {"dear"}
    assert max(record.wait for record in outcome.records) < 3600


def test_a_pool_that_is_slower_than_anybody_thought_gets_the_time_it_needs() -> None:
    outcome = grown(1, fail=0.0, delay="40m", jobs=40)
    learnt = outcome.learnt["cheap", "nodes"]
    assert (learnt.p50, learnt.p95) == (2400.0, 2400.0)
    assert {record.cluster for record in outcome.records[-20:]} == {"cheap"}


def test_a_pool_that_never_comes_is_given_up() -> None:
    outcome = grown(1, fail=1.0, jobs=60)
    assert {record.machine.state for record in outcome.records} == {JobState.SUCCEEDED}
    assert {record.cluster for record in outcome.records} == {"dear"}
    # Each failure makes it less likely that it is tried at all.
    assert sum(record.machine.attempt > 1 for record in outcome.records[-20:]) <= 20
    assert outcome.learnt["cheap", "nodes"].failure_rate > 0.8


def test_without_any_attempt_a_guess_counts_and_it_is_forgotten_once_there_are_enough() -> None:
    assert learn([]) == UNSEEN
    assert learn([10.0]).p50 > 10.0
    assert learn([10.0] * 10).p50 == learn([10.0] * 10).p95 == 10.0


def test_failures_in_a_row_double_the_time_that_a_run_is_given_and_one_that_came_ends_that() -> None:
    came = [100.0] * 20
    first = learn([*came, None]).timeout
    assert learn([*came, None, None]).timeout == 2 * first
    assert learn([*came, None, None, 100.0]).timeout == first / 2
    assert learn([*came, *[None] * 50]).timeout == 3600.0
