"""Three queues share a fleet, one of them greedy: ``python examples/fairness/run.py``.

Brings up a whole dispatcher with two simulated clusters in a temporary folder, tells its story in the terminal, and checks what it
tells. Exits with 0 if all of it holds, with 1 if not. ``--fast`` pauses less and lets jobs run for a shorter time.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from stage import FLEET_CPUS, Stage
from watch import LOOK_SECONDS, Use, Watch

from trainmaster.cli.interrupts import interruptible
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import JobState, RunState
from trainmaster.protocol.tenants import JobView

TENANTS = Path(__file__).with_name("tenants.yaml")
LONGEST_SECONDS = 10.0
"""What "within seconds" means here: the time from asking to having all that is guaranteed, or lent."""
_UP_SECONDS = 6.0
"""How long the bring-up takes on two idle cores; on a slower machine jobs run longer, so that each phase still finds them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of one queue, all equivalent: gangs of ``members`` that take two CPUs each."""

    queue: str
    jobs: int
    members: int
    run_seconds: float
    stop_seconds: float = 0.0
    """How long members live on after they were asked to end: they save their work."""

    MEMBER_CPUS = 2

    @property
    def job_cpus(self) -> int:
        return self.members * self.MEMBER_CPUS

    def specs(self) -> list[dict[str, Any]]:
        template = {"command": ["train"], "resources": {"cpu": str(self.MEMBER_CPUS), "memory": "1Gi"}}
        behaviour = {"run-time": f"{self.run_seconds:.1f}s", "stop-time": f"{self.stop_seconds:.1f}s"}
        return [
            {
                "name": f"{self.queue}-{number}",
                "queue": self.queue,
                "timeLimit": "5m",
                "labels": {f"sim.trainmaster.dev/{name}": value for name, value in behaviour.items()},
                "roles": [{"name": "worker", "replicas": self.members, "template": template}],
            }
            for number in range(1, self.jobs + 1)
        ]


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the example says of the dispatcher, and whether it was so."""

    sentence: str
    holds: bool


class Story:
    """The phases, in their order; ``claims`` grows with them."""

    def __init__(
        self, stage: Stage, client: Client, watch: Watch, console: Console, *, pace: float, fast: bool
    ) -> None:
        self.stage = stage
        self.client = client
        self.watch = watch
        self.console = console
        self.claims: list[Claim] = []
        self.greedy, self.research, self.product = workloads(pace, fast=fast)
        self._pause_seconds = 0.5 if fast else 2.0

    def tell(self) -> None:
        self.greedy_borrows()
        self.research_asks()
        self.product_asks()
        self.each_says_why()
        self.research_goes_idle()
        self.all_that_gave_way_ends()

    def greedy_borrows(self) -> None:
        self._headline("1. greedy asks for 22 CPUs. Nothing is guaranteed to it, but nobody else asks: it borrows.")
        jobs = self.client.submit(self.greedy.specs())
        self._until(lambda uses: uses["greedy"].running >= 20)
        self._pause()
        self._claim(
            f"greedy borrowed {self.watch.most['greedy']} of {FLEET_CPUS} CPUs, all but the 4 that product does not lend",
            self.watch.most["greedy"] == 20,
        )
        self._check_why(jobs[-1], Token.KEPT_FOR_OTHERS)
        self._show_why(jobs[-1])

    def research_asks(self) -> None:
        self._headline("2. research asks for 16 CPUs, in gangs of 4. Guaranteed to it are 8: those it takes back.")
        self._take_back(self.research)

    def product_asks(self) -> None:
        self._headline("3. product asks for 12 CPUs. It has kept 4 of its 8 for itself; the others it takes back.")
        self._take_back(self.product)
        gave_way = self.watch.gave_way
        ended = len(gave_way) * self.greedy.job_cpus
        self._claim(
            f"{len(gave_way)} runs ended for both, {ended} CPUs: as much as their guarantees needed, and all of them greedy's",
            ended == 12 and all(one.queue == "greedy" for one in gave_way),
        )

    def each_says_why(self) -> None:
        self._headline("4. The fleet is full. A waiting job of each queue says why it waits.")
        uses = self.watch.look()
        self._claim(
            f"what is beyond the guarantees waits: {uses['research'].waiting} jobs of research,"
            f" {uses['product'].waiting} of product",
            [uses[queue].running for queue in ("research", "product")] == [8, 8]
            and [uses[queue].waiting for queue in ("research", "product")] == [2, 2],
        )
        # All are asked at once: the command line, which is shown below, takes longer, and meanwhile jobs end and others start.
        expected = (
            ("greedy", Token.INSUFFICIENT_CAPACITY),
            ("research", Token.INSUFFICIENT_CAPACITY),
            ("product", Token.BORROWING_LIMIT),
        )
        waiting = {queue: self.watch.of(queue, JobState.QUEUED)[:1] for queue, _ in expected}
        for queue, token in expected:
            for job in waiting[queue]:
                self._check_why(job.id, token)
            if not waiting[queue]:
                self._claim(f"a job of {queue} waits and says why", holds=False)
        for jobs in waiting.values():
            for job in jobs:
                self._show_why(job.id)

    def research_goes_idle(self) -> None:
        self._headline("5. research has seen enough and cancels its jobs. greedy borrows again.")
        began = time.monotonic()
        self.client.bulk("cancel", JobFilter(queue="research"))
        uses = self._until(lambda uses: _borrows_again(uses["greedy"]))
        seconds = time.monotonic() - began
        self._claim(
            f"greedy had {uses['greedy'].running} CPUs {seconds:.1f} s after research had gone idle",
            _borrows_again(uses["greedy"]) and seconds <= LONGEST_SECONDS,
        )

    def all_that_gave_way_ends(self) -> None:
        """Wait for the jobs that gave way; what still runs after the longest time that they may need is cancelled."""
        self._headline("6. The jobs that gave way begin anew, and end.")
        gave_way = {one.job for one in self.watch.gave_way}
        self._until(
            lambda _: all(self.watch.jobs[job].state.is_terminal for job in gave_way), 3 * self.greedy.run_seconds
        )
        for workload in (self.greedy, self.research, self.product):
            self.client.bulk("cancel", JobFilter(queue=workload.queue))
        self._until(lambda _: all(job.state.is_terminal for job in self.watch.jobs.values()))
        ends = [job for job in self.watch.jobs.values() if job.id in gave_way]
        done = [job for job in ends if job.state is JobState.SUCCEEDED]
        cancelled = [job for job in ends if job.state is JobState.CANCELLED]
        self._claim(
            f"the {len(ends)} jobs that gave way were queued again by themselves; {len(done)} have succeeded in a later run,"
            f" {len(cancelled)} were cancelled",
            bool(ends)
            and len(done) + len(cancelled) == len(ends)
            and all(self._was_queued_again(job) for job in ends)
            and all(job.attempt > 1 for job in done),
        )

    def _take_back(self, workload: Workload) -> None:
        """Submit the queue's jobs; measure, by the store's clock, when the last one within its guarantee has started."""
        jobs = self.client.submit(workload.specs())
        guaranteed = self.watch.look()[workload.queue].guaranteed
        uses = self._until(lambda uses: uses[workload.queue].running >= guaranteed)
        running = self.watch.of(workload.queue, JobState.RUNNING)
        seconds = max(
            ((job.started_at - job.submitted_at).total_seconds() for job in running if job.started_at), default=0.0
        )
        self._pause()
        self._claim(
            f"{workload.queue} had {uses[workload.queue].running} of the {guaranteed} CPUs guaranteed to it"
            f" {seconds:.1f} s after it had asked for {len(jobs) * workload.job_cpus}",
            uses[workload.queue].running == guaranteed and seconds <= LONGEST_SECONDS,
        )

    def _was_queued_again(self, job: JobView) -> bool:
        states = [run.state for run in self.client.job(job.id).runs]
        return RunState.PREEMPTED in states

    def _check_why(self, job: str, expected: Token) -> None:
        """Check the reason's code, which is for programs."""
        found = self.client.why(job).token
        self._claim(f"{job} waits because of {found}", found is expected)

    def _show_why(self, job: str) -> None:
        """Show what the command line says."""
        self.console.print(Text(f"\n  $ trainmaster why {job}", style="bold"))
        said = self.stage.command("why", job)
        self.console.print(Padding.indent(Text(said), 4))

    def _until(self, reached: Callable[[dict[str, Use]], bool], seconds: float = 2 * LONGEST_SECONDS) -> dict[str, Use]:
        """Look until ``reached`` is true or ``seconds`` have passed; return what was seen last."""
        ends = time.monotonic() + seconds
        while not reached(uses := self.watch.look()) and time.monotonic() < ends:
            time.sleep(LOOK_SECONDS)
        return uses

    def _pause(self) -> None:
        """Give people time to read; the table is updated meanwhile."""
        self._until(lambda _: False, self._pause_seconds)

    def _headline(self, text: str) -> None:
        self.console.print(Text(f"\n{text}", style="bold"))

    def _claim(self, sentence: str, holds: bool) -> None:
        self.claims.append(Claim(sentence, holds))


def _borrows_again(greedy: Use) -> bool:
    """Return whether greedy has 16 CPUs, or more than its 8 of before and nothing that waits: on a slow machine some of its jobs have
    ended by then, and the others ask for less than 16."""
    return greedy.running >= 16 or (greedy.running > 8 and not greedy.waiting)


def workloads(pace: float, *, fast: bool) -> tuple[Workload, Workload, Workload]:
    """Return the workloads of greedy, research and product; greedy's last until all have submitted, research's until
    they are cancelled."""
    greedy, product = (14.0, 8.0) if fast else (20.0, 12.0)
    return (
        Workload("greedy", 11, 1, greedy * pace, stop_seconds=1.0),
        Workload("research", 4, 2, 240.0),
        Workload("product", 6, 1, product * pace),
    )


def sum_up(console: Console, claims: list[Claim]) -> int:
    """Print the claims; return how many do not hold."""
    console.print()
    for claim in claims:
        mark, style = ("✓", "green") if claim.holds else ("✗ not so:", "red")
        console.print(Text(f"{mark} {claim.sentence}", style=style))
    held = sum(claim.holds for claim in claims)
    console.print(f"{held} of {len(claims)} claims hold")
    return len(claims) - held


def play(stage: Stage, console: Console, *, fast: bool) -> int:
    """Bring everything up and run the steps; return how many claims do not hold."""
    console.print(f"starting Postgres, Redis, api, scheduler and two simulated clusters, {FLEET_CPUS} CPUs in all ...")
    began = time.monotonic()
    stage.start()
    seconds = time.monotonic() - began
    console.print(f"up after {seconds:.1f} s\n\n[bold]$ trainmaster apply -f {TENANTS.name} --yes[/]")
    console.print(Text(stage.command("apply", "-f", str(TENANTS), "--yes")))
    pace = min(2.0, max(1.0, seconds / _UP_SECONDS))
    job_cpus = {workload.queue: workload.job_cpus for workload in workloads(pace, fast=fast)}
    with stage.client() as client:
        with Watch(client, console, FLEET_CPUS, job_cpus) as watch:
            story = Story(stage, client, watch, console, pace=pace, fast=fast)
            story.tell()
        return sum_up(console, story.claims)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="pause less between the phases, with shorter jobs")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-fairness-"))
    stage = Stage(folder)
    code = 1
    try:
        with interruptible():
            code = 1 if play(stage, console, fast=options.fast) else 0
    except KeyboardInterrupt:
        code = 130
    except (TrainmasterError, OSError, subprocess.CalledProcessError) as error:
        console.print(Text(f"the story broke off: {error}", style="red"))
    finally:
        stage.stop()
        if code == 1:
            print(f"the logs are kept in {folder / 'logs'}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
