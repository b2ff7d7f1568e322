"""The placement port: what the Kubernetes runtime asks of the way to one in-cluster scheduler.

Pure: manifests in and out as JSON. The runtime creates the objects, then the pods, watches both, and decides what a run's state is;
a placement says how this scheduler is asked, and what its objects mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from trainmaster.protocol.quantities import Resources
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight


@dataclass(frozen=True, slots=True)
class GangRole:
    """Equivalent members. ``pod`` is the specification that each of them gets, as far as the placement has not changed it."""

    name: str
    size: int
    least: int
    """How many of them the gang needs at least to start."""
    requests: Resources
    """Per member, as the scheduler counts them."""
    pod: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gang:
    """A run as an in-cluster scheduler is told of it."""

    run: str
    """Also the name of its objects; a DNS label of at most 63 characters, unique in the cluster."""
    namespace: str
    queue: str
    """Trainmaster's queue path; a placement's own rule turns it into a queue of the scheduler."""
    labels: Mapping[str, str]
    """All objects of the run carry them."""
    owner: Mapping[str, Any]
    """The ownerReference of all objects of the run."""
    roles: tuple[GangRole, ...]
    least: int
    """Members that have to start together, over all roles."""
    required: str | None = None
    """A node label: all members on nodes with the same value of it."""
    preferred: str | None = None
    numa: str = "none"
    timeout: float = 600.0
    """Seconds that it may wait for a place."""

    @property
    def size(self) -> int:
        return sum(role.size for role in self.roles)

    @property
    def total(self) -> Resources:
        """What the least members need together, roles at their least and the rest by role order."""
        amounts: Resources = {}
        for role, count in self.quorum():
            for name, amount in role.requests.items():
                amounts[name] = amounts.get(name, 0) + amount * count
        return amounts

    def quorum(self) -> tuple[tuple[GangRole, int], ...]:
        """Members by role that make up ``least``: each role's least, then more of the first roles that have more."""
        counts = {role.name: role.least for role in self.roles}
        missing = self.least - sum(counts.values())
        for role in self.roles:
            more = max(0, min(missing, role.size - counts[role.name]))
            counts[role.name] += more
            missing -= more
        return tuple((role, counts[role.name]) for role in self.roles)


class KubeObject(NamedTuple):
    """An object to be created before the pods."""

    resource: Resource
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GangState:
    """What the scheduler says of a gang. All empty: nothing that the pods do not say themselves."""

    message: str = ""
    """Why it waits, in the scheduler's own words."""
    refused: str = ""
    """Why it will never be placed as it is: the run is returned at once."""
    evicted: str = ""
    """Why the scheduler has evicted it as a whole."""


class PlacementPort(Protocol):
    """The way to one in-cluster scheduler."""

    @property
    def name(self) -> str:
        """As configuration and reports call it: volcano, kai, yunikorn, coscheduling, native, kueue or gates."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What a cluster with this scheduler can honour: ``gang``, ``gangStrict`` (all or nothing by the scheduler itself),
        ``topology`` (a required level), ``numa``."""
        ...

    @property
    def emulated(self) -> bool:
        """Whether pods are held by scheduling gates that the agent removes once its own books say that the gang fits."""
        ...

    @property
    def rejoins(self) -> bool:
        """Whether a member that is created after the gang has started is part of the gang again; else it is a plain pod."""
        ...

    @property
    def watched(self) -> tuple[Resource, ...]:
        """Resources that tell what becomes of gangs."""
        ...

    @property
    def created(self) -> tuple[Resource, ...]:
        """Resources of which ``objects`` makes some."""
        ...

    def run_of(self, obj: Mapping[str, Any]) -> str | None:
        """The run that a watched object belongs to; None if to none of ours."""
        ...

    def lacks(self, gang: Gang) -> str | None:
        """What the gang asks and this scheduler cannot honour, as a sentence; None if there is no such thing."""
        ...

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        """What has to be there before the pods, in the order of creation."""
        ...

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        """Write into a member's manifest what makes it part of the gang. Labels of the run and of the member are there already."""
        ...

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        """What the scheduler's objects and the pods say of a gang that is not running yet, or was evicted."""
        ...
