"""Storing members' output: whether all of it arrives while the api is killed, and what output beyond the limit costs.

    python -m bench.output [--parts whole,flood] [--members 20] [--numbers 2000000] [--kill-after 2]
                           [--flood-members 100] [--flood-seconds 30]

Each part starts the whole system as ``trainmaster up`` does: real Postgres, one api, and agents with the local runtime, whose
members are processes of this machine. One job runs; when it has ended and its output is stored, the output of every member is read
over REST and compared with what the member printed.

``whole``: all members count with ``seq``. ``--kill-after`` seconds after the first output the api is killed and started again.
``flood``: all members print 10 MB/s, or as much as the machine can, up to the same length, which is beyond what is stored.

Memory is that of the process alone: members and their supervisors are not the agent's.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

from bench.numbers import stores
from trainmaster.client.http import Client
from trainmaster_dispatcher.cli.embedded import free_port, wait_for_port
from trainmaster_dispatcher.cli.up import LocalInstallation

PARTS = ("whole", "flood")
_CLUSTER = "private"
_MIB = 1 << 20
_TAIL_BYTES = 65_536
"""The last output, which comes with the report of the end of a run, before the rest."""
_SAMPLE_SECONDS = 0.2
_LOOK_SECONDS = 0.2
_START_SECONDS = 120.0
_LONGEST_SECONDS = 1200.0
"""Time until a job has ended, and again until its output is stored, which agents give up after 900 s."""
_LINES, _LINE_BYTES, _BLOCKS_PER_SECOND = 62_500, 16, 10
"""A block of the flood is 1 MB, in which no two lines are the same."""
_FLOOD = f"""
import os, sys, time
block = b"".join(b"%0{_LINE_BYTES - 1}d\\n" % number for number in range({_LINES}))
began = time.monotonic()
for number in range(int(sys.argv[1])):
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(1, rest):]
    time.sleep(max(0.0, began + (number + 1) / {_BLOCKS_PER_SECOND} - time.monotonic()))
"""


@dataclass(frozen=True, slots=True)
class Printed:
    """What each member of a job prints: ``size`` bytes, in which ``block`` is repeated."""

    command: list[str]
    block: bytes
    size: int

    def between(self, start: int, end: int) -> bytes:
        first = start % len(self.block)
        length = end - start
        return (self.block * ((first + length - 1) // len(self.block) + 1))[first : first + length]


def counting(numbers: int) -> Printed:
    """Return the output of ``seq 1 numbers``."""
    block = b"".join(b"%d\n" % number for number in range(1, numbers + 1))
    return Printed(["seq", "1", str(numbers)], block, len(block))


def flooding(seconds: float) -> Printed:
    """Return output at 10 MB/s."""
    blocks = max(1, round(seconds * _BLOCKS_PER_SECOND))
    block = b"".join(b"%0*d\n" % (_LINE_BYTES - 1, number) for number in range(_LINES))
    return Printed([sys.executable, "-I", "-S", "-c", _FLOOD, str(blocks)], block, blocks * len(block))


@dataclass(slots=True)
class Received:
    """What a reader is sent of one member's output, in bytes."""

    printed: Printed
    end: int = 0
    """Offset up to which output was sent, or named as missing."""
    kept: int = 0
    missed: int = 0
    """Named by the dispatcher as not available."""
    lost: int = 0
    """Neither sent nor named, or named although nothing is missing."""
    doubled: int = 0
    wrong: int = 0
    """In pieces that are not what the member printed at their offsets."""

    def take(self, piece: dict[str, Any]) -> None:
        """Compare a piece, in the order in which it was sent."""
        begin, end, missed, data = piece["offset"], piece["next"], piece.get("missed", 0), piece["data"].encode()
        self.doubled += max(0, self.end - begin)
        self.lost += abs(max(0, begin - self.end) - missed)
        self.missed += missed
        self.kept += len(data)
        if data != self.printed.between(begin, end):
            self.wrong += len(data)
        self.end = max(self.end, end)

    def finish(self) -> None:
        """Count what is missing at the end."""
        self.lost += max(0, self.printed.size - self.end)

    @property
    def is_accounted_for(self) -> bool:
        """Return whether each byte was sent once, as it was printed, or named as missing."""
        return not (self.lost or self.doubled or self.wrong) and self.kept + self.missed == self.printed.size

    @property
    def is_whole(self) -> bool:
        return self.is_accounted_for and not self.missed


@dataclass(slots=True)
class Peaks:
    """The largest values that were seen."""

    rss: dict[str, int] = field(default_factory=dict)
    disk: int = 0
    """Bytes that the agent's state folder takes on the disk."""

    def rss_mib(self) -> dict[str, float]:
        return {name: round(size / _MIB, 1) for name, size in self.rss.items()}


class Watch:
    """Samples the memory of api and agent and the agent's disk space, in a thread of its own."""

    def __init__(self, installation: LocalInstallation) -> None:
        self._children = {
            "api": installation.children["api"],
            "agent": installation.children[f"agent-{_CLUSTER}"],
        }
        self._state = installation.folder / "agents" / _CLUSTER / "state"
        self._peaks = Peaks()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def take(self) -> Peaks:
        """Return the peaks since the last call."""
        self._look()
        peaks, self._peaks = self._peaks, Peaks()
        return peaks

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        peaks = self._peaks
        for name, child in self._children.items():
            if child.process is not None:
                with suppress(psutil.Error):  # the api is dead for a while
                    size = int(psutil.Process(child.process.pid).memory_info().rss)
                    peaks.rss[name] = max(size, peaks.rss.get(name, 0))
        peaks.disk = max(peaks.disk, _disk_bytes(self._state))


def _disk_bytes(folder: Path) -> int:
    """Return the disk space of all files below a folder, holes excluded."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(path, name).lstat().st_blocks * 512
    return total


@contextmanager
def installed(overrides: dict[str, str] | None = None) -> Iterator[LocalInstallation]:
    """The whole system, with its clusters in contact. At the end no member is left. ``overrides``: settings by variables."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        installation = LocalInstallation(Path(folder), free_port(), overrides=overrides)
        try:
            installation.start()
            with Client(installation.url, installation.keys["admin"]) as client:
                _await(lambda: all(one.state == "ready" for one in client.clusters()), _START_SECONDS, "clusters")
            yield installation
        finally:
            installation.stop()
            _kill_members(installation.folder / "agents")


def _kill_members(agents: Path) -> None:
    """Kill members and supervisors that a failure has left behind: no agent restarts them any more."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(agents):
                process.kill()


def _await(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something holds. Raises TimeoutError that says ``what`` was waited for."""
    ends = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not after {seconds:.0f} s")
        time.sleep(_LOOK_SECONDS)


class Reader:
    """Reads the stored output of one job over REST."""

    def __init__(self, http: httpx.Client, job: str, printed: Printed, members: int) -> None:
        self._http = http
        self._path = f"/v1/jobs/{job}/logs"
        self._printed = printed
        self._members = members

    def is_complete(self) -> bool:
        """Return whether all output of the ended job is stored.

        Output is stored in order, so it is if the last byte before the tail is, which is stored by itself. Members are stored in
        order, too: the last one tells first.
        """
        last = max(0, self._printed.size - _TAIL_BYTES - 1)
        for index in reversed(range(self._members)):
            piece = next(self._pieces(index=index, offset=last, limit=1), None)
            if piece is None or piece["offset"] != last:
                return False
        return True

    def read(self, index: int) -> Received:
        """Read the output of a member from its first byte on."""
        received = Received(self._printed)
        for piece in self._pieces(index=index, offset=0):
            received.take(piece)
        received.finish()
        return received

    def _pieces(self, **query: int) -> Iterator[dict[str, Any]]:
        with self._http.stream("GET", self._path, params=query) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                piece = orjson.loads(line)
                if "problem" in piece:
                    raise RuntimeError(f"{self._path}: {piece['problem']}")
                if "data" in piece:
                    yield piece


def _restart_api(installation: LocalInstallation) -> None:
    child = installation.children["api"]
    assert child.process is not None
    child.process.kill()
    child.process.wait()
    child.start()
    wait_for_port(installation.port, child.process, _START_SECONDS, "the api")


def _has_printed(installation: LocalInstallation) -> bool:
    logs = (installation.folder / "agents" / _CLUSTER / "state" / "runs").glob("*/*.log")
    return any(log.stat().st_size for log in logs)


def _spec(printed: Printed, members: int) -> dict[str, Any]:
    template = {"command": printed.command, "resources": {"cpu": "10m", "memory": "16Mi"}}
    return {
        "kind": "Job",
        "name": "output",
        "queue": "default",
        "placement": {"clusters": [_CLUSTER]},
        "roles": [{"name": "main", "replicas": members, "template": template}],
    }


def run(printed: Printed, members: int, kill_after: float | None) -> dict[str, Any]:
    """Run one job and read its output. ``kill_after``: seconds from the first output to the end of the api; None: it lives."""
    with installed() as installation, Client(installation.url, installation.keys["admin"]) as client:
        with Watch(installation) as watch:
            before = watch.take()
            began, fault = time.monotonic(), dict[str, Any]()
            job = client.submit([_spec(printed, members)])[0]
            if kill_after is not None:
                _await(lambda: _has_printed(installation), _START_SECONDS, "the first output")
                time.sleep(kill_after)
                fault = {"state": client.job(job).state, "at_seconds": round(time.monotonic() - began, 1)}
                _restart_api(installation)
                fault["back_at_seconds"] = round(time.monotonic() - began, 1)
            ended = client.wait(job, timeout=_LONGEST_SECONDS, check=True)
            assert ended.ended_at is not None
            headers = {"Authorization": f"Bearer {installation.keys['admin']}"}
            with httpx.Client(base_url=installation.url, timeout=60, headers=headers) as http:
                reader = Reader(http, job, printed, members)
                _await(reader.is_complete, _LONGEST_SECONDS, "all output is stored")
                stored, storing = time.monotonic() - began, watch.take()
                received = [reader.read(index) for index in range(members)]
                took, reading = time.monotonic() - began - stored, watch.take()
        succeeded = (ended.ended_at - ended.submitted_at).total_seconds()
        kept = sum(one.kept for one in received)
        return {
            "members": members,
            "printed_bytes_of_each": printed.size,
            "api_killed": fault or None,
            **_totals(received),
            "seconds_to_success": round(succeeded, 1),
            "seconds_to_all_readable": round(stored, 1),
            "seconds_of_reading": round(took, 1),
            "printed_bytes_per_second": round(members * printed.size / succeeded),
            "stored_bytes_per_second": round(kept / stored),
            "read_bytes_per_second": round(kept / took),
            "rss_mib_before": before.rss_mib(),
            "rss_mib_peak_until_readable": storing.rss_mib(),
            "rss_mib_peak_of_reading": reading.rss_mib(),
            "disk_mib_peak_of_agent": round(storing.disk / _MIB, 1),
            "stores": stores(installation.children["api"].env["DATABASE_URL"]),
        }


def _totals(received: Sequence[Received]) -> dict[str, Any]:
    counts = Counter((one.kept, one.missed) for one in received)
    return {
        "members_whole": sum(one.is_whole for one in received),
        "members_accounted_for": sum(one.is_accounted_for for one in received),
        "kept_bytes": sum(one.kept for one in received),
        "missed_bytes": sum(one.missed for one in received),
        "lost_bytes": sum(one.lost for one in received),
        "doubled_bytes": sum(one.doubled for one in received),
        "wrong_bytes": sum(one.wrong for one in received),
        "of_each_member": [
            {"members": count, "kept_bytes": kept, "missed_bytes": missed}
            for (kept, missed), count in sorted(counts.items())
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--numbers", type=int, default=2_000_000)
    parser.add_argument("--kill-after", type=float, default=2.0)
    parser.add_argument("--flood-members", type=int, default=100)
    parser.add_argument("--flood-seconds", type=float, default=30.0)
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {"bench": "output"}
    if "whole" in parts:
        figures["whole"] = run(counting(options.numbers), options.members, options.kill_after)
    if "flood" in parts:
        figures["flood"] = run(flooding(options.flood_seconds), options.flood_members, None)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
