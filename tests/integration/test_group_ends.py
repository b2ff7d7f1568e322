"""Ends of groups: each webhook gets one message of each group, and none before all jobs have ended, whatever happens at once."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

import pytest

from tests.conftest import Service, job
from tests.fuzz.values import IS_DEEP
from tests.integration.receiver import SECRET, Receiver
from tests.integration.rows import execute, rows, value
from tests.integration.test_dependency_races import end_all
from tests.waiting import eventually
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.domain.webhooks import AddressPolicy, Persistence
from trainmaster_dispatcher.services import group_ends
from trainmaster_dispatcher.services.webhooks import DeliveryTerms, Relay
from trainmaster_dispatcher.store import dependencies, outbox
from trainmaster_dispatcher.store import groups as group_store
from trainmaster_dispatcher.worker.http import Poster

POLICY = AddressPolicy(allow_http=True, networks=(ip_network("127.0.0.1/32"),))
HOOK = "http://127.0.0.1:8471/group"


@pytest.fixture(autouse=True)
def open_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_HTTP", "true")
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_NETWORKS", "127.0.0.1/32")


@pytest.fixture
async def post() -> AsyncIterator[Poster]:
    async with Poster(POLICY) as poster:
        yield poster


def grouped(name: str = "a", group: str = "g", *urls: str, **fields: Any) -> dict[str, Any]:
    spec = job(name, group=group, **fields)
    if urls:
        spec["notify"] = [{"url": url, "group": True} for url in urls]
    return spec


async def submitted(service: Service, *specs: dict[str, Any], **query: str) -> list[str]:
    answer = await service.http.post("/v1/jobs", json={"jobs": list(specs)}, params=query)
    assert answer.status_code == 201, answer.text
    return [one["id"] for one in answer.json()["jobs"]]


async def ended(service: Service, state: JobState, *ids: str) -> None:
    async with service.stores.database.transaction() as tx:
        await end_all(tx, [parse_job_id(one)[1] for one in ids], state)
    service.stores.jobs_changed([parse_job_id(one)[1] for one in ids])


async def until(service: Service, group: str, state: str) -> dict[str, Any]:
    async def look() -> bool:
        return bool((await service.http.get(f"/v1/groups/{group}")).json()["state"] == state)

    await eventually(look, 10)
    found: dict[str, Any] = (await service.http.get(f"/v1/groups/{group}")).json()
    return found


async def relay(service: Service, post: Poster) -> None:
    terms = DeliveryTerms(POLICY, (SECRET,), Persistence(0.001, 0.002, attempts=2), 8, claim_seconds=60)
    while await value(service.stores, "SELECT count(*) FROM outbox WHERE dead_at IS NULL"):
        await execute(service.stores, "UPDATE outbox SET next_at = now() WHERE dead_at IS NULL")
        await Relay(service.stores.database, terms, post).run()


async def test_a_webhook_gets_one_signed_message_when_the_group_has_ended(service: Service, post: Poster) -> None:
    with Receiver() as receiver:
        hook, other = f"{receiver.url}/group", f"{receiver.url}/other"
        ids = await submitted(service, *(grouped(f"j{n}", "g", hook) for n in range(3)), grouped("o", "g", other))
        await ended(service, JobState.SUCCEEDED, *ids[:3])
        await ended(service, JobState.FAILED, ids[3])
        assert await value(service.stores, "SELECT count(*) FROM outbox") == 0, "it is open"
        await service.http.post("/v1/groups/g/close")
        found = await until(service, "g", "failed")
        await relay(service, post)
    assert sorted(one.path for one in receiver.received) == ["/group", "/other"]
    first = receiver.received[0]
    assert first.is_signed()
    assert first.headers["trainmaster-event"] == f"group-{await value(service.stores, 'SELECT id FROM job_groups')}/1"
    assert first.value | {"at": "", "closedAt": ""} == {
        "version": 1,
        "group": "g",
        "queue": "default",
        "event": "groupEnded",
        "state": "failed",
        "jobs": 4,
        "succeeded": 3,
        "failed": 1,
        "cancelled": 0,
        "createdAt": found["createdAt"],
        "closedAt": "",
        "at": "",
    }


async def test_a_message_of_a_group_that_is_given_up_can_be_seen_and_tried_again(
    service: Service, post: Poster
) -> None:
    with Receiver(lambda number: 500 if number <= 2 else 200) as receiver:
        (one,) = await submitted(service, grouped("a", "g", receiver.url), closeGroup="true")
        await ended(service, JobState.CANCELLED, one)
        await until(service, "g", "cancelled")
        await relay(service, post)
        (letter,) = (await service.http.get("/v1/webhooks/dead")).json()["dead"]
        assert ("job" in letter, letter["group"], letter["queue"]) == (False, "g", "default")
        assert (letter["url"], letter["states"]) == (receiver.url, ["cancelled"])
        answer = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["default"]})
        shown = await service.as_key(answer.json()["key"]).get("/v1/webhooks/dead")
        assert [one["id"] for one in shown.json()["dead"]] == [letter["id"]]
        assert (await service.http.post(f"/v1/webhooks/dead/{letter['id']}/retry")).status_code == 200
        await relay(service, post)
    assert len(receiver.taken) == 1


async def test_a_job_that_is_tried_again_after_the_end_causes_no_second_message(service: Service) -> None:
    (one,) = await submitted(service, grouped("a", "g", HOOK), closeGroup="true")
    await ended(service, JobState.FAILED, one)
    await until(service, "g", "failed")
    for state in (JobState.FAILED, JobState.SUCCEEDED):
        assert (await service.http.post(f"/v1/jobs/{one}/retry")).status_code == 200
        await until(service, "g", "closed")
        await ended(service, state, one)
        await until(service, "g", state.value)
    found = await rows(service.stores, "SELECT body->>'state' AS state FROM outbox")
    assert [row.state for row in found] == ["failed"]


async def test_a_webhook_of_the_group_gets_none_of_the_jobs_transitions(service: Service) -> None:
    spec = grouped("a", "g", HOOK)
    spec["notify"].append({"url": HOOK, "states": ["queued"]})
    (one,) = await submitted(service, spec)
    await ended(service, JobState.SUCCEEDED, one)
    found = await rows(service.stores, "SELECT hook, body->>'state' AS state FROM outbox")
    assert [tuple(row) for row in found] == [(1, "queued")]


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"notify": [{"url": HOOK, "group": True}]}, "", "give the job a group"),
        (
            {"group": "g", "notify": [{"url": HOOK, "group": True, "states": ["failed"]}]},
            "notify[0]",
            "leave out states",
        ),
        ({"group": "g", "notify": [{"url": "http://10.0.0.1/", "group": True}]}, "notify[0].url", "10.0.0.1"),
        ({"group": "-g"}, "group", "begin and end with a letter"),
    ],
    ids=["no group", "states", "address", "name"],
)
async def test_mistakes_are_refused(service: Service, fields: dict[str, Any], path: str, words: str) -> None:
    answer = await service.http.post("/v1/jobs", json=job("a", **fields))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec"), answer.text
    (mistake,) = answer.json()["mistakes"]
    assert mistake["path"] == path
    assert words in mistake["message"]


async def test_a_group_has_a_bounded_number_of_webhooks(service: Service) -> None:
    for number in range(12):
        hooks = [f"{HOOK}/{number}/{n}" for n in range(8)]
        await submitted(service, grouped("a", "g", *hooks))
    answer = await service.http.post("/v1/jobs", json=grouped("a", "g", *(f"{HOOK}/x/{n}" for n in range(8))))
    assert answer.json()["code"] == "invalid-spec"
    assert (await service.http.get("/v1/groups/g")).json()["total"] == 12


_WATCH = (
    "CREATE TABLE violations (group_id bigint)",
    """
    CREATE FUNCTION watch_outbox() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT 1 FROM jobs WHERE group_id = NEW.group_id AND ended_at IS NULL)
           OR EXISTS (SELECT 1 FROM job_groups WHERE id = NEW.group_id AND closed_at IS NULL)
        THEN INSERT INTO violations VALUES (NEW.group_id); END IF;
        RETURN NEW; END $$
    """,
    "CREATE TRIGGER watch BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.group_id IS NOT NULL) EXECUTE FUNCTION watch_outbox()",
)
_BY_HAND = """
    SELECT g.name, count(*) AS total, count(*) FILTER (WHERE j.ended_at IS NULL) AS unfinished,
           count(*) FILTER (WHERE j.state = 'succeeded') AS succeeded, count(*) FILTER (WHERE j.state = 'failed') AS failed,
           count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled
    FROM job_groups g JOIN jobs j ON j.group_id = g.id GROUP BY g.name
"""
_FIRST_CLOSING = 60
"""The number of things that happen before the first group is closed."""
_NUMBERS = ("total", "unfinished", "succeeded", "failed", "cancelled")


class Crowd:
    """People and agents who submit, end, retry and close jobs of a few groups at once."""

    def __init__(self, service: Service, seed: int, *, retries: bool) -> None:
        self.service = service
        self.chance = random.Random(seed)
        self.retries = retries
        self.names = [f"g{number}" for number in range(4)]
        self.jobs: list[str] = []

    async def act(self, number: int) -> None:
        await asyncio.sleep(self.chance.random() * 0.3)
        choice = self.chance.random()
        if choice < 0.35:
            await self._submit(number)
        elif choice < 0.75 and self.jobs:
            await self._end(self.chance.sample(self.jobs, min(len(self.jobs), 3)))
        elif choice < 0.85 and self.jobs and self.retries:
            await self.service.http.post(f"/v1/jobs/{self.chance.choice(self.jobs)}/retry")
        elif choice < 0.92:
            await self._look()
        elif number > _FIRST_CLOSING:
            await self.service.http.post(f"/v1/groups/{self.chance.choice(self.names)}/close")

    async def _submit(self, number: int) -> None:
        specs = [grouped(f"j{number}", self.chance.choice(self.names), HOOK) for _ in range(self.chance.randint(1, 3))]
        query = {"closeGroup": "true"} if number > _FIRST_CLOSING and self.chance.random() < 0.1 else {}
        headers = {"Idempotency-Key": f"submission-{number}"}
        answer = await self.service.http.post("/v1/jobs", json={"jobs": specs}, params=query, headers=headers)
        while answer.status_code == 503:  # on a machine that is busy, a lock may take too long: clients try again
            answer = await self.service.http.post("/v1/jobs", json={"jobs": specs}, params=query, headers=headers)
        if answer.status_code == 201:
            self.jobs += [one["id"] for one in answer.json()["jobs"]]
        else:
            assert answer.json()["code"] == "group-closed", answer.text

    async def _end(self, ids: list[str]) -> None:
        """End those of these jobs that have not ended."""
        state = self.chance.choice([JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
        live = [one for one in ids if (await self.service.job(one))["state"] == "queued"]
        await self.end_all_of(live, state)

    async def end_all_of(self, ids: list[str], state: JobState) -> None:
        """End those of these jobs that are still queued."""
        async with self.service.stores.database.transaction() as tx:
            keys = sorted(parse_job_id(one)[1] for one in ids)
            queued = await tx.all(
                "SELECT id FROM jobs WHERE id = ANY(:ids) AND state = 'queued' ORDER BY id FOR UPDATE", ids=keys
            )
            await end_all(tx, [row.id for row in queued], state)
        self.service.stores.jobs_changed(keys)

    async def _look(self) -> None:
        """Look at groups as a leader that does not know yet that it is one no more."""
        token = await value(self.service.stores, "SELECT token FROM leadership")
        with suppress(CutOffError):
            await group_ends.settle_due(self.service.stores, token)


class CutOffError(Exception):
    """The end of a process in the middle of a transaction."""


def cut_off(chance: random.Random, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a function of a transaction after which it often ends, with nothing of it stored."""

    async def wrapped(*arguments: Any) -> Any:
        found = await function(*arguments)
        if chance.random() < 0.3:
            raise CutOffError
        return found

    return wrapped


@pytest.mark.parametrize("retries", [False, True], ids=["without retries", "with retries"])
@pytest.mark.parametrize("seed", range(8) if IS_DEEP else (0, 2))
async def test_whatever_happens_at_once_numbers_are_right_and_each_group_ends_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, seed: int, retries: bool
) -> None:
    """Submissions, ends, retries, closings, and looks of the leader that are cut off, all at random and at once."""
    chance = random.Random(seed)
    for module, name in (
        (group_store, "fold"),
        (group_store, "write_states"),
        (dependencies, "follow_groups"),
        (outbox, "add_ended_groups"),
    ):
        monkeypatch.setattr(module, name, cut_off(chance, getattr(module, name)))
    for statement in _WATCH:
        await execute(service.stores, statement)
    crowd = Crowd(service, seed, retries=retries)
    for start in range(0, 120, 30):
        await asyncio.gather(*(crowd.act(number) for number in range(start, start + 30)))
        await _check_numbers(service)
    for name in crowd.names:
        assert (await service.http.post(f"/v1/groups/{name}/close")).status_code == 200
    await crowd.end_all_of(crowd.jobs, JobState.SUCCEEDED)
    for name in crowd.names:

        async def has_ended(name: str = name) -> bool:
            return (await service.http.get(f"/v1/groups/{name}")).json()["state"] in (
                "succeeded",
                "failed",
                "cancelled",
            )

        await eventually(has_ended, 10)
    await _check_numbers(service)
    messages = await rows(service.stores, "SELECT body->>'group' AS name FROM outbox WHERE group_id IS NOT NULL")
    assert Counter(row.name for row in messages) == dict.fromkeys(crowd.names, 1)
    assert await value(service.stores, "SELECT count(*) FROM outbox WHERE group_id IS NULL") == 0
    if not retries:
        assert await rows(service.stores, "SELECT * FROM violations") == [], "a message came before the end"
    assert len(crowd.jobs) > 10


async def _check_numbers(service: Service) -> None:
    """Compare the numbers of all groups with the rows of their jobs."""
    shown = (await service.http.get("/v1/groups")).json()["groups"]
    found = {one["name"]: tuple(one[name] for name in _NUMBERS) for one in shown}
    by_hand = {row.name: tuple(row)[1:] for row in await rows(service.stores, _BY_HAND)}
    assert found == by_hand
    for name in found:
        one = (await service.http.get(f"/v1/groups/{name}")).json()
        assert sum(one["jobs"].values()) == one["unfinished"]
