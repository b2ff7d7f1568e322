"""Preferences of users about notices, and the events that wait for a message.

    transition of a job ──▶ a row of ``notice_events``, in its transaction ──▶ a worker gathers them into messages of the outbox

A worker locks the preferences of a user, writes the messages and deletes the events in one transaction: who is killed leaves all or
nothing of it, and no event is reported twice.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster_dispatcher.store.database import Transaction, dumps


class StoredPreferences(NamedTuple):
    """Preferences of a user, None where there are none, and the user's own address for e-mail."""

    email: str | None
    spec: dict[str, Any] | None


async def find(tx: Transaction, key_id: int) -> StoredPreferences:
    """Return the preferences and the address of a user."""
    row = await tx.first_of(
        StoredPreferences,
        "SELECT k.email, p.spec FROM api_keys k LEFT JOIN notice_preferences p ON p.api_key_id = k.id WHERE k.id = :key",
        key=key_id,
    )
    return StoredPreferences(None, None) if row is None else row


async def put(tx: Transaction, key_id: int, spec: Mapping[str, Any], least_seconds: float) -> None:
    """Store the preferences of a user. A window that is open stays so."""
    await tx.run(
        """
        INSERT INTO notice_preferences (api_key_id, spec, least_seconds) VALUES (:key, CAST(:spec AS jsonb), :least)
        ON CONFLICT (api_key_id) DO UPDATE SET spec = excluded.spec, least_seconds = excluded.least_seconds
        """,
        key=key_id,
        spec=dumps(spec),
        least=least_seconds,
    )


async def remove(tx: Transaction, key_id: int) -> None:
    """Remove the preferences of a user, and what waits for a message."""
    await tx.run("DELETE FROM notice_preferences WHERE api_key_id = :key", key=key_id)
    await tx.run("DELETE FROM notice_events WHERE api_key_id = :key", key=key_id)


async def set_email(tx: Transaction, key_id: int, email: str | None) -> bool:
    """Set the address of an API key, not of a person, whose address is the issuer's; return whether there is such a key."""
    statement = "UPDATE api_keys SET email = :email WHERE id = :key AND issuer IS NULL AND through_id IS NULL"
    return await tx.run(statement, key=key_id, email=email) > 0


async def take_over(tx: Transaction, name: str, key_id: int) -> None:
    """Give a new API key the address and the preferences of the last key of its name, which is not valid any more."""
    row = await tx.first(
        """
        SELECT id, email FROM api_keys
        WHERE name = :name AND id <> :key AND role <> 'agent' AND issuer IS NULL AND through_id IS NULL ORDER BY id DESC LIMIT 1
        """,
        name=name,
        key=key_id,
    )
    if row is not None:
        await tx.run("UPDATE api_keys SET email = :email WHERE id = :key", email=row.email, key=key_id)
        await tx.run(
            "UPDATE notice_preferences SET api_key_id = :key WHERE api_key_id = :old", key=key_id, old=int(row.id)
        )


async def waiting_users(tx: Transaction) -> list[int]:
    """Return the users of whom events wait."""
    rows = await tx.all(
        """
        WITH RECURSIVE users AS (
            (SELECT api_key_id FROM notice_events ORDER BY api_key_id LIMIT 1)
            UNION ALL
            SELECT (SELECT e.api_key_id FROM notice_events e WHERE e.api_key_id > u.api_key_id ORDER BY e.api_key_id LIMIT 1)
            FROM users u WHERE u.api_key_id IS NOT NULL
        )
        SELECT api_key_id FROM users WHERE api_key_id IS NOT NULL
        """
    )
    return [row.api_key_id for row in rows]


class LockedPreferences(NamedTuple):
    """Preferences of a user with the window, and the time of the store. ``counts``: whether the key or account is valid; ``held``: of
    the events that wait, those that arose before the end of the window. Times are seconds since 1970.
    """

    spec: dict[str, Any]
    email: str | None
    counts: bool
    window_ends_at: float | None
    reported: int
    waiting: int
    held: int
    now: float


async def lock(tx: Transaction, key_id: int) -> LockedPreferences | None:
    """Lock the preferences of a user; None where there are none, or another worker has them."""
    statement = "SELECT 1 AS there FROM notice_preferences WHERE api_key_id = :key FOR UPDATE SKIP LOCKED"
    if await tx.first(statement, key=key_id) is None:
        return None
    # A statement of its own, which sees what the worker that had the lock before has done.
    return await tx.one_of(
        LockedPreferences,
        """
        SELECT p.spec, k.email, k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now()) AS counts,
               extract(epoch FROM p.window_ends_at)::float8 AS window_ends_at, p.reported,
               (SELECT count(*) FROM notice_events e WHERE e.api_key_id = :key)::int AS waiting,
               (SELECT count(*) FROM notice_events e WHERE e.api_key_id = :key AND e.created_at < p.window_ends_at)::int AS held,
               extract(epoch FROM now())::float8 AS now
        FROM notice_preferences p JOIN api_keys k ON k.id = p.api_key_id WHERE p.api_key_id = :key
        """,
        key=key_id,
    )


async def drop_unwanted(tx: Transaction) -> None:
    """Delete events of users without preferences: these were removed in the meantime."""
    await tx.run(
        """
        DELETE FROM notice_events e WHERE NOT EXISTS (SELECT 1 FROM notice_preferences p WHERE p.api_key_id = e.api_key_id)
        AND e.created_at < now() - interval '1 minute'
        """
    )


async def set_window(tx: Transaction, key_id: int, ends_at: float | None, reported: int) -> None:
    await tx.run(
        "UPDATE notice_preferences SET window_ends_at = to_timestamp(:ends), reported = :reported WHERE api_key_id = :key",
        key=key_id,
        ends=ends_at,
        reported=reported,
    )


class WaitingEvent(NamedTuple):
    """An event of a user that waits for a message."""

    id: int
    body: dict[str, Any]


async def take(tx: Transaction, key_id: int, limit: int) -> list[WaitingEvent]:
    """Delete the first events that wait for a message of a user, whose preferences are locked; return them in order."""
    rows = await tx.all_of(
        WaitingEvent,
        """
        DELETE FROM notice_events WHERE id IN (
            SELECT id FROM notice_events WHERE api_key_id = :key ORDER BY id LIMIT :limit)
        RETURNING id, body
        """,
        key=key_id,
        limit=limit,
    )
    return sorted(rows)


async def add_messages(tx: Transaction, key_id: int, urls: Sequence[str], bodies: Sequence[Mapping[str, Any]]) -> None:
    """Write messages to a user: one with each body to each address."""
    rows = [
        {"seq": body.get("seq", 1), "hook": hook, "url": url, "body": body}
        for body in bodies
        for hook, url in enumerate(urls)
    ]
    await tx.run(
        """
        INSERT INTO outbox (api_key_id, seq, hook, url, body)
        SELECT CAST(:key AS int), n.seq, n.hook, n.url, n.body
        FROM json_to_recordset(CAST(:rows AS json)) AS n(seq int, hook int, url text, body jsonb)
        """,
        key=key_id,
        rows=dumps(rows),
    )
