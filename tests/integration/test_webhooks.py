"""Webhooks from the store to a receiver: attempts, order, signatures, dead letters, and what people see of them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.receiver import SECRET, Receiver
from tests.integration.rows import execute, rows, value
from tests.waiting import eventually
from trainmaster.client.webhooks import is_genuine
from trainmaster_dispatcher.domain.webhooks import AddressPolicy, Persistence, Target
from trainmaster_dispatcher.services.webhooks import DeliveryTerms, Relay, Tally
from trainmaster_dispatcher.worker.http import Poster

POLICY = AddressPolicy(allow_http=True, networks=(ip_network("127.0.0.1/32"),))
QUICK = Persistence(first_seconds=0.001, most_seconds=0.002, attempts=4)


@pytest.fixture(autouse=True)
def open_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_HTTP", "true")
    monkeypatch.setenv("TRAINMASTER_WEBHOOK_ALLOW_NETWORKS", "127.0.0.1/32")


@pytest.fixture
async def post() -> AsyncIterator[Poster]:
    async with Poster(POLICY) as poster:
        yield poster


def terms(persistence: Persistence = QUICK, at_once: int = 64, secrets: tuple[str, ...] = (SECRET,)) -> DeliveryTerms:
    return DeliveryTerms(POLICY, secrets, persistence, at_once, claim_seconds=60)


async def relay_all(service: Service, post: Poster, how: DeliveryTerms | None = None) -> Tally:
    """Relay until all messages that are left are dead, and return the counts; pauses between attempts are skipped."""
    total = Tally()
    while await value(service.stores, "SELECT count(*) FROM outbox WHERE dead_at IS NULL"):
        await execute(service.stores, "UPDATE outbox SET next_at = now() WHERE dead_at IS NULL")
        done = await Relay(service.stores.database, how or terms(), post).run()
        total = Tally(total.delivered + done.delivered, total.failed + done.failed, total.dead + done.dead)
    return total


async def test_messages_arrive_signed_in_order_and_at_least_once(service: Service, post: Poster) -> None:
    with Receiver(lambda number: 503 if number % 5 == 0 else 200) as receiver:
        hooks = [{"url": f"{receiver.url}/in", "states": ["held", "queued", "cancelled"]}]
        ids = [await service.submit(notify=hooks, suspend=True) for _ in range(10)]
        for job_id in ids:
            for action in ("resume", "suspend", "resume", "cancel"):
                assert (await service.http.post(f"/v1/jobs/{job_id}/{action}")).status_code == 200
        done = await relay_all(service, post, terms(Persistence(0.001, 0.002, attempts=50)))
    assert (done.delivered, done.dead) == (50, 0)
    assert done.failed == sum(one.status != 200 for one in receiver.received) > 0
    assert receiver.states() == {job_id: ["held", "queued", "held", "queued", "cancelled"] for job_id in ids}
    for one in receiver.received:
        assert one.is_signed()
        assert not one.is_signed("a secret of others")
        assert one.headers["trainmaster-event"] == f"{one.value['job']}/{one.value['seq']}"
    attempts = [one.headers["trainmaster-attempt"] for one in receiver.received]
    assert attempts.count("2") >= done.failed / 2
    assert await value(service.stores, "SELECT count(*) FROM outbox") == 0


async def test_each_of_several_secrets_signs(service: Service, post: Poster) -> None:
    with Receiver() as receiver:
        await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])
        await relay_all(service, post, terms(secrets=(SECRET, "the secret that comes next")))
    assert receiver.received[0].is_signed()
    assert receiver.received[0].is_signed("the secret that comes next")


async def test_a_redirect_is_a_failure_and_not_followed(service: Service, post: Poster) -> None:
    with Receiver(lambda number: 307) as receiver:
        await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])
        assert await relay_all(service, post) == Tally(0, 4, 1)
    assert len(receiver.received) == 4
    letter = (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]
    assert letter["error"] == "127.0.0.1 answered 307; redirects are not followed"


async def test_messages_that_are_given_up_can_be_seen_tried_again_and_dropped(service: Service, post: Poster) -> None:
    with Receiver(lambda number: 500) as receiver:
        ids = [await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}]) for _ in range(3)]
        await relay_all(service, post)
        assert (await service.job(ids[0]))["undelivered"] == 1
        version = (await service.job(ids[0]))["version"]
        page = (await service.http.get("/v1/webhooks/dead?limit=2")).json()
        rest = (await service.http.get(f"/v1/webhooks/dead?limit=2&cursor={page['next']}")).json()
        letters = page["dead"] + rest["dead"]
        assert [letter["job"] for letter in letters] == ids[::-1]
        assert rest["next"] is None
        assert letters[0] | {"id": 0, "createdAt": "", "deadAt": ""} == {
            "id": 0,
            "job": ids[2],
            "queue": "default",
            "seq": 1,
            "hook": 0,
            "url": receiver.url,
            "states": ["queued"],
            "attempts": 4,
            "error": "127.0.0.1 answered 500",
            "createdAt": "",
            "deadAt": "",
        }
        receiver.answer = lambda number: 200
        again = {"Idempotency-Key": "again"}
        first = await service.http.post(f"/v1/webhooks/dead/{letters[0]['id']}/retry", headers=again)
        second = await service.http.post(f"/v1/webhooks/dead/{letters[0]['id']}/retry", headers=again)
        assert (first.status_code, second.status_code, first.json()) == (200, 200, second.json())
        assert (await service.http.delete(f"/v1/webhooks/dead/{letters[1]['id']}")).status_code == 204
        assert await relay_all(service, post) == Tally(1, 0, 0)
    assert [one.value["job"] for one in receiver.taken] == [ids[2]]
    assert [letter["job"] for letter in (await service.http.get("/v1/webhooks/dead")).json()["dead"]] == [ids[0]]
    for number, code in ((letters[1]["id"], "not-found"), (10**30, "invalid-parameter")):
        assert (await service.http.post(f"/v1/webhooks/dead/{number}/retry")).json()["code"] == code
    assert (await service.job(ids[0]))["version"] == version, "a message that was given up is no transition"
    actions = [row.action for row in await rows(service.stores, "SELECT action FROM audit ORDER BY id")]
    assert actions[-2:] == ["retry webhook", "drop webhook"]


async def test_a_user_sees_and_changes_the_dead_letters_of_their_own_queues(service: Service, post: Poster) -> None:
    for path in ("one", "two"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path, "allowedKinds": ["private"]})
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["one"]})
    with Receiver(lambda number: 500) as receiver:
        own = await service.submit(queue="one", notify=[{"url": receiver.url, "states": ["queued"]}])
        await service.submit(queue="two", notify=[{"url": receiver.url, "states": ["queued"]}])
        await relay_all(service, post)
    every = (await service.http.get("/v1/webhooks/dead")).json()["dead"]
    async with service.as_key(made.json()["key"]) as user:
        assert [letter["job"] for letter in (await user.get("/v1/webhooks/dead")).json()["dead"]] == [own]
        other = next(letter["id"] for letter in every if letter["job"] != own)
        assert (await user.post(f"/v1/webhooks/dead/{other}/retry")).status_code == 404
        assert (await user.delete(f"/v1/webhooks/dead/{other}")).status_code == 404
    async with service.as_key("tmk_private") as agent:
        assert (await agent.get("/v1/webhooks/dead")).status_code == 403


async def test_a_relay_that_is_cut_off_loses_nothing(service: Service, post: Poster) -> None:
    with Receiver() as receiver:
        for _ in range(30):
            await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])

        async def cut() -> None:
            relaying = asyncio.create_task(Relay(service.stores.database, terms(at_once=8), post).run())
            before = len(receiver.received)

            async def is_under_way() -> bool:
                return len(receiver.received) >= before + 3 or relaying.done()

            await eventually(is_under_way)
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)

        for _ in range(4):
            await cut()
            await execute(service.stores, "UPDATE outbox SET next_at = now()")
        await relay_all(service, post)
    assert len(receiver.states()) == 30


async def test_told_to_stop_it_gives_back_what_is_not_under_way(service: Service, post: Poster) -> None:
    with Receiver() as receiver:
        for _ in range(20):
            await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])
        answers = iter([True, False])
        await Relay(service.stores.database, terms(at_once=8), post, lambda: next(answers, False)).run()
    left = await value(service.stores, "SELECT count(*) FROM outbox WHERE next_at <= now() + interval '40 s'")
    assert left == await value(service.stores, "SELECT count(*) FROM outbox") == 20 - len(receiver.taken)
    assert len(receiver.taken) < 20


async def test_one_slow_receiver_does_not_hold_up_the_others(service: Service, post: Poster) -> None:
    free, stuck = threading.Event(), []

    def answer_late(number: int) -> int:
        stuck.append(number)
        free.wait(30)
        return 200

    with Receiver() as quick, Receiver(answer_late) as slow:
        for _ in range(30):
            await service.submit(notify=[{"url": slow.url, "states": ["queued"]}])
        for _ in range(10):
            await service.submit(notify=[{"url": quick.url, "states": ["queued"]}])
        # Half of the places go to what is under way and waits for the slow one; it never gets all of them.
        relaying = asyncio.create_task(Relay(service.stores.database, terms(at_once=8), post).run())

        async def has_passed() -> bool:
            return len(quick.taken) == 10

        await eventually(has_passed)
        assert not relaying.done()
        assert slow.taken == []
        free.set()
        await relaying
        await relay_all(service, post)
    assert len(slow.states()) == 30


async def test_what_nobody_foresaw_counts_as_a_failed_attempt(service: Service) -> None:
    class Broken:
        async def __call__(self, target: Target, headers: object, body: bytes) -> None:
            raise KeyError("surprise")

    await service.submit(notify=[{"url": "http://127.0.0.1:9999/", "states": ["queued"]}])
    assert (await Relay(service.stores.database, terms(), Broken()).run()).failed >= 1
    row = (await rows(service.stores, "SELECT attempts, error FROM outbox"))[0]
    assert row.attempts >= 1
    assert row.error == "KeyError: 'surprise'"


async def test_a_message_whose_job_is_gone_is_given_up(service: Service, post: Poster) -> None:
    await service.submit(notify=[{"url": "http://127.0.0.1:9999/", "states": ["queued"]}])
    await execute(service.stores, "DELETE FROM jobs")
    assert await Relay(service.stores.database, terms(), post).run() == Tally(0, 1, 1)


async def test_an_address_that_is_no_longer_allowed_is_not_posted_to(service: Service) -> None:
    with Receiver() as receiver:
        await service.submit(notify=[{"url": receiver.url, "states": ["queued"]}])
        strict = DeliveryTerms(AddressPolicy(), (SECRET,), Persistence(3600, 3600, 1), 8, 60)
        async with Poster(AddressPolicy()) as post:
            assert await Relay(service.stores.database, strict, post).run() == Tally(0, 1, 1)
    assert receiver.received == []


async def test_each_queue_has_a_secret_of_its_own_that_can_be_changed(service: Service, post: Poster) -> None:
    for path in ("a", "b"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    key = (await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["a"]})).json()["key"]
    address = "/v1/webhooks/secrets"

    async def secrets_of(queue: str) -> dict[str, Any]:
        answer = await service.http.get(f"{address}/{queue}")
        assert answer.headers["cache-control"] == "no-store"
        found: dict[str, Any] = answer.json()
        return found

    async with service.as_key(key) as user:
        (own,) = (await user.get(f"{address}/a")).json()["secrets"]
        assert (await user.get(f"{address}/b")).status_code == (await user.get(f"{address}/c")).status_code == 404
        assert (await user.post(f"{address}/b/rotate", json={})).status_code == 404
        (others,) = (await secrets_of("b"))["secrets"]
        made = (await user.post(f"{address}/a/rotate", json={"overlap": "1h"})).json()
        refused = await user.post(f"{address}/a/rotate", json={"overlap": "31d"})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid-spec")
    assert (made["version"], made["previous"]) == (2, [own])
    assert made == await secrets_of("a")
    with Receiver() as receiver:
        hooks = [{"url": f"{receiver.url}/in", "states": ["queued"]}]
        await service.submit(queue="a", notify=hooks)
        await relay_all(service, post)
        await service.http.post(f"{address}/a/rotate", json={"overlap": "0s"})
        await service.submit(queue="a", notify=hooks)
        await relay_all(service, post)
    both, alone = receiver.received
    sent = both.headers["trainmaster-signature"]
    assert [is_genuine(both.body, sent, one) for one in (own, *made["secrets"], others, SECRET)] == [
        True,
        True,
        False,
        False,
    ]
    now = await secrets_of("a")
    assert (now["version"], "previous" in now) == (3, False)
    sent = alone.headers["trainmaster-signature"]
    assert is_genuine(alone.body, sent, *now["secrets"])
    assert not is_genuine(alone.body, sent, *made["secrets"], own)
    audit = (await service.http.get("/v1/audit", params={"action": "rotate webhook secret"})).json()["audit"]
    assert [(line["target"], line["details"]["version"]) for line in audit] == [("a", 3), ("a", 2)]
    assert "whsec_" not in str(audit)


async def test_a_queue_in_the_place_of_a_removed_one_has_another_secret(service: Service) -> None:
    secrets = []
    for _ in range(2):
        await service.http.put("/v1/queues/x", json={"path": "x"})
        secrets.append((await service.http.get("/v1/webhooks/secrets/x")).json()["secrets"])
        assert (await service.http.delete("/v1/queues/x")).status_code == 204
    assert secrets[0] != secrets[1]
