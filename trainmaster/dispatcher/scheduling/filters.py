"""Filters: small pure functions that say why a cluster is out of the question for a class of jobs, before any fit.

The order of the registry is the order in which reasons are told: what the job itself rules out comes first, what passes by
itself comes last.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trainmaster.dispatcher.domain.shapes import Wishes
from trainmaster.dispatcher.scheduling.view import Cluster
from trainmaster.protocol.reasons import Check
from trainmaster.protocol.states import ClusterKind


@dataclass(frozen=True, slots=True)
class Candidate:
    """Jobs alike looked at on one cluster. ``allowed_kinds`` are their queue's, ``lease_left`` is in seconds."""

    allowed_kinds: frozenset[ClusterKind]
    wishes: Wishes
    cluster: Cluster
    lease_left: float
    avoided: tuple[int, ...]


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
    if kind not in candidate.allowed_kinds:
        allowed = " and ".join(sorted(candidate.allowed_kinds))
        return f"its queue allows {allowed} clusters, this one is {kind}"
    return None


def by_selector(candidate: Candidate) -> str | None:
    for key, value in candidate.wishes.selector:
        if candidate.cluster.labels.get(key) != value:
            return f"the job wants {key}={value}, the cluster has {key}={candidate.cluster.labels.get(key, 'nothing')}"
    return None


def by_report(candidate: Candidate) -> str | None:
    return None if candidate.cluster.report is not None else "its agent has not reported its capacity yet"


def by_dataset(candidate: Candidate) -> str | None:
    report = candidate.cluster.report
    missing = [name for name in candidate.wishes.datasets if report is None or name not in report.datasets]
    return f"dataset {missing[0]} is not there" if missing else None


def by_capability(candidate: Candidate) -> str | None:
    report = candidate.cluster.report
    has = report.capabilities if report is not None else ()
    missing = [name for name in candidate.wishes.capabilities if name not in has]
    return f"its {report.runtime if report else ''} runtime does not offer {missing[0]}" if missing else None


def by_cordon(candidate: Candidate) -> str | None:
    return "it is cordoned: an admin lets nothing new start there" if candidate.cluster.cordoned else None


def by_lease(candidate: Candidate) -> str | None:
    return None if candidate.lease_left > 0 else "its agent has not been heard from; nothing new is sent there"


def by_closed(candidate: Candidate) -> str | None:
    report = candidate.cluster.report
    return None if report is None or not report.closed else f"its agent can start nothing there now: {report.closed}"


def by_cool_down(candidate: Candidate) -> str | None:
    if candidate.cluster.id in candidate.avoided:
        return "it could not place this job a short while ago"
    return None


STATIC: tuple[tuple[Check, Filter], ...] = (
    (Check.NAME, by_name),
    (Check.KIND, by_kind),
    (Check.SELECTOR, by_selector),
    (Check.NO_REPORT, by_report),
    (Check.DATASET, by_dataset),
    (Check.CAPABILITY, by_capability),
)
"""What only a change of the job or the cluster can mend."""

PASSING: tuple[tuple[Check, Filter], ...] = (
    (Check.CORDONED, by_cordon),
    (Check.UNREACHABLE, by_lease),
    (Check.UNREACHABLE, by_closed),
    (Check.COOLING_DOWN, by_cool_down),
)
"""What passes: looked at after the question whether the gang could ever fit."""


def first_failing(filters: tuple[tuple[Check, Filter], ...], candidate: Candidate) -> tuple[Check, str] | None:
    for check, test in filters:
        sentence = test(candidate)
        if sentence is not None:
            return check, sentence
    return None
