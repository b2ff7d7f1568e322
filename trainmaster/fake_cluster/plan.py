"""Plans: parsed specifications of runs, shared by all runs with the same relevant fields."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.cluster_model.packing import Need
from trainmaster.fake_cluster.behaviour import VARIABLE, Behaviour, BehaviourError, behaviour
from trainmaster.fake_cluster.fleet import Defaults
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import JobSpec, MemberFailure
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster.protocol.validation_errors import mistakes_of, worded

if TYPE_CHECKING:
    from trainmaster.fake_cluster.pools import FakePool

_READ = ("labels", "topology", "placement", "timeLimit", "stopGrace", "memberFailure", "success")
"""Fields of a specification, beside its roles, that a plan depends on; jobs that differ only in others share a plan."""
_NOT_READ = frozenset(("image", "command", "args", "workingDir", "ports"))
_MOST_PLANS = 10_000


class Restarts(NamedTuple):
    """Restarts after the failure of a role's member: how many, alone or of the whole gang, and the pause before each."""

    limit: int = 0
    of_gang: bool = False
    back_off: float = 0.0


NO_RESTARTS = Restarts()


@dataclass(frozen=True, slots=True)
class PlannedRole:
    """A role as a run starts it."""

    name: str
    count: int
    need: Need
    behaviour: Behaviour
    restarts: Restarts = NO_RESTARTS


@dataclass(slots=True, eq=False)
class FakeSpec:
    """A specification in the cluster's own form."""

    roles: tuple[PlannedRole, ...]
    required: str | None
    preferred: str | None
    time_limit: float | None
    stop_grace: float
    members: int
    starts_late: bool
    success: str | None = None
    """The role whose members decide that a run has succeeded; None: all members."""
    suits: dict[int, tuple[tuple[tuple[int, int], ...] | None, ...]] = field(default_factory=dict)
    """By pool: the amounts that a member of each role takes; None where it may not run."""
    order: tuple[tuple[int, tuple["FakePool", ...]], ...] | None = None
    """Roles in the order in which they are placed, and the pools that suit each, the best first."""
    never: str | None = None
    """Why it would not fit even the empty cluster: a sentence, empty if it would, None while that was not computed."""

    @property
    def is_apart(self) -> bool:
        """Return whether a role limits its members per node: then each node has to be checked."""
        return any(role.need.max_per_node is not None for role in self.roles)

    @property
    def is_exclusive(self) -> bool:
        """Return whether each member has a node for itself."""
        return any(role.need.exclusive for role in self.roles)

    def at(self, sizes: Mapping[str, int]) -> "FakeSpec":
        """Return the plan with other counts. Roles that are not named keep theirs."""
        roles = []
        for role in self.roles:
            count = sizes.get(role.name, role.count)
            need = replace(role.need, count=-(-count // role.need.members_per_unit))
            roles.append(replace(role, count=count, need=need))
        members = sum(role.count for role in roles)
        return replace(self, roles=tuple(roles), members=members, suits={}, order=None, never=None)

    def deadline(self, started_at: float) -> float:
        """Return when the time limit of a run that started at ``started_at`` is over."""
        return inf if self.time_limit is None else started_at + self.time_limit

    def position(self, role: str) -> int | None:
        """Return the position of a role in ``roles``; None if it has no such role."""
        for position, one in enumerate(self.roles):
            if one.name == role:
                return position
        return None


@dataclass(frozen=True, slots=True)
class FakeRefusal:
    """Reason why a run can never start here, and how it ends therefore."""

    state: RunState
    message: str
    category: FailureCategory | None = None


def _read(spec: Mapping[str, Any]) -> list[Any]:
    """Return what a plan depends on: no commands and arguments, and of the environment only the simulation's variables."""
    roles = []
    for role in spec.get("roles") or ():
        template = role.get("template")
        if template is not None:
            environment = {name: value for name, value in template.get("env", {}).items() if name.startswith(VARIABLE)}
            template = {name: value for name, value in template.items() if name not in _NOT_READ} | {"env": environment}
        of_role = {name: value for name, value in role.items() if name != "template"}
        roles.append((role, template) if template is None else (of_role, template))
    return [roles, *[spec.get(name) for name in _READ]]


def _restarts(failure: MemberFailure) -> Restarts:
    if failure.action == "failRun":
        return NO_RESTARTS
    return Restarts(failure.limit, failure.action == "restartGang", parse_duration(failure.back_off))


class Plans:
    """Cache of plans by what they depend on."""

    def __init__(self, defaults: Defaults, datasets: Iterable[str]) -> None:
        self._defaults = defaults
        self._datasets = frozenset(datasets)
        self._known: dict[str, FakeSpec | FakeRefusal] = {}

    def get(self, spec: Mapping[str, Any], sizes: Mapping[str, int]) -> FakeSpec | FakeRefusal:
        """Return the plan for a specification in wire form, or why it can never start.

        A run that another cluster might accept is returned; one that no cluster can run as it is written has failed.
        """
        key = repr((_read(spec), sizes))
        plan = self._known.get(key)
        if plan is None:
            if len(self._known) >= _MOST_PLANS:
                self._known.clear()
            plan = self._known[key] = self._make(spec, sizes)
        return plan

    def _make(self, wire: Mapping[str, Any], sizes: Mapping[str, int]) -> FakeSpec | FakeRefusal:
        try:
            spec = JobSpec.model_validate(wire)
        except ValidationError as error:
            first = mistakes_of(error)[0]
            message = f"this agent does not understand the specification: {worded(first)}"
            return FakeRefusal(RunState.RETURNED, message)
        roles = []
        for role in spec.roles:
            count = sizes.get(role.name, 0)
            if not count:
                continue
            if role.template is None:
                message = f"role {role.name} has a podTemplate, which the simulated runtime cannot read"
                return FakeRefusal(RunState.RETURNED, message)
            try:
                behaves = behaviour(spec.labels, role.template.env, self._defaults)
            except BehaviourError as error:
                return FakeRefusal(RunState.FAILED, f"role {role.name}: {error}", FailureCategory.CONFIG)
            need = Need.of(role, role.template, count, exclusive=spec.topology.exclusive is not None)
            roles.append(PlannedRole(role.name, count, need, behaves, _restarts(spec.failure_of(role))))
        if not roles:
            return FakeRefusal(RunState.FAILED, "the run has no members", FailureCategory.CONFIG)
        lack = self._lack(spec)
        if lack is not None:
            return FakeRefusal(RunState.RETURNED, lack)
        return FakeSpec(
            roles=tuple(roles),
            required=spec.topology.required,
            preferred=spec.topology.preferred,
            time_limit=None if spec.time_limit is None else parse_duration(spec.time_limit),
            stop_grace=spec.grace_seconds,
            members=sum(role.count for role in roles),
            starts_late=any(role.behaviour.start_time.most > 0 for role in roles),
            success=None if spec.success is None else spec.success.role,
        )

    def _lack(self, spec: JobSpec) -> str | None:
        missing = sorted(set(spec.placement.datasets) - self._datasets)
        if missing:
            return f"the datasets {', '.join(missing)} are not here"
        if spec.topology.numa in STRICT_NUMA:
            return f"the simulated runtime cannot promise NUMA policy {spec.topology.numa}"
        return None
