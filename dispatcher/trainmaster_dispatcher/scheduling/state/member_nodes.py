"""The nodes of members, as agents report them. They are read for a cluster on request only: most decisions need node groups alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MEMBER_NODES_SECONDS = 30.0
"""The seconds for which the nodes are used after they were read."""


class NodeMembers(NamedTuple):
    """Members of one role of a run that are on the same node, and the group of that node."""

    group: str
    node: str
    role: str
    many: int


class RunOnNodes(NamedTuple):
    """An attempt of a job, and the nodes of those of its members that have one."""

    attempt: int
    members: tuple[NodeMembers, ...]


@dataclass(frozen=True, slots=True)
class MemberNodes:
    """The nodes of the members of a cluster's live runs, by job; ``at``: when they were read, in seconds since the epoch."""

    at: float
    runs: Mapping[int, RunOnNodes]
