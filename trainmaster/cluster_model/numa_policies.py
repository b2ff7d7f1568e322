"""NUMA policies: by what name jobs ask for them and agents report those of nodes, and which ones a node has to keep."""

from enum import StrEnum


class NumaPolicy(StrEnum):
    """As in a job's ``topology.numa``; of nodes, the policies of the kubelet's topology manager."""

    NONE = "none"
    BEST_EFFORT = "bestEffort"
    RESTRICTED = "restricted"
    SINGLE_NODE = "singleNode"


STRICT_NUMA: frozenset[str] = frozenset((NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NODE))
"""Policies that a node has to keep; with the others it does what it can."""
_KEPT_BY: dict[str, frozenset[str]] = {
    NumaPolicy.RESTRICTED: STRICT_NUMA,
    NumaPolicy.SINGLE_NODE: frozenset((NumaPolicy.SINGLE_NODE,)),
}


def is_kept_by(requested: str, policy: str) -> bool:
    """Return whether nodes with ``policy`` hold their members to the policy ``requested``."""
    return requested not in _KEPT_BY or policy in _KEPT_BY[requested]
