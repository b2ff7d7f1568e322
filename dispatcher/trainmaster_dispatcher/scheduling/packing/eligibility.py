"""Eligibility of nodes for members: selectors, affinity, taints and NUMA policy. It does not look at free capacity."""

from collections import Counter
from collections.abc import Mapping

from trainmaster.cluster_model.eligibility import PREFERENCE, describe, is_tolerated, obstruction
from trainmaster.cluster_model.numa_policies import is_kept_by
from trainmaster.cluster_model.whole_nodes import idle_device
from trainmaster.protocol.agent import NodeGroup, Taint
from trainmaster_dispatcher.domain.shapes import RoleShape, Terms

_MOST_OBSTACLES = 3


def allows(role: RoleShape, group: NodeGroup) -> bool:
    """Return whether members of a role may be on nodes of a group, by what they select, tolerate and want to be held to."""
    return (
        _keeps_numa(role, group)
        and _not_for_one_member(role, group) is None
        and obstruction(group.labels, group.taints, role.node_selector, role.affinity, role.tolerations) is None
    )


def _keeps_numa(role: RoleShape, group: NodeGroup) -> bool:
    return not role.numa or group.numa is None or is_kept_by(role.numa, group.numa.policy)


def _not_for_one_member(role: RoleShape, group: NodeGroup) -> str | None:
    """Return why an exclusive member may not have a node of a group for itself; None if it may, and for other members."""
    if not role.exclusive:
        return None
    if group.occupied:
        return f"exclusive members take whole nodes: other pods are bound to those of node group {group.name}"
    idle = idle_device(group.free, role.needs)
    return None if idle is None else f"exclusive members take whole nodes: node group {group.name} has {idle.sentence}"


class LabelIndex:
    """The node groups of a cluster by label and by taints.

    A selector or an affinity term is evaluated once for each value that its label has in the cluster, and tolerations once for each
    set of taints, not once for each group: users may write many terms, and a cluster may have more than a thousand groups.
    """

    def __init__(self, groups: Mapping[str, NodeGroup]) -> None:
        self.groups = groups
        self._every: Mapping[str | None, frozenset[str]] = {None: frozenset(self.groups)}
        by_label: dict[str, dict[str | None, set[str]]] = {}
        by_taints: dict[tuple[Taint, ...], set[str]] = {}
        for name, group in self.groups.items():
            for key, value in group.labels.items():
                by_label.setdefault(key, {}).setdefault(value, set()).add(name)
            taints = tuple(one for one in group.taints if one.effect != PREFERENCE)
            if taints:
                by_taints.setdefault(taints, set()).add(name)
        for values in by_label.values():
            without = set(self.groups).difference(*values.values())
            if without:
                values[None] = without
        self._by_label, self._by_taints = by_label, by_taints
        self._obstacles: dict[Terms, str] = {}

    def allowing(self, role: RoleShape) -> tuple[str, ...]:
        """Return the groups for which ``allows`` holds, in their order."""
        excluded: set[str] = set()
        for key, wanted in role.node_selector:
            for value, names in self._by_label.get(key, self._every).items():
                if value != wanted:
                    excluded |= names
        for term in role.affinity:
            for value, names in self._by_label.get(term.key, self._every).items():
                if not term.admits(value):
                    excluded |= names
        for taints, names in self._by_taints.items():
            if not all(is_tolerated(taint, role.tolerations) for taint in taints):
                excluded |= names
        return tuple(
            name
            for name, group in self.groups.items()
            if name not in excluded and _keeps_numa(role, group) and _not_for_one_member(role, group) is None
        )

    def obstacles(self, role: RoleShape) -> str:
        """Return what keeps a role's members off the nodes, that of the most nodes first; empty where nothing does."""
        said = self._obstacles.get(role.terms)
        if said is None:
            counts: Counter[str] = Counter()
            for group in self.groups.values():
                found = obstruction(group.labels, group.taints, role.node_selector, role.affinity, role.tolerations)
                why = _not_for_one_member(role, group) if found is None else describe(found)
                if why is not None:
                    counts[why] += group.count
            said = "; on others, ".join(text for text, _ in counts.most_common(_MOST_OBSTACLES))
            self._obstacles[role.terms] = said
        return said
