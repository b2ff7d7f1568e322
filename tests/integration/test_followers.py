"""Followers of one job share what is read of it: one read for all who wait, what was committed before it, and errors to each."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.conftest import Service
from tests.waiting import eventually
from trainmaster.protocol.ids import parse_job_id
from trainmaster_dispatcher.services.followers import Followers, Happened
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import StoreAwayError, Transaction

_real = job_store.events_after


class Reads:
    """Counts reads of events, and holds each until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.done = 0
        """Reads that have seen the store."""
        self.may_go = asyncio.Event()
        self.error: Exception | None = None
        monkeypatch.setattr(job_store, "events_after", self._read)

    async def _read(self, tx: Transaction, job_id: int, seq: int, limit: int) -> Sequence[job_store.StoredEvent]:
        self.count += 1
        rows = await _real(tx, job_id, seq, limit)
        self.done += 1
        await self.may_go.wait()
        if self.error is not None:
            raise self.error
        return rows


async def follow(followers: Followers, key: int, many: int) -> "list[asyncio.Task[Happened]]":
    tasks = [asyncio.create_task(followers.events_after(key, 0, 100)) for _ in range(many)]
    await asyncio.sleep(0.05)
    return tasks


async def test_followers_of_one_job_share_a_read(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    key = parse_job_id(await service.submit())[1]
    followers, reads = Followers(service.stores), Reads(monkeypatch)
    tasks = await follow(followers, key, 100)
    reads.may_go.set()
    found = await asyncio.gather(*tasks)
    assert reads.count == 1
    assert {tuple(event.kind for event in one.events) for one in found} == {("submitted",)}
    assert all(one.standing is not None and one.standing.state == "queued" for one in found)


async def test_who_comes_while_a_read_is_under_way_gets_a_later_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await service.submit()
    followers, reads = Followers(service.stores), Reads(monkeypatch)
    early = await follow(followers, parse_job_id(job)[1], 3)

    async def is_read() -> bool:
        return reads.done == 1

    await eventually(is_read)
    assert reads.count == 1
    assert (await service.http.post(f"/v1/jobs/{job}/cancel")).status_code == 200
    late = await follow(followers, parse_job_id(job)[1], 3)
    reads.may_go.set()
    assert {len((await one).events) for one in early} == {1}
    assert {len((await one).events) for one in late} == {2}, "what was committed before they came"
    assert reads.count == 2


async def test_an_error_reaches_each_who_waits_and_the_next_read_works(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = parse_job_id(await service.submit())[1]
    followers, reads = Followers(service.stores), Reads(monkeypatch)
    reads.error = StoreAwayError("Postgres does not answer")
    tasks = await follow(followers, key, 3)
    tasks[0].cancel()
    reads.may_go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found] == [asyncio.CancelledError, StoreAwayError, StoreAwayError]
    reads.error = None
    assert len((await followers.events_after(key, 0, 100)).events) == 1
    assert followers._next_reads == {}


async def test_a_job_that_does_not_exist_has_no_standing(service: Service) -> None:
    happened = await Followers(service.stores).events_after(2**40, 0, 100)
    assert (list(happened.events), happened.standing) == ([], None)
