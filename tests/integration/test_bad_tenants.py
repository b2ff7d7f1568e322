"""Mistakes of admins and of agents: refused or made harmless, never a 500, and nothing else changes. Random JSON, too."""

import asyncio
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Service, job
from tests.fuzz.values import to_json
from tests.integration.rows import picture, rows, value
from tests.integration.test_bad_input import HUGE, Case, World, world
from tests.waiting import eventually
from trainmaster.protocol.agent import RunReport
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction

__all__ = ["world"]

QUEUE, CLASS, CLUSTER, KEYS = "PUT /v1/queues/", "PUT /v1/priority-classes/", "PUT /v1/clusters/", "POST /v1/keys"
RESERVATION = "PUT /v1/reservations/"
WINDOW: dict[str, Any] = {
    "name": "w",
    "queue": "team/a",
    "nodes": 1,
    "start": "2099-11-28T00:00:00Z",
    "end": "2099-11-30T00:00:00Z",
}
TENANTS = [
    Case("a queue of another name", QUEUE + "a", {"path": "b"}, 422, "invalid-spec"),
    Case("a queue without parent", QUEUE + "no/a", {"path": "no/a"}, 422, "unknown-queue"),
    Case("a queue below one with jobs", QUEUE + "team/a/b", {"path": "team/a/b"}, 409, "in-use"),
    Case("a queue of no class", QUEUE + "b", {"path": "b", "defaultPriorityClass": "x"}, 422, "unknown-priority-class"),
    Case("a queue of no weight", QUEUE + "b", {"path": "b", "weight": 0}, 422, "invalid-spec", "weight"),
    Case("a queue of less", QUEUE + "b", {"path": "b", "maxQueued": -1}, 422, "invalid-spec", "maxQueued"),
    Case("a queue of more", QUEUE + "b", {"path": "b", "maxRunning": 2**63}, 422, "invalid-spec", "maxRunning"),
    Case(
        "a queue of words",
        QUEUE + "b",
        {"path": "b", "limits": {"cpu": "all"}},
        422,
        "invalid-spec",
        "resources.cpu.limit",
    ),
    Case(
        "a line of nothing", QUEUE + "b", {"path": "b", "resources": {"cpu": {}}}, 422, "invalid-spec", "resources.cpu"
    ),
    Case(
        "a guarantee above its limit",
        QUEUE + "b",
        {"path": "b", "resources": {"cpu": {"guaranteed": 3, "limit": 2}}},
        422,
        "invalid-spec",
        "resources",
    ),
    Case(
        "a product of cores",
        QUEUE + "b",
        {"path": "b", "resources": {"cpu@product=H100": {"limit": 2}}},
        422,
        "invalid-spec",
    ),
    Case("a kind of none", QUEUE + "b", {"path": "b", "resources": {"cpu@kind=x": {"limit": 2}}}, 422, "invalid-spec"),
    Case(
        "a line twice",
        QUEUE + "b",
        {"path": "b", "limits": {"cpu": 1}, "resources": {"cpu": {"limit": 2}}},
        422,
        "invalid-spec",
    ),
    Case("held and open", QUEUE + "b", {"path": "b", "held": True, "state": "open"}, 422, "invalid-spec"),
    Case("a queue of NUL", QUEUE + "b", {"path": "b", "description": "\0"}, 422, "invalid-spec"),
    Case("a queue unknown inside", QUEUE + "b", {"path": "b", "max": 1}, 422, "invalid-spec", "max"),
    Case("a queue that is a list", QUEUE + "b", [], 422, "invalid-spec"),
    Case(
        "a queue by a name of Python", QUEUE + "b", {"path": "b", "max_running": 1}, 422, "invalid-spec", "max_running"
    ),
    Case("a queue of no kinds", QUEUE + "b", {"path": "b", "allowedKinds": []}, 422, "invalid-spec", "allowedKinds"),
    Case("a queue twice", QUEUE + "b", b'{"path": "b", "weight": 1, "weight": 2}', 422, "invalid-spec", "weight"),
    Case(
        "a cluster for no queue",
        CLUSTER + "a",
        {"name": "a", "onlyQueues": ["team", "nosuch"]},
        422,
        "unknown-queue",
        "onlyQueues[1]",
    ),
    Case(
        "a reservation of the past",
        RESERVATION + "w",
        WINDOW | {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"},
        422,
        "invalid-spec",
        "end",
    ),
    Case("no queue to remove", "DELETE /v1/queues/none", None, 404, "not-found"),
    Case("a queue with jobs", "DELETE /v1/queues/team/a", None, 409, "in-use"),
    Case("a queue with queues", "DELETE /v1/queues/team", None, 409, "in-use"),
    Case("no queue to show", "GET /v1/queues/none", None, 404, "not-found"),
    Case("a class of another name", CLASS + "a", {"name": "b", "value": 1}, 422, "invalid-spec"),
    Case("a class beyond", CLASS + "a", {"name": "a", "value": 2**40}, 422, "invalid-spec", "value"),
    Case("a class in use", "DELETE /v1/priority-classes/normal", None, 409, "in-use"),
    Case("no class to remove", "DELETE /v1/priority-classes/none", None, 404, "not-found"),
    Case("a reservation of another name", RESERVATION + "a", WINDOW | {"name": "b"}, 422, "invalid-spec"),
    Case("a reservation for no queue", RESERVATION + "w", WINDOW | {"queue": "none"}, 422, "unknown-queue"),
    Case("a reservation nowhere", RESERVATION + "w", WINDOW | {"clusters": ["none"]}, 422, "unknown-cluster"),
    Case("a reservation of nothing", RESERVATION + "w", WINDOW | {"nodes": 0}, 422, "invalid-spec", "nodes"),
    Case("a reservation of no end", RESERVATION + "w", WINDOW | {"end": WINDOW["start"]}, 422, "invalid-spec"),
    Case(
        "a time without zone",
        RESERVATION + "w",
        WINDOW | {"start": "2099-11-27T00:00:00"},
        422,
        "invalid-spec",
        "start",
    ),
    Case("a time of words", RESERVATION + "w", WINDOW | {"end": "soon"}, 422, "invalid-spec", "end"),
    Case("no reservation to remove", "DELETE /v1/reservations/none", None, 404, "not-found"),
    Case("no reservation to show", "GET /v1/reservations/none", None, 404, "not-found"),
    Case("a cluster of no kind", CLUSTER + "a", {"name": "a", "clusterKind": "x"}, 422, "invalid-spec", "clusterKind"),
    Case("a cluster with runs", "DELETE /v1/clusters/private", None, 409, "in-use"),
    Case("no cluster to cordon", "POST /v1/clusters/none/cordon", None, 404, "not-found"),
    Case("no cluster to show", "GET /v1/clusters/none", None, 404, "not-found"),
    Case("no cluster to remove", "DELETE /v1/clusters/none", None, 404, "not-found"),
    Case("no cluster to remove by force", "DELETE /v1/clusters/none?force=true", None, 404, "not-found"),
    Case("a cluster that joins as another", "POST /v1/clusters/a/join", {"name": "b"}, 422, "invalid-spec"),
    Case("a cluster that joins in capitals", "POST /v1/clusters/A/join", {"name": "A"}, 422, "invalid-spec", "name"),
    Case(
        "a cluster that joins as another kind",
        "POST /v1/clusters/private/join",
        {"name": "private", "clusterKind": "edge"},
        409,
        "conflict",
    ),
    Case(
        "a join that repeats",
        "POST /v1/clusters/a/join",
        {"name": "a"},
        422,
        "invalid-parameter",
        headers={"Idempotency-Key": "k"},
    ),
    Case("no cluster to rotate", "POST /v1/clusters/none/rotate", {}, 404, "not-found"),
    Case("no cluster to drain", "POST /v1/clusters/none/drain", {}, 404, "not-found"),
    Case("a drain of words", "POST /v1/clusters/private/drain", {"letFinish": 7}, 422, "invalid-spec", "letFinish"),
    Case("no cluster to declare lost", "POST /v1/clusters/none/declare-lost", {}, 404, "not-found"),
    Case(
        "a cluster in contact to declare lost", "POST /v1/clusters/private/declare-lost", {}, 409, "cluster-in-contact"
    ),
    Case("a key of no role", KEYS, {"name": "k", "role": "king"}, 422, "invalid-spec", "role"),
    Case("a key of no queue", KEYS, {"name": "k", "role": "user"}, 422, "invalid-parameter"),
    Case("a key of a queue unknown", KEYS, {"name": "k", "role": "user", "queues": ["x"]}, 422, "unknown-queue"),
    Case("a key of no cluster", KEYS, {"name": "k", "role": "agent"}, 422, "invalid-parameter"),
    Case("a key of a cluster unknown", KEYS, {"name": "k", "role": "agent", "cluster": "x"}, 422, "unknown-cluster"),
    Case("a key of NUL", KEYS, {"name": "\0", "role": "admin"}, 422, "invalid-spec"),
    Case("a key that repeats", KEYS, {}, 422, "invalid-parameter", headers={"Idempotency-Key": "k"}),
    Case("no key to revoke", "DELETE /v1/keys/999999", None, 404, "not-found"),
    Case("a huge key to revoke", f"DELETE /v1/keys/{HUGE}", None, 422, "invalid-parameter", "key_id"),
    Case("a key of words", "DELETE /v1/keys/mine", None, 422, "invalid-parameter", "key_id"),
    Case("a bad cursor", "GET /v1/audit?cursor=x", None, 400, "bad-cursor"),
]

SYNC, PUSH = "POST /agent/v1/sync", "POST /agent/v1/streams/"
HELLO: dict[str, Any] = {"session": "session-1", "holder": "holder-1", "number": 9}


def sync(what: str, status: int, code: str, at: str = "", **fields: Any) -> Case:
    return Case(what, SYNC, {**HELLO, **fields}, status, code, at, key="tmk_private")


def agent(what: str, call: str, body: Any, status: int, code: str, at: str = "") -> Case:
    return Case(what, call, body, status, code, at, key="tmk_private")


def chunk(**fields: Any) -> dict[str, Any]:
    whole = {"role": "main", "index": 0, "offset": 0, "data": "", "nextOffset": 0, **fields}
    return {"session": "session-1", "chunks": [whole]}


AGENTS = [
    agent("no JSON", SYNC, b"{", 422, "invalid-spec"),
    agent("a list", SYNC, [], 422, "invalid-spec"),
    agent("no session", SYNC, {"holder": "h", "number": 1}, 422, "invalid-spec", "session"),
    agent("a lone surrogate", SYNC, b'{"session": "\\ud800"}', 422, "invalid-spec"),
    sync("an unknown protocol", 400, "protocol-unsupported", protocol=99),
    sync("runs that are no list", 422, "invalid-spec", "runs", runs="many"),
    sync("a long session", 422, "invalid-spec", "session", session="s" * 201),
    sync("a number of words", 422, "invalid-spec", "number", number="many"),
    sync("a number beyond a bigint", 422, "invalid-spec", number=2**63),
    agent("a push of no list", PUSH + "x", {"session": "session-1", "chunks": 7}, 422, "invalid-spec", "chunks"),
    agent("a push to nobody", PUSH + "nobody", chunk(), 410, "stream-closed"),
    agent("a push of an index beyond", PUSH + "{run}", chunk(index=2**40), 422, "invalid-spec"),
    agent("a push to a run of nobody", PUSH + "a-0000001-r1", chunk(), 404, "not-found"),
    agent("a push to a run beyond counting", PUSH + "a-0000001-r" + "9" * 5000, chunk(), 410, "stream-closed"),
    agent("a push of an older session", PUSH + "x", chunk() | {"session": "0"}, 409, "session-superseded"),
    agent("desired after less", "GET /agent/v1/desired?session=session-1&after=-1", None, 422, "invalid-parameter"),
    agent("desired of nobody", "GET /agent/v1/desired", None, 422, "invalid-parameter", "session"),
    agent("desired of an older", "GET /agent/v1/desired?session=%00", None, 409, "session-superseded"),
]


async def test_admins_mistakes(world: World) -> None:
    await world.check(TENANTS)


async def test_agents_mistakes(world: World) -> None:
    poison = {"groups": [], "runtime": "r", "scheduler": "s", "datasets": ["\0"]}
    await world.check(AGENTS)
    answer = await world.service.agent().http.post(
        "/agent/v1/sync", json={**HELLO, "capacity": poison}, headers={"Authorization": "Bearer tmk_private"}
    )
    assert answer.status_code == 200, "a NUL must not keep a cluster from being heard"


async def test_a_message_with_a_nul_ends_its_run_nonetheless(world: World) -> None:
    me = world.service.agent()
    message = "\\u0000 is how one writes it, \0\0 it is"
    answer = await me.report(world.names["run"], RunState.FAILED, 5, message=message)
    assert answer.status_code == 200, answer.text
    shown = await world.service.job(world.names["running"])
    assert (shown["state"], shown["message"]) == ("failed", "\\u0000 is how one writes it, \ufffd\ufffd it is")


async def test_runs_that_nobody_knows_are_told_back(world: World) -> None:
    before = await picture(world.service.stores)
    strange = ("", "nonsense", "a-0000001-r1", "a-0000001-r" + "9" * 200, "a-0000001-r0", "\ufffd")
    reports = [RunReport(run=run, generation=1, seq=1, state=RunState.LOST) for run in strange]
    answer = await world.service.agent().sync(*reports)
    assert (answer.status_code, sorted(answer.json()["unknown"])) == (200, sorted(strange))
    assert await picture(world.service.stores) == before


async def _while_open(service: Service, first: Any, call: Any) -> httpx.Response:
    """Return the answer to ``call``, made while ``first`` is not yet committed and waits for nothing."""
    async with service.stores.database.transaction() as tx:
        await first(tx)
        task = asyncio.create_task(call)

        async def waits() -> bool:
            found = await rows(service.stores, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            return bool(found) or task.done()

        await eventually(waits)
    answer: httpx.Response = await task
    return answer


async def test_a_queue_that_gets_its_first_job_meanwhile_is_neither_removed_nor_divided(service: Service) -> None:
    for path, call in (
        ("one", service.http.delete("/v1/queues/one")),
        ("two", service.http.put("/v1/queues/two/below", json={"path": "two/below"})),
    ):
        assert (await service.http.put(f"/v1/queues/{path}", json={"path": path})).status_code == 201

        async def insert(tx: Transaction, path: str = path) -> None:
            await tenants.hold_queues(tx, [path])
            await tx.run(
                "INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, state)"
                " SELECT 'x', q.id, p.id, 0, 0, 1, 'held' FROM queues q, priority_classes p WHERE q.path = :path AND p.is_default",
                path=path,
            )

        answer = await _while_open(service, insert, call)
        assert (answer.status_code, answer.json()["code"]) == (409, "in-use")


async def test_a_queue_that_is_divided_meanwhile_takes_no_job(service: Service) -> None:
    for path in ("gone", "team"):
        assert (await service.http.put(f"/v1/queues/{path}", json={"path": path})).status_code == 201

    async def divide(tx: Transaction) -> None:
        await tx.run("SELECT 1 FROM queues WHERE path = 'team' FOR UPDATE")
        await tx.run(
            "INSERT INTO queues (path, parent_id, spec) SELECT 'team/a', id, spec FROM queues WHERE path = 'team'"
        )

    async def remove(tx: Transaction) -> None:
        await tx.run("DELETE FROM queues WHERE path = 'gone'")

    divided = await _while_open(service, divide, service.http.post("/v1/jobs", json=job(queue="team")))
    assert (divided.status_code, divided.json()["code"]) == (422, "queue-not-a-leaf")
    removed = await _while_open(service, remove, service.http.post("/v1/jobs", json=job(queue="gone")))
    assert (removed.status_code, removed.json()["code"]) == (422, "unknown-queue")


async def test_a_class_that_is_taken_meanwhile_is_not_removed(service: Service) -> None:
    async def take(tx: Transaction) -> None:
        assert await tenants.hold_classes(tx, [row.id for row in await tenants.CLASSES.every(tx)])
        await tx.run(
            "INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, state)"
            " SELECT 'x', q.id, p.id, 0, 0, 1, 'held' FROM queues q, priority_classes p WHERE p.name = 'low'"
        )

    answer = await _while_open(service, take, service.http.delete("/v1/priority-classes/low"))
    assert (answer.status_code, answer.json()["code"]) == (409, "in-use")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SPEC = st.dictionaries(
    st.sampled_from(
        ["name", "queue", "roles", "priority", "labels", "placement", "retries", "suspend", "onDisconnect"]
    ),
    JSON,
    max_size=5,
).map(lambda fields: {**job(suspend=True), **fields})
HEARD = st.dictionaries(
    st.sampled_from(["session", "holder", "number", "runs", "full", "capacity", "heldCount", "heldDigest", "epoch"]),
    JSON,
    max_size=5,
).map(lambda fields: {**HELLO, **fields})
RUNS = st.lists(
    st.fixed_dictionaries(
        {
            "run": st.sampled_from(["busy-0000001-r1", "x-zzzzzzz-r1", "x"]),
            "generation": st.integers(),
            "seq": st.integers(),
            "state": st.sampled_from([*RunState, "none"]),
        },
        optional={"end": JSON, "placement": JSON, "members": JSON, "message": st.text(max_size=8)},
    ),
    max_size=3,
).map(lambda reports: {**HELLO, "runs": reports})


async def test_no_json_whatever_is_answered_with_a_5xx(service: Service) -> None:
    loop = asyncio.get_running_loop()
    me = service.as_key("tmk_private")

    def send(client: httpx.AsyncClient, path: str, body: Any) -> None:
        answer = asyncio.run_coroutine_threadsafe(client.post(path, content=to_json(body)), loop).result(20)
        assert answer.status_code < 500, (body, answer.text)

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.one_of(JSON, SPEC), st.one_of(JSON, HEARD, RUNS))
    def throw(submission: Any, heard: Any) -> None:
        send(service.http, "/v1/jobs", submission)
        send(me, "/agent/v1/sync", heard)

    await service.agent().connect()
    await asyncio.to_thread(throw)
    # `suspend: false` may be among what was made up.
    assert await value(service.stores, "SELECT count(*) FROM jobs WHERE state NOT IN ('held', 'queued')") == 0
