"""The side jobs. Each looks in Postgres for what is to be done, so that losing, repeating or doubling a task changes nothing."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from trainmaster.dispatcher.services import simulations
from trainmaster.dispatcher.services.accounting import Accounting
from trainmaster.dispatcher.services.retention import Removed, Retention
from trainmaster.dispatcher.services.webhooks import Relay, Tally, Terms
from trainmaster.dispatcher.store import simulations as store
from trainmaster.dispatcher.store.database import Database
from trainmaster.dispatcher.worker.http import Poster
from trainmaster.dispatcher.worker.side import Side
from trainmaster.dispatcher.worker.simulating import Heard, run_apart
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.simulations import SimulationState

log = logging.getLogger(__name__)

RELAY, RETENTION, SIMULATE, USAGE = "relay", "retention", "simulate", "usage"
_RELAY_SECONDS = 300.0
_RETENTION_SECONDS = 900.0
_USAGE_SECONDS = 300.0
_SIMULATION_SECONDS = 1800.0
_CLAIM_SECONDS = 30.0
_RENEW_SECONDS = 1.0
_MOST_ATTEMPTS = 3


def make_tasks(side: Side) -> Mapping[str, Callable[[], None]]:
    """The tasks of one worker process, by name."""
    return {
        RELAY: _alone(lambda: side.run(lambda database: relay(database, side))),
        RETENTION: _alone(lambda: side.run(lambda database: retention(database, side))),
        SIMULATE: _alone(lambda: side.run(lambda database: simulate(database, side))),
        USAGE: _alone(lambda: side.run(lambda database: usage(database, side))),
    }


def _alone(work: Callable[[], object]) -> Callable[[], None]:
    """Do nothing where this process is at it already: a second one would only share its core."""
    busy = threading.Lock()

    def run() -> None:
        if busy.acquire(blocking=False):
            try:
                work()
            except ProblemError as error:
                log.warning("a side job was cut short: %s", error)
                raise
            finally:
                busy.release()

    return run


def _goes_on(side: Side, seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() < ends and not side.stopping()


async def relay(database: Database, side: Side) -> Tally:
    """Bring out webhook messages that are due. Ends after a while even if there are always more, so that the task is acknowledged."""
    settings = side.settings
    if not settings.webhook_secrets:
        return Tally()
    terms = Terms.of(settings)
    poster = Poster(
        terms.policy, settings.webhook_timeout_seconds, settings.webhook_post_seconds, at_once=terms.at_once_each
    )
    async with poster:
        tally = await Relay(database, terms, poster, _goes_on(side, _RELAY_SECONDS)).run()
    if tally != Tally():
        log.info("webhook messages", extra=asdict(tally))
    return tally


async def usage(database: Database, side: Side) -> int:
    """Count what runs that have ended have used."""
    return await Accounting(database, side.settings.counted_labels, _goes_on(side, _USAGE_SECONDS)).run()


async def retention(database: Database, side: Side) -> Removed:
    """Remove what is older than the settings say."""
    return await Retention(database, side.settings, _goes_on(side, _RETENTION_SECONDS)).run()


async def simulate(database: Database, side: Side) -> int:
    """Carry out simulations that were asked for, one after the other; how many."""
    goes_on, many = _goes_on(side, _SIMULATION_SECONDS), 0
    while goes_on():
        async with database.transaction() as tx:
            claimed = await store.claim(tx, _CLAIM_SECONDS)
        if claimed is None:
            return many
        await _simulate(database, side, claimed)
        many += 1
    return many


async def _simulate(database: Database, side: Side, claimed: Any) -> None:
    """One of them, to its end or until its worker stops."""
    number, token = claimed.id, claimed.token
    ends = time.monotonic() + _SIMULATION_SECONDS

    async def finish(state: SimulationState, message: str = "", heard: Heard | None = None) -> None:
        result, report = (heard.result, heard.report) if heard is not None else (None, None)
        async with database.transaction() as tx:
            await store.finish(tx, number, token, state, message, result, report)
        log.info("a simulation has ended", extra={"simulation": number, "state": state.value})

    async def goes_on(heard: Heard) -> bool:
        if side.stopping() or time.monotonic() >= ends:
            return False
        async with database.transaction() as tx:
            return await store.renew(tx, number, token, heard.progress, _CLAIM_SECONDS)

    if token > _MOST_ATTEMPTS:
        why = f"its worker ended {_MOST_ATTEMPTS} times while it ran; it may need more memory than there is"
        return await finish(SimulationState.FAILED, why)
    try:
        order = await simulations.order(database, claimed, side.settings.currency)
    except ProblemError as error:
        if error.code is not Code.INVALID_SPEC:
            raise
        return await finish(SimulationState.FAILED, error.detail)
    heard = await run_apart(order, goes_on, _RENEW_SECONDS)
    if heard is None:
        if side.stopping():
            async with database.transaction() as tx:
                await store.give_back(tx, number, token)
        elif time.monotonic() >= ends:
            await finish(SimulationState.FAILED, f"it took longer than {_SIMULATION_SECONDS / 60:g} minutes")
    elif heard.result is not None:
        await finish(SimulationState.SUCCEEDED, heard=heard)
    elif heard.problem:
        await finish(SimulationState.FAILED, heard.problem)
    else:
        log.error("a simulation broke off", extra={"simulation": number, "code": heard.code, "said": heard.said})
        why = "out of memory, or ended by hand" if heard.code == -signal.SIGKILL else "see the worker's log"
        await finish(SimulationState.FAILED, f"its process ended with code {heard.code}: {why}")
    return None
