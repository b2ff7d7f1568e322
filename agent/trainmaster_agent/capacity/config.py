"""Capacity settings that a cluster's admin gives."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.agent import HOST_LEVEL, MOST_NODES
from trainmaster.protocol.base import Name40, Strict, worded_pattern
from trainmaster.protocol.jobs import AffinityTerm, ResourceName
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.quantities import Quantity, Resources, parse_quantity, parse_resources
from trainmaster_agent.capacity.shared_gpus import GpuSharing

OTHERS = "others"
"""Grid entry for all resources that are not named."""

VALUE = "{value}"
"""Stands for the value of a node's label in the name of its node group."""
_NAMESPACE = worded_pattern(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a namespace of a-z, 0-9 and '-' that begins and ends with a letter or a digit"
)
_DNS_NAME = worded_pattern(
    r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
    "lower-case letters, digits, '-' and '.', with a letter or digit at the beginning and the end",
)

_GRID = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi", OTHERS: "1"}


class LevelConfig(Strict):
    """A topology level: its name in jobs of the whole fleet, and the node label that holds the domain in this cluster."""

    level: LabelKey
    label: LabelKey

    @model_validator(mode="after")
    def _is_above_the_host(self) -> Self:
        if HOST_LEVEL in (self.level, self.label):
            raise ValueError(f"{HOST_LEVEL} is always the narrowest level and is not listed")
        return self


class Selector(Strict):
    """A node selector: every entry must match, as in Kubernetes' label selectors. Without entries it selects every node."""

    match_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    match_expressions: tuple[AffinityTerm, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            term.holds(labels) for term in self.match_expressions
        )


GroupName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class AutoscalerConfig(Strict):
    """Where the Cluster Autoscaler reports its node groups, and how their nodes are recognised."""

    enabled: bool = True
    """Whether its report is read, and the NodePools of Karpenter."""
    namespace: Annotated[str, StringConstraints(pattern=_NAMESPACE, max_length=63)] = "kube-system"
    config_map: Annotated[str, StringConstraints(pattern=_DNS_NAME, max_length=253)] = "cluster-autoscaler-status"
    node_label: LabelKey | None = None
    """Label of a node whose value is in the name of its node group; None: nodes of groups are not recognised."""
    group_name: GroupName = VALUE
    """Name of the group of nodes with a value of the label: ``{value}`` stands for it, ``*`` for any characters, ``?`` for one."""

    provisioning_request: Annotated[str, StringConstraints(pattern=_DNS_NAME, max_length=253)] | None = None
    """Provisioning class by which nodes to come are asked for, as a ProvisioningRequest for each gang; None: by its waiting pods."""

    @field_validator("group_name")
    @classmethod
    def _has_the_value_once(cls, text: str) -> str:
        if text.count(VALUE) != 1:
            raise ValueError(f"groupName has {VALUE} in it once, which stands for the value of nodeLabel")
        return text

    def value_of(self, group: str) -> str | None:
        """Return the label's value on the nodes of a node group; None if no value gives its name."""
        match = self._pattern.fullmatch(group)
        return None if match is None or self.node_label is None else match["value"]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        one_of = {VALUE: r"(?P<value>[-A-Za-z0-9_.]+)", "*": ".*", "?": "."}
        parts = re.split(r"(\{value\}|[*?])", self.group_name)
        return re.compile("".join(one_of.get(part) or re.escape(part) for part in parts))


class PoolTaint(Strict):
    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class ScalePool(Strict):
    """Equivalent nodes that the cluster's autoscaler adds and removes."""

    name: Name40
    resources: dict[ResourceName, Quantity] = Field(default_factory=dict)
    """Resources that one node of the pool offers."""
    labels: dict[LabelKey, LabelValue] = Field(min_length=1)
    """Labels of the pool's nodes; existing nodes are recognised by them."""
    taints: tuple[PoolTaint, ...] = ()
    most_nodes: Annotated[int, Field(ge=0, le=MOST_NODES)] | None = None
    """The most nodes that the pool may have; None: as many as its autoscaler says."""
    node_group: GroupName | None = None
    """Name of the autoscaler's node group or NodePool; None: the name of the pool."""

    @property
    def amounts(self) -> Resources:
        return parse_resources(self.resources)


def _check_grid(grid: dict[str, str]) -> dict[str, str]:
    for name, text in grid.items():
        if parse_quantity(name, text) < 1:
            raise ValueError(f"the grid of {name} must be more than 0")
    return _GRID | grid


class CapacityConfig(Strict):
    """Settings of the capacity report."""

    levels: tuple[LevelConfig, ...] = ()
    """Topology levels from wide to narrow. Empty: as found in the cluster."""
    labels: tuple[LabelKey, ...] = ()
    """Node labels to report in addition to the usual ones, so that jobs can select nodes by them."""
    grid: Annotated[dict[ResourceName, Quantity], AfterValidator(_check_grid)] = Field(
        default_factory=lambda: dict(_GRID)
    )
    """Step to which a node's free amounts are rounded down, by resource."""
    most_groups: Annotated[int, Field(ge=10, le=20_000)] = 1500
    scale_pools: tuple[ScalePool, ...] = ()
    autoscaler: AutoscalerConfig = Field(default_factory=AutoscalerConfig)
    ignore_nodes: Selector | None = None
    """Nodes that Trainmaster must not use."""
    gpu_sharing: GpuSharing = GpuSharing.REPLICAS
    """Way in which jobs get parts of GPUs: ``replicas`` (time-slicing or MPS of NVIDIA's device plugin), ``kai``, ``hami``
    or ``none``."""
    ignore_taints: tuple[LabelKey, ...] = ()
    """Keys of taints that the pods of all jobs tolerate in this cluster. These taints are not reported."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for what, names in (
            ("level", [one.level for one in self.levels]),
            ("label of a level", [one.label for one in self.levels]),
            ("scale pool", [pool.name for pool in self.scale_pools]),
            ("node group of scale pools", [pool.node_group or pool.name for pool in self.scale_pools]),
        ):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{what} {twice!r} is given twice")
        return self

    def steps(self) -> tuple[Resources, int]:
        """Return the grid in each named resource's unit, and the step of all other resources."""
        steps = {name: parse_quantity(name, text) for name, text in self.grid.items()}
        return steps, steps.pop(OTHERS)
