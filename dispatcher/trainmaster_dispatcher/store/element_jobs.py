"""Arrays whose elements are jobs: the jobs of their elements, and which arrays the leader has to look at.

    end or start of a job ──▶ a row of ``array_wakes``, in the transaction of the change ──▶ the leader deals with the array

Numbers and bitmaps of ended elements are in ``store/arrays.py``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.protocol.states import Condition, DependencyFailure, HoldCause, JobState
from trainmaster_dispatcher.store.database import Transaction


class ArrayJobRow(NamedTuple):
    """An array as the leader needs it. ``spec`` is that of the stored job; ``deadline`` in seconds since the epoch.

    ``was_suspended``: whether the jobs of its elements were suspended with it; ``message``: why elements are not submitted now.
    """

    spec: dict[str, Any]
    parameters: dict[str, Any] | None
    api_key_id: int
    submitted_by: str | None
    deadline: float | None
    was_suspended: bool
    message: str


class OpenJob(NamedTuple):
    """The job of an element whose end is not counted yet. ``exit_code`` and ``signal``: of the last run of one that has ended."""

    job_id: int
    element: int
    state: JobState
    hold_cause: HoldCause | None
    message: str
    exit_code: int | None
    signal: int | None


class ShownElementJob(NamedTuple):
    """The job of an element, as people see it."""

    element: int
    job_id: int
    name: str
    state: str


class NewArrayPredecessor(NamedTuple):
    """A new array whose elements wait for those of another."""

    job_id: int
    on_job_id: int
    condition: Condition
    on_failure: DependencyFailure


class ArrayPredecessor(NamedTuple):
    """Another array that the elements of an array wait for. ``name`` and ``state`` are None once it is removed."""

    on_job_id: int
    condition: Condition
    on_failure: DependencyFailure
    name: str | None
    state: JobState | None


async def is_free(tx: Transaction, key: int) -> bool:
    """Return whether an array is locked now, as its job: not if there is none, or another transaction has it, which wakes it again."""
    found = await tx.first("SELECT 1 FROM jobs WHERE id = :key AND has_element_jobs FOR UPDATE SKIP LOCKED", key=key)
    return found is not None


async def exists(tx: Transaction, key: int) -> bool:
    return await tx.first("SELECT 1 FROM jobs WHERE id = :key AND has_element_jobs", key=key) is not None


async def with_open_jobs(tx: Transaction, keys: Iterable[int]) -> set[int]:
    """Return those of these arrays that have jobs of elements that have not ended."""
    rows = await tx.all(
        """
        SELECT DISTINCT e.array_id FROM element_jobs e JOIN jobs j ON j.id = e.job_id
        WHERE e.array_id = ANY(:keys) AND NOT e.counted AND j.ended_at IS NULL
        """,
        keys=sorted(set(keys)),
    )
    return {row.array_id for row in rows}


async def find(tx: Transaction, key: int) -> ArrayJobRow | None:
    """Return an array by the key of its job; None if it has no row yet."""
    return await tx.first_of(
        ArrayJobRow,
        """
        SELECT s.spec, j.parameters, j.api_key_id, k.name AS submitted_by, extract(epoch FROM j.deadline)::float8 AS deadline,
               a.suspended AS was_suspended, a.message
        FROM jobs j JOIN job_specs s ON s.id = j.spec_id JOIN arrays a ON a.job_id = j.id LEFT JOIN api_keys k ON k.id = j.api_key_id
        WHERE j.id = :key
        """,
        key=key,
    )


async def open_jobs(tx: Transaction, key: int) -> list[OpenJob]:
    """Return the jobs of an array's elements whose end is not counted, by element."""
    rows = await tx.all(
        """
        SELECT e.job_id, e.element, j.state, j.hold_cause, j.message,
               CAST(r.result->'end'->>'exitCode' AS int) AS exit_code, CAST(r.result->'end'->>'signal' AS int) AS signal
        FROM element_jobs e JOIN jobs j ON j.id = e.job_id
        LEFT JOIN runs r ON j.ended_at IS NOT NULL AND r.job_id = j.id AND r.attempt = j.attempt
        WHERE e.array_id = :key AND NOT e.counted ORDER BY e.element
        """,
        key=key,
    )
    return [
        OpenJob(*row)._replace(
            state=JobState(row.state), hold_cause=None if row.hold_cause is None else HoldCause(row.hold_cause)
        )
        for row in rows
    ]


async def predecessors(tx: Transaction, key: int) -> list[ArrayPredecessor]:
    """Return the arrays that the elements of an array wait for."""
    rows = await tx.all(
        """
        SELECT p.on_job_id, p.condition, p.on_failure, j.name, j.state
        FROM array_predecessors p LEFT JOIN jobs j ON j.id = p.on_job_id WHERE p.job_id = :key ORDER BY p.on_job_id, p.condition
        """,
        key=key,
    )
    return [
        ArrayPredecessor(
            row.on_job_id,
            Condition(row.condition),
            DependencyFailure(row.on_failure),
            row.name,
            None if row.state is None else JobState(row.state),
        )
        for row in rows
    ]


async def add_predecessors(tx: Transaction, new: Sequence[NewArrayPredecessor]) -> None:
    """Store which arrays the elements of new arrays wait for."""
    await tx.run(
        """
        INSERT INTO array_predecessors (job_id, on_job_id, condition, on_failure)
        SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:others AS bigint[]), CAST(:conditions AS text[]),
                             CAST(:failures AS text[]))
        ON CONFLICT DO NOTHING
        """,
        jobs=[one.job_id for one in new],
        others=[one.on_job_id for one in new],
        conditions=[one.condition.value for one in new],
        failures=[one.on_failure.value for one in new],
    )


async def add_jobs(tx: Transaction, key: int, first_job: int, elements: Sequence[int]) -> None:
    """Store that jobs with consecutive keys are those of these elements, in place of earlier ones."""
    await tx.run(
        """
        INSERT INTO element_jobs (array_id, element, job_id)
        SELECT :key, element, :first + place - 1
        FROM unnest(CAST(:elements AS int[])) WITH ORDINALITY AS n(element, place)
        ON CONFLICT (array_id, element) DO UPDATE SET job_id = excluded.job_id, counted = false
        """,
        key=key,
        first=first_job,
        elements=list(elements),
    )


async def note_counted(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Note that the ends of these jobs are in the bitmaps of their arrays."""
    await tx.run("UPDATE element_jobs SET counted = true WHERE job_id = ANY(:jobs)", jobs=sorted(job_ids))


async def reopened(tx: Transaction, job_ids: Iterable[int]) -> Mapping[int, list[int]]:
    """Let the next end of these jobs count, which are tried again; return their elements that were counted, by array.

    Left out are those of arrays that have ended.
    """
    rows = await tx.all(
        """
        UPDATE element_jobs e SET counted = false FROM jobs a
        WHERE e.job_id = ANY(:jobs) AND e.counted AND a.id = e.array_id AND a.ended_at IS NULL
        RETURNING e.array_id, e.element
        """,
        jobs=sorted(set(job_ids)),
    )
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.array_id, []).append(row.element)
    return found


async def set_outlook(tx: Transaction, key: int, *, suspended: bool, message: str, look_in: float | None) -> None:
    """Store whether the jobs of an array are suspended with it, why no further ones are submitted, and in how many seconds the leader
    looks again, whatever happens; with None once something changes.
    """
    await tx.run(
        """
        UPDATE arrays SET suspended = :suspended, message = :message,
            next_look = now() + make_interval(secs => CAST(:seconds AS float8))
        WHERE job_id = :key
        """,
        key=key,
        suspended=suspended,
        message=message,
        seconds=look_in,
    )


async def look_in(tx: Transaction, key: int, seconds: float) -> None:
    """Let the leader look at an array in ``seconds``."""
    await tx.run(
        "UPDATE arrays SET next_look = now() + make_interval(secs => CAST(:seconds AS float8)) WHERE job_id = :key",
        key=key,
        seconds=seconds,
    )


async def wake(tx: Transaction, keys: Iterable[int]) -> None:
    """Have the leader look at these arrays."""
    wanted = sorted(set(keys))
    if wanted:
        await tx.run("INSERT INTO array_wakes (array_id) SELECT unnest(CAST(:keys AS bigint[]))", keys=wanted)


async def due(tx: Transaction, limit: int) -> list[int]:
    """Return keys of arrays that the leader has to look at: those first that were woken first."""
    rows = await tx.all(
        """
        (SELECT array_id, min(id) AS place FROM array_wakes GROUP BY array_id ORDER BY place LIMIT :limit)
        UNION ALL
        (SELECT job_id, 0 FROM arrays WHERE next_look <= now() ORDER BY next_look LIMIT :limit)
        """,
        limit=limit,
    )
    return list(dict.fromkeys(int(row.array_id) for row in rows))


async def take_wakes(tx: Transaction, key: int) -> None:
    """Delete what has woken an array. Before its facts are read: what changes after that wakes it again."""
    await tx.run("DELETE FROM array_wakes WHERE array_id = :key", key=key)


async def page(
    tx: Transaction, key: int, after: int, limit: int, wanted: Sequence[tuple[int, int]]
) -> Sequence[ShownElementJob]:
    """Return the jobs of elements behind ``after``, by element; with ``wanted``, only of elements in these ranges."""
    return await tx.all_of(
        ShownElementJob,
        """
        SELECT e.element, e.job_id, j.name, coalesce(j.wish::text, j.state::text) AS state
        FROM element_jobs e JOIN jobs j ON j.id = e.job_id
        WHERE e.array_id = :key AND e.element > :after
          AND (cardinality(CAST(:firsts AS int[])) = 0 OR EXISTS (
              SELECT 1 FROM unnest(CAST(:firsts AS int[]), CAST(:lasts AS int[])) AS w(first, last)
              WHERE e.element BETWEEN w.first AND w.last))
        ORDER BY e.element LIMIT :limit
        """,
        key=key,
        after=after,
        limit=limit,
        firsts=[first for first, _ in wanted],
        lasts=[last for _, last in wanted],
    )


async def message_of(tx: Transaction, key: int) -> str:
    """Return why further jobs of an array are not submitted now; empty where nothing keeps them."""
    row = await tx.first("SELECT message FROM arrays WHERE job_id = :key", key=key)
    return "" if row is None else str(row.message)


async def first_waiting(tx: Transaction, key: int) -> tuple[int, int] | None:
    """Return the first element of an array whose job waits, and the key of that job; None if none does."""
    row = await tx.first(
        """
        SELECT e.element, e.job_id FROM element_jobs e JOIN jobs j ON j.id = e.job_id
        WHERE e.array_id = :key AND NOT e.counted AND j.state IN ('held', 'queued') ORDER BY e.element LIMIT 1
        """,
        key=key,
    )
    return None if row is None else (int(row.element), int(row.job_id))


async def array_of(tx: Transaction, job_id: int) -> tuple[int, str, int] | None:
    """Return key and name of the array that a job is an element of, and its index; None for others."""
    row = await tx.first(
        """
        SELECT e.array_id, a.name, e.element FROM element_jobs e JOIN jobs a ON a.id = e.array_id WHERE e.job_id = :job
        """,
        job=job_id,
    )
    return None if row is None else (int(row.array_id), str(row.name), int(row.element))
