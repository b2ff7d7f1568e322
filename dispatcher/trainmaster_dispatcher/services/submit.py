"""Submitting jobs: each submission all or nothing, several submissions in one transaction."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainmaster.protocol.admission_policy import AdmissionPolicy
from trainmaster.protocol.durations import format_duration, parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.states import JobActions
from trainmaster.protocol.suggestions import suggestion
from trainmaster.workload_kinds.registry import kind_by_name
from trainmaster_dispatcher.domain.priority_classes import allowed_classes, not_allowed
from trainmaster_dispatcher.services import artifact_inputs, dependencies, files, group_admission, webhooks
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.group_admission import GroupSubmission, HeldGroups
from trainmaster_dispatcher.services.submission_parsing import (
    MOST_MISTAKES,
    PreparedSpec,
    PreparedSubmission,
    mistaken,
    refused_by,
)
from trainmaster_dispatcher.store import dependencies as dependency_store
from trainmaster_dispatcher.store import element_jobs, job_objects, pod_groups, sessions, tenants
from trainmaster_dispatcher.store import files as file_rows
from trainmaster_dispatcher.store import jobs as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.groups import Place
from trainmaster_dispatcher.store.keys import Caller


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """Metadata of a new job for the Kubernetes API. ``name`` is None for the job's id; the others are JSON text, ``spec``
    the specification as it was written. ``kind``: that of the object, where it is none of this system.
    """

    name: str | None
    spec: bytes
    annotations: bytes | None
    managed_fields: bytes | None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked submission and whose jobs it makes. ``through``: the caller who submits them on behalf of another.

    ``metadata``: of the only job, as Kubernetes has it. ``closes_groups``: the groups of its jobs take no more jobs after these.
    ``trace``: its span and the trace of that, of which its first jobs are; None: they are of no trace.
    """

    caller: Caller
    prepared: PreparedSubmission
    through: Caller | None = None
    metadata: ObjectMetadata | None = None
    closes_groups: bool = False
    trace: bytes | None = None

    @property
    def of_groups(self) -> GroupSubmission:
        """Return what groups have to know of it."""
        return GroupSubmission(self.caller, self.prepared, self.closes_groups)


@dataclass(frozen=True, slots=True)
class Submitted:
    """Stored jobs of a submission: their ids in the order given, their time of submission and version, and of the first one the
    key, the queue and the priority class.
    """

    first: int
    ids: list[str]
    at: datetime
    version: int
    queue_id: int
    priority_class: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """Keys of what submissions name: queues by path, and the priority class of each pair of a named class and a queue.

    ``refused`` has, by index, the submissions that may not be stored, each with its error.
    """

    queues: dict[str, int]
    classes: dict[tuple[str | None, str], int]
    class_names: dict[int, str]
    refused: "dict[int, ProblemError | QueueBusyError]"
    conditions: dependencies.ResolvedConditions
    """Conditions on other jobs, and artifacts of these, by submission."""
    groups: HeldGroups
    """Groups that submissions name."""
    actions: Mapping[str, JobActions]
    """By queue, which jobs users may change."""


class QueueBusyError(Exception):
    """Another transaction is filling a queue with a limit, and this transaction does not wait for it."""


async def admit(tx: Transaction, stores: Stores, given: Sequence[Submission], *, waits: bool = True) -> Admitted:
    """Return which submissions may be stored in this transaction; earlier submissions use their queue's free capacity first.

    Without ``waits``, submissions are refused with QueueBusyError when their queue has a limit and another transaction is filling it.
    Raises ProblemError when a priority class is removed meanwhile.
    """
    paths = sorted({spec.queue for one in given for spec in one.prepared.specs})
    await tenants.hold_queues(tx, paths)
    queues = await tenants.QUEUES.by_name(tx, {above for path in paths for above in _ancestry(path)})
    classes = {row.spec.name: row for row in await tenants.CLASSES.every(tx)}
    # Read only where they are needed for a suggestion.
    known = [row.spec.path for row in await tenants.QUEUES.every(tx)] if set(paths) - queues.keys() else []
    named: dict[tuple[str | None, str], int] = {}
    refused: dict[int, ProblemError | QueueBusyError] = {}
    for index, one in enumerate(given):
        try:
            named |= _check(stores, one, queues, classes, known)
        except ProblemError as error:
            refused[index] = error
    refused |= await _refuse_taken(tx, given, queues, refused)
    actions = {path: job_actions_of(path, queues) for path in paths}
    groups, not_taken = await group_admission.admit(
        tx, {index: one.of_groups for index, one in enumerate(given) if index not in refused}, actions
    )
    refused |= not_taken
    refused |= await _refuse_without_files(tx, given, queues, refused)
    conditions = await dependencies.resolve(
        tx, {index: (one.caller, one.prepared) for index, one in enumerate(given) if index not in refused}, groups.held
    )
    refused |= conditions.refused
    left = [(index, one) for index, one in enumerate(given) if index not in refused]
    waiting = await _count_waiting(tx, (one for _, one in left), queues, waits=waits)
    for index, one in left:
        try:
            await stores.backlog.take_room(tx, one.caller, one.prepared, {path: row.id for path, row in queues.items()})
            _take_room(one, queues, waiting)
        except (ProblemError, QueueBusyError) as error:
            refused[index] = error
    if named and not await tenants.hold_classes(tx, named.values()):
        raise ProblemError(Code.UNKNOWN_PRIORITY_CLASS, "a priority class of these jobs was just removed")
    class_names = {row.id: name for name, row in classes.items()}
    known_queues = {path: queues[path].id for path in paths if path in queues}
    return Admitted(known_queues, named, class_names, refused, conditions, groups, actions)


async def check(tx: Transaction, stores: Stores, one: Submission, *, own_queue: str | None = None) -> int:
    """Check that a submission may be stored, but for free places in its queues; return the key of ``own_queue``, that of what submits
    its jobs later, or by default of the queue of its first job.

    Until the transaction ends, its queues are not removed. Raises ProblemError.
    """
    of_first = one.prepared.specs[0].queue if own_queue is None else own_queue
    paths = sorted({of_first, *(spec.queue for spec in one.prepared.specs)})
    await tenants.hold_queues(tx, paths)
    queues = await tenants.QUEUES.by_name(tx, {above for path in paths for above in _ancestry(path)})
    classes = {row.spec.name: row for row in await tenants.CLASSES.every(tx)}
    known = [row.spec.path for row in await tenants.QUEUES.every(tx)] if set(paths) - queues.keys() else []
    _check_queue(one.through or one.caller, of_first, queues, known)
    _check(stores, one, queues, classes, known)
    await files.check_named(tx, _named_files(one), {path: row.id for path, row in queues.items()})
    await dependencies.check_artifacts(tx, one.caller, one.prepared)
    return queues[of_first].id


async def _refuse_without_files(
    tx: Transaction, given: Sequence[Submission], queues: Mapping[str, tenants.QueueRow], refused: Container[int]
) -> dict[int, ProblemError]:
    """Return the submissions that name files which their queue does not have, each with its error."""
    found: dict[int, ProblemError] = {}
    for index, one in enumerate(given):
        if index in refused or not any(spec.files for spec in one.prepared.specs):
            continue
        try:
            await files.check_named(tx, _named_files(one), {path: row.id for path, row in queues.items()})
        except ProblemError as error:
            found[index] = error
    return found


def _named_files(one: Submission) -> Iterator[files.NamedFiles]:
    """Yield the files that the jobs of a submission name."""
    for where, spec in zip(one.prepared.paths(), one.prepared.specs, strict=True):
        for number, digest in spec.files:
            yield files.NamedFiles(spec.queue, digest, f"{where and where + '.'}inputs[{number}].files")


async def _refuse_taken(
    tx: Transaction, given: Sequence[Submission], queues: Mapping[str, tenants.QueueRow], refused: Container[int]
) -> dict[int, ProblemError]:
    """Return the submissions whose object's name another object has, each with its error."""
    wanted = {
        index: (queues[one.prepared.specs[0].queue].id, one.metadata.name)
        for index, one in enumerate(given)
        if one.metadata is not None and one.metadata.name is not None and index not in refused
    }
    if not wanted:
        return {}
    taken = await taken_names(tx, sorted(set(wanted.values())))
    found: dict[int, ProblemError] = {}
    for index, place in wanted.items():
        if place in taken:
            metadata = given[index].metadata
            found[index] = already_exists(place[1], None if metadata is None else metadata.kind)
        taken.add(place)
    return found


async def taken_names(tx: Transaction, names: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of these names, each with its queue, that objects of jobs or pods of groups have."""
    if await pod_groups.are_free(tx, names):
        return set()
    return await job_objects.taken(tx, names) | await pod_groups.taken(tx, names)


def already_exists(name: str, kind: str | None) -> ProblemError:
    """Return the error for an object whose name another one has; ``kind``: that of its manifest, None for a Job of this system."""
    found = None if kind is None else kind_by_name(kind)
    if found is None:
        return ProblemError(Code.ALREADY_EXISTS, f'jobs.trainmaster.dev "{name}" already exists')
    return ProblemError(
        Code.ALREADY_EXISTS,
        f'{found.plural}.{found.group} "{name}" already exists: the jobs of a queue share their names, of whichever kind they are',
    )


async def submit(
    tx: Transaction, stores: Stores, given: Sequence[Submission], *, waits: bool = True
) -> list[Submitted | ProblemError | QueueBusyError]:
    """Store jobs in the caller's transaction: of each submission all, or none and its error. ``waits``: see ``admit``."""
    admitted = await admit(tx, stores, given, waits=waits)
    taken = {index: one for index, one in enumerate(given) if index not in admitted.refused}
    stored = iter(await _store(tx, stores, admitted, taken) if taken else ())
    return [admitted.refused.get(index) or next(stored) for index in range(len(given))]


async def _store(
    tx: Transaction, stores: Stores, admitted: Admitted, indexed: Mapping[int, Submission]
) -> list[Submitted]:
    taken = list(indexed.values())
    shapes = await store.shape_ids(tx, {key: body for one in taken for key, body in one.prepared.shapes.items()})
    grouped = [one.of_groups for one in taken if group_admission.places_of(one.prepared)]
    ids = await group_admission.begin(tx, admitted.groups, grouped, admitted.queues, admitted.actions)
    fresh = [
        _new(spec, one, admitted, shapes, ids, one.trace if place < store.MOST_TRACED_JOBS else None)
        for one in taken
        for place, spec in enumerate(one.prepared.specs)
    ]
    repeats = [one.prepared.parameters for one in taken if one.prepared.parameters is not None]
    if repeats and len(taken) > 1:
        raise ValueError("parameter sets are stored by themselves")
    stored = await store.insert(tx, fresh, repeats[0] if repeats else None)
    first = stored.first
    await _store_objects(tx, admitted, taken, first)
    await _store_conditions(tx, admitted, indexed, first, ids)
    if grouped:
        await group_admission.note(tx, grouped, ids)
    await _store_sessions(tx, taken, first)
    await _wake_arrays(tx, taken, first)
    await _store_file_uses(tx, taken, first)

    async def wake() -> None:
        stores.jobs_submitted()

    tx.after_commit(wake)
    out: list[Submitted] = []
    telling: list[tuple[int, str, str]] = []
    for one in taken:
        jobs = list(enumerate(one.prepared.specs * one.prepared.repeats, first))
        telling += [(key, spec.name, spec.first_state) for key, spec in jobs if spec.tells_submitted]
        spec = one.prepared.specs[0]
        out.append(
            Submitted(
                first,
                [job_id(spec.name, key) for key, spec in jobs],
                stored.at,
                stored.version,
                admitted.queues[spec.queue],
                admitted.class_names[admitted.classes[spec.priority_class, spec.queue]],
            )
        )
        first += len(jobs)
    if telling:
        await webhooks.tell_submitted(tx, telling)
    return out


async def _store_conditions(
    tx: Transaction, admitted: Admitted, indexed: Mapping[int, Submission], first: int, groups: Mapping[Place, int]
) -> None:
    """Store the conditions of new jobs on others, of which the first job has the key ``first``, and on groups with these keys; and
    which artifacts of others they get.
    """
    conditions: list[dependency_store.NewDependency] = []
    on_groups: list[dependency_store.NewGroupDependency] = []
    waits: list[dependency_store.NewWait] = []
    of_arrays: list[element_jobs.NewArrayPredecessor] = []
    artifacts: list[file_rows.NewArtifactInput] = []
    key = first
    for index, one in indexed.items():
        if index in admitted.conditions.edges:
            edges = admitted.conditions.edges[index]
            rows = dependencies.rows_of(one.prepared, edges, key, groups)
            conditions += rows.on_jobs
            on_groups += rows.on_groups
            waits += rows.waits
            of_arrays += dependencies.array_rows_of(one.prepared, edges, key)
            artifacts += artifact_inputs.rows_of(one.prepared, admitted.conditions.taken[index], key)
        key += len(one.prepared)
    if waits:
        await dependency_store.insert(tx, conditions, waits, on_groups)
    if of_arrays:
        await element_jobs.add_predecessors(tx, of_arrays)
    if artifacts:
        await file_rows.add_artifact_inputs(tx, artifacts)


async def _wake_arrays(tx: Transaction, taken: Sequence[Submission], first: int) -> None:
    """Have the leader look at those of the new jobs that are arrays of jobs; the first job has the key ``first``."""
    made, key = [], first
    for one in taken:
        if any(spec.has_element_jobs for spec in one.prepared.specs):
            made += [
                at for at, spec in enumerate(one.prepared.specs * one.prepared.repeats, key) if spec.has_element_jobs
            ]
        key += len(one.prepared)
    await element_jobs.wake(tx, made)


async def _store_sessions(tx: Transaction, taken: Sequence[Submission], first: int) -> None:
    """Store which of the new jobs are interactive sessions; the first job has the key ``first``."""
    made, key = [], first
    for one in taken:
        if any(spec.session is not None for spec in one.prepared.specs):
            specs = enumerate(one.prepared.specs * one.prepared.repeats, key)
            made += [sessions.NewSession(at, *spec.session) for at, spec in specs if spec.session is not None]
        key += len(one.prepared)
    if made:
        await sessions.insert(tx, made)


async def _store_file_uses(tx: Transaction, taken: Sequence[Submission], first: int) -> None:
    """Store which files the new jobs name; the first job has the key ``first``. Jobs of one specification have one use."""
    uses, key = [], first
    for one in taken:
        uses += [(at, digest) for at, spec in enumerate(one.prepared.specs, key) for _, digest in spec.files]
        key += len(one.prepared)
    if uses:
        await file_rows.add_uses(tx, uses)


async def _store_objects(tx: Transaction, admitted: Admitted, taken: Sequence[Submission], first: int) -> None:
    """Store what Kubernetes has of new jobs, of which the first has the key ``first``. Raises ProblemError ALREADY_EXISTS."""
    objects, key = [], first
    for one in taken:
        metadata = one.metadata
        if metadata is not None:
            queue_id = admitted.queues[one.prepared.specs[0].queue]
            objects.append(
                job_objects.NewObject(
                    key,
                    queue_id,
                    metadata.name,
                    metadata.spec,
                    metadata.annotations,
                    metadata.managed_fields,
                    metadata.kind,
                )
            )
        else:
            # What came by another way is found by its kind, too.
            objects += [
                job_objects.NewObject(at, admitted.queues[spec.queue], None, None, None, None, spec.kind)
                for at, spec in enumerate(one.prepared.specs * one.prepared.repeats, key)
                if spec.kind is not None
            ]
        key += len(one.prepared)
    if objects and not await job_objects.insert(tx, objects):
        raise ProblemError(
            Code.ALREADY_EXISTS, "an object of this name was just made; look at it, or give another name"
        )


async def submit_one(tx: Transaction, stores: Stores, one: Submission) -> Submitted:
    """Store a single submission as ``submit`` does. Raises ProblemError and stores nothing when one of its jobs may not be stored."""
    (outcome,) = await submit(tx, stores, [one])
    if not isinstance(outcome, Submitted):
        raise outcome
    return outcome


def _new(
    spec: PreparedSpec,
    one: Submission,
    admitted: Admitted,
    shapes: dict[bytes, int],
    groups: Mapping[Place, int],
    trace: bytes | None,
) -> store.NewSpec:
    return store.NewSpec(
        name=spec.name,
        queue_id=admitted.queues[spec.queue],
        class_id=admitted.classes[spec.priority_class, spec.queue],
        priority=spec.priority,
        shape_id=shapes[spec.shape_hash],
        api_key_id=one.caller.key_id,
        spec=spec.spec,
        held=spec.held,
        labels=spec.labels,
        notifies=spec.notifies,
        disconnect_seconds=spec.disconnect_seconds,
        start=spec.start,
        deadline=spec.deadline,
        awaits_jobs=spec.waits_for_jobs,
        elements=spec.elements,
        has_element_jobs=spec.has_element_jobs,
        group_id=None if spec.group is None else groups[spec.queue, spec.group],
        trace=trace,
    )


def _check(
    stores: Stores,
    one: Submission,
    queues: dict[str, tenants.QueueRow],
    classes: dict[str, tenants.ClassRow],
    known: Sequence[str],
) -> dict[tuple[str | None, str], int]:
    """Check that a submission may use the objects that it names; return its priority classes. Raises ProblemError."""
    hooked = one.prepared.hooked()
    if hooked:
        webhooks.check_hooks(stores.settings, hooked)
    if stores.files is None and any(spec.has_files for spec in one.prepared.specs):
        raise files.files_off()
    for path in sorted({spec.queue for spec in one.prepared.specs}):
        _check_queue(one.through or one.caller, path, queues, known)
        _check_grace(path, max(spec.grace_seconds for spec in one.prepared.specs if spec.queue == path), queues)
    _check_admission(one, queues)
    default = next((row.spec.name for row in classes.values() if row.spec.default), "")
    out = {}
    for named, path in {(spec.priority_class, spec.queue) for spec in one.prepared.specs}:
        name = named or queues[path].spec.default_priority_class or default
        if name not in classes:
            raise _unknown_class(name, classes)
        if not one.caller.is_admin:
            allowed = classes_of(path, queues, classes.values())
            if name not in allowed:
                raise not_allowed(name, path, allowed)
        out[named, path] = classes[name].id
    return out


def _check_grace(path: str, seconds: float, queues: Mapping[str, tenants.QueueRow]) -> None:
    """Raise ProblemError when the longest stopGrace of a submission's jobs exceeds the limit of their queue, or of one above it."""
    for above in _ancestry(path):
        most = queues[above].spec.most_stop_grace if above in queues else None
        if most is not None and seconds > parse_duration(most):
            message = f"stopGrace is at most {most} in queue {above!r}, not {format_duration(seconds)}"
            raise ProblemError(Code.INVALID_SPEC, message, mistakes=(Mistake(path="stopGrace", message=message),))


def _check_admission(one: Submission, queues: dict[str, tenants.QueueRow]) -> None:
    """Check a submission against the admission policies of its queues, each read once. Raises ProblemError."""
    policies = {path: policy_of(path, queues) for path in {spec.queue for spec in one.prepared.specs}}
    if not any(policies.values()) and not any(spec.refused for spec in one.prepared.specs):
        return
    mistakes: list[Mistake] = []
    checked: dict[str, dict[bytes, tuple[Mistake, ...]]] = {path: {} for path in policies}
    for where, spec in zip(one.prepared.paths(), one.prepared.specs, strict=True):
        policy = policies[spec.queue]
        if policy is None:
            mistakes += spec.refused
        else:
            mistakes += refused_by(policy, spec.spec, where, checked[spec.queue])
        if len(mistakes) >= MOST_MISTAKES:
            break
    if mistakes:
        raise mistaken(*mistakes, code=Code.POD_TEMPLATE_REFUSED)


def policy_of(path: str, queues: Mapping[str, tenants.QueueRow]) -> AdmissionPolicy | None:
    """Return the admission policy of a queue: its own, or that of the nearest queue above it; None: the default."""
    own = (queues[one].spec.admission for one in _ancestry(path) if one in queues)
    return next((policy for policy in own if policy is not None), None)


def classes_of(
    path: str, queues: Mapping[str, tenants.QueueRow], classes: Iterable[tenants.ClassRow]
) -> frozenset[str]:
    """Return the priority classes that users may give to jobs of a queue; ``queues`` has at least the queue and those above it."""
    above = [queues[one].spec for one in _ancestry(path) if one in queues]
    return allowed_classes(above, [row.spec for row in classes])


def job_actions_of(path: str, queues: Mapping[str, tenants.QueueRow]) -> JobActions:
    """Return which jobs of a queue users may change, by the nearest queue that says it, from the queue upwards."""
    said = (queues[one].spec.job_actions for one in _ancestry(path) if one in queues)
    return next((one for one in said if one is not None), JobActions.OWN)


def _unknown_class(name: str, classes: dict[str, tenants.ClassRow]) -> ProblemError:
    known = ", ".join(sorted(classes)) or "none"
    return ProblemError(
        Code.UNKNOWN_PRIORITY_CLASS,
        f"there is no priority class {name!r}; there are: {known}{suggestion(name, classes)}"
        if name
        else f"the job names no priority class, and none is the default; there are: {known}. An admin can give one `default: true`",
    )


def _ancestry(path: str) -> list[str]:
    """Return the paths of a queue and of those above it."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def _check_queue(caller: Caller, path: str, queues: dict[str, tenants.QueueRow], known: Sequence[str]) -> None:
    """Raise ProblemError where the caller may not submit to a queue. ``known``: all queues, if one of the named does not exist."""
    queue = queues.get(path)
    near = "" if queue is not None else suggestion(path, filter(caller.may_use, known))
    if not caller.may_use(path) or not caller.has(Permission.JOBS_SUBMIT, path):
        raise ProblemError(Code.FORBIDDEN, f"{caller.title} has no right to queue {path!r}{near}")
    if queue is None:
        raise ProblemError(
            Code.UNKNOWN_QUEUE,
            f"there is no queue {path!r}" + (near or "; see 'trainmaster queues' for those you may use"),
        )
    if not queue.row.is_leaf:
        raise ProblemError(Code.NOT_A_LEAF, f"queue {path!r} has queues below it; jobs go to one of those")
    for above in _ancestry(path):
        if above in queues and not queues[above].spec.state.takes_jobs:
            raise ProblemError(Code.QUEUE_CLOSED, f"queue {above!r} is {queues[above].spec.state} and takes no jobs")


LimitedPlace = tuple[int, int | None]
"""A queue with a limit on waiting jobs: its key, and the API key whose jobs alone are counted, or None for all jobs."""


def _limits(
    path: str, caller: Caller, queues: dict[str, tenants.QueueRow]
) -> Iterator[tuple[LimitedPlace, int, Caller | None]]:
    queue = queues[path]
    if queue.spec.max_queued is not None:
        yield (queue.id, None), queue.spec.max_queued, None
    if queue.spec.max_queued_per_user is not None:
        yield (queue.id, caller.key_id), queue.spec.max_queued_per_user, caller


async def _count_waiting(
    tx: Transaction, given: Iterable[Submission], queues: dict[str, tenants.QueueRow], *, waits: bool
) -> dict[LimitedPlace, int]:
    """Return the number of waiting jobs where there is a limit. Other submitters there wait for this transaction, in queue order.

    Without ``waits``, places that another transaction is filling are left out.
    """
    limits = {
        place: limit
        for one in given
        for path in {spec.queue for spec in one.prepared.specs}
        for place, limit, _ in _limits(path, one.caller, queues)
    }
    in_order = sorted(limits, key=lambda place: (place[0], place[1] or 0))
    held = {
        queue_id: await store.hold_room(tx, queue_id, waits=waits) for queue_id in sorted({one[0] for one in limits})
    }
    return {
        place: await store.count_waiting(tx, place[0], limits[place] + 1, place[1])
        for place in in_order
        if held[place[0]]
    }


def _take_room(one: Submission, queues: dict[str, tenants.QueueRow], waiting: dict[LimitedPlace, int]) -> None:
    """Count a submission's jobs as waiting. Raises ProblemError QUEUE_FULL, and counts none, when there are too many."""
    after = {}
    many = Counter(spec.queue for spec in one.prepared.specs)
    for path in sorted(many):
        more = many[path] * one.prepared.repeats
        for place, limit, caller in _limits(path, one.caller, queues):
            if place not in waiting:
                raise QueueBusyError
            if waiting[place] + more > limit:
                raise _queue_full(path, limit, waiting[place], more, caller)
            after[place] = waiting[place] + more
    waiting |= after


def _queue_full(path: str, limit: int, waiting: int, more: int, caller: Caller | None) -> ProblemError:
    whose = "waiting jobs" if caller is None else f"waiting jobs of {caller.name!r}"
    each = "its limit" if caller is None else "its limit for each user"
    return ProblemError(
        Code.QUEUE_FULL,
        f"queue {path!r} holds {waiting} {whose}, {more} more would exceed {each} of {limit}",
        retry_after=5.0,
    )
