"""The shape of a job: all that the scheduler reads of its specification, and nothing else.

Jobs of one shape, queue and priority class form a class: whatever holds for one of them on a cluster holds for all.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import orjson
from pydantic import TypeAdapter

from trainmaster.protocol.admission import pod_requests
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import AffinityTerm, JobSpec, MemberTemplate, Role, Toleration
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.scoring import Profile
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.cluster_admission import ClusterRefusal
from trainmaster_dispatcher.domain.weights import Weights, weights_of


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Terms:
    """What members ask of their nodes beside room. There is one object for all who ask the same, so that it is its own key."""

    node_selector: tuple[tuple[str, str], ...]
    affinity: tuple[AffinityTerm, ...]
    tolerations: tuple[Toleration, ...]
    numa: str


RoleKey = tuple[Terms, frozenset[str]]
"""Terms, and the devices that members need."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Wishes:
    """What a job asks of its cluster beside room. There is one object for all that ask the same, so that it is its own key."""

    clusters: tuple[str, ...]
    kinds: tuple[ClusterKind, ...]
    selector: tuple[tuple[str, str], ...]
    datasets: tuple[str, ...]
    capabilities: tuple[str, ...]
    regions: tuple[str, ...] = ()
    preferred: tuple[tuple[tuple[tuple[str, str], ...], int], ...] = ()
    """Labels of clusters that it prefers, each with what it counts."""
    refused_by: tuple[ClusterRefusal, ...] = ()
    """Clusters whose agents said that they would refuse what its members run."""


_PROFILE: TypeAdapter[Profile | None] = TypeAdapter(Profile | None)
STRICT_NUMA = ("restricted", "singleNode")
"""NUMA policies that a node has to keep; with the others it does what it can."""

STOP_GRACE = 10.0
"""Seconds, where a job says nothing."""

_T = TypeVar("_T", Terms, Wishes)
_ONCE: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()


def _once(of: type[_T], *fields: Any) -> _T:
    """The one object with these fields."""
    found: _T | None = _ONCE.get((of, *fields))
    if found is None:
        found = _ONCE[of, *fields] = of(*fields)
    return found


NO_WISHES = _once(Wishes, (), (), (), (), (), (), (), ())


@dataclass(frozen=True, slots=True)
class RoleShape:
    """Identical members as the fit sees them. ``needs`` is per member, by the name of the resource and in the order of these."""

    name: str
    replicas: int
    least: int
    needs: Resources = field(hash=False)
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    max_per_node: int | None = None
    numa: str = ""
    """``restricted`` or ``singleNode`` where the node has to keep a member to its NUMA zones."""
    terms: Terms = field(init=False, repr=False, compare=False)
    key: RoleKey = field(init=False, repr=False, compare=False)
    """What decides in which order its members take nodes: the terms and the devices that they need."""

    def __post_init__(self) -> None:
        terms = _once(Terms, self.node_selector, self.affinity, self.tolerations, self.numa)
        object.__setattr__(self, "terms", terms)
        if list(self.needs) != sorted(self.needs):
            object.__setattr__(self, "needs", dict(sorted(self.needs.items())))
        object.__setattr__(self, "key", (terms, frozenset(name for name in self.needs if "/" in name)))


class Elasticity(NamedTuple):
    """How a run of the shape may be resized: members added at a time, and least seconds between a change and a growth."""

    step: int
    cool_down: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What the scheduler knows of a job beside its queue, class and age."""

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
    """How long members may take to be gone once they are told to, the time to save their state included."""
    regions: tuple[str, ...] = ()
    preferred: tuple[tuple[tuple[tuple[str, str], ...], int], ...] = ()
    weights: Weights | None = None
    """By which its cluster is chosen, where the job says so."""
    fault: str = ""
    """Why nothing of it, but perhaps what its members need, can be read: until that is mended no job of it starts."""
    refused_by: tuple[ClusterRefusal, ...] = ()
    """Clusters whose agents said, when it was submitted, that they would refuse what its members run."""
    wishes: Wishes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wishes = _once(
            Wishes,
            *(self.clusters, self.kinds, self.selector, self.datasets, self.capabilities, self.regions, self.preferred),
            self.refused_by,
        )
        object.__setattr__(self, "wishes", wishes)

    @property
    def members(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def total(self) -> Resources:
        """What the whole gang needs."""
        out: Resources = {}
        for role in self.roles:
            for name, amount in role.needs.items():
                out[name] = out.get(name, 0) + amount * role.replicas
        return out


def shape_of(spec: JobSpec, refused_by: Sequence[ClusterRefusal] = ()) -> dict[str, Any]:
    """The shape of a specification as plain JSON data; equal shapes give equal data."""
    roles = [_role_data(role) | {"least": _least(spec, role)} for role in spec.roles]
    shape: dict[str, Any] = {
        "roles": roles,
        "leastMembers": spec.min_member or max(1, sum(role["least"] for role in roles)),
    }
    if spec.topology.required or spec.topology.preferred or spec.topology.numa != "none":
        shape["topology"] = spec.topology.to_wire()
    if spec.placement.to_wire():
        shape["placement"] = spec.placement.to_wire()
    if spec.time_limit is not None:
        shape["timeLimitSeconds"] = parse_duration(spec.time_limit)
    saving = 0.0 if spec.checkpoint is None else parse_duration(spec.checkpoint.wait)
    if (seconds := saving + spec.grace_seconds) != STOP_GRACE:
        shape["stopSeconds"] = seconds
    if spec.elastic is not None:
        shape["elastic"] = [spec.elastic.step, parse_duration(spec.elastic.cool_down)]
    capabilities = _capabilities(spec)
    if capabilities:
        shape["capabilities"] = capabilities
    if refused_by:
        shape["refusedBy"] = [[one.cluster, one.fingerprint, *one.fields] for one in refused_by]
    return shape


_RESTARTS = {"restartMember": "memberRestart", "restartGang": "gangRestart"}


def _capabilities(spec: JobSpec) -> list[str]:
    needed = set()
    if any(role.pod_template is not None for role in spec.roles):
        needed.add("podTemplate")
    needed |= {_RESTARTS[action] for role in spec.roles if (action := spec.failure_of(role).action) in _RESTARTS}
    if spec.success is not None:
        needed.add("successRole")
    if spec.elastic is not None:
        needed.add("resize")
    if spec.checkpoint is not None:
        needed.add("checkpoint")
    if spec.topology.numa in STRICT_NUMA:
        needed.add("numa")
    if spec.members > 1:
        needed.add("gang")
        if not spec.placement.emulated_gang:
            needed.add("gangStrict")
    if any(_max_per_node(role) is not None for role in spec.roles):
        needed.add("maxPerNode")
    return sorted(needed)


def _least(spec: JobSpec, role: Role) -> int:
    """The fewest members of a role: what it says; all, unless ``minMember`` stands alone, which lets each shrink to one."""
    if role.min_replicas is not None:
        return role.min_replicas
    alone = spec.min_member is not None and all(other.min_replicas is None for other in spec.roles)
    return 1 if alone else role.replicas


def _max_per_node(role: Role) -> int | None:
    """How many members one node takes at most, where that is less than all."""
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
    data["needs"] = pod_requests(pod)
    data["nodeSelector"] = dict(pod_spec.get("nodeSelector") or {})
    data["tolerations"] = [_toleration_data(item) for item in pod_spec.get("tolerations") or []]
    return data


def _toleration_data(item: dict[str, Any]) -> dict[str, Any]:
    """As the scheduler will read it; Kubernetes takes an empty field for one that is not there."""
    fields = {key: item[key] for key in ("key", "operator", "value", "effect") if item.get(key)}
    return Toleration.model_validate(fields).to_wire()


def _template_data(template: MemberTemplate) -> dict[str, Any]:
    data: dict[str, Any] = {"needs": template.amounts}
    if template.node_selector:
        data["nodeSelector"] = template.node_selector
    if template.node_affinity:
        data["affinity"] = [term.to_wire() for term in template.node_affinity]
    if template.tolerations:
        data["tolerations"] = [toleration.to_wire() for toleration in template.tolerations]
    return data


def wishes_of(spec: JobSpec) -> Wishes:
    """What a job asks of its cluster, but for data and preferences, without reading what its members need."""
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
    """Canonical JSON of the shape and its fingerprint of 16 bytes."""
    body = orjson.dumps(shape_of(spec, refused_by), option=orjson.OPT_SORT_KEYS)
    return body, hashlib.blake2b(body, digest_size=16).digest()


def shape_from(data: dict[str, Any]) -> Shape:
    """The shape that ``shape_of`` wrote down."""
    placement = data.get("placement", {})
    topology = data.get("topology", {})
    numa = topology.get("numa", "")
    return Shape(
        roles=tuple(
            RoleShape(
                name=role["name"],
                replicas=role["replicas"],
                least=role["least"],
                needs=role["needs"],
                node_selector=tuple(sorted(role.get("nodeSelector", {}).items())),
                affinity=tuple(AffinityTerm.model_validate(term) for term in role.get("affinity", ())),
                tolerations=tuple(Toleration.model_validate(item) for item in role.get("tolerations", ())),
                max_per_node=role.get("maxPerNode"),
                numa=numa if numa in STRICT_NUMA else "",
            )
            for role in data["roles"]
        ),
        least_members=data["leastMembers"],
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
    )
