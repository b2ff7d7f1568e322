"""Reports of rights: what a caller may do, who may do something, and the people and groups that were seen."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator

from trainmaster.protocol.access import (
    Directory,
    GrantView,
    GroupSeen,
    PermissionAnswer,
    PersonSeen,
    SubjectView,
    WhoCan,
)
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.permissions import OF_QUEUES, Permission
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.domain.role_bindings import Grant, binds, rights_of
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.tenants import QUEUES, ROLE_BINDINGS


async def can_i(tx: Transaction, caller: Caller, permission: Permission, queue: str | None) -> PermissionAnswer:
    """Return whether the caller has a permission. Raises ProblemError UNKNOWN_QUEUE for a queue that the caller may not know."""
    await _check_queue(tx, caller, permission, queue)
    allowed = caller.has(permission, queue)
    grants = [one async for one in _grants_of(tx, caller)]
    giving = tuple(one for one in grants if _gives(Grant(one.role, one.queues), permission, queue))
    if caller.is_owner:
        allowed = queue is None and allowed
        giving = tuple(grants) if allowed else ()
    why = " and ".join(_worded(caller, one) for one in giving)
    if not why:
        has = ", ".join(dict.fromkeys(one.role.value for one in grants)) or "none"
        where = "" if queue is None else f" in queue {queue!r}"
        why = f"no role of {caller.title} has it{where}; its roles: {has}"
    return PermissionAnswer(permission=permission, queue=queue, allowed=allowed, why=why, grants=giving)


async def who_can(tx: Transaction, caller: Caller, permission: Permission, queue: str | None) -> WhoCan:
    """Return who has a permission. Those who may use some queues alone see those whose role is for these queues alone, and the number
    of the others. Raises ProblemError UNKNOWN_QUEUE.
    """
    await _check_queue(tx, caller, permission, queue)
    found = [one async for one in _subjects(tx) if _gives(Grant(one.role, one.queues), permission, queue)]
    known = [one for one in found if caller.has_every_queue or (one.queues and all(map(caller.may_use, one.queues)))]
    known.sort(key=lambda one: (one.kind, one.name, one.role_binding or ""))
    return WhoCan(permission=permission, queue=queue, subjects=tuple(known), others=len(found) - len(known))


async def directory(tx: Transaction, caller: Caller) -> Directory:
    """Return the people who have signed in and the groups that were seen or are named; nobody for owners of clusters."""
    if not caller.has_every_queue:
        return Directory()
    bindings = [one.spec for one in await ROLE_BINDINGS.every(tx)]
    rows = [row for row in await keys.listing(tx) if row.issuer is not None]
    counted = Counter(group for row in rows if row.revoked_at is None for group in row.groups)
    named: dict[str, list[str]] = {}
    for binding in bindings:
        for group in binding.groups:
            named.setdefault(group, []).append(binding.name)
    people = [_person(row, bindings) for row in rows]
    groups = [
        GroupSeen(name=name, people=counted[name], role_bindings=tuple(sorted(named.get(name, ()))))
        for name in sorted(counted.keys() | named.keys())
    ]
    return Directory(people=tuple(sorted(people, key=lambda one: one.name)), groups=tuple(groups))


def _person(row: keys.ListedKey, bindings: list[RoleBindingSpec]) -> PersonSeen:
    rights = rights_of(bindings, row.name, row.groups)
    roles: tuple[KeyRole, ...] = ()
    if rights is not None:
        roles = tuple(one.role for one in rights.grants) or (rights.role,)
    return PersonSeen(
        id=row.id,
        name=row.name,
        issuer=row.issuer or "",
        groups=tuple(row.groups),
        roles=roles,
        email=row.email,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )


async def _check_queue(tx: Transaction, caller: Caller, permission: Permission, queue: str | None) -> None:
    if queue is None:
        return
    if permission not in OF_QUEUES:
        message = f"the permission {permission} is for the whole installation: leave out the queue"
        raise ProblemError(
            Code.INVALID_PARAMETER, f"queue: {message}", mistakes=(Mistake(path="queue", message=message),)
        )
    may_know = any(one.covers(queue) for one in caller.all_grants)
    if not may_know or queue not in await QUEUES.by_name(tx, [queue]):
        message = f"there is no queue {queue!r}"
        raise ProblemError(Code.UNKNOWN_QUEUE, message, mistakes=(Mistake(path="queue", message=message),))


def _gives(grant: Grant, permission: Permission, queue: str | None) -> bool:
    return grant.has(permission) and (queue is None or grant.covers(queue))


async def _grants_of(tx: Transaction, caller: Caller) -> AsyncIterator[GrantView]:
    """Yield the roles of a caller, each with the role binding that gives it."""
    if caller.issuer is None:
        for one in caller.all_grants:
            yield GrantView(role=one.role, queues=one.queues)
        return
    for row in await ROLE_BINDINGS.every(tx):
        if binds(row.spec, caller.name, caller.groups):
            yield GrantView(role=row.spec.role, queues=row.spec.queues, role_binding=row.spec.name)


async def _subjects(tx: Transaction) -> AsyncIterator[SubjectView]:
    """Yield all who have a role: users and groups of role bindings, and API keys that are valid."""
    for row in await ROLE_BINDINGS.every(tx):
        for one in _bound(row.spec):
            yield one
    for key in (await keys.all_that_count(tx)).values():
        caller = key.caller
        for grant in caller.all_grants:
            yield SubjectView(kind="key", name=caller.name, key_id=caller.key_id, role=grant.role, queues=grant.queues)


def _bound(spec: RoleBindingSpec) -> Iterator[SubjectView]:
    for name in spec.users:
        yield SubjectView(kind="user", name=name, role=spec.role, queues=spec.queues, role_binding=spec.name)
    for name in spec.groups:
        yield SubjectView(kind="group", name=name, role=spec.role, queues=spec.queues, role_binding=spec.name)


def _worded(caller: Caller, grant: GrantView) -> str:
    where = f" for {', '.join(grant.queues)}" if grant.queues else ""
    by = f"of the role binding {grant.role_binding}" if grant.role_binding else "of the key"
    if caller.is_owner:
        where = f" of {', '.join(caller.clusters)}"
    return f"by the role {grant.role}{where}, {by}"
