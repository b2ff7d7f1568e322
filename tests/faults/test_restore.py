"""Postgres put back to an earlier copy while jobs run: nothing is stopped, nothing runs twice, what was forgotten is shown."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stage import CLUSTERS, Stage
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

_DISPATCHER = ("api-0", "api-1", "scheduler-0", "scheduler-1")
_LONG = 600.0


def _copy(folder: Path, to: Path) -> None:
    """Copy a folder with its owners: as root, Postgres runs as another user."""
    subprocess.run(["cp", "--archive", str(folder), str(to)], check=True)


def copy_store(stage: Stage) -> None:
    """Copy the store, as a backup would."""
    stage.postgres.stop("fast")
    _copy(stage.folder / "pg", stage.folder / "backup")
    stage.postgres.restart()


def put_back(stage: Stage) -> None:
    """Stop the dispatcher, and put the copy in the store's place."""
    for name in _DISPATCHER:
        stage.kill(name)
    stage.postgres.stop("immediate")
    shutil.rmtree(stage.folder / "pg")
    _copy(stage.folder / "backup", stage.folder / "pg")
    stage.postgres.restart()


def revive(stage: Stage) -> None:
    for name in _DISPATCHER:
        stage.revive(name)


def recovered(stage: Stage, *options: str) -> str:
    command = [sys.executable, "-m", "trainmaster.cli.main", "admin", "recovered", *options]
    done = subprocess.run(command, env=stage.env, capture_output=True, text=True, check=True)
    return done.stdout


def start_together(stage: Stage) -> tuple[str, str, str]:
    """Start a job that runs before the copy, one that waits at its time, and one that it does not have; return them, running."""
    before = stage.submit_lasting("before", _LONG)
    stage.until(before, "running")
    stage.act("clusters/private/cordon")
    waiting = stage.submit_lasting("waiting", _LONG)
    copy_store(stage)
    stage.act("clusters/private/uncordon")
    stage.until(waiting, "running")
    after = stage.submit_lasting("after", _LONG)
    stage.until(after, "running")
    eventually_sync(lambda: all(stage.starts(job, 1) == 1 for job in (before, waiting, after)), 60)
    return before, waiting, after


def wait_for_contact(stage: Stage, rounds: int = 4) -> None:
    """Let each agent be answered so often that it would have stopped what is unknown, which takes two answers a lease apart."""
    for _ in range(rounds):
        seen = {name: stage.cluster(name)["lastContact"] for name in CLUSTERS}
        eventually_sync(
            lambda seen=seen: all(stage.cluster(name)["lastContact"] > seen[name] for name in CLUSTERS),  # type: ignore[misc]
            60,
        )


def test_a_restored_store_takes_up_what_runs_and_starts_nothing_twice(stage: Stage) -> None:
    before, waiting, after = start_together(stage)
    put_back(stage)
    assert "store epoch 2" in recovered(stage)
    revive(stage)
    eventually_sync(lambda: stage.cluster_states() == {"ready", "cordoned"}, 60)
    wait_for_contact(stage)
    stage.act("clusters/private/uncordon")
    assert len(stage.member_processes()) == 3, "nothing was stopped"
    stage.until(before, "running")
    stage.until(waiting, "running")
    assert [stage.job(job)["attempt"] for job in (before, waiting)] == [1, 1]
    assert stage.cluster("private")["quarantinedRuns"] == 1
    (item,) = stage.request("GET", "/v1/clusters/private/quarantined-runs").json()["runs"]
    assert item["run"] == f"{after}-r1"
    fresh = stage.submit_lasting("fresh", 0.1, expected="succeeded")
    stage.until(fresh, "succeeded")
    stage.act("clusters/private/stop-quarantined")
    eventually_sync(lambda: len(stage.member_processes()) == 2, 60)
    eventually_sync(lambda: stage.cluster("private")["quarantinedRuns"] == 0, 60)
    assert all(stage.starts(job, 1) == 1 and stage.starts(job, 2) == 0 for job in (before, waiting, after))
    stage.no_copies_met()


def test_a_restored_store_of_which_nobody_has_said_so_stops_nothing(stage: Stage) -> None:
    """Its cluster was cordoned at the time of the copy, so the job that waited is not started again."""
    jobs = start_together(stage)
    put_back(stage)
    revive(stage)
    wait_for_contact(stage)
    living = {process.environ()["TRAINMASTER_JOB_ID"] for process in stage.member_processes()}
    assert living == set(jobs), "nothing was stopped"
    assert stage.cluster("private")["quarantinedRuns"] == 2
    assert "restored from a backup" in stage.log_of("api-0") + stage.log_of("api-1")
