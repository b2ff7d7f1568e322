"""Which clusters refuse what a job's members run, as far as their agents have told by which policy they check.

A cluster's agent has the last word: it checks again before it starts anything. What is found here spares a job the way there and
back, and its owner the wait.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from trainmaster.protocol.admission import check_image_named, check_role
from trainmaster.protocol.agent import ReportedAdmission
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import ClusterKind

_MOST_FIELDS = 3
"""Of a template that are told by name."""


@dataclass(frozen=True, slots=True)
class RefusedThere:
    """That a cluster refuses a job while its agent checks by the policy with this fingerprint."""

    cluster: str
    fingerprint: str
    fields: tuple[str, ...]
    """What it refuses, by path: the first few."""


@dataclass(frozen=True, slots=True)
class AdmittingCluster:
    """A cluster, with what decides whether a job may go there and whether its members may run."""

    name: str
    kind: ClusterKind
    region: str
    labels: Mapping[str, str]
    capabilities: frozenset[str] | None
    """None: not reported yet."""
    admission: ReportedAdmission | None
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", fingerprint_of(self.admission))

    def comes_into_question(self, spec: JobSpec) -> bool:
        """Whether the job lets itself be sent there."""
        wanted = spec.placement
        return (
            (not wanted.clusters or self.name in wanted.clusters)
            and (not wanted.kinds or self.kind in wanted.kinds)
            and (not wanted.regions or self.region in wanted.regions)
            and all(self.labels.get(key) == value for key, value in wanted.selector.items())
            and (
                self.capabilities is None
                or "podTemplate" in self.capabilities
                or all(role.pod_template is None for role in spec.roles)
            )
        )

    def mistakes_in(self, spec: JobSpec) -> list[Mistake]:
        """What its agent would refuse in a job's roles, with paths from the job on."""
        if self.admission is None:
            return []
        policy = self.admission.policy_of(spec.queue)
        out: list[Mistake] = []
        for index, role in enumerate(spec.roles):
            unnamed = check_image_named(role) if self.admission.needs_image else ()
            out += (
                Mistake(path=f"roles[{index}].{one.path}", message=one.message)
                for one in (*check_role(role, policy), *unnamed)
            )
        return out


def fingerprint_of(admission: ReportedAdmission | None) -> str:
    """A short text that differs where what an agent checks by differs; empty where it checks nothing."""
    if admission is None:
        return ""
    whole = orjson.dumps(admission.model_dump(mode="json", by_alias=True), option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(whole, digest_size=6).hexdigest()


def refusals(spec: JobSpec, clusters: Sequence[AdmittingCluster]) -> tuple[list[RefusedThere], list[Mistake]]:
    """By which clusters a job is refused, and, where that is each one that it could be sent to, what the first of them refuses.

    No mistake is told where no cluster comes into question: one may be connected later.
    """
    refused: list[RefusedThere] = []
    told: list[Mistake] = []
    is_open = False
    names = []
    for cluster in clusters:
        if not cluster.comes_into_question(spec):
            continue
        mistakes = cluster.mistakes_in(spec)
        if not mistakes:
            is_open = True
            continue
        told = told or mistakes
        names.append(cluster.name)
        fields = tuple(dict.fromkeys(one.path for one in mistakes))[:_MOST_FIELDS]
        refused.append(RefusedThere(cluster.name, cluster.fingerprint, fields))
    if is_open or not refused:
        return refused, []
    where = (
        f"cluster {names[0]}"
        if len(names) == 1
        else f"each of the {len(names)} clusters in question, such as {names[0]}"
    )
    return refused, [Mistake(path=one.path, message=f"{where}: {one.message}") for one in told]
