"""The use of runs as users see it."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.member_use import JobUse, UsedAmount
from trainmaster_dispatcher.domain.member_use import RequestedAmounts, RunSums, requested_by_role, requested_of
from trainmaster_dispatcher.store import member_use as store
from trainmaster_dispatcher.store import usage
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.member_use import StoredUse

Requests = Mapping[int, Mapping[str, RequestedAmounts]]
"""What each member requests, by shape and role."""


async def requests_of(tx: Transaction, shape_ids: set[int]) -> Requests:
    """Return what each member of jobs of these shapes requests."""
    return {shape: requested_by_role(body) for shape, body in (await usage.shapes(tx, shape_ids)).items()}


async def shown_with_job(tx: Transaction, key: int) -> dict[str, Any] | None:
    """Return the use of a job's latest run as in the answer on the job; None where nothing was ever known of it."""
    row = await store.of_job(tx, key)
    if row is None or row.sums is None:
        return None
    return use_view(row, await requests_of(tx, {row.shape_id})).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )


def use_view(row: StoredUse, each: Requests) -> JobUse:
    """Return the use of a run for users. A sample that is too old, or of a run that has ended, is not what is used now."""
    requested = requested_of(each.get(row.shape_id, {}), row.sizes)
    sums = row.sums
    if sums is None:
        return JobUse(attempt=row.attempt, **_amounts(RunSums(), requested))
    now = sums if row.is_fresh and not row.is_over else RunSums()
    return JobUse(
        attempt=row.attempt,
        sampled_at=row.sampled_at,
        members=sums.members,
        **_amounts(now, requested),
        gpu_memory=now.gpu_memory,
        peak_memory=sums.peak_memory,
        peak_cpu=None if sums.peak_cpu is None else sums.peak_cpu / 1000,
        restarts=sums.restarts,
        oom_kills=sums.oom_kills if row.oom_member is None else (sums.oom_kills or 0) + 1,
        near_misses=sums.near_misses,
        gpus_idle_since=row.gpus_idle_since if row.is_fresh and not row.is_over else None,
        measured_seconds=round(sums.cpu_measured, 1),
        cpu_average=_average(sums.cpu_seconds, sums.cpu_requested, sums.cpu_measured),
        gpu_average=_average(sums.gpu_seconds, sums.gpu_requested, sums.gpu_measured),
    )


def _amounts(now: RunSums, requested: RequestedAmounts) -> dict[str, UsedAmount]:
    """Return the amounts of the members of which they are known; of the whole run where nothing is known."""
    return {
        "cpu": _amount(now.cpu, requested.cpu if now.cpu is None else now.requested_cpu, 1000),
        "memory": _amount(now.memory, requested.memory if now.memory is None else now.requested_memory, 1),
        "gpu": _amount(now.gpu, 1000 * (requested.gpu if now.gpu is None else now.requested_gpu or 0), 1000),
    }


def _amount(used: int | None, requested: int | None, unit: int) -> UsedAmount:
    return UsedAmount(
        used=None if used is None else used / unit,
        requested=requested / unit if requested else None,
        percent=round(100 * used / requested, 1) if used is not None and requested else None,
    )


def _average(used: float, requested: float, seconds: float) -> UsedAmount:
    if not seconds:
        return UsedAmount()
    return UsedAmount(
        used=round(used / seconds, 3),
        requested=round(requested / seconds, 3) or None,
        percent=round(100 * used / requested, 1) if requested else None,
    )
