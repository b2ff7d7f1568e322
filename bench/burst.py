"""What a burst policy would have done to a real log: waits against money.

    python -m bench.burst [--after none,0s,5m,15m,1h,4h] [--private 96] [--public 128] [--price 0.04] [--log PATH]

The NASA Ames iPSC/860 log (1993, 128 processors, Parallel Workloads Archive), its true run times as time limits, on a private cluster
of fewer processors and a public one at a price per processor and hour, through the real engine, policy and budgets on a clock that
jumps. Jobs that are too large for the private cluster are reported apart: they wait for ``after`` and nothing else. ``seconds``: how
long each simulation took.
"""

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.nasa import LOG
from trainmaster.fake_cluster.fleet import Fleet, FleetCluster, FleetGroup
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.whatif.engine import Declared, Simulation, StudiedJob
from trainmaster_dispatcher.whatif.figures import figures_of, waits_of
from trainmaster_dispatcher.whatif.trace import Trace, read_swf

NONE = "none"
AFTERS = (NONE, "0s", "5m", "15m", "1h", "4h")


def fleet_of(private: int, public: int) -> Fleet:
    sizes = ((ClusterKind.PRIVATE, private), (ClusterKind.PUBLIC, public))
    return Fleet(
        seed=1,
        clusters=tuple(
            FleetCluster(
                name=kind.value, kind=kind, groups=(FleetGroup(name="cpus", count=size, resources={"cpu": "1"}),)
            )
            for kind, size in sizes
        ),
    )


def declared(after: str, price: str) -> Declared:
    """Return one queue whose jobs may be sent to the cloud once they have waited for ``after``; never for ``none``."""
    policy = {
        "name": "overflow",
        "queues": ["nasa"],
        "when": {"after": "0s" if after == NONE else after},
        "budget": {"month": "1000000000"},
        "timeLimit": "30d",
        "paused": after == NONE,
    }
    return Declared(
        queues=[QueueSpec(path="nasa")],
        clusters=[
            ClusterSpec(name="private"),
            ClusterSpec(name="public", cluster_kind=ClusterKind.PUBLIC, price_book="cloud", placement_timeout="0s"),
        ],
        books=[PriceBookSpec.model_validate({"name": "cloud", "onDemand": {"cpu": price}})],
        policies=[BurstPolicySpec.model_validate(policy)],
    )


def read_log(path: Path) -> Trace:
    with gzip.open(path, "rt", errors="replace") as lines:
        return read_swf(path.name, lines, "nasa", "exact")


def simulate(trace: Trace, fleet: Fleet, after: str, price: str, private: int) -> dict[str, Any]:
    began = time.perf_counter()
    outcome = Simulation(fleet, declared(after, price)).run(trace)
    seconds = time.perf_counter() - began
    figures = figures_of(outcome)
    large = [record for record in outcome.records if record.job.spec.members > private]
    rest = [record for record in outcome.records if record.job.spec.members <= private]
    use = {one.name: one for one in figures.clusters}
    return {
        "after": after,
        "mean_wait_seconds": figures.waits.mean,
        "p95_wait_seconds": figures.waits.p95,
        "bounded_slowdown": figures.waits.slowdown,
        "never_started": figures.jobs - figures.waits.started,
        "cost": round(figures.cost, 2),
        "bursts": figures.bursts["overflow"],
        "private_used": use["private"].used["cpu"],
        "fits_private": _wait_figures(rest),
        "larger_than_private": _wait_figures(large),
        "seconds": round(seconds, 1),
    }


def _wait_figures(records: Sequence[StudiedJob]) -> dict[str, Any]:
    waits = asdict(waits_of(records))
    rented = [stay for record in records for stay in record.stays if stay.cluster == "public"]
    hours = sum((stay.ended_at - stay.placed_at) * sum(stay.sizes.values()) for stay in rented) / 3600
    return {**waits, "rented_runs": len(rented), "rented_processor_hours": round(hours, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--after", default=",".join(AFTERS))
    parser.add_argument("--private", type=int, default=96)
    parser.add_argument("--public", type=int, default=128)
    parser.add_argument("--price", default="0.04")
    parser.add_argument("--log", type=Path, default=LOG)
    options = parser.parse_args()
    trace, fleet = read_log(options.log), fleet_of(options.private, options.public)
    cases = [simulate(trace, fleet, after, options.price, options.private) for after in options.after.split(",")]
    print(
        json.dumps({"log": options.log.name, "jobs": len(trace.jobs), "price_per_hour": options.price, "cases": cases})
    )


if __name__ == "__main__":
    main()
