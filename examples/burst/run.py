"""A full private cluster, and a policy that lets three jobs go to the cloud: ``python examples/burst/run.py``.

Brings up a whole dispatcher with its three local clusters in a temporary folder, tells its story in the terminal, and checks what it
tells. Exits with 0 if all of it holds, with 1 if not. ``--fast`` waits and runs for a shorter time, at the same prices.
"""

import argparse
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from trainmaster.cli.interrupts import interruptible
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster.protocol.answers import JobReason
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import JobState
from trainmaster.protocol.tenants import JobView
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.cli.up import LocalInstallation

HERE = Path(__file__).resolve().parent
CENT = Decimal("0.01")
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds: how long jobs wait before they may go, how long they run, and how long the private cluster is full."""

    after: int
    run: int
    full: int


SLOW, FAST = Pace(20, 40, 45), Pace(6, 15, 16)


class Story:
    """The steps of the example; ``wrong`` counts the claims that did not hold."""

    def __init__(self, client: Client, pace: Pace) -> None:
        self.client = client
        self.pace = pace
        self.wrong = self.claims = 0
        self.began = time.monotonic()

    def tell(self) -> None:
        self.declare("tenants.yaml", HERE.parent)
        self.declare("policy.yaml", HERE)
        print("\n1. Two fillers take all 4 CPUs of the cluster private.")
        fillers = self.submit("filler.yaml", self.pace.full)
        self.until(lambda: all(self.job(one).state is JobState.RUNNING for one in fillers))
        print("\n2. Four jobs come, of 2 CPUs and 1 GiB each.")
        jobs = self.submit("cloud.yaml", self.pace.run)
        why = self.until_told(jobs[0], Token.BURST_NOT_YET)
        self.claim(
            "they wait for the private cluster, and know when they may go", "it may go once it has waited", why.sentence
        )
        print(f"\n3. After {self.pace.after} s the policy lets three of them go to the cloud.")
        self.until(lambda: sum(self.job(one).state is JobState.RUNNING for one in jobs) == 3)
        gone = [self.job(one) for one in jobs[:3]]
        self.claim("the first three run on public", ["public"] * 3, [one.cluster for one in gone])
        waits = [(one.started_at - one.submitted_at).total_seconds() for one in gone if one.started_at is not None]
        self.claim(
            "none of them before its time", True, all(self.pace.after <= wait < self.pace.after + 5 for wait in waits)
        )
        print(f"   {gone[0].runs[-1].why_here}")
        why = self.until_told(jobs[3], Token.BURST_LIMIT)
        self.claim(
            "the fourth waits for the true reason", "3 jobs of at most 3 are at public clusters by it", why.sentence
        )
        print(f"\n4. The fillers end after {self.pace.full} s: the fourth starts on the private cluster.")
        self.until(lambda: self.job(jobs[3]).state is JobState.RUNNING)
        self.claim("it runs on private", "private", self.job(jobs[3]).cluster)
        self.until(lambda: all(self.job(one).state.is_terminal for one in jobs))
        self.claim("all four have succeeded", {JobState.SUCCEEDED}, {self.job(one).state for one in jobs})
        print("\n5. What it cost.")
        self.costs()

    def costs(self) -> None:
        """Check what three runs of 2 cores and 1 GiB each cost against a calculation by hand."""
        seconds = Decimal(self.pace.run)
        expected = 3 * seconds * (2 * Decimal("3.60") + Decimal("0.36")) / 3600
        calculation = f"by hand: 3 runs x {seconds} s x (2 x 3.60 + 1 x 0.36) / 3600 = {expected:.3f}"
        print(f"   {calculation}")
        now = datetime.now(UTC)
        rows = self.client.usage(now - timedelta(hours=1), now, by=("cluster",)).rows
        cost = sum((row.cost for row in rows if row.of.get("cluster") == "public"), Decimal())
        self.claim(f"usage says {cost:.3f}, within a cent of it", True, abs(cost - expected) <= CENT)
        self.until(lambda: self.spent().quantize(CENT) == cost.quantize(CENT))
        self.claim("so much of the policy's budget is spent", cost.quantize(CENT), self.spent().quantize(CENT))

    def spent(self) -> Decimal:
        (budget,) = self.client.get_object("BurstPolicy", "overflow")["status"]["budgets"]
        return Decimal(budget["spent"])

    def declare(self, name: str, folder: Path) -> None:
        for item in yaml.safe_load_all((folder / name).read_text()):
            if item["kind"] == "BurstPolicy":
                item["when"]["after"] = f"{self.pace.after}s"
            self.client.put(item["kind"], item.get("path") or item["name"], item)

    def submit(self, name: str, seconds: int) -> list[str]:
        jobs: list[dict[str, Any]] = list(yaml.safe_load_all((HERE / name).read_text()))
        for job in jobs:
            job["roles"][0]["template"]["command"] = ["sleep", str(seconds)]
        return self.client.submit(jobs)

    def job(self, job: str) -> JobView:
        return self.client.job(job)

    def until_told(self, job: str, token: Token) -> JobReason:
        self.until(lambda: self.client.why(job).token is token)
        return self.client.why(job)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds`` is true, but not for ever; the claim that follows reports what did not happen."""
        ends = time.monotonic() + _SECONDS
        while not holds() and time.monotonic() < ends:
            time.sleep(0.2)

    def claim(self, sentence: str, expected: object, found: object) -> None:
        """Print whether ``found`` is as ``expected``; a text may be a part of the other one."""
        holds = expected in found if isinstance(expected, str) and isinstance(found, str) else expected == found
        self.claims += 1
        self.wrong += not holds
        at = time.monotonic() - self.began
        print(f"   [{'ok' if holds else 'WRONG'}] {at:5.1f} s  {sentence}: {found}")
        if not holds:
            print(f"           it should be: {expected}")


def end_all(installation: LocalInstallation) -> None:
    """End what still runs: members are processes of this machine, and outlive their agent."""
    with suppress(TrainmasterError), Client(installation.url, installation.keys["admin"]) as client:
        client.bulk("cancel", JobFilter(queue="platform"))
        ends = time.monotonic() + 20
        while any(not job.state.is_terminal for job in client.jobs()) and time.monotonic() < ends:
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="wait and run for a shorter time")
    options = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # who follows a file sees the story as it is told
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-burst-"))
    installation = LocalInstallation(folder, free_port())
    code = 1
    story = None
    try:
        with interruptible():
            print("starting Postgres, Redis, api, scheduler, worker and three clusters ...")
            installation.start()
            with Client(installation.url, installation.keys["admin"]) as client:
                while any(cluster.state != "ready" for cluster in client.clusters()):
                    time.sleep(0.05)
                story = Story(client, FAST if options.fast else SLOW)
                story.tell()
            print(f"\n{story.claims - story.wrong} of {story.claims} claims hold")
            code = 1 if story.wrong else 0
    except KeyboardInterrupt:
        code = 130
    except TrainmasterError as error:
        print(f"it could not be told: {error}", file=sys.stderr)
    finally:
        if story is not None:
            end_all(installation)
        installation.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
