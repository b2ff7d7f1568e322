"""The usage of runs: runs that are not counted yet, and the counted sums."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.store.database import Transaction, dumps

_LOCK = 1953653618

_RUNS = """
    SELECT r.job_id, r.attempt, r.cluster_id, r.sizes, coalesce(r.placement, r.assumed) AS placement,
           (extract(epoch FROM coalesce(r.placed_at, r.started_at)) * 1000000)::bigint AS began,
           (extract(epoch FROM coalesce(r.ended_at, now())) * 1000000)::bigint AS ended,
           r.ended_at IS NOT NULL AS is_over, r.resized_at IS NOT NULL AS was_resized, r.policy_id,
           r.price_factor, j.queue_id, j.class_id, j.api_key_id, j.labels, j.shape_id
    FROM runs r JOIN jobs j ON j.id = r.job_id
"""


COLUMNS = ("queue_id", "class_id", "api_key_id", "cluster_id", "labels")
BUCKETS = ("hour", "day", "month", "all")


class Bucket(NamedTuple):
    """The key of a counted sum. ``hour`` in microseconds since the epoch; ``labels`` as JSON with sorted keys."""

    hour: int
    queue_id: int
    class_id: int
    api_key_id: int
    cluster_id: int
    labels: str
    resource: str
    product: str
    spot: bool


class UsedRun(NamedTuple):
    """A run that has used something, or may have. Moments in microseconds since the epoch.

    ``began`` is None where the run's members never had nodes; ``ended`` is now where it is at work.
    """

    job_id: int
    attempt: int
    cluster_id: int
    sizes: dict[str, int]
    placement: MemberPlacement
    """As reported, or else as assumed."""
    began: int | None
    ended: int
    is_over: bool
    was_resized: bool
    policy_id: int | None
    price_factor: Decimal | None
    """What its cost is multiplied by for its charge; None: 1."""
    queue_id: int
    class_id: int
    api_key_id: int
    labels: dict[str, str] | None
    shape_id: int


class StoredResize(NamedTuple):
    """A resize of a run: the request (``kind`` of a resize), or its outcome. ``at`` in microseconds since the epoch."""

    job_id: int
    attempt: int
    kind: str
    at: int
    sizes: dict[str, int]
    before: dict[str, int] | None
    """None where the previous sizes were not stored."""


class NamedCluster(NamedTuple):
    """A cluster that exists, or once did."""

    id: int
    name: str
    kind: ClusterKind


class CountedUsage(NamedTuple):
    """A sum of counted usage; columns that were not requested are None. ``since`` in microseconds since the epoch."""

    since: int
    queue_id: int | None
    class_id: int | None
    api_key_id: int | None
    cluster_id: int | None
    labels: dict[str, str] | None
    resource: str
    product: str
    spot: bool
    amount: Decimal
    cost: Decimal
    charge: Decimal


async def take_turn(tx: Transaction) -> bool:
    """Take the lock of counting; return whether this transaction has it."""
    return bool((await tx.one("SELECT pg_try_advisory_xact_lock(:key) AS ours", key=_LOCK)).ours)


async def begin_snapshot(tx: Transaction) -> None:
    """Let all statements of this transaction see the store as at the first of them."""
    await tx.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


async def uncounted(
    tx: Transaction,
    limit: int,
    *,
    among: Collection[tuple[int, int]] | None = None,
    without: Collection[tuple[int, int]] = (),
) -> Sequence[UsedRun]:
    """Return runs that have ended and are not counted.

    ``among`` and ``without``: jobs and attempts to include, and to exclude.
    """
    chosen, wanted = "", dict[str, Any]()
    for name, test, keys in (("among", "IN", among), ("without", "NOT IN", without or None)):
        if keys is not None:
            chosen += (
                f" AND (r.job_id, r.attempt) {test}"
                f" (SELECT * FROM unnest(CAST(:{name}_jobs AS bigint[]), CAST(:{name}_attempts AS int[])))"
            )
            wanted |= {f"{name}_jobs": [job for job, _ in keys], f"{name}_attempts": [attempt for _, attempt in keys]}
    return await tx.all_of(
        UsedRun, f"{_RUNS} WHERE NOT r.counted AND r.ended_at IS NOT NULL{chosen} LIMIT :limit", limit=limit, **wanted
    )


async def of_job(tx: Transaction, job_id: int) -> Sequence[UsedRun]:
    """Return the runs of a job; those at work end now."""
    return await tx.all_of(UsedRun, f"{_RUNS} WHERE r.job_id = :job ORDER BY r.attempt", job=job_id)


async def going_on(tx: Transaction, queue_ids: Iterable[int] | None) -> Sequence[UsedRun]:
    """Return runs that are not counted and whose members have had nodes; those at work end now. ``queue_ids``: None for all."""
    chosen = "" if queue_ids is None else " AND j.queue_id = ANY(:queues)"
    wanted = {} if queue_ids is None else {"queues": list(queue_ids)}
    return await tx.all_of(
        UsedRun, f"{_RUNS} WHERE NOT r.counted AND coalesce(r.placed_at, r.started_at) IS NOT NULL{chosen}", **wanted
    )


async def resizes(tx: Transaction, job_ids: Iterable[int]) -> Sequence[StoredResize]:
    """Return the resizes of runs of these jobs, in their order."""
    return await tx.all_of(
        StoredResize,
        """
        SELECT job_id, attempt, kind, (extract(epoch FROM at) * 1000000)::bigint AS at, details->'sizes' AS sizes,
               details->'from' AS before
        FROM events WHERE job_id = ANY(:jobs) AND attempt IS NOT NULL AND details ? 'sizes' ORDER BY job_id, seq
        """,
        jobs=sorted(set(job_ids)),
    )


async def clusters(tx: Transaction) -> Sequence[NamedCluster]:
    """Return names and kinds of all clusters that ever existed."""
    return await tx.all_of(NamedCluster, "SELECT id, name, kind FROM clusters")


async def shapes(tx: Transaction, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    rows = await tx.all("SELECT id, body FROM shapes WHERE id = ANY(:ids)", ids=sorted(set(ids)))
    return {row.id: row.body for row in rows}


async def mark_counted(tx: Transaction, runs: Sequence[tuple[int, int]], costs: Mapping[tuple[int, int], int]) -> None:
    """Mark runs, by job and attempt, as counted. ``costs``: the costs of those by burst policies, stored with them."""
    await tx.run(
        """
        UPDATE runs SET counted = true, cost = CASE WHEN runs.policy_id IS NOT NULL THEN coalesce(n.cost, 0) END
        FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[]), CAST(:costs AS numeric[])) AS n(job_id, attempt, cost)
        WHERE runs.job_id = n.job_id AND runs.attempt = n.attempt
        """,
        jobs=[job_id for job_id, _ in runs],
        attempts=[attempt for _, attempt in runs],
        costs=[costs.get(run) for run in runs],
    )


async def add(tx: Transaction, used: Mapping[Bucket, tuple[int, int, int]]) -> None:
    """Add amounts, costs and charges. Rows are in one order, so that two callers never wait for each other."""
    rows = [
        {
            "hour": bucket.hour // 1_000_000,
            "queue": bucket.queue_id,
            "class": bucket.class_id,
            "key": bucket.api_key_id,
            "cluster": bucket.cluster_id,
            "labels": bucket.labels,
            "resource": bucket.resource,
            "product": bucket.product,
            "spot": bucket.spot,
            "amount": str(amount),
            "cost": str(cost),
            "charge": str(charge),
        }
        for bucket, (amount, cost, charge) in sorted(used.items())
    ]
    await tx.run(
        """
        INSERT INTO class_usage (hour, queue_id, class_id, api_key_id, cluster_id, labels, resource, product, spot, amount,
                                 cost, charge)
        SELECT to_timestamp(hour), queue, class, key, cluster, CAST(labels AS jsonb), resource, product, spot, amount,
               cost, charge
        FROM json_to_recordset(CAST(:rows AS json)) AS n(
            hour bigint, queue int, class int, key int, cluster int, labels text, resource text, product text, spot bool,
            amount numeric, cost numeric, charge numeric)
        ON CONFLICT (hour, queue_id, class_id, api_key_id, cluster_id, labels, resource, product, spot)
        DO UPDATE SET amount = class_usage.amount + excluded.amount, cost = class_usage.cost + excluded.cost,
                      charge = class_usage.charge + excluded.charge
        """,
        rows=dumps(rows),
    )


async def summed(
    tx: Transaction,
    begin: datetime,
    end: datetime,
    bucket: str,
    columns: Iterable[str],
    queue_ids: Iterable[int] | None,
) -> Sequence[CountedUsage]:
    """Return the counted usage of the hours from ``begin`` until before ``end``, by ``bucket`` and ``columns``.

    ``bucket``: hour, day, month or all; ``columns`` of ``COLUMNS``.
    """
    wanted = set(columns)
    if not wanted <= set(COLUMNS) or bucket not in BUCKETS:
        raise ValueError(f"usage is not counted by {sorted(wanted)} and {bucket}")
    since = f"date_trunc('{bucket}', hour, 'UTC')" if bucket != "all" else "CAST(:begin AS timestamptz)"
    shown = ", ".join(f"{name if name in wanted else 'NULL'} AS {name}" for name in COLUMNS)
    grouped = ", ".join(["1", *(str(2 + place) for place, name in enumerate(COLUMNS) if name in wanted)])
    chosen = "hour >= :begin AND hour < :end" + ("" if queue_ids is None else " AND queue_id = ANY(:queues)")
    keys = "hour, queue_id, api_key_id, cluster_id, labels, resource, product, spot, amount, cost"
    more = {} if queue_ids is None else {"queues": list(queue_ids)}
    return await tx.all_of(
        CountedUsage,
        f"""
        SELECT (extract(epoch FROM {since}) * 1000000)::bigint AS since, {shown}, resource, product, spot,
               sum(amount) AS amount, sum(cost) AS cost, sum(charge) AS charge
        FROM (SELECT {keys}, class_id, charge FROM class_usage WHERE {chosen}
              UNION ALL SELECT {keys}, 0, cost FROM usage WHERE {chosen}) AS counted
        GROUP BY {grouped}, resource, product, spot
        """,
        begin=begin,
        end=end,
        **more,
    )
