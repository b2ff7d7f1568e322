"""Groups from the command line and the SDK, on a real dispatcher, with a real agent that runs the members."""

import asyncio
from pathlib import Path

import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_cli_commands import Shell
from tests.integration.test_sdk import local_agent
from trainmaster.client.async_http import AsyncClient
from trainmaster.client.values import JobFilter
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import Exit, GroupState


@pytest.fixture
async def shell(service: Service, tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    assert (await made.run("login", service.url, "--name", "here", says=f"{ADMIN_KEY}\n")).code == 0
    return made


def run(*options: str, code: int = 0) -> tuple[str, ...]:
    return ("run", *options, "-o", "id", "--", "sh", "-c", f"exit {code}")


async def test_from_the_first_job_of_a_group_to_its_end(service: Service, shell: Shell, tmp_path: Path) -> None:
    async with local_agent(service, tmp_path):
        first = await shell.run(*run("--group", "g"))
        assert first.code == 0, first.errors
        waited = await shell.run("wait", "--group", "g", "--timeout", "60")
        assert (waited.code, waited.output) == (0, "g  open  1: 1 succeeded\n")
        timed_out = await shell.run("groups", "wait", "g", "--timeout", "1s")
        assert timed_out.code == Exit.NOT_FINISHED
        assert "it ends once somebody closes it, with: trainmaster groups close g" in timed_out.errors
        after = await shell.run(*run("--after-group", "g:failed"))
        why = await shell.run("why", after.output.strip())
        assert "group g, which is open: it has to be closed" in " ".join(why.output.split())
        assert (await shell.run(*run("--group", "g", "--close-group", code=3))).code == 0
        ended = await shell.run("groups", "wait", "g", "--timeout", "60s")
        assert (ended.code, ended.output) == (Exit.JOB_FAILED, "g  failed  2: 1 succeeded, 1 failed\n")
        assert (await shell.run("wait", after.output.strip(), "--timeout", "60")).code == 0
        refused = await shell.run(*run("--group", "g"))
        assert refused.code == Exit.CONFLICT
        assert "is closed and takes no more jobs" in refused.errors
        listed = await shell.run("jobs", "--group", "g", "--state", "succeeded", "-o", "id")
        assert listed.output == first.output
        shown = await shell.run("groups", "show", "g")
        assert shown.output.startswith("g  failed\nqueue   default\n")
        assert "trainmaster retry --group g" in shown.errors
        found = (await shell.run("groups", "list", "-o", "json")).data
        assert [(one["name"], one["state"], one["total"], one["failed"]) for one in found] == [("g", "failed", 2, 1)]
        again = await shell.run("rerun", first.output.strip(), "-o", "id")
        assert again.code == 0, "another job like one of a closed group is in none"
        assert "group" not in (await service.job(again.output.strip()))


async def test_a_group_is_cancelled_and_closed(service: Service, shell: Shell) -> None:
    ids = [(await shell.run(*run("--group", "g"))).output.strip() for _ in range(2)]
    left = await shell.run("cancel", "--group", "g", "--yes")
    assert left.output.splitlines()[-1] == "cancel: 2 of 2 jobs"
    assert (await shell.run("wait", "--group", "g")).code == Exit.JOB_CANCELLED
    assert (await shell.run(*run("--group", "g"))).code == 0, "it is still open"
    cancelled = await shell.run("groups", "cancel", "g", "--yes")
    assert cancelled.output.endswith("  1 of 1 jobs cancelled\n")
    assert (await shell.run("groups", "wait", "g", "--timeout", "60s")).code == Exit.JOB_CANCELLED
    assert (await shell.run("groups", "close", "g")).output == "g  cancelled  3: 3 cancelled\n"
    assert (await shell.run("groups", "show", "none")).code == Exit.NOT_FOUND
    wrong = await shell.run(*run("--after-group", "g:started"))
    assert wrong.code == Exit.USAGE
    assert "succeeded, failed, ended" in wrong.errors
    assert len(ids) == 2


async def test_the_sdk_waits_counts_closes_and_cancels(service: Service) -> None:
    spec = {
        "name": "a",
        "queue": "default",
        "group": "g",
        "suspend": True,
        "roles": [{"name": "main", "template": {"command": ["true"], "resources": {"cpu": "1"}}}],
    }
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        await client.submit([spec, spec])
        await client.submit(spec | {"group": "h"}, close_group=True)
        assert [(one.name, one.state, one.total) async for one in client.groups()] == [
            ("h", GroupState.CLOSED, 1),
            ("g", GroupState.OPEN, 2),
        ]
        assert [one.name async for one in client.groups(states="open")] == ["g"]
        assert len([one async for one in client.jobs(JobFilter(group="g"))]) == 2
        seen = await client.wait_group("g", timeout=0.1, until_closed=False)
        assert (seen.unfinished, seen.jobs) == (2, {"held": 2})
        waiting = asyncio.create_task(client.wait_group("g", timeout="60s"))
        assert (await client.bulk("cancel", JobFilter(group="g"))).changed == 2
        idle = await client.wait_group("g", timeout="60s", until_closed=False)
        assert (idle.state, idle.cancelled) == (GroupState.OPEN, 2)
        assert (await client.close_group("g", "default")).closed_at is not None
        assert (await waiting).state is GroupState.CANCELLED
        done = await client.cancel_group("h", grace="1s")
        assert (done.matched, done.changed, done.refused) == (1, 1, 0)
        states = [one.state async for one in client.watch_group("h", timeout="60s")]
        assert states[-1] is GroupState.CANCELLED
        with_code = None
        try:
            await client.group("none")
        except ProblemError as error:
            with_code = error.code
        assert with_code is Code.NOT_FOUND
