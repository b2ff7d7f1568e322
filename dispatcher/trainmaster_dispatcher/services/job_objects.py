"""Jobs as objects of Kubernetes: found by namespace and name, listed by selectors, changed and deleted.

Rights, states and the audit's lines are those of the REST API's actions.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, parse_job_id
from trainmaster.protocol.parameters import substitute
from trainmaster.protocol.reasons import Reason
from trainmaster.protocol.states import HoldCause, JobState
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.namespaces import namespace_of
from trainmaster_dispatcher.services import job_actions, job_queries, usage_ledger
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action, BulkFilter, JobPatch
from trainmaster_dispatcher.services.submit import Submission, Submitted
from trainmaster_dispatcher.services.usage_ledger import JobCost
from trainmaster_dispatcher.store import job_objects as store
from trainmaster_dispatcher.store import jobs, runs
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.job_objects import LeafQueue, ObjectRow
from trainmaster_dispatcher.store.jobs import LabelCondition, ShownJob
from trainmaster_dispatcher.store.keys import Caller

_VIEWS_PER_SLICE = 50
_NO_METADATA = ObjectRow(0, 0, None, None, None, None, None)


class ObjectKind(NamedTuple):
    """A kind of objects that jobs are: ``resource`` is its name in messages, ``name`` that of the kind of manifests as which the jobs
    were submitted; None for Jobs of this system, which all jobs are.
    """

    resource: str
    name: str | None = None

    def has(self, job: "ReadJob") -> bool:
        """Return whether a job is an object of this kind."""
        return self.name in (None, job.metadata.kind)


JOBS = ObjectKind("jobs.trainmaster.dev")


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A job as it is stored: its line as in a list, its specification if that was read, and what Kubernetes has of it.

    ``object_status``: of the object as which its latest run exists on a cluster, of a job that was submitted as a manifest;
    ``reason``: why it waits, of a job that does; ``cost``: of a job that was read alone.
    """

    key: int
    line: dict[str, Any]
    metadata: ObjectRow
    queue_id: int
    spec: Mapping[str, Any] | None = None
    object_status: Mapping[str, Any] | None = None
    reason: Reason | None = None
    cost: JobCost | None = None

    @property
    def name(self) -> str:
        return self.metadata.name or str(self.line["id"])

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or namespace_of(self.line["queue"])

    @property
    def is_gone(self) -> bool:
        """Return whether the object is deleted and its job has ended."""
        return self.metadata.deleted_at is not None and "endedAt" in self.line


class LockedJob(NamedTuple):
    """A job whose row is locked, and the record of it until it is changed."""

    job: ReadJob
    record: jobs.JobRecord | None


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """Jobs that a call is about. ``queues``: those of its namespace; None for jobs of all queues."""

    wanted: BulkFilter
    queues: Sequence[LeafQueue] | None = None


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """A page of jobs, and the cursor of the next page."""

    jobs: Sequence[ReadJob]
    following: str | None


@dataclass(frozen=True, slots=True)
class JobObjectChange:
    """A change of a job's object. None leaves as it is; ``spec`` is the specification as it is written from then on."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    managed_fields: list[dict[str, Any]] | None = None
    spec: dict[str, Any] | None = None
    patch: JobPatch | None = None
    action: Action | None = None


def fresh(given: Submission, stored: Submitted) -> ReadJob:
    """Return the only job of a submission that was just stored, as a read of it would."""
    prepared, metadata = given.prepared.specs[0], given.metadata
    key = stored.first
    start, deadline = (
        None if one is None else datetime.fromtimestamp(one.at(stored.at.timestamp()), UTC)
        for one in (prepared.start, prepared.deadline)
    )
    row = ShownJob(
        id=key,
        name=prepared.name,
        version=1,
        queue=prepared.queue,
        priority_class=stored.priority_class,
        priority=prepared.priority,
        state=prepared.first_state,
        wish=None,
        hold_cause=prepared.first_hold,
        hold_until=start if prepared.first_hold is HoldCause.START_TIME else None,
        eligible_at=start,
        deadline=deadline,
        deadline_noted=0,
        attempt=0,
        retries_used=0,
        message="",
        submitted_at=stored.at,
        started_at=None,
        ended_at=None,
        ran_seconds=None,
        running_since=None,
        labels=None if prepared.labels is None else orjson.loads(prepared.labels),
        parameters=None,
        spec_id=key,
        queue_id=stored.queue_id,
        class_id=0,
        shape_id=0,
        notifies=prepared.notifies,
        elements=prepared.elements,
        has_element_jobs=prepared.has_element_jobs or None,
        group=prepared.group,
        submitted_by=given.caller.name,
        submitted_through=given.caller.through,
        cluster=None,
    )
    known = ObjectRow(key, stored.version, None, None, None, None, None)
    spec: Mapping[str, Any] = {}
    if metadata is not None:
        texts = (metadata.spec, metadata.annotations, metadata.managed_fields)
        written, annotations, managers = (None if one is None else orjson.loads(one) for one in texts)
        known = ObjectRow(key, stored.version, metadata.name, written, annotations, managers, None, metadata.kind)
        spec = written or {}
    reason = job_queries.first_reason(row)
    return ReadJob(key, job_queries.job_line(row), known, stored.queue_id, spec, reason=reason)


async def find_all(tx: Transaction, caller: Caller, namespace: str | None, name: str) -> list[int]:
    """Return the keys of the jobs whose objects have this name, in a namespace or in all, and which the caller may see."""
    by_id = None
    with suppress(BadIdError):
        by_id = parse_job_id(name)
    found = await store.named(tx, namespace, name, by_id)
    return [one.job_id for one in found if caller.may_use(one.queue)]


async def show_all(
    tx: Transaction, caller: Caller, namespace: str | None, name: str, kind: ObjectKind = JOBS
) -> list[ReadJob]:
    """Return the jobs whose objects exist and have this name, as ``find_all`` finds them."""
    keys = await find_all(tx, caller, namespace, name)
    found = (await read(tx, keys)).values() if keys else ()
    return [one for one in found if kind.has(one) and not one.is_gone]


async def show(tx: Transaction, caller: Caller, namespace: str, name: str, kind: ObjectKind = JOBS) -> ReadJob:
    """Return the job whose object has this name in a namespace. Raises ProblemError NOT_FOUND."""
    found = await show_all(tx, caller, namespace, name, kind)
    if not found:
        raise _missing(kind, name)
    cost = await usage_ledger.cost_of(tx, found[0].key) if found[0].line["attempt"] else None
    return replace(found[0], cost=cost)


def _missing(kind: ObjectKind, name: str) -> ProblemError:
    return ProblemError(Code.NOT_FOUND, f'{kind.resource} "{name}" not found')


async def read(tx: Transaction, keys: Iterable[int]) -> dict[int, ReadJob]:
    """Return jobs with their specifications, also those whose objects are gone."""
    # What Kubernetes has is read first: a job that changes meanwhile has an older version than its fields, never a newer one.
    metadata = await store.of_jobs(tx, keys)
    rows = await jobs.views(tx, list(metadata))
    return {one.key: one for one in await _whole(tx, rows, metadata)}


async def page(
    tx: Transaction,
    caller: Caller,
    filtered: ObjectFilter,
    labels: Sequence[LabelCondition],
    cursor: str | None,
    limit: int,
    *,
    is_whole: bool,
    kind: ObjectKind = JOBS,
) -> ObjectPage:
    """Return a page of the jobs that match and whose objects exist, newest first; with specifications, if ``is_whole``."""
    chosen = replace(
        await job_queries.filter_of(tx, caller, filtered.wanted),
        queue_ids=None if filtered.queues is None else tuple(one.id for one in filtered.queues),
        label_conditions=tuple(labels),
        hides_deleted=True,
    )
    rows, following = await job_queries.page_of(tx, chosen, cursor, limit, kind.name)
    metadata = await store.of_jobs(tx, [row.id for row in rows])
    if is_whole:
        return ObjectPage(await _whole(tx, rows, metadata), following)
    statuses = await _statuses(tx, rows, metadata) if kind.name is not None else {}
    reasons = await job_queries.waiting_reasons(tx, rows)
    jobs_read = [
        replace(await _read(row, metadata, number, statuses), reason=reasons.get(row.id))
        for number, row in enumerate(rows, 1)
    ]
    return ObjectPage(jobs_read, following)


async def _whole(tx: Transaction, rows: Sequence[ShownJob], metadata: Mapping[int, ObjectRow]) -> list[ReadJob]:
    specs = await jobs.specs(tx, (row.spec_id for row in rows if _as_written(metadata, row) is None))
    statuses = await _statuses(tx, rows, metadata)
    reasons = await job_queries.waiting_reasons(tx, rows)
    attempts: dict[int, list[dict[str, Any]]] = {}
    for run in await runs.lines(tx, [row.id for row in rows if row.attempt]):
        attempts.setdefault(run.job_id, []).append(job_queries.run_line(run))
    with_ends = [row.id for row in rows if row.attempt > 1 or (row.attempt and row.state.is_terminal)]
    results = await runs.results_of(tx, with_ends)
    found = []
    for number, row in enumerate(rows, 1):
        one = await _read(row, metadata, number, statuses)
        spec: Mapping[str, Any] = _as_written(metadata, row) or specs.get(row.spec_id, {})
        if row.parameters is not None:
            spec = substitute(dict(spec), row.parameters)
        line = one.line | ({"runs": attempts[row.id]} if row.id in attempts else {})
        line |= {"results": results[row.id]} if row.id in results else {}
        found.append(replace(one, spec=spec, line=line, reason=reasons.get(row.id)))
    return found


async def _statuses(
    tx: Transaction, rows: Sequence[ShownJob], metadata: Mapping[int, ObjectRow]
) -> dict[int, dict[str, Any]]:
    """Return the statuses of objects on clusters, of those of these jobs that were submitted as manifests and are not queued."""
    waiting = (JobState.HELD, JobState.QUEUED)
    with_objects = [
        row.id
        for row in rows
        if row.attempt and row.state not in waiting and metadata.get(row.id, _NO_METADATA).kind is not None
    ]
    return await runs.object_statuses(tx, with_objects)


def _as_written(metadata: Mapping[int, ObjectRow], row: ShownJob) -> Mapping[str, Any] | None:
    found = metadata.get(row.id, _NO_METADATA)
    return found.spec if found.kind is None else None


async def _read(
    row: ShownJob, metadata: Mapping[int, ObjectRow], number: int, statuses: Mapping[int, Mapping[str, Any]]
) -> ReadJob:
    if number % _VIEWS_PER_SLICE == 0:
        await asyncio.sleep(0)  # let other calls run
    known = metadata.get(row.id, _NO_METADATA)
    return ReadJob(row.id, job_queries.job_line(row), known, row.queue_id, object_status=statuses.get(row.id))


async def change(
    tx: Transaction, stores: Stores, caller: Caller, locked: LockedJob, wanted: JobObjectChange
) -> ReadJob:
    """Change a job's object; return the job as it then is. Raises ProblemError as the actions of the REST API do."""
    job, record = locked
    text = str(job.line["id"])
    is_of_object = wanted.patch is None and wanted.action is None
    if not is_of_object:
        record = None
    if wanted.patch is not None:
        await job_actions.patch(tx, stores, caller, text, wanted.patch)
    if wanted.action is not None:
        await job_actions.act(tx, stores, caller, text, wanted.action)
    before = job.metadata
    annotations = before.annotations if wanted.annotations is None else wanted.annotations
    managed = before.managed_fields if wanted.managed_fields is None else wanted.managed_fields
    spec = before.spec if wanted.spec is None else wanted.spec
    details: dict[str, Any] = {}
    if wanted.labels is not None:
        details |= {"labels": wanted.labels, "labelsBefore": job.line.get("labels", {})}
    if wanted.annotations is not None:
        old, new = before.annotations or {}, wanted.annotations
        details["annotations"] = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    noted = await job_actions.note_on(tx, stores, caller, job.key, details, record=record)
    if wanted.labels is not None:
        await store.relabel(tx, job.key, wanted.labels)
    version = await store.write(tx, job.key, job.queue_id, annotations, managed, spec)
    if not is_of_object:
        return (await read(tx, [job.key]))[job.key]
    # Nothing else of the job has changed, and to read it would take as long as to change it did.
    labels = job.line.get("labels", {}) if wanted.labels is None else wanted.labels
    line = {**job.line, "version": noted, "labels": labels}
    known = before._replace(version=version, annotations=annotations, managed_fields=managed, spec=spec)
    return replace(job, line=line, metadata=known, spec=spec if spec and known.kind is None else job.spec)


async def delete(tx: Transaction, stores: Stores, caller: Caller, locked: LockedJob, grace: float | None) -> None:
    """Delete a job's object: a job that has not ended is cancelled, and its object exists until it has.

    Raises ProblemError JOB_OF_ANOTHER.
    """
    job, record = locked
    if await store.mark_deleted(tx, job.key, job.queue_id) or grace is not None:
        await job_actions.note_on(tx, stores, caller, job.key, {}, JobEventKind.DELETED, record)
        if "endedAt" not in job.line:
            await job_actions.act(tx, stores, caller, str(job.line["id"]), Action.CANCEL, grace)


async def delete_all(tx: Transaction, stores: Stores, caller: Caller, keys: Sequence[int]) -> None:
    """Delete the objects of these jobs, which an admin or this system wants: jobs that have not ended are cancelled."""
    records = await jobs.lock(tx, keys)
    fresh = await store.mark_all_deleted(tx, list(records))
    noted = [
        jobs.Transition(
            record,
            record.job,
            kind=JobEventKind.DELETED,
            states=(record.job.wish.value if record.job.wish else record.job.state.value,),
            actor=caller.name,
            is_neutral=record.job.state not in (JobState.QUEUED, JobState.HELD),
        )
        for key, record in records.items()
        if key in fresh
    ]
    await jobs.write(tx, noted)
    live = [key for key, record in records.items() if not record.job.state.is_terminal]
    if live:
        await job_actions.act_on_all(tx, stores, caller, live, Action.CANCEL)

    async def wake() -> None:
        stores.jobs_changed(fresh)

    tx.after_commit(wake)


async def lock(tx: Transaction, caller: Caller, namespace: str, name: str, kind: ObjectKind = JOBS) -> LockedJob:
    """Lock the job whose object has this name; return it. Raises ProblemError NOT_FOUND."""
    for found in await lock_all(tx, caller, namespace, [name], kind):
        return found
    raise _missing(kind, name)


async def lock_all(
    tx: Transaction, caller: Caller, namespace: str, names: Iterable[str], kind: ObjectKind = JOBS
) -> list[LockedJob]:
    """Lock the jobs whose objects have these names and exist; return them, in the order in which they are locked."""
    keys = [key for name in names for key in await find_all(tx, caller, namespace, name)]
    records = await jobs.lock(tx, keys)
    found = await read(tx, sorted(set(keys)))
    return [LockedJob(one, records.get(key)) for key, one in sorted(found.items()) if kind.has(one) and not one.is_gone]
