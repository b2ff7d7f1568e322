"""The demo: real queues, clusters and processes; a live table, then a summary of what was expected and what happened."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

from trainmaster.cli.config import write_context
from trainmaster.cli.interrupts import interruptible
from trainmaster.client.http import Client
from trainmaster.client.streams import LogPiece
from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.reasons import Tier
from trainmaster.protocol.states import WorkflowState
from trainmaster.protocol.tenants import JobView
from trainmaster.protocol.workflows import WorkflowView
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.cli.up import LocalInstallation

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SECONDS = 180.0
AFTER, FULL, RUN = 3, 14, 12
"""In seconds: when the policy of the burst lets jobs go, how long the private cluster is full, and how long these jobs run."""
TASKS, PRIMES = 100_000, 664_579
"""The number of elements of the array, and that of the primes below ten million, which they count."""
PIPELINE_JOBS = 6
"""The number of jobs of the workflow."""
_COLOURS = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "red",
    "cancelled": "red",
    "queued": "yellow",
    "held": "yellow",
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a job of the demo must come to; ``check`` gives the complaint, or nothing."""

    job: str
    check: Callable[[Client, JobView], str]
    ends: bool = True


def documents(path: str) -> list[dict[str, Any]]:
    """Return the YAML documents of an example, with the folder filled in."""
    text = (EXAMPLES / path).read_text().replace("@EXAMPLES@", str(EXAMPLES))
    return [item for item in yaml.safe_load_all(text) if item]


def succeeded(_: Client, job: JobView) -> str:
    return "" if job.state.value == "succeeded" else f"it should have succeeded, it has {job.state}: {job.message}"


def at_the_third_run(client: Client, job: JobView) -> str:
    return succeeded(client, job) or ("" if job.attempt == 3 else f"it should have taken 3 runs, it took {job.attempt}")


def on(cluster: str) -> Callable[[Client, JobView], str]:
    def check(client: Client, job: JobView) -> str:
        complaint = succeeded(client, job)
        return complaint or (
            "" if job.cluster == cluster else f"it should have run on {cluster}, it ran on {job.cluster}"
        )

    return check


def waited_for_others(client: Client, job: JobView) -> str:
    """Check that it waited until a cluster was free, for longer than the policy asks."""
    waited = (job.started_at or job.submitted_at) - job.submitted_at
    is_late = waited.total_seconds() >= RUN
    return succeeded(client, job) or ("" if is_late else f"it should have waited for others, it waited {waited}")


def trained(client: Client, job: JobView, role: str = "launcher") -> str:
    """Check that the log of a role has an accuracy above 90 %."""
    complaint = succeeded(client, job)
    text = "".join(piece.data for piece in client.logs(job.id, role=role) if isinstance(piece, LogPiece))
    found = [line for line in text.splitlines() if line.startswith("test accuracy:")]
    if not complaint and (not found or float(found[-1].split(":")[1]) <= 0.9):
        complaint = f"its log should end with a test accuracy above 0.9; it has {found or 'none'}"
    return complaint


def gang_on(cluster: str) -> Callable[[Client, JobView], str]:
    """Return a check that the members of a gang of two ran together on a cluster, and each knew its part."""

    def check(client: Client, job: JobView) -> str:
        said = {piece.data.strip() for piece in client.logs(job.id) if isinstance(piece, LogPiece)}
        parts = {line.partition(" has ")[0] for text in said for line in text.splitlines()}
        wanted = {f"member {rank} of 2" for rank in range(2)}
        complaint = on(cluster)(client, job)
        return complaint or ("" if wanted <= parts else f"it should be a gang of two members; it has {sorted(parts)}")

    return check


def evaluated(client: Client, job: JobView) -> str:
    """Check that a job of the fan-out has returned its score."""
    is_good = set(job.results or ()) == {"right", "of"}
    return succeeded(client, job) or ("" if is_good else f"it should return its score; it has {job.results}")


def ran_all(client: Client, job: JobView) -> str:
    """Check that all elements of an array have succeeded."""
    found = job.elements
    is_good = found is not None and found.succeeded == found.count == TASKS
    return succeeded(client, job) or ("" if is_good else f"{TASKS} tasks should have succeeded; there are {found}")


def counted(client: Client, job: JobView) -> str:
    """Check that the pieces of the array make the known number of primes."""
    is_good = job.results == {"pieces": TASKS, "primes": PRIMES}
    return succeeded(client, job) or ("" if is_good else f"{PRIMES} primes should be found; it has {job.results}")


def never_fits(client: Client, job: JobView) -> str:
    reason = client.why(job.id)
    good = job.state.value == "queued" and reason.token.value == "TooLarge" and "64 cpu" in reason.sentence
    return "" if good else f"its reason should be TooLarge; it is {job.state}, {reason.token}: {reason.sentence}"


class Pipeline:
    """The workflow of the demo, whose jobs come as its steps start."""

    def __init__(self, client: Client) -> None:
        (document,) = documents("pipeline/pipeline.yaml")
        self._id = client.submit_workflow(document).id
        self._checks = {
            "prepare": on("edge"),
            "train": gang_on("private"),
            "evaluate": evaluated,
            "report": partial(trained, role="main"),
        }
        self._known: set[str] = set()

    def look(self, client: Client, expected: list[Expectation]) -> bool:
        """Add the jobs that have come; return whether the workflow has ended."""
        found = client.workflow(self._id)
        for step in found.steps:
            for job in step.ids:
                if job not in self._known:
                    self._known.add(job)
                    expected.append(Expectation(job, self._checks[step.name]))
        return found.state.is_terminal

    def complaint(self, client: Client) -> str:
        """Return what is wrong with the workflow as a whole: each step must have started after the end of the one before."""
        found = client.workflow(self._id)
        if found.state is not WorkflowState.SUCCEEDED:
            return f"workflow {found.id} should have succeeded, it has {found.state}"
        for before, after in pairwise(found.steps):
            if before.ended_at is None or after.started_at is None or after.started_at < before.ended_at:
                return f"step {after.name} should have started after {before.name} had ended, at {before.ended_at}"
        many = len(self._known)
        if many != PIPELINE_JOBS:
            return f"workflow {found.id} should have {PIPELINE_JOBS} jobs, it has {many}"
        names, parts = [step.name for step in found.steps], self._parts(client, found)
        wanted = {f"{part}/{len(parts)}" for part in range(len(parts))}
        return "" if (names, parts) == (list(self._checks), wanted) else f"steps {names} have evaluated {parts}"

    def _parts(self, client: Client, found: WorkflowView) -> set[str]:
        """Return the parts that the jobs of the fan-out were given, which are the result of the first step."""
        (step,) = (one for one in found.steps if one.name == "evaluate")
        said = (piece.data for job in step.ids for piece in client.logs(job) if isinstance(piece, LogPiece))
        return {text.split()[1].rstrip(":") for text in said if text.startswith("part ")}


def submit_all(client: Client) -> tuple[list[Expectation], Pipeline]:
    """Submit the examples; the burst first, so that the private cluster is full when the cloud's jobs come."""
    expected = [Expectation(job, on("private")) for job in client.submit(sleeping("burst/filler.yaml", FULL))]
    ends = time.monotonic() + 20
    while any(client.job(item.job).state.value != "running" for item in expected) and time.monotonic() < ends:
        time.sleep(0.1)
    *first, last = client.submit(sleeping("burst/cloud.yaml", RUN))
    # Three of them may be in the cloud at a time, so the fourth waits: for one of them, or for the private cluster.
    expected += [*(Expectation(job, on("public")) for job in first), Expectation(last, waited_for_others)]
    expected += [Expectation(job, trained) for job in client.submit(documents("training/job.yaml"))]
    expected += [Expectation(job, at_the_third_run) for job in client.submit(documents("flaky/job.yaml"))]
    expected += [Expectation(job, succeeded) for job in client.submit(documents("sweep/job.yaml"))]
    array, total = client.submit(documents("tasks/job.yaml"))
    expected += [Expectation(array, ran_all), Expectation(total, counted)]
    steps = Pipeline(client)
    expected += [Expectation(job, never_fits, ends=False) for job in client.submit(documents("too-large/job.yaml"))]
    return expected, steps


def sleeping(path: str, seconds: int) -> list[dict[str, Any]]:
    """Return the jobs of an example, whose members sleep for ``seconds``."""
    jobs = documents(path)
    for job in jobs:
        job["roles"][0]["template"]["command"] = ["sleep", str(seconds)]
    return jobs


def declared() -> list[dict[str, Any]]:
    """Return tenants, prices and the burst policy, which here lets jobs go sooner."""
    found = [*documents("tenants.yaml"), *documents("burst/policy.yaml")]
    for item in found:
        if item["kind"] == "BurstPolicy":
            item["when"]["after"] = f"{AFTER}s"
    return found


def show_spent(client: Client, console: Console) -> None:
    """Print what the cloud has cost, and what is left of the policy's budget."""
    for policy in client.objects("BurstPolicy"):
        for budget in policy.get("status", {}).get("budgets", ()):
            spent, limit = float(budget["spent"]), float(budget["limit"])
            console.print(f"burst policy {policy['name']}: {spent:.2f} of {limit:.2f} EUR spent this {budget['span']}")


def table(jobs: list[JobView], now: float) -> Table:
    out = Table(title="jobs", title_justify="left", header_style="bold")
    for column in ("job", "queue", "state", "cluster", "run", "waited", "ran"):
        out.add_column(column)
    for job in jobs:
        colour = _COLOURS.get(job.shown_state, "white")
        waited, ran = times(job, now)
        state = f"[{colour}]{job.shown_state}[/]"
        out.add_row(job.id, job.queue, state, job.cluster or "", str(job.attempt or ""), waited, ran)
    return out


def times(job: JobView, now: float) -> tuple[str, str]:
    """Return how long a job waited for its first start, and how long it took from then on."""
    submitted = job.submitted_at.timestamp()
    if job.started_at is None:
        return format_duration((job.ended_at.timestamp() if job.ended_at else now) - submitted), ""
    started = job.started_at.timestamp()
    ended = job.ended_at.timestamp() if job.ended_at else now
    return format_duration(started - submitted), format_duration(ended - started)


def show_until_ended(client: Client, console: Console, expected: list[Expectation], steps: Pipeline) -> None:
    """Show a live table until every job has ended that should."""
    ends = time.monotonic() + SECONDS
    with Live(console=console, refresh_per_second=4, transient=not console.is_terminal) as live:
        while time.monotonic() < ends:
            has_ended = steps.look(client, expected)
            jobs = [client.job(item.job) for item in expected]
            live.update(table(jobs, time.time()))
            ended = has_ended and all(
                job.state.is_terminal for job, item in zip(jobs, expected, strict=True) if item.ends
            )
            # The job that can never run must have been considered, too.
            if ended and not any(client.why(item.job).tier is Tier.UNSEEN for item in expected if not item.ends):
                return
            time.sleep(0.3)


def sum_up(client: Client, console: Console, expected: list[Expectation]) -> int:
    """Print the summary; return how many jobs were not as expected."""
    out = Table(title="summary", title_justify="left", header_style="bold")
    for column in ("", "job", "queue", "cluster, and why that one", "waited", "runs", "ran", "result"):
        out.add_column(column, overflow="fold")
    wrong = 0
    for item in expected:
        job = client.job(item.job)
        complaint = item.check(client, job)
        wrong += bool(complaint)
        waited, ran = times(job, time.time())
        where = job.runs[-1].why_here if job.runs else "none: " + client.why(job.id).sentence
        mark = "[red]✗[/]" if complaint else "[green]✓[/]"
        out.add_row(mark, job.id, job.queue, where, waited, str(job.attempt), ran, complaint or job.shown_state)
    console.print(out)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stay", action="store_true", help="leave it running afterwards and say what to try")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-demo-"))
    installation = LocalInstallation(folder, free_port())
    try:
        with interruptible():
            console.print(
                "starting Postgres, Redis, api, scheduler and three clusters: private 4 CPU, public 8 CPU, edge 2 CPU ..."
            )
            began = time.monotonic()
            installation.start()
            with Client(installation.url, installation.keys["admin"]) as client:
                while any(cluster.state != "ready" for cluster in client.clusters()):
                    time.sleep(0.05)
                console.print(
                    f"up after {time.monotonic() - began:.1f} s at {installation.url}; submitting the examples ..."
                )
                for item in declared():
                    kind, name = item["kind"], item.get("path") or item["name"]
                    client.put(kind, name, item)
                expected, steps = submit_all(client)
                show_until_ended(client, console, expected, steps)
                wrong = sum_up(client, console, expected)
                complaint = steps.complaint(client)
                if complaint:
                    console.print(f"[red]✗[/] {complaint}")
                show_spent(client, console)
            console.print(
                f"{len(expected) - wrong} of {len(expected)} jobs as expected, {time.monotonic() - began:.0f} s in all"
            )
            if options.stay:
                stay(console, installation)
    except KeyboardInterrupt:
        return 130
    else:
        return 1 if wrong or complaint else 0
    finally:
        installation.stop()
        shutil.rmtree(folder, ignore_errors=True)


def stay(console: Console, installation: LocalInstallation) -> None:
    write_context(installation.url, installation.keys["admin"])
    console.print(
        f"""
It is still running. Try, in another terminal (source .venv/bin/activate first):
  trainmaster jobs
  trainmaster workflows
  trainmaster why $(trainmaster jobs --name too-large -o json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["id"])')
  trainmaster submit examples/hello.yaml --follow
  trainmaster clusters
  trainmaster burst
  trainmaster usage --by cluster
Dashboard: {installation.url}/ (sign in with the key that trainmaster token prints)
API reference: {installation.url}/docs    Ctrl-C stops it.
"""
    )
    while True:
        for sentence in installation.keep():
            console.print(sentence)
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
