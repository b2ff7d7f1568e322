"""Jobs, their specs and shapes, and the events of their transitions.

Every change of a job goes through ``write``: new values, the next version and one event, in the caller's transaction.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from trainmaster.dispatcher.domain.job_machine import Job
from trainmaster.dispatcher.store.database import Transaction, dumps
from trainmaster.dispatcher.store.tables import WAITING_JOB
from trainmaster.protocol.states import HoldCause, JobState, Wish


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
    job: Job


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of one job, and the event that tells it. ``record`` is the job before, ``job`` after."""

    record: JobRecord
    job: Job
    kind: str
    states: tuple[str, ...] = ()
    attempt: int | None = None
    cluster_id: int | None = None
    actor: str = ""
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    priority: int | None = None
    class_id: int | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored."""

    name: str
    queue_id: int
    class_id: int
    priority: int
    shape_id: int
    spec: str
    """The specification as JSON text."""
    held: bool
    labels: dict[str, str]


_COLUMNS = (
    "id, version, name, queue_id, class_id, priority, shape_id, spec_id, state, hold_cause,"
    " extract(epoch FROM hold_until)::float8 AS hold_until, wish, attempt, retries_used, losses, returns, message"
)


def _record(row: Row[Any]) -> JobRecord:
    return JobRecord(
        id=row.id,
        version=row.version,
        name=row.name,
        queue_id=row.queue_id,
        class_id=row.class_id,
        priority=row.priority,
        shape_id=row.shape_id,
        spec_id=row.spec_id,
        job=Job(
            state=JobState(row.state),
            hold_cause=None if row.hold_cause is None else HoldCause(row.hold_cause),
            hold_until=row.hold_until,
            wish=None if row.wish is None else Wish(row.wish),
            attempt=row.attempt,
            retries_used=row.retries_used,
            losses=row.losses,
            returns=row.returns,
            message=row.message,
        ),
    )


async def lock(tx: Transaction, ids: Iterable[int]) -> dict[int, JobRecord]:
    """The jobs with these keys, locked in the order of their keys so that no two callers wait for each other."""
    rows = await tx.all(
        f"SELECT {_COLUMNS} FROM jobs WHERE id = ANY(:ids) ORDER BY id FOR UPDATE",
        ids=sorted(set(ids)),
    )
    return {row.id: _record(row) for row in rows}


async def shape_ids(tx: Transaction, shapes: dict[bytes, bytes]) -> dict[bytes, int]:
    """The ids of shapes by fingerprint, made where they are new."""
    hashes = list(shapes)
    found = await tx.all("SELECT id, hash FROM shapes WHERE hash = ANY(:hashes)", hashes=hashes)
    ids = {bytes(row.hash): row.id for row in found}
    fresh = [value for value in hashes if value not in ids]
    if fresh:
        await tx.run(
            """
            INSERT INTO shapes (hash, body)
            SELECT h, b::jsonb FROM unnest(CAST(:hashes AS bytea[]), CAST(:bodies AS text[])) AS n(h, b) ORDER BY h
            ON CONFLICT (hash) DO NOTHING
            """,
            hashes=fresh,
            bodies=[shapes[value].decode() for value in fresh],
        )
        rows = await tx.all("SELECT id, hash FROM shapes WHERE hash = ANY(:hashes)", hashes=fresh)
        ids |= {bytes(row.hash): row.id for row in rows}
    return ids


async def insert(tx: Transaction, jobs: Sequence[NewJob], api_key_id: int, actor: str) -> list[int]:
    """Store new jobs with their first event; their keys in the order given."""
    rows = await tx.all(
        """
        WITH numbered AS MATERIALIZED (
            SELECT n, nextval(pg_get_serial_sequence('jobs', 'id')) AS id,
                   nextval(pg_get_serial_sequence('job_specs', 'id')) AS spec_id
            FROM generate_series(1, :many) AS n ORDER BY n
        ), given AS MATERIALIZED (
            SELECT numbered.id, numbered.spec_id, item.*
            FROM numbered JOIN unnest(
                CAST(:names AS text[]), CAST(:queues AS int[]), CAST(:classes AS smallint[]), CAST(:priorities AS smallint[]),
                CAST(:shapes AS int[]), CAST(:specs AS text[]), CAST(:states AS text[]), CAST(:labels AS text[])
            ) WITH ORDINALITY AS item(name, queue_id, class_id, priority, shape_id, spec, state, labels, n) USING (n)
        ), specs AS (
            INSERT INTO job_specs (id, spec) OVERRIDING SYSTEM VALUE SELECT spec_id, spec::jsonb FROM given
        ), made AS (
            INSERT INTO jobs (id, name, queue_id, class_id, priority, shape_id, spec_id, api_key_id, state, hold_cause, labels)
            OVERRIDING SYSTEM VALUE
            SELECT id, name, queue_id, class_id, priority, shape_id, spec_id, :api_key_id, state::job_state,
                   CASE state WHEN 'held' THEN 'user'::hold_cause END, labels::jsonb
            FROM given
        ), told AS (
            INSERT INTO events (job_id, seq, kind, states, actor)
            SELECT id, 1, 'submitted', ARRAY[state], :actor FROM given
        )
        SELECT id FROM given ORDER BY n
        """,
        many=len(jobs),
        names=[job.name for job in jobs],
        queues=[job.queue_id for job in jobs],
        classes=[job.class_id for job in jobs],
        priorities=[job.priority for job in jobs],
        shapes=[job.shape_id for job in jobs],
        specs=[job.spec for job in jobs],
        states=["held" if job.held else "queued" for job in jobs],
        labels=[dumps(job.labels) if job.labels else None for job in jobs],
        api_key_id=api_key_id,
        actor=actor,
    )
    return [row.id for row in rows]


async def write(tx: Transaction, transitions: Sequence[Transition]) -> None:
    """Store changed jobs, each with its next version and its event. The rows must be locked."""
    if not transitions:
        return
    await tx.run(
        """
        UPDATE jobs SET
            version = jobs.version + 1, state = n.state::job_state, hold_cause = n.hold_cause::hold_cause,
            hold_until = to_timestamp(n.hold_until), wish = n.wish::wish, attempt = n.attempt,
            retries_used = n.retries_used, losses = n.losses, returns = n.returns, message = n.message,
            priority = n.priority, class_id = n.class_id,
            started_at = CASE WHEN n.state = 'running' THEN coalesce(jobs.started_at, now())
                              WHEN n.state = 'succeeded' THEN coalesce(jobs.started_at, now())
                              ELSE jobs.started_at END,
            ended_at = CASE WHEN n.state IN ('succeeded', 'failed', 'cancelled') THEN coalesce(jobs.ended_at, now()) END
        FROM unnest(
            CAST(:ids AS bigint[]), CAST(:states AS text[]), CAST(:causes AS text[]), CAST(:untils AS float8[]),
            CAST(:wishes AS text[]), CAST(:attempts AS int[]), CAST(:retries AS smallint[]), CAST(:losses AS smallint[]),
            CAST(:returns AS smallint[]), CAST(:messages AS text[]), CAST(:priorities AS smallint[]),
            CAST(:classes AS smallint[])
        ) AS n(id, state, hold_cause, hold_until, wish, attempt, retries_used, losses, returns, message, priority, class_id)
        WHERE jobs.id = n.id
        """,
        ids=[t.record.id for t in transitions],
        states=[t.job.state.value for t in transitions],
        causes=[None if t.job.hold_cause is None else t.job.hold_cause.value for t in transitions],
        untils=[t.job.hold_until for t in transitions],
        wishes=[None if t.job.wish is None else t.job.wish.value for t in transitions],
        attempts=[t.job.attempt for t in transitions],
        retries=[t.job.retries_used for t in transitions],
        losses=[t.job.losses for t in transitions],
        returns=[t.job.returns for t in transitions],
        messages=[t.job.message[:2000] for t in transitions],
        priorities=[t.record.priority if t.priority is None else t.priority for t in transitions],
        classes=[t.record.class_id if t.class_id is None else t.class_id for t in transitions],
    )
    await tx.run(
        """
        INSERT INTO events (job_id, seq, kind, states, attempt, cluster_id, actor, message, details)
        SELECT job_id, seq, kind, string_to_array(states, ','), attempt, cluster_id, actor, message, details::jsonb
        FROM unnest(
            CAST(:ids AS bigint[]), CAST(:seqs AS int[]), CAST(:kinds AS text[]), CAST(:states AS text[]),
            CAST(:attempts AS int[]), CAST(:clusters AS int[]), CAST(:actors AS text[]), CAST(:messages AS text[]),
            CAST(:details AS text[])
        ) AS n(job_id, seq, kind, states, attempt, cluster_id, actor, message, details)
        """,
        ids=[t.record.id for t in transitions],
        seqs=[t.record.version + 1 for t in transitions],
        kinds=[t.kind for t in transitions],
        states=[",".join(t.states) for t in transitions],
        attempts=[t.attempt for t in transitions],
        clusters=[t.cluster_id for t in transitions],
        actors=[t.actor for t in transitions],
        messages=[t.message[:2000] for t in transitions],
        details=[dumps(t.details) if t.details else None for t in transitions],
    )


async def specs(tx: Transaction, spec_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    rows = await tx.all("SELECT id, spec FROM job_specs WHERE id = ANY(:ids)", ids=sorted(set(spec_ids)))
    return {row.id: row.spec for row in rows}


async def due_holds(tx: Transaction, limit: int) -> list[int]:
    """Keys of held jobs whose hold has ended by the clock."""
    rows = await tx.all(
        "SELECT id FROM jobs WHERE state = 'held' AND hold_until IS NOT NULL AND hold_until <= now() ORDER BY hold_until"
        " LIMIT :limit",
        limit=limit,
    )
    return [row.id for row in rows]


async def count_waiting(tx: Transaction, queue_id: int, at_most: int) -> int:
    """How many jobs wait in a queue, counted up to ``at_most``; other submitters to the queue wait for this transaction."""
    await tx.one("SELECT pg_advisory_xact_lock(1953653617, :queue)", queue=queue_id)
    row = await tx.one(
        f"SELECT count(*) AS many FROM (SELECT 1 FROM jobs WHERE queue_id = :queue AND {WAITING_JOB} LIMIT :most) AS w",
        queue=queue_id,
        most=at_most,
    )
    return int(row.many)


async def state_counts(tx: Transaction, queue_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Jobs by state for each of these queues."""
    rows = await tx.all(
        "SELECT queue_id, state, count(*) AS many FROM jobs WHERE queue_id = ANY(:ids) GROUP BY queue_id, state",
        ids=list(queue_ids),
    )
    out: dict[int, dict[str, int]] = {queue_id: {} for queue_id in queue_ids}
    for row in rows:
        out[row.queue_id][row.state] = row.many
    return out


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are meant. ``queue_ids`` None means all queues."""

    queue_ids: tuple[int, ...] | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    class_id: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    cluster: str | None = None

    def where(self) -> tuple[str, dict[str, Any]]:
        """The condition and its parameters."""
        parts, parameters = ["true"], dict[str, Any]()
        if self.queue_ids is not None:
            parts.append("j.queue_id = ANY(:f_queues)")
            parameters["f_queues"] = list(self.queue_ids)
        if self.states:
            parts.append("coalesce(j.wish::text, j.state::text) = ANY(:f_states)")
            parameters["f_states"] = list(self.states)
        if self.name is not None:
            parts.append("j.name LIKE :f_name")
            parameters["f_name"] = re.sub(r"([\\%_])", r"\\\1", self.name).replace("*", "%")
        if self.class_id is not None:
            parts.append("j.class_id = :f_class")
            parameters["f_class"] = self.class_id
        if self.labels:
            parts.append("j.labels @> CAST(:f_labels AS jsonb)")
            parameters["f_labels"] = dumps(self.labels)
        if self.cluster is not None:
            parts.append(
                "EXISTS (SELECT 1 FROM runs r JOIN clusters c ON c.id = r.cluster_id"
                " WHERE r.job_id = j.id AND r.attempt = j.attempt AND c.name = :f_cluster)"
            )
            parameters["f_cluster"] = self.cluster
        return " AND ".join(parts), parameters


_VIEW = """
    SELECT j.id, j.name, j.version, q.path AS queue, p.name AS priority_class, j.priority, j.state, j.wish, j.hold_cause,
           j.hold_until, j.attempt, j.retries_used, j.message, j.submitted_at, j.started_at, j.ended_at, j.labels,
           j.spec_id, j.queue_id, j.class_id, j.shape_id, k.name AS submitted_by, c.name AS cluster
    FROM jobs j
    JOIN queues q ON q.id = j.queue_id
    JOIN priority_classes p ON p.id = j.class_id
    LEFT JOIN api_keys k ON k.id = j.api_key_id
    LEFT JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt
    LEFT JOIN clusters c ON c.id = r.cluster_id
"""


async def page(tx: Transaction, wanted: Filter, before: int | None, limit: int) -> Sequence[Row[Any]]:
    """Jobs that match, newest first, older than the one with key ``before``."""
    where, parameters = wanted.where()
    cut = "" if before is None else " AND j.id < :before"
    if before is not None:
        parameters["before"] = before
    return await tx.all(f"{_VIEW} WHERE {where}{cut} ORDER BY j.id DESC LIMIT :limit", limit=limit, **parameters)


async def view(tx: Transaction, job_id: int) -> Row[Any] | None:
    return await tx.first(f"{_VIEW} WHERE j.id = :id", id=job_id)


async def matching(tx: Transaction, wanted: Filter, after: int, limit: int) -> list[int]:
    """Keys of jobs that match, in order, beyond ``after``."""
    where, parameters = wanted.where()
    rows = await tx.all(
        f"SELECT j.id FROM jobs j WHERE {where} AND j.id > :after ORDER BY j.id LIMIT :limit",
        after=after,
        limit=limit,
        **parameters,
    )
    return [row.id for row in rows]


async def count_matching(tx: Transaction, wanted: Filter) -> int:
    where, parameters = wanted.where()
    return int((await tx.one(f"SELECT count(*) AS many FROM jobs j WHERE {where}", **parameters)).many)


async def events_after(tx: Transaction, job_id: int, seq: int, limit: int) -> Sequence[Row[Any]]:
    """Events of a job beyond version ``seq``, in order."""
    return await tx.all(
        """
        SELECT e.seq, e.at, e.kind, e.states, e.attempt, c.name AS cluster, e.actor, e.message, e.details
        FROM events e LEFT JOIN clusters c ON c.id = e.cluster_id
        WHERE e.job_id = :job AND e.seq > :seq ORDER BY e.seq LIMIT :limit
        """,
        job=job_id,
        seq=seq,
        limit=limit,
    )


def to_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
