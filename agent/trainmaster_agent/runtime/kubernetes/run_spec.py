"""Facts derived once from a run's specification, which the runtime needs again and again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.cluster_model.gang_minimum import gang_minimum
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import JobSpec, MemberFailure
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import Resources

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


@dataclass(frozen=True, slots=True)
class Facts:
    """``least``: members of all roles that make up the gang; ``success``: the role that decides, None for all."""

    spec: JobSpec
    roles: dict[str, RoleFacts]
    least: int
    success: str | None
    time_limit: float | None
    stop_grace: float

    def wanted(self, sizes: Mapping[str, int]) -> list[Member]:
        """Return all members, by rank."""
        return [(name, index) for name in self.roles for index in range(sizes.get(name, 0))]


def facts_of(start: StartRun) -> Facts:
    """Parse a run's specification. Raises pydantic's ValidationError for one that this agent does not understand."""
    spec = JobSpec.model_validate(start.spec)
    least = gang_minimum(spec, start.sizes)
    roles = {}
    for role in spec.roles:
        failure = spec.failure_of(role)
        requests = role.template.amounts if role.template is not None else pod_requests(role.pod_template or {})
        roles[role.name] = RoleFacts(
            role.name, least.roles[role.name], failure, parse_duration(failure.back_off), role.max_per_node, requests
        )
    return Facts(
        spec=spec,
        roles=roles,
        least=least.members,
        success=None if spec.success is None else spec.success.role,
        time_limit=None if spec.time_limit is None else parse_duration(spec.time_limit),
        stop_grace=spec.grace_seconds,
    )
