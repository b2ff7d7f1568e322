"""Jobs that were submitted as manifests of other APIs, as objects of those: shown, submitted and changed. Pure.

What Trainmaster itself knows of such a job is in annotations of its object, which the dispatcher sets.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import WorkloadObject
from trainmaster.protocol.states import JobState, Wish
from trainmaster.workload_kinds.kind import WorkloadEnd, WorkloadKind, at, put
from trainmaster.workload_kinds.specification import (
    QUEUE_KEY,
    assembled,
    priority_class_of,
    queue_of,
    without_nulls,
)
from trainmaster_dispatcher.api.kube.bodies import Desired, fields_of
from trainmaster_dispatcher.api.kube.job_changes import FIXED, checked_labels
from trainmaster_dispatcher.api.kube.objects import (
    GROUP,
    SUSPENSIONS,
    Wire,
    label_of,
    moment,
    object_metadata,
    reason_word,
    uid_of,
)
from trainmaster_dispatcher.services.bursting import as_money
from trainmaster_dispatcher.services.job_actions import Action, JobPatch
from trainmaster_dispatcher.services.job_objects import JobObjectChange, ReadJob
from trainmaster_dispatcher.services.submission_parsing import mistaken

_ANNOTATIONS = {
    f"{GROUP}/job": "id",
    f"{GROUP}/state": "shownState",
    f"{GROUP}/cluster": "cluster",
    f"{GROUP}/message": "message",
}
"""Annotations that the dispatcher sets, with the fields of a job's line that they have."""
_WHY, _COST, _CHARGE = (f"{GROUP}/{field}" for field in ("why", "cost", "charge"))
"""Annotations that it sets besides: why a job waits, what its runs have cost, and what is charged for them."""
_SET = frozenset((*_ANNOTATIONS, _WHY, _COST, _CHARGE))
_EMPTY = ("metadata", "resources")
"""Fields of a template that clients write as empty objects where they are not set."""


def workload_uid(kind: WorkloadKind, job_id: str) -> str:
    """Return the identity of a job as an object of a kind."""
    return uid_of(kind.name, job_id)


def workload_object(kind: WorkloadKind, job: ReadJob) -> Wire:
    """Return a job that was submitted as a manifest of this kind, with its specification if that was read."""
    line = job.line
    metadata = object_metadata(job, workload_uid(kind, line["id"]))
    own = {key: str(line[field]) for key, field in _ANNOTATIONS.items() if line.get(field)}
    if job.reason is not None:
        own[_WHY] = job.reason.sentence
    if job.cost is not None:
        own |= {_COST: as_money(job.cost.cost), _CHARGE: as_money(job.cost.charge)}
    annotations = metadata.get("annotations", {})
    if job.metadata.spec is None:
        annotations = at(job.spec, ("workload", "manifest", "metadata", "annotations")) or {}
    metadata["annotations"] = {**annotations, **own}
    if job.metadata.managed_fields:
        metadata["managedFields"] = job.metadata.managed_fields
    found: Wire = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    if job.spec is not None:
        spec = kind.shown_spec(_written(kind, job), label_of(job.name))
        if kind.suspend_path:
            spec = _with_suspension(kind, spec, is_suspended=_is_suspended(line))
        found["spec"] = spec
    return found | {"status": _status(kind, job)}


def _written(kind: WorkloadKind, job: ReadJob) -> Wire:
    """Return the specification as its manifest had it; of a manifest that came by another way than this API, as it is created."""
    if job.metadata.spec is not None:
        return job.metadata.spec
    stored = job.spec or {}
    workload = WorkloadObject.model_validate(stored["workload"])
    templates = {role["name"]: role.get("podTemplate") or {} for role in stored["roles"]}
    spec: Wire = assembled(workload, templates).get("spec") or {}
    return spec


def _is_suspended(line: Mapping[str, Any]) -> bool:
    return line.get("holdCause") in SUSPENSIONS or line["shownState"] == Wish.SUSPEND


def _with_suspension(kind: WorkloadKind, spec: Wire, *, is_suspended: bool) -> Wire:
    """Return a specification that is suspended as its job is."""
    path = kind.suspend_path[1:]
    if bool(at(spec, path)) == is_suspended:
        return spec
    made = deepcopy(spec)
    parent: Any = made
    for step in path[:-1]:
        parent = parent.setdefault(step, {})
    parent[path[-1]] = is_suspended
    return made


def _status(kind: WorkloadKind, job: ReadJob) -> Wire:
    """Return the status that the kind's own controller gave the object on its cluster; of a job that ended otherwise, its end."""
    line = job.line
    status = dict(job.object_status or {})
    state = JobState(line["state"])
    if not state.is_terminal:
        return status
    has_succeeded = state is JobState.SUCCEEDED
    end = kind.end_of({"status": status})
    if end is not None and end.has_succeeded == has_succeeded:
        return status
    ended_at = moment(line.get("endedAt")) or ""
    ended = WorkloadEnd(has_succeeded, line.get("message", ""))
    return kind.ended_status(status, ended, reason_word(line["shownState"]), ended_at)


def workload_fields(kind: WorkloadKind, item: Wire) -> Wire:
    """Return what is managed of an object: without what the dispatcher sets."""
    fields = fields_of(item)
    metadata = dict(fields.pop("metadata", {}))
    metadata["annotations"] = _without_own(metadata.get("annotations", {}))
    kept = {field: value for field, value in metadata.items() if value}
    given = kind.shown_spec({}, {})
    spec = {field: value for field, value in fields["spec"].items() if field not in given}
    return {**({"metadata": kept} if kept else {}), "spec": spec}


def workload_wanted(kind: WorkloadKind, wanted: Desired) -> Desired:
    """Return what an object wants, without what the dispatcher sets."""
    given = kind.shown_spec({}, label_of(wanted.name))
    spec = {field: value for field, value in wanted.spec.items() if value != given.get(field)}
    return wanted._replace(annotations=_without_own(wanted.annotations), spec=spec)


def _without_own(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key not in _SET}


def workload_submission(kind: WorkloadKind, wanted: Desired, queue: str) -> Wire:
    """Return the manifest of a job that an object wants."""
    names = {"name": wanted.name, "generateName": wanted.prefix}
    metadata = {
        **{field: value for field, value in names.items() if value},
        "labels": wanted.labels,
        "annotations": {**wanted.annotations, QUEUE_KEY: queue},
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": wanted.spec}


def workload_change(kind: WorkloadKind, job: ReadJob, before: Wire, fields: Mapping[str, Any]) -> JobObjectChange:
    """Return the change of an object after which ``fields`` are what is managed of it; one without a specification keeps its own.

    Raises ProblemError INVALID_SPEC for a field that is fixed.
    """
    old: Wire = workload_fields(kind, before)
    old_spec: Wire = old["spec"]
    new_spec: Wire = dict(fields.get("spec") or old_spec)
    metadata, old_metadata = fields.get("metadata", {}), old.get("metadata", {})
    labels, annotations = (dict(metadata.get(field, {})) for field in ("labels", "annotations"))
    old_labels, old_annotations = (old_metadata.get(field, {}) for field in ("labels", "annotations"))
    mistakes = [
        *_fixed_in(kind, old_spec, new_spec),
        *_moved(old_labels, old_annotations, labels, annotations),
    ]
    wanted_class = priority_class_of(labels, annotations)
    is_other_class = wanted_class != priority_class_of(old_labels, old_annotations)
    if is_other_class and wanted_class is None:
        mistakes.append(Mistake(path="metadata", message="a priority class cannot be taken away; name another one"))
    if mistakes:
        raise mistaken(*mistakes)
    action = None
    if kind.suspend_path:
        was, is_now = (bool(at(spec, kind.suspend_path[1:])) for spec in (old_spec, new_spec))
        if was != is_now:
            action = Action.SUSPEND if is_now else Action.RESUME
    return JobObjectChange(
        labels=None if labels == old_labels else checked_labels(labels),
        annotations=None if annotations == old_annotations else annotations,
        spec=None if new_spec == old_spec else new_spec,
        patch=JobPatch.model_validate({"priorityClass": wanted_class}) if is_other_class else None,
        action=action,
    )


def _fixed_in(kind: WorkloadKind, old: Wire, new: Wire) -> list[Mistake]:
    """Return a mistake for each field of a specification that differs and is fixed."""
    known, wanted = _compared(kind, old), _compared(kind, new)
    suspends = f"spec.{'.'.join(kind.suspend_path[1:])}, " if kind.suspend_path else ""
    message = f"{FIXED}; only {suspends}labels and annotations can be changed"
    return [
        Mistake(path=f"spec.{field}", message=message)
        for field in sorted(known.keys() | wanted.keys())
        if known.get(field) != wanted.get(field)
    ]


def _compared(kind: WorkloadKind, spec: Wire) -> Wire:
    """Return what of a specification is fixed: without what says nothing, and without its suspension."""
    found = _without_empty(without_nulls(spec))
    path = kind.suspend_path[1:]
    if path and at(found, path) is not None:
        put(found, path, None)
        found = without_nulls(found)
    if not isinstance(found, dict):
        return {}
    return {field: value for field, value in found.items() if value not in ({}, None)}


def _without_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        made = {key: _without_empty(one) for key, one in value.items()}
        return {key: one for key, one in made.items() if one != {} or key not in _EMPTY}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value


def _moved(
    old_labels: Mapping[str, str],
    old_annotations: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> list[Mistake]:
    """Return a mistake if another queue is named than before."""
    old, new = queue_of(old_labels, old_annotations), queue_of(labels, annotations)
    if (old and old.value) == (new and new.value):
        return []
    named = new or old
    return [Mistake(path=named.path if named else "metadata", message=f"the queue of a job {FIXED}")]
