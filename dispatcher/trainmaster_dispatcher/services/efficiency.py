"""Report on what runs used beside what they requested, with requests that would suit recurring jobs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from trainmaster.protocol.efficiency import (
    LEAST_RUNS,
    EfficiencyAnswer,
    EfficiencyGroup,
    EfficiencyRow,
    RequestSuggestion,
)
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.prices import NANOS
from trainmaster.protocol.quantities import format_quantity
from trainmaster_dispatcher.domain.efficiency import RecurringUse, Suggestion, suggestions_for
from trainmaster_dispatcher.domain.prices import MICROS, NO_PRICES, PricedResource, PriceHistory
from trainmaster_dispatcher.services import pricing
from trainmaster_dispatcher.services.usage_report import queue_ids_for
from trainmaster_dispatcher.services.use_views import Requests, requests_of
from trainmaster_dispatcher.store import efficiency as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.efficiency import EfficiencySums, RecurringRuns
from trainmaster_dispatcher.store.keys import Caller

_LONGEST = timedelta(days=366)
_MOST_RECURRING = 10_000
_HOUR = 3600
_UNITS = {"cpu": 1000, "memory": 2**30}
"""Units of an amount in a core and in a GiB."""


@dataclass(slots=True)
class _Recurring:
    """A recurring job; ``hours``: hours of members by cluster."""

    key: tuple[str, str, str, int]
    use: RecurringUse
    hours: dict[int, float]


async def report(
    tx: Transaction,
    caller: Caller,
    begin: datetime,
    end: datetime,
    *,
    by: EfficiencyGroup,
    queue: str | None,
    currency: str,
    limit: int,
) -> EfficiencyAnswer:
    """Return the report on runs whose last sample is in this time, of the caller's queues.

    Raises ProblemError UNKNOWN_QUEUE, and INVALID_PARAMETER for a time that is empty or longer than a year.
    """
    if not timedelta() < end - begin <= _LONGEST:
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"end must be later than begin, by at most {_LONGEST.days} days; got {begin} and {end}",
        )
    queue_ids = await queue_ids_for(tx, caller, queue)
    rows = await store.sums(tx, begin, end, by, queue_ids, limit)
    groups = _merged(await store.recurring(tx, begin, end, queue_ids, _MOST_RECURRING))
    each = await requests_of(tx, {one.key[3] for one in groups})
    prices = (await pricing.histories(tx)).known
    found = [one for group in groups for one in _suggested(group, each, prices)]
    found.sort(key=lambda one: (-(one.saved or 0), -one.hours_saved, one.queue, one.job, one.resource))
    return EfficiencyAnswer(
        begin=begin.astimezone(UTC),
        end=end.astimezone(UTC),
        currency=currency,
        rows=tuple(_row(one) for one in rows),
        suggestions=tuple(found[:limit]),
        too_few_runs=sum(one.use.runs < LEAST_RUNS for one in groups),
    )


def _row(row: EfficiencySums) -> EfficiencyRow:
    def percent(used: float | None, requested: float) -> float | None:
        return None if used is None or not requested else round(100 * used / requested, 1)

    return EfficiencyRow(
        of=row.of if row.job_id is None else job_id(row.of, row.job_id),
        runs=row.runs,
        core_hours_requested=round(row.cpu_requested / _HOUR, 3),
        core_hours_used=round(row.cpu_seconds / _HOUR, 3),
        cpu_percent=percent(row.cpu_seconds, row.cpu_requested),
        gpu_hours_held=round(row.gpu_requested / _HOUR, 3),
        gpu_hours_busy=round(row.gpu_seconds / _HOUR, 3),
        gpu_percent=percent(row.gpu_seconds, row.gpu_requested),
        memory_p95_percent=percent(row.memory_p95, 1),
        memory_peak_percent=percent(row.memory_peak, 1),
        oom_kills=row.oom_kills,
    )


def _merged(rows: Sequence[RecurringRuns]) -> list[_Recurring]:
    found: dict[tuple[str, str, str, int], _Recurring] = {}
    for row in rows:
        key = (row.job, row.queue, row.submitter, row.shape_id)
        use = RecurringUse(row.runs, row.cpu, row.peak_memory, row.was_short_of_memory, row.member_hours)
        if (known := found.get(key)) is None:
            found[key] = _Recurring(key, use, {row.cluster_id: row.member_hours})
        else:
            known.use = known.use.plus(use)
            known.hours[row.cluster_id] = known.hours.get(row.cluster_id, 0.0) + row.member_hours
    return list(found.values())


def _suggested(group: _Recurring, each: Requests, prices: Mapping[int, PriceHistory]) -> list[RequestSuggestion]:
    roles = each.get(group.key[3], {})
    if len(roles) != 1:  # which role has used what is not stored with a run
        return []
    ((role, requested),) = roles.items()
    name, queue, user, _ = group.key
    return [
        RequestSuggestion(
            job=name,
            queue=queue,
            user=user,
            runs=group.use.runs,
            role=role,
            resource=one.resource,
            requested=format_quantity(one.resource, one.requested),
            suggested=format_quantity(one.resource, one.suggested),
            observed=format_quantity(one.resource, one.observed),
            margin_percent=one.margin_percent,
            hours_saved=round((one.requested - one.suggested) / _UNITS[one.resource] * group.use.member_hours, 3),
            saved=_money(one, group.hours, prices),
            sentence=one.sentence(group.use.runs),
        )
        for one in suggestions_for(group.use, requested)
    ]


def _money(one: Suggestion, hours: Mapping[int, float], prices: Mapping[int, PriceHistory]) -> Decimal | None:
    """Return what the suggestion would have saved at the present prices; None where no cluster has a price for the resource."""
    total, is_priced = 0, False
    now = int(time.time() * MICROS)
    for cluster, many in hours.items():
        rate = prices.get(cluster, NO_PRICES).at(now).rate(PricedResource(one.resource))
        if rate is not None:
            is_priced = True
            total += rate.weight(one.requested - one.suggested, int(many * _HOUR * MICROS)).nanos
    return (Decimal(total) / NANOS).normalize() + 0 if is_priced else None
