"""The resources of the Kubernetes API: names, scope and table of each. Those of declared kinds come from the registry of kinds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.resource_kinds import (
    BURST_POLICY,
    CLUSTER,
    PRICE_BOOK,
    PRIORITY_CLASS,
    QUEUE,
    RESERVATION,
    ResourceKind,
)
from trainmaster.protocol.schedules import CronJobSpec, ScheduleSpec
from trainmaster.protocol.tenants import RunView
from trainmaster.protocol.workflows import WorkflowSpec
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.pod import POD
from trainmaster.workload_kinds.registry import KINDS as WORKLOAD_KINDS
from trainmaster_dispatcher.api.kube.objects import GROUP, VERSION
from trainmaster_dispatcher.api.kube.tables import TableColumn, age, at
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.declared_kinds import KINDS

_NAME = TableColumn("Name", at("metadata", "name"), "Name of the object")
_KINDS = {"PriorityClass": "JobPriorityClass"}
"""Kinds that have another name here, as Kubernetes has one of its own by that name."""
READ = ("get", "list")
READ_AND_CHANGE = ("create", "delete", "get", "list", "patch", "update", "watch")
_OF_JOBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_SHORT_NAMES = {
    QUEUE.kind: ("tq",),
    PRIORITY_CLASS.kind: ("jpc",),
    CLUSTER.kind: ("cl",),
    PRICE_BOOK.kind: ("pb",),
    BURST_POLICY.kind: ("bp",),
    RESERVATION.kind: ("rsv",),
}
_COUNTS = {RESERVATION.kind: "nodes"}
"""Fields of specifications that ``kubectl scale`` sets."""
_COLUMNS: Mapping[str, tuple[TableColumn, ...]] = {
    QUEUE.kind: (
        TableColumn("Queued", at("status", "jobs", "queued", empty="0"), "Jobs that are queued"),
        TableColumn("Running", at("status", "jobs", "running", empty="0"), "Jobs that are running"),
        TableColumn("Leaf", at("status", "isLeaf"), "Whether jobs may be submitted to it"),
        TableColumn("Weight", at("spec", "weight"), "Its part of what is left over", is_wide=True),
        TableColumn("Path", at("status", "path"), "Its path in the tree of queues", is_wide=True),
    ),
    CLUSTER.kind: (
        TableColumn("State", at("status", "state"), "State for people"),
        TableColumn("Kind", at("spec", "clusterKind"), "private, public or edge"),
        TableColumn("Region", at("spec", "region"), "Region"),
        TableColumn("Nodes", at("status", "nodes"), "Nodes that its agent reports"),
        TableColumn("Agent", at("status", "agentVersion"), "Version of its agent", is_wide=True),
        TableColumn("Capacity", at("status", "capacity"), "What its nodes have", is_wide=True),
    ),
    PRICE_BOOK.kind: (
        TableColumn("On demand", at("spec", "onDemand"), "Prices of an hour"),
        TableColumn("Spot", at("spec", "spot"), "Prices of an hour of what may be taken away", is_wide=True),
    ),
    BURST_POLICY.kind: (
        TableColumn("Queues", at("spec", "queues"), "Queues whose jobs it lets go to public clusters"),
        TableColumn("When", at("spec", "when"), "When they may"),
        TableColumn("Budget", at("spec", "budget"), "What it may spend"),
    ),
    RESERVATION.kind: (
        TableColumn("Queue", at("spec", "queue"), "Queue that the nodes are kept for"),
        TableColumn("Clusters", at("spec", "clusters"), "Clusters of the nodes"),
        TableColumn("Nodes", at("spec", "nodes"), "Number of nodes on each cluster"),
        TableColumn("From", at("spec", "start"), "Begin of the window"),
        TableColumn("Until", at("spec", "end"), "End of the window"),
    ),
}


@dataclass(frozen=True, slots=True)
class ApiResource:
    """A resource: ``plural`` is its word in addresses. ``schema``, ``status``: the models of its specification and of its status;
    ``declared``: the kind of declared objects that it shows; None for jobs and namespaces. ``group`` is empty for the core group.
    ``workload``: the kind of manifests as which its jobs were submitted; None for all else. ``count``: the field of its specification
    that its subresource ``scale`` has as replicas; empty without one.
    """

    kind: str
    plural: str
    columns: tuple[TableColumn, ...]
    schema: type[BaseModel] | None = None
    status: type[BaseModel] | None = None
    is_namespaced: bool = False
    short_names: tuple[str, ...] = ()
    declared: DeclaredKind[Any, Any] | None = None
    group: str = GROUP
    verbs: tuple[str, ...] = READ
    version: str = VERSION
    workload: WorkloadKind | None = None
    count: str = ""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def full_name(self) -> str:
        """The name by which kubectl's users know it in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _declared(of: DeclaredKind[Any, Any]) -> ApiResource:
    kind: ResourceKind[Any] = of.kind
    called = _KINDS.get(kind.kind, kind.kind)
    plural = (
        f"{called.lower()}es"
        if called.endswith("ss")
        else f"{called.lower()[:-1]}ies"
        if called.endswith("y")
        else f"{called.lower()}s"
    )
    own = tuple(
        TableColumn(column.heading.capitalize(), at("spec", column.field), column.heading.capitalize(), column.is_wide)
        for column in kind.columns
        if column.field != kind.key
    )
    columns = (_NAME, *(own or _COLUMNS.get(kind.kind, ())))
    verbs = READ_AND_CHANGE if kind.deletes else tuple(one for one in READ_AND_CHANGE if one != "delete")
    short = _SHORT_NAMES.get(kind.kind, ())
    count = _COUNTS.get(kind.kind, "")
    return ApiResource(called, plural, columns, kind.spec, short_names=short, declared=of, verbs=verbs, count=count)


def _last_seen(event: Mapping[str, Any]) -> str:
    return age(event["lastTimestamp"], datetime.now(UTC))


def _object_of(event: Mapping[str, Any]) -> str:
    involved = event["involvedObject"]
    return f"{involved['kind'].lower()}/{involved['name']}"


def _ready(pod: Mapping[str, Any]) -> str:
    statuses = pod["status"]["containerStatuses"]
    return f"{sum(one['ready'] for one in statuses)}/{len(statuses)}"


def _status(pod: Mapping[str, Any]) -> str:
    """Return the state of a pod as kubectl has it: a reason where there is one."""
    for one in pod["status"]["containerStatuses"]:
        for name in ("terminated", "waiting"):
            if name in one["state"]:
                return str(one["state"][name]["reason"])
    return str(pod["status"]["phase"])


def _restarts(pod: Mapping[str, Any]) -> int:
    return sum(one["restartCount"] for one in pod["status"]["containerStatuses"])


def _age(job: Mapping[str, Any]) -> str:
    return age(job["metadata"]["creationTimestamp"], datetime.now(UTC))


def _since(*path: str) -> Callable[[Mapping[str, Any]], str]:
    def passed(item: Mapping[str, Any]) -> str:
        found: Any = item
        for step in path:
            found = found.get(step, {})
        return age(found, datetime.now(UTC)) if found else "<none>"

    return passed


def _active(item: Mapping[str, Any]) -> int:
    return len(item["status"].get("active", ()))


def _job_message(job: Mapping[str, Any]) -> str:
    status = job["status"]
    return str(status["why"]["sentence"] if "why" in status else status.get("message", ""))


def _workload_message(item: Mapping[str, Any]) -> str:
    annotations = item["metadata"].get("annotations", {})
    return str(annotations.get(f"{GROUP}/why") or annotations.get(f"{GROUP}/message", ""))


JOBS = ApiResource(
    "Job",
    "jobs",
    (
        _NAME,
        TableColumn("State", at("status", "state"), "State of the job"),
        TableColumn("Cluster", at("status", "cluster"), "Cluster of its latest run"),
        TableColumn("Attempt", at("status", "attempt", empty="0"), "Number of its latest run"),
        TableColumn("Age", _age, "Time since it was submitted"),
        TableColumn("Submitted by", at("status", "submittedBy"), "Name of the key that submitted it", is_wide=True),
        TableColumn("Message", _job_message, "Why it waits, or what is known about its state", is_wide=True),
    ),
    JobSpec,
    is_namespaced=True,
    short_names=("tj",),
    verbs=_OF_JOBS,
)
NAMESPACES = ApiResource(
    "Namespace",
    "namespaces",
    (
        _NAME,
        TableColumn("Status", at("status", "phase"), "Always Active"),
        TableColumn("Queues", at("metadata", "annotations", f"{GROUP}/queues"), "Queues whose jobs are in it"),
    ),
    short_names=("ns",),
    group="",
)
"""The namespaces of the queues that take jobs, in the core group."""
EVENTS = ApiResource(
    "Event",
    "events",
    (
        TableColumn("Last seen", _last_seen, "Time since it happened"),
        TableColumn("Type", at("type"), "Normal or Warning"),
        TableColumn("Reason", at("reason"), "Kind of the event"),
        TableColumn("Object", _object_of, "Job that it is about"),
        TableColumn("Message", at("message"), "What happened"),
        TableColumn("Name", at("metadata", "name"), "Name of the event", is_wide=True),
    ),
    is_namespaced=True,
    short_names=("ev",),
    group="",
    verbs=("get", "list", "watch"),
)
"""What happened to jobs, in the core group."""
PODS = ApiResource(
    "Pod",
    "pods",
    (
        _NAME,
        TableColumn("Ready", _ready, "Containers that run"),
        TableColumn("Status", _status, "State of the member"),
        TableColumn("Restarts", _restarts, "Restarts of the member"),
        TableColumn("Age", _age, "Time since the run was handed to the cluster"),
        TableColumn("Cluster", at("metadata", "labels", f"{GROUP}/cluster"), "Cluster of the run"),
        TableColumn("Node", at("spec", "nodeName"), "Node of the member", is_wide=True),
    ),
    is_namespaced=True,
    short_names=("po",),
    group="",
    verbs=tuple(one for one in _OF_JOBS if one != "deletecollection"),
    workload=POD,
)
"""The members of jobs' latest runs, and the jobs that were submitted as pods, in the core group."""
RUNS = ApiResource(
    "Run",
    "runs",
    (
        _NAME,
        TableColumn("State", at("status", "state"), "State of the run"),
        TableColumn("Cluster", at("spec", "cluster"), "Cluster of the run"),
        TableColumn("Attempt", at("spec", "attempt"), "Number of the attempt"),
        TableColumn("Age", _age, "Time since it was handed to the cluster"),
        TableColumn("Why here", at("status", "whyHere"), "Why the cluster was chosen", is_wide=True),
        TableColumn("Message", at("status", "message"), "What is known about its state", is_wide=True),
    ),
    status=RunView,
    is_namespaced=True,
    verbs=("get", "list", "watch"),
)
"""The attempts of jobs, on whichever cluster."""
_SCHEDULE_COLUMNS = (
    _NAME,
    TableColumn("Schedule", at("spec", "schedule"), "Cron expression"),
    TableColumn("Timezone", at("spec", "timeZone"), "Time zone of the expression"),
    TableColumn("Suspend", at("spec", "suspend", empty="false"), "Whether it makes no jobs"),
    TableColumn("Active", _active, "Number of its jobs that have not ended"),
    TableColumn(
        "Last schedule", _since("status", "lastScheduleTime"), "Time since the last due time that became a job"
    ),
    TableColumn("Age", _age, "Time since it was made"),
    TableColumn("Next due", at("metadata", "annotations", f"{GROUP}/next-due"), "Its next due time", is_wide=True),
    TableColumn(
        "Message", at("metadata", "annotations", f"{GROUP}/message", empty=""), "Why a job is missing", is_wide=True
    ),
)
SCHEDULES = ApiResource(
    "Schedule",
    "schedules",
    _SCHEDULE_COLUMNS,
    ScheduleSpec,
    is_namespaced=True,
    short_names=("sch",),
    verbs=READ_AND_CHANGE,
)
"""Jobs that are submitted by the clock: all schedules, also those that were written as CronJobs."""
CRON_JOBS = ApiResource(
    "CronJob",
    "cronjobs",
    _SCHEDULE_COLUMNS,
    CronJobSpec,
    is_namespaced=True,
    short_names=("cj",),
    group="batch",
    verbs=READ_AND_CHANGE,
)
"""The schedules that were written as CronJobs of Kubernetes."""
WORKFLOWS = ApiResource(
    "Workflow",
    "workflows",
    (
        _NAME,
        TableColumn("Queue", at("spec", "queue"), "Queue of its jobs"),
        TableColumn("State", at("status", "state"), "State of the workflow"),
        TableColumn("Steps", at("status", "progress"), "Steps that have ended, and all"),
        TableColumn("Age", _age, "Time since it was submitted"),
        TableColumn("Attempt", at("status", "attempt"), "1, and one more with each resume", is_wide=True),
        TableColumn("Submitted by", at("status", "submittedBy"), "Name of who submitted it", is_wide=True),
        TableColumn("Message", at("status", "message", empty=""), "The step that runs, or has failed", is_wide=True),
    ),
    WorkflowSpec,
    is_namespaced=True,
    short_names=("wf",),
    verbs=READ_AND_CHANGE,
)
"""Jobs in steps."""
CORE = (NAMESPACES, EVENTS, PODS)
"""The resources of the core group."""


def _workload(kind: WorkloadKind) -> ApiResource:
    def progress(item: Mapping[str, Any]) -> str:
        return kind.progress(item["status"])

    return ApiResource(
        kind.kind,
        kind.plural,
        (
            *_WORKLOAD_COLUMNS[:3],
            TableColumn("Progress", progress, "How far it is, by its own controller"),
            *_WORKLOAD_COLUMNS[3:],
        ),
        is_namespaced=True,
        short_names=kind.short_names,
        group=kind.group,
        verbs=_OF_JOBS,
        version=kind.version,
        workload=kind,
    )


def _annotated(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return at("metadata", "annotations", f"{GROUP}/{name}")


_WORKLOAD_COLUMNS = (
    _NAME,
    TableColumn("State", _annotated("state"), "State of the job"),
    TableColumn("Cluster", _annotated("cluster"), "Cluster of its latest run"),
    TableColumn("Age", _age, "Time since it was submitted"),
    TableColumn("Job", _annotated("job"), "Id of the job", is_wide=True),
    TableColumn("Message", _workload_message, "Why it waits, or what is known about its state", is_wide=True),
)
WORKLOADS: tuple[ApiResource, ...] = tuple(_workload(one) for one in WORKLOAD_KINDS if one.group)
"""Jobs that were submitted as manifests of other APIs, as objects of those."""
RESOURCES: Mapping[str, ApiResource] = {
    one.plural: one for one in (JOBS, RUNS, SCHEDULES, WORKFLOWS, *map(_declared, KINDS))
}
"""All resources of the group by the word in their addresses."""
