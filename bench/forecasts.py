"""How often waits end by when jobs were told, on logs with users' estimates as time limits.

    python -m bench.forecasts [--log nasa|lublin256|lublin128] [--jobs N]

The engine decides on the logs of ``bench.backfill_book``, and a job that has to wait when it comes is told by when half of such
jobs, and by when nine tenths of them, have started. ``half_held`` and ``most_held``: shares of these jobs that then started by it.
``error``: half of the waits differ from the told half by less than this factor. ``spread``: the median of how many times as long the
longer told wait is. ``without``: jobs that had to wait before enough was known. Each as shipped (turns shared between users), and in
order of arrival.
"""

import argparse
import json
import sys
import time
from statistics import median
from typing import Any

from bench.backfill import estimate_of, user_of
from bench.backfill_book import LOGS, add_log_options, chosen_logs
from bench.nasa import ORDERS, Replay, replay
from tests.textbook_easy import Policy
from trainmaster.protocol.states import FairBy, OrderBy
from trainmaster_dispatcher.domain.wait_forecasts import ForecastOutcome, calibration_of

_CASES = (
    ("users", OrderBy.AGE, FairBy.USER, True),
    ("users, shortest", OrderBy.SHORTEST_BACKFILL, FairBy.USER, True),
    ("users, time limits", OrderBy.AGE, FairBy.USER, False),
    ("arrival", OrderBy.AGE, FairBy.NONE, True),
)


def figures_of(outcomes: list[ForecastOutcome]) -> dict[str, Any]:
    """Return how far forecasts held. There must be a job that was told one."""
    known = [(one.forecast, one.waited) for one in outcomes if one.forecast is not None]
    held = calibration_of(outcomes)
    return {
        "jobs": held.jobs,
        "without": len(outcomes) - held.jobs,
        "half_held": round(held.within_half / held.jobs, 3),
        "most_held": round(held.within_most / held.jobs, 3),
        "error": round(
            median(max(max(waited, 1.0) / one.half, one.half / max(waited, 1.0)) for one, waited in known), 2
        ),
        "spread": round(median(one.most / one.half for one, _ in known), 2),
    }


def run_log(name: str, count: int | None) -> list[dict[str, Any]]:
    """Return the figures of all cases on the first ``count`` jobs of a log."""
    log, results = LOGS[name], []
    for case, order_by, fair_by, predicts in _CASES:
        began = time.process_time()
        engine = Replay([log.processors], ORDERS[Policy.EASY], order_by, fair_by, predicts=predicts, forecasts=True)
        replay(engine, log.jobs()[:count], estimate_of, user_of)
        result = {"log": name, "case": case, **figures_of(engine.outcomes)}
        result["cpu_seconds"] = round(time.process_time() - began, 1)
        print(json.dumps(result), file=sys.stderr, flush=True)
        results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_log_options(parser)
    options = parser.parse_args()
    results = [one for name in chosen_logs(parser, options) for one in run_log(name, options.jobs)]
    print(json.dumps({"bench": "forecasts", "results": results}, indent=2))


if __name__ == "__main__":
    main()
