"""Streams to members: bytes in a second of 200 sessions at once, and how long a small echo takes beside them.

    python -m bench.streams [--sessions 200] [--seconds 10] [--echoes 10] [--rounds 3] [--rate 200]

Starts the whole system as ``trainmaster up`` does: real Postgres, one api, and agents with the local runtime, whose members are
processes of this machine. Each session has one user: half of them type into a terminal, seven of twenty receive bytes without end
from a forwarded port, three of twenty a page without end through the browser's host. ``--echoes`` more users measure the time of
a small echo through a forwarded port, and over connections to the same server itself, at the same time.

A round has these parts, of ``--seconds`` each: ``quiet``, the echoes alone; ``terminals``, with what is typed; ``steady``, with all
users, whose members send ``--rate`` million bytes in a second together; ``all``, with all users, as fast as all processes together
can on this machine; ``slow_reader``, with one user more who reads slowly. All processes
share the machine's cores, the server and the users too: ``cpu_seconds_per_gb`` says what the bytes cost each of them.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psutil

from bench import stream_clients as clients
from bench.numbers import quantile
from bench.output import installed
from bench.stream_clients import Meter, Target
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.cli.up import LocalInstallation

_START_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_ECHO_PAUSE, _TYPING_PAUSE = 0.02, 0.25
_SETTLE_SECONDS, _SHORT_SECONDS = 1.0, 0.02
_OPENED_AT_ONCE = 10
_MANY = {"TRAINMASTER_MEMBER_STREAMS_PER_KEY": "10000", "TRAINMASTER_SESSIONS_DOMAIN": "sessions.localhost"}
_MIB, _MB, _GB = 1 << 20, 10**6, 10**9


def session(number: int, command: Sequence[str]) -> dict[str, Any]:
    """Return a session of cluster private."""
    template = {"command": list(command), "resources": {"cpu": "10m", "memory": "16Mi"}}
    return {
        "kind": "Session",
        "name": f"desk-{number}",
        "queue": "default",
        "placement": {"clusters": ["private"]},
        "roles": [{"name": "main", "template": template}],
    }


class Processes:
    """CPU time and memory of the processes that the bytes pass."""

    def __init__(self, installation: LocalInstallation, server: int) -> None:
        pids = {"api": _pid(installation, "api"), "agent": _pid(installation, "agent-private"), "server": server}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()} | {"users": psutil.Process()}

    def cpu(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self._processes.items()}

    def rss_mib(self) -> dict[str, float]:
        return {name: round(self._processes[name].memory_info().rss / _MIB, 1) for name in ("api", "agent")}


def _pid(installation: LocalInstallation, name: str) -> int:
    process = installation.children[name].process
    assert process is not None
    return process.pid


def _server_pid(port: int) -> int:
    """Return the process that listens at a port."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(port) in words and any("start_server" in word for word in words):
            return int(process.pid)
    raise RuntimeError(f"no server listens at port {port}")


class Users:
    """The users of all sessions."""

    def __init__(self, target: Target, client: Client, jobs: Sequence[str], echoes: int) -> None:
        self._target = target
        self._client = client
        self._echo_jobs = [jobs[number % len(jobs)] for number in range(echoes)]
        self._terminals, self._bulk, self._pages = _shares(jobs)
        self._pages_opened: dict[int, list[tuple[str, str]]] = {}
        self.meters = {name: Meter() for name in ("through", "direct", "terminals", "bulk", "pages", "slow")}

    @property
    def opened(self) -> int:
        """Number of streams that were opened until now."""
        return sum(meter.opened for meter in self.meters.values())

    def has_opened(self, least: int) -> bool:
        """Return whether at least ``least`` streams were opened until now."""
        return self.opened >= least

    def open_pages(self) -> None:
        for port in (clients.PAGE, clients.STEADY_PAGE):
            self._pages_opened[port] = [clients.enter(self._target, self._client, job, port) for job in self._pages]

    def counts(self) -> dict[str, int]:
        return {"terminals": len(self._terminals), "bulk": len(self._bulk), "pages": len(self._pages)}

    def echoes(self) -> list[Coroutine[Any, Any, None]]:
        target, meters = self._target, self.meters
        through = [clients.echo(target, job, meters["through"], _ECHO_PAUSE) for job in self._echo_jobs]
        return through + [clients.echo_directly(target, meters["direct"], _ECHO_PAUSE) for _ in self._echo_jobs]

    def terminals(self) -> list[Coroutine[Any, Any, None]]:
        meter = self.meters["terminals"]
        return [clients.terminal(self._target, job, meter, _TYPING_PAUSE) for job in self._terminals]

    def loads(self, *, steady: bool) -> list[Coroutine[Any, Any, None]]:
        port, page_port = (clients.STEADY, clients.STEADY_PAGE) if steady else (clients.FLOOD, clients.PAGE)
        bulk = [clients.bulk(self._target, job, self.meters["bulk"], port) for job in self._bulk]
        pages = [clients.browse(self._target, *page, self.meters["pages"]) for page in self._pages_opened[page_port]]
        return bulk + pages

    def slow_reader(self) -> list[Coroutine[Any, Any, None]]:
        return [clients.read_slowly(self._target, self._bulk[0], self.meters["slow"])]


def _shares(jobs: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the jobs with terminals, with forwarded ports, and with pages."""
    places = [number * 20 // len(jobs) for number in range(len(jobs))]
    return (
        [job for job, place in zip(jobs, places, strict=True) if place < 10],
        [job for job, place in zip(jobs, places, strict=True) if 10 <= place < 17],
        [job for job, place in zip(jobs, places, strict=True) if place >= 17],
    )


@asynccontextmanager
async def _running(users: Users, work: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run clients while the block runs, which begins once all of them are connected. Raises the error of one that has failed."""
    tasks: list[asyncio.Task[None]] = []
    before = users.opened
    for number, one in enumerate(work, 1):
        tasks.append(asyncio.create_task(one))
        await _until(partial(users.has_opened, before + number - _OPENED_AT_ONCE), tasks)
    try:
        await _until(partial(users.has_opened, before + len(work)), tasks)
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until(is_so: Callable[[], bool], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until something holds. Raises the error of a task that has failed, and TimeoutError."""
    async with asyncio.timeout(_START_SECONDS):
        while not is_so():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(_SHORT_SECONDS)


async def _part(users: Users, processes: Processes, seconds: float) -> dict[str, Any]:
    """Measure what runs, for some seconds."""
    await asyncio.sleep(_SETTLE_SECONDS)
    for meter in users.meters.values():
        meter.bytes_received, meter.is_running = 0, True
        meter.latencies.clear()
    before, began = processes.cpu(), time.perf_counter()
    await asyncio.sleep(seconds)
    took, after = time.perf_counter() - began, processes.cpu()
    for meter in users.meters.values():
        meter.is_running = False
    total = sum(meter.bytes_received for meter in users.meters.values())
    found: dict[str, Any] = {
        "mb_per_second": round(total / took / _MB, 1),
        "of_kinds": {name: round(users.meters[name].bytes_received / took / _MB, 1) for name in ("bulk", "pages")},
        "echo_ms": {name: _milliseconds(users.meters[name]) for name in ("through", "direct", "terminals")},
        "cpu_share": {name: round((after[name] - before[name]) / took, 2) for name in before},
        "rss_mib": processes.rss_mib(),
    }
    if total > _GB // 10:
        found["cpu_seconds_per_gb"] = {name: round((after[name] - before[name]) * _GB / total, 2) for name in before}
    return found


def _milliseconds(meter: Meter) -> dict[str, float] | None:
    values = meter.latencies
    if not values:
        return None
    return {"p50": round(quantile(values, 0.5) * 1000, 2), "p99": round(quantile(values, 0.99) * 1000, 2)}


async def _round(users: Users, processes: Processes, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with _running(users, users.echoes()):
        found["quiet"] = await _part(users, processes, options.seconds)
        async with _running(users, users.terminals()):
            found["terminals"] = await _part(users, processes, options.seconds)
            async with _running(users, users.loads(steady=True)):
                found["steady"] = await _part(users, processes, options.seconds)
            async with _running(users, users.loads(steady=False)):
                found["all"] = await _part(users, processes, options.seconds)
                async with _running(users, users.slow_reader()):
                    found["slow_reader"] = await _part(users, processes, options.seconds)
                failures = [text for meter in users.meters.values() for text in meter.failures]
    return found | {"failures": failures}


def _over_rounds(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return best and median of the figures that the targets are about."""
    found: dict[str, Any] = {}
    for part in ("quiet", "terminals", "steady", "all", "slow_reader"):
        rates = [one[part]["mb_per_second"] for one in rounds]
        found[part] = {"mb_per_second": {"best": max(rates), "median": round(statistics.median(rates), 1)}}
        for share in ("p50", "p99"):
            added = [
                one[part]["echo_ms"]["through"][share] - one[part]["echo_ms"]["direct"][share]
                for one in rounds
                if one[part]["echo_ms"]["through"] and one[part]["echo_ms"]["direct"]
            ]
            if added:
                found[part][f"added_ms_{share}"] = {
                    "best": round(min(added), 2),
                    "median": round(statistics.median(added), 2),
                }
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all rounds, and best and median over them."""
    with installed(_MANY) as installation, Client(installation.url, installation.keys["admin"]) as client:
        target = Target(installation.url, installation.keys["admin"], _free_ports(clients.PORTS_OF_SERVER))
        rate = options.rate * _MB * 2 / options.sessions  # half of the sessions have terminals
        serve = [sys.executable, "-I", "-c", clients.SERVER, str(target.first), str(rate)]
        first = client.submit([session(0, serve)])
        jobs = [*first, *client.submit([session(number, ["sleep", "3600"]) for number in range(1, options.sessions)])]
        _await_running(client, jobs)
        users = Users(target, client, jobs, options.echoes)
        users.open_pages()
        processes = Processes(installation, _server_pid(target.first))
        rounds = [_loop_run(_round(users, processes, options)) for _ in range(options.rounds)]
    return {
        "bench": "streams",
        "sessions": options.sessions,
        "steady_mb_per_second": options.rate,
        **users.counts(),
        "over_rounds": _over_rounds(rounds),
        "rounds": rounds,
    }


def _loop_run(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    import uvloop

    return uvloop.run(work)


def _free_ports(many: int) -> int:
    """Return the first of some free ports in a row."""
    while True:
        first = free_port()
        taken = {one.laddr.port for one in psutil.net_connections("tcp") if one.laddr}
        if not taken & set(range(first, first + many)):
            return first


def _await_running(client: Client, jobs: Sequence[str]) -> None:
    ends = time.monotonic() + _START_SECONDS
    while sum(1 for _ in client.jobs(JobFilter(states=["running"]))) < len(jobs):
        if time.monotonic() > ends:
            raise TimeoutError(f"not all sessions run after {_START_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)


def is_wrong(found: dict[str, Any]) -> bool:
    """Return whether a stream has ended early."""
    return any(one["failures"] for one in found["rounds"])


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    found.add_argument("--sessions", type=int, default=200)
    found.add_argument("--seconds", type=float, default=10.0)
    found.add_argument("--echoes", type=int, default=10)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--rate", type=float, default=200.0)
    return found


def main() -> None:
    found = run(parser().parse_args())
    print(json.dumps(found, indent=2))
    sys.exit(is_wrong(found))


if __name__ == "__main__":
    main()
