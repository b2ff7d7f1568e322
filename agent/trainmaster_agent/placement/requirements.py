"""Requirements of a gang that not every scheduler can honour, with a sentence for each. Pure."""

from collections.abc import Collection

from trainmaster.cluster_model.numa_policies import STRICT_NUMA, NumaPolicy
from trainmaster_agent.placement.port import Gang


def needs_group(gang: Gang) -> bool:
    """Return whether several pods have to be placed as one: a single member without a level is a plain pod."""
    return gang.size > 1 or gang.required is not None


def waits_for_nodes(gang: Gang) -> bool:
    """Return whether pods have to wait until nodes are found for them: those of a gang, those with a strict NUMA policy, and
    exclusive ones.
    """
    return needs_group(gang) or gang.numa in STRICT_NUMA or gang.is_exclusive


def starters(gang: Gang) -> int:
    """Return the number of members that have to start together, at least the roles' own minimums."""
    return sum(count for _, count in gang.quorum())


def lacks_numa(gang: Gang, scheduler: str, *, numa: bool = False) -> str | None:
    """Return why the NUMA policy cannot be honoured; None if it can. ``bestEffort`` is left to the nodes' own policies."""
    if gang.numa not in STRICT_NUMA or numa:
        return None
    return f"topology.numa {gang.numa} is requested, and {scheduler} here does not know NUMA zones"


def lacks_restricted(gang: Gang, scheduler: str) -> str | None:
    """Return why ``restricted`` cannot be honoured by a scheduler that knows zones of nodes with the policy single-numa-node alone."""
    if gang.numa != NumaPolicy.RESTRICTED:
        return None
    return f"topology.numa {gang.numa} is requested, and {scheduler} looks after the NUMA zones of members with singleNode only"


def lacks_whole_nodes(gang: Gang, scheduler: str) -> str | None:
    """Return why members cannot have nodes for themselves with a scheduler that does not honour anti-affinity of pods for gangs."""
    if not gang.is_exclusive:
        return None
    return f"topology.exclusive is requested, and {scheduler} here chooses nodes by free amounts alone"


def lacks_level(gang: Gang, scheduler: str, levels: Collection[str] = ()) -> str | None:
    """Return why the required level cannot be honoured. ``levels``: node labels within whose values the scheduler keeps a gang."""
    if gang.required is None or gang.required in levels:
        return None
    known = f"; it knows {', '.join(sorted(levels))}" if levels else ""
    return f"{scheduler} here cannot keep all members within one {gang.required}{known}"


def lacks_role_minimum(gang: Gang, scheduler: str) -> str | None:
    """Return why a scheduler with one minimum per gang might start it with too few members of a role.

    A role's minimum is guaranteed when the gang's cannot be reached by all members of the other roles and fewer of its own: true
    for gangs that start whole and for gangs of one role.
    """
    for role in gang.roles:
        sure = starters(gang) - (gang.size - role.size)
        if role.least and sure < role.least:
            return (
                f"{scheduler} counts members of all roles equally: with {starters(gang)} of {gang.size} it may start the gang "
                f"with {max(0, sure)} of role {role.name}, which needs {role.least}"
            )
    return None
