"""The placement port: what the Kubernetes runtime needs from the adapter of an in-cluster scheduler.

Pure: manifests in and out as JSON. The runtime creates the objects, then the pods, watches both, and decides the run's state;
a placement writes the scheduler's manifests and interprets its objects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.cluster_model.gang_minimum import split_minimum
from trainmaster.protocol.quantities import Resources
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import PodSight


@dataclass(frozen=True, slots=True)
class GangRole:
    """Equivalent members. ``pod`` is the specification of each, before the placement changes it."""

    name: str
    size: int
    least: int
    """The fewest of them that the gang needs to start."""
    requests: Resources
    """Requests of each member, as the scheduler counts them."""
    pod: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gang:
    """A run as it is described to an in-cluster scheduler."""

    run: str
    """Name of the run and of its objects; a DNS label of at most 63 characters, unique in the cluster."""
    namespace: str
    queue: str
    """Trainmaster's queue path; the placement maps it to a queue of the scheduler."""
    labels: Mapping[str, str]
    """Labels of all objects of the run."""
    owner: Mapping[str, Any]
    """The ownerReference of all objects of the run."""
    roles: tuple[GangRole, ...]
    least: int
    """The fewest members, over all roles, that start together."""
    required: str | None = None
    """A node label: all members have to be on nodes with the same value of it."""
    preferred: str | None = None
    numa: str = "none"
    timeout: float = 600.0
    """Seconds that the gang may wait for its nodes."""
    awaits_nodes: bool = False
    """Whether an autoscaler is to add nodes for the gang, of which it may use any."""
    round: int = 0
    """How many times all members have started again."""
    is_exclusive: bool = False
    """Whether each member has a node for itself."""

    @property
    def size(self) -> int:
        return sum(role.size for role in self.roles)

    @property
    def total(self) -> Resources:
        """Return what the least members need together."""
        amounts: Resources = {}
        for role, count in self.quorum():
            for name, amount in role.requests.items():
                amounts[name] = amounts.get(name, 0) + amount * count
        return amounts

    def quorum(self) -> tuple[tuple[GangRole, int], ...]:
        """Return the members by role that make up ``least``, split as the dispatcher splits them."""
        counts = split_minimum(((role.name, role.size, role.least) for role in self.roles), self.least)
        return tuple((role, counts[role.name]) for role in self.roles)


class KubeObject(NamedTuple):
    """An object that is created before the pods."""

    resource: Resource
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GangState:
    """The scheduler's report on a gang. All empty: nothing beyond what the pods report themselves."""

    message: str = ""
    """Why the gang waits, in the scheduler's own words."""
    refused: str = ""
    """Why the gang will never be placed as it is: the run is returned at once."""
    evicted: str = ""
    """Why the scheduler has evicted the whole gang."""


class PlacementPort(Protocol):
    """Adapter of one in-cluster scheduler."""

    @property
    def name(self) -> str:
        """The name in configuration and reports: volcano, kai, yunikorn, coscheduling, native, kueue or gates."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the capabilities of a cluster with this scheduler: ``gang``, ``gangStrict`` (all or nothing by the scheduler itself),
        ``topology`` (a required level), ``numa``."""
        ...

    @property
    def emulated(self) -> bool:
        """Return whether scheduling gates hold the pods until the agent's own ledger shows free capacity for the gang."""
        ...

    @property
    def holders(self) -> tuple[Resource, ...]:
        """Return the kinds of objects, named as their runs, whose controller keeps deleted pods from going as long as they exist."""
        ...

    @property
    def restarts(self) -> bool:
        """Return whether a member that has ended can be created again under its name."""
        ...

    @property
    def rejoins(self) -> bool:
        """Return whether a member created after the gang's start is part of the gang again; else it is a plain pod."""
        ...

    def dress_alone(self, pod: dict[str, Any]) -> None:
        """Add to a pod that is not part of the gang, where members do not rejoin, what its scheduler needs."""
        ...

    @property
    def for_shared_claims(self) -> "PlacementPort | None":
        """Return the placement of gangs whose pods share ResourceClaims; None where they cannot be placed.

        A scheduler that holds all pods of a gang back until the last one has a node does not allocate a claim before, and
        kube-scheduler lets no other pod of the claim pass meanwhile.
        """
        ...

    @property
    def follows_numa_of_nodes(self) -> bool:
        """Return whether members are held to the NUMA policy of the node that they come to, whichever they ask for, so that they have
        to be kept on nodes with theirs.
        """
        ...

    @property
    def requests_nodes(self) -> bool:
        """Return whether nodes that an autoscaler is to add for a gang are asked for by an object, and not by pods that wait."""
        ...

    @property
    def for_workloads(self) -> "PlacementPort | None":
        """Return the placement of runs whose pods another controller makes, and replaces one by one; None if there is none."""
        ...

    def takes_object(self, kind: WorkloadKind) -> bool:
        """Return whether pods that the controller of an object of this kind makes can be placed."""
        ...

    def dress_object(self, gang: Gang, kind: WorkloadKind, body: dict[str, Any]) -> None:
        """Add to the object of a run, whose controller makes the pods, what its scheduler needs beside its pods' templates."""
        ...

    @property
    def watched(self) -> tuple[Resource, ...]:
        """Resources whose objects report on gangs."""
        ...

    @property
    def created(self) -> tuple[Resource, ...]:
        """Resources that ``objects`` may create."""
        ...

    def run_of(self, obj: Mapping[str, Any]) -> str | None:
        """Return the run of a watched object; None if it belongs to none of ours."""
        ...

    def lacks(self, gang: Gang) -> str | None:
        """Return a sentence naming what the gang asks for and this scheduler cannot honour; None if it can honour all."""
        ...

    def objects(self, gang: Gang) -> tuple[KubeObject, ...]:
        """Return the objects to create before the pods, in that order."""
        ...

    def dress(self, gang: Gang, role: GangRole, pod: dict[str, Any]) -> None:
        """Add to a member's manifest what makes it part of the gang. It already has the labels of run and member."""
        ...

    def tries_again_after(self, gang: Gang, pods: Sequence[PodSight]) -> Resource | None:
        """Return the kind of the gang's object that has to change before the scheduler tries the gang again, as freed capacity does
        not make it do so; None: nothing has to change. The object is named like the run.
        """
        ...

    def explained_by_events(self, objects: Sequence[Mapping[str, Any]]) -> str:
        """Return the field selector of the events that alone say why the gang waits; empty if a status says it."""
        ...

    def read(self, gang: Gang, objects: Sequence[Mapping[str, Any]], pods: Sequence[PodSight]) -> GangState:
        """Return the state of a gang that is not running yet, or was evicted, from the scheduler's objects and the pods."""
        ...
