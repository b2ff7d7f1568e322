"""Interactive sessions: when each was last used, and the links by which browsers open their ports.

Rows of ``session_activity`` are written by the leader, and by whoever notes that sessions are in use; neither waits for the other.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol.states import JobState, Wish
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.jobs import Filter


class NewSession(NamedTuple):
    """A new job that is an interactive session, with its terms in seconds."""

    job_id: int
    idle_seconds: float
    life_seconds: float


class SessionFacts(NamedTuple):
    """A session as it is now; times in seconds since the epoch. ``run_began_at``: the start of its run, None where it does not run."""

    job_id: int
    is_over: bool
    wish: Wish | None
    run_began_at: float | None
    idle_seconds: float
    life_seconds: float
    began_at: float | None
    active_at: float | None
    warned_at: float | None
    life_warned_at: float | None


class LookedAt(NamedTuple):
    """A session after a look at it; times in seconds since the epoch. ``next_look`` None: it has ended."""

    job_id: int
    began_at: float | None
    warned_at: float | None
    life_warned_at: float | None
    next_look: float | None


class OpenSession(NamedTuple):
    """A session that has not ended, as people see it. ``terms``: those of its specification."""

    job_id: int
    name: str
    queue: str
    state: JobState
    wish: Wish | None
    submitted_by: str | None
    cluster: str | None
    idle_seconds: float
    life_seconds: float
    began_at: datetime | None
    active_at: datetime | None
    run_began_at: datetime | None
    warned_at: datetime | None
    life_warned_at: datetime | None
    terms: dict[str, Any] | None


class SessionLink(NamedTuple):
    """A ticket or cookie that counts."""

    job_id: int
    port: str
    api_key_id: int


async def insert(tx: Transaction, sessions: Sequence[NewSession]) -> None:
    lines = [b"%d\t%r\t%r\n" % (one.job_id, one.idle_seconds, one.life_seconds) for one in sessions]
    await tx.copy("COPY session_activity (job_id, idle_seconds, life_seconds) FROM STDIN", lines)


async def restore(tx: Transaction, job_ids: Iterable[int]) -> None:
    """Let the sessions among these jobs begin anew, which are tried once more."""
    await tx.run(
        """
        UPDATE session_activity SET began_at = NULL, active_at = NULL, warned_at = NULL, life_warned_at = NULL, next_look = now()
        WHERE job_id = ANY(:ids)
        """,
        ids=list(job_ids),
    )


async def note_active(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Note that jobs are in use; those that are no sessions are passed over, and those whose row somebody else writes."""
    if not job_ids:
        return
    await tx.run(
        """
        UPDATE session_activity SET active_at = now() WHERE job_id IN (
            SELECT job_id FROM session_activity WHERE job_id = ANY(:ids) AND next_look IS NOT NULL FOR UPDATE SKIP LOCKED)
        """,
        ids=list(job_ids),
    )


async def due(tx: Transaction, limit: int) -> list[int]:
    """Return keys of sessions that have to be looked at."""
    rows = await tx.all(
        "SELECT job_id FROM session_activity WHERE next_look <= now() ORDER BY next_look LIMIT :limit", limit=limit
    )
    return [row.job_id for row in rows]


async def facts(tx: Transaction, job_ids: Sequence[int]) -> Sequence[SessionFacts]:
    return await tx.all_of(
        SessionFacts,
        """
        SELECT a.job_id, j.id IS NULL OR j.ended_at IS NOT NULL AS is_over, j.wish,
               extract(epoch FROM r.started_at)::float8 AS run_began_at, a.idle_seconds, a.life_seconds,
               extract(epoch FROM a.began_at)::float8 AS began_at, extract(epoch FROM a.active_at)::float8 AS active_at,
               extract(epoch FROM a.warned_at)::float8 AS warned_at, extract(epoch FROM a.life_warned_at)::float8 AS life_warned_at
        FROM session_activity a LEFT JOIN jobs j ON j.id = a.job_id
        LEFT JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt AND r.ended_at IS NULL AND r.state = 'running'
        WHERE a.job_id = ANY(:ids) ORDER BY a.job_id
        """,
        ids=list(job_ids),
    )


async def write(tx: Transaction, looked_at: Sequence[LookedAt]) -> None:
    if not looked_at:
        return
    await tx.run(
        """
        UPDATE session_activity a SET began_at = to_timestamp(n.began_at), warned_at = to_timestamp(n.warned_at),
            life_warned_at = to_timestamp(n.life_warned_at), next_look = to_timestamp(n.next_look)
        FROM json_to_recordset(CAST(:rows AS json)) AS n(
            job_id bigint, began_at float8, warned_at float8, life_warned_at float8, next_look float8)
        WHERE a.job_id = n.job_id
        """,
        rows=dumps([one._asdict() for one in looked_at]),
    )


async def page(tx: Transaction, wanted: Filter, limit: int) -> Sequence[OpenSession]:
    """Return sessions that have not ended and match, newest first."""
    condition, parameters = wanted.where()
    return await tx.all_of(
        OpenSession,
        f"""
        SELECT j.id AS job_id, j.name, q.path AS queue, j.state, j.wish, k.name AS submitted_by, c.name AS cluster, a.idle_seconds,
               a.life_seconds, coalesce(a.began_at, r.started_at) AS began_at, a.active_at,
               CASE WHEN r.state = 'running' THEN r.started_at END AS run_began_at, a.warned_at, a.life_warned_at,
               s.spec->'session' AS terms
        FROM session_activity a JOIN jobs j ON j.id = a.job_id JOIN queues q ON q.id = j.queue_id JOIN job_specs s ON s.id = j.spec_id
        LEFT JOIN api_keys k ON k.id = j.api_key_id
        LEFT JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt AND r.ended_at IS NULL
        LEFT JOIN clusters c ON c.id = r.cluster_id
        WHERE a.next_look IS NOT NULL AND j.ended_at IS NULL AND {condition} ORDER BY j.id DESC LIMIT :limit
        """,
        limit=limit,
        **parameters,
    )


async def add_link(
    tx: Transaction, link_hash: bytes, link: SessionLink, *, is_cookie: bool, seconds: float, most: int = 1000
) -> None:
    """Store a ticket or cookie, which counts for ``seconds``; remove some of those that have expired."""
    await tx.run(
        """
        DELETE FROM session_links WHERE hash IN (
            SELECT hash FROM session_links WHERE expires_at < now() LIMIT :most FOR UPDATE SKIP LOCKED)
        """,
        most=most,
    )
    await tx.run(
        """
        INSERT INTO session_links (hash, job_id, port, api_key_id, is_cookie, expires_at)
        VALUES (:hash, :job, :port, :key, :cookie, now() + make_interval(secs => :seconds))
        """,
        hash=link_hash,
        job=link.job_id,
        port=link.port,
        key=link.api_key_id,
        cookie=is_cookie,
        seconds=seconds,
    )


async def take_ticket(tx: Transaction, link_hash: bytes) -> SessionLink | None:
    """Remove a ticket, which counts once; return what it opens, None where it does not count."""
    return await tx.first_of(
        SessionLink,
        """
        DELETE FROM session_links WHERE hash = :hash AND NOT is_cookie AND expires_at > now()
        RETURNING job_id, port, api_key_id
        """,
        hash=link_hash,
    )


async def cookie(tx: Transaction, link_hash: bytes) -> SessionLink | None:
    """Return what a cookie opens; None where it does not count."""
    return await tx.first_of(
        SessionLink,
        "SELECT job_id, port, api_key_id FROM session_links WHERE hash = :hash AND is_cookie AND expires_at > now()",
        hash=link_hash,
    )
