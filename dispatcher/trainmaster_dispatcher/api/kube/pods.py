"""Members of jobs as pods of the core group, for ``kubectl get pods`` and ``kubectl logs``, and jobs that came as pods. Pure.

A pod is a member of its job's latest run, wherever that is; its name is ``job.role.index``: a role has no dot in its name.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from trainmaster.protocol.base import format_time
from trainmaster.workload_kinds.pod import POD
from trainmaster.workload_kinds.registry import kind_by_name
from trainmaster_dispatcher.api.kube.objects import (
    CLUSTER_LABEL,
    GROUP,
    Wire,
    label_of,
    moment,
    owner_of,
    reason_word,
    uid_of,
)
from trainmaster_dispatcher.api.kube.workload_objects import workload_object
from trainmaster_dispatcher.services.job_members import JobMember
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.services.pod_groups import missing
from trainmaster_dispatcher.store.job_objects import ObjectRow
from trainmaster_dispatcher.store.pod_groups import GroupedPod

ROLE_LABEL = f"{GROUP}/role"
INDEX_LABEL = f"{GROUP}/index"
RUN_LABEL = f"{GROUP}/run"
POD_FIELDS = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.restartPolicy": ("spec", "restartPolicy"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "status.phase": ("status", "phase"),
}
_PHASES = {
    "pending": "Pending",
    "running": "Running",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "stopped": "Failed",
}
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class PodName:
    """The name of a pod, in its parts."""

    job: str
    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}.{self.role}.{self.index}"

    @classmethod
    def read(cls, text: str) -> "PodName | None":
        """Return the parts of a name; None for one that no pod can have."""
        job, *rest = text.rsplit(".", 2)
        if len(rest) < 2 or not rest[1].isdecimal() or len(rest[1]) > 5:
            return None
        return cls(job, rest[0], int(rest[1]))


def containers_of(role: dict[str, Any]) -> list[Wire]:
    """Return the containers of a member, as they are specified."""
    given = role.get("podTemplate")
    if isinstance(given, dict):
        found: list[Wire] = given.get("spec", {}).get("containers", [])
        return found
    template = role.get("template") or {}
    fields = {field: template[field] for field in ("image", "command", "args") if template.get(field)}
    resources = template.get("resources")
    return [{"name": _MAIN, **fields, **({"resources": {"requests": resources}} if resources else {})}]


def pod_object(member: JobMember) -> Wire:
    """Return a member as a pod."""
    job, run = member.job, member.run
    name = str(PodName(job.name, member.role_name, member.index))
    labels = {
        **job.line.get("labels", {}),
        **dict.fromkeys(name_labels_of(job), job.name),
        **label_of(job.name),
        ROLE_LABEL: member.role_name,
        INDEX_LABEL: str(member.index),
        RUN_LABEL: str(run.attempt),
        CLUSTER_LABEL: run.cluster,
    }
    containers = containers_of(dict(member.role))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "uid": uid_of("Pod", f"{job.line['id']}/{run.attempt}/{member.role_name}/{member.index}"),
            "resourceVersion": str(job.metadata.version),
            "creationTimestamp": moment(format_time(run.leased_at)),
            "labels": labels,
            "ownerReferences": [owner_of(job)],
        },
        "spec": {
            "containers": containers,
            "restartPolicy": "Never",
            **({"nodeName": member.node} if member.node else {}),
        },
        "status": _status(member, containers),
    }


def is_submitted_pod(job: ReadJob) -> bool:
    """Return whether a job was submitted as a pod, which has the name of the job's object."""
    return job.metadata.kind == POD.name


def submitted_pod(job: ReadJob, member: JobMember | None) -> Wire:
    """Return a job that was submitted as a pod as that pod. ``member``: of its latest run, if it has one and that was read."""
    made = workload_object(POD, job)
    spec = {"restartPolicy": "Never", **made.get("spec", {})}
    containers: list[Wire] = spec.get("containers") or []
    if member is None:
        return {**made, "spec": spec, "status": _status_without_member(job, containers)}
    made["metadata"]["labels"] = {**made["metadata"].get("labels", {}), CLUSTER_LABEL: member.run.cluster}
    node = {"nodeName": member.node} if member.node else {}
    return {**made, "spec": {**spec, **node}, "status": _status(member, containers)}


def grouped_pod(pod: GroupedPod, job: ReadJob | None, member: JobMember | None) -> Wire:
    """Return a pod of a group. ``job``: that of a complete group; ``member``: the member of its latest run that the pod is."""
    row = ObjectRow(
        job_id=pod.job_id or 0,
        version=pod.version if job is None else job.metadata.version,
        name=pod.name,
        spec=pod.spec,
        annotations=pod.annotations,
        managed_fields=pod.managed_fields,
        deleted_at=pod.deleted_at,
        kind=POD.name,
        namespace=pod.namespace,
    )
    created = format_time(pod.created_at)
    own = {"labels": pod.labels or {}, "submittedAt": created}
    if job is None:
        why = missing(pod)
        own |= {"id": "", "state": "held", "shownState": "held", "queue": pod.queue, "message": why}
        made = submitted_pod(ReadJob(0, own, row, pod.queue_id, pod.spec), None)
        made["metadata"]["annotations"][f"{GROUP}/why"] = why
    else:
        made = submitted_pod(replace(job, line={**job.line, **own}, metadata=row, spec=pod.spec), member)
    made["metadata"]["uid"] = uid_of(POD.name, f"{pod.group_id}/{pod.name}")
    return made


_PHASES_OF_JOBS = {"running": "Running", "succeeded": "Succeeded", "failed": "Failed", "cancelled": "Failed"}


def _status_without_member(job: ReadJob, containers: list[Wire]) -> Wire:
    """Return the status of a pod that waits, or of whose run nothing is known here."""
    line = job.line
    phase = _PHASES_OF_JOBS.get(line["state"], "Pending")
    why = "" if job.reason is None else job.reason.sentence
    message = why or line.get("message", "")
    reason = reason_word(line.get("holdCause") or line["shownState"])
    state: Wire = {"waiting": {"reason": reason, "message": message}}
    if phase == "Running":
        state = {"running": {"startedAt": moment(line.get("runningSince"))}}
    elif phase != "Pending":
        code = 0 if phase == "Succeeded" else 255
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": moment(line.get("endedAt"))}}
    scheduled: Wire = {"type": "PodScheduled", "status": "False" if phase == "Pending" else "True"}
    if phase == "Pending":
        scheduled |= {"reason": reason, "message": message}
    return {
        "phase": phase,
        "conditions": [scheduled, {"type": "Ready", "status": "True" if phase == "Running" else "False"}],
        **({"message": message} if message else {}),
        "containerStatuses": [_container_status(one, phase, 0, state) for one in containers[:1]],
    }


def name_labels_of(job: ReadJob) -> tuple[str, ...]:
    """Return the labels by which the controller of a job's manifest marks pods with the name of their object."""
    kind = None if job.metadata.kind is None else kind_by_name(job.metadata.kind)
    return () if kind is None else kind.name_labels


def _status(member: JobMember, containers: list[Wire]) -> Wire:
    phase = _PHASES.get(member.state, "Unknown")
    is_ready = "True" if phase == "Running" else "False"
    started = _moment(member.run.started_at)
    scheduled: Wire = {"type": "PodScheduled", "status": "True" if member.node else "False"}
    if phase == "Pending" and not member.node:
        scheduled |= {"reason": "Unschedulable", "message": member.text or (member.run.result or {}).get("message", "")}
    return {
        "phase": phase,
        "conditions": [
            scheduled,
            {"type": "Ready", "status": is_ready},
        ],
        **({"message": member.text} if member.text else {}),
        **({"reason": "Stopped"} if member.state == "stopped" else {}),
        **({"startTime": started} if started else {}),
        "containerStatuses": [
            _container_status(one, phase, member.restarts, _container_state(member, phase, started))
            for one in containers[:1]
        ],
    }


def _container_status(container: Wire, phase: str, restarts: int, state: Wire) -> Wire:
    return {
        "name": container.get("name", _MAIN),
        "image": container.get("image", ""),
        "imageID": "",
        "ready": phase == "Running",
        "started": phase == "Running",
        "restartCount": restarts,
        "state": state,
    }


def _container_state(member: JobMember, phase: str, started: str | None) -> Wire:
    """Return the state of a member's first container. As of a kubelet, an end whose exit code is not known has 255."""
    if phase == "Pending":
        return {"waiting": {"reason": "Pending", **({"message": member.text} if member.text else {})}}
    if phase == "Running":
        return {"running": {"startedAt": started}}
    reason = {"succeeded": "Completed", "stopped": "Stopped"}.get(member.state, "Error")
    code = member.exit_code if member.exit_code is not None else (0 if member.state == "succeeded" else 255)
    times = {"startedAt": started, "finishedAt": _moment(member.run.ended_at)}
    text = {"message": member.text} if member.text else {}
    return {"terminated": {"exitCode": code, "reason": reason, **times, **text}}


def _moment(at: datetime | None) -> str | None:
    return None if at is None else moment(format_time(at))
