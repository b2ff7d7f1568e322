"""The steps for one object of a cluster and the job that it became: a pure function of both.

    no job yet ── create ──► job exists ── its status, back to the object ──► both have ended
    object is gone ── delete the job;  object is suspended or resumed ── the job, too;  job is gone ── the object has failed

Nothing else is remembered. The name of the job's object follows from the uid of the cluster's, so that a job cannot be made twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from trainmaster.workload_kinds.kind import MANAGER, WorkloadEnd, WorkloadKind, at
from trainmaster.workload_kinds.specification import (
    ORIGIN_CLUSTER,
    ORIGIN_OBJECT,
    ORIGIN_SUSPENDED,
    ORIGIN_UID,
    QUEUE_KEY,
    NamedQueue,
    queue_of,
)

Wire = dict[str, Any]

JOB_ANNOTATION = "trainmaster.dev/job"
SHARED_ANNOTATIONS = (JOB_ANNOTATION, *(f"trainmaster.dev/{one}" for one in ("state", "cluster", "message")))
"""Annotations of a job's object that its origin gets, too."""
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""The only other manager that the kinds of Kubeflow and Ray allow: it means the dispatcher where the object names a queue of it."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_LONGEST_NAME, _DIGITS = 200, 8


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create the job's object in the dispatcher; ``queue``: as the object or its namespace names it, None for the namespace's."""

    manifest: Wire
    queue: NamedQueue | None


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job's object, which cancels the job."""


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Suspend or resume the job."""

    patch: Wire


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Write the job's status to the object; None leaves it. ``annotations``: those that differ."""

    status: Wire | None
    annotations: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class LookForJob:
    """Look whether the job's object, which is not in the copy of the dispatcher's list, still exists."""


Step = CreateJob | DeleteJob | SuspendJob | ReportStatus | LookForJob


def is_managed(kind: WorkloadKind, stored: Mapping[str, Any]) -> bool:
    """Return whether an object is the dispatcher's to run."""
    if not kind.manager_path:
        return False
    manager = at(stored, kind.manager_path)
    if manager == MANAGER:
        return True
    labels, annotations = _mappings(stored)
    return manager == _MULTIKUEUE and not kind.is_built_in and QUEUE_KEY in {*labels, *annotations}


def job_object_name(cluster: str, stored: Mapping[str, Any]) -> str:
    """Return the name of the object in the dispatcher, by the object's name and uid in its cluster."""
    metadata = stored["metadata"]
    digest = sha256(f"{cluster}/{metadata['uid']}".encode()).hexdigest()[:_DIGITS]
    return f"{metadata['name'][:_LONGEST_NAME].rstrip('-.')}-{digest}"


def steps(
    kind: WorkloadKind, cluster: str, local: Wire | None, remote: Wire | None, of_namespace: str | None, now: str
) -> list[Step]:
    """Return what is to be done. ``of_namespace``: the queue that the namespace of the object names; ``now``: as in Kubernetes.

    ``local``: the object, ``remote``: that of its job, as they were last seen; None where there is none.
    """
    if local is None or "deletionTimestamp" in local["metadata"]:
        is_to_delete = remote is not None and "deletionTimestamp" not in remote["metadata"]
        return [DeleteJob()] if is_to_delete else []
    has_ended = kind.end_of(local) is not None
    if remote is None:
        if has_ended:
            return []
        if JOB_ANNOTATION in _mappings(local)[1]:
            return [LookForJob()]
        return [CreateJob(_manifest(kind, cluster, local), _queue(local, of_namespace))]
    if has_ended:
        return []
    return [*_suspension(kind, local, remote), *_report(local, remote)]


def lost_job(kind: WorkloadKind, local: Wire, now: str) -> ReportStatus:
    """Return the end of an object whose job was deleted in the dispatcher."""
    end = WorkloadEnd(False, "its job was deleted in the dispatcher")
    return ReportStatus(kind.ended_status(local.get("status") or {}, end, "JobDeleted", now), {})


def refused_job(kind: WorkloadKind, local: Wire, message: str, now: str) -> ReportStatus:
    """Return the end of an object that the dispatcher refuses to take as a job."""
    end = WorkloadEnd(False, f"the dispatcher refuses it: {message}")
    return ReportStatus(kind.ended_status(local.get("status") or {}, end, "Refused", now), {})


def is_misplaced(named: NamedQueue | None, of_namespace: str | None) -> bool:
    """Return whether an object names another queue than those that its namespace allows: its own one and those below it."""
    if named is None or of_namespace is None:
        return False
    return named.value != of_namespace and not named.value.startswith(f"{of_namespace}/")


def _queue(local: Mapping[str, Any], of_namespace: str | None) -> NamedQueue | None:
    named = queue_of(*_mappings(local))
    if named is None and of_namespace is not None:
        return NamedQueue(of_namespace, "")
    return named


def _manifest(kind: WorkloadKind, cluster: str, local: Mapping[str, Any]) -> Wire:
    metadata = local["metadata"]
    labels, annotations = _mappings(local)
    is_suspended = bool(at(local, kind.suspend_path)) if kind.suspend_path else False
    own = {
        ORIGIN_OBJECT: f"{metadata['namespace']}/{metadata['name']}",
        ORIGIN_SUSPENDED: _flag(is_suspended),
    }
    kept = {key: text for key, text in annotations.items() if key not in (*SHARED_ANNOTATIONS, _LAST_APPLIED)}
    labels = {key: text for key, text in labels.items() if key not in kind.added_labels}
    spec = kind.as_submitted(local)
    manifest: Wire = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": job_object_name(cluster, local),
            "labels": {**labels, ORIGIN_CLUSTER: cluster, ORIGIN_UID: metadata["uid"]},
            "annotations": {**kept, **own},
        },
        "spec": spec,
    }
    parent = at(manifest, kind.manager_path[:-1])
    if isinstance(parent, dict):
        parent.pop(kind.manager_path[-1], None)
    return manifest


def _suspension(kind: WorkloadKind, local: Mapping[str, Any], remote: Mapping[str, Any]) -> list[Step]:
    """Return what suspends or resumes the job where the object's wish is another than the last one that was passed on.

    A job that somebody suspends in the dispatcher is not resumed by its object.
    """
    if not kind.suspend_path:
        return []
    wished = _flag(bool(at(local, kind.suspend_path)))
    if wished == _mappings(remote)[1].get(ORIGIN_SUSPENDED):
        return []
    patch: Wire = {"metadata": {"annotations": {ORIGIN_SUSPENDED: wished}}}
    parent = patch
    for step in kind.suspend_path[:-1]:
        parent = parent.setdefault(step, {})
    parent[kind.suspend_path[-1]] = wished == "true"
    return [SuspendJob(patch)]


def _report(local: Mapping[str, Any], remote: Mapping[str, Any]) -> list[Step]:
    before = local.get("status") or {}
    status = dict(remote.get("status") or {})
    if status and before.get("startTime"):
        status["startTime"] = before[
            "startTime"
        ]  # of a Job that has started it must not change, wherever it runs again
    _, known = _mappings(local)
    _, shared = _mappings(remote)
    differing = {key: shared.get(key) for key in SHARED_ANNOTATIONS if known.get(key) != shared.get(key)}
    is_other = bool(status) and status != before
    return [ReportStatus(status if is_other else None, differing)] if is_other or differing else []


def _mappings(stored: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and the annotations of an object."""
    metadata = stored["metadata"]
    return metadata.get("labels") or {}, metadata.get("annotations") or {}


def _flag(value: bool) -> str:
    return "true" if value else "false"
