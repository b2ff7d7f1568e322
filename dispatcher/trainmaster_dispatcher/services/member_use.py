"""The use of running jobs: samples taken from agents, and answers on them.

Samples touch no row that reports, orders or the scheduler lock: nothing waits for them, and what is lost of them comes again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, job_id, parse_run_id
from trainmaster.protocol.member_use import (
    MOST_SERIES_STEPS,
    MOST_SERIES_VALUES,
    JobUse,
    MemberUseView,
    ReportingCluster,
    RunUse,
    TopAnswer,
    TopGroup,
    TopJob,
    TopSort,
    TopSum,
    UsedAmount,
    UseOfJob,
    UsePush,
    UseSeries,
)
from trainmaster_dispatcher.domain.member_use import (
    UNKNOWN,
    MemberValues,
    measured_seconds,
    sample,
)
from trainmaster_dispatcher.domain.sessions import is_busy
from trainmaster_dispatcher.domain.use_history import METRICS, UNITS, SeriesOfMembers, UseChunk, pack_sample
from trainmaster_dispatcher.services import job_queries
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import BulkFilter, find_key, read_job_id
from trainmaster_dispatcher.services.ownership import clusters_of
from trainmaster_dispatcher.services.use_views import Requests, requests_of, use_view
from trainmaster_dispatcher.store import agents, runs, sessions
from trainmaster_dispatcher.store import member_use as store
from trainmaster_dispatcher.store import use_history as history
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.member_use import NewSample, SampledRun, StoredUse
from trainmaster_dispatcher.store.use_history import PackedSample

_HOUR = 3600
_LONGEST_HISTORY = 8 * 24 * _HOUR
_STEPS = (30, 60, 300, 900, _HOUR)
_GOOD_STEPS = 720
"""Steps of a series from which a longer step is chosen, where none is requested."""
_MOST_HISTORY_BYTES = 32 * 2**20
_EARLIEST = 0.5
"""Part of an interval before which a further sample of a run is passed over: a row is written once in an interval."""


async def take(stores: Stores, caller: Caller, body: UsePush) -> None:
    """Store a sample of what the members of a cluster's running runs use.

    Runs that are not live on the caller's cluster are passed over. Raises ProblemError SESSION_SUPERSEDED and STORE_AWAY.
    """
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    given: dict[RunRef, RunUse] = {}
    for run in body.runs:
        try:
            given[parse_run_id(run.run)] = run
        except BadIdError:
            continue
    async with stores.database.transaction() as tx:
        if not await agents.is_current(tx, caller.cluster_id, body.session):
            raise superseded()
        await store.note_report(tx, caller.cluster_id, body.missing)
        if not given:
            return
        live = await store.of_live(tx, caller.cluster_id, list(given))
        now = int(time.time())
        each = await requests_of(tx, {run.shape_id for run in live})
        samples = await asyncio.to_thread(_samples, given, live, each, body.seconds)
        if samples:
            await store.save(tx, samples, body.seconds)
            await history.add(tx, await asyncio.to_thread(_packed, samples, now))
            await sessions.note_active(tx, [one.ref.job_key for one in samples if is_busy(one.sums)])


def _samples(
    given: Mapping[RunRef, RunUse], live: Sequence[SampledRun], each: Requests, interval: int
) -> list[NewSample]:
    found = []
    for run in live:
        if run.since_last is not None and run.since_last < _EARLIEST * interval:
            continue
        seconds = measured_seconds(run.since_last, run.since_start, interval)
        sums, values = sample(given[run.ref].roles, each[run.shape_id], run.sums, run.values, seconds)
        if sums.members:
            found.append(NewSample(run.ref, sums, values))
    return found


def _packed(samples: Sequence[NewSample], now: int) -> list[PackedSample]:
    packed = ((one, pack_sample(one.values, now)) for one in samples)
    return [PackedSample(one.ref, one.values.places, data) for one, data in packed if data]


# Answers


class UsePeriod(NamedTuple):
    """A period of a history of use, in seconds since the epoch, and the seconds of each value."""

    start: int
    end: int
    step: int

    @staticmethod
    def of(since: datetime | None, step: int | None, now: datetime) -> "UsePeriod":
        """Return the period since a time, by default an hour ago. Raises ProblemError INVALID_PARAMETER."""
        end = int(now.timestamp())
        start = end - _HOUR if since is None else int(since.timestamp())
        if not end - _LONGEST_HISTORY <= start < end:
            message = f"since must be in the past, by at most 8 days: use is kept for that long; got {since}"
            raise ProblemError(Code.INVALID_PARAMETER, message, mistakes=(Mistake(path="since", message=message),))
        seconds = step or next((one for one in _STEPS if (end - start) / one <= _GOOD_STEPS), _STEPS[-1])
        start = start // seconds * seconds
        if (end - start) / seconds > MOST_SERIES_STEPS:
            least = -(-(end - start) // MOST_SERIES_STEPS)
            message = (
                f"a series has at most {MOST_SERIES_STEPS} values: a step of at least {least} seconds is needed for this time;"
                f" got {step}"
            )
            raise ProblemError(Code.INVALID_PARAMETER, message, mistakes=(Mistake(path="step", message=message),))
        return UsePeriod(start, end + 1, seconds)


async def of_job(tx: Transaction, caller: Caller, text: str, period: UsePeriod | None = None) -> UseOfJob:
    """Return the use of a job's latest run, and of each of its members, with the history of a period.

    Raises ProblemError NOT_FOUND, and INVALID_PARAMETER for a history that is too long for one answer.
    """
    if caller.is_owner:
        name, key = read_job_id(text)
        row = await store.of_job(tx, key)
        if row is None or row.job_name != name or not caller.owns(row.cluster):
            raise ProblemError(Code.NOT_FOUND, f"there is no job {text!r} on {clusters_of(caller)}")
    else:
        row = await store.of_job(tx, await find_key(tx, caller, text))
    if row is None:
        return UseOfJob(job=text)
    each = await requests_of(tx, {row.shape_id})
    values = await store.members(tx, RunRef(row.job_id, row.attempt))
    latest = (await runs.latest(tx, [row.job_id])).get(row.job_id)
    reported: Sequence[Mapping[str, Any]] = ((latest.result if latest else None) or {}).get("members") or ()
    nodes = {(str(one["role"]), int(one["index"])): str(one.get("node", "")) for one in reported}
    report = next(iter(await store.reports(tx, [row.cluster])), None)
    return UseOfJob(
        job=text,
        cluster=row.cluster,
        use=None if row.sums is None else use_view(row, each),
        missing="" if report is None or row.is_over else report.missing,
        members=tuple(_member_views(values, nodes, row.oom_member, is_fresh=row.is_fresh and not row.is_over)),
        **({} if period is None else await _history(tx, row.job_id, period)),
    )


async def _history(tx: Transaction, job_key: int, period: UsePeriod) -> dict[str, Any]:
    since = datetime.fromtimestamp(period.start, UTC)
    many = await history.length(tx, job_key, since)
    if many > _MOST_HISTORY_BYTES:
        message = (
            f"the history of this job since then has {many} bytes, at most {_MOST_HISTORY_BYTES} are read for one answer;"
            " give a later time as since"
        )
        raise ProblemError(Code.INVALID_PARAMETER, message, mistakes=(Mistake(path="since", message=message),))
    steps = -(-(period.end - period.start) // period.step)
    found = SeriesOfMembers(*period, max(1, MOST_SERIES_VALUES // (steps * len(METRICS))))
    chunks = await history.of_job(tx, job_key, since)
    series = await asyncio.to_thread(_series, found, chunks, since)
    return {"series": tuple(series), "series_left_out": len(found.left_out) or None}


def _series(found: SeriesOfMembers, chunks: Sequence[UseChunk], since: datetime) -> list[UseSeries]:
    for chunk in chunks:
        found.add(chunk)
    return [
        UseSeries(member=member, metric=metric, unit=UNITS[metric], start=since, step=found.step, values=values)
        for member, metric, values in found.series()
    ]


def _member_views(
    values: MemberValues | None, nodes: Mapping[tuple[str, int], str], oom_member: str | None, *, is_fresh: bool
) -> list[MemberUseView]:
    """Return the members of a sample, or those that the agent has reported, where there is none.

    ``oom_member``: the one by whose lack of memory the run has ended.
    """
    if values is None:
        return [MemberUseView(role=role, index=index, node=node) for (role, index), node in sorted(nodes.items())]

    def at(column: Sequence[int], place: int, *, always: bool = False) -> int | None:
        return column[place] if (is_fresh or always) and column and column[place] != UNKNOWN else None

    found = []
    for place, (role, index) in enumerate(values.members()):
        cpu = at(values.cpu, place)
        oom_kills = at(values.oom_kills, place, always=True)
        if f"{role}-{index}" == oom_member:
            oom_kills = (oom_kills or 0) + 1
        found.append(
            MemberUseView(
                role=role,
                index=index,
                node=nodes.get((role, index), ""),
                cpu=None if cpu is None else cpu / 1000,
                memory=at(values.memory, place),
                peak_memory=at(values.peak_memory, place, always=True),
                gpu=at(values.gpu, place),
                gpu_memory=at(values.gpu_memory, place),
                restarts=at(values.restarts, place, always=True),
                oom_kills=oom_kills,
                near_misses=at(values.near_misses, place, always=True),
            )
        )
    return found


async def top(
    tx: Transaction,
    caller: Caller,
    *,
    queue: str | None,
    cluster: str | None,
    submitted_by: str | None,
    are_gpus_idle: bool,
    sort: TopSort,
    by: TopGroup | None,
    limit: int,
) -> TopAnswer:
    """Return the running jobs that the caller may see, with their use, or the sums of groups of them. ``are_gpus_idle``: only those
    whose GPUs do nothing, by the policy of their queue. Raises ProblemError.
    """
    wanted = BulkFilter(queue=queue, cluster=cluster, submitted_by=submitted_by)
    found = await store.of_running(tx, await job_queries.filter_of(tx, caller, wanted), are_gpus_idle=are_gpus_idle)
    each = await requests_of(tx, {row.shape_id for row in found})
    reports = await store.reports(tx, sorted({row.cluster for row in found}))
    answer = await asyncio.to_thread(_ranked, found, each, sort, limit) if by is None else None
    groups = await asyncio.to_thread(_groups, found, each, by) if by is not None else ()
    return TopAnswer(
        at=datetime.now(UTC),
        running=len(found),
        jobs=tuple(answer or ()),
        groups=tuple(groups),
        clusters=tuple(
            ReportingCluster(name=one.name, reported_at=one.reported_at, missing=one.missing) for one in reports
        ),
    )


def _idle_order(use: JobUse) -> tuple[bool, float]:
    """Return the order of the smallest used part first: of the GPUs, which cost the most, where it is known, else of the cores."""
    percent = use.cpu.percent if use.gpu.percent is None else use.gpu.percent
    return percent is None, percent or 0.0


def _most_first(amount: UsedAmount) -> tuple[bool, float]:
    return amount.used is None, -(amount.used or 0.0)


_ORDERS: Mapping[TopSort, Callable[[JobUse], tuple[bool, float]]] = {
    "cpu": lambda use: _most_first(use.cpu),
    "memory": lambda use: _most_first(use.memory),
    "gpu": lambda use: _most_first(use.gpu),
    "idle": _idle_order,
}
"""The sort keys of jobs; those of which nothing is known come last."""


def _ranked(found: Sequence[StoredUse], each: Requests, sort: TopSort, limit: int) -> list[TopJob]:
    order = _ORDERS[sort]
    uses = [(use_view(row, each), row) for row in found]
    uses.sort(key=lambda one: (*order(one[0]), one[1].job_id))
    return [
        TopJob(
            job=job_id(row.job_name, row.job_id),
            queue=row.queue,
            cluster=row.cluster,
            user=row.submitter or "",
            members=sum(row.sizes.values()),
            use=use,
        )
        for use, row in uses[:limit]
    ]


def _groups(found: Sequence[StoredUse], each: Requests, by: TopGroup) -> list[TopSum]:
    """Return the sums by group, by name. What is requested is counted only where it is known how much of it is used."""
    members: dict[str, list[StoredUse]] = {}
    for row in found:
        name = {"queue": row.queue, "cluster": row.cluster, "user": row.submitter or ""}[by]
        members.setdefault(name, []).append(row)
    return [_sum(name, rows, [use_view(row, each) for row in rows]) for name, rows in sorted(members.items())]


def _sum(name: str, rows: Sequence[StoredUse], uses: Sequence[JobUse]) -> TopSum:
    def total(amounts: Sequence[UsedAmount]) -> UsedAmount:
        known = [one for one in amounts if one.used is not None]
        if not known:
            return UsedAmount()
        used, requested = sum(one.used or 0.0 for one in known), sum(one.requested or 0.0 for one in known)
        percent = round(100 * used / requested, 1) if requested else None
        return UsedAmount(used=round(used, 3), requested=round(requested, 3) or None, percent=percent)

    return TopSum(
        of=name,
        jobs=len(rows),
        known=sum(row.is_fresh for row in rows),
        members=sum(sum(row.sizes.values()) for row in rows),
        cpu=total([use.cpu for use in uses]),
        memory=total([use.memory for use in uses]),
        gpu=total([use.gpu for use in uses]),
    )
