"""Configuration of the local runtime's declared cluster."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.base import Name40, Strict
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.member_use import USE_SECONDS, UseSeconds
from trainmaster.protocol.quantities import Quantity, parse_resources

_MEMBERS_PER_CPU = 64


class LocalTaint(Strict):
    """A taint as in Kubernetes: keeps away members that do not tolerate it."""

    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class LocalNodes(Strict):
    """Declared equivalent nodes. Devices such as ``nvidia.com/gpu`` are counted, not assigned."""

    name: Name40 | None = None
    """Name of the node group; ``group-<position>`` if not given."""
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    allocatable: dict[ResourceName, Quantity]
    """Resources of each node."""
    members: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """The most members of each node at a time; by default 64 for each of its CPUs, and at least 64."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    taints: tuple[LocalTaint, ...] = ()
    topology: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Topology from wide to narrow, such as ``{zone: a, rack: r1}``; the pairs are labels of the nodes too."""

    @field_validator("allocatable")
    @classmethod
    def _parse(cls, value: dict[str, str]) -> dict[str, str]:
        parse_resources(value)
        return value

    @property
    def most_members(self) -> int:
        """The most members of each node, whatever they request: each is a process of this machine."""
        if self.members is not None:
            return self.members
        return max(1, parse_resources(self.allocatable).get("cpu", 0) // 1000) * _MEMBERS_PER_CPU


class LocalCluster(Strict):
    """The declared cluster. It never runs more at a time than its nodes declare."""

    nodes: Annotated[tuple[LocalNodes, ...], Field(min_length=1)]
    datasets: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = ()
    use_seconds: UseSeconds = USE_SECONDS
    """Time from one report of what members use to the next; 0: none are sent."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = self.group_names
        if len(set(names)) < len(names):
            raise ValueError("two groups of nodes have the same name")
        return self

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(nodes.name or f"group-{position}" for position, nodes in enumerate(self.nodes))
