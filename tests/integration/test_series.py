"""History over time: samples of a real scheduler, their roll-up, and the answers to users, on a real Postgres."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.integration.rows import execute, rows, value
from tests.integration.test_metrics import page
from tests.waiting import eventually
from trainmaster.metrics.kinds import Process
from trainmaster.protocol.agent import ClusterHealth, OthersUse, TroubledNode
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.series import HEARTBEAT, SeriesKey, pack_sample
from trainmaster_dispatcher.services import series_sampling
from trainmaster_dispatcher.services.retention import Retention
from trainmaster_dispatcher.services.series_rollup import SeriesRollup
from trainmaster_dispatcher.store import series as store

USER: dict[str, Any] = {"name": "vision", "role": "user", "queues": ["team/vision"]}


@pytest.fixture
def every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler take a sample each second."""
    monkeypatch.setattr(series_sampling, "FINE", 1)
    monkeypatch.setattr(series_sampling, "_LOOK_SECONDS", 0.1)


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler take no sample, so that there are only those of the test."""
    monkeypatch.setattr(series_sampling, "FINE", 10**12)


async def ask(client: httpx.AsyncClient, metric: str, **query: Any) -> dict[str, Any]:
    answer = await client.get("/v1/series", params={"metric": metric, **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def last_of(client: httpx.AsyncClient, metric: str, **query: Any) -> dict[tuple[str, ...], float]:
    """Return the last known value of each series, by the values of its labels."""
    found = await ask(client, metric, **query)
    known = {
        tuple(one["labels"].values()): [value for value in one["values"] if value is not None]
        for one in found["series"]
    }
    return {labels: values[-1] for labels, values in known.items() if values}


async def user_key(service: Service, **spec: Any) -> httpx.AsyncClient:
    answer = await service.http.post("/v1/keys", json=spec)
    assert answer.status_code == 201, answer.text
    return service.as_key(answer.json()["key"])


async def put_samples(
    service: Service, begin: datetime, minutes: int, values: dict[SeriesKey, Any], every: int = 1
) -> None:
    """Store a sample for each minute; ``values``: by series, a function of the minute, or None where it has no value."""
    async with service.stores.database.transaction() as tx:
        keys = [SeriesKey(HEARTBEAT), *values]
        ids = {row.key: row.id for row in await store.add_names(tx, keys)}
        for minute in range(0, minutes, every):
            found = {key: of(minute) for key, of in values.items()} | {SeriesKey(HEARTBEAT): 1.0}
            there = [(ids[key], one) for key, one in found.items() if one is not None]
            at = begin + timedelta(minutes=minute)
            await store.add_sample(tx, at, *pack_sample([key for key, _ in there], [one for _, one in there]))


async def test_the_leader_samples_what_clusters_and_queues_have(every_second: None, service: Service) -> None:
    agent = service.agent()
    health = ClusterHealth(ready=3, not_ready=1, troubled=(TroubledNode(node="n4", trouble="not ready"),))
    others = (OthersUse(amounts={"cpu": 1500}),)
    await agent.connect(cpu=8, nodes=3, health=health, others=others)
    queue = {"kind": "Queue", "path": "default", "resources": {"cpu": {"guaranteed": "2"}}}
    assert (await service.http.put("/v1/queues/default", json=queue)).status_code == 200
    await service.submit(cpu="5")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await service.submit("large", cpu="1000")

    async def is_sampled() -> bool:
        await agent.sync()
        queued = await last_of(service.http, "queue.jobs.queued")
        return bool(queued) and bool(await last_of(service.http, "queue.cpu.borrowed"))

    await eventually(is_sampled, 20)
    for metric, expected in {
        "cluster.cpu.capacity": {("private",): 24.0},
        "cluster.cpu.used": {("private",): 5.0},
        "cluster.cpu.free": {("private",): 24.0},
        "cluster.cpu.others": {("private",): 1.5},
        "cluster.nodes.ready": {("private",): 3.0},
        "cluster.nodes.notReady": {("private",): 1.0},
        "queue.jobs.running": {("default",): 1.0},
        "queue.cpu.guaranteed": {("default",): 2.0},
    }.items():
        found = await last_of(service.http, metric)
        assert found.keys() == expected.keys(), metric
        # Values of a minute are means of the samples of this test, of which the first ones know of no job.
        assert all(0 < found[labels] <= amount for labels, amount in expected.items()), metric
    shown = page(Process.SCHEDULER)
    assert shown['trainmaster_cluster_used{cluster="private",product="",resource="cpu"}'] == 5.0
    assert shown['trainmaster_cluster_nodes{cluster="private",state="not_ready"}'] == 1.0
    assert shown['trainmaster_queue_borrowed{product="",queue="default",resource="cpu"}'] == 3.0
    assert shown["trainmaster_series_dropped"] == 0.0


async def test_clusters_show_their_nodes_in_trouble(service: Service) -> None:
    health = ClusterHealth(ready=3, device_errors=1, troubled=(TroubledNode(node="n4", trouble="2 of 8 GPUs"),))
    await service.agent().connect(health=health)
    await service.agent("edge", session="session-2").connect()
    clusters = {one["name"]: one for one in (await service.http.get("/v1/clusters")).json()["clusters"]}
    assert clusters["private"]["health"] == {
        "ready": 3,
        "cordoned": 0,
        "notReady": 0,
        "flapping": 0,
        "deviceErrors": 1,
        "troubled": [{"node": "n4", "trouble": "2 of 8 GPUs"}],
    }
    assert "health" not in clusters["edge"], "its agent does not report it"
    user = await user_key(service, name="someone", role="user", queues=["default"])
    (shown,) = [one for one in (await user.get("/v1/clusters")).json()["clusters"] if one["name"] == "private"]
    assert shown["health"]["deviceErrors"] == 1
    assert "troubled" not in shown["health"]


async def test_minutes_become_ten_minutes_and_hours_and_old_values_go(unsampled: None, service: Service) -> None:
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    midnight = now.replace(hour=0) - timedelta(days=1)
    used, held, waits = (
        SeriesKey("cluster.cpu.used", "west"),
        SeriesKey("cluster.cpu.capacity", "west"),
        SeriesKey("queue.wait.oldest", queue="default"),
    )
    await put_samples(
        service,
        midnight,
        24 * 60,
        {
            used: lambda minute: float(minute % 10) if minute < 60 else None,
            held: lambda _: 8.0,
            waits: lambda minute: float(minute) if minute < 30 else None,
        },
    )
    rollup = SeriesRollup(service.stores.database)
    assert await rollup.run(midnight + timedelta(days=1, minutes=1)) == 23, "samples of the last hour may still come"
    assert await rollup.run(midnight + timedelta(days=1, minutes=3)) == 2
    assert await rollup.run(midnight + timedelta(days=1, hours=2)) == 0
    assert await value(service.stores, "SELECT count(*) FROM series_samples") == 0
    stored = {
        row.grain: row.many
        for row in await rows(service.stores, "SELECT grain, count(*) AS many FROM series_values GROUP BY grain")
    }
    assert stored == {60: 24 + 1 + 24 + 1, 600: 4, 3600: 4}, "hours in which a value is 0 have no row"

    since, until = midnight.isoformat(), (midnight + timedelta(hours=2)).isoformat()
    found = await ask(service.http, "cluster.cpu.used", since=since, until=until, step=600)
    assert found["step"] == 600
    assert found["start"] == midnight.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert found["series"] == [{"labels": {"cluster": "west"}, "values": [4.5] * 6 + [0.0] * 6}]
    found = await ask(service.http, "queue.wait.oldest", since=since, until=until, step=3600)
    assert found["series"][0]["values"] == [29.0, 0.0], "the highest value of the hour"
    found = await ask(service.http, "cluster.cpu.capacity", since=since, until=until, step=3600)
    assert found["series"][0]["values"] == [8.0, 8.0]

    # An old question gets longer steps.
    await execute(service.stores, "UPDATE series_values SET begin = begin - interval '20 days'")
    old = midnight - timedelta(days=20)
    found = await ask(
        service.http, "cluster.cpu.used", since=old.isoformat(), until=(old + timedelta(hours=2)).isoformat(), step=60
    )
    assert found["step"] == 3600
    assert found["series"][0]["values"] == [4.5, 0.0]

    await Retention(service.stores.database, service.settings).run()
    left = await rows(service.stores, "SELECT DISTINCT grain FROM series_values")
    assert [row.grain for row in left] == [3600]


def begin_of(found: dict[str, Any], place: int) -> datetime:
    """Return the begin of a step of an answer."""
    return datetime.fromisoformat(found["start"]) + timedelta(seconds=place * found["step"])


async def test_answers_join_samples_hours_and_days(unsampled: None, service: Service) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    begin = now - timedelta(hours=30)
    key = SeriesKey("cluster.cpu.used", "west")
    await put_samples(service, begin, 30 * 60, {key: lambda _: 2.0})
    await SeriesRollup(service.stores.database).run()
    assert await value(service.stores, "SELECT count(*) FROM series_samples") > 0
    for since, step in ((begin, 600), (now - timedelta(hours=23), 60), (now - timedelta(hours=1), 60)):
        found = await ask(service.http, "cluster.cpu.used", since=since.isoformat(), until=now.isoformat(), step=step)
        (series,) = found["series"]
        inner = series["values"][1:-1]
        missing = [begin_of(found, place) for place, one in enumerate(series["values"]) if one != 2.0]
        assert set(inner) == {2.0}, (since, step, missing)
        assert len(inner) * step >= (now - since).total_seconds() - 2 * step


async def test_rolling_up_again_changes_nothing(unsampled: None, service: Service) -> None:
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    await put_samples(service, begin, 60, {SeriesKey("cluster.cpu.used", "west"): float})
    before = "SELECT at, ids, vals FROM series_samples ORDER BY at"
    samples = await rows(service.stores, before)
    async with service.stores.database.transaction() as tx:
        kept = await store.samples(tx, begin, begin + timedelta(hours=1))
    rollup = SeriesRollup(service.stores.database)
    assert await rollup.run() == 1
    stored = await rows(service.stores, "SELECT * FROM series_values ORDER BY 1, 2, 3")
    async with service.stores.database.transaction() as tx:  # as if the worker had died before it removed them
        for sample in kept:
            await tx.run("INSERT INTO series_samples VALUES (:at, :ids, :vals)", **sample._asdict())
    assert await rows(service.stores, before) == samples
    assert await rollup.run() == 1
    assert await rows(service.stores, "SELECT * FROM series_values ORDER BY 1, 2, 3") == stored


async def test_users_see_their_queues_and_the_capacity_of_their_clusters(unsampled: None, service: Service) -> None:
    for path in ("team", "team/vision", "team/vision/a", "team/text"):
        spec = {"kind": "Queue", "path": path}
        assert (await service.http.put(f"/v1/queues/{path}", json=spec)).status_code == 201
    edge = {"kind": "Cluster", "name": "edge", "clusterKind": "edge", "onlyQueues": ["team/text"]}
    assert (await service.http.put("/v1/clusters/edge", json=edge)).status_code == 200
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=5)
    every = {
        SeriesKey(f"cluster.cpu.{what}", name): lambda _: 4.0
        for what in ("capacity", "used")
        for name in ("private", "edge", "removed")
    }
    every |= {
        SeriesKey("queue.cpu.used", queue=path): lambda _: 1.0
        for path in ("team", "team/vision", "team/vision/a", "team/text", "teams")
    }
    await put_samples(service, begin, 4, every)
    user = await user_key(service, **USER)
    owner = await user_key(service, name="looks-after", role="owner", clusters=["edge"])
    assert set(await last_of(user, "queue.cpu.used")) == {("team/vision",), ("team/vision/a",)}
    assert set(await last_of(user, "cluster.cpu.capacity")) == {("private",)}
    assert set(await last_of(owner, "cluster.cpu.capacity")) == {("edge",)}
    assert set(await last_of(owner, "cluster.cpu.used")) == {("edge",)}
    assert set(await last_of(service.http, "cluster.cpu.used")) == {("edge",), ("private",), ("removed",)}
    assert set(await last_of(service.http, "queue.cpu.used", queue="team", depth=1)) == {
        *(("team",), ("team/text",), ("team/vision",))
    }
    assert set(await last_of(service.http, "queue.cpu.used", depth=1)) == {("team",), ("teams",)}
    assert await last_of(service.http, "cluster.cpu.used", by="none") == {(): 12.0}
    for client, query, code in (
        (user, {"metric": "cluster.cpu.used"}, "forbidden"),
        (owner, {"metric": "queue.cpu.used"}, "forbidden"),
        (user, {"metric": "queue.cpu.used", "queue": "team/text"}, "not-found"),
        (user, {"metric": "cluster.cpu.capacity", "cluster": "edge"}, "not-found"),
    ):
        answer = await client.get("/v1/series", params=query)
        assert answer.json()["code"] == code, (query, answer.text)
    names = [one["name"] for one in (await user.get("/v1/series/metrics")).json()["metrics"]]
    assert "cluster.cpu.capacity" in names
    assert "cluster.cpu.used" not in names
    names = [one["name"] for one in (await owner.get("/v1/series/metrics")).json()["metrics"]]
    assert "cluster.cpu.used" in names
    assert not any(name.startswith("queue.") for name in names)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"metric": "cluster.cpu.usd"}, "did you mean"),
        ({"metric": "cluster.cpu.used", "queue": "default"}, "has no queue"),
        ({"metric": "cluster.cpu.used", "depth": 1}, "not of queues"),
        ({"metric": "cluster.cpu.used", "by": "product"}, "has no product"),
        ({"metric": "queue.gpu.used", "by": "product"}, "cannot be added up"),
        ({"metric": "cluster.cpu.used", "step": 90}, "multiple of 60"),
        ({"metric": "cluster.cpu.used", "step": 30}, ""),
        ({"metric": "cluster.cpu.used", "by": "nothing"}, ""),
        ({"metric": "cluster.cpu.used", "since": "2099-01-01T00:00:00Z"}, "earlier than until"),
        ({"metric": "cluster.cpu.used", "since": "2020-01-01T00:00:00Z"}, "366 days"),
        ({"metric": "cluster.cpu.used", "since": "soon"}, ""),
        ({}, "metric"),
    ],
)
async def test_questions_that_make_no_sense_are_refused(service: Service, query: dict[str, Any], said: str) -> None:
    answer = await service.http.get("/v1/series", params=query)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["detail"]


async def test_the_cost_of_hours_comes_from_the_ledger(service: Service) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    await execute(
        service.stores,
        "INSERT INTO class_usage (hour, queue_id, class_id, api_key_id, cluster_id, labels, resource, product, spot, amount, cost,"
        " charge)"
        " SELECT :hour, q.id, 1, 1, 1, '{}', resource, '', false, 1, 2500000000, 0"
        " FROM queues q, unnest(ARRAY['cpu', 'memory']) resource WHERE q.path = 'default'",
        hour=hour,
    )
    found = await ask(service.http, "queue.cost", since=(hour - timedelta(hours=1)).isoformat())
    assert (found["step"], found["unit"]) == (3600, "money per hour")
    assert found["series"] == [
        {"labels": {"queue": "default"}, "values": [0.0, 5.0, *[0.0] * (len(found["series"][0]["values"]) - 2)]}
    ]
    found = await ask(service.http, "queue.cost", since=(hour - timedelta(hours=1)).isoformat(), step=7200)
    assert sum(found["series"][0]["values"]) == 2.5


async def test_a_name_that_nobody_samples_is_removed(unsampled: None, service: Service) -> None:
    begin = datetime.now(UTC) - timedelta(minutes=3)
    await put_samples(service, begin, 1, {SeriesKey("cluster.cpu.used", name): lambda _: 1.0 for name in ("a", "b")})
    await execute(service.stores, "UPDATE series SET seen_at = now() - interval '16 days' WHERE cluster = 'a'")
    await Retention(service.stores.database, service.settings).run()
    names = [row.cluster for row in await rows(service.stores, "SELECT cluster FROM series ORDER BY cluster")]
    assert names == ["", "b"]
