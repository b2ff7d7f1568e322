"""`Absences`: runs that the agent was ordered to stop and of which it has no record.

Each run is reported until the dispatcher has settled it: first as unrecorded, then, once the runtime has searched for its members
and has ended those it found, as verified.
"""

import asyncio
import logging
from collections.abc import Callable

from trainmaster.protocol.agent import NOT_HELD_SEQ, Absence, RunEnd, RunReport, StartRun, StopRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.containment import contain
from trainmaster_agent.runtime.port import Runtime, RuntimeAwayError

log = logging.getLogger(__name__)

_NOT_HERE = "the cluster's agent has no record of it"
_LOOK_AGAIN_SECONDS = 1.0


class Absences:
    """Reports by run, and one task for each run whose absence is not verified yet."""

    def __init__(self, runtime: Runtime, changed: Callable[[], None], look_again: float = _LOOK_AGAIN_SECONDS) -> None:
        self._runtime = runtime
        self._changed = changed
        self._look_again = look_again
        self._reports: dict[str, RunReport] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, stop: StopRun, installation: str) -> None:
        """Report a run as not held, and verify that none of its members is alive."""
        known = self._reports.get(stop.run)
        if known is not None and known.generation >= stop.generation:
            return
        self._reports[stop.run] = RunReport(
            run=stop.run,
            generation=stop.generation,
            seq=NOT_HELD_SEQ,
            state=stop.cause.ends_as,
            message=_NOT_HERE,
            end=RunEnd(message=_NOT_HERE),
            absence=Absence.UNRECORDED if known is None else known.absence,
        )
        task = self._tasks.get(stop.run)
        if task is not None:
            task.cancel()  # the newer stop may leave less time
        if self._reports[stop.run].absence is Absence.UNRECORDED:
            self._tasks[stop.run] = asyncio.create_task(self._verify(stop, installation), name=f"verify {stop.run}")

    def add_failed(self, run: StartRun, end: RunEnd) -> None:
        """Report as failed a run that could not be started and has no record."""
        self._reports[run.run] = RunReport(
            run=run.run,
            generation=run.generation,
            seq=NOT_HELD_SEQ,
            state=RunState.FAILED,
            message=end.message,
            end=end,
            absence=Absence.UNRECORDED,
        )

    def drop(self, run: str) -> None:
        """Forget a run that the dispatcher has settled, or that the runtime holds after all."""
        self._reports.pop(run, None)
        task = self._tasks.pop(run, None)
        if task is not None:
            task.cancel()

    def __contains__(self, run: object) -> bool:
        return run in self._reports

    def reports(self) -> list[RunReport]:
        return list(self._reports.values())

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _verify(self, stop: StopRun, installation: str) -> None:
        while True:
            try:
                if await self._runtime.verify_absent(stop, installation):
                    break
            except RuntimeAwayError as error:
                log.info(
                    "cannot check now whether a member of run %s is alive, trying again later: %s",
                    stop.run,
                    error,
                    extra={"run_id": stop.run},
                )
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("absence", error, run=stop.run)
            await asyncio.sleep(self._look_again)
        self._tasks.pop(stop.run, None)
        report = self._reports.get(stop.run)
        if report is not None:
            self._reports[stop.run] = report.model_copy(update={"absence": Absence.VERIFIED})
            self._changed()
