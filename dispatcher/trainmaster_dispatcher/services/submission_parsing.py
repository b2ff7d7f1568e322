"""Parsing of submissions: checked as a whole, and converted to the stored form.

Pure, and slow for large bodies; the code may run in another process.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import ValidationError

from trainmaster.protocol.admission import DEFAULT, AdmissionPolicy, check_role
from trainmaster.protocol.dependencies import Predecessor
from trainmaster.protocol.device_claims import device_resource
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.files import digest_of
from trainmaster.protocol.jobs import JobSpec, RequeueAfter, Role, WorkloadObject
from trainmaster.protocol.json_duplicates import duplicate_key
from trainmaster.protocol.json_limits import has_more_marks, path_step
from trainmaster.protocol.meaningless import meaningless
from trainmaster.protocol.parameters import check_sets, too_long, unfilled
from trainmaster.protocol.start_times import StartTime, parse_start_time
from trainmaster.protocol.states import DependencyFailure, HoldCause, JobState
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster.protocol.validation_errors import UNKNOWN_FIELD, mistakes_of, worded
from trainmaster.workload_kinds.specification import (
    ManifestError,
    check_workload,
    is_manifest,
    path_in_manifest,
    paths_of,
    translated,
)
from trainmaster_dispatcher.domain.cluster_admission import ClusterRefusal
from trainmaster_dispatcher.domain.default_requests import with_requests
from trainmaster_dispatcher.domain.notices import destinations
from trainmaster_dispatcher.domain.sessions import SessionTimes, times_of, with_session
from trainmaster_dispatcher.domain.shapes import shape_bytes
from trainmaster_dispatcher.scheduling.selection.admission import refusals
from trainmaster_dispatcher.scheduling.selection.claim_templates import with_claimed_devices
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster

MOST_MISTAKES = 50
_LONGEST_SPEC = 1_048_576
"""Most bytes of a specification; the limit of Kubernetes for an object."""
MOST_MARKS = 3_000_000
"""The most commas, colons and opening brackets of a submission. 10,000 specifications with 60 fields each have 1,300,000; 100,000
parameter sets with 2 values each have 500,000.
"""
_MOST_NAMED = 100
_EVERYWHERE = frozenset(("cpu", "memory", "ephemeral-storage"))
"""Resources that each cluster has, whether or not its agent reports them."""
_NO_MEMORY = "Not enough memory"
"""What orjson says of a body for which it gets no memory."""
_NO_UTF_8 = "not valid UTF-8"
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


class WantedArtifact(NamedTuple):
    """An input that is an artifact of another job. ``number``: the place of the input; ``job``: that one as it is named there."""

    number: int
    job: str
    name: str


class PreparedSpec(NamedTuple):
    """A checked specification in its stored form."""

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
    grace_seconds: float
    tells_submitted: bool = False
    """Whether a webhook is notified of the job's first state."""
    refused: tuple[Mistake, ...] = ()
    """Mistakes by the default admission policy; they count where the queue has no policy."""
    kind: str | None = None
    """The kind of its manifest, where it has one."""
    after: tuple[Predecessor, ...] = ()
    """Jobs after which the job starts."""
    on_dependency_failure: DependencyFailure = DependencyFailure.CANCEL
    start: StartTime | None = None
    """The time before which the job does not start."""
    elements: int | None = None
    """Number of elements of an array."""
    has_element_jobs: bool = False
    """Whether these are jobs of their own."""
    deadline: StartTime | None = None
    """The time by which the job should have ended."""
    session: SessionTimes | None = None
    """When it ends by itself, if it is an interactive session."""
    group: str | None = None
    """Name of its group."""
    group_hooks: tuple[str, ...] = ()
    """Addresses that get a message when its group has ended."""
    files: tuple[tuple[int, str], ...] = ()
    """Files that it names: the place of each input, and their SHA-256."""
    artifacts: tuple[WantedArtifact, ...] = ()
    """Artifacts of other jobs that it names."""
    outputs: tuple[str, ...] = ()
    """Names of its outputs."""
    has_files: bool = False
    """Whether its members get files, or leave some."""

    @property
    def waits_for_jobs(self) -> bool:
        """Return whether the whole job waits for others, and not only its elements for those of others."""
        return bool(self.artifacts) or any(not one.elementwise for one in self.after)

    @property
    def first_hold(self) -> HoldCause | None:
        """Return why the job is held when it is stored, if it is; one whose start time has come already is released at once."""
        if self.held:
            return HoldCause.USER
        if self.waits_for_jobs:
            return HoldCause.DEPENDENCY
        return None if self.start is None else HoldCause.START_TIME

    @property
    def first_state(self) -> JobState:
        return JobState.QUEUED if self.first_hold is None else JobState.HELD


NamedKind = Literal["cluster", "dataset", "resource"]


class Named(NamedTuple):
    """A name in a submission of what may not exist, and its path."""

    what: NamedKind
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class PreparedSubmission:
    """A checked submission. Each specification is one job, or, with ``parameters``, the only specification is one job for each set."""

    many: bool
    specs: list[PreparedSpec]
    shapes: dict[bytes, bytes]
    """Canonical JSON by fingerprint."""
    parameters: list[bytes] | None = None
    named: tuple[Named, ...] = ()
    """Names of clusters, datasets and devices, of which some may not exist; the first 100."""
    warnings: tuple[Mistake, ...] = ()

    def __len__(self) -> int:
        return len(self.specs) if self.parameters is None else len(self.parameters)

    @property
    def repeats(self) -> int:
        """Return the number of jobs of each specification."""
        return 1 if self.parameters is None else len(self.parameters)

    def answer(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the answer to a submitter, given the ids of the jobs."""
        items: list[dict[str, Any]] = [{"id": item} for item in ids]
        answer = {"jobs": items} if self.many else items[0]
        return answer | ({"warnings": self.shown_warnings} if self.warnings else {})

    @property
    def shown_warnings(self) -> list[dict[str, str]]:
        """The warnings as answers have them."""
        return [{"path": one.path, "message": one.message} for one in self.warnings]

    def paths(self) -> list[str]:
        """Return the path of each specification in the submission."""
        if self.parameters is not None:
            return ["job"]
        return [f"jobs[{index}]" for index in range(len(self.specs))] if self.many else [""]

    def hooked(self) -> list[tuple[str, bytes]]:
        """Return specifications with webhooks, each with its path in the submission."""
        specs = zip(self.paths(), self.specs, strict=True)
        return [(path, spec.spec) for path, spec in specs if spec.notifies or spec.group_hooks]


@dataclass(frozen=True, slots=True)
class Most:
    """Most jobs in one call, defaults of members that request nothing, and what clusters refuse to run."""

    jobs: int = 10_000
    parameter_sets: int = 100_000
    default_requests: Mapping[str, str] = field(default_factory=dict)
    default_memory_limit: str = ""
    clusters: tuple[Cluster, ...] = ()


def parse_json(body: bytes, most_marks: int = MOST_MARKS) -> Any:
    """Return the JSON value of a body with at most ``most_marks`` commas, colons and opening brackets.

    Raises ProblemError MALFORMED_BODY with the place of the mistake, INVALID_SPEC for a NUL or a key given twice,
    BODY_TOO_LARGE for too many values.
    """
    if has_more_marks(body, most_marks):
        message = "the body has too many values: more than {:,} commas, colons and opening brackets outside of texts"
        raise ProblemError(Code.BODY_TOO_LARGE, message.format(most_marks))
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if _NO_MEMORY in error.msg:
            raise MemoryError from error
        if _NO_UTF_8 in error.msg:
            raise ProblemError(Code.MALFORMED_BODY, "the body is not JSON: it is not text in UTF-8") from error
        if not body.strip():
            raise ProblemError(Code.MALFORMED_BODY, "the body is empty; this call takes JSON") from error
        place = f"line {error.lineno}, column {error.colno}"
        raise ProblemError(Code.MALFORMED_BODY, f"the body is not JSON: {place}: {error.msg}") from error
    if b"\\u0000" in body and _ESCAPED_NUL.search(body):
        raise ProblemError(Code.INVALID_SPEC, "the body has a NUL character (\\u0000), which no text may hold")
    twice = duplicate_key(body, value)
    if twice is not None:
        raise mistaken(Mistake(path=twice, message="this field is given twice"))
    return value


def without_nul(body: bytes) -> bytes:
    """Return JSON text with U+FFFD for each NUL, for output of processes, which nobody can correct."""
    return _ESCAPED_NUL.sub(rb"\1\\ufffd", body) if b"\\u0000" in body else body


def prepare(body: bytes, most: Most) -> PreparedSubmission:
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
        return _prepare_all(items, [f"jobs[{index}]" for index in range(len(items))], most, many=True)
    if "roles" not in value and ("job" in value or "parameters" in value):
        _only(value, "job", "parameters")
        return _prepare_sets(value, most)
    return _prepare_all([value], [""], most, many=False)


def _only(value: dict[str, Any], *known: str) -> None:
    unknown = [key for key in value if key not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise mistaken(Mistake(path=path_step(unknown[0], is_first=True), message=f"{UNKNOWN_FIELD}{hint}"))


def _list(value: dict[str, Any], key: str, what: str, most: int) -> list[Any]:
    items = value.get(key)
    if not isinstance(items, list) or not items:
        raise mistaken(Mistake(path=key, message=f"must be a list of at least one {what}"))
    if len(items) > most:
        raise ProblemError(Code.INVALID_SPEC, f"{len(items)} {what}s in one call, at most {most} are allowed")
    return items


def check_deadlines(prepared: PreparedSubmission, now: float) -> None:
    """Raise ProblemError INVALID_SPEC with each deadline that jobs submitted at ``now``, in seconds since the epoch, cannot have.

    Jobs of schedules and of workflows are not checked when they are submitted later: they run although they are late.
    """
    mistakes: list[Mistake] = []
    for spec, prefix in zip(prepared.specs, prepared.paths(), strict=True):
        if spec.deadline is not None and (message := _mistake_in_deadline(spec.deadline, spec.start, now)):
            mistakes.append(Mistake(path=_below(prefix, "deadline"), message=message))
    if mistakes:
        raise mistaken(*mistakes)


def _mistake_in_deadline(deadline: StartTime, start: StartTime | None, now: float) -> str:
    if deadline.at(now) <= now:
        return "must be after the submission: it has passed already"
    if start is not None and deadline.at(now) <= start.at(now):
        return "must be after startAfter: the job cannot have ended before it starts"
    return ""


def mistaken(*mistakes: Mistake, code: Code = Code.INVALID_SPEC) -> ProblemError:
    """Return the refusal of a body with these mistakes, of which the first 50 are shown."""
    shown = mistakes[:MOST_MISTAKES]
    first = worded(shown[0])
    return ProblemError(
        code, first if len(shown) == 1 else f"{len(shown)} mistakes; the first: {first}", mistakes=shown
    )


def _prepare_sets(value: dict[str, Any], most: Most) -> PreparedSubmission:
    sets = _list(value, "parameters", "parameter set", most.parameter_sets)
    prepared = _prepare_all([value.get("job")], ["job"], most, many=True)
    spec = orjson.loads(prepared.specs[0].spec)
    parameters, mistakes = check_sets(sets, spec)
    if mistakes:
        raise mistaken(*mistakes)
    warnings = tuple(Mistake(path=_below("job", one.path), message=one.message) for one in unfilled(sets[0], spec))
    return replace(prepared, parameters=parameters, warnings=warnings)


def _prepare_all(items: Sequence[Any], prefixes: Sequence[str], most: Most, *, many: bool) -> PreparedSubmission:
    prepared = PreparedSubmission(many, [], {})
    checked: Checked = {}
    refusing = _Refusing(most.clusters)
    names = _Names()
    mistakes: list[Mistake] = []
    refused = uncounted = False
    for item, prefix in zip(items, prefixes, strict=True):
        one = _checked_item(item, checked, refusing, most.clusters)
        refused = refused or one.is_refused
        uncounted = uncounted or one.is_uncounted
        mistakes.extend(_prefixed(one.mistakes, prefix))
        if one.spec is not None:
            names.note(one.spec, prefix)
            if not mistakes:
                unless_allowed = tuple(_prefixed(one.unless_allowed[:MOST_MISTAKES], prefix))
                prepared.specs.append(
                    _prepared(one.spec, prefix, most, prepared.shapes, unless_allowed, one.refused_by)
                )
        if len(mistakes) >= MOST_MISTAKES:
            break
    if mistakes:
        code = Code.DEVICES_NOT_COUNTED if uncounted else Code.INVALID_SPEC
        raise mistaken(*mistakes, code=Code.POD_TEMPLATE_REFUSED if refused else code)
    return replace(prepared, named=tuple(names.found.values())) if names.found else prepared


class _CheckedItem(NamedTuple):
    """One job of a submission. ``unless_allowed``: mistakes by the default admission policy, which the queue's policy may allow.

    Paths of mistakes are those of the item: of a manifest of another API, where the same values are in it.
    """

    spec: JobSpec | None = None
    mistakes: Sequence[Mistake] = ()
    is_refused: bool = False
    is_uncounted: bool = False
    unless_allowed: Sequence[Mistake] = ()
    refused_by: Sequence[ClusterRefusal] = ()


def _checked_item(item: Any, checked: "Checked", refusing: "_Refusing", clusters: Sequence[Cluster]) -> _CheckedItem:
    try:
        manifest = translated(item) if is_manifest(item) else None
    except ManifestError as error:
        return _CheckedItem(mistakes=error.mistakes)
    paths = {} if manifest is None else manifest.paths
    try:
        spec = JobSpec.model_validate(item if manifest is None else manifest.spec)
    except ValidationError as error:
        return _CheckedItem(mistakes=_in_item(mistakes_of(error), paths))
    mistakes = [*meaningless(spec), *check_workload(spec), *_too_long_elements(spec)]
    problems, unless_allowed = _admission(spec, checked)
    uncounted: Sequence[Mistake] = ()
    if not problems:
        spec, uncounted = with_claimed_devices(spec, clusters)
    refused_by, everywhere = refusing.of(spec) if not problems and not uncounted else ((), ())
    problems += everywhere
    return _CheckedItem(
        spec,
        _in_item([*mistakes, *uncounted, *problems], paths),
        is_refused=bool(problems),
        is_uncounted=bool(uncounted),
        unless_allowed=_in_item(unless_allowed, paths),
        refused_by=refused_by,
    )


def _too_long_elements(spec: JobSpec) -> list[Mistake]:
    """Return mistakes where a text of a job of an array could become too long with the parameters of an element."""
    if spec.array is None or not spec.array.has_jobs:
        return []
    found = too_long([spec.array.longest_values], {"roles": [role.to_wire() for role in spec.roles]})
    return [Mistake(path="array", message=one.message) for one in found]


def _in_item(mistakes: Sequence[Mistake], paths: Mapping[str, str]) -> Sequence[Mistake]:
    """Return mistakes with the paths that they have in what was submitted."""
    if not paths:
        return mistakes
    return [Mistake(path=path_in_manifest(one.path, paths), message=one.message) for one in mistakes]


def _prefixed(mistakes: Iterable[Mistake], prefix: str) -> list[Mistake]:
    return [Mistake(path=_below(prefix, one.path), message=one.message) for one in mistakes]


def _below(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


class _Names:
    """Names in the jobs of one call of what may not exist, each where it comes first."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Named] = {}

    def note(self, spec: JobSpec, prefix: str) -> None:
        for index, name in enumerate(spec.placement.clusters):
            self._add("cluster", name, prefix, f"placement.clusters[{index}]")
        for index, name in enumerate(spec.placement.datasets):
            self._add("dataset", name, prefix, f"placement.datasets[{index}]")
        for index, role in enumerate(spec.roles):
            if role.template is not None:
                for name in role.template.resources:
                    if name not in _EVERYWHERE and ("resource", name) not in self.found:
                        step = path_step(name, is_first=False)
                        self._add("resource", name, prefix, f"roles[{index}].template.resources{step}")
                for at, device in enumerate(role.template.devices):
                    path = f"roles[{index}].template.devices[{at}].class"
                    self._add("resource", device_resource(device.device_class), prefix, path)

    def _add(self, what: NamedKind, name: str, prefix: str, path: str) -> None:
        if (what, name) not in self.found and len(self.found) < _MOST_NAMED:
            self.found[what, name] = Named(what, name, _below(prefix, path))


class _Refusing:
    """Refusals by clusters of the jobs of one call, of which thousands may be equivalent."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        is_known = any(one.report is not None and one.report.admission is not None for one in clusters)
        self._clusters = clusters if is_known else ()
        self._known: dict[bytes, tuple[Sequence[ClusterRefusal], Sequence[Mistake]]] = {}

    def of(self, spec: JobSpec) -> tuple[Sequence[ClusterRefusal], Sequence[Mistake]]:
        if not self._clusters:
            return (), ()
        asks = {"roles": [role.to_wire() for role in spec.roles], "placement": spec.placement.to_wire()}
        try:
            key = orjson.dumps([spec.queue, asks])
        except (
            orjson.JSONEncodeError
        ):  # nested too deep, or numbers that JSON cannot represent: refused when it is written
            return (), ()
        if key not in self._known:
            self._known[key] = refusals(spec, self._clusters)
        return self._known[key]


Checked = dict[bytes, tuple[tuple[Mistake, ...], tuple[Mistake, ...]]]
"""By template: mistakes by every policy, and mistakes by the default policy."""


def _admission(spec: JobSpec, checked: Checked) -> tuple[list[Mistake], list[Mistake]]:
    """Return what no policy allows, and what the default policy refuses, which the queue's policy may allow.

    ``checked``: mistakes found in templates of this call; thousands of jobs may share one template.
    """
    never: list[Mistake] = []
    refused: list[Mistake] = []
    for index, role in enumerate(spec.roles):
        of_role = _mistakes_in(role, checked)
        if not any(of_role):
            continue
        for found, into in zip(of_role, (never, refused), strict=True):
            into.extend(_prefixed(found, f"roles[{index}]"))
    return never, refused


def _mistakes_in(role: Role, checked: Checked) -> tuple[tuple[Mistake, ...], tuple[Mistake, ...]]:
    if role.pod_template is None:
        return (), check_role(role, DEFAULT)
    try:
        key = orjson.dumps(role.pod_template)
    except orjson.JSONEncodeError:  # nested too deep, or numbers that JSON cannot represent
        return _both(role)
    found = checked.get(key)
    if found is None:
        found = checked[key] = _both(role)
    return found


def _both(role: Role) -> tuple[tuple[Mistake, ...], tuple[Mistake, ...]]:
    refused = check_role(role, DEFAULT)
    return (check_role(role, None), refused) if refused else ((), ())


def refused_by(
    policy: AdmissionPolicy, spec: bytes, prefix: str, checked: dict[bytes, tuple[Mistake, ...]]
) -> list[Mistake]:
    """Return what a queue's policy refuses in a stored specification. ``checked``: what this policy refused in roles before."""
    out: list[Mistake] = []
    stored = orjson.loads(spec)
    for index, raw in enumerate(stored["roles"]):
        key = orjson.dumps(raw)
        if key not in checked:
            checked[key] = check_role(Role.model_validate(raw), policy)
        out.extend(_prefixed(checked[key], f"roles[{index}]"))
    workload = stored.get("workload")
    paths = paths_of(WorkloadObject.model_validate(workload)) if out and workload else {}
    return _prefixed(_in_item(out, paths), prefix)


def _prepared(
    spec: JobSpec,
    prefix: str,
    most: Most,
    shapes: dict[bytes, bytes],
    refused: tuple[Mistake, ...],
    refused_by: Sequence[ClusterRefusal],
) -> PreparedSpec:
    try:
        spec = with_session(with_requests(spec, most.default_requests, most.default_memory_limit))
        shape, shape_hash = shape_bytes(spec, refused_by)
        whole = orjson.dumps(spec.to_wire() | {"kind": "Job"})
    except (
        ValueError,
        orjson.JSONEncodeError,
    ) as error:  # a quantity that cannot be read; nested too deep to be written
        message = worded(mistakes_of(error)[0]) if isinstance(error, ValidationError) else str(error)
        raise mistaken(Mistake(path=_below(prefix, "roles"), message=message)) from error
    if len(whole) > _LONGEST_SPEC:
        message = f"the specification has {len(whole)} bytes, at most {_LONGEST_SPEC} are allowed"
        raise mistaken(Mistake(path=prefix, message=message))
    shapes.setdefault(shape_hash, shape)
    wait = spec.on_disconnect
    artifacts = tuple(
        WantedArtifact(number, one.job, one.artifact)
        for number, one in enumerate(spec.inputs)
        if one.artifact is not None and one.job is not None
    )
    waits = bool(artifacts) or any(not one.elementwise for one in spec.after)
    is_held = spec.suspend or waits or spec.start_after is not None
    first = JobState.HELD if is_held else JobState.QUEUED
    return PreparedSpec(
        name=spec.name,
        queue=spec.queue,
        priority_class=spec.priority_class,
        priority=spec.priority,
        spec=whole,
        shape_hash=shape_hash,
        held=spec.suspend,
        labels=orjson.dumps(spec.labels) if spec.labels else None,
        notifies=any(not hook.group for hook in spec.notify),
        tells_submitted=any(first in hook.states for hook in spec.notify if not hook.group),
        disconnect_seconds=parse_duration(wait.requeue_after) if isinstance(wait, RequeueAfter) else None,
        grace_seconds=spec.grace_seconds,
        refused=refused,
        kind=None if spec.workload is None else spec.workload.name,
        after=spec.after,
        on_dependency_failure=spec.on_dependency_failure,
        start=None if spec.start_after is None else parse_start_time(spec.start_after),
        elements=None if spec.array is None else spec.array.size,
        has_element_jobs=spec.array is not None and spec.array.has_jobs,
        deadline=None if spec.deadline is None else parse_start_time(spec.deadline),
        session=None if spec.session is None else times_of(spec.session),
        group=spec.group,
        group_hooks=tuple(url for hook in spec.notify if hook.group for url in destinations(hook)),
        files=tuple((at, digest_of(one.files)) for at, one in enumerate(spec.inputs) if one.files is not None),
        artifacts=artifacts,
        outputs=tuple(one.name for one in spec.outputs),
        has_files=spec.has_files,
    )
