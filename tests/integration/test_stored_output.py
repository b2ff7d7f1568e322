"""Stored output: agents send it in pieces, readers get it by lines, by time and by range; retention removes it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.conftest import Service
from tests.integration.rows import execute, rows, value
from tests.integration.test_streams import Stage, chunk, stage
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.retention import Retention
from trainmaster_dispatcher.store.log_store import LogStore, ObjectLogStore, PostgresLogStore, check_url

__all__ = ["stage"]
WHOLE = 1 << 30


async def send(stage: Stage, *pieces: dict[str, Any]) -> httpx.Response:
    body = {"session": stage.agent.session, "pieces": pieces}
    return await stage.agent.http.post(f"/agent/v1/output/{stage.run}", json=body, headers=stage.agent._headers())


async def stored(stage: Stage, *pieces: dict[str, Any]) -> int:
    """Send pieces of main-0; return up to where its output is stored."""
    answer = await send(stage, *pieces)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["stored"][0]["nextOffset"])


async def end(stage: Stage, *tail: dict[str, Any]) -> None:
    """Report the end of the run, after its tail."""
    await stage.push(stage.run, *tail, end=True)
    await stage.agent.report(stage.run, RunState.SUCCEEDED, 2)


def text_of(pieces: Sequence[dict[str, Any]]) -> str:
    return "".join(piece["data"] for piece in pieces)


async def test_pieces_and_tail_are_read_as_one_output(stage: Stage) -> None:
    assert await stored(stage, chunk("", 0)) == 0, "an empty piece asks"
    assert await stored(stage, chunk("one\ntwo\n", 0)) == 8
    assert await stored(stage, chunk("one\ntwo\n", 0)) == 8, "a repeated piece changes nothing"
    assert await stored(stage, chunk("two\nthree\n", 4)) == 14, "an overlapping piece gives its rest"
    await end(stage, chunk("three\nfour\nfive\n", 8))
    got = await stage.logs(tailBytes=WHOLE)
    assert text_of(got) == "one\ntwo\nthree\nfour\nfive\n"
    assert not any("missed" in piece for piece in got)
    assert text_of(await stage.logs(tailBytes=7)) == "r\nfive\n"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (0, ""),
        (1, "six"),
        (2, "five\nsix"),
        (4, "three\nfour\nfive\nsix"),
        (6, "one\ntwo\nthree\nfour\nfive\nsix"),
        (99, "one\ntwo\nthree\nfour\nfive\nsix"),
    ],
)
async def test_the_last_lines_are_counted_over_all_parts(stage: Stage, lines: int, shown: str) -> None:
    await stored(stage, chunk("one\ntw", 0))
    await stored(stage, chunk("o\nthree\n", 6))
    await end(stage, chunk("four\nfive\nsix", 14))
    assert text_of(await stage.logs(tailLines=lines)) == shown


async def test_what_was_not_stored_is_named_in_bytes(stage: Stage) -> None:
    await stored(stage, chunk("begin\n", 0))
    await stored(stage, chunk("later\n", 106))
    await end(stage, chunk("end\n", 212))
    got = await stage.logs(tailBytes=WHOLE)
    assert [(piece["data"], piece.get("missed")) for piece in got] == [
        ("begin\n", None),
        ("later\n", 100),
        ("end\n", 100),
    ]
    only_tail = await stage.logs(tailBytes=50)
    assert [(piece["data"], piece.get("missed")) for piece in only_tail] == [("end\n", 46)]


async def test_a_lost_begin_is_named(stage: Stage) -> None:
    await end(stage, chunk("rest\n", 1000))
    assert [(piece["data"], piece.get("missed")) for piece in await stage.logs(tailBytes=WHOLE)] == [("rest\n", 1000)]


async def test_more_than_the_limit_of_a_member_is_passed_over(service: Service, stage: Stage) -> None:
    most = service.stores.settings.output_bytes
    size = 1 << 20
    for number in range(most // size + 3):
        assert await stored(stage, chunk("x" * size, number * size)) == (number + 1) * size
    bytes_stored = await value(service.stores, "SELECT bytes FROM member_outputs")
    assert most <= bytes_stored <= most + size


async def test_output_is_read_by_range(stage: Stage) -> None:
    await stored(stage, chunk("0123456789", 0), chunk("abcdefghij", 10))
    await end(stage)
    got = await stage.logs(offset=8, limit=5)
    assert (text_of(got), got[0]["offset"], got[-1]["next"]) == ("89abc", 8, 13)
    assert text_of(await stage.logs(offset=15)) == "fghij"
    assert await stage.logs(offset=100) == []


async def test_times_split_output_and_since_begins_with_the_first_late_one(stage: Stage) -> None:
    marks = [{"offset": 0, "at": 1_800_000_000}, {"offset": 4, "at": 1_800_000_010.5}]
    await stored(stage, chunk("one\ntwo\n", 0) | {"marks": marks})
    await end(stage, chunk("end\n", 8) | {"marks": [{"offset": 8, "at": 1_800_000_020}]})
    got = await stage.logs(tailBytes=WHOLE, timestamps=True)
    assert [(piece["data"], piece["at"]) for piece in got] == [
        ("one\n", "2027-01-15T08:00:00.000Z"),
        ("two\n", "2027-01-15T08:00:10.500Z"),
        ("end\n", "2027-01-15T08:00:20.000Z"),
    ]
    assert text_of(await stage.logs(since="2027-01-15T08:00:05Z")) == "two\nend\n"
    assert text_of(await stage.logs(since="2027-01-15T09:00:00Z")) == ""
    assert "at" not in (await stage.logs(tailBytes=WHOLE))[0]


async def test_the_life_before_the_last_restart_is_shown_alone(stage: Stage) -> None:
    await stored(stage, chunk("first\nsecond\n", 0) | {"lives": [6]})
    await end(stage, chunk("third\n", 13) | {"lives": [6, 13]})
    assert text_of(await stage.logs(previous=True)) == "second\n"


async def test_a_member_without_a_restart_has_no_previous_life(stage: Stage) -> None:
    await end(stage, chunk("only\n"))
    assert await stage.logs(previous=True) == []


async def test_a_live_run_shows_what_is_stored_and_then_what_its_agent_sends(stage: Stage) -> None:
    await stored(stage, chunk("stored\n", 0))
    async with stage.following(tailBytes=WHOLE) as pieces:
        assert (await asyncio.wait_for(pieces.get(), 5))["data"] == "stored\n"
        stream = await stage.opened()
        await stage.push(stream["stream"], chunk("stored\nlive\n", 0))
        live = await asyncio.wait_for(pieces.get(), 5)
        assert (live["data"], live["offset"]) == ("live\n", 7)


async def test_lines_and_times_are_passed_to_the_agent_of_a_live_run(stage: Stage) -> None:
    async with stage.following(tailLines=3, since="2027-01-15T08:00:00Z"):
        stream = await stage.opened()
        assert (stream["tailLines"], stream["since"]) == (3, 1_800_000_000)


async def test_output_of_other_clusters_runs_and_old_sessions_is_refused(service: Service, stage: Stage) -> None:
    body = {"session": stage.agent.session, "pieces": [chunk("x")]}
    unknown = await stage.agent.http.post("/agent/v1/output/no-run", json=body, headers=stage.agent._headers())
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not-found")
    other = service.agent("public", session="session-2")
    await other.connect()
    answer = await other.http.post(
        f"/agent/v1/output/{stage.run}", json=body | {"session": other.session}, headers=other._headers()
    )
    assert answer.status_code == 404
    stale = await stage.agent.http.post(
        f"/agent/v1/output/{stage.run}", json=body | {"session": "older"}, headers=stage.agent._headers()
    )
    assert stale.json()["code"] == "session-superseded"
    assert await rows(service.stores, "SELECT 1 FROM output_pieces") == []


@pytest.mark.parametrize(("role", "index"), [("../../other", 0), ("none", 0), ("", 0), ("main", 10_000)])
async def test_output_of_members_that_a_run_has_not_is_refused(
    service: Service, stage: Stage, role: str, index: int
) -> None:
    answer = await send(stage, chunk("fine\n"), chunk("x", role=role, index=index))
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    for table in ("member_outputs", "output_pieces", "output_data"):
        assert await value(service.stores, f"SELECT count(*) FROM {table}") == 0, table


async def test_two_calls_at_once_store_a_piece_once(service: Service, stage: Stage) -> None:
    await asyncio.gather(*(stored(stage, chunk("0123456789", 0)) for _ in range(8)))
    assert await stored(stage, chunk("", 0)) == 10
    assert [tuple(row) for row in await rows(service.stores, "SELECT start, next FROM output_pieces")] == [(0, 10)]
    assert await value(service.stores, "SELECT bytes FROM member_outputs") == 10


async def test_retention_removes_old_output_and_says_what_is_missing(service: Service, stage: Stage) -> None:
    await stored(stage, chunk("a" * 1000 + "\n", 0))
    await end(stage, chunk("end\n", 1001))
    await execute(service.stores, "UPDATE member_outputs SET changed_at = now() - interval '40 days'")
    removed = await Retention(service.stores.database, service.stores.settings).run()
    assert removed.outputs == 1
    assert await rows(service.stores, "SELECT 1 FROM output_data") == []
    got = await stage.logs(tailBytes=WHOLE)
    assert [(piece["data"], piece.get("missed")) for piece in got] == [("end\n", 1001)]


async def test_retention_bounds_all_output_and_keeps_that_of_live_runs(service: Service, stage: Stage) -> None:
    await stored(stage, chunk("live\n", 0))
    settings = service.stores.settings.model_copy(update={"most_output_bytes": 1})
    assert (await Retention(service.stores.database, settings).run()).outputs == 0, "the run is live"
    await end(stage)
    assert (await Retention(service.stores.database, settings).run()).outputs == 1
    assert await value(service.stores, "SELECT count(*) FROM output_data") == 0


async def test_output_is_removed_with_its_job(service: Service, stage: Stage) -> None:
    await stored(stage, chunk("text\n", 0))
    await end(stage)
    await execute(
        service.stores, "UPDATE jobs SET submitted_at = now() - interval '41 d', ended_at = now() - interval '40 d'"
    )
    await Retention(service.stores.database, service.stores.settings).run()
    for table in ("jobs", "member_outputs", "output_pieces", "output_data"):
        assert await value(service.stores, f"SELECT count(*) FROM {table}") == 0, table


# The log store


@pytest.fixture(params=["postgres", "folder", "s3"])
async def log_store(
    request: pytest.FixtureRequest, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LogStore]:
    match request.param:
        case "postgres":
            yield PostgresLogStore(service.stores.database)
        case "folder":
            yield ObjectLogStore.open(f"file://{tmp_path}/output")
        case _:
            server_module = import_module("moto.server")
            server = server_module.ThreadedMotoServer(port=0)
            server.start()
            host, port = server.get_host_and_port()
            for name, text in {
                "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
            }.items():
                monkeypatch.setenv(name, text)
            async with httpx.AsyncClient() as http:
                assert (await http.put(f"http://{host}:{port}/logs")).status_code == 200
            yield ObjectLogStore.open("s3://logs/some/prefix")
            server.stop()


async def test_a_log_store_writes_reads_replaces_and_deletes(log_store: LogStore) -> None:
    pieces = {f"7/1/main-0/{number:016d}": bytes([number]) * 1000 for number in range(40)}
    await log_store.put(pieces)
    assert [await log_store.get(key) for key in pieces] == list(pieces.values())
    first, second = list(pieces)[:2]
    await log_store.put({first: b"again"})
    assert await log_store.get(first) == b"again"
    await log_store.delete([first, "7/1/main-0/missing", second])
    assert [await log_store.get(key) for key in (first, second, "7/1/none")] == [None, None, None]
    assert await log_store.get(list(pieces)[2]) == bytes([2]) * 1000


async def test_an_object_store_that_cannot_be_used_is_a_problem_to_retry(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    store = ObjectLogStore.open(f"file://{folder}")
    folder.rmdir()
    folder.write_text("a file is in its place")
    with pytest.raises(ProblemError) as found:
        await store.put({"a/b": b"x"})
    assert found.value.code is Code.STORE_AWAY


@pytest.mark.parametrize("url", ["http://x/y", "s3://", "file://", "folder", "gs://bucket"])
def test_the_address_of_a_log_store_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="file:///FOLDER or s3://BUCKET/PREFIX"):
        check_url(url)


async def test_stored_output_is_compressed(service: Service, stage: Stage) -> None:
    await stored(stage, chunk("the same line\n" * 10_000, 0))
    size = await value(service.stores, "SELECT sum(length(data)) FROM output_data")
    assert size < 10_000
    assert orjson.loads(orjson.dumps(size)) == await value(service.stores, "SELECT sum(size) FROM output_pieces")
