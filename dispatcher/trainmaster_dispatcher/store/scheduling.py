"""The scheduler's statements: leadership, the change feed, jobs and clusters for its state, stored reasons."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from trainmaster.protocol.placement import MemberPlacement
from trainmaster_dispatcher.domain.run_times import RunTime
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.feed_kinds import FeedKind
from trainmaster_dispatcher.store.tables import WAITS_SINCE


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """The address at which a leader answers queries about its state. ``host`` None: the one from which the store sees the leader
    connect.
    """

    host: str | None
    port: int
    secret: str


async def usage_levels(tx: Transaction) -> tuple[float, dict[int, float]] | None:
    """Return the last stored usage: its time, in seconds since the epoch, and the level of each queue; None if none is stored."""
    rows = await tx.all("SELECT queue_id, level, at FROM queue_usage")
    return (max(row.at for row in rows), {row.queue_id: row.level for row in rows}) if rows else None


async def usage_levels_of_users(tx: Transaction) -> tuple[float, dict[tuple[int, str], float]] | None:
    """Return the last stored usage of users: its time, and the levels by queue and user; None if none is stored."""
    rows = await tx.all("SELECT queue_id, submitter, level, at FROM user_usage")
    if not rows:
        return None
    return max(row.at for row in rows), {(row.queue_id, row.submitter): row.level for row in rows}


async def save_usage_levels_of_users(tx: Transaction, at: float, levels: Mapping[tuple[int, str], float]) -> None:
    """Replace the stored usage levels of users. The caller holds the leadership row."""
    await tx.run(
        """
        WITH n AS (SELECT * FROM unnest(CAST(:queues AS int[]), CAST(:users AS text[]), CAST(:levels AS float8[]))
                   AS n(queue_id, submitter, level) WHERE queue_id IN (SELECT id FROM queues)),
             gone AS (DELETE FROM user_usage u WHERE NOT EXISTS
                      (SELECT FROM n WHERE n.queue_id = u.queue_id AND n.submitter = u.submitter))
        INSERT INTO user_usage (queue_id, submitter, level, at) SELECT queue_id, submitter, level, :at FROM n
        ON CONFLICT (queue_id, submitter) DO UPDATE SET level = excluded.level, at = excluded.at
        """,
        at=at,
        queues=[queue for queue, _ in levels],
        users=[user for _, user in levels],
        levels=list(levels.values()),
    )


async def save_usage_levels(tx: Transaction, at: float, levels: Mapping[int, float]) -> None:
    """Replace the stored usage levels. The caller holds the leadership row."""
    await tx.run("DELETE FROM queue_usage WHERE queue_id <> ALL(:queues)", queues=list(levels))
    await tx.run(
        """
        INSERT INTO queue_usage (queue_id, level, at)
        SELECT queue, level, :at FROM unnest(CAST(:queues AS int[]), CAST(:levels AS float8[])) AS n(queue, level)
        ON CONFLICT (queue_id) DO UPDATE SET level = excluded.level, at = excluded.at
        """,
        at=at,
        queues=list(levels),
        levels=list(levels.values()),
    )


async def take_lead(tx: Transaction, holder: str, seconds: float, address: LeaderAddress | None = None) -> int | None:
    """Become the leader if nobody is; return the new token, higher than any before, or None."""
    row = await tx.first(
        """
        UPDATE leadership SET token = token + 1, holder = :holder,
               expires_at = clock_timestamp() + make_interval(secs => :seconds),
               reads = CASE WHEN CAST(:port AS int) IS NOT NULL THEN jsonb_build_object(
                   'host', coalesce(CAST(:host AS text), host(inet_client_addr()), '127.0.0.1'),
                   'port', CAST(:port AS int), 'secret', CAST(:secret AS text)) END
        WHERE expires_at < clock_timestamp() RETURNING token
        """,
        holder=holder,
        seconds=seconds,
        host=address and address.host,
        port=address and address.port,
        secret=address and address.secret,
    )
    return None if row is None else int(row.token)


async def keep_lead(tx: Transaction, token: int, seconds: float) -> bool:
    touched = await tx.run(
        """
        UPDATE leadership SET expires_at = clock_timestamp() + make_interval(secs => :seconds) WHERE token = :token
        """,
        token=token,
        seconds=seconds,
    )
    return touched > 0


async def leave_lead(tx: Transaction, token: int) -> None:
    await tx.run("UPDATE leadership SET expires_at = clock_timestamp(), reads = NULL WHERE token = :token", token=token)


async def leader_address(tx: Transaction) -> LeaderAddress | None:
    """Return where the current leader answers queries; None without a leader, or if it answers none."""
    row = await tx.first("SELECT reads FROM leadership WHERE expires_at > clock_timestamp()")
    return None if row is None or row.reads is None else LeaderAddress(**row.reads)


async def is_lead(tx: Transaction, token: int) -> bool:
    """Return whether this token still leads. The row stays locked against a take-over until the transaction ends."""
    return await tx.first("SELECT 1 FROM leadership WHERE token = :token FOR SHARE", token=token) is not None


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The position up to which the feed has been read: everything of transactions below ``xid``."""

    xid: int


class StoreRestoredError(Exception):
    """The store has lost rows that were read from it: it was restored from a backup."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Changes since a cursor. ``unsettled``: whether newer ones are committed but may still be overtaken by older ones."""

    cursor: Cursor
    submitted: tuple[tuple[int, int], ...]
    """First and last key of each submission."""
    jobs: dict[int, tuple[int, bool]]
    """By job: the version of its newest event, and whether that event ended the job."""
    others: tuple[tuple[FeedKind, int], ...]
    """Kind and key of each other change."""
    unsettled: bool

    @property
    def job_ids(self) -> tuple[int, ...]:
        return tuple(self.jobs)


class _FeedRow(NamedTuple):
    """A row of ``changes``, one of ``events`` with kind ``job``, or, with kind ``xmin``, the end of the feed."""

    kind: str
    ref: int
    many: int
    is_over: bool | None


async def start_cursor(tx: Transaction) -> Cursor:
    """Return the cursor to continue from after loading everything in this same snapshot."""
    row = await tx.one("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin")
    return Cursor(int(row.xmin))


async def read_feed(tx: Transaction, cursor: Cursor) -> Feed:
    """Return changes by transactions from the cursor on that can no longer be overtaken.

    A row is returned only when every transaction that began before its own has ended (its xid is below the snapshot's xmin), so a
    late commit is never skipped, whatever the order of commits. One statement, hence one snapshot.
    """
    rows = await tx.all_of(
        _FeedRow,
        """
        WITH snapshot AS MATERIALIZED (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xmin)
        SELECT 'job' AS kind, e.job_id AS ref, e.seq AS many,
               e.details->>'job' IN ('succeeded', 'failed', 'cancelled') AS is_over
        FROM events e WHERE e.xid >= CAST(CAST(:cursor AS text) AS xid8) AND e.xid < (SELECT xmin FROM snapshot)
        UNION ALL
        SELECT c.kind, c.ref, c.many, false
        FROM changes c WHERE c.xid >= CAST(CAST(:cursor AS text) AS xid8) AND c.xid < (SELECT xmin FROM snapshot)
        UNION ALL
        SELECT 'xmin', (SELECT xmin::text::bigint FROM snapshot), 0,
               EXISTS (SELECT 1 FROM events e WHERE e.xid >= (SELECT xmin FROM snapshot))
               OR EXISTS (SELECT 1 FROM changes c WHERE c.xid >= (SELECT xmin FROM snapshot))
        """,
        cursor=str(cursor.xid),
    )
    jobs, submitted, others = dict[int, tuple[int, bool]](), [], set[tuple[FeedKind, int]]()
    unsettled, xmin = False, cursor.xid
    for kind, ref, many, is_over in rows:
        if kind == "xmin":
            xmin, unsettled = ref, bool(is_over)
        elif kind == "job":
            if ref not in jobs or jobs[ref][0] < many:
                jobs[ref] = (many, bool(is_over))
        elif kind == FeedKind.JOBS:
            submitted.append((ref, ref + many - 1))
        else:
            others.add((FeedKind.read(kind), ref))
    if xmin < cursor.xid:
        raise StoreRestoredError(f"transactions up to {cursor.xid} were read from the store, and it is at {xmin}")
    return Feed(Cursor(xmin), tuple(submitted), jobs, tuple(others), unsettled)


_PAGE = 10_000
_LEARNT_FROM = 50_000
"""The latest submissions of which run times are read, so that the cost does not grow with the jobs that are stored."""


class BoundsJson(TypedDict):
    """The stored form of ``domain.burst_policies.Bounds``."""

    wait: float
    limit: float
    grace: float
    rate: int


class ScheduledJob(NamedTuple):
    """A job with its live run, for the scheduler's state. Times in seconds since the epoch.

    ``run_attempt`` to ``placement`` and ``leased_at`` are None without a run. States are texts, so that a state which a newer
    release has added hides no other row.
    """

    id: int
    version: int
    queue_id: int
    class_id: int
    priority: int
    shape_id: int
    state: str
    wish: str | None
    hold_cause: str | None
    name: str
    attempt: int
    waits_since: float
    run_attempt: int | None
    cluster_id: int | None
    run_state: str | None
    sizes: dict[str, int] | None
    holding: dict[str, int] | None
    """The sizes before a shrink, until the members have gone."""
    placement: MemberPlacement | None
    """As reported, or else as assumed."""
    is_assumed: bool
    leased_at: float | None
    resized_at: float | None
    is_stopping: bool
    policy_id: int | None
    bounds: BoundsJson | None
    run_started_at: float | None
    submitter: str
    """The name of the key that submitted it."""
    predicted_seconds: float | None
    deadline: float | None
    deadline_noted: int
    predecessor_clusters: dict[str, float] | None
    """By cluster: the part of the jobs that it started after whose last run was there."""


class StoredNodeMembers(NamedTuple):
    """Members of a live run in one role and on one node; ``group``: the group of the node."""

    job_id: int
    attempt: int
    group: str
    node: str
    role: str
    many: int


class StoredShape(NamedTuple):
    """A shape; ``body`` as ``domain.shapes`` serialises it."""

    id: int
    body: dict[str, Any]


class ReportedCluster(NamedTuple):
    """A cluster as it was declared, with the last report of its agent. ``spec`` and ``report`` as they are stored, not parsed.

    ``awaited``: during a recovery the clusters that the recovery waits for, as ``domain/recovery.py`` reads them; None otherwise.
    """

    id: int
    name: str
    kind: str
    spec: dict[str, Any]
    cordoned: bool
    report: dict[str, Any] | None
    awaited: list[dict[str, Any]] | None


class SessionLease(NamedTuple):
    """The end of the session lease of a cluster's agent, in seconds since the epoch; without any cluster, the time alone."""

    cluster_id: int | None
    until: float | None
    now: float
    store_epoch: int
    """The installation's store epoch; a state of another epoch is invalid."""


class ClusterTrouble(NamedTuple):
    """The number of runs that a cluster has returned or lost lately; the weight of each halves every hour."""

    cluster_id: int
    level: float


class CoolDown(NamedTuple):
    """A cluster that is left out for a job. ``lacks_room``: because it had no room for it."""

    job_id: int
    cluster_id: int
    lacks_room: bool


class NewCoolDown(NamedTuple):
    """A cluster to leave out for a job for some seconds."""

    job_id: int
    cluster_id: int
    seconds: float
    reason: str
    lacks_room: bool


class StoredReason(NamedTuple):
    """The reason of a job, which is that of its class: a ``Reason`` in wire form, with time and cycle in which it was found."""

    job_id: int
    reason: dict[str, Any]
    cycle: int
    at: datetime


class Classified(NamedTuple):
    """A job, and what its class is: its queue, its priority class and its shape. ``user``: its submitter."""

    job_id: int
    queue_id: int
    class_id: int
    shape_id: int
    user: str


_JOBS = f"""
    SELECT j.id, j.version, j.queue_id, j.class_id, j.priority, j.shape_id, j.state, j.wish, j.hold_cause, j.name, j.attempt,
           extract(epoch FROM {WAITS_SINCE})::float8 AS waits_since,
           r.attempt AS run_attempt, r.cluster_id, r.state AS run_state,
           r.sizes, r.holding, coalesce(r.placement, r.assumed) AS placement, r.placement IS NULL AS is_assumed,
           extract(epoch FROM r.leased_at)::float8 AS leased_at, extract(epoch FROM r.resized_at)::float8 AS resized_at,
           r.stop_cause IS NOT NULL AS is_stopping, r.policy_id, r.bounds, extract(epoch FROM r.started_at)::float8 AS run_started_at,
           coalesce(k.name, '') AS submitter, r.predicted_seconds,
           extract(epoch FROM j.deadline)::float8 AS deadline, j.deadline_noted, j.predecessor_clusters
    FROM jobs j LEFT JOIN runs r ON r.job_id = j.id AND r.ended_at IS NULL LEFT JOIN api_keys k ON k.id = j.api_key_id
    WHERE j.has_element_jobs IS NOT TRUE
"""
"""All jobs but arrays whose elements are jobs: these are scheduled, and the array has no run."""


async def jobs(tx: Transaction, ids: Sequence[int]) -> Sequence[ScheduledJob]:
    """Return rows of these jobs with their live run."""
    return await tx.all_of(ScheduledJob, f"{_JOBS} AND j.id = ANY(:ids)", ids=list(ids))


async def jobs_between(tx: Transaction, first: int, last: int) -> Sequence[ScheduledJob]:
    """Return rows of the jobs of one submission that have not ended."""
    return await tx.all_of(
        ScheduledJob, f"{_JOBS} AND j.id BETWEEN :first AND :last AND j.ended_at IS NULL", first=first, last=last
    )


def live_jobs(tx: Transaction) -> AsyncIterator[Sequence[ScheduledJob]]:
    """Yield rows of all jobs that have not ended, by page: reading a million takes longer than a transaction may be idle."""
    return tx.pages_of(ScheduledJob, f"{_JOBS} AND j.ended_at IS NULL", _PAGE)


async def run_times(tx: Transaction) -> Sequence[RunTime]:
    """Return how long the last runs of the latest jobs took that have ended, in the order of their ends."""
    return await tx.all_of(
        RunTime,
        """
        SELECT coalesce(k.name, '') AS user, j.shape_id, extract(epoch FROM r.ended_at - r.started_at)::float8 AS seconds
        FROM jobs j JOIN runs r ON r.job_id = j.id AND r.attempt = j.attempt LEFT JOIN api_keys k ON k.id = j.api_key_id
        WHERE j.id > (SELECT coalesce(max(id), 0) FROM jobs) - :most AND j.ended_at IS NOT NULL AND r.started_at IS NOT NULL
        ORDER BY r.ended_at
        """,
        most=_LEARNT_FROM,
    )


async def shapes(tx: Transaction, ids: Sequence[int]) -> Sequence[StoredShape]:
    return await tx.all_of(StoredShape, "SELECT id, body FROM shapes WHERE id = ANY(:ids)", ids=list(ids))


async def clusters(tx: Transaction, ids: Sequence[int] | None = None) -> Sequence[ReportedCluster]:
    """Return these clusters, or all of them, with the last report of their agents."""
    if ids is not None and not ids:
        return []
    return await tx.all_of(
        ReportedCluster,
        """
        SELECT c.id, c.name, c.kind, c.spec, c.cordoned, p.report,
               CASE WHEN i.recovering_since IS NOT NULL THEN coalesce(
                   (SELECT jsonb_agg(jsonb_build_object('name', o.name, 'onlyQueues', o.spec->'onlyQueues') ORDER BY o.name)
                    FROM clusters o JOIN cluster_contacts k ON k.cluster_id = o.id
                    WHERE o.removed_at IS NULL AND k.holder IS NOT NULL
                      AND (k.recovered_at IS NULL OR k.recovered_at < i.recovering_since)), '[]') END AS awaited
        FROM installation i CROSS JOIN clusters c LEFT JOIN capacity p ON p.cluster_id = c.id
        WHERE c.removed_at IS NULL AND (CAST(:ids AS int[]) IS NULL OR c.id = ANY(CAST(:ids AS int[])))
        """,
        ids=None if ids is None else list(ids),
    )


async def leases(tx: Transaction) -> Sequence[SessionLease]:
    """Return the session lease of each cluster that has one, and at least one row."""
    return await tx.all_of(
        SessionLease,
        """
        SELECT c.cluster_id, extract(epoch FROM c.lease_until)::float8 AS until,
               extract(epoch FROM clock_timestamp())::float8 AS now, i.store_epoch
        FROM installation i LEFT JOIN cluster_contacts c ON c.lease_until > 'epoch'
        """,
    )


async def member_nodes(tx: Transaction, cluster_id: int) -> Sequence[StoredNodeMembers]:
    """Return the nodes of the members of a cluster's live runs, as their agent reported them last.

    Agents of earlier releases do not report the groups of nodes: then a run is left out unless all its members are in one group.
    """
    return await tx.all_of(
        StoredNodeMembers,
        """
        SELECT job_id, attempt, "group", node, role, count(*) AS many
        FROM (SELECT r.job_id, r.attempt, m->>'node' AS node, m->>'role' AS role,
                     coalesce(nullif(m->>'group', ''), CASE WHEN g.many = 1 THEN g.name END) AS "group"
              FROM runs r
              CROSS JOIN LATERAL jsonb_array_elements(r.result->'members') m
              CROSS JOIN LATERAL (SELECT count(*) AS many, min(name) AS name
                                  FROM jsonb_object_keys(coalesce(r.placement, '{}')) name) g
              WHERE r.cluster_id = :cluster AND r.ended_at IS NULL AND m->>'node' <> '') members
        WHERE "group" IS NOT NULL
        GROUP BY job_id, attempt, "group", node, role ORDER BY job_id, "group", node, role
        """,
        cluster=cluster_id,
    )


async def troubles(tx: Transaction) -> Sequence[ClusterTrouble]:
    """Return the runs that clusters have returned or lost lately; the weight of each halves every hour."""
    return await tx.all_of(
        ClusterTrouble,
        """
        SELECT cluster_id, level * power(0.5, extract(epoch FROM now() - at) / 3600)::float8 AS level FROM cluster_troubles
        WHERE at > now() - interval '12 hours'
        """,
    )


async def add_trouble(tx: Transaction, counts: Mapping[int, int]) -> None:
    """Count runs that clusters have returned or lost now. Rows are in one order, so that two callers never wait for each other."""
    await tx.run(
        """
        INSERT INTO cluster_troubles (cluster_id, level)
        SELECT cluster, count FROM unnest(CAST(:clusters AS int[]), CAST(:counts AS float8[])) AS n(cluster, count) ORDER BY cluster
        ON CONFLICT (cluster_id) DO UPDATE SET at = now(), level = excluded.level + cluster_troubles.level
            * power(0.5, greatest(0, extract(epoch FROM now() - cluster_troubles.at)) / 3600)::float8
        """,
        clusters=list(counts),
        counts=[float(count) for count in counts.values()],
    )


async def cool_downs(tx: Transaction) -> Sequence[CoolDown]:
    """Return clusters that are left out for a job now."""
    return await tx.all_of(CoolDown, "SELECT job_id, cluster_id, lacks_room FROM cool_downs WHERE until > now()")


async def add_cool_downs(tx: Transaction, rows: Sequence[NewCoolDown]) -> None:
    """Leave clusters out for jobs."""
    await tx.run(
        """
        INSERT INTO cool_downs (job_id, cluster_id, until, reason, lacks_room)
        SELECT job_id, cluster_id, now() + make_interval(secs => seconds), reason, lacks_room
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:clusters AS int[]), CAST(:seconds AS float8[]), CAST(:reasons AS text[]),
                    CAST(:lacking AS boolean[])) AS n(job_id, cluster_id, seconds, reason, lacks_room)
        ON CONFLICT (job_id, cluster_id)
        DO UPDATE SET until = excluded.until, reason = excluded.reason, lacks_room = excluded.lacks_room
        """,
        jobs=[row.job_id for row in rows],
        clusters=[row.cluster_id for row in rows],
        seconds=[row.seconds for row in rows],
        reasons=[row.reason[:1000] for row in rows],
        lacking=[row.lacks_room for row in rows],
    )


async def drop_cool_downs(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Remove the cool-downs of these jobs, which a person has resumed, so that every cluster is tried again."""
    await tx.run("DELETE FROM cool_downs WHERE job_id = ANY(:ids)", ids=list(job_ids))


async def drop_old_cool_downs(tx: Transaction) -> int:
    return await tx.run("DELETE FROM cool_downs WHERE until < now()")


ReasonRow = tuple[int, int, int, list[int], dict[str, Any]]
"""A reason to store: queue, class, shape, clusters left out, reason."""


def _columns(rows: Sequence[ReasonRow]) -> dict[str, list[Any]]:
    """Return the parameters of a statement that stores these rows."""
    return {
        "queues": [row[0] for row in rows],
        "classes": [row[1] for row in rows],
        "shapes": [row[2] for row in rows],
        "avoided": [",".join(map(str, row[3])) for row in rows],
        "reasons": [dumps(row[4]) for row in rows],
    }


async def save_reasons(tx: Transaction, rows: Sequence[ReasonRow], cycle: int) -> None:
    """Store the changed reasons of classes: queue, class, shape, clusters left out, reason."""
    if not rows:
        return
    await tx.run(
        """
        INSERT INTO class_reasons (queue_id, class_id, shape_id, avoided, reason, cycle, at)
        SELECT queue_id, class_id, shape_id, CAST(string_to_array(avoided, ',') AS int[]), reason::jsonb, :cycle, now()
        FROM unnest(CAST(:queues AS int[]), CAST(:classes AS smallint[]), CAST(:shapes AS int[]), CAST(:avoided AS text[]),
                    CAST(:reasons AS text[])) AS n(queue_id, class_id, shape_id, avoided, reason)
        WHERE queue_id IN (SELECT id FROM queues) AND class_id IN (SELECT id FROM priority_classes)
        ON CONFLICT (queue_id, class_id, shape_id, avoided)
        DO UPDATE SET reason = excluded.reason, cycle = excluded.cycle, at = excluded.at
        """,
        **_columns(rows),
        cycle=cycle,
    )


async def save_reasons_of_users(tx: Transaction, rows: Sequence[tuple[*ReasonRow, str]], cycle: int) -> None:
    """Store the changed reasons that hold for the jobs of one user only: as ``save_reasons``, and the user."""
    if not rows:
        return
    await tx.run(
        """
        INSERT INTO user_reasons (queue_id, class_id, shape_id, avoided, submitter, reason, cycle, at)
        SELECT queue_id, class_id, shape_id, CAST(string_to_array(avoided, ',') AS int[]), submitter, reason::jsonb, :cycle, now()
        FROM unnest(CAST(:queues AS int[]), CAST(:classes AS smallint[]), CAST(:shapes AS int[]), CAST(:avoided AS text[]),
                    CAST(:reasons AS text[]), CAST(:users AS text[]))
             AS n(queue_id, class_id, shape_id, avoided, reason, submitter)
        WHERE queue_id IN (SELECT id FROM queues) AND class_id IN (SELECT id FROM priority_classes)
        ON CONFLICT (queue_id, class_id, shape_id, avoided, submitter)
        DO UPDATE SET reason = excluded.reason, cycle = excluded.cycle, at = excluded.at
        """,
        **_columns([row[:5] for row in rows]),
        users=[row[5] for row in rows],
        cycle=cycle,
    )


async def drop_reasons_of_users(tx: Transaction, keys: Sequence[tuple[int, int, int, tuple[int, ...], str]]) -> None:
    """Remove the reasons of users whose jobs now wait for what holds for their class: queue, class, shape, clusters left out, user."""
    if not keys:
        return
    await tx.run(
        """
        DELETE FROM user_reasons r USING
        unnest(CAST(:queues AS int[]), CAST(:classes AS smallint[]), CAST(:shapes AS int[]), CAST(:avoided AS text[]),
               CAST(:users AS text[])) AS n(queue_id, class_id, shape_id, avoided, submitter)
        WHERE r.queue_id = n.queue_id AND r.class_id = n.class_id AND r.shape_id = n.shape_id
              AND r.avoided = CAST(string_to_array(n.avoided, ',') AS int[]) AND r.submitter = n.submitter
        """,
        queues=[key[0] for key in keys],
        classes=[key[1] for key in keys],
        shapes=[key[2] for key in keys],
        avoided=[",".join(map(str, key[3])) for key in keys],
        users=[key[4] for key in keys],
    )


async def with_cool_downs(tx: Transaction, job_ids: Sequence[int]) -> frozenset[int]:
    """Return those of these jobs for which some clusters are left out now."""
    rows = await tx.all(
        "SELECT DISTINCT job_id FROM cool_downs WHERE job_id = ANY(:jobs) AND until > now()", jobs=list(job_ids)
    )
    return frozenset(row.job_id for row in rows)


async def reasons_of(tx: Transaction, classified: Sequence[Classified]) -> Mapping[int, StoredReason]:
    """Return the stored reasons of jobs' classes by job, where there are any, for the clusters that are left out for each job now;
    that of its user, if there is one.
    """
    rows = await tx.all_of(
        StoredReason,
        """
        SELECT n.job_id, found.reason, found.cycle, found.at
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:queues AS int[]), CAST(:classes AS int[]), CAST(:shapes AS int[]),
                    CAST(:users AS text[])) AS n(job_id, queue_id, class_id, shape_id, submitter)
        CROSS JOIN LATERAL (SELECT coalesce(array_agg(cluster_id ORDER BY cluster_id), '{}') AS avoided
                            FROM cool_downs WHERE job_id = n.job_id AND until > now()) own
        CROSS JOIN LATERAL (
            SELECT reason, cycle, at FROM (
            SELECT r.reason, r.cycle, r.at, false AS of_user FROM class_reasons r
            WHERE r.queue_id = n.queue_id AND r.class_id = n.class_id AND r.shape_id = n.shape_id AND r.avoided = own.avoided
            UNION ALL
            SELECT r.reason, r.cycle, r.at, true AS of_user FROM user_reasons r
            WHERE r.queue_id = n.queue_id AND r.class_id = n.class_id AND r.shape_id = n.shape_id AND r.avoided = own.avoided
                  AND r.submitter = n.submitter) both_of
            ORDER BY of_user DESC LIMIT 1) found
        """,
        jobs=[one.job_id for one in classified],
        queues=[one.queue_id for one in classified],
        classes=[one.class_id for one in classified],
        shapes=[one.shape_id for one in classified],
        users=[one.user for one in classified],
    )
    return {row.job_id: row for row in rows}


async def make_partitions(tx: Transaction, sql: str) -> None:
    await tx.run(sql)
