"""Jobs whose submission belongs to a sampled trace, their runs and events, for spans of what has ended."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.states import JobState, RunState
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.tables import WAITS_SINCE

_MOST_EVENTS = 10_000


class EndedWork(NamedTuple):
    """A run of a traced job that has ended, or such a job, or both. ``attempt``: that run, or the last one; 0: there was none."""

    ref: RunRef
    run_state: RunState | None
    job_state: JobState | None


class TracedWork(Protocol):
    """Takes what has ended, and never raises an error nor waits."""

    def ended(self, work: Sequence[EndedWork]) -> None: ...


class TracedJobRow(NamedTuple):
    """A job and one of its attempts; times in seconds since the epoch. ``waits_since``: when its wait before this attempt began."""

    job_id: int
    attempt: int
    name: str
    queue: str
    trace: bytes
    submitted_at: float
    waits_since: float
    ended_at: float | None


class TracedRunRow(NamedTuple):
    """A run; times in seconds since the epoch."""

    job_id: int
    attempt: int
    cluster: str
    leased_at: float
    ended_at: float | None


class PastEventRow(NamedTuple):
    """An event of a job."""

    job_id: int
    attempt: int | None
    kind: str
    states: list[str]
    at: float


async def jobs_of(tx: Transaction, refs: Sequence[RunRef]) -> Sequence[TracedJobRow]:
    """Return the jobs of these attempts that belong to a trace."""
    return await tx.all_of(
        TracedJobRow,
        f"""
        SELECT j.id AS job_id, w.attempt, j.name, q.path AS queue, j.trace,
               extract(epoch FROM j.submitted_at)::float8 AS submitted_at,
               extract(epoch FROM greatest({WAITS_SINCE}, (
                   SELECT max(r.ended_at) FROM runs r WHERE r.job_id = j.id AND r.attempt < w.attempt)))::float8 AS waits_since,
               extract(epoch FROM j.ended_at)::float8 AS ended_at
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS w(id, attempt)
             JOIN jobs j ON j.id = w.id JOIN queues q ON q.id = j.queue_id
        WHERE j.trace IS NOT NULL
        """,
        **_arrays(refs),
    )


async def runs_of(tx: Transaction, refs: Sequence[RunRef]) -> Sequence[TracedRunRow]:
    """Return these runs."""
    return await tx.all_of(
        TracedRunRow,
        """
        SELECT r.job_id, r.attempt, c.name AS cluster, extract(epoch FROM r.leased_at)::float8 AS leased_at,
               extract(epoch FROM r.ended_at)::float8 AS ended_at
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS w(job_id, attempt)
             JOIN runs r ON r.job_id = w.job_id AND r.attempt = w.attempt JOIN clusters c ON c.id = r.cluster_id
        """,
        **_arrays(refs),
    )


async def events_of(tx: Transaction, job_ids: Sequence[int]) -> Sequence[PastEventRow]:
    """Return the first events of these jobs, by job in the order in which they happened."""
    return await tx.all_of(
        PastEventRow,
        """
        SELECT job_id, attempt, kind, states, extract(epoch FROM at)::float8 AS at FROM events
        WHERE job_id = ANY(:ids) ORDER BY job_id, seq LIMIT :limit
        """,
        ids=sorted(set(job_ids)),
        limit=_MOST_EVENTS,
    )


def _arrays(refs: Sequence[RunRef]) -> dict[str, list[int]]:
    return {"jobs": [ref.job_key for ref in refs], "attempts": [ref.attempt for ref in refs]}
