"""Running jobs whose GPUs do little, and since when."""

from collections.abc import Sequence
from typing import NamedTuple

from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.member_use import FRESH_INTERVALS
from trainmaster_dispatcher.domain.use_history import SHORT_STEP, UseChunk
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.use_history import HistoryRow, places_of


class IdleCandidate(NamedTuple):
    """A run whose GPUs may be idle, or were found to be. Times in seconds since the epoch; ``seconds``: of an interval."""

    job_id: int
    attempt: int
    queue_id: int
    shape_id: int
    sizes: dict[str, int]
    seconds: int
    idle_since: float | None
    warned_at: float | None


class IdleMark(NamedTuple):
    """The outcome of a look at a run that is to be stored."""

    ref: RunRef
    since: float | None
    warned_at: float | None


async def candidates(
    tx: Transaction, of_queues: Sequence[int], most_percent: int, after: int, limit: int
) -> Sequence[IdleCandidate]:
    """Return runs of these queues with keys above ``after`` whose GPUs were below this percent in a recent sample, or are marked as
    idle. Runs of which nothing is known now are left out, as are jobs that are being stopped.
    """
    return await tx.all_of(
        IdleCandidate,
        f"""
        SELECT r.job_id, r.attempt, j.queue_id, j.shape_id, r.sizes, u.seconds,
               extract(epoch FROM u.gpus_idle_since)::float8 AS idle_since,
               extract(epoch FROM u.gpus_warned_at)::float8 AS warned_at
        FROM run_use u JOIN runs r ON r.job_id = u.job_id AND r.attempt = u.attempt JOIN jobs j ON j.id = u.job_id
        WHERE r.ended_at IS NULL AND r.state = 'running' AND j.wish IS NULL AND u.job_id > :after AND j.queue_id = ANY(:queues)
              AND u.sampled_at > now() - make_interval(secs => {FRESH_INTERVALS} * u.seconds)
              AND (u.gpu < 10 * :percent * u.requested_gpu OR u.gpus_idle_since IS NOT NULL)
        ORDER BY u.job_id LIMIT :limit
        """,
        queues=list(of_queues),
        percent=most_percent,
        after=after,
        limit=limit,
    )


async def history(tx: Transaction, ref: RunRef, seconds: float) -> list[UseChunk]:
    """Return the samples of a run of the last ``seconds``, by time; the first row may begin up to an hour before."""
    rows = await tx.all_of(
        HistoryRow,
        """
        SELECT places, data FROM use_history
        WHERE job_id = :job AND attempt = :attempt AND step = :step AND started_at > now() - make_interval(secs => :seconds + 3600)
        ORDER BY started_at
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        step=SHORT_STEP,
        seconds=seconds,
    )
    return [UseChunk(places_of(row.places), row.data) for row in rows]


async def mark(tx: Transaction, marks: Sequence[IdleMark]) -> None:
    """Store since when the GPUs of runs are idle, and when that was said."""
    await tx.run(
        """
        UPDATE run_use u SET gpus_idle_since = to_timestamp(n.since), gpus_warned_at = to_timestamp(n.warned)
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]), CAST(:since AS float8[]), CAST(:warned AS float8[]))
             AS n(job_id, attempt, since, warned)
        WHERE u.job_id = n.job_id AND u.attempt = n.attempt
        """,
        jobs=[one.ref.job_key for one in marks],
        attempts=[one.ref.attempt for one in marks],
        since=[one.since for one in marks],
        warned=[one.warned_at for one in marks],
    )
