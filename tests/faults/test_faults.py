"""Kill, freeze, stop and cut everything, one at a time, while jobs flow; then look whether anything was lost, doubled or stopped."""

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.stage import CLUSTERS, LEASE, LIMIT, Flow, Stage, started

pytestmark = pytest.mark.faults

JOBS = 120 if os.environ.get("TRAINMASTER_DEEP") else 40
FLOW_SECONDS = 4.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stage for all faults: what an earlier one broke for good, a later one would show."""
    with started(tmp_path_factory.mktemp("faults") / "stage") as built:
        yield built


def pause(seconds: float) -> None:
    """Sleep for the length of a fault; nothing is waited for by this."""
    time.sleep(seconds)


def kill_the_schedulers(stage: Stage) -> None:
    for name in ("scheduler-0", "scheduler-1"):
        stage.kill(name)
        pause(0.5)
        stage.revive(name)


def kill_an_api(stage: Stage) -> None:
    for name in ("api-0", "api-1"):
        stage.kill(name)
        pause(0.5)
        stage.revive(name)
        pause(1.5)


def kill_an_agent(stage: Stage) -> None:
    for name in CLUSTERS:
        stage.kill(f"agent-{name}")
        pause(0.3)
        stage.revive(f"agent-{name}")


def restart_postgres_fast(stage: Stage) -> None:
    stage.restart_postgres("fast")


def restart_postgres_immediate(stage: Stage) -> None:
    stage.restart_postgres("immediate")


def flush_and_stop_redis(stage: Stage) -> None:
    stage.flush_redis()
    pause(0.3)
    stage.kill("redis")
    pause(2)
    stage.revive("redis")


def _stop_the_dispatcher(stage: Stage, seconds: float) -> None:
    names = ("api-0", "api-1", "scheduler-0", "scheduler-1")
    for name in names:
        stage.kill(name)
    pause(seconds)
    for name in names:
        stage.revive(name)


def stop_the_dispatcher_for_longer_than_the_lease(stage: Stage) -> None:
    _stop_the_dispatcher(stage, LEASE * 2)


def stop_the_dispatcher_for_longer_than_the_limit(stage: Stage) -> None:
    _stop_the_dispatcher(stage, LIMIT + 2)


def leave_an_agent_dead_for_twice_the_limit(stage: Stage) -> None:
    stage.kill("agent-private")
    pause(2 * LIMIT)
    stage.revive("agent-private")


def cut_a_link_for_longer_than_the_limit(stage: Stage) -> None:
    stage.links["private"].cut()
    pause(LIMIT + 2)
    stage.links["private"].mend()


@pytest.mark.parametrize(
    "fault",
    [
        kill_the_schedulers,
        kill_an_api,
        kill_an_agent,
        restart_postgres_fast,
        restart_postgres_immediate,
        flush_and_stop_redis,
        stop_the_dispatcher_for_longer_than_the_lease,
    ],
)
def test_nothing_is_lost_doubled_or_stopped(stage: Stage, fault: Callable[[Stage], None]) -> None:
    with Flow(stage, JOBS, FLOW_SECONDS):
        pause(FLOW_SECONDS / 3)
        fault(stage)
    stage.check(reruns_allowed=False)


@pytest.mark.parametrize(
    ("fault", "cluster"),
    [
        (stop_the_dispatcher_for_longer_than_the_limit, None),
        (leave_an_agent_dead_for_twice_the_limit, "private"),
        (cut_a_link_for_longer_than_the_limit, "private"),
    ],
)
def test_only_jobs_that_asked_for_it_start_elsewhere(
    stage: Stage, fault: Callable[[Stage], None], cluster: str | None
) -> None:
    before = stage.reruns()
    with Flow(stage, JOBS, FLOW_SECONDS, outlasts_limit=True):
        stage.await_a_lasting_run(cluster)
        fault(stage)
    stage.check(reruns_allowed=True)
    assert stage.reruns() > before, "the fault outlasted D, so some of the lasting jobs must have started anew"


@pytest.mark.deep
def test_a_hundred_faults_at_random(stage: Stage) -> None:
    """At least 100 faults of all sorts, in an order drawn from a seed that is printed."""
    seed = int(os.environ.get("TRAINMASTER_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"TRAINMASTER_FAULT_SEED={seed}")
    draw = random.Random(seed)
    for number in range(105):
        with Flow(stage, 40, 1.0, outlasts_limit=True):
            pause(draw.uniform(0, 1))
            _one_fault(stage, draw)
        print(f"fault {number + 1} done, {len(stage.expected)} jobs so far")
    stage.check(reruns_allowed=True)


def _one_fault(stage: Stage, draw: random.Random) -> None:
    name = draw.choice([*stage.children, "postgres", "postgres", "link", "flush"])
    seconds = draw.choice([0.1, 0.5, LEASE * 1.5, LIMIT + 1.5])
    if name == "postgres":
        stage.restart_postgres(draw.choice(["fast", "immediate"]))
    elif name == "flush":
        stage.flush_redis()
    elif name == "link":
        link = stage.links[draw.choice(CLUSTERS)]
        link.cut()
        pause(seconds)
        link.mend()
    elif draw.random() < 0.3:
        stage.freeze(name)
        pause(seconds)
        stage.thaw(name)
    else:
        stage.kill(name)
        pause(seconds)
        stage.revive(name)
