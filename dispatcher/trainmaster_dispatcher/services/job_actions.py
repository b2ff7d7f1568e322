"""Actions on jobs: cancel, suspend, resume, retry and change, one or many at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from trainmaster.protocol.base import Name40, QueuePath, Strict, WrittenTime, bounded, example
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.groups import GroupName
from trainmaster.protocol.ids import BadIdError, job_id, parse_job_id
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.states import JobActions, JobState, Wish
from trainmaster.protocol.suggestions import did_you_mean, suggestion
from trainmaster_dispatcher.domain import job_machine, lifecycle, run_machine
from trainmaster_dispatcher.domain.arrays import counts_after, masks
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.priority_classes import not_allowed
from trainmaster_dispatcher.services.auditing import MOST_IDS
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.ownership import check_owns
from trainmaster_dispatcher.services.submit import classes_of, job_actions_of
from trainmaster_dispatcher.store import (
    arrays,
    element_jobs,
    groups,
    job_objects,
    runs,
    schedules,
    scheduling,
    sessions,
    tenants,
)
from trainmaster_dispatcher.store import jobs as store
from trainmaster_dispatcher.store.database import Transaction, to_epoch
from trainmaster_dispatcher.store.keys import Caller, keys_named

BATCH = 1000
MOST_LABELS = 20
"""By how many labels jobs may be chosen."""


class Action(StrEnum):
    """Actions on jobs, with the job machine's function."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"
    RETRY = "retry"

    def change(self, job: job_machine.Job, now: float, why: str = "") -> job_machine.Job:
        """Return the job after this action at ``now``, in seconds since the epoch. Raises ProblemError.

        ``why``: of a cancel or suspend, its reason, where no person asked for it.
        """
        match self:
            case Action.CANCEL:
                return job_machine.cancel(job, why)
            case Action.SUSPEND:
                return job_machine.suspend(job, why=why)
            case Action.RESUME:
                return job_machine.resume(job, now)
            case Action.RETRY:
                return job_machine.retry(job, now)


def _short_enough(value: str) -> str:
    if parse_duration(value) > LONGEST_STOP_GRACE:
        raise ValueError("is at most 10m")
    return value


class JobPatch(Strict):
    """Changes of a job that waits."""

    model_config = example(priority=10, priorityClass="high")

    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """Priority within the class."""
    priority_class: Name40 | None = None
    """Priority class."""


ShownState = Annotated[
    str, StringConstraints(max_length=40), WithJsonSchema({"type": "string", "enum": [*JobState, *Wish]})
]
"""A state as people see it; an unknown one is refused with a list of the existing states."""


class BulkFilter(Strict):
    """Selection of jobs for a bulk action; all conditions must hold, and there must be one."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    queue: QueuePath | None = None
    """Jobs of this queue and of those below it."""
    states: Annotated[tuple[ShownState, ...], bounded(40)] = ()
    """Jobs that are shown in one of these states."""
    name: Annotated[str, StringConstraints(max_length=100)] | None = None
    """Jobs of this name, in which ``*`` stands for any text."""
    priority_class: Name40 | None = None
    """Jobs of this priority class."""
    labels: Annotated[dict[LabelKey, LabelValue], bounded(MOST_LABELS)] = Field(default_factory=dict)
    """Jobs with all of these labels."""
    group: GroupName | None = None
    """Jobs of the group of this name; of several queues, if these have groups of this name."""
    cluster: Name40 | None = None
    """Jobs whose latest run is or was on this cluster."""
    submitted_by: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    """Jobs that an API key of this name submitted."""
    since: WrittenTime | None = None
    """Jobs that were submitted at or after this time."""
    until: WrittenTime | None = None
    """Jobs that were submitted before this time."""
    search: Annotated[str, StringConstraints(min_length=1, max_length=150)] | None = None
    """The job of this id, and jobs whose name begins with this text, that a key of this name submitted, or with this label, as
    ``key=value``.
    """


Grace = Annotated[Duration, AfterValidator(_short_enough)]


class CancelSpec(Strict):
    """Options of a cancellation."""

    model_config = example(grace="30s")

    grace: Grace | None = None
    """The most time that members may take to end, where their specification says more; also for a stop that is under way."""


class BulkAction(Strict):
    """An action on jobs. With ``dry_run`` they are only counted."""

    model_config = example(filter={"queue": "research", "labels": {"team": "vision"}}, dryRun=True)

    filter: BulkFilter
    """Selection of the jobs."""
    dry_run: bool = False
    """True to count the jobs only."""


class BulkCancel(BulkAction):
    """Jobs to cancel."""

    model_config = example(filter={"queue": "research", "states": ["queued"]}, dryRun=True, grace="30s")

    grace: Grace | None = None
    """The most time that members may take to end, where their specification says more."""


class BulkChange(BulkAction):
    """Waiting jobs to change."""

    model_config = example(filter={"queue": "research"}, patch={"priorityClass": "high"}, dryRun=True)

    patch: JobPatch
    """Changes to make."""


class BulkRequest(BulkCancel):
    """Any of these actions, as it is parsed."""

    patch: JobPatch | None = None


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Numbers of jobs that matched, that were changed and that the caller may not change; the others were not in a state for it."""

    matched: int
    changed: int
    refused: int = 0
    ids: Sequence[str] = ()
    """Ids of the first changed jobs."""


def read_job_id(text: str) -> tuple[str, int]:
    """Return the name and the key in a job's id. Raises ProblemError BAD_ID."""
    try:
        return parse_job_id(text)
    except BadIdError as error:
        raise ProblemError(Code.BAD_ID, str(error)) from error


async def find_job(tx: Transaction, caller: Caller, text: str) -> store.ShownJob:
    """Return the job with this id. Raises ProblemError when the caller may see no such job."""
    name, key = read_job_id(text)
    row = await store.view(tx, key)
    if row is None or row.name != name or not caller.may_use(row.queue):
        raise ProblemError(Code.NOT_FOUND, f"there is no job {text!r}")
    return row


async def find_key(tx: Transaction, caller: Caller, text: str) -> int:
    """Return the key of the job with this id, as ``find_job`` does."""
    return (await find_job(tx, caller, text)).id


async def check_may_change(tx: Transaction, caller: Caller, key: int) -> None:
    """Lock a job that the caller may see. Raises ProblemError JOB_OF_ANOTHER where the caller may not change it."""
    await _lock_allowed(tx, caller, [key], strict=True)


async def act(
    tx: Transaction, stores: Stores, caller: Caller, text: str, action: Action, grace: float | None = None
) -> store.Transition | None:
    """Perform ``action`` on one job; return the change, if any. Raises ProblemError WRONG_STATE when the job's state forbids it.

    ``grace``: for a cancel, the most seconds that members may take to end.
    """
    key = await find_key(tx, caller, text)
    done, _ = await _act_on(tx, stores, caller, [key], action, grace, strict=True)
    return next(iter(done), None)


async def act_on_all(
    tx: Transaction, stores: Stores, caller: Caller, keys: Sequence[int], action: Action, why: str = ""
) -> list[store.Transition]:
    """Perform ``action`` on those of these jobs that the caller may change and whose state allows it; return the changes.

    ``why``: of a cancel or suspend, its reason, where no person asked for it.
    """
    done, _ = await _act_on(tx, stores, caller, keys, action, None, strict=False, why=why)
    return done


async def patch(
    tx: Transaction, stores: Stores, caller: Caller, text: str, change: JobPatch
) -> store.Transition | None:
    """Change one waiting job; return the transition, if anything changed."""
    key = await find_key(tx, caller, text)
    done, _ = await _patch_all(tx, stores, caller, [key], change, strict=True)
    return next(iter(done), None)


async def note_on(
    tx: Transaction,
    stores: Stores,
    caller: Caller,
    key: int,
    details: dict[str, Any],
    kind: JobEventKind = JobEventKind.CHANGED,
    record: store.JobRecord | None = None,
) -> int:
    """Write an event of a job that changes no state of it; return the number of the event. The caller may see the job.

    ``record``: that of the job, whose row is locked; without it, the job is locked now. Raises ProblemError JOB_OF_ANOTHER.
    """
    if record is None:
        record = (await store.lock(tx, [key]))[key]
    await _allowed(tx, caller, {key: record}, strict=True)
    states = (record.job.wish.value if record.job.wish else record.job.state.value,)
    # Of a job that waits, the scheduler has to know the version.
    is_neutral = record.job.state not in (JobState.QUEUED, JobState.HELD)
    noted = store.Transition(
        record, record.job, kind=kind, states=states, actor=caller.name, details=details, is_neutral=is_neutral
    )
    await store.write(tx, [noted])

    async def wake() -> None:
        stores.jobs_changed([key])

    tx.after_commit(wake)
    return record.version + 1


def audited_state(job: job_machine.Job) -> dict[str, Any]:
    """Return a job's state as the audit records it."""
    found = {"state": job.state, "wish": job.wish, "holdCause": job.hold_cause}
    return {name: value.value for name, value in found.items() if value is not None}


async def bulk(stores: Stores, caller: Caller, request: BulkRequest, action: Action | None) -> BulkResult:
    """Act on every job that matches, in batches of one transaction each; ``action`` None means ``request.patch``."""
    async with stores.database.transaction() as tx:
        wanted = await to_filter(tx, caller, request.filter, "filter.queue")
        matched = await store.count_matching(tx, wanted)
        if request.dry_run:
            return BulkResult(matched, 0, await _count_refused(tx, caller, wanted))
    ids: list[str] = []
    grace = None if request.grace is None else parse_duration(request.grace)
    changed, refused, after, batch = 0, 0, 0, BATCH
    while batch == BATCH:
        async with stores.database.transaction() as tx:
            keys = await store.matching(tx, wanted, after, BATCH)
            batch = len(keys)
            if not keys:
                break
            after = keys[-1]
            if action is not None:
                done, left_out = await _act_on(tx, stores, caller, keys, action, grace, strict=False)
            elif request.patch is not None:
                done, left_out = await _patch_all(tx, stores, caller, keys, request.patch, strict=False)
            else:
                done, left_out = [], 0
            changed += len(done)
            refused += left_out
            ids += [job_id(one.record.name, one.record.id) for one in done[: MOST_IDS - len(ids)]]
    return BulkResult(matched, changed, refused, ids)


async def to_filter(tx: Transaction, caller: Caller, wanted: BulkFilter, queue_path: str = "queue") -> store.Filter:
    """Return the store's filter, narrowed to what the caller may see. Raises ProblemError for names that do not exist.

    ``queue_path``: where the caller wrote the queue.
    """
    if wanted == BulkFilter():
        raise ProblemError(Code.INVALID_PARAMETER, "the filter is empty; name at least one condition")
    queue_ids: tuple[int, ...] | None = None
    if wanted.queue is not None:
        queue_ids = tuple(await tenants.queue_ids_below(tx, [wanted.queue]))
    owned = caller.clusters if caller.is_owner else None
    if not caller.has_every_queue and owned is None:
        own = set(await tenants.queue_ids_below(tx, caller.queues))
        queue_ids = tuple(sorted(own if queue_ids is None else own & set(queue_ids)))
    if wanted.queue is not None and not queue_ids and owned is None:
        near = suggestion(wanted.queue, await _known_queues(tx, caller))
        message = f"there is no queue {wanted.queue!r}{near}"
        raise ProblemError(Code.UNKNOWN_QUEUE, message, mistakes=(Mistake(path=queue_path, message=message),))
    cluster_id = None
    if wanted.cluster is not None:
        check_owns(caller, wanted.cluster)
        cluster_id = await _cluster_id(tx, caller, wanted.cluster)
    class_id = await class_id_of(tx, wanted.priority_class) if wanted.priority_class else None
    group_ids = None if wanted.group is None else await _group_ids(tx, wanted.group, queue_ids)
    known = {state.value for state in JobState} | {"cancelling", "suspending"}
    wrong = sorted(set(wanted.states) - known)
    if wrong:
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"there is no job state {wrong[0]!r}; there are: {', '.join(sorted(known))}{did_you_mean(wrong[0], sorted(known))}",
        )
    return store.Filter(
        queue_ids,
        wanted.states,
        wanted.name,
        class_id,
        dict(wanted.labels),
        cluster_id,
        submitter=wanted.submitted_by,
        since=wanted.since,
        until=wanted.until,
        owned=owned,
        group_ids=group_ids,
        search=None if wanted.search is None else await _search(tx, wanted.search),
    )


async def _search(tx: Transaction, text: str) -> store.Search:
    try:
        key = parse_job_id(text)[1]
    except BadIdError:
        key = None
    return store.Search(text, key, tuple(await keys_named(tx, text)))


_MOST_GROUPS = 1000


async def _group_ids(tx: Transaction, name: str, queue_ids: Sequence[int] | None) -> tuple[int, ...]:
    """Return the keys of the groups of this name in some queues; None: in all. Raises ProblemError UNKNOWN_GROUP without any."""
    found = await groups.named(tx, name, queue_ids, _MOST_GROUPS)
    if not found:
        message = (
            f"there is no group {name!r} in the queues that you may use; 'trainmaster groups' lists those there are"
        )
        raise ProblemError(Code.UNKNOWN_GROUP, message, mistakes=(Mistake(path="group", message=message),))
    return tuple(row.id for row in found)


async def _known_queues(tx: Transaction, caller: Caller) -> list[str]:
    return [row.spec.path for row in await tenants.QUEUES.every(tx) if caller.may_know(row.spec.path)]


async def _cluster_id(tx: Transaction, caller: Caller, name: str) -> int:
    """Return the key of a cluster. A removed one is still named by its jobs. Raises ProblemError for one that never existed."""
    found = await tenants.id_of_cluster(tx, name)
    if found is not None:
        return found
    known = [row.spec.name for row in await tenants.CLUSTERS.every(tx) if caller.may_go_to(row.spec.only_queues)]
    there_are = f"; there are: {', '.join(sorted(known))}" if known else ""
    raise ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}{suggestion(name, known) or there_are}")


async def _refused_queues(tx: Transaction, name: str) -> dict[int, ProblemError]:
    """Return the queues in which users may not use this priority class, each with the error for it."""
    classes, every = await tenants.CLASSES.every(tx), await tenants.QUEUES.every(tx)
    by_path = {row.spec.path: row for row in every}
    allowed = {row.id: (row.spec.path, classes_of(row.spec.path, by_path, classes)) for row in every if row.row.is_leaf}
    return {key: not_allowed(name, path, names) for key, (path, names) in allowed.items() if name not in names}


async def class_id_of(tx: Transaction, name: str) -> int:
    classes = {row.spec.name: row.id for row in await tenants.CLASSES.every(tx)}
    if name not in classes:
        raise ProblemError(
            Code.UNKNOWN_PRIORITY_CLASS,
            f"there is no priority class {name!r}; there are: {', '.join(sorted(classes))}{suggestion(name, classes)}",
        )
    return classes[name]


async def _lock_allowed(
    tx: Transaction, caller: Caller, keys: Sequence[int], *, strict: bool
) -> tuple[dict[int, store.JobRecord], int]:
    """Lock jobs; return those that the caller may change, and the number of the others, as ``_allowed`` does."""
    return await _allowed(tx, caller, await store.lock(tx, keys), strict=strict)


async def _allowed(
    tx: Transaction, caller: Caller, records: dict[int, store.JobRecord], *, strict: bool
) -> tuple[dict[int, store.JobRecord], int]:
    """Return those of these jobs that the caller may change, and the number of the others.

    Raises ProblemError JOB_OF_ANOTHER for one of the others, if ``strict``.
    """
    if caller.is_admin or not records:
        return records, 0
    others = await store.submitted_by_others(tx, records, caller.name)
    if not others:
        return records, 0
    closed = await _closed_queues(tx, caller)
    left_out = {key: record for key, record in records.items() if key in others and record.queue_id in closed}
    if strict and left_out:
        record = next(iter(left_out.values()))
        path = closed[record.queue_id]
        raise ProblemError(
            Code.JOB_OF_ANOTHER,
            f"no key named {caller.name!r} submitted job {job_id(record.name, record.id)!r}, and queue {path!r} lets users change"
            " only their own jobs (jobActions: own); ask its submitter or an admin, or have an admin set jobActions: any"
            f" on queue {path!r} or on one above it",
        )
    return {key: record for key, record in records.items() if key not in left_out}, len(left_out)


async def _closed_queues(tx: Transaction, caller: Caller) -> Mapping[int, str]:
    """Return the paths of the queues, by key, in which the caller may change only jobs that it submitted."""
    every = await tenants.QUEUES.every(tx)
    by_path = {row.spec.path: row for row in every}
    closed = [row for row in every if job_actions_of(row.spec.path, by_path) is JobActions.OWN]
    return {row.id: row.spec.path for row in closed if not caller.manages(row.spec.path)}


async def _count_refused(tx: Transaction, caller: Caller, wanted: store.Filter) -> int:
    """Return the number of matching jobs that the caller may see and not change."""
    if caller.is_admin:
        return 0
    closed = set(await _closed_queues(tx, caller))
    queue_ids = tuple(sorted(closed if wanted.queue_ids is None else closed & set(wanted.queue_ids)))
    return await store.count_matching(tx, replace(wanted, queue_ids=queue_ids, not_submitter=caller.name))


async def _act_on(
    tx: Transaction,
    stores: Stores,
    caller: Caller,
    keys: Sequence[int],
    action: Action,
    grace: float | None,
    *,
    strict: bool,
    why: str = "",
) -> tuple[list[store.Transition], int]:
    """Return the changes, and the number of jobs that the caller may not change."""
    records, left_out = await _lock_allowed(tx, caller, keys, strict=strict)
    live = await runs.lock_live(tx, [key for key, record in records.items() if record.job.state.has_live_run])
    now = await to_epoch(tx) if action in (Action.RESUME, Action.RETRY) else 0.0  # no other action needs it
    still_cancelled = await _still_cancelled(tx, records) if action is Action.RETRY else set[int]()
    transitions: list[store.Transition] = []
    changes: list[tuple[runs.RunRecord, run_machine.Run]] = []
    for key, record in records.items():
        try:
            if key in still_cancelled:
                raise ProblemError(
                    Code.WRONG_STATE, "jobs of its elements are still being cancelled; retry it when they have ended"
                )
            after = action.change(record.job, now, why)
        except ProblemError:
            if strict:
                raise
            continue
        run = live.get(key)
        # A stop that is under way may be shortened, never prolonged.
        hastens = grace is not None and run is not None and after.wish is Wish.CANCEL and run.run.stop_cause is not None
        if after == record.job and not hastens:
            continue
        if run is not None and hastens and (stopped := lifecycle.stop_for(after, run.run)) == run.run:
            changes.append((run, run_machine.hasten(run.run)))
        elif run is not None and (stopped := lifecycle.stop_for(after, run.run)) != run.run:
            changes.append((run, stopped))
        transitions.append(
            store.Transition(
                record,
                after,
                kind=JobEventKind(action.value),
                states=(after.wish.value if after.wish else after.state.value,),
                attempt=run.ref.attempt if run else None,
                cluster_id=run.cluster_id if run else None,
                actor=caller.name,
                message=why,
            )
        )
    await store.write(tx, transitions)
    if action is Action.RETRY:
        await arrays.let_run_again(tx, [t.record.id for t in transitions if t.record.elements is not None])
        await _count_again(tx, [t.record.id for t in transitions])
        await sessions.restore(tx, [t.record.id for t in transitions])
        await job_objects.restore(tx, [t.record.id for t in transitions])
        await schedules.unsettle(tx, [t.record.id for t in transitions])
    if action is Action.RESUME:
        await scheduling.drop_cool_downs(tx, [t.record.id for t in transitions])
    touched = {record.cluster_id for record, _ in changes}
    versions = await runs.raise_desired(tx, touched)
    await runs.write(
        tx,
        [
            runs.RunChange(record.ref, run, desired_version=versions[record.cluster_id], stop_grace=grace)
            for record, run in changes
        ],
    )

    async def wake() -> None:
        stores.jobs_changed([t.record.id for t in transitions], touched)

    tx.after_commit(wake)
    return transitions, left_out


async def _still_cancelled(tx: Transaction, records: Mapping[int, store.JobRecord]) -> set[int]:
    """Return arrays that have ended and whose elements still have open jobs."""
    ended = [key for key, record in records.items() if record.has_element_jobs and record.job.state.is_terminal]
    return await element_jobs.with_open_jobs(tx, ended) if ended else set()


async def _count_again(tx: Transaction, keys: Sequence[int]) -> None:
    """Let the elements wait whose jobs are tried again, where their array has not ended."""
    for array, elements in sorted((await element_jobs.reopened(tx, keys)).items()):
        row = await arrays.lock(tx, array)
        bits = masks((one, one) for one in elements)
        before = await arrays.blocks(tx, array, bits)
        changed = {number: block.without(bits[number]) for number, block in before.items()}
        if row is not None:
            await arrays.save(tx, array, changed, counts_after(row.counts, before, changed), row.running)


async def _patch_all(
    tx: Transaction, stores: Stores, caller: Caller, keys: Sequence[int], change: JobPatch, *, strict: bool
) -> tuple[list[store.Transition], int]:
    """Return the changes, and the number of jobs that the caller may not change because others submitted them."""
    class_id = await class_id_of(tx, change.priority_class) if change.priority_class else None
    if class_id is not None and not await tenants.hold_classes(tx, [class_id]):
        raise ProblemError(Code.UNKNOWN_PRIORITY_CLASS, f"priority class {change.priority_class!r} was just removed")
    refused: dict[int, ProblemError] = {}
    if change.priority_class is not None and not caller.is_admin:
        refused = await _refused_queues(tx, change.priority_class)
    records, left_out = await _lock_allowed(tx, caller, keys, strict=strict)
    if records and all(record.queue_id in refused for record in records.values()):
        raise refused[next(iter(records.values())).queue_id]
    transitions = []
    for record in records.values():
        if record.queue_id in refused:
            continue
        if record.job.state not in (JobState.QUEUED, JobState.HELD):
            if strict:
                raise ProblemError(
                    Code.WRONG_STATE, f"the job is {record.job.state}; only a queued or held job can be changed"
                )
            continue
        details: dict[str, Any] = {}
        if change.priority is not None and change.priority != record.priority:
            details["priority"] = [record.priority, change.priority]
        if class_id is not None and class_id != record.class_id:
            details["priorityClass"] = change.priority_class
        if details:
            transitions.append(
                store.Transition(
                    record,
                    record.job,
                    kind=JobEventKind.CHANGED,
                    states=(record.job.state.value,),
                    actor=caller.name,
                    details=details,
                    priority=change.priority,
                    class_id=class_id,
                )
            )
    await store.write(tx, transitions)

    async def wake() -> None:
        stores.jobs_changed([t.record.id for t in transitions])

    tx.after_commit(wake)
    return transitions, left_out
