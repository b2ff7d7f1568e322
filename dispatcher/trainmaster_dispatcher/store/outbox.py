"""The outbox: messages to webhooks, by e-mail and to chats, written in the transaction of the change that they report, and deleted
when they are delivered.

Messages of one job, or of one workflow, to one webhook are sent in the order of their ids: only the first of them that is not dead,
the *head*, is ever claimed. A claim sets a later ``next_at``, so that it ends without further action when the claimant dies.

The column ``job_id`` of a message of a workflow has the workflow's key with its sign changed: jobs' keys are above zero.

A message of a group, or of a user's preferences, has no ``job_id``, and no other message comes before it.

Messages by e-mail and to chats have their address themselves, as ``domain.notices`` writes it; those to webhooks get it from the
specification. Each recipient of an entry of ``notify`` has messages of its own, so that none waits for another: ``hook`` of a message
by e-mail is the entry's index, and ``MOST_HOOKS`` more for each recipient before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, final

from trainmaster.protocol.ids import job_id
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.domain.job_events import ABOUT_DEADLINES, JobEventKind
from trainmaster_dispatcher.domain.webhooks import BODY_VERSION, states_passed
from trainmaster_dispatcher.store.database import Transaction, dumps

if TYPE_CHECKING:
    from trainmaster_dispatcher.store.jobs import Transition

_DEFAULT_STATES = "ARRAY['" + "', '".join(state.value for state in JobState if state.is_terminal) + "']"
"""The states that a webhook without ``states`` is notified of; specifications are stored without default values."""
MOST_HOOKS = 8
"""The most entries of the ``notify`` of a job or a workflow."""
_OF_DEADLINES = "n.kind IN ('" + "', '".join(ABOUT_DEADLINES) + "')"

_BODY = f"""
    jsonb_build_object(
        'version', {BODY_VERSION}, 'job', n.id, 'name', j.name, 'queue', q.path, 'labels', coalesce(j.labels, '{{}}'),
        'parameters', coalesce(j.parameters, '{{}}'), 'seq', n.seq, 'event', n.kind,
        'states', CASE WHEN {_OF_DEADLINES} THEN '[]' ELSE to_jsonb(n.passed) END,
        'state', n.passed[cardinality(n.passed)], 'attempt', n.attempt, 'cluster', c.name, 'message', n.message,
        'at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
"""
_TIMES = """
    jsonb_build_object(
        'startedAt', to_char(j.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'endedAt', to_char(j.ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
"""
"""The fields that messages for people have beside those of a webhook."""
_TRANSITIONS = """
    (
        SELECT job_id, id, seq, kind, string_to_array(passed, ',') AS passed, attempt, cluster_id, message
        FROM unnest(
            CAST(:keys AS bigint[]), CAST(:ids AS text[]), CAST(:seqs AS int[]), CAST(:kinds AS text[]),
            CAST(:passed AS text[]), CAST(:attempts AS int[]), CAST(:clusters AS int[]), CAST(:messages AS text[])
        ) AS u(job_id, id, seq, kind, passed, attempt, cluster_id, message)
    ) AS n
    JOIN jobs j ON j.id = n.job_id
    JOIN queues q ON q.id = j.queue_id
    LEFT JOIN clusters c ON c.id = n.cluster_id
"""
_INSERT = f"""
    INSERT INTO outbox (job_id, seq, hook, url, body)
    SELECT n.job_id, n.seq, h.number - 1 + a.hooks, a.url, {_BODY} || CASE WHEN a.url IS NULL THEN '{{}}' ELSE {_TIMES} END
    FROM {_TRANSITIONS}
    JOIN job_specs s ON s.id = j.spec_id
    CROSS JOIN LATERAL jsonb_array_elements(s.spec->'notify') WITH ORDINALITY AS h(hook, number)
    CROSS JOIN LATERAL (
        SELECT NULL::text AS url, 0 AS hooks WHERE h.hook ? 'url'
        UNION ALL
        SELECT (h.hook->'chat'->>'format') || '+' || (h.hook->'chat'->>'url'), 0 WHERE h.hook ? 'chat'
        UNION ALL
        SELECT 'mailto:' || e.address, (e.place - 1)::int * {MOST_HOOKS}
        FROM jsonb_array_elements_text(h.hook->'email') WITH ORDINALITY AS e(address, place)
    ) AS a
    WHERE h.hook->'group' IS DISTINCT FROM 'true' AND CASE WHEN {_OF_DEADLINES} THEN h.hook->'deadline' = 'true'
          ELSE CASE WHEN h.hook ? 'states' THEN h.hook->'states' ELSE to_jsonb({_DEFAULT_STATES}) END ?| n.passed END
    ORDER BY n.job_id, n.seq
"""
_WARNINGS = (JobEventKind.SESSION_WARNING, JobEventKind.GPU_IDLE)
_OF_USERS = (*ABOUT_DEADLINES, *_WARNINGS)
_ENDS = "('" + "', '".join(state.value for state in JobState if state.is_terminal) + "')"
_EVENT = f"""
    CASE WHEN {_OF_DEADLINES} OR n.kind IN ('{"', '".join(_WARNINGS)}') THEN n.kind ELSE n.passed[cardinality(n.passed)] END
"""
_INSERT_OF_USERS = f"""
    INSERT INTO notice_events (api_key_id, body)
    SELECT j.api_key_id, {_BODY} || {_TIMES}
    FROM notice_preferences p CROSS JOIN {_TRANSITIONS}
    WHERE p.api_key_id = j.api_key_id AND coalesce(p.spec->'events', '["failed", "succeeded"]') ? ({_EVENT})
    AND (({_EVENT}) NOT IN {_ENDS} OR coalesce(extract(epoch FROM j.ended_at - j.started_at), 0) >= p.least_seconds)
    ORDER BY n.job_id, n.seq
"""


@final
class MessageBody(TypedDict):
    """The body of a webhook message, as it is stored and sent. ``event``: a ``JobEventKind``, or one of the release that wrote it.

    One about a workflow has ``workflow``, ``steps``, ``step`` and ``link`` instead of ``job``, ``parameters`` and ``cluster``, and a
    ``WorkflowEventKind``.
    """

    version: int
    job: NotRequired[str]
    workflow: NotRequired[str]
    name: str
    queue: str
    labels: dict[str, str]
    parameters: NotRequired[dict[str, Any]]
    seq: int
    event: str
    states: list[str]
    state: str
    attempt: int | None
    cluster: NotRequired[str | None]
    steps: NotRequired[dict[str, int]]
    step: NotRequired[str | None]
    link: NotRequired[str]
    message: str
    at: str


@final
class GroupMessageBody(TypedDict):
    """The body of a message about a group that has ended. The numbers are those of its jobs by outcome, ``jobs`` that of all."""

    version: int
    group: str
    queue: str
    event: str
    state: str
    jobs: int
    succeeded: int
    failed: int
    cancelled: int
    createdAt: str
    closedAt: str
    at: str


@final
class DigestBody(TypedDict):
    """The body of a message about many events of a user's jobs. ``digest``: its number; ``jobs``: bodies about the first of them."""

    version: int
    digest: str
    event: str
    state: str
    counts: dict[str, int]
    since: str
    until: str
    jobs: list[dict[str, Any]]


GROUP_ENDED = "groupEnded"
"""The event of a message about a group."""
_TIME = """'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'"""


@dataclass(frozen=True, slots=True)
class PublishedTransition:
    """A transition as its receivers see it. ``passed``: the states that the job entered; of an event about its deadline, its state."""

    key: int
    name: str
    seq: int
    kind: JobEventKind
    passed: tuple[str, ...]
    attempt: int | None = None
    cluster_id: int | None = None
    message: str = ""


async def add(tx: Transaction, transitions: Iterable["Transition"]) -> None:
    """Write the messages of these transitions; skip those of jobs without webhooks."""
    published = [
        PublishedTransition(
            t.record.id, t.record.name, t.record.version + 1, t.kind, passed, t.attempt, t.cluster_id, t.message[:2000]
        )
        for t in transitions
        if t.record.notifies and (passed := _passed(t))
    ]
    await insert(tx, published)


def _passed(t: "Transition") -> tuple[str, ...]:
    return (t.job.state.value,) if t.kind.is_about_deadline else states_passed(t.record.job, t.job, t.states)


async def insert(tx: Transaction, transitions: Sequence[PublishedTransition]) -> None:
    """Write one message for each transition and each receiver of its job that subscribes to any of its states."""
    if transitions:
        await tx.run(_INSERT, **_columns_of(transitions))


def _columns_of(transitions: Sequence[PublishedTransition]) -> dict[str, Any]:
    return {
        "keys": [one.key for one in transitions],
        "ids": [job_id(one.name, one.key) for one in transitions],
        "seqs": [one.seq for one in transitions],
        "kinds": [one.kind for one in transitions],
        "passed": [",".join(one.passed) for one in transitions],
        "attempts": [one.attempt for one in transitions],
        "clusters": [one.cluster_id for one in transitions],
        "messages": [one.message for one in transitions],
    }


async def add_of_users(tx: Transaction, transitions: Iterable["Transition"]) -> None:
    """Write the events that the owners of these jobs want to be notified of by their preferences."""
    published = [
        PublishedTransition(
            t.record.id,
            t.record.name,
            t.record.version + 1,
            t.kind,
            (t.job.state.value,),
            t.attempt,
            t.cluster_id,
            t.message[:2000],
        )
        for t in transitions
        if (t.job.state.is_terminal and t.job.state is not t.record.job.state) or t.kind in _OF_USERS
    ]
    if published:
        await tx.run(_INSERT_OF_USERS, **_columns_of(published))


async def add_ended_groups(tx: Transaction, group_ids: Sequence[int]) -> None:
    """Write one message for each webhook of these groups, which have ended."""
    await tx.run(
        f"""
        INSERT INTO outbox (group_id, url, seq, hook, body)
        SELECT g.id, h.url, 1, (row_number() OVER (PARTITION BY g.id ORDER BY h.url) - 1)::smallint, jsonb_build_object(
            'version', {BODY_VERSION}, 'group', g.name, 'queue', q.path, 'event', '{GROUP_ENDED}', 'state', g.state,
            'jobs', g.total, 'succeeded', g.succeeded, 'failed', g.failed, 'cancelled', g.cancelled,
            'createdAt', to_char(g.created_at AT TIME ZONE 'UTC', {_TIME}),
            'closedAt', to_char(g.closed_at AT TIME ZONE 'UTC', {_TIME}), 'at', to_char(now() AT TIME ZONE 'UTC', {_TIME}))
        FROM job_groups g JOIN queues q ON q.id = g.queue_id JOIN group_hooks h ON h.group_id = g.id
        WHERE g.id = ANY(:ids) ORDER BY g.id, h.url
        """,
        ids=list(group_ids),
    )


class WorkflowMessage(NamedTuple):
    """A message about a workflow to a receiver, by the index in its ``notify``. ``body``: without the time; ``url``: None for a
    webhook.
    """

    seq: int
    hook: int
    body: Mapping[str, Any]
    url: str | None = None


async def insert_of_workflow(tx: Transaction, key: int, messages: Sequence[WorkflowMessage]) -> None:
    """Write messages about a workflow."""
    await tx.run(
        """
        INSERT INTO outbox (job_id, seq, hook, url, body)
        SELECT -CAST(:key AS bigint), seq, hook, url, body || jsonb_build_object(
            'at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
        FROM json_to_recordset(CAST(:rows AS json)) AS n(seq int, hook int, body jsonb, url text) ORDER BY seq, hook
        """,
        key=key,
        rows=dumps([one._asdict() for one in messages]),
    )


@dataclass(frozen=True, slots=True)
class Message:
    """A claimed message. ``url`` is None when the job or its specification, or the workflow, was removed; ``job_id`` of a message of a
    group or of a user's preferences; ``api_key_id``: the user's.
    """

    id: int
    job_id: int | None
    hook: int
    seq: int
    body: MessageBody | GroupMessageBody | DigestBody
    attempts: int
    url: str | None
    secret_versions: tuple[int, ...] = (1,)
    """Versions of the secrets of the job's queue that sign the message: the current one, and the previous one while both are
    accepted.
    """
    group_id: int | None = None
    api_key_id: int | None = None

    @property
    def about(self) -> str:
        """Return the id of the job or the workflow, or for a group or a digest a text of its own."""
        if "digest" in self.body:
            return f"digest-{self.body['digest']}"
        if "group" in self.body:
            return f"group-{self.group_id}"
        return self.body["job"] if "job" in self.body else self.body["workflow"]

    @property
    def event(self) -> str:
        """Return what the message reports, the same text for each attempt to send it."""
        return f"{self.about}/{self.seq}"


class _ClaimedRow(NamedTuple):
    """A claimed message. ``version``: of the secret of the job's queue; ``overlaps``: whether the previous secret is accepted, too."""

    id: int
    job_id: int | None
    seq: int
    hook: int
    body: MessageBody | GroupMessageBody | DigestBody
    attempts: int
    group_id: int | None
    api_key_id: int | None
    url: str | None
    version: int
    overlaps: bool


async def claim(tx: Transaction, limit: int, seconds: float) -> list[Message]:
    """Claim heads that are due, for ``seconds``."""
    rows = await tx.all_of(
        _ClaimedRow,
        """
        WITH due AS MATERIALIZED (
            SELECT o.id FROM outbox o
            WHERE o.dead_at IS NULL AND o.next_at <= now() AND NOT EXISTS (
                SELECT 1 FROM outbox e
                WHERE e.job_id = o.job_id AND e.hook = o.hook AND e.id < o.id AND e.dead_at IS NULL)
            ORDER BY o.next_at LIMIT :limit FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE outbox o SET next_at = now() + make_interval(secs => :seconds) FROM due WHERE o.id = due.id
            RETURNING o.id, o.job_id, o.seq, o.hook, o.body, o.attempts, o.group_id, o.api_key_id, o.url AS own
        )
        SELECT c.id, c.job_id, c.seq, c.hook, c.body, c.attempts, c.group_id, c.api_key_id,
               coalesce(c.own, coalesce(s.spec, f.spec)->'notify'->(c.hook::int)->>'url') AS url,
               coalesce(w.version, 1) AS version, coalesce(w.previous_until > now(), false) AS overlaps
        FROM claimed c LEFT JOIN jobs j ON j.id = c.job_id LEFT JOIN job_specs s ON s.id = j.spec_id
        LEFT JOIN workflows f ON f.id = -c.job_id
        LEFT JOIN webhook_secrets w ON w.path = c.body->>'queue' ORDER BY c.id
        """,
        limit=limit,
        seconds=seconds,
    )
    return [
        Message(
            row.id,
            row.job_id,
            row.hook,
            row.seq,
            row.body,
            row.attempts,
            row.url,
            (row.version, row.version - 1) if row.overlaps else (row.version,),
            row.group_id,
            row.api_key_id,
        )
        for row in rows
    ]


class SecretRow(NamedTuple):
    """The version of a queue's secret, and until when the previous one is valid, if at all."""

    version: int
    previous_until: datetime | None


async def secret_version(tx: Transaction, path: str) -> SecretRow:
    row = await tx.first_of(
        SecretRow,
        """
        SELECT version, CASE WHEN previous_until > now() THEN previous_until END AS previous_until
        FROM webhook_secrets WHERE path = :path
        """,
        path=path,
    )
    return SecretRow(1, None) if row is None else row


async def rotate_secret(tx: Transaction, path: str, overlap_seconds: float) -> SecretRow:
    """Give a queue a new secret; the previous one stays valid for ``overlap_seconds``."""
    return await tx.one_of(
        SecretRow,
        """
        INSERT INTO webhook_secrets (path, version, previous_until)
        VALUES (:path, 2, now() + make_interval(secs => :seconds))
        ON CONFLICT (path) DO UPDATE SET version = webhook_secrets.version + 1, previous_until = excluded.previous_until
        RETURNING version, CASE WHEN previous_until > now() THEN previous_until END AS previous_until
        """,
        path=path,
        seconds=overlap_seconds,
    )


async def delete(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete delivered messages."""
    if ids:
        await tx.run("DELETE FROM outbox WHERE id = ANY(:ids)", ids=sorted(ids))


async def put_off(tx: Transaction, pauses: Mapping[int, float]) -> None:
    """Release claimed messages, to be claimed again after the seconds in ``pauses``."""
    if pauses:
        await tx.run(
            """
            UPDATE outbox SET next_at = now() + make_interval(secs => n.seconds)
            FROM unnest(CAST(:ids AS bigint[]), CAST(:seconds AS float8[])) AS n(id, seconds) WHERE outbox.id = n.id
            """,
            ids=list(pauses),
            seconds=list(pauses.values()),
        )


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """A failed attempt. ``pause_seconds``: until the next one."""

    message: Message
    error: str
    pause_seconds: float
    is_final: bool = False


async def note_failures(
    tx: Transaction, failures: Sequence[DeliveryFailure], most_attempts: int, give_up_seconds: float
) -> list[int]:
    """Store failed attempts; return the ids of the messages that are now dead.

    Messages behind a head wait as long as the head, so that they are not scanned meanwhile.
    """
    if not failures:
        return []
    rows = await tx.all(
        """
        UPDATE outbox o SET attempts = o.attempts + 1, error = n.error, next_at = now() + make_interval(secs => n.seconds),
            dead_at = CASE WHEN n.final OR o.attempts + 1 >= :most OR o.created_at < now() - make_interval(secs => :age)
                           THEN now() END
        FROM unnest(CAST(:ids AS bigint[]), CAST(:errors AS text[]), CAST(:seconds AS float8[]), CAST(:finals AS bool[]))
             AS n(id, error, seconds, final)
        WHERE o.id = n.id AND o.dead_at IS NULL RETURNING o.id, o.job_id, o.hook, n.seconds, o.dead_at IS NOT NULL AS is_dead
        """,
        ids=[failure.message.id for failure in failures],
        errors=[failure.error[:500] for failure in failures],
        seconds=[failure.pause_seconds for failure in failures],
        finals=[failure.is_final for failure in failures],
        most=most_attempts,
        age=give_up_seconds,
    )
    waiting = [row for row in rows if not row.is_dead]
    if waiting:
        await tx.run(
            """
            UPDATE outbox o SET next_at = now() + make_interval(secs => n.seconds)
            FROM unnest(CAST(:ids AS bigint[]), CAST(:jobs AS bigint[]), CAST(:hooks AS int[]), CAST(:seconds AS float8[]))
                 AS n(id, job_id, hook, seconds)
            WHERE o.job_id = n.job_id AND o.hook = n.hook AND o.id > n.id AND o.dead_at IS NULL
            """,
            ids=[row.id for row in waiting],
            jobs=[row.job_id for row in waiting],
            hooks=[row.hook for row in waiting],
            seconds=[row.seconds for row in waiting],
        )
    return [row.id for row in rows if row.is_dead]


async def dead_of_workflows(tx: Transaction, keys: Iterable[int]) -> dict[int, int]:
    """Return how many messages of these workflows are dead, of those that have any."""
    rows = await tx.all(
        "SELECT -job_id AS key, count(*) AS many FROM outbox WHERE job_id = ANY(:keys) AND dead_at IS NOT NULL GROUP BY job_id",
        keys=sorted({-key for key in keys}),
    )
    return {int(row.key): int(row.many) for row in rows}


async def dead_of_job(tx: Transaction, key: int) -> int:
    """Return how many messages of a job are dead."""
    row = await tx.one("SELECT count(*) AS many FROM outbox WHERE job_id = :job AND dead_at IS NOT NULL", job=key)
    return int(row.many)


class StoredDeadLetter(NamedTuple):
    """A dead message. ``url`` is None when the job's specification was removed, ``job_id`` of a message of a group or of a user's
    preferences; see the module. ``queue`` is empty of a digest; ``api_key_id``: the user's.
    """

    id: int
    job_id: int | None
    seq: int
    hook: int
    body: MessageBody | GroupMessageBody | DigestBody
    attempts: int
    error: str
    created_at: datetime
    dead_at: datetime
    queue: str
    api_key_id: int | None
    url: str | None


_DEAD = """
    SELECT o.id, o.job_id, o.seq, o.hook, o.body, o.attempts, o.error, o.created_at, o.dead_at,
           coalesce(q.path, o.body->>'queue', '') AS queue, o.api_key_id,
           coalesce(o.url, coalesce(s.spec, f.spec)->'notify'->(o.hook::int)->>'url') AS url
    FROM outbox o LEFT JOIN jobs j ON j.id = o.job_id LEFT JOIN workflows f ON f.id = -o.job_id
    LEFT JOIN job_groups g ON g.id = o.group_id
    LEFT JOIN queues q ON q.id = coalesce(j.queue_id, f.queue_id, g.queue_id) LEFT JOIN job_specs s ON s.id = j.spec_id
    WHERE o.dead_at IS NOT NULL AND (q.id IS NOT NULL OR o.api_key_id IS NOT NULL)
"""


async def dead(
    tx: Transaction, queue_ids: Sequence[int] | None, key_id: int, before: int | None, limit: int
) -> Sequence[StoredDeadLetter]:
    """Return dead letters, newest first: of these queues, None for all, and of the preferences of this user."""
    parameters: dict[str, Any] = {"limit": limit}
    where = ""
    if queue_ids is not None:
        where += " AND (q.id = ANY(:queues) OR o.api_key_id = :key)"
        parameters |= {"queues": list(queue_ids), "key": key_id}
    if before is not None:
        where += " AND o.id < :before"
        parameters["before"] = before
    return await tx.all_of(StoredDeadLetter, f"{_DEAD}{where} ORDER BY o.id DESC LIMIT :limit", **parameters)


async def dead_letter(tx: Transaction, letter: int) -> StoredDeadLetter | None:
    """Return a dead letter, locked; None if it does not exist."""
    return await tx.first_of(StoredDeadLetter, f"{_DEAD} AND o.id = :id FOR UPDATE OF o", id=letter)


async def revive(tx: Transaction, letter: int) -> None:
    """Have a dead letter tried again, as often and as long as a new message."""
    await tx.run(
        "UPDATE outbox SET dead_at = NULL, attempts = 0, error = '', next_at = now(), created_at = now() WHERE id = :id",
        id=letter,
    )
