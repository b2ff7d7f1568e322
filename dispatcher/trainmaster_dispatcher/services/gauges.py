"""Metrics of the dispatcher's processes: counters at the edges of use cases, and measurements of the store.

The store is measured by one process, the leading scheduler. It waits ten seconds between two measurements, and longer when
they take long, so that a large store spends at most a fiftieth of one connection on them.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainmaster.metrics import definitions as m
from trainmaster.metrics.kinds import Picture
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.wait_forecasts import ForecastOutcome
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import member_use, tenants
from trainmaster_dispatcher.store import metrics as counting
from trainmaster_dispatcher.store.agents import Contact
from trainmaster_dispatcher.store.database import StoreAwayError, Transaction
from trainmaster_dispatcher.store.jobs import Transition
from trainmaster_dispatcher.store.scheduling import Cursor

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_PING_SECONDS = 5.0
_SHARE = 50
"""The measurement takes at most one part in ``_SHARE`` of the time."""
LEADERS = (
    m.jobs,
    m.waiting_jobs,
    m.oldest_queued_seconds,
    m.wait_target_seconds,
    m.burst_budget_used_ratio,
    m.quarantined_objects,
    m.cluster_contact_age_seconds,
    m.cluster_lease_left_seconds,
    *(m.used_cores, m.requested_cores),
    *(m.used_memory_bytes, m.requested_memory_bytes),
    *(m.used_gpus, m.requested_gpus, m.idle_gpus),
    m.lease_seconds,
    m.outbox_rows,
    m.outbox_oldest_seconds,
    m.log_streams,
)
"""Gauges of the leader alone: standbys show none, so that sums over schedulers count nothing twice."""
_ENDS = frozenset(state.value for state in RunState if state.is_terminal)
_EVERYBODYS = (m.feed_lag_seconds, m.feed_rows_unsettled, m.measuring_seconds)


def watch(stores: Stores) -> None:
    """Show this process's connections and whether Redis answers, read when the metrics page is requested."""
    m.store_connections_limit.set_function(lambda: float(counting.connections(stores.database).limit))
    m.store_connections_in_use.set_function(lambda: float(counting.connections(stores.database).in_use))
    m.redis_away.set_function(lambda: float(stores.channels.is_away))
    m.postgres_away.set(0)


async def ping_for_ever(stores: Stores) -> None:
    """Show whether Postgres answers, in a process that does not measure it."""
    while True:
        try:
            await stores.database.ping()
            m.postgres_away.set(0)
        except ProblemError as error:
            _note_away(error)
        await asyncio.sleep(_PING_SECONDS)


def _note_away(error: ProblemError) -> None:
    if isinstance(error, StoreAwayError):
        m.postgres_away.set(1)


def note_problem(error: ProblemError) -> None:
    """Record the error of a use case; only failures of the store are counted."""
    if isinstance(error, StoreAwayError):
        m.store_failures.inc()


def count_reports(verdicts: Counter[str], unknown: int) -> None:
    """Count the verdicts on a sync's reports. Call it after the commit."""
    for verdict, many in verdicts.items():
        m.reports.labels(verdict).inc(many)
    if unknown:
        m.reports.labels("unknown").inc(unknown)


def count_ends(transitions: Sequence[Transition], names: Mapping[int, str]) -> None:
    """Count the runs that ended among these transitions, by the names of their clusters. Call it after the commit."""
    ends = Counter[tuple[str, str, str]]()
    for transition in transitions:
        state = transition.states[-1] if transition.states else ""
        if state in _ENDS and transition.cluster_id is not None:
            category = str(transition.details.get("category", ""))
            ends[names.get(transition.cluster_id, ""), state, category] += 1
    for labels, many in ends.items():
        m.runs_ended.labels(*labels).inc(many)


async def cluster_names(tx: Transaction) -> dict[int, str]:
    """Return the names of all clusters, for ``count_ends``."""
    return await counting.cluster_names(tx)


def note_contact(cluster: str, contact: Contact) -> None:
    """Count an agent's new session, or a sync from a superseded session."""
    if not contact.is_current:
        m.agent_superseded.labels(cluster).inc()
    elif contact.is_new_session:
        m.agent_sessions.labels(cluster).inc()


def count_refused(cluster: str, *, is_capacity: bool, many: int = 1) -> None:
    """Count reports of a cluster's agent, or parts of reports, that were refused."""
    m.agent_parts_refused.labels(cluster, "capacity" if is_capacity else "run").inc(many)


def note_forecasts(state: SchedulerState, outcomes: Iterable[ForecastOutcome]) -> None:
    """Count jobs that have started by what was forecast of their waits."""
    for one in outcomes:
        queue = state.queues.get(one.queue_id)
        if one.forecast is not None and queue is not None:
            started = (
                "half" if one.waited <= one.forecast.half else "most" if one.waited <= one.forecast.most else "later"
            )
            m.wait_forecasts.labels(queue.path, started).inc()


def note_applied(state: SchedulerState, plan: Plan, applied: set[int]) -> None:
    """Count what a cycle has stored. A job's wait ends with its first dispatch."""
    now = time.time()
    by_cluster, waits = Counter[int](), defaultdict[int, list[float]](list)
    for start in plan.starts:
        if start.job.id in applied:
            by_cluster[start.cluster_id] += 1
            if start.job.attempt == 0:
                waits[start.job.class_id].append(now - start.job.waits_since)
    m.decisions.labels("applied").inc(len(applied))
    m.decisions.labels("dropped").inc(len(plan.starts) + len(plan.holds) - len(applied))
    for cluster_id, many in by_cluster.items():
        cluster = state.clusters.get(cluster_id)
        m.starts.labels(cluster.name if cluster else "").inc(many)
    for class_id, seconds in waits.items():
        known = state.classes.get(class_id)
        histogram = m.wait_seconds.labels(known.name if known else "")
        for wait in seconds:
            histogram.observe(max(0.0, wait))


async def measure_for_ever(
    stores: Stores,
    cursor: Callable[[], Cursor | None],
    leads: Callable[[], bool],
    waits: Callable[[], Mapping[str, int]] = dict,
    budgets: Callable[[], Mapping[tuple[str, ...], float]] = dict,
    quarantined: Callable[[], Mapping[tuple[str, ...], float]] = dict,
) -> None:
    """Measure the store until cancelled, and at once when the lead is won or lost. ``waits``: number of waiting jobs by token.

    ``budgets``: the spent parts of burst policies' budgets. ``quarantined``: number of objects that cycles leave out, by part.

    A failed measurement leaves the page without its gauges, never with outdated ones.
    """
    due, led = 0.0, False
    while True:
        began = time.monotonic()
        if began >= due or leads() != led:
            led = leads()
            every = EVERY_SECONDS
            try:
                await measure(stores, cursor(), led)
                if led:
                    m.waiting_jobs.show({(token,): float(many) for token, many in waits().items()})
                    m.burst_budget_used_ratio.show(budgets())
                    m.quarantined_objects.show(quarantined())
                m.postgres_away.set(0)
            except ProblemError as error:
                _clear((*LEADERS, *_EVERYBODYS))
                _note_away(error)
                every = _PING_SECONDS
                log.warning("the store could not be measured: %s", error)
            except Exception:
                _clear((*LEADERS, *_EVERYBODYS))
                log.exception("the store could not be measured")
            due = began + max(every, (time.monotonic() - began) * _SHARE)
        await asyncio.sleep(_LOOK_SECONDS)


async def measure(stores: Stores, cursor: Cursor | None, leads: bool) -> None:
    """Measure the store once and show the result."""
    began = time.perf_counter()
    async with stores.database.transaction() as tx:
        lag = await counting.feed_lag(tx, cursor) if cursor is not None else None
        if leads:
            await _measure_content(tx, stores.settings.lease_seconds)
    if not leads:
        _clear(LEADERS)
    if lag is not None:
        m.feed_lag_seconds.show({(): lag.age})
        m.feed_rows_unsettled.show({(): float(lag.many)})
    m.measuring_seconds.show({(): time.perf_counter() - began})


async def _measure_content(tx: Transaction, lease: float) -> None:
    jobs: dict[tuple[str, ...], float] = defaultdict(float)
    oldest: dict[tuple[str, ...], float] = {}
    for row in await counting.live_jobs(tx):
        jobs[row.queue, row.state] += row.many
        if row.age is not None:
            oldest[row.priority_class,] = max(row.age, oldest.get((row.priority_class,), 0.0))
    classes = await tenants.CLASSES.every(tx)
    contacts = await counting.contacts(tx)
    outbox = await counting.outbox(tx)
    streams = await counting.open_streams(tx)
    used = await member_use.sums(tx)
    m.jobs.show(jobs)
    for picture, name, unit in (
        (m.used_cores, "cpu", 1000),
        (m.requested_cores, "requested_cpu", 1000),
        (m.used_memory_bytes, "memory", 1),
        (m.requested_memory_bytes, "requested_memory", 1),
        (m.used_gpus, "gpu", 1000),
        (m.requested_gpus, "requested_gpu", 1),
        (m.idle_gpus, "idle_gpu", 1),
    ):
        amounts = {(row.cluster, row.queue): getattr(row, name) for row in used}
        picture.show({labels: amount / unit for labels, amount in amounts.items() if amount is not None})
    m.oldest_queued_seconds.show({(row.spec.name,): 0.0 for row in classes} | oldest)
    m.wait_target_seconds.show(
        {(row.spec.name,): parse_duration(row.spec.longest_wait) for row in classes if row.spec.longest_wait}
    )
    m.cluster_contact_age_seconds.show({(row.cluster,): row.age for row in contacts})
    m.cluster_lease_left_seconds.show({(row.cluster,): row.left for row in contacts})
    m.lease_seconds.show({(): lease})
    m.outbox_rows.show({("waiting",): outbox.waiting, ("dead",): outbox.dead})
    m.outbox_oldest_seconds.show({(): outbox.age})
    m.log_streams.show({(): streams})


def _clear(pictures: Iterable[Picture]) -> None:
    for picture in pictures:
        picture.clear()
