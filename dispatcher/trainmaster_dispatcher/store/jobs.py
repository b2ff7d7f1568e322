"""Jobs, their specifications and shapes, and the events of their transitions.

Every change of a job goes through ``write``: new values, the next version and one event, in the caller's transaction.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.start_times import StartTime
from trainmaster.protocol.states import HoldCause, JobState, Wish
from trainmaster_dispatcher.domain.groups import deltas_of
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.job_machine import Job
from trainmaster_dispatcher.store import dependencies, element_jobs, groups, label_blocks, outbox
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.feed_kinds import FeedKind
from trainmaster_dispatcher.store.label_blocks import BLOCK, ExcludedLabel
from trainmaster_dispatcher.store.tables import LIVE_JOB, WAITING_JOB, WAITS_SINCE
from trainmaster_dispatcher.store.traces import EndedWork, TracedWork
from trainmaster_dispatcher.store.versions import VERSION_OF_THIS

_SHAPES_BYTES = 1 << 20
MOST_TRACED_JOBS = 100
"""The most jobs of one submission that belong to its trace: the first ones."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's row as the services see it."""

    id: int
    version: int
    name: str
    queue_id: int
    class_id: int
    priority: int
    shape_id: int
    spec_id: int
    disconnect_seconds: float | None
    notifies: bool
    job: Job
    elements: int | None = None
    """Number of elements of an array; None: the job is none."""
    has_element_jobs: bool = False
    """Whether its elements are jobs of their own."""
    group_id: int | None = None
    trace: bytes | None = None
    """Trace and span of its submission; None: it belongs to no trace that is sampled."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of one job, and its event. ``record`` is the job before, ``job`` after."""

    record: JobRecord
    job: Job
    kind: JobEventKind
    states: tuple[str, ...] = ()
    attempt: int | None = None
    cluster_id: int | None = None
    actor: str = ""
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    priority: int | None = None
    class_id: int | None = None
    is_neutral: bool = False
    """Whether the scheduler's state is the same after the transition, so that the scheduler's feed may omit it."""


@dataclass(frozen=True, slots=True)
class NewSpec:
    """A specification to be stored, and the values common to its jobs. ``spec`` and ``labels`` are JSON text."""

    name: str
    queue_id: int
    class_id: int
    priority: int
    shape_id: int
    api_key_id: int
    spec: bytes
    held: bool
    labels: bytes | None = None
    notifies: bool = False
    disconnect_seconds: float | None = None
    start: StartTime | None = None
    awaits_jobs: bool = False
    elements: int | None = None
    deadline: StartTime | None = None
    has_element_jobs: bool = False
    group_id: int | None = None
    trace: bytes | None = None

    def copy_text(self, submitted: datetime) -> bytes:
        """Return the job's columns of ``jobs`` in the text format of COPY, in the order of ``_COPIED``."""
        labels = rb"\N" if self.labels is None else _escaped(self.labels)
        start = _moment_text(self.start, submitted)
        return b"%b\t%d\t%d\t%d\t%d\t%d\t%b\t%b\t%b\t%b\t%b\t%b\t%b\t%b\t%b\t%b\t%b" % (
            self.name.encode(),
            self.queue_id,
            self.class_id,
            self.priority,
            self.shape_id,
            self.api_key_id,
            self._first_hold(start),
            start,
            _moment_text(self.deadline, submitted),
            b"t" if self.awaits_jobs else b"f",
            b"t" if self.notifies else b"f",
            rb"\N" if self.disconnect_seconds is None else b"%r" % self.disconnect_seconds,
            rb"\N" if self.elements is None else b"%d" % self.elements,
            b"t" if self.has_element_jobs else rb"\N",
            rb"\N" if self.group_id is None else b"%d" % self.group_id,
            rb"\N" if self.trace is None else rb"\\x" + self.trace.hex().encode(),
            labels,
        )

    def _first_hold(self, start: bytes) -> bytes:
        """Return state, cause of the hold and its end, as COPY reads them."""
        if self.held:
            return b"held\tuser\t" + rb"\N"
        if self.awaits_jobs:
            return b"held\tdependency\t" + rb"\N"
        if self.start is not None:
            return b"held\tstartTime\t" + start
        return b"queued\t" + rb"\N" + b"\t" + rb"\N"


_COPIED = (
    "id, spec_id, name, queue_id, class_id, priority, shape_id, api_key_id, state, hold_cause, hold_until, eligible_at,"
    " deadline, awaits_jobs, notifies, disconnect_seconds, elements, has_element_jobs, group_id, trace, labels, parameters"
)


def _moment_text(time: StartTime | None, submitted: datetime) -> bytes:
    """Return a time of a job that was submitted at ``submitted`` in the text format of COPY."""
    if time is None:
        return rb"\N"
    return datetime.fromtimestamp(time.at(submitted.timestamp()), UTC).isoformat().encode()


def _escaped(json: bytes) -> bytes:
    """Return JSON text in the text format of COPY. JSON written without white space has no literal line ends and tabs."""
    return json.replace(b"\\", b"\\\\")


_COLUMNS = (
    "id, version, disconnect_seconds, notifies, name, queue_id, class_id, priority, shape_id, spec_id, state, hold_cause,"
    " extract(epoch FROM hold_until)::float8 AS hold_until, extract(epoch FROM eligible_at)::float8 AS eligible_at, awaits_jobs,"
    " wish, attempt, retries_used, losses, returns, message, elements, has_element_jobs, group_id, trace"
)


def _record(row: Any) -> JobRecord:
    return JobRecord(
        id=row.id,
        version=row.version,
        name=row.name,
        queue_id=row.queue_id,
        class_id=row.class_id,
        priority=row.priority,
        shape_id=row.shape_id,
        spec_id=row.spec_id,
        disconnect_seconds=row.disconnect_seconds,
        notifies=row.notifies,
        job=Job(
            state=JobState(row.state),
            hold_cause=None if row.hold_cause is None else HoldCause(row.hold_cause),
            hold_until=row.hold_until,
            eligible_at=row.eligible_at,
            awaits_jobs=row.awaits_jobs,
            wish=None if row.wish is None else Wish(row.wish),
            attempt=row.attempt,
            retries_used=row.retries_used,
            losses=row.losses,
            returns=row.returns,
            message=row.message,
        ),
        elements=row.elements,
        has_element_jobs=bool(row.has_element_jobs),
        group_id=row.group_id,
        trace=row.trace,
    )


async def lock(tx: Transaction, ids: Iterable[int]) -> dict[int, JobRecord]:
    """Return the jobs with these keys, locked in the order of their keys so that no two callers wait for each other."""
    rows = await tx.all(
        f"SELECT {_COLUMNS} FROM jobs WHERE id = ANY(:ids) ORDER BY id FOR UPDATE",
        ids=sorted(set(ids)),
    )
    return {row.id: _record(row) for row in rows}


_OWN_KEYS = """
    (SELECT k.id FROM api_keys k LEFT JOIN api_keys t ON t.id = k.through_id WHERE k.name = :{name} OR t.name = :{name})
"""
"""The keys whose jobs a caller may change: of the caller's name, and of users whose jobs came through a key of that name."""


async def submitted_by_others(tx: Transaction, ids: Iterable[int], name: str) -> set[int]:
    """Return those of these jobs that no key of this name submitted, for itself or on behalf of a user."""
    rows = await tx.all(
        f"""
        SELECT j.id FROM jobs j
        WHERE j.id = ANY(:ids) AND j.api_key_id NOT IN {_OWN_KEYS.format(name="name")}
        """,
        ids=list(ids),
        name=name,
    )
    return {row.id for row in rows}


async def shape_ids(tx: Transaction, shapes: dict[bytes, bytes]) -> dict[bytes, int]:
    """Return the ids of shapes by fingerprint; create those that do not exist.

    Each shape is marked as used today, once a day, so that retention keeps it until the jobs are stored.
    """
    hashes = list(shapes)
    found = await tx.all(
        "SELECT id, hash, used_on < current_date AS stale FROM shapes WHERE hash = ANY(:hashes)", hashes=hashes
    )
    ids = {bytes(row.hash): row.id for row in found if not row.stale}
    stale = [row.id for row in found if row.stale]
    if stale:
        # A shape that is removed at this moment is not among the returned rows; it is created again.
        touched = await tx.all(
            """
            WITH held AS (SELECT id FROM shapes WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE)
            UPDATE shapes s SET used_on = current_date FROM held WHERE s.id = held.id RETURNING s.id, s.hash
            """,
            ids=stale,
        )
        ids |= {bytes(row.hash): row.id for row in touched}
    fresh = [value for value in hashes if value not in ids]
    if fresh:
        for part in _parts_of(sorted(fresh), shapes):
            # One JSON text: the driver takes seconds to quote an array of large texts, and does nothing else meanwhile.
            await tx.run(
                """
                INSERT INTO shapes (hash, body)
                SELECT h, b::jsonb
                FROM ROWS FROM (unnest(CAST(:hashes AS bytea[])), json_array_elements(CAST(:bodies AS json))) AS n(h, b)
                ORDER BY h
                ON CONFLICT (hash) DO NOTHING
                """,
                hashes=part,
                bodies=(b"[" + b",".join(shapes[value] for value in part) + b"]").decode(),
            )
        rows = await tx.all("SELECT id, hash FROM shapes WHERE hash = ANY(:hashes)", hashes=fresh)
        ids |= {bytes(row.hash): row.id for row in rows}
    return ids


def _parts_of(hashes: Sequence[bytes], shapes: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    """Yield the hashes in parts, in order, whose shapes have about ``_SHAPES_BYTES`` bytes, so that no statement takes long."""
    part: list[bytes] = []
    size = 0
    for value in hashes:
        if part and size + len(shapes[value]) > _SHAPES_BYTES:
            yield part
            part, size = [], 0
        part.append(value)
        size += len(shapes[value])
    if part:
        yield part


class StoredJobs(NamedTuple):
    """Jobs that were just stored: the key of the first one, and of all of them the time of submission and the version as objects."""

    first: int
    at: datetime
    version: int


async def insert(tx: Transaction, fresh: Sequence[NewSpec], parameters: Sequence[bytes] | None = None) -> StoredJobs:
    """Store new jobs: one for each specification, or with ``parameters`` one of the only specification for each set.

    The other keys follow without a gap, in the order given. One row of ``changes`` reports all the jobs, and a job's row stands for
    its first event, so that a job costs one row beside its specification.
    """
    many = len(fresh) if parameters is None else len(parameters)
    row = await tx.one(
        f"""
        INSERT INTO changes (kind, ref, many)
        SELECT '{FeedKind.JOBS}', take_ids(pg_get_serial_sequence('jobs', 'id')::regclass, :many), :many
        RETURNING ref, now() AS at, {VERSION_OF_THIS} AS version
        """,
        many=many,
    )
    first = int(row.ref)
    if parameters is None:
        specs = [b"%d\t%d\t%b\n" % (key, key, _escaped(one.spec)) for key, one in enumerate(fresh, first)]
        rows = [b"%d\t%d\t%b\t\\N\n" % (key, key, one.copy_text(row.at)) for key, one in enumerate(fresh, first)]
    else:
        specs = [b"%d\t%d\t%b\n" % (first, first + many - 1, _escaped(fresh[0].spec))]
        heads = [b"\t%d\t%b\t" % (first, one.copy_text(row.at)) for one in (fresh[0], replace(fresh[0], trace=None))]
        traced = first if fresh[0].trace is None else first + MOST_TRACED_JOBS
        rows = [b"%d%b%b\n" % (key, heads[key >= traced], _escaped(one)) for key, one in enumerate(parameters, first)]
    await tx.copy("COPY job_specs (id, last_job_id, spec) FROM STDIN", specs)
    await tx.copy(f"COPY jobs ({_COPIED}) FROM STDIN", rows)
    return StoredJobs(first, row.at, row.version)


async def write(tx: Transaction, transitions: Sequence[Transition]) -> None:
    """Store changed jobs, each with its next version, its event and its messages. The rows must be locked."""
    if not transitions:
        return
    # The limit gives the planner the number of rows; for JSON the planner expects a hundred, and would scan a whole table for one.
    await tx.run(
        """
        WITH n AS MATERIALIZED (
            SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS n(
                id bigint, state job_state, hold_cause hold_cause, hold_until float8, wish wish, attempt int,
                retries_used smallint, losses smallint, returns smallint, job_message text, eligible_at float8,
                awaits_jobs bool, priority smallint,
                class_id smallint, seq int, kind text, states text, run int, cluster_id int, actor text, message text,
                details jsonb, neutral bool)
            LIMIT :many
        ), changed AS (
            UPDATE jobs SET
                version = n.seq, state = n.state, hold_cause = n.hold_cause, hold_until = to_timestamp(n.hold_until),
                wish = n.wish, attempt = n.attempt, retries_used = n.retries_used, losses = n.losses,
                returns = n.returns, message = n.job_message, eligible_at = to_timestamp(n.eligible_at), awaits_jobs = n.awaits_jobs,
                priority = n.priority, class_id = n.class_id,
                started_at = CASE WHEN n.state IN ('running', 'succeeded') OR n.details ? 'exitCode'
                                  THEN coalesce(jobs.started_at, now()) ELSE jobs.started_at END,
                ended_at = CASE WHEN n.state IN ('succeeded', 'failed', 'cancelled')
                                THEN coalesce(jobs.ended_at, now()) END
            FROM n WHERE jobs.id = n.id
        )
        INSERT INTO events (job_id, seq, kind, states, attempt, cluster_id, actor, message, details, xid, quiet_xid)
        SELECT id, seq, kind, string_to_array(states, ','), run, cluster_id, actor, message, details,
               CASE WHEN NOT neutral THEN pg_current_xact_id() END, CASE WHEN neutral THEN pg_current_xact_id() END
        FROM n
        """,
        rows=dumps([_row(t) for t in transitions]),
        many=len(transitions),
    )
    await dependencies.follow(
        tx,
        [t.record.id for t in transitions if _changes_conditions(t)],
        [t.record.id for t in transitions if _waits_no_longer(t)],
    )
    await element_jobs.wake(tx, [t.record.id for t in transitions if t.record.has_element_jobs])
    if changes := _changes_of_groups(transitions):
        await groups.note(tx, changes)
    await outbox.add(tx, transitions)
    await outbox.add_of_users(tx, transitions)
    if tx.traces is not None and (ended := list(_ended_work(transitions))):
        _tell_after_commit(tx, tx.traces, ended)


def _ended_work(transitions: Sequence[Transition]) -> Iterator[EndedWork]:
    """Yield the jobs of traces that end, or whose run does."""
    for t in transitions:
        if t.record.trace is None:
            continue
        run = None if t.attempt is None else t.kind.ended_run
        ends = t.job.state.is_terminal and not t.record.job.state.is_terminal
        if run is not None or ends:
            attempt = t.job.attempt if run is None or t.attempt is None else t.attempt
            yield EndedWork(RunRef(t.record.id, attempt), run, t.job.state if ends else None)


def _tell_after_commit(tx: Transaction, traces: TracedWork, ended: Sequence[EndedWork]) -> None:
    async def tell() -> None:
        traces.ended(ended)

    tx.after_commit(tell)


def _changes_of_groups(transitions: Sequence[Transition]) -> list[groups.GroupChange]:
    """Return the changes of the numbers of ended jobs, one for each group."""
    deltas: dict[int, Counter[str]] = {}
    for t in transitions:
        before, after = t.record.job.state, t.job.state
        if t.record.group_id is not None and before is not after and (before.is_terminal or after.is_terminal):
            deltas.setdefault(t.record.group_id, Counter()).update(deltas_of(before, after))
    return [groups.GroupChange(group_id, **numbers) for group_id, numbers in sorted(deltas.items())]


def _changes_conditions(t: Transition) -> bool:
    """Return whether conditions of other jobs on this one may have changed."""
    before, after = t.record.job.state, t.job.state
    has_ended_run = before is JobState.DISPATCHED and not after.has_live_run
    return after is not before and (
        after.is_terminal or after is JobState.RUNNING or before.is_terminal or has_ended_run
    )


def _waits_no_longer(t: Transition) -> bool:
    """Return whether the job has waited for others, and does not after the transition."""
    return t.record.job.awaits_jobs and (t.job.state.is_terminal or not t.job.awaits_jobs)


def _row(t: Transition) -> dict[str, Any]:
    """Return a transition as ``write`` sends it: one JSON text costs a third of what arrays of the same columns cost."""
    job, record = t.job, t.record
    return {
        "id": record.id,
        "state": job.state,
        "hold_cause": job.hold_cause,
        "hold_until": job.hold_until,
        "wish": job.wish,
        "attempt": job.attempt,
        "retries_used": job.retries_used,
        "losses": job.losses,
        "returns": job.returns,
        "job_message": job.message[:2000],
        "eligible_at": job.eligible_at,
        "awaits_jobs": job.awaits_jobs,
        "priority": record.priority if t.priority is None else t.priority,
        "class_id": record.class_id if t.class_id is None else t.class_id,
        "seq": record.version + 1,
        "kind": t.kind,
        "states": ",".join(t.states),
        "run": t.attempt,
        "cluster_id": t.cluster_id,
        "actor": t.actor,
        "message": t.message[:2000],
        "details": t.details or None,
        "neutral": t.is_neutral,
    }


async def specs(tx: Transaction, spec_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    wanted = sorted(set(spec_ids))
    if not wanted:
        return {}
    rows = await tx.all("SELECT id, spec FROM job_specs WHERE id = ANY(:ids)", ids=wanted)
    return {row.id: row.spec for row in rows}


async def due_holds(tx: Transaction, limit: int) -> list[int]:
    """Return keys of held jobs whose hold has ended by the database clock."""
    rows = await tx.all(
        "SELECT id FROM jobs WHERE state = 'held' AND hold_until IS NOT NULL AND hold_until <= now() ORDER BY hold_until"
        " LIMIT :limit",
        limit=limit,
    )
    return [row.id for row in rows]


async def hold_room(tx: Transaction, queue_id: int, *, waits: bool = True) -> bool:
    """Lock a queue against other submitters until this transaction ends; return whether the lock was taken. Without ``waits``, do
    not wait for it.
    """
    if waits:
        await tx.one("SELECT pg_advisory_xact_lock(1953653617, :queue)", queue=queue_id)
        return True
    return bool((await tx.one("SELECT pg_try_advisory_xact_lock(1953653617, :queue) AS ours", queue=queue_id)).ours)


async def count_waiting(tx: Transaction, queue_id: int, at_most: int, key_id: int | None = None) -> int:
    """Return how many jobs wait in a queue, or those of one API key, counted up to ``at_most``; call ``hold_room`` before."""
    row = await tx.one(
        f"""
        SELECT count(*) AS many FROM (
            SELECT 1 FROM jobs WHERE queue_id = :queue AND {LIVE_JOB} AND {WAITING_JOB}
            AND (CAST(:key AS int) IS NULL OR api_key_id = :key) LIMIT :most) AS w
        """,
        queue=queue_id,
        key=key_id,
        most=at_most,
    )
    return int(row.many)


class WaitingOfKey(NamedTuple):
    """The waiting jobs of an API key in a queue: their number, stored bytes of their specifications, and fingerprints of their
    shapes.
    """

    api_key_id: int
    jobs: int
    spec_bytes: int
    shapes: list[bytes]


async def waiting_by_key(tx: Transaction, queue_id: int) -> Sequence[WaitingOfKey]:
    """Return the waiting jobs of a queue, by API key."""
    return await tx.all_of(
        WaitingOfKey,
        f"""
        WITH waiting AS MATERIALIZED (
            SELECT api_key_id, spec_id, shape_id, count(*) AS many FROM jobs
            WHERE queue_id = :queue AND {LIVE_JOB} AND {WAITING_JOB} GROUP BY api_key_id, spec_id, shape_id
        )
        SELECT w.api_key_id, sum(w.many)::bigint AS jobs, coalesce(sum(pg_column_size(s.spec)), 0)::bigint AS spec_bytes,
               array_agg(DISTINCT h.hash) AS shapes
        FROM waiting w JOIN job_specs s ON s.id = w.spec_id JOIN shapes h ON h.id = w.shape_id
        GROUP BY w.api_key_id
        """,
        queue=queue_id,
    )


async def state_counts(tx: Transaction, queue_ids: Sequence[int], *, with_ended: bool) -> dict[int, dict[str, int]]:
    """Return the number of jobs by state for each of these queues; with those that have ended, every stored job is read."""
    chosen = "" if with_ended else f"AND {LIVE_JOB}"
    rows = await tx.all(
        f"SELECT queue_id, state, count(*) AS many FROM jobs WHERE queue_id = ANY(:ids) {chosen} GROUP BY queue_id, state",
        ids=list(queue_ids),
    )
    out: dict[int, dict[str, int]] = {queue_id: {} for queue_id in queue_ids}
    for row in rows:
        out[row.queue_id][row.state] = row.many
    return out


_WINDOW = 20_000
"""The number of newest jobs among which a page of jobs with labels is searched first."""
_RUNS = 2000
"""The number of the newest runs of a cluster among which a page of its jobs is searched first."""
_AT_ONCE = timedelta(minutes=10)
"""Far more than a submission's transaction takes: jobs whose keys are in order were submitted in order, but for such a time."""
_FIRST_BLOCKS = 100
"""The number of blocks in which jobs without some labels are searched first; then four times as many, and so on."""
_MOST_BLOCKS_FOR_LABELS = 400
"""The most blocks that are read for jobs that must also have labels, rather than looking those up in their index."""
_FILTERED = "j.id, j.name, j.queue_id, j.class_id, j.api_key_id, j.attempt, j.state, j.wish, j.submitted_at, j.ended_at, j.group_id"
"""The columns that conditions of ``Filter`` beside those on labels are about."""


class LabelCondition(NamedTuple):
    """A condition on a label: that its value is one of ``values``, or with None that the label is there; or not, if ``is_negated``."""

    key: str
    values: tuple[str, ...] | None
    is_negated: bool = False

    def condition(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return the condition on ``j`` and its parameters, which have this number in their names.

        One that is not negated is in the form that the index of labels serves.
        """
        parameters: dict[str, Any] = {}
        if self.values is None:
            holds = f"j.labels ? :f_label_{number}"
            parameters[f"f_label_{number}"] = self.key
        else:
            names = [f"f_label_{number}_{place}" for place in range(len(self.values))]
            holds = f"({' OR '.join(f'j.labels @> CAST(:{name} AS jsonb)' for name in names)})"
            parameters |= {name: dumps({self.key: value}) for name, value in zip(names, self.values, strict=True)}
        return f"NOT coalesce({holds}, false)" if self.is_negated else holds, parameters


class Search(NamedTuple):
    """Text that people search for: the begin of a name, or a label as ``key=value``. ``key``: the key of the job whose id the text
    is; None where it is none. ``submitters``: the API keys of this name.
    """

    text: str
    key: int | None = None
    submitters: tuple[int, ...] = ()


def _like(text: str) -> str:
    """Return text as a pattern of LIKE that matches itself."""
    return re.sub(r"([\\%_])", r"\\\1", text)


_WISHES = frozenset(Wish)


@dataclass(frozen=True, slots=True)
class Filter:
    """A selection of jobs. ``queue_ids`` None means all queues; ``below`` narrows them to these queues and all below them, ``owned``
    the jobs to those whose latest run is or was on one of these clusters. ``hides_deleted``: without those whose objects are deleted.
    ``group_ids``: only jobs of these groups.
    """

    queue_ids: tuple[int, ...] | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    class_id: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    cluster_id: int | None = None
    below: tuple[str, ...] | None = None
    submitter: str | None = None
    not_submitter: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    owned: tuple[str, ...] | None = None
    label_conditions: tuple[LabelCondition, ...] = ()
    hides_deleted: bool = False
    group_ids: tuple[int, ...] | None = None
    search: Search | None = None

    @property
    def has_conditions(self) -> bool:
        """Return whether there is a condition beside those on queues."""
        return replace(self, queue_ids=None, below=None, hides_deleted=False) != Filter()

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return the condition on ``j`` and its parameters."""
        queues, parameters = self.queues()
        others, more = self.others()
        condition = others if queues is None else f"j.queue_id = ANY(ARRAY({queues})) AND {others}"
        return condition, parameters | more

    def queues(self) -> tuple[str | None, dict[str, Any]]:
        """Return the statement that finds the ids of the selected queues, with its parameters; None where all are selected."""
        parts, parameters = [], dict[str, Any]()
        if self.queue_ids is not None:
            parts.append("b.id = ANY(:f_queues)")
            parameters["f_queues"] = list(self.queue_ids)
        if self.below is not None:
            parts.append(
                "EXISTS (SELECT 1 FROM unnest(CAST(:f_below AS text[])) AS p WHERE b.path = p OR starts_with(b.path, p || '/'))"
            )
            parameters["f_below"] = list(self.below)
        return (f"SELECT b.id FROM queues b WHERE {' AND '.join(parts)}" if parts else None), parameters

    def labelled(self) -> tuple[str, dict[str, Any]]:
        """Return the condition on labels that jobs must have, for which there is an index, and its parameters; empty without one."""
        parts, parameters = [], dict[str, Any]()
        if self.labels:
            parts.append("j.labels @> CAST(:f_labels AS jsonb)")
            parameters["f_labels"] = dumps(self.labels)
        for number, one in enumerate(self.label_conditions):
            if not one.is_negated:
                part, more = one.condition(number)
                parts.append(part)
                parameters |= more
        return " AND ".join(parts), parameters

    def unlabelled(self) -> tuple[str, dict[str, Any]]:
        """Return the condition on labels that jobs must not have, and its parameters; empty without one."""
        parts, parameters = [], dict[str, Any]()
        for number, one in enumerate(self.label_conditions):
            if one.is_negated:
                part, more = one.condition(number)
                parts.append(part)
                parameters |= more
        return " AND ".join(parts), parameters

    def excluded(self) -> list[ExcludedLabel]:
        """Return the labels that jobs must not have."""
        return [ExcludedLabel(one.key, one.values) for one in self.label_conditions if one.is_negated]

    def others(self, *, has_labels: bool = True) -> tuple[str, dict[str, Any]]:
        """Return the condition on ``j`` beside its queue, and its parameters; ``has_labels``: with what it says of labels."""
        parts, parameters = ["true"], dict[str, Any]()
        if self.name is not None:
            parts.append("j.name LIKE :f_name")
            parameters["f_name"] = _like(self.name).replace("*", "%")
        if self.class_id is not None:
            parts.append("j.class_id = :f_class")
            parameters["f_class"] = self.class_id
        if self.cluster_id is not None:
            parts.append(
                "EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id AND r.attempt = j.attempt"
                f" AND r.cluster_id = {int(self.cluster_id)})"
            )
        if self.owned is not None:
            parts.append(
                "EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id AND r.attempt = j.attempt"
                " AND r.cluster_id = ANY(ARRAY(SELECT c.id FROM clusters c WHERE c.name = ANY(:f_owned))))"
            )
            parameters["f_owned"] = list(self.owned)
        if self.group_ids is not None:
            parts.append("j.group_id = ANY(:f_groups)")
            parameters["f_groups"] = list(self.group_ids)
        labels = (self.labelled(), self.unlabelled()) if has_labels else ()
        for condition, more in (self._of_states(), self._of_submission(), self._of_search(), *labels):
            if condition:
                parts.append(condition)
                parameters |= more
        parts += [f"NOT (j.ended_at IS NOT NULL AND {DELETED})"] * self.hides_deleted
        return " AND ".join(parts), parameters

    def _of_states(self) -> tuple[str, dict[str, Any]]:
        """Return the condition on the states that jobs are shown in, and its parameters; empty without one.

        That jobs must not have ended is said apart: there is an index of these.
        """
        if not self.states:
            return "", {}
        wishes = [state for state in self.states if state in _WISHES]
        states = [state for state in self.states if state not in _WISHES]
        condition = "(j.wish IS NULL AND j.state = ANY(CAST(:f_states AS job_state[])))"
        if wishes:
            condition = f"({condition} OR j.wish = ANY(CAST(:f_wishes AS wish[])))"
        ended = {JobState(state).is_terminal for state in states} | ({False} if wishes else set())
        if len(ended) == 1:
            condition += f" AND j.ended_at IS {'NOT ' if ended.pop() else ''}NULL"
        return condition, {"f_states": states} | ({"f_wishes": wishes} if wishes else {})

    def _of_search(self) -> tuple[str, dict[str, Any]]:
        """Return the condition on what people search for, and its parameters; empty without one.

        Each way to match has an index, which the database combines.
        """
        if self.search is None:
            return "", {}
        parts, parameters = ["j.name LIKE :f_search_name"], dict[str, Any](f_search_name=_like(self.search.text) + "%")
        if self.search.submitters:
            parts.append("j.api_key_id = ANY(CAST(:f_search_keys AS int[]))")
            parameters["f_search_keys"] = list(self.search.submitters)
        if self.search.key is not None:
            parts.append("j.id = :f_search_key")
            parameters["f_search_key"] = self.search.key
        label, equals, value = self.search.text.partition("=")
        if equals:
            parts.append("j.labels @> CAST(:f_search_label AS jsonb)")
            parameters["f_search_label"] = dumps({label: value})
        return f"({' OR '.join(parts)})", parameters

    def _of_submission(self) -> tuple[str, dict[str, Any]]:
        """Return the condition on who submitted the jobs and when, and its parameters; empty without one."""
        parts, parameters = [], dict[str, Any]()
        if self.submitter is not None:
            parts.append("j.api_key_id = ANY(ARRAY(SELECT k.id FROM api_keys k WHERE k.name = :f_submitter))")
            parameters["f_submitter"] = self.submitter
        if self.not_submitter is not None:
            parts.append(f"j.api_key_id NOT IN {_OWN_KEYS.format(name='f_not_submitter')}")
            parameters["f_not_submitter"] = self.not_submitter
        for sign, name, moment in ((">=", "f_since", self.since), ("<", "f_until", self.until)):
            if moment is not None:
                parts.append(f"j.submitted_at {sign} :{name}")
                parameters[name] = moment
        return " AND ".join(parts), parameters


class ShownJob(NamedTuple):
    """A job as people see it, with the names of what it refers to."""

    id: int
    name: str
    version: int
    queue: str
    priority_class: str
    priority: int
    state: JobState
    wish: Wish | None
    hold_cause: HoldCause | None
    hold_until: datetime | None
    eligible_at: datetime | None
    deadline: datetime | None
    deadline_noted: int
    attempt: int
    retries_used: int
    message: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ran_seconds: float | None
    """Seconds for which its ended runs were running, together; None where none was."""
    running_since: datetime | None
    labels: dict[str, str] | None
    parameters: dict[str, Any] | None
    spec_id: int
    queue_id: int
    class_id: int
    shape_id: int
    notifies: bool
    elements: int | None
    """Number of elements of an array."""
    has_element_jobs: bool | None
    """Whether these are jobs of their own."""
    group: str | None
    """Name of its group."""
    submitted_by: str | None
    """None where the API key was removed."""
    submitted_through: str | None
    """The key that submitted it on behalf of ``submitted_by``."""
    cluster: str | None
    """The cluster of the job's newest run."""

    @property
    def shown_state(self) -> str:
        """The state that people see: a wish comes before the state."""
        return self.wish or self.state


class PastJob(NamedTuple):
    """A job that has ended, for a workload. ``submitted`` in seconds since the epoch; ``waited`` and ``run`` in seconds.

    ``waited`` is None where the job never ran, ``run`` where none of its runs was at work.
    """

    id: int
    submitted: float
    spec_id: int
    queue: str
    priority_class: str
    priority: int
    submitter: str | None
    waited: float | None
    run: float | None


class LastOfPage(NamedTuple):
    """The last job of a page, and how many jobs the page has."""

    id: int
    submitted_at: datetime
    many: int


class JobVersion(NamedTuple):
    """A job's state, and the number of its transitions."""

    state: JobState
    version: int


class StoredEvent(NamedTuple):
    """An event of a job. ``seq`` is the version that the event created; ``kind`` a ``JobEventKind``, or a kind of another release."""

    seq: int
    at: datetime
    kind: str
    states: list[str]
    attempt: int | None
    cluster: str | None
    actor: str
    message: str
    details: dict[str, Any] | None


DELETED = "EXISTS (SELECT 1 FROM job_objects g WHERE g.job_id = j.id AND g.deleted_at IS NOT NULL)"
"""The condition for jobs whose objects are deleted; those of jobs that have not ended exist until they have."""
_COLUMNS_OF_VIEW = """
    SELECT j.id, j.name, j.version, q.path AS queue, p.name AS priority_class, j.priority, j.state, j.wish, j.hold_cause,
           j.hold_until, j.eligible_at, j.deadline, j.deadline_noted, j.attempt, j.retries_used, j.message, j.submitted_at,
           j.started_at, j.ended_at,
           (SELECT sum(extract(epoch FROM e.ended_at - e.started_at))::float8 FROM runs e
            WHERE e.job_id = j.id AND e.ended_at IS NOT NULL) AS ran_seconds,
           CASE WHEN r.ended_at IS NULL THEN r.started_at END AS running_since, j.labels, j.parameters,
           j.spec_id, j.queue_id, j.class_id, j.shape_id, j.notifies, j.elements, j.has_element_jobs, o.name AS "group",
           k.name AS submitted_by, t.name AS submitted_through, c.name AS cluster
"""
_JOINS_OF_VIEW = """
    JOIN queues q ON q.id = j.queue_id
    JOIN priority_classes p ON p.id = j.class_id
    LEFT JOIN api_keys k ON k.id = j.api_key_id
    LEFT JOIN api_keys t ON t.id = k.through_id
    LEFT JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt
    LEFT JOIN clusters c ON c.id = r.cluster_id
    LEFT JOIN job_groups o ON o.id = j.group_id
"""


async def page(
    tx: Transaction, wanted: Filter, before: int | None, limit: int, kind: str | None = None
) -> Sequence[ShownJob]:
    """Return jobs that match, newest first, older than the one with key ``before``; with ``kind``, those that were submitted as
    manifests of this kind.

    The keys of the page are found first, in the order of an index for each queue: the cost of a page does not depend on the number
    of stored jobs. Without this, the database joins and sorts all jobs of the queues. Those of a kind of manifests, and those of
    groups, are found by their own index, which has the same order. Jobs that must not have labels are looked for where there can be
    some.
    """
    queues, parameters = wanted.queues()
    others, more = wanted.others()
    parameters |= more | {"limit": limit}
    cut = "" if before is None else " AND j.id < :before"
    if before is not None:
        parameters["before"] = before
    if kind is not None:
        of_queue = (
            "SELECT j.id FROM job_objects o JOIN jobs j ON j.id = o.job_id WHERE o.kind = :f_kind AND o.queue_id = b.id"
            f" AND {others}{cut} ORDER BY o.job_id DESC LIMIT :limit"
        )
        keys = f"SELECT f.id FROM ({queues or 'SELECT b.id FROM queues b'}) b CROSS JOIN LATERAL ({of_queue}) f"
        return await _page_of_keys(tx, keys, parameters | {"f_kind": kind})
    if wanted.group_ids is not None:
        in_queues = "" if queues is None else f" AND j.queue_id IN ({queues})"
        of_group = f"SELECT j.id FROM jobs j WHERE j.group_id = n.id AND {others}{cut}{in_queues} ORDER BY j.id DESC LIMIT :limit"
        keys = f"SELECT f.id FROM unnest(CAST(:f_groups AS bigint[])) n(id) CROSS JOIN LATERAL ({of_group}) f"
        return await _page_of_keys(tx, keys, parameters)
    if excluded := wanted.excluded():
        found = await _page_without(tx, wanted, before, limit, excluded)
        if found is not None:
            return found
    if wanted.has_conditions:
        return await _page_of_filter(tx, wanted, before, limit)
    newest = f"SELECT j.id FROM jobs j WHERE {others}{cut}"
    if queues is not None:
        of_queue = f"{newest} AND j.queue_id = b.id ORDER BY j.id DESC LIMIT :limit"
        newest = f"SELECT f.id FROM ({queues}) b CROSS JOIN LATERAL ({of_queue}) f"
    return await _page_of_keys(tx, newest, parameters, is_usual=True)


async def _page_of_filter(tx: Transaction, wanted: Filter, before: int | None, limit: int) -> Sequence[ShownJob]:
    """Return a page of jobs that match conditions: of the newest ones, read in their order, and then, where these are too few, of all
    others by the index that finds them with the least cost, without an order.

    The planner cannot know how far apart the jobs are that match, and would read all jobs in their order for a few that are old: the
    offset keeps the order from it.
    """
    span = await _span_of(tx, wanted, before)
    queues, parameters = wanted.queues()
    others, more = wanted.others()
    in_queues = "" if queues is None else f" AND j.queue_id = ANY(ARRAY({queues}))"
    parameters |= more | {"first": span.first, "edge": max(span.first, span.end - _WINDOW), "end": span.end}
    if wanted.cluster_id is not None:
        of_cluster = (
            f"SELECT job_id, attempt FROM runs WHERE cluster_id = {int(wanted.cluster_id)}"
            f" AND job_id >= :first AND job_id < :end ORDER BY job_id DESC LIMIT {_RUNS}"
        )
        keys = f"SELECT j.id FROM ({of_cluster}) r JOIN jobs j ON j.id = r.job_id AND j.attempt = r.attempt WHERE {others}{in_queues}"
        found = list(await _page_of_keys(tx, keys, parameters | {"limit": limit}))
        if len(found) == limit:
            return found
    newest = (
        f"SELECT j.id FROM (SELECT * FROM jobs WHERE id >= :edge AND id < :end ORDER BY id DESC OFFSET 0) j"
        f" WHERE {others}{in_queues}"
    )
    found = list(await _page_of_keys(tx, newest, parameters | {"limit": limit}))
    if len(found) == limit or parameters["edge"] == span.first:
        return found
    parameters["limit"] = limit - len(found)
    older = "j.id >= :first AND j.id < :edge"
    labelled, _ = wanted.labelled()
    if not labelled:
        rest = f"SELECT r.id FROM (SELECT j.id FROM jobs j WHERE {others}{in_queues} AND {older} OFFSET 0) r"
        return [*found, *await _page_of_keys(tx, rest, parameters)]
    # What else is wanted is looked for among the rows that were found: how many these are the planner cannot know where labels go
    # together, and it would read all jobs rather than join what it takes for many.
    rest, _ = wanted.others(has_labels=False)
    unlabelled, _ = wanted.unlabelled()
    labels = " AND ".join(filter(None, (labelled, unlabelled)))
    keys = f"SELECT j.id FROM found j WHERE {rest}{in_queues}"
    first = f"SELECT {_FILTERED} FROM jobs j WHERE {labels} AND {older}"
    return [*found, *await _page_of_keys(tx, keys, parameters, first)]


class _Span(NamedTuple):
    """Keys of jobs, from ``first`` to ``end``, which is not one of them."""

    first: int
    end: int


async def _span_of(tx: Transaction, wanted: Filter, before: int | None) -> _Span:
    """Return the keys among which jobs of a filter can be, by the times of its submissions.

    Keys rise with the time of submission, but for transactions at the same time: the span is wider by ``_AT_ONCE``.
    """
    row = await tx.one("SELECT coalesce(min(id), 1) AS first, coalesce(max(id), 0) + 1 AS last FROM jobs")
    first, end = int(row.first), int(row.last) if before is None else min(before, int(row.last))
    if wanted.since is not None:
        first = max(first, await _key_at(tx, wanted.since - _AT_ONCE))
    if wanted.until is not None:
        end = min(end, await _key_at(tx, wanted.until + _AT_ONCE))
    return _Span(first, max(first, end))


async def _key_at(tx: Transaction, at: datetime) -> int:
    """Return the key of the first job that was submitted at a moment or later, searched by halves; one more than all without any."""
    row = await tx.one(
        """
        WITH RECURSIVE s(low, high) AS (
            SELECT coalesce(min(id), 1), coalesce(max(id), 0) + 1 FROM jobs
            UNION ALL
            SELECT CASE WHEN p.submitted_at < :at THEN p.id + 1 ELSE s.low END,
                   CASE WHEN p.submitted_at < :at THEN s.high ELSE (s.low + s.high) / 2 END
            FROM s CROSS JOIN LATERAL (SELECT id, submitted_at FROM jobs WHERE id >= (s.low + s.high) / 2 ORDER BY id LIMIT 1) p
            WHERE s.low < s.high
        )
        SELECT max(low) AS key FROM s
        """,
        at=at,
    )
    return int(row.key)


async def _page_without(
    tx: Transaction, wanted: Filter, before: int | None, limit: int, excluded: Sequence[ExcludedLabel]
) -> Sequence[ShownJob] | None:
    """Return a page of jobs that must not have some labels: of the newest ones, then of the blocks where there can be such jobs, a few
    at a time. None where there are many such blocks, and the index of the labels that they must have is to find them.
    """
    places = await label_blocks.candidates(tx, excluded, before)
    end = places.last + 1 if before is None else before
    edge = min(places.young, max(0, end - _WINDOW) // BLOCK * BLOCK)
    blocks = [block for block in places.blocks if block * BLOCK < edge]
    if wanted.labelled()[0] and len(blocks) > _MOST_BLOCKS_FOR_LABELS:
        return None
    queues, parameters = wanted.queues()
    others, more = wanted.others()
    in_queues = "" if queues is None else f" AND j.queue_id IN ({queues})"
    parameters |= more | {"end": end}
    newest = (
        f"SELECT j.id FROM (SELECT * FROM jobs WHERE id >= :edge AND id < :end ORDER BY id DESC OFFSET 0) j"
        f" WHERE {others}{in_queues}"
    )
    found = list(await _page_of_keys(tx, newest, parameters | {"edge": edge, "limit": limit}))
    # The offset keeps the planner from looking up the labels in their index, for each block again.
    in_blocks = (
        f"SELECT j.id FROM unnest(CAST(:blocks AS bigint[])) b CROSS JOIN LATERAL (SELECT * FROM jobs"
        f" WHERE id >= b * {BLOCK} AND id < least((b + 1) * {BLOCK}, :end) OFFSET 0) j WHERE {others}{in_queues}"
    )
    many = _FIRST_BLOCKS
    while blocks and len(found) < limit:
        some, blocks, many = blocks[:many], blocks[many:], many * 4
        found += await _page_of_keys(tx, in_blocks, parameters | {"blocks": some, "limit": limit - len(found)})
    return found


async def _page_of_keys(
    tx: Transaction, keys: str, named: dict[str, Any], labelled: str = "", *, is_usual: bool = False
) -> Sequence[ShownJob]:
    """Return the jobs with the highest keys that a statement finds. ``labelled``: a statement whose rows it knows as ``found``;
    ``is_usual``: one plan is good for all parameters.
    """
    first = f"found AS MATERIALIZED ({labelled})," if labelled else ""
    rows_of = tx.all_of if is_usual else tx.planned_of
    return await rows_of(
        ShownJob,
        f"""
        WITH {first} page AS MATERIALIZED ({keys} ORDER BY id DESC LIMIT :limit)
        {_COLUMNS_OF_VIEW} FROM page JOIN jobs j ON j.id = page.id {_JOINS_OF_VIEW} ORDER BY j.id DESC
        """,
        **named,
    )


async def workload(
    tx: Transaction, begin: datetime, end: datetime, before: int | None, limit: int
) -> Sequence[PastJob]:
    """Return jobs that were submitted from ``begin`` to ``end`` and have ended, latest first, each with its last run that was at
    work.

    The jobs are found by their keys, which rise with their submission.
    """
    return await tx.all_of(
        PastJob,
        f"""
        SELECT j.id, extract(epoch FROM {WAITS_SINCE})::float8 AS submitted, j.spec_id, q.path AS queue, p.name AS priority_class,
               j.priority, (SELECT k.name FROM api_keys k WHERE k.id = j.api_key_id) AS submitter,
               extract(epoch FROM j.started_at - {WAITS_SINCE})::float8 AS waited,
               (SELECT extract(epoch FROM r.ended_at - r.started_at)::float8 FROM runs r
                WHERE r.job_id = j.id AND r.started_at IS NOT NULL AND r.ended_at IS NOT NULL
                ORDER BY r.attempt DESC LIMIT 1) AS run
        FROM (SELECT * FROM jobs WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit) j
        JOIN queues q ON q.id = j.queue_id JOIN priority_classes p ON p.id = j.class_id
        WHERE j.submitted_at >= :begin AND j.submitted_at < :end AND j.ended_at IS NOT NULL ORDER BY j.id DESC
        """,
        begin=begin,
        end=end,
        before=before,
        limit=limit,
    )


async def count_submitted(tx: Transaction, begin: datetime, end: datetime, most: int) -> int:
    """Return how many of the latest ``most`` jobs were submitted from ``begin`` until before ``end``."""
    row = await tx.one(
        """
        SELECT count(*) AS many FROM (SELECT submitted_at FROM jobs ORDER BY id DESC LIMIT :most) latest
        WHERE submitted_at >= :begin AND submitted_at < :end
        """,
        begin=begin,
        end=end,
        most=most,
    )
    return int(row.many)


async def oldest_of_page(tx: Transaction, before: int | None, limit: int) -> LastOfPage | None:
    """Return the last job of the page that ``workload`` scans, whether ``workload`` returns it or not."""
    return await tx.first_of(
        LastOfPage,
        """
        SELECT id, submitted_at, count(*) OVER () AS many FROM (
            SELECT id, submitted_at FROM jobs WHERE CAST(:before AS bigint) IS NULL OR id < :before
            ORDER BY id DESC LIMIT :limit) page ORDER BY id LIMIT 1
        """,
        before=before,
        limit=limit,
    )


async def view(tx: Transaction, job_id: int) -> ShownJob | None:
    return await tx.first_of(ShownJob, f"{_COLUMNS_OF_VIEW} FROM jobs j {_JOINS_OF_VIEW} WHERE j.id = :id", id=job_id)


async def views(tx: Transaction, job_ids: Sequence[int]) -> Sequence[ShownJob]:
    """Return those of these jobs that exist."""
    return await tx.all_of(
        ShownJob, f"{_COLUMNS_OF_VIEW} FROM jobs j {_JOINS_OF_VIEW} WHERE j.id = ANY(:ids)", ids=list(job_ids)
    )


class _FoundJob(NamedTuple):
    id: int


class _FoundJobs(NamedTuple):
    many: int


async def matching(tx: Transaction, wanted: Filter, after: int, limit: int) -> list[int]:
    """Return keys of jobs that match, in order, beyond ``after``."""
    where, parameters = wanted.where()
    rows = await tx.planned_of(
        _FoundJob,
        f"SELECT j.id FROM jobs j WHERE {where} AND j.id > :after ORDER BY j.id LIMIT :limit",
        after=after,
        limit=limit,
        **parameters,
    )
    return [row.id for row in rows]


async def count_matching(tx: Transaction, wanted: Filter) -> int:
    where, parameters = wanted.where()
    (row,) = await tx.planned_of(_FoundJobs, f"SELECT count(*) AS many FROM jobs j WHERE {where}", **parameters)
    return row.many


async def last_wait(tx: Transaction, job_id: int) -> dict[str, Any] | None:
    """Return what a job waited for before it was last dispatched: token and sentence of its reason at that time."""
    rows = await tx.all(
        f"""
        SELECT details->'waitedFor' AS waited FROM events
        WHERE job_id = :job AND kind = '{JobEventKind.DISPATCHED}' ORDER BY seq DESC LIMIT 1
        """,
        job=job_id,
    )
    waited: dict[str, Any] | None = rows[0].waited if rows else None
    return waited


async def versions(tx: Transaction, job_ids: Iterable[int]) -> dict[int, int]:
    """Return the versions of those of these jobs that exist."""
    rows = await tx.all("SELECT id, version FROM jobs WHERE id = ANY(:ids)", ids=list(job_ids))
    return {row.id: row.version for row in rows}


async def standing(tx: Transaction, job_id: int) -> JobVersion | None:
    """Return state and version of a job."""
    return await tx.first_of(JobVersion, "SELECT state, version FROM jobs WHERE id = :id", id=job_id)


async def events_after(tx: Transaction, job_id: int, seq: int, limit: int) -> Sequence[StoredEvent]:
    """Return events of a job beyond version ``seq``, in order.

    The first event is read from the job's row, and so is the newest where retention has removed it.
    """
    return await tx.all_of(
        StoredEvent,
        f"""
        SELECT 1 AS seq, j.submitted_at AS at, '{JobEventKind.SUBMITTED}' AS kind,
               ARRAY[CASE WHEN (s.spec->>'suspend')::bool THEN 'held' ELSE 'queued' END] AS states, NULL::int AS attempt,
               NULL AS cluster, k.name AS actor, '' AS message, NULL::jsonb AS details
        FROM jobs j JOIN api_keys k ON k.id = j.api_key_id LEFT JOIN job_specs s ON s.id = j.spec_id
        WHERE j.id = :job AND :seq < 1
        UNION ALL
        SELECT e.seq, e.at, e.kind, e.states, e.attempt, c.name AS cluster, e.actor, e.message, e.details
        FROM events e LEFT JOIN clusters c ON c.id = e.cluster_id
        WHERE e.job_id = :job AND e.seq > :seq
        UNION ALL
        SELECT j.version, coalesce(j.ended_at, j.started_at, j.submitted_at), '{JobEventKind.NOW}', ARRAY[j.state::text],
               nullif(j.attempt, 0), NULL, '', j.message, NULL
        FROM jobs j WHERE j.id = :job AND j.version > greatest(:seq, 1)
          AND NOT EXISTS (SELECT 1 FROM events e WHERE e.job_id = j.id AND e.seq = j.version)
        ORDER BY seq LIMIT :limit
        """,
        job=job_id,
        seq=seq,
        limit=limit,
    )
