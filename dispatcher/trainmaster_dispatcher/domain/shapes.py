"""The shape of a job: all that the scheduler reads of its specification, and nothing else.

Jobs of one shape, queue and priority class form a class: whatever is true for one of them on a cluster is true for all.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import orjson
from pydantic import TypeAdapter

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.cluster_model.eligibility import pod_toleration
from trainmaster.cluster_model.gang_minimum import gang_minimum
from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.protocol.device_claims import claim_named, claim_template, named_claims
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import AffinityTerm, JobSpec, MemberTemplate, Role, Toleration, Topology
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.scoring import Profile
from trainmaster.protocol.states import ClusterKind
from trainmaster.workload_kinds.specification import capabilities_of
from trainmaster_dispatcher.domain.cluster_admission import ClusterRefusal
from trainmaster_dispatcher.domain.weights import Weights, weights_of


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Terms:
    """The requirements of members on their nodes besides capacity. Equal terms are one object, so that its identity is the key."""

    node_selector: tuple[tuple[str, str], ...]
    affinity: tuple[AffinityTerm, ...]
    tolerations: tuple[Toleration, ...]
    numa: str
    devices: tuple[tuple[str, int], ...] | None = None
    """The devices that each member requests, if members have nodes for themselves; else None."""


RoleKey = tuple[Terms, frozenset[str]]
"""Terms, and the devices that members need."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Wishes:
    """The requirements of a job on its cluster besides capacity. Equal wishes are one object, so that its identity is the key."""

    clusters: tuple[str, ...]
    kinds: tuple[ClusterKind, ...]
    selector: tuple[tuple[str, str], ...]
    datasets: tuple[str, ...]
    capabilities: tuple[str, ...]
    regions: tuple[str, ...] = ()
    preferred: tuple[tuple[tuple[tuple[str, str], ...], int], ...] = ()
    """Labels of clusters that it prefers, each with its weight."""
    refused_by: tuple[ClusterRefusal, ...] = ()
    """Clusters whose agents reported that they would refuse what its members run."""


_PROFILE: TypeAdapter[Profile | None] = TypeAdapter(Profile | None)
STOP_GRACE = 10.0
"""The default, in seconds."""

_T = TypeVar("_T", Terms, Wishes)
_ONCE: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()


def _once(of: type[_T], *fields: Any) -> _T:
    """Return the one object with these fields."""
    found: _T | None = _ONCE.get((of, *fields))
    if found is None:
        found = _ONCE[of, *fields] = of(*fields)
    return found


NO_WISHES = _once(Wishes, (), (), (), (), (), (), (), ())


@dataclass(frozen=True, slots=True)
class RoleShape:
    """Identical members as the fit uses them, in units: each is a member or, where members share devices, all that share them.

    ``replicas``, ``least`` and ``max_per_node`` are numbers of units. ``needs`` is per unit, by resource name and sorted by it.
    """

    name: str
    replicas: int
    least: int
    needs: Resources = field(hash=False)
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    max_per_node: int | None = None
    numa: str = ""
    """``restricted`` or ``singleNode`` if the node has to keep a member in its NUMA zones."""
    exclusive: bool = False
    """Whether each member has a node for itself."""
    members_per_unit: int = 1
    """The members of a unit: they share devices, which ``needs`` counts once, and so they have one node."""
    terms: Terms = field(init=False, repr=False, compare=False)
    key: RoleKey = field(init=False, repr=False, compare=False)
    """The key for the order in which its members take nodes: the terms and the devices that they need."""

    def __post_init__(self) -> None:
        if list(self.needs) != sorted(self.needs):
            object.__setattr__(self, "needs", dict(sorted(self.needs.items())))
        devices = tuple(pair for pair in self.needs.items() if "/" in pair[0]) if self.exclusive else None
        terms = _once(Terms, self.node_selector, self.affinity, self.tolerations, self.numa, devices)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "key", (terms, frozenset(name for name in self.needs if "/" in name)))

    def taken_of(self, empty: Resources) -> Resources:
        """Return what a member takes of a node that offers ``empty`` when no member is there: all of it if it is exclusive."""
        return empty if self.exclusive else self.needs


SINGLE_MEMBERS: Mapping[str, int] = {}
"""The members of a unit by role where no members share devices."""


class Elasticity(NamedTuple):
    """The rules for resizing a run of the shape: members added at a time, and the least seconds between a change and a growth."""

    step: int
    cool_down: float


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a job that the scheduler knows besides its queue, class and age."""

    roles: tuple[RoleShape, ...]
    least_members: int
    required_level: str | None = None
    preferred_level: str | None = None
    clusters: tuple[str, ...] = ()
    kinds: tuple[ClusterKind, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    datasets: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    time_limit_seconds: float | None = None
    elastic: Elasticity | None = None
    stop_seconds: float = STOP_GRACE
    """The time that members may take to end after they are ordered to, including the time to save their state."""
    regions: tuple[str, ...] = ()
    preferred: tuple[tuple[tuple[tuple[str, str], ...], int], ...] = ()
    weights: Weights | None = None
    """The weights by which its cluster is chosen, if the job specifies them."""
    fault: str = ""
    """Why at most the members' needs can be read; until the fault is corrected no job of the shape starts."""
    refused_by: tuple[ClusterRefusal, ...] = ()
    """Clusters whose agents reported, at submission, that they would refuse what its members run."""
    min_run_seconds: float = 0.0
    """The time from its start in which a run is not preempted, beside that of its queue."""
    wishes: Wishes = field(init=False, repr=False, compare=False)
    members_per_unit: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The members of a unit by role, of roles whose members share devices."""

    def __post_init__(self) -> None:
        each = {role.name: role.members_per_unit for role in self.roles if role.members_per_unit > 1}
        object.__setattr__(self, "members_per_unit", each or SINGLE_MEMBERS)
        wishes = _once(
            Wishes,
            *(self.clusters, self.kinds, self.selector, self.datasets, self.capabilities, self.regions, self.preferred),
            self.refused_by,
        )
        object.__setattr__(self, "wishes", wishes)

    @property
    def members(self) -> int:
        return sum(role.replicas * role.members_per_unit for role in self.roles)

    @property
    def total(self) -> Resources:
        """The needs of the whole gang."""
        out: Resources = {}
        for role in self.roles:
            for name, amount in role.needs.items():
                out[name] = out.get(name, 0) + amount * role.replicas
        return out


def count_units(members: Mapping[str, int], members_per_unit: Mapping[str, int]) -> dict[str, int]:
    """Return the units of members by role. A unit of which there are only some members counts in full: it has its devices."""
    return {role: -(-many // members_per_unit.get(role, 1)) for role, many in members.items()}


def count_members(units: Mapping[str, int], members_per_unit: Mapping[str, int]) -> dict[str, int]:
    """Return the members of units by role."""
    return {role: many * members_per_unit.get(role, 1) for role, many in units.items()}


def shape_of(spec: JobSpec, refused_by: Sequence[ClusterRefusal] = ()) -> dict[str, Any]:
    """Return the shape of a specification as plain JSON data; equal shapes give equal data."""
    least = gang_minimum(spec)
    shape: dict[str, Any] = {
        "roles": [_role_data(role) | {"least": least.roles[role.name]} for role in spec.roles],
        "leastMembers": least.members,
    }
    topology = spec.topology
    if topology.required or topology.preferred or topology.numa != "none" or topology.exclusive:
        shape["topology"] = topology.to_wire()
    if spec.placement.model_fields_set and (placement := spec.placement.to_wire()):
        shape["placement"] = placement
    if spec.time_limit is not None:
        shape["timeLimitSeconds"] = parse_duration(spec.time_limit)
    saving = 0.0 if spec.checkpoint is None else parse_duration(spec.checkpoint.wait)
    if (seconds := saving + spec.grace_seconds) != STOP_GRACE:
        shape["stopSeconds"] = seconds
    if spec.session is not None and (seconds := parse_duration(spec.session.minimum_time)):
        shape["minRunSeconds"] = seconds
    if spec.elastic is not None:
        shape["elastic"] = [spec.elastic.step, parse_duration(spec.elastic.cool_down)]
    capabilities = _capabilities(spec)
    if capabilities:
        shape["capabilities"] = capabilities
    if refused_by:
        shape["refusedBy"] = [[one.cluster, one.fingerprint, *one.fields] for one in refused_by]
    return shape


_RESTARTS = {"restartMember": Capability.MEMBER_RESTART, "restartGang": Capability.GANG_RESTART}


def _capabilities(spec: JobSpec) -> list[str]:
    needed = {*capabilities_of(spec), *_capabilities_for_members(spec)}
    for role in spec.roles:  # of ten thousand specifications in one call
        if role.pod_template is not None:
            needed.add(Capability.POD_TEMPLATE)
            needed.update(claim_template(*one).capability for one in role.claim_templates.items())
            needed.update(claim_named(name) for _, name in named_claims(role.pod_template))
        elif role.template is not None:
            needed.update(_capabilities_for_template(role.template))
        if (action := spec.failure_of(role).action) in _RESTARTS:
            needed.add(_RESTARTS[action])
        if _max_per_node(role) is not None:
            needed.add(Capability.MAX_PER_NODE)
    if spec.success is not None:
        needed.add(Capability.SUCCESS_ROLE)
    if spec.elastic is not None:
        needed.add(Capability.RESIZE)
    if spec.checkpoint is not None:
        needed.add(Capability.CHECKPOINT)
    needed.update(_capabilities_for_nodes(spec.topology))
    if spec.members > 1:
        needed.add(Capability.GANG)
        if not spec.placement.emulated_gang:
            needed.add(Capability.GANG_STRICT)
    return sorted(str(one) for one in needed)


def _capabilities_for_members(spec: JobSpec) -> Iterator[Capability]:
    if spec.array is not None:
        yield Capability.ELEMENT_JOBS if spec.array.has_jobs else Capability.ARRAYS
    if spec.executes_entry_points:
        yield Capability.IMAGE_ENTRY_POINTS
    if spec.has_files:
        yield Capability.FILES
    if any(one.artifact is not None for one in spec.inputs):
        yield Capability.ARTIFACT_INPUTS


def _capabilities_for_template(template: MemberTemplate) -> Iterator[Capability]:
    if template.devices:
        yield Capability.DEVICES
        if template.members_per_claim > 1:
            yield Capability.SHARED_DEVICES
    if template.has_mounts:
        yield Capability.MOUNTS


def _capabilities_for_nodes(topology: Topology) -> Iterator[Capability]:
    if topology.numa in STRICT_NUMA:
        yield Capability.NUMA
    if topology.exclusive is not None:
        yield Capability.EXCLUSIVE_NODES


def _max_per_node(role: Role) -> int | None:
    """Return how many members one node takes at most, if that is less than all; else None."""
    most = role.max_per_node
    return None if most is None or most >= role.replicas else most


def _role_data(role: Role) -> dict[str, Any]:
    data: dict[str, Any] = {"name": role.name, "replicas": role.replicas}
    most = _max_per_node(role)
    if most is not None:
        data["maxPerNode"] = most
    if role.template is not None:
        return data | _template_data(role.template)
    pod = role.pod_template or {}
    pod_spec = pod.get("spec", {})
    data["needs"] = role.amounts
    data["nodeSelector"] = dict(pod_spec.get("nodeSelector") or {})
    data["tolerations"] = [pod_toleration(item).to_wire() for item in pod_spec.get("tolerations") or []]
    # A whole pod's node affinity is left to its cluster: agents need not report the labels that it names.
    return data


def _template_data(template: MemberTemplate) -> dict[str, Any]:
    data: dict[str, Any] = {"needs": template.own_amounts}
    if template.members_per_claim > 1:
        data |= {"membersPerUnit": template.members_per_claim, "shared": template.shared_amounts}
    if template.node_selector:
        data["nodeSelector"] = template.node_selector
    if template.node_affinity:
        data["affinity"] = [term.to_wire() for term in template.node_affinity]
    if template.tolerations:
        data["tolerations"] = [toleration.to_wire() for toleration in template.tolerations]
    return data


def wishes_of(spec: JobSpec) -> Wishes:
    """Return what a job requires of its cluster, except data and preferences, without reading the needs of its members."""
    placement = spec.placement
    return Shape(
        roles=(),
        least_members=0,
        clusters=tuple(placement.clusters),
        kinds=tuple(placement.kinds),
        selector=tuple(sorted(placement.selector.items())),
        capabilities=tuple(_capabilities(spec)),
        regions=tuple(placement.regions),
    ).wishes


def shape_bytes(spec: JobSpec, refused_by: Sequence[ClusterRefusal] = ()) -> tuple[bytes, bytes]:
    """Return the canonical JSON of the shape and its fingerprint of 16 bytes."""
    body = orjson.dumps(shape_of(spec, refused_by), option=orjson.OPT_SORT_KEYS)
    return body, hashlib.blake2b(body, digest_size=16).digest()


def unit_needs(role: Mapping[str, Any]) -> Resources:
    """Return what a unit of a serialised role needs: all its members, with the devices that they share counted once."""
    needs: Resources = role["needs"]
    many = role.get("membersPerUnit", 1)
    if many == 1:
        return needs
    found = {name: amount * many for name, amount in needs.items()}
    for name, amount in role["shared"].items():
        found[name] = found.get(name, 0) + amount
    return found


def _role_from(role: dict[str, Any], topology: Mapping[str, Any]) -> RoleShape:
    numa = topology.get("numa", "")
    many: int = role.get("membersPerUnit", 1)
    most: int | None = role.get("maxPerNode")
    return RoleShape(
        name=role["name"],
        replicas=role["replicas"] // many,
        least=role["least"] // many,
        needs=unit_needs(role),
        node_selector=tuple(sorted(role.get("nodeSelector", {}).items())),
        affinity=tuple(AffinityTerm.model_validate(term) for term in role.get("affinity", ())),
        tolerations=tuple(Toleration.model_validate(item) for item in role.get("tolerations", ())),
        max_per_node=None if most is None else most // many,
        numa=numa if numa in STRICT_NUMA else "",
        exclusive=topology.get("exclusive") is not None,
        members_per_unit=many,
    )


def shape_from(data: dict[str, Any]) -> Shape:
    """Return the shape that ``shape_of`` serialised."""
    placement = data.get("placement", {})
    topology = data.get("topology", {})
    roles = tuple(_role_from(role, topology) for role in data["roles"])
    return Shape(
        roles=roles,
        # All members of roles with units of several members are needed.
        least_members=data["leastMembers"] - sum(role.least * (role.members_per_unit - 1) for role in roles),
        required_level=topology.get("required"),
        preferred_level=topology.get("preferred"),
        clusters=tuple(placement.get("clusters", ())),
        kinds=tuple(ClusterKind(kind) for kind in placement.get("kinds", ())),
        selector=tuple(sorted(placement.get("selector", {}).items())),
        datasets=tuple(placement.get("datasets", ())),
        capabilities=tuple(data.get("capabilities", ())),
        regions=tuple(placement.get("regions", ())),
        preferred=tuple(
            (tuple(sorted(one.get("selector", {}).items())), one.get("weight", 1))
            for one in placement.get("preferred", ())
        ),
        time_limit_seconds=data.get("timeLimitSeconds"),
        elastic=Elasticity(*data["elastic"]) if "elastic" in data else None,
        stop_seconds=data.get("stopSeconds", STOP_GRACE),
        weights=weights_of(_PROFILE.validate_python(placement.get("profile"))),
        refused_by=tuple(
            ClusterRefusal(name, fingerprint, tuple(fields)) for name, fingerprint, *fields in data.get("refusedBy", ())
        ),
        min_run_seconds=data.get("minRunSeconds", 0.0),
    )
