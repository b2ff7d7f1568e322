"""The rights that role bindings give to a person."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from trainmaster.protocol.permissions import OF_PEOPLE, Permission, permissions_of
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.states import KeyRole


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for some queues with all below these; without any, for the whole installation."""

    role: KeyRole
    queues: tuple[str, ...] = ()

    @property
    def is_everywhere(self) -> bool:
        return not self.queues

    def has(self, permission: Permission) -> bool:
        """Return whether the role has a permission in the queues that it is for."""
        return permission in permissions_of(self.role, for_queues=bool(self.queues))

    def covers(self, queue: str) -> bool:
        """Return whether a queue is one of those that the role is for."""
        return not self.queues or any(queue == one or queue.startswith(one + "/") for one in self.queues)


@dataclass(frozen=True, slots=True)
class Rights:
    """The grants of a person; or, with the role of an owner, clusters. ``role``: the first of all in the order of ``KeyRole``."""

    role: KeyRole
    grants: tuple[Grant, ...] = ()
    clusters: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        """Queues to which a person may submit by the role of a submitter."""
        found = {queue for one in self.grants if one.role in (KeyRole.SUBMITTER, KeyRole.USER) for queue in one.queues}
        return tuple(sorted(found))

    @property
    def every_queue(self) -> tuple[str, ...]:
        """Queues for which a person has any role."""
        return tuple(sorted({queue for one in self.grants for queue in one.queues}))


def binds(binding: RoleBindingSpec, user: str, groups: Collection[str]) -> bool:
    """Return whether a binding names the user or one of the groups."""
    return user in binding.users or any(group in groups for group in binding.groups)


def rights_of(bindings: Iterable[RoleBindingSpec], user: str, groups: Iterable[str]) -> Rights | None:
    """Return the union of the bindings that name a person; None where none does.

    A person who is bound as owner of clusters and with another role has the rights of the other one.
    """
    own = frozenset(groups)
    return union_of(one for one in bindings if binds(one, user, own))


def union_of(bindings: Iterable[RoleBindingSpec]) -> Rights | None:
    """Return the rights of these bindings together; None without any."""
    found = list(bindings)
    if not found:
        return None
    roles = {one.role for one in found}
    role = next(one for one in OF_PEOPLE if one in roles)
    if role is KeyRole.OWNER:
        return Rights(role, clusters=tuple(sorted({name for one in found for name in one.clusters})))
    return Rights(role, tuple(_grants_of(found, roles - {KeyRole.OWNER})))


def _grants_of(bindings: Iterable[RoleBindingSpec], roles: Collection[KeyRole]) -> Iterable[Grant]:
    for role in (one for one in OF_PEOPLE if one in roles):
        of_role = [one for one in bindings if one.role is role]
        if any(not one.queues for one in of_role):
            yield Grant(role)
        else:
            yield Grant(role, tuple(sorted({queue for one in of_role for queue in one.queues})))
