"""The scheduling engine on a real log, beside first come first served and EASY backfill by the book.

    python -m bench.nasa [--divisors 1.0,1.25,1.4,1.5] [--log PATH]

Nothing is started: the decision alone is driven through three months of the NASA Ames iPSC/860 (1993, 128 processors, log of
the Parallel Workloads Archive) as a simulation of events, with real run times as time limits. The log's submit times are start
times, so as it is hardly a job waits; divided inter-arrival times make queues. Ratios are ours divided by the textbook's: above
1 we are worse.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from bench.swf import divide_gaps, read_swf
from tests.textbook_easy import Job, Policy, Result, Starts, simulate
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.states import ClusterKind, FairBy, Order, OrderBy
from trainmaster_dispatcher.domain.run_times import RunTimes, expected_end
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.domain.wait_forecasts import ForecastOutcome
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob

PROCESSORS = 128
LOG = Path(__file__).resolve().parents[2] / "shared" / "data" / "NASA-iPSC-1993-3.1-cln.swf.gz"
ORDERS = {Policy.FCFS: Order.STRICT, Policy.EASY: Order.BEST_EFFORT}
"""What a queue of ours is set to for each policy."""

_ONE = 1
"""The key of the only queue and priority class, and of the first cluster."""


class Replay:
    """The scheduler's decision on clusters of nodes with one CPU each, ``processors`` by cluster, and one queue."""

    def __init__(
        self,
        processors: Sequence[int],
        order: Order,
        order_by: OrderBy = OrderBy.AGE,
        fair_by: FairBy = FairBy.NONE,
        *,
        predicts: bool = False,
        forecasts: bool = False,
    ) -> None:
        self.engine = Engine()
        self.state = self.engine.state
        self.state.put_queue(Queue(_ONE, "main", None, order=order, order_by=order_by, fair_by=fair_by))
        self.state.put_class(PriorityClass(_ONE, "normal", 0))
        for key, many in enumerate(processors, _ONE):
            nodes = NodeGroup(name="nodes", count=many, free={"cpu": 1000})
            report = CapacityReport(groups=(nodes,), runtime="simulated", scheduler="simulated")
            self.state.put_cluster(Cluster(key, f"machine-{key}", ClusterKind.PRIVATE, report=report))
            self.state.lease_until[key] = math.inf
        self.state.run_times = RunTimes(is_on=predicts)
        self._shapes: dict[tuple[int, float], int] = {}
        self.forecasts = forecasts
        self.forecaster = WaitForecaster()
        self.outcomes: list[ForecastOutcome] = []
        """What jobs that had to wait were told when they came, with what came of it."""

    def submit(self, job: Job, limit: float, user: str) -> None:
        shape_id, name = self._shape(job.processors, limit), f"job-{job.number}"
        self.state.put_waiting(WaitingJob(job.number, 1, name, _ONE, _ONE, shape_id, 0, job.submit, 0, user))

    def end(self, number: int, now: float) -> None:
        self.state.end_job(number, now)

    def outlasts(self, number: int, now: float) -> float:
        """Return when a job that has not ended by ``now`` will have outlasted its prediction; infinity without one, or if it ended."""
        run = self.state.runs.get(number)
        if run is None or run.predicted_seconds is None:
            return math.inf
        latest = self.state.ends_at(run)
        at = expected_end(run.began_at, run.predicted_seconds, latest, now)
        return at if at < latest else math.inf

    def start(self, now: float) -> list[int]:
        """Start all that the engine lets start now; return the numbers of these jobs."""
        started: list[int] = []
        while self.state.jobs:
            plan = decide(self.engine, now)
            self.engine.carry_over(plan)
            if plan.holds:
                raise RuntimeError(f"job {plan.holds[0].job.id} is held: {plan.holds[0].message}")
            for start in plan.starts:
                self.state.put_run(start.run(now))
                started.append(start.job.id)
            if self.forecasts:
                self.outcomes += self.forecaster.observe(self.state, plan, now)
            if not plan.starts:
                break
        return started

    def _shape(self, processors: int, limit: float) -> int:
        key = (processors, limit)
        if key not in self._shapes:
            self._shapes[key] = len(self._shapes) + 1
            role = RoleShape("main", processors, processors, {"cpu": 1000})
            self.state.put_shape(self._shapes[key], Shape((role,), processors, time_limit_seconds=limit))
        return self._shapes[key]


def _run_time(job: Job) -> float:
    return job.run


def _nobody(_job: Job) -> str:
    return ""


def simulate_engine(
    jobs: Sequence[Job],
    processors: int | Sequence[int],
    policy: Policy,
    limit: Callable[[Job], float] = _run_time,
    user: Callable[[Job], str] = _nobody,
    order_by: OrderBy = OrderBy.AGE,
    fair_by: FairBy = FairBy.NONE,
    *,
    predicts: bool = False,
) -> Starts:
    """Return when each job starts if the engine decides at each instant at which jobs arrive, end, or outlast their predictions.

    ``processors``: of the only cluster, or of each. ``limit``: the time limit of a job in seconds; by default as long as it runs.
    ``user``: who submits it; nobody by default. ``predicts``: plan with predicted run times.
    """
    clusters = [processors] if isinstance(processors, int) else processors
    return replay(Replay(clusters, ORDERS[policy], order_by, fair_by, predicts=predicts), jobs, limit, user)


def replay(
    engine: Replay,
    jobs: Sequence[Job],
    limit: Callable[[Job], float] = _run_time,
    user: Callable[[Job], str] = _nobody,
) -> Starts:
    """Drive jobs through an engine, as ``simulate_engine`` does."""
    arrivals = sorted(jobs, key=lambda job: (job.submit, job.number), reverse=True)
    runs = {job.number: job.run for job in jobs}
    ends: list[tuple[float, int]] = []
    corrections: list[tuple[float, int]] = []
    starts: Starts = {}
    while arrivals or ends:
        now = min(
            arrivals[-1].submit if arrivals else math.inf,
            *(times[0][0] if times else math.inf for times in (ends, corrections)),
        )
        while ends and ends[0][0] <= now:
            engine.end(heappop(ends)[1], now)
        while corrections and corrections[0][0] <= now:
            number = heappop(corrections)[1]
            if (at := engine.outlasts(number, now)) < starts[number] + runs[number]:
                heappush(corrections, (at, number))
        while arrivals and arrivals[-1].submit <= now:
            job = arrivals.pop()
            engine.submit(job, limit(job), user(job))
        for number in engine.start(now):
            starts[number] = now
            heappush(ends, (now + runs[number], number))
            # Later, the job has ended: to decide then as well would be another schedule where the order depends on the time.
            if (at := engine.outlasts(number, now)) < now + runs[number]:
                heappush(corrections, (at, number))
    left = len(jobs) - len(starts)
    if left:
        raise RuntimeError(f"{left} jobs never started, although nothing runs any more")
    return starts


def compare(jobs: Sequence[Job], policy: Policy) -> dict[str, Any]:
    """Compare both schedulers on the same jobs; waits are in seconds. ``cpu_seconds`` is what the simulation with our engine took."""
    began = time.process_time()
    engine_starts = simulate_engine(jobs, PROCESSORS, policy)
    seconds = time.process_time() - began
    book_starts = simulate(jobs, PROCESSORS, policy)
    ours, book = asdict(Result.of(jobs, engine_starts)), asdict(Result.of(jobs, book_starts))
    return {
        "engine": {name: round(value, 2) for name, value in ours.items()},
        "textbook": {name: round(value, 2) for name, value in book.items()},
        "ratio": {name: _ratio(value, book[name]) for name, value in ours.items()},
        "jobs_started_at_another_time": sum(engine_starts[number] != at for number, at in book_starts.items()),
        "cpu_seconds": round(seconds, 1),
    }


def _ratio(ours: float, book: float) -> float | None:
    """Return our value divided by the textbook's; None if that is 0 and ours is not."""
    if book == 0:
        return 1.0 if ours == 0 else None
    return round(ours / book, 4)


def run(log: Path, divisors: Sequence[float]) -> dict[str, Any]:
    jobs = read_swf(log)
    results = []
    for divisor in divisors:
        scaled = divide_gaps(jobs, divisor)
        for policy in Policy:
            result = {"divisor": divisor, "policy": policy.value, **compare(scaled, policy)}
            print(json.dumps(result), file=sys.stderr, flush=True)
            results.append(result)
    return {"bench": "nasa", "log": log.name, "jobs": len(jobs), "processors": PROCESSORS, "results": results}


def _divisors(text: str) -> list[float]:
    try:
        divisors = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; write numbers with commas between, such as 1.0,1.4") from error
    if not all(0 < divisor < math.inf for divisor in divisors):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; divisors are above 0")
    return divisors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--divisors", type=_divisors, default=[1.0, 1.25, 1.4, 1.5], help="numbers above 0, by commas")
    parser.add_argument("--log", type=Path, default=LOG, help="a gzipped log in the Standard Workload Format")
    options = parser.parse_args()
    if not options.log.is_file():
        parser.error(f"no log at {options.log}; --log says where it is (NASA-iPSC-1993-3.1-cln.swf.gz)")
    print(json.dumps(run(options.log, options.divisors), indent=2))


if __name__ == "__main__":
    main()
