"""The use of running members: the sums of each run, and its last sample by member."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.member_use import FRESH_INTERVALS
from trainmaster_dispatcher.domain.member_use import MemberValues, RunSums
from trainmaster_dispatcher.store.database import Transaction, array_text, dumps
from trainmaster_dispatcher.store.jobs import Filter

_SUMS = (
    "members, cpu, memory, gpu, gpu_memory, requested_cpu, requested_memory, requested_gpu, peak_memory, cpu_measured,"
    " cpu_seconds, cpu_requested, gpu_measured, gpu_seconds, gpu_requested, peak_cpu, restarts, oom_kills, near_misses"
)
_OF_SUMS = ", ".join(f"u.{name.strip()}" for name in _SUMS.split(","))
_WIDE = ("cpu_measured", "cpu_seconds", "cpu_requested", "gpu_measured", "gpu_seconds", "gpu_requested")
_VALUES = ("cpu", "memory", "peak_memory", "gpu", "gpu_memory", "restarts", "oom_kills", "near_misses")
_LARGE = ("memory", "peak_memory", "gpu_memory")


@dataclass(frozen=True, slots=True)
class SampledRun:
    """A live run, and what is stored of its use. Times in seconds; ``since_last``: since the last sample, None if there is none."""

    ref: RunRef
    shape_id: int
    since_start: float | None
    since_last: float | None
    sums: RunSums
    values: MemberValues | None


class NewSample(NamedTuple):
    """A sample of a run that is to be stored."""

    ref: RunRef
    sums: RunSums
    values: MemberValues


class StoredUse(NamedTuple):
    """A run and its use. ``sums`` is None where nothing was ever known of it; ``is_fresh``: its last sample is not too old."""

    job_id: int
    job_name: str
    attempt: int
    queue: str
    cluster: str
    submitter: str | None
    shape_id: int
    sizes: dict[str, int]
    is_over: bool
    sampled_at: datetime | None
    is_fresh: bool
    gpus_idle_since: datetime | None
    oom_member: str | None
    """Member by whose lack of memory the run has failed: its agent sent no sample after that."""
    sums: RunSums | None


class UseSums(NamedTuple):
    """The use of the running jobs of a queue on a cluster, of samples that are not too old; None where it is unknown."""

    cluster: str
    queue: str
    cpu: int | None
    memory: int | None
    gpu: int | None
    requested_cpu: int | None
    requested_memory: int | None
    requested_gpu: int | None
    idle_gpu: int | None
    """GPUs of jobs whose GPUs were at work for less than 5 % of the time."""


class ClusterReport(NamedTuple):
    """The last report of a cluster's agent; ``reported_at`` is None where it has never sent one."""

    name: str
    reported_at: datetime | None
    missing: str


def _sums(row: Any) -> RunSums:
    return RunSums(*(getattr(row, name.strip()) for name in _SUMS.split(",")))


def _values(row: Any) -> MemberValues | None:
    if row.places is None:
        return None
    places = [(role, first, many) for role, first, many in row.places]
    return MemberValues(places, *(getattr(row, f"v_{name}") for name in _VALUES))


async def of_live(tx: Transaction, cluster_id: int, refs: Sequence[RunRef]) -> list[SampledRun]:
    """Return those of these runs that are live on the cluster, with what is stored of their use. Nothing is locked."""
    rows = await tx.all(
        f"""
        SELECT r.job_id, r.attempt, j.shape_id, extract(epoch FROM now() - r.started_at)::float8 AS since_start,
               extract(epoch FROM now() - u.sampled_at)::float8 AS since_last, {_OF_SUMS}, m.places,
               {", ".join(f"m.{name} AS v_{name}" for name in _VALUES)}
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS n(job_id, attempt)
        JOIN runs r ON r.job_id = n.job_id AND r.attempt = n.attempt
        JOIN jobs j ON j.id = r.job_id
        LEFT JOIN run_use u ON u.job_id = r.job_id AND u.attempt = r.attempt
        LEFT JOIN member_use m ON m.job_id = r.job_id AND m.attempt = r.attempt
        WHERE r.cluster_id = :cluster AND r.ended_at IS NULL
        """,
        jobs=[ref.job_key for ref in refs],
        attempts=[ref.attempt for ref in refs],
        cluster=cluster_id,
    )
    return [
        SampledRun(
            RunRef(row.job_id, row.attempt),
            row.shape_id,
            row.since_start,
            row.since_last,
            RunSums() if row.members is None else _sums(row),
            _values(row),
        )
        for row in rows
    ]


async def save(tx: Transaction, samples: Sequence[NewSample], seconds: int) -> None:
    """Store samples, which come every ``seconds``; rows are in one order, so that two callers never wait for each other."""
    ordered = sorted(samples)
    keys = {"jobs": [one.ref.job_key for one in ordered], "attempts": [one.ref.attempt for one in ordered]}
    names = [name.strip() for name in _SUMS.split(",")]
    arrays = ", ".join(f"CAST(:{name} AS {'float8' if name in _WIDE else 'bigint'}[])" for name in names)
    await tx.run(
        f"""
        INSERT INTO run_use (job_id, attempt, sampled_at, seconds, {_SUMS})
        SELECT job_id, attempt, now(), :seconds, {_SUMS}
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]), {arrays}) AS n(job_id, attempt, {_SUMS})
        ON CONFLICT (job_id, attempt) DO UPDATE SET sampled_at = excluded.sampled_at, seconds = excluded.seconds,
            {", ".join(f"{name} = excluded.{name}" for name in names)}
        """,
        seconds=seconds,
        **keys,
        **{name: [getattr(one.sums, name) for one in ordered] for name in names},
    )
    columns = ", ".join(_VALUES)
    casts = ", ".join(f"CAST(n.{name} AS {'bigint' if name in _LARGE else 'int'}[])" for name in _VALUES)
    await tx.run(
        f"""
        INSERT INTO member_use (job_id, attempt, places, {columns})
        SELECT job_id, attempt, places, {casts}
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]), CAST(:places AS jsonb[]),
                    {", ".join(f"CAST(:{name} AS text[])" for name in _VALUES)}) AS n(job_id, attempt, places, {columns})
        ON CONFLICT (job_id, attempt) DO UPDATE SET places = excluded.places,
            {", ".join(f"{name} = excluded.{name}" for name in _VALUES)}
        """,
        places=[dumps([list(place) for place in one.values.places]) for one in ordered],
        **keys,
        **{name: [array_text(getattr(one.values, name)) for one in ordered] for name in _VALUES},
    )


async def note_report(tx: Transaction, cluster_id: int, missing: str) -> None:
    """Note that the cluster's agent has sent a report, and what it says is missing."""
    await tx.run(
        """
        INSERT INTO cluster_use (cluster_id, reported_at, missing) VALUES (:cluster, now(), :missing)
        ON CONFLICT (cluster_id) DO UPDATE SET reported_at = excluded.reported_at, missing = excluded.missing
        """,
        cluster=cluster_id,
        missing=missing,
    )


_FRESH = f"u.sampled_at > now() - make_interval(secs => {FRESH_INTERVALS} * u.seconds)"
"""Whether the sample ``u`` is not too old."""
_BESIDE_SUMS = len(StoredUse._fields) - 1
_STORED = f"""
    SELECT j.id AS job_id, j.name AS job_name, r.attempt, q.path AS queue, c.name AS cluster, k.name AS submitter,
           j.shape_id, r.sizes, r.ended_at IS NOT NULL AS is_over, u.sampled_at,
           coalesce({_FRESH}, false) AS is_fresh, u.gpus_idle_since,
           CASE WHEN r.state = 'failed' AND r.result #>> '{{end,category}}' = 'oom'
               THEN coalesce(r.result #>> '{{end,member}}', '') END AS oom_member, {_OF_SUMS}
    FROM jobs j JOIN queues q ON q.id = j.queue_id
    JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt
    JOIN clusters c ON c.id = r.cluster_id
    LEFT JOIN api_keys k ON k.id = j.api_key_id
    LEFT JOIN run_use u ON u.job_id = r.job_id AND u.attempt = r.attempt
"""


def _stored(rows: Sequence[Any]) -> list[StoredUse]:
    return [StoredUse._make((*row[:_BESIDE_SUMS], None if row.members is None else _sums(row))) for row in rows]


async def of_running(tx: Transaction, wanted: Filter, *, are_gpus_idle: bool) -> list[StoredUse]:
    """Return all jobs that match and whose members run, with their use; with ``are_gpus_idle`` those whose GPUs do nothing, by the
    policy of their queue.
    """
    condition, parameters = wanted.where()
    idle = f"AND u.gpus_idle_since IS NOT NULL AND {_FRESH}" if are_gpus_idle else ""
    rows = await tx.all(
        f"{_STORED} WHERE r.ended_at IS NULL AND r.state = 'running' {idle} AND {condition}", **parameters
    )
    return _stored(rows)


async def sums(tx: Transaction) -> Sequence[UseSums]:
    """Return the use of running jobs by cluster and queue; pairs of which nothing is known now are left out."""
    columns = ("cpu", "memory", "gpu", "requested_cpu", "requested_memory", "requested_gpu")
    return await tx.all_of(
        UseSums,
        f"""
        SELECT c.name AS cluster, q.path AS queue, {", ".join(f"n.{name}" for name in columns)}, n.idle_gpu
        FROM (SELECT r.cluster_id, j.queue_id, {", ".join(f"sum(u.{name})::bigint AS {name}" for name in columns)},
                     sum(CASE WHEN u.gpu < 50 * u.requested_gpu THEN u.requested_gpu WHEN u.gpu IS NOT NULL THEN 0 END)::bigint
                         AS idle_gpu
              FROM run_use u JOIN runs r ON r.job_id = u.job_id AND r.attempt = u.attempt JOIN jobs j ON j.id = u.job_id
              WHERE r.ended_at IS NULL AND r.state = 'running' AND {_FRESH} GROUP BY r.cluster_id, j.queue_id) n
        JOIN clusters c ON c.id = n.cluster_id JOIN queues q ON q.id = n.queue_id
        """,
    )


async def of_job(tx: Transaction, job_id: int) -> StoredUse | None:
    """Return the latest run of a job with its use; None where the job has no run."""
    return next(iter(_stored(await tx.all(f"{_STORED} WHERE j.id = :job", job=job_id))), None)


async def members(tx: Transaction, ref: RunRef) -> MemberValues | None:
    """Return the last sample of a run by member; None where there is none."""
    row = await tx.first(
        f"""
        SELECT places, {", ".join(f"{name} AS v_{name}" for name in _VALUES)} FROM member_use
        WHERE job_id = :job AND attempt = :attempt
        """,
        job=ref.job_key,
        attempt=ref.attempt,
    )
    return None if row is None else _values(row)


async def reports(tx: Transaction, names: Sequence[str]) -> Sequence[ClusterReport]:
    """Return the last reports of the agents of these clusters, by name."""
    return await tx.all_of(
        ClusterReport,
        """
        SELECT c.name, u.reported_at, coalesce(u.missing, '') AS missing
        FROM clusters c LEFT JOIN cluster_use u ON u.cluster_id = c.id WHERE c.name = ANY(:names) ORDER BY c.name
        """,
        names=list(names),
    )
