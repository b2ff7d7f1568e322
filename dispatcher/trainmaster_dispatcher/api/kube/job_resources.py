"""The resources as which jobs are read and written: Jobs of this system, and kinds of manifests as which jobs come. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.protocol.errors import ProblemError
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.pod import POD
from trainmaster.workload_kinds.specification import QUEUE_KEY, NamedQueue, queue_of
from trainmaster_dispatcher.api.kube.bodies import PATCH_TYPES, Desired, PatchType, fields_of
from trainmaster_dispatcher.api.kube.job_changes import change_of, of_object, submission
from trainmaster_dispatcher.api.kube.objects import Wire, job_object, uid_of
from trainmaster_dispatcher.api.kube.pods import submitted_pod
from trainmaster_dispatcher.api.kube.resources import JOBS, PODS, WORKLOADS, ApiResource
from trainmaster_dispatcher.api.kube.workload_objects import (
    workload_change,
    workload_fields,
    workload_object,
    workload_submission,
    workload_uid,
    workload_wanted,
)
from trainmaster_dispatcher.services.job_objects import JobObjectChange, ObjectKind, ReadJob


@dataclass(frozen=True, slots=True)
class JobResource:
    """A resource whose objects are jobs. This one: Jobs of this system, which all jobs are."""

    resource: ApiResource

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.resource.full_name)

    @property
    def patch_types(self) -> Sequence[PatchType]:
        return PATCH_TYPES

    def item(self, job: ReadJob) -> Wire:
        """Return the object that a job is."""
        return job_object(job)

    def uid(self, job_id: str) -> str:
        """Return the identity of the object of a job."""
        return uid_of("Job", job_id)

    def fields_of(self, item: Wire) -> Wire:
        """Return what is managed of an object."""
        return fields_of(item)

    def is_managed(self, job: ReadJob) -> bool:
        """Return whether the managers of a job's fields, and what they wrote, are of this resource."""
        return job.metadata.kind is None

    @property
    def queue_path(self) -> str:
        """Return the path by which an object can name its queue."""
        return "spec.queue"

    def queue(self, wanted: Desired) -> NamedQueue | None:
        """Return the queue that an object names; None if it names none."""
        named = wanted.spec.get("queue")
        return None if named is None else NamedQueue(str(named) if isinstance(named, str) else "", self.queue_path)

    def cleaned(self, wanted: Desired) -> Desired:
        """Return what an object wants, without what the dispatcher sets."""
        return wanted

    def submission(self, wanted: Desired, queue: str) -> Wire:
        """Return the specification, or the manifest, of the job that an object wants."""
        return submission(wanted, queue)

    def change(self, job: ReadJob, before: Wire, fields: Mapping[str, Any]) -> JobObjectChange:
        """Return the change of an object after which ``fields`` are what is managed of it. Raises ProblemError INVALID_SPEC."""
        return change_of(job, before, fields)

    def error(self, error: ProblemError) -> ProblemError:
        """Return an error of a submission with the paths that its fields have in an object."""
        return of_object(error)

    def warning_path(self, path: str) -> str:
        """Return the path in an object of a path in its submission."""
        return f"spec.{path}"


@dataclass(frozen=True, slots=True)
class WorkloadResource(JobResource):
    """A resource whose objects are the jobs that were submitted as manifests of its kind."""

    workload: WorkloadKind

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.resource.full_name, self.workload.name)

    @property
    def patch_types(self) -> Sequence[PatchType]:
        return (*PATCH_TYPES, PatchType.STRATEGIC) if self.workload.is_built_in else PATCH_TYPES

    def item(self, job: ReadJob) -> Wire:
        return workload_object(self.workload, job)

    def uid(self, job_id: str) -> str:
        return workload_uid(self.workload, job_id)

    def fields_of(self, item: Wire) -> Wire:
        return workload_fields(self.workload, item)

    def is_managed(self, job: ReadJob) -> bool:
        return True

    @property
    def queue_path(self) -> str:
        return f'metadata.annotations["{QUEUE_KEY}"]'

    def queue(self, wanted: Desired) -> NamedQueue | None:
        return queue_of(wanted.labels, wanted.annotations)

    def cleaned(self, wanted: Desired) -> Desired:
        return workload_wanted(self.workload, wanted)

    def submission(self, wanted: Desired, queue: str) -> Wire:
        return workload_submission(self.workload, wanted, queue)

    def change(self, job: ReadJob, before: Wire, fields: Mapping[str, Any]) -> JobObjectChange:
        return workload_change(self.workload, job, before, fields)

    def error(self, error: ProblemError) -> ProblemError:
        return error

    def warning_path(self, path: str) -> str:
        return path


@dataclass(frozen=True, slots=True)
class PodResource(WorkloadResource):
    """The jobs that were submitted as pods. Other pods are members of jobs, which cannot be changed."""

    def item(self, job: ReadJob) -> Wire:
        return submitted_pod(job, None)


OWN_JOBS = JobResource(JOBS)
WORKLOAD_RESOURCES: Mapping[tuple[str, str, str], WorkloadResource] = {
    (one.group, one.version, one.plural): WorkloadResource(one, one.workload)
    for one in WORKLOADS
    if one.workload is not None
}
"""By group, version and word in addresses."""
SUBMITTED_PODS = PodResource(PODS, POD)
_BY_KIND: Mapping[str, WorkloadResource] = {
    one.workload.name: one for one in (*WORKLOAD_RESOURCES.values(), SUBMITTED_PODS)
}


def submitted_as(kind: str | None) -> JobResource:
    """Return the resource as which a job was submitted, by the kind of its manifest; that of this system for a kind unknown."""
    return OWN_JOBS if kind is None else _BY_KIND.get(kind, OWN_JOBS)
