"""Kueue's scheduler benchmark on this system: two scenarios in real time, through the real scheduler, store and agents.

    python -m bench.kueue [--scenario baseline|large-scale|both]

Real processes: Postgres with its durability settings, Redis, an api for users, one for agents, the scheduler, and one agent process
that simulates one cluster per cohort. Queues with guarantees and borrowing limits and the three priority classes are made over
REST. Workloads are submitted when they are due, whether the system keeps up or not (``bench.kueue_load``).

``wall_seconds`` is from the first due time to the last end in the store, ``least_wall_seconds`` what arrivals and work allow.
``utilisation`` is the CPU time of the work alone over capacity x wall; ``held_share`` counts each run from its dispatch until its
end was stored, which is what Kueue publishes as usage. The published figures are recomputed in the same terms under ``published``.
Times to admit count from the due time, so that a late submission does not flatter them; ``stored_to_dispatched`` leaves the
submission out, as Kueue's do. A job that ran more than once counts by the run that succeeded.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.kueue_load import (
    BORROWED_CPUS,
    GUARANTEED_CPUS,
    SCENARIOS,
    Answered,
    Generator,
    Scenario,
    Workload,
    calls_of,
    spec,
)
from bench.numbers import stores, summary
from bench.stage import ADMIN_KEY, Stage
from trainmaster.client.http import Client
from trainmaster.protocol.states import JobState

MOST_SECONDS = 900.0
"""Seconds after the last submission; jobs that have not ended then are reported as an error."""
WARM_UP = "warm-up"


def fleet(scenario: Scenario) -> list[dict[str, Any]]:
    """Return a cluster for each cohort: one node with all its CPUs, since the scenario has quota and no nodes."""
    group = {"name": "quota", "count": 1, "resources": {"cpu": str(scenario.cohort_cpus)}}
    return [{"name": name, "groups": [group]} for name in scenario.cohort_names]


def queues(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the queues, parents first. The limit of a cohort keeps it from borrowing from another one."""
    whole = {"cpu": {"guaranteed": str(scenario.cohort_cpus), "limit": str(scenario.cohort_cpus)}}
    own = {"cpu": {"guaranteed": str(GUARANTEED_CPUS), "borrowingLimit": str(BORROWED_CPUS)}}
    parents = [{"path": name, "resources": whole} for name in scenario.cohort_names]
    return [*parents, *({"path": path, "resources": own} for path in scenario.queue_paths())]


def make_tenants(stage: Stage, scenario: Scenario, warm_up: Workload) -> None:
    """Make classes and queues, and wait until a first job has gone all the way, so that the scheduler knows them."""
    with Client(stage.urls[0], ADMIN_KEY) as client:
        for one in scenario.classes:
            client.put("PriorityClass", one.name, {"name": one.name, "value": one.priority})
        for queue in queues(scenario):
            client.put("Queue", queue["path"], queue)
        job = client.submit(spec(warm_up) | {"name": WARM_UP})[0]
        if client.wait(job, 60.0).state is not JobState.SUCCEEDED:
            raise TimeoutError("the first job did not end; see the logs")


class Row(NamedTuple):
    """A job that succeeded, by the number of its workload; seconds since the epoch, those of the store."""

    number: int
    submitted: float
    dispatched: float
    running: float
    ended: float


_ROWS = f"""
    SELECT (s.spec #>> '{{roles,0,template,env,ITEM}}')::int, extract(epoch FROM j.submitted_at)::float8,
           extract(epoch FROM r.leased_at)::float8, extract(epoch FROM r.started_at)::float8,
           extract(epoch FROM j.ended_at)::float8
    FROM jobs j JOIN job_specs s ON s.id = j.spec_id JOIN runs r ON r.job_id = j.id AND r.state = 'succeeded'
    WHERE j.state = 'succeeded' AND j.name <> '{WARM_UP}'
"""
_CHECK = f"""
    SELECT (SELECT count(*) FROM jobs WHERE name <> '{WARM_UP}') AS jobs,
           (SELECT count(*) FROM jobs WHERE name <> '{WARM_UP}' AND state = 'succeeded') AS succeeded,
           (SELECT count(*) - 1 FROM runs WHERE state = 'succeeded') AS succeeded_runs,
           (SELECT count(*) FROM runs WHERE state = 'preempted') AS preempted_runs,
           (SELECT count(*) FROM runs WHERE state NOT IN ('succeeded', 'preempted')) AS other_runs,
           (SELECT count(*) FROM (SELECT job_id FROM events WHERE kind = 'run.succeeded'
            GROUP BY job_id HAVING count(*) > 1) AS twice) AS ended_twice
"""
_HELD = f"""
    SELECT coalesce(sum((s.spec #>> '{{roles,0,template,resources,cpu}}')::float8
                        * extract(epoch FROM r.ended_at - r.leased_at)::float8), 0)
    FROM runs r JOIN jobs j ON j.id = r.job_id JOIN job_specs s ON s.id = j.spec_id
    WHERE r.ended_at IS NOT NULL AND j.name <> '{WARM_UP}'
"""


def lateness(answered: Iterable[Answered]) -> dict[str, Any]:
    """Return how long after its due time each job was sent and acknowledged, and how long all submissions took."""
    sent, known, last = [], [], 0.0
    for call, sent_at, acknowledged_at in answered:
        sent += [sent_at - due / 1000 for due in call.dues_ms]
        known += [acknowledged_at - due / 1000 for due in call.dues_ms]
        last = max(last, acknowledged_at)
    return {
        "due_to_sent": _summary(sent),
        "due_to_acknowledged": _summary(known),
        "load_began_to_last_acknowledged_seconds": round(last, 3),
    }


def figures(
    scenario: Scenario, workloads: Sequence[Workload], began_at: float, rows: Sequence[Row], held_cpu_seconds: float
) -> dict[str, Any]:
    """Return the figures of the run, and the published ones in the same terms. ``began_at``: the load's start, since the epoch."""
    wall = max(row.ended for row in rows) - began_at - scenario.first_due_seconds
    least = scenario.least_wall_seconds()
    done = sum(workloads[row.number].kind.cpu_seconds for row in rows)
    published = scenario.published
    return {
        "wall_seconds": round(wall, 2),
        "least_wall_seconds": round(least, 2),
        "work_alone_seconds": round(scenario.cpu_seconds / scenario.capacity_cpus, 2),
        "ratio_to_least": round(wall / least, 3),
        "jobs_per_second": round(len(rows) / wall, 1),
        "utilisation": round(scenario.share_of_capacity(done, wall), 4),
        "most_utilisation": round(scenario.share_of_capacity(scenario.cpu_seconds, least), 4),
        "held_share": round(scenario.share_of_capacity(held_cpu_seconds, wall), 4),
        "classes": {
            one.name: _times(began_at, [(workloads[row.number], row) for row in rows], one.name)
            for one in scenario.classes
        },
        "published": {
            "wall_seconds": published.wall_seconds,
            "ratio_to_least": round(published.wall_seconds / least, 3),
            "jobs_per_second": round(len(workloads) / published.wall_seconds, 1),
            "utilisation": round(scenario.share_of_capacity(scenario.cpu_seconds, published.wall_seconds), 4),
            "held_share": published.used_share,
            "stored_to_dispatched_mean_seconds": dict(published.mean_time_to_admit_seconds),
        },
        "published_wall_to_this": round(published.wall_seconds / wall, 2),
    }


def _times(began_at: float, jobs: Iterable[tuple[Workload, Row]], name: str) -> dict[str, Any]:
    """Return the times of the jobs of one class. ``held_beyond_run_time``: dispatch to stored end, minus the run time
    of the members."""
    mine = [(one, row, began_at + one.due_ms / 1000) for one, row in jobs if one.kind.name == name]
    return {
        "jobs": len(mine),
        "due_to_dispatched": _summary([row.dispatched - due for _, row, due in mine]),
        "due_to_running": _summary([row.running - due for _, row, due in mine]),
        "stored_to_dispatched": _summary([row.dispatched - row.submitted for _, row, _ in mine]),
        "held_beyond_run_time": _summary([row.ended - row.dispatched - one.kind.run_ms / 1000 for one, row, _ in mine]),
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    return summary(values) if values else {}


def wait_for_ends(stage: Stage) -> list[str]:
    """Wait until every job has ended; return what is wrong when the time is over."""
    ends = time.monotonic() + MOST_SECONDS
    with stage.sql() as connection:
        while True:
            row = connection.execute("SELECT count(*) FROM jobs WHERE ended_at IS NULL").fetchone()
            assert row is not None
            if row[0] == 0:
                return []
            if time.monotonic() > ends:
                return [f"{row[0]} jobs had not ended after {MOST_SECONDS:g} s"]
            time.sleep(0.25)


def machine_cpu_seconds() -> float:
    """Return the CPU seconds used by everything on this machine until now; the part of other programs shows whether the
    benchmark was alone."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def measure(stage: Stage, scenario: Scenario) -> dict[str, Any]:
    """Run one scenario on a stage that has its tenants, and return its figures."""
    workloads = scenario.workloads()
    generator = Generator(stage.urls[0], calls_of(workloads))
    before, busy, began = stage.cpu_seconds(), machine_cpu_seconds(), time.monotonic()
    generator.run()
    errors = [*generator.errors, *wait_for_ends(stage)]
    after, busy, seconds = stage.cpu_seconds(), machine_cpu_seconds() - busy, time.monotonic() - began
    with stage.sql() as connection:
        rows = [Row(*row) for row in connection.execute(_ROWS)]
        held = connection.execute(_HELD).fetchone()
        cursor = connection.execute(_CHECK)
        check = dict(zip([column.name for column in cursor.description or ()], cursor.fetchone() or (), strict=True))
    counts = {len(workloads), check["jobs"], check["succeeded"], check["succeeded_runs"]}
    counts.add(len({row.number for row in rows}))
    cpu = {name: after[name] - before.get(name, 0.0) for name in after}
    cpu["rest_of_machine"] = max(0.0, busy - sum(cpu.values()))
    return {
        "cohorts": scenario.cohorts,
        "queues": scenario.cohorts * scenario.queues,
        "jobs": len(workloads),
        "capacity_cpus": scenario.capacity_cpus,
        "work_cpu_seconds": round(scenario.cpu_seconds, 1),
        **(figures(scenario, workloads, generator.began_at, rows, held[0] if held else 0.0) if rows else {}),
        "submissions": {
            **lateness(generator.answered),
            "calls": len(generator.answered),
            "connections": generator.connections,
            "calls_refused": generator.refused,
            "calls_repeated": generator.repeats,
        },
        "errors": errors[:10],
        "check": check,
        "all_ended_once": len(counts) == 1 and check["ended_twice"] == 0,
        "cpu_seconds": {name: round(used, 1) for name, used in cpu.items()},
        "cores_used": {name: round(used / seconds, 3) for name, used in [*cpu.items(), ("machine", busy)]},
        "cores": psutil.cpu_count(),
        "rss_bytes": stage.rss_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=[*SCENARIOS, "both"], default="both")
    parser.add_argument("--folder", type=Path, help="keep logs and data there, each scenario in a folder of its own")
    options = parser.parse_args()
    chosen = [one for one in SCENARIOS.values() if options.scenario in (one.name, "both")]
    result: dict[str, Any] = {"bench": "kueue", "scenarios": {}}
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as temporary:
        for scenario in chosen:
            stage = Stage((options.folder or Path(temporary)) / scenario.name, fleet(scenario), queues=())
            try:
                stage.start()
                make_tenants(stage, scenario, scenario.workloads()[-1])
                result["scenarios"][scenario.name] = measure(stage, scenario)
                result["stores"] = stores(stage.database_url)
                result["redis"] = Path(stage.children["redis"].command[0]).name
            finally:
                stage.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
