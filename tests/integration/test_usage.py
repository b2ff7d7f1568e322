"""What was used and what it cost: counted by the worker's side job, asked for by the API."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service, job
from tests.integration.rows import execute, rows
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.scoring import SCORE_WEIGHTS
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.usage_ledger import Accounting

GPU = "nvidia.com/gpu"
BOOK = {"name": "own", "onDemand": {"cpu": "0.04", "memory": "0.005", "devices": {f"{GPU}@product=H100": "2.5"}}}


async def put(service: Service, kind: str, name: str, body: dict[str, Any]) -> None:
    answer = await service.http.put(f"/v1/{kind}/{name}", json=body)
    assert answer.status_code in (200, 201), answer.text


async def priced(service: Service, **fields: Any) -> None:
    """Create the price book ``own``, changed by ``fields``, and let cluster private charge by it."""
    await put(service, "price-books", "own", {**BOOK, **fields})
    await put(service, "clusters", "private", {"name": "private", "clusterKind": "private", "priceBook": "own"})


async def ran(service: Service, agent: FakeAgent, **fields: Any) -> str:
    """Submit a job, let it run and succeed, and return its id."""
    job_id = await service.submit(**fields)
    run = (await agent.next_start())["run"]
    sizes = {"main": fields.get("replicas", 1)}
    await agent.report(run, RunState.RUNNING, 2, placement={"node": sizes})
    await agent.report(run, RunState.SUCCEEDED, 3)
    return job_id


async def usage(service: Service, client: Any = None, **query: Any) -> dict[str, Any]:
    answer = await (client or service.http).get("/v1/usage", params=query)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def accounting(service: Service, **options: Any) -> Accounting:
    return Accounting(service.stores.database, **options)


async def expected_cost(service: Service, *, cpu: Fraction, memory: Fraction = Fraction(0)) -> Fraction:
    """Compute the cost by hand: seconds of each run, from when it had nodes to its end, times the prices of what it holds."""
    found = await rows(
        service.stores,
        "SELECT extract(epoch FROM coalesce(ended_at, now()) - placed_at) AS seconds FROM runs WHERE placed_at IS NOT NULL",
    )
    seconds = sum((Fraction(row.seconds) for row in found), Fraction(0))
    return seconds / 3600 * (cpu * Fraction("0.04") + memory * Fraction("0.005"))


async def test_what_ran_is_counted_once_and_costs_what_the_book_says(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    await agent.connect()
    for _ in range(5):
        await ran(service, agent, cpu="2")
    before = await usage(service, by=["queue", "cluster"])
    assert [row["of"] for row in before["rows"]] == [{"queue": "default", "cluster": "private"}]
    counted = await asyncio.gather(*(accounting(service, batch=2).run() for _ in range(4)))
    assert sum(counted) == 5
    assert await accounting(service).run() == 0
    after = await usage(service, by=["queue", "cluster"])
    assert after["total"]["cost"] == before["total"]["cost"]
    assert after["total"]["cpu"] == before["total"]["cpu"]
    assert after["total"]["runs"] == 5
    exact = await expected_cost(service, cpu=Fraction(2))
    assert abs(Fraction(after["total"]["cost"]) - exact) <= Fraction(5 * 2, 10**9)
    assert exact > 0
    assert after["currency"] == "EUR"


async def test_nothing_is_missed_or_told_twice_while_it_is_counted(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    await agent.connect()
    for _ in range(12):
        await ran(service, agent)
    whole = (await usage(service))["total"]
    counting = asyncio.create_task(accounting(service, batch=1).run())
    totals = []
    while not counting.done():
        totals.append((await usage(service, by="queue"))["total"])
    assert counting.result() == 12
    assert totals
    assert all(one == whole for one in totals)


async def test_roll_ups_add_up_however_they_are_split(service: Service) -> None:
    service.settings.usage_labels = "team"
    await priced(service)
    await put(service, "queues", "other", {"path": "other"})
    agent, second = service.agent(), service.agent("edge", session="session-2")
    await agent.connect()
    for number in range(3):
        await ran(service, agent, queue=("default", "other")[number % 2], labels={"team": f"t{number}"})
    await second.connect()
    await ran(service, second, placement={"clusters": ["edge"]})
    await accounting(service, labels=["team"]).run()
    whole = (await usage(service))["total"]
    for by in (["queue"], ["user"], ["cluster"], ["kind"], ["class"], ["label:team"], ["queue", "kind", "label:team"]):
        for per in ("hour", "day", "month", "all"):
            split = await usage(service, by=by, per=per)
            assert sum(Decimal(row["cost"]) for row in split["rows"]) == Decimal(whole["cost"])
            assert sum(row["runs"] for row in split["rows"]) == whole["runs"] == 4
            assert split["total"] == whole
    teams = {row["of"]["label:team"]: row["runs"] for row in (await usage(service, by="label:team"))["rows"]}
    assert teams == {"t0": 1, "t1": 1, "t2": 1, "": 1}
    free = {row["of"]["kind"]: Decimal(row["cost"]) for row in (await usage(service, by="kind"))["rows"]}
    assert free["edge"] == 0 < free["private"], "a cluster without a price book costs nothing"


async def test_what_runs_counts_until_now_and_what_never_had_nodes_does_not_count(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    await agent.connect()
    await service.submit("waits", cpu="4")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.PENDING, 1)
    assert (await usage(service))["rows"] == []
    await agent.report(run, RunState.PENDING, 2, placement={"node": {"main": 1}})
    first = await usage(service)
    assert first["total"]["cost"] != "0", "a gang that has nodes costs, though it does not run yet"
    await asyncio.sleep(0.05)
    second = await usage(service)
    assert Decimal(second["total"]["cost"]) > Decimal(first["total"]["cost"])
    assert second["total"]["runs"] == 0
    await agent.report(run, RunState.RETURNED, 3, message="no")
    assert await accounting(service).run() == 1
    assert Decimal((await usage(service))["total"]["cost"]) >= Decimal(second["total"]["cost"])


async def test_an_end_that_is_told_late_is_charged_until_it_was(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    await agent.connect()
    await service.submit("late")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await rows(
        service.stores,
        "UPDATE runs SET placed_at = now() - interval '100 s', started_at = now() - interval '90 s',"
        " leased_at = now() - interval '110 s' RETURNING 1",
    )
    await agent.report(run, RunState.SUCCEEDED, 3, ended_seconds_ago=40.0)
    (row,) = await rows(service.stores, "SELECT extract(epoch FROM ended_at - placed_at) AS seconds FROM runs")
    assert 59 < row.seconds < 65
    await service.submit("later")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await agent.report(run, RunState.FAILED, 3, ended_seconds_ago=4000.0)
    (row,) = await rows(service.stores, "SELECT ended_at >= placed_at AS sound FROM runs ORDER BY job_id DESC LIMIT 1")
    assert row.sound, "no run ends before it began"


async def test_prices_hold_from_when_they_were_made(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    await agent.connect()
    await ran(service, agent)
    before = Decimal((await usage(service))["total"]["cost"])
    await put(service, "price-books", "own", {**BOOK, "onDemand": {"cpu": "4000"}})
    assert Decimal((await usage(service))["total"]["cost"]) == before
    await accounting(service).run()
    assert Decimal((await usage(service))["total"]["cost"]) == before
    await ran(service, agent)
    assert Decimal((await usage(service))["total"]["cost"]) > 1000 * before
    found = await rows(service.stores, "SELECT count(*) AS many FROM tariffs")
    assert found[0].many == 2
    await put(service, "price-books", "own", {**BOOK, "onDemand": {"cpu": "4000"}})
    assert (await rows(service.stores, "SELECT count(*) AS many FROM tariffs"))[0].many == 2, "nothing has changed"


async def test_devices_are_charged_by_product(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    group = NodeGroup(name="node", count=4, free={"cpu": 4000, GPU: 2}, labels={"nvidia.com/gpu.product": "H100"})
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang", "resize"))
    await agent.sync(capacity=report)
    await agent.sync(full=True)
    spec = job("gpus", replicas=2)
    spec["roles"][0]["template"]["resources"] = {"cpu": "1", GPU: "1"}
    answer = await service.http.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 2}})
    await rows(service.stores, "UPDATE runs SET placed_at = now() - interval '1800 s' RETURNING 1")
    await rows(service.stores, "UPDATE tariffs SET since = since - interval '1 day' RETURNING 1")
    await agent.report(run, RunState.SUCCEEDED, 3)
    await accounting(service).run()
    total = (await usage(service))["total"]
    assert total["devices"] == {f"{GPU}@product=H100": pytest.approx(1.0, rel=0.01)}
    assert float(total["cost"]) == pytest.approx(2.5 + 0.04, rel=0.01)


async def test_an_elastic_run_is_charged_for_what_it_held_at_each_time(service: Service) -> None:
    agent = service.agent()
    group = NodeGroup(name="node", count=8, free={"cpu": 1000})
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang", "resize"))
    await agent.sync(capacity=report)
    await agent.sync(full=True)
    spec = job("elastic", replicas=8, elastic={"step": 3, "coolDown": "1s"})
    spec["roles"][0]["minReplicas"] = 2
    await service.http.post("/v1/jobs", json=spec)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 2}})

    async def has_grown() -> bool:
        return bool((await agent.desired(0.5))["resize"])

    await eventually(has_grown)
    sizes = await rows(service.stores, "SELECT sizes FROM runs")
    assert sizes[0].sizes == {"main": 5}
    await agent.report(run, RunState.RUNNING, 3, 2, placement={"node": {"main": 5}}, sizes={"main": 5})
    await rows(service.stores, "UPDATE runs SET placed_at = now() - interval '1000 s' RETURNING 1")
    await agent.report(run, RunState.SUCCEEDED, 4, 2)
    for _ in range(2):
        cores = (await usage(service))["total"]["cpu"] * 3600
        assert 2000 <= cores < 2100, "two members for a thousand seconds, five for the moments after the growth"
        await accounting(service).run()


async def test_users_see_what_their_queues_used(service: Service) -> None:
    for path in ("a", "b"):
        await put(service, "queues", path, {"path": path})
    answer = await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["a"]})
    ann = service.as_key(answer.json()["key"])
    agent = service.agent()
    await agent.connect()
    await ran(service, agent, queue="a")
    await ran(service, agent, queue="b")
    for _ in range(2):
        assert [row["of"]["queue"] for row in (await usage(service, ann, by="queue"))["rows"]] == ["a"]
        assert (await ann.get("/v1/usage", params={"queue": "b"})).json()["code"] == "unknown-queue"
        assert len((await usage(service, by="queue"))["rows"]) == 2
        assert [row["of"]["queue"] for row in (await usage(service, by="queue", queue="b"))["rows"]] == ["b"]
        await accounting(service).run()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"by": "colour"}, "invalid-parameter"),
        ({"per": "week"}, "invalid-parameter"),
        ({"begin": "yesterday"}, "invalid-parameter"),
        ({"begin": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "invalid-parameter"),
        ({"by": "label:team"}, "invalid-parameter"),
        ({"queue": "nowhere"}, "unknown-queue"),
    ],
)
async def test_a_question_with_a_mistake_is_refused(service: Service, query: dict[str, str], code: str) -> None:
    answer = await service.http.get("/v1/usage", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


async def test_only_the_hours_that_were_asked_for_are_told(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    await ran(service, agent)
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    earlier = {"begin": (hour - timedelta(hours=3)).isoformat(), "end": (hour - timedelta(hours=1)).isoformat()}
    for _ in range(2):
        assert (await usage(service, **earlier))["rows"] == []
        assert (await usage(service, per="hour"))["rows"] != []
        await accounting(service).run()


async def test_price_books_are_made_shown_and_removed_once_nobody_names_them(service: Service) -> None:
    answer = await service.http.put(
        "/v1/clusters/edge", json={"name": "edge", "clusterKind": "edge", "priceBook": "own"}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-price-book")
    await priced(service)
    shown = (await service.http.get("/v1/price-books/own")).json()
    assert shown["onDemand"]["devices"] == {f"{GPU}@product=H100": "2.5"}
    answer = await service.http.delete("/v1/price-books/own")
    assert (answer.status_code, answer.json()["code"]) == (409, "in-use")
    await put(service, "clusters", "private", {"name": "private", "clusterKind": "private"})
    assert (await service.http.delete("/v1/price-books/own")).status_code == 204
    assert (await service.http.delete("/v1/price-books/own")).status_code == 404
    assert (await service.http.get("/v1/price-books")).json() == {"priceBooks": []}


async def test_a_job_goes_where_its_profile_sends_it_and_says_what_it_would_have_cost(service: Service) -> None:
    await priced(service, onDemand={"cpu": "10"})
    for number, name in enumerate(("private", "edge")):
        agent = service.agent(name, session=f"session-{number}")
        await agent.connect()
    own = await service.until(await service.submit("own"), "dispatched")
    assert own["cluster"] == "private", "balanced: what is one's own comes before what is free"
    cheap = await service.until(await service.submit("cheap", placement={"profile": "cheapest"}), "dispatched")
    assert cheap["cluster"] == "edge"
    table = cheap["runs"][0]["scores"]["table"]
    assert [(line["cluster"], line["money"], line.get("cost")) for line in table] == [
        ("edge", 1.0, None),
        ("private", 0.5, 10.0),
    ]
    await put(service, "price-books", "own", {"name": "own", "onDemand": {"cpu": "1000"}})
    await put(service, "queues", "default", {"path": "default", "profile": {"kind": 1, "money": 5}})
    weighed = await service.until(await service.submit("weighed"), "dispatched")
    assert weighed["cluster"] == "edge"


@pytest.mark.parametrize(
    ("profile", "path", "words"),
    [
        (
            "fast",
            "placement.profile",
            "a profile is one of balanced, cheapest, fastest, or weights such as {money: 5, packing: 1}",
        ),
        (
            7,
            "placement.profile",
            "a profile is one of balanced, cheapest, fastest, or weights such as {money: 5, packing: 1}",
        ),
        (
            {},
            "placement.profile",
            f"give at least one of {', '.join(SCORE_WEIGHTS)} a weight above 0",
        ),
        (
            {"money": 0},
            "placement.profile",
            f"give at least one of {', '.join(SCORE_WEIGHTS)} a weight above 0",
        ),
        ({"money": -1}, "placement.profile.money", "must be at least 0, not -1"),
        ({"speed": 1}, "placement.profile.speed", "this field is not known; did you mean spread?"),
    ],
)
async def test_a_profile_that_is_none_is_refused_where_it_is_written(
    service: Service, profile: Any, path: str, words: str
) -> None:
    answer = await service.http.post("/v1/jobs", json=job(placement={"profile": profile}))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert answer.json()["mistakes"] == [{"path": path, "message": words}]


async def test_users_are_charged_by_the_factors_of_class_and_queue_that_held_when_the_run_was_sent(
    service: Service,
) -> None:
    await priced(service)
    await put(service, "priority-classes", "soon", {"name": "soon", "value": 5, "priceFactor": 1.5})
    await put(service, "queues", "paid", {"path": "paid", "priceFactor": "0.5"})
    await put(service, "queues", "paid/below", {"path": "paid/below"})
    agent = service.agent()
    await agent.connect(cpu=100)
    ran_jobs = [
        {"queue": "default"},
        {"queue": "default", "priorityClass": "soon"},
        {"queue": "paid/below", "priorityClass": "soon"},
    ]
    for fields in ran_jobs:
        await ran(service, agent, cpu="2", **fields)
    held = await service.submit(queue="paid/below", priorityClass="soon")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    # What is changed later does not count for these.
    await put(service, "priority-classes", "soon", {"name": "soon", "value": 5, "priceFactor": 100})
    for by_hand in (False, True):
        if by_hand:
            await agent.report(run, RunState.SUCCEEDED, 3)
            assert await accounting(service).run() == 4, held
        found = await usage(service, by=["queue", "class"])
        factors = {tuple(row["of"].values()): Fraction(row["charge"]) / Fraction(row["cost"]) for row in found["rows"]}
        # Both sums are rounded: to whole millionths, of which such a short run costs some hundred.
        assert factors == {
            ("default", "normal"): 1,
            ("default", "soon"): pytest.approx(1.5, rel=0.01),
            ("paid/below", "soon"): pytest.approx(0.75, rel=0.01),
        }
        assert sum(Decimal(row["charge"]) for row in found["rows"]) == Decimal(found["total"]["charge"])


async def test_a_job_shows_its_cost_until_now_as_usage_reports_have_it(service: Service) -> None:
    agent, free = service.agent(), service.agent("edge", session="session-2")
    await agent.connect(cpu=64)
    await free.connect(cpu=64)
    at_no_price = await ran(service, free, cpu="2", placement={"clusters": ["edge"]})
    assert "cost" not in await service.job(at_no_price)
    await priced(service)
    await put(service, "priority-classes", "soon", {"name": "soon", "value": 5, "priceFactor": 1.5})
    await put(service, "queues", "paid", {"path": "paid"})
    fields: dict[str, Any] = {"queue": "paid", "priorityClass": "soon", "placement": {"clusters": ["private"]}}
    job_id = await service.submit("train", cpu="4", **fields, retries={"limit": 1, "backOff": "0s"})
    assert "cost" not in await service.job(job_id), "it waits"
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.PENDING, 1)
    assert "cost" not in await service.job(job_id), "its members have no nodes"
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    first = (await service.job(job_id))["cost"]
    assert first["currency"] == "EUR"
    await asyncio.sleep(0.05)
    second = (await service.job(job_id))["cost"]
    assert Decimal(second["cost"]) > Decimal(first["cost"]) > 0
    assert float(second["charge"]) == pytest.approx(1.5 * float(second["cost"]), rel=0.01)
    await agent.report(run, RunState.FAILED, 3)
    again = (await agent.next_start())["run"]
    await agent.report(again, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await agent.report(again, RunState.SUCCEEDED, 3)
    ended = (await service.job(job_id))["cost"]
    assert Decimal(ended["cost"]) > Decimal(second["cost"])
    for is_counted in (False, True):
        if is_counted:
            assert await accounting(service).run() == 3
        total = (await usage(service, queue="paid"))["total"]
        assert (Decimal(total["cost"]), Decimal(total["charge"])) == (Decimal(ended["cost"]), Decimal(ended["charge"]))
    assert (await service.job(job_id))["cost"] == ended
    assert "cost" not in (await service.http.get("/v1/jobs")).json()["jobs"][0], "lists have no costs"
    await execute(service.stores, "UPDATE tariffs SET book = '{\"onDemand\": 7}'")
    assert "cost" not in await service.job(job_id), "its prices cannot be read"


async def test_the_cost_of_a_job_is_for_who_may_see_the_usage_of_its_queue(service: Service) -> None:
    await priced(service)
    for path in ("ours", "theirs"):
        await put(service, "queues", path, {"path": path})
    agent = service.agent()
    await agent.connect()
    roles: dict[str, dict[str, Any]] = {
        "submitter": {"role": "user", "queues": ["ours"]},
        "viewer": {"role": "viewer", "queues": ["ours"]},
        "auditor": {"role": "auditor"},
        "owner": {"role": "owner", "clusters": ["private"]},
        "stranger": {"role": "user", "queues": ["theirs"]},
        "finance": {"role": "finance"},
    }
    clients = {}
    for name, fields in roles.items():
        made = await service.http.post("/v1/keys", json={"name": name, **fields})
        clients[name] = service.as_key(made.json()["key"])
    submitted = await clients["submitter"].post("/v1/jobs", json=job("mine", "ours", "2"))
    job_id = submitted.json()["id"]
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    answers = {name: await client.get(f"/v1/jobs/{job_id}") for name, client in clients.items()}
    assert {name: (answer.status_code, "cost" in answer.json()) for name, answer in answers.items()} == {
        "submitter": (200, True),
        "viewer": (200, True),
        "auditor": (200, True),
        "owner": (200, False),
        "stranger": (404, False),
        "finance": (403, False),
    }
    for client in clients.values():
        await client.aclose()


async def test_what_an_earlier_release_counted_is_charged_at_cost(service: Service) -> None:
    await priced(service)
    agent = service.agent()
    await agent.connect()
    await ran(service, agent)
    await accounting(service).run()
    kept = "hour, queue_id, api_key_id, cluster_id, labels, resource, product, spot, amount, cost"
    await execute(service.stores, f"INSERT INTO usage ({kept}) SELECT {kept} FROM class_usage")
    await execute(service.stores, "DELETE FROM class_usage")
    found = await usage(service, by=["class"])
    assert [row["of"] for row in found["rows"]] == [{"class": ""}]
    assert found["total"]["charge"] == found["total"]["cost"] != "0"


@pytest.mark.parametrize("factor", [-1, 1001, "much", "1e-10"])
async def test_price_factors_that_make_no_sense_are_refused(service: Service, factor: Any) -> None:
    answer = await service.http.put("/v1/priority-classes/c", json={"name": "c", "value": 1, "priceFactor": factor})
    assert answer.status_code == 422
    assert "priceFactor" in answer.text


async def test_members_on_a_node_of_a_priced_type_cost_their_part_of_the_node(service: Service) -> None:
    instances = {"m7i.large": {"onDemand": "0.6", "resources": {"cpu": "2", "memory": "8Gi"}}}
    await priced(service, instances=instances)
    await execute(service.stores, "UPDATE tariffs SET since = since - interval '1 day'")
    labels = {"node.kubernetes.io/instance-type": "m7i.large"}
    group = NodeGroup(name="node", count=1, free={"cpu": 2000, "memory": 8 * 2**30}, labels=labels)
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=("gang",))
    agent = service.agent()
    if (await agent.sync(capacity=report)).json()["sendFull"]:
        await agent.sync(full=True)
    await service.submit(cpu="2")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await execute(service.stores, "UPDATE runs SET placed_at = now() - interval '5 hours' WHERE ended_at IS NULL")
    await agent.report(run, RunState.SUCCEEDED, 3)
    assert await accounting(service).run() == 1
    total = (await usage(service))["total"]
    # Both cores for five hours: two thirds of the node, at 0.04 for a core and 0.005 for a GiB.
    expected = 5 * Decimal("0.6") * 2 / 3
    assert Decimal(total["cost"]) == pytest.approx(expected, rel=Decimal("0.001"))
