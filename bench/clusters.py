"""The scheduling engine on two and three unequal clusters, beside one cluster of the same total and rules that choose at arrival.

    python -m bench.clusters [--log nasa|lublin256] [--jobs N] [--draws N]

The logs are those of ``bench.backfill_book`` without the jobs that are too wide for every cluster; the others come faster, so that the
offered load is that of the whole log. All plan with users' estimates (``limits``), or with run times as
predicted from all users' jobs (``predicted``). The rules are those of ``tests.textbook_clusters``, with EASY on each cluster.
``one_cluster`` is the engine on one. Waits are in seconds; ``to_one`` is the mean wait divided by that of one cluster.
``wide_alone`` (NASA) is what the jobs of 32 and 64 processors, nine tenths of the work, would have to wait for each other alone, as
part of the mean of all, on one cluster of as many whole blocks of 32 processors as the clusters have together: three blocks, where
the one cluster has four. Each further draw of ``--draws`` submits every job up to a minute later: two figures that change places
between draws do not differ.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.backfill import of_any_user
from bench.backfill_book import LOGS, LONGEST_DELAY, Log
from bench.model_logs import lublin_log, offered_load
from bench.nasa import simulate_engine
from bench.swf import LoggedJob, delay_jobs, divide_gaps
from tests.textbook_clusters import Choice, simulate_clusters
from tests.textbook_easy import Job, Policy, Starts
from tests.textbook_figures import Figures
from tests.textbook_planning import ESTIMATES, Planning, last_two_equivalent, predictions

SHARES = {"two": (10, 6), "three": (8, 5, 3)}
"""Sixteenths of the whole that each cluster has."""
PLANNINGS = {"limits": ESTIMATES, "predicted": predictions(last_two_equivalent)}
NAMES = ("nasa", "lublin256")
BLOCK = 32
"""Processors."""


def _estimate(job: Job) -> float:
    assert isinstance(job, LoggedJob)
    return job.estimate


def _jobs(name: str, log: Log, widest: int) -> list[LoggedJob]:
    """Return the jobs of a log for clusters of which the widest has this many processors."""
    whole = log.jobs()
    load = offered_load(whole, log.processors)
    if name != "nasa":
        return lublin_log(seed=1, count=len(whole), processors=widest, load=load * log.processors / widest)
    narrow = [job for job in whole if job.processors <= widest]
    return divide_gaps(narrow, load / offered_load(narrow, log.processors))


def measure(jobs: Sequence[LoggedJob], clusters: Sequence[int], planning: str) -> dict[str, Any]:
    """Return the figures of the engine and of the rules for one fleet."""
    of_anybody = of_any_user(jobs)

    def engine(processors: Sequence[int]) -> Starts:
        return simulate_engine(jobs, processors, Policy.EASY, _estimate, predicts=planning == "predicted")

    def rule(choice: Choice, how: Planning) -> Callable[[], Starts]:
        return lambda: simulate_clusters(of_anybody, clusters, how, choice)

    cases: dict[str, Callable[[], Starts]] = {
        "one_cluster": lambda: engine([sum(clusters)]),
        "engine": lambda: engine(clusters),
        **{choice.value: rule(choice, PLANNINGS[planning]) for choice in Choice},
    }
    found: dict[str, Any] = {}
    for name, run in cases.items():
        began = time.process_time()
        figures = Figures.of(jobs, run())
        found[name] = {
            "mean_wait": round(figures.mean_wait, 1),
            "wait_95": round(figures.wait_95, 1),
            "mean_bounded_slowdown": round(figures.mean_bounded_slowdown, 2),
            "to_one": round(figures.mean_wait / found["one_cluster"]["mean_wait"], 3) if found else 1.0,
            "cpu_seconds": round(time.process_time() - began, 1),
        }
    return found


def wide_alone(jobs: Sequence[LoggedJob], clusters: Sequence[int], planning: str) -> float:
    """Return the part that the jobs of a block and more have in the mean wait of all jobs, in seconds, if they have one cluster to
    themselves, of as many processors as there are in whole blocks. Every schedule of these jobs on the clusters is one there, too.
    """
    wide = [job for job in jobs if job.processors >= BLOCK]
    blocks = sum(cluster // BLOCK for cluster in clusters)
    starts = simulate_engine(wide, [blocks * BLOCK], Policy.EASY, _estimate, predicts=planning == "predicted")
    return sum(starts[job.number] - job.submit for job in wide) / len(jobs)


def run_log(name: str, count: int | None, draw: int) -> list[dict[str, Any]]:
    """Return the figures of all fleets on the first ``count`` jobs of a log."""
    log, results = LOGS[name], []
    for fleet, shares in SHARES.items():
        clusters = [log.processors * share // 16 for share in shares]
        jobs = delay_jobs(_jobs(name, log, max(clusters))[:count], draw, LONGEST_DELAY if draw else 0)
        for planning in PLANNINGS:
            result: dict[str, Any] = {
                "log": name,
                "fleet": fleet,
                "clusters": clusters,
                "jobs": len(jobs),
                "planning": planning,
                "draw": draw,
            }
            result |= measure(jobs, clusters, planning)
            if name == "nasa":
                alone = wide_alone(jobs, clusters, planning)
                to_one = round(alone / result["one_cluster"]["mean_wait"], 3)
                result["wide_alone"] = {"part_of_mean_wait": round(alone, 1), "to_one": to_one}
            print(json.dumps(result), file=sys.stderr, flush=True)
            results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", choices=NAMES, help="one log only")
    parser.add_argument("--jobs", type=int, metavar="N", help="only the first N jobs of each log; at least 2")
    parser.add_argument("--draws", type=int, default=1, metavar="N", help="at least 1, which is the log as it is")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error("--draws is at least 1")
    if options.jobs is not None and options.jobs < 2:
        parser.error("--jobs is at least 2")
    names = [name for name in NAMES if options.log in (None, name)]
    results = [one for name in names for draw in range(options.draws) for one in run_log(name, options.jobs, draw)]
    print(json.dumps({"bench": "clusters", "results": results}, indent=2))


if __name__ == "__main__":
    main()
