"""Sessions on a real Postgres: warned and ended by the leader, and links for browsers."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import execute, rows, value
from tests.integration.test_top import report, use
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.sessions import NamedHost
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import session_access, sessions
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store import sessions as store
from trainmaster_dispatcher.store.sessions import SessionLink

GPU = "nvidia.com/gpu"


@pytest.fixture
def more_settings() -> dict[str, Any]:
    return {"sessions_domain": "sessions.localhost"}


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=64, capabilities=("gang", "portForward"))
    return agent


async def running(service: Service, agent: FakeAgent, **terms: Any) -> tuple[str, str]:
    """Submit a session and let it run; return the ids of its job and its run."""
    job = await service.submit("shell", session=terms)
    run = str((await agent.next_start())["run"])
    members = [{"role": "main", "index": 0, "state": "running", "node": "node-0"}]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}}, members=members)
    await service.until(job, "running")
    await advance(service)
    return job, run


async def advance(service: Service, *jobs: str) -> None:
    """Look at all sessions now, as the leader does when one is due."""
    await execute(service.stores, "UPDATE session_activity SET next_look = now() WHERE next_look IS NOT NULL")
    token = await value(service.stores, "SELECT token FROM leadership")
    await sessions.advance_due(service.stores, token)


async def pass_time(service: Service, seconds: float) -> None:
    """Let all sessions have begun, and been used and warned, ``seconds`` earlier."""
    columns = ("began_at", "active_at", "warned_at", "life_warned_at")
    await execute(
        service.stores,
        f"UPDATE session_activity SET {', '.join(f'{one} = {one} - make_interval(secs => :s)' for one in columns)}",
        s=seconds,
    )
    await execute(service.stores, "UPDATE runs SET started_at = started_at - make_interval(secs => :s)", s=seconds)


async def events(service: Service, job: str, kind: str) -> list[dict[str, Any]]:
    answer = await service.http.get(f"/v1/jobs/{job}/events")
    assert answer.status_code == 200, answer.text
    return [one for one in answer.json()["events"] if one["kind"] == kind]


async def shown(service: Service, **query: Any) -> list[dict[str, Any]]:
    answer = await service.http.get("/v1/sessions", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["sessions"]
    return found


async def test_an_idle_session_is_warned_once_and_cancelled_once(service: Service, agent: FakeAgent) -> None:
    job, run = await running(service, agent, idleTimeout="1h")
    assert await events(service, job, "session.warning") == []
    await pass_time(service, 56 * 60)
    # The scheduler of the installation looks at them, too.
    await asyncio.gather(*(advance(service) for _ in range(4)))
    await advance(service)
    (warning,) = await events(service, job, "session.warning")
    assert warning["message"].startswith("the session is idle for 56m")
    assert warning.get("states", []) == []
    assert "endsAt" in warning["details"]
    assert (await service.job(job))["shownState"] == "running"
    await pass_time(service, 6 * 60)
    await asyncio.gather(*(advance(service) for _ in range(4)))
    (cancel,) = await events(service, job, "cancel")
    assert (cancel["actor"], cancel["message"]) == ("sessions", "the session was idle for 1h")
    await agent.report(run, RunState.CANCELLED, 3)
    ended = await service.until(job, "cancelled")
    assert ended["message"] == "the session was idle for 1h"
    await advance(service)
    assert await value(service.stores, "SELECT next_look IS NULL FROM session_activity")
    assert await shown(service) == []


async def test_a_session_in_use_goes_on_and_a_later_idle_period_has_its_own_warning(
    service: Service, agent: FakeAgent
) -> None:
    job, _ = await running(service, agent, idleTimeout="1h")
    used = sessions.ActiveJobs()
    await pass_time(service, 56 * 60)
    await advance(service)
    used.note(parse_job_id(job)[1])
    await used.store(service.stores.database)
    await advance(service)
    await pass_time(service, 30 * 60)
    await advance(service)
    assert len(await events(service, job, "session.warning")) == 1
    await pass_time(service, 26 * 60)
    await advance(service)
    assert len(await events(service, job, "session.warning")) == 2
    assert await events(service, job, "cancel") == []


async def test_the_longest_life_ends_a_session_in_use(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(service, agent, longestLife="2h")
    used = sessions.ActiveJobs()
    for seconds in (116 * 60, 6 * 60):
        await pass_time(service, seconds)
        used.note(parse_job_id(job)[1])
        await used.store(service.stores.database)
        await advance(service)
    (warning,) = await events(service, job, "session.warning")
    assert "its longest life is 2h" in warning["message"]
    (cancel,) = await events(service, job, "cancel")
    assert cancel["message"] == "the session's longest life of 2h is over"


@pytest.mark.parametrize(("percent", "is_in_use"), [(50, True), (5, False)])
async def test_use_of_its_gpus_is_use_of_a_session(service: Service, percent: int, is_in_use: bool) -> None:
    agent = service.agent()
    await agent.connect(cpu=64)
    group = NodeGroup(name="node", count=1, free={"cpu": 64_000, GPU: 2})
    await agent.sync(capacity=CapacityReport(groups=(group,), runtime="test", scheduler="test"))
    template = {"command": ["true"], "resources": {"cpu": "1", GPU: "1"}}
    await service.submit("gpu", roles=[{"name": "main", "template": template}], session={})
    run = str((await agent.next_start())["run"])
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await report(agent, use(run, 100, 2**30, gpu=[percent]))
    assert await value(service.stores, "SELECT active_at IS NOT NULL FROM session_activity") is is_in_use


async def test_reports_of_use_without_gpus_are_no_use_of_a_session(service: Service, agent: FakeAgent) -> None:
    _, run = await running(service, agent)
    await report(agent, use(run, 900, 2**30))
    assert await value(service.stores, "SELECT active_at IS NULL FROM session_activity")


async def test_a_restart_after_a_lost_node_keeps_the_sessions_life_and_begins_another_idle_period(
    service: Service, agent: FakeAgent
) -> None:
    job, run = await running(service, agent, idleTimeout="1h")
    await pass_time(service, 50 * 60)
    await agent.report(run, RunState.FAILED, 3, end={"category": "nodeLost", "message": "node-0 is gone"})
    again = str((await agent.next_start())["run"])
    assert again != run, "it starts again by itself"
    members = [{"role": "main", "index": 0, "state": "running", "node": "node-0"}]
    await agent.report(again, RunState.RUNNING, 2, placement={"node": {"main": 1}}, members=members)
    await service.until(job, "running")
    await advance(service)
    assert await events(service, job, "session.warning") == []
    (one,) = await shown(service)
    assert one["beganAt"] < one["activeAt"]


async def test_an_end_of_its_processes_ends_a_session(service: Service, agent: FakeAgent) -> None:
    job, run = await running(service, agent)
    await agent.report(run, RunState.FAILED, 3, end={"category": "exit", "exitCode": 1})
    assert (await service.until(job, "failed"))["retriesUsed"] == 0


async def test_a_cancelled_session_that_is_retried_begins_anew(service: Service, agent: FakeAgent) -> None:
    job, run = await running(service, agent, longestLife="2h")
    await pass_time(service, 3 * 3600)
    await service.http.post(f"/v1/jobs/{job}/cancel")
    await agent.report(run, RunState.CANCELLED, 3)
    assert (await service.until(job, "cancelled"))["message"] == "cancelled"
    await advance(service)
    await service.http.post(f"/v1/jobs/{job}/retry")
    again = await value(service.stores, "SELECT began_at IS NULL AND next_look IS NOT NULL FROM session_activity")
    assert again is True


async def test_sessions_are_listed_with_their_ends(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(
        service, agent, ports=[{"name": "web", "port": 8888, "path": "/?token=secret"}], idleTimeout="30m"
    )
    await service.submit("plain")
    waiting = await service.submit("later", cpu="1000", session={})
    found = await shown(service)
    assert [(one["job"], one["state"]) for one in found] == [(waiting, "queued"), (job, "running")]
    one = found[1]
    assert (one["cluster"], one["user"], one["ports"]) == ("private", "admin", [{"name": "web", "port": 8888}])
    assert one["idleEndsAt"] < one["lifeEndsAt"]
    assert "idleEndsAt" not in found[0]
    assert await shown(service, submittedBy="nobody") == []
    assert (await service.http.get("/v1/sessions", params={"queue": "none"})).status_code == 422


# -- links


async def link(http: httpx.AsyncClient, job: str, port: str = "8888") -> httpx.Response:
    return await http.post(f"/v1/jobs/{job}/session-links", json={"port": port})


async def test_a_ticket_counts_once_and_only_for_its_port(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(service, agent, ports=[{"name": "web", "port": 8888}])
    answer = await link(service.http, job, "web")
    assert answer.status_code == 200, answer.text
    url = httpx.URL(answer.json()["url"])
    assert url.host == f"web--{job}.sessions.localhost"
    assert (url.path, url.port) == ("/.trainmaster/enter", httpx.URL(service.url).port)
    ticket = url.params["ticket"]
    assert await value(service.stores, "SELECT hash FROM session_links") == hash_key(ticket), "not the ticket itself"
    async with service.stores.database.transaction() as tx:
        found = await session_access.take_ticket(tx, ticket)
        assert found is not None
        assert session_access.opens(found, NamedHost(port="web", job=job))
        assert not session_access.opens(found, NamedHost(port="8888", job=job))
        assert not session_access.opens(found, NamedHost(port="web", job="other-0000001"))
        assert await session_access.take_ticket(tx, ticket) is None


async def test_tickets_and_cookies_expire_and_are_not_taken_for_each_other(service: Service) -> None:
    async with service.stores.database.transaction() as tx:
        one = SessionLink(1, "8888", 1)
        await store.add_link(tx, b"ticket", one, is_cookie=False, seconds=60)
        await store.add_link(tx, b"cookie", one, is_cookie=True, seconds=60)
        await store.add_link(tx, b"old", one, is_cookie=True, seconds=-1)
        assert await store.cookie(tx, b"ticket") is None
        assert await store.take_ticket(tx, b"cookie") is None
        assert await store.cookie(tx, b"old") is None
        assert await store.cookie(tx, b"cookie") == one
    async with service.stores.database.transaction() as tx:
        await store.add_link(tx, b"new", one, is_cookie=True, seconds=60)
    kept = {bytes(row.hash) for row in await rows(service.stores, "SELECT hash FROM session_links")}
    assert kept == {b"ticket", b"cookie", b"new"}, "what has expired is removed"


async def test_who_may_make_links(service: Service, agent: FakeAgent) -> None:
    job, _ = await running(service, agent)
    await service.http.put("/v1/queues/other", json={"path": "other"})
    codes = {}
    for name, queue in (("colleague", "default"), ("stranger", "other")):
        made = await service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": [queue]})
        async with service.as_key(made.json()["key"]) as http:
            answer = await link(http, job)
            codes[name] = (answer.status_code, answer.json()["code"])
    assert codes == {"colleague": (403, "job-of-another"), "stranger": (404, "not-found")}
    assert (await link(service.http, job, "none")).status_code == 404
    assert (await link(service.http, job, "70000")).status_code == 404
    assert (await link(service.http, job, "a--b")).status_code == 404
    waiting = await service.submit("later", cpu="1000", session={})
    assert (await link(service.http, waiting)).json()["code"] == "wrong-state"
