"""What records say about the request, job and run that they were written for."""

import asyncio
import io
import json
import logging
from typing import Any

import pytest

from trainmaster import process_logs


@pytest.fixture
def written() -> "Written":
    return Written()


class Written:
    """A logger whose lines are kept."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        handler = logging.StreamHandler(self._out)
        handler.setFormatter(process_logs.JsonFormatter())
        handler.addFilter(process_logs.AboutFilter())
        self.log = logging.Logger("test")
        self.log.addHandler(handler)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


def test_records_inside_say_what_they_are_about_and_those_outside_do_not(written: Written) -> None:
    with process_logs.about(request_id="r1"):
        written.log.info("inside")
        with process_logs.about(run_id="job-r1"):
            written.log.info("deeper")
    written.log.info("outside")
    extras = [{key: line[key] for key in ("request_id", "run_id") if key in line} for line in written.lines]
    assert extras == [{"request_id": "r1"}, {"request_id": "r1", "run_id": "job-r1"}, {}]


def test_what_becomes_known_later_is_in_all_lines_from_then_on(written: Written) -> None:
    with process_logs.about(request_id="r1"):
        written.log.info("before")
        process_logs.note(cluster="edge")
        written.log.info("after")
    assert [line.get("cluster") for line in written.lines] == [None, "edge"]


def test_outside_of_everything_a_note_does_nothing(written: Written) -> None:
    process_logs.note(cluster="edge")
    written.log.info("outside")
    assert "cluster" not in written.lines[0]


def test_what_a_record_says_itself_stays(written: Written) -> None:
    with process_logs.about(run_id="outer-r1"):
        written.log.warning("another", extra={"run_id": "inner-r1"})
    assert written.lines[0]["run_id"] == "inner-r1"


async def test_requests_that_are_served_at_once_do_not_mix(written: Written) -> None:
    async def serve(name: str) -> None:
        with process_logs.about(request_id=name):
            process_logs.note(cluster=f"cluster-of-{name}")
            await asyncio.sleep(0)
            written.log.info("served")

    await asyncio.gather(*(serve(f"r{number}") for number in range(5)))
    assert sorted((line["request_id"], line["cluster"]) for line in written.lines) == [
        (f"r{number}", f"cluster-of-r{number}") for number in range(5)
    ]
