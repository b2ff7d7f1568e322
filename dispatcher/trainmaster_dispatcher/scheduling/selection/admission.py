"""Refusals by clusters of what a job's members run, as far as their agents have reported their policies.

A cluster's agent decides in the end: it checks again before it starts anything. A refusal that is found here avoids
sending the job there and back, and the wait.
"""

from collections.abc import Sequence

from trainmaster.protocol.admission import check_image_named, check_role
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.cluster_admission import ClusterRefusal, fingerprint_of
from trainmaster_dispatcher.domain.shapes import Wishes, wishes_of
from trainmaster_dispatcher.scheduling.selection.filters import (
    Candidate,
    by_capability,
    by_kind,
    by_name,
    by_region,
    by_selector,
)
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster

_MOST_FIELDS = 3
"""The largest number of refused fields that are named."""
_ANY_KIND = Access(frozenset(ClusterKind))
_PLACEMENT = (by_name, by_kind, by_region, by_selector)


def refusals(spec: JobSpec, clusters: Sequence[Cluster]) -> tuple[list[ClusterRefusal], list[Mistake]]:
    """Return the clusters that refuse a job, and, if every eligible cluster does, what the first of them refuses.

    The second list is empty if no cluster is eligible: one may be connected later.
    """
    refused: list[ClusterRefusal] = []
    mistakes_of_first: list[Mistake] = []
    is_open = False
    wishes = wishes_of(spec)
    for cluster in clusters:
        if not _is_eligible(cluster, wishes):
            continue
        mistakes = _mistakes_in(spec, cluster)
        if not mistakes:
            is_open = True
            continue
        mistakes_of_first = mistakes_of_first or mistakes
        fields = tuple(dict.fromkeys(one.path for one in mistakes))[:_MOST_FIELDS]
        admission = cluster.report.admission if cluster.report is not None else None
        refused.append(ClusterRefusal(cluster.name, fingerprint_of(admission), fields))
    if is_open or not refused:
        return refused, []
    where = f"cluster {refused[0].cluster}"
    if len(refused) > 1:
        where = f"each of the {len(refused)} clusters in question, such as {refused[0].cluster}"
    return refused, [Mistake(path=one.path, message=f"{where}: {one.message}") for one in mistakes_of_first]


def _is_eligible(cluster: Cluster, wishes: Wishes) -> bool:
    """Return whether the job may be sent there; before a cluster has reported, its capabilities are unknown and not checked."""
    candidate = Candidate(_ANY_KIND, wishes, cluster, 0.0, ())
    tests = _PLACEMENT if cluster.report is None else (*_PLACEMENT, by_capability)
    return all(test(candidate) is None for test in tests)


def _mistakes_in(spec: JobSpec, cluster: Cluster) -> list[Mistake]:
    """Return what the cluster's agent would refuse in a job's roles; paths start at the job."""
    admission = cluster.report.admission if cluster.report is not None else None
    if admission is None:
        return []
    policy = admission.policy_of(spec.queue)
    out: list[Mistake] = []
    for index, role in enumerate(spec.roles):
        unnamed = check_image_named(role) if admission.needs_image else ()
        out += (
            Mistake(path=f"roles[{index}].{one.path}", message=one.message)
            for one in (*check_role(role, policy), *unnamed)
        )
    return out
