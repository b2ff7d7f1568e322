"""The least members of a gang: how many of each role, how many in all, and how those in all are split over the roles.

Nothing here knows how a gang is started.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainmaster.protocol.jobs import JobSpec, Role


class GangMinimum(NamedTuple):
    """The least members of each role, by its name, and of all roles together: at least one, and never more than there are."""

    roles: dict[str, int]
    members: int


def gang_minimum(spec: JobSpec, sizes: Mapping[str, int] | None = None) -> GangMinimum:
    """Return the least members with which a gang starts. ``sizes``: the members that it has by role; as many as specified if None."""
    if sizes is None:
        if len(spec.roles) == 1 and spec.roles[0].min_replicas is None and spec.min_member is None:
            (role,) = spec.roles
            return GangMinimum({role.name: role.replicas}, max(1, role.replicas))
        sizes = {role.name: role.replicas for role in spec.roles}
    roles = {role.name: min(_least_of(spec, role), sizes.get(role.name, 0)) for role in spec.roles}
    members = spec.min_member or sum(roles.values())
    return GangMinimum(roles, max(1, min(members, sum(sizes.values()))))


def _least_of(spec: JobSpec, role: Role) -> int:
    """Return what a role says; all its members, unless ``minMember`` stands alone, which lets each role shrink to one."""
    if role.min_replicas is not None:
        return role.min_replicas
    stands_alone = spec.min_member is not None and all(other.min_replicas is None for other in spec.roles)
    return 1 if stands_alone else role.replicas


def split_minimum(roles: Iterable[tuple[str, int, int]], members: int) -> dict[str, int]:
    """Return how many members of each role make up the least of all roles together. ``roles``: name, size and least of each.

    Each role's least, filled up to ``members`` in proportion to what the roles can take beyond that (largest remainder), so that a
    gang of 2 and 8 that may start with 5 starts with 1 and 4.
    """
    roles = tuple(roles)
    counts = {name: least for name, _, least in roles}
    elastic = sum(size - least for _, size, least in roles)
    missing = min(elastic, members - sum(counts.values()))
    if missing > 0:
        shares = {name: divmod(missing * (size - least), elastic) for name, size, least in roles}
        over = missing - sum(whole for whole, _ in shares.values())
        for rank, (name, (whole, _)) in enumerate(sorted(shares.items(), key=lambda item: -item[1][1])):
            counts[name] += whole + (rank < over)
    return counts
