"""Groups of plain pods, as Kueue has them: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/#running-a-group-of-pods-to-be-admitted-together

The pods of a group are created one by one. Once all have been, they are one job. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import shown
from trainmaster.workload_kinds.kind import role_name
from trainmaster.workload_kinds.specification import job_name

Wire = dict[str, Any]
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
_TOTAL, _FAST = "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/pod-group-fast-admission"
_RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
_KEYS = frozenset((GROUP_LABEL, _TOTAL, _FAST, _RETRIABLE))
_MOST_PODS = 10_000
_MOST_ROLES = 16
_OF_EACH = ("name", "roles", "labels", "workload", "stopGrace")
"""Fields of the specification of a pod by itself in which the pods of a group may differ."""


class PodGroup(NamedTuple):
    """A group that a pod names, and how many pods it has."""

    name: str
    total: int


class MemberOf(NamedTuple):
    """The member of a job that a pod is."""

    role: str
    place: int


class GroupError(ValueError):
    """A pod cannot be in its group: the path of what is wrong in its manifest."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.mistake = Mistake(path=path, message=message)


def annotation_path(key: str) -> str:
    return f'metadata.annotations["{key}"]'


TOTAL_PATH, LABEL_PATH = annotation_path(_TOTAL), f'metadata.labels["{GROUP_LABEL}"]'


def group_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> PodGroup | None:
    """Return the group that a pod names; None for a pod by itself. Raises GroupError for what cannot be honoured."""
    name = labels.get(GROUP_LABEL)
    if not name:
        return None
    total = annotations.get(_TOTAL, "")
    if not (total.isascii() and total.isdigit()) or not 1 <= int(total) <= _MOST_PODS:
        raise GroupError(
            TOTAL_PATH, f"must be the number of pods of the group, from 1 to {_MOST_PODS}, not {shown(total)}"
        )
    if annotations.get(_FAST) not in (None, "false"):
        raise GroupError(
            annotation_path(_FAST), "cannot be honoured: a group is queued once all of its pods have been created"
        )
    if annotations.get(_RETRIABLE) not in (None, "false"):
        raise GroupError(
            annotation_path(_RETRIABLE),
            "cannot be honoured: no pod of a group is replaced; false, or no such annotation, is taken",
        )
    return PodGroup(name, int(total))


def without_group(texts: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations without those that say in which group a pod is."""
    return {key: value for key, value in texts.items() if key not in _KEYS}


def job_of(group: PodGroup, pods: Mapping[str, Wire]) -> tuple[Wire, dict[str, MemberOf]]:
    """Return the specification of the job that the pods of a group are, and the member that each pod is, by name.

    ``pods``: specifications of the jobs that they would be by themselves, by name. Pods with the same template are a role. Raises
    GroupError for pods that cannot be one job.
    """
    roles: list[tuple[Any, list[str]]] = []
    names = sorted(pods, key=lambda name: (len(name), name))
    first = pods[names[0]]
    for name in names:
        for field in {*first, *pods[name]} - {*_OF_EACH}:
            if pods[name].get(field) != first.get(field):
                raise GroupError(
                    _PATHS.get(field, "spec"), f"differs from that of the other pods of the group {group.name!r}"
                )
        template = pods[name]["roles"][0]["podTemplate"]
        equal = next((one for known, one in roles if known == template), None)
        if equal is None:
            roles.append((template, [name]))
        else:
            equal.append(name)
    if len(roles) > _MOST_ROLES:
        raise GroupError(
            "spec",
            f"is another one than those of {_MOST_ROLES} other pods: the pods of a group may be of {_MOST_ROLES} different"
            " specifications, with their labels and annotations",
        )
    return _made(group, pods, first, roles)


def _made(
    group: PodGroup, pods: Mapping[str, Wire], first: Wire, roles: Sequence[tuple[Any, list[str]]]
) -> tuple[Wire, dict[str, MemberOf]]:
    members: dict[str, MemberOf] = {}
    made: list[Wire] = []
    for template, names in roles:
        stem = names[0] if len(names) == 1 else _stem(names) or group.name
        role = role_name(stem, [one["name"] for one in made])
        made.append({"name": role, "replicas": len(names), "podTemplate": template})
        members |= {name: MemberOf(role, index) for index, name in enumerate(names)}
    labels = [one.get("labels") or {} for one in pods.values()]
    shared = {key: value for key, value in labels[0].items() if all(one.get(key) == value for one in labels)}
    graces = [one["stopGrace"] for one in pods.values() if one.get("stopGrace")]
    spec = {
        **{field: value for field, value in first.items() if field not in _OF_EACH},
        "name": job_name(group.name),
        "labels": {**shared, GROUP_LABEL: group.name},
        "roles": made,
        **({"stopGrace": max(graces, key=parse_duration)} if graces else {}),
    }
    return spec, members


def _stem(names: Sequence[str]) -> str:
    """Return the beginning that names have in common."""
    first, last = min(names), max(names)
    same = next((at for at, letter in enumerate(first) if letter != last[at]), len(first))
    return first[:same].strip("-.")


_PATHS = {"timeLimit": "spec.activeDeadlineSeconds", "priorityClass": "metadata.labels"}
