"""A long run in minutes: a steady load while processes are killed; memory, lag and records must stay as they should.

    python -m bench.soak [--minutes 20] [--rate 1000]

Jobs come at a steady rate in calls of 100, each call repeated with its idempotency key until it is acknowledged. Every
``--kill`` seconds one process is killed (-9) and restarted: an api, the scheduler that leads or the one that stands by,
the agents, the worker, beat, or Redis. Two of a hundred jobs have a webhook, whose receiver fails one time in five; two
of a hundred fail at their first run and are tried again. At the end every acknowledged job must have ended once, and
every webhook must have been accepted, in order.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import psutil

from bench.flow import fleet, spec
from bench.hooks import SECRET, Receiver
from bench.numbers import stores
from bench.posting import Poster, RefusedError
from bench.stage import Stage

CALL = 100
KILLED = ("api-users-0", "api-agents-0", "scheduler-0", "scheduler-1", "agents-0", "worker", "beat", "redis")
WARM_UP = 0.15
"""Part of the time after which memory should no longer grow."""


def jobs_of(call: int, hook: str) -> list[dict[str, Any]]:
    """Return the jobs of a call; which of them have a webhook or fail at first follows from their numbers."""
    out = []
    for number in range(call * CALL, call * CALL + CALL):
        job = spec(number)
        environment = job["roles"][0]["template"]["env"]
        environment["SIM_RUN_TIME"] = "50ms-2s"
        if number % 50 == 7:
            job["notify"] = [{"url": hook, "states": ["running", "succeeded"]}]
        if number % 50 == 11:
            environment["SIM_FAIL_RUNS"] = "1"
            job["retries"] = {"limit": 1, "backOff": "1s"}
        out.append(job)
    return out


class Load:
    """A call each ``CALL / rate`` seconds, by threads that each do the next one due."""

    def __init__(self, stage: Stage, rate: float, seconds: float, hook: str, threads: int = 4) -> None:
        self._stage = stage
        self._rate = rate
        self._seconds = seconds
        self._hook = hook
        self._next = 0
        self._lock = threading.Lock()
        self.acknowledged = 0
        self.repeats = 0
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def start(self) -> None:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        poster = Poster(self._stage.urls[0])
        while True:
            with self._lock:
                call, self._next = self._next, self._next + 1
            due = call * CALL / self._rate
            if due >= self._seconds:
                return
            time.sleep(max(0.0, self._began + due - time.monotonic()))
            body = orjson.dumps({"jobs": jobs_of(call, self._hook)})
            while True:
                try:
                    poster.post("/v1/jobs", body, f"soak-{call}")
                    break
                except RefusedError as error:
                    self.errors.append(str(error))
                    break
                except OSError:
                    # The api was killed; whether the call was stored is not known, so it is said again with its key.
                    poster.close()
                    self.repeats += 1
                    time.sleep(0.2)
            with self._lock:
                self.acknowledged += CALL


@dataclass
class Watch:
    """The samples that are taken every ten seconds."""

    stage: Stage
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    cores: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """CPU seconds per second since the previous sample; not if the process was restarted in between."""
    machine: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By minute, the parts of the machine's CPU time that were used here and that were taken by others (steal)."""
    not_ended: list[int] = field(default_factory=list)
    outbox: list[int] = field(default_factory=list)
    _before: tuple[float, dict[str, float]] | None = None
    _machine_before: tuple[float, float, float] | None = None

    def look(self, at: float) -> None:
        self._look_at_machine(at)
        for name, size in self.stage.rss_bytes().items():
            self.memory[name].append((at, size))
        cpu, then = self.stage.cpu_seconds(), self._before
        for name, used in cpu.items():
            if then is not None and used >= then[1].get(name, used + 1):
                self.cores[name].append((at, (used - then[1][name]) / (at - then[0])))
        self._before = at, cpu
        with self.stage.sql() as connection:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM jobs WHERE ended_at IS NULL), (SELECT count(*) FROM outbox)"
            ).fetchone()
        assert row is not None
        self.not_ended.append(int(row[0]))
        self.outbox.append(int(row[1]))

    def _look_at_machine(self, at: float) -> None:
        times = psutil.cpu_times()
        whole, idle, stolen = sum(times[:8]), times.idle + times.iowait, times.steal
        if self._machine_before is not None:
            passed, unused, taken = (
                now - then for now, then in zip((whole, idle, stolen), self._machine_before, strict=True)
            )
            self.machine[int(at // 60)].append(((passed - unused - taken) / passed, taken / passed))
        self._machine_before = whole, idle, stolen

    def machine_in(self, minute: int) -> dict[str, float]:
        """Return the parts of the CPU time that were used here and by others in a minute."""
        samples = self.machine.get(minute)
        if not samples:
            return {}
        used, stolen = (sum(parts) / len(samples) for parts in zip(*samples, strict=True))
        return {"cpu_used": round(used, 3), "cpu_stolen": round(stolen, 3)}


def growth(of: dict[str, list[tuple[float, float]]], seconds: float, digits: int) -> dict[str, dict[str, float]]:
    """Return for each process the median of the fifth after the warm-up, of the last fifth, and their ratio."""
    out = {}
    for name, samples in of.items():
        early = [value for at, value in samples if WARM_UP * seconds <= at < (WARM_UP + 0.2) * seconds]
        late = [value for at, value in samples if 0.8 * seconds <= at <= seconds]
        if early and late and median(early):
            ratio = median(late) / median(early)
            out[name] = {
                "early": round(median(early), digits),
                "late": round(median(late), digits),
                "ratio": round(ratio, 3),
            }
    return out


_LAGS = """
    SELECT floor(extract(epoch FROM j.submitted_at - (SELECT min(submitted_at) FROM jobs)) / 60)::int AS minute,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM j.ended_at - j.submitted_at)),
           percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM j.ended_at - j.submitted_at))
    FROM jobs j GROUP BY 1 ORDER BY 1
"""
_CHECK = """
    SELECT (SELECT count(*) FROM jobs) AS jobs,
           (SELECT count(*) FROM jobs WHERE state = 'succeeded') AS succeeded,
           (SELECT count(*) FROM runs WHERE state = 'succeeded') AS succeeded_runs,
           (SELECT count(*) FROM runs WHERE ended_at IS NULL) AS live_runs,
           (SELECT count(*) FROM (SELECT job_id FROM events WHERE kind = 'run.succeeded'
            GROUP BY job_id HAVING count(*) > 1) AS twice) AS ended_twice,
           (SELECT count(*) FROM jobs WHERE notifies) AS jobs_with_a_webhook,
           (SELECT count(*) FROM events e JOIN jobs j ON j.id = e.job_id WHERE j.notifies
            AND e.states && ARRAY['running', 'succeeded']) AS messages_due,
           (SELECT count(*) FROM outbox) AS messages_left
"""


def run(stage: Stage, receiver: Receiver, minutes: float, rate: float, kill_every: float, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    seconds = minutes * 60
    load, watch = Load(stage, rate, seconds, receiver.url), Watch(stage)
    kills: dict[str, int] = defaultdict(int)
    killed: dict[int, list[str]] = defaultdict(list)
    load.start()
    began = time.monotonic()
    next_kill, next_look = kill_every, 0.0
    while (at := time.monotonic() - began) < seconds:
        if at >= next_look:
            watch.look(at)
            next_look += 10.0
        if at >= next_kill:
            name = draw.choice(KILLED)
            kills[name] += 1
            killed[int(at // 60)].append(name)
            stage.kill(name)
            next_kill += kill_every
        time.sleep(0.1)
    load.join()
    submitted_seconds = time.monotonic() - began
    drained = _drain(stage, 180.0)
    with stage.sql() as connection:
        lags = connection.execute(_LAGS).fetchall()
        cursor = connection.execute(_CHECK)
        check = dict(zip([column.name for column in cursor.description or ()], cursor.fetchone() or (), strict=True))
    once = (
        load.acknowledged == check["jobs"] == check["succeeded"] == check["succeeded_runs"]
        and check["ended_twice"] == check["live_runs"] == 0
    )
    return {
        "bench": "soak",
        "minutes": minutes,
        "jobs_per_second": round(load.acknowledged / submitted_seconds, 1),
        "jobs": load.acknowledged,
        "kills": dict(kills),
        "calls_repeated": load.repeats,
        "errors": load.errors[:10],
        "all_ended_once": once,
        "drain_seconds": drained,
        "check": check,
        "webhooks": {
            "delivered": receiver.messages,
            "all_delivered": receiver.messages == check["messages_due"] and check["messages_left"] == 0,
            "refused_by_the_receiver": receiver.refused,
            "came_again": receiver.repeated,
            "badly_signed": receiver.badly_signed,
            "jobs_out_of_order": receiver.out_of_order,
        },
        "submit_to_ended_by_minute": [
            {
                "minute": row[0],
                "p50_seconds": round(row[1], 3),
                "p99_seconds": round(row[2], 3),
                "killed": killed[row[0]],
            }
            | watch.machine_in(row[0])
            for row in lags
        ],
        "not_ended": summary_of(watch.not_ended),
        "outbox_rows": summary_of(watch.outbox),
        "memory_bytes": growth(watch.memory, seconds, 0),
        "cores": growth(watch.cores, seconds, 3),
        "stores": stores(stage.database_url),
    }


def summary_of(values: list[int]) -> dict[str, float]:
    """Return a count over time: its median in the first and the last third, and its peak."""
    third = max(1, len(values) // 3)
    return {"early": median(values[:third]), "late": median(values[-third:]), "most": max(values)}


def _drain(stage: Stage, most_seconds: float) -> float:
    """Wait until every job has ended and every message is gone; return the seconds that it took."""
    began = time.monotonic()
    with stage.sql() as connection:
        while time.monotonic() - began < most_seconds:
            row = connection.execute(
                "SELECT EXISTS (SELECT 1 FROM jobs WHERE ended_at IS NULL) OR EXISTS (SELECT 1 FROM outbox WHERE dead_at IS NULL)"
            ).fetchone()
            if row is not None and not row[0]:
                break
            time.sleep(0.5)
    return round(time.monotonic() - began, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="jobs per second")
    parser.add_argument("--kill", type=float, default=30.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep logs and data there")
    options = parser.parse_args()
    env = {
        "TRAINMASTER_WEBHOOK_SECRET": SECRET,
        "TRAINMASTER_WEBHOOK_ALLOW_HTTP": "1",
        "TRAINMASTER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
        "TRAINMASTER_WEBHOOK_FIRST_RETRY_SECONDS": "0.5",
    }
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as temporary, Receiver(options.seed) as receiver:
        folder = options.folder or Path(temporary)
        stage = Stage(folder, fleet(10), schedulers=2, side_jobs=True, durable_agents=True, env=env)
        try:
            stage.start()
            result = run(stage, receiver, options.minutes, options.rate, options.kill, options.seed)
        finally:
            stage.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
