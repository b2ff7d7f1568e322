"""Devices of the ResourceClaimTemplates that pods name, and ResourceClaims, as far as clusters' agents have reported them. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trainmaster.protocol.device_claims import (
    ClaimTemplate,
    named_claims,
    named_templates,
    parse_claim,
    parse_claim_template,
)
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import JobSpec, Role
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.shapes import wishes_of
from trainmaster_dispatcher.scheduling.selection.filters import Candidate, by_kind, by_name, by_region, by_selector
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster

_ANY_KIND = Access(frozenset(ClusterKind))
_PLACEMENT = (by_name, by_kind, by_region, by_selector)


class ClaimedSpec(NamedTuple):
    """A specification whose roles state the devices of their claims, and a mistake for each claim that cannot be counted."""

    spec: JobSpec
    mistakes: tuple[Mistake, ...] = ()


def with_claimed_devices(spec: JobSpec, clusters: Sequence[Cluster]) -> ClaimedSpec:
    """Return a specification with the devices that its pods have by claims. Its pod templates have passed admission.

    A template has to be countable on a cluster where the job may run, and to ask for the same on all of them where it is countable.
    """
    if not any(role.pod_template or role.claim_templates for role in spec.roles):
        return ClaimedSpec(spec)  # as most of ten thousand in one call
    mistakes = _unknown_claims(spec, clusters)
    named = {index: list(named_templates(role.pod_template or {})) for index, role in enumerate(spec.roles)}
    if not any(named.values()):
        if not any(role.claim_templates for role in spec.roles):
            return ClaimedSpec(spec, tuple(mistakes))
        return ClaimedSpec(_with_roles(spec, [_with_templates(role, {}) for role in spec.roles]), tuple(mistakes))
    offered = _offered(spec, clusters, parse_claim_template)
    roles = []
    for index, role in enumerate(spec.roles):
        counted: dict[str, dict[str, int]] = {}
        for path, name in named[index]:
            reported = offered.get(name, [])
            if fault := _fault_of(name, reported):
                mistakes.append(Mistake(path=f"roles[{index}].podTemplate.{path}", message=fault))
            else:
                counted[name] = next(dict(one.devices) for _, one in reported if not one.fault)
        roles.append(_with_templates(role, counted))
    return ClaimedSpec(_with_roles(spec, roles), tuple(mistakes))


def _unknown_claims(spec: JobSpec, clusters: Iterable[Cluster]) -> list[Mistake]:
    """Return a mistake for each claim that a pod names and no cluster reports where the job may run."""
    named = [
        (f"roles[{index}].podTemplate.{path}", name)
        for index, role in enumerate(spec.roles)
        for path, name in named_claims(role.pod_template or {})
    ]
    if not named:
        return []
    offered = _offered(spec, clusters, parse_claim)
    return [
        Mistake(
            path=path,
            message=f"ResourceClaim {shown(name)} is reported by no cluster where the job may run; agents report those in all "
            "namespaces for jobs some seconds after they were made",
        )
        for path, name in named
        if name not in offered
    ]


def _offered(
    spec: JobSpec, clusters: Iterable[Cluster], parse: Callable[[str], ClaimTemplate | None]
) -> dict[str, list[tuple[str, ClaimTemplate]]]:
    """Return by name the templates, or claims, of the clusters where the job may run, each with its cluster."""
    wishes = wishes_of(spec)
    found: dict[str, list[tuple[str, ClaimTemplate]]] = {}
    for cluster in clusters:
        candidate = Candidate(_ANY_KIND, wishes, cluster, 0.0, ())
        if (
            cluster.report is None
            or not _is_open_to(cluster, spec.queue)
            or any(test(candidate) for test in _PLACEMENT)
        ):
            continue
        for template in map(parse, cluster.report.capabilities):
            if template is not None:
                found.setdefault(template.name, []).append((cluster.name, template))
    return found


def _is_open_to(cluster: Cluster, queue: str) -> bool:
    only = cluster.only_queues
    return not only or any(queue == one or queue.startswith(f"{one}/") for one in only)


def _fault_of(name: str, reported: Sequence[tuple[str, ClaimTemplate]]) -> str:
    """Return why a template cannot be counted; empty if it can."""
    if not reported:
        return (
            f"ResourceClaimTemplate {shown(name)} is reported by no cluster where the job may run, so its devices cannot be counted; "
            "agents report those in all namespaces for jobs some seconds after they were made"
        )
    countable = [(cluster, one) for cluster, one in reported if not one.fault]
    if not countable:
        cluster, one = reported[0]
        return f"ResourceClaimTemplate {shown(name)} of cluster {cluster} cannot be counted: {one.fault}"
    first_cluster, first = countable[0]
    other = next(((cluster, one) for cluster, one in countable if one.devices != first.devices), None)
    if other is not None:
        return (
            f"ResourceClaimTemplate {shown(name)} asks for {first.words} on cluster {first_cluster}, and for {other[1].words} on "
            f"cluster {other[0]}; name one of them in placement.clusters"
        )
    return ""


def _with_templates(role: Role, counted: dict[str, dict[str, int]]) -> Role:
    return role.model_copy(update={"claim_templates": counted})


def _with_roles(spec: JobSpec, roles: Sequence[Role]) -> JobSpec:
    return spec.model_copy(update={"roles": tuple(roles)})
