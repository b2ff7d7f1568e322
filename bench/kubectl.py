"""The Kubernetes API as kubectl uses it, beside the REST API, and beside a real API server with the same kind in its etcd.

    python -m bench.kubectl [--jobs 100000] [--seconds 10] [--watchers 1000] [--rate 500] [--callers 16]

Real processes and a real Postgres; no cluster is connected, so nothing starts. With ``KUBEBUILDER_ASSETS`` the same calls go to a
kube-apiserver with a custom resource of the same kind, without validation. ``create``: single objects by ``--callers`` at once;
``to_rest``: our rate as a part of that of ``POST /v1/jobs``, in turns with it. ``list``: all jobs by pages, as tables, which is
what ``kubectl get`` reads, and as whole objects. ``change``: labels of jobs, by ``--callers`` at once. ``watch``: ``--watchers``
watches of all jobs while jobs are created at a rate, here in sets by the REST API, there one by one; ``delivered``: the part of all
events that have come 60 s after the last one was made at most; ``cut``: watches that the server ended before; ``lag``: from the answer
to a creation until one of the watches has it, in seconds.
"""

import argparse
import asyncio
import json
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from bench.numbers import summary
from bench.stage import ADMIN_KEY, Stage
from tests.cluster.control_plane import ControlPlane, assets

GROUP = "/apis/trainmaster.dev/v1"
JOBS = f"{GROUP}/namespaces/default/jobs"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
MERGE = "application/merge-patch+json"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PATIENCE = 60.0
_LOOK_SECONDS = 0.2
_SET_SECONDS = 0.05
"""Seconds between two sets of jobs that are created while watches are open."""
_MOST_AT_ONCE = 40
_MOST_NAMES = 5000
_TURNS = 4
SPEC = {"roles": [{"name": "main", "template": {"command": ["true"], "resources": {"cpu": "1"}}}]}


@dataclass(frozen=True)
class Api:
    """A server with jobs of the group, and a session with its address and credentials."""

    url: str
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        """Return an answer's body. Raises RuntimeError for an error."""
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, data=body, headers=sent) as answer:
            found = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {found[:300]!r}")
            return found


@asynccontextmanager
async def opened(url: str, token: str, ca_file: Path | None = None) -> AsyncIterator[Api]:
    context = False if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    timeout = aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield Api(url, session)


def manifest(name: str, labels: Mapping[str, str] | None = None) -> bytes:
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    body = {"apiVersion": "trainmaster.dev/v1", "kind": "Job", "metadata": metadata, "spec": SPEC}
    return orjson.dumps(body)


async def at_once(callers: int, act: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*(act(number) for number in range(callers)))


async def creates(
    api: Api, path: str, body: Callable[[str], bytes], prefix: str, callers: int, seconds: float
) -> float:
    """Return the objects per second that callers at once have created."""
    ends, made = time.monotonic() + seconds, 0
    began = time.monotonic()

    async def caller(number: int) -> None:
        nonlocal made
        own = 0
        while time.monotonic() < ends:
            await api.call("POST", path, body(f"{prefix}-{number}-{own}"))
            own += 1
            made += 1

    await at_once(callers, caller)
    return made / (time.monotonic() - began)


async def lists(api: Api, accept: str) -> dict[str, Any]:
    """List all jobs by pages of 500."""
    began, rows, pages, read, token = time.monotonic(), 0, 0, 0, ""
    while True:
        answer = await api.call("GET", f"{JOBS}?limit=500&continue={token}", Accept=accept)
        page = orjson.loads(answer)
        rows += len(page.get("rows") or page.get("items") or ())
        pages, read = pages + 1, read + len(answer)
        if not (token := page["metadata"].get("continue", "")):
            break
    took = time.monotonic() - began
    return {
        "objects": rows,
        "pages": pages,
        "seconds": round(took, 2),
        "objects_per_second": round(rows / took),
        "bytes": read,
    }


async def changes(api: Api, callers: int, seconds: float) -> float:
    """Return the labels of jobs per second that callers at once have changed, each of another job."""
    names: list[str] = []
    token = ""
    while len(names) < _MOST_NAMES:
        listed = orjson.loads(await api.call("GET", f"{JOBS}?limit=500&continue={token}", Accept=TABLE))
        names += [row["object"]["metadata"]["name"] for row in listed["rows"]]
        if not (token := listed["metadata"].get("continue", "")):
            break
    ends, made = time.monotonic() + seconds, 0
    began = time.monotonic()

    async def caller(_: int) -> None:
        nonlocal made
        while time.monotonic() < ends:
            made += 1
            body = orjson.dumps({"metadata": {"labels": {"n": f"{made}"}}})
            await api.call("PATCH", f"{JOBS}/{names[made % len(names)]}", body, Content_Type=MERGE)

    await at_once(callers, caller)
    return made / (time.monotonic() - began)


Make = Callable[[Sequence[int]], Coroutine[Any, Any, None]]
"""Creates jobs, each with its number as a label."""


def by_sets(api: Api) -> Make:
    """Return a function that submits jobs in sets by the REST API."""

    async def make(numbers: Sequence[int]) -> None:
        job = {"kind": "Job", "name": "new", "queue": "default", **SPEC}
        await api.call("POST", "/v1/jobs", orjson.dumps({"jobs": [{**job, "labels": {"n": f"{n}"}} for n in numbers]}))

    return make


def one_by_one(api: Api) -> Make:
    """Return a function that creates jobs by single calls, at once."""

    async def make(numbers: Sequence[int]) -> None:
        await asyncio.gather(*(api.call("POST", JOBS, manifest(f"w-{n}", {"n": f"{n}"})) for n in numbers))

    return make


async def watched(api: Api, make: Make, watchers: int, rate: int, seconds: float) -> dict[str, Any]:
    """Create jobs at a rate while watches are open; return how much came, and when."""
    listed = orjson.loads(await api.call("GET", f"{JOBS}?limit=1", Accept=TABLE))
    path = f"{api.url}{JOBS}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}"
    sent: dict[str, float] = {}
    lags: list[float] = []
    counts = [0] * watchers
    tasks = [asyncio.create_task(_watch(api, path, number, counts, sent, lags)) for number in range(watchers)]
    await asyncio.sleep(1 + watchers / 500)
    before = sum(counts)
    began, made = time.monotonic(), 0

    async def few(numbers: Sequence[int]) -> None:
        await make(numbers)
        sent.update(dict.fromkeys(map(str, numbers), time.monotonic()))

    running: set[asyncio.Task[None]] = set()
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate)
        if due > made and len(running) < _MOST_AT_ONCE:
            task = asyncio.create_task(few(range(made, due)))
            running.add(task)
            task.add_done_callback(running.discard)
            made = due
        await asyncio.sleep(_SET_SECONDS)
    await asyncio.gather(*running)
    took = time.monotonic() - began
    for _ in range(round(_PATIENCE / _LOOK_SECONDS)):
        if sum(counts) - before >= made * watchers or all(task.done() for task in tasks):
            break
        await asyncio.sleep(_LOOK_SECONDS)
    delivered, all_took = sum(counts) - before, time.monotonic() - began
    ended = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "watchers": watchers,
        "changes_per_second": round(made / took, 1),
        "delivered": round(delivered / max(1, made * watchers), 4),
        "cut": ended,
        "events_per_second": round(delivered / all_took),
        "lag": summary(lags) if lags else None,
    }


async def _watch(
    api: Api, path: str, number: int, counts: list[int], sent: dict[str, float], lags: list[float]
) -> None:
    """Count the events of a watch; the first one also reads them."""
    async with api.session.get(path, headers={"Accept": TABLE}) as answer:
        rest = b""
        async for part in answer.content.iter_any():
            counts[number] += part.count(b"\n")
            if number == 0:
                *lines, rest = (rest + part).split(b"\n")
                now = time.monotonic()
                for line in lines:
                    for row in orjson.loads(line)["object"].get("rows", ()):
                        label = (row["object"]["metadata"].get("labels") or {}).get("n")
                        if label in sent:
                            lags.append(now - sent.pop(label))


async def ours(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the dispatcher's API, and the rate of the REST API."""
    async with opened(url, ADMIN_KEY) as api:
        rest_body = orjson.dumps({"kind": "Job", "name": "job", "queue": "default", **SPEC})
        await creates(api, JOBS, manifest, "warm", options.callers, 2)
        rates: dict[str, list[float]] = {"kubernetes": [], "rest": []}
        for turn in range(_TURNS):
            rates["rest"].append(
                await creates(api, "/v1/jobs", lambda _: rest_body, f"r{turn}", options.callers, options.seconds)
            )
            rates["kubernetes"].append(await creates(api, JOBS, manifest, f"k{turn}", options.callers, options.seconds))
        mean = {name: sum(found) / len(found) for name, found in rates.items()}
        have = int(orjson.loads(await api.call("GET", "/v1/queues/default"))["jobs"].get("queued", 0))
        for first in range(have, options.jobs, 5000):
            jobs = [{"kind": "Job", "name": "job", "queue": "default", **SPEC}] * min(5000, options.jobs - first)
            await api.call("POST", "/v1/jobs", orjson.dumps({"jobs": jobs}))
        return {
            "create": {
                "per_second": round(mean["kubernetes"], 1),
                "rest_per_second": round(mean["rest"], 1),
                "to_rest": round(mean["kubernetes"] / mean["rest"], 3),
            },
            "list": {"tables": await lists(api, TABLE), "objects": await lists(api, "application/json")},
            "change": {"per_second": round(await changes(api, options.callers, options.seconds), 1)},
            "watch": await watched(api, by_sets(api), options.watchers, options.rate, options.seconds),
        }


async def of_an_api_server(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a real API server with a custom resource."""
    plane = await ControlPlane.start(folder, scheduler=False, controller_manager=False)
    try:
        async with opened(plane.url, plane.admin_token, plane.ca_file) as api:
            await api.call("POST", _CRDS, orjson.dumps(_definition()))
            await _until_served(api)
            await creates(api, JOBS, manifest, "warm", options.callers, 2)
            rate = await creates(api, JOBS, manifest, "k", options.callers, options.seconds)
            listed = orjson.loads(await api.call("GET", f"{JOBS}?limit=1"))
            have = 1 + int(listed["metadata"].get("remainingItemCount", 0))

            async def fill(number: int) -> None:
                for place in range(have + number, options.jobs, 32):
                    await api.call("POST", JOBS, manifest(f"f-{place}"))

            await at_once(32, fill)
            return {
                "version": plane.version,
                "create": {"per_second": round(rate, 1)},
                "list": {"tables": await lists(api, TABLE), "objects": await lists(api, "application/json")},
                "change": {"per_second": round(await changes(api, options.callers, options.seconds), 1)},
                "watch": await watched(api, one_by_one(api), options.watchers, options.rate, options.seconds),
            }
    finally:
        await plane.stop()


async def _until_served(api: Api) -> None:
    ends = time.monotonic() + _PATIENCE
    while True:
        try:
            await api.call("GET", JOBS)
        except RuntimeError:
            if time.monotonic() > ends:
                raise
            await asyncio.sleep(0.2)
        else:
            return


def _definition() -> dict[str, Any]:
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": kept, "status": kept}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": "jobs", "singular": "job", "kind": "Job", "listKind": "JobList"}
    spec = {"group": "trainmaster.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": "jobs.trainmaster.dev", "annotations": {"api-approved.kubernetes.io": "unapproved"}}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kind, "metadata": metadata, "spec": spec}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs that are stored when they are listed")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=500, help="changes per second")
    parser.add_argument("--callers", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        most = str(options.watchers + 1000)
        limits = {"TRAINMASTER_EVENT_STREAMS_PER_KEY": most, "TRAINMASTER_MOST_CONNECTIONS": most}
        stage = Stage(Path(folder) / "stage", [], env=limits)
        try:
            stage.start()
            result: dict[str, Any] = {
                "bench": "kubectl",
                "cores": os.cpu_count(),
                "ours": asyncio.run(ours(stage.urls[0], options)),
            }
        finally:
            stage.stop()
        if assets() is not None:
            result["api_server"] = asyncio.run(of_an_api_server(Path(folder) / "plane", options))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
