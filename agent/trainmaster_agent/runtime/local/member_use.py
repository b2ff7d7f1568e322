"""The use of members that are processes of this machine, from /proc. Blocking; standard library only.

Manual page: proc(5).
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmaster_agent.runtime.local import process_table
from trainmaster_agent.runtime.local.process_table import ProcessRow
from trainmaster_agent.runtime.port import MemberUse

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Place = tuple[str, str, int]
"""Run, role and index of a member."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """The time that a member's processes have used, in clock ticks.

    ``total`` has that of their ended children as well, as far as these were waited for; ``own`` is without it, by process id and
    start.
    """

    at: float
    leader: tuple[int, int]
    total: int
    own: Mapping[tuple[int, int], int]


def ticks_between(before: CpuReading, after: CpuReading) -> int:
    """Return the time used between two readings of the same member, in clock ticks; never negative.

    The total goes back when a process ends whose parent does not wait for it: its time is in no process any more. What the
    living processes have used is then known all the same.
    """
    living = sum(ticks - before.own.get(process, 0) for process, ticks in after.own.items())
    return max(after.total - before.total, living, 0)


class UseMeter:
    """Reads the use of members; the rate of each is that since the reading before, or since the member's start."""

    def __init__(self) -> None:
        self._before: dict[Place, CpuReading] = {}
        self._places: dict[tuple[int, int], tuple[str, int]] = {}
        """Role and index by the process id and start of a member's first process. A process may change what /proc says of it."""

    def read(self, folders: Mapping[str, Path]) -> tuple[MemberUse, ...]:
        """Return the use of the living members of these runs, whose folders are given."""
        rows = {row.pid: row for row in process_table.everyone() if row.lives}
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        leaders = self._leaders(folders, rows)
        processes = _by_leader(rows, leaders)
        found, readings = [], dict[Place, CpuReading]()
        for leader, place in leaders.items():
            mine = processes[leader]
            reading = CpuReading(
                now,
                (leader, rows[leader].born),
                sum(row.ticks + row.ended_ticks for row in mine),
                {(row.pid, row.born): row.ticks for row in mine},
            )
            readings[place] = reading
            found.append(MemberUse(*place, cpu=self._rate(place, reading), memory=_memory_of(mine)))
        self._before = readings
        return tuple(found)

    def _rate(self, place: Place, reading: CpuReading) -> float | None:
        before = self._before.get(place)
        if before is None or before.leader != reading.leader:
            before = CpuReading(reading.leader[1] / _TICKS, reading.leader, 0, {})
        seconds = reading.at - before.at
        return ticks_between(before, reading) / _TICKS / seconds if seconds > 0 else None

    def _leaders(self, folders: Mapping[str, Path], rows: Mapping[int, ProcessRow]) -> dict[int, Place]:
        """Return the members by the id of their first process."""
        leaders, places = dict[int, Place](), dict[tuple[int, int], tuple[str, int]]()
        for run, folder in folders.items():
            for process in process_table.recorded(folder):
                row = rows.get(process[0])
                if row is None or row.born != process[1]:
                    continue
                place = self._places.get(process) or process_table.member_of(process[0], folder)
                if place is not None:
                    places[process] = place
                    leaders[process[0]] = (run, *place)
        self._places = places
        return leaders


def _by_leader(rows: Mapping[int, ProcessRow], leaders: Mapping[int, Place]) -> dict[int, list[ProcessRow]]:
    """Return the processes of each member: those in its session, and all that descend from it."""
    leader_of: dict[int, int | None] = {}
    for pid in rows:
        path = []
        at: int | None = pid
        while at is not None and at not in leader_of:
            row = rows.get(at)
            if row is None or row.session in leaders:
                leader_of[at] = None if row is None else row.session
                break
            leader_of[at] = None  # until it is known; ends a circle of parents that changed meanwhile
            path.append(at)
            at = row.parent
        found = None if at is None else leader_of[at]
        for one in path:
            leader_of[one] = found
    processes: dict[int, list[ProcessRow]] = {leader: [] for leader in leaders}
    for pid, row in rows.items():
        if (leader := leader_of[pid]) is not None:
            processes[leader].append(row)
    return processes


def _memory_of(processes: list[ProcessRow]) -> int:
    """Return the resident bytes of processes: what each has for itself, and the largest shared part once.

    Most of what the processes of a member share is the same: its libraries, files and shared memory.
    """
    private, shared = 0, 0
    for row in processes:
        try:
            fields = Path(f"/proc/{row.pid}/statm").read_bytes().split()
        except OSError:
            continue
        resident, common = int(fields[1]), int(fields[2])
        private += resident - common
        shared = max(shared, common)
    return (private + shared) * _PAGE
