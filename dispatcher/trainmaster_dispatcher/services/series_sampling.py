"""Samples of the installation for its history and its gauges: one a minute, by the leading scheduler.

A sample is computed from the scheduler's state and stored as one row, whatever the number of series; the retention job gives each
series rows of its own (``services/series_rollup.py``).
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple

from trainmaster.metrics import definitions as m
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.domain.series import FINE, HEARTBEAT, MOST_SERIES, SeriesKey, pack_sample
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.capacity_sums import (
    ClusterSums,
    CountedResource,
    QueueSums,
    cluster_sums,
    queue_sums,
)
from trainmaster_dispatcher.scheduling.selection.cluster_index import SILENT_SECONDS
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import metrics as counting
from trainmaster_dispatcher.store import series as store
from trainmaster_dispatcher.store.database import Transaction

log = logging.getLogger(__name__)

MOST_GAUGED_QUEUES = 2000
"""The most queues with gauges of their own, from the top of the tree down."""
_LOOK_SECONDS = 1.0
_NAMES_SECONDS = 12 * 3600.0
_MOST_WAITS = 10_000
"""The most waits of one minute and queue of which the median is computed."""

PICTURES = (
    *(m.cluster_capacity, m.cluster_used, m.cluster_free, m.cluster_others),
    *(m.queue_used, m.queue_guaranteed, m.queue_borrowed),
    *(m.cluster_nodes, m.series_dropped),
)
"""Gauges that are shown with each sample, by the leader alone."""

_Value = tuple[SeriesKey, float]


class WaitingRow(NamedTuple):
    """Queued jobs of one queue and class, and the seconds that the oldest has waited for its first start, if any."""

    queue: str
    many: int
    age: float | None


class SampledState(NamedTuple):
    """The sums of one moment, as computed from the scheduler's state."""

    clusters: list[ClusterSums]
    queues: list[QueueSums]
    rates: dict[str, float]
    """By burst policy: the price of its live runs for an hour."""
    waits: dict[str, list[float]]
    """By queue: the waits of jobs that were first sent to a cluster since the sample before."""


class SeriesSampler:
    """Takes the samples of one scheduler process. ``note_starts`` after each cycle; ``run`` for ever, as a task."""

    def __init__(self) -> None:
        self._waits: dict[int, list[float]] = defaultdict(list)
        """By queue, of the jobs in the queue itself."""
        self._ids: dict[SeriesKey, tuple[int, float]] = {}
        """The ids of series, and until when they are cached."""

    def note_starts(self, state: SchedulerState, plan: Plan, applied: Collection[int]) -> None:
        """Remember the waits of jobs that a cycle has sent to their first cluster."""
        now = time.time()
        for start in plan.starts:
            job = start.job
            if job.id in applied and job.attempt == 0 and len(self._waits[job.queue_id]) < _MOST_WAITS:
                self._waits[job.queue_id].append(max(0.0, now - job.waits_since))

    async def run(
        self, stores: Stores, sight: Callable[[], tuple[Engine, float] | None], deciding: asyncio.Lock
    ) -> None:
        """Take a sample in each minute in which this process leads. ``sight``: returns the leader's engine and time, or None.

        ``deciding`` is held while the state is read.
        """
        sampled = 0.0
        while True:
            minute = time.time() // FINE * FINE
            if minute > sampled and await self._sample(stores, sight, deciding, minute):
                sampled = minute
            await asyncio.sleep(_LOOK_SECONDS)

    async def _sample(
        self,
        stores: Stores,
        sight: Callable[[], tuple[Engine, float] | None],
        deciding: asyncio.Lock,
        minute: float,
    ) -> bool:
        """Take the sample of a minute; return False where this process does not lead."""
        async with deciding:
            seen = sight()
            if seen is None:
                self._clear()
                return False
            taken = list[SampledState]()
            with contained(Part.CHORE, "sample series"):
                taken.append(self.take(*seen))
                _show(taken[0])
        for found in taken:
            try:
                with contained(Part.CHORE, "store a sample of series", ProblemError):
                    await self.store(stores, found, datetime.fromtimestamp(minute, UTC))
            except ProblemError as error:
                log.warning("the sample of this minute could not be stored: %s", error)
        return True

    def _clear(self) -> None:
        self._waits.clear()
        for picture in PICTURES:
            picture.clear()

    def take(self, engine: Engine, now: float) -> SampledState:
        """Return the sums of this moment. ``now``: seconds since the epoch."""
        state = engine.state
        heard = [
            one for one in cluster_sums(state) if state.lease_until.get(one.cluster.id, 0.0) + SILENT_SECONDS >= now
        ]
        rates = dict[str, float]()
        for policy_id, runs in state.burst_runs.items():
            policy = state.policies.get(policy_id)
            if policy is not None:
                nanos = sum(run.burst.commitment.rate for run in runs.values() if run.burst is not None)
                rates[policy.name] = nanos / NANOS
        waits = dict[str, list[float]]()
        for queue_id, found in self._waits.items():
            for queue in state.ancestry(queue_id):
                waits.setdefault(queue.path, []).extend(found)
        self._waits.clear()
        return SampledState(heard, list(queue_sums(engine)), rates, waits)

    async def store(self, stores: Stores, found: SampledState, at: datetime) -> int:
        """Store a sample; return how many series of it were dropped. Raises ProblemError."""
        async with stores.database.transaction() as tx:
            rows = [
                WaitingRow(row.queue, row.many, row.age)
                for row in await counting.live_jobs(tx)
                if row.state == JobState.QUEUED
            ]
            values, dropped = bounded_values(found, rows)
            ids = await self._ids_of(tx, [key for key, _ in values])
            await store.add_sample(tx, at, *pack_sample(ids, [value for _, value in values]))
        m.series_dropped.show({(): float(dropped)})
        return dropped

    async def _ids_of(self, tx: Transaction, keys: list[SeriesKey]) -> list[int]:
        now = time.monotonic()
        unknown = [key for key in keys if key not in self._ids or self._ids[key][1] < now]
        if unknown:
            if len(self._ids) > 2 * MOST_SERIES:
                self._ids, unknown = {}, keys
            for row in await store.add_names(tx, unknown):
                self._ids[row.key] = row.id, now + _NAMES_SECONDS
        return [self._ids[key][0] for key in keys]


def bounded_values(found: SampledState, waiting: Iterable[WaitingRow]) -> tuple[list[_Value], int]:
    """Return the values of a sample, at most ``MOST_SERIES``, and the number of those that were dropped.

    Those of clusters get at most half; then come those of queues, from the top of the tree down. A value of 0 is left out where its
    absence says so.
    """
    of_clusters = list(_of_clusters(found.clusters))
    of_clusters += [(SeriesKey("policy.rate", policy=name), rate) for name, rate in found.rates.items() if rate]
    of_queues = list(_of_queues(found, waiting))
    kept = [(SeriesKey(HEARTBEAT), 1.0), *of_clusters[: MOST_SERIES // 2]]
    kept += of_queues[: MOST_SERIES - len(kept)]
    return kept, 1 + len(of_clusters) + len(of_queues) - len(kept)


def _of_clusters(clusters: Iterable[ClusterSums]) -> Iterator[_Value]:
    for one in clusters:
        name = one.cluster.name
        for what, amounts in (
            ("capacity", one.capacity),
            ("used", one.used),
            ("free", one.free()),
            ("others", one.others),
        ):
            for key, amount in amounts.items():
                if amount or what == "capacity":
                    yield SeriesKey(f"cluster.{key.name}.{what}", cluster=name, product=key.product), amount
        report = one.cluster.report
        if report is None:
            continue
        health = report.health
        if health is None:
            yield SeriesKey("cluster.nodes.ready", cluster=name), sum(group.count for group in report.groups)
            continue
        yield SeriesKey("cluster.nodes.ready", cluster=name), health.ready
        for what, many in (
            ("notReady", health.not_ready),
            ("flapping", health.flapping),
            ("deviceErrors", health.device_errors),
        ):
            if many:
                yield SeriesKey(f"cluster.nodes.{what}", cluster=name), many


def _of_queues(found: SampledState, waiting: Iterable[WaitingRow]) -> Iterator[_Value]:
    queued, oldest = dict[str, int](), dict[str, float]()
    for row in waiting:
        for path in _with_those_above(row.queue):
            queued[path] = queued.get(path, 0) + row.many
            if row.age is not None:
                oldest[path] = max(row.age, oldest.get(path, 0.0))
    for one in found.queues:
        path = one.queue.path
        for what, amounts in (("used", one.used), ("guaranteed", one.guaranteed), ("borrowed", one.borrowed())):
            for key, amount in amounts.items():
                if amount:
                    yield SeriesKey(f"queue.{key.name}.{what}", queue=path, product=key.product), amount
        for metric, value in (
            ("queue.jobs.queued", queued.get(path, 0)),
            ("queue.jobs.running", one.running),
            ("queue.wait.oldest", oldest.get(path, 0.0)),
        ):
            if value:
                yield SeriesKey(metric, queue=path), value
        if found.waits.get(path):
            yield SeriesKey("queue.wait.p50", queue=path), median(found.waits[path])


def _with_those_above(path: str) -> Iterator[str]:
    """Yield the path of a queue, and those of the queues above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _show(found: SampledState) -> None:
    """Show the sums as gauges."""

    def by_cluster(amounts: Callable[[ClusterSums], dict[CountedResource, float]]) -> dict[tuple[str, ...], float]:
        return {
            (one.cluster.name, key.name, key.product): amount
            for one in found.clusters
            for key, amount in amounts(one).items()
        }

    def by_queue(amounts: Callable[[QueueSums], dict[CountedResource, float]]) -> dict[tuple[str, ...], float]:
        return {
            (one.queue.path, key.name, key.product): amount
            for one in found.queues[:MOST_GAUGED_QUEUES]
            for key, amount in amounts(one).items()
        }

    m.cluster_capacity.show(by_cluster(lambda one: dict(one.capacity)))
    m.cluster_used.show(by_cluster(lambda one: {key: one.used.get(key, 0.0) for key in one.capacity}))
    m.cluster_free.show(by_cluster(lambda one: one.free()))
    m.cluster_others.show(by_cluster(lambda one: dict(one.others)))
    m.queue_used.show(by_queue(lambda one: dict(one.used)))
    m.queue_guaranteed.show(by_queue(lambda one: dict(one.guaranteed)))
    m.queue_borrowed.show(by_queue(lambda one: one.borrowed()))
    nodes = dict[tuple[str, ...], float]()
    for one in found.clusters:
        health = None if one.cluster.report is None else one.cluster.report.health
        if health is not None:
            for state in ("ready", "cordoned", "not_ready", "flapping", "device_errors"):
                nodes[one.cluster.name, state] = float(getattr(health, state))
    m.cluster_nodes.show(nodes)
