"""What policies by the book reach with exact run times, users' estimates and predictions, on a real log and on two of a model.

    python -m bench.backfill_book [--log nasa|lublin256|lublin128] [--jobs N] [--policy POLICY] [--users]

The NASA log (``bench.nasa``) has its gaps divided by 1.4 and estimates of ``bench.model_estimates``; the others are of
``bench.model_logs``. Waits are in seconds. ``worst_user`` is the user whose mean wait is longest relative to EASY with estimates, of
those with ten jobs or more; waits below a minute count as a minute. ``delayed_easy`` is EASY with estimates again, with each
job submitted up to a minute later, three draws: how much of such a figure is chance. ``histories``: EASY with predictions from other
parts of a user's history, on a log that has applications.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from bench.model_estimates import with_estimates
from bench.model_logs import lublin_log, offered_load
from bench.nasa import LOG
from bench.swf import LoggedJob, delay_jobs, divide_gaps, read_log
from tests.textbook_backfill import Policy, simulate
from tests.textbook_figures import Figures
from tests.textbook_machine import Order
from tests.textbook_planning import (
    ESTIMATES,
    EXACT,
    PlannedTimes,
    Planning,
    Predictor,
    last_two,
    last_two_equivalent,
    last_two_of_application,
    predictions,
)

NASA_MAXIMUM = 18 * 3600
"""Seconds; the longest job of the log runs 17.4 hours."""
LONGEST_DELAY = 60
"""Seconds."""


class Log(NamedTuple):
    processors: int
    jobs: Callable[[], list[LoggedJob]]


def _nasa(path: Path = LOG) -> list[LoggedJob]:
    return with_estimates(divide_gaps(read_log(path), 1.4), seed=1, maximum=NASA_MAXIMUM)


LOGS = {
    "nasa": Log(128, _nasa),
    "lublin256": Log(256, lambda: lublin_log(seed=1, count=10_000, processors=256, load=0.85)),
    "lublin128": Log(128, lambda: lublin_log(seed=2, count=10_000, processors=128, load=0.9)),
}
PLANNINGS = {"exact": EXACT, "estimates": ESTIMATES, "predictions": predictions(last_two)}
HISTORIES: dict[str, Predictor] = {
    "user": last_two,
    "equivalent": last_two_equivalent,
    "application": last_two_of_application,
}
"""The jobs by which a job is predicted: its user's, of these the equivalent ones, and of these those of the same application."""


class Case(NamedTuple):
    policy: Policy
    planning: str
    order: Order
    depth: int = 1
    """The number of jobs that have reservations, with EASY."""


REFERENCE = Case(Policy.EASY, "estimates", Order.ARRIVAL)
CASES = (
    REFERENCE,
    Case(Policy.FCFS, "exact", Order.ARRIVAL),  # plans nothing
    Case(Policy.EASY, "exact", Order.ARRIVAL),
    Case(Policy.EASY, "predictions", Order.ARRIVAL),
    *(Case(Policy.EASY, "predictions", Order.ARRIVAL, depth) for depth in (2, 4, 16)),
    *(Case(policy, planning, Order.ARRIVAL) for policy, planning in product(list(Policy)[2:], PLANNINGS)),
    *(Case(Policy.EASY, planning, order) for order, planning in product((Order.SHORTEST, Order.EXPANSION), PLANNINGS)),
)


def run_log(name: str, count: int | None, policies: Sequence[Policy], users: bool) -> dict[str, Any]:
    """Return the figures of all cases on the first ``count`` jobs of a log; EASY with estimates is always among them."""
    log = LOGS[name]
    jobs = log.jobs()[:count]
    results = []
    reference: Figures | None = None
    for case in CASES:
        if case is not REFERENCE and case.policy not in policies:
            continue
        figures, seconds = measure(jobs, log.processors, case.policy, PLANNINGS[case.planning], case.order, case.depth)
        reference = reference or figures
        user, ratio = figures.worst_change(reference)
        result = {
            **{
                key: value.value if isinstance(value, Policy | Order) else value
                for key, value in case._asdict().items()
            },
            "mean_wait": round(figures.mean_wait, 1),
            "wait_95": round(figures.wait_95, 1),
            "longest_wait": round(figures.longest_wait, 1),
            "mean_bounded_slowdown": round(figures.mean_bounded_slowdown, 2),
            "worst_user": {"user": user, "times_as_long": round(ratio, 2)},
            "cpu_seconds": round(seconds, 1),
        }
        print(json.dumps({"log": name, **result}), file=sys.stderr, flush=True)
        if users:
            result["mean_wait_by_user"] = {user: round(wait, 1) for user, wait in figures.mean_wait_by_user.items()}
        results.append(result)
    load = round(offered_load(jobs, log.processors), 3)
    return {
        "log": name,
        "jobs": len(jobs),
        "processors": log.processors,
        "offered_load": load,
        "results": results,
        "histories": list(histories(jobs, log.processors)),
        "delayed_easy": []
        if reference is None
        else [delayed(jobs, log.processors, reference, seed) for seed in range(3)],
    }


def histories(jobs: Sequence[LoggedJob], processors: int) -> Iterator[dict[str, Any]]:
    """Yield what it brings to predict from which jobs, where the log has users' applications.

    ``accuracy``: the mean of the smaller of prediction and run time, as a part of the larger.
    """
    if len({job.executable for job in jobs}) == 1:
        return
    for name, predict in HISTORIES.items():
        planned = PlannedTimes(predictions(predict))
        parts = []
        happens = [(job.submit + job.run, 0, job.number, job) for job in jobs]
        happens += [(job.submit, 1, job.number, job) for job in jobs]
        for _, is_submission, number, job in sorted(happens, key=lambda one: one[:3]):
            if is_submission:
                planned.submitted(job)
                seconds = planned.seconds[number]
                parts.append(min(seconds, job.run) / max(seconds, job.run))
                planned.started(job)
            else:
                planned.ended(job)
        result: dict[str, Any] = {"history": name, "accuracy": round(mean(parts), 3)}
        for order in (Order.ARRIVAL, Order.SHORTEST):
            figures, _ = measure(jobs, processors, Policy.EASY, predictions(predict), order)
            result[order.value] = {
                "mean_wait": round(figures.mean_wait, 1),
                "mean_bounded_slowdown": round(figures.mean_bounded_slowdown, 2),
            }
        yield result


def delayed(jobs: Sequence[LoggedJob], processors: int, reference: Figures, seed: int) -> dict[str, Any]:
    """Return what users see of EASY with estimates, relative to itself, when each job is submitted up to a minute later."""
    later = delay_jobs(jobs, seed, LONGEST_DELAY)
    figures, _ = measure(later, processors, REFERENCE.policy, PLANNINGS[REFERENCE.planning], REFERENCE.order)
    user, ratio = figures.worst_change(reference)
    ratios = figures.changes(reference)
    return {
        "mean_wait": round(figures.mean_wait, 1),
        "mean_bounded_slowdown": round(figures.mean_bounded_slowdown, 2),
        "worst_user": {"user": user, "times_as_long": round(ratio, 2)},
        "users": len(ratios),
        "users_10_percent_worse": sum(ratio > 1.1 for ratio in ratios.values()),
    }


def measure(
    jobs: Sequence[LoggedJob], processors: int, policy: Policy, planning: Planning, order: Order, depth: int = 1
) -> tuple[Figures, float]:
    """Return the figures of a policy, and how many seconds of CPU time its simulation took."""
    began = time.process_time()
    starts = simulate(jobs, processors, policy, planning, order, depth=depth)
    return Figures.of(jobs, starts), time.process_time() - began


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which logs are chosen."""
    parser.add_argument("--log", choices=LOGS, help="one log only")
    parser.add_argument("--jobs", type=int, metavar="N", help="only the first N jobs of each log; at least 2")


def chosen_logs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Return the names of the chosen logs; end the program with an error for what cannot be."""
    if options.jobs is not None and options.jobs < 2:
        parser.error(f"--jobs {options.jobs} is not allowed; minimum: 2")
    names = [options.log] if options.log else list(LOGS)
    if "nasa" in names and not LOG.is_file():
        parser.error(f"no log at {LOG}; it is the Parallel Workloads Archive's")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_log_options(parser)
    parser.add_argument(
        "--policy", choices=[policy.value for policy in Policy], help="one policy, beside EASY with estimates"
    )
    parser.add_argument("--users", action="store_true", help="print every user's mean wait, too")
    options = parser.parse_args()
    names = chosen_logs(parser, options)
    policies = [Policy(options.policy)] if options.policy else list(Policy)
    logs = [run_log(name, options.jobs, policies, options.users) for name in names]
    print(json.dumps({"bench": "backfill_book", "logs": logs}, indent=2))


if __name__ == "__main__":
    main()
