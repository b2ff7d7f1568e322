"""Short tasks as elements of an array: how many run in a second, and the time between one and the next.

    python -m bench.packs [--elements 50000] [--members 4] [--slots 1] [--kinds call,command] [--alone 200]

Starts the whole system as ``trainmaster up`` does: real Postgres, one api, and agents with the local runtime, whose members are
processes of this machine. One array for each kind: ``call`` calls a Python function that does nothing but note when; ``command``
starts ``true``. ``overhead``: the time between the end of a call and the begin of the next one of the same member. ``alone``: the same
command as jobs of their own, submitted in one call.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.numbers import stores, summary
from bench.output import installed
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster_dispatcher.cli.up import LocalInstallation

KINDS = ("call", "command")
_LOOK_SECONDS = 0.1
_LONGEST_SECONDS = 900.0
_FUNCTION = """
import os, time
LINES = open(f"{os.environ['TIMES']}/{os.getpid()}", "w")
LAST = [0.0]
def work(element):
    now = time.monotonic()
    LINES.write(f"{now - LAST[0]:.6f}\\n")
    if element % 100 == 0:
        LINES.flush()
    LAST[0] = time.monotonic()
"""


def array(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the job of one kind of tasks."""
    template: dict[str, Any] = {"resources": {"cpu": "100m"}}
    spec: dict[str, Any] = {"count": options.elements, "slots": options.slots}
    if kind == "call":
        (folder / "packs_study.py").write_text(_FUNCTION)
        (folder / "times").mkdir()
        template |= {"workingDir": str(folder), "env": {"TIMES": str(folder / "times")}}
        spec["call"] = "packs_study:work"
    else:
        template["command"] = ["true"]
    role = {"name": "worker", "replicas": options.members, "template": template}
    return {"kind": "Job", "name": kind, "queue": "default", "roles": [role], "array": spec}


def _times(folder: Path) -> Iterator[float]:
    """Yield the seconds between the end of a call and the begin of the next one, without the first of each process."""
    for file in (folder / "times").iterdir():
        yield from (float(line) for line in file.read_text().splitlines()[1:-1] if line)


def _cpu(installation: LocalInstallation) -> dict[str, float]:
    found = {}
    for name, child in installation.children.items():
        if child.process is not None and child.process.poll() is None:
            times = psutil.Process(child.process.pid).cpu_times()
            found[name] = times.user + times.system
    return found


def measure(kind: str, client: Client, installation: LocalInstallation, options: argparse.Namespace) -> dict[str, Any]:
    """Run one array, and return its figures."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-packs-") as name:
        folder = Path(name)
        before = _cpu(installation)
        began = time.monotonic()
        (job,) = client.submit(array(kind, folder, options))
        progress: list[tuple[float, int]] = []
        while True:
            view = client.job(job)
            done = 0 if view.elements is None else view.elements.succeeded + view.elements.failed
            progress.append((time.monotonic(), done))
            if view.state.is_terminal:
                break
            if time.monotonic() - began > _LONGEST_SECONDS:
                raise TimeoutError(f"{kind}: {done} of {options.elements} elements after {_LONGEST_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)
        ended = time.monotonic()
        after = _cpu(installation)
        found: dict[str, Any] = {
            "state": view.state.value,
            "succeeded": 0 if view.elements is None else view.elements.succeeded,
            "seconds_from_submission_to_end": round(ended - began, 3),
            "per_second_sustained": round(_sustained(progress, options.elements), 1),
            "cpu_us_per_element": {
                one: round((seconds - before.get(one, 0.0)) / options.elements * 1e6, 1)
                for one, seconds in sorted(after.items())
                if seconds - before.get(one, 0.0) > 0.05
            },
        }
        if kind == "call":
            found["overhead"] = summary(list(_times(folder)))
    return found


def _sustained(progress: Sequence[tuple[float, int]], total: int) -> float:
    """Return the elements per second between the first tenth and the last tenth of all."""
    inner = [(at, done) for at, done in progress if total * 0.1 <= done <= total * 0.9]
    if len(inner) < 2 or inner[-1][0] == inner[0][0]:
        return 0.0
    return (inner[-1][1] - inner[0][1]) / (inner[-1][0] - inner[0][0])


def alone(client: Client, many: int) -> dict[str, Any]:
    """Run the command as jobs of their own, and return how many end in a second."""
    role = {"name": "main", "template": {"command": ["true"], "resources": {"cpu": "10m"}}}
    jobs = [{"kind": "Job", "name": "alone", "queue": "default", "labels": {"bench": "alone"}, "roles": [role]}] * many
    began = time.monotonic()
    client.submit(jobs)
    wanted = JobFilter(labels={"bench": "alone"}, states=["succeeded"])
    while sum(1 for _ in client.jobs(wanted)) < many:
        time.sleep(_LOOK_SECONDS)
    seconds = time.monotonic() - began
    return {"jobs": many, "seconds": round(seconds, 3), "per_second": round(many / seconds, 1)}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    found.add_argument("--elements", type=int, default=50_000)
    found.add_argument("--members", type=int, default=4)
    found.add_argument("--slots", type=int, default=1)
    found.add_argument("--kinds", default=",".join(KINDS))
    found.add_argument("--alone", type=int, default=200)
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all kinds."""
    with installed() as installation, Client(installation.url, installation.keys["admin"]) as client:
        found: dict[str, Any] = {
            "elements": options.elements,
            "members": options.members,
            "slots": options.slots,
            "kinds": {kind: measure(kind, client, installation, options) for kind in options.kinds.split(",")},
        }
        if options.alone:
            found["alone"] = alone(client, options.alone)
        found["stores"] = stores(installation.children["api"].env["DATABASE_URL"])
    return found


def is_wrong(found: dict[str, Any]) -> bool:
    """Return whether an element was lost."""
    return any(one["succeeded"] != found["elements"] for one in found["kinds"].values())


def main() -> None:
    found = run(parser().parse_args())
    print(json.dumps(found, indent=2))
    sys.exit(is_wrong(found))


if __name__ == "__main__":
    main()
