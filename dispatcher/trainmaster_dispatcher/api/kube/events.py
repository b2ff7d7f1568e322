"""Events of jobs, schedules and workflows as Kubernetes has them, of the core group, for ``kubectl describe`` and ``events``. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trainmaster.protocol.base import format_time
from trainmaster.protocol.ids import workflow_id
from trainmaster_dispatcher.api.kube.objects import GROUP_VERSION, Wire, moment, schedule_uid, uid_of
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.workflow_events import WARNINGS
from trainmaster_dispatcher.store.event_feed import FeedEvent
from trainmaster_dispatcher.store.jobs import StoredEvent
from trainmaster_dispatcher.store.schedules import ScheduleEvent
from trainmaster_dispatcher.store.workflow_events import StoredWorkflowEvent

_WARNINGS = frozenset(
    {
        JobEventKind.PREEMPT,
        JobEventKind.DEADLINE_AT_RISK,
        JobEventKind.DEADLINE_MISSED,
        JobEventKind.SESSION_WARNING,
        JobEventKind.GPU_IDLE,
        JobEventKind.RUN_FAILED,
        JobEventKind.RUN_PREEMPTED,
        JobEventKind.RUN_RETURNED,
        JobEventKind.RUN_LOST,
        JobEventKind.RUN_MISSING,
        JobEventKind.RUN_UNVERIFIED,
        JobEventKind.RUN_ORPHANED,
    }
)
_COMPONENT = "trainmaster"
EVENT_FIELDS = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "involvedObject.apiVersion": ("involvedObject", "apiVersion"),
    "involvedObject.kind": ("involvedObject", "kind"),
    "involvedObject.name": ("involvedObject", "name"),
    "involvedObject.namespace": ("involvedObject", "namespace"),
    "involvedObject.uid": ("involvedObject", "uid"),
    "involvedObject.fieldPath": ("involvedObject", "fieldPath"),
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}
"""The fields by which events are selected: those of Kubernetes."""
_OF_SERIES = ("type", "reason", "message", "involvedObject")
"""The fields in which the events of a series are the same."""


class InvolvedJob(NamedTuple):
    """The job of an event: its id, the name of its object, its namespace, and the kind and identity of the object."""

    id: str
    name: str
    namespace: str
    api_version: str
    kind: str
    uid: str


class SaidEvent(NamedTuple):
    """The content of an event, and its name as an object."""

    name: str
    at: datetime
    reason: str
    message: str
    is_warning: bool


def event_object(event: StoredEvent | FeedEvent, job: InvolvedJob, version: int) -> Wire:
    """Return an event of a job."""
    said = SaidEvent(
        f"{job.id}.{event.seq}", event.at, reason_of(event.kind), message_of(event), is_warning=is_warning(event)
    )
    return _object(said, job, version)


def folded(events: Iterable[Wire]) -> list[Wire]:
    """Return events of one job with each series of the same type, reason and message as one event, that has the ``count`` and the
    moments of the first and the last: as an API server's clients record what happens again.
    """
    found: list[Wire] = []
    for event in events:
        last = found[-1] if found else None
        if last is not None and all(last[field] == event[field] for field in _OF_SERIES):
            found[-1] = last | {"count": last["count"] + event["count"], "lastTimestamp": event["lastTimestamp"]}
        else:
            found.append(event)
    return found


def schedule_event(event: ScheduleEvent, *, is_own: bool = False) -> Wire:
    """Return an event of a schedule; with ``is_own``, of it as a Schedule of this system, whichever it was written as."""
    kind = None if is_own else event.kind
    api_version, _, word = (kind or f"{GROUP_VERSION} Schedule").partition(" ")
    involved = InvolvedJob(
        event.schedule, event.schedule, event.namespace, api_version, word, schedule_uid(event.schedule_id, kind)
    )
    said = SaidEvent(
        f"{event.schedule}.s{event.id}", event.at, event.reason, event.message, is_warning=event.is_warning
    )
    return _object(said, involved, event.version)


def workflow_event(event: StoredWorkflowEvent) -> Wire:
    """Return an event of a workflow."""
    text = workflow_id(event.name, event.workflow_id)
    involved = InvolvedJob(
        text, event.object_name or text, event.namespace, GROUP_VERSION, "Workflow", uid_of("Workflow", text)
    )
    parts = (
        f"step {event.step}" if event.step else "",
        event.message,
        f"by {event.actor}" if event.actor else "",
    )
    message = ", ".join(part for part in parts if part) or f"the workflow is {event.kind}"
    is_bad = event.kind in WARNINGS
    said = SaidEvent(f"{text}.{event.seq}", event.at, reason_of(event.kind), message, is_warning=is_bad)
    return _object(said, involved, event.version)


def _object(event: SaidEvent, job: InvolvedJob, version: int) -> Wire:
    at = moment(format_time(event.at))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event.name,
            "namespace": job.namespace,
            "uid": uid_of("Event", event.name),
            "resourceVersion": str(version),
            "creationTimestamp": at,
        },
        "involvedObject": {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": event.message,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": "",
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "eventTime": None,
    }


def is_warning(event: StoredEvent | FeedEvent) -> bool:
    """Return whether an event tells of something that went wrong."""
    return event.kind in _WARNINGS or (event.details or {}).get("job") == "failed"


def reason_of(kind: str) -> str:
    """Return the kind of an event as one word, as reasons of events are: ``run.running`` is ``RunRunning``."""
    return "".join(part[:1].upper() + part[1:] for part in kind.split("."))


def message_of(event: StoredEvent | FeedEvent) -> str:
    """Return what an event says to people."""
    details: dict[str, Any] = event.details or {}
    parts = [
        f"run {event.attempt}" if event.attempt else "",
        f"on {event.cluster}" if event.cluster else "",
        f"the job is {details['job']}" if "job" in details else "",
        f"category {details['category']}" if details.get("category") else "",
        f"exit code {details['exitCode']}" if details.get("exitCode") is not None else "",
        _change("priority", details.get("priority")),
        _change("priority class", details.get("priorityClass")),
    ]
    if (until := details.get("holdUntil")) is not None:
        parts.append(f"until {moment(format_time(datetime.fromtimestamp(float(until), UTC)))}")
    parts += [f"labels {_labels(details['labels'])}"] if "labels" in details else []
    parts += [event.message, f"by {event.actor}" if event.actor else ""]
    return ", ".join(part for part in parts if part) or f"the job is {event.states[-1] if event.states else event.kind}"


def _change(field: str, value: Any) -> str:
    if value is None:
        return ""
    shown = " -> ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{field} {shown}"


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or "removed"
