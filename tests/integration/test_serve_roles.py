"""Apis that serve users only and agents only: together they are one dispatcher, alone each knows its own addresses."""

import asyncio
import html
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from tests.conftest import ADMIN_KEY, FakeAgent, Service, job
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.api.audience import Audience
from trainmaster_dispatcher.http_connections import server_config

Serve = Callable[[Audience], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(service: Service) -> Serve:
    """Starts one more api of the same installation; gives a client with the admin's key."""

    @asynccontextmanager
    async def start(audience: Audience) -> AsyncIterator[httpx.AsyncClient]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(16)
            app = make_app(service.settings, audience)
            server = uvicorn.Server(
                server_config(app, service.settings.connection_bounds, web_sockets=True, lifespan="on")
            )
            serving = asyncio.create_task(server.serve([listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            try:
                async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
                    yield http
            finally:
                server.should_exit = True
                await serving

    return start


async def problem(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> dict[str, Any]:
    answer = await http.request(method, path, **options)
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    value: dict[str, Any] = answer.json()
    assert value["code"] == "not-found"
    assert value["instance"] == path
    return value


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/agent/v1/sync"), ("GET", "/agent/v1/desired"), ("POST", "/agent/v1/streams/x"), ("PUT", "/agent/v1/x")],
)
async def test_an_api_for_users_says_so_to_agents(serve: Serve, method: str, path: str) -> None:
    async with serve(Audience.USERS) as http:
        said = await problem(http, method, path, headers={"Authorization": "Bearer tmk_private"})
        assert said["detail"] == "this api serves only users; agents have to call an api that serves agents"
        assert (await http.get("/v1/jobs")).status_code == 200
        assert (await http.get("/v1/queues/default")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/jobs"), ("GET", "/v1/jobs/x-1/logs"), ("GET", "/v1/clusters"), ("PUT", "/v1/queues/a/b")],
)
async def test_an_api_for_agents_says_so_to_users(serve: Serve, method: str, path: str) -> None:
    async with serve(Audience.AGENTS) as http:
        said = await problem(http, method, path)
        assert said["detail"] == "this api serves only agents; users have to call an api that serves users"


@pytest.mark.parametrize("audience", Audience)
async def test_every_api_tells_how_it_is(serve: Serve, audience: Audience) -> None:
    async with serve(audience) as http:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/v2/jobs")).json()["detail"] == "there is nothing at /v2/jobs"
        page = await http.get("/")
        if audience is Audience.AGENTS:
            assert page.json()["detail"].endswith("; the API begins at /v1, and /docs describes it")
        else:
            assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("audience", "documents"),
    [
        (Audience.USERS, {"/openapi.json": "/v1"}),
        (Audience.AGENTS, {"/agent/openapi.json": "/agent/v1"}),
        (Audience.ALL, {"/openapi.json": "/v1", "/agent/openapi.json": "/agent/v1"}),
    ],
)
async def test_the_api_description_has_what_is_served(
    serve: Serve, audience: Audience, documents: dict[str, str]
) -> None:
    async with serve(audience) as http:
        for address in ("/openapi.json", "/agent/openapi.json"):
            answer = await http.get(address)
            if address not in documents:
                assert answer.status_code == 404
                continue
            made = answer.json()
            assert made["paths"]
            assert all(path.startswith(documents[address] + "/") for path in made["paths"])
            named = set(re.findall(r'"#/components/schemas/(\w+)"', answer.text))
            assert named == set(made["components"]["schemas"])
            for page in ("/docs", "/redoc"):
                assert html.escape(f'"{address}"') in (await http.get(page)).text


async def test_a_job_goes_from_an_api_for_users_to_an_agent_at_another(serve: Serve) -> None:
    async with serve(Audience.USERS) as users, serve(Audience.AGENTS) as agents:
        agent = FakeAgent(httpx.AsyncClient(base_url=agents.base_url, timeout=60), "tmk_private")
        await agent.connect()
        answer = await users.post("/v1/jobs", json=job())
        assert answer.status_code == 201, answer.text
        start = await agent.next_start()
        await agent.report(start["run"], RunState.RUNNING, 1)
        await agent.report(start["run"], RunState.SUCCEEDED, 2)
        shown = (await users.get(f"/v1/jobs/{answer.json()['id']}")).json()
        assert shown["state"] == "succeeded"
        await agent.http.aclose()


async def test_only_an_api_for_agents_says_that_agents_can_be_served(
    serve: Serve, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else runs would be called lost while no agent has an api to call."""
    beats: list[float] = []

    async def note(_tx: object, seconds: float) -> None:
        beats.append(seconds)

    async def beaten() -> bool:
        return bool(beats)

    monkeypatch.setattr("trainmaster_dispatcher.store.agents.beat", note)
    before = asyncio.all_tasks()
    async with serve(Audience.USERS) as http:
        await http.get("/readyz")
        assert "service-heartbeat" not in {task.get_name() for task in asyncio.all_tasks() - before}
    async with serve(Audience.AGENTS) as http:
        await http.get("/readyz")
        assert "service-heartbeat" in {task.get_name() for task in asyncio.all_tasks() - before}
        await eventually(beaten)
