"""Arrays under faults: workers, agents, apis, schedulers and Postgres are killed, and each element ends and is counted once."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.stage import Stage
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

ELEMENTS, KILLS = (6000, 30) if os.environ.get("TRAINMASTER_DEEP") else (1500, 10)
MEMBERS = 3


def submit(stage: Stage, name: str, file: Path, count: int) -> str:
    """Submit an array whose elements note in a file that they have run."""
    template = {"command": ["sh", "-c", f"sleep 0.02; echo ${{element}} >> {file}"], "resources": {"cpu": "500m"}}
    body = {
        "kind": "Job",
        "name": name,
        "queue": "default",
        "roles": [{"name": "worker", "replicas": MEMBERS, "template": template}],
        "array": {"count": count},
        "retries": {"limit": 20, "backOff": "100ms"},
    }
    key = f"{name}-{os.urandom(8).hex()}"
    answer = stage.request("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def workers(stage: Stage) -> list[psutil.Process]:
    """Return the workers of the stage's clusters."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        is_worker = any(word.endswith("arrays/worker.py") for word in process.info["cmdline"] or ())
        if is_worker and Path(process.info["cwd"] or "/").is_relative_to(stage.folder):
            found.append(process)
    return found


def kill_one(stage: Stage, chance: random.Random) -> None:
    """Kill a worker, or a process of the system that is started again."""
    name = chance.choice(
        ["worker", "worker", "agent", "agent", "api-0", "api-1", "scheduler-0", "scheduler-1", "postgres"]
    )
    if name == "postgres":
        stage.restart_postgres("immediate")
        return
    if name == "worker":
        with suppress(psutil.Error, IndexError):
            chance.choice(workers(stage)).send_signal(signal.SIGKILL)
        return
    if name == "agent":
        name = f"agent-{chance.choice(('private', 'public', 'edge'))}"
    stage.kill(name)
    time.sleep(chance.random() * 0.5)
    stage.revive(name)


@pytest.mark.parametrize("seed", [1])
def test_each_element_ends_and_is_counted_once_whoever_is_killed(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    file = stage.folder / "lines"
    job = submit(stage, "tasks", file, ELEMENTS)
    eventually_sync(file.exists, 30)
    for _ in range(KILLS):
        kill_one(stage, chance)
        time.sleep(chance.random())
    eventually_sync(lambda: stage.job(job)["state"] in ("succeeded", "failed", "cancelled"), 180)
    found = stage.job(job)
    assert found["state"] == "succeeded", found
    assert found["elements"] == {"count": ELEMENTS, "succeeded": ELEMENTS, "failed": 0, "cancelled": 0, "running": 0}
    runs = Counter(int(line) for line in file.read_text().split())
    assert set(runs) == set(range(ELEMENTS)), "an element was never run"
    # At least once: what was run twice was held by a worker or a run that was killed.
    assert sum(runs.values()) - ELEMENTS < ELEMENTS / 2
    eventually_sync(lambda: not workers(stage), 30)


def test_workers_go_on_while_agent_and_api_are_away_and_nothing_runs_twice(stage: Stage) -> None:
    file = stage.folder / "lines"
    job = submit(stage, "calm", file, 600)
    eventually_sync(file.exists, 30)
    cluster = stage.job(job)["cluster"]
    processes = [process.pid for process in workers(stage)]
    for name in (f"agent-{cluster}", "api-0", "api-1"):
        stage.kill(name)
    lines = len(file.read_text().split())
    eventually_sync(lambda: len(file.read_text().split()) > lines, 10)
    for name in ("api-0", "api-1", f"agent-{cluster}"):
        stage.revive(name)
    eventually_sync(lambda: stage.job(job)["state"] == "succeeded", 120)
    assert stage.job(job)["attempt"] == 1
    assert [process.pid for process in workers(stage) if process.pid not in processes] == []
    assert Counter(file.read_text().split()) == Counter(map(str, range(600)))


def test_no_element_has_two_jobs_or_starts_before_the_one_it_follows_whoever_is_killed(stage: Stage) -> None:
    chance = random.Random(7)
    file = stage.folder / "lines"
    many = 400 if os.environ.get("TRAINMASTER_DEEP") else 100
    specs = [
        array_of_jobs("first", file, many),
        array_of_jobs("second", file, many) | {"after": [{"job": "first", "elementwise": True}]},
    ]
    answer = stage.request("POST", "/v1/jobs", json={"jobs": specs})
    assert answer.status_code == 201, answer.text
    first, second = (str(one["id"]) for one in answer.json()["jobs"])
    eventually_sync(file.exists, 30)
    for _ in range(KILLS // 2):
        kill_one(stage, chance)
        time.sleep(chance.random())
    eventually_sync(lambda: stage.job(second)["state"] in ("succeeded", "failed", "cancelled"), 180)
    for key in (first, second):
        found = stage.job(key)
        assert found["state"] == "succeeded", found
        assert found["elements"]["succeeded"] == many
        listed = stage.request("GET", "/v1/jobs", params={"label": f"trainmaster.dev/array={key}", "limit": "1000"})
        assert len(listed.json()["jobs"]) == many, "each element has one job"
    lines = [tuple(line.split()) for line in file.read_text().splitlines()]
    for element in map(str, range(many)):
        assert lines.index(("first", element)) < lines.index(("second", element))


def array_of_jobs(name: str, file: Path, count: int) -> dict[str, Any]:
    """Return an array of jobs that note in a file that they have run."""
    template = {"command": ["sh", "-c", f"echo {name} ${{element}} >> {file}"], "resources": {"cpu": "500m"}}
    return {
        "kind": "Job",
        "name": name,
        "queue": "default",
        "roles": [{"name": "worker", "template": template}],
        "array": {"mode": "jobs", "count": count},
        "retries": {"limit": 20, "backOff": "100ms"},
    }
