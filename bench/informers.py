"""Caches of informers while many jobs change and the api is killed again and again: are they equal to the store at the end?

    python -m bench.informers [--seconds 600] [--rate 1000] [--restart-seconds 20] [--reflector PROGRAM] [--jobs 5000]

Real processes and a real Postgres; no cluster is connected, so nothing starts. The informers' api is killed (-9) every
``--restart-seconds`` and started again at once; the load goes to another one. Jobs come in sets of a hundred by the REST API; each set
is suspended, resumed and partly labelled, every other one is cancelled, and nine of ten are deleted, a second between two of these.
One informer is ``bench.informer``, with the watch of the Kubernetes client for Python; with ``--reflector`` another one is the program
of ``bench/reflector``, which has client-go's own Reflector. ``made``, ``changed`` and ``deleted``: jobs by what was done to them; all
of these are the ``changes``. ``rate``: changes per second from the end of the first set until the last one began. ``listed_by_hand``:
a list by pages at the end, beside the jobs of the store.

Of each informer: the objects of that list that its caches do not have (``missing``), have in another version (``different``), and have
although they do not exist (``extra``); the objects that it was sent with a lower version than before (``backwards``), and those that
were in a cache twice (``doubled``). ``settled_seconds``: from the last change until the caches were equal. It ends with code 1 where
anything differs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bench.informer import RESOURCES
from bench.kubectl import GROUP, JOBS, MERGE, SPEC, TABLE, Api, opened
from bench.numbers import stores
from bench.stage import ADMIN_KEY, Stage
from trainmaster.protocol.ids import job_id

SET = 100
_LABELLED = 10
_STEP_SECONDS = 1.0
_MOST_SETS = 100
"""The most sets that are under way at once: where the dispatcher is slower than the rate, it is not flooded."""
_LOOK_SECONDS = 1.0
_PATIENCE = 180.0
"""Seconds until caches are equal: after many cuts, client-go waits for up to a minute before it watches again."""
_WRONG = ("missing", "different", "extra", "backwards", "doubled")
Versions = dict[str, tuple[str, str]]
"""Objects by namespace and name: uid and resource version."""


class InformerProcess:
    """An informer as a process of its own, which prints its caches when it gets a line."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=os.environ
        )
        self.lists_by_watches: bool = self._line()["watchList"]

    def state(self) -> dict[str, Any]:
        """Return caches and counts by resource."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._line()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an informer has ended; see {self._log.name}")
        found: dict[str, Any] = orjson.loads(line)
        return found


@dataclass
class ChangeLoad:
    """Sets of jobs that are created, changed and deleted at a rate of changes per second."""

    api: Api
    rate: float
    counts: Counter[str] = field(default_factory=Counter)
    sets: int = 0
    steady_rate: float = 0.0
    """Changes per second from the end of the first set until the last one began."""

    @property
    def changes(self) -> int:
        return sum(self.counts.values())

    async def run(self, seconds: float) -> float:
        """Run for this time, and until all sets are through; return the seconds in all."""
        began, planned = time.monotonic(), 0
        since: tuple[float, int] | None = None
        running: set[asyncio.Task[None]] = set()
        while (passed := time.monotonic() - began) < seconds:
            while planned < passed * self.rate and len(running) < _MOST_SETS:
                task = asyncio.create_task(self._live(self.sets))
                running.add(task)
                planned += _changes_of(self.sets)
                self.sets += 1
            await asyncio.sleep(0.02)
            for ended in [one for one in running if one.done()]:
                running.discard(ended)
                ended.result()
                since = since or (passed, self.changes)
        if since is not None:
            self.steady_rate = (self.changes - since[1]) / (passed - since[0])
        await asyncio.gather(*running)
        return time.monotonic() - began

    async def submit(self, number: int) -> list[str]:
        """Submit a set; return the ids."""
        job = {"kind": "Job", "name": f"set-{number}", "queue": "default", "labels": {"set": f"{number}"}, **SPEC}
        answer = orjson.loads(await self.api.call("POST", "/v1/jobs", orjson.dumps({"jobs": [job] * SET})))
        return [one["id"] for one in answer["jobs"]]

    async def _live(self, number: int) -> None:
        """Do to a set what is done to it."""
        names = await self.submit(number)
        self.counts["made"] += len(names)
        for action in ("suspend", "resume"):
            await self._act(number, action)
        await asyncio.sleep(_STEP_SECONDS)
        for name in names[:_LABELLED]:
            body = orjson.dumps({"metadata": {"labels": {"n": name}}})
            await self.api.call("PATCH", f"{JOBS}/{name}", body, Content_Type=MERGE)
        self.counts["changed"] += _LABELLED
        if _is_cancelled(number):
            await self._act(number, "cancel")
        if _is_deleted(number):
            await asyncio.sleep(_STEP_SECONDS)
            await self.api.call("DELETE", f"{JOBS}?labelSelector=set={number}")
            self.counts["deleted"] += len(names)

    async def _act(self, number: int, action: str) -> None:
        await asyncio.sleep(_STEP_SECONDS)
        body = orjson.dumps({"filter": {"labels": {"set": f"{number}"}}})
        done = orjson.loads(await self.api.call("POST", f"/v1/jobs/{action}", body))
        self.counts["changed"] += done["changed"]


def _is_cancelled(number: int) -> bool:
    return number % 2 == 1


def _is_deleted(number: int) -> bool:
    return number % 10 != 0


def _changes_of(number: int) -> int:
    """Return the number of changes of jobs of a set."""
    return SET * (3 + _is_cancelled(number) + _is_deleted(number)) + _LABELLED


async def listed(api: Api) -> dict[str, Versions]:
    """Return the objects that the api lists now, by resource."""
    found: dict[str, Versions] = {}
    for resource in RESOURCES:
        objects: Versions = {}
        token = ""
        while True:
            answer = await api.call("GET", f"{GROUP}/{resource}?limit=500&continue={token}", Accept=TABLE)
            page = orjson.loads(answer)
            for row in page["rows"]:
                metadata = row["object"]["metadata"]
                key = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
                objects[key] = metadata["uid"], metadata["resourceVersion"]
            if not (token := page["metadata"].get("continue", "")):
                break
        found[resource] = objects
    return found


def compared(state: Mapping[str, Any], expected: Mapping[str, Versions]) -> dict[str, int]:
    """Compare an informer's caches with the lists of all resources."""
    figures: Counter[str] = Counter()
    for resource, objects in expected.items():
        cached = {key: (one["uid"], one["version"]) for key, one in state[resource]["objects"].items()}
        figures["stored"] += len(objects)
        figures["cached"] += len(cached)
        figures["missing"] += len(objects.keys() - cached.keys())
        figures["extra"] += len(cached.keys() - objects.keys())
        figures["different"] += sum(one != objects[key] for key, one in cached.items() if key in objects)
        figures.update({name: int(many) for name, many in state[resource]["counts"].items()})
    return dict(figures)


def _are_equal(figures: Mapping[str, int]) -> bool:
    return not any(figures[name] for name in ("missing", "different", "extra"))


def settle(informers: Mapping[str, InformerProcess], expected: Mapping[str, Versions]) -> dict[str, dict[str, Any]]:
    """Wait until all caches are equal to the lists, or for long enough; return the figures by informer."""
    began = time.monotonic()
    figures: dict[str, dict[str, Any]] = {}
    while True:
        for name, informer in informers.items():
            if name not in figures or not _are_equal(figures[name]):
                took = round(time.monotonic() - began, 1)
                figures[name] = {**compared(informer.state(), expected), "settled_seconds": took}
        if all(map(_are_equal, figures.values())) or time.monotonic() - began > _PATIENCE:
            return figures
        time.sleep(_LOOK_SECONDS)


def store_beside(stage: Stage, expected: Mapping[str, Versions]) -> dict[str, int]:
    """Compare the list of all jobs with the rows of the store."""
    with stage.sql() as connection:
        rows = connection.execute(
            "SELECT j.name, j.id FROM jobs j WHERE NOT (j.ended_at IS NOT NULL AND EXISTS"
            " (SELECT 1 FROM job_objects o WHERE o.job_id = j.id AND o.deleted_at IS NOT NULL))"
        ).fetchall()
    stored = {f"default/{job_id(name, key)}" for name, key in rows}
    listed_jobs = expected["jobs"].keys()
    return {
        "stored": len(stored),
        "listed": len(listed_jobs),
        "missing": len(stored - listed_jobs),
        "extra": len(listed_jobs - stored),
    }


async def _killed(stage: Stage, every: float, counts: Counter[str]) -> None:
    """Kill the informers' api again and again."""
    while True:
        await asyncio.sleep(every)
        await asyncio.to_thread(stage.kill, "api-users-0")
        counts["kills"] += 1


def _kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig with the administrator's key, and return its path."""
    name = "bench"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {"token": ADMIN_KEY}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path = folder / "kubeconfig"
    path.write_bytes(orjson.dumps(config))
    return path


async def measure(stage: Stage, informers: Mapping[str, InformerProcess], options: argparse.Namespace) -> Any:
    async with opened(stage.urls[1], ADMIN_KEY) as api:
        load, counts = ChangeLoad(api, options.rate), Counter[str]()
        killing = asyncio.create_task(_killed(stage, options.restart_seconds, counts))
        try:
            took = await load.run(options.seconds)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        expected = await listed(api)
        figures = await asyncio.to_thread(settle, informers, expected)
        beside = store_beside(stage, await listed(api))
    return {
        "changes": load.changes,
        "seconds": round(took, 1),
        "rate": round(load.steady_rate, 1),
        "kills": counts["kills"],
        **{name: load.counts[name] for name in ("made", "changed", "deleted")},
        "listed_by_hand": beside,
        **{name: {"watch_list": informers[name].lists_by_watches, **found} for name, found in figures.items()},
    }


async def fill(url: str, jobs: int) -> None:
    """Submit the jobs that exist before informers begin."""
    async with opened(url, ADMIN_KEY) as api:
        load = ChangeLoad(api, 0)
        for number in range(-(-jobs // SET)):
            await load.submit(number + 1_000_000)


def is_wrong(result: Mapping[str, Any]) -> bool:
    """Return whether anything differs."""
    informers = [result[name] for name in ("python", "reflector") if name in result]
    beside = result["listed_by_hand"]
    return any(one[name] for one in informers for name in _WRONG) or bool(beside["missing"] or beside["extra"])


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    stage = Stage(folder / "stage", [], user_apis=2)
    informers: dict[str, InformerProcess] = {}
    try:
        stage.start()
        asyncio.run(fill(stage.urls[1], options.jobs))
        config = str(_kubeconfig(folder, stage.urls[0]))
        commands = {"python": [sys.executable, "-m", "bench.informer", config]}
        if options.reflector is not None:
            commands["reflector"] = [str(options.reflector), config]
        for name, command in commands.items():
            informers[name] = InformerProcess(command, folder / f"{name}.log")
        result = asyncio.run(measure(stage, informers, options))
        return {"bench": "informers", "cores": os.cpu_count(), **result, "stores": stores(stage.database_url)}
    finally:
        for informer in informers.values():
            informer.stop()
        stage.stop()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seconds", type=float, default=600.0)
    made.add_argument("--rate", type=float, default=1000.0, help="changes per second")
    made.add_argument("--restart-seconds", type=float, default=20.0)
    made.add_argument("--reflector", type=Path, help="the program that `go build` makes of bench/reflector")
    made.add_argument("--jobs", type=int, default=5000, help="jobs that exist at the beginning")
    return made


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        result = run(Path(folder), options)
    print(json.dumps(result, indent=2))
    sys.exit(is_wrong(result))


if __name__ == "__main__":
    main()
