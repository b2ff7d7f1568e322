"""What the runtime needs of a run's specification again and again, worked out once. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import JobSpec, MemberFailure
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.protocol.quantities import Resources

Member = tuple[str, int]
"""Role and index."""


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
    """``least``: members of all roles that make the gang; ``success``: the role that decides, None for all."""

    spec: JobSpec
    roles: dict[str, RoleFacts]
    least: int
    success: str | None
    time_limit: float | None
    stop_grace: float

    def wanted(self, sizes: Mapping[str, int]) -> list[Member]:
        """All members, by rank."""
        return [(name, index) for name in self.roles for index in range(sizes.get(name, 0))]


def facts_of(start: StartRun) -> Facts:
    """Raises pydantic's ValidationError for a specification that this agent does not understand."""
    spec = JobSpec.model_validate(start.spec)
    roles = {}
    for role in spec.roles:
        failure = spec.failure_of(role)
        if role.min_replicas is not None:
            least = role.min_replicas
        else:
            alone = spec.min_member is not None and all(other.min_replicas is None for other in spec.roles)
            least = 1 if alone else role.replicas
        least = min(least, start.sizes.get(role.name, 0))
        requests = role.template.amounts if role.template is not None else pod_requests(role.pod_template or {})
        roles[role.name] = RoleFacts(
            role.name, least, failure, parse_duration(failure.back_off), role.max_per_node, requests
        )
    total = sum(start.sizes.values())
    least_members = min(total, spec.min_member or sum(role.least for role in roles.values()))
    return Facts(
        spec=spec,
        roles=roles,
        least=max(1, least_members),
        success=None if spec.success is None else spec.success.role,
        time_limit=None if spec.time_limit is None else parse_duration(spec.time_limit),
        stop_grace=spec.grace_seconds,
    )
