"""Streams go on over lost connections: nothing is repeated, nothing is left out silently."""

import json
from typing import Any

import httpx
import pytest

from tests.unit.scripted import JOB, Broken, Script, job, problem
from trainmaster.client.errors import JobFailedError, WaitTimeoutError
from trainmaster.client.streams import Ended, EventWatch, LogPiece, LogTail, Notice, ServerSentEvents
from trainmaster.client.values import JobFilter
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.tenants import EventView, JobEventView


def sse(seq: int, kind: str = "submitted") -> bytes:
    event = {"seq": seq, "at": "2026-01-01T00:00:00Z", "kind": kind, "states": ["queued"]}
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), json.dumps(event).encode())


def test_events_may_come_in_any_pieces() -> None:
    text = b": hello\n\nid: 7\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\ndata: \xc3\xa9\n\n"
    decoder = ServerSentEvents()
    events = [event for letter in text for event in decoder.feed(bytes([letter]))]
    assert [(event.id, event.event, event.data) for event in events] == [("7", "a", "1\n2"), (None, "message", "é")]


def test_a_watch_goes_on_after_the_last_event_that_was_told() -> None:
    script = Script(
        httpx.Response(200, stream=Broken(sse(1), sse(2)[:-9])),
        httpx.ConnectError("Connection refused"),
        problem(Code.STORE_AWAY),
        httpx.Response(200, content=sse(1) + sse(2) + b"event: away\ndata: the store\n\n"),
        httpx.Response(200, content=sse(3) + b"event: end\ndata: succeeded\n\n"),
    )
    items = list(script.client().watch(JOB))
    assert [item.seq for item in items if isinstance(item, EventView)] == [1, 2, 3]
    assert items[-1] == Ended("succeeded")
    assert [request.headers["last-event-id"] for request in script.requests] == ["0", "1", "1", "1", "2"]
    assert "trying again" in next(item.text for item in items if isinstance(item, Notice))


def test_a_wait_tells_its_lost_connections_as_calls_do() -> None:
    script = Script(
        httpx.Response(200, json=job("running")),
        httpx.Response(200, stream=Broken(sse(1))),
        httpx.ConnectError("Connection refused"),
        httpx.Response(200, content=b"event: end\ndata: succeeded\n\n"),
        httpx.Response(200, json=job("succeeded")),
    )
    reported: list[str] = []
    with script.client(on_retry=lambda error, _: reported.append(str(error))) as client:
        assert client.wait(JOB).state == "succeeded"
    cut, refused = (
        "the connection to http://dispatcher.test was cut",
        "cannot reach http://dispatcher.test: connection refused",
    )
    assert reported == [cut, refused]


def of_many(job_id: str, position: str) -> bytes:
    event = {
        "job": job_id,
        "queue": "a",
        "seq": 1,
        "at": "2026-01-01T00:00:00Z",
        "kind": "submitted",
        "position": position,
    }
    return b"id: %s\nevent: submitted\ndata: %s\n\n" % (position.encode(), json.dumps(event).encode())


def test_a_watch_of_many_jobs_goes_on_where_it_was_even_where_nothing_matched() -> None:
    script = Script(
        httpx.Response(200, stream=Broken(b"id: p0\n: from now on\n\n")),
        httpx.Response(200, stream=Broken(of_many("a-1", "p1"), of_many("b-1", "p2")[:-9])),
        httpx.Response(200, stream=Broken(of_many("b-1", "p2") + b"id: p9\n: still here\n\n")),
        httpx.Response(200, stream=Broken(b"event: missed\ndata: it was restored\n\n" + of_many("c-1", "q1"))),
        problem(Code.UNAUTHENTICATED),
    )
    items: list[JobEventView | Notice] = []
    with pytest.raises(ProblemError):
        items.extend(script.client().watch_jobs(JobFilter(queue="a", states="failed"), kinds=["run.failed"]))
    assert [(one.job, one.position) for one in items if isinstance(one, JobEventView)] == [
        ("a-1", "p1"),
        ("b-1", "p2"),
        ("c-1", "q1"),
    ]
    assert [request.headers.get("last-event-id") for request in script.requests] == [None, "p0", "p1", "p9", "q1"]
    assert script.requests[0].url.query == b"queue=a&state=failed&kind=run.failed"
    assert "transitions may be missing: it was restored" in [one.text for one in items if isinstance(one, Notice)]
    with pytest.raises(ProblemError, match="since and until"):
        script.client().events_of_jobs(JobFilter(since="2026-01-01"))
    with pytest.raises(ProblemError, match="search"):
        script.client().events_of_jobs(JobFilter(search="bert"))


def test_a_watch_that_never_begins_is_unreachable_and_of_no_job_a_problem() -> None:
    script = Script(then=httpx.ConnectError("Connection refused"))
    with pytest.raises(UnreachableError):
        list(script.client().watch(JOB))
    assert script.now == pytest.approx(60)
    script = Script(problem(Code.NOT_FOUND))
    with pytest.raises(ProblemError):
        list(script.client().watch(JOB))


def test_a_silent_connection_is_made_anew_without_a_word() -> None:
    script = Script(
        httpx.Response(200, stream=Broken(sse(1), error=httpx.ReadTimeout("silent"))),
        httpx.Response(200, content=b"event: end\ndata: failed\n\n"),
    )
    items = list(script.client().watch(JOB))
    assert not [item for item in items if isinstance(item, Notice)]
    assert script.pauses == []


def test_a_connection_that_is_lost_is_sought_for_as_long_as_it_takes() -> None:
    away = [httpx.ConnectError("Connection refused")] * 100
    script = Script(
        httpx.Response(200, stream=Broken(sse(1))), *away, httpx.Response(200, content=b"event: end\ndata: failed\n\n")
    )
    items = list(script.client().watch(JOB))
    assert items[-1] == Ended("failed")
    assert script.now > 60
    assert max(script.pauses) <= 5


def test_waiting_ends_when_the_time_is_up_with_the_job_as_it_was_last_seen() -> None:
    script = Script(httpx.Response(200, json=job("running", 4)), then=httpx.ConnectError("Connection refused"))
    assert script.client().wait(JOB, timeout=90).state == "running"
    assert script.requests[1].headers["last-event-id"] == "4"
    assert 90 <= script.now <= 92


def test_waiting_goes_on_for_ever_once_the_dispatcher_has_answered() -> None:
    away = [httpx.ConnectError("Connection refused")] * 100
    end = httpx.Response(200, content=b"event: end\ndata: succeeded\n\n")
    script = Script(
        httpx.Response(200, json=job("running", 4)), *away, end, *away, httpx.Response(200, json=job("succeeded", 5))
    )
    assert script.client().wait(JOB).state == "succeeded"
    assert script.now > 60
    with pytest.raises(UnreachableError):
        Script(then=away[0]).client().wait(JOB)


def test_waiting_for_several_gives_them_in_their_order() -> None:
    script = Script(*[httpx.Response(200, json=job(state)) for state in ("failed", "succeeded")])
    assert [item.state for item in script.client().wait([JOB, JOB])] == ["failed", "succeeded"]


def test_a_checked_wait_raises_unless_all_succeeded() -> None:
    good, bad, late = (httpx.Response(200, json=job(state)) for state in ("succeeded", "failed", "running"))
    assert Script(good).client().wait(JOB, check=True).state == "succeeded"
    with pytest.raises(JobFailedError, match=f"^{JOB} failed$") as failed:
        Script(good, bad, late).client().wait([JOB] * 3, timeout=0, check=True)
    assert [item.state for item in failed.value.jobs] == ["failed"]
    with pytest.raises(TimeoutError, match=f"{JOB} is running") as timed_out:
        Script(late).client().wait(JOB, timeout=0, check=True)
    assert isinstance(timed_out.value, WaitTimeoutError)


def test_waiting_for_an_ended_job_asks_once() -> None:
    script = Script(httpx.Response(200, json=job("failed")))
    assert script.client().wait(JOB).state == "failed"


def lines(*values: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def piece(data: str, until: int, index: int = 0) -> dict[str, Any]:
    return {"role": "main", "index": index, "data": data, "next": until}


def test_logs_repeat_nothing_after_a_lost_connection() -> None:
    note = {"note": f"{JOB}-r1 on private, running", "run": f"{JOB}-r1"}
    script = Script(
        httpx.Response(200, stream=Broken(lines(note, piece("one\n", 4), piece("tw", 6)), b'{"role"')),
        httpx.Response(
            200, content=lines(note, piece("one\ntwo\n", 8), piece("x\n", 2, 1), {"alive": True}, {"end": "failed"})
        ),
    )
    items = list(script.client().logs(JOB, follow=True, tail_bytes=10))
    assert "".join(item.data for item in items if isinstance(item, LogPiece) and item.index == 0) == "one\ntwo\n"
    assert len([item for item in items if item == Notice(note["note"])]) == 1
    assert items[-1] == Ended("failed")
    assert [request.url.params["tailBytes"] for request in script.requests] == ["10", "65536"]
    assert [request.url.params.get("fromAttempt") for request in script.requests] == [None, "1"], (
        "it goes on where it was"
    )
    assert [request.headers.get("Trainmaster-Received") for request in script.requests] == [None, "main-0:6"]


def test_followed_logs_go_on_after_an_api_that_stops_has_ended_its_answer() -> None:
    script = Script(
        httpx.Response(200, content=lines(piece("one\n", 4))),
        httpx.Response(200, content=lines(piece("one\ntwo\n", 8), {"end": "succeeded"})),
    )
    items = list(script.client().logs(JOB, follow=True))
    assert "".join(item.data for item in items if isinstance(item, LogPiece)) == "one\ntwo\n"
    assert items[-1] == Ended("succeeded")


def test_logs_that_an_api_did_not_finish_as_it_stopped_are_read_on() -> None:
    stopping = ProblemError(Code.TOO_BUSY, "this api is stopping").to_problem("/v1")
    script = Script(
        httpx.Response(200, content=lines(piece("one\n", 4), {"problem": stopping})),
        httpx.Response(200, content=lines(piece("one\ntwo\n", 8))),
    )
    items = list(script.client().logs(JOB))
    assert "".join(item.data for item in items if isinstance(item, LogPiece)) == "one\ntwo\n"
    assert len(script.requests) == 2


def test_followed_logs_of_one_attempt_end_with_the_answer() -> None:
    script = Script(httpx.Response(200, content=lines(piece("x", 1))))
    assert list(script.client().logs(JOB, follow=True, attempt=1)) == [LogPiece("main", 0, "x")]


def test_logs_say_what_was_missed_and_begin_anew_with_each_run() -> None:
    tail = LogTail(JOB, follow=True)
    items = list(
        tail.feed(
            lines(
                {"note": "a", "run": "r1"}, piece("ab", 2), piece("ef", 6), {"note": "b", "run": "r2"}, piece("gh", 2)
            )
        )
    )
    pieces = [(item.data, item.missed) for item in items if isinstance(item, LogPiece)]
    assert pieces == [("ab", 0), ("ef", 2), ("gh", 0)]


def test_logs_that_are_not_followed_end_with_the_answer() -> None:
    script = Script(httpx.Response(200, content=lines(piece("x", 1))))
    assert list(script.client().logs(JOB)) == [LogPiece("main", 0, "x")]


def test_a_problem_within_the_logs_is_raised() -> None:
    script = Script(httpx.Response(200, content=lines({"problem": ProblemError(Code.NOT_FOUND, "gone").to_problem()})))
    with pytest.raises(ProblemError, match="gone"):
        list(script.client().logs(JOB))


def test_a_watch_ends_with_the_first_end() -> None:
    watch = EventWatch(JOB)
    assert list(watch.feed(b"event: end\ndata: gone\n\n" + sse(9))) == [Ended("gone")]
    assert watch.over
