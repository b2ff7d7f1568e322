"""Models of the document ``FLEET.yaml``, a simulated fleet, described in ``docs/reference/simulation.md``."""

from collections.abc import Iterator
from math import prod
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.fake_cluster.seeded_random import DurationRange
from trainmaster.protocol.agent import MOST_NODES
from trainmaster.protocol.base import Name40, Strict, bounded
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.member_use import USE_SECONDS, UseSeconds
from trainmaster.protocol.quantities import Quantity, Resources, parse_resources
from trainmaster.protocol.states import ClusterKind


def _check_span(value: str) -> str:
    DurationRange.parse(value)
    return value


SpanText = Annotated[str, AfterValidator(_check_span)]
"""A duration, or a range of two: ``5s``, ``1s-5s``; or ``forever``."""

Part = Annotated[float, Field(ge=0, le=1)]
Amounts = Annotated[dict[ResourceName, Quantity], bounded(500)]
Short = Annotated[str, StringConstraints(max_length=63)]


def _check_resources(value: dict[str, str]) -> dict[str, str]:
    parse_resources(value)
    return value


class FleetTaint(Strict):
    """A taint as in Kubernetes: keeps away members that do not tolerate it."""

    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


def _check_turn(value: str) -> str:
    if parse_duration(value) <= 0:
        raise ValueError("a turn takes longer than nothing")
    return value


Turn = Annotated[Duration, AfterValidator(_check_turn)]


class Foreign(Strict):
    """Foreign pods: on each node they come once per period ``every``, stay for ``lasts`` and end."""

    resources: Annotated[Amounts, AfterValidator(_check_resources)]
    """Resources that they use on a node."""
    nodes: Part = 1.0
    """Part of the group's nodes on which they ever come."""
    chance: Part = 1.0
    """Probability that they come in a period."""
    every: Turn = "10m"
    lasts: SpanText = "5m"


class Failures(Strict):
    """Node failures: in each period ``every`` a node fails with probability ``chance``, for as long as ``lasts``."""

    every: Turn = "30d"
    chance: Part = 1.0
    lasts: SpanText = "10m"


class Provisioning(Strict):
    """Additional nodes, ordered when a gang waits for capacity, and removed after they were idle for a while."""

    most: Annotated[int, Field(ge=1, le=MOST_NODES)]
    """The most nodes of the group; ``count`` of them always exist."""
    delay: SpanText = "2m"
    """Time until an ordered node joins; drawn for each order, the same for the nodes of one gang."""
    idle: Duration = "10m"
    fail: Part = 0.0
    """Part of the orders that fail silently; the nodes may be ordered again once they should have joined."""


class FleetGroup(Strict):
    """Equivalent nodes. With a topology they are spread evenly over its narrowest domains."""

    name: Name40
    count: Annotated[int, Field(ge=0, le=MOST_NODES)]
    resources: Annotated[Amounts, AfterValidator(_check_resources)]
    """Resources of each node."""
    labels: Annotated[dict[LabelKey, LabelValue], bounded(1000)] = Field(default_factory=dict)
    taints: Annotated[tuple[FleetTaint, ...], bounded(500)] = ()
    topology: Annotated[dict[LabelKey, Annotated[int, Field(ge=1, le=10_000)]], bounded(32)] = Field(
        default_factory=dict
    )
    """From wide to narrow, the number of domains in each wider one: ``{zone: 2, rack: 4}`` are eight racks."""
    provisioning: Provisioning | None = None
    foreign: Annotated[tuple[Foreign, ...], bounded(1000)] = ()
    failures: Failures | None = None

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if self.provisioning is not None and self.provisioning.most < self.count:
            raise ValueError(f"provisioning.most {self.provisioning.most} is less than count {self.count}")
        if prod(self.topology.values()) > MOST_NODES:
            raise ValueError(f"the topology has more than {MOST_NODES} domains")
        return self

    @property
    def amounts(self) -> Resources:
        return parse_resources(self.resources)

    @property
    def most(self) -> int:
        """The most nodes of the group, including those that can be provisioned."""
        return self.count if self.provisioning is None else self.provisioning.most

    def domains(self) -> Iterator[tuple[str, ...]]:
        """Yield the narrowest domains, as paths such as ``("zone-1", "rack-3")``; one empty path without a topology."""
        paths: list[tuple[str, ...]] = [()]
        for level, count in self.topology.items():
            short = level.rpartition("/")[2]
            paths = [(*path, f"{short}-{number}") for path in paths for number in range(1, count + 1)]
        yield from paths

    def pool_names(self) -> Iterator[str]:
        """Yield the reported names of the nodes of each domain."""
        for path in self.domains():
            yield "-".join((self.name, *(part.rpartition("-")[2] for part in path)))


class Defaults(Strict):
    """Simulated behaviour of jobs that declare none."""

    run_time: SpanText = "10s"
    start_time: SpanText = "0s"
    stop_time: SpanText = "0s"
    fail: Part = 0.0


class Keyed(Strict):
    """Location of an agent's API key. In ``keyFile`` and ``keyEnv``, and in a fleet's ``key``, ``{name}`` is the cluster's name."""

    key: str = ""
    key_file: str = ""
    key_env: str = ""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if sum(map(bool, (self.key, self.key_file, self.key_env))) > 1:
            raise ValueError("give only one of key, keyFile and keyEnv")
        return self


class FleetCluster(Keyed):
    """One simulated cluster."""

    name: Name40
    kind: ClusterKind = ClusterKind.PRIVATE
    region: Short = ""
    provider: Short = ""
    labels: Annotated[dict[LabelKey, LabelValue], bounded(1000)] = Field(default_factory=dict)
    groups: Annotated[tuple[FleetGroup, ...], Field(min_length=1), bounded(20_000)]
    datasets: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], bounded(10_000)
    ] = ()
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Factor by which run, start and stop times are divided."""
    grid: Annotated[Amounts, AfterValidator(_check_resources)] = Field(
        default_factory=lambda: {"cpu": "500m", "memory": "1Gi"}
    )
    """Steps to which free amounts are rounded down in reports; devices are whole anyway."""
    defaults: Defaults = Defaults()

    @field_validator("groups")
    @classmethod
    def _names_differ(cls, value: tuple[FleetGroup, ...]) -> tuple[FleetGroup, ...]:
        names = [name for group in value for name in group.pool_names()]
        if len(set(names)) < len(names):
            raise ValueError("two groups have the same name, or one has the name of another's domain")
        return value


class Fleet(Keyed):
    """The clusters that one process simulates."""

    seed: int = 0
    use_seconds: UseSeconds = USE_SECONDS
    """Time from one report of what members use, which is made up, to the next; 0: none are sent."""
    clusters: Annotated[tuple[FleetCluster, ...], Field(min_length=1), bounded(10_000)]

    @field_validator("clusters")
    @classmethod
    def _names_differ(cls, value: tuple[FleetCluster, ...]) -> tuple[FleetCluster, ...]:
        names: set[str] = set()
        for cluster in value:
            if cluster.name in names:
                raise ValueError(f"two clusters have the name {cluster.name}")
            names.add(cluster.name)
        return value
