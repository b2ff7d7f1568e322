"""Throughput of whole lives: submit -> dispatched -> running -> succeeded, over real HTTP, on simulated clusters.

    python -m bench.flow [--jobs 100000] [--clusters 10] [--call 100]

Real processes: Postgres with its durability settings, Redis, an api for users, one for agents, the scheduler, and one agent
process that simulates all clusters. Tiny jobs of one member that run for 50 ms come in calls of ``--call``, as fast as the
system takes them while at most ``--in-flight`` have not ended. The rate is that of the ends between the tenth and the ninetieth
part of all jobs. Afterwards the same rows are written bare (``bench.replay``) for ``ratio_to_postgres``.
"""

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import orjson

from bench.numbers import stores, summary
from bench.posting import Poster, RefusedError
from bench.replay import replay
from bench.stage import Stage

MOST_SECONDS = 60.0


def fleet(clusters: int) -> list[dict[str, Any]]:
    """Return clusters of 20 nodes with 32 CPUs each."""
    group = {"name": "nodes", "count": 20, "resources": {"cpu": "32", "memory": "128Gi"}}
    return [{"name": f"c{number}", "groups": [group]} for number in range(clusters)]


def spec(number: int) -> dict[str, Any]:
    """Return a tiny job; each has arguments and environment of its own."""
    template = {
        "image": "registry.example/tiny:1",
        "command": ["python", "-m", "tiny"],
        "args": ["--item", str(number)],
        "env": {"ITEM": str(number), "SIM_RUN_TIME": "50ms"},
        "resources": {"cpu": "1", "memory": "1Gi"},
    }
    return {"kind": "Job", "name": "tiny", "queue": "default", "roles": [{"name": "main", "template": template}]}


class Load:
    """Submits in threads, each over a connection of its own, and waits where too many jobs have not ended."""

    def __init__(self, stage: Stage, jobs: int, call: int, in_flight: int, threads: int) -> None:
        self.stage = stage
        self.jobs = jobs
        self.call = call
        self.in_flight = in_flight
        self.submitted = 0
        self.ended = 0
        self.refused = 0
        self.errors: list[str] = []
        self.over = threading.Event()
        self._next = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._submit, args=(number,)) for number in range(threads)]

    def run(self) -> float:
        """Run until all jobs have ended or the time is over; return the seconds it took."""
        began = time.monotonic()
        for thread in self._threads:
            thread.start()
        with self.stage.sql() as connection:
            while not self.over.is_set():
                row = connection.execute("SELECT count(*) FROM jobs WHERE ended_at IS NULL").fetchone()
                assert row is not None
                submitted = self.submitted
                self.ended = max(0, submitted - row[0])
                if submitted >= self.jobs and row[0] == 0:
                    break
                if time.monotonic() - began > MOST_SECONDS and submitted < self.jobs:
                    self.jobs = submitted
                if time.monotonic() - began > 3 * MOST_SECONDS:
                    self.errors.append("not every job ended")
                    break
                time.sleep(0.1)
        self.over.set()
        for thread in self._threads:
            thread.join()
        return time.monotonic() - began

    def _submit(self, number: int) -> None:
        poster = Poster(self.stage.urls[number % len(self.stage.urls)])
        while not self.over.is_set():
            with self._lock:
                start = self._next
                self._next = min(self.jobs, start + self.call)
                many = self._next - start
            if many <= 0:
                break
            while self.submitted - self.ended >= self.in_flight and not self.over.is_set():
                time.sleep(0.01)
            jobs = [spec(start + index) for index in range(many)]
            try:
                poster.post("/v1/jobs", orjson.dumps(jobs[0] if self.call == 1 else {"jobs": jobs}), f"flow-{start}")
            except (RefusedError, OSError) as error:
                self.errors.append(str(error))
                self.over.set()
                break
            with self._lock:
                self.submitted += many
        self.refused += poster.refused


_ENDS = "SELECT extract(epoch FROM ended_at)::float8 FROM jobs WHERE ended_at IS NOT NULL ORDER BY ended_at"
_TIMES = """
    SELECT extract(epoch FROM e.at - j.submitted_at)::float8, extract(epoch FROM j.ended_at - j.submitted_at)::float8
    FROM jobs j JOIN events e ON e.job_id = j.id AND e.kind = 'dispatched' WHERE j.ended_at IS NOT NULL
"""
_CHECK = """
    SELECT (SELECT count(*) FROM jobs) AS jobs,
           (SELECT count(*) FROM jobs WHERE state = 'succeeded') AS succeeded,
           (SELECT count(*) FROM runs) AS runs,
           (SELECT count(DISTINCT job_id) FROM runs WHERE state = 'succeeded') AS jobs_with_a_succeeded_run,
           (SELECT count(*) FROM events WHERE kind = 'run.succeeded') AS ends_told,
           (SELECT count(*) FROM (SELECT job_id FROM events WHERE kind = 'run.succeeded'
            GROUP BY job_id HAVING count(*) > 1) AS twice) AS ended_twice
"""


def measure(stage: Stage, jobs: int, call: int, in_flight: int, threads: int) -> dict[str, Any]:
    load = Load(stage, jobs, call, in_flight, threads)
    before = stage.cpu_seconds()
    seconds = load.run()
    after = stage.cpu_seconds()
    with stage.sql() as connection:
        ends = [row[0] for row in connection.execute(_ENDS)]
        times = connection.execute(_TIMES).fetchall()
        cursor = connection.execute(_CHECK)
        names = [column.name for column in cursor.description or ()]
        check = dict(zip(names, cursor.fetchone() or (), strict=True))
    low, high = int(0.1 * len(ends)), int(0.9 * len(ends)) - 1
    cpu = {name: round(after[name] - before.get(name, 0.0), 1) for name in after}
    right = len({*list(check.values())[:-1], load.submitted}) == 1 and check["ended_twice"] == 0
    return {
        "bench": "flow",
        "jobs": load.submitted,
        "jobs_per_call": call,
        "clusters": len(stage.fleet),
        "in_flight": in_flight,
        "jobs_per_second": round((high - low) / (ends[high] - ends[low]), 1),
        "whole_seconds": round(seconds, 1),
        "submit_to_dispatched": summary([row[0] for row in times]),
        "submit_to_ended": summary([row[1] for row in times]),
        "calls_refused": load.refused,
        "errors": load.errors,
        "check": check,
        "all_ended_once": right,
        "cpu_seconds": cpu,
        "cpu_microseconds_per_job": {name: round(used / max(1, load.submitted) * 1e6) for name, used in cpu.items()},
        "rss_bytes": stage.rss_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--call", type=int, default=100, help="jobs in one POST")
    parser.add_argument("--in-flight", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--replay", type=int, default=30_000, help="jobs of the bare replay")
    parser.add_argument("--folder", type=Path, help="keep logs and data there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as temporary:
        stage = Stage(options.folder or Path(temporary), fleet(options.clusters))
        try:
            stage.start()
            result = measure(stage, options.jobs, options.call, options.in_flight, options.threads)
            bare = replay(stage.database_url, spec(1), options.replay)
            result["bare_replay_jobs_per_second"] = round(bare, 1)
            result["ratio_to_postgres"] = round(result["jobs_per_second"] / bare, 3)
            result["stores"] = stores(stage.database_url)
            result["redis"] = Path(stage.children["redis"].command[0]).name
        finally:
            stage.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
