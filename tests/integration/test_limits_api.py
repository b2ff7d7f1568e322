"""Limits over real HTTP: 429 with Retry-After, streams that end with their key, and what followers cost the store."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import orjson
import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.rows import value
from tests.integration.test_authorization import make_key
from tests.waiting import eventually
from trainmaster.metrics import exporter
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.api import kept_answers, openapi
from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.database import Database

EVENTS = {"Accept": "text/event-stream"}


async def tell_end(lines: AsyncIterator[str]) -> str:
    """Return the last line that is not empty."""
    last = ""
    async for line in lines:
        last = line or last
    return last


async def number_of(service: Service, name: str) -> int:
    found = [key["id"] for key in (await service.http.get("/v1/keys")).json()["keys"] if key["name"] == name]
    return int(found[-1])


async def revoke(service: Service, name: str) -> None:
    assert (await service.http.delete(f"/v1/keys/{await number_of(service, name)}")).status_code == 204


async def test_streams_end_soon_after_their_key_was_revoked(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    running = await service.submit()
    await agent.report((await agent.next_start())["run"], RunState.RUNNING, 1)
    queued = await service.submit(cpu="64")
    secret = await make_key(service, "user", queues=["default"])
    name = (await service.http.get("/v1/keys")).json()["keys"][-1]["name"]
    async with service.as_key(secret) as user, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(user.stream("GET", path, params=parameters, headers=headers))
            for path, parameters, headers in (
                (f"/v1/jobs/{queued}/events", {}, EVENTS),
                (f"/v1/jobs/{running}/logs", {"follow": "true"}, {}),
                (f"/v1/jobs/{queued}/logs", {"follow": "true"}, {}),
            )
        ]
        ends = [asyncio.create_task(tell_end(stream.aiter_lines())) for stream in streams]
        assert [stream.status_code for stream in streams] == [200, 200, 200]
        await revoke(service, name)
        endings = await asyncio.wait_for(asyncio.gather(*ends), 30)
    assert endings[0] == ": the API key was revoked or has expired"
    assert [orjson.loads(line)["problem"]["code"] for line in endings[1:]] == ["unauthenticated"] * 2


async def test_an_agents_poll_ends_soon_after_its_key_was_revoked(service: Service) -> None:
    agent: FakeAgent = service.agent()
    await agent.connect()
    agent.version = (await agent.desired())["version"]
    parameters: dict[str, Any] = {"session": agent.session, "after": agent.version, "wait": 60}
    poll = asyncio.create_task(agent.http.get("/agent/v1/desired", params=parameters, headers=agent._headers()))
    others = asyncio.create_task(service.http.get("/readyz"))
    assert (await others).status_code == 200
    keys = (await service.http.get("/v1/keys")).json()["keys"]
    mine = next(key["id"] for key in keys if key["cluster"] == "private")
    assert (await service.http.delete(f"/v1/keys/{mine}")).status_code == 204
    answer = await asyncio.wait_for(poll, 30)
    if answer.status_code == 200:  # a poll lasts a third of the lease, and may just have ended
        answer = await agent.http.get("/agent/v1/desired", params=parameters, headers=agent._headers())
    assert answer.status_code == 401


async def test_many_followers_cost_the_store_one_look_a_second(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = service.agent()
    await agent.connect()
    running = await service.submit()
    await agent.report((await agent.next_start())["run"], RunState.RUNNING, 1)
    queued = [await service.submit(cpu="64") for _ in range(5)]
    async with AsyncExitStack() as stack:
        readers: list[asyncio.Task[str]] = []
        for number in range(60):
            path = f"/v1/jobs/{queued[number % 5]}/events"
            stream = await stack.enter_async_context(service.http.stream("GET", path, headers=EVENTS))
            readers.append(asyncio.create_task(tell_end(stream.aiter_lines())))
        for _ in range(30):
            path = f"/v1/jobs/{running}/logs"
            await stack.enter_async_context(service.http.stream("GET", path, params={"follow": "true"}))
        counted = 0
        transaction = Database.transaction

        def count(database: Database) -> Any:
            nonlocal counted
            counted += 1
            return transaction(database)

        async def all_have_begun() -> bool:
            return bool(await value(service.stores, "SELECT count(*) = 30 FROM log_streams"))

        async def looks_are_few() -> bool:
            """Return whether 20 transactions a second are enough for three seconds; 90 followers that poll by themselves need 75."""
            before, began = counted, asyncio.get_running_loop().time()
            await asyncio.sleep(3)
            return counted - before < 20 * (asyncio.get_running_loop().time() - began)

        await eventually(all_have_begun)
        monkeypatch.setattr(Database, "transaction", count)
        await eventually(looks_are_few)  # once all have had their first look
        monkeypatch.setattr(Database, "transaction", transaction)
        for job_id in queued:
            await service.http.post(f"/v1/jobs/{job_id}/cancel")
        assert set(await asyncio.wait_for(asyncio.gather(*readers), 30)) == {"data: cancelled"}


async def test_a_change_whose_wake_up_was_lost_is_told_within_seconds(service: Service) -> None:
    job_id = await service.submit(cpu="64")
    async with service.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=EVENTS) as stream:
        reader = asyncio.create_task(tell_end(stream.aiter_lines()))
        async with service.stores.database.transaction() as tx:  # as nobody does: no wake-up follows
            await tx.run("UPDATE jobs SET state = 'cancelled', version = version + 1, ended_at = now()")
        assert await asyncio.wait_for(reader, 30) == "data: cancelled"


async def test_refusals_have_retry_after_and_a_problem(service: Service) -> None:
    settings = service.settings.model_copy(
        update={"calls_per_second_per_key": 0.01, "calls_burst_per_key": 3, "event_streams_per_key": 1}
    )
    job_id = await service.submit(cpu="64")
    secret = await make_key(service, "user", queues=["default"])
    async with OtherApi(settings) as http:
        http.headers["Authorization"] = f"Bearer {secret}"
        assert [(await http.get("/v1/jobs")).status_code for _ in range(3)] == [200] * 3
        for answer in (await http.get("/v1/jobs"), await http.post("/v1/jobs", json=job())):
            assert answer.status_code == 429
            assert 30 < int(answer.headers["retry-after"]) <= 100  # less by what the calls before it took
            assert answer.json()["code"] == "too-many-requests"
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["requestId"] == answer.headers["x-request-id"]
            assert int(answer.headers["content-length"]) == len(answer.content)
        http.headers["Authorization"] = "Bearer tmk_admin"
        assert (await http.get(f"/v1/jobs/{job_id}")).status_code == 200


async def test_wrong_keys_get_429_and_a_good_key_from_the_same_address_does_not(service: Service) -> None:
    settings = service.settings.model_copy(update={"wrong_keys_per_second": 0.01, "wrong_keys_burst": 5})
    async with OtherApi(settings) as http:
        answers = [await http.get("/v1/jobs", headers={"Authorization": f"Bearer tmk_{n}"}) for n in range(8)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        assert int(answers[-1].headers["retry-after"]) > 10
        assert (await http.get("/v1/jobs", headers={"Authorization": "Bearer tmk_admin"})).status_code == 200
        submitted = await http.post("/v1/jobs", json=job(), headers={"Authorization": "Bearer tmk_admin"})
        assert submitted.status_code == 201


async def test_calls_without_a_key_have_a_bound_for_each_address_and_probes_one_of_their_own(service: Service) -> None:
    settings = service.settings.model_copy(update={"keyless_calls_per_second": 0.01, "keyless_calls_burst": 3})
    async with OtherApi(settings) as http:
        pages = ("/openapi.json", "/docs", "/docs/files/start.js", "/redoc", "/agent/openapi.json", "/nowhere")
        for page in pages[:3]:
            assert (await http.get(page)).status_code == 200
        for page in pages:
            for headers in ({}, {"Authorization": "Bearer tmk_wrong"}, {"Authorization": "Bearer tmk_admin"}):
                answer = await http.get(page, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (429, "too-many-requests")
                assert int(answer.headers["retry-after"]) > 10
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert [(await http.get(probe)).status_code for _ in range(4)] == [200] * 3 + [429]
        for path in ("/v1/jobs", "/agent/v1/desired"):  # each is counted once
            await http.get(path)
        assert [(await http.get("/v1/nowhere")).status_code for _ in range(2)] == [404, 429]
        assert (await http.get("/v1/jobs", headers={"Authorization": "Bearer tmk_admin"})).status_code == 200


async def test_calls_of_the_kubernetes_api_with_a_key_are_not_counted_as_calls_without(service: Service) -> None:
    settings = service.settings.model_copy(update={"keyless_calls_per_second": 0.01, "keyless_calls_burst": 3})
    admin, wrong = ({"Authorization": f"Bearer tmk_{name}"} for name in ("admin", "wrong"))
    jobs, discovery = "/apis/trainmaster.dev/v1/namespaces/default/jobs", "/apis/trainmaster.dev/v1"
    async with OtherApi(settings) as http:
        for path in (jobs, "/api/v1/namespaces", "/api/v1/events", discovery, "/apis", "/openapi/v3"):
            assert {(await http.get(path, headers=admin)).status_code for _ in range(5)} == {200}, path
        for headers in ({}, wrong):
            answers = [await http.get(discovery, headers=headers) for _ in range(4)]
            assert answers[-1].status_code == 429
            assert answers[-1].json()["kind"] == "Status"
            assert answers[-1].json()["reason"] == "TooManyRequests"
            assert int(answers[-1].headers["retry-after"]) > 10
        assert [(await http.get(jobs)).status_code for _ in range(4)] == [401] * 3 + [429]
        assert (await http.get(jobs, headers=admin)).status_code == 200


async def test_probes_of_an_installation_never_meet_the_default_bounds(service: Service) -> None:
    async with OtherApi(service.settings) as http:
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert {(await http.get(probe)).status_code for _ in range(100)} == {200}


async def test_what_needs_no_key_is_made_once_for_all_who_ask(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()

    def count(place: Any, name: str) -> None:
        real = getattr(place, name)

        def counted(*args: Any) -> Any:
            made[name] += 1
            return real(*args)

        monkeypatch.setattr(place, name, counted)

    monkeypatch.setattr(kept_answers, "KEPT_SECONDS", 3600.0)
    count(openapi, "part_of")
    count(exporter, "page")
    count(Database, "ping")
    async with OtherApi(service.settings) as http:
        made.clear()
        for page in ("/openapi.json", "/metrics", "/readyz"):
            answers = await asyncio.gather(*(http.get(page) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.content for answer in answers}) == 1
        document = await http.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
        assert document.headers["content-encoding"] == "gzip"
        assert int(document.headers["content-length"]) < len(document.content) / 4
        again = await http.get("/openapi.json", headers={"If-None-Match": document.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert made.pop("ping") < 10, "those of the apis' own watch included"
    assert made == {"part_of": 1, "page": 1}


class OtherApi:
    """One more api of the same installation, called without a socket."""

    def __init__(self, settings: Settings) -> None:
        self._app = make_app(settings)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> httpx.AsyncClient:
        inner: Any = self._app.routes
        await self._stack.enter_async_context(inner.router.lifespan_context(inner))
        transport = httpx.ASGITransport(app=self._app)
        return await self._stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://api"))

    def forget_counts(self) -> None:
        """Forget how much waits in queues, so that it is counted again."""
        inner: Any = self._app.routes
        inner.state.trainmaster.stores.backlog._queues.clear()

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
