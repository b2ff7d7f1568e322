"""Filters: small pure functions that give the reason why a cluster is ruled out for a class of jobs, before any fit.

The order of the registry is the order in which reasons are reported: what the job itself rules out comes first,
temporary reasons come last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from trainmaster.protocol.device_claims import offers_claim, why_no_claim_template
from trainmaster.protocol.reasons import Check
from trainmaster.workload_kinds.registry import kind_by_capability
from trainmaster.workload_kinds.training_runtimes import is_offered, why_not_offered
from trainmaster_dispatcher.domain.cluster_admission import fingerprint_of
from trainmaster_dispatcher.domain.datasets import Dataset, has
from trainmaster_dispatcher.domain.redaction import OTHER_QUEUES, protected
from trainmaster_dispatcher.domain.shapes import Wishes
from trainmaster_dispatcher.scheduling.state.declared_objects import Access, Cluster


@dataclass(frozen=True, slots=True)
class Candidate:
    """Equivalent jobs checked on one cluster. ``access`` is what their queue allows, ``lease_left`` is in seconds.

    ``datasets``: what was declared; ``anywhere``: the data sets that are on any cluster; ``connects_at``: when the
    cluster connects next.
    """

    access: Access
    wishes: Wishes
    cluster: Cluster
    lease_left: float
    avoided: tuple[int, ...]
    datasets: Mapping[str, Dataset] = field(default_factory=dict)
    anywhere: frozenset[str] = frozenset()
    connects_at: float = 0.0
    now: float = 0.0


Filter = Callable[[Candidate], str | None]


def by_name(candidate: Candidate) -> str | None:
    wanted = candidate.wishes.clusters
    if wanted and candidate.cluster.name not in wanted:
        return f"the job names {', '.join(wanted)}"
    return None


def by_kind(candidate: Candidate) -> str | None:
    kind, kinds = candidate.cluster.kind, candidate.wishes.kinds
    if kinds and kind not in kinds:
        return f"the job wants {' or '.join(kinds)} clusters, this one is {kind}"
    if kind not in candidate.access.kinds:
        allowed = " and ".join(sorted(candidate.access.kinds)) or "no"
        return f"its queue allows {allowed} clusters, this one is {kind}"
    return None


def by_region(candidate: Candidate) -> str | None:
    region, own, queues = candidate.cluster.region, candidate.wishes.regions, candidate.access.regions
    here = f"this one is in {region}" if region else "this one has none"
    if own and region not in own:
        return f"the job wants region {' or '.join(own)}, {here}"
    if queues is not None and region not in queues:
        return f"its queue allows region {' or '.join(sorted(queues)) or 'nothing'}, {here}"
    for name in candidate.wishes.datasets:
        dataset = candidate.datasets.get(name)
        if dataset is not None and dataset.regions and region not in dataset.regions:
            return f"dataset {name} stays in region {' or '.join(dataset.regions)}, {here}"
    return None


def by_queue(candidate: Candidate) -> str | None:
    only = candidate.cluster.only_queues
    if only and not set(only).intersection(candidate.access.paths):
        whose = protected(f"queue {' or '.join(only)}", only, OTHER_QUEUES)
        return f"it runs jobs of {whose} only"
    return None


def by_selector(candidate: Candidate) -> str | None:
    for key, value in candidate.wishes.selector:
        if candidate.cluster.labels.get(key) != value:
            return f"the job wants {key}={value}, the cluster has {key}={candidate.cluster.labels.get(key, 'nothing')}"
    return None


def by_report(candidate: Candidate) -> str | None:
    if candidate.cluster.fault:
        return f"it is closed until this is fixed: {candidate.cluster.fault}"
    report = candidate.cluster.report
    if report is None:
        return "its agent has not reported its capacity yet"
    # Without nodes it is unknown whether the gang could ever fit there.
    return by_closed(candidate) if not report.groups and not report.pools else None


def by_dataset(candidate: Candidate) -> str | None:
    holder = candidate.cluster.holder
    for name in candidate.wishes.datasets:
        dataset = candidate.datasets.get(name)
        if has(dataset, name, holder):
            continue
        if dataset is None or not dataset.remote:
            return f"it does not have dataset {name}"
        if name not in candidate.anywhere:
            return f"dataset {name} is on no cluster, so it cannot be moved there"
    return None


def by_capability(candidate: Candidate) -> str | None:
    report = candidate.cluster.report
    has = report.capabilities if report is not None else ()
    lacked = [name for name in candidate.wishes.capabilities if name not in has and not is_offered(name, has)]
    missing = [name for name in lacked if not offers_claim(name, has)]
    if not missing:
        return None
    workload = next((kind for name in missing if (kind := kind_by_capability(name)) is not None), None)
    if workload is not None:
        operator = f", which needs {workload.needs}" if workload.needs else ""
        return f"its agent reports that it takes no {workload.kind} of {workload.api_version}{operator}"
    found = (why_not_offered(name, has) or why_no_claim_template(name, has) for name in missing)
    without = next((words for words in found if words is not None), None)
    return without or f"its {report.runtime if report else ''} runtime does not offer {missing[0]}"


def by_admission(candidate: Candidate) -> str | None:
    """Refuse only while the cluster's agent checks by the same policy as at submission: another policy may allow the job."""
    refused = next((one for one in candidate.wishes.refused_by if one.cluster == candidate.cluster.name), None)
    report = candidate.cluster.report
    if refused is None or report is None or fingerprint_of(report.admission) != refused.fingerprint:
        return None
    return f"its agent does not admit {' and '.join(refused.fields)} of the job"


def by_cordon(candidate: Candidate) -> str | None:
    return "it is cordoned: nothing new starts there" if candidate.cluster.cordoned else None


def by_lease(candidate: Candidate) -> str | None:
    return None if candidate.lease_left > 0 else "its agent is out of contact; nothing new is sent there"


def by_closed(candidate: Candidate) -> str | None:
    report = candidate.cluster.report
    return None if report is None or not report.closed else f"its agent can start nothing there now: {report.closed}"


def by_connection(candidate: Candidate) -> str | None:
    if candidate.connects_at <= candidate.now:
        return None
    when = (
        "is not connected" if candidate.connects_at == inf else f"is connected from {_clock(candidate.connects_at)} on"
    )
    return f"it {when}, and nothing is sent there before"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")


def by_cool_down(candidate: Candidate) -> str | None:
    if candidate.cluster.id in candidate.avoided:
        return "it could not place this job a short while ago"
    return None


STATIC: tuple[tuple[Check, Filter], ...] = (
    (Check.NAME, by_name),
    (Check.KIND, by_kind),
    (Check.REGION, by_region),
    (Check.QUEUE, by_queue),
    (Check.SELECTOR, by_selector),
    (Check.NO_REPORT, by_report),
    (Check.DATASET, by_dataset),
    (Check.CAPABILITY, by_capability),
    (Check.ADMISSION, by_admission),
)
"""Reasons that only a change of the job or the cluster removes."""

PASSING: tuple[tuple[Check, Filter], ...] = (
    (Check.CORDONED, by_cordon),
    (Check.UNREACHABLE, by_lease),
    (Check.UNREACHABLE, by_closed),
    (Check.UNREACHABLE, by_connection),
    (Check.COOLING_DOWN, by_cool_down),
)
"""Temporary reasons, checked after the question whether the gang could ever fit."""


def first_failing(filters: tuple[tuple[Check, Filter], ...], candidate: Candidate) -> tuple[Check, str] | None:
    for check, test in filters:
        sentence = test(candidate)
        if sentence is not None:
            return check, sentence
    return None
