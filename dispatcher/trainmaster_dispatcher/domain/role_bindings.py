"""The rights that role bindings give to a person."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.states import KeyRole

_PRECEDENCE = (KeyRole.ADMIN, KeyRole.USER, KeyRole.OWNER)


@dataclass(frozen=True, slots=True)
class Rights:
    """A role with what it is for: queues of a user, clusters of an owner."""

    role: KeyRole
    queues: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()


def binds(binding: RoleBindingSpec, user: str, groups: Collection[str]) -> bool:
    """Return whether a binding names the user or one of the groups."""
    return user in binding.users or any(group in groups for group in binding.groups)


def rights_of(bindings: Iterable[RoleBindingSpec], user: str, groups: Iterable[str]) -> Rights | None:
    """Return the union of the bindings that name a person; None where none does.

    A caller has one role: admin before user before owner. Queues are those of all bindings as user; a person who is bound as user and
    as owner has the rights of a user.
    """
    own = frozenset(groups)
    found = [one for one in bindings if binds(one, user, own)]
    role = next((role for role in _PRECEDENCE if any(one.role is role for one in found)), None)
    if role is None:
        return None
    of_role = [one for one in found if one.role is role]
    return Rights(
        role,
        tuple(sorted({queue for one in of_role for queue in one.queues})),
        tuple(sorted({cluster for one in of_role for cluster in one.clusters})),
    )
