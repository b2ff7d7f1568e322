"""Objects of other APIs that run as jobs: what is seen of one on the cluster, and the members that its pods are. Pure.

Its own controller makes its pods and gives them names. Each pod gets the index of a member once it is seen, as a label: the lowest
that no other pod has, or that of a pod that has ended, whose successor it then is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from trainmaster.protocol.agent import MOST_STATUS_BYTES, MOST_STATUS_FIELDS
from trainmaster.workload_kinds.kind import WorkloadEnd, WorkloadKind
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import LABEL_HOLDER, LABEL_INDEX, LABEL_ROLE, LABEL_ROUND, LABEL_RUN, PodSight

_LONGEST_NAME = 11


def resource_of(kind: WorkloadKind) -> Resource:
    return Resource(kind.api_version, kind.plural, kind.kind)


def object_name(run: str) -> str:
    """Return the name of a run's object: the run's id, its name shortened, as controllers add to it, twice in some labels."""
    name, *rest = run.rsplit("-", 2)
    return "-".join((name[:_LONGEST_NAME].rstrip("-"), *rest))


@dataclass(frozen=True, slots=True)
class WorkloadSight:
    """The object of a run at one moment."""

    run: str
    name: str
    uid: str
    round: int = 0
    """Round of members that its pods belong to."""
    is_deleting: bool = False
    end: WorkloadEnd | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    """Its status, shortened to what is reported."""


def see_workload(kind: WorkloadKind, stored: Mapping[str, Any]) -> WorkloadSight | None:
    """Read an object; None if it is not of a run."""
    metadata = stored["metadata"]
    labels = metadata.get("labels") or {}
    run = labels.get(LABEL_RUN)
    if not run:
        return None
    number = labels.get(LABEL_ROUND, "0")
    return WorkloadSight(
        run=run,
        name=metadata["name"],
        uid=metadata["uid"],
        round=int(number) if number.isdigit() else 0,
        is_deleting="deletionTimestamp" in metadata,
        end=kind.end_of(stored),
        status=_reported(stored.get("status")),
    )


def _reported(status: Any) -> Mapping[str, Any]:
    """Return a status in at most ``MOST_STATUS_BYTES`` and fields: without its largest ones, the conditions last."""
    if not isinstance(status, Mapping):
        return {}
    sizes = {field: len(orjson.dumps(value)) + len(field) + 4 for field, value in status.items()}
    left = dict(status)
    for dropped in sorted(status, key=lambda field: (field != "conditions", sizes[field]), reverse=True):
        if len(left) <= MOST_STATUS_FIELDS and sum(sizes[one] for one in left) + 2 <= MOST_STATUS_BYTES:
            break
        del left[dropped]
    return left


class NewPod(NamedTuple):
    """A pod of a run that has no index yet."""

    name: str
    namespace: str
    uid: str
    run: str
    role: str
    round: int
    created: str
    holder: str


def new_pod(pod: Mapping[str, Any]) -> NewPod | None:
    """Return a pod of a run without an index; None for any other pod."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    run, role = labels.get(LABEL_RUN), labels.get(LABEL_ROLE)
    if not run or not role or labels.get(LABEL_INDEX, "").isdigit():
        return None
    number = labels.get(LABEL_ROUND, "0")
    return NewPod(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        run=run,
        role=role,
        round=int(number) if number.isdigit() else 0,
        created=metadata.get("creationTimestamp") or "",
        holder=labels.get(LABEL_HOLDER, ""),
    )


def indexes_for(new: Iterable[NewPod], pods: Iterable[PodSight], sizes: Mapping[str, int]) -> list[tuple[NewPod, int]]:
    """Return an index for each new pod, the oldest first: a free one, that of an ended pod, or one beyond the size of the role."""
    taken: dict[str, dict[int, PodSight | None]] = {}
    for pod in pods:
        taken.setdefault(pod.role, {})[pod.index] = pod
    found = []
    for one in sorted(new, key=lambda one: (one.created, one.name)):
        of_role = taken.setdefault(one.role, {})
        size = sizes.get(one.role, 0)
        free = (index for index in range(size) if index not in of_role)
        ended = (
            index
            for index, pod in sorted(of_role.items(), key=lambda item: item[0])
            if index < size and pod is not None and (pod.is_over or pod.deleting or pod.round != one.round)
        )
        beyond = (index for index in range(size, size + len(of_role) + 1) if index not in of_role)
        index = next(free, None)
        index = next(ended, None) if index is None else index
        index = next(beyond) if index is None else index
        of_role[index] = None
        found.append((one, index))
    return found
