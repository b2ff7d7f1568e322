"""Sessions by the command line: a terminal and a server in them, on a local cluster, and their ends."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_cli_commands import Shell
from tests.integration.test_member_streams import local_agent
from tests.integration.test_session_proxy import free_port
from trainmaster.protocol.states import Exit


@pytest.fixture
async def shell(service: Service, tmp_path: Path) -> AsyncIterator[Shell]:
    user = Shell(tmp_path)
    assert (await user.run("login", service.url, says=f"{ADMIN_KEY}\n")).code == 0
    async with local_agent(service, tmp_path / "agent"):
        yield user


async def newest(service: Service) -> str:
    """Return the id of the job that was submitted last."""
    return str((await service.http.get("/v1/jobs", params={"limit": 1})).json()["jobs"][0]["id"])


async def test_a_shell_ends_with_its_command_and_its_session_with_it(service: Service, shell: Shell) -> None:
    options = ["--env", "COLOUR=blue", "--idle-timeout", "30m"]
    done = await shell.run("shell", *options, "--", "sh", "-c", "read word; echo $COLOUR $word; exit 3", says="sky\n")
    assert (done.code, done.output) == (3, "blue sky\n"), done.errors
    job = await newest(service)
    assert f"session {job}" in done.errors
    ended = await service.until(job, "cancelled")
    assert ended["spec"]["session"] == {"idleTimeout": "30m"}


async def test_run_with_it_is_a_session_with_the_command_in_its_terminal(service: Service, shell: Shell) -> None:
    options = ("--name", "desk", "--env", "COLOUR=blue", "--cpus", "100m")
    done = await shell.run(
        "run", "-it", *options, "--", "sh", "-c", "read word; echo $COLOUR $word; exit 3", says="sky\n"
    )
    assert (done.code, done.output) == (3, "blue sky\n"), done.errors
    (job,) = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert (job["name"], job["state"]) == ("desk", "cancelled")
    assert (await service.job(job["id"]))["spec"]["session"] == {}


async def test_run_with_it_refuses_options_of_jobs_that_nobody_sits_at(shell: Shell) -> None:
    done = await shell.run("run", "-it", "--wait", "--artifact", "a=b", "--", "true")
    assert (done.code, "leave out --wait, --artifact" in done.errors) == (2, True), done.errors


async def test_a_session_that_is_kept_goes_on(service: Service, shell: Shell) -> None:
    done = await shell.run("shell", "--keep", "--name", "desk", "--", "true")
    job = await newest(service)
    assert (done.code, f"end it with: trainmaster cancel {job}" in done.errors) == (0, True)
    listed = await shell.run("sessions", "-o", "id")
    assert listed.output == f"{job}\n"
    table = await shell.run("sessions", "--all")
    assert job in table.output
    assert "ENDS IN" in table.output
    assert (await service.job(job))["shownState"] == "running"
    await service.http.post(f"/v1/jobs/{job}/cancel")
    await service.until(job, "cancelled")
    assert "start one with: trainmaster shell" in (await shell.run("sessions")).errors


async def test_a_server_is_forwarded_until_ctrl_c(service: Service, shell: Shell) -> None:
    port = free_port()
    command = f'exec {sys.executable} -m http.server "$SESSION_PORT" --bind 127.0.0.1'
    process = await shell.start(
        "jupyter", "--command", command, "--port", str(port), "--local-port", str(local := free_port())
    )
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    assert url.startswith(f"http://127.0.0.1:{local}/?token="), "another server has no /lab"
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"http://127.0.0.1:{local}/")).status_code == 200
    job = await newest(service)
    path = url.removeprefix(f"http://127.0.0.1:{local}")
    assert (await service.job(job))["spec"]["session"]["ports"] == [{"name": "web", "port": port, "path": path}]
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors
    await service.until(job, "cancelled")


async def test_a_server_that_does_not_start_ends_the_command(service: Service, shell: Shell) -> None:
    done = await shell.run("vscode", "--command", "exit 5", "--port", str(free_port()))
    assert done.code == Exit.JOB_FAILED, done.errors
    assert (await service.job(await newest(service)))["shownState"] == "failed"


async def test_a_session_that_waits_says_why_and_ends_with_ctrl_c(service: Service, shell: Shell) -> None:
    process = await shell.start("shell", "--cpus", "1000")
    assert process.stderr is not None
    said = b""
    while b"it waits: " not in said:
        said += await asyncio.wait_for(process.stderr.readline(), 60)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 60)
    await service.until(await newest(service), "cancelled")


async def test_without_a_domain_no_link_is_made(service: Service, shell: Shell) -> None:
    await shell.run("shell", "--keep", "--", "true")
    job = await newest(service)
    refused = await shell.run("open", job, "8888")
    assert (refused.code != 0, "TRAINMASTER_SESSIONS_DOMAIN" in refused.errors) == (True, True)
    assert "which port?" in (await shell.run("open", job)).errors
    await service.http.post(f"/v1/jobs/{job}/cancel", json={"grace": "0s"})
    await service.until(job, "cancelled")
