"""Watches of the Kubernetes API: what a client's cache has after them equals what is stored."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.integration.test_kube_changes import GROUP, JOBS, MERGE, job_manifest, queue_manifest, value_of
from tests.waiting import eventually
from trainmaster_dispatcher.services import event_feed

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
Event = dict[str, Any]


@asynccontextmanager
async def watch(
    service: Service, path: str, *, client: httpx.AsyncClient | None = None, **parameters: str
) -> AsyncIterator["asyncio.Queue[Event]"]:
    """Return the queue of the events of a watch."""
    found: asyncio.Queue[Event] = asyncio.Queue()
    headers = TABLE if parameters.pop("table", "") else {}

    async def read() -> None:
        request = (client or service.http).stream(
            "GET", path, params={"watch": "true", **parameters}, headers=headers, timeout=None
        )
        async with request as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                found.put_nowait(json.loads(line))

    task = asyncio.create_task(read())
    try:
        yield found
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def following(events: "asyncio.Queue[Event]", many: int) -> list[tuple[str, str]]:
    """Return type and name of the next events."""
    found = [await asyncio.wait_for(events.get(), 10) for _ in range(many)]
    return [(one["type"], one["object"]["metadata"]["name"]) for one in found]


async def version(service: Service, path: str) -> str:
    return str(value_of(await service.http.get(path))["metadata"]["resourceVersion"])


async def test_changes_of_jobs_come_from_the_version_of_a_list_on(service: Service) -> None:
    value_of(await service.http.post(JOBS, json=job_manifest("before")), 201)
    begin = await version(service, JOBS)
    value_of(await service.http.post(JOBS, json=job_manifest("a", {"team": "a"})), 201)
    async with watch(service, JOBS, resourceVersion=begin) as events:
        assert await following(events, 1) == [("ADDED", "a")]
        value_of(await service.http.patch(f"{JOBS}/a", json={"spec": {"priority": 3}}, headers=MERGE))
        changed = await asyncio.wait_for(events.get(), 10)
        assert (changed["type"], changed["object"]["spec"]["priority"]) == ("MODIFIED", 3)
        shown = value_of(await service.http.get(f"{JOBS}/a"))
        assert changed["object"] == shown
        value_of(await service.http.delete(f"{JOBS}/before"))
        assert await following(events, 1) == [("DELETED", "before")]
        value_of(await service.http.post(JOBS, json=job_manifest("again")), 201)
        value_of(await service.http.delete(f"{JOBS}/again"))
        value_of(await service.http.post(JOBS, json=job_manifest("again")), 201)
        # Both within one look: the one that is deleted keeps its name.
        assert sorted(await following(events, 2)) == [("ADDED", "again"), ("DELETED", "again")]
    # From the version of an object on, that change comes again, and nothing is missed.
    async with watch(service, JOBS, resourceVersion=shown["metadata"]["resourceVersion"]) as events:
        assert (await following(events, 2)) == [("MODIFIED", "a"), ("DELETED", "before")]


async def test_selectors_hold_for_what_an_object_was_and_is(service: Service) -> None:
    for name in ("a", "b"):
        value_of(await service.http.post(JOBS, json=job_manifest(name, {"team": name})), 201)
    begin = await version(service, JOBS)
    async with (
        watch(service, JOBS, resourceVersion=begin, labelSelector="team=a") as labelled,
        watch(service, JOBS, resourceVersion=begin, fieldSelector="status.state=queued") as queued,
    ):
        value_of(await service.http.patch(f"{JOBS}/b", json={"metadata": {"labels": {"team": "a"}}}, headers=MERGE))
        assert await following(labelled, 1) == [("MODIFIED", "b")]
        assert await following(queued, 1) == [("MODIFIED", "b")]
        value_of(await service.http.patch(f"{JOBS}/a", json={"metadata": {"labels": {"team": None}}}, headers=MERGE))
        assert await following(labelled, 1) == [("DELETED", "a")]
        assert await following(queued, 1) == [("MODIFIED", "a")]
        value_of(await service.http.patch(f"{JOBS}/a", json={"spec": {"suspend": True}}, headers=MERGE))
        assert await following(queued, 1) == [("DELETED", "a")]
        value_of(await service.http.post(JOBS, json=job_manifest("c", {"team": "c"})), 201)
        assert await following(queued, 1) == [("ADDED", "c")]
        assert labelled.empty()


async def test_a_watch_may_begin_with_all_that_exists(service: Service) -> None:
    value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
    value_of(await service.http.post(f"{GROUP}/queues", json=queue_manifest("q")), 201)
    for path, names in ((JOBS, ["a"]), (f"{GROUP}/queues", ["default", "q"])):
        async with watch(service, path) as events:
            assert await following(events, len(names)) == [("ADDED", name) for name in names]
        async with watch(
            service,
            path,
            sendInitialEvents="true",
            resourceVersionMatch="NotOlderThan",
            allowWatchBookmarks="true",
        ) as events:
            found = [await asyncio.wait_for(events.get(), 10) for _ in range(len(names) + 1)]
            assert [one["type"] for one in found] == ["ADDED"] * len(names) + ["BOOKMARK"]
            last = found[-1]["object"]["metadata"]
            assert last["annotations"] == {"k8s.io/initial-events-end": "true"}
            bookmark = await asyncio.wait_for(events.get(), 15)
            assert bookmark["type"] == "BOOKMARK"
            assert int(bookmark["object"]["metadata"]["resourceVersion"]) >= int(last["resourceVersion"])


async def test_changes_of_declared_objects_come_with_what_is_shown_beside_them(service: Service) -> None:
    queues = f"{GROUP}/queues"
    other, begin = await version(service, JOBS), await version(service, queues)
    assert int(begin) >= int(other)
    async with watch(service, queues, resourceVersion=begin) as events:
        value_of(await service.http.post(queues, json=queue_manifest("q")), 201)
        assert await following(events, 1) == [("ADDED", "q")]
        value_of(await service.http.patch(f"{queues}/q", json={"spec": {"weight": 2}}, headers=MERGE))
        assert await following(events, 1) == [("MODIFIED", "q")]
        value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
        counted = await asyncio.wait_for(events.get(), 10)
        assert counted["object"]["status"]["jobs"] == {"queued": 1}
        value_of(await service.http.delete(f"{queues}/q"))
        assert await following(events, 1) == [("DELETED", "q")]
        value_of(await service.http.post(queues, json=queue_manifest("kept")), 201)
        assert await following(events, 1) == [("ADDED", "kept")]
    # No process has a view of this version, as it is not of a list of queues: versions and revisions tell what has changed.
    async with watch(service, queues, resourceVersion=other) as events:
        assert sorted(await following(events, 3)) == [("DELETED", "q"), ("MODIFIED", "default"), ("MODIFIED", "kept")]


async def test_a_table_is_watched_as_kubectl_wants_it(service: Service) -> None:
    begin = await version(service, JOBS)
    async with watch(service, JOBS, resourceVersion=begin, table="yes") as events:
        value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
        event = await asyncio.wait_for(events.get(), 10)
    assert (event["type"], event["object"]["kind"]) == ("ADDED", "Table")
    assert event["object"]["rows"][0]["cells"][:2] == ["a", "queued"]


async def test_a_user_watches_own_queues_alone_and_until_the_key_is_revoked(service: Service) -> None:
    value_of(await service.http.post(f"{GROUP}/queues", json=queue_manifest("mine")), 201)
    made = (await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["mine"]})).json()
    begin = await version(service, f"{GROUP}/jobs")
    async with (
        service.as_key(made["key"]) as user,
        watch(service, f"{GROUP}/jobs", client=user, resourceVersion=begin) as jobs,
        watch(service, f"{GROUP}/queues", client=user) as queues,
    ):
        assert await following(queues, 1) == [("ADDED", "mine")]
        await service.submit("hidden")
        shown = await service.submit("shown", "mine")
        assert await following(jobs, 1) == [("ADDED", shown)]
        assert (await service.http.delete(f"/v1/keys/{made['id']}")).status_code in (200, 204)
        while (event := await asyncio.wait_for(jobs.get(), 15))["type"] != "ERROR":
            pass
        assert event["object"]["reason"] == "Unauthorized"


async def test_a_watch_ends_after_its_time(service: Service) -> None:
    async with asyncio.timeout(20):
        for path in (JOBS, f"{GROUP}/queues"):
            answer = await service.http.get(path, params={"watch": "true", "timeoutSeconds": "1"})
            assert answer.status_code == 200


@dataclass
class Informer:
    """A cache kept as client-go's reflector keeps one: a list, then watches from the last version; a list again after 410."""

    service: Service
    path: str
    cache: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: str = ""
    lists: int = 0

    async def run(self) -> None:
        while True:
            with suppress(httpx.HTTPError):
                if not self.version:
                    await self._list()
                await self._watch()

    async def _list(self) -> None:
        found: dict[str, dict[str, Any]] = {}
        token, first = "", ""
        while True:
            page = value_of(await self.service.http.get(self.path, params={"limit": "50", "continue": token}))
            first = first or page["metadata"]["resourceVersion"]
            found |= {one["metadata"]["uid"]: one for one in page["items"]}
            if not (token := page["metadata"].get("continue", "")):
                break
        self.cache, self.version = found, first
        self.lists += 1

    async def _watch(self) -> None:
        # Watches are cut after a short while, in the middle of what they tell.
        parameters = {"watch": "true", "resourceVersion": self.version, "allowWatchBookmarks": "true"}
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(random.uniform(0.3, 2)),
                self.service.http.stream("GET", self.path, params=parameters, timeout=None) as answer,
            ):
                assert answer.status_code in (200, 410), await answer.aread()
                if answer.status_code == 410:
                    self.version = ""
                    return
                async for line in answer.aiter_lines():
                    self._take(json.loads(line))

    def _take(self, event: Event) -> None:
        item = event["object"]
        if event["type"] == "ERROR":
            assert item["code"] == 410, item
            self.version = ""
            return
        if event["type"] == "DELETED":
            self.cache.pop(item["metadata"]["uid"], None)
        elif event["type"] != "BOOKMARK":
            self.cache[item["metadata"]["uid"]] = item
        self.version = item["metadata"]["resourceVersion"]


async def change_at_random(service: Service) -> list[str]:
    """Make, change and delete jobs and queues; return the names of the jobs that are left."""
    chance = random.Random(7)
    names: list[str] = []
    for number in range(150):
        match chance.choice(("make", "make", "priority", "label", "delete", "queue")) if names else "make":
            case "make":
                names.append(f"j{number}")
                value_of(await service.http.post(JOBS, json=job_manifest(names[-1])), 201)
            case "delete":
                value_of(await service.http.delete(f"{JOBS}/{names.pop(chance.randrange(len(names)))}"))
            case "queue":
                path = f"{GROUP}/queues"
                value_of(await service.http.post(path, json=queue_manifest(f"q{number}")), 201)
                if chance.random() < 0.5:
                    value_of(await service.http.delete(f"{path}/q{number}"))
            case what:
                change = (
                    {"spec": {"priority": number}}
                    if what == "priority"
                    else {"metadata": {"labels": {"n": f"{number}"}}}
                )
                value_of(await service.http.patch(f"{JOBS}/{chance.choice(names)}", json=change, headers=MERGE))
    return names


@pytest.mark.parametrize("catches_up", [False, True])
async def test_caches_equal_the_store_after_many_changes_and_cut_watches(
    service: Service, catches_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``catches_up``: whether each watch finds more than one read has, and more than the process keeps in memory."""
    if catches_up:
        for name, value in (("_MOST_READ", 2), ("_MOST_KEPT", 2), ("_MOST_LOOKED_AT", 5), ("_MOST_CHANGED_JOBS", 2)):
            monkeypatch.setattr(event_feed, name, value)
    informers = [Informer(service, JOBS), Informer(service, f"{GROUP}/jobs"), Informer(service, f"{GROUP}/queues")]
    tasks = [asyncio.create_task(one.run()) for one in informers]
    assert len(await change_at_random(service)) > 10

    async def equal() -> bool:
        for one in informers:
            stored = value_of(await service.http.get(one.path, params={"limit": "1000"}))["items"]
            if {item["metadata"]["uid"]: item for item in stored} != one.cache:
                return False
        return True

    try:
        await eventually(equal, 20)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        assert task.cancelled() or not task.exception()


@pytest.mark.parametrize("path", [JOBS, f"{GROUP}/queues"])
async def test_many_watches_of_one_key_are_served_alike(service: Service, path: str) -> None:
    many = 200
    begin = await version(service, path)
    limits = httpx.Limits(max_connections=many)
    async with httpx.AsyncClient(
        base_url=service.url, headers=service.http.headers, limits=limits, timeout=60
    ) as client:
        seen = [0] * many

        async def read(number: int) -> None:
            async with client.stream("GET", path, params={"watch": "1", "resourceVersion": begin}) as answer:
                async for _ in answer.aiter_lines():
                    seen[number] += 1

        tasks = [asyncio.create_task(read(number)) for number in range(many)]
        await asyncio.sleep(1)
        if path == JOBS:
            value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
        else:
            value_of(await service.http.post(path, json=queue_manifest("a")), 201)

        async def all_have_it() -> bool:
            return all(seen)

        await eventually(all_have_it, 20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
