"""How well a simulation predicts what the system really does.

    python -m bench.calibration [--seeds 1,2,3,4,5] [--jobs 120] [--seconds 40]

For each seed the whole system runs for a while, with real processes and two simulated clusters: jobs of three queues come at random
times, of one to four members, and run for random times. What really came of it is fetched as history, and simulated on that fleet.
``mean_ratio`` and ``p95_ratio``: what the simulation says divided by what was. 1 is perfect.
"""

import argparse
import json
import random
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.stage import ADMIN_KEY, Stage
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.whatif.engine import Declared, Simulation
from trainmaster_dispatcher.whatif.figures import figures_of, summary_of
from trainmaster_dispatcher.whatif.trace import read_history

QUEUES = ("a", "b", "c")
_LONGEST_SECONDS = 300.0


def fleet(seed: int) -> dict[str, Any]:
    groups = [{"name": "nodes", "count": 4, "resources": {"cpu": "4"}}]
    return {
        "seed": seed,
        "clusters": [
            {"name": "private", "kind": "private", "groups": groups},
            {"name": "edge", "kind": "edge", "groups": [{**groups[0], "count": 2}]},
        ],
    }


def jobs(seed: int, many: int, seconds: float) -> list[tuple[float, dict[str, Any]]]:
    """Return the submission time and specification of each job. Together they need more than the clusters have, so that
    queues build up."""
    chance = random.Random(seed)
    out = []
    for at in sorted(chance.uniform(0, seconds) for _ in range(many)):
        run = chance.uniform(2, 14)
        template = {"command": ["train"], "resources": {"cpu": "1"}}
        out.append(
            (
                at,
                {
                    "name": "job",
                    "queue": chance.choice(QUEUES),
                    "timeLimit": f"{run * chance.choice([1.2, 2, 4]) + 1:.1f}s",
                    "labels": {"sim.trainmaster.dev/run-time": f"{run:.2f}s"},
                    "roles": [{"name": "worker", "replicas": chance.choice([1, 1, 2, 4]), "template": template}],
                },
            )
        )
    return out


def calibrate(seed: int, many: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), fleet(seed)["clusters"], queues=QUEUES)
        try:
            stage.start()
            with Client(stage.urls[0], ADMIN_KEY) as client:
                began = datetime.now(UTC)
                _submit(client, jobs(seed, many, seconds))
                _wait(client, many)
                pages = list(client.workload(began - timedelta(seconds=1), datetime.now(UTC)))
        finally:
            stage.stop()
    trace = read_history("history", pages)
    really = summary_of([(job.waited or 0.0, job.run) for job in trace.jobs])
    queues = [QueueSpec(path=path, allowed_kinds=tuple(ClusterKind)) for path in QUEUES]
    simulated = figures_of(Simulation(Fleet.model_validate(fleet(seed)), Declared(queues)).run(trace)).waits
    return {
        "seed": seed,
        "jobs": len(trace.jobs),
        "really": {"mean_seconds": really.mean, "p95_seconds": really.p95, "bounded_slowdown": really.slowdown},
        "simulated": {
            "mean_seconds": simulated.mean,
            "p95_seconds": simulated.p95,
            "bounded_slowdown": simulated.slowdown,
        },
        "mean_ratio": round(simulated.mean / really.mean, 4),
        "p95_ratio": round(simulated.p95 / really.p95, 4),
    }


def _submit(client: Client, wanted: list[tuple[float, dict[str, Any]]]) -> None:
    began = time.monotonic()
    for at, spec in wanted:
        time.sleep(max(0.0, began + at - time.monotonic()))
        client.submit(spec)


def _wait(client: Client, many: int) -> None:
    ends = time.monotonic() + _LONGEST_SECONDS
    while sum(1 for _ in client.jobs(JobFilter(states=("succeeded",)))) < many:
        if time.monotonic() > ends:
            raise TimeoutError("not every job has succeeded")
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--jobs", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    found = [calibrate(int(seed), options.jobs, options.seconds) for seed in options.seeds.split(",")]
    worst = {
        name: max((one[name] for one in found), key=lambda ratio: abs(ratio - 1))
        for name in ("mean_ratio", "p95_ratio")
    }
    print(json.dumps({"cases": found, "worst": worst}, indent=2))


if __name__ == "__main__":
    main()
