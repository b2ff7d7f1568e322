"""What api and scheduler count while jobs go through them, and what the leader finds in the store."""

import asyncio
from contextlib import suppress

import httpx

from tests.conftest import LEASE_SECONDS, Service
from tests.integration.rows import execute
from tests.waiting import eventually
from trainmaster.metrics import exporter
from trainmaster.metrics.kinds import Process
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.services import gauges
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import scheduling

Page = dict[str, float]


def page(process: Process) -> Page:
    """Return the samples of a page by series, labels included."""
    lines = exporter.page(process)[0].decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def rise(before: Page, after: Page, series: str) -> float:
    return after.get(series, 0.0) - before.get(series, 0.0)


async def test_a_jobs_way_is_counted(service: Service) -> None:
    api, scheduler = page(Process.API), page(Process.SCHEDULER)
    agent = service.agent()
    await agent.connect()
    await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RUNNING, 1)
    await agent.report(start["run"], RunState.RUNNING, 1)
    end = RunEnd(category=FailureCategory.EXIT, exit_code=3, message="exit code 3")
    await agent.report(start["run"], RunState.FAILED, 2, end=end)
    await agent.report("gone-0000000-r1", RunState.RUNNING, 1)
    after_api, after_scheduler = page(Process.API), page(Process.SCHEDULER)
    for series, many in {
        'trainmaster_runs_ended_total{category="exit",cluster="private",end="failed"}': 1,
        'trainmaster_reports_total{verdict="applied"}': 2,
        'trainmaster_reports_total{verdict="duplicate"}': 1,
        'trainmaster_reports_total{verdict="illegal"}': 0,
        'trainmaster_reports_total{verdict="unknown"}': 1,
        'trainmaster_agent_sessions_total{cluster="private"}': 1,
        'trainmaster_http_requests_total{method="POST",route="/v1/jobs",status="201"}': 1,
    }.items():
        assert rise(api, after_api, series) == many, series
    for series, many in {
        'trainmaster_starts_total{cluster="private"}': 1,
        'trainmaster_decisions_total{outcome="applied"}': 1,
        'trainmaster_wait_seconds_count{priority_class="normal"}': 1,
    }.items():
        assert rise(scheduler, after_scheduler, series) == many, series
    assert rise(scheduler, after_scheduler, "trainmaster_apply_seconds_count") >= 1
    assert rise(scheduler, after_scheduler, "trainmaster_cycle_seconds_count") >= 1
    assert after_scheduler["trainmaster_leader"] == 1


async def test_a_jobs_second_run_is_no_new_wait(service: Service) -> None:
    before = page(Process.SCHEDULER)
    agent = service.agent()
    await agent.connect()
    await service.submit(retries={"limit": 1, "backOff": "100ms"})
    first = await agent.next_start()
    await agent.report(first["run"], RunState.FAILED, 1, end=RunEnd(category=FailureCategory.EXIT, exit_code=3))
    await agent.next_start()
    after = page(Process.SCHEDULER)
    assert rise(before, after, 'trainmaster_starts_total{cluster="private"}') == 2
    assert rise(before, after, 'trainmaster_wait_seconds_count{priority_class="normal"}') == 1


async def test_requests_are_counted_by_route_and_never_by_path(service: Service) -> None:
    job_id = await service.submit()
    for path in (f"/v1/jobs/{job_id}", "/v1/jobs/nothing-0000000", "/no/such/place"):
        await service.http.get(path)
    await service.http.request("BREW", "/v1/jobs")
    answer = await service.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert job_id not in answer.text
    assert "/no/such/place" not in answer.text
    assert "BREW" not in answer.text
    for labels in (
        'method="GET",route="/v1/jobs/{job_id}",status="200"',
        'method="GET",route="/v1/jobs/{job_id}",status="404"',
        'method="GET",route="none",status="404"',
    ):
        assert f"trainmaster_http_requests_total{{{labels}}}" in answer.text
    assert 'trainmaster_http_request_seconds_count{method="GET",route="/v1/jobs/{job_id}"}' in answer.text


async def test_refused_bodies_are_counted(service: Service) -> None:
    before = page(Process.API)
    # The refusal comes before the body was sent, so the connection may break while it is.
    with suppress(httpx.TransportError):
        await service.http.post("/v1/jobs", content=b" " * (service.settings.largest_body_bytes + 1))

    async def counted() -> bool:
        return rise(before, page(Process.API), "trainmaster_http_bodies_refused_total") == 1

    await eventually(counted)


async def test_a_superseded_session_is_counted(service: Service) -> None:
    before = page(Process.API)
    old, new = service.agent(session="old"), service.agent(session="new")
    await old.connect()
    await new.connect()
    assert (await old.sync()).status_code == 409
    after = page(Process.API)
    assert rise(before, after, 'trainmaster_agent_sessions_total{cluster="private"}') == 2
    assert rise(before, after, 'trainmaster_agent_superseded_total{cluster="private"}') == 1


async def test_the_leader_shows_what_the_store_holds_and_a_standby_does_not(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    await service.submit("waits", cpu="64")
    await service.submit("runs")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    for dead_at in ("NULL", "NULL", "now()"):
        await execute(
            service.stores,
            "INSERT INTO outbox (job_id, seq, hook, body, created_at, next_at, dead_at)"
            f" VALUES (1, 1, 0, '{{}}', now() - interval '100 seconds', now() + interval '1 hour', {dead_at})",
        )
    async with service.stores.database.transaction() as tx:
        cursor = await scheduling.start_cursor(tx)
    await gauges.measure(service.stores, cursor, leads=True)
    shown = page(Process.SCHEDULER)
    assert shown['trainmaster_jobs{queue="default",state="queued"}'] == 1
    assert shown['trainmaster_jobs{queue="default",state="running"}'] == 1
    assert shown['trainmaster_oldest_queued_seconds{priority_class="normal"}'] > 0
    assert 0 < shown['trainmaster_cluster_lease_left_seconds{cluster="private"}'] <= LEASE_SECONDS
    assert shown['trainmaster_cluster_contact_age_seconds{cluster="private"}'] > 0
    assert 'trainmaster_cluster_contact_age_seconds{cluster="edge"}' not in shown, "it was never heard"
    assert shown["trainmaster_lease_seconds"] == service.settings.lease_seconds
    assert shown['trainmaster_outbox_rows{state="dead"}'] == 1
    assert shown['trainmaster_outbox_rows{state="waiting"}'] == 2
    assert shown["trainmaster_outbox_oldest_seconds"] >= 100
    assert shown["trainmaster_log_streams"] == 0
    await gauges.measure(service.stores, cursor, leads=False)
    standby = page(Process.SCHEDULER)
    assert not any(name.startswith(("trainmaster_jobs", "trainmaster_outbox")) for name in standby)
    assert "trainmaster_feed_lag_seconds" in standby


async def test_feed_lag_is_the_age_of_what_a_cursor_has_not_passed(service: Service) -> None:
    async with service.stores.database.transaction() as tx:
        before = await scheduling.start_cursor(tx)
    for name in ("a", "b", "c"):
        await service.submit(name)
    await gauges.measure(service.stores, before, leads=False)
    behind = page(Process.SCHEDULER)
    assert behind["trainmaster_feed_rows_unsettled"] >= 3
    assert behind["trainmaster_feed_lag_seconds"] > 0

    async def caught_up() -> bool:
        async with service.stores.database.transaction() as tx:
            now = await scheduling.start_cursor(tx)
        await gauges.measure(service.stores, now, leads=False)
        return page(Process.SCHEDULER)["trainmaster_feed_rows_unsettled"] == 0

    await eventually(caught_up)


async def test_connections_in_use_are_seen_as_the_page_is_asked_for(service: Service) -> None:
    gauges.watch(service.stores)
    async with service.stores.database.transaction():
        held = page(Process.SCHEDULER)
    assert held["trainmaster_store_connections_in_use"] >= 1
    assert held["trainmaster_store_connections_limit"] == service.settings.pool_size + 10

    async def near() -> bool:
        return page(Process.SCHEDULER)["trainmaster_redis_away"] == 0

    await eventually(near)


async def test_a_store_that_is_away_is_shown_and_old_counts_are_not(service: Service) -> None:
    await gauges.measure(service.stores, None, leads=True)
    assert "trainmaster_lease_seconds" in page(Process.SCHEDULER)
    nowhere = f"postgresql://user@127.0.0.1:{free_port()}/none"
    stores = Stores.open(service.settings.model_copy(update={"database_url": nowhere}))
    tasks = [
        asyncio.create_task(gauges.measure_for_ever(stores, lambda: None, lambda: True)),
        asyncio.create_task(gauges.ping_for_ever(stores)),
    ]

    async def away() -> bool:
        shown = page(Process.API) | page(Process.SCHEDULER)
        return shown["trainmaster_postgres_away"] == 1 and "trainmaster_lease_seconds" not in shown

    try:
        await eventually(away)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stores.close()
