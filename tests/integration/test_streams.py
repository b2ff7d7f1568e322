"""Logs: what an agent pushes reaches whoever follows, and a tail is kept for whoever comes later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import age_contact, rows, value
from tests.waiting import eventually
from trainmaster.client.streams import LogPiece, LogTail
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import logs


def chunk(data: str, offset: int = 0, role: str = "main", index: int = 0) -> dict[str, Any]:
    return {"role": role, "index": index, "offset": offset, "data": data, "nextOffset": offset + len(data.encode())}


@dataclass
class Stage:
    """A job that runs, its agent, and what the agent pushes."""

    service: Service
    agent: FakeAgent
    job: str
    run: str

    async def push(self, stream: str, *chunks: dict[str, Any], end: bool = False) -> httpx.Response:
        body = {"session": self.agent.session, "chunks": chunks, "end": end}
        return await self.agent.http.post(f"/agent/v1/streams/{stream}", json=body, headers=self.agent._headers())

    async def opened(self, but: str = "") -> dict[str, Any]:
        """Wait for the stream that the agent is asked to open, and return it; not the one with the id ``but``."""
        found: list[dict[str, Any]] = []

        async def look() -> bool:
            await self.agent.sync()
            found.extend(one for one in (await self.agent.desired(0.5))["streams"] if one["stream"] != but)
            return bool(found)

        await eventually(look)
        return found[0]

    @asynccontextmanager
    async def following(self, **parameters: Any) -> AsyncIterator["asyncio.Queue[dict[str, Any]]"]:
        """Yield what a follower gets, without notes and keep-alives; the follower hangs up at the end."""
        pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def follow() -> None:
            path = f"/v1/jobs/{self.job}/logs"
            async with self.service.http.stream("GET", path, params={"follow": True, **parameters}) as answer:
                async for line in answer.aiter_lines():
                    piece = orjson.loads(line)
                    if "note" not in piece and "alive" not in piece:
                        await pieces.put(piece)

        task = asyncio.create_task(follow())
        try:
            yield pieces
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def logs(self, **parameters: Any) -> list[dict[str, Any]]:
        answer = await self.service.http.get(f"/v1/jobs/{self.job}/logs", params=parameters)
        assert answer.status_code == 200, answer.text
        return [piece for piece in map(orjson.loads, answer.text.splitlines()) if "data" in piece]


@pytest.fixture
async def stage(service: Service) -> Stage:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(replicas=2)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    return Stage(service, agent, job_id, run)


async def test_a_follower_gets_what_the_agent_pushes_once_and_in_order(stage: Stage) -> None:
    async with stage.following(tailBytes=1000) as pieces:
        stream = await stage.opened()
        assert (stream["run"], stream["follow"], stream["tailBytes"]) == (stage.run, True, 1000)
        for sent in ("one ", "one ", "one two "):
            assert (await stage.push(stream["stream"], chunk(sent))).status_code == 200
        # An agent that was started again may have what is missing: another stream begins where this one has ended.
        assert (await stage.push(stream["stream"], chunk("five", 20))).status_code == 200
        stream = await stage.opened(but=stream["stream"])
        assert stream["starts"] == [{"role": "main", "index": 0, "offset": 8}]
        assert (await stage.push(stream["stream"], chunk("five", 20))).status_code == 200
        got = [await asyncio.wait_for(pieces.get(), 5) for _ in range(3)]
        assert [(piece["data"], piece.get("missed")) for piece in got] == [("one ", None), ("two ", None), ("five", 12)]
        await stage.push(stage.run, chunk("five\nend\n", 20))
        await stage.agent.report(stage.run, RunState.SUCCEEDED, 2)
        await stage.push(stream["stream"], end=True)
        assert (await asyncio.wait_for(pieces.get(), 10))["data"] == "\nend\n", "the rest comes from the kept tail"
        assert await asyncio.wait_for(pieces.get(), 10) == {"end": "succeeded"}


async def test_a_follower_of_one_member_hears_no_other(stage: Stage) -> None:
    async with stage.following(role="main", index=1) as pieces:
        stream = await stage.opened()
        assert (stream["roles"], stream["index"]) == (["main"], 1)
        await stage.push(stream["stream"], chunk("no"), chunk("yes", index=1), chunk("no", role="other", index=1))
        assert (await asyncio.wait_for(pieces.get(), 5))["data"] == "yes"
        assert pieces.empty()


async def test_a_stream_is_closed_soon_after_its_follower_has_left(stage: Stage) -> None:
    async with stage.following() as pieces:
        stream = await stage.opened()
        await stage.push(stream["stream"], chunk("x"))
        await asyncio.wait_for(pieces.get(), 5)

    async def closed() -> bool:
        answer = await stage.push(stream["stream"], chunk("more", 1))
        return answer.status_code == 410 and answer.json()["code"] == "stream-closed"

    await eventually(closed, 5)
    assert await rows(stage.service.stores, "SELECT 1 FROM log_streams") == []
    stage.agent.version = 0
    assert (await stage.agent.desired())["streams"] == []


async def test_who_lost_the_connection_while_the_next_run_started_hears_the_rest_of_the_first(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    job_id = await service.submit(retries={"limit": 1, "backOff": "0s"})
    first = (await agent.next_start())["run"]
    stage = Stage(service, agent, job_id, first)
    await stage.push(first, chunk("the rest of one"))
    await agent.report(first, RunState.RUNNING, 1)
    await agent.report(first, RunState.FAILED, 2)
    second = (await agent.next_start())["run"]
    await stage.push(second, chunk("two"))
    await agent.report(second, RunState.RUNNING, 1)
    await agent.report(second, RunState.SUCCEEDED, 2)
    await service.until(job_id, "succeeded")
    async with stage.following() as pieces:
        assert [(await asyncio.wait_for(pieces.get(), 5)).get("data") for _ in range(2)] == ["two", None]
    async with stage.following(fromAttempt=1) as pieces:
        received = [(await asyncio.wait_for(pieces.get(), 5)).get("data") for _ in range(3)]
        assert received == ["the rest of one", "two", None]


async def test_the_tails_of_an_ended_run_are_what_its_logs_show(stage: Stage) -> None:
    assert (
        await stage.push(stage.run, chunk("first"), chunk("second", 100), chunk("other", 7, index=1))
    ).status_code == 200
    await stage.push(stage.run, chunk("third", 200))
    await stage.agent.report(stage.run, RunState.SUCCEEDED, 2)
    assert await stage.logs() == [
        {"role": "main", "index": 0, "data": "third", "offset": 200, "next": 205, "missed": 200},
        {"role": "main", "index": 1, "data": "other", "offset": 7, "next": 12, "missed": 7},
    ]
    assert [piece["data"] for piece in await stage.logs(index=1)] == ["other"]
    assert [piece["data"] for piece in await stage.logs(tailBytes=2)] == ["rd", "er"]
    assert (await stage.push(stage.run, chunk("late", 300))).status_code == 200, "the tail may come after the end"


async def test_output_that_is_no_text_is_told_once_though_it_grows_when_it_is_replaced(stage: Stage) -> None:
    """Each byte that is no UTF-8 becomes three; offsets count the member's own bytes."""

    def raw(data: bytes, offset: int) -> dict[str, Any]:
        text = data.decode(errors="replace")
        return chunk(text, offset) | {"nextOffset": offset + len(data)}

    one, two, three = b"a\xff\xff\xff b", b"c\xfe d", b"e\xff"
    async with stage.following() as pieces:
        stream = await stage.opened()
        await stage.push(stream["stream"], raw(one, 0))
        await stage.push(stream["stream"], raw(two, len(one)))
        got = [await asyncio.wait_for(pieces.get(), 5) for _ in range(2)]
        await stage.push(stage.run, raw(one + two + three, 0))
        await stage.agent.report(stage.run, RunState.SUCCEEDED, 2)
        await stage.push(stream["stream"], raw(three, len(one + two)), end=True)
        got.append(await asyncio.wait_for(pieces.get(), 10))
        assert await asyncio.wait_for(pieces.get(), 10) == {"end": "succeeded"}, "nothing twice"
    tail = LogTail(stage.job, follow=True)
    lines = b"".join(orjson.dumps(piece) + b"\n" for piece in got)
    items = [item for item in tail.feed(lines) if isinstance(item, LogPiece)]
    assert "".join(item.data for item in items) == (one + two + three).decode(errors="replace")
    assert [item.missed for item in items] == [0, 0, 0]


async def test_no_more_of_a_member_is_kept_than_64_kib(stage: Stage) -> None:
    most = 65_536
    text = "é" * most + "end"
    await stage.push(stage.run, chunk(text, 1000))
    kept = (await rows(stage.service.stores, "SELECT start, data FROM run_tails"))[0]
    assert len(kept.data.encode()) <= most
    assert text.endswith(kept.data)
    assert kept.start + len(kept.data.encode()) in range(1000 + len(text.encode()) - 3, 1000 + len(text.encode()) + 1)


@pytest.mark.parametrize("reachable", [True, False], ids=["silent", "unreachable"])
async def test_logs_end_with_what_was_kept_when_the_agent_does_not_answer(
    stage: Stage, reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(logs, "_SILENT_SECONDS", 1.0)
    await stage.push(stage.run, chunk("kept"))
    if not reachable:
        await age_contact(stage.service.stores, "private", 600)
    answer = await asyncio.wait_for(stage.service.http.get(f"/v1/jobs/{stage.job}/logs"), 20)
    pieces = [piece for piece in map(orjson.loads, answer.text.splitlines()) if "alive" not in piece]
    why = "does not send its output" if reachable else "is unreachable"
    assert [piece.get("data") for piece in pieces] == [None, None, "kept"]
    assert pieces[1]["note"] == f"cluster private {why}; below is what was kept, if anything"


async def test_a_follower_is_told_when_the_cluster_is_lost_and_found(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.2)
    path = f"/v1/jobs/{stage.job}/logs"
    notes: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async with stage.service.http.stream("GET", path, params={"follow": True}) as answer:
            async for line in answer.aiter_lines():
                if "note" in (piece := orjson.loads(line)):
                    await notes.put(piece["note"])

    task = asyncio.create_task(follow())
    assert await asyncio.wait_for(notes.get(), 30) == f"{stage.run} on private, running"
    await age_contact(stage.service.stores, "private", 600)
    lost = "cluster private is unreachable; its output follows when it is back"
    assert await asyncio.wait_for(notes.get(), 30) == lost
    await stage.agent.sync()
    assert await asyncio.wait_for(notes.get(), 30) == "cluster private is back"
    assert notes.empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_begins_to_follow_on_an_unreachable_cluster_is_told_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.2)
    await age_contact(stage.service.stores, "private", 600)
    lost = "cluster private is unreachable; its output follows when it is back"
    path = f"/v1/jobs/{stage.job}/logs"
    async with stage.service.http.stream("GET", path, params={"follow": True}) as answer:
        async for line in answer.aiter_lines():
            if orjson.loads(line).get("note") == lost:
                return
    raise AssertionError("it was not told")


async def test_logs_of_a_job_that_never_ran_are_empty(service: Service) -> None:
    job_id = await service.submit(cpu="64")
    answer = await service.http.get(f"/v1/jobs/{job_id}/logs")
    assert orjson.loads(answer.text) == {"note": "the job is queued, it has no output yet"}
    await service.http.post(f"/v1/jobs/{job_id}/cancel")
    answer = await service.http.get(f"/v1/jobs/{job_id}/logs", params={"follow": True})
    assert orjson.loads(answer.text) == {"end": "cancelled"}
    assert await value(service.stores, "SELECT count(*) FROM log_streams") == 0
