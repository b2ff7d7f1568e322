"""Agents without their records and agents that share a key, all real processes: no two copies of a member ever meet.

Each member holds a lock of its job and member for its life, and notes where it finds it taken.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.stage import CLUSTERS, LEASE, Flow, Stage, started
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

ROUNDS = int(os.environ.get("TRAINMASTER_ROUNDS", "1"))
"""How often each scenario is played."""
_LONG = 600.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with started(tmp_path_factory.mktemp("copies") / "stage") as built:
        yield built


# -- what becomes of the records of the agent of cluster ``private``


def delete_the_records(stage: Stage) -> None:
    stage.kill("agent-private")
    shutil.rmtree(stage.state_dir("private"))
    stage.revive("agent-private")


def delete_the_runs(stage: Stage) -> None:
    """Delete the records of all runs; the identity of the records stays."""
    stage.kill("agent-private")
    shutil.rmtree(stage.state_dir("private") / "runs")
    stage.revive("agent-private")


def move_the_records(stage: Stage) -> None:
    stage.kill("agent-private")
    stage.state_dir("private").rename(stage.folder / f"moved-{time.monotonic_ns()}")
    stage.revive("agent-private")


def use_another_folder(stage: Stage) -> None:
    stage.kill("agent-private")
    stage.use_folder("private", f"state-{time.monotonic_ns()}")
    stage.revive("agent-private")


# -- what is then wanted of the job


def suspend(stage: Stage, job_id: str) -> None:
    stage.act(f"jobs/{job_id}/suspend")
    stage.until(job_id, "held")
    stage.act(f"jobs/{job_id}/resume")


def drain(stage: Stage, job_id: str) -> None:
    stage.act("clusters/private/drain")
    stage.act("clusters/private/uncordon")


def preempt(stage: Stage, job_id: str) -> None:
    """Submit a job of a higher class that takes the capacity, and cancel it once it has it."""
    other = stage.submit_lasting("urgent", _LONG, cpu="4", replicas=4, priority_class="high")
    stage.until(other, "running")
    stage.act(f"jobs/{other}/cancel")
    stage.until(other, "cancelled")


def cancel(stage: Stage, job_id: str) -> None:
    stage.act(f"jobs/{job_id}/cancel")


@pytest.mark.parametrize("loss", [delete_the_records, delete_the_runs, move_the_records, use_another_folder])
@pytest.mark.parametrize("action", [suspend, drain, preempt, cancel])
def test_a_job_whose_agent_lost_its_records_runs_once_at_a_time(
    stage: Stage, loss: Callable[[Stage], None], action: Callable[[Stage, str], None]
) -> None:
    if ROUNDS == 1 and loss is not delete_the_records and action is not suspend:
        pytest.skip("played with TRAINMASTER_ROUNDS of 2 or more")
    for _ in range(ROUNDS):
        job_id = stage.submit_lasting("waits", _LONG, cpu="4", replicas=4)
        stage.until(job_id, "running")
        loss(stage)
        eventually_sync(lambda: stage.cluster("private")["state"] == "ready", 60)
        action(stage, job_id)
        if action is cancel:
            stage.until(job_id, "cancelled")
        else:
            eventually_sync(lambda job_id=job_id: stage.starts(job_id, 2) == 4, 60)  # type: ignore[misc]
            stage.act(f"jobs/{job_id}/cancel")
            stage.until(job_id, "cancelled")
        eventually_sync(lambda: not stage.member_processes(), 30)
        stage.no_copies_met()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_agents_with_one_key_do_not_take_turns(stage: Stage, round_: int) -> None:
    """Both are started again by a supervisor whenever they end."""
    rivals = [stage.add_rival(name, f"rival-{round_}") for name in CLUSTERS]

    def is_refused(rival: str) -> bool:
        return "another agent with other records acts for cluster" in stage.log_of(rival)

    try:
        with Flow(stage, 60, 4.0):
            supervised = [*(f"agent-{name}" for name in CLUSTERS), *rivals]
            stage.supervise(supervised, seconds=6.0 * LEASE, until=lambda: all(map(is_refused, rivals)))
        stage.check(reruns_allowed=False)
    finally:
        for rival in rivals:
            stage.kill(rival)
    assert all(map(is_refused, rivals))


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_installations_on_one_database_run_each_job_once(stage: Stage, round_: int) -> None:
    """Somebody starts ``trainmaster up`` with the database of an installation that is at work: other keys, the same clusters."""
    lasting = stage.submit_lasting("lasting", _LONG, cpu="2", replicas=4)
    stage.until(lasting, "running")
    other = stage.folder / f"other-{round_}"
    log = stage.folder / "logs" / f"up-{round_}.log"
    command = [
        sys.executable,
        "-m",
        "trainmaster.cli.main",
        "up",
        "--data",
        str(other),
        "--port",
        "0",
        "--no-write-config",
    ]
    env = {name: value for name, value in stage.env.items() if name != "REDIS_URL"}
    with log.open("wb") as out:
        up = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    logs = [other / "logs" / f"agent-{name}.log" for name in CLUSTERS]
    words = "another agent with other records acts for cluster"
    try:
        with Flow(stage, 30, 4.0):
            eventually_sync(lambda: all(one.exists() and words in one.read_text() for one in logs), 60)
            time.sleep(3.0 * LEASE)
    finally:
        up.terminate()
        up.wait(60)
    assert up.returncode == 0, log.read_text()
    assert (stage.job(lasting)["attempt"], stage.starts(lasting, 1)) == (1, 4)
    stage.act(f"jobs/{lasting}/cancel")
    stage.until(lasting, "cancelled")
    stage.check(reruns_allowed=False)


def test_runs_of_an_agent_that_was_replaced_go_on_and_it_gets_them_back(stage: Stage) -> None:
    job_id = stage.submit_lasting("left", 12.0, expected="succeeded")
    stage.until(job_id, "running")
    stage.kill("agent-private")
    rival = stage.add_rival("private", "visitor")
    eventually_sync(lambda: stage.cluster("private")["orphanedRuns"] == 1, 60)
    assert "was replaced" in stage.job(job_id)["message"]
    stage.kill(rival)
    stage.revive("agent-private")
    eventually_sync(lambda: stage.cluster("private")["orphanedRuns"] == 0, 60)
    stage.until(job_id, "succeeded")
    assert stage.job(job_id)["attempt"] == 1
    stage.no_copies_met()
