"""A hyper-parameter study: Optuna chooses, jobs train, and trials that look bad are cancelled early.

``python examples/study/study.py research/vision`` searches the learning rate of gradient descent. The loss is a quadratic function
whose curvatures lie between 1 and 10, for which theory knows the best rate: 2 / (1 + 10). Exits with 0 if the study comes near it.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import optuna

from trainmaster import Client, FunctionJob, JobFailedError, LogPiece, TrainmasterError

CURVATURES = (1.0, 10.0)
BEST_RATE = 2 / sum(CURVATURES)
STEPS = 12
STEP_SECONDS = 0.2
"""What a step of a real training would take."""


def train(rate: float) -> float:
    """Train for some steps, with a line of JSON for each; return the last loss."""
    weights = [1.0 for _ in CURVATURES]
    loss = 0.0
    for step in range(1, STEPS + 1):
        weights = [weight - rate * curvature * weight for weight, curvature in zip(weights, CURVATURES, strict=True)]
        loss = sum(weight * weight for weight in weights)
        print(json.dumps({"step": step, "loss": loss}), flush=True)
        time.sleep(STEP_SECONDS)
    return loss


def reports(handle: FunctionJob[float]) -> Iterator[dict[str, Any]]:
    """Yield what a running trial reports in its output; pieces of output may end in the middle of a line."""
    rest = ""
    for item in handle.logs(follow=True):
        if isinstance(item, LogPiece):
            *lines, rest = (rest + item.data).split("\n")
            yield from (json.loads(line) for line in lines if line.startswith("{"))


class Study:
    """The trials of one study: each is a job of ``queue``."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._job = {"queue": queue, "resources": {"cpu": "100m", "memory": "128Mi"}, "labels": {"study": "rates"}}
        self._live: set[FunctionJob[float]] = set()
        self.is_stopped = False

    def objective(self, trial: optuna.Trial) -> float:
        """Run a trial to its end, or until the pruner has seen enough of it."""
        rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
        handle = self._client.submit_function(train, rate, job=self._job | {"name": f"trial-{trial.number}"})
        self._live.add(handle)
        try:
            for report in reports(handle):
                trial.report(report["loss"], report["step"])
                if trial.should_prune():
                    print(f"trial {trial.number}: rate {rate:.4f}  stopped after step {report['step']}", flush=True)
                    raise optuna.TrialPruned
            loss = handle.result(timeout=60)
        except JobFailedError as error:  # the others go on
            print(f"trial {trial.number}: {error}", flush=True)
            raise
        finally:
            if self.is_stopped:
                trial.study.stop()
            self._live.discard(handle)
            handle.cancel(grace="0s")  # does nothing to a job that has ended
        print(f"trial {trial.number}: rate {rate:.4f}  loss {loss:.2g}", flush=True)
        return loss

    def stop(self) -> None:
        """End the study; its trials end with their jobs."""
        self.is_stopped = True
        for handle in list(self._live):
            handle.cancel(grace="0s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queue", help="the queue of the jobs, such as research/vision")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--parallel", type=int, default=4)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # what fails is printed here
    study = optuna.create_study(
        # Trials that still run count as bad ones: the next ones search elsewhere.
        sampler=optuna.samplers.TPESampler(seed=7, n_startup_trials=8, constant_liar=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=4),
    )
    with Client() as client:
        trials = Study(client, options.queue)
        signal.signal(signal.SIGINT, lambda *_: trials.stop())
        try:
            study.optimize(trials.objective, n_trials=options.trials, n_jobs=options.parallel, catch=JobFailedError)
        except TrainmasterError as error:
            trials.stop()
            print(f"the study broke off: {error}", file=sys.stderr)
            return 1
    if trials.is_stopped:
        print(f"stopped after {len(study.trials)} trials")
        return 130
    pruned = sum(trial.state is optuna.trial.TrialState.PRUNED for trial in study.trials)
    rate = study.best_params["rate"]
    print(f"{len(study.trials)} trials, {pruned} stopped early")
    print(f"best rate {rate:.4f}, by theory {BEST_RATE:.4f}")
    return 0 if abs(rate / BEST_RATE - 1) < 0.3 else 1


if __name__ == "__main__":
    sys.exit(main())
