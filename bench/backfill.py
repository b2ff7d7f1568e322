"""The scheduling engine on logs with users' estimates as time limits, beside EASY by the book in the same order of the queue.

    python -m bench.backfill [--log nasa|lublin256|lublin128] [--jobs N]

The logs are those of ``bench.backfill_book``, which has policies of the literature on them. ``limits`` is EASY in order of
arrival, ``predicted`` the same with run times as predicted from all users' jobs. ``shortest`` (``orderBy: shortestBackfill`` of a
queue) is EASY in order of arrival that tries the shortest candidates first, and ``slowdown`` EASY in order of the expansion
factor, both with run times as predicted from the user's jobs. The cases with users share turns between users as well, which no
policy by the book does. Waits are in seconds; ``below_easy`` is how much lower a mean is than that of ``limits``; ``worst_user``
is that of ``bench.backfill_book``.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bench.backfill_book import LOGS, add_log_options, chosen_logs
from bench.nasa import simulate_engine
from bench.swf import LoggedJob
from tests import textbook_easy
from tests.textbook_backfill import Policy, simulate
from tests.textbook_easy import Job
from tests.textbook_figures import Figures
from tests.textbook_machine import Order
from tests.textbook_planning import ESTIMATES, last_two_equivalent, predictions
from trainmaster.protocol.states import FairBy, OrderBy


class Case(NamedTuple):
    name: str
    order_by: OrderBy
    fair_by: FairBy
    predicts: bool
    by_the_book: tuple[Policy, Order] | None


CASES = (
    Case("limits", OrderBy.AGE, FairBy.NONE, False, (Policy.EASY, Order.ARRIVAL)),
    Case("predicted", OrderBy.AGE, FairBy.NONE, True, (Policy.EASY, Order.ARRIVAL)),
    Case("shortest", OrderBy.SHORTEST_BACKFILL, FairBy.NONE, True, (Policy.EASY_SJBF, Order.ARRIVAL)),
    Case("slowdown", OrderBy.SLOWDOWN, FairBy.NONE, True, (Policy.EASY, Order.EXPANSION)),
    Case("limits, users", OrderBy.AGE, FairBy.USER, False, None),
    Case("predicted, users", OrderBy.AGE, FairBy.USER, True, None),
    Case("shortest, users", OrderBy.SHORTEST_BACKFILL, FairBy.USER, True, None),
    Case("slowdown, users", OrderBy.SLOWDOWN, FairBy.USER, True, None),
)


def estimate_of(job: Job) -> float:
    assert isinstance(job, LoggedJob)
    return job.estimate


def user_of(job: Job) -> str:
    assert isinstance(job, LoggedJob)
    return str(job.user)


def of_any_user(jobs: Sequence[LoggedJob]) -> list[LoggedJob]:
    """Return the jobs as if each user had those of one width and estimate: a queue in order of age that does not share its turns does
    not tell users apart, so that a prediction is made from all equivalent jobs.
    """
    kinds: dict[tuple[int, float], int] = {}
    return [replace(job, user=kinds.setdefault((job.processors, job.estimate), len(kinds))) for job in jobs]


def run_log(name: str, count: int | None) -> dict[str, Any]:
    """Return the figures of the engine in both orders on the first ``count`` jobs of a log."""
    log = LOGS[name]
    jobs = log.jobs()[:count]
    results = []
    reference: Figures | None = None
    for case in CASES:
        began = time.process_time()
        ours = simulate_engine(
            jobs,
            log.processors,
            textbook_easy.Policy.EASY,
            estimate_of,
            user_of,
            case.order_by,
            case.fair_by,
            predicts=case.predicts,
        )
        seconds = time.process_time() - began
        figures = Figures.of(jobs, ours)
        reference = reference or figures
        user, ratio = figures.worst_change(reference)
        result = {
            "case": case.name,
            "mean_wait": round(figures.mean_wait, 1),
            "wait_95": round(figures.wait_95, 1),
            "longest_wait": round(figures.longest_wait, 1),
            "mean_bounded_slowdown": round(figures.mean_bounded_slowdown, 2),
            "below_easy": {
                "mean_wait": round(1 - figures.mean_wait / reference.mean_wait, 3),
                "mean_bounded_slowdown": round(1 - figures.mean_bounded_slowdown / reference.mean_bounded_slowdown, 3),
            },
            "worst_user": {"user": user, "times_as_long": round(ratio, 2)},
            "cpu_seconds": round(seconds, 1),
        }
        if case.by_the_book is not None:
            planning = predictions(last_two_equivalent) if case.predicts else ESTIMATES
            queue_order_jobs = of_any_user(jobs) if case.order_by is OrderBy.AGE else jobs
            book = simulate(queue_order_jobs, log.processors, case.by_the_book[0], planning, case.by_the_book[1])
            result["jobs_started_at_another_time_than_by_the_book"] = sum(
                ours[number] != at for number, at in book.items()
            )
        print(json.dumps({"log": name, **result}), file=sys.stderr, flush=True)
        results.append(result)
    return {"log": name, "jobs": len(jobs), "processors": log.processors, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_log_options(parser)
    options = parser.parse_args()
    names = chosen_logs(parser, options)
    print(json.dumps({"bench": "backfill", "logs": [run_log(name, options.jobs) for name in names]}, indent=2))


if __name__ == "__main__":
    main()
