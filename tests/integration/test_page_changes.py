"""What open pages are told of: what has changed, each job once as it is now, and nothing of queues that they may not see."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import httpx
import orjson
import pytest

from tests.conftest import Service
from tests.integration.rows import execute
from tests.integration.test_authorization import make_key
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.services import page_changes as service_module
from trainmaster_dispatcher.services.event_feed import EventFeed
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import page_changes as store_module
from trainmaster_dispatcher.store.database import StoreAwayError


class OpenPage:
    """A page with its stream: the states of jobs that it knows, and all that it was sent."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.others: list[str] = []
        self.last_id = ""
        self.is_open = asyncio.Event()

    async def read(self, http: httpx.AsyncClient, last_id: str = "", **parameters: Any) -> None:
        kind = ""
        headers = {"Last-Event-ID": last_id} if last_id else {}
        async with http.stream("GET", "/v1/changes", params={"every": 1, **parameters}, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                name, _, text = line.partition(": ")
                if name == "id":
                    self.last_id = text
                    self.is_open.set()
                elif name == "event":
                    kind = text
                elif name == "data" and kind == "changes":
                    self.events.append(orjson.loads(text))
                    self.jobs |= {one["id"]: one for one in self.events[-1]["jobs"]}
                elif line:
                    self.others.append(f"{kind}: {line}" if name == "data" else line)

    async def until(self, job: str, state: str) -> None:
        async def is_so() -> bool:
            return self.jobs.get(job, {}).get("state") == state

        await eventually(is_so, 20)

    def named(self, field: str) -> set[str]:
        return {name for event in self.events for name in event[field]}


@asynccontextmanager
async def opened(http: httpx.AsyncClient, last_id: str = "", **parameters: Any) -> AsyncIterator[OpenPage]:
    page = OpenPage()
    task = asyncio.create_task(page.read(http, last_id, **parameters))
    try:
        await asyncio.wait_for(page.is_open.wait(), 20)
        yield page
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_page_is_told_of_each_changed_job_as_it_is_now(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    before = await service.submit("before", cpu="64")
    async with opened(service.http) as page:
        job = await service.submit("bert")
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 1)
        await page.until(job, "running")
        cluster = (await service.http.get(f"/v1/jobs/{job}")).json()["cluster"]
        assert page.jobs[job] == {"id": job, "queue": "default", "state": "running", "cluster": cluster}
        await agent.report(run, RunState.SUCCEEDED, 2)
        await page.until(job, "succeeded")
        assert before not in page.jobs, "a job that has not changed is no news"
        assert page.named("queues") == {"default"}
        assert not any(event["more"] for event in page.events)
        for event in page.events:
            assert len({one["id"] for one in event["jobs"]}) == len(event["jobs"])


async def test_nothing_of_queues_that_a_page_may_not_see_is_in_its_stream(service: Service) -> None:
    for path in ("org", "org/a", "org/ab", "org/a/deep"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    hidden = {"name": "secret", "clusterKind": "private", "onlyQueues": ["org/ab"]}
    answer = await service.http.put("/v1/clusters/secret", json=hidden)
    assert answer.status_code in (200, 201), answer.text
    secret = await make_key(service, "user", queues=["org/a"])
    async with service.as_key(secret) as user, opened(user) as page, opened(service.http) as admin:
        others = [await service.submit("other", queue, cpu="64") for queue in ("org/ab", "default")]
        own = [await service.submit("own", queue, cpu="64") for queue in ("org/a/deep",)]
        await execute(service.stores, "INSERT INTO changes (kind, ref) SELECT 'capacity', id FROM clusters")
        for each in (*others, *own):
            await service.http.post(f"/v1/jobs/{each}/cancel")
            await admin.until(each, "cancelled")
        await page.until(own[0], "cancelled")
        assert set(page.jobs) == set(own)
        assert page.named("queues") == {"org/a/deep"}
        assert "secret" in admin.named("clusters")
        assert "secret" not in page.named("clusters")
        sent = orjson.dumps(page.events).decode()
        assert not any(word in sent for word in ("org/ab", "default", "secret", "other-"))
        refused = await user.get("/v1/changes", params={"queue": "org/ab"})
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown-queue")


async def test_a_page_of_a_queue_is_told_of_its_subtree_alone(service: Service) -> None:
    for path in ("org", "org/a", "org/ab"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    async with opened(service.http, queue="org/a") as page, opened(service.http) as whole:
        other = await service.submit("other", "org/ab", cpu="64")
        own = await service.submit("own", "org/a", cpu="64")
        await whole.until(other, "queued")
        await page.until(own, "queued")
        assert set(page.jobs) == {own}


async def test_changed_objects_are_told_by_their_kind(service: Service) -> None:
    async with opened(service.http) as page:
        await service.http.put("/v1/queues/org", json={"path": "org"})

        async def is_there() -> bool:
            return "queues" in page.named("kinds")

        await eventually(is_there, 20)


async def test_bound_roles_are_told_when_they_are_made_and_removed(service: Service) -> None:
    binding = {"name": "vision", "role": "viewer", "queues": ["default"], "users": ["ann"]}
    async with opened(service.http) as page:

        async def is_there() -> bool:
            return "role-bindings" in page.named("kinds")

        assert (await service.http.put("/v1/role-bindings/vision", json=binding)).status_code == 201
        await eventually(is_there, 20)
        page.events.clear()
        assert (await service.http.delete("/v1/role-bindings/vision")).is_success
        await eventually(is_there, 20)


async def test_a_change_of_a_transaction_that_takes_long_comes_after_looks_at_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    changed_jobs = EventFeed.changed_jobs

    async def counted(feed: Any, position: Any) -> Any:
        looks.append(position)
        return await changed_jobs(feed, position)

    monkeypatch.setattr(EventFeed, "changed_jobs", counted)
    job = await service.submit("late", cpu="64")
    async with opened(service.http) as page:
        async with service.stores.database.transaction() as slow:
            await slow.one("SELECT pg_current_xact_id()")
            seen = len(looks)

            async def has_looked() -> bool:
                return len(looks) >= seen + 4

            await eventually(has_looked, 20)
            key = job_key(job)
            record = (await job_store.lock(slow, [key]))[key]
            await job_store.write(
                slow, [job_store.Transition(record, record.job, JobEventKind.CHANGED, priority=1, message="1")]
            )
        page.jobs.clear()
        await page.until(job, "queued")


async def test_a_page_goes_on_where_it_was(service: Service) -> None:
    async with opened(service.http) as page:
        first = await service.submit("first", cpu="64")
        await page.until(first, "queued")
        last_id = page.last_id
    second = await service.submit("second", cpu="64")
    async with opened(service.http, last_id) as page:
        await page.until(second, "queued")
        assert first not in page.jobs
        assert not page.others or not any("reset" in one for one in page.others)


async def test_a_page_that_was_away_for_too_long_reads_all_again(service: Service) -> None:
    async with opened(service.http) as page:
        last_id = page.last_id
    await execute(service.stores, "UPDATE installation SET store_epoch = store_epoch + 1")
    async with opened(service.http, last_id) as page:

        async def is_told() -> bool:
            return any(one.startswith("reset: ") for one in page.others)

        await eventually(is_told, 20)


async def test_open_pages_read_all_again_when_the_store_was_restored(service: Service) -> None:
    async with opened(service.http) as page:
        await execute(service.stores, "UPDATE installation SET store_epoch = store_epoch + 1")

        async def is_told() -> bool:
            return any(one.startswith("reset: ") for one in page.others)

        await eventually(is_told, 20)
        job = await service.submit("after", cpu="64")
        await page.until(job, "queued")


async def test_a_flood_is_told_in_part_with_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MOST_JOBS", 3)
    async with opened(service.http) as page:
        body = {"jobs": [{**_SPEC, "name": f"job-{number}"} for number in range(10)]}
        assert (await service.http.post("/v1/jobs", json=body)).status_code == 201

        async def is_told() -> bool:
            return any(event["more"] for event in page.events)

        await eventually(is_told, 20)
        assert max(len(event["jobs"]) for event in page.events) == 3


_SPEC = {
    "kind": "Job",
    "queue": "default",
    "roles": [{"name": "main", "template": {"image": "i", "command": ["c"], "resources": {"cpu": "64"}}}],
}


async def test_many_pages_cost_the_store_one_read_and_share_their_bytes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = AsyncMock(side_effect=store_module.job_lines)
    monkeypatch.setattr(store_module, "job_lines", counted)
    made: list[bytes | None] = []
    seen_by = service_module.PageDelta.seen_by

    def counting(changes: Any, caller: Any, queue: str | None) -> bytes | None:
        made.append(seen_by(changes, caller, queue))
        return made[-1]

    monkeypatch.setattr(service_module.PageDelta, "seen_by", counting)
    pages: list[OpenPage] = []
    async with opened(service.http) as first:
        tasks = []
        for _ in range(20):
            pages.append(OpenPage())
            tasks.append(asyncio.create_task(pages[-1].read(service.http)))
        for page in pages:
            await asyncio.wait_for(page.is_open.wait(), 20)
        job = await service.submit("job", cpu="64")
        for page in (first, *pages):
            await page.until(job, "queued")
        with_job = [text for text in made if text is not None and job.encode() in text]
        assert 1 <= len(with_job) <= 2, "the text is made once for all pages, whatever their number"
        assert sum(job_key(job) in call.args[1] for call in counted.await_args_list) <= 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def job_key(text: str) -> int:
    from trainmaster.protocol.ids import parse_job_id

    return parse_job_id(text)[1]


async def test_a_store_that_is_away_for_a_while_loses_no_change(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(service.http) as page:
        away = AsyncMock(side_effect=StoreAwayError("away"))
        with monkeypatch.context() as patched:
            patched.setattr(store_module, "job_lines", away)
            job = await service.submit("job", cpu="64")

            async def has_failed() -> bool:
                return bool(away.await_count)

            await eventually(has_failed, 20)
        await page.until(job, "queued")


async def test_a_page_ends_with_its_key(service: Service) -> None:
    secret = await make_key(service, "user", queues=["default"], name="ann")
    number = next(key["id"] for key in (await service.http.get("/v1/keys")).json()["keys"] if key["name"] == "ann")
    async with service.as_key(secret) as user:
        page = OpenPage()
        task = asyncio.create_task(page.read(user))
        await asyncio.wait_for(page.is_open.wait(), 20)
        await service.http.delete(f"/v1/keys/{number}")
        await asyncio.wait_for(task, 30)
    assert page.others[-1] == ": the API key was revoked or has expired"


@pytest.mark.parametrize(
    ("parameters", "headers", "code"),
    [
        ({"every": "0"}, {}, "invalid-parameter"),
        ({"every": "61"}, {}, "invalid-parameter"),
        ({"queue": "no-such"}, {}, "unknown-queue"),
        ({}, {"Last-Event-ID": "nonsense"}, "bad-cursor"),
    ],
)
async def test_wrong_parameters_are_refused(
    service: Service, parameters: dict[str, str], headers: dict[str, str], code: str
) -> None:
    answer = await service.http.get("/v1/changes", params=parameters, headers=headers)
    assert answer.json()["code"] == code
    assert answer.status_code in (400, 404, 422)
