"""Questions to the leading scheduler: places and dry runs, who may ask, and what is said when nobody answers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ADMIN_KEY, Service, job
from tests.integration.rows import execute, picture, value
from tests.waiting import eventually
from trainmaster import AsyncClient, Client, JobSpec
from trainmaster.protocol.states import ClusterKind, Exit, KeyRole
from trainmaster.protocol.tenants import ClusterSpec, KeySpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.api.leader import LeaderOverHttp
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.http_connections import CannotListenError
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.leader_queries import NoAnswerError, Question, Questions
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import scheduling
from trainmaster_dispatcher.store.scheduling import LeaderAddress


async def why(service: Service, job_id: str) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job_id}/why")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def why_with(service: Service, job_id: str, **fields: Any) -> dict[str, Any]:
    """Return the reason that is reported once it has these fields."""

    async def look() -> bool:
        answer = await why(service, job_id)
        return all(answer.get(name) == value for name, value in fields.items())

    await eventually(look)
    return await why(service, job_id)


async def dry_run(service: Service, *jobs: dict[str, Any], **more: Any) -> httpx.Response:
    return await service.http.post("/v1/jobs", params={"dryRun": True}, json={"jobs": list(jobs)}, **more)


async def address_of(stores: Stores) -> LeaderAddress:
    async def there() -> bool:
        async with stores.database.transaction() as tx:
            return await scheduling.leader_address(tx) is not None

    await eventually(there)
    async with stores.database.transaction() as tx:
        found = await scheduling.leader_address(tx)
    assert found is not None
    return found


@pytest.fixture
async def busy(service: Service) -> AsyncIterator[Service]:
    """A service whose only cluster in contact has 4 CPUs, and stays in contact; the leader knows it."""
    agent = service.agent()
    await agent.connect(cpu=4)

    async def stay() -> None:
        while True:
            await asyncio.sleep(service.settings.lease_seconds / 8)
            await agent.sync()

    async def is_known() -> bool:
        answer = await dry_run(service, job())
        return bool(answer.status_code == 200 and answer.json()["jobs"][0].get("trial", {}).get("startsNow"))

    staying = asyncio.create_task(stay())
    await eventually(is_known)
    yield service
    staying.cancel()
    with suppress(asyncio.CancelledError):
        await staying


# Places


async def test_why_tells_the_place_of_a_queued_job_and_what_it_goes_by(busy: Service) -> None:
    ids = [await busy.submit(f"j{number}", cpu="64", priority=number) for number in range(3)]
    answer = await why_with(busy, ids[0], position=3)
    assert (answer["queue"], answer["jobsAhead"], answer["jobsInQueue"], answer["live"]) == ("default", 2, 3, True)
    assert (await why(busy, ids[2]))["position"] == 1
    factors = (await why(busy, ids[1]))["factors"]
    assert (factors["priority"], factors["secondsEarlier"], factors["urgent"]) == (1, 60, False)
    assert factors["priorityClass"] == "normal"
    assert [turn["queue"] for turn in factors["queues"]] == ["default"]
    assert (factors["queues"][0]["rank"], factors["queues"][0]["siblings"]) == (1, 1)


async def test_the_place_follows_what_changes(busy: Service) -> None:
    first, second = [await busy.submit(name, cpu="64") for name in ("first", "second")]
    await why_with(busy, second, position=2)
    await busy.http.patch(f"/v1/jobs/{second}", json={"priority": 10})
    assert (await why_with(busy, first, position=2))["jobsAhead"] == 1


async def test_a_job_that_a_limit_keeps_from_ever_starting_has_no_turn(busy: Service) -> None:
    assert (await busy.http.patch("/v1/queues/default", json={"limits": {"cpu": "2"}})).is_success
    never, waits = await busy.submit("never", cpu="3", priority=9), await busy.submit("waits", cpu="2")
    await busy.until(waits, "dispatched")
    later = await busy.submit("later", cpu="2")

    async def is_told() -> bool:
        return bool((await why(busy, never)).get("forEver"))

    await eventually(is_told)
    answer = await why(busy, never)
    assert (answer["token"], answer["tier"]) == ("QueueLimit", "quota")
    assert not answer.keys() & {"position", "jobsAhead"}
    assert (await why_with(busy, later, position=1))["jobsThatCannotRun"] == 1


async def test_a_job_that_does_not_queue_has_no_place(busy: Service) -> None:
    held, running = await busy.submit("held", suspend=True), await busy.submit("runs")
    await busy.until(running, "dispatched")
    for job_id in (held, running):
        answer = await why(busy, job_id)
        assert not answer.keys() & {"live", "position", "factors", "ageSeconds"}


# What queues use


async def test_queues_are_shown_with_what_they_use(busy: Service) -> None:
    running = await busy.submit("runs", cpu="2")
    await busy.until(running, "dispatched")

    async def in_use() -> bool:
        answer = (await busy.http.get("/v1/queues?usage=true")).json()
        return bool(answer["live"] and answer["queues"][0]["usage"]["used"] == {"cpu": "2"})

    await eventually(in_use)
    (queue,) = (await busy.http.get("/v1/queues?usage=true")).json()["queues"]
    shares = {"share": 0.5, "shareBeyondGuarantee": 0.5, "pastShare": 0.0}
    assert queue["usage"] == {"running": 1, "used": {"cpu": "2"}} | shares
    assert "usage" not in (await busy.http.get("/v1/queues")).json()["queues"][0]
    async with AsyncClient(busy.url, ADMIN_KEY) as client:
        (view,) = await client.queues(usage=True)
        assert view.usage is not None
        assert view.usage.used == {"cpu": "2"}


async def test_without_a_leader_queues_are_shown_without_their_use(busy: Service) -> None:
    await execute(busy.stores, "UPDATE leadership SET reads = NULL")
    answer = (await busy.http.get("/v1/queues?usage=true")).json()
    assert answer["live"] is False
    assert [queue["path"] for queue in answer["queues"]] == ["default"]
    assert "usage" not in answer["queues"][0]


# Dry runs


async def test_a_dry_run_says_what_would_become_of_each_job_and_stores_nothing(busy: Service) -> None:
    waits = await busy.submit("waits", cpu="64")
    await why_with(busy, waits, position=1)
    before = await picture(busy.stores)
    key = {"Idempotency-Key": "of-a-dry-run"}
    answer = await dry_run(busy, job("fits"), job("large", cpu="64"), job("held", suspend=True), headers=key)
    assert answer.status_code == 200, answer.text
    tried = answer.json()
    assert tried["live"] is True
    fits, large, held = tried["jobs"]
    assert (fits["name"], fits["queue"]) == ("fits", "default")
    assert (fits["trial"]["startsNow"], fits["trial"]["cluster"]) == (True, "private")
    assert fits["trial"]["fitsNow"] == fits["trial"]["fitsEmpty"] == ["private"]
    assert fits["trial"]["place"]["position"] == 2
    assert large["trial"]["reason"]["token"] != "TooLarge", "the clusters that have never reported may be large enough"
    assert held["held"] is True
    assert await picture(busy.stores) == before


async def test_a_job_that_could_run_nowhere_is_told_so(busy: Service) -> None:
    answer = await dry_run(busy, job("large", cpu="64", placement={"clusters": ["private"]}))
    trial = answer.json()["jobs"][0]["trial"]
    assert (trial["couldRun"], trial["reason"]["token"]) == (False, "TooLarge")


async def test_a_job_alone_is_answered_alike(busy: Service) -> None:
    answer = await busy.http.post("/v1/jobs?dryRun=true", json=job("alone"))
    assert [one["name"] for one in answer.json()["jobs"]] == ["alone"]
    assert await value(busy.stores, "SELECT count(*) FROM jobs") == 0


async def test_a_dry_run_is_refused_where_the_submission_would_be(service: Service) -> None:
    await service.http.put("/v1/queues/small", json=QueueSpec(path="small", max_queued=1).to_wire())
    await service.http.put("/v1/queues/shut", json=QueueSpec(path="shut").to_wire() | {"state": "stopped"})
    key = KeySpec(name="bob", role=KeyRole.USER, queues=("default",))
    secret = (await service.http.post("/v1/keys", json=key.to_wire())).json()["key"]
    cases: list[tuple[dict[str, Any], str]] = [
        (job(queue="nowhere"), "unknown-queue"),
        (job(queue="shut"), "queue-closed"),
        (job(priorityClass="nobody"), "unknown-priority-class"),
        (job(replicas=0), "invalid-spec"),
    ]
    for spec, code in cases:
        for path in ("/v1/jobs?dryRun=true", "/v1/jobs"):
            assert (await service.http.post(path, json=spec)).json()["code"] == code, path
    answer = await dry_run(service, job(queue="small"), job(queue="small"))
    assert (answer.status_code, answer.json()["code"]) == (429, "queue-full")
    async with service.as_key(secret) as http:
        assert (await http.post("/v1/jobs?dryRun=true", json=job(queue="small"))).json()["code"] == "forbidden"
        assert (await http.post("/v1/jobs?dryRun=true", json=job())).status_code == 200
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0


async def test_a_dry_run_is_for_a_hundred_whole_specifications(service: Service) -> None:
    answer = await dry_run(service, *[job()] * 101)
    assert (answer.status_code, answer.json()["detail"]) == (422, "101 jobs in one dry run, at most 100 are allowed")
    assert len((await dry_run(service, *[job()] * 100)).json()["jobs"]) == 100
    table = {"job": job(), "parameters": [{}]}
    assert (await service.http.post("/v1/jobs?dryRun=true", json=table)).json()["code"] == "invalid-spec"


async def test_a_class_that_was_just_made_can_be_tried(busy: Service) -> None:
    spec = PriorityClassSpec(name="late", value=7)
    await busy.http.put("/v1/priority-classes/late", json=spec.to_wire())

    async def known() -> bool:
        answer = (await dry_run(busy, job(priorityClass="late"))).json()["jobs"][0]
        return bool(answer.get("trial", {}).get("place", {}).get("factors", {}).get("classValue") == 7)

    await eventually(known)


# The SDK


async def test_both_clients_carry_places_and_dry_runs(busy: Service) -> None:
    waits = await busy.submit("waits", cpu="64")
    await why_with(busy, waits, position=1)
    specs: list[dict[str, Any] | JobSpec] = [job("fits"), JobSpec.model_validate(job("held", suspend=True))]
    async with AsyncClient(busy.url, ADMIN_KEY) as client:
        place = await client.why(waits)
        tried = await client.dry_run(specs)
        alone = await client.dry_run(specs[0])
    assert (place.live, place.queue, place.position, place.jobs_ahead, place.jobs_in_queue) == (
        True,
        "default",
        1,
        0,
        1,
    )
    assert place.factors is not None
    assert place.factors.queues[0].queue == "default"
    assert [(one.name, one.held, one.trial and one.trial.starts_now) for one in tried] == [
        ("fits", False, True),
        ("held", True, True),
    ]
    assert [one.name for one in alone] == ["fits"]

    def blocking() -> tuple[int | None, list[str]]:
        with Client(busy.url, ADMIN_KEY) as client:
            return client.why(waits).position, [one.name for one in client.dry_run(specs)]

    assert await asyncio.to_thread(blocking) == (1, ["fits", "held"])


# Who answers, and whom


async def test_only_who_knows_the_secret_of_the_row_is_answered(service: Service) -> None:
    address = await address_of(service.stores)
    async with httpx.AsyncClient(base_url=f"http://{address.host}:{address.port}") as http:
        for headers in ({}, {"Authorization": "Bearer tmk_admin"}, {"Authorization": address.secret}):
            assert (await http.get("/place/1", headers=headers)).status_code == 401
            assert (await http.post("/try", headers=headers, json={"jobs": []})).status_code == 401
        ours = {"Authorization": f"Bearer {address.secret}"}
        assert (await http.get("/place/1", headers=ours)).status_code == 404
        assert (await http.post("/try", headers=ours, json={"jobs": []})).json() == {"trials": []}
        assert (await http.post("/try", headers=ours, json={"jobs": [{}]})).status_code == 422


async def test_who_does_not_lead_refuses(database_url: str) -> None:
    stores = Stores.open(Settings.model_validate({"database_url": database_url, "redis_url": None}))
    stop, leader = asyncio.Event(), LeaderOverHttp()
    scheduler = Scheduler(stores)
    running = asyncio.create_task(scheduler.run(stop))
    address = await address_of(stores)
    question = Question(name="j", queue_id=99, class_id=1, priority=0, shape={"roles": [], "leastMembers": 1})

    async def answers() -> bool:
        with suppress(NoAnswerError):
            return await leader.place(address, 1) is None
        return False

    await eventually(answers)
    assert (await leader.try_out(address, Questions(jobs=(question,)))).trials == (None,), "it knows no such queue"
    scheduler.token = None
    with pytest.raises(NoAnswerError, match="503"):
        await leader.place(address, 1)
    with pytest.raises(NoAnswerError, match="503"):
        await leader.try_out(address, Questions(jobs=(question,)))
    await leader.close()
    stop.set()
    await running
    await stores.close()


async def test_a_leader_that_leaves_is_asked_no_more(database_url: str) -> None:
    stores = Stores.open(Settings.model_validate({"database_url": database_url, "redis_url": None}))
    stop = asyncio.Event()
    running = asyncio.create_task(Scheduler(stores).run(stop))
    await address_of(stores)
    stop.set()
    await running
    assert await value(stores, "SELECT reads FROM leadership") is None
    async with stores.database.transaction() as tx:
        assert await scheduling.leader_address(tx) is None
    await stores.close()


async def test_a_leader_of_the_release_before_is_not_asked(service: Service) -> None:
    job_id = await service.submit(cpu="64")
    await why_with(service, job_id, live=True)
    await execute(service.stores, "UPDATE leadership SET reads = NULL")
    assert (await why(service, job_id))["live"] is False


async def test_where_all_interfaces_are_listened_on_the_store_tells_the_address(database_url: str) -> None:
    stores = Stores.open(Settings.model_validate({"database_url": database_url, "redis_url": None}))
    async with stores.database.transaction() as tx:
        assert await scheduling.take_lead(tx, "holder", 60, LeaderAddress(None, 8473, "secret")) == 1
        # The test's Postgres is reached over a Unix socket, where there is no address.
        assert await scheduling.leader_address(tx) == LeaderAddress("127.0.0.1", 8473, "secret")
    await stores.close()


async def test_an_address_that_is_taken_is_told_with_its_settings(database_url: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        settings = {"database_url": database_url, "redis_url": None, "scheduler_read_port": port}
        stores = Stores.open(Settings.model_validate(settings))
        with pytest.raises(CannotListenError, match=f"TRAINMASTER_SCHEDULER_READ_HOST and _PORT: 127.0.0.1:{port}"):
            await Scheduler(stores).run(asyncio.Event())
        await stores.close()


# Nobody answers


async def test_a_leader_that_is_too_slow_is_not_waited_for(service: Service) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        leader = LeaderOverHttp(place_seconds=0.05)
        with pytest.raises(NoAnswerError):
            await leader.place(LeaderAddress("127.0.0.1", silent.getsockname()[1], "secret"), 1)
        await leader.close()


@dataclass
class Apart:
    """An api and a scheduler as processes of their own."""

    service: Service
    scheduler: "subprocess.Popen[bytes]"


@pytest.fixture
def start(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    env = {key: text for key, text in os.environ.items() if not key.startswith("TRAINMASTER_")}
    env |= {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
    children: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> "subprocess.Popen[bytes]":
        with (tmp_path / f"{words[0]}.log").open("wb") as log:
            command = [sys.executable, "-m", "trainmaster.cli.main", *words]
            children.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        return children[-1]

    yield run
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
async def apart(
    start: Callable[..., "subprocess.Popen[bytes]"], database_url: str, redis_url: str
) -> AsyncIterator[Apart]:
    settings = Settings.model_validate({"database_url": database_url, "redis_url": redis_url})
    cluster = ClusterSpec(name="private", cluster_kind=ClusterKind.PRIVATE)
    await make_local_installation(
        settings, [cluster], {"admin": ADMIN_KEY, "private": "tmk_private"}, [QueueSpec(path="default")]
    )
    port, stores = free_port(), Stores.open(settings)
    wait_for_port(port, start("serve", "--port", str(port)), 20, "the api")
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=60) as http:
        service = Service(url, settings, stores, http)
        await service.agent().connect(cpu=4)
        yield Apart(service, start("scheduler"))
    await stores.close()


async def test_without_a_leader_the_stored_verdict_is_shown_with_its_age(apart: Apart) -> None:
    service = apart.service
    job_id = await service.submit(cpu="64")
    answer = await why_with(service, job_id, live=True, token="TooLarge", jobsThatCannotRun=1)
    assert not answer.keys() & {"position", "jobsAhead"}, "it has no turn"
    apart.scheduler.send_signal(signal.SIGKILL)
    apart.scheduler.wait()
    # At once, while its lead has not run out; and later, when nobody leads.
    for nobody_leads in (False, True):
        if nobody_leads:
            await execute(service.stores, "UPDATE leadership SET expires_at = clock_timestamp()")
        stored = await why(service, job_id)
        assert (stored["live"], stored["token"], stored["sentence"]) == (False, "TooLarge", answer["sentence"])
        assert stored["ageSeconds"] >= 0
        assert not stored.keys() & {"position", "factors"}
        dry = (await dry_run(service, job())).json()
        assert (dry["live"], dry["jobs"]) == (False, [{"name": "job", "queue": "default", "held": False}])
        refused = await dry_run(service, job(queue="nowhere"))
        assert refused.json()["code"] == "unknown-queue", "that needs no leader"


async def test_a_standby_answers_once_it_leads(apart: Apart, start: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    job_id = await apart.service.submit(cpu="64")
    await why_with(apart.service, job_id, jobsInQueue=1, live=True)
    start("scheduler")
    apart.scheduler.send_signal(signal.SIGKILL)
    apart.scheduler.wait()
    assert (await why(apart.service, job_id))["live"] is False
    await why_with(apart.service, job_id, live=True, jobsInQueue=1, token="TooLarge")


async def test_a_leader_that_is_frozen_is_not_waited_for(apart: Apart) -> None:
    job_id = await apart.service.submit(cpu="64")
    await why_with(apart.service, job_id, live=True)
    apart.scheduler.send_signal(signal.SIGSTOP)
    try:
        assert (await why(apart.service, job_id))["live"] is False
    finally:
        apart.scheduler.send_signal(signal.SIGCONT)
    await why_with(apart.service, job_id, live=True)


def test_a_scheduler_that_cannot_listen_says_so_and_ends(
    database_url: str,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        env = os.environ | {"DATABASE_URL": database_url, "TRAINMASTER_SCHEDULER_READ_PORT": str(port)}
        command = [sys.executable, "-m", "trainmaster.cli.main", "scheduler"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert f"TRAINMASTER_SCHEDULER_READ_HOST and _PORT: 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
