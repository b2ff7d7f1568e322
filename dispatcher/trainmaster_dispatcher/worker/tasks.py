"""The side jobs. Each reads its work from Postgres, so that losing, repeating or duplicating a task changes nothing."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.services.common_labels import find_common_labels
from trainmaster_dispatcher.services.notices import gather
from trainmaster_dispatcher.services.retention import Removed, Retention
from trainmaster_dispatcher.services.schedule_firing import FiringTally, ScheduleFiring
from trainmaster_dispatcher.services.usage_ledger import Accounting
from trainmaster_dispatcher.services.webhooks import DeliveryTerms, Relay, Tally
from trainmaster_dispatcher.store import simulations as store
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.redis_channels import note_side_job
from trainmaster_dispatcher.worker.async_bridge import AsyncBridge
from trainmaster_dispatcher.worker.http import Poster
from trainmaster_dispatcher.worker.mail import Mailer
from trainmaster_dispatcher.worker.simulation_runner import CLAIM_SECONDS, SimulationRunner

log = logging.getLogger(__name__)

LABELS, RELAY, RETENTION, SCHEDULES, SIMULATE, USAGE = "labels", "relay", "retention", "schedules", "simulate", "usage"
NOTICES = "notices"
_LABELS_SECONDS = 60.0
_NOTICES_SECONDS = 60.0
_RELAY_SECONDS = 300.0
_RETENTION_SECONDS = 900.0
_USAGE_SECONDS = 300.0
_SIMULATIONS_SECONDS = 1800.0
_SCHEDULES_SECONDS = 120.0


def make_tasks(bridge: AsyncBridge) -> Mapping[str, Callable[[], None]]:
    """Return the tasks of one worker process, by name."""
    return {
        LABELS: _alone(lambda: bridge.run(lambda database: labels(database, bridge))),
        NOTICES: _alone(lambda: bridge.run(lambda database: notices(database, bridge))),
        RELAY: _alone(lambda: bridge.run(lambda database: relay(database, bridge))),
        RETENTION: _alone(lambda: bridge.run(lambda database: retention(database, bridge))),
        SCHEDULES: _alone(lambda: bridge.run(lambda database: schedules(database, bridge))),
        SIMULATE: _alone(lambda: bridge.run(lambda database: simulate(database, bridge))),
        USAGE: _alone(lambda: _count_usage(bridge)),
    }


def _count_usage(bridge: AsyncBridge) -> None:
    """Count usage, and note for ``trainmaster doctor`` that side jobs are done: this one is due every few seconds."""
    bridge.run(lambda database: usage(database, bridge))
    if bridge.settings.redis_url:
        note_side_job(bridge.settings.redis_url)


def _alone(work: Callable[[], object]) -> Callable[[], None]:
    """Return the task, which does nothing if this process runs it already: a second one would only share its core."""
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


def _goes_on(bridge: AsyncBridge, seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() < ends and not bridge.stopping()


async def relay(database: Database, bridge: AsyncBridge) -> Tally:
    """Deliver messages that are due. It ends after a while even if there are more, so that the task is acknowledged."""
    settings = bridge.settings
    server = settings.mail_server
    if not settings.webhook_secrets and server is None:
        return Tally()
    mailer = None if server is None else Mailer(server, settings.mail_from, settings.webhook_timeout_seconds)
    terms = DeliveryTerms.of(settings)
    poster = Poster(
        terms.policy, settings.webhook_timeout_seconds, settings.webhook_post_seconds, at_once=terms.at_once_each
    )
    async with poster:
        tally = await Relay(database, terms, poster, _goes_on(bridge, _RELAY_SECONDS), send_mail=mailer).run()
    if tally != Tally():
        log.info("messages", extra=asdict(tally))
    return tally


async def notices(database: Database, bridge: AsyncBridge) -> int:
    """Write messages about what users want to be notified of, and deliver them with the next relay."""
    return await gather(database, _goes_on(bridge, _NOTICES_SECONDS))


async def usage(database: Database, bridge: AsyncBridge) -> int:
    """Count what runs that have ended have used."""
    return await Accounting(database, bridge.settings.counted_labels, _goes_on(bridge, _USAGE_SECONDS)).run()


async def labels(database: Database, bridge: AsyncBridge) -> None:
    """Find the labels that all jobs of a block have, for lists of jobs that must not have a label."""
    await find_common_labels(database, _goes_on(bridge, _LABELS_SECONDS))


async def retention(database: Database, bridge: AsyncBridge) -> Removed:
    """Remove what is older than the settings allow."""
    return await Retention(database, bridge.settings, _goes_on(bridge, _RETENTION_SECONDS)).run()


async def schedules(database: Database, bridge: AsyncBridge) -> FiringTally:
    """Submit the jobs of schedules that are due."""
    stores, admissions = bridge.submitting(database)
    firing = ScheduleFiring(stores, admissions.known, _goes_on(bridge, _SCHEDULES_SECONDS))
    tally = await firing.run()
    if tally != FiringTally():
        log.info("schedules", extra=asdict(tally))
    return tally


async def simulate(database: Database, bridge: AsyncBridge) -> int:
    """Run the requested simulations, one after the other; return their number."""
    goes_on, many = _goes_on(bridge, _SIMULATIONS_SECONDS), 0
    while goes_on():
        async with database.transaction() as tx:
            claimed = await store.claim(tx, CLAIM_SECONDS)
        if claimed is None:
            return many
        with contained(Part.TASK, f"simulation {claimed.id}"):
            await SimulationRunner(database, claimed, bridge.settings.currency, bridge.stopping).run()
        many += 1
    return many
