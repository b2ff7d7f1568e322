"""Runs: each is one attempt of a job on one cluster."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import RunState, StopCause
from trainmaster_dispatcher.domain.run_machine import Run
from trainmaster_dispatcher.domain.run_orders import RunOrders
from trainmaster_dispatcher.store.database import Transaction, array_text, dumps
from trainmaster_dispatcher.store.feed_kinds import FeedKind
from trainmaster_dispatcher.store.tables import LIVE_RUN


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's row as the services see it."""

    ref: RunRef
    cluster_id: int
    run: Run
    placement: MemberPlacement | None = None
    """As reported, or else as assumed; None where the caller did not load it."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The desired number of members by role; empty where the caller did not load it."""
    is_shrinking: bool = False
    awaits_pools: bool = False
    """Whether pools of the run's cluster have to grow for the run, with the outcome still unknown."""
    holder: int | None = None
    """The number of the agent's records that the run was leased to; None: a release without such numbers leased it."""
    said: str = ""
    """The last message of the run's agent."""
    object_status: dict[str, Any] | None = None
    """The last status of the object as which the run exists on its cluster, as its agent reported it."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run's new values. ``result``, ``placement`` and ``desired_version`` stay unchanged when None.

    ``has_nodes``: whether members have nodes. ``ended_ago``: how many seconds ago the run ended, as its agent reports.
    """

    ref: RunRef
    run: Run
    result: dict[str, Any] | None = None
    placement: MemberPlacement | None = None
    desired_version: int | None = None
    has_nodes: bool = False
    ended_ago: float = 0.0
    stop_grace: float | None = None
    """The most seconds that the run's members may take to end; a smaller earlier value stays."""
    results: dict[str, Any] | None = None
    """Results that its first member has left; None: none, or unchanged."""
    results_error: str = ""
    """Why what that member has left cannot be read."""


@dataclass(frozen=True, slots=True)
class Resizing:
    """New sizes of a run that continues. ``assumed``: where its members will be after a growth; a shrink leaves them where they
    are.
    """

    ref: RunRef
    generation: int
    sizes: dict[str, int]
    desired_version: int
    assumed: MemberPlacement | None = None
    holds: bool = True
    """Whether members may still exist that have to leave for a shrink."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be leased to a cluster."""

    ref: RunRef
    cluster_id: int
    digest: int
    desired_version: int
    disconnect_seconds: float | None
    sizes: dict[str, int]
    assumed: MemberPlacement
    orders: RunOrders
    """The orders for the agent; ``decision`` explains to people why the cluster was chosen."""
    decision: dict[str, Any]
    policy_id: int | None = None
    bounds: dict[str, Any] | None = None
    pools: tuple[str, ...] = ()
    """Pools of the cluster that have to grow for the run."""
    predicted_seconds: float | None = None
    """How long it is predicted to take, if that is less than its time limit."""
    price_factor: Decimal | None = None
    """What its cost is multiplied by for its charge; None: 1."""


class Origin(NamedTuple):
    """The relation of a run's lease to the current agent of its cluster.

    ``same_records``: the run was leased to the records that this agent has. ``same_place``: its members, if any were started, live
    where this agent looks for members.
    """

    same_records: bool
    same_place: bool


class RunOfEarlierHolder(NamedTuple):
    """A run that the cluster's agent has no record of. ``known``: whether the agent that the run was leased to has reported it."""

    job_id: int
    attempt: int
    known: bool

    @property
    def ref(self) -> RunRef:
        return RunRef(self.job_id, self.attempt)


class ProvisioningWait(NamedTuple):
    """The time that a run has waited for nodes that a pool had to add; ``seconds`` None: the run was returned without them."""

    cluster_id: int
    pool: str
    seconds: float | None


class StoredEnd(TypedDict, total=False):
    """The end of a run, as its agent reports it: ``RunEnd`` of the agent protocol in wire form."""

    category: str
    exitCode: int
    signal: int
    member: str
    message: str


class StoredResult(TypedDict, total=False):
    """An agent's report of a run beside its state."""

    message: str
    end: StoredEnd | None
    members: list[dict[str, Any]]
    objectStatus: dict[str, Any]


class ShownRun(NamedTuple):
    """A run as people see it. ``placement`` as reported, or else as assumed; ``known``: whether an agent has reported it."""

    job_id: int
    attempt: int
    cluster: str
    cluster_id: int
    state: RunState
    leased_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    result: StoredResult | None
    results: dict[str, Any] | None
    results_error: str | None
    decision: dict[str, Any]
    placement: MemberPlacement
    known: bool
    silent_since: datetime | None
    """The last contact with the agent of its cluster, if the agent's lease is over and the run has not ended."""
    is_stopping: bool


class StoredTail(NamedTuple):
    """The last stored output of a member. ``start`` and ``next`` are byte offsets; older releases stored no ``next``.

    ``marks``: offset and seconds since the epoch at which what follows was first seen. ``lives``: where the output of restarts
    begins.
    """

    role: str
    member_index: int
    start: int
    data: str
    next: int | None
    marks: list[list[float]]
    lives: list[int]


def _record(row: Any) -> RunRecord:
    return RunRecord(
        RunRef(row.job_id, row.attempt),
        row.cluster_id,
        Run(
            state=RunState(row.state),
            generation=row.generation,
            seq=row.seq,
            known=row.known,
            stop_cause=None if row.stop_cause is None else StopCause(row.stop_cause),
        ),
        getattr(row, "placement", None),
        getattr(row, "sizes", None) or {},
        getattr(row, "holding", None) is not None,
        getattr(row, "pools", None) is not None,
        row.holder,
        getattr(row, "said", None) or "",
        getattr(row, "object_status", None),
    )


_COLUMNS = "job_id, attempt, cluster_id, state, generation, seq, known, stop_cause, holder"
_BY_CURRENT_HOLDER = """
    CASE WHEN r.holder IS NULL THEN c.earlier_contact_at IS NULL OR r.leased_at > c.earlier_contact_at
         ELSE h.holder IS NOT DISTINCT FROM c.holder END
"""
"""Whether run ``r`` was leased to the records that the agent of its cluster (contacts ``c``) has now; ``h`` is the run's holder."""
_HOLDERS = """
    JOIN cluster_contacts c ON c.cluster_id = r.cluster_id
    LEFT JOIN cluster_holders h ON h.cluster_id = r.cluster_id AND h.number = r.holder
"""


async def clusters_of(tx: Transaction, refs: Iterable[RunRef]) -> dict[RunRef, int]:
    """Return the clusters of those of these runs that exist. Nothing is locked: a run's cluster never changes."""
    wanted = sorted(set(refs))
    rows = await tx.all(
        """
        SELECT job_id, attempt, cluster_id FROM runs
        WHERE (job_id, attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))
        """,
        jobs=[ref.job_key for ref in wanted],
        attempts=[ref.attempt for ref in wanted],
    )
    return {RunRef(row.job_id, row.attempt): row.cluster_id for row in rows}


async def lock(tx: Transaction, refs: Iterable[RunRef]) -> dict[RunRef, RunRecord]:
    """Return these runs, locked in order."""
    wanted = sorted(set(refs))
    rows = await tx.all(
        f"""
        SELECT {_COLUMNS}, pools, coalesce(placement, assumed) AS placement, result->>'message' AS said,
               result->'objectStatus' AS object_status FROM runs
        WHERE (job_id, attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))
        ORDER BY job_id, attempt FOR UPDATE
        """,
        jobs=[ref.job_key for ref in wanted],
        attempts=[ref.attempt for ref in wanted],
    )
    return {RunRef(row.job_id, row.attempt): _record(row) for row in rows}


async def lock_live(tx: Transaction, job_ids: Iterable[int]) -> dict[int, RunRecord]:
    """Return the live run of each of these jobs, locked in order."""
    rows = await tx.all(
        f"SELECT {_COLUMNS}, sizes, holding FROM runs WHERE job_id = ANY(:jobs) AND {LIVE_RUN} ORDER BY job_id FOR UPDATE",
        jobs=sorted(set(job_ids)),
    )
    return {row.job_id: _record(row) for row in rows}


async def reported_to_holder(tx: Transaction, cluster_id: int) -> list[RunRef]:
    """Return live runs that the current holder of the cluster's records has reported and that nobody has ordered to stop."""
    rows = await tx.all(
        f"""
        SELECT r.job_id, r.attempt FROM runs r {_HOLDERS}
        WHERE r.cluster_id = :cluster AND r.known AND r.ended_at IS NULL AND r.stop_cause IS NULL AND {_BY_CURRENT_HOLDER}
        """,
        cluster=cluster_id,
    )
    return [RunRef(row.job_id, row.attempt) for row in rows]


async def origins(tx: Transaction, cluster_id: int, refs: Iterable[RunRef], place: str) -> dict[RunRef, Origin]:
    """Return for runs of a cluster how their leases relate to its current holder in ``place``."""
    wanted = sorted(set(refs))
    rows = await tx.all(
        f"""
        SELECT r.job_id, r.attempt, {_BY_CURRENT_HOLDER} AS same_records,
               coalesce(:place <> '' AND h.place = :place AND r.leased_at > h.place_since, false) AS same_place
        FROM runs r {_HOLDERS}
        WHERE r.cluster_id = :cluster
          AND (r.job_id, r.attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))
        """,
        cluster=cluster_id,
        place=place,
        jobs=[ref.job_key for ref in wanted],
        attempts=[ref.attempt for ref in wanted],
    )
    return {RunRef(row.job_id, row.attempt): Origin(row.same_records, row.same_place) for row in rows}


async def adopt(tx: Transaction, refs: Sequence[RunRef], holder: int) -> None:
    """Record ``holder`` as the holder of runs that were leased to another one, as it has their records. The rows must be locked."""
    await tx.run(
        """
        UPDATE runs SET holder = :holder
        WHERE (job_id, attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))
        """,
        holder=holder,
        jobs=[ref.job_key for ref in refs],
        attempts=[ref.attempt for ref in refs],
    )


async def of_earlier_holders(tx: Transaction, cluster_id: int, most: int) -> Sequence[RunOfEarlierHolder]:
    """Return live runs of a cluster that its current agent has no record of."""
    return await tx.all_of(
        RunOfEarlierHolder,
        f"""
        SELECT r.job_id, r.attempt, r.known FROM runs r {_HOLDERS}
        WHERE r.cluster_id = :cluster AND r.ended_at IS NULL AND NOT ({_BY_CURRENT_HOLDER})
        ORDER BY r.job_id LIMIT :most
        """,
        cluster=cluster_id,
        most=most,
    )


async def unheard_of_earlier_holders(tx: Transaction) -> list[RunRecord]:
    """Return live runs that were leased to an earlier holder which never reported them, and that nobody has ordered to stop."""
    rows = await tx.all(
        f"""
        SELECT {", ".join("r." + name for name in _COLUMNS.split(", "))} FROM runs r {_HOLDERS}
        WHERE c.earlier_contact_at IS NOT NULL AND c.session IS NOT NULL
          AND r.ended_at IS NULL AND NOT r.known AND r.stop_cause IS NULL AND NOT ({_BY_CURRENT_HOLDER})
        """
    )
    return [_record(row) for row in rows]


async def orphans_on(tx: Transaction, cluster_id: int, most: int) -> list[RunRef]:
    """Return at most ``most`` live runs that were leased to an earlier holder of the cluster."""
    return [row.ref for row in await of_earlier_holders(tx, cluster_id, most)]


async def live_on(tx: Transaction, cluster_id: int, most: int, *, unstopped: bool = False) -> list[RunRef]:
    """Return at most ``most`` live runs of a cluster; with ``unstopped`` only those that nobody has ordered to stop."""
    own = " AND stop_cause IS NULL" if unstopped else ""
    rows = await tx.all(
        f"SELECT job_id, attempt FROM runs WHERE cluster_id = :cluster AND {LIVE_RUN}{own} ORDER BY job_id LIMIT :most",
        cluster=cluster_id,
        most=most,
    )
    return [RunRef(row.job_id, row.attempt) for row in rows]


async def count_live_on(tx: Transaction, cluster_id: int) -> int:
    row = await tx.one(
        f"SELECT count(*) AS many FROM runs WHERE cluster_id = :cluster AND {LIVE_RUN}", cluster=cluster_id
    )
    return int(row.many)


async def digest_of_cluster(tx: Transaction, cluster_id: int, holder: int) -> tuple[int, int]:
    """Return count and XOR of the fingerprints of the live runs that this holder has reported, and of quarantined runs."""
    row = await tx.one(
        f"""
        SELECT count(*) AS many, coalesce(bit_xor(digest), 0) AS digest FROM (
            SELECT digest FROM runs
            WHERE cluster_id = :cluster AND known AND {LIVE_RUN} AND (holder = :holder OR holder IS NULL)
            UNION ALL SELECT digest FROM quarantined_runs WHERE cluster_id = :cluster AND NOT stop
        ) AS held
        """,
        cluster=cluster_id,
        holder=holder,
    )
    return int(row.many), int(row.digest)


async def insert(tx: Transaction, fresh: Sequence[NewRun]) -> None:
    await tx.run(
        """
        INSERT INTO runs (job_id, attempt, cluster_id, state, desired_version, digest, disconnect_seconds, sizes, assumed,
                          orders, decision, policy_id, bounds, pools, predicted_seconds, price_factor, holder)
        SELECT job_id, attempt, n.cluster_id, 'leased', version, digest, disconnect, sizes, assumed, orders, decision, policy, bounds,
               pools, predicted, factor, h.number
        FROM json_to_recordset(CAST(:rows AS json)) AS n(
            job_id bigint, attempt int, cluster_id int, version bigint, digest bigint, disconnect float8, sizes jsonb,
            assumed jsonb, orders jsonb, decision jsonb, policy int, bounds jsonb, pools text[], predicted float8, factor numeric)
        LEFT JOIN cluster_contacts c ON c.cluster_id = n.cluster_id
        LEFT JOIN cluster_holders h ON h.cluster_id = c.cluster_id AND h.holder = c.holder
        """,
        rows=dumps(
            [
                {
                    "job_id": run.ref.job_key,
                    "attempt": run.ref.attempt,
                    "cluster_id": run.cluster_id,
                    "version": run.desired_version,
                    "digest": run.digest,
                    "disconnect": run.disconnect_seconds,
                    "sizes": run.sizes,
                    "assumed": run.assumed,
                    "orders": run.orders.stored(),
                    "decision": run.decision,
                    "policy": run.policy_id,
                    "bounds": run.bounds,
                    "pools": list(run.pools) or None,
                    "predicted": run.predicted_seconds,
                    "factor": None if run.price_factor is None else str(run.price_factor),
                }
                for run in fresh
            ]
        ),
    )


async def write(tx: Transaction, changes: Sequence[RunChange]) -> None:
    """Store changed runs. The rows must be locked. The scheduler is notified of ends of runs that have spent part of a burst
    policy's budget.
    """
    if not changes:
        return
    # For the limit see ``jobs.write``.
    await tx.run(
        f"""
        WITH n AS MATERIALIZED (
            SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS n(
                job_id bigint, attempt int, state run_state, generation int, seq int, known bool, stop_cause stop_cause,
                desired_version bigint, result jsonb, placement jsonb, over bool, placed bool, ago float8, grace float8,
                results jsonb, results_error text)
            LIMIT :many
        ), touched AS (
            UPDATE runs SET
                state = n.state, generation = n.generation, seq = n.seq, known = n.known,
                stop_cause = n.stop_cause, desired_version = coalesce(n.desired_version, runs.desired_version),
                stop_grace = least(n.grace, runs.stop_grace),
                result = coalesce(n.result, runs.result), placement = coalesce(n.placement, runs.placement),
                results = coalesce(n.results, runs.results),
                results_error = coalesce(n.results_error, runs.results_error),
                started_at = CASE WHEN n.state IN ('running', 'succeeded') OR n.result->'end' ? 'exitCode'
                                  THEN coalesce(runs.started_at, now()) ELSE runs.started_at END,
                placed_at = CASE WHEN n.placed THEN coalesce(runs.placed_at, now()) ELSE runs.placed_at END,
                ended_at = CASE WHEN n.over THEN coalesce(
                    runs.ended_at,
                    greatest(now() - make_interval(secs => n.ago), runs.placed_at, runs.started_at, runs.leased_at)) END
            FROM n WHERE runs.job_id = n.job_id AND runs.attempt = n.attempt
            RETURNING runs.policy_id, n.over
        )
        INSERT INTO changes (kind, ref) SELECT '{FeedKind.SPENDING}', 0 FROM touched WHERE over AND policy_id IS NOT NULL LIMIT 1
        """,
        rows=dumps(
            [
                {
                    "job_id": change.ref.job_key,
                    "attempt": change.ref.attempt,
                    "state": change.run.state,
                    "generation": change.run.generation,
                    "seq": change.run.seq,
                    "known": change.run.known,
                    "stop_cause": change.run.stop_cause,
                    "desired_version": change.desired_version,
                    "result": change.result,
                    "placement": change.placement,
                    "over": change.run.state.is_terminal,
                    "placed": change.has_nodes,
                    "ago": change.ended_ago,
                    "grace": change.stop_grace,
                    "results": change.results,
                    "results_error": change.results_error or None,
                }
                for change in changes
            ]
        ),
        many=len(changes),
    )


async def note_pools(tx: Transaction, refs: Sequence[RunRef]) -> int:
    """Store how long runs have waited for nodes that pools had to add, for runs that now have nodes or were returned without;
    return the count.

    Call it after ``write``.
    """
    return await tx.run(
        """
        WITH due AS (
            SELECT job_id, attempt, cluster_id, pools, extract(epoch FROM placed_at - leased_at)::float8 AS seconds
            FROM runs WHERE (job_id, attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))
              AND pools IS NOT NULL AND (placed_at IS NOT NULL OR ended_at IS NOT NULL)
        ), settled AS (
            UPDATE runs SET pools = NULL FROM due WHERE runs.job_id = due.job_id AND runs.attempt = due.attempt
            RETURNING due.cluster_id, due.pools, due.seconds, runs.state
        )
        INSERT INTO provisionings (cluster_id, pool, seconds)
        SELECT cluster_id, unnest(pools), seconds FROM settled WHERE seconds IS NOT NULL OR state = 'returned'
        """,
        jobs=[ref.job_key for ref in refs],
        attempts=[ref.attempt for ref in refs],
    )


async def provisionings(tx: Transaction, most: int) -> Sequence[ProvisioningWait]:
    """Return the latest waits for each pool, oldest first."""
    return await tx.all_of(
        ProvisioningWait,
        """
        SELECT cluster_id, pool, seconds FROM (
            SELECT cluster_id, pool, seconds, at, id,
                   row_number() OVER (PARTITION BY cluster_id, pool ORDER BY at DESC, id DESC) AS place
            FROM provisionings WHERE at > now() - interval '30 days') latest
        WHERE place <= :most ORDER BY cluster_id, pool, at, id
        """,
        most=most,
    )


async def drop_old_provisionings(tx: Transaction) -> int:
    return await tx.run("DELETE FROM provisionings WHERE at < now() - interval '30 days'")


async def resize(tx: Transaction, changes: Sequence[Resizing]) -> None:
    """Store new sizes. The rows must be locked.

    A shrink stores what the run still holds; after a growth the run's place is the assumed one until its agent reports again.
    """
    await tx.run(
        """
        UPDATE runs SET
            generation = n.generation, sizes = n.sizes, desired_version = n.version, resized_at = now(),
            holding = CASE WHEN n.assumed IS NULL AND n.holds THEN coalesce(runs.holding, runs.sizes) END,
            assumed = coalesce(n.assumed, runs.assumed),
            placement = CASE WHEN n.assumed IS NULL THEN runs.placement END
        FROM json_to_recordset(CAST(:rows AS json)) AS n(
            job_id bigint, attempt int, generation int, version bigint, sizes jsonb, assumed jsonb, holds bool)
        WHERE runs.job_id = n.job_id AND runs.attempt = n.attempt
        """,
        rows=dumps(
            [
                {
                    "job_id": change.ref.job_key,
                    "attempt": change.ref.attempt,
                    "generation": change.generation,
                    "version": change.desired_version,
                    "sizes": change.sizes,
                    "assumed": change.assumed,
                    "holds": change.holds,
                }
                for change in changes
            ]
        ),
    )


async def resized(tx: Transaction, refs: Iterable[RunRef]) -> dict[RunRef, tuple[dict[str, int], bool]]:
    """Return for runs that were resized their desired sizes, and whether members still have to leave. The rows must be locked."""
    wanted = sorted(set(refs))
    rows = await tx.all(
        """
        SELECT job_id, attempt, sizes, holding IS NOT NULL AS is_shrinking FROM runs
        WHERE (job_id, attempt) IN (SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])))
          AND resized_at IS NOT NULL
        """,
        jobs=[ref.job_key for ref in wanted],
        attempts=[ref.attempt for ref in wanted],
    )
    return {RunRef(row.job_id, row.attempt): (row.sizes, row.is_shrinking) for row in rows}


async def settle_sizes(tx: Transaction, settled: Mapping[RunRef, dict[str, int]]) -> None:
    """Store the runs' final sizes: members that had to leave are gone, and those without capacity will not start. The rows must be
    locked.
    """
    await tx.run(
        """
        UPDATE runs SET sizes = n.sizes, holding = NULL, resized_at = now()
        FROM json_to_recordset(CAST(:rows AS json)) AS n(job_id bigint, attempt int, sizes jsonb)
        WHERE runs.job_id = n.job_id AND runs.attempt = n.attempt
        """,
        rows=dumps([{"job_id": ref.job_key, "attempt": ref.attempt, "sizes": sizes} for ref, sizes in settled.items()]),
    )


async def raise_desired(tx: Transaction, cluster_ids: Iterable[int]) -> dict[int, int]:
    """Raise and return the desired version of each cluster. Call it as late as possible: the rows stay locked until the commit.

    Rows are locked in order, so that two callers never wait for each other.
    """
    wanted = sorted(set(cluster_ids))
    if not wanted:
        return {}
    rows = await tx.all(
        """
        WITH locked AS (SELECT cluster_id FROM cluster_desired WHERE cluster_id = ANY(:ids) ORDER BY cluster_id FOR UPDATE)
        UPDATE cluster_desired AS d SET version = d.version + 1 FROM locked WHERE d.cluster_id = locked.cluster_id
        RETURNING d.cluster_id, d.version
        """,
        ids=wanted,
    )
    return {row.cluster_id: row.version for row in rows}


async def of_job(tx: Transaction, job_id: int) -> Sequence[ShownRun]:
    """Return all runs of a job, in order, for people."""
    return await of_jobs(tx, [job_id])


async def of_jobs(tx: Transaction, job_ids: Sequence[int]) -> Sequence[ShownRun]:
    """Return all runs of these jobs, those of each in order, for people."""
    return await tx.all_of(
        ShownRun,
        """
        SELECT r.job_id, r.attempt, c.name AS cluster, r.cluster_id, r.state, r.leased_at, r.started_at, r.ended_at, r.result,
               r.results, r.results_error, r.decision, coalesce(r.placement, r.assumed) AS placement, r.known,
               CASE WHEN r.ended_at IS NULL AND k.contact_at > 'epoch' AND k.lease_until <= now() THEN k.contact_at END
                   AS silent_since,
               r.stop_cause IS NOT NULL AS is_stopping
        FROM runs r JOIN clusters c ON c.id = r.cluster_id LEFT JOIN cluster_contacts k ON k.cluster_id = r.cluster_id
        WHERE r.job_id = ANY(:jobs) ORDER BY r.job_id, r.attempt
        """,
        jobs=list(job_ids),
    )


class RunLine(NamedTuple):
    """A run in a line."""

    job_id: int
    attempt: int
    cluster: str
    state: RunState
    started_at: datetime | None
    ended_at: datetime | None


async def lines(tx: Transaction, job_ids: Sequence[int]) -> Sequence[RunLine]:
    """Return the runs of these jobs, those of each in order."""
    if not job_ids:
        return ()
    return await tx.all_of(
        RunLine,
        """
        SELECT r.job_id, r.attempt, c.name AS cluster, r.state, r.started_at, r.ended_at
        FROM runs r JOIN clusters c ON c.id = r.cluster_id WHERE r.job_id = ANY(:jobs) ORDER BY r.job_id, r.attempt
        """,
        jobs=list(job_ids),
    )


class LatestRun(NamedTuple):
    """The latest run of a job, for its members. ``placement`` as reported, or else as assumed."""

    job_id: int
    attempt: int
    cluster: str
    state: RunState
    leased_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    result: StoredResult | None
    placement: MemberPlacement


async def latest(tx: Transaction, job_ids: Sequence[int]) -> dict[int, LatestRun]:
    """Return the latest run of each of these jobs that has one."""
    rows = await tx.all_of(
        LatestRun,
        """
        SELECT DISTINCT ON (r.job_id) r.job_id, r.attempt, c.name AS cluster, r.state, r.leased_at, r.started_at, r.ended_at,
               r.result, coalesce(r.placement, r.assumed) AS placement
        FROM runs r JOIN clusters c ON c.id = r.cluster_id WHERE r.job_id = ANY(:jobs) ORDER BY r.job_id, r.attempt DESC
        """,
        jobs=list(job_ids),
    )
    return {row.job_id: row for row in rows}


async def object_statuses(tx: Transaction, job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the last status of the object as which the latest run of a job exists on its cluster, where one was reported."""
    if not job_ids:
        return {}
    rows = await tx.all(
        """
        SELECT job_id, status FROM (
            SELECT DISTINCT ON (job_id) job_id, result->'objectStatus' AS status FROM runs WHERE job_id = ANY(:jobs)
            ORDER BY job_id, attempt DESC) latest
        WHERE status IS NOT NULL
        """,
        jobs=list(job_ids),
    )
    return {row.job_id: row.status for row in rows}


async def results_of(tx: Transaction, job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the results of the latest run of each of these jobs that has succeeded or failed, where it has any."""
    if not job_ids:
        return {}
    rows = await tx.all(
        """
        SELECT job_id, results FROM (
            SELECT DISTINCT ON (job_id) job_id, results FROM runs
            WHERE job_id = ANY(:jobs) AND state IN ('succeeded', 'failed') ORDER BY job_id, attempt DESC) latest
        WHERE results IS NOT NULL
        """,
        jobs=list(job_ids),
    )
    return {row.job_id: row.results for row in rows}


async def has_ended(tx: Transaction, ref: RunRef) -> bool:
    """Return whether a run has ended, or does not exist."""
    row = await tx.first(
        "SELECT ended_at IS NOT NULL AS ended FROM runs WHERE job_id = :job AND attempt = :attempt",
        job=ref.job_key,
        attempt=ref.attempt,
    )
    return row is None or bool(row.ended)


async def overdue(tx: Transaction, margin_seconds: float) -> list[RunRecord]:
    """Return live runs that may be given up: their disconnect limit and a margin have passed since the cluster's last contact.

    No run may be given up unless an api has been in contact with Postgres without a gap for at least one lease; the caller checks
    this with ``service_is_back``.
    """
    rows = await tx.all(
        """
        SELECT r.job_id, r.attempt, r.cluster_id, r.state, r.generation, r.seq, r.known, r.stop_cause, r.holder
        FROM runs r JOIN cluster_contacts c USING (cluster_id)
        WHERE r.ended_at IS NULL AND r.disconnect_seconds IS NOT NULL
          AND c.lease_until < now()
          AND greatest(c.contact_at, r.leased_at) + make_interval(secs => r.disconnect_seconds + :margin) < now()
        """,
        margin=margin_seconds,
    )
    return [_record(row) for row in rows]


async def orphaned(tx: Transaction, margin_seconds: float) -> list[RunRecord]:
    """Return live runs leased to records that the cluster's agent no longer has, and whose members must be dead by now."""
    rows = await tx.all(
        f"""
        SELECT {", ".join("r." + name for name in _COLUMNS.split(", "))} FROM runs r {_HOLDERS}
        WHERE r.ended_at IS NULL AND r.disconnect_seconds IS NOT NULL AND c.earlier_contact_at IS NOT NULL
          AND NOT ({_BY_CURRENT_HOLDER})
          AND greatest(coalesce(h.contact_at, c.earlier_contact_at), r.leased_at)
              + make_interval(secs => r.disconnect_seconds + :margin) < now()
        """,
        margin=margin_seconds,
    )
    return [_record(row) for row in rows]


async def save_tails(tx: Transaction, ref: RunRef, tails: Sequence[StoredTail]) -> None:
    """Store the last output of members."""
    await tx.run(
        """
        INSERT INTO run_tails (job_id, attempt, role, index, start, data, next, marks, lives)
        SELECT :job, :attempt, role, index, start, data, next, marks, CAST(lives AS bigint[])
        FROM unnest(CAST(:roles AS text[]), CAST(:indexes AS int[]), CAST(:starts AS bigint[]), CAST(:data AS text[]),
                    CAST(:nexts AS bigint[]), CAST(:marks AS jsonb[]), CAST(:lives AS text[]))
             AS n(role, index, start, data, next, marks, lives)
        ON CONFLICT (job_id, attempt, role, index)
        DO UPDATE SET start = excluded.start, data = excluded.data, next = excluded.next, marks = excluded.marks,
                      lives = excluded.lives
        """,
        job=ref.job_key,
        attempt=ref.attempt,
        roles=[tail.role for tail in tails],
        indexes=[tail.member_index for tail in tails],
        starts=[tail.start for tail in tails],
        data=[tail.data.replace("\x00", "�") for tail in tails],
        nexts=[tail.next for tail in tails],
        marks=[dumps(tail.marks) for tail in tails],
        lives=[array_text(tail.lives) for tail in tails],
    )


async def tails(tx: Transaction, ref: RunRef) -> Sequence[StoredTail]:
    """Return the stored output of a run's members."""
    return await tx.all_of(
        StoredTail,
        """
        SELECT role, index AS member_index, start, data, next, marks, lives FROM run_tails
        WHERE job_id = :job AND attempt = :attempt ORDER BY role, index
        """,
        job=ref.job_key,
        attempt=ref.attempt,
    )
