"""Changes of a job by its object: of labels, annotations, priority, class and suspension. Pure.

All else of a specification is fixed once the job is submitted.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.labels import Labels
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster_dispatcher.api.kube.bodies import Desired
from trainmaster_dispatcher.services.job_actions import Action, JobPatch
from trainmaster_dispatcher.services.job_objects import JobObjectChange, ReadJob
from trainmaster_dispatcher.services.submission_parsing import mistaken

Wire = dict[str, Any]
_MUTABLE = ("priority", "priorityClass", "suspend")
_LONGEST_JOB_NAME = 24
FIXED = "is fixed once the job is submitted"
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_PART}(\.{_PART})*")
_LABELS: TypeAdapter[dict[str, str]] = TypeAdapter(Labels)


def check_name(wanted: Desired) -> None:
    """Raise ProblemError INVALID_SPEC unless an object that is created has a name that Kubernetes allows, or a begin of one."""
    if not wanted.name and not wanted.prefix:
        raise mistaken(Mistake(path="metadata.name", message="is missing; give it, or generateName"))
    for field, name in (("name", wanted.name), ("generateName", wanted.prefix and f"{wanted.prefix}x")):
        if name and not _NAME.fullmatch(name):
            message = (
                "must have small letters, digits, - and . only, and a letter or digit at the begin and end of each part"
            )
            raise mistaken(Mistake(path=f"metadata.{field}", message=message))


def job_name(name: str) -> str:
    """Return the name of the job of an object: as much of the object's name as a job's name may have."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in name.lower() if letter.isascii())
    return kept[:_LONGEST_JOB_NAME].strip("-") or "job"


def submission(wanted: Desired, queue: str) -> Wire:
    """Return the specification of a job that an object wants."""
    name = job_name(wanted.name or wanted.prefix)
    return {**wanted.spec, "kind": "Job", "name": name, "queue": queue, "labels": wanted.labels}


def of_object(error: ProblemError) -> ProblemError:
    """Return an error of a specification with the paths that its fields have in an object."""
    mistakes = tuple(Mistake(path=_path(one.path), message=one.message) for one in error.mistakes)
    if not mistakes:
        return error
    detail = (
        worded(mistakes[0]) if len(mistakes) == 1 else f"{len(mistakes)} mistakes; the first: {worded(mistakes[0])}"
    )
    return ProblemError(error.code, detail, mistakes=mistakes, retry_after=error.retry_after)


def _path(path: str) -> str:
    first = path.split(".")[0].split("[")[0]
    if first in ("name", "labels"):
        return f"metadata.{path}"
    return f"spec.{path}" if path else "spec"


def change_of(job: ReadJob, before: Wire, fields: Mapping[str, Any]) -> JobObjectChange:
    """Return the change of an object after which ``fields`` are what is managed of it; one without a specification keeps its own.

    Raises ProblemError INVALID_SPEC for a field that is fixed.
    """
    old: Wire = before.get("spec", {})
    new: Wire = dict(fields.get("spec") or old)
    metadata = fields.get("metadata", {})
    labels, annotations = dict(metadata.get("labels", {})), dict(metadata.get("annotations", {}))
    if old != new:
        _check_fixed(job, old, new)
    patch: dict[str, Any] = {}
    if new.get("priority", 0) != old.get("priority", 0):
        patch["priority"] = new.get("priority", 0)
    if "priorityClass" in new and new["priorityClass"] != old.get("priorityClass", job.line["priorityClass"]):
        patch["priorityClass"] = new["priorityClass"]
    action = None
    if bool(new.get("suspend")) != bool(old.get("suspend")):
        action = Action.SUSPEND if new.get("suspend") else Action.RESUME
    return JobObjectChange(
        labels=None if labels == before["metadata"].get("labels", {}) else checked_labels(labels),
        annotations=None if annotations == before["metadata"].get("annotations", {}) else annotations,
        spec=None if new == old else new,
        patch=JobPatch.model_validate(patch) if patch else None,
        action=action,
    )


def _check_fixed(job: ReadJob, old: Wire, new: Wire) -> None:
    """Raise ProblemError INVALID_SPEC for each field that differs in meaning and is fixed."""
    known = _wire(job, old)
    try:
        wanted = _wire(job, new)
    except ValidationError as error:
        raise mistaken(*(Mistake(path=_path(one.path), message=one.message) for one in mistakes_of(error))) from error
    differing = sorted(
        field
        for field in known.keys() | wanted.keys()
        if field not in _MUTABLE and known.get(field) != wanted.get(field)
    )
    if differing:
        message = f"{FIXED}; only {', '.join(_MUTABLE)}, labels and annotations can be changed"
        mistakes = tuple(Mistake(path=f"spec.{field}", message=message) for field in differing)
        raise ProblemError(Code.INVALID_SPEC, f"{mistakes[0].path}: {message}", mistakes=mistakes)


def _wire(job: ReadJob, spec: Wire) -> Wire:
    found: Wire = JobSpec.model_validate({"queue": job.line["queue"], **spec, "name": job.line["name"]}).to_wire()
    return found


def checked_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return labels that jobs may have. Raises ProblemError INVALID_SPEC."""
    try:
        return _LABELS.validate_python(labels)
    except ValidationError as error:
        raise mistaken(*mistakes_of(error, "metadata.labels")) from error
