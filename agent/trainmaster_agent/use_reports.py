"""`UseReports`: sends what the members of running runs use to the dispatcher, by itself, beside the syncs.

Samples are soft: one that cannot be sent is dropped, and the next one takes its place. Nothing waits for them.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator
from typing import Protocol

from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.member_use import MOST_USE_MEMBERS, RoleUse, RunUse, UsePush
from trainmaster.protocol.states import RunState
from trainmaster_agent.containment import contain
from trainmaster_agent.runtime.port import MemberUse, Runtime

log = logging.getLogger(__name__)

_MOST_MILLI, _MOST_BYTES = 2**31 - 1, 2**49
_MOST_RUNS = 1000
"""The most runs of one report: the dispatcher takes it in about 0.1 s, and serves others between two."""


class UseSender(Protocol):
    async def report_use(self, body: UsePush) -> None: ...


class UseReports:
    """The reports of one agent session. ``seconds``: the time from one sample to the next; 0: none are sent."""

    def __init__(self, sender: UseSender, runtime: Runtime, session: str, seconds: int) -> None:
        self._sender = sender
        self._runtime = runtime
        self._session = session
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self._missing = ""

    def set_taken(self, is_taken: bool) -> None:
        """Note whether the dispatcher takes such reports; start with the first answer that says so."""
        if is_taken and self._seconds and self._task is None:
            self._task = asyncio.create_task(self._run(), name="use")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        # Agents that started together do not report together.
        due = loop.time() + random.uniform(0, min(self._seconds, 2))
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + self._seconds, loop.time())
            try:
                await self._report()
            except UnreachableError:
                pass  # the loop of the syncs says so
            except ProblemError as error:
                if error.code is not Code.SESSION_SUPERSEDED:
                    log.warning("the dispatcher did not take the report of what members use: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("use", error)

    async def _report(self) -> None:
        running = {run for run, status in self._runtime.held().items() if status.state is RunState.RUNNING}
        if not running:
            return
        reading = await self._runtime.member_use()
        if reading.missing != self._missing:
            self._missing = reading.missing
            if reading.missing:
                log.warning("what members use is not all known: %s", reading.missing)
        runs = list(runs_of(one for one in reading.members if one.run in running))
        for part in parts_of(runs) if runs else [[]]:
            await self._sender.report_use(
                UsePush(session=self._session, seconds=self._seconds, runs=tuple(part), missing=reading.missing)
            )


def runs_of(members: Iterable[MemberUse]) -> Iterator[RunUse]:
    """Yield the use of members by run, in the form of the protocol: their roles as columns, without those that are unknown."""
    by_run: dict[str, dict[str, dict[int, MemberUse]]] = {}
    for one in members:
        by_run.setdefault(one.run, {}).setdefault(one.role, {})[one.index] = one
    for run, roles in by_run.items():
        left, columns = MOST_USE_MEMBERS, []
        for role, by_index in sorted(roles.items()):
            found = [one for _, one in sorted(by_index.items())][:left]
            left -= len(found)
            if found:
                columns.append(_columns(role, found))
        yield RunUse(run=run, roles=tuple(columns))


def _columns(role: str, members: list[MemberUse]) -> RoleUse:
    def column(values: list[float | None], most: int) -> tuple[int | None, ...]:
        if all(value is None for value in values):
            return ()
        return tuple(None if value is None else min(max(0, round(value)), most) for value in values)

    return RoleUse(
        role=role,
        indexes=tuple(one.index for one in members),
        cpu=column([None if one.cpu is None else one.cpu * 1000 for one in members], _MOST_MILLI),
        memory=column([one.memory for one in members], _MOST_BYTES),
        gpu=column([one.gpu for one in members], 100),
        gpu_memory=column([one.gpu_memory for one in members], _MOST_BYTES),
        restarts=column([one.restarts for one in members], _MOST_MILLI),
        oom_kills=column([one.oom_kills for one in members], _MOST_MILLI),
        near_limit=column([one.near_limit for one in members], 1),
    )


def parts_of(runs: Iterable[RunUse]) -> Iterator[list[RunUse]]:
    """Yield the runs in parts for one report each; a run is never in two."""
    part: list[RunUse] = []
    many = 0
    for run in runs:
        if part and (many + run.members > MOST_USE_MEMBERS or len(part) == _MOST_RUNS):
            yield part
            part, many = [], 0
        part.append(run)
        many += run.members
    if part:
        yield part
