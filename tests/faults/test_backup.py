"""A backup that is taken while jobs are submitted all the time, and restored while agents with running jobs go on."""

import itertools
import os
import subprocess
import sys
import threading
import time

import httpx
import psycopg
import pytest

from tests.conftest import NO_TLS
from tests.faults.stage import CLUSTERS, MEMBER, Stage
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

_DISPATCHER = ("api-0", "api-1", "scheduler-0", "scheduler-1")
_PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]
_RATE = float(os.environ.get("TRAINMASTER_BACKUP_RATE", "100"))
"""Jobs per second; a run by hand may ask for more, and prints what was reached."""
_CALL = 50
_THREADS = 4
_SECONDS = float(os.environ.get("TRAINMASTER_BACKUP_SECONDS", "4"))
_LONG = 600.0


class Submitter:
    """Submits short jobs with members at a steady rate, and keeps the ids of all that were acknowledged.

    Calls begin by the clock, whichever of the threads is free: the time that a call takes does not lower the rate. Calls that are
    late by more than a second are left out, so that a pause is no burst afterwards.
    """

    def __init__(self, stage: Stage) -> None:
        self.acknowledged: list[str] = []
        self.refused = 0
        self.error: BaseException | None = None
        self._stop_asked = threading.Event()
        self._stage = stage
        self._lock = threading.Lock()
        self._due = time.monotonic()
        self._threads = [threading.Thread(target=self._run, name=f"submitter-{number}") for number in range(_THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _take_turn(self) -> float:
        """Return when the next call begins."""
        with self._lock:
            at = self._due = max(self._due + _CALL / _RATE, time.monotonic() - 1.0)
        return at

    def _run(self) -> None:
        try:
            self._submit()
        except BaseException as error:  # noqa: BLE001 - raised by ``end``, in the test's own thread
            self.error = error

    def _submit(self) -> None:
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
                if self._stop_asked.wait(self._take_turn() - time.monotonic()):
                    return
                url = f"http://127.0.0.1:{self._stage.api_ports[call % 2]}/v1/jobs"
                answer = http.post(url, json={"jobs": [spec] * _CALL})
                with self._lock:
                    if answer.status_code == 201:
                        self.acknowledged += [job["id"] for job in answer.json()["jobs"]]
                    else:
                        self.refused += 1

    def end(self) -> None:
        self._stop_asked.set()
        for thread in self._threads:
            thread.join()
        if self.error is not None:
            raise self.error


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


@pytest.mark.deep
def test_a_backup_under_load_loses_nothing_that_it_holds_and_starts_nothing_twice(stage: Stage) -> None:
    before = stage.submit_lasting("before", _LONG)
    stage.until(before, "running")
    submitter = Submitter(stage)
    submitter.start()
    eventually_sync(lambda: len(submitter.acknowledged) >= _CALL * 4, 60)
    acknowledged_before = list(submitter.acknowledged)
    began = time.monotonic()
    said = call(stage, "backup", "--out", str(stage.folder / "backup"))
    seconds, many = time.monotonic() - began, len(submitter.acknowledged) - len(acknowledged_before)
    print(said)
    print(
        f"{many} jobs acknowledged in the {seconds:.1f} s of the backup: {many / seconds:.0f} jobs/s"
        f" ({_RATE:.0f} wanted, {submitter.refused} calls refused)"
    )
    assert many, "jobs were submitted while the backup was taken"
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
