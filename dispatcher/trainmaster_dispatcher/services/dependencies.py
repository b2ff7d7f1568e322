"""Jobs that wait for others: which ones a submission names, and what becomes of jobs whose conditions are decided. A job that gets an
artifact of another one waits for that one.

submission ──▶ predecessors, locked ──▶ conditions stored with the jobs, which are held
end of a predecessor ──▶ counts (``store.dependencies``) ──▶ the leader queues the job, cancels it, or leaves it held
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from trainmaster.protocol.dependencies import Predecessor
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import BadIdError, job_id, parse_job_id
from trainmaster.protocol.states import Condition, ConditionState, DependencyFailure, GroupState, HoldCause
from trainmaster_dispatcher.containment import change_jobs
from trainmaster_dispatcher.domain import job_machine
from trainmaster_dispatcher.domain.dependencies import (
    cycle_of,
    verdict,
    words_on_failure,
    words_on_waiting,
)
from trainmaster_dispatcher.domain.groups import verdict_on_group, words_on_group
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.services.artifact_inputs import TakenArtifact, check_stored, check_submitted
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.submission_parsing import PreparedSubmission, WantedArtifact, mistaken
from trainmaster_dispatcher.store import dependencies as store
from trainmaster_dispatcher.store import files as file_rows
from trainmaster_dispatcher.store import jobs, scheduling, tenants
from trainmaster_dispatcher.store.database import Transaction, to_epoch
from trainmaster_dispatcher.store.element_jobs import NewArrayPredecessor
from trainmaster_dispatcher.store.files import ArtifactSource
from trainmaster_dispatcher.store.groups import HeldGroup, Place
from trainmaster_dispatcher.store.keys import Caller

MOST_CONDITIONS = 10_000
"""The most conditions of one job, and the most jobs that labels may stand for."""
MOST_OF_ALL = 100_000
"""The most conditions of one submission."""


class Edge(NamedTuple):
    """A condition on a stored job, by ``key``, on another job of the submission, by its ``place``, or on a group.

    ``elementwise``: both jobs are arrays, and it is on each element of the other one.
    """

    condition: Condition
    verdict: ConditionState
    key: int = 0
    place: int | None = None
    elementwise: bool = False
    group: Place | None = None


Edges = Sequence[Sequence[Edge]]
"""The conditions of a submission, by specification."""
_EdgesOfSpec = dict[tuple[int, int | Place | None, Condition, bool], Edge]


class _Named(NamedTuple):
    """An entry of ``after`` and the jobs that it names, or the group. ``path``: of the entry; ``keys``: of stored jobs; ``is_named``:
    the job is given by the name of its object and not by its id.

    With ``artifact`` it is an input, which names a job as such an entry does.
    """

    spec: int
    one: Predecessor
    path: str
    keys: Sequence[int] = ()
    place: int | None = None
    is_named: bool = False
    group: Place | None = None
    artifact: WantedArtifact | None = None


@dataclass(slots=True)
class ResolvedConditions:
    """By submission: the conditions of its jobs, the artifacts of other jobs that they get, or why these cannot be."""

    edges: dict[int, Edges] = field(default_factory=dict)
    taken: dict[int, Sequence[TakenArtifact]] = field(default_factory=dict)
    refused: dict[int, ProblemError] = field(default_factory=dict)


async def resolve(
    tx: Transaction, given: Mapping[int, tuple[Caller, PreparedSubmission]], groups: Mapping[Place, HeldGroup]
) -> ResolvedConditions:
    """Return the conditions of the jobs of submissions on others. The predecessors are locked until the transaction ends.

    ``groups``: those that are named and exist, locked.
    """
    done = ResolvedConditions()
    named: dict[int, list[_Named]] = {}
    for number, (caller, prepared) in given.items():
        if any(spec.after or spec.artifacts for spec in prepared.specs):
            try:
                named[number] = [one async for one in _named(tx, caller, prepared)]
            except ProblemError as error:
                done.refused[number] = error
    held = await _hold(tx, [one for found in named.values() for one in found])
    for number, found in named.items():
        caller, prepared = given[number]
        try:
            done.edges[number], done.taken[number] = _edges(caller, prepared, found, held, groups)
            await _check_groups(tx, prepared, found, groups)
        except ProblemError as error:
            done.refused[number] = error
    return done


async def check_artifacts(tx: Transaction, caller: Caller, prepared: PreparedSubmission) -> None:
    """Check the artifacts that jobs name which are submitted later, each with the id of its job. Raises ProblemError."""
    if not any(spec.artifacts for spec in prepared.specs):
        return
    named = [one async for one in _inputs(tx, prepared)]
    held = await _hold(tx, named)
    for one in named:
        if one.artifact is None:
            continue
        if one.is_named:
            message = f"{one.one.job} is the name of an object, which another one may have by then: give the job's id"
            raise mistaken(Mistake(path=f"{one.path}.job", message=message))
        _taken(caller, prepared, one, one.artifact, held)


class _Held(NamedTuple):
    """Stored jobs that submissions name, by key, locked; and what those leave whose artifacts are named."""

    rows: Mapping[int, store.PredecessorRow]
    sources: Mapping[int, ArtifactSource]


async def _hold(tx: Transaction, named: Sequence[_Named]) -> _Held:
    # In one statement, so that they are locked in the order of their keys, as all do.
    keys = {key for one in named for key in one.keys}
    rows = await store.hold_predecessors(tx, keys) if keys else {}
    of_artifacts = {key for one in named if one.artifact is not None for key in one.keys}
    return _Held(rows, await file_rows.artifact_sources(tx, of_artifacts) if of_artifacts else {})


async def _named(tx: Transaction, caller: Caller, prepared: PreparedSubmission) -> AsyncIterator[_Named]:
    """Yield what the entries of a submission name, and then its inputs. Raises ProblemError."""
    names = _JobNames(prepared)
    for number, (spec, prefix) in enumerate(zip(prepared.specs, prepared.paths(), strict=True)):
        for position, one in enumerate(spec.after):
            path = f"{prefix}.after[{position}]" if prefix else f"after[{position}]"
            if one.group is not None:
                yield _Named(number, one, path, group=(one.queue or spec.queue, one.group))
            elif one.job is None:
                queue = one.queue or spec.queue
                queue_ids = set(await tenants.queue_ids_below(tx, [queue]))
                if not caller.has_every_queue:
                    queue_ids &= set(await tenants.queue_ids_below(tx, caller.queues))
                keys = await store.labelled(tx, dict(one.labels or {}), sorted(queue_ids), MOST_CONDITIONS + 1)
                if not keys:
                    raise _unknown(f"{path}.labels", _without_labels(queue))
                if len(keys) > MOST_CONDITIONS:
                    message = f"more than {MOST_CONDITIONS} jobs in queue {queue!r} have these labels"
                    raise mistaken(Mistake(path=f"{path}.labels", message=message))
                yield _Named(number, one, path, keys)
            else:
                yield await names.job_of(tx, _Named(number, one, path), one.job)
    async for found in _inputs(tx, prepared):
        yield found


async def _inputs(tx: Transaction, prepared: PreparedSubmission) -> AsyncIterator[_Named]:
    """Yield the jobs that the inputs of a submission name. Raises ProblemError."""
    names = _JobNames(prepared)
    for number, (spec, prefix) in enumerate(zip(prepared.specs, prepared.paths(), strict=True)):
        for wanted in spec.artifacts:
            path = f"{prefix}.inputs[{wanted.number}]" if prefix else f"inputs[{wanted.number}]"
            one = _Named(number, Predecessor(job=wanted.job), path, artifact=wanted)
            yield await names.job_of(tx, one, wanted.job)


class _JobNames:
    """Names of jobs as a submission gives them."""

    def __init__(self, prepared: PreparedSubmission) -> None:
        self._specs = prepared.specs
        self._places = Counter(spec.name for spec in prepared.specs)
        self._indexes = {spec.name: index for index, spec in enumerate(prepared.specs)}

    async def job_of(self, tx: Transaction, one: _Named, job: str) -> _Named:
        """Return an entry with the job that it names: another one of the submission, or a stored one. Raises ProblemError."""
        if self._places[job] > 1:
            message = f"{self._places[job]} jobs of this submission have the name {job!r}; give it to one of them"
            raise mistaken(Mistake(path=f"{one.path}.job", message=message))
        if job in self._indexes:
            return one._replace(place=self._indexes[job])
        key = await store.by_object_name(tx, self._specs[one.spec].queue, job)
        keys = [_key_of(job, f"{one.path}.job") if key is None else key]
        return one._replace(keys=keys, is_named=key is not None)


def _without_labels(queue: str) -> str:
    return f"no job that you may see in queue {queue!r}, or below it, has these labels"


def _key_of(text: str, path: str) -> int:
    try:
        return parse_job_id(text)[1]
    except BadIdError:
        message = (
            f"there is no job {text!r}: give the id of a job, the name of another job of this submission, or that of an object"
            " of the queue, as kubectl shows it"
        )
        raise _unknown(path, message) from None


def _unknown(path: str, message: str) -> ProblemError:
    return mistaken(Mistake(path=path, message=message), code=Code.UNKNOWN_JOB)


def _edges(
    caller: Caller,
    prepared: PreparedSubmission,
    named: Sequence[_Named],
    held: _Held,
    groups: Mapping[Place, HeldGroup],
) -> tuple[Edges, Sequence[TakenArtifact]]:
    edges: list[_EdgesOfSpec] = [{} for _ in prepared.specs]
    taken: list[TakenArtifact] = []
    begun = {(spec.queue, spec.group) for spec in prepared.specs if spec.group is not None}
    for one in named:
        condition, elementwise = one.one.condition, one.one.elementwise
        if one.artifact is not None:
            taken.append(_taken(caller, prepared, one, one.artifact, held))
            _add_source(edges[one.spec], taken[-1], held)
            continue
        if one.group is not None:
            known = one.group in groups or one.group in begun
            edges[one.spec][0, one.group, condition, False] = _edge_on(
                caller, one, one.group, groups.get(one.group), known=known
            )
        if one.place is not None:
            if elementwise:
                _check_elements(one, prepared, prepared.specs[one.place].elements)
            edges[one.spec][0, one.place, condition, elementwise] = Edge(
                condition, ConditionState.WAITING, place=one.place, elementwise=elementwise
            )
        for key in one.keys:
            row = _row_of(caller, one, key, held)
            if row is None:
                continue
            if elementwise:
                _check_elements(one, prepared, row.elements)
                edges[one.spec][key, None, condition, True] = Edge(
                    condition, ConditionState.WAITING, key=key, elementwise=True
                )
                continue
            found = verdict(condition, row.state, has_started=row.has_started)
            if found is ConditionState.NEVER:
                message = words_on_failure(job_id(row.name, key), row.state, condition)
                raise mistaken(Mistake(path=one.path, message=message), code=Code.DEPENDENCY_IMPOSSIBLE)
            edges[one.spec][key, None, condition, False] = Edge(condition, found, key=key)
    _check_number(prepared, edges, taken)
    _check_order(prepared, named)
    return [list(of_spec.values()) for of_spec in edges], taken


def _row_of(caller: Caller, one: _Named, key: int, held: _Held) -> store.PredecessorRow | None:
    """Return a stored job that an entry names; None for one of a label that was just removed. Raises ProblemError UNKNOWN_JOB."""
    row = held.rows.get(key)
    is_meant = row is not None and (one.one.job is None or one.is_named or one.one.job == job_id(row.name, key))
    if row is None or not is_meant or not caller.may_use(row.queue):
        if one.one.job is None:
            return None
        raise _unknown(f"{one.path}.job", f"there is no job {one.one.job!r}")
    return row


def _taken(
    caller: Caller, prepared: PreparedSubmission, one: _Named, wanted: WantedArtifact, held: _Held
) -> TakenArtifact:
    """Return the artifact that an input names. Raises ProblemError UNKNOWN_JOB, and UNKNOWN_FILES where the job does not leave it."""
    if one.place is not None:
        check_submitted(prepared.specs[one.place], wanted.name, one.path)
        return TakenArtifact(one.spec, wanted.number, wanted.name, place=one.place)
    (key,) = one.keys
    row = _row_of(caller, one, key, held)
    source = held.sources.get(key)
    if row is None or source is None:
        raise _unknown(f"{one.path}.job", f"there is no job {one.one.job!r}")
    check_stored(source, job_id(row.name, key), row.state, wanted.name, one.path)
    return TakenArtifact(one.spec, wanted.number, wanted.name, key)


def _add_source(edges: _EdgesOfSpec, taken: TakenArtifact, held: _Held) -> None:
    """Let a job wait for the one whose artifact it gets, unless it waits for the end of that one by its own words."""
    if any(
        (edge.key, edge.place) == (taken.key, taken.place)
        and edge.condition is not Condition.STARTED
        and not edge.elementwise
        for edge in edges.values()
    ):
        return
    if taken.place is None and held.rows[taken.key].state.is_terminal:
        # It has the artifact, however it has ended.
        edge = Edge(Condition.ENDED, ConditionState.MET, taken.key)
    else:
        edge = Edge(Condition.SUCCEEDED, ConditionState.WAITING, taken.key, taken.place)
    edges[taken.key, taken.place, edge.condition, False] = edge


def _check_elements(one: _Named, prepared: PreparedSubmission, elements: int | None) -> None:
    """Raise ProblemError unless the other job of an elementwise condition is an array with as many elements."""
    own = prepared.specs[one.spec].elements
    if elements != own:
        other = "no array" if elements is None else f"an array of {elements} elements"
        message = f"elementwise: {one.one.job} is {other}, and this one has {own}"
        raise mistaken(Mistake(path=one.path, message=message))


def _edge_on(caller: Caller, one: _Named, place: Place, group: HeldGroup | None, *, known: bool) -> Edge:
    """Return a condition on a group. Raises ProblemError for one that the caller may not know, and one that cannot be met."""
    path, name = place
    if not known or not caller.may_use(path):
        message = f"there is no group {name!r} in queue {path!r}: the first job with it begins a group"
        raise mistaken(Mistake(path=f"{one.path}.group", message=message), code=Code.UNKNOWN_GROUP)
    state = GroupState.OPEN if group is None else group.state
    found = verdict_on_group(one.one.condition, state)
    if found is ConditionState.NEVER:
        message = words_on_group(name, state, one.one.condition)
        raise mistaken(Mistake(path=one.path, message=message), code=Code.DEPENDENCY_IMPOSSIBLE)
    return Edge(one.one.condition, found, group=place)


async def _check_groups(
    tx: Transaction, prepared: PreparedSubmission, named: Sequence[_Named], groups: Mapping[Place, HeldGroup]
) -> None:
    """Raise ProblemError where a job of a stored group would wait for that group through jobs that are stored already."""
    own = {(spec.queue, spec.group): number for number, spec in enumerate(prepared.specs) if spec.group is not None}
    targets = {groups[place].id: place for place in own if place in groups}
    if not targets or not named:
        return
    for target in sorted(await store.awaited_groups(tx, targets)):
        place = targets[target]
        entries = _reached(prepared, named, place)
        jobs_waited_for = [key for one in entries for key in one.keys]
        others = [groups[one.group].id for one in entries if one.group is not None and one.group in groups]
        if entries and await store.leads_to_group(tx, jobs_waited_for, others, target):
            message = f"group {place[1]} waits for jobs that wait for it: this job, of the group, would wait for them"
            raise mistaken(Mistake(path=entries[0].path, message=message))


def _reached(prepared: PreparedSubmission, named: Sequence[_Named], place: Place) -> list[_Named]:
    """Return the entries of the jobs of a group, and of the jobs of the submission for which these wait, directly or not."""
    of_spec: dict[int, list[_Named]] = {}
    for one in named:
        of_spec.setdefault(one.spec, []).append(one)
    members: dict[Place, list[int]] = {}
    for number, spec in enumerate(prepared.specs):
        if spec.group is not None:
            members.setdefault((spec.queue, spec.group), []).append(number)
    found: list[_Named] = []
    seen: set[int] = set()
    ahead = list(members.get(place, ()))
    while ahead:
        number = ahead.pop()
        if number in seen:
            continue
        seen.add(number)
        for one in of_spec.get(number, ()):
            found.append(one)
            ahead += [one.place] if one.place is not None else members.get(one.group, []) if one.group else []
    return found


def _check_number(prepared: PreparedSubmission, edges: Sequence[Sized], taken: Sized) -> None:
    for of_spec, prefix in zip(edges, prepared.paths(), strict=True):
        if len(of_spec) > MOST_CONDITIONS:
            message = f"these are {len(of_spec)} jobs, at most {MOST_CONDITIONS} are allowed"
            raise mistaken(Mistake(path=f"{prefix}.after" if prefix else "after", message=message))
    total = sum(map(len, edges)) * prepared.repeats
    if total > MOST_OF_ALL:
        message = f"the jobs of this submission wait for {total} others together, at most {MOST_OF_ALL} are allowed"
        raise ProblemError(Code.INVALID_SPEC, message)
    artifacts = len(taken) * prepared.repeats
    if artifacts > MOST_OF_ALL:
        message = f"the jobs of this submission get {artifacts} artifacts together, at most {MOST_OF_ALL} are allowed"
        raise ProblemError(Code.INVALID_SPEC, message)


def _check_order(prepared: PreparedSubmission, named: Sequence[_Named]) -> None:
    graph: dict[int, list[int]] = {}
    places = sorted({one.group for one in named if one.group is not None})
    # Groups have the numbers after those of the specifications: each waits for its jobs.
    numbers = {place: len(prepared.specs) + index for index, place in enumerate(places)}
    for one in named:
        if one.place is not None:
            graph.setdefault(one.spec, []).append(one.place)
        elif one.group is not None:
            graph.setdefault(one.spec, []).append(numbers[one.group])
    for index, spec in enumerate(prepared.specs if places else ()):
        if spec.group is not None and (spec.queue, spec.group) in numbers:
            graph.setdefault(numbers[spec.queue, spec.group], []).append(index)
    cycle = cycle_of(graph)
    if cycle is None:
        return
    first = next(index for index, number in enumerate(cycle) if number < len(prepared.specs))
    cycle = cycle[first:] + cycle[:first]
    specs = prepared.specs
    names = [specs[one].name if one < len(specs) else f"group {places[one - len(specs)][1]}" for one in cycle]
    following = cycle[1] if len(cycle) > 1 else cycle[0]
    path = next(
        one.path
        for one in named
        if one.spec == cycle[0] and following == (one.place if one.group is None else numbers[one.group])
    )
    message = (
        "a job cannot wait for itself"
        if len(names) == 1
        else f"these wait for each other: {' -> '.join([*names, names[0]])}"
        if any(one >= len(specs) for one in cycle)
        else f"these jobs wait for each other: {' -> '.join([*names, names[0]])}"
    )
    raise mistaken(Mistake(path=path, message=message))


class ConditionRows(NamedTuple):
    """The rows for the conditions of a submission."""

    on_jobs: list[store.NewDependency]
    on_groups: list[store.NewGroupDependency]
    waits: list[store.NewWait]


def rows_of(prepared: PreparedSubmission, edges: Edges, first: int, groups: Mapping[Place, int]) -> ConditionRows:
    """Return the rows for the conditions of a submission whose first job got the key ``first``. ``groups``: keys of groups."""
    dependencies: list[store.NewDependency] = []
    on_groups: list[store.NewGroupDependency] = []
    waits: list[store.NewWait] = []
    for key, number in _keys(prepared, first):
        spec, of_spec = prepared.specs[number], edges[number]
        if not spec.waits_for_jobs:
            continue
        dependencies += (
            store.NewDependency(key, one.key if one.place is None else first + one.place, one.condition, one.verdict)
            for one in of_spec
            if one.group is None and not one.elementwise
        )
        on_groups += (
            store.NewGroupDependency(key, groups[one.group], one.condition, one.verdict)
            for one in of_spec
            if one.group is not None
        )
        waiting = sum(one.verdict is ConditionState.WAITING for one in of_spec if not one.elementwise)
        waits.append(store.NewWait(key, waiting, spec.on_dependency_failure))
    return ConditionRows(dependencies, on_groups, waits)


def array_rows_of(prepared: PreparedSubmission, edges: Edges, first: int) -> list[NewArrayPredecessor]:
    """Return the rows for the elementwise conditions of a submission whose first job got the key ``first``."""
    return [
        NewArrayPredecessor(
            key,
            one.key if one.place is None else first + one.place,
            one.condition,
            prepared.specs[number].on_dependency_failure,
        )
        for key, number in _keys(prepared, first)
        for one in edges[number]
        if one.elementwise
    ]


def _keys(prepared: PreparedSubmission, first: int) -> Iterator[tuple[int, int]]:
    """Yield the key of each job, and the number of its specification."""
    many = len(prepared.specs)
    for number in range(many * prepared.repeats):
        yield first + number, number % many


async def release_decided(stores: Stores, token: int, limit: int = 1000) -> int:
    """Deal with the jobs whose conditions on others are decided; return how many. One that cannot be written keeps no others held."""
    async with stores.database.transaction() as tx:
        ids = await store.decided(tx, limit)
    return await change_jobs(ids, partial(_release, stores, token))


async def _release(stores: Stores, token: int, job_ids: Sequence[int]) -> int:
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        records = await jobs.lock(tx, job_ids)
        waiting = [key for key, one in records.items() if one.job.hold_cause is HoldCause.DEPENDENCY]
        decided = await store.decisions(tx, waiting)
        words = await _failures(tx, [key for key, one in decided.items() if one.never])
        now = await to_epoch(tx)
        transitions = [_transition(records[key], one, words.get(key, ""), now) for key, one in decided.items()]
        await jobs.write(tx, transitions)
    stays = [key for key, one in decided.items() if one.never and one.on_failure is DependencyFailure.HOLD]
    if stays:
        # By itself: with the locks of the transaction before, others could wait for these rows in another order.
        async with stores.database.transaction() as tx:
            await store.settle(tx, stays)
    if transitions:
        stores.jobs_changed([one.record.id for one in transitions])
    return len(transitions)


def _transition(record: jobs.JobRecord, decided: store.Decided, words: str, now: float) -> jobs.Transition:
    if not decided.never:
        after, kind = job_machine.conditions_met(record.job, now), JobEventKind.RELEASED
    else:
        after = job_machine.condition_failed(record.job, decided.on_failure, words)
        kind = JobEventKind.CANCEL if decided.on_failure is DependencyFailure.CANCEL else JobEventKind.HELD
    return jobs.Transition(record, after, kind, (after.state.value,), message=words)


async def _failures(tx: Transaction, ids: Sequence[int]) -> dict[int, str]:
    """Return, by job, the words on a condition that can no longer be met."""
    return {key: words_on_open(one) for key, one in (await store.first_open(tx, ids)).items()} if ids else {}


def words_on_open(one: store.OpenCondition) -> str:
    """Return what a job waits for, such as ``prepare-0v9k3m2, which is running, has to succeed, and 2 others``."""
    if one.name is None or one.state is None:
        return "a job that has been removed"
    others = "" if one.many == 1 else f", and {one.many - 1} {'other' if one.many == 2 else 'others'}"
    if isinstance(one.state, GroupState):
        return words_on_group(one.name, one.state, one.condition) + ("" if one.state.is_terminal else others)
    job = job_id(one.name, one.on_job_id or 0)
    if one.verdict is ConditionState.NEVER:
        return words_on_failure(job, one.state, one.condition)
    return words_on_waiting(job, one.state, one.condition) + others
