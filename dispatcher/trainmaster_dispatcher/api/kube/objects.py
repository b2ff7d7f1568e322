"""Objects of the dispatcher as Kubernetes has them: metadata, spec and status. Pure.

A queue's path has ``/`` between its parts, which no name in Kubernetes may have. The object of a queue has ``.`` instead, which no
part may have; the namespace of its jobs has ``-``, which a part may have, so that two queues may have the same namespace.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from trainmaster.protocol.base import format_time
from trainmaster.protocol.states import HoldCause, JobState, Wish
from trainmaster_dispatcher.services.bursting import as_money
from trainmaster_dispatcher.services.job_objects import ReadJob

GROUP = "trainmaster.dev"
VERSION = "v1"
GROUP_VERSION = f"{GROUP}/{VERSION}"

JOB_LABEL = f"{GROUP}/job-name"
CLUSTER_LABEL = f"{GROUP}/cluster"
_LONGEST_LABEL = 63
_UIDS = UUID("6d1f4a86-3c0e-5a7e-9a5e-3f2b7a8c9d10")
Wire = dict[str, Any]

_CONDITIONS = {
    JobState.HELD: "Queued",
    JobState.QUEUED: "Queued",
    JobState.DISPATCHED: "Dispatched",
    JobState.RUNNING: "Running",
    JobState.SUCCEEDED: "Complete",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Failed",
}
SUSPENSIONS = (HoldCause.USER, HoldCause.SUSPENDED)
"""The causes of holds that a person has made, and ends."""
_NOT_IN_SPEC = ("kind", "name", "labels")
"""Fields of a specification that are metadata of the object."""


def object_name(name: str) -> str:
    """Return the name of an object of ours in Kubernetes."""
    return name.replace("/", ".")


def uid_of(kind: str, name: str) -> str:
    return str(uuid5(_UIDS, f"{kind}/{name}"))


def moment(written: str | None) -> str | None:
    """Return a time as Kubernetes writes it: in UTC, without fractions of a second."""
    return None if written is None else f"{written[:19]}Z"


def label_of(name: str) -> dict[str, str]:
    """Return the label by which the parts of a job are selected; ``name``: that of its object."""
    return {JOB_LABEL: name[:_LONGEST_LABEL].rstrip("-.")}


def owner_of(job: ReadJob) -> Wire:
    """Return a job as the owner of its parts."""
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "Job",
        "name": job.name,
        "uid": uid_of("Job", job.line["id"]),
        "controller": True,
        "blockOwnerDeletion": False,
    }


def object_metadata(job: ReadJob, uid: str) -> Wire:
    """Return the metadata of a job's object, but for its managed fields."""
    line, known = job.line, job.metadata
    metadata: Wire = {
        "name": job.name,
        **({} if known.name else {"generateName": f"{line['name']}-"}),
        "namespace": job.namespace,
        "uid": uid,
        "resourceVersion": str(known.version),
        "generation": 1,
        "creationTimestamp": moment(line["submittedAt"]),
    }
    if known.deleted_at is not None:
        metadata |= {"deletionTimestamp": moment(format_time(known.deleted_at)), "deletionGracePeriodSeconds": 0}
    if line.get("labels"):
        metadata["labels"] = dict(line["labels"])
    if known.annotations:
        metadata["annotations"] = known.annotations
    if known.schedule_id is not None:
        metadata["ownerReferences"] = [schedule_reference(known.schedule_id, known.schedule or "", known.schedule_kind)]
    return metadata


def schedule_uid(key: int, kind: str | None) -> str:
    """Return the identity of a schedule as an object of the kind as which it was written; None: a Schedule of this system."""
    return uid_of(kind or "Schedule", str(key))


def schedule_reference(key: int, name: str, kind: str | None) -> Wire:
    """Return a schedule as the owner of its jobs."""
    api_version, _, word = (kind or f"{GROUP_VERSION} Schedule").partition(" ")
    return {
        "apiVersion": api_version,
        "kind": word,
        "name": name,
        "uid": schedule_uid(key, kind),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def job_object(job: ReadJob) -> Wire:
    """Return a job, with its specification if that was read."""
    line = job.line
    metadata = object_metadata(job, uid_of("Job", line["id"]))
    if job.metadata.managed_fields and job.metadata.kind is None:
        metadata["managedFields"] = job.metadata.managed_fields
    found: Wire = {"apiVersion": GROUP_VERSION, "kind": "Job", "metadata": metadata}
    if job.spec is not None:
        found["spec"] = _job_spec(job.spec, line)
    return found | {"status": _job_status(job)}


def _job_spec(written: Mapping[str, Any], line: Mapping[str, Any]) -> Wire:
    """Return a specification as it was written, with what has changed since then."""
    spec = {field: value for field, value in written.items() if field not in _NOT_IN_SPEC}
    if line["priority"] != spec.get("priority", 0):
        spec["priority"] = line["priority"]
    if spec.get("priorityClass", line["priorityClass"]) != line["priorityClass"]:
        spec["priorityClass"] = line["priorityClass"]
    is_suspended = line.get("holdCause") in SUSPENSIONS or line["shownState"] == Wish.SUSPEND
    if is_suspended != spec.get("suspend", False):
        spec["suspend"] = is_suspended
    return spec


def _job_status(job: ReadJob) -> Wire:
    line = job.line
    fields = (
        *(
            "id",
            "holdCause",
            "holdUntil",
            "deadline",
            "deadlineState",
            "message",
            "attempt",
            "retriesUsed",
            "cluster",
            "submittedBy",
            "submittedThrough",
        ),
        *("startedAt", "endedAt", "ranSeconds", "runningSince", "parameters", "results", "runs"),
    )
    status = {field: line[field] for field in fields if line.get(field) not in (None, "")}
    if job.reason is not None:
        why = {"token": job.reason.token.value, "tier": job.reason.tier.value, "sentence": job.reason.sentence}
        status["why"] = why | ({"advice": job.reason.advice} if job.reason.advice else {})
    if job.cost is not None:
        status |= {"cost": as_money(job.cost.cost), "charge": as_money(job.cost.charge)}
    return {"state": line["shownState"], **status, "conditions": conditions_of(job)}


def conditions_of(job: ReadJob) -> list[Wire]:
    """Return the conditions of a job: the one of its state, and ``Suspended`` where a person holds it."""
    line = job.line
    state, shown = JobState(line["state"]), line["shownState"]
    since = {
        JobState.RUNNING: line.get("runningSince") or line.get("startedAt"),
        JobState.SUCCEEDED: line.get("endedAt"),
        JobState.FAILED: line.get("endedAt"),
        JobState.CANCELLED: line.get("endedAt"),
    }.get(state)
    reason = reason_word(line.get("holdCause") or shown)
    message = line.get("message", "") if job.reason is None else job.reason.sentence
    found = [_condition(_CONDITIONS[state], reason, message, since or line["submittedAt"])]
    if line.get("holdCause") in SUSPENSIONS:
        found.append(_condition("Suspended", reason, "", line["submittedAt"]))
    return found


def _condition(kind: str, reason: str, message: str, at: str) -> Wire:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": moment(at)}


def reason_word(state: str) -> str:
    """Return a state as a reason of a condition: ``backOff`` is ``BackOff``."""
    return "".join(part[:1].upper() + part[1:] for part in state.replace("_", "-").replace(" ", "-").split("-"))


def namespace_object(name: str, queues: Iterable[str]) -> Wire:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "uid": uid_of("Namespace", name),
            "creationTimestamp": None,
            "annotations": {f"{GROUP}/queues": ",".join(queues)},
        },
        "spec": {},
        "status": {"phase": "Active"},
    }


class ListMetadata(NamedTuple):
    """The version of a list, from which changes can be watched, and the token by which it goes on."""

    version: int = 0
    following: str | None = None

    def written(self) -> Wire:
        following = {"continue": self.following} if self.following else {}
        return {"resourceVersion": str(self.version), **following}


def list_of(kind: str, version: str, items: list[Wire], metadata: ListMetadata) -> Wire:
    return {"apiVersion": version, "kind": f"{kind}List", "metadata": metadata.written(), "items": items}
