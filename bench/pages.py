"""Pages that people keep open: lists of a million stored jobs, 500 pages that follow a thousand changes of jobs a second, and the time
until the dashboard shows something.

    python -m bench.pages [--parts lists,open,paint] [--jobs 1000000] [--requests 10] [--pages 500] [--changes 1000] [--seconds 30]
                          [--rounds 3] [--loads 10]

Real processes and a real Postgres. ``lists``: the first page of 50 jobs over HTTP, one request at a time, without a filter, with each
filter, with several states, and with pairs of filters; common values, rare ones and such that match nothing; for an admin, and for a
user who sees a tenth of all queues. Nine tenths of the jobs have ended. ``slowest`` are the ones with the highest p95.

``open``: tiny jobs on ten simulated clusters, at a rate at which they change ``--changes`` times a second together, with and without
open pages by turns; then as fast as the system takes them, by turns as well. A page has a stream of changes and reads its list again
when what it shows has changed, at most every 5 s. All processes share the machine's cores, that of the pages too (``clients``: its
share of a core). ``cpu``: of the api of users, in cores. ``change_to_page``: from the end of a job to the page. ``noise``: the load
of the machine, and the share of time that its host has taken from it.

``paint``: the fleet, the jobs and the queues in a real Chromium on this machine, by somebody who has signed in, with the stored jobs
of ``lists``: the first contentful paint and the first rows of data, with an empty cache (``cold``) and with what the load before has
left (``warm``), and the JavaScript as it is sent, by gzip. Chromium is that of ``tests/programs.py``; without one, it is ``skipped``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil

from bench.flow import fleet, spec
from bench.numbers import quantile, stores
from bench.page_jobs import QUEUES, USER_KEY, cases, fill
from bench.page_paint import paint
from bench.posting import Poster
from bench.stage import ADMIN_KEY, Stage
from trainmaster.protocol.ids import parse_job_id

PARTS = ("lists", "open", "paint")
_SLOWEST = 10
_CALL, _THREADS, _IN_FLIGHT = 50, 4, 4000
_FIRST_RATE = 150.0
"""Jobs a second in the part that measures how many changes a job has."""
_SETTLE_SECONDS = 5.0
_LONGEST_DRAIN = 120.0
_ENV = {"TRAINMASTER_EVENT_STREAMS_PER_KEY": "0", "TRAINMASTER_CALLS_PER_SECOND_PER_KEY": "0"}


# -- lists


def lists(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the lists."""
    stage = Stage(folder, [], schedulers=0, queues=QUEUES, env=_ENV)
    try:
        stage.start()
        took = fill(stage, options.jobs)
        found: dict[str, Any] = {"jobs": options.jobs, "fill_seconds": round(took, 1), "noise": Noise().found()}
        for who, key in (("admin", ADMIN_KEY), ("user", USER_KEY)):
            found[who] = _lists_of(stage.urls[0], key, options.requests)
        return found | {"stores": stores(stage.database_url)}
    finally:
        stage.stop()


def _lists_of(url: str, key: str, requests: int) -> dict[str, Any]:
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=120)
    found: list[dict[str, Any]] = []
    for case in cases():
        times, rows = [], 0
        for _ in range(requests):
            began = time.perf_counter()
            connection.request("GET", case.path, headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            body = answer.read()
            times.append((time.perf_counter() - began) * 1000)
            if answer.status not in (200, 404):  # a queue that the user may not see does not exist
                raise RuntimeError(f"{case.path}: {answer.status} {body[:300]!r}")
            rows = len(orjson.loads(body).get("jobs", ()))
        p50, p95 = (round(quantile(times, share), 1) for share in (0.5, 0.95))
        found.append({"list": case.name, "rows": rows, "p50_ms": p50, "p95_ms": p95, "max_ms": round(max(times), 1)})
    first, *others = found
    slowest = sorted(others, key=lambda one: -one["p95_ms"])[:_SLOWEST]
    every_p95 = [one["p95_ms"] for one in others]
    return {
        "first": first,
        "filters": len(others),
        "p95_ms_of_slowest": max(every_p95),
        "p95_ms_of_median": round(statistics.median(every_p95), 1),
        "slowest": slowest,
    }


class Noise:
    """The load of the machine since this was made."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def found(self) -> dict[str, float]:
        now = psutil.cpu_times()
        total = sum(now) - sum(self._before)
        stolen = getattr(now, "steal", 0.0) - getattr(self._before, "steal", 0.0)
        return {"load": round(os.getloadavg()[0], 1), "steal": round(stolen / total, 3) if total > 0 else 0.0}


# -- open pages


class Jobs:
    """Submits tiny jobs, at a rate or as fast as possible."""

    def __init__(self, stage: Stage, rate: float | None) -> None:
        self._stage = stage
        self._rate = rate
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._submitted = 0
        self._began = time.monotonic()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._submit) for _ in range(_THREADS)]

    def __enter__(self) -> "Jobs":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        ends = time.monotonic() + _LONGEST_DRAIN
        while _live(self._stage) and time.monotonic() < ends:
            time.sleep(0.2)

    def _submit(self) -> None:
        poster = Poster(self._stage.urls[0])
        while not self._over.is_set():
            with self._lock:
                first = self._submitted
                self._submitted += _CALL
            if self._rate is not None:
                self._over.wait(max(0.0, self._began + first / self._rate - time.monotonic()))
            while self._rate is None and _live(self._stage) > _IN_FLIGHT and not self._over.is_set():
                time.sleep(0.05)
            if self._over.is_set():
                return
            try:
                poster.post("/v1/jobs", orjson.dumps({"jobs": [spec(first + index) for index in range(_CALL)]}))
            except (RuntimeError, OSError) as error:
                self.errors.append(str(error))
                return


def _live(stage: Stage) -> int:
    return _number(stage, "SELECT count(*) FROM jobs WHERE ended_at IS NULL")


def _number(stage: Stage, statement: str) -> int:
    with stage.sql() as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


_ENDED = "SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL"
_CHANGES = "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM jobs)"


def turn(stage: Stage, rate: float | None, pages: int, seconds: float) -> dict[str, Any]:
    """Run jobs for some seconds, with open pages if there are to be any; return what it cost."""
    clients = _opened(stage, pages, seconds) if pages else None
    noise = Noise()
    with Jobs(stage, rate) as jobs:
        time.sleep(_SETTLE_SECONDS)
        before, ended, changed = stage.cpu_seconds(), _number(stage, _ENDED), _number(stage, _CHANGES)
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        after, done = stage.cpu_seconds(), _number(stage, _ENDED) - ended
        changes = _number(stage, _CHANGES) - changed
        text = clients.communicate()[0] if clients else b""
    of_system = sum(after[name] - before[name] for name in after if name != "load")
    found = {
        "pages": pages,
        "jobs_per_second": round(done / took, 1),
        "changes_per_second": round(changes / took),
        "cpu": round((after["api-users-0"] - before["api-users-0"]) / took, 3),
        "cpu_microseconds_per_job": round(of_system / max(1, done) * 1e6),
        "noise": noise.found(),
        "errors": jobs.errors,
    }
    return found | {"clients": _of_clients(stage, orjson.loads(text), seconds)} if clients else found


def _opened(stage: Stage, pages: int, seconds: float) -> "subprocess.Popen[bytes]":
    port = str(urlsplit(stage.urls[0]).port)
    options = ["--port", port, "--pages", str(pages), "--seconds", str(seconds + 2 * _SETTLE_SECONDS)]
    command = [sys.executable, "-m", "bench.page_clients", *options, "--key", ADMIN_KEY]
    clients = subprocess.Popen(command, stdout=subprocess.PIPE)
    time.sleep(_SETTLE_SECONDS)
    return clients


def _of_clients(stage: Stage, found: dict[str, Any], seconds: float) -> dict[str, Any]:
    received, list_seconds = found.pop("received"), found.pop("list_seconds")
    with stage.sql() as connection:
        rows = connection.execute(
            "SELECT id, extract(epoch FROM ended_at)::float8 FROM jobs WHERE id = ANY(%s)",
            ([parse_job_id(one)[1] for one in received],),
        ).fetchall()
    at = {parse_job_id(one)[1]: moment for one, moment in received.items()}
    latencies = [at[key] - ended for key, ended in rows if ended is not None]
    found["cpu"] = round(found.pop("cpu_seconds") / (seconds + 2 * _SETTLE_SECONDS), 3)
    found["list_ms"] = _quantiles([one * 1000 for one in list_seconds])
    found["change_to_page_seconds"] = _quantiles(latencies)
    return found


def _quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {name: round(quantile(values, share), 2) for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}


def open_pages(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of open pages: at a rate, and as fast as possible."""
    stage = Stage(folder, fleet(10), env=_ENV)
    try:
        stage.start()
        probe = turn(stage, _FIRST_RATE, 0, options.seconds / 3)
        rate = options.changes * probe["jobs_per_second"] / max(1, probe["changes_per_second"])
        found: dict[str, Any] = {}
        for name, paced in (("at_rate", rate), ("at_most", None)):
            with_pages: list[dict[str, Any]] = []
            without: list[dict[str, Any]] = []
            for number in range(options.rounds):
                for has_pages in (number % 2 == 1, number % 2 == 0):
                    figures = turn(stage, paced, options.pages if has_pages else 0, options.seconds)
                    (with_pages if has_pages else without).append(figures)
            found[name] = _compared(without, with_pages) | {"without": without, "with": with_pages}
        return found | {"stores": stores(stage.database_url)}
    finally:
        stage.stop()


def _compared(without: list[dict[str, Any]], with_pages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over rounds: of the api's cores with and without pages, and how much lower the flow is with them."""

    def median(turns: list[dict[str, Any]], name: str) -> float:
        return statistics.median(float(one[name]) for one in turns)

    lower = 1 - median(with_pages, "jobs_per_second") / max(1e-9, median(without, "jobs_per_second"))
    return {
        "cpu_without": median(without, "cpu"),
        "cpu_with": median(with_pages, "cpu"),
        "changes_per_second": median(with_pages, "changes_per_second"),
        "flow_lower_by": round(lower, 3),
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--parts", default=",".join(PARTS))
    made.add_argument("--jobs", type=int, default=1_000_000)
    made.add_argument("--requests", type=int, default=10, help="of each list")
    made.add_argument("--pages", type=int, default=500)
    made.add_argument("--changes", type=int, default=1000, help="of jobs, a second")
    made.add_argument("--seconds", type=float, default=30.0)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument(
        "--loads", type=int, default=10, help="of each page, with an empty cache and again with a filled one"
    )
    return made


def main() -> None:
    made = parser()
    options = made.parse_args()
    parts = options.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        made.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {"bench": "pages", "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        if "lists" in parts:
            figures["lists"] = lists(Path(folder) / "lists", options)
        if "open" in parts:
            figures["open"] = open_pages(Path(folder) / "open", options)
        if "paint" in parts:
            noise = Noise()
            figures["paint"] = paint(Path(folder) / "paint", options.jobs, options.loads)
            figures["paint"]["noise"] = noise.found()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
