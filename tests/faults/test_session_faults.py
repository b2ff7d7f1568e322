"""Sessions under faults: schedulers, apis and Postgres are killed around their ends, and each is warned and ended once."""

import os
import random
import sys
import time

import pytest

from tests.faults.stage import Stage
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

SESSIONS, KILLS = (12, 20) if os.environ.get("TRAINMASTER_DEEP") else (5, 8)
IDLE_SECONDS = 10


def submit(stage: Stage, name: str, **session: str) -> str:
    code = "import time; print('ready', flush=True); time.sleep(600)"
    template = {"command": [sys.executable, "-I", "-S", "-c", code], "resources": {"cpu": "100m"}}
    body = {
        "kind": "Session",
        "name": name,
        "queue": "default",
        "roles": [{"name": "main", "template": template}],
        "session": session,
    }
    headers = {"Idempotency-Key": f"{name}-{os.urandom(8).hex()}"}
    answer = stage.request("POST", "/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def kill_one(stage: Stage, chance: random.Random) -> None:
    name = chance.choice(["scheduler-0", "scheduler-1", "scheduler-0", "scheduler-1", "api-0", "api-1", "postgres"])
    if name == "postgres":
        stage.restart_postgres("immediate")
        return
    stage.kill(name)
    time.sleep(chance.random() * 0.5)
    stage.revive(name)


def test_each_idle_session_is_warned_and_ended_once_whoever_is_killed(stage: Stage) -> None:
    chance = random.Random(3)
    idle = [submit(stage, f"idle-{number}", idleTimeout=f"{IDLE_SECONDS}s") for number in range(SESSIONS)]
    used = submit(stage, "busy", idleTimeout="1h")
    for _ in range(KILLS):
        kill_one(stage, chance)
        time.sleep(chance.random() * 2)
    eventually_sync(lambda: all(stage.job(job)["state"] == "cancelled" for job in idle), 90)
    for job in idle:
        found, history = stage.job(job), stage.history(job)["events"]
        kinds = [event["kind"] for event in history]
        assert kinds.count("session.warning") == 1, kinds
        assert kinds.count("cancel") == 1, kinds
        assert kinds.index("session.warning") < kinds.index("cancel")
        assert "idle" in found["message"], found
        assert found["attempt"] == 1
    assert stage.job(used)["state"] == "running"
    stage.act(f"jobs/{used}/cancel")
