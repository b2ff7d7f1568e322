"""Answers on time series: of what a caller may see, in steps of one length, from values of every grain.

A cluster's use is for those who look after the cluster, as are the numbers of its runs; a queue's is for those who may use the queue.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isnan, nan

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.series import SeriesAnswer, SeriesBy, SeriesCatalogue, SeriesMetricInfo, SeriesValues
from trainmaster.protocol.suggestions import suggestion
from trainmaster_dispatcher.domain.series import (
    COARSE,
    DAY,
    FINE,
    HEARTBEAT,
    HOUR,
    METRICS,
    MIDDLE,
    SeriesKey,
    SeriesMetric,
    Source,
    StepBuckets,
    unpack,
    unpack_sample,
)
from trainmaster_dispatcher.store import bursts, tenants
from trainmaster_dispatcher.store import series as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

MOST_SHOWN = 1000
"""The most series of one answer."""
MOST_VALUES = 500_000
"""The most values of one answer."""
_MOST_READ = 4 * MOST_VALUES
_LONGEST = 366 * DAY
_DEFAULT_RANGE = 6 * HOUR


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """A question: the metric, the labels to keep, filters, and the time."""

    metric: str
    by: tuple[SeriesBy, ...] = ()
    cluster: str | None = None
    queue: str | None = None
    depth: int | None = None
    """The most levels below ``queue``, or below the top."""
    product: str | None = None
    policy: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class _Times:
    """The steps of an answer, in seconds since the epoch, and the grain that is read for the older of them."""

    start: int
    end: int
    step: int
    grain: int

    @property
    def steps(self) -> int:
        return (self.end - self.start) // self.step


def catalogue(caller: Caller) -> SeriesCatalogue:
    """Return the metrics that the caller may see anything of."""
    return SeriesCatalogue(
        metrics=tuple(
            SeriesMetricInfo(
                name=one.name,
                unit=one.unit,
                labels=one.labels,
                help=f"{one.help}.",
                rollup=one.rollup.value,
                least_step=FINE if one.source is Source.SAMPLES else COARSE,
            )
            for one in sorted(METRICS.values())
            if _may_ask(caller, one)
        )
    )


def _may_ask(caller: Caller, metric: SeriesMetric) -> bool:
    if "cluster" in metric.labels:
        return caller.has_every_queue or caller.is_owner or not metric.for_owners
    return not caller.is_owner


async def query(tx: Transaction, caller: Caller, wanted: SeriesQuery, now: datetime | None = None) -> SeriesAnswer:
    """Return the series that match. Raises ProblemError NOT_FOUND, FORBIDDEN and INVALID_PARAMETER."""
    metric = _metric(caller, wanted)
    times = _times_of(wanted, metric, now or datetime.now(UTC))
    kept = _kept_labels(wanted, metric)
    may_see = await _visible(tx, caller, metric, wanted)
    if metric.source is Source.LEDGER:
        found = await _of_ledger(tx, metric, times, may_see)
    else:
        named = [row for row in await store.names(tx, [metric.name]) if may_see(row.key)]
        _check_size(len(named), times, _MOST_READ)
        found = await _of_samples(tx, metric, times, named)
    grouped = await asyncio.to_thread(_grouped, found, kept)
    _check_size(len(grouped), times, MOST_VALUES)
    shown = sorted(grouped.items())[:MOST_SHOWN]
    return SeriesAnswer(
        metric=metric.name,
        unit=metric.unit,
        step=times.step,
        start=datetime.fromtimestamp(times.start, UTC),
        series=tuple(
            SeriesValues(labels=dict(zip(kept, labels, strict=True)), values=tuple(map(_shown_value, values)))
            for labels, values in shown
        ),
        left_out=len(grouped) - len(shown),
    )


def _shown_value(value: float) -> float | None:
    """Return a value with the digits that a 32-bit float has."""
    return None if isnan(value) else float(f"{value:.7g}")


def _check_size(series: int, times: _Times, most: int) -> None:
    if min(series, MOST_SHOWN if most == MOST_VALUES else series) * times.steps > most:
        raise _mistake(
            "step", f"would make {series} series of {times.steps} values each; choose a longer step, or fewer series"
        )


def _mistake(name: str, message: str) -> ProblemError:
    return ProblemError(Code.INVALID_PARAMETER, f"{name}: {message}", mistakes=(Mistake(path=name, message=message),))


def _metric(caller: Caller, wanted: SeriesQuery) -> SeriesMetric:
    metric = METRICS.get(wanted.metric)
    if metric is None:
        raise _mistake("metric", f"there is no metric {wanted.metric!r}{suggestion(wanted.metric, METRICS)}")
    if not _may_ask(caller, metric):
        kind = "cluster's owners and admins" if "cluster" in metric.labels else "users of queues and admins"
        raise ProblemError(Code.FORBIDDEN, f"the metric {metric.name} is for {kind}")
    for name in ("cluster", "queue", "product", "policy"):
        if getattr(wanted, name) is not None and name not in metric.labels:
            raise _mistake(name, f"{metric.name} has no {name}, only {' and '.join(metric.labels)}")
    if wanted.depth is not None and "queue" not in metric.labels:
        raise _mistake("depth", f"{metric.name} is not of queues")
    return metric


def _kept_labels(wanted: SeriesQuery, metric: SeriesMetric) -> tuple[str, ...]:
    """Return the labels by which series are told apart."""
    if not wanted.by:
        return metric.labels
    named = [one for one in wanted.by if one != "none"]
    unknown = [one for one in named if one not in metric.labels]
    if unknown:
        raise _mistake("by", f"{metric.name} has no {unknown[0]}, only {' and '.join(metric.labels)}")
    kept = tuple(label for label in metric.labels if label in named)
    if kept != metric.labels and not metric.is_additive:
        raise _mistake("by", f"the series of {metric.name} cannot be added up: keep {' and '.join(metric.labels)}")
    return kept


def _times_of(wanted: SeriesQuery, metric: SeriesMetric, now: datetime) -> _Times:
    """Return the steps: as requested, or longer where the values of then are kept only for longer steps."""
    moment = int(now.timestamp())
    until = moment if wanted.until is None else min(int(wanted.until.timestamp()), moment)
    since = until - _DEFAULT_RANGE if wanted.since is None else int(wanted.since.timestamp())
    if since >= until:
        raise _mistake("since", "must be earlier than until, and than now")
    if until - since > _LONGEST:
        raise _mistake("since", "must be at most 366 days before until")
    age = moment - since
    grain = FINE if age <= DAY else MIDDLE if age <= 14 * DAY else COARSE
    if metric.source is Source.LEDGER:
        grain = COARSE
    step = wanted.step if wanted.step is not None else _default_step(until - since)
    if step % FINE:
        raise _mistake("step", "must be a multiple of 60 seconds")
    step = max(grain, -(-step // grain) * grain)
    if grain == FINE and step % MIDDLE == 0:
        grain = MIDDLE
    start = since - since % step
    return _Times(start, start + -(-(until - start) // step) * step, step, grain)


def _default_step(seconds: int) -> int:
    return FINE if seconds <= _DEFAULT_RANGE else MIDDLE if seconds <= 7 * DAY else COARSE


async def _visible(
    tx: Transaction, caller: Caller, metric: SeriesMetric, wanted: SeriesQuery
) -> Callable[[SeriesKey], bool]:
    """Return whether a series matches the question and may be seen. Raises ProblemError NOT_FOUND for a label that names nothing."""
    if "cluster" in metric.labels:
        clusters = await _visible_clusters(tx, caller, metric)
        if wanted.cluster is not None and clusters is not None and wanted.cluster not in clusters:
            raise ProblemError(Code.NOT_FOUND, f"there is no cluster {wanted.cluster!r}")
        return lambda key: (
            (clusters is None or key.cluster in clusters)
            and wanted.cluster in (None, key.cluster)
            and wanted.product in (None, key.product)
        )
    if "queue" in metric.labels:
        if wanted.queue is not None and not caller.may_know(wanted.queue):
            raise ProblemError(Code.NOT_FOUND, f"there is no queue {wanted.queue!r}")
        return lambda key: (
            caller.may_use(key.queue)
            and _is_below(key.queue, wanted.queue, wanted.depth)
            and wanted.product in (None, key.product)
        )
    policies = {row.spec.name: row.spec for row in await bursts.POLICIES.every(tx)}
    seen = {name for name, spec in policies.items() if all(map(caller.may_use, spec.queues))}
    if wanted.policy is not None and wanted.policy not in seen and not caller.has_every_queue:
        raise ProblemError(Code.NOT_FOUND, f"there is no burst policy {wanted.policy!r}")
    return lambda key: (caller.has_every_queue or key.policy in seen) and wanted.policy in (None, key.policy)


async def _visible_clusters(tx: Transaction, caller: Caller, metric: SeriesMetric) -> frozenset[str] | None:
    """Return the clusters whose series of a metric the caller may see; None for all, those that were removed, too."""
    if caller.has_every_queue:
        return None
    return frozenset(
        row.spec.name
        for row in await tenants.CLUSTERS.every(tx)
        if caller.may_see(row.spec.name, row.spec.only_queues)
        and (not metric.for_owners or caller.oversees(row.spec.name))
    )


def _is_below(queue: str, top: str | None, depth: int | None) -> bool:
    """Return whether a queue is ``top`` or below it, at most ``depth`` levels."""
    if top is not None and queue != top and not queue.startswith(top + "/"):
        return False
    levels = queue.count("/") + 1 if top is None else queue.count("/") - top.count("/")
    return depth is None or levels <= depth


# Values


async def _of_samples(
    tx: Transaction, metric: SeriesMetric, times: _Times, named: Sequence[store.NamedSeries]
) -> dict[SeriesKey, list[float]]:
    """Return the values of these series in the steps of an answer; those that are 0 all the time are left out where that is usual."""
    beat = next(iter(await store.names(tx, [HEARTBEAT])), None)
    if beat is None or not named:
        return {}
    ids = [row.id for row in named]
    buckets = {key: StepBuckets(times.steps, metric.rollup) for key in ids}
    reader = _SpanReader(metric, times, buckets, beat.id)
    start, end = datetime.fromtimestamp(times.start, UTC), datetime.fromtimestamp(times.end, UTC)
    fine_from = start
    if times.grain != FINE:
        _, rolled = await store.days(tx)
        if rolled is not None:
            fine_from = max(start, rolled.astimezone(UTC) + timedelta(seconds=DAY))
            spans = await store.spans(
                tx, times.grain, start - timedelta(seconds=DAY), min(end, fine_from), [beat.id, *ids]
            )
            await asyncio.to_thread(reader.read, spans, times.grain, DAY, fine_from)
    if fine_from < end:
        # Samples first: what is rolled up meanwhile counts twice in a mean, which changes nothing, and is not missing.
        samples = await store.samples(tx, fine_from, end)
        hour = fine_from.replace(minute=0, second=0, microsecond=0)
        spans = await store.spans(tx, FINE, hour, end, [beat.id, *ids])
        await asyncio.to_thread(reader.read, spans, FINE, HOUR, end)
        await asyncio.to_thread(reader.read_samples, samples)
    found = {row.key: buckets[row.id].values() for row in named}
    return {key: values for key, values in found.items() if _says_something(metric, values)}


def _says_something(metric: SeriesMetric, values: Iterable[float]) -> bool:
    known = [value for value in values if not isnan(value)]
    return any(known) if metric.is_zero_left_out else bool(known)


class _SpanReader:
    """Puts stored values into the steps of an answer. Where there was a sample without a value, the metric may say that it was 0."""

    def __init__(self, metric: SeriesMetric, times: _Times, buckets: Mapping[int, StepBuckets], beat: int) -> None:
        self._metric = metric
        self._times = times
        self._buckets = buckets
        self._beat = beat

    def _step(self, at: int) -> int:
        return (at - self._times.start) // self._times.step

    def read(self, spans: Sequence[store.StoredSpan], grain: int, seconds: int, until: datetime) -> None:
        """Read spans of ``seconds`` with a value each ``grain`` seconds, up to ``until``."""
        count, end = seconds // grain, int(until.timestamp())
        there: dict[int, Sequence[float]] = {}
        values: dict[int, dict[int, Sequence[float]]] = {}
        for span in spans:
            found = unpack(span.vals, count)
            begin = int(span.begin.timestamp())
            if span.series_id == self._beat:
                there[begin] = found
            else:
                values.setdefault(begin, {})[span.series_id] = found
        zeros = [0.0] * count
        for begin, beats in there.items():
            of_span = values.get(begin, {})
            for key, bucket in self._buckets.items():
                stored = of_span.get(key)
                if stored is None:
                    if not self._metric.is_zero_left_out:
                        continue
                    stored = [0.0 if not isnan(beat) else nan for beat in beats] if any(map(isnan, beats)) else zeros
                place = (begin - self._times.start) // grain
                bucket.add_all(place, stored[: (end - begin) // grain], self._times.step // grain, grain)

    def read_samples(self, samples: Sequence[store.StoredSample]) -> None:
        for sample in samples:
            ids, values = unpack_sample(sample.ids, sample.vals)
            found = {key: value for key, value in zip(ids, values, strict=True) if key in self._buckets}
            step = self._step(int(sample.at.timestamp()))
            missing = 0.0 if self._metric.is_zero_left_out else nan
            for key, bucket in self._buckets.items():
                bucket.add(step, found.get(key, missing), FINE)


async def _of_ledger(
    tx: Transaction, metric: SeriesMetric, times: _Times, may_see: Callable[[SeriesKey], bool]
) -> dict[SeriesKey, list[float]]:
    """Return costs by hour, as money for an hour; 0 where nothing was counted."""
    begin, end = datetime.fromtimestamp(times.start, UTC), datetime.fromtimestamp(times.end, UTC)
    if "queue" in metric.labels:
        keys = [SeriesKey(metric.name, queue=row.spec.path) for row in await tenants.QUEUES.every(tx)]
        named = {key.queue: key for key in keys if may_see(key)}
        rows = await store.queue_costs(tx, begin, end, list(named))
    else:
        keys = [SeriesKey(metric.name, policy=row.spec.name) for row in await bursts.POLICIES.every(tx)]
        named = {key.policy: key for key in keys if may_see(key)}
        rows = await store.policy_costs(tx, begin, end, list(named))
    found: dict[SeriesKey, list[float]] = {}
    for row in rows:
        values = found.setdefault(named[row.name], [0.0] * times.steps)
        values[(int(row.hour.timestamp()) - times.start) // times.step] += row.cost / NANOS / (times.step / HOUR)
    return found


def _grouped(found: Mapping[SeriesKey, Sequence[float]], kept: Sequence[str]) -> dict[tuple[str, ...], Sequence[float]]:
    """Return the sums of series by the labels that are kept; unknown where all of them are."""
    out: dict[tuple[str, ...], Sequence[float]] = {}
    for key, values in found.items():
        labels = tuple(key.label(name) for name in kept)
        before = out.get(labels)
        out[labels] = values if before is None else [_sum(*pair) for pair in zip(before, values, strict=True)]
    return out


def _sum(one: float, other: float) -> float:
    if isnan(one):
        return other
    return one if isnan(other) else one + other
