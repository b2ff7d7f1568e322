"""The cost of many connected clusters: CPU of the dispatcher per second and per cluster, idle and with changes.

    python -m bench.agents [--clusters 300] [--nodes 500] [--changes 100]

One agent process simulates all clusters, each with an agent and a session of its own, over real HTTP. Idle, each syncs
every third of its lease and polls for its desired state. Then jobs come at half the rate of ``--changes``: each is
started and ends, so that agents report that many changes of runs per second, spread over all clusters.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from bench.flow import spec
from bench.numbers import stores, summary
from bench.posting import Poster
from bench.stage import Stage

GROUPS = 5


def fleet(clusters: int, nodes: int) -> list[dict[str, Any]]:
    """Return clusters of ``nodes`` nodes in five groups, in four racks each."""
    groups = [
        {
            "name": f"g{number}",
            "count": nodes // GROUPS,
            "resources": {"cpu": "32", "memory": "256Gi", **({"nvidia.com/gpu": "8"} if number == 0 else {})},
            "labels": {"pool": f"g{number}"},
            "topology": {"rack": 4},
        }
        for number in range(GROUPS)
    ]
    return [{"name": f"c{number}", "groups": groups} for number in range(clusters)]


def spread(number: int, clusters: int) -> dict[str, Any]:
    """Return a job of ten seconds, bound to one cluster after the other."""
    job = spec(number)
    job["roles"][0]["template"]["env"]["SIM_RUN_TIME"] = "10s"
    return job | {"placement": {"clusters": [f"c{number % clusters}"]}}


def syncs(stage: Stage) -> int:
    """Return the number of syncs so far; each raises its session's number."""
    with stage.sql() as connection:
        row = connection.execute("SELECT sum(number) FROM cluster_contacts").fetchone()
    return int(row[0]) if row else 0


def measure(stage: Stage, seconds: float, rate: float) -> dict[str, Any]:
    """Measure for ``seconds``; ``rate`` jobs per second are submitted, in calls of one tenth of a second's jobs."""
    clusters = len(stage.fleet)
    poster = Poster(stage.urls[0])
    cpu, before, began = stage.cpu_seconds(), syncs(stage), time.monotonic()
    number, late = 0, []
    while (at := time.monotonic() - began) < seconds:
        due = int(at * rate)
        if due > number:
            jobs = [spread(index, clusters) for index in range(number, due)]
            poster.post("/v1/jobs", orjson.dumps({"jobs": jobs}))
            number = due
        with stage.sql() as connection:
            row = connection.execute(
                "SELECT extract(epoch FROM now() - min(contact_at))::float8 FROM cluster_contacts"
            ).fetchone()
        late.append(float(row[0]) if row else 0.0)
        time.sleep(0.1)
    took = time.monotonic() - began
    used = {name: value - cpu.get(name, 0.0) for name, value in stage.cpu_seconds().items()}
    many = syncs(stage) - before
    dispatcher = used["api-agents-0"] + used["scheduler-0"] + used["postgres"]
    return {
        "seconds": round(took, 1),
        "jobs": number,
        "syncs_per_second": round(many / took, 1),
        "cpu_share": {name: round(value / took, 4) for name, value in used.items()},
        "dispatcher_cpu_share": round(dispatcher / took, 4),
        "dispatcher_cpu_microseconds_per_second_and_cluster": round(dispatcher / took / clusters * 1e6, 1),
        "api_cpu_microseconds_per_sync": round(used["api-agents-0"] / max(1, many) * 1e6, 1),
        "longest_without_contact": summary(late),
    }


def wait_for_jobs(stage: Stage) -> bool:
    """Return whether all jobs ended within a minute."""
    ends = time.monotonic() + 60
    with stage.sql() as connection:
        while time.monotonic() < ends:
            row = connection.execute("SELECT NOT EXISTS (SELECT 1 FROM jobs WHERE state <> 'succeeded')").fetchone()
            if row is not None and row[0]:
                return True
            time.sleep(0.5)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--changes", type=float, default=100.0, help="changes of runs per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, help="keep logs and data there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as temporary:
        stage = Stage(options.folder or Path(temporary), fleet(options.clusters, options.nodes))
        try:
            began = time.monotonic()
            stage.start()
            ready = time.monotonic() - began
            time.sleep(20)
            result = {
                "bench": "agents",
                "clusters": options.clusters,
                "nodes_per_cluster": options.nodes,
                "start_to_all_ready_seconds": round(ready, 1),
                "idle": measure(stage, options.seconds, 0.0),
                "with_changes": measure(stage, options.seconds, options.changes / 2),
                "all_jobs_ended": wait_for_jobs(stage),
                "rss_bytes": stage.rss_bytes(),
                "stores": stores(stage.database_url),
            }
        finally:
            stage.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
