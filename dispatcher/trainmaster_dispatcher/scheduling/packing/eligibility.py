"""Eligibility of nodes for members: selectors, affinity, taints and NUMA policy. It does not look at free capacity."""

from trainmaster.cluster_model.eligibility import obstruction
from trainmaster.cluster_model.numa_policies import is_kept_by
from trainmaster.protocol.agent import NodeGroup
from trainmaster_dispatcher.domain.shapes import RoleShape


def allows(role: RoleShape, group: NodeGroup) -> bool:
    """Return whether members of a role may be on nodes of a group, by what they select, tolerate and want to be held to."""
    if role.numa and group.numa is not None and not is_kept_by(role.numa, group.numa.policy):
        return False
    return obstruction(group.labels, group.taints, role.node_selector, role.affinity, role.tolerations) is None
