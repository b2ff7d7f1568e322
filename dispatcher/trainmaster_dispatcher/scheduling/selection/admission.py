"""Which clusters refuse what a job's members run, as far as their agents have told by which policy they check.

A cluster's agent has the last word: it checks again before it starts anything. What is found here spares a job the way there and
back, and its owner the wait.
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
from trainmaster_dispatcher.scheduling.state.state import Access, Cluster

_MOST_FIELDS = 3
"""Of a template that are told by name."""
_ANY_KIND = Access(frozenset(ClusterKind))
_PLACEMENT = (by_name, by_kind, by_region, by_selector)


def refusals(spec: JobSpec, clusters: Sequence[Cluster]) -> tuple[list[ClusterRefusal], list[Mistake]]:
    """By which clusters a job is refused, and, where that is each one that it could be sent to, what the first of them refuses.

    No mistake is told where no cluster comes into question: one may be connected later.
    """
    refused: list[ClusterRefusal] = []
    told: list[Mistake] = []
    is_open = False
    wishes = wishes_of(spec)
    for cluster in clusters:
        if not _comes_into_question(cluster, wishes):
            continue
        mistakes = _mistakes_in(spec, cluster)
        if not mistakes:
            is_open = True
            continue
        told = told or mistakes
        fields = tuple(dict.fromkeys(one.path for one in mistakes))[:_MOST_FIELDS]
        admission = cluster.report.admission if cluster.report is not None else None
        refused.append(ClusterRefusal(cluster.name, fingerprint_of(admission), fields))
    if is_open or not refused:
        return refused, []
    where = f"cluster {refused[0].cluster}"
    if len(refused) > 1:
        where = f"each of the {len(refused)} clusters in question, such as {refused[0].cluster}"
    return refused, [Mistake(path=one.path, message=f"{where}: {one.message}") for one in told]


def _comes_into_question(cluster: Cluster, wishes: Wishes) -> bool:
    """Whether the job lets itself be sent there; of a cluster that has not reported yet nobody knows what it offers."""
    candidate = Candidate(_ANY_KIND, wishes, cluster, 0.0, ())
    tests = _PLACEMENT if cluster.report is None else (*_PLACEMENT, by_capability)
    return all(test(candidate) is None for test in tests)


def _mistakes_in(spec: JobSpec, cluster: Cluster) -> list[Mistake]:
    """What the cluster's agent would refuse in a job's roles, with paths from the job on."""
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
