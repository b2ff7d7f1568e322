"""The cost of reports of what members use: for an agent, an api and the store, for 10,000 members.

    python -m bench.use [--parts reports,day] [--members 10000] [--size 8] [--per-node 8] [--others 10] [--rounds 6] [--seconds 30]

``reports``: an agent reports every ``--seconds`` what the members of running jobs use, ``--size`` of each, on nodes with
``--per-node`` members and ``--others`` other pods. Reading, sending, api and Postgres are real, each a process of its own; the API
server with its kubelets is a stub (``bench.kubelets``), without TLS. Figures are medians of the rounds after the first one.
``share_of_a_core`` is that of this interval. CPU of api and Postgres is without what they use idle.

``day``: what a day of samples, one every 30 s, leaves in the store, for runs of several sizes, by the store's own functions with a
clock of the benchmark: a checkpoint and a vacuum every 5 minutes of it, as Postgres does by default, so that the write-ahead log
has as many whole pages as in a real day. ``history_bytes``: tables and indexes at the end of the day; ``latest_bytes``: those of
the last samples and sums. ``roll_up``: the first turn of retention after the day is over; ``rolled_up_bytes``: of its rows, without
free space.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psycopg

from bench.cpu import cpu_seconds, load_average
from bench.numbers import stores
from bench.pages import Noise
from bench.posting import Poster
from bench.stage import Stage
from bench.use_agent import JOB, ROLE
from trainmaster.client.aio import AgentClient
from trainmaster.protocol.agent import SyncRequest
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.member_use import USE_SECONDS
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.domain.member_use import MemberValues, RunSums
from trainmaster_dispatcher.domain.use_history import pack_sample
from trainmaster_dispatcher.services.retention import BATCH
from trainmaster_dispatcher.store import member_use, use_history
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.member_use import NewSample
from trainmaster_dispatcher.store.use_history import PackedSample

PARTS = ("reports", "day")
CLUSTER, SESSION = "bench", "bench-session"
PER = 10_000
"""The members that figures of the store are for."""
DAY, _CHECKPOINT_SECONDS = 86_400, 300
_IDLE_SECONDS = 20.0
_PATIENCE = 60.0
_GIB = 2**30
_HISTORY, _LATEST = "use_history", ("run_use", "member_use")


class UseStage(Stage):
    """Postgres, Redis and apis, with a cluster whose agent does nothing but report use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [{"name": CLUSTER}], schedulers=0)

    def _start_agents(self) -> None:
        asyncio.run(self._connect())

    async def _connect(self) -> None:
        async with AgentClient(self.agent_url, f"tmk_{CLUSTER}") as client:
            await client.sync(SyncRequest(session=SESSION, holder=SESSION, number=1, cluster=CLUSTER))

    @property
    def agent_url(self) -> str:
        return f"http://127.0.0.1:{self.agent_ports[0]}"

    def fill(self, members: int, size: int) -> int:
        """Store running jobs with as many members; return the key of the first one."""
        resources = {"cpu": "1", "memory": "4Gi"}
        role = {"name": ROLE, "replicas": size, "template": {"image": "sim", "resources": resources}}
        job = {"kind": "Job", "name": JOB, "queue": "default", "roles": [role]}
        Poster(self.urls[0]).post("/v1/jobs", orjson.dumps(job))
        with self.sql() as connection:
            parameters = {"runs": -(-members // size), "sizes": orjson.dumps({ROLE: size}).decode(), "name": CLUSTER}
            row = connection.execute(_FILL, parameters).fetchone()
            connection.execute("VACUUM ANALYZE jobs, runs")
        assert row is not None
        return int(row[0])


_FILL = """
    WITH made AS (
        INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, submitted_at, state, attempt, started_at, version)
        SELECT p.name, p.queue_id, p.class_id, p.shape_id, p.spec_id, p.api_key_id, now(), 'running', 1, now(), 3
        FROM (SELECT * FROM jobs ORDER BY id LIMIT 1) p, generate_series(1, %(runs)s) RETURNING id),
    started AS (
        INSERT INTO runs (job_id, attempt, cluster_id, state, known, desired_version, digest, sizes, assumed, decision, counted,
                          leased_at, started_at)
        SELECT made.id, 1, c.id, 'running', true, 1, 1, CAST(%(sizes)s AS jsonb), '[]', '{}', true, now(), now()
        FROM made, clusters c WHERE c.name = %(name)s RETURNING job_id)
    SELECT min(job_id) FROM started
"""


# -- reports


def reports(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what reports of all members cost, read of kubelets and of the metrics API."""
    stage = UseStage(folder)
    try:
        stage.start()
        first = stage.fill(options.members, options.size)
        port = free_port()
        words = ("--members", options.members, "--per-node", options.per_node, "--others", options.others)
        kubelets = stage.add("kubelets", _program("bench.kubelets", "--port", port, *words))
        _until_answers(f"http://127.0.0.1:{port}/counted")
        idle = _idle(stage)
        found = {
            "members": options.members,
            "runs": -(-options.members // options.size),
            "nodes": -(-options.members // options.per_node),
            "seconds": options.seconds,
        }
        for source in ("kubelet", "metrics"):
            found[source] = _of_source(stage, source, port, first, idle, options)
        assert kubelets.process is not None
        return found | {"idle_cores": idle, "stores": stores(stage.database_url)}
    finally:
        stage.stop()


def _program(module: str, *words: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, words)]


def _until_answers(url: str) -> None:
    ends = time.monotonic() + _PATIENCE
    while True:
        try:
            _counted(url)
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)
        else:
            return


def _counted(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:  # noqa: S310 - of this benchmark's own server
        counted: dict[str, int] = orjson.loads(answer.read())
    return counted


def _idle(stage: UseStage) -> dict[str, float]:
    """Return the cores that api and Postgres use without reports."""
    time.sleep(5)
    before, began = stage.cpu_seconds(), time.monotonic()
    time.sleep(_IDLE_SECONDS)
    after, took = stage.cpu_seconds(), time.monotonic() - began
    return {name: round((after[name] - before[name]) / took, 4) for name in ("api-agents-0", "postgres")}


@dataclass(frozen=True, slots=True)
class _Mark:
    """Counts at the begin of a round."""

    at: float
    line: dict[str, Any]
    cpu: dict[str, float]
    counted: dict[str, int]


def _of_source(
    stage: UseStage, source: str, port: int, first: int, idle: dict[str, float], options: argparse.Namespace
) -> dict[str, Any]:
    kube = f"http://127.0.0.1:{port}"
    words = {
        "url": stage.agent_url,
        "key": f"tmk_{CLUSTER}",
        "kube": kube,
        "session": SESSION,
        "source": source,
        "first": first,
        "members": options.members,
        "size": options.size,
        "per-node": options.per_node,
        "rounds": options.rounds + 1,
        "seconds": options.seconds,
    }
    command = _program("bench.use_agent", *(word for name, value in words.items() for word in (f"--{name}", value)))
    marks: list[_Mark] = []
    noise = Noise()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        for text in agent.stdout:
            line = orjson.loads(text)
            if "error" in line:
                raise RuntimeError(line["error"])
            marks.append(_Mark(time.monotonic(), line, stage.cpu_seconds(), _counted(f"{kube}/counted")))
    if len(marks) != options.rounds + 2:
        raise RuntimeError(f"the agent has ended after {len(marks)} rounds")
    rounds = [_round(before, after, idle) for before, after in itertools.pairwise(marks[1:])]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    spread = {name: [min(one[name] for one in rounds), max(one[name] for one in rounds)] for name in _CPU}
    with stage.sql() as connection:
        row = connection.execute(
            "SELECT sum(members) FROM run_use WHERE sampled_at > now() - interval '1 hour'"
        ).fetchone()
    assert row is not None
    if row[0] != options.members:
        raise RuntimeError(f"the use of {row[0]} members is stored, not of {options.members}")
    reported = round(medians["reports"])
    return {
        **{name: round(value, 3) for name, value in medians.items()},
        "spread": spread,
        "api_cpu_milliseconds_per_report": round(1000 * medians["api_cpu_seconds"] / reported, 1),
        "report_bytes": marks[1].line["bytes"],
        "share_of_a_core": {name: round(medians[name] / options.seconds, 4) for name in _CPU},
        "noise": noise.found(),
    }


_CPU = ("agent_cpu_seconds", "api_cpu_seconds", "postgres_cpu_seconds")


def _round(before: _Mark, after: _Mark, idle: dict[str, float]) -> dict[str, float]:
    seconds = after.at - before.at

    def used(name: str) -> float:
        return round(after.cpu[name] - before.cpu[name] - idle[name] * seconds, 3)

    reported = after.line["reports"] - before.line["reports"]
    if not reported:
        raise RuntimeError("no report was sent in a round; see the messages above")
    return {
        "agent_cpu_seconds": round(after.line["cpu_seconds"] - before.line["cpu_seconds"], 3),
        "api_cpu_seconds": used("api-agents-0"),
        "postgres_cpu_seconds": used("postgres"),
        "round_seconds": round(after.line["took"], 2),
        "reports": reported,
        "requests": after.counted["requests"] - before.counted["requests"],
        "read_bytes": after.counted["bytes"] - before.counted["bytes"],
    }


# -- the store


@dataclass(frozen=True, slots=True)
class Kind:
    """Runs of which a day is stored. ``gpus``: whether the use of GPUs is known."""

    name: str
    runs: int
    size: int
    gpus: bool = False

    @property
    def members(self) -> int:
        return self.runs * self.size


KINDS = (
    Kind("of 1", 400, 1),
    Kind("of 8", 50, 8),
    Kind("of 8 with GPUs", 50, 8, gpus=True),
    Kind("of 100", 4, 100),
)
_CLOCK = """
    CREATE SCHEMA bench;
    CREATE FUNCTION bench.now() RETURNS timestamptz LANGUAGE sql STABLE AS
        $$SELECT pg_catalog.now() + make_interval(secs => coalesce(nullif(current_setting('bench.ahead', true), ''), '0')::float8)$$;
"""


def _values(kind: Kind, run: int, at: float) -> MemberValues:
    """Return a sample that differs from the one before in all amounts."""

    def wave(member: int, seconds: float) -> float:
        return 0.6 + 0.4 * math.sin(at / seconds + run + 0.7 * member)

    members = range(kind.size)
    memory = [int(3 * _GIB * wave(one, 3000)) for one in members]
    return MemberValues(
        [(ROLE, 0, kind.size)],
        [int(1000 * wave(one, 90)) for one in members],
        memory,
        [3 * _GIB] * kind.size,
        [int(100 * wave(one, 120)) for one in members] if kind.gpus else [],
        [int(60 * _GIB * wave(one, 5000)) for one in members] if kind.gpus else [],
        [0] * kind.size,
        [0] * kind.size,
        [0] * kind.size,
    )


def _sample(kind: Kind, run: int, at: float) -> NewSample:
    values = _values(kind, run, at)
    cpu, memory = sum(values.cpu), sum(values.memory)
    sums = RunSums(
        members=kind.size,
        cpu=cpu,
        memory=memory,
        requested_cpu=1000 * kind.size,
        requested_memory=4 * _GIB * kind.size,
        peak_memory=max(values.peak_memory),
        cpu_measured=at,
        cpu_seconds=at * kind.size / 2,
        cpu_requested=at * kind.size,
        peak_cpu=1000,
        restarts=0,
        oom_kills=0,
        near_misses=0,
    )
    return NewSample(RunRef(1_000_000 + run, 1), sums, values)


def day(folder: Path) -> dict[str, Any]:
    """Return what a day of samples leaves in the store, and what rolling it up costs, by kind of run."""
    stage = UseStage(folder)
    try:
        stage.start()
        with stage.sql() as connection:
            connection.execute(_CLOCK)
            name = connection.info.dbname
            connection.execute(f'ALTER DATABASE "{name}" SET search_path = bench, pg_catalog, public'.encode())
        found = {kind.name: asyncio.run(_Day(stage, kind).run()) for kind in KINDS}
        return {"per_members": PER, **found, "stores": stores(stage.database_url)}
    finally:
        stage.stop()


class _Day:
    """A day of samples of one kind of runs, and its roll-up."""

    def __init__(self, stage: UseStage, kind: Kind) -> None:
        self._stage = stage
        self._kind = kind
        self._database = Database(stage.database_url, pool_size=1, overflow=0)

    async def run(self) -> dict[str, Any]:
        try:
            with self._stage.sql() as connection:
                connection.execute(f"TRUNCATE {', '.join((_HISTORY, *_LATEST))}".encode())
                return await self._measured(connection)
        finally:
            await self._database.engine.dispose()

    async def _measured(self, connection: "psycopg.Connection[Any]") -> dict[str, Any]:
        kind, began = self._kind, time.time()
        _tidy(connection)
        wal = _number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        for ahead in range(0, DAY, USE_SECONDS):
            await self._take(began, ahead)
            if ahead % _CHECKPOINT_SECONDS == 0:
                _tidy(connection)
        _tidy(connection)
        wal = _number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - wal
        samples = kind.members * DAY // USE_SECONDS
        scale = PER / kind.members
        rows = _number(connection, f"SELECT count(*) FROM {_HISTORY}")
        data = _number(connection, f"SELECT sum(octet_length(data)) FROM {_HISTORY}")
        found = {
            "runs": kind.runs,
            "members": kind.members,
            "rows_per_member_and_day": round(rows / kind.members, 2),
            "packed_bytes_per_sample": round(data / samples, 2),
            "history_bytes_per_sample": round(_size(connection, [_HISTORY]) / samples, 2),
            "wal_bytes_per_sample": round(wal / samples, 1),
            "history_bytes": round(_size(connection, [_HISTORY]) * scale),
            "latest_bytes": round(_size(connection, _LATEST) * scale),
            "wal_bytes_per_day": round(wal * scale),
        }
        return found | {"roll_up": await self._roll_up(connection, scale, samples)}

    async def _take(self, began: float, ahead: int) -> None:
        """Store the samples of all runs as a report does, at a time of the day."""
        at = began + ahead
        samples = [_sample(self._kind, run, at) for run in range(self._kind.runs)]
        packed = [PackedSample(one.ref, one.values.places, pack_sample(one.values, int(at))) for one in samples]
        async with self._database.transaction() as tx:
            await tx.run("SELECT set_config('bench.ahead', :ahead, true)", ahead=str(at - time.time()))
            await member_use.save(tx, samples, USE_SECONDS)
            await use_history.add(tx, packed)

    async def _roll_up(self, connection: "psycopg.Connection[Any]", scale: float, samples: int) -> dict[str, Any]:
        wal = _number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        cpu, postgres, began = cpu_seconds(), self._stage.cpu_seconds()["postgres"], time.monotonic()
        more = True
        while more:
            async with self._database.transaction() as tx:
                await tx.run("SELECT set_config('bench.ahead', :ahead, true)", ahead=str(3.0 * DAY))
                more = await use_history.roll_up(tx, DAY, BATCH)
        took = time.monotonic() - began
        cpu, postgres = cpu_seconds() - cpu, self._stage.cpu_seconds()["postgres"] - postgres
        wal = _number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - wal
        rows = _number(connection, f"SELECT count(*) FROM {_HISTORY}")
        stored = _number(connection, f"SELECT sum(pg_column_size(h.*)) FROM {_HISTORY} h")
        return {
            "seconds": round(took * scale, 1),
            "worker_cpu_seconds": round(cpu * scale, 1),
            "postgres_cpu_seconds": round(postgres * scale, 1),
            "microseconds_per_sample": round(1e6 * (cpu + postgres) / samples, 2),
            "wal_bytes": round(wal * scale),
            "rows_per_member_and_day": round(rows / self._kind.members, 2),
            "rolled_up_bytes": round(stored * scale),
        }


def _tidy(connection: "psycopg.Connection[Any]") -> None:
    """Do what Postgres does by itself every few minutes."""
    connection.execute(f"VACUUM {', '.join((_HISTORY, *_LATEST))}".encode())
    connection.execute("CHECKPOINT")


def _size(connection: "psycopg.Connection[Any]", tables: Sequence[str]) -> int:
    return sum(_number(connection, f"SELECT pg_total_relation_size('{name}')") for name in tables)


def _number(connection: "psycopg.Connection[Any]", statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--members", type=int, default=PER)
    parser.add_argument("--size", type=int, default=8, help="members of a run")
    parser.add_argument("--per-node", type=int, default=8, help="members on a node")
    parser.add_argument("--others", type=int, default=10, help="other pods on a node")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=USE_SECONDS, help="from one report to the next")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {"bench": "use", "cores": os.cpu_count(), "load": load_average()}
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        if "reports" in parts:
            figures["reports"] = reports(Path(folder) / "reports", options)
        if "day" in parts:
            figures["day"] = day(Path(folder) / "day")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
