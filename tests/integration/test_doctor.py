"""``doctor``: each thing that is wrong is found, with what it means and what to do."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.rows import execute
from trainmaster import __version__
from trainmaster.protocol.health import HealthState, clock_check
from trainmaster.protocol.states import Exit, RunState
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.services.doctor import examine
from trainmaster_dispatcher.store.redis_channels import note_side_job

PROGRAM = [sys.executable, "-m", "trainmaster.cli.main", "doctor"]


async def doctor(tmp_path: Path, *words: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the checks by name."""
    dropped = ("DATABASE_URL", "REDIS_URL", "TRAINMASTER_DATABASE_URL", "TRAINMASTER_URL", "TRAINMASTER_API_KEY")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    kept |= {"TRAINMASTER_CONFIG": str(tmp_path / "config.yaml"), "TRAINMASTER_DATA": str(tmp_path / "data")} | env

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*PROGRAM, "-o", "json", *words], env=kept, capture_output=True, text=True, timeout=120, check=False
        )

    ended = await asyncio.to_thread(run)
    assert "Traceback" not in ended.stderr, ended.stderr
    shown = json.loads(ended.stdout)
    checks = {check["name"]: check for check in shown["checks"]}
    assert shown["state"] == ("error" if ended.returncode else shown["state"])
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")
    return ended.returncode, checks


async def test_a_sound_installation_has_nothing_wrong(service: Service, tmp_path: Path) -> None:
    for name in ("private", "public", "edge"):
        await service.agent(name, session=f"s-{name}").connect()
    await execute(service.stores, "UPDATE cluster_contacts SET agent_version = :release", release=__version__)
    assert service.settings.redis_url is not None
    await asyncio.to_thread(note_side_job, service.settings.redis_url)
    (tmp_path / "data").mkdir()
    code, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=ADMIN_KEY)
    unsound = {name: check for name, check in found.items() if check["state"] == "error"}
    assert (code, unsound) == (0, {}), unsound
    assert {
        "configuration",
        "name",
        "connection",
        "http",
        "clock",
        "key",
        "release",
        "disk",
        "database",
    } <= found.keys()
    assert {"schema", "leader", "redis", "worker and beat", "agent private", "clock of the database"} <= found.keys()
    assert "key from TRAINMASTER_API_KEY" in found["configuration"]["message"]
    assert "admin, role admin" in found["key"]["message"]
    assert found["clock"]["state"] == "ok", "it is one machine, though a busy server writes its header Date late"
    assert " agree, " in found["clock of the database"]["message"]


async def test_what_is_wrong_is_found(service: Service, tmp_path: Path) -> None:
    await service.agent().connect()
    statements = (
        "UPDATE cluster_contacts SET lease_until = now() - interval '1 s', contact_at = now() - interval '5 min'"
        " WHERE contact_at > 'epoch'",
        "INSERT INTO outbox (job_id, seq, hook, body, created_at) VALUES (1, 1, 0, '{}', now() - interval '1 h')",
        "UPDATE installation SET recovering_since = clock_timestamp()",
        "UPDATE alembic_version SET version_num = '0001'",
        "UPDATE priority_classes SET is_default = false, spec = spec - 'default'",
    )
    for statement in statements:
        await execute(service.stores, statement)
    code, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=ADMIN_KEY)
    assert code == Exit.UNHEALTHY
    assert found["agent private"]["state"] == "error"
    assert "out of contact since 5m" in found["agent private"]["message"]
    assert found["agent edge"]["state"] == "warning", "it has never connected"
    assert "run: trainmaster migrate" in found["schema"]["advice"]
    assert "private" in found["recovery"]["message"]
    assert "1 messages wait" in found["webhooks"]["message"]
    assert "none is the default" in found["priority classes"]["message"]


async def test_a_cluster_in_contact_that_returns_jobs_is_named_with_what_it_said(
    service: Service, tmp_path: Path
) -> None:
    agent = service.agent()
    await agent.connect()
    ids = []
    for _ in range(2):
        ids.append(await service.submit(placement={"clusters": ["private"]}))
        start = await agent.next_start()
        said = f"there is no PriorityClass trainmaster-normal, says {start['run']}"
        await agent.report(start["run"], RunState.RETURNED, 1, message=said)
        await service.until(ids[-1], "held")
    await execute(service.stores, "UPDATE cluster_contacts SET agent_version = :release", release=__version__)
    _, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=ADMIN_KEY)
    check = found["agent private"]
    assert check["state"] == "warning"
    assert check["message"] == (
        f"in contact, but 2 jobs that it returned are held; of {ids[1]} it said: "
        f"there is no PriorityClass trainmaster-normal, says {ids[1]}-r1"
    )
    assert check["advice"].endswith(f"trainmaster resume {ids[1]}")
    assert (await service.http.post(f"/v1/jobs/{ids[1]}/resume")).is_success
    await agent.next_start()
    _, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=ADMIN_KEY)
    assert "a job that it returned is held" in found["agent private"]["message"]
    assert ids[0] in found["agent private"]["message"]


async def test_a_cluster_in_contact_that_can_start_nothing_is_named_with_its_reason(
    service: Service, tmp_path: Path
) -> None:
    await service.agent().connect(closed="the API server does not answer")
    _, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=ADMIN_KEY)
    check = found["agent private"]
    assert (check["state"], check["message"]) == (
        "warning",
        "in contact, but it can start nothing now: the API server does not answer",
    )


async def test_without_leader_and_redis_it_says_what_does_not_work(service: Service) -> None:
    settings = service.settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    found = {check.name: check for check in await examine(service.stores.database, settings)}
    assert found["redis"].state is HealthState.ERROR
    none = service.settings.model_copy(update={"redis_url": None})
    found = {check.name: check for check in await examine(service.stores.database, none)}
    assert found["redis"].state is HealthState.WARNING


async def test_a_store_that_is_away_is_one_error(service: Service, tmp_path: Path) -> None:
    """The stores that the environment names are checked from here, as no api answers."""
    nowhere = f"postgresql://u@127.0.0.1:{free_port()}/none"
    address = f"http://127.0.0.1:{free_port()}"
    code, found = await doctor(tmp_path, TRAINMASTER_URL=address, TRAINMASTER_API_KEY="k", DATABASE_URL=nowhere)
    assert code == Exit.UNHEALTHY
    assert found["connection"]["state"] == "error"
    assert "Postgres does not answer" in found["database"]["message"]
    _, found = await doctor(
        tmp_path, TRAINMASTER_URL=address, TRAINMASTER_API_KEY="k", DATABASE_URL=service.settings.database_url
    )
    assert found["schema"]["state"] == "ok"


async def test_a_users_key_sees_its_rights_and_nothing_of_the_installation(service: Service, tmp_path: Path) -> None:
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["default"]})
    code, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=made.json()["key"])
    assert code == 0
    assert found["key"]["message"] == "u, role user, for the queues default"
    assert "database" not in found


async def test_the_key_of_an_agent_is_told_to_be_no_persons_key(service: Service, tmp_path: Path) -> None:
    made = await service.http.post("/v1/keys", json={"name": "a", "role": "agent", "cluster": "private"})
    _, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY=made.json()["key"])
    assert found["key"]["state"] == "error"
    assert found["key"]["message"].startswith("this needs the permission health.read")
    assert found["key"]["advice"].startswith("use a key of a person")


@pytest.mark.parametrize(
    ("url", "name", "word"),
    [
        ("http://no-such-host.invalid", "name", "no-such-host.invalid has no address"),
        ("http://127.0.0.1:PORT", "connection", "takes no connection: Connection refused"),
    ],
)
async def test_the_step_of_the_way_that_fails_is_named(tmp_path: Path, url: str, name: str, word: str) -> None:
    address = url.replace("PORT", str(free_port()))
    code, found = await doctor(tmp_path, "--data", str(tmp_path), TRAINMASTER_URL=address, TRAINMASTER_API_KEY="k")
    assert (code, found[name]["state"]) == (Exit.UNHEALTHY, "error")
    assert word in found[name]["message"]


async def test_the_wrong_scheme_and_a_wrong_key_are_named(service: Service, tmp_path: Path) -> None:
    secure = service.url.replace("http://", "https://")
    code, found = await doctor(tmp_path, TRAINMASTER_URL=secure, TRAINMASTER_API_KEY="k")
    assert (code, found["tls"]["state"]) == (Exit.UNHEALTHY, "error")
    assert "begins with http://" in found["tls"]["advice"]
    code, found = await doctor(tmp_path, TRAINMASTER_URL=service.url, TRAINMASTER_API_KEY="tmk_wrong")
    assert "key" in found, found
    assert (code, found["key"]["state"]) == (Exit.UNHEALTHY, "error")


async def test_the_way_is_examined_without_a_key_too(service: Service, tmp_path: Path) -> None:
    secure = service.url.replace("http://", "https://")
    code, found = await doctor(tmp_path, "--data", str(tmp_path), TRAINMASTER_URL=secure)
    assert (code, found["configuration"]["state"], found["tls"]["state"]) == (Exit.UNHEALTHY, "error", "error")
    assert found["configuration"]["advice"] == f"trainmaster login {secure}"
    assert "begins with http://" in found["tls"]["advice"]
    code, found = await doctor(tmp_path, TRAINMASTER_URL=service.url)
    assert (code, found["configuration"]["state"], found["http"]["state"]) == (Exit.UNHEALTHY, "error", "ok")


async def test_without_a_configuration_it_says_so(tmp_path: Path) -> None:
    code, found = await doctor(tmp_path)
    assert code == Exit.UNHEALTHY
    assert "no dispatcher is configured" in found["configuration"]["message"]


@pytest.mark.parametrize(
    ("least", "most", "state", "message"),
    [
        (-0.9, 0.1, "ok", "both clocks agree, as exactly as this can be measured: to 1.0 s"),
        (-0.001, 0.001, "ok", "both clocks agree, as exactly as this can be measured: to 0.1 s"),
        (0.4, 1.4, "ok", "both clocks differ by 0.4 s"),
        (-31, -30, "warning", "both clocks differ by 30.0 s: times that people read, and certificates, may seem wrong"),
        (
            3600,
            3601,
            "error",
            "both clocks differ by 3600.0 s: times that people read, and certificates, may seem wrong",
        ),
    ],
)
def test_clocks_are_compared_as_exactly_as_they_were_measured(
    least: float, most: float, state: str, message: str
) -> None:
    check = clock_check("clock", least, most, "both clocks")
    assert (check.state.value, check.message) == (state, message)
