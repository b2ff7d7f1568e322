"""The command line as real processes on a real dispatcher, with a real agent that runs the members."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_sdk import local_agent
from trainmaster.client.async_http import AsyncClient
from trainmaster.client.values import JobFilter
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import Exit


@dataclass
class Command:
    """A command that has ended."""

    code: int | None
    output: str
    errors: str

    @property
    def data(self) -> Any:
        return orjson.loads(self.output)


class Shell:
    """Runs commands as a user does, with a configuration file of its own."""

    def __init__(self, folder: Path) -> None:
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
        self._env["TRAINMASTER_CONFIG"] = str(folder / "config.yaml")

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "trainmaster.cli.start", *words]
        return await asyncio.create_subprocess_exec(*command, env=self._env, stdin=pipe, stdout=pipe, stderr=pipe)

    async def run(self, *words: str, says: str = "") -> Command:
        process = await self.start(*words)
        output, errors = await asyncio.wait_for(process.communicate(says.encode()), 120)
        return Command(process.returncode, output.decode(), errors.decode())


async def test_from_login_to_a_job_that_runs_again(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert (await shell.run("login", service.url, "--name", "here", says=f"{ADMIN_KEY}\n")).code == 0
    assert (await shell.run("whoami", "-o", "json")).data["name"] == "admin"
    async with local_agent(service, tmp_path):
        words = ["run", "--env", "WORD=hello", "--label", "sweep=7", "--wait", "-o", "json", "--"]
        program = "import os, sys; print(os.environ['WORD']); sys.exit(int(os.environ.get('CODE', '0')))"
        ran = await shell.run(*words, "python", "-c", program)
        assert ran.code == 0, ran.errors
        ((first,),) = [[one["id"] for one in ran.data]]
        again = await shell.run("rerun", first, "--env", "CODE=3", "--wait", "-o", "id")
        assert (again.code, " failed" in again.errors) == (Exit.JOB_FAILED, True)
        failed = again.output.strip()
        for command in ("job", "why"):
            assert (await shell.run(command, failed)).output.endswith("last output of main-0\n  hello\n")
        spec = await shell.run("job", first, "--spec")
        third = await shell.run("submit", "-", "--wait", "-o", "id", says=spec.output)
        assert third.code == 0, third.errors
        whole = await shell.run("job", first, "-o", "yaml")
        assert yaml.safe_load(whole.output)["spec"]["name"] == "python"
        assert (await shell.run("submit", "-", "--dry-run", says=whole.output)).code == 0
        found = await shell.run("jobs", "--mine", "--label", "sweep=7", "--sort", "ended", "-o", "id")
        assert set(found.output.split()) == {first, failed, third.output.strip()}
        assert (await shell.run("wait", "--label", "sweep=7")).code == Exit.JOB_FAILED
        logs = await shell.run("logs", "--label", "sweep=7", "--state", "failed")
        assert logs.output == "hello\n"
        assert (await shell.run("logs", first, "--attempt", "9")).code == Exit.NOT_FOUND


async def test_a_job_of_a_table_is_run_again_with_its_parameters(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, says=f"{ADMIN_KEY}\n")
    (tmp_path / "table.csv").write_text("lr\n0.1\n0.2\n")
    template = {"command": ["train", "${lr}"]}
    spec = {"name": "a", "queue": "default", "suspend": True, "roles": [{"name": "m", "template": template}]}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    made = await shell.run(
        "submit", str(tmp_path / "job.yaml"), "--parameters", str(tmp_path / "table.csv"), "-o", "id"
    )
    second = made.output.split()[1]
    assert "parameters  lr=0.2" in (await shell.run("job", second)).output
    again = (await shell.run("rerun", second, "-o", "id")).output.strip()
    shown = await service.job(again)
    assert shown["spec"]["roles"][0]["template"]["command"] == ["train", "0.2"]
    assert "parameters" not in shown


async def test_names_that_do_not_exist_end_with_the_nearest(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, says=f"{ADMIN_KEY}\n")
    cluster = await shell.run("jobs", "--cluster", "privte")
    assert (cluster.code, "did you mean 'private'?" in cluster.errors) == (Exit.NOT_FOUND, True)
    queue = await shell.run("run", "--queue", "defautl", "true")
    assert (queue.code, "did you mean 'default'?" in queue.errors) == (Exit.BAD_REQUEST, True)


async def test_jobs_are_searched_and_listed_by_their_class(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, says=f"{ADMIN_KEY}\n")
    for name in ("high", "low"):
        await service.http.put(f"/v1/priority-classes/{name}", json={"name": name, "value": 1})
    bert = await service.submit("bert-large", priorityClass="high", labels={"team": "vision"}, suspend=True)
    gpt = await service.submit("gpt", priorityClass="low", suspend=True)
    for words, found in (
        (("--search", bert), {bert}),
        (("--search", "bert"), {bert}),
        (("--search", "team=vision"), {bert}),
        (("--search", "admin"), {bert, gpt}),
        (("--search", "admin", "--priority-class", "low"), {gpt}),
        (("--priority-class", "high"), {bert}),
        (("--search", "ert"), set()),
    ):
        listed = await shell.run("jobs", *words, "-o", "id")
        assert (listed.code, set(listed.output.split())) == (0, found), words
    empty = await shell.run("jobs", "--search", "")
    assert (empty.code, "search" in empty.errors) == (Exit.BAD_REQUEST, True)
    unknown = await shell.run("jobs", "--priority-class", "hihg")
    assert (unknown.code, "did you mean 'high'?" in unknown.errors) == (Exit.BAD_REQUEST, True)
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        assert [one.id async for one in client.jobs(JobFilter(search="bert", priority_class="high"))] == [bert]
        assert (await client.bulk("cancel", JobFilter(search="bert"), dry_run=True)).matched == 1
        with pytest.raises(ProblemError) as caught:
            await client.bulk("cancel", JobFilter(queue="default", search=""))
        assert caught.value.code is Code.INVALID_SPEC


async def test_the_last_admin_does_not_lock_everybody_out(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, says=f"{ADMIN_KEY}\n")
    own = (await shell.run("whoami", "-o", "id")).output.strip()
    unsure = await shell.run("keys", "revoke", own, says="n\n")
    assert (unsure.code, "nothing was changed" in unsure.errors) == (0, True)
    refused = await shell.run("keys", "revoke", own, "--yes")
    assert (refused.code, "the last valid key of an admin" in refused.errors) == (Exit.CONFLICT, True)
    assert (await shell.run("keys", "revoke", own, "--yes", "--force")).code == 0


async def test_ctrl_c_ends_a_list_that_is_shown_again(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, says=f"{ADMIN_KEY}\n")
    process = await shell.start("queues", "--watch")
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors) == (130, b"")


_CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: weekly, namespace: default}
spec:
  schedule: "0 6 * * mon"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: i, resources: {requests: {cpu: 1}}}]
"""
_SCHEDULE = """
kind: Schedule
name: nightly
queue: default
schedule: "0 3 * * *"
timeZone: Europe/Berlin
job:
  roles: [{name: main, replicas: 1, template: {command: ["true"], resources: {cpu: 1}}}]
"""


async def test_schedules_are_submitted_applied_and_changed(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, says=f"{ADMIN_KEY}\n")
    made = await shell.run("submit", "-", says=_CRON_JOB)
    assert (made.code, made.output[:16]) == (0, "weekly  next due"), made.errors
    twice = await shell.run("submit", "-", says=_CRON_JOB)
    assert twice.code == Exit.CONFLICT
    applied = await shell.run("apply", "-f", "-", "--yes", says=_SCHEDULE)
    assert "+ Schedule nightly  create" in applied.output, applied.errors
    assert "nothing to change" in (await shell.run("apply", "-f", "-", "--yes", says=_SCHEDULE)).output
    changed = _SCHEDULE.replace("0 3", "0 4")
    assert (await shell.run("diff", "-f", "-", says=changed)).code == Exit.DIFFERENT
    assert "~ Schedule nightly  change" in (await shell.run("apply", "-f", "-", "--yes", says=changed)).output
    listed = await shell.run("schedules")
    assert "T04:00:00+0" in listed.output
    assert "weekly" in listed.output
    assert (await shell.run("schedules", "list", "--queue", "default", "-o", "id")).output.split() == [
        "nightly",
        "weekly",
    ]
    assert (await shell.run("schedules", "suspend", "nightly")).output == "nightly  suspended\n"
    job = (await shell.run("schedules", "run-now", "nightly")).output.strip()
    assert job in (await shell.run("schedules", "show", "nightly")).output
    assert (await shell.run("schedules", "resume", "nightly")).code == 0
    for name in ("nightly", "weekly"):
        spec = await shell.run("schedules", "show", name, "--spec")
        assert "nothing to change" in (await shell.run("apply", "-f", "-", says=spec.output)).output, spec.output
    unsure = await shell.run("schedules", "delete", "nightly", says="n\n")
    assert "and cancel 1 job?" in unsure.errors
    assert (await shell.run("schedules", "delete", "nightly", "--keep-jobs", "--yes")).output == "nightly  deleted\n"
    wrong = await shell.run("submit", "-", says=_SCHEDULE.replace("0 3", "99 3"))
    assert (wrong.code, "schedule: minute: must be from 0 to 59" in wrong.errors) == (Exit.BAD_REQUEST, True), (
        wrong.errors
    )
    both = await shell.run("submit", "-", says=f"{_SCHEDULE}---{_CRON_JOB}---\nkind: Job\n")
    assert (both.code, "submit them apart" in both.errors) == (2, True)
