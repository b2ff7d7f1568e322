"""API keys, idempotency keys and the audit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from trainmaster.dispatcher.store.database import Transaction, dumps
from trainmaster.protocol.states import KeyRole

IDEMPOTENCY_DAYS = 7


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, by the key they showed."""

    key_id: int
    name: str
    role: KeyRole
    queues: tuple[str, ...] = ()
    cluster_id: int | None = None
    cluster: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role is KeyRole.ADMIN

    def may_use(self, queue: str) -> bool:
        """Whether jobs of this queue are the caller's to see and change."""
        return self.is_admin or any(queue == own or queue.startswith(own + "/") for own in self.queues)


async def find(tx: Transaction, key_hash: bytes) -> Caller | None:
    row = await tx.first(
        """
        SELECT k.id, k.name, k.role, k.queues, k.cluster_id, c.name AS cluster
        FROM api_keys k LEFT JOIN clusters c ON c.id = k.cluster_id
        WHERE k.hash = :hash AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
        """,
        hash=key_hash,
    )
    if row is None:
        return None
    return Caller(row.id, row.name, KeyRole(row.role), tuple(row.queues), row.cluster_id, row.cluster)


async def insert(
    tx: Transaction,
    *,
    name: str,
    key_hash: bytes,
    hint: str,
    role: KeyRole,
    queues: Sequence[str],
    cluster_id: int | None,
    expires_at: datetime | None,
) -> int:
    row = await tx.one(
        """
        INSERT INTO api_keys (name, hash, hint, role, queues, cluster_id, expires_at)
        VALUES (:name, :hash, :hint, CAST(:role AS key_role), :queues, :cluster, :expires)
        ON CONFLICT (hash) DO UPDATE SET revoked_at = NULL RETURNING id
        """,
        name=name,
        hash=key_hash,
        hint=hint,
        role=role.value,
        queues=list(queues),
        cluster=cluster_id,
        expires=expires_at,
    )
    return int(row.id)


async def listing(tx: Transaction) -> Sequence[Row[Any]]:
    return await tx.all(
        """
        SELECT k.id, k.name, k.hint, k.role, k.queues, c.name AS cluster, k.created_at, k.expires_at, k.revoked_at
        FROM api_keys k LEFT JOIN clusters c ON c.id = k.cluster_id ORDER BY k.id
        """
    )


async def revoke(tx: Transaction, key_id: int) -> bool:
    return await tx.run("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = :id", id=key_id) > 0


async def claim_idempotency(
    tx: Transaction, caller: Caller, route: str, key: str, body_hash: bytes
) -> tuple[bytes, int, bytes] | None:
    """Take an idempotency key for this transaction, or give what was answered when it was used: body hash, status, answer.

    A second request with the same key waits here until the first has ended.
    """
    await tx.run(
        """
        DELETE FROM idempotency_keys WHERE api_key_id = :caller AND route = :route AND key = :key
        AND created_at < now() - make_interval(days => :days)
        """,
        caller=caller.key_id,
        route=route,
        key=key,
        days=IDEMPOTENCY_DAYS,
    )
    taken = await tx.run(
        """
        INSERT INTO idempotency_keys (api_key_id, route, key, body_hash, status, answer)
        VALUES (:caller, :route, :key, :hash, 0, '') ON CONFLICT DO NOTHING
        """,
        caller=caller.key_id,
        route=route,
        key=key,
        hash=body_hash,
    )
    if taken:
        return None
    row = await tx.first(
        "SELECT body_hash, status, answer FROM idempotency_keys WHERE api_key_id = :caller AND route = :route AND key = :key",
        caller=caller.key_id,
        route=route,
        key=key,
    )
    if row is None:
        # The first request was refused and has given the key back in between.
        return await claim_idempotency(tx, caller, route, key, body_hash)
    return bytes(row.body_hash), row.status, bytes(row.answer)


async def keep_answer(tx: Transaction, caller: Caller, route: str, key: str, status: int, answer: bytes) -> None:
    await tx.run(
        """
        UPDATE idempotency_keys SET status = :status, answer = :answer
        WHERE api_key_id = :caller AND route = :route AND key = :key
        """,
        caller=caller.key_id,
        route=route,
        key=key,
        status=status,
        answer=answer,
    )


async def drop_idempotency(tx: Transaction, caller: Caller, route: str, key: str) -> None:
    """Forget an idempotency key whose work was refused, so that it may come with a mended body."""
    await tx.run(
        "DELETE FROM idempotency_keys WHERE api_key_id = :caller AND route = :route AND key = :key",
        caller=caller.key_id,
        route=route,
        key=key,
    )


async def note_audit(
    tx: Transaction,
    caller: Caller | None,
    action: str,
    target: str,
    request_id: str,
    details: dict[str, Any] | None = None,
) -> None:
    await tx.run(
        """
        INSERT INTO audit (api_key_id, actor, action, target, request_id, details)
        VALUES (:key, :actor, :action, :target, :request, CAST(:details AS jsonb))
        """,
        key=None if caller is None else caller.key_id,
        actor="local" if caller is None else caller.name,
        action=action,
        target=target,
        request=request_id,
        details=dumps(details or {}),
    )


async def audit_page(tx: Transaction, before: int | None, limit: int, target: str | None) -> Sequence[Row[Any]]:
    cut = "" if before is None else " AND id < :before"
    own = "" if target is None else " AND target = :target"
    parameters: dict[str, Any] = {"limit": limit}
    if before is not None:
        parameters["before"] = before
    if target is not None:
        parameters["target"] = target
    return await tx.all(
        f"SELECT id, at, actor, action, target, request_id, details FROM audit WHERE true{cut}{own}"
        " ORDER BY id DESC LIMIT :limit",
        **parameters,
    )
