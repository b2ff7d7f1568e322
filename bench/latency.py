"""Idle latency: one submit to the process started, as a user sees it.

    python -m bench.latency [--submits 500]

Starts the whole system as ``trainmaster up`` does (real Postgres with its durability settings, real HTTP, three agents with
the local runtime), submits single jobs at random intervals of 50 to 500 ms, and measures from before the POST to the first
thing that the member's process does: it writes the time down. Prints where the time went, by the store's own timestamps.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from bench.numbers import stores, summary
from trainmaster.client.http import Client
from trainmaster.protocol.ids import parse_job_id
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.cli.up import LocalInstallation
from trainmaster_dispatcher.store.database import driver_url


def stages(url: str, submitted: dict[str, float], started: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the times between marks. All clocks are this machine's."""
    engine = create_engine(driver_url(url))
    marks: dict[int, dict[str, float]] = {}
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT job_id, kind, extract(epoch FROM at)::float8 AS at FROM events WHERE kind = 'dispatched'"
                " UNION ALL SELECT id, 'submitted', extract(epoch FROM submitted_at)::float8 FROM jobs"
            )
        )
        for row in rows:
            marks.setdefault(row.job_id, {})[row.kind] = row.at
    engine.dispose()
    out: dict[str, list[float]] = {"post_to_stored": [], "stored_to_dispatched": [], "dispatched_to_process": []}
    for job_id, began in submitted.items():
        mark = marks[parse_job_id(job_id)[1]]
        out["post_to_stored"].append(mark["submitted"] - began)
        out["stored_to_dispatched"].append(mark["dispatched"] - mark["submitted"])
        out["dispatched_to_process"].append(started[job_id] - mark["dispatched"])
    return {name: summary(values) for name, values in out.items()}


def run(submits: int, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        installation = LocalInstallation(Path(folder), free_port())
        try:
            installation.start()
            marks = Path(folder) / "marks"
            marks.mkdir()
            return _measure(installation, marks, submits, draw)
        finally:
            installation.stop()


def _measure(installation: LocalInstallation, marks: Path, submits: int, draw: random.Random) -> dict[str, Any]:
    client = Client(installation.url, installation.keys["admin"])
    ends = time.monotonic() + 30
    while any(cluster.state != "ready" for cluster in client.clusters()) and time.monotonic() < ends:
        time.sleep(0.1)
    command = ["sh", "-c", f'date +%s.%N > "{marks}/$TRAINMASTER_JOB_ID"']
    spec = {
        "kind": "Job",
        "name": "latency",
        "queue": "default",
        "roles": [{"name": "main", "template": {"command": command, "resources": {"cpu": "100m"}}}],
    }
    submitted, posts = {}, []
    for _ in range(submits):
        time.sleep(draw.uniform(0.05, 0.5))
        began = time.time()
        job_id = client.submit([spec])[0]
        posts.append(time.time() - began)
        submitted[job_id] = began
    ends = time.monotonic() + 30
    while len(list(marks.iterdir())) < submits and time.monotonic() < ends:
        time.sleep(0.1)
    started = {path.name: float(path.read_text()) for path in marks.iterdir() if path.read_text()}
    url = installation.children["api"].env["DATABASE_URL"]
    return {
        "bench": "latency",
        "submits": submits,
        "never_started": submits - len(started),
        **summary([started[job_id] - began for job_id, began in submitted.items() if job_id in started]),
        "post": summary(posts),
        "stages": stages(url, submitted, started),
        "stores": stores(url),
        "redis": installation.children["redis"].command[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submits", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(run(options.submits, options.seed), indent=2))


if __name__ == "__main__":
    main()
