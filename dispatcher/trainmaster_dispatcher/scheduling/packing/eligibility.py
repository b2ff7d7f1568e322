"""Whether members may be on nodes, whatever room these have."""

from trainmaster.protocol.agent import NodeGroup
from trainmaster_dispatcher.domain.shapes import RoleShape

_KEEPS = {"restricted": ("restricted", "singleNode"), "singleNode": ("singleNode",)}


def allows(role: RoleShape, group: NodeGroup) -> bool:
    """Whether members of a role may be on nodes of a group, by what they select, tolerate and want to be held to."""
    if role.numa and group.numa is not None and group.numa.policy not in _KEEPS[role.numa]:
        return False
    if any(group.labels.get(key) != value for key, value in role.node_selector):
        return False
    if not all(term.holds(group.labels) for term in role.affinity):
        return False
    return all(
        any(toleration.tolerates(taint.key, taint.value, taint.effect) for toleration in role.tolerations)
        for taint in group.taints
        if taint.effect != "PreferNoSchedule"
    )
