"""Sums of what runs used beside what they requested, over a time."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from trainmaster_dispatcher.store.database import Transaction


class EfficiencySums(NamedTuple):
    """Sums of runs, in core-seconds and GPU-seconds; shares of memory are of what a member requested."""

    of: str
    job_id: int | None
    runs: int
    cpu_requested: float
    cpu_seconds: float
    gpu_requested: float
    gpu_seconds: float
    memory_p95: float | None
    memory_peak: float | None
    oom_kills: int


class RecurringRuns(NamedTuple):
    """Runs of a recurring job on one cluster. ``cpu``: the highest average of a run's members, in thousandths of a core."""

    job: str
    queue: str
    submitter: str
    shape_id: int
    cluster_id: int
    runs: int
    cpu: int | None
    peak_memory: int | None
    was_short_of_memory: bool
    member_hours: float


_LEAST_SECONDS = 60
"""Seconds for which the use of a run has to be known, for a suggestion from it."""
_NAMES: Mapping[str, str] = {
    "queue": "q.path",
    "user": "coalesce(k.name, '')",
    "cluster": "c.name",
    "job": "j.name",
}
_FROM = """
    FROM run_use u JOIN runs r ON r.job_id = u.job_id AND r.attempt = u.attempt JOIN jobs j ON j.id = u.job_id
    JOIN queues q ON q.id = j.queue_id JOIN clusters c ON c.id = r.cluster_id LEFT JOIN api_keys k ON k.id = j.api_key_id
    WHERE u.sampled_at >= :begin AND u.sampled_at < :end
          AND (CAST(:queues AS int[]) IS NULL OR j.queue_id = ANY(CAST(:queues AS int[])))
"""
_ENDED_BY_OOM = "r.state = 'failed' AND r.result #>> '{end,category}' = 'oom'"
"""Whether the run itself was ended for lack of memory: its agent sends no sample after that."""
_SHARE = "u.peak_memory::float8 * u.members / nullif(u.requested_memory, 0)"


async def sums(
    tx: Transaction, begin: datetime, end: datetime, by: str, queue_ids: Sequence[int] | None, limit: int
) -> Sequence[EfficiencySums]:
    """Return the sums of runs whose last sample is in this time, by queue, user, cluster or job; most unused cores first."""
    key = "j.id" if by == "job" else "CAST(NULL AS bigint)"
    return await tx.all_of(
        EfficiencySums,
        f"""
        SELECT {_NAMES[by]} AS of, {key} AS job_id, count(*)::bigint AS runs, sum(u.cpu_requested) AS cpu_requested,
               sum(u.cpu_seconds) AS cpu_seconds, sum(u.gpu_requested) AS gpu_requested, sum(u.gpu_seconds) AS gpu_seconds,
               percentile_disc(0.95) WITHIN GROUP (ORDER BY {_SHARE}) AS memory_p95, max({_SHARE}) AS memory_peak,
               (coalesce(sum(u.oom_kills), 0) + count(*) FILTER (WHERE {_ENDED_BY_OOM}))::bigint AS oom_kills
        {_FROM} GROUP BY 1, 2 ORDER BY sum(u.cpu_requested) - sum(u.cpu_seconds) DESC, 1, 2 LIMIT :limit
        """,
        begin=begin,
        end=end,
        queues=None if queue_ids is None else list(queue_ids),
        limit=limit,
    )


async def recurring(
    tx: Transaction, begin: datetime, end: datetime, queue_ids: Sequence[int] | None, limit: int
) -> Sequence[RecurringRuns]:
    """Return the use of recurring jobs by cluster: most core-hours first."""
    return await tx.all_of(
        RecurringRuns,
        rf"""
        SELECT regexp_replace(j.name, '[-._]*[0-9]+$', '') AS job, q.path AS queue, coalesce(k.name, '') AS submitter, j.shape_id,
               r.cluster_id, count(*)::bigint AS runs,
               ceil(max(1000 * u.cpu_seconds / nullif(u.cpu_measured, 0) / nullif(u.members, 0)))::bigint AS cpu,
               max(u.peak_memory) AS peak_memory,
               coalesce(bool_or(u.oom_kills > 0 OR u.near_misses > 0 OR {_ENDED_BY_OOM}), false) AS was_short_of_memory,
               (sum(u.cpu_measured * u.members) / 3600)::float8 AS member_hours
        {_FROM} AND u.cpu_measured >= {_LEAST_SECONDS}
        GROUP BY 1, 2, 3, 4, 5 ORDER BY sum(u.cpu_requested) DESC, 1, 2, 3, 4, 5 LIMIT :limit
        """,
        begin=begin,
        end=end,
        queues=None if queue_ids is None else list(queue_ids),
        limit=limit,
    )
