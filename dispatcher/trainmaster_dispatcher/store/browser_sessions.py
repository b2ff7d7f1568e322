"""Sessions of browsers of people who have signed in, by the hash of the secret in their cookie.

All times are those that callers give, in seconds since the epoch.
"""

from typing import NamedTuple

from trainmaster_dispatcher.store.database import Transaction

_MOST_OF_A_PERSON = 50
"""Sessions of one person: the one that was not used for the longest time ends when there are more."""
_MOST_REMOVED = 1000


class BrowserSession(NamedTuple):
    """A session. ``renew_at``: when the issuer is asked again; ``renewing_until``: until then one api asks it, or none does.

    ``refresh_token`` and ``id_token``: sealed; None where the issuer has given none.
    """

    person_id: int
    used_at: float
    ends_at: float
    renew_at: float
    renewing_until: float | None
    refresh_token: bytes | None
    id_token: bytes | None = None


class RemovedSession(NamedTuple):
    """A session that has just been removed."""

    person_id: int
    id_token: bytes | None


async def begin(
    tx: Transaction, session_hash: bytes, state_hash: bytes, session: BrowserSession, *, idle: float
) -> bool:
    """Store a session, and remove some that have ended; return False where the sign-in has begun one before.

    ``idle``: seconds without use after which a session has ended.
    """
    await tx.run(
        """
        DELETE FROM browser_sessions WHERE hash IN (
            SELECT hash FROM browser_sessions WHERE ends_at < to_timestamp(:now) OR used_at < to_timestamp(:now - :idle)
            LIMIT :most FOR UPDATE SKIP LOCKED)
        """,
        now=session.used_at,
        idle=idle,
        most=_MOST_REMOVED,
    )
    await tx.run(
        """
        DELETE FROM browser_sessions WHERE hash IN (
            SELECT hash FROM browser_sessions WHERE person_id = :person ORDER BY used_at DESC OFFSET :most)
        """,
        person=session.person_id,
        most=_MOST_OF_A_PERSON - 1,
    )
    made = await tx.run(
        """
        INSERT INTO browser_sessions
            (hash, person_id, state_hash, began_at, used_at, ends_at, renew_at, refresh_token, id_token)
        VALUES (:hash, :person, :state, to_timestamp(:now), to_timestamp(:now), to_timestamp(:ends), to_timestamp(:renew),
                CAST(:token AS bytea), CAST(:id_token AS bytea))
        ON CONFLICT (state_hash) DO NOTHING
        """,
        hash=session_hash,
        person=session.person_id,
        state=state_hash,
        now=session.used_at,
        ends=session.ends_at,
        renew=session.renew_at,
        token=session.refresh_token,
        id_token=session.id_token,
    )
    return made > 0


async def find(tx: Transaction, session_hash: bytes) -> BrowserSession | None:
    row = await tx.first(
        """
        SELECT person_id, extract(epoch FROM used_at)::float8 AS used_at, extract(epoch FROM ends_at)::float8 AS ends_at,
               extract(epoch FROM renew_at)::float8 AS renew_at, extract(epoch FROM renewing_until)::float8 AS renewing_until,
               refresh_token
        FROM browser_sessions WHERE hash = :hash
        """,
        hash=session_hash,
    )
    if row is None:
        return None
    token = None if row.refresh_token is None else bytes(row.refresh_token)
    return BrowserSession(row.person_id, row.used_at, row.ends_at, row.renew_at, row.renewing_until, token)


async def note_use(tx: Transaction, session_hash: bytes, now: float) -> None:
    await tx.run(
        "UPDATE browser_sessions SET used_at = greatest(used_at, to_timestamp(:now)) WHERE hash = :hash",
        hash=session_hash,
        now=now,
    )


async def claim_renewal(tx: Transaction, session_hash: bytes, now: float, until: float) -> bool:
    """Claim to ask the issuer, until a time; return False where another api asks it now, or has just asked it."""
    return (
        await tx.run(
            """
            UPDATE browser_sessions SET renewing_until = to_timestamp(:until)
            WHERE hash = :hash AND renew_at <= to_timestamp(:now)
              AND (renewing_until IS NULL OR renewing_until <= to_timestamp(:now))
            """,
            hash=session_hash,
            now=now,
            until=until,
        )
        > 0
    )


async def renew(
    tx: Transaction, session_hash: bytes, renew_at: float, refresh_token: bytes, id_token: bytes | None
) -> None:
    """Store the tokens that the issuer has given now; ``id_token`` None: it has given none, and the one before stays."""
    await tx.run(
        """
        UPDATE browser_sessions SET renew_at = to_timestamp(:at), renewing_until = NULL, refresh_token = :token,
            id_token = coalesce(CAST(:id_token AS bytea), id_token)
        WHERE hash = :hash
        """,
        hash=session_hash,
        at=renew_at,
        token=refresh_token,
        id_token=id_token,
    )


async def end(tx: Transaction, session_hash: bytes) -> RemovedSession | None:
    """Remove a session and return it; None where there was none."""
    return await tx.first_of(
        RemovedSession,
        "DELETE FROM browser_sessions WHERE hash = :hash RETURNING person_id, id_token",
        hash=session_hash,
    )
