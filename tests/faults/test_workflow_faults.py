"""Workflows under faults: schedulers, apis, agents and Postgres are killed while steps start, and each element has one job."""

import os
import random
import sys
import time
from typing import Any

import pytest

from tests.faults.stage import Stage
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

WORKFLOWS, KILLS = (30, 24) if os.environ.get("TRAINMASTER_DEEP") else (10, 8)
PARTS = 4
_GIVE = "import json, os, sys; open(os.environ['TRAINMASTER_RESULTS'], 'w').write(sys.argv[1])"


def step(name: str, code: str, *args: str, **fields: Any) -> dict[str, Any]:
    template = {"command": [sys.executable, "-I", "-S", "-c", code], "args": list(args), "resources": {"cpu": "100m"}}
    return {"name": name, "job": {"roles": [{"name": "main", "template": template}]}, **fields}


def submit(stage: Stage, number: int) -> str:
    """Submit a workflow whose second step has an element for each part that the first one returns."""
    body = {
        "kind": "Workflow",
        "name": f"flow-{number}",
        "queue": "default",
        "steps": [
            step("plan", _GIVE, '{"parts": [0, 1, 2, 3]}'),
            step(
                "part", _GIVE, '{"part": ${item}}', after=["plan"], forEach="${steps.plan.results.parts}", maxRunning=2
            ),
            step("sum", "import sys; assert sys.argv[1] == '[0,1,2,3]'", "${steps.part.results.part}", after=["part"]),
            step("tidy", "pass", cleanup=True),
        ],
    }
    answer = stage.request(
        "POST", "/v1/workflows", json=body, headers={"Idempotency-Key": f"flow-{number}-{os.urandom(8).hex()}"}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def kill_one(stage: Stage) -> None:
    name = random.choice(
        ["scheduler-0", "scheduler-1", "scheduler-0", "scheduler-1", "api-0", "api-1", "agent-private"]
    )
    if random.random() < 0.15:
        stage.restart_postgres("immediate")
        return
    stage.kill(name)
    time.sleep(random.random() * 0.5)
    stage.revive(name)


def test_each_element_has_one_job_whoever_is_killed(stage: Stage) -> None:
    ids = []
    for number in range(max(WORKFLOWS, KILLS)):
        if number < WORKFLOWS:
            ids.append(submit(stage, number))
        if number < KILLS:
            kill_one(stage)
            time.sleep(random.random())

    def have_ended() -> bool:
        found = stage.request("GET", "/v1/workflows?limit=500").json()["workflows"]
        return len(found) == WORKFLOWS and all(one["state"] != "running" for one in found)

    eventually_sync(have_ended, 120)
    for workflow in ids:
        found = stage.request("GET", f"/v1/workflows/{workflow}").json()
        assert found["state"] == "succeeded", found
        assert [one["jobs"] for one in found["steps"]] == [{"succeeded": many} for many in (1, PARTS, 1, 1)], found
    jobs = stage.jobs()
    assert len(jobs) == WORKFLOWS * (PARTS + 3), "no job belongs to no step"
    for workflow in ids:
        own = [one for one in jobs.values() if one["labels"]["trainmaster.dev/workflow"] == workflow]
        by_step = {name: [one for one in own if one["name"] == name] for name in ("plan", "part", "sum", "tidy")}
        assert [len(found) for found in by_step.values()] == [1, PARTS, 1, 1]
        for before, after in (("plan", "part"), ("part", "sum"), ("sum", "tidy")):
            last_end = max(one["endedAt"] for one in by_step[before])
            assert all(one["submittedAt"] >= last_end for one in by_step[after]), (
                f"{after} came before the end of {before}"
            )
