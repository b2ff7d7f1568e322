"""Lists of jobs by labels, with a million jobs queued: how long a page takes, and whether a cluster's etcd has anything of them.

    python -m bench.labels [--jobs 1000000] [--requests 300] [--hub]

Real processes and a real Postgres, an api and a scheduler; no cluster is connected, so all jobs stay queued. They are stored by the
function that stores submissions, in four queues with a namespace each. Selectors match a hundred jobs that lie between all others, or
a tenth of all. Each is asked for as kubectl does, with ``limit=100`` and as a table, in all namespaces and in one, one request at a
time. ``excluding`` are selectors by which most jobs are left out, and few left: no index finds what does not have a label. The side
job that finds the labels of whole blocks of jobs, by which those are found, runs once the jobs are stored (``common_labels``: its
seconds, the blocks, and the bytes that are stored for them).

``kubectl``: seconds of ``kubectl get jobs.trainmaster.dev -A -l SELECTOR --chunk-size=100``, from the start of the process to its end,
for selectors that match one page; if kubectl is on the ``PATH`` and there is openssl, as it sends keys over TLS alone.

``--hub``: the same through the API server of a real control plane (``KUBEBUILDER_ASSETS``), to which the dispatcher's API is
aggregated. ``etcd``: its keys and its size before the jobs were stored, and after all requests. ``ours``: the keys whose names have
our group, with the number of times that they were written. ``written_meanwhile``: all keys written since the count before.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
import orjson

from bench.kubectl import GROUP, SPEC, TABLE, Api, opened
from bench.numbers import stores, summary
from bench.stage import ADMIN_KEY, PROGRAM, Stage
from tests.cluster.certificates import Certificates
from tests.cluster.control_plane import ControlPlane
from tests.cluster.extension import extension_server
from trainmaster_agent.aggregation.server import DispatcherAccess
from trainmaster_dispatcher.api.kube.selectors import parse_labels
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.services.common_labels import find_common_labels
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.jobs import NewSpec

LEAVES = ("default", "ops", "research/audio", "research/vision")
NAMESPACE = "research-audio"
LIMIT = 100
_AT_ONCE = 10_000
_KUBECTL_RUNS = 5
_QUIET_SECONDS = 2.0
_LONGEST_QUIET = 300.0
_TABLE = f"{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
"""What kubectl accepts."""

SELECTORS = {
    "rare": "sweep=s17",
    "two": "team=t3,grid=g1",
    "two_common": "team=t3,color=c4",
    "in": "half in (h1,h2)",
    "not_another": "pair=p5,turn!=first",
    "notin": "pair=p6,turn notin (first,third)",
    "exists": "pinned",
    "exists_not": "pair=p7,!late",
    "set_based": "team in (t3,t4),sweep in (s13,s15),pinned notin (yes)",
    "common": "team=t3",
    "common_not_another": "team=t3,turn!=first",
    "nothing": "team=t3,color=c5",
}
FIRST_LABELS = {"class": "batch"}
"""Labels of the job of each queue that is there before the others."""
EXCLUDING = {
    "not": "team!=t3",
    "common_rare_not": "team=t9,class!=batch",
    "half_rare_not": "turn=first,class!=batch",
    "rare_not": "class!=batch",
    "rare_absent": "!class",
}
"""Selectors that exclude: they match nine of ten jobs, and a hundred jobs of a tenth, of a half and of all."""


def labels_of(number: int, jobs: int) -> dict[str, str]:
    """Return the labels of a job; ``jobs``: a multiple of 1,000.

    Each ``sweep`` has 100 jobs, ``half`` 50, ``pair`` 200, ``grid`` 1,000, and ``team`` and ``color`` a tenth of all.
    """
    sweep = number % (jobs // 100)
    color = 4 if sweep == 13 else number % 10
    labels = {
        "team": f"t{number % 10}",
        "color": f"c{color}",
        "grid": f"g{number // 10 % (jobs // 1000)}",
        "sweep": f"s{sweep}",
        "half": f"h{number % (jobs // 50)}",
        "pair": f"p{number % (jobs // 200)}",
        "turn": ("first", "second")[number // (jobs // 200) % 2],
    }
    if labels["turn"] == "second":
        labels["late"] = ""
    if sweep == 11:
        labels["pinned"] = "yes"
    if sweep != 19:
        labels["class"] = "batch"
    return labels


def queue_of(number: int) -> int:
    """Return the place of a job's queue in ``LEAVES``: it does not follow from any label."""
    return number * 2_654_435_761 % (1 << 32) >> 30


def expected(jobs: int) -> dict[str, dict[str, int]]:
    """Return how many jobs each selector matches, the first ones included: in all namespaces, and in ``NAMESPACE``."""
    chosen = {name: parse_labels(text) for name, text in (SELECTORS | EXCLUDING).items()}
    found = {name: {"all": 0, "namespace": 0} for name in chosen}
    own = [path.replace("/", "-") for path in LEAVES].index(NAMESPACE)
    for number in range(jobs):
        labels, is_own = labels_of(number, jobs), queue_of(number) == own
        for name, requirements in chosen.items():
            if all(one.holds(labels) for one in requirements):
                found[name]["all"] += 1
                found[name]["namespace"] += is_own
    for path in LEAVES:
        for name, requirements in chosen.items():
            if all(one.holds(FIRST_LABELS) for one in requirements):
                found[name]["all"] += 1
                found[name]["namespace"] += path.replace("/", "-") == NAMESPACE
    return found


async def submit_first(api: Api) -> None:
    """Submit a job to each queue: its row is what the others are made of."""
    for path in LEAVES:
        job = {"kind": "Job", "name": "job", "queue": path, "labels": FIRST_LABELS, **SPEC}
        await api.call("POST", "/v1/jobs", orjson.dumps(job))


def _patterns(stage: Stage) -> list[tuple[NewSpec, dict[str, Any]]]:
    """Return the first job of each queue as it was stored, and its specification."""
    with stage.sql() as connection:
        rows = connection.execute(
            "SELECT j.name, j.queue_id, j.class_id, j.priority, j.shape_id, j.api_key_id, s.spec"
            " FROM jobs j JOIN job_specs s ON s.id = j.spec_id JOIN queues q ON q.id = j.queue_id ORDER BY q.path"
        ).fetchall()
    assert len(rows) == len(LEAVES)
    found = []
    for name, queue_id, class_id, priority, shape_id, key_id, spec in rows:
        found.append((NewSpec(name, queue_id, class_id, priority, shape_id, key_id, b"", held=False), spec))
    return found


def _new_jobs(patterns: Sequence[tuple[NewSpec, dict[str, Any]]], jobs: int) -> Iterator[list[NewSpec]]:
    for first in range(0, jobs, _AT_ONCE):
        made = []
        for number in range(first, min(jobs, first + _AT_ONCE)):
            pattern, spec = patterns[queue_of(number)]
            labels = labels_of(number, jobs)
            text = orjson.dumps({**spec, "labels": labels})
            made.append(replace(pattern, spec=text, labels=orjson.dumps(labels)))
        yield made


async def fill(stage: Stage, jobs: int) -> float:
    """Store jobs in sets as large as a call may be; return the seconds. Statistics are gathered as autovacuum would."""
    began = time.monotonic()
    patterns = _patterns(stage)
    database = Database(stage.database_url)
    for made in _new_jobs(patterns, jobs):
        async with database.transaction() as tx:
            await job_store.insert(tx, made)
    await database.engine.dispose()
    took = time.monotonic() - began
    with stage.sql() as connection:
        connection.execute("VACUUM ANALYZE jobs")
        connection.execute("VACUUM ANALYZE job_specs")
    await _until_quiet(stage)
    return took


async def _until_quiet(stage: Stage) -> None:
    """Wait until the scheduler has taken in all jobs."""
    ends, before = time.monotonic() + _LONGEST_QUIET, 0.0
    while time.monotonic() < ends:
        now = stage.cpu_seconds()["scheduler-0"]
        if now - before < _QUIET_SECONDS / 10:
            return
        before = now
        await asyncio.sleep(_QUIET_SECONDS)


def _address(selector: str, place: str, following: str = "") -> str:
    path = f"{GROUP}/jobs" if place == "all" else f"{GROUP}/namespaces/{NAMESPACE}/jobs"
    query = {"labelSelector": selector, "limit": LIMIT} | ({"continue": following} if following else {})
    return f"{path}?{urlencode(query)}"


async def count(api: Api, selector: str, place: str) -> int:
    """Return how many jobs all pages of a selector have."""
    found, following = 0, ""
    while True:
        page = orjson.loads(await api.call("GET", _address(selector, place, following), Accept=_TABLE))
        found += len(page["rows"])
        if not (following := page["metadata"].get("continue", "")):
            return found


async def measure(
    api: Api, selectors: Mapping[str, str], requests: int, matches: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """Ask for the first page of each selector; return figures by selector. Raises RuntimeError for a wrong page."""
    found: dict[str, Any] = {}
    for name, selector in selectors.items():
        for place, key in (("all", name), ("namespace", f"{name}_in_namespace")):
            matched = matches[name][place]
            times, rows = [], 0
            for _ in range(requests):
                began = time.monotonic()
                answer = await api.call("GET", _address(selector, place), Accept=_TABLE)
                times.append(time.monotonic() - began)
                rows = len(orjson.loads(answer)["rows"])
                if rows != min(LIMIT, matched):
                    raise RuntimeError(f"{selector} in {place}: {rows} rows; {matched} jobs match")
            found[key] = {"selector": selector, "matched": matched, "rows": rows, **summary(times)}
    return found


def worst_p99(figures: Mapping[str, Mapping[str, Any]]) -> float:
    return max(float(one["p99_seconds"]) for one in figures.values())


# -- kubectl


async def by_kubectl(config: Path, folder: Path, matches: Mapping[str, Mapping[str, int]]) -> dict[str, Any] | None:
    """Return the seconds of kubectl's process by selector, of those that have one page; None without kubectl."""
    program = shutil.which("kubectl")
    if program is None:
        return None
    home = folder / "home"
    home.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    for name, selector in SELECTORS.items():
        if matches[name]["all"] > LIMIT:
            continue
        times, lines = [], 0
        for _ in range(_KUBECTL_RUNS + 1):  # the first one reads what the API has, and caches it
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *(
                    program,
                    "get",
                    "jobs.trainmaster.dev",
                    "-A",
                    "-l",
                    selector,
                    f"--chunk-size={LIMIT}",
                    "--no-headers",
                ),
                env={"KUBECONFIG": str(config), "HOME": str(home), "PATH": os.environ["PATH"]},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, said = await process.communicate()
            times.append(time.monotonic() - began)
            lines = out.count(b"\n")
            if process.returncode or lines != matches[name]["all"]:
                raise RuntimeError(
                    f"kubectl get -l {selector}: {lines} lines, {matches[name]['all']} jobs match; {said!r}"
                )
        found[name] = {"lines": lines, **summary(times[1:])}
    return found


def serve_tls(stage: Stage, folder: Path) -> Path | None:
    """Start one more api, over TLS, for kubectl; return its kubeconfig. None without kubectl or openssl."""
    if shutil.which("kubectl") is None or shutil.which("openssl") is None:
        return None
    certificates = Certificates.make(folder / "tls")
    plain, port = free_port(), free_port()
    files = ["--tls-certificate", str(certificates.server), "--tls-key", str(certificates.server_key)]
    command = [*PROGRAM, "serve", "--for", "users", "--port", str(plain), "--tls-port", str(port), *files]
    child = stage.add("api-tls", command)
    assert child.process is not None
    wait_for_port(port, child.process, 120, "api-tls")
    name = "bench"
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificates.authority)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": {"token": ADMIN_KEY}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path = folder / "kubeconfig"
    path.write_bytes(orjson.dumps(config))
    return path


# -- the etcd of a hub


class EtcdKey(NamedTuple):
    """A key of etcd: the revision that wrote it last, and how many times it was written."""

    name: str
    revision: int
    writes: int


class EtcdState(NamedTuple):
    """All keys of an API server in etcd, the revision of the store, and its size in bytes."""

    keys: Sequence[EtcdKey]
    revision: int
    size: int


async def etcd_state(url: str) -> EtcdState:
    span = {"key": b64encode(b"/registry/").decode(), "range_end": b64encode(b"/registry0").decode(), "keys_only": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v3/kv/range", json=span) as answer:
            found = await answer.json()
        async with session.post(f"{url}/v3/maintenance/status", json={}) as answer:
            size = int((await answer.json())["dbSize"])
    keys = [
        EtcdKey(b64decode(one["key"]).decode(), int(one["mod_revision"]), int(one["version"])) for one in found["kvs"]
    ]
    return EtcdState(keys, int(found["header"]["revision"]), size)


def etcd_figures(before: EtcdState, after: EtcdState) -> dict[str, Any]:
    ours = {one.name: one.writes for one in after.keys if "trainmaster" in one.name}
    return {
        "keys": [len(before.keys), len(after.keys)],
        "bytes": [before.size, after.size],
        "revisions": after.revision - before.revision,
        "ours": ours,
        "written_meanwhile": sorted(one.name for one in after.keys if one.revision > before.revision),
    }


# -- all of it


async def _measured(stage: Stage, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    matches = expected(options.jobs)
    result: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(opened(stage.urls[0], ADMIN_KEY))
        await submit_first(api)
        plane, before = None, None
        if options.hub:
            plane = await ControlPlane.start(folder / "plane", scheduler=False, controller_manager=False)
            stack.push_async_callback(plane.stop)
            access = DispatcherAccess(stage.urls[0], ADMIN_KEY)
            await stack.enter_async_context(extension_server(plane, access, folder))
            before = await etcd_state(plane.etcd_url)
        result["fill_seconds"] = round(await fill(stage, options.jobs), 1)
        result["common_labels"] = await _find_common_labels(stage)
        for name, selector in (SELECTORS | EXCLUDING).items():
            if matches[name]["all"] <= options.count_up_to:
                counted = await count(api, selector, "all"), await count(api, selector, "namespace")
                assert counted == (matches[name]["all"], matches[name]["namespace"]), (selector, counted, matches[name])
        result["pages"] = await measure(api, SELECTORS, options.requests, matches)
        result["p99_seconds_of_worst_page"] = worst_p99(result["pages"])
        result["excluding"] = await measure(api, EXCLUDING, options.requests, matches)
        result["p99_seconds_of_worst_excluding"] = worst_p99(result["excluding"])
        if (config := serve_tls(stage, folder)) is not None:
            result["kubectl"] = await by_kubectl(config, folder, matches)
        if plane is not None and before is not None:
            result["hub"] = await _of_the_hub(plane, before, folder, options, matches)
    return result


async def _find_common_labels(stage: Stage) -> dict[str, Any]:
    """Do what the worker does every few seconds, until it has nothing more to do."""
    began = time.monotonic()
    database = Database(stage.database_url)
    for _ in range(2):  # blocks begin, and are looked at by the next turn
        await find_common_labels(database)
    await database.close()
    took = time.monotonic() - began
    with stage.sql() as connection:
        connection.execute("VACUUM ANALYZE label_blocks")
        row = connection.execute(
            "SELECT count(common), pg_total_relation_size('label_blocks') FROM label_blocks"
        ).fetchone()
    assert row is not None
    return {"seconds": round(took, 1), "blocks": row[0], "bytes": row[1]}


async def _of_the_hub(
    plane: ControlPlane,
    before: EtcdState,
    folder: Path,
    options: argparse.Namespace,
    matches: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    async with opened(plane.url, plane.admin_token, plane.ca_file) as api:
        pages = await measure(api, SELECTORS, options.requests, matches)
    (folder / "hub").mkdir()
    return {
        "version": plane.version,
        "pages": pages,
        "p99_seconds_of_worst_page": worst_p99(pages),
        "kubectl": await by_kubectl(plane.kubeconfig, folder / "hub", matches),
        "etcd": etcd_figures(before, await etcd_state(plane.etcd_url)),
    }


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    queues = sorted({*LEAVES, *(path.partition("/")[0] for path in LEAVES)})
    stage = Stage(folder / "stage", [], queues=queues)
    try:
        stage.start()
        result = asyncio.run(_measured(stage, folder, options))
        return {
            "bench": "labels",
            "cores": os.cpu_count(),
            "jobs": options.jobs,
            **result,
            "stores": stores(stage.database_url),
        }
    finally:
        stage.stop()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--jobs", type=int, default=1_000_000, help="a multiple of 1,000")
    made.add_argument("--requests", type=int, default=300, help="of each selector and place")
    made.add_argument("--hub", action="store_true", help="through a control plane, too; needs KUBEBUILDER_ASSETS")
    made.add_argument("--count-up-to", type=int, default=10_000, help="count all pages of selectors that match so many")
    return made


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        result = run(Path(folder), options)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
