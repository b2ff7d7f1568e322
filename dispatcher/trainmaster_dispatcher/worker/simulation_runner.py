"""The execution of one claimed simulation: a process runs it; this module renews the claim and stores the result."""

import logging
import signal
import time
from collections.abc import Callable
from typing import Any

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.simulations import SimulationState
from trainmaster_dispatcher.services import simulations
from trainmaster_dispatcher.store import simulations as store
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.worker.simulation_process import Heard, run_apart

log = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
_LONGEST_SECONDS = 1800.0
_RENEW_SECONDS = 1.0
_MOST_ATTEMPTS = 3


class SimulationRunner:
    """``claimed``: the row that ``store.claim`` returned. ``stopping``: returns whether the worker is to end; the next
    one starts again then."""

    def __init__(
        self, database: Database, claimed: store.ClaimedSimulation, currency: str, stopping: Callable[[], bool]
    ) -> None:
        self._database = database
        self._claimed = claimed
        self._currency = currency
        self._stopping = stopping
        self._renewed_at = time.monotonic()
        self._ends = time.monotonic() + _LONGEST_SECONDS

    async def run(self) -> None:
        """Run to the end, or until the claim is lost or the worker stops. Raises ProblemError if the store is unreachable."""
        if self._claimed.token > _MOST_ATTEMPTS:
            why = f"its worker ended {_MOST_ATTEMPTS} times while it ran; it may need more memory than there is"
            return await self._finish(SimulationState.FAILED, why)
        try:
            order = await simulations.order(self._database, self._claimed, self._currency, lambda: self._renew({}))
        except ProblemError as error:
            if error.code is not Code.INVALID_SPEC:
                raise
            return await self._finish(SimulationState.FAILED, error.detail)
        if order is None:
            return None  # cancelled, or claimed by another worker
        heard = await run_apart(order, self._goes_on, _RENEW_SECONDS)
        if self._stopping() and (heard is None or heard.result is None):
            async with self._database.transaction() as tx:
                await store.give_back(tx, self._claimed.id, self._claimed.token)
        elif heard is not None:
            await self._keep(heard)
        elif time.monotonic() >= self._ends:
            await self._finish(SimulationState.FAILED, f"it took longer than {_LONGEST_SECONDS / 60:g} minutes")
        return None

    async def _goes_on(self, heard: Heard) -> bool:
        return not self._stopping() and time.monotonic() < self._ends and await self._renew(heard.progress)

    async def _renew(self, progress: dict[str, Any]) -> bool:
        """Return whether the claim holds. A store that is unreachable for a moment ends nothing: the claim lasts longer."""
        try:
            async with self._database.transaction() as tx:
                if not await store.renew(tx, self._claimed.id, self._claimed.token, progress, CLAIM_SECONDS):
                    return False
        except ProblemError:
            return time.monotonic() - self._renewed_at < CLAIM_SECONDS
        self._renewed_at = time.monotonic()
        return True

    async def _keep(self, heard: Heard) -> None:
        """Store what a process that has ended has reported."""
        if heard.result is not None:
            return await self._finish(SimulationState.SUCCEEDED, heard=heard)
        if heard.problem:
            return await self._finish(SimulationState.FAILED, heard.problem)
        details = {"simulation": self._claimed.id, "code": heard.code, "said": heard.said}
        log.error("a simulation broke off", extra=details)
        why = "out of memory, or ended by hand" if heard.code == -signal.SIGKILL else "see the worker's log"
        return await self._finish(SimulationState.FAILED, f"its process ended with code {heard.code}: {why}")

    async def _finish(self, state: SimulationState, message: str = "", heard: Heard | None = None) -> None:
        result, report = (heard.result, heard.report) if heard is not None else (None, None)
        async with self._database.transaction() as tx:
            await store.finish(tx, self._claimed.id, self._claimed.token, state, message, result, report)
        log.info("a simulation has ended", extra={"simulation": self._claimed.id, "state": state.value})
