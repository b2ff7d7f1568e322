"""Facts derived once from a run's specification, which the runtime needs again and again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster.cluster_model.gang_minimum import gang_minimum
from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.device_claims import named_claims
from trainmaster.protocol.device_parts import is_part
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import JobSpec, MemberFailure, MemberTemplate
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import Resources, parse_resources
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.registry import kind_of
from trainmaster.workload_kinds.specification import check_workload, late_roles


class UnknownWorkloadError(ValueError):
    """The run's object is of a kind, or has a field, that this agent does not know: an older one."""


Member = tuple[str, int]
"""Role and index of a member."""


@dataclass(frozen=True, slots=True)
class RoleFacts:
    name: str
    least: int
    failure: MemberFailure
    back_off: float
    max_per_node: int | None
    requests: Resources
    """What a member has, devices by claims included, also those that it shares."""
    pod_requests: Resources
    """What a member's pod requests by name."""
    members_per_claim: int = 1
    """How many members share one claim of devices: these have consecutive indexes, and one node."""
    own: Resources = field(default_factory=dict)
    """What a member has for itself, where it shares devices."""
    shared: Resources = field(default_factory=dict)
    """The devices that ``members_per_claim`` members share."""

    def used_by(self, members: int) -> Resources:
        """Return what this number of members has on a node, with devices that several share counted once."""
        if self.members_per_claim == 1:
            return {name: amount * members for name, amount in self.requests.items()}
        used = {name: amount * members for name, amount in self.own.items()}
        for name, amount in self.shared.items():
            used[name] = used.get(name, 0) + amount * -(-members // self.members_per_claim)
        return used


@dataclass(frozen=True, slots=True)
class Facts:
    """``least``: members of all roles that make up the gang; ``success``: the role that decides, None for all."""

    spec: JobSpec
    roles: dict[str, RoleFacts]
    least: int
    success: str | None
    time_limit: float | None
    stop_grace: float
    workload: WorkloadKind | None = None
    """The kind of the object whose controller makes the pods; None: the agent makes them."""
    names_claims: bool = False
    """Whether a pod template names a ResourceClaim."""
    late: frozenset[str] = frozenset()
    """Roles whose pods such a controller creates only once the others run."""

    @property
    def is_exclusive(self) -> bool:
        """Return whether each member has a node for itself."""
        return self.spec.topology.exclusive is not None

    @property
    def shares_devices(self) -> bool:
        """Return whether members of any role share devices by a claim."""
        return any(role.members_per_claim > 1 for role in self.roles.values())

    @property
    def is_placed_by_gates(self) -> bool:
        """Return whether pods of the run have claims with others, and the job takes an emulated gang for that."""
        spec = self.spec
        may_be = spec.placement.emulated_gang and spec.topology.numa not in STRICT_NUMA
        return self.shares_devices or (self.names_claims and may_be)

    def wanted(self, sizes: Mapping[str, int]) -> list[Member]:
        """Return all members, by rank."""
        return [(name, index) for name in self.roles for index in range(sizes.get(name, 0))]


def _sharing(template: MemberTemplate | None) -> tuple[int, Resources, Resources]:
    """Return how many members share a claim, what each has for itself, and what they share."""
    if template is None or template.members_per_claim == 1:
        return 1, {}, {}
    return template.members_per_claim, template.own_amounts, template.shared_amounts


def facts_of(start: StartRun) -> Facts:
    """Parse a run's specification.

    Raises pydantic's ValidationError for one that this agent does not understand, ValueError for a workload that it does not.
    """
    spec = JobSpec.model_validate(start.spec)
    if mistakes := check_workload(spec):
        raise UnknownWorkloadError(f"{mistakes[0].path}: {mistakes[0].message}")
    workload = None if spec.workload is None else kind_of(spec.workload.api_version, spec.workload.kind)
    if workload is not None and workload.is_made_by_agent:
        workload = None
    late = frozenset() if spec.workload is None else late_roles(spec.workload)
    least = gang_minimum(spec, start.sizes)
    roles = {}
    for role in spec.roles:
        failure = spec.failure_of(role)
        roles[role.name] = RoleFacts(
            role.name,
            0 if role.name in late else least.roles[role.name],
            failure,
            parse_duration(failure.back_off),
            role.max_per_node,
            role.amounts,
            parse_resources(role.template.resources)
            if role.template is not None
            else {name: amount for name, amount in pod_requests(role.pod_template or {}).items() if not is_part(name)},
            *_sharing(role.template),
        )
    return Facts(
        spec=spec,
        roles=roles,
        least=least.members - sum(start.sizes.get(name, 0) for name in late),
        success=None if spec.success is None else spec.success.role,
        time_limit=None if spec.time_limit is None else parse_duration(spec.time_limit),
        stop_grace=spec.grace_seconds,
        workload=workload,
        names_claims=any(True for role in spec.roles for _ in named_claims(role.pod_template or {})),
        late=late,
    )
