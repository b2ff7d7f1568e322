"""Groups under faults: schedulers, apis, agents and Postgres are killed while jobs of groups run; numbers stay right, and each group
has one message.
"""

import os
import random
import sys
import time
from typing import Any

import psycopg
import pytest

from tests.faults.stage import Stage
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

GROUPS, KILLS = (20, 24) if os.environ.get("TRAINMASTER_DEEP") else (6, 8)
JOBS = 6
_HOOK = "http://127.0.0.1:8471/group"


@pytest.fixture(autouse=True)
def with_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dispatcher accept webhooks. No worker runs, so that messages stay in the store."""
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", "a secret of the tests")
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_HTTP", "true")
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_NETWORKS", "127.0.0.1/32")


def submit(stage: Stage, number: int, last: bool) -> None:
    """Submit half of the jobs of a group, one of which fails; the last half closes it."""
    code = "import sys; sys.exit(3)" if last and number % 2 else "pass"
    template = {"command": [sys.executable, "-I", "-S", "-c", code], "resources": {"cpu": "100m"}}
    spec: dict[str, Any] = {
        "name": f"part-{number}",
        "queue": "default",
        "group": f"g{number}",
        "roles": [{"name": "main", "template": template}],
        "notify": [{"url": _HOOK, "group": True}],
    }
    answer = stage.request(
        "POST",
        f"/v1/jobs?closeGroup={'true' if last else 'false'}",
        json={"jobs": [spec] * (JOBS // 2)},
        headers={"Idempotency-Key": f"group-{number}-{last}"},
    )
    assert answer.status_code == 201, answer.text


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


def test_each_group_ends_once_whoever_is_killed(stage: Stage) -> None:
    steps = [(number, False) for number in range(GROUPS)] + [(number, True) for number in range(GROUPS)]
    for step in range(max(len(steps), KILLS)):
        if step < len(steps):
            submit(stage, *steps[step])
        if step < KILLS:
            kill_one(stage)
            time.sleep(random.random())

    def shown() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stage.request("GET", "/v1/groups?limit=500").json()["groups"]
        return found

    eventually_sync(lambda: all(one["state"] not in ("open", "closed") for one in shown()), 120)
    for one in shown():
        failed = JOBS // 2 if int(one["name"].removeprefix("g")) % 2 else 0
        assert (one["total"], one["unfinished"], one["failed"]) == (JOBS, 0, failed), one
        assert one["state"] == ("failed" if failed else "succeeded")
    assert len(shown()) == GROUPS
    with psycopg.connect(stage.env["DATABASE_URL"]) as connection:
        messages = connection.execute(
            "SELECT o.body->>'group', (SELECT max(j.ended_at) FROM jobs j WHERE j.group_id = o.group_id), o.created_at FROM outbox o"
        ).fetchall()
    assert sorted(name for name, _, _ in messages) == sorted(f"g{number}" for number in range(GROUPS))
    # The message has the time at which the leader's transaction began, which may be just before the end of the last job.
    assert all((last - sent).total_seconds() < 1 for _, last, sent in messages)
