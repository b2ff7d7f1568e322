"""Submitting jobs: checked as a whole, stored as a whole, all or nothing.

``prepare`` is pure and slow for large bodies; it may run in another process. ``submit`` is one transaction.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from trainmaster.dispatcher.domain.shapes import shape_bytes
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import jobs as store
from trainmaster.dispatcher.store import tenants
from trainmaster.dispatcher.store.database import Transaction
from trainmaster.dispatcher.store.keys import Caller
from trainmaster.protocol.admission import AdmissionPolicy, check_pod_template
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.mistakes import mistakes_of

_MOST_MISTAKES = 50
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A checked job in the form in which it is stored."""

    name: str
    queue: str
    priority_class: str | None
    priority: int
    spec: bytes
    shape: bytes
    shape_hash: bytes
    held: bool
    labels: dict[str, str]


def parse_json(body: bytes) -> Any:
    """The JSON value of a body. Raises ProblemError MALFORMED_BODY with the place of the mistake, INVALID_SPEC for a NUL."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProblemError(Code.MALFORMED_BODY, f"the body is not JSON: {error}") from error
    if _ESCAPED_NUL.search(body):
        raise ProblemError(Code.INVALID_SPEC, "the body has a NUL character (\\u0000), which no text may hold")
    return value


def without_nul(body: bytes) -> bytes:
    """JSON text with U+FFFD for each NUL, for what processes print into it and nobody can be asked to mend."""
    return _ESCAPED_NUL.sub(rb"\1\\ufffd", body) if b"\\u0000" in body else body


def prepare(body: bytes, most_jobs: int) -> tuple[bool, list[PreparedJob]]:
    """Check a submission: one specification, or ``{"jobs": [...]}``. Whether it was many, and the jobs.

    Raises ProblemError with up to 50 mistakes, each with its path.
    """
    value = parse_json(body)
    if not isinstance(value, dict):
        raise ProblemError(Code.MALFORMED_BODY, 'the body is a job, or {"jobs": [...]}; it has to be a JSON object')
    many = "jobs" in value and "roles" not in value
    if not many:
        return False, _prepare_all([value], [""])
    items = value["jobs"]
    unknown = [key for key in value if key != "jobs"]
    if unknown or not isinstance(items, list) or not items:
        where = unknown[0] if unknown else "jobs"
        message = "this field is not known" if unknown else "must be a list of at least one job"
        raise ProblemError(Code.INVALID_SPEC, f"{where}: {message}", mistakes=(Mistake(path=where, message=message),))
    if len(items) > most_jobs:
        raise ProblemError(Code.INVALID_SPEC, f"{len(items)} jobs in one call, at most {most_jobs} are allowed")
    return True, _prepare_all(items, [f"jobs[{index}]" for index in range(len(items))])


def _prepare_all(items: Sequence[Any], prefixes: Sequence[str]) -> list[PreparedJob]:
    prepared: list[PreparedJob] = []
    mistakes: list[Mistake] = []
    refused = False
    for item, prefix in zip(items, prefixes, strict=True):
        try:
            spec = JobSpec.model_validate(item)
        except ValidationError as error:
            mistakes.extend(mistakes_of(error, prefix))
        else:
            problems = _admission(spec, prefix)
            refused = refused or bool(problems)
            mistakes.extend(problems)
            if not mistakes:
                prepared.append(_prepared(spec, prefix))
        if len(mistakes) >= _MOST_MISTAKES:
            break
    if mistakes:
        shown = tuple(mistakes[:_MOST_MISTAKES])
        code = Code.POD_TEMPLATE_REFUSED if refused else Code.INVALID_SPEC
        first = f"{shown[0].path}: {shown[0].message}"
        raise ProblemError(
            code, first if len(shown) == 1 else f"{len(shown)} mistakes; the first: {first}", mistakes=shown
        )
    return prepared


def _admission(spec: JobSpec, prefix: str) -> list[Mistake]:
    out: list[Mistake] = []
    for index, role in enumerate(spec.roles):
        if role.pod_template is None:
            continue
        path = f"{prefix}.roles[{index}].podTemplate" if prefix else f"roles[{index}].podTemplate"
        out.extend(
            Mistake(path=f"{path}.{found.path}", message=found.message)
            for found in check_pod_template(role.pod_template, AdmissionPolicy())
        )
    return out


def _prepared(spec: JobSpec, prefix: str) -> PreparedJob:
    try:
        shape, shape_hash = shape_bytes(spec)
        whole = orjson.dumps(spec.to_wire() | {"kind": "Job"})
    except (
        ValueError,
        orjson.JSONEncodeError,
    ) as error:  # a quantity that cannot be read; nested too deep to be written
        mistake = Mistake(path=f"{prefix}.roles" if prefix else "roles", message=str(error))
        raise ProblemError(Code.INVALID_SPEC, str(error), mistakes=(mistake,)) from error
    return PreparedJob(
        name=spec.name,
        queue=spec.queue,
        priority_class=spec.priority_class,
        priority=spec.priority,
        spec=whole,
        shape=shape,
        shape_hash=shape_hash,
        held=spec.suspend,
        labels=spec.labels,
    )


@dataclass(frozen=True, slots=True)
class Submitted:
    """A stored job: its key and its id."""

    key: int
    id: str


async def submit(tx: Transaction, stores: Stores, caller: Caller, jobs: Sequence[PreparedJob]) -> list[Submitted]:
    """Store jobs in the caller's transaction. Raises ProblemError and stores none when one of them may not be."""
    paths = sorted({job.queue for job in jobs})
    await tenants.hold_queues(tx, paths)
    queues = await tenants.queues_by_path(tx, paths)
    for path in paths:
        _check_queue(caller, path, queues.get(path))
    classes = {row.spec.name: row for row in await tenants.classes(tx)}
    default = next((row for row in classes.values() if row.spec.default), None)
    for path in paths:
        queue = queues[path]
        if queue.spec.max_queued is not None:
            await _check_room(tx, path, queue.id, queue.spec.max_queued, sum(1 for job in jobs if job.queue == path))
    shapes = await store.shape_ids(tx, {job.shape_hash: job.shape for job in jobs})
    fresh = []
    for job in jobs:
        name = (
            job.priority_class
            or queues[job.queue].spec.default_priority_class
            or (default.spec.name if default else "")
        )
        if name not in classes:
            raise ProblemError(
                Code.UNKNOWN_PRIORITY_CLASS,
                f"there is no priority class {name!r}; there are: {', '.join(sorted(classes))}"
                if name
                else "the job names no priority class, and there is no default one",
            )
        fresh.append(
            store.NewJob(
                name=job.name,
                queue_id=queues[job.queue].id,
                class_id=classes[name].id,
                priority=job.priority,
                shape_id=shapes[job.shape_hash],
                spec=job.spec.decode(),
                held=job.held,
                labels=job.labels,
            )
        )
    keys = await store.insert(tx, fresh, caller.key_id, caller.name)

    async def wake() -> None:
        stores.jobs_changed(keys)

    tx.after_commit(wake)
    return [Submitted(key, job_id(job.name, key)) for key, job in zip(keys, jobs, strict=True)]


def _check_queue(caller: Caller, path: str, queue: tenants.QueueRow | None) -> None:
    if not caller.may_use(path):
        raise ProblemError(Code.FORBIDDEN, f"the key {caller.name!r} has no right to queue {path!r}")
    if queue is None:
        raise ProblemError(
            Code.UNKNOWN_QUEUE, f"there is no queue {path!r}; see 'trainmaster queues' for those you may use"
        )
    if not queue.is_leaf:
        raise ProblemError(Code.NOT_A_LEAF, f"queue {path!r} has queues below it; jobs go to one of those")


async def _check_room(tx: Transaction, path: str, queue_id: int, limit: int, more: int) -> None:
    waiting = await store.count_waiting(tx, queue_id, limit + 1)
    if waiting + more > limit:
        raise ProblemError(
            Code.QUEUE_FULL,
            f"queue {path!r} holds {waiting} waiting jobs, {more} more would exceed its limit of {limit}",
            retry_after=5.0,
        )
