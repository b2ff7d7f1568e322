"""Schedules as documents: our own, and CronJobs of Kubernetes. Read, checked, and turned into the documents of their jobs.

It reads no store. The job itself is checked where all jobs are, with the paths that it has in the schedule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from trainmaster.protocol.base import Strict
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.schedules import (
    CRON_JOB,
    DUE_ANNOTATION,
    ConcurrencyPolicy,
    CronJobSpec,
    ScheduleSpec,
)
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster.workload_kinds.specification import (
    QUEUE_KEY,
    SCHEDULE_LABEL,
    is_manifest,
    job_name,
    queue_of,
    without_nulls,
)
from trainmaster_dispatcher.domain.cron import CronError, parse
from trainmaster_dispatcher.domain.schedules import Timing, job_suffix
from trainmaster_dispatcher.services.submission_parsing import mistaken

Wire = dict[str, Any]
_Spec = TypeVar("_Spec", bound=Strict)
_KEPT_SUCCEEDED, _KEPT_FAILED = 3, 1
"""The history limits of a CronJob that names none, as in Kubernetes."""
_CHECKED_AT: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""A due time for which a schedule's job is checked when the schedule is written. Names of later ones are no longer."""
_NOT_IN_SPEC = ("kind", "name", "queue", "labels")
_METADATA = frozenset(
    (
        *("annotations", "labels", "name", "namespace", "creationTimestamp", "generation", "managedFields"),
        *("resourceVersion", "selfLink", "uid"),
    )
)


@dataclass(frozen=True, slots=True)
class ScheduleTerms:
    """The part of a specification about due times and ended jobs. ``expression`` and ``time_zone`` as they were written."""

    expression: str
    time_zone: str
    timing: Timing
    is_suspended: bool
    keep_succeeded: int | None
    keep_failed: int | None


@dataclass(frozen=True, slots=True)
class WantedSchedule:
    """A schedule that a document describes. ``kind``: that of its manifest; None for a Schedule of this system.

    ``spec``: as it was written, without what is metadata. ``queue_path``: where the document names the queue.
    """

    queue: str
    name: str
    kind: str | None
    spec: Wire
    labels: dict[str, str]
    annotations: dict[str, str]
    terms: ScheduleTerms

    def first_job(self) -> "JobDocument":
        """Return the document of a job, by which the schedule is checked. Raises ProblemError."""
        return job_document(self.kind, self.queue, self.name, self.spec, _CHECKED_AT)


def read_schedule(value: Mapping[str, Any]) -> WantedSchedule:
    """Return what a document describes. Raises ProblemError INVALID_SPEC with each mistake."""
    if not is_manifest(value):
        spec = _valid(ScheduleSpec, value)
        written = {field: one for field, one in value.items() if field not in _NOT_IN_SPEC}
        return own_schedule(spec.queue, spec.name, written, dict(spec.labels), {})
    if f"{value.get('apiVersion')} {value.get('kind')}" != CRON_JOB:
        given = f"{shown(value.get('apiVersion'))} {shown(value.get('kind'))}"
        raise mistaken(
            Mistake(
                path="kind", message=f"{given} is no schedule; there are: {CRON_JOB}, and Schedule without apiVersion"
            )
        )
    metadata = _checked_metadata(value)
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    spec_value = value.get("spec")
    spec_part: Wire = dict(spec_value) if isinstance(spec_value, Mapping) else {}
    queue = _queue_named(labels, annotations, spec_part) or metadata.get("namespace")
    if not queue:
        message = f"is missing: name a queue, by the annotation {QUEUE_KEY} or by the namespace"
        raise mistaken(Mistake(path="metadata.namespace", message=message))
    return cron_job(str(queue), str(metadata.get("name") or ""), spec_part, labels, annotations)


def own_schedule(
    queue: str, name: str, spec: Wire, labels: dict[str, str], annotations: dict[str, str], prefix: str = ""
) -> WantedSchedule:
    """Return a Schedule of this system. ``prefix``: the path of its specification. Raises ProblemError INVALID_SPEC."""
    terms = _own_terms(_valid(ScheduleSpec, {**spec, "name": name, "queue": queue, "labels": labels}, prefix), prefix)
    mistakes = _mistakes_in_job(spec["job"], queue, f"{prefix}.job" if prefix else "job")
    if mistakes:
        raise mistaken(*mistakes)
    return WantedSchedule(queue, name, None, spec, labels, annotations, terms)


def cron_job(queue: str, name: str, spec: Wire, labels: dict[str, str], annotations: dict[str, str]) -> WantedSchedule:
    """Return a schedule that is written as a CronJob. Raises ProblemError INVALID_SPEC."""
    read = _valid(CronJobSpec, without_nulls(spec), "spec")
    _check_name(name)
    template = read.job_template.metadata or {}
    mistakes = _mistakes_in_template(template, queue, "spec.jobTemplate.metadata", name)
    if mistakes:
        raise mistaken(*mistakes)
    return WantedSchedule(queue, name, CRON_JOB, spec, labels, annotations, _cron_job_terms(read, "spec"))


def _valid(model: type[_Spec], value: Mapping[str, Any], prefix: str = "") -> _Spec:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise mistaken(*(_in_metadata(one, prefix) for one in mistakes_of(error, prefix))) from error


def _in_metadata(mistake: Mistake, prefix: str) -> Mistake:
    """Return a mistake with the path of an object's metadata where the model has it beside the specification."""
    for field in ("name", "labels"):
        if prefix and mistake.path.startswith(f"{prefix}.{field}"):
            return Mistake(path=f"metadata{mistake.path[len(prefix) :]}", message=mistake.message)
    return mistake


def _check_name(name: str) -> None:
    """Raise ProblemError INVALID_SPEC for what cannot be the name of a CronJob."""
    fields = {"name": name, "queue": "q", "schedule": "@daily", "job": {}}
    try:
        ScheduleSpec.model_validate(fields)
    except ValidationError as error:
        raise mistaken(*mistakes_of(error, "metadata")) from error


def _checked_metadata(value: Mapping[str, Any]) -> Wire:
    """Return the metadata of a manifest. Raises ProblemError INVALID_SPEC."""
    metadata = value.get("metadata") or {}
    unknown = sorted(value.keys() - {"apiVersion", "kind", "metadata", "spec", "status"})
    mistakes = [Mistake(path=field, message="is not known; there are: metadata, spec") for field in unknown]
    if not isinstance(metadata, Mapping):
        raise mistaken(*mistakes, Mistake(path="metadata", message="must be an object"))
    mistakes += [
        Mistake(path=f"metadata.{field}", message="cannot be honoured: leave it out")
        for field in sorted(metadata.keys() - _METADATA)
    ]
    for field in ("labels", "annotations"):
        items = metadata.get(field) or {}
        if not isinstance(items, Mapping) or not all(isinstance(one, str) for one in items.values()):
            message = "must have texts as values; a number or true needs quotes"
            mistakes.append(Mistake(path=f"metadata.{field}", message=message))
    if mistakes:
        raise mistaken(*mistakes)
    return dict(metadata)


def _queue_named(labels: Mapping[str, str], annotations: Mapping[str, str], spec: Mapping[str, Any]) -> str | None:
    """Return the queue that a CronJob names in its own metadata, or in that of its Jobs."""
    named = queue_of(labels, annotations)
    template = spec.get("jobTemplate")
    if named is None and isinstance(template, Mapping):
        named = queue_of(*_labels_and_annotations(template.get("metadata")))
    return None if named is None else named.value


def _labels_and_annotations(metadata: object) -> tuple[dict[str, str], dict[str, str]]:
    found: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    labels, annotations = (
        {key: one for key, one in part.items() if isinstance(one, str)} if isinstance(part, Mapping) else {}
        for part in (found.get("labels"), found.get("annotations"))
    )
    return labels, annotations


def _mistakes_in_job(job: Mapping[str, Any], queue: str, path: str) -> list[Mistake]:
    """Return what of a Schedule's job is the schedule's to say."""
    if is_manifest(job):
        return _mistakes_in_template(job.get("metadata"), queue, f"{path}.metadata")
    return [
        Mistake(path=f"{path}.{field}", message="is that of the schedule; leave it out")
        for field in ("name", "queue")
        if field in job
    ]


def _mistakes_in_template(metadata: object, queue: str, path: str, own_name: str | None = None) -> list[Mistake]:
    """Return what of the metadata of jobs is the schedule's to say. ``own_name``: the name of a CronJob, which ``kubectl create
    cronjob`` writes there, too.
    """
    found: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    mistakes = [
        Mistake(path=f"{path}.{field}", message="is made by the schedule; leave it out")
        for field in ("name", "generateName", "namespace")
        if found.get(field) and (field, found[field]) != ("name", own_name)
    ]
    named = queue_of(*_labels_and_annotations(metadata))
    if named is not None and named.value != queue:
        where = f"{path}{named.path.removeprefix('metadata')}"
        mistakes.append(Mistake(path=where, message=f"names another queue than the schedule's, {queue!r}"))
    return mistakes


# -- terms


def terms_of(kind: str | None, spec: Wire, key: str = "") -> ScheduleTerms:
    """Return the terms of a stored specification; ``key``: that of the schedule. Raises ProblemError INVALID_SPEC where this release
    does not understand it.
    """
    if kind is not None:
        return _cron_job_terms(_valid(CronJobSpec, without_nulls(spec), "spec"), "spec", key)
    return _own_terms(_valid(ScheduleSpec, {**spec, "name": "name", "queue": "queue"}), "", key)


def _own_terms(spec: ScheduleSpec, prefix: str, key: str = "") -> ScheduleTerms:
    dot = f"{prefix}." if prefix else ""
    deadline = spec.starting_deadline
    timing = Timing(
        _read(f"{dot}schedule", lambda: parse(spec.schedule)),
        _read(f"{dot}timeZone", lambda: zone_of(spec.time_zone)),
        spec.concurrency_policy,
        None if deadline is None else parse_duration(deadline),
        parse_duration(spec.jitter),
        key,
    )
    limits = spec.successful_jobs_history_limit, spec.failed_jobs_history_limit
    return ScheduleTerms(spec.schedule, spec.time_zone, timing, spec.suspend, *limits)


def _cron_job_terms(spec: CronJobSpec, prefix: str, key: str = "") -> ScheduleTerms:
    zone = spec.time_zone or "UTC"
    deadline = spec.starting_deadline_seconds
    timing = Timing(
        _read(f"{prefix}.schedule", lambda: parse(spec.schedule)),
        _read(f"{prefix}.timeZone", lambda: zone_of(zone)),
        spec.concurrency_policy or ConcurrencyPolicy.ALLOW,
        None if deadline is None else float(deadline),
        0.0,
        key,
    )
    kept = (
        _KEPT_SUCCEEDED if spec.successful_jobs_history_limit is None else spec.successful_jobs_history_limit,
        _KEPT_FAILED if spec.failed_jobs_history_limit is None else spec.failed_jobs_history_limit,
    )
    return ScheduleTerms(spec.schedule, zone, timing, bool(spec.suspend), *kept)


_Read = TypeVar("_Read")


def _read(path: str, read: Callable[[], _Read]) -> _Read:
    try:
        return read()
    except CronError as error:
        raise mistaken(Mistake(path=path, message=str(error))) from error


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises CronError."""
    try:
        if name.lower() != "local" and name.isascii():
            return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # what there is no file of, or no file of a zone
        pass
    raise CronError(
        f"there is no time zone {name[:100]!r}; a name is as in the IANA database, such as Europe/Berlin or UTC"
    )


# -- jobs


@dataclass(frozen=True, slots=True)
class JobDocument:
    """The document of a schedule's job, as it is submitted. ``object_name``: None for that of the job's id.

    ``spec`` and ``annotations``: of the job's object, as they were written.
    """

    body: Wire
    object_name: str | None
    spec: Wire
    annotations: dict[str, str]


def job_document(kind: str | None, queue: str, name: str, spec: Wire, due: datetime | None) -> JobDocument:
    """Return the document of a schedule's job for a due time; None for one that somebody asks for."""
    object_name = None if due is None else f"{name}{job_suffix(due)}"
    if kind is None and not is_manifest(spec["job"]):
        job: Wire = spec["job"]
        kept = {field: one for field, one in job.items() if field not in ("kind", "labels")}
        labels = {**(job.get("labels") or {}), SCHEDULE_LABEL: name}
        body = {**job, "kind": job.get("kind", "Job"), "name": job_name(name), "queue": queue, "labels": labels}
        return JobDocument(body, object_name, kept, _due_annotation(due, spec.get("timeZone")))
    if kind is None:
        template, group_version, kind_word = spec["job"], spec["job"]["apiVersion"], spec["job"].get("kind")
    else:
        template, group_version, kind_word = spec["jobTemplate"], "batch/v1", "Job"
    given = template.get("metadata") or {}
    labels, annotations = _labels_and_annotations(given)
    annotations |= _due_annotation(due, spec.get("timeZone"))
    metadata = {
        **given,
        "labels": {**(given.get("labels") or labels), SCHEDULE_LABEL: name},
        "annotations": {**(given.get("annotations") or {}), **annotations, QUEUE_KEY: queue},
        **({"generateName": f"{name}-"} if object_name is None else {"name": object_name}),
    }
    rest = {field: one for field, one in template.items() if field not in ("apiVersion", "kind", "metadata")}
    body = {"apiVersion": group_version, "kind": kind_word, "metadata": metadata, **rest}
    written = template.get("spec")
    return JobDocument(body, object_name, written if isinstance(written, dict) else {}, annotations)


def _due_annotation(due: datetime | None, time_zone: str | None) -> dict[str, str]:
    if due is None:
        return {"cronjob.kubernetes.io/instantiate": "manual"}
    return {DUE_ANNOTATION: due.astimezone(zone_of(time_zone or "UTC")).isoformat()}


def of_schedule(error: ProblemError, kind: str | None, spec: Wire, prefix: str = "") -> ProblemError:
    """Return an error of a schedule's job with the paths that its fields have in the schedule. ``prefix``: the path of a Schedule's
    specification.
    """
    if not error.mistakes:
        return error
    dot = f"{prefix}." if prefix else ""
    of_manifest = kind is None and is_manifest(spec.get("job"))

    def placed(path: str) -> str:
        if path == "queue" or path.startswith(f'metadata.annotations["{QUEUE_KEY}"]'):
            return f"{dot}queue" if kind is None else f'metadata.annotations["{QUEUE_KEY}"]'
        if kind is None:
            return f"{dot}job.{path}" if path else f"{dot}job"
        return f"spec.jobTemplate.{path}" if path else "spec.jobTemplate"

    mistakes = tuple(Mistake(path=placed(one.path), message=one.message) for one in error.mistakes)
    detail = worded(mistakes[0])
    if len(mistakes) > 1:
        detail = f"{len(mistakes)} mistakes; the first: {detail}"
    code = Code.INVALID_SPEC if of_manifest and error.code is Code.MALFORMED_BODY else error.code
    return ProblemError(code, detail, mistakes=mistakes, retry_after=error.retry_after)
