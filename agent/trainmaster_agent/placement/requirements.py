"""What a gang asks for that not every scheduler can honour, and the sentences that say so. Pure."""

from collections.abc import Collection

from trainmaster_agent.placement.port import Gang

_STRICT_NUMA = ("restricted", "singleNode")


def needs_group(gang: Gang) -> bool:
    """Whether more than one pod has to be placed as one: a member alone without a level is a plain pod."""
    return gang.size > 1 or gang.required is not None


def starters(gang: Gang) -> int:
    """Members that have to start together, never fewer than the roles need."""
    return sum(count for _, count in gang.quorum())


def lacks_numa(gang: Gang, scheduler: str, *, numa: bool = False) -> str | None:
    """``bestEffort`` is a wish, and the nodes' own policies see to it; the others need a scheduler that knows the zones."""
    if gang.numa not in _STRICT_NUMA or numa:
        return None
    return f"topology.numa {gang.numa} is asked for, and {scheduler} here does not look at NUMA zones"


def lacks_level(gang: Gang, scheduler: str, levels: Collection[str] = ()) -> str | None:
    """``levels``: node labels whose values the scheduler can keep a gang within."""
    if gang.required is None or gang.required in levels:
        return None
    known = f"; it knows {', '.join(sorted(levels))}" if levels else ""
    return f"{scheduler} here cannot keep all members within one {gang.required}{known}"


def lacks_role_minimum(gang: Gang, scheduler: str) -> str | None:
    """For schedulers with one number for the whole gang, which may be reached with too few members of a role.

    A role is sure of its least when the number cannot be reached by all members of the other roles and fewer of its own. That holds
    for gangs that start whole and for gangs of one role.
    """
    for role in gang.roles:
        sure = starters(gang) - (gang.size - role.size)
        if role.least and sure < role.least:
            return (
                f"{scheduler} counts members of all roles alike: with {starters(gang)} of {gang.size} it may start the gang "
                f"with {max(0, sure)} of role {role.name}, which needs {role.least}"
            )
    return None
