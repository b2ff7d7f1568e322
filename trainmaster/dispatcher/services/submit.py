"""Submitting jobs: checked as a whole, stored as a whole, all or nothing.

``prepare`` is pure and slow for large bodies; it may run in another process. ``submit`` is one transaction.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from trainmaster.dispatcher.domain.shapes import shape_bytes
from trainmaster.dispatcher.services import webhooks
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import jobs as store
from trainmaster.dispatcher.store import tenants
from trainmaster.dispatcher.store.database import Transaction
from trainmaster.dispatcher.store.keys import Caller
from trainmaster.protocol.admission import AdmissionPolicy, check_pod_template
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster.protocol.jobs import JobSpec, RequeueAfter
from trainmaster.protocol.mistakes import mistakes_of
from trainmaster.protocol.parameters import check_sets
from trainmaster.protocol.states import JobState

_MOST_MISTAKES = 50
_LONGEST_SPEC = 1_048_576
"""Bytes; what Kubernetes lets an object have."""
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


@dataclass(frozen=True, slots=True)
class PreparedSpec:
    """A checked specification in the form in which it is stored."""

    name: str
    queue: str
    priority_class: str | None
    priority: int
    spec: bytes
    shape_hash: bytes
    held: bool
    labels: bytes | None
    notifies: bool
    disconnect_seconds: float | None
    tells_submitted: bool = False
    """Whether a webhook is told of the state in which the job begins."""

    @property
    def first_state(self) -> JobState:
        return JobState.HELD if self.held else JobState.QUEUED


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked submission. Every specification is one job, or, with ``parameters``, the only one is a job for each set."""

    many: bool
    specs: list[PreparedSpec]
    shapes: dict[bytes, bytes]
    """Canonical JSON by fingerprint."""
    parameters: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.specs) if self.parameters is None else len(self.parameters)

    @property
    def repeats(self) -> int:
        """How many jobs there are of each specification."""
        return 1 if self.parameters is None else len(self.parameters)

    def answer(self, ids: Sequence[str]) -> dict[str, Any]:
        """What a submitter is told, given the ids of the jobs."""
        items = [{"id": item} for item in ids]
        return {"jobs": items} if self.many else items[0]

    def hooked(self) -> list[tuple[str, bytes]]:
        """Specifications with webhooks, each with its path in the submission."""
        if self.parameters is not None:
            paths = ["job"]
        else:
            paths = [f"jobs[{index}]" for index in range(len(self.specs))] if self.many else [""]
        return [(path, spec.spec) for path, spec in zip(paths, self.specs, strict=True) if spec.notifies]


@dataclass(frozen=True, slots=True)
class Most:
    """How many jobs one call may bring."""

    jobs: int = 10_000
    parameter_sets: int = 100_000


def parse_json(body: bytes) -> Any:
    """The JSON value of a body. Raises ProblemError MALFORMED_BODY with the place of the mistake, INVALID_SPEC for a NUL."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProblemError(Code.MALFORMED_BODY, f"the body is not JSON: {error}") from error
    if b"\\u0000" in body and _ESCAPED_NUL.search(body):
        raise ProblemError(Code.INVALID_SPEC, "the body has a NUL character (\\u0000), which no text may hold")
    return value


def without_nul(body: bytes) -> bytes:
    """JSON text with U+FFFD for each NUL, for what processes print into it and nobody can be asked to mend."""
    return _ESCAPED_NUL.sub(rb"\1\\ufffd", body) if b"\\u0000" in body else body


def prepare(body: bytes, most: Most) -> Prepared:
    """Check a submission: one specification, ``{"jobs": [...]}``, or ``{"job": {...}, "parameters": [{...}, ...]}``.

    Raises ProblemError with up to 50 mistakes, each with its path.
    """
    value = parse_json(body)
    if not isinstance(value, dict):
        raise ProblemError(
            Code.MALFORMED_BODY,
            'the body is a job, {"jobs": [...]} or {"job": {...}, "parameters": [...]}; it has to be a JSON object',
        )
    if "roles" not in value and "jobs" in value:
        _only(value, "jobs")
        items = _list(value, "jobs", "job", most.jobs)
        return _prepare_all(items, [f"jobs[{index}]" for index in range(len(items))], many=True)
    if "roles" not in value and ("job" in value or "parameters" in value):
        _only(value, "job", "parameters")
        return _prepare_sets(value, most)
    return _prepare_all([value], [""], many=False)


def _only(value: dict[str, Any], *known: str) -> None:
    unknown = [key for key in value if key not in known]
    if unknown:
        raise _mistaken(Mistake(path=unknown[0], message="this field is not known"))


def _list(value: dict[str, Any], key: str, what: str, most: int) -> list[Any]:
    items = value.get(key)
    if not isinstance(items, list) or not items:
        raise _mistaken(Mistake(path=key, message=f"must be a list of at least one {what}"))
    if len(items) > most:
        raise ProblemError(Code.INVALID_SPEC, f"{len(items)} {what}s in one call, at most {most} are allowed")
    return items


def _mistaken(*mistakes: Mistake, code: Code = Code.INVALID_SPEC) -> ProblemError:
    shown = mistakes[:_MOST_MISTAKES]
    first = f"{shown[0].path}: {shown[0].message}"
    return ProblemError(
        code, first if len(shown) == 1 else f"{len(shown)} mistakes; the first: {first}", mistakes=shown
    )


def _prepare_sets(value: dict[str, Any], most: Most) -> Prepared:
    sets = _list(value, "parameters", "parameter set", most.parameter_sets)
    prepared = _prepare_all([value.get("job")], ["job"], many=True)
    parameters, mistakes = check_sets(sets, orjson.loads(prepared.specs[0].spec))
    if mistakes:
        raise _mistaken(*mistakes)
    return Prepared(True, prepared.specs, prepared.shapes, parameters)


def _prepare_all(items: Sequence[Any], prefixes: Sequence[str], *, many: bool) -> Prepared:
    prepared = Prepared(many, [], {})
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
                prepared.specs.append(_prepared(spec, prefix, prepared.shapes))
        if len(mistakes) >= _MOST_MISTAKES:
            break
    if mistakes:
        raise _mistaken(*mistakes, code=Code.POD_TEMPLATE_REFUSED if refused else Code.INVALID_SPEC)
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


def _prepared(spec: JobSpec, prefix: str, shapes: dict[bytes, bytes]) -> PreparedSpec:
    try:
        shape, shape_hash = shape_bytes(spec)
        whole = orjson.dumps(spec.to_wire() | {"kind": "Job"})
    except (
        ValueError,
        orjson.JSONEncodeError,
    ) as error:  # a quantity that cannot be read; nested too deep to be written
        mistake = Mistake(path=f"{prefix}.roles" if prefix else "roles", message=str(error))
        raise ProblemError(Code.INVALID_SPEC, str(error), mistakes=(mistake,)) from error
    if len(whole) > _LONGEST_SPEC:
        message = f"the specification has {len(whole)} bytes, at most {_LONGEST_SPEC} are allowed"
        raise _mistaken(Mistake(path=prefix or "(whole)", message=message))
    shapes.setdefault(shape_hash, shape)
    wait = spec.on_disconnect
    first = JobState.HELD if spec.suspend else JobState.QUEUED
    return PreparedSpec(
        name=spec.name,
        queue=spec.queue,
        priority_class=spec.priority_class,
        priority=spec.priority,
        spec=whole,
        shape_hash=shape_hash,
        held=spec.suspend,
        labels=orjson.dumps(spec.labels) if spec.labels else None,
        notifies=bool(spec.notify),
        tells_submitted=any(first in hook.states for hook in spec.notify),
        disconnect_seconds=parse_duration(wait.requeue_after) if isinstance(wait, RequeueAfter) else None,
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked submission and who brought it."""

    caller: Caller
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Submitted:
    """Stored jobs of a submission: their ids in the order given. Their keys follow one another without a gap."""

    first_key: int
    ids: list[str]


@dataclass(frozen=True, slots=True)
class Admitted:
    """Keys of what submissions name: queues by path, and the priority class of each pair of a named class and a queue.

    ``refused`` says of some submissions, by their place in the list, why they may not be stored.
    """

    queues: dict[str, int]
    classes: dict[tuple[str | None, str], int]
    refused: "dict[int, ProblemError | QueueBusyError]"


class QueueBusyError(Exception):
    """Somebody else is filling a queue with a limit, and this transaction does not wait for it."""


async def admit(tx: Transaction, stores: Stores, given: Sequence[Submission], *, waits: bool = True) -> Admitted:
    """Which submissions may be stored in this transaction; an earlier one takes the room of its queue before a later one.

    Without ``waits`` those are refused with QueueBusyError whose queue has a limit that somebody else is just filling.
    Raises ProblemError when a priority class is removed meanwhile.
    """
    paths = sorted({spec.queue for one in given for spec in one.prepared.specs})
    await tenants.hold_queues(tx, paths)
    queues = await tenants.queues_by_path(tx, {above for path in paths for above in _ancestry(path)})
    classes = {row.spec.name: row for row in await tenants.classes(tx)}
    named: dict[tuple[str | None, str], int] = {}
    refused: dict[int, ProblemError | QueueBusyError] = {}
    for index, one in enumerate(given):
        try:
            named |= _check(stores, one, queues, classes)
        except ProblemError as error:
            refused[index] = error
    left = [(index, one) for index, one in enumerate(given) if index not in refused]
    waiting = await _count_waiting(tx, (one for _, one in left), queues, waits=waits)
    for index, one in left:
        try:
            _take_room(one, queues, waiting)
        except (ProblemError, QueueBusyError) as error:
            refused[index] = error
    if named and not await tenants.hold_classes(tx, named.values()):
        raise ProblemError(Code.UNKNOWN_PRIORITY_CLASS, "a priority class of these jobs was just removed")
    return Admitted({path: queues[path].id for path in paths if path in queues}, named, refused)


async def submit(
    tx: Transaction, stores: Stores, given: Sequence[Submission], *, waits: bool = True
) -> list[Submitted | ProblemError | QueueBusyError]:
    """Store jobs in the caller's transaction: of each submission all, or none and why. ``waits``: see ``admit``."""
    admitted = await admit(tx, stores, given, waits=waits)
    taken = [one for index, one in enumerate(given) if index not in admitted.refused]
    outcomes: list[Submitted | ProblemError | QueueBusyError] = [
        admitted.refused.get(index) or Submitted(0, []) for index in range(len(given))
    ]
    if not taken:
        return outcomes
    shapes = await store.shape_ids(tx, {key: body for one in taken for key, body in one.prepared.shapes.items()})
    fresh = [_new(spec, one, admitted, shapes) for one in taken for spec in one.prepared.specs]
    repeats = [one.prepared.parameters for one in taken if one.prepared.parameters is not None]
    if repeats and len(taken) > 1:
        raise ValueError("parameter sets are stored by themselves")
    first = await store.insert(tx, fresh, repeats[0] if repeats else None)

    async def wake() -> None:
        stores.jobs_submitted()

    tx.after_commit(wake)
    telling: list[tuple[int, str, str]] = []
    for index, one in enumerate(given):
        if index in admitted.refused:
            continue
        prepared = one.prepared
        jobs = list(enumerate(prepared.specs * prepared.repeats, first))
        telling += [(key, spec.name, spec.first_state) for key, spec in jobs if spec.tells_submitted]
        outcomes[index] = Submitted(first, [job_id(spec.name, key) for key, spec in jobs])
        first += len(jobs)
    if telling:
        await webhooks.tell_submitted(tx, telling)
    return outcomes


async def submit_one(tx: Transaction, stores: Stores, caller: Caller, prepared: Prepared) -> Submitted:
    """As ``submit`` of a single submission. Raises ProblemError and stores nothing when one of its jobs may not be stored."""
    (outcome,) = await submit(tx, stores, [Submission(caller, prepared)])
    if not isinstance(outcome, Submitted):
        raise outcome
    return outcome


def _new(spec: PreparedSpec, one: Submission, admitted: Admitted, shapes: dict[bytes, int]) -> store.NewSpec:
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
    )


def _check(
    stores: Stores, one: Submission, queues: dict[str, tenants.QueueRow], classes: dict[str, tenants.ClassRow]
) -> dict[tuple[str | None, str], int]:
    """Whether a submission may name what it names; its priority classes. Raises ProblemError when not."""
    hooked = one.prepared.hooked()
    if hooked:
        webhooks.check_hooks(stores.settings, hooked)
    for path in sorted({spec.queue for spec in one.prepared.specs}):
        _check_queue(one.caller, path, queues)
    default = next((row.spec.name for row in classes.values() if row.spec.default), "")
    out = {}
    for named, path in {(spec.priority_class, spec.queue) for spec in one.prepared.specs}:
        name = named or queues[path].spec.default_priority_class or default
        if name not in classes:
            raise _unknown_class(name, classes)
        out[named, path] = classes[name].id
    return out


def _unknown_class(name: str, classes: dict[str, tenants.ClassRow]) -> ProblemError:
    return ProblemError(
        Code.UNKNOWN_PRIORITY_CLASS,
        f"there is no priority class {name!r}; there are: {', '.join(sorted(classes))}"
        if name
        else "the job names no priority class, and there is no default one",
    )


def _ancestry(path: str) -> list[str]:
    """The paths of a queue and of those above it."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def _check_queue(caller: Caller, path: str, queues: dict[str, tenants.QueueRow]) -> None:
    queue = queues.get(path)
    if not caller.may_use(path):
        raise ProblemError(Code.FORBIDDEN, f"the key {caller.name!r} has no right to queue {path!r}")
    if queue is None:
        raise ProblemError(
            Code.UNKNOWN_QUEUE, f"there is no queue {path!r}; see 'trainmaster queues' for those you may use"
        )
    if not queue.is_leaf:
        raise ProblemError(Code.NOT_A_LEAF, f"queue {path!r} has queues below it; jobs go to one of those")
    for above in _ancestry(path):
        if above in queues and not queues[above].spec.state.takes_jobs:
            raise ProblemError(Code.QUEUE_CLOSED, f"queue {above!r} is {queues[above].spec.state} and takes no jobs")


Place = tuple[int, int | None]
"""A queue with a limit on waiting jobs: its key, and that of the API key whose jobs are counted, if only those are."""


def _limits(
    path: str, caller: Caller, queues: dict[str, tenants.QueueRow]
) -> Iterator[tuple[Place, int, Caller | None]]:
    queue = queues[path]
    if queue.spec.max_queued is not None:
        yield (queue.id, None), queue.spec.max_queued, None
    if queue.spec.max_queued_per_user is not None:
        yield (queue.id, caller.key_id), queue.spec.max_queued_per_user, caller


async def _count_waiting(
    tx: Transaction, given: Iterable[Submission], queues: dict[str, tenants.QueueRow], *, waits: bool
) -> dict[Place, int]:
    """How many jobs wait where there is a limit. Other submitters there wait for this transaction, in the order of queues.

    Without ``waits``, places where somebody else is at it are left out.
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


def _take_room(one: Submission, queues: dict[str, tenants.QueueRow], waiting: dict[Place, int]) -> None:
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
