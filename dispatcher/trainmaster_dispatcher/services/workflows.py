"""Workflows as people submit, see, cancel and resume them. The scheduler submits their jobs: see ``workflow_steps``.

Rights follow the queue, as those to jobs do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import BadIdError, job_id, parse_workflow_id, workflow_id
from trainmaster.protocol.parameters import placeholders, unfilled
from trainmaster.protocol.states import JobActions, JobState, StepState, WorkflowState
from trainmaster.protocol.workflows import ITEM, WORKFLOW_LABEL, StepView, WorkflowView
from trainmaster_dispatcher.domain.workflow_events import WorkflowEvent, WorkflowEventKind
from trainmaster_dispatcher.domain.workflows import StepFacts, WorkflowWish, reopen, words_on_waiting
from trainmaster_dispatcher.services import job_actions, webhooks
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action, BulkFilter, to_filter
from trainmaster_dispatcher.services.job_queries import make_cursor, read_cursor
from trainmaster_dispatcher.services.submission_parsing import PreparedSubmission
from trainmaster_dispatcher.services.submit import Submission, check, job_actions_of
from trainmaster_dispatcher.services.workflow_events import for_users_of, record, step_names, step_queues
from trainmaster_dispatcher.services.workflow_parsing import WantedWorkflow, bad_fields, read_workflow
from trainmaster_dispatcher.store import outbox, tenants
from trainmaster_dispatcher.store import workflows as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.workflows import (
    NO_OBJECT_FIELDS,
    NewWorkflow,
    ObjectFields,
    StepJob,
    StepRow,
    WorkflowRow,
    WrittenStep,
)

MOST_IDS: Final = 100
"""The most jobs of a step that are named in answers."""
MOST_RUNNING: Final = 1_000
"""The most running workflows of one user."""
_MOST_RETRIED: Final = 10_000
"""The most jobs that a resume tries again."""
_CANCEL, _CANCEL_ALL = "cancel", "cancel_all"
_FAILED = (JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class WorkflowWriting:
    """A workflow that somebody submits, with the jobs of its steps as they were checked. ``through``: see ``Submission``."""

    wanted: WantedWorkflow
    spec: Mapping[str, Any]
    caller: Caller
    prepared: PreparedSubmission
    through: Caller | None = None
    fields: ObjectFields = NO_OBJECT_FIELDS


def wanted_of(row: WorkflowRow) -> WantedWorkflow:
    """Return what a stored workflow describes. Raises ProblemError where this release does not understand it."""
    try:
        return read_workflow(row.spec)
    except ProblemError as error:
        raise bad_fields(row.spec) from error


def warnings_of(wanted: WantedWorkflow) -> list[Mistake]:
    """Return warnings of placeholders that may be mistyped parameters."""
    found: list[Mistake] = []
    if not wanted.spec.parameters:
        return found
    for index, step in enumerate(wanted.spec.steps):
        dotted = {name for name in placeholders(step.job) if "." in name}
        items = () if step.for_each is None else (ITEM,)
        known = [*wanted.spec.parameters, *items, *dotted]
        found += (
            Mistake(path=f"steps[{index}].job.{one.path}", message=one.message.replace("the table", "the workflow"))
            for one in unfilled(known, step.job)
        )
    return found


async def create(tx: Transaction, stores: Stores, writing: WorkflowWriting) -> WorkflowRow:
    """Store a workflow and return it. Raises ProblemError as a submission of its jobs does, and ALREADY_EXISTS for a taken name."""
    spec = writing.wanted.spec
    if spec.notify:
        webhooks.check_addresses(stores.settings, [("notify", [one.to_wire() for one in spec.notify])])
    submission = Submission(writing.caller, writing.prepared, writing.through)
    queue_id = await check(tx, stores, submission, own_queue=spec.queue)
    if await store.count_running(tx, writing.caller.key_id, MOST_RUNNING) >= MOST_RUNNING:
        message = f"{writing.caller.name!r} has {MOST_RUNNING} running workflows, the most that are allowed"
        raise ProblemError(Code.QUEUE_FULL, message, retry_after=10.0)
    new = NewWorkflow(
        queue_id, spec.name, writing.caller.key_id, writing.spec, spec.labels, len(spec.steps), writing.fields
    )
    key = await store.insert(tx, new)
    row = None if key is None else await store.find(tx, key)
    if row is None:
        raise ProblemError(Code.ALREADY_EXISTS, f'workflows.trainmaster.dev "{writing.fields.name}" already exists')
    submitted = WorkflowEvent(WorkflowEventKind.SUBMITTED, actor=(writing.through or writing.caller).name)
    await record(tx, row, [submitted], [StepState.WAITING] * len(spec.steps))
    _wake_scheduler(tx, stores)
    return row


def _wake_scheduler(tx: Transaction, stores: Stores) -> None:
    async def wake() -> None:
        stores.jobs_submitted()

    tx.after_commit(wake)


async def find(tx: Transaction, caller: Caller, text: str, *, locks: bool = False) -> WorkflowRow:
    """Return the workflow with this id. Raises ProblemError BAD_ID, and NOT_FOUND when the caller may see no such workflow."""
    try:
        name, key = parse_workflow_id(text)
    except BadIdError as error:
        raise ProblemError(Code.BAD_ID, str(error)) from error
    row = await store.find(tx, key, locks=locks)
    if row is None or row.name != name or not caller.may_use(row.queue):
        raise ProblemError(Code.NOT_FOUND, f"there is no workflow {text!r}")
    return row


async def page(
    tx: Transaction,
    caller: Caller,
    queue: str | None,
    states: Sequence[WorkflowState],
    cursor: str | None,
    limit: int,
) -> dict[str, Any]:
    """Return a page of workflows, newest first, as answers have it."""
    queue_ids: Sequence[int] | None = None
    if queue is not None:
        queue_ids = (await to_filter(tx, caller, BulkFilter(queue=queue))).queue_ids
    elif not caller.has_every_queue:
        queue_ids = await tenants.queue_ids_below(tx, caller.queues)
    rows = await store.page(tx, queue_ids, states, read_cursor(cursor), limit + 1)
    following = make_cursor(rows[limit - 1].id) if len(rows) > limit else None
    shown = rows[:limit]
    steps = await _steps(tx, [row.id for row in shown])
    found = [_view(row, _step_views(row, steps[row.id])) for row in shown]
    return {"workflows": [_answer(one) for one in found], "next": following}


def _answer(one: WorkflowView) -> dict[str, Any]:
    found: dict[str, Any] = one.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


async def show(tx: Transaction, row: WorkflowRow) -> dict[str, Any]:
    """Return a workflow as answers have it: with its specification, and what its steps wait for."""
    (view,) = await views(tx, [row], MOST_IDS)
    undelivered = (await outbox.dead_of_workflows(tx, [row.id])).get(row.id, 0)
    return _answer(view.model_copy(update={"spec": row.spec, "undelivered": undelivered}))


async def views(tx: Transaction, rows: Sequence[WorkflowRow], most_ids: int) -> list[WorkflowView]:
    """Return workflows with what their steps wait for, or why these have not succeeded, and at most ``most_ids`` jobs of each step."""
    keys = [row.id for row in rows]
    steps = await _steps(tx, keys)
    jobs: dict[int, list[StepJob]] = {key: [] for key in keys}
    for job in await store.shown_jobs(tx, keys, most_ids):
        jobs[job.workflow_id].append(job)
    return [_detailed(row, steps[row.id], jobs[row.id]) for row in rows]


def _detailed(row: WorkflowRow, steps: "Sequence[ReadStep]", jobs: Sequence[StepJob]) -> WorkflowView:
    queues = step_queues(row)
    ids: dict[int, list[str]] = {}
    for job in jobs:
        shown = for_users_of(queues[job.step], row, job_id(job.name, job.job_id), "a job of another queue")
        ids.setdefault(job.step, []).append(shown)
    failures = failures_of(jobs)
    words = _words(row, [one.facts for one in steps])
    detailed = []
    for index, view in enumerate(_step_views(row, steps)):
        message = with_failure(view.state, view.message or words[index], failures.get(index))
        message = for_users_of(queues[index], row, message)
        detailed.append(view.model_copy(update={"ids": tuple(ids.get(index, ())), "message": message}))
    return _view(row, detailed)


def failures_of(jobs: Sequence[StepJob]) -> dict[int, str]:
    """Return, by step, why the first of these jobs failed that has."""
    found: dict[int, str] = {}
    for job in jobs:
        if job.state is JobState.FAILED and (words := _failure(job)):
            found.setdefault(job.step, words)
    return found


def _failure(job: StepJob) -> str:
    """Return why a job has failed: how its latest run ended, and what is known beside that."""
    result = job.result or {}
    end = result.get("end") or {}
    code, signal = end.get("exitCode"), end.get("signal")
    how = f"exit code {code}" if code is not None else f"signal {signal}" if signal else str(end.get("category") or "")
    message = job.message or str(result.get("message") or end.get("message") or "")
    is_said = f"code {code}" in message or (signal is not None and f"signal {signal}" in message)
    return message if is_said else ", ".join(part for part in (how, message) if part)


def with_failure(state: StepState, message: str, failure: str | None) -> str:
    """Return the message of a step, with that of its failed job."""
    return f"{message}: {failure}" if state is StepState.FAILED and failure else message


@dataclass(frozen=True, slots=True)
class ReadStep:
    """A stored step, the facts about it, and the number of its jobs by state."""

    row: StepRow
    facts: StepFacts
    jobs: Mapping[JobState, int]


async def _steps(tx: Transaction, keys: Sequence[int]) -> dict[int, list[ReadStep]]:
    jobs: dict[tuple[int, int], dict[JobState, int]] = {}
    started: set[tuple[int, int]] = set()
    for one in await store.counts(tx, keys):
        place = one.workflow_id, one.step
        jobs.setdefault(place, {})[one.state] = one.many
        if one.has_started:
            started.add(place)
    found: dict[int, list[ReadStep]] = {key: [] for key in keys}
    for row in await store.steps_of(tx, keys):
        place = row.workflow_id, row.step
        of_step = jobs.get(place, {})
        facts = StepFacts(
            state=row.state,
            message=row.message,
            total=row.total,
            submitted=sum(of_step.values()),
            succeeded=of_step.get(JobState.SUCCEEDED, 0),
            failed=of_step.get(JobState.FAILED, 0),
            cancelled=of_step.get(JobState.CANCELLED, 0),
            has_started=place in started,
        )
        found[row.workflow_id].append(ReadStep(row, facts, of_step))
    return found


async def steps_of(tx: Transaction, key: int) -> list[ReadStep]:
    """Return the steps of a workflow, in their order."""
    return (await _steps(tx, [key]))[key]


def wish_of(row: WorkflowRow) -> WorkflowWish:
    """Return what a person wants of a workflow."""
    return WorkflowWish(row.wish is not None, row.wish == _CANCEL_ALL)


def _words(row: WorkflowRow, facts: Sequence[StepFacts]) -> list[str]:
    """Return what each step waits for; empty for those that do not wait."""
    if row.state.is_terminal:
        return [""] * len(facts)
    try:
        steps = wanted_of(row).steps
    except ProblemError as error:
        return [error.detail] * len(facts)
    return [
        words_on_waiting(step, steps, facts) if one.state is StepState.WAITING else ""
        for step, one in zip(steps, facts, strict=True)
    ]


def _step_views(row: WorkflowRow, steps: Sequence[ReadStep]) -> list[StepView]:
    names = step_names(row)
    return [
        StepView(
            name=name,
            state=one.row.state,
            message=one.row.message,
            total=one.row.total,
            jobs={state.value: many for state, many in one.jobs.items()},
            started_at=one.row.started_at,
            ended_at=one.row.ended_at,
        )
        for name, one in zip(names, steps, strict=True)
    ]


def _view(row: WorkflowRow, steps: Sequence[StepView]) -> WorkflowView:
    return WorkflowView(
        id=workflow_id(row.name, row.id),
        name=row.name,
        queue=row.queue,
        state=row.state,
        is_cancelling=row.wish is not None and not row.state.is_terminal,
        labels=row.labels or {},
        submitted_by=row.submitted_by or "",
        submitted_at=row.created_at,
        ended_at=row.ended_at,
        attempt=row.attempt,
        steps=tuple(steps),
    )


# -- changes


async def check_may_change(tx: Transaction, caller: Caller, row: WorkflowRow) -> None:
    """Raise ProblemError JOB_OF_ANOTHER where the caller may see and not change a workflow: one of another, unless the queues of all
    its steps let users change each other's jobs.
    """
    if caller.is_admin or caller.name in (row.submitted_by, row.submitted_through):
        return
    queues = {one.spec.path: one for one in await tenants.QUEUES.every(tx)}
    for path in sorted({row.queue, *step_queues(row)}):
        if caller.may_use(path) and caller.manages(path):
            continue
        if not caller.may_use(path) or job_actions_of(path, queues) is JobActions.OWN:
            own = (
                "whose jobs you may not change"
                if not caller.may_use(path)
                else "which lets users change only their own"
            )
            raise ProblemError(
                Code.JOB_OF_ANOTHER,
                f"workflow {workflow_id(row.name, row.id)!r} is of {row.submitted_by!r}, and has jobs in queue {path!r}, {own}"
                " (jobActions); ask its owner or an admin",
            )


async def cancel(
    tx: Transaction, stores: Stores, caller: Caller, row: WorkflowRow, *, runs_cleanup: bool
) -> WorkflowRow:
    """Let a workflow, whose row is locked, end: its jobs are cancelled, and then its cleanup steps run, if ``runs_cleanup``.

    Raises ProblemError JOB_OF_ANOTHER, and WRONG_STATE when it has ended.
    """
    await check_may_change(tx, caller, row)
    if row.state.is_terminal:
        if row.state is WorkflowState.CANCELLED:
            return row
        raise ProblemError(Code.WRONG_STATE, f"the workflow has {row.state}; only a running one can be cancelled")
    if row.wish != _CANCEL_ALL:
        await store.set_wish(tx, row.id, _CANCEL if runs_cleanup else _CANCEL_ALL)
        states = [one.facts.state for one in await steps_of(tx, row.id)]
        message = "" if runs_cleanup else "without its cleanup steps"
        await record(tx, row, [WorkflowEvent(WorkflowEventKind.CANCEL, message=message, actor=caller.name)], states)
        _wake_scheduler(tx, stores)
    return await reread(tx, row)


async def resume(tx: Transaction, stores: Stores, caller: Caller, row: WorkflowRow) -> WorkflowRow:
    """Let a workflow that has not succeeded, and whose row is locked, go on from the steps that have not.

    Their failed and cancelled jobs are tried again, with the specification and the values that they have. Steps after those, and
    cleanup steps, begin anew. Raises ProblemError JOB_OF_ANOTHER, and WRONG_STATE unless it has failed or was cancelled.
    """
    await check_may_change(tx, caller, row)
    if row.state not in (WorkflowState.FAILED, WorkflowState.CANCELLED):
        message = f"the workflow {'is running' if row.state is WorkflowState.RUNNING else 'has succeeded'};"
        raise ProblemError(Code.WRONG_STATE, f"{message} only one that failed or was cancelled can be resumed")
    plans = wanted_of(row).steps
    steps = await steps_of(tx, row.id)
    facts = [one.facts for one in steps]
    await _check_whole(tx, row, steps)
    anew = reopen(plans, facts)
    _check_ended(steps, anew)
    if anew:
        await store.forget_jobs(tx, row.id, anew)
    again = [index for index, one in enumerate(facts) if one.state is StepState.RUNNING]
    jobs = [one.job_id for index in again for one in await store.jobs_of(tx, row.id, index) if one.state in _FAILED]
    if len(jobs) > _MOST_RETRIED:
        label = f"{WORKFLOW_LABEL}={workflow_id(row.name, row.id)}"
        message = f"{len(jobs)} of its jobs have not succeeded, at most {_MOST_RETRIED} are tried again at once;"
        raise ProblemError(
            Code.WRONG_STATE, f"{message} try them again before, with: trainmaster retry --label {label} --state failed"
        )
    for start in range(0, len(jobs), job_actions.BATCH):
        await job_actions.act_on_all(tx, stores, caller, jobs[start : start + job_actions.BATCH], Action.RETRY)
    await store.write_steps(
        tx, row.id, [WrittenStep(index, one.state, one.message, one.total) for index, one in enumerate(facts)]
    )
    await store.reopen(tx, row.id)
    row = await reread(tx, row)
    resumed = WorkflowEvent(WorkflowEventKind.RESUME, message=f"attempt {row.attempt}", actor=caller.name)
    await record(tx, row, [resumed], [one.state for one in facts])
    _wake_scheduler(tx, stores)
    return row


async def _check_whole(tx: Transaction, row: WorkflowRow, steps: Sequence[ReadStep]) -> None:
    """Raise ProblemError WRONG_STATE where jobs were removed whose elements or results are needed."""
    places = await store.places(tx, row.id)
    for one in steps:
        place = places.get(one.row.step)
        many, reached = (0, 0) if place is None else (place.many, place.reached)
        is_complete = many == one.row.total if one.row.state is StepState.SUCCEEDED else many == reached
        if not is_complete:
            name = step_names(row)[one.row.step]
            raise ProblemError(
                Code.WRONG_STATE,
                f"jobs of step {name} were removed, as they ended too long ago: submit the workflow again",
            )


def _check_ended(steps: Sequence[ReadStep], anew: Sequence[int]) -> None:
    """Raise ProblemError WRONG_STATE where jobs of steps that are to begin anew have not ended: somebody has tried them again."""
    for index in anew:
        live = sum(many for state, many in steps[index].jobs.items() if not state.is_terminal)
        if live:
            raise ProblemError(
                Code.WRONG_STATE, f"{live} jobs of step {index + 1}, which is to begin anew, run: cancel them first"
            )


async def reread(tx: Transaction, row: WorkflowRow) -> WorkflowRow:
    """Return a workflow as it is after a change in this transaction, which has locked it."""
    return await store.find(tx, row.id) or row
