"""The index of members' stored output: its pieces, where restarts begin, and how much there is. The pieces are in the log store."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from trainmaster.protocol.ids import RunRef
from trainmaster_dispatcher.store.database import Transaction, array_text, dumps

_OF_RUN = "job_id = :job AND attempt = :attempt"
MOST_REMOVED = 100
"""The most runs whose output one transaction removes."""


class StoredMember(NamedTuple):
    """Extent of a member's stored output. ``next``: the offset up to which the agent has sent it."""

    role: str
    member_index: int
    next: int
    bytes: int
    lives: list[int]


class StoredPiece(NamedTuple):
    """A piece of output, without its text. ``marks``: offset and seconds since the epoch at which what follows was first seen."""

    role: str
    member_index: int
    start: int
    next: int
    lines: int
    marks: list[list[float]]


class NewPiece(NamedTuple):
    """A piece to be indexed. ``size``: its bytes as they are stored."""

    role: str
    member_index: int
    start: int
    next: int
    lines: int
    marks: list[list[float]]
    size: int


class RunOutput(NamedTuple):
    """A run with stored output, and the bytes of it as they are stored."""

    job_id: int
    attempt: int
    size: int


def key_of(ref: RunRef, role: str, member_index: int, start: int) -> str:
    """Return the key of a piece in the log store: by job, so that those of one job are together."""
    return f"{ref.job_key}/{ref.attempt}/{role}-{member_index}/{start:016d}"


async def roles_of(tx: Transaction, ref: RunRef, cluster_id: int) -> frozenset[str] | None:
    """Return the roles of a run on this cluster; None if it has no such run."""
    row = await tx.first(
        f"SELECT sizes FROM runs WHERE {_OF_RUN} AND cluster_id = :cluster",
        job=ref.job_key,
        attempt=ref.attempt,
        cluster=cluster_id,
    )
    return None if row is None else frozenset(row.sizes)


async def members(tx: Transaction, ref: RunRef, *, lock: bool = False) -> Sequence[StoredMember]:
    """Return the members of a run with stored output; with ``lock``, nobody else changes them until the transaction ends."""
    return await tx.all_of(
        StoredMember,
        f"""
        SELECT role, index AS member_index, next, bytes, lives FROM member_outputs WHERE {_OF_RUN}
        ORDER BY role, index {"FOR UPDATE" if lock else ""}
        """,
        job=ref.job_key,
        attempt=ref.attempt,
    )


async def note_members(tx: Transaction, ref: RunRef, found: Iterable[tuple[str, int]]) -> None:
    """Create the rows of members that have none yet."""
    wanted = sorted(set(found))
    await tx.run(
        """
        INSERT INTO member_outputs (job_id, attempt, role, index)
        SELECT :job, :attempt, role, index FROM unnest(CAST(:roles AS text[]), CAST(:indexes AS int[])) AS n(role, index)
        ON CONFLICT DO NOTHING
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        roles=[role for role, _ in wanted],
        indexes=[index for _, index in wanted],
    )


async def save(tx: Transaction, ref: RunRef, changed: Sequence[StoredMember], pieces: Sequence[NewPiece]) -> None:
    """Index pieces, and store the new values of their members, whose rows the transaction has locked."""
    await tx.run(
        f"""
        UPDATE member_outputs m SET next = n.next, bytes = n.bytes, changed_at = now(),
               lives = CAST(n.lives AS bigint[])
        FROM unnest(CAST(:roles AS text[]), CAST(:indexes AS int[]), CAST(:nexts AS bigint[]), CAST(:bytes AS bigint[]),
                    CAST(:lives AS text[])) AS n(role, index, next, bytes, lives)
        WHERE {_OF_RUN} AND m.role = n.role AND m.index = n.index
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        roles=[one.role for one in changed],
        indexes=[one.member_index for one in changed],
        nexts=[one.next for one in changed],
        bytes=[one.bytes for one in changed],
        lives=[array_text(one.lives) for one in changed],
    )
    if not pieces:
        return
    await tx.run(
        """
        INSERT INTO output_pieces (job_id, attempt, role, index, start, next, lines, marks, size)
        SELECT :job, :attempt, role, index, start, next, lines, marks, size
        FROM unnest(CAST(:roles AS text[]), CAST(:indexes AS int[]), CAST(:starts AS bigint[]), CAST(:nexts AS bigint[]),
                    CAST(:lines AS int[]), CAST(:marks AS jsonb[]), CAST(:sizes AS int[]))
             AS n(role, index, start, next, lines, marks, size)
        ON CONFLICT DO NOTHING
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        roles=[one.role for one in pieces],
        indexes=[one.member_index for one in pieces],
        starts=[one.start for one in pieces],
        nexts=[one.next for one in pieces],
        lines=[one.lines for one in pieces],
        marks=[dumps(one.marks) for one in pieces],
        sizes=[one.size for one in pieces],
    )


async def pieces(
    tx: Transaction, ref: RunRef, role: str | None, index: int | None, *, with_marks: bool
) -> Sequence[StoredPiece]:
    """Return the pieces of a run's output, by member, in the order of their offsets; without ``with_marks``, without their times.

    ``role``, ``index``: only of these members; None: of all.
    """
    marks = "marks" if with_marks else "CAST('[]' AS jsonb) AS marks"
    return await tx.all_of(
        StoredPiece,
        f"""
        SELECT role, index AS member_index, start, next, lines, {marks} FROM output_pieces WHERE {_OF_RUN}
          AND (CAST(:role AS text) IS NULL OR role = :role) AND (CAST(:index AS int) IS NULL OR index = :index)
        ORDER BY role, index, start
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        role=role,
        index=index,
    )


async def oldest(tx: Transaction, seconds: float | None) -> Sequence[RunOutput]:
    """Return ended runs whose stored output has not changed for longest; with ``seconds``, only those for at least that long."""
    return await tx.all_of(
        RunOutput,
        f"""
        SELECT p.job_id, p.attempt, sum(p.size)::bigint AS size
        FROM output_pieces p JOIN (
            SELECT m.job_id, m.attempt, max(m.changed_at) AS at FROM member_outputs m
            JOIN runs r ON r.job_id = m.job_id AND r.attempt = m.attempt AND r.ended_at IS NOT NULL
            WHERE EXISTS (SELECT 1 FROM output_pieces q WHERE q.job_id = m.job_id AND q.attempt = m.attempt)
            GROUP BY m.job_id, m.attempt
            HAVING CAST(:seconds AS float8) IS NULL OR max(m.changed_at) < now() - make_interval(secs => :seconds)
            ORDER BY at LIMIT {MOST_REMOVED}) o ON o.job_id = p.job_id AND o.attempt = p.attempt
        GROUP BY p.job_id, p.attempt, o.at ORDER BY o.at
        """,
        seconds=seconds,
    )


async def total_size(tx: Transaction) -> int:
    """Return the bytes of all pieces as they are stored."""
    return int((await tx.one("SELECT coalesce(sum(size), 0)::bigint AS size FROM output_pieces")).size)


async def keys_of_runs(tx: Transaction, refs: Sequence[RunRef]) -> list[str]:
    """Return the keys of all pieces of runs."""
    rows: Sequence[Any] = await tx.all(
        """
        SELECT p.job_id, p.attempt, p.role, p.index, p.start FROM output_pieces p
        JOIN unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS n(job, attempt)
             ON p.job_id = n.job AND p.attempt = n.attempt
        """,
        jobs=[ref.job_key for ref in refs],
        attempts=[ref.attempt for ref in refs],
    )
    return [key_of(RunRef(row.job_id, row.attempt), row.role, row.index, row.start) for row in rows]


async def runs_without_job(tx: Transaction) -> Sequence[RunOutput]:
    """Return runs with stored output whose jobs were removed."""
    return await tx.all_of(
        RunOutput,
        f"""
        SELECT m.job_id, m.attempt, 0::bigint AS size FROM member_outputs m
        WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = m.job_id)
        GROUP BY m.job_id, m.attempt LIMIT {MOST_REMOVED}
        """,
    )


async def forget_pieces(tx: Transaction, refs: Sequence[RunRef]) -> None:
    """Remove the pieces of runs from the index. The rows of their members stay: they tell how much there was."""
    await _delete(tx, "output_pieces", refs)


async def forget_members(tx: Transaction, refs: Sequence[RunRef]) -> None:
    """Remove the rows of members of runs that do not exist any more."""
    await _delete(tx, "member_outputs", refs)


async def _delete(tx: Transaction, table: str, refs: Sequence[RunRef]) -> None:
    await tx.run(
        f"""
        DELETE FROM {table} t USING unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS n(job, attempt)
        WHERE t.job_id = n.job AND t.attempt = n.attempt
        """,
        jobs=[ref.job_key for ref in refs],
        attempts=[ref.attempt for ref in refs],
    )
