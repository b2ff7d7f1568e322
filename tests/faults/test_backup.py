"""A backup that is taken while jobs are submitted all the time, and restored while agents with running jobs go on."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.conftest import NO_TLS
from tests.faults.stage import CLUSTERS, MEMBER, Stage, started
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

_DISPATCHER = ("api-0", "api-1", "scheduler-0", "scheduler-1")
_PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
_RATE = float(os.environ.get("TRAINMASTER_BACKUP_RATE", "100"))
"""Jobs per second; bench-like runs by hand ask for more."""
_CALL = 50
_SECONDS = float(os.environ.get("TRAINMASTER_BACKUP_SECONDS", "4"))
_LONG = 600.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with started(tmp_path / "stage") as built:
        yield built


class Submitter(threading.Thread):
    """Submits short jobs with members at a steady rate, and keeps the ids of all that were acknowledged."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(name="submitter")
        self.acknowledged: list[str] = []
        self._stop_asked = threading.Event()
        self._stage = stage

    def run(self) -> None:
        command = [sys.executable, "-I", "-S", str(MEMBER), str(self._stage.members), "0.05", "0"]
        template = {"command": command, "resources": {"cpu": "500m"}}
        headers = {"Authorization": "Bearer tmk_admin"}
        with httpx.Client(timeout=30, verify=NO_TLS, headers=headers) as http:
            for call in itertools.count():
                spec = {
                    "kind": "Job",
                    "name": f"steady-{call}",
                    "queue": "default",
                    "roles": [{"name": "main", "template": template}],
                }
                url = f"http://127.0.0.1:{self._stage.api_ports[call % 2]}/v1/jobs"
                answer = http.post(url, json={"jobs": [spec] * _CALL})
                if answer.status_code == 201:
                    self.acknowledged += [job["id"] for job in answer.json()["jobs"]]
                if self._stop_asked.wait(_CALL / _RATE):
                    return

    def end(self) -> None:
        self._stop_asked.set()
        self.join()


def call(stage: Stage, *words: str) -> str:
    done = subprocess.run([*_PROGRAM, *words], env=stage.env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ids_in(stage: Stage) -> set[int]:
    with psycopg.connect(stage.env["DATABASE_URL"]) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM jobs")}


def live_runs(stage: Stage) -> list[int]:
    """Return the largest numbers of live runs of a job."""
    with psycopg.connect(stage.env["DATABASE_URL"]) as connection:
        query = "SELECT count(*) FROM runs WHERE ended_at IS NULL GROUP BY job_id ORDER BY 1 DESC LIMIT 3"
        return [row[0] for row in connection.execute(query)]


def test_a_backup_under_load_loses_nothing_that_it_holds_and_starts_nothing_twice(stage: Stage) -> None:
    before = stage.submit_lasting("before", _LONG)
    stage.until(before, "running")
    submitter = Submitter(stage)
    submitter.start()
    eventually_sync(lambda: len(submitter.acknowledged) >= _CALL * 4, 60)
    acknowledged_before = list(submitter.acknowledged)
    said = call(stage, "backup", "--out", str(stage.folder / "backup"))
    print(said)
    eventually_sync(lambda: len(submitter.acknowledged) >= len(acknowledged_before) + _RATE * _SECONDS / 2, 120)
    submitter.end()
    after = stage.submit_lasting("after", _LONG)
    stage.until(after, "running")
    eventually_sync(lambda: all(stage.starts(job, 1) == 1 for job in (before, after)), 60)
    for name in _DISPATCHER:
        stage.kill(name)
    print(call(stage, "restore", str(stage.folder / "backup"), "--replace"))
    restored = ids_in(stage)
    for name in _DISPATCHER:
        stage.revive(name)
    eventually_sync(lambda: stage.cluster_states() == {"ready"}, 120)
    jobs = stage.jobs()
    assert len(jobs) == len(restored)
    assert not set(acknowledged_before) - jobs.keys(), "no job that was acknowledged before the backup is lost"
    stage.until(before, "running")
    assert stage.job(before)["attempt"] == 1
    assert after not in jobs
    shown = stage.request("GET", "/v1/clusters/private/quarantined-runs").json()["runs"]
    assert f"{after}-r1" in {run["run"] for run in shown}
    fresh = stage.submit_lasting("fresh", 0.1, expected="succeeded")
    stage.until(fresh, "succeeded")
    assert max(live_runs(stage)) == 1
    assert stage.starts(before, 1) == stage.starts(after, 1) == 1
    assert stage.starts(before, 2) == stage.starts(after, 2) == 0
    stage.act(f"jobs/{before}/cancel")
    for name in CLUSTERS:
        stage.act(f"clusters/{name}/stop-quarantined")
    stage.await_all_ended(300)
    states = {job["shownState"] for job_id, job in stage.jobs().items() if job_id in acknowledged_before}
    assert states == {"succeeded"}
    stage.no_copies_met()
