"""Objects of the dispatcher as Kubernetes has them: metadata, spec and status. Pure.

A queue's path has ``/`` between its parts, which no name in Kubernetes may have. The object of a queue has ``.`` instead, which no
part may have; the namespace of its jobs has ``-``, which a part may have, so that two queues may have the same namespace.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID, uuid5

from trainmaster.protocol.states import JobState

GROUP = "trainmaster.dev"
VERSION = "v1"
GROUP_VERSION = f"{GROUP}/{VERSION}"

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
_SUSPENDED = "suspended"


def object_name(name: str) -> str:
    """Return the name of an object of ours in Kubernetes."""
    return name.replace("/", ".")


def namespace_of(queue: str) -> str:
    """Return the namespace of a queue's jobs."""
    return queue.replace("/", "-")


def uid_of(kind: str, name: str) -> str:
    return str(uuid5(_UIDS, f"{kind}/{name}"))


def moment(written: str | None) -> str | None:
    """Return a time as Kubernetes writes it: in UTC, without fractions of a second."""
    return None if written is None else f"{written[:19]}Z"


def declared_object(kind: str, name: str, shown: Mapping[str, Any], fields: frozenset[str]) -> Wire:
    """Return a declared object: what is declared, by ``fields``, is its spec, and what is shown beside it its status."""
    spec = {field: value for field, value in shown.items() if field in fields}
    status = {field: value for field, value in shown.items() if field not in fields and field not in ("kind", "name")}
    called = object_name(name)
    return {
        "apiVersion": GROUP_VERSION,
        "kind": kind,
        "metadata": {"name": called, "uid": uid_of(kind, called), "creationTimestamp": None},
        "spec": spec,
        **({"status": status} if status else {}),
    }


def job_object(line: Mapping[str, Any], spec: Mapping[str, Any] | None) -> Wire:
    """Return a job, given as a line of a list, with its specification if that is known."""
    metadata: Wire = {
        "name": line["id"],
        "generateName": f"{line['name']}-",
        "namespace": namespace_of(line["queue"]),
        "uid": uid_of("Job", line["id"]),
        "generation": 1,
        "creationTimestamp": moment(line["submittedAt"]),
    }
    if line.get("labels"):
        metadata["labels"] = dict(line["labels"])
    found: Wire = {"apiVersion": GROUP_VERSION, "kind": "Job", "metadata": metadata}
    if spec is not None:
        found["spec"] = {field: value for field, value in spec.items() if field not in ("kind", "name", "labels")}
    return found | {"status": _job_status(line)}


def _job_status(line: Mapping[str, Any]) -> Wire:
    fields = (
        *("holdCause", "holdUntil", "message", "attempt", "retriesUsed", "cluster", "submittedBy", "submittedThrough"),
        *("startedAt", "endedAt", "ranSeconds", "runningSince", "parameters", "runs"),
    )
    status = {field: line[field] for field in fields if line.get(field) not in (None, "")}
    return {"state": line["shownState"], **status, "conditions": conditions_of(line)}


def conditions_of(line: Mapping[str, Any]) -> list[Wire]:
    """Return the conditions of a job: the one of its state, and ``Suspended`` where a person holds it."""
    state, shown = JobState(line["state"]), line["shownState"]
    since = {
        JobState.RUNNING: line.get("runningSince") or line.get("startedAt"),
        JobState.SUCCEEDED: line.get("endedAt"),
        JobState.FAILED: line.get("endedAt"),
        JobState.CANCELLED: line.get("endedAt"),
    }.get(state)
    reason = _words(line.get("holdCause") or shown)
    found = [_condition(_CONDITIONS[state], reason, line.get("message", ""), since or line["submittedAt"])]
    if line.get("holdCause") == _SUSPENDED:
        found.append(_condition("Suspended", reason, "", line["submittedAt"]))
    return found


def _condition(kind: str, reason: str, message: str, at: str) -> Wire:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": moment(at)}


def _words(state: str) -> str:
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


def list_of(kind: str, version: str, items: list[Wire], following: str | None) -> Wire:
    """Return a list of objects. ``following``: the token by which it goes on."""
    return {
        "apiVersion": version,
        "kind": f"{kind}List",
        "metadata": {"resourceVersion": "0", **({"continue": following} if following else {})},
        "items": items,
    }
