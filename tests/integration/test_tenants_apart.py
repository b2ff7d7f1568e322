"""Tenants side by side on one cluster: nothing that a user is answered or sent names what is of others; admins read all of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.receiver import Receiver
from tests.integration.test_authorization import ALLOWED, make_key, opens
from tests.integration.test_preemption import next_stop
from tests.integration.test_webhooks import open_to_this_machine, post, relay_all
from tests.waiting import eventually
from trainmaster.protocol.states import KeyRole, RunState
from trainmaster_dispatcher.worker.http import Poster

__all__ = ["open_to_this_machine", "post"]

SECRET = "sesame"  # a part of all that is the other tenant's: names, labels, environment, queue
OTHERS = f"org/{SECRET}"
WEEK = timedelta(days=7)


@dataclass
class Environment:
    """Two tenants: the one of ``org/b``, who looks, and the other one, of whom nothing may be seen."""

    service: Service
    user: httpx.AsyncClient
    """With a key for ``org/b``."""
    preempted: str
    """A job of ``org/b`` that was ended for one of the others."""
    waiting: str
    """A job of ``org/b`` that waits because room is kept for one of the others."""
    of_others: list[str]
    receiver: Receiver


async def put(service: Service, address: str, **fields: Any) -> None:
    answer = await service.http.put(f"/v1/{address}", json=fields)
    assert answer.is_success, answer.text


async def declare(service: Service) -> None:
    """Declare everything that can be declared for queues, for those of the other tenant."""
    kinds = {"allowedKinds": ["private", "public", "edge"]}
    await put(service, "queues/org", path="org", resources={"cpu": {"limit": "100"}}, **kinds)
    await put(service, f"queues/{OTHERS}", path=OTHERS, resources={"cpu": {"guaranteed": "4"}}, **kinds)
    await put(service, "queues/org/b", path="org/b", maxQueued=100, **kinds)
    await put(service, "price-books/usual", name="usual")
    await put(service, f"price-books/{SECRET}", name=SECRET)
    await put(service, "clusters/private", name="private", clusterKind="private", priceBook="usual")
    only = {"onlyQueues": [OTHERS], "priceBook": SECRET}
    await put(service, "clusters/public", name="public", clusterKind="public", **only)
    both = {"onlyQueues": [OTHERS, "org/b"]}
    await put(service, "clusters/edge", name="edge", clusterKind="edge", **both)
    start = datetime.now(UTC) + WEEK
    window = {"nodes": 1, "clusters": ["edge"], "start": start.isoformat(), "end": (start + WEEK).isoformat()}
    await put(service, f"reservations/{SECRET}", name=SECRET, queue=OTHERS, **window)
    for name, queues in ((SECRET, [OTHERS]), ("both", [OTHERS, "org/b"])):
        await put(service, f"burst-policies/{name}", name=name, queues=queues, budget={"day": "10"}, paused=True)
    await put(service, f"role-bindings/{SECRET}", name=SECRET, groups=[SECRET], role="user", queues=[OTHERS])


async def submit(http: httpx.AsyncClient, spec: dict[str, Any]) -> str:
    answer = await http.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def of_others(name: str, cpu: str, **fields: Any) -> dict[str, Any]:
    spec = job(f"{SECRET}-{name}", OTHERS, cpu, labels={"team": SECRET}, group=SECRET, **fields)
    spec["roles"][0]["template"]["env"] = {"WHAT": SECRET}
    return spec


@pytest.fixture
async def testbed(service: Service) -> AsyncIterator[Environment]:
    await declare(service)
    agent: FakeAgent = service.agent()
    await agent.connect(cpu=4)
    user = service.as_key(await make_key(service, "user", queues=["org/b"]))
    with Receiver() as receiver:
        hooks = [{"url": f"{receiver.url}/in", "states": ["queued", "running", "cancelled"]}]
        preempted = await submit(user, job("borrows", "org/b", "4", notify=hooks))
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 1)
        await service.until(preempted, "running")
        hooks = [{"url": f"{receiver.url}/others", "states": ["dispatched"]}]
        merger = await submit(service.http, of_others("merger", "2", timeLimit="1h", notify=hooks))
        stop = await next_stop(agent)
        await agent.report(run, RunState.PREEMPTED, 2, generation=stop["generation"])
        started = await agent.next_start()
        assert started["job"] == merger
        await agent.report(started["run"], RunState.RUNNING, 1)
        await service.until(preempted, "queued")
        gang = await submit(service.http, of_others("gang", "4", timeLimit="1h"))
        waiting = await submit(user, job("small", "org/b"))

        async def is_kept() -> bool:
            return gang in (await service.http.get(f"/v1/jobs/{waiting}/why")).text

        await eventually(is_kept)
        yield Environment(service, user, preempted, waiting, [merger, gang], receiver)
    await user.aclose()


def addresses(testbed: Environment) -> list[str]:
    """Return every address that a user may get, with each name that fits there, of the user's own and of the others."""
    names = {
        "job_id": [testbed.preempted, testbed.waiting, *testbed.of_others],
        "path:path": ["org", "org/b", OTHERS],
        "name": [SECRET, "usual", "both", "private", "public", "edge"],
        "group": [SECRET],
    }
    found = []
    for method, path in ALLOWED:
        if method != "GET" or path == "/v1/changes" or not opens(KeyRole.USER, ALLOWED[method, path]):
            continue
        filled = [path]
        for place, each in names.items():
            filled = [
                one.replace(f"{{{place}}}", name)
                for one in filled
                for name in (each if f"{{{place}}}" in one else [""])
            ]
        found += filled
    extra = ["/v1/queues?usage=true", "/v1/usage?by=queue", f"/v1/usage?queue={OTHERS}", f"/v1/jobs?queue={OTHERS}"]
    extra += [
        f"/v1/attainment?queue={OTHERS}",
        f"/v1/efficiency?queue={OTHERS}",
        f"/v1/groups?queue={OTHERS}",
        f"/v1/jobs?group={SECRET}",
    ]
    return found + extra + [f"/v1/jobs?label=team%3D{SECRET}", "/v1/jobs?queue=org"]


async def test_no_answer_to_a_user_names_what_is_of_others(testbed: Environment) -> None:
    seen_by_admin = []
    for address in addresses(testbed):
        if "logs" in address:
            continue  # written by the members themselves, and of the user's own jobs alone
        whole = (await testbed.service.http.get(address)).text
        answer = await testbed.user.get(address)
        assert answer.status_code in (200, 404, 422), f"{address}: {answer.text}"
        text = answer.text
        for name in () if answer.is_success else (*testbed.of_others, OTHERS, SECRET):
            text = text.replace(name, "") if name in address else text  # a refusal repeats what was asked for
        for queried in (OTHERS, SECRET) if "?" in address else ():
            text = text.replace(f"{queried!r}", "")
        assert SECRET not in text, f"{address}: {answer.text}"
        assert "\\ufdd" not in ascii(answer.text + whole), "no mark leaves the dispatcher"
        if SECRET in whole:
            seen_by_admin.append(address.partition("?")[0])
    # Each of these would have told it.
    job = f"/v1/jobs/{testbed.preempted}"
    told_to_admins = {job, f"{job}/why", f"{job}/events", "/v1/jobs", f"/v1/jobs/{testbed.waiting}/why", "/v1/clusters"}
    told_to_admins |= {"/v1/reservations", "/v1/burst-policies", "/v1/role-bindings", "/v1/price-books", "/v1/queues"}
    assert told_to_admins <= set(seen_by_admin)


async def test_what_is_told_instead(testbed: Environment) -> None:
    event = next(
        event
        for event in (await testbed.user.get(f"/v1/jobs/{testbed.preempted}/events")).json()["events"]
        if event["kind"] == "preempt"
    )
    assert event["message"] == (
        "preempted for a job of another queue: another queue takes back what is guaranteed to it, and org/b had borrowed"
    )
    why = (await testbed.user.get(f"/v1/jobs/{testbed.waiting}/why")).json()
    assert "private: it is kept for a job of another queue from " in why["sentence"]
    assert {"private", "edge"} <= {one["cluster"] for one in why["verdicts"]}
    async with testbed.user.stream(
        "GET", f"/v1/jobs/{testbed.preempted}/events", headers={"Accept": "text/event-stream"}
    ) as stream:
        async for line in stream.aiter_lines():
            assert SECRET not in line
            if "preempted for" in line:
                break
    clusters = {one["name"]: one for one in (await testbed.user.get("/v1/clusters")).json()["clusters"]}
    assert clusters.keys() == {"private", "edge"}, "public is for the others alone"
    assert clusters["edge"]["onlyQueues"] == ["org/b"]
    assert not {"liveRuns", "stoppingRuns"} & clusters["private"].keys()
    policies = (await testbed.user.get("/v1/burst-policies")).json()["burstPolicies"]
    assert [(one["name"], one["queues"], "status" in one) for one in policies] == [("both", ["org/b"], False)]
    assert [one["name"] for one in (await testbed.user.get("/v1/price-books")).json()["priceBooks"]] == ["usual"]
    assert (await testbed.user.get("/v1/reservations")).json() == {"reservations": []}


async def test_use_of_queues_above_is_not_told(testbed: Environment) -> None:
    shown = {one["path"]: one for one in (await testbed.user.get("/v1/queues?usage=true")).json()["queues"]}
    assert {path: "usage" in one for path, one in shown.items()} == {"org": False, "org/b": True}
    whole = (await testbed.service.http.get("/v1/queues?usage=true")).json()["queues"]
    assert {one["path"] for one in whole if "usage" in one} >= {"org", "org/b", OTHERS}
    turns = (await testbed.user.get(f"/v1/jobs/{testbed.waiting}/why")).json()["factors"]["queues"]
    assert [turn["queue"] for turn in turns] == ["org/b"]


async def test_a_dry_run_names_nothing_of_others(testbed: Environment) -> None:
    spec = job("tried", "org/b")
    own = await testbed.user.post("/v1/jobs?dryRun=true", json=spec)
    assert "kept for a job of another queue" in own.text
    assert SECRET not in own.text
    assert testbed.of_others[1] in (await testbed.service.http.post("/v1/jobs?dryRun=true", json=spec)).text


async def test_webhooks_name_nothing_of_others(testbed: Environment, post: Poster) -> None:
    await testbed.user.post(f"/v1/jobs/{testbed.preempted}/cancel", json={})
    await relay_all(testbed.service, post)
    of_user = [one for one in testbed.receiver.received if one.path == "/in"]
    assert len(of_user) >= 2
    assert not [one for one in of_user if SECRET in one.body.decode()]
    (of_others,) = [one.value for one in testbed.receiver.received if one.path == "/others"]
    assert f"preempted for {testbed.of_others[0]}: queue {OTHERS} takes back" in of_others["message"]
    assert of_others["message"].endswith("and another queue had borrowed")
    assert "org/b" not in str(of_others)
