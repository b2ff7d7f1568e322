"""The leader's part in arrays whose elements are jobs: submits these as they may start, counts their ends, and ends the array.

    wake ──▶ lock the array ──▶ ends of its jobs into the bitmaps ──▶ ``domain.element_jobs.next_moves`` ──▶ further jobs, actions on
    open ones, state of the array

All of it is one transaction for each array, which the leader's token guards: whoever is killed leaves all or nothing of it, so that no
element has two jobs, and none is counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from trainmaster.protocol.arrays import (
    ARRAY_LABEL,
    ELEMENT,
    MOST_ELEMENT_MESSAGE,
    ArrayCounts,
    ElementResult,
    FailedElement,
    JobArray,
    is_result,
)
from trainmaster.protocol.base import format_time
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.parameters import substitute
from trainmaster.protocol.states import DependencyFailure, HoldCause, JobState, KeyRole
from trainmaster_dispatcher.containment import Part, is_of_the_store
from trainmaster_dispatcher.domain.arrays import BLOCK, Block, counts_after
from trainmaster_dispatcher.domain.element_jobs import (
    ArrayFacts,
    ArrayMoves,
    Before,
    OnOpen,
    OpenJobs,
    eligible,
    next_moves,
)
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.job_machine import Job
from trainmaster_dispatcher.services import job_actions
from trainmaster_dispatcher.services.arrays import new_token
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
from trainmaster_dispatcher.services.workflow_parsing import MissingValueError
from trainmaster_dispatcher.store import arrays, dependencies, files, jobs, runs
from trainmaster_dispatcher.store import element_jobs as store
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.element_jobs import ArrayJobRow, OpenJob
from trainmaster_dispatcher.store.keys import Caller

_BATCH: Final = 50
_RETRY_SECONDS: Final = 10.0
"""Time after which jobs are submitted again that were refused for now."""
_MOST_AT_ONCE: Final = 1000
"""The most jobs on which there is an action in one transaction: it holds up the scheduler, and its lead."""
_NAMED_FAILURES: Final = 6
_OF_THE_ARRAY: Final = ("after", "array", "deadline", "group", "notify", "onDependencyFailure", "startAfter", "suspend")
"""Fields that are those of the array, and not of the jobs of its elements."""
SYSTEM: Final = Caller(0, "arrays", KeyRole.ADMIN)
"""As whom jobs of elements are cancelled, suspended and resumed."""


async def advance_due(stores: Stores, token: int, clusters: KnownClusters, limit: int = _BATCH) -> int:
    """Deal with arrays of which something has changed, as the leader with this token; return how many.

    One array that cannot be dealt with keeps no others waiting.
    """
    async with stores.database.transaction() as tx:
        due = await store.due(tx, limit)

    async def advance(tx: Transaction, key: int) -> None:
        await _advance(tx, stores, key, clusters)

    return await advance_each(stores, token, due, Part.JOB, advance, _put_off)


async def _put_off(tx: Transaction, key: int, seconds: float) -> None:
    await store.take_wakes(tx, key)
    await store.look_in(tx, key, seconds)


async def _advance(tx: Transaction, stores: Stores, key: int, clusters: KnownClusters) -> None:
    if not await store.is_free(tx, key):
        if not await store.exists(tx, key):
            await store.take_wakes(tx, key)
        return
    await store.take_wakes(tx, key)
    await arrays.create(tx, key, new_token())
    row, found = await store.find(tx, key), await arrays.lock(tx, key)
    record = (await jobs.lock(tx, [key]))[key]
    if row is None or found is None or record.elements is None:
        raise LookupError(f"array {key} has no row")
    one = _Array(key, record, row, record.elements, JobArray.model_validate(row.spec["array"]), found.counts)
    await _Look(tx, stores, one, clusters).run()


@dataclass(slots=True)
class _Array:
    """An array as it is in this look at it."""

    key: int
    record: jobs.JobRecord
    row: ArrayJobRow
    elements: int
    spec: JobArray
    counts: ArrayCounts
    blocks: dict[int, Block] = field(default_factory=dict)
    open: list[OpenJob] = field(default_factory=list)

    @property
    def id(self) -> str:
        return job_id(self.record.name, self.key)


class _Look:
    """One look at one array, in a transaction of the caller, which has locked it."""

    def __init__(self, tx: Transaction, stores: Stores, array: _Array, clusters: KnownClusters) -> None:
        self._tx = tx
        self._stores = stores
        self._array = array
        self._clusters = clusters
        self._message = ""
        self._again: float | None = None
        """Seconds after which the array is looked at again, whatever happens."""

    async def run(self) -> None:
        one = self._array
        one.blocks = await arrays.blocks(self._tx, one.key)
        every = await store.open_jobs(self._tx, one.key)
        ended = [job for job in every if job.state.is_terminal]
        one.open = [job for job in every if not job.state.is_terminal]
        others, holds = await self._before()
        may_start = eligible(one.elements, one.blocks, [job.element for job in every], others)
        await self._count(ended, {} if holds else may_start.never)
        moves = next_moves(await self._facts(follows=bool(others)))
        is_done = await self._act(moves)
        after = moves.job
        chosen = may_start.first(min(moves.submit, _MOST_AT_ONCE)) if moves.submit else []
        if chosen and (refused := await self._submit(chosen)):
            after = _as_running(one.record.job).moved(JobState.FAILED)._replace(message=refused)
        if after is not None:
            await self._write(after)
        is_resumed = moves.on_open is OnOpen.RESUME and is_done
        suspended = moves.on_open is OnOpen.SUSPEND or (one.row.was_suspended and not is_resumed)
        await store.set_outlook(
            self._tx, one.key, suspended=suspended, message=self._message[:2000], look_in=self._again
        )

    async def _before(self) -> tuple[list[Before], bool]:
        """Return the arrays whose elements those of this one wait for, and whether elements that never may be submitted stay."""
        found = await store.predecessors(self._tx, self._array.key)
        others = [
            Before(
                one.condition,
                await arrays.blocks(self._tx, one.on_job_id),
                has_ended=one.state is None or one.state.is_terminal,
            )
            for one in found
        ]
        return others, any(one.on_failure is DependencyFailure.HOLD for one in found)

    async def _count(self, ended: Sequence[OpenJob], never: Mapping[int, int]) -> None:
        """Store how elements have ended, each once: by the ends of their jobs, or as they may never be submitted."""
        one = self._array
        bits = {state: _bitmaps(job.element for job in ended if job.state is state) for state in _ENDS}
        numbers = {*never, *(number for of_state in bits.values() for number in of_state)}
        before = {number: one.blocks.get(number, Block()) for number in numbers}
        for number, block in before.items():
            good, bad, left = (bits[state].get(number, 0) for state in _ENDS)
            one.blocks[number] = block.with_ended(good, bad, left | never.get(number, 0))
        changed = {number: one.blocks[number] for number in numbers if one.blocks[number] != before[number]}
        one.counts = counts_after(one.counts, before, changed)
        running = sum(job.state is JobState.RUNNING for job in one.open)
        await arrays.save(self._tx, one.key, changed, one.counts, running)
        if not ended:
            return
        await store.note_counted(self._tx, [job.job_id for job in ended])
        news = {number: one.blocks[number].since(before[number]) for number in changed}
        fresh = [job for job in ended if _is_in(job.element, news)]
        failed = [
            FailedElement(
                element=job.element,
                exit_code=job.exit_code,
                signal=job.signal,
                message=job.message[-MOST_ELEMENT_MESSAGE:],
            )
            for job in fresh
            if job.state is JobState.FAILED
        ]
        if failed:
            await arrays.add_failures(self._tx, one.key, failed)
        if one.spec.results:
            await self._keep_results([job for job in fresh if job.state is JobState.SUCCEEDED])

    async def _keep_results(self, succeeded: Sequence[OpenJob]) -> None:
        own = await runs.results_of(self._tx, [job.job_id for job in succeeded])
        texts = {job.element: dumps(own[job.job_id]) for job in succeeded if job.job_id in own}
        kept = [ElementResult(element=element, value=text) for element, text in texts.items() if is_result(text)]
        if kept:
            await arrays.add_results(self._tx, self._array.key, kept)

    async def _facts(self, *, follows: bool) -> ArrayFacts:
        one = self._array
        suspended = sum(job.state is JobState.HELD and job.hold_cause in _SUSPENDED for job in one.open)
        live = sum(job.state.has_live_run for job in one.open)
        named = await arrays.failures(self._tx, one.key, _NAMED_FAILURES) if one.counts.failed else ()
        return ArrayFacts(
            job=one.record.job,
            elements=one.elements,
            counts=one.counts,
            open=OpenJobs(len(one.open) - live - suspended, live, suspended),
            stop=one.spec.stop,
            max_running=one.spec.max_running,
            failed=tuple(failure.element for failure in named),
            follows=follows,
            was_suspended=one.row.was_suspended,
        )

    async def _act(self, moves: ArrayMoves) -> bool:
        """Cancel, suspend or resume open jobs: all of them, or those of elements that a person has cancelled.

        Return whether no further ones are left for it.
        """
        one = self._array
        if moves.on_open is not None:
            action = _ACTIONS[moves.on_open]
            wanted = [job.job_id for job in one.open if _may(action, job)]
        else:
            action = Action.CANCEL
            wanted = [job.job_id for job in one.open if _is_in(job.element, one.blocks)]
        if not wanted:
            return True
        await job_actions.act_on_all(self._tx, self._stores, SYSTEM, wanted[:_MOST_AT_ONCE], action)
        if len(wanted) > _MOST_AT_ONCE:
            self._look_in(0.0)
        elif action is Action.SUSPEND:
            self._look_in(BUSY_SECONDS)  # the end of a run that is suspended wakes nobody
        return len(wanted) <= _MOST_AT_ONCE

    async def _submit(self, elements: Sequence[int]) -> str:
        """Submit the jobs of these elements, or of the first of them. Return why none can be, where that does not pass and no job of
        the array is open.
        """
        one = self._array
        sets = [one.spec.values_of(element) | {ELEMENT: element} for element in elements]
        owner = Owner(one.row.api_key_id, one.row.submitted_by)
        document = await self._with_sources(_document(one))
        try:
            submitted = await submit_later(
                self._tx, self._stores, owner, document, sets, {"array": one.id}, self._clusters
            )
        except MissingValueError as error:
            return self._refused(str(error))
        except QueueBusyError:
            self._look_in(BUSY_SECONDS)
            return ""
        except ProblemError as error:
            if is_of_the_store(error):
                raise
            return self._refused(f"{error.detail} ({error.code.value})", is_for_now=error.code in FOR_NOW)
        many = len(submitted.ids)
        await store.add_jobs(self._tx, one.key, submitted.first, elements[:many])
        await dependencies.note_clusters_of_elements(self._tx, one.key, submitted.first, elements[:many])
        if many < len(elements):
            self._look_in(_RETRY_SECONDS)
            self._message = "its queue has no place for more jobs of its elements now"
        return ""

    async def _with_sources(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a document whose inputs name the jobs of artifacts by id: that of the array may name them as its submission did."""
        if all("artifact" not in one for one in document.get("inputs", ())):
            return document
        inputs = [dict(one) for one in document["inputs"]]
        for found in await files.artifact_inputs_of(self._tx, self._array.key):
            if found.job is not None:
                inputs[found.input]["job"] = job_id(found.job, found.on_job_id)
        return {**document, "inputs": inputs}

    def _refused(self, words: str, *, is_for_now: bool = False) -> str:
        if is_for_now or self._array.open:
            self._look_in(_RETRY_SECONDS)
            self._message = f"the jobs of its elements are refused, and submitted again: {words}"
            return ""
        return f"the jobs of its elements cannot be submitted: {words}"

    async def _write(self, after: Job) -> None:
        one = self._array
        if one.record.job.state is JobState.QUEUED and (one.counts.succeeded or one.counts.failed):
            await self._note(_as_running(one.record.job))  # the jobs have started and ended since the last look
        if after != one.record.job:
            await self._note(after)

        async def wake() -> None:
            self._stores.jobs_changed([one.key])

        self._tx.after_commit(wake)

    async def _note(self, after: Job) -> None:
        record, state = self._array.record, after.state
        noted = jobs.Transition(record, after, _KINDS[state], (state.value,), message=after.message, is_neutral=True)
        await jobs.write(self._tx, [noted])
        self._array.record = replace(record, version=record.version + 1, job=after)

    def _look_in(self, seconds: float) -> None:
        self._again = seconds if self._again is None else min(seconds, self._again)


_ENDS: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_SUSPENDED: Final = (HoldCause.USER, HoldCause.SUSPENDED)
_ACTIONS: Final = {OnOpen.CANCEL: Action.CANCEL, OnOpen.SUSPEND: Action.SUSPEND, OnOpen.RESUME: Action.RESUME}
_KINDS: Final = {
    JobState.RUNNING: JobEventKind.ELEMENTS_STARTED,
    JobState.HELD: JobEventKind.HELD,
    JobState.SUCCEEDED: JobEventKind.ELEMENTS_ENDED,
    JobState.FAILED: JobEventKind.ELEMENTS_ENDED,
    JobState.CANCELLED: JobEventKind.ELEMENTS_ENDED,
}


def _may(action: Action, job: OpenJob) -> bool:
    """Return whether an action on all open jobs concerns this one."""
    is_suspended = job.state is JobState.HELD and job.hold_cause in _SUSPENDED
    match action:
        case Action.SUSPEND:
            return not is_suspended
        case Action.RESUME:
            return is_suspended
        case _:
            return True


def _as_running(job: Job) -> Job:
    return job if job.state is JobState.RUNNING else job.moved(JobState.RUNNING)


def _bitmaps(elements: Iterable[int]) -> dict[int, int]:
    """Return elements as bitmaps by block."""
    found: dict[int, int] = {}
    for element in elements:
        number, bit = divmod(element, BLOCK)
        found[number] = found.get(number, 0) | 1 << bit
    return found


def _is_in(element: int, blocks: Mapping[int, Block]) -> bool:
    """Return whether an element has ended by these blocks."""
    number, bit = divmod(element, BLOCK)
    return bool(blocks.get(number, Block()).ended >> bit & 1)


def _document(one: _Array) -> dict[str, Any]:
    """Return the specification of the job of an element, with placeholders for its parameters."""
    spec = {name: value for name, value in one.row.spec.items() if name not in _OF_THE_ARRAY}
    spec["labels"] = {**spec.get("labels", {}), ARRAY_LABEL: one.id}
    if one.row.parameters is not None:
        spec = substitute(spec, one.row.parameters)
    if one.row.deadline is not None:
        spec["deadline"] = format_time(datetime.fromtimestamp(one.row.deadline, UTC))
    return spec
