"""The roll-up of time series, by the retention job: samples become values by series and hour, these become values of days.

Each step is one transaction and may be repeated: it replaces what it wrote before.
"""

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isnan, nan

from trainmaster_dispatcher.domain.series import (
    COARSE,
    DAY,
    FINE,
    HEARTBEAT,
    HOUR,
    METRICS,
    MIDDLE,
    Rollup,
    pack,
    summed_up,
    unpack,
    unpack_sample,
    with_zeros,
)
from trainmaster_dispatcher.store import series as store
from trainmaster_dispatcher.store.database import Database, Transaction

_LATE = timedelta(minutes=2)
"""Time after its end until which a sample of an hour may still come."""
_AT_ONCE = 2000
"""The most series that are read into memory at once."""
_PER_HOUR = HOUR // FINE


class SeriesRollup:
    """One turn of rolling up. ``goes_on`` is called between the steps."""

    def __init__(self, database: Database, goes_on: Callable[[], bool] = lambda: True) -> None:
        self._database = database
        self._goes_on = goes_on

    async def run(self, now: datetime | None = None) -> int:
        """Roll up all hours and days that are over; return how many. Raises ProblemError if the store is unreachable."""
        moment, done = now or datetime.now(UTC), 0
        while self._goes_on() and await self._next(self._hour, moment):
            done += 1
        while self._goes_on() and await self._next(self._day, moment):
            done += 1
        return done

    async def _next(self, step: Callable[[Transaction, datetime], Awaitable[bool]], moment: datetime) -> bool:
        async with self._database.transaction() as tx:
            return await store.take_turn(tx) and await step(tx, moment)

    async def _hour(self, tx: Transaction, moment: datetime) -> bool:
        """Roll up the oldest hour of samples, if it is over; return whether it was."""
        oldest = await store.oldest_sample(tx)
        if oldest is None:
            return False
        begin = oldest.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        end = begin + timedelta(seconds=HOUR)
        if moment < end + _LATE:
            return False
        metric_of = {row.id: row.metric for row in await store.names(tx)}
        values = values_of_hour(await store.samples(tx, begin, end), begin)
        await store.add_spans(tx, FINE, begin, ((key, pack(found)) for key, found in filled(values, metric_of).items()))
        await store.remove_samples(tx, end)
        return True

    async def _day(self, tx: Transaction, moment: datetime) -> bool:
        """Roll up the oldest day of fine values, if it is over and has no samples left; return whether it was."""
        oldest, _ = await store.days(tx)
        if oldest is None:
            return False
        begin = oldest.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        end = begin + timedelta(seconds=DAY)
        sampled = await store.oldest_sample(tx)
        if moment < end + _LATE or (sampled is not None and sampled < end):
            return False
        names = await store.names(tx)
        metric_of = {row.id: row.metric for row in names}
        ids = await store.series_in(tx, FINE, begin, end)
        beats = [row.id for row in names if row.metric == HEARTBEAT]
        sampled_in = next(iter((await _whole_days(tx, begin, end, beats, metric_of, None)).values()), None)
        for first in range(0, len(ids), _AT_ONCE):
            batch = ids[first : first + _AT_ONCE]
            days = await _whole_days(tx, begin, end, batch, metric_of, sampled_in)
            for grain in (MIDDLE, COARSE):
                spans = [
                    (key, pack(summed_up(found, grain // FINE, _rollup_of(metric_of.get(key, "")))))
                    for key, found in days.items()
                ]
                await store.add_spans(tx, grain, begin, spans)
        return True


def _rollup_of(metric: str) -> Rollup:
    return METRICS[metric].rollup if metric in METRICS else Rollup.MEAN


def _means_zero(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].is_zero_left_out


def values_of_hour(samples: Sequence[store.StoredSample], begin: datetime) -> dict[int, "array[float]"]:
    """Return the values of an hour by series, one for each minute; unknown ones are NaN."""
    values: dict[int, array[float]] = {}
    nothing = array("f", [nan] * _PER_HOUR)
    for sample in samples:
        place = int((sample.at - begin).total_seconds()) // FINE
        for key, value in zip(*unpack_sample(sample.ids, sample.vals), strict=True):
            found = values.get(key)
            if found is None:
                found = values[key] = nothing[:]
            found[place] = value
    return values


def filled(values: Mapping[int, Sequence[float]], metric_of: Mapping[int, str]) -> dict[int, Sequence[float]]:
    """Return values with the zeros that samples leave out, without series that are 0 all the time."""
    heartbeat = next((found for key, found in values.items() if metric_of.get(key) == HEARTBEAT), [nan] * _PER_HOUR)
    out: dict[int, Sequence[float]] = {}
    for key, found in values.items():
        if key not in metric_of:
            continue
        whole = with_zeros(found, heartbeat) if _means_zero(metric_of[key]) else found
        if any(value for value in whole if not isnan(value)) or not _means_zero(metric_of[key]):
            out[key] = whole
    return out


async def _whole_days(
    tx: Transaction,
    begin: datetime,
    end: datetime,
    ids: Sequence[int],
    metric_of: Mapping[int, str],
    sampled: Sequence[float] | None,
) -> dict[int, list[float]]:
    """Return the fine values of a day of these series. ``sampled``: those of the heartbeat; None: leave gaps as they are."""
    found: dict[int, list[float]] = {}
    for span in await store.spans(tx, FINE, begin, end, ids):
        values = found.setdefault(span.series_id, [nan] * (DAY // FINE))
        place = int((span.begin - begin).total_seconds()) // FINE
        values[place : place + _PER_HOUR] = unpack(span.vals, _PER_HOUR)
    if sampled is None:
        return found
    return {
        key: with_zeros(values, sampled) if _means_zero(metric_of.get(key, "")) else values
        for key, values in found.items()
    }
