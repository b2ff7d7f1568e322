"""Schedules as objects of Kubernetes: Schedules of this system, which all are, and CronJobs. Pure.

What the dispatcher knows beside a CronJob's own status is in annotations of its object, which it sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.protocol.base import format_time
from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.schedules import CRON_JOB
from trainmaster.workload_kinds.specification import NamedQueue, queue_of
from trainmaster_dispatcher.api.kube.bodies import PATCH_TYPES, Desired, PatchType, fields_of
from trainmaster_dispatcher.api.kube.objects import GROUP, GROUP_VERSION, Wire, moment, schedule_uid, uid_of
from trainmaster_dispatcher.api.kube.resources import CRON_JOBS, SCHEDULES, ApiResource
from trainmaster_dispatcher.services.schedule_parsing import WantedSchedule, cron_job, own_schedule
from trainmaster_dispatcher.services.schedules import ReadSchedule
from trainmaster_dispatcher.services.submission_parsing import mistaken
from trainmaster_dispatcher.store.schedules import ActiveJob

_ANNOTATIONS = ("queue", "submitted-by", "next-due", "next-due-local", "message")
_SET = frozenset(f"{GROUP}/{field}" for field in _ANNOTATIONS)
"""Annotations that the dispatcher sets; the one of the queue may be written as well."""
QUEUE_ANNOTATION = f"{GROUP}/queue"


@dataclass(frozen=True, slots=True)
class ScheduleResource:
    """A resource whose objects are schedules. ``kind``: of the manifests as which they were written; None for all schedules."""

    resource: ApiResource
    kind: str | None

    @property
    def patch_types(self) -> tuple[PatchType, ...]:
        return (*PATCH_TYPES, PatchType.STRATEGIC) if self.kind is not None else PATCH_TYPES

    @property
    def queue_path(self) -> str:
        """Return the path by which an object can name its queue."""
        return "spec.queue" if self.kind is None else f'metadata.annotations["{QUEUE_ANNOTATION}"]'

    def has(self, one: ReadSchedule) -> bool:
        """Return whether a schedule is an object of this resource."""
        return self.kind in (None, one.row.kind)

    def queue(self, wanted: Desired) -> NamedQueue | None:
        """Return the queue that an object names; None if it names none."""
        if self.kind is None:
            named = wanted.spec.get("queue")
            return None if named is None else NamedQueue(named if isinstance(named, str) else "", self.queue_path)
        found = queue_of(wanted.labels, wanted.annotations)
        template = wanted.spec.get("jobTemplate")
        metadata = template.get("metadata") if isinstance(template, Mapping) else None
        if found is not None or not isinstance(metadata, Mapping):
            return found
        parts = (metadata.get(field) for field in ("labels", "annotations"))
        labels, annotations = (dict(part) if isinstance(part, Mapping) else {} for part in parts)
        return queue_of(labels, annotations)

    def wanted(self, given: Desired, queue: str) -> WantedSchedule:
        """Return the schedule that an object wants. Raises ProblemError INVALID_SPEC."""
        if self.kind is not None:
            return cron_job(queue, given.name, given.spec, given.labels, given.annotations)
        strange = [field for field in ("kind", "name", "labels") if field in given.spec]
        if strange:
            raise mistaken(*(Mistake(path=f"spec.{field}", message="is no field of this kind") for field in strange))
        spec = {field: value for field, value in given.spec.items() if field != "queue"}
        return own_schedule(queue, given.name, spec, given.labels, given.annotations, "spec")

    def check_changes(self, one: ReadSchedule) -> None:
        """Raise ProblemError CONFLICT for a schedule that is changed as an object of another kind."""
        if self.kind != one.row.kind:
            raise ProblemError(
                Code.CONFLICT,
                f"schedule {one.row.name!r} was written as a CronJob: change cronjobs.batch {one.row.name}",
            )

    def item(self, one: ReadSchedule) -> Wire:
        """Return a schedule as an object."""
        row = one.row
        key = self.kind is None and row.kind is not None
        metadata: Wire = {
            "name": row.name,
            "namespace": row.namespace,
            "uid": uid_of("Schedule", str(row.id)) if key else schedule_uid(row.id, row.kind),
            "resourceVersion": str(row.version),
            "generation": row.generation,
            "creationTimestamp": moment(format_time(row.created_at)),
        }
        if row.labels:
            metadata["labels"] = row.labels
        metadata["annotations"] = {**without_own(row.annotations or {}), **_known(one)}
        if row.managed_fields and not key:
            metadata["managedFields"] = row.managed_fields
        spec = _as_schedule(one) if key else row.spec
        return {
            "apiVersion": self.resource.group_version,
            "kind": self.resource.kind,
            "metadata": metadata,
            "spec": spec,
            "status": _status(one),
        }

    def fields_of(self, item: Wire) -> Wire:
        """Return what is managed of an object: without what the dispatcher sets."""
        fields = fields_of(item)
        metadata = dict(fields.pop("metadata", {}))
        metadata["annotations"] = without_own(metadata.get("annotations", {}))
        kept = {field: value for field, value in metadata.items() if value}
        return {**({"metadata": kept} if kept else {}), **fields}


def without_own(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return annotations without those that the dispatcher sets."""
    return {key: value for key, value in annotations.items() if key not in _SET}


def _known(one: ReadSchedule) -> dict[str, str]:
    row, due = one.row, one.next_due
    found = {"queue": row.queue, "submitted-by": row.submitted_by or "", "message": row.message}
    if due is not None and one.terms is not None:
        found["next-due"] = str(moment(format_time(due)))
        found["next-due-local"] = due.astimezone(one.terms.timing.zone).isoformat()
    return {f"{GROUP}/{field}": text for field, text in found.items() if text}


def _status(one: ReadSchedule) -> Wire:
    row = one.row
    times = {"lastScheduleTime": row.last_due, "lastSuccessfulTime": row.last_succeeded_at}
    status: Wire = {field: moment(format_time(at)) for field, at in times.items() if at is not None}
    active = [_reference(job, row.namespace) for job in one.active]
    return {**({"active": active} if active else {}), **status}


def _reference(job: ActiveJob, namespace: str) -> Wire:
    api_version, _, kind = (job.object_kind or f"{GROUP_VERSION} Job").rpartition(" ")
    text = job_id(job.name, job.job_id)
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": job.object_name or text,
        "namespace": namespace,
        "uid": uid_of(job.object_kind or "Job", text),
    }


def _as_schedule(one: ReadSchedule) -> Wire:
    """Return the specification of a CronJob as a Schedule of this system has it."""
    spec = one.row.spec
    template = spec.get("jobTemplate") or {}
    kept = (
        "schedule",
        "timeZone",
        "concurrencyPolicy",
        "suspend",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    )
    found = {field: spec[field] for field in kept if spec.get(field) is not None}
    if spec.get("startingDeadlineSeconds") is not None:
        found["startingDeadline"] = format_duration(float(spec["startingDeadlineSeconds"]))
    return {**found, "job": {"apiVersion": "batch/v1", "kind": "Job", **template}}


OWN_SCHEDULES = ScheduleResource(SCHEDULES, None)
CRON_JOB_OBJECTS = ScheduleResource(CRON_JOBS, CRON_JOB)
