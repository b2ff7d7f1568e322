"""Moments, spans and filters as scripts write them: texts and dates beside datetimes, and errors that name the argument."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.unit.scripted import JOB, Script, job
from trainmaster import JobFilter, ProblemError
from trainmaster.client.values import Moment, written_moment

USAGE: dict[str, Any] = {"currency": "EUR", "begin": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z", "rows": []}
USAGE |= {"total": {"since": "2026-11-01T00:00:00Z"}}


@pytest.mark.parametrize(
    "given",
    [
        "2026-11-01",
        "2026-11-01T00:00:00Z",
        "2026-11-01T01:00:00+01:00",
        date(2026, 11, 1),
        datetime(2026, 11, 1),  # noqa: DTZ001 - without a zone is what is tested
        datetime(2026, 11, 1, tzinfo=UTC),
    ],
)
def test_a_moment_may_be_written_in_several_ways(given: Moment) -> None:
    assert datetime.fromisoformat(written_moment(given, "begin")) == datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "said"), [("yesterday", "begin: 'yesterday' is not a moment"), (7, "begin takes a datetime")]
)
def test_what_is_no_moment_is_told_by_the_name_of_the_argument(given: Any, said: str) -> None:
    with pytest.raises(ProblemError, match=said):
        Script().client().usage(given, "2026-11-02")


def test_usage_takes_texts_and_one_dimension() -> None:
    script = Script(httpx.Response(200, json=USAGE))
    script.client().usage("2026-11-01", date(2026, 11, 2), by="queue")
    sent = script.requests[0].url.params
    assert (sent["begin"], sent["end"], sent.get_list("by")) == (
        "2026-11-01T00:00:00+00:00",
        "2026-11-02T00:00:00+00:00",
        ["queue"],
    )


def test_the_audit_and_the_workload_take_texts() -> None:
    script = Script(
        httpx.Response(200, json={"audit": [], "next": None}),
        httpx.Response(200, json={"jobs": [], "next": None}),
    )
    client = script.client()
    assert list(client.audit(since="2026-11-01", until=None)) == []
    list(client.jobs(JobFilter(states="running", since="2026-11-01", submitted_by="ann")))
    assert script.requests[0].url.params["since"] == "2026-11-01T00:00:00+00:00"
    sent = script.requests[1].url.params
    assert (sent.get_list("state"), sent["since"], sent["submittedBy"]) == (
        ["running"],
        "2026-11-01T00:00:00+00:00",
        "ann",
    )


@pytest.mark.parametrize("timeout", ["10s", timedelta(seconds=10), 10.0])
def test_a_timeout_is_seconds_a_text_or_a_timedelta(timeout: float | str | timedelta) -> None:
    script = Script(httpx.Response(200, json=job("queued")), then=httpx.ConnectError("refused"))
    assert script.client().wait(JOB, timeout).state == "queued"
    assert 10 <= script.now <= 12


def test_a_timeout_that_is_none_is_told() -> None:
    with pytest.raises(ProblemError, match="timeout: "):
        Script(httpx.Response(200, json=job("queued"))).client().wait(JOB, "soon")
