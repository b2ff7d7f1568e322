"""The store's records of each cluster's agent: sessions and leases, capacity, desired state, log streams."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol.agent import SyncRequest
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import RunState, StopCause
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.declared import note_change
from trainmaster_dispatcher.store.feed_kinds import FeedKind

_MOST_SPEC_BYTES = 4 * 1024 * 1024
"""The most bytes of stored specifications in one answer to an agent."""


@dataclass(frozen=True, slots=True)
class Contact:
    """The outcome of a sync's claim to be the cluster's agent.

    ``held_for``: seconds for which another holder still has the lease, if the claim was refused for this reason alone.
    """

    is_current: bool
    is_new_session: bool = False
    is_new_holder: bool = False
    held_for: float | None = None


class AdmittingCluster(NamedTuple):
    """A cluster as it was declared, and parts of its agent's last report as they are stored, not parsed; None before the first
    report.
    """

    id: int
    name: str
    kind: str
    spec: dict[str, Any]
    runtime: str | None
    capabilities: list[str] | None
    admission: dict[str, Any] | None
    datasets: list[str] | None
    resources: list[str] | None
    """Resources of its nodes, and of those that could be added."""


class SyncBasis(NamedTuple):
    """The stored values that a sync is checked against."""

    epoch: str
    """The installation and its store epoch."""
    has_capacity: bool
    is_recovering: bool
    is_awaited: bool
    """Whether a recovery waits for this cluster."""
    is_clearing: bool
    """Whether quarantined runs of the cluster are being stopped."""
    desired: int | None
    """The version of the cluster's desired state."""
    session: str | None
    """The current session."""
    holder: int | None
    """The number of the current session's holder."""
    checked_count: int | None
    checked_digest: int | None
    """The digest of the held runs at the last comparison that found agent and store equal."""
    checked_at: datetime | None
    checked_age: float | None
    """Seconds since that comparison; None where agent and store must be compared again."""


class DesiredBasis(NamedTuple):
    """The first fields of an answer on a cluster's desired state: session, version, and the number of the session's holder.

    ``placement_timeout``: how long a run may wait on the cluster for its gang minimum.
    """

    session: str | None
    version: int
    placement_timeout: str
    holder: int | None


class DesiredRun(NamedTuple):
    """A run that a cluster's agent is to start, stop or resize. ``spec`` is JSON text, as it is stored."""

    job_id: int
    attempt: int
    state: RunState
    generation: int
    stop_cause: StopCause | None
    sizes: dict[str, int]
    assumed: MemberPlacement
    disconnect_seconds: float | None
    desired_version: int
    name: str
    parameters: dict[str, Any] | None
    queue: str
    spec: str
    orders: str
    """JSON text, for ``domain.run_orders.read_orders``."""
    stop_grace: float | None
    leased_at: float
    """In seconds since the epoch."""
    trace: bytes | None
    """Trace and span of the job's submission; None: it belongs to no trace that is sampled."""
    is_last: bool
    """False where more runs follow: the size of one answer is bounded."""


class DesiredStream(NamedTuple):
    """A log stream that a cluster's agent is to open. ``options``: those of ``OpenStream`` in wire form."""

    id: str
    job_id: int
    attempt: int
    options: dict[str, Any]
    name: str


async def renew(
    tx: Transaction, cluster_id: int, session: str, number: int, lease_seconds: float, version: str
) -> bool:
    """Renew the lease of the cluster's newest session; False where ``session`` is not the newest."""
    touched = await tx.run(
        """
        UPDATE cluster_contacts SET contact_at = clock_timestamp(), number = greatest(number, :number),
               lease_until = clock_timestamp() + make_interval(secs => :lease), agent_version = :version
        WHERE cluster_id = :cluster AND session = :session
        """,
        cluster=cluster_id,
        session=session,
        number=number,
        lease=lease_seconds,
        version=version,
    )
    return touched > 0


async def begin_session(tx: Transaction, cluster_id: int, request: SyncRequest, lease_seconds: float) -> Contact:
    """Make the session of ``request`` the newest of its cluster, with a lease.

    A superseded session stays superseded. A session with other records is refused as long as the present holder's lease runs, so
    that two agents with one key do not take the cluster from each other in turn. After a refusal the caller rolls back, so that the
    session may be tried again.
    """
    row = await tx.one(
        """
        SELECT holder, session, extract(epoch FROM lease_until - clock_timestamp())::float8 AS left_seconds
        FROM cluster_contacts WHERE cluster_id = :id FOR UPDATE
        """,
        id=cluster_id,
    )
    if row.session == request.session:
        renewed = await renew(tx, cluster_id, request.session, request.number, lease_seconds, request.agent_version)
        return Contact(is_current=renewed)
    fresh = await tx.run(
        "INSERT INTO agent_sessions (session, cluster_id, holder) VALUES (:session, :cluster, :holder) ON CONFLICT DO NOTHING",
        session=request.session,
        cluster=cluster_id,
        holder=request.holder,
    )
    if not fresh:
        return Contact(is_current=False)
    is_new_holder = row.holder is not None and row.holder != request.holder
    if is_new_holder and row.session is not None and row.left_seconds > 0:
        return Contact(is_current=False, held_for=row.left_seconds)
    if is_new_holder:
        await tx.run(
            """
            UPDATE cluster_holders h SET contact_at = c.contact_at FROM cluster_contacts c
            WHERE c.cluster_id = :cluster AND h.cluster_id = c.cluster_id AND h.holder = c.holder
            """,
            cluster=cluster_id,
        )
    await tx.run(
        """
        UPDATE cluster_contacts SET
            session = :session, number = :number, agent_version = :version,
            earlier_contact_at = CASE WHEN :new_holder THEN contact_at ELSE earlier_contact_at END,
            holder = :holder, contact_at = clock_timestamp(), lease_until = clock_timestamp() + make_interval(secs => :lease),
            checked_at = NULL
        WHERE cluster_id = :cluster
        """,
        cluster=cluster_id,
        session=request.session,
        holder=request.holder,
        number=request.number,
        lease=lease_seconds,
        version=request.agent_version,
        new_holder=is_new_holder,
    )
    # Of the rows of a cluster in contacts only one session at a time gets here, so the numbers differ.
    await tx.run(
        """
        INSERT INTO cluster_holders AS h (cluster_id, number, holder, place)
        SELECT :cluster, coalesce(max(number), 0) + 1, :holder, :place FROM cluster_holders WHERE cluster_id = :cluster
        ON CONFLICT (cluster_id, holder) DO UPDATE SET
            place = excluded.place,
            place_since = CASE WHEN h.place = excluded.place THEN h.place_since ELSE clock_timestamp() END
        """,
        cluster=cluster_id,
        holder=request.holder,
        place=request.place,
    )
    await note_change(tx, FeedKind.CONTACT, cluster_id)
    return Contact(is_current=True, is_new_session=True, is_new_holder=is_new_holder)


async def is_current(tx: Transaction, cluster_id: int, session: str) -> bool:
    row = await tx.first("SELECT session FROM cluster_contacts WHERE cluster_id = :id", id=cluster_id)
    return row is not None and row.session == session


async def save_capacity(tx: Transaction, cluster_id: int, report: dict[str, Any]) -> None:
    await tx.run(
        """
        INSERT INTO capacity (cluster_id, report, received_at) VALUES (:cluster, CAST(:report AS jsonb), now())
        ON CONFLICT (cluster_id) DO UPDATE SET report = excluded.report, received_at = excluded.received_at
        """,
        cluster=cluster_id,
        report=dumps(report),
    )
    await note_change(tx, FeedKind.CAPACITY, cluster_id)


async def admissions(tx: Transaction) -> Sequence[AdmittingCluster]:
    """Return clusters with the parts of their agents' reports that admission needs."""
    return await tx.all_of(
        AdmittingCluster,
        """
        SELECT c.id, c.name, c.kind, c.spec, p.report->'runtime' AS runtime,
               p.report->'capabilities' AS capabilities, p.report->'admission' AS admission,
               p.report->'datasets' AS datasets, r.resources
        FROM clusters c LEFT JOIN capacity p ON p.cluster_id = c.id
        LEFT JOIN LATERAL (
            SELECT array_agg(DISTINCT name) AS resources
            FROM (
                SELECT free FROM jsonb_path_query(p.report, '$.groups[*].free') AS free
                UNION SELECT free FROM jsonb_path_query(p.report, '$.pools[*].free') AS free
            ) AS f, jsonb_object_keys(f.free) AS name
        ) AS r ON true
        WHERE c.removed_at IS NULL ORDER BY c.name
        """,
    )


async def close_capacity(tx: Transaction, cluster_id: int, why: str) -> None:
    """Close a cluster to new runs until its agent reports again; the stored report stays."""
    await tx.run(
        """
        INSERT INTO capacity (cluster_id, report, received_at) VALUES (:cluster, CAST(:report AS jsonb), now())
        ON CONFLICT (cluster_id) DO UPDATE SET
            report = jsonb_set(capacity.report, '{closed}', to_jsonb(CAST(:why AS text))), received_at = excluded.received_at
        """,
        cluster=cluster_id,
        report=dumps({"groups": [], "runtime": "unknown", "scheduler": "unknown", "closed": why}),
        why=why,
    )
    await note_change(tx, FeedKind.CAPACITY, cluster_id)


async def standing(tx: Transaction, cluster_id: int) -> SyncBasis:
    """Return the stored values that a sync is checked against."""
    return await tx.one_of(
        SyncBasis,
        """
        SELECT i.id || ':' || i.store_epoch AS epoch,
               EXISTS (SELECT 1 FROM capacity p WHERE p.cluster_id = :id) AS has_capacity,
               i.recovering_since IS NOT NULL AS is_recovering,
               i.recovering_since IS NOT NULL AND (c.recovered_at IS NULL OR c.recovered_at < i.recovering_since) AS is_awaited,
               EXISTS (SELECT 1 FROM quarantined_runs q WHERE q.cluster_id = :id AND q.stop) AS is_clearing,
               (SELECT d.version FROM cluster_desired d WHERE d.cluster_id = :id) AS desired,
               c.session, h.number AS holder, c.checked_count, c.checked_digest, c.checked_at,
               extract(epoch FROM clock_timestamp() - c.checked_at)::float8 AS checked_age
        FROM installation i LEFT JOIN cluster_contacts c ON c.cluster_id = :id
             LEFT JOIN cluster_holders h ON h.cluster_id = c.cluster_id AND h.holder = c.holder
        """,
        id=cluster_id,
    )


async def note_checked(tx: Transaction, cluster_id: int, count: int, digest: int, seen: datetime | None) -> None:
    """Note that agent and store hold the same ``count`` runs with this ``digest``, unless ``checked_at`` is no longer ``seen``."""
    await tx.run(
        """
        UPDATE cluster_contacts SET checked_count = :count, checked_digest = :digest, checked_at = clock_timestamp()
        WHERE cluster_id = :id AND checked_at IS NOT DISTINCT FROM CAST(:seen AS timestamptz)
        """,
        id=cluster_id,
        count=count,
        digest=digest,
        seen=seen,
    )


async def unset_checked(tx: Transaction, cluster_ids: Iterable[int]) -> None:
    """Have the runs of these clusters compared at the next sync, as they changed without a report from the agents."""
    await tx.run(
        "UPDATE cluster_contacts SET checked_at = NULL WHERE cluster_id IN"
        " (SELECT cluster_id FROM cluster_contacts WHERE cluster_id = ANY(:ids) ORDER BY cluster_id FOR UPDATE)",
        ids=sorted(set(cluster_ids)),
    )


async def desired_versions(tx: Transaction, cluster_ids: Iterable[int]) -> dict[int, int]:
    """Return the version of each cluster's desired state."""
    rows = await tx.all(
        "SELECT cluster_id, version FROM cluster_desired WHERE cluster_id = ANY(:ids)", ids=list(cluster_ids)
    )
    return {row.cluster_id: row.version for row in rows}


async def wanted(tx: Transaction, cluster_id: int) -> DesiredBasis | None:
    """Return the first fields of an answer on a cluster's desired state; None for a cluster that does not exist."""
    return await tx.first_of(
        DesiredBasis,
        """
        SELECT t.session, coalesce(d.version, 0) AS version, coalesce(c.spec->>'placementTimeout', '5m') AS placement_timeout,
               h.number AS holder
        FROM clusters c JOIN cluster_contacts t ON t.cluster_id = c.id LEFT JOIN cluster_desired d ON d.cluster_id = c.id
             LEFT JOIN cluster_holders h ON h.cluster_id = t.cluster_id AND h.holder = t.holder
        WHERE c.id = :id
        """,
        id=cluster_id,
    )


_EARLIER_ORDERS = """
    jsonb_strip_nulls(jsonb_build_object(
        'version', 0, 'narrowed', r.decision->'narrowed', 'awaitsSeconds', r.decision->'awaitsSeconds',
        'burst', r.decision->'burst'))
"""
"""Orders of run ``r`` that was leased by a release before schema 0024, which stored them in the run's decision."""


async def desired_runs(tx: Transaction, cluster_id: int, after: int, holder: int | None) -> Sequence[DesiredRun]:
    """Return runs to start, stop or resize that changed after version ``after``, by version. The agent itself remembers what it has
    accepted.

    A run that was leased to another holder may have started there: ``holder`` gets no order to start it.
    """
    return await tx.all_of(
        DesiredRun,
        f"""
        SELECT d.job_id, d.attempt, d.state, d.generation, d.stop_cause, d.sizes, d.assumed, d.disconnect_seconds,
               d.desired_version, d.name, d.parameters, d.queue, d.spec::text AS spec, d.orders,
               d.stop_grace, extract(epoch FROM d.leased_at)::float8 AS leased_at, d.trace, d.bytes_all = d.bytes AS is_last
        FROM (
            SELECT r.job_id, r.attempt, r.state, r.generation, r.stop_cause, r.sizes, r.assumed, r.disconnect_seconds,
                   r.desired_version, j.name, j.parameters, q.path AS queue, s.spec,
                   coalesce(r.orders, {_EARLIER_ORDERS})::text AS orders, r.stop_grace, r.leased_at, j.trace,
                   sum(size) OVER (ORDER BY r.desired_version, r.job_id) AS bytes,
                   sum(size) OVER () AS bytes_all,
                   row_number() OVER (ORDER BY r.desired_version, r.job_id) AS number
            FROM runs r JOIN jobs j ON j.id = r.job_id JOIN queues q ON q.id = j.queue_id
                 JOIN job_specs s ON s.id = j.spec_id,
                 LATERAL (SELECT CASE WHEN r.state = 'leased' THEN pg_column_size(s.spec) ELSE 0 END AS size) AS sent
            WHERE r.cluster_id = :cluster AND r.desired_version > :after AND r.ended_at IS NULL
              AND (r.state IN ('leased', 'stopping') OR r.resized_at IS NOT NULL)
              AND (r.state = 'stopping' OR r.holder = :holder OR r.holder IS NULL)
        ) AS d
        WHERE d.number = 1 OR d.bytes <= :most ORDER BY d.desired_version, d.job_id
        """,
        cluster=cluster_id,
        after=after,
        holder=holder,
        most=_MOST_SPEC_BYTES,
    )


async def desired_streams(tx: Transaction, cluster_id: int, after: int) -> Sequence[DesiredStream]:
    return await tx.all_of(
        DesiredStream,
        """
        SELECT s.id, s.job_id, s.attempt, s.options, j.name FROM log_streams s JOIN jobs j ON j.id = s.job_id
        WHERE s.cluster_id = :cluster AND s.desired_version > :after AND s.expires_at > now()
        """,
        cluster=cluster_id,
        after=after,
    )


async def open_stream(
    tx: Transaction,
    stream: str,
    *,
    cluster_id: int,
    job_id: int,
    attempt: int,
    options: dict[str, Any],
    desired: int,
    seconds: float,
) -> None:
    await tx.run(
        """
        INSERT INTO log_streams (id, cluster_id, job_id, attempt, options, desired_version, expires_at)
        VALUES (:id, :cluster, :job, :attempt, CAST(:options AS jsonb), :version, now() + make_interval(secs => :seconds))
        """,
        id=stream,
        cluster=cluster_id,
        job=job_id,
        attempt=attempt,
        options=dumps(options),
        version=desired,
        seconds=seconds,
    )


async def keep_streams(tx: Transaction, streams: Iterable[str], seconds: float) -> None:
    """Keep these streams open for ``seconds`` from now."""
    await tx.run(
        "UPDATE log_streams SET expires_at = now() + make_interval(secs => :seconds) WHERE id = ANY(:ids)",
        ids=sorted(streams),
        seconds=seconds,
    )


async def stream_is_open(tx: Transaction, stream: str, cluster_id: int) -> bool:
    row = await tx.first(
        "SELECT 1 FROM log_streams WHERE id = :id AND cluster_id = :cluster AND expires_at > now()",
        id=stream,
        cluster=cluster_id,
    )
    return row is not None


async def close_stream(tx: Transaction, stream: str) -> None:
    await tx.run("DELETE FROM log_streams WHERE id = :id OR expires_at < now() - interval '1 minute'", id=stream)


async def beat(tx: Transaction, lease_seconds: float) -> None:
    """Note that an api is serving. After a gap longer than a lease the service counts as newly up."""
    await tx.run(
        """
        UPDATE installation SET
            up_since = CASE WHEN seen_at < clock_timestamp() - make_interval(secs => :lease) THEN clock_timestamp()
                            ELSE up_since END,
            seen_at = clock_timestamp()
        """,
        lease=lease_seconds,
    )


async def service_is_back(tx: Transaction, lease_seconds: float) -> bool:
    """Return whether agents have had at least one lease's time to reach an api since the last outage of the service."""
    row = await tx.one(
        """
        SELECT seen_at > clock_timestamp() - make_interval(secs => :lease)
           AND up_since < clock_timestamp() - make_interval(secs => :lease) AS back
        FROM installation
        """,
        lease=lease_seconds,
    )
    return bool(row.back)


async def lock_contact(tx: Transaction, cluster_id: int) -> bool:
    """Return whether the cluster's agent holds its lease. The row is locked: no sync is answered until the transaction ends."""
    row = await tx.first(
        "SELECT lease_until > clock_timestamp() AS held FROM cluster_contacts WHERE cluster_id = :id FOR UPDATE",
        id=cluster_id,
    )
    return row is not None and bool(row.held)


async def end_session(tx: Transaction, cluster_id: int) -> None:
    """End the lease. The next agent that syncs, which may be the same one, begins a new session and reports all runs that it holds."""
    await tx.run(
        "DELETE FROM agent_sessions s USING cluster_contacts c WHERE c.cluster_id = :id AND s.session = c.session",
        id=cluster_id,
    )
    await tx.run(
        "UPDATE cluster_contacts SET session = NULL, lease_until = clock_timestamp(), checked_at = NULL WHERE cluster_id = :id",
        id=cluster_id,
    )
    await note_change(tx, FeedKind.CONTACT, cluster_id)


async def reachable(tx: Transaction, cluster_ids: Iterable[int]) -> set[int]:
    """Return those of these clusters whose agent holds its lease."""
    rows = await tx.all(
        "SELECT cluster_id FROM cluster_contacts WHERE cluster_id = ANY(:ids) AND lease_until > now()",
        ids=list(cluster_ids),
    )
    return {row.cluster_id for row in rows}
