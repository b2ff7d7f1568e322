"""An array of a million elements: what its submission, its stored rows, questions and cancellations cost.

    python -m bench.array [--elements 1000000] [--run 100000] [--jobs 1000] [--calls 20]

Starts the whole system as ``trainmaster up`` does. One array waits, held, with all of its elements; every second element of its first
half is cancelled, which is the worst case for the store. Another one of ``--run`` elements is run by workers that call a function
which does nothing. A third one, with as many elements as the first, has jobs for elements: none of them fits anywhere. Then ``--jobs``
elements are run as jobs, and as many jobs that were submitted as a table of parameters, for comparison.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from bench.numbers import stores, summary
from bench.output import installed
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster.protocol.arrays import ARRAY_LABEL
from trainmaster_dispatcher.domain.element_jobs import MOST_WAITING
from trainmaster_dispatcher.store.database import driver_url

_TABLES = ("jobs", "job_specs", "events", "arrays", "array_blocks", "array_failures", "array_results")
_RANGES = 5_000
"""Ranges of one call."""
_LONGEST_SECONDS = 600.0


def array(count: int, **fields: Any) -> dict[str, Any]:
    template = fields.pop("template", {"command": ["true"]}) | {"resources": {"cpu": "100m"}}
    spec = {"count": count} | fields.pop("array", {})
    roles = [{"name": "worker", "replicas": 4, "template": template}]
    return {"kind": "Job", "name": "array", "queue": "default", "roles": roles, "array": spec} | fields


def stored_bytes(url: str) -> int:
    """Return the bytes of the rows of arrays and their jobs, without indexes and free space."""
    total = " + ".join(f"coalesce((SELECT sum(pg_column_size(t.*)) FROM {table} t), 0)" for table in _TABLES)
    with create_engine(driver_url(url)).connect() as connection:
        return int(connection.execute(text(f"SELECT {total}")).scalar_one())


def timed(call: Callable[[], Any], many: int = 1) -> dict[str, float]:
    """Return the seconds of some calls, one after the other."""
    seconds = []
    for _ in range(many):
        began = time.monotonic()
        call()
        seconds.append(time.monotonic() - began)
    return summary(seconds)


def waiting(client: Client, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of an array that waits."""
    before = stored_bytes(url)
    jobs: list[str] = []
    submitted = timed(lambda: jobs.extend(client.submit(array(options.elements, suspend=True))))
    (job,) = jobs
    found: dict[str, Any] = {"submit": submitted, "stored_bytes": stored_bytes(url) - before}
    found["show"] = timed(lambda: client.job(job), options.calls)
    found["list_jobs"] = timed(lambda: list(client.jobs()), options.calls)
    half = options.elements // 2
    found["cancel_a_quarter"] = timed(lambda: client.cancel_elements(job, f"{half}-{half + half // 2 - 1}"))
    every_second = list(range(0, half, 2))
    parts = [every_second[first : first + _RANGES] for first in range(0, len(every_second), _RANGES)]
    found["cancel_every_second"] = summary(
        [timed(partial(client.cancel_elements, job, ",".join(map(str, part))))["mean_seconds"] for part in parts]
    )
    found["cancelled"] = (client.job(job).elements or _none()).cancelled
    found["stored_bytes_with_every_second_cancelled"] = stored_bytes(url) - before
    found["elements"] = timed(lambda: client.elements(job), options.calls)
    found["cancel_all"] = timed(lambda: client.cancel(job))
    found["is_wrong"] = found["cancelled"] != half // 2 + len(every_second)
    return found


def _none() -> Any:
    raise ValueError("the job is no array")


def run_to_its_end(client: Client, url: str, many: int) -> dict[str, Any]:
    """Return the figures of an array whose elements are run."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-array-") as folder:
        (Path(folder) / "bench_work.py").write_text("def work(element):\n    pass\n")
        before = stored_bytes(url)
        began = time.monotonic()
        template = {"workingDir": folder}
        (job,) = client.submit(array(many, array={"call": "bench_work:work"}, template=template))
        _until(lambda: client.job(job).state.is_terminal)
        view = client.job(job)
        seconds = time.monotonic() - began
    done = 0 if view.elements is None else view.elements.succeeded
    return {
        "elements": many,
        "seconds": round(seconds, 2),
        "per_second": round(many / seconds, 1),
        "stored_bytes": stored_bytes(url) - before,
        "show": timed(lambda: client.job(job)),
        "is_wrong": done != many,
    }


def jobs_that_wait(client: Client, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of an array of jobs that fit nowhere."""
    before = stored_bytes(url)
    jobs: list[str] = []
    spec = array(options.elements, array={"mode": "jobs"})
    spec["roles"][0]["template"]["resources"] = {"cpu": "1000"}
    submitted = timed(lambda: jobs.extend(client.submit(spec)))
    (job,) = jobs
    most = min(options.elements, MOST_WAITING)
    began = time.monotonic()
    _until(lambda: len(list(client.jobs_of_elements(job))) == most)
    found: dict[str, Any] = {
        "submit": submitted,
        "jobs_that_wait": most,
        "until_they_wait_seconds": round(time.monotonic() - began, 2),
        "stored_bytes": stored_bytes(url) - before,
        "show": timed(lambda: client.job(job), options.calls),
        "elements": timed(lambda: client.elements(job), options.calls),
    }
    began = time.monotonic()
    client.cancel(job)
    waiting = JobFilter(labels={ARRAY_LABEL: job}, states=("queued",))
    _until(lambda: next(iter(client.jobs(waiting)), None) is None)
    return found | {"cancel_seconds": round(time.monotonic() - began, 2)}


def jobs_to_their_end(client: Client, many: int) -> dict[str, Any]:
    """Return how many jobs of an array are run in a second, and of a table of parameters."""
    template = {"command": ["true", "${element}"], "resources": {"cpu": "100m"}}
    spec = array(many, array={"mode": "jobs"})
    spec["roles"] = [{"name": "worker", "template": template}]
    began = time.monotonic()
    (job,) = client.submit(spec)
    _until(lambda: client.job(job).state.is_terminal)
    as_array = time.monotonic() - began
    counts = client.job(job).elements or _none()
    del spec["array"]
    began = time.monotonic()
    table = client.submit_parameters(spec, [{"element": index} for index in range(many)])
    for one in table:
        client.wait(one)
    as_table = time.monotonic() - began
    return {
        "jobs": many,
        "array_per_second": round(many / as_array, 1),
        "table_per_second": round(many / as_table, 1),
        "is_wrong": counts.succeeded != many,
    }


def _until(is_so: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > _LONGEST_SECONDS:
            raise TimeoutError(f"not within {_LONGEST_SECONDS:g} s")
        time.sleep(0.1)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    found.add_argument("--elements", type=int, default=1_000_000)
    found.add_argument("--run", type=int, default=100_000)
    found.add_argument("--jobs", type=int, default=1_000)
    found.add_argument("--calls", type=int, default=20)
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    with installed() as installation, Client(installation.url, installation.keys["admin"]) as client:
        url = installation.children["api"].env["DATABASE_URL"]
        return {
            "elements": options.elements,
            "waiting": waiting(client, url, options),
            "run": run_to_its_end(client, url, options.run),
            "jobs_that_wait": jobs_that_wait(client, url, options),
            "jobs": jobs_to_their_end(client, options.jobs),
            "stores": stores(url),
        }


def main() -> None:
    found = run(parser().parse_args())
    print(json.dumps(found, indent=2))
    sys.exit(found["waiting"]["is_wrong"] or found["run"]["is_wrong"] or found["jobs"]["is_wrong"])


if __name__ == "__main__":
    main()
