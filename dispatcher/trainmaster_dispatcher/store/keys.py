"""API keys, idempotency keys and the audit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.permissions import NEED_QUEUES, Permission, roles_with
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.domain.role_bindings import Grant
from trainmaster_dispatcher.store.database import Transaction, dumps

IDEMPOTENCY_DAYS = 7
_VALID = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
_ROLE = "CASE WHEN k.clusters IS NOT NULL THEN 'owner' ELSE coalesce(k.granted_role, k.role::text) END AS role"
_QUEUES = "CASE WHEN k.granted_role IS NULL THEN k.queues ELSE k.granted_queues END AS queues"
_STORED_ROLES = (KeyRole.ADMIN, KeyRole.USER, KeyRole.OWNER, KeyRole.AGENT)
"""Roles for which a row has no ``granted_role``."""
_CLUSTERS = """
    ARRAY(SELECT o.name FROM clusters o WHERE o.id = ANY(k.clusters) AND o.removed_at IS NULL ORDER BY o.name) AS clusters
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, by its API key or, of a person who has signed in, by a token of the OpenID Connect issuer.

    The rights in a call are those of the permission that it needs: see ``with_permission``.
    """

    key_id: int
    name: str
    role: KeyRole
    queues: tuple[str, ...] = ()
    """Queues that the caller may use in this call, with all below them."""
    cluster_id: int | None = None
    cluster: str | None = None
    clusters: tuple[str, ...] = ()
    """Clusters that an owner looks after."""
    on_behalf_of: tuple[str, ...] = ()
    """Users for whom the key may submit; a ``*`` at the end of one stands for any text."""
    through: str | None = None
    """The key by which the caller, who has none, acts."""
    issuer: str | None = None
    """The OpenID Connect issuer of a person's account. ``key_id`` is then the number of the person."""
    groups: tuple[str, ...] = ()
    """Groups of a person in the token of this call."""
    expires_at: datetime | None = None
    """The end of a person's token."""
    grants: tuple[Grant, ...] = ()
    """Roles of the caller; empty where ``role`` and ``queues`` say all."""
    is_everywhere: bool = False
    """Whether the caller may use all queues in this call."""

    @property
    def title(self) -> str:
        """The caller in messages, such as ``the key 'vision-team'``."""
        return f"the key {self.name!r}" if self.issuer is None else f"the user {self.name!r}"

    @property
    def is_admin(self) -> bool:
        return self.role is KeyRole.ADMIN

    @property
    def is_owner(self) -> bool:
        return self.role is KeyRole.OWNER

    @property
    def has_every_queue(self) -> bool:
        """Return whether the caller may use all queues in this call."""
        return self.is_everywhere or self.is_admin

    @property
    def all_grants(self) -> tuple[Grant, ...]:
        """The roles of the caller, each with its queues. Those of agents and of owners, who have clusters, have none."""
        return self.grants or (Grant(self.role, self.queues),)

    @property
    def roles(self) -> str:
        """The roles of the caller in messages, such as ``viewer and finance``."""
        if self.is_owner:
            word = "clusters" if len(self.clusters) > 1 else "cluster"
            return (
                f"{self.role} of {word} {', '.join(self.clusters)}" if self.clusters else f"{self.role} of no cluster"
            )
        return " and ".join(one.role for one in self.all_grants)

    def has(self, permission: Permission, queue: str | None = None) -> bool:
        """Return whether the caller has a permission: in a queue; or without one, in any or in the whole installation."""
        return any(
            one.has(permission) and (queue is None or one.covers(queue)) for one in self.all_grants if _counts(one)
        )

    def with_permission(self, permission: Permission) -> "Caller":
        """Return the caller with the queues in which it has a permission, for a call that needs this permission.

        Raises ProblemError FORBIDDEN where it has the permission nowhere.
        """
        if self.role is KeyRole.ADMIN and permission is not Permission.AGENT:
            return self
        found = [one for one in self.all_grants if _counts(one) and one.has(permission)]
        if not found:
            raise ProblemError(
                Code.FORBIDDEN,
                f"this needs the permission {permission} (roles: {roles_with(permission)}); {self.title} has the role {self.roles}",
            )
        if not self.grants and self.role not in NEED_QUEUES:
            return self if self.is_owner or self.role is KeyRole.AGENT else replace(self, is_everywhere=not self.queues)
        if any(one.is_everywhere for one in found):
            return replace(self, queues=(), grants=self.all_grants, is_everywhere=True)
        queues = tuple(sorted({queue for one in found for queue in one.queues}))
        if queues == self.queues and not self.is_everywhere:
            return self
        return replace(self, queues=queues, grants=self.all_grants, is_everywhere=False)

    def manages(self, queue: str) -> bool:
        """Return whether the caller may change the jobs of others in a queue, whatever ``jobActions`` of the queue says."""
        return self.is_admin or self.has(Permission.JOBS_MANAGE, queue)

    @property
    def is_limited(self) -> bool:
        """Return whether the rate of calls is limited: an installation trusts its admins and agents."""
        return self.role not in (KeyRole.ADMIN, KeyRole.AGENT)

    def owns(self, cluster: str) -> bool:
        """Return whether the caller may look after this cluster."""
        return self.is_admin or (self.is_owner and cluster in self.clusters)

    def oversees(self, cluster: str) -> bool:
        """Return whether the caller may see all of a cluster: an owner of it, and who may use all queues."""
        return self.has_every_queue or self.owns(cluster)

    def may_use(self, queue: str) -> bool:
        """Return whether the caller may do in this queue what the call does."""
        return self.has_every_queue or any(queue == own or queue.startswith(own + "/") for own in self.queues)

    def may_submit_for(self, user: str) -> bool:
        """Return whether the caller may submit jobs that are those of this user."""
        return self.is_admin or any(
            user.startswith(one[:-1]) if one.endswith("*") else user == one for one in self.on_behalf_of
        )

    def is_below(self, queue: str) -> bool:
        """Return whether a queue of the caller is below this one."""
        return any(own.startswith(queue + "/") for own in self.queues)

    def is_above(self, queue: str) -> bool:
        """Return whether a queue is below one that the caller may use in this call, and not that one itself."""
        return self.has_every_queue or any(queue.startswith(own + "/") for own in self.queues)

    def may_know(self, queue: str) -> bool:
        """Return whether the caller may know this queue: one of its own, or one above, whose rules apply to its own."""
        return self.may_use(queue) or self.is_below(queue)

    def may_see(self, cluster: str, only_queues: Sequence[str]) -> bool:
        """Return whether the caller may see a cluster: an owner those of the key, others those that their jobs may go to."""
        return cluster in self.clusters if self.is_owner else self.may_go_to(only_queues)

    def may_go_to(self, only_queues: Sequence[str]) -> bool:
        """Return whether jobs of the caller may go to a cluster that is for these queues; an empty ``only_queues`` means all
        queues.
        """
        return self.has_every_queue or not only_queues or any(map(self.may_know, only_queues))


def _counts(grant: Grant) -> bool:
    """Return whether a grant gives any rights: a role that is for some queues has none without these."""
    return bool(grant.queues) or grant.role not in NEED_QUEUES


@dataclass(frozen=True, slots=True)
class CountingKey:
    """A valid key: its caller, and the seconds until it expires, if ever."""

    caller: Caller
    expires_in: float | None


async def all_that_count(tx: Transaction) -> dict[bytes, CountingKey]:
    """Return all keys that were neither revoked nor have expired, by hash; without people, who have none."""
    rows = await tx.all(
        f"""
        SELECT k.hash, k.id, k.name, {_ROLE}, {_QUEUES}, k.cluster_id, c.name AS cluster, {_CLUSTERS}, k.on_behalf_of,
               extract(epoch FROM k.expires_at - now())::float8 AS expires_in
        FROM api_keys k LEFT JOIN clusters c ON c.id = k.cluster_id
        WHERE k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now()) AND k.issuer IS NULL
        """
    )
    return {
        bytes(row.hash): CountingKey(
            _caller_of(row),
            row.expires_in,
        )
        for row in rows
    }


def _caller_of(row: Any) -> Caller:
    role, queues = KeyRole(row.role), tuple(row.queues)
    submits = role in (KeyRole.USER, KeyRole.SUBMITTER)
    return Caller(
        row.id,
        row.name,
        role,
        queues if submits else (),
        row.cluster_id,
        row.cluster,
        tuple(row.clusters),
        tuple(row.on_behalf_of),
        grants=() if submits or role in (KeyRole.ADMIN, KeyRole.OWNER, KeyRole.AGENT) else (Grant(role, queues),),
    )


async def keys_named(tx: Transaction, name: str) -> list[int]:
    """Return the keys and people of this name, valid or not."""
    return [row.id for row in await tx.all("SELECT id FROM api_keys WHERE name = :name", name=name)]


async def revision(tx: Transaction) -> str:
    """Return a text that changes when a key or a person is made, revoked, restored or removed, when a role binding changes, or when a
    cluster is made or removed.
    """
    row = await tx.one(
        """
        SELECT (SELECT concat_ws(' ', count(*), max(id), count(revoked_at), max(revoked_at), sum(cardinality(clusters)))
                FROM api_keys WHERE through_id IS NULL)
               || '/' || (SELECT concat_ws(' ', count(*), max(id)) FROM clusters)
               || '/' || (SELECT concat_ws(' ', count(*), max(id), sum(revision)) FROM role_bindings) AS revision
        """
    )
    return str(row.revision)


async def insert(
    tx: Transaction,
    *,
    name: str,
    key_hash: bytes,
    hint: str,
    role: KeyRole,
    queues: Sequence[str],
    cluster_id: int | None,
    clusters: Sequence[int] | None,
    on_behalf_of: Sequence[str],
    expires_at: datetime | None,
) -> int:
    """Store an API key and return its number. ``clusters``: of an owner's key; else None.

    An owner's key and those of roles that the previous release does not know are stored with the role of a user without queues.
    """
    is_granted = role not in _STORED_ROLES
    row = await tx.one(
        """
        INSERT INTO api_keys (name, hash, hint, role, queues, granted_role, granted_queues, cluster_id, clusters, on_behalf_of,
                              expires_at)
        VALUES (:name, :hash, :hint, CAST(:role AS key_role), :queues, :granted, CAST(:granted_queues AS text[]), :cluster,
                CAST(:clusters AS int[]), :users, :expires)
        ON CONFLICT (hash) DO UPDATE SET revoked_at = NULL RETURNING id
        """,
        name=name,
        hash=key_hash,
        hint=hint,
        role=(KeyRole.USER if is_granted or role is KeyRole.OWNER else role).value,
        queues=[] if is_granted else list(queues),
        granted=role.value if is_granted else None,
        granted_queues=list(queues) if is_granted else None,
        cluster=cluster_id,
        clusters=None if clusters is None else list(clusters),
        users=list(on_behalf_of),
        expires=expires_at,
    )
    return int(row.id)


async def user_through(tx: Transaction, key_id: int, user: str, most: int) -> int | None:
    """Return the row that stands for a user whose jobs come through a key; made if it is missing. None: the key has ``most`` users."""
    row = await tx.first(
        """
        WITH made AS (
            INSERT INTO api_keys (name, hash, hint, role, queues, through_id, revoked_at)
            SELECT :user, sha256(convert_to(gen_random_uuid()::text, 'UTF8')), '', 'user', '{}', :key, now()
            WHERE (SELECT count(*) FROM api_keys WHERE through_id = :key) < :most
               OR EXISTS (SELECT 1 FROM api_keys WHERE through_id = :key AND name = :user)
            ON CONFLICT (through_id, name) WHERE through_id IS NOT NULL DO UPDATE SET name = excluded.name
            RETURNING id
        )
        SELECT id FROM made
        """,
        key=key_id,
        user=user,
        most=most,
    )
    return None if row is None else int(row.id)


class StoredPerson(NamedTuple):
    """A person who has signed in: number, account, and the name, groups and address in the token that was last seen."""

    id: int
    issuer: str
    subject: str
    name: str
    groups: list[str]
    email: str | None
    revoked: bool


async def people(tx: Transaction) -> Sequence[StoredPerson]:
    """Return all people, also those who were revoked."""
    return await tx.all_of(
        StoredPerson,
        """
        SELECT id, issuer, subject, name, coalesce(groups, '{}') AS groups, email,
               revoked_at IS NOT NULL AS revoked
        FROM api_keys WHERE issuer IS NOT NULL ORDER BY id
        """,
    )


async def put_person(
    tx: Transaction, issuer: str, subject: str, name: str, groups: Sequence[str], email: str | None
) -> int:
    """Store a person with these name, groups and address for e-mail; return the number. A person who was revoked stays so."""
    row = await tx.one(
        """
        INSERT INTO api_keys (name, hash, hint, role, queues, issuer, subject, groups, email)
        VALUES (:name, sha256(convert_to(gen_random_uuid()::text, 'UTF8')), '', 'user', '{}', :issuer, :subject,
                CAST(:groups AS text[]), :email)
        ON CONFLICT (issuer, subject) WHERE issuer IS NOT NULL
        DO UPDATE SET name = excluded.name, groups = excluded.groups, email = excluded.email RETURNING id
        """,
        name=name,
        issuer=issuer,
        subject=subject,
        groups=list(groups),
        email=email,
    )
    return int(row.id)


class ListedKey(NamedTuple):
    """An API key as admins see it, or a person with ``issuer`` and ``groups``. ``hint``: its first characters; ``cluster``: the
    cluster of an agent's key; ``clusters``: those of an owner's; ``on_behalf_of``: users for whom it may submit.
    """

    id: int
    name: str
    hint: str
    role: KeyRole
    queues: list[str]
    cluster: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    clusters: list[str]
    on_behalf_of: list[str]
    issuer: str | None
    groups: list[str]
    email: str | None


async def listing(tx: Transaction) -> Sequence[ListedKey]:
    return await tx.all_of(
        ListedKey,
        f"""
        SELECT k.id, k.name, k.hint, {_ROLE}, {_QUEUES}, c.name AS cluster, k.created_at, k.expires_at, k.revoked_at,
               k.last_used_at, {_CLUSTERS}, k.on_behalf_of, k.issuer, coalesce(k.groups, '{{}}') AS groups, k.email
        FROM api_keys k LEFT JOIN clusters c ON c.id = k.cluster_id WHERE k.through_id IS NULL ORDER BY k.id
        """,
    )


async def names(tx: Transaction) -> dict[int, str]:
    """Return the name of each key, and of each user whose jobs come through a key, by its number."""
    return {row.id: row.name for row in await tx.all("SELECT id, name FROM api_keys")}


async def of_cluster(tx: Transaction, cluster_id: int) -> list[int]:
    """Return keys that are valid now for the calls of a cluster's agent."""
    rows = await tx.all(
        """
        SELECT id FROM api_keys WHERE cluster_id = :id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
        ORDER BY id
        """,
        id=cluster_id,
    )
    return [row.id for row in rows]


async def valid_named(
    tx: Transaction, name: str, *, issuer: str | None = None, subject: str | None = None
) -> int | None:
    """Return the key, or the person, of this name that is valid and not an agent's, if there is one; other than this account.

    Until the end of the transaction, no other one makes such a key or person: each asks this first.
    """
    await tx.one("SELECT pg_advisory_xact_lock(hashtextextended('api key ' || :name, 0))", name=name)
    row = await tx.first(
        f"""
        SELECT id FROM api_keys WHERE name = :name AND role <> 'agent' AND {_VALID}
        AND NOT coalesce(issuer = :issuer AND subject = :subject, false) ORDER BY id LIMIT 1
        """,
        name=name,
        issuer=issuer,
        subject=subject,
    )
    return None if row is None else int(row.id)


async def is_stored(tx: Transaction, key_hash: bytes) -> bool:
    """Return whether there is a key with this hash, also a revoked one."""
    return await tx.first("SELECT 1 AS there FROM api_keys WHERE hash = :hash", hash=key_hash) is not None


async def lock_valid_admins(tx: Transaction) -> list[int]:
    """Return the valid keys of admins, locked, so that they are revoked one after the other."""
    rows = await tx.all(f"SELECT id FROM api_keys WHERE role = 'admin' AND {_VALID} ORDER BY id FOR UPDATE")
    return [row.id for row in rows]


async def note_uses(tx: Transaction, key_ids: Sequence[int]) -> None:
    """Record that keys are used now. A key whose row another transaction has locked is left out: the next time counts."""
    await tx.run(
        """
        UPDATE api_keys SET last_used_at = now()
        WHERE id IN (SELECT id FROM api_keys WHERE id = ANY(:ids) ORDER BY id FOR UPDATE SKIP LOCKED)
        """,
        ids=list(key_ids),
    )


async def revoke(tx: Transaction, key_id: int) -> bool:
    return await tx.run("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = :id", id=key_id) > 0


async def end_after(tx: Transaction, key_id: int, seconds: float) -> None:
    """Let a key expire after ``seconds``, or when it does anyhow; with 0, revoke it."""
    if not seconds:
        await revoke(tx, key_id)
        return
    await tx.run(
        """
        UPDATE api_keys SET expires_at = least(coalesce(expires_at, 'infinity'), now() + make_interval(secs => :seconds))
        WHERE id = :id
        """,
        id=key_id,
        seconds=seconds,
    )


async def restore_person(tx: Transaction, person_id: int) -> bool:
    """Let the tokens of a person who was revoked count again; return whether there is such a person."""
    return await tx.run("UPDATE api_keys SET revoked_at = NULL WHERE id = :id AND issuer IS NOT NULL", id=person_id) > 0


@dataclass(frozen=True, slots=True)
class Claim:
    """An idempotency key of a caller, on a route."""

    api_key_id: int
    route: str
    key: str


async def claim_idempotency(tx: Transaction, claim: Claim, body_hash: bytes) -> tuple[bytes, int, bytes] | None:
    """Claim an idempotency key for this transaction, or return the stored answer to its first use: body hash, status, answer.

    A second request with the same key waits here until the first has ended.
    """
    await tx.run(
        """
        DELETE FROM idempotency_keys WHERE api_key_id = :caller AND route = :route AND key = :key
        AND created_at < now() - make_interval(days => :days)
        """,
        caller=claim.api_key_id,
        route=claim.route,
        key=claim.key,
        days=IDEMPOTENCY_DAYS,
    )
    if await claim_unused(tx, {claim: body_hash}):
        return None
    row = await tx.first(
        "SELECT body_hash, status, answer FROM idempotency_keys WHERE api_key_id = :caller AND route = :route AND key = :key",
        caller=claim.api_key_id,
        route=claim.route,
        key=claim.key,
    )
    if row is None:
        # The first request was refused and has released the key in the meantime.
        return await claim_idempotency(tx, claim, body_hash)
    return bytes(row.body_hash), row.status, bytes(row.answer)


async def claim_unused(tx: Transaction, claims: dict[Claim, bytes]) -> set[Claim]:
    """Claim those idempotency keys that were never used, each with the fingerprint of its body.

    Waits for open requests with one of the same keys, in an order that all callers share.
    """
    rows = await tx.all(
        """
        INSERT INTO idempotency_keys (api_key_id, route, key, body_hash, status, answer)
        SELECT caller, route, key, hash, 0, ''
        FROM unnest(CAST(:callers AS int[]), CAST(:routes AS text[]), CAST(:keys AS text[]), CAST(:hashes AS bytea[]))
             AS n(caller, route, key, hash)
        ORDER BY caller, route, key
        ON CONFLICT DO NOTHING RETURNING api_key_id, route, key
        """,
        **_columns(claims),
        hashes=list(claims.values()),
    )
    return {Claim(row.api_key_id, row.route, row.key) for row in rows}


def _columns(claims: Iterable[Claim]) -> dict[str, Any]:
    several = list(claims)
    return {
        "callers": [claim.api_key_id for claim in several],
        "routes": [claim.route for claim in several],
        "keys": [claim.key for claim in several],
    }


async def keep_answers(tx: Transaction, answers: dict[Claim, tuple[int, bytes]]) -> None:
    """Store the answers to requests, status and body, for repeated requests."""
    await tx.run(
        """
        UPDATE idempotency_keys k SET status = n.status, answer = n.answer
        FROM unnest(CAST(:callers AS int[]), CAST(:routes AS text[]), CAST(:keys AS text[]), CAST(:statuses AS int[]),
                    CAST(:answers AS bytea[])) AS n(caller, route, key, status, answer)
        WHERE k.api_key_id = n.caller AND k.route = n.route AND k.key = n.key
        """,
        **_columns(answers),
        statuses=[status for status, _ in answers.values()],
        answers=[body for _, body in answers.values()],
    )


async def drop_claims(tx: Transaction, claims: Iterable[Claim]) -> None:
    """Delete idempotency keys whose work was refused, so that they may be used with a corrected body."""
    await tx.run(
        """
        DELETE FROM idempotency_keys k
        USING unnest(CAST(:callers AS int[]), CAST(:routes AS text[]), CAST(:keys AS text[])) AS n(caller, route, key)
        WHERE k.api_key_id = n.caller AND k.route = n.route AND k.key = n.key
        """,
        **_columns(claims),
    )


class AuditLine(NamedTuple):
    """One line of the audit: the actor, the action and its target, the request and its address."""

    api_key_id: int | None
    actor: str
    action: str
    target: str
    request_id: str
    address: str
    details: Mapping[str, Any]


async def note_audit(
    tx: Transaction,
    caller: Caller | None,
    action: str,
    target: str,
    request_id: str,
    details: Mapping[str, Any] | None = None,
    address: str = "",
) -> None:
    """Write one audit line; ``caller`` None: somebody at the machine itself."""
    key, actor = (None, "local") if caller is None else (caller.key_id, caller.name)
    await note_lines(tx, [AuditLine(key, actor, action, target, request_id, address, details or {})])


async def note_lines(tx: Transaction, lines: Sequence[AuditLine]) -> None:
    """Write audit lines in one statement."""
    await tx.run(
        """
        INSERT INTO audit (api_key_id, actor, action, target, request_id, address, details)
        SELECT caller, actor, action, target, request, address, CAST(details AS jsonb)
        FROM unnest(CAST(:callers AS int[]), CAST(:actors AS text[]), CAST(:actions AS text[]), CAST(:targets AS text[]),
                    CAST(:requests AS text[]), CAST(:addresses AS text[]), CAST(:details AS text[]))
             AS n(caller, actor, action, target, request, address, details)
        """,
        callers=[line.api_key_id for line in lines],
        actors=[line.actor for line in lines],
        actions=[line.action for line in lines],
        targets=[line.target for line in lines],
        requests=[line.request_id for line in lines],
        addresses=[line.address for line in lines],
        details=[dumps(line.details) for line in lines],
    )


class StoredAuditLine(NamedTuple):
    """A line of the audit as it is stored."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    request_id: str
    address: str
    details: dict[str, Any]


CLUSTER_ACTIONS = ("rotate key", "drain", "cordon", "uncordon", "declare lost", "stop quarantined")
"""Actions of the audit whose target is a cluster, beside those that end with the word."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A selection of audit lines; a field that is None does not narrow it. ``clusters``: only lines about one of these clusters."""

    target: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    clusters: tuple[str, ...] | None = None


async def audit_page(tx: Transaction, wanted: AuditFilter, before: int | None, limit: int) -> Sequence[StoredAuditLine]:
    """Return audit lines with an id below ``before``, newest first."""
    conditions = {
        "id < :before": before,
        "target = :target": wanted.target,
        "actor = :actor": wanted.actor,
        "action = :action": wanted.action,
        "at >= :since": wanted.since,
        "at < :until": wanted.until,
    }
    given = {text: value for text, value in conditions.items() if value is not None}
    parameters: dict[str, Any] = {text.rpartition(":")[2]: value for text, value in given.items()}
    where = " AND ".join(given) or "true"
    if wanted.clusters is not None:
        # A line about a revoked key has the number of the key.
        where += (
            " AND (target = ANY(:clusters) AND (action LIKE '% cluster' OR action = ANY(:cluster_actions))"
            " OR action = 'revoke key' AND target IN (SELECT k.id::text FROM api_keys k"
            " JOIN clusters c ON c.id = k.cluster_id WHERE c.name = ANY(:clusters) AND c.removed_at IS NULL))"
        )
        parameters |= {"clusters": list(wanted.clusters), "cluster_actions": list(CLUSTER_ACTIONS)}
    return await tx.all_of(
        StoredAuditLine,
        "SELECT id, at, actor, action, target, request_id, address, details FROM audit"
        f" WHERE {where} ORDER BY id DESC LIMIT :limit",
        **parameters,
        limit=limit,
    )
