"""The events of all jobs of a filter: complete, in order, each once over broken links, and of nobody else's jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import httpx
import orjson
import pytest

from tests.conftest import Service, job
from tests.integration.rows import execute, value
from tests.integration.test_authorization import make_key
from tests.integration.test_containment_side import InjectedError
from tests.waiting import eventually
from trainmaster.client.async_http import AsyncClient
from trainmaster.client.streams import Notice
from trainmaster.client.values import JobFilter
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.services import event_feed as service_module
from trainmaster_dispatcher.store import event_feed
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import StoreAwayError, Transaction

EVENTS = {"Accept": "text/event-stream"}
Event = tuple[str, int, str]
"""Job, version and kind of an event."""


def brief(event: dict[str, Any]) -> Event:
    return event["job"], event["seq"], event["kind"]


class Reader:
    """A reader of a stream: its events with their ids, and whatever else it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ids: list[str] = []
        self.others: list[str] = []
        self.last_id = ""
        self.is_open = asyncio.Event()

    async def read(self, http: httpx.AsyncClient, last_id: str = "", **parameters: Any) -> None:
        headers = EVENTS | ({"Last-Event-ID": last_id} if last_id else {})
        kind = ""
        async with http.stream("GET", "/v1/events", params=parameters, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                name, _, text = line.partition(": ")
                if name == "id":
                    self.last_id = text
                    self.is_open.set()
                elif name == "event":
                    kind = text
                elif name == "data" and kind not in ("missed", "away"):
                    self.events.append(brief(orjson.loads(text)))
                    self.ids.append(self.last_id)
                elif line:
                    self.others.append(line)

    def has(self, *events: Event) -> bool:
        return set(events) <= set(self.events)

    async def until(self, *events: Event) -> None:
        async def are_here() -> bool:
            return self.has(*events)

        await eventually(are_here, 20)


@asynccontextmanager
async def reading(http: httpx.AsyncClient, last_id: str = "", **parameters: Any) -> AsyncIterator[Reader]:
    """Yield the reader of a stream, which hangs up at the end."""
    reader = Reader()
    task = asyncio.create_task(reader.read(http, last_id, **parameters))
    try:
        if not last_id and "after" not in parameters:
            await asyncio.wait_for(reader.is_open.wait(), 20)
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def page(http: httpx.AsyncClient, after: str | None = None, **parameters: Any) -> dict[str, Any]:
    answer = await http.get("/v1/events", params=parameters | ({} if after is None else {"after": after}))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def all_pages(http: httpx.AsyncClient, after: str, **parameters: Any) -> list[Event]:
    """Return all that a reader of pages gets from a position on."""
    out: list[Event] = []
    while True:
        found = await page(http, after, **parameters)
        out += map(brief, found["events"])
        after = found["next"]
        if not found["more"]:
            return out


async def events_of(service: Service, job_id: str) -> list[Event]:
    answer = await service.http.get(f"/v1/jobs/{job_id}/events")
    return [(job_id, event["seq"], event["kind"]) for event in answer.json()["events"]]


async def _run_two(service: Service) -> list[str]:
    """Return two jobs that have run, one of which has failed once; the steps of their runs are reported one by one."""
    agent = service.agent()
    await agent.connect()
    first = await service.submit("first", retries={"limit": 1, "backOff": "0s"})
    run = (await agent.next_start())["run"]
    second = await service.submit("second")
    other = (await agent.next_start())["run"]
    for seq, state in enumerate((RunState.ACCEPTED, RunState.PENDING, RunState.RUNNING, RunState.FAILED), 1):
        await agent.report(run, state, seq)
        await agent.report(other, state if state is not RunState.FAILED else RunState.SUCCEEDED, seq)
    again = (await agent.next_start())["run"]
    await agent.report(again, RunState.RUNNING, 1)
    await agent.report(again, RunState.SUCCEEDED, 2)
    for one in (first, second):
        await service.until(one, "succeeded")
    return [first, second]


async def test_a_stream_tells_each_event_of_each_job_once_and_in_order(service: Service) -> None:
    before = await service.submit("before", cpu="64")
    async with reading(service.http) as reader:
        jobs = await _run_two(service)
        ends = [(await events_of(service, one))[-1] for one in jobs]
        await reader.until(*ends)
        for one in jobs:
            whole = await events_of(service, one)
            assert [event for event in reader.events if event[0] == one] == whole
            assert {"run.accepted", "run.pending"} <= {kind for *_, kind in whole}, "also quiet ones"
        assert len(reader.events) == len(set(reader.events))
        assert not [event for event in reader.events if event[0] == before], "it began later"
        assert [one for one, _, kind in reader.events if kind == "submitted"] == jobs


@pytest.mark.parametrize("most", [1, 3, 1000])
async def test_from_each_id_on_come_the_rest_and_nothing_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    async with reading(service.http) as reader:
        jobs = await _run_two(service)
        many = {"jobs": [job(f"j{number}", cpu="64") for number in range(4)]}
        submitted = [one["id"] for one in (await service.http.post("/v1/jobs", json=many)).json()["jobs"]]
        await service.http.post("/v1/jobs/cancel", json={"filter": {"name": "j*"}})
        await reader.until(*[(await events_of(service, one))[-1] for one in (*jobs, *submitted)])
    monkeypatch.setattr(service_module, "_MOST_READ", most)
    monkeypatch.setattr(service_module, "_MOST_READS", 4)
    expected = [event for one in (*jobs, *submitted) for event in await events_of(service, one)]
    assert sorted(reader.events) == sorted(expected)
    assert sorted(await all_pages(service.http, "0")) == sorted(expected)
    for number, position in enumerate(reader.ids):
        assert await all_pages(service.http, position) == reader.events[number + 1 :]
    assert await all_pages(service.http, reader.ids[0], limit=2) == reader.events[1:]
    middle = len(reader.ids) // 2
    async with reading(service.http, reader.ids[middle]) as again:
        await again.until(reader.events[-1])
        late = await service.submit("late", cpu="64")
        await again.until((late, 1, "submitted"))
    assert again.events == [*reader.events[middle + 1 :], (late, 1, "submitted")]


async def test_a_page_without_a_position_has_that_of_now(service: Service) -> None:
    await service.submit("before", cpu="64")
    now = await page(service.http)
    assert (now["events"], now["more"]) == ([], False)
    late = await service.submit("late", cpu="64")

    async def is_there() -> bool:
        # An event is behind the end of the feed as long as a transaction runs that began before it.
        return bool(await all_pages(service.http, now["next"]))

    await eventually(is_there)
    assert await all_pages(service.http, now["next"]) == [(late, 1, "submitted")]


async def test_events_are_filtered_by_job_and_by_what_happened(service: Service) -> None:
    for path in ("org", "org/a", "org/b"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    agent = service.agent()
    await agent.connect()
    one = await service.submit("bert-1", "org/a", labels={"team": "x", "n": "1"})
    await agent.report((await agent.next_start())["run"], RunState.RUNNING, 1)
    two = await service.submit("gpt", "org/b", labels={"team": "x"}, suspend=True)
    key = await make_key(service, "admin", name="ann")
    async with service.as_key(key) as ann:
        three = (await ann.post("/v1/jobs", json=job("b-rt", cpu="64"))).json()["id"]
        await ann.post(f"/v1/jobs/{three}/cancel")

    async def jobs_of(**parameters: Any) -> set[str]:
        return {event[0] for event in await all_pages(service.http, "0", **parameters)}

    assert await jobs_of() == {one, two, three}
    assert await jobs_of(queue="org") == {one, two}
    assert await jobs_of(queue="org/a") == {one}
    assert await jobs_of(label=["team=x", "n=1"]) == {one}
    assert await jobs_of(name="b*r*t*") == {one, three}
    assert await jobs_of(name="b.rt") == set(), "a point is a point"
    assert await jobs_of(submittedBy="ann") == {three}
    assert await jobs_of(priorityClass="normal") == {one, two, three}
    assert await jobs_of(cluster="private") == {one}
    assert await jobs_of(state="cancelled") == {three}
    assert await jobs_of(state=["running", "held"]) == {one, two}
    kinds = {event[2] for event in await all_pages(service.http, "0", kind=["submitted", "run.running"])}
    assert kinds == {"submitted", "run.running"}
    async with reading(service.http, queue="org", kind="cancel") as reader:
        for each in (one, two):
            await service.http.post(f"/v1/jobs/{each}/cancel")
        late = (await events_of(service, two))[-1]
        await reader.until(late)
        assert {event[0] for event in reader.events} <= {one, two}
        assert {event[2] for event in reader.events} == {"cancel"}
    for parameters, code in (
        ({"queue": "none"}, "unknown-queue"),
        ({"priorityClass": "none"}, "unknown-priority-class"),
        ({"cluster": "none"}, "not-found"),
        ({"state": "none"}, "invalid-parameter"),
        ({"kind": "none"}, "invalid-parameter"),
        ({"label": "none"}, "invalid-parameter"),
        ({"after": "none"}, "bad-cursor"),
        ({"after": "9" * 119}, "bad-cursor"),
    ):
        for headers in ({}, EVENTS, {"Last-Event-ID": "0"}):
            refused = await service.http.get("/v1/events", params=parameters, headers=headers)
            assert refused.json()["code"] == code, (parameters, headers)


async def test_jobs_of_others_are_in_no_stream_and_no_page(service: Service) -> None:
    for path in ("org", "org/a", "org/ab"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    secret = await make_key(service, "user", queues=["org/a"])
    owner = await make_key(service, "owner", clusters=["private"])
    async with service.as_key(secret) as user, reading(user) as reader, reading(service.http) as admin:
        others = [await service.submit("other", queue, cpu="64") for queue in ("org/ab", "default")]
        own = await service.submit("own", "org/a", cpu="64")
        for each in (*others, own):
            await service.http.post(f"/v1/jobs/{each}/cancel")
        await reader.until((own, 2, "cancel"))
        await admin.until(*[(each, 2, "cancel") for each in others])
        assert {event[0] for event in reader.events} == {own}
        assert {event[0] for event in await all_pages(user, "0")} == {own}
        assert (await user.get("/v1/events", params={"queue": "org/ab"})).json()["code"] == "unknown-queue"
        assert [event[0] for event in await all_pages(user, "0", queue="org")] == [own, own]
    async with service.as_key(owner) as http:
        assert (await http.get("/v1/events")).status_code == 403


async def test_a_stream_ends_with_its_key(service: Service) -> None:
    secret = await make_key(service, "user", queues=["default"], name="ann")
    number = next(key["id"] for key in (await service.http.get("/v1/keys")).json()["keys"] if key["name"] == "ann")
    async with service.as_key(secret) as user:
        reader = Reader()
        task = asyncio.create_task(reader.read(user))
        await asyncio.wait_for(reader.is_open.wait(), 20)
        await service.http.delete(f"/v1/keys/{number}")
        await asyncio.wait_for(task, 30)
    assert reader.others[-1] == ": the API key was revoked or has expired"


async def _change(tx: Transaction, key: int, priority: int) -> None:
    """Change the priority of a job, with an event."""
    record = (await job_store.lock(tx, [key]))[key]
    await job_store.write(
        tx, [job_store.Transition(record, record.job, JobEventKind.CHANGED, priority=priority, message=str(priority))]
    )


async def test_looks_while_nothing_ends_do_not_pass_over_a_transaction_that_has_begun(service: Service) -> None:
    stores = service.stores
    key = parse_job_id(await service.submit("late", cpu="64"))[1]
    feed = service_module.EventFeed(stores)
    position = await feed.start()
    async with stores.database.transaction() as slow:
        xid = int((await slow.one("SELECT pg_current_xact_id()::text::bigint AS xid")).xid)

        async def is_at_it() -> bool:
            """Return whether this transaction is the oldest of those that have not ended, after another look."""
            nonlocal position
            position = (await feed.changed_jobs(position)).position
            return position.place.xid >= xid

        await eventually(is_at_it)
        for _ in range(3):
            found = await feed.changed_jobs(position)
            assert (found.jobs, found.has_more, found.position.place) == ((), False, event_feed.FeedPlace(xid))
            position = found.position
        await _change(slow, key, 1)

    async def comes() -> bool:
        """Return whether the change comes, once the transactions that began before it have ended."""
        nonlocal position
        found = await feed.changed_jobs(position)
        position = found.position
        return key in {one.job_id for one in found.jobs}

    await eventually(comes)


async def test_an_event_that_began_later_than_its_successor_comes_before_it(service: Service) -> None:
    """A transaction gets its number before it has locked the job that another one changes meanwhile."""
    stores = service.stores
    job_id = await service.submit("late", cpu="64")
    key = parse_job_id(job_id)[1]
    async with reading(service.http) as reader:
        async with stores.database.transaction() as early:
            await early.one("SELECT pg_current_xact_id()")
            async with stores.database.transaction() as late:
                await _change(late, key, 1)
            await _change(early, key, 2)
        async with stores.database.transaction() as tx:
            await _change(tx, key, 3)
        await reader.until((job_id, 4, "changed"))
    assert await value(stores, "SELECT (SELECT xid FROM events WHERE seq = 3) < (SELECT xid FROM events WHERE seq = 2)")
    assert reader.events == [(job_id, seq, "changed") for seq in (2, 3, 4)]
    assert await all_pages(service.http, "0") == [(job_id, 1, "submitted"), *reader.events]
    assert await all_pages(service.http, reader.ids[0]) == reader.events[1:]


async def test_quiet_events_of_the_release_before_come_with_the_next_of_their_job(service: Service) -> None:
    """It stores no transaction of them."""
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit()
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await execute(service.stores, "UPDATE events SET quiet_xid = NULL WHERE kind = 'run.running'")
    assert [kind for *_, kind in await all_pages(service.http, "0")] == ["submitted", "dispatched"]
    await agent.report(run, RunState.SUCCEEDED, 2)
    assert await all_pages(service.http, "0") == await events_of(service, job_id)
    assert [kind for *_, kind in await events_of(service, job_id)][2:] == ["run.running", "run.succeeded"]


async def test_what_cannot_be_told_any_more_is_said(service: Service) -> None:
    start = (await page(service.http))["next"]
    job_id = await service.submit("one", cpu="64")

    async def comes() -> bool:
        """Return whether its event is in the feed, which waits for transactions that began before."""
        return bool((await page(service.http, start))["events"])

    await eventually(comes)
    found = await page(service.http, start)
    assert (len(found["events"]), found.get("missed")) == (1, None)
    old = service_module.Position.read(start)
    aged = service_module.Position(old.store_epoch, old.place, old.at - 2 * 86_400)
    found = await page(service.http, aged.written())
    assert (found["missed"], len(found["events"])) == ("submissions of that time are no longer stored", 1)
    await execute(service.stores, "UPDATE installation SET store_epoch = store_epoch + 1")
    found = await page(service.http, start)
    assert (found["missed"], found["events"]) == ("the store was restored from a backup", [])
    async with reading(service.http, start) as reader:
        await service.http.post(f"/v1/jobs/{job_id}/cancel")
        await eventually(lambda: _is(bool(reader.others)), 20)
        await service.http.patch(f"/v1/jobs/{await service.submit('two', cpu='64')}", json={"priority": 1})
        await eventually(lambda: _is("changed" in {kind for *_, kind in reader.events}), 20)
    assert reader.others[0] == "data: the store was restored from a backup"


async def _is(what: bool) -> bool:
    return what


async def test_many_streams_cost_the_store_one_read_a_look(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    real = event_feed.events_from

    async def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*arguments)

    async with asyncio.TaskGroup() as group:
        readers = [Reader() for _ in range(20)]
        tasks = [group.create_task(reader.read(service.http)) for reader in readers]
        for reader in readers:
            await asyncio.wait_for(reader.is_open.wait(), 20)
        first = await service.submit("first", cpu="64")
        for reader in readers:
            await reader.until((first, 1, "submitted"))
        monkeypatch.setattr(event_feed, "events_from", counted)
        last = ""
        for number in range(5):
            last = await service.submit(f"j{number}", cpu="64")
            await readers[0].until((last, 1, "submitted"))
        looks = reads
        for reader in readers:
            await reader.until((last, 1, "submitted"))
            assert len(reader.events) == 6
        assert reads - looks <= 5, "nobody reads by itself"
        assert looks < 5 * 20
        for task in tasks:
            task.cancel()


async def test_looks_that_fail_leave_each_stream_to_look_by_itself(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(service.http) as reader:
        first = await service.submit("first", cpu="64")
        await reader.until((first, 1, "submitted"))
        monkeypatch.setattr(service_module.EventFeed, "look", AsyncMock(side_effect=InjectedError))
        second = await service.submit("second", cpu="64")
        await reader.until((second, 1, "submitted"))
        monkeypatch.setattr(service_module.EventFeed, "look", AsyncMock(side_effect=StoreAwayError("away")))
        third = await service.submit("third", cpu="64")
        await reader.until((third, 1, "submitted"))
        monkeypatch.undo()
        last = await service.submit("last", cpu="64")
        await reader.until((last, 1, "submitted"))
    assert [job_id for job_id, *_ in reader.events] == [first, second, third, last]
    assert any("new events could not be read" in one.message for one in caplog.records)


async def test_the_client_goes_on_where_it_was(service: Service) -> None:
    async with AsyncClient(service.url, "tmk_admin") as client:
        start = (await client.events_of_jobs()).next
        one = await service.submit("one", cpu="64")
        await service.http.post(f"/v1/jobs/{one}/cancel")
        both = [(one, "submitted", "default"), (one, "cancel", "default")]

        async def has_both() -> bool:
            # The feed waits for transactions that began before, whoever has them.
            found = await client.events_of_jobs(JobFilter(name="one"), after=start)
            return [(event.job, event.kind, event.queue) for event in found.events] == both

        await eventually(has_both)
        items = [item async for item in client.watch_jobs(JobFilter(states="cancelled"), after=start, timeout=3)]
        assert [item.job for item in items if not isinstance(item, Notice)] == [one]
