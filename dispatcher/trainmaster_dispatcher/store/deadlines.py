"""Deadlines of jobs: which have passed, and which of the events about them were written."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from trainmaster_dispatcher.domain.deadlines import DeadlineNote
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.tables import DUE_DEADLINE


class OpenDeadline(NamedTuple):
    """The deadline of a job. ``has_passed``: by the database clock."""

    job_id: int
    deadline: datetime
    has_passed: bool


async def passed(tx: Transaction, limit: int) -> list[int]:
    """Return keys of jobs that have not ended by their deadlines and have no event that says so, the earliest deadlines first."""
    rows = await tx.all(
        f"SELECT id FROM jobs WHERE {DUE_DEADLINE} AND deadline <= now() ORDER BY deadline LIMIT :limit", limit=limit
    )
    return [row.id for row in rows]


async def without_note(tx: Transaction, job_ids: Iterable[int], note: DeadlineNote) -> Sequence[OpenDeadline]:
    """Return the deadlines of those of these jobs, which are locked, that have not ended and have neither this note nor one of higher
    rank.
    """
    return await tx.all_of(
        OpenDeadline,
        f"""
        SELECT id AS job_id, deadline, deadline <= now() AS has_passed FROM jobs
        WHERE id = ANY(:ids) AND {DUE_DEADLINE} AND deadline_noted < :note ORDER BY id
        """,
        ids=list(job_ids),
        note=int(note),
    )


async def write_note(tx: Transaction, job_ids: Sequence[int], note: DeadlineNote) -> None:
    """Mark jobs, which are locked, as having this event."""
    await tx.run("UPDATE jobs SET deadline_noted = :note WHERE id = ANY(:ids)", ids=list(job_ids), note=int(note))


async def expected_seconds(tx: Transaction, job_id: int) -> float | None:
    """Return for how long a job was expected to run when its deadline was found to be at risk; None if that event is not stored."""
    row = await tx.first(
        f"""
        SELECT (details->>'expectedSeconds')::float8 AS seconds FROM events
        WHERE job_id = :job AND kind = '{JobEventKind.DEADLINE_AT_RISK}' ORDER BY seq DESC LIMIT 1
        """,
        job=job_id,
    )
    return None if row is None else row.seconds
