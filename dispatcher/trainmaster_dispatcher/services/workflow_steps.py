"""The leader's part in workflows: submits the jobs of steps whose conditions are met, and ends workflows.

    wake ──▶ lock the workflow ──▶ facts ──▶ ``domain.workflows.advance`` ──▶ jobs, their places in the workflow, states of steps

All of it is one transaction for each workflow, which the leader's token guards: whoever is killed leaves all or nothing of it, and no
element of a step has two jobs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.ids import job_id, workflow_id
from trainmaster.protocol.states import KeyRole, StepState, WorkflowState
from trainmaster_dispatcher.containment import Part, is_of_the_store
from trainmaster_dispatcher.domain.workflow_events import WorkflowEvent, kind_of_end, kind_of_step
from trainmaster_dispatcher.domain.workflows import Moves, StepFacts, advance
from trainmaster_dispatcher.services import job_actions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action
from trainmaster_dispatcher.services.later_submissions import (
    BUSY_SECONDS,
    FOR_NOW,
    KnownClusters,
    Owner,
    advance_each,
    submit_later,
)
from trainmaster_dispatcher.services.submit import QueueBusyError
from trainmaster_dispatcher.services.workflow_events import for_users_of, record, step_names, step_queues
from trainmaster_dispatcher.services.workflow_parsing import (
    MissingValueError,
    Results,
    WantedWorkflow,
    elements_of,
    fans_of,
    parameter_sets,
    references_of,
    sources_of,
)
from trainmaster_dispatcher.services.workflows import failures_of, steps_of, wanted_of, wish_of, with_failure
from trainmaster_dispatcher.store import dependencies, runs
from trainmaster_dispatcher.store import workflows as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.workflows import WorkflowRow, WrittenStep

_BATCH: Final = 50
_RETRY_SECONDS: Final = 10.0
"""Time after which jobs are submitted again that were refused for now."""
_MOST_AT_ONCE: Final = 1_000
"""The most jobs that are submitted, and cancelled, for one workflow in one transaction: it holds up the scheduler, and its lead."""
SYSTEM: Final = Caller(0, "workflows", KeyRole.ADMIN)
"""As whom jobs of workflows are cancelled."""


async def advance_due(stores: Stores, token: int, clusters: KnownClusters, limit: int = _BATCH) -> int:
    """Deal with workflows of which something has changed, as the leader with this token; return how many.

    ``clusters`` returns those whose refusals count. One workflow that cannot be dealt with keeps no others waiting.
    """
    async with stores.database.transaction() as tx:
        due = await store.due(tx, limit)

    async def advance(tx: Transaction, key: int) -> None:
        await _Advance(tx, stores, clusters).run(key)

    return await advance_each(stores, token, due, Part.WORKFLOW, advance, _put_off)


async def _put_off(tx: Transaction, key: int, seconds: float) -> None:
    await store.take_wakes(tx, key)
    await store.look_again(tx, key, seconds, is_changed=False)


class _Advance:
    """One look at one workflow, in a transaction of the caller."""

    def __init__(self, tx: Transaction, stores: Stores, clusters: KnownClusters) -> None:
        self._tx = tx
        self._stores = stores
        self._clusters = clusters
        self._left = _MOST_AT_ONCE
        """The number of jobs that may still be submitted in this transaction."""
        self._again: float | None = None
        """Seconds after which the workflow is looked at again, whatever happens."""

    async def run(self, key: int) -> None:
        row = await store.find_free(self._tx, key)
        if row is None:
            if await store.has_ended(self._tx, key):
                await store.take_wakes(self._tx, key)
            return
        is_changed = await store.take_wakes(self._tx, key)
        read = await steps_of(self._tx, key)
        facts = [one.facts for one in read]
        before = [(one.state, one.message, one.total) for one in facts]
        try:
            wanted = wanted_of(row)
        except ProblemError:
            if row.wish is None:
                raise
            moves = _end_unread(facts)
        else:
            moves = await self._advance(row, wanted, facts)
        changed = [
            WrittenStep(index, one.state, one.message[:2000], one.total)
            for index, (one, old) in enumerate(zip(facts, before, strict=True))
            if (one.state, one.message, one.total) != old
        ]
        if changed:
            await store.write_steps(self._tx, key, changed)
        if moves.cancel:
            jobs = await store.open_jobs(self._tx, key, moves.cancel, _MOST_AT_ONCE)
            await job_actions.act_on_all(self._tx, self._stores, SYSTEM, jobs, Action.CANCEL)
            if len(jobs) == _MOST_AT_ONCE:
                self._look_in(0.0)
        if moves.end is not None:
            await store.end(self._tx, key, moves.end)
        else:
            await store.look_again(self._tx, key, self._again, is_changed=is_changed or bool(changed))
        await self._record(row, facts, [state for state, _, _ in before], moves.end)

    async def _record(
        self, row: WorkflowRow, facts: Sequence[StepFacts], before: Sequence[StepState], end: WorkflowState | None
    ) -> None:
        """Store what has happened to the workflow and to its steps, and the messages to its webhooks."""
        names, queues = step_names(row), step_queues(row)
        failures: dict[int, str] = {}
        if any(one.state is StepState.FAILED for one in facts):
            failures = failures_of(await store.shown_jobs(self._tx, [row.id], 1))
        messages = [
            for_users_of(queues[index], row, with_failure(one.state, one.message, failures.get(index)))
            for index, one in enumerate(facts)
        ]
        events = [
            WorkflowEvent(kind, names[index], messages[index])
            for index, (one, old) in enumerate(zip(facts, before, strict=True))
            if (kind := kind_of_step(old, one.state)) is not None
        ]
        if end is not None:
            events.append(_end_event(row, facts, names, messages, end))
        if events:
            await record(self._tx, row, events, [one.state for one in facts])

    async def _advance(self, row: WorkflowRow, wanted: WantedWorkflow, facts: list[StepFacts]) -> Moves:
        """Submit what may be submitted, until nothing changes: a step without elements, or one that fails, decides others."""
        wish = wish_of(row)
        refused: set[int] = set()
        while True:
            moves = advance(wanted.steps, facts, wanted.spec.on_failure, wish)
            ready = [index for index in (*moves.start, *moves.more) if index not in refused]
            if not ready:
                return moves
            for index in ready:
                if not self._left:
                    self._look_in(0.0)
                    return moves
                if not await self._submit(row, wanted, facts[index], index, moves.more.get(index)):
                    refused.add(index)
                if facts[index].state is StepState.FAILED:
                    break  # which may keep the others from being started

    async def _submit(
        self, row: WorkflowRow, wanted: WantedWorkflow, one: StepFacts, index: int, more: int | None
    ) -> bool:
        """Submit jobs of a step: its first ones, or up to ``more``. Return False where they are refused for now."""
        before = one.total
        try:
            results = await self._results(row, wanted, index)
            if more is None:
                items = elements_of(wanted.spec.steps[index], results, fans_of(wanted.spec))
                one.total = 1 if items is None else len(items)
                if items is not None:
                    await store.keep_items(self._tx, row.id, index, items)
                most = wanted.steps[index].max_running
                more = one.total if most is None else min(one.total, most)
            else:
                items = await store.items_of(self._tx, row.id, index)
            sets = self._sets(row, wanted, index, items, results, one.submitted, more)
            done = await self._submit_jobs(row, wanted, index, sets, one.submitted) if sets else 0
        except MissingValueError as error:
            return self._refuse(one, before, str(error))
        except QueueBusyError:
            self._look_in(BUSY_SECONDS)
            one.total = before
            return False
        except ProblemError as error:
            if is_of_the_store(error):
                raise
            words = f"{error.detail} ({error.code.value})"
            return self._refuse(one, before, words, is_for_now=error.code in FOR_NOW)
        one.submitted += done
        self._left -= done
        one.state, one.message = StepState.RUNNING, ""
        if done < len(sets):
            self._look_in(_RETRY_SECONDS)
            one.message = f"its queue has no place for {len(sets) - done} more of its jobs now"
            return False
        return True

    def _look_in(self, seconds: float) -> None:
        self._again = seconds if self._again is None else min(seconds, self._again)

    def _refuse(self, one: StepFacts, before: int | None, words: str, *, is_for_now: bool = False) -> bool:
        """Let a step fail whose jobs cannot be submitted, and return True; False where they are submitted again: for a refusal that
        passes, and while other jobs of the step are open, as a step has ended once these have. ``before``: its total before.
        """
        one.total = before
        if is_for_now:
            self._look_in(_RETRY_SECONDS)
        if is_for_now or one.open:
            one.message = f"its jobs are refused, and submitted again: {words}"
            return False
        one.state, one.message = StepState.FAILED, f"its jobs cannot be submitted: {words}"
        return True

    def _sets(
        self,
        row: WorkflowRow,
        wanted: WantedWorkflow,
        index: int,
        items: Sequence[Any] | None,
        results: Mapping[str, Results],
        first: int,
        more: int,
    ) -> list[dict[str, Any]]:
        """Return the parameters of the next jobs of a step: of as many as may be submitted in this transaction."""
        given = None if items is None else items[first : first + min(more, self._left)]
        return parameter_sets(wanted, index, workflow_id(row.name, row.id), given, results)

    async def _results(self, row: WorkflowRow, wanted: WantedWorkflow, index: int) -> dict[str, Results]:
        """Return the results of the steps that a step uses."""
        indexes = {step.name: at for at, step in enumerate(wanted.steps)}
        found: dict[str, Results] = {}
        for name in references_of(wanted.spec.steps[index]):
            jobs = await store.jobs_of(self._tx, row.id, indexes[name])
            own: Mapping[int, Any] = await runs.results_of(self._tx, [job.job_id for job in jobs])
            found[name] = [(job_id(job.name, job.job_id), own.get(job.job_id)) for job in jobs]
        return found

    async def _sources(self, row: WorkflowRow, wanted: WantedWorkflow, index: int) -> dict[str, str]:
        """Return, by step, the id of the job whose artifact the jobs of a step get. Raises MissingValueError."""
        indexes = {step.name: at for at, step in enumerate(wanted.steps)}
        found: dict[str, str] = {}
        for name in sorted(sources_of(wanted.spec.steps[index])):
            jobs = await store.jobs_of(self._tx, row.id, indexes[name])
            if not jobs:
                raise MissingValueError(f"an artifact of step {name} does not exist: the step has no job")
            found[name] = job_id(jobs[0].name, jobs[0].job_id)
        return found

    async def _submit_jobs(
        self, row: WorkflowRow, wanted: WantedWorkflow, index: int, sets: Sequence[dict[str, Any]], first: int
    ) -> int:
        """Submit jobs of a step with these parameters, from element ``first`` on; return how many, as many as their queue has places
        for, but at least one. Raises ProblemError, MissingValueError, and QueueBusyError where others are filling the queue.
        """
        workflow, step = workflow_id(row.name, row.id), wanted.spec.steps[index]
        document = wanted.document(index, workflow, await self._sources(row, wanted, index))
        given = None if step.for_each is None and not sets[0] else sets
        submitted = await submit_later(
            self._tx,
            self._stores,
            Owner(row.api_key_id, row.submitted_by),
            document,
            given,
            {"workflow": workflow, "step": wanted.steps[index].name},
            self._clusters,
        )
        many = len(submitted.ids)
        await store.add_jobs(self._tx, row.id, index, submitted.first, first, many)
        before = [other for other, _ in wanted.steps[index].after]
        if before:
            await dependencies.note_clusters_of_step(self._tx, row.id, before, submitted.first, many)
        return many


def _end_event(
    row: WorkflowRow, facts: Sequence[StepFacts], names: Sequence[str], messages: Sequence[str], end: WorkflowState
) -> WorkflowEvent:
    """Return the event by which a workflow ends; of one that has failed with its first step that counts and has not succeeded."""
    bad = (StepState.FAILED, StepState.CANCELLED)
    if end is WorkflowState.FAILED:
        for index, (one, step) in enumerate(zip(facts, row.spec["steps"], strict=True)):
            if one.state in bad and not step.get("mayFail"):
                return WorkflowEvent(kind_of_end(end), names[index], messages[index])
    return WorkflowEvent(kind_of_end(end))


def _end_unread(facts: Sequence[StepFacts]) -> Moves:
    """Return what is to be done for a cancelled workflow that this release does not understand: its jobs are cancelled."""
    moves = Moves(cancel=[index for index, one in enumerate(facts) if one.open])
    for one in facts:
        if not one.state.is_terminal and not one.open:
            one.state = StepState.SKIPPED if one.total is None else StepState.CANCELLED
            one.message = "the workflow was cancelled"
    if not moves.cancel:
        moves.end = WorkflowState.CANCELLED
    return moves
