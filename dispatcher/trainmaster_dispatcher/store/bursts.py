"""Burst policies, and what their runs have cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from trainmaster.protocol import resource_kinds
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.declared import DeclaredTable, StoredObject, note_change
from trainmaster_dispatcher.store.feed_kinds import FeedKind


@dataclass(frozen=True, slots=True)
class StoredPolicy(StoredObject):
    """A policy and its revision."""

    revision: int


POLICIES = DeclaredTable(
    kind=resource_kinds.BURST_POLICY,
    table="burst_policies",
    row=StoredPolicy,
    part=Part.BURST_POLICY,
    feed=FeedKind.BURST_POLICY,
    reads=("revision",),
    keeps_removed=True,
    has_revision=True,
)
"""A policy that was removed and is created again keeps what it has spent."""


class Spent(NamedTuple):
    """The cost of a run by a policy. ``cost`` was counted in the hour of ``began``; a row with a ``rate`` is not counted yet.

    ``began`` and ``ended`` are in microseconds since the epoch.
    """

    policy_id: int
    rate: int | None
    began: int
    ended: int | None
    cost: Decimal | None


async def revisions(tx: Transaction, ids: Sequence[int]) -> dict[int, int]:
    """Return the revisions of those of these policies that exist, and keep the rows unchanged until the transaction ends."""
    if not ids:
        return {}
    rows = await tx.all(
        "SELECT id, revision FROM burst_policies WHERE id = ANY(:ids) AND removed_at IS NULL ORDER BY id FOR SHARE",
        ids=list(ids),
    )
    return {row.id: row.revision for row in rows}


async def spent(tx: Transaction) -> Sequence[Spent]:
    """Return what ended runs have cost this month and in the last day.

    One statement sees one snapshot: no run is missed while its cost is counted.
    """
    return await tx.all_of(
        Spent,
        """
        SELECT policy_id, NULL::bigint AS rate, (extract(epoch FROM hour) * 1000000)::bigint AS began, NULL::bigint AS ended, cost
        FROM policy_spend WHERE hour >= least(date_trunc('month', now(), 'UTC'), now() - interval '25 hours')
        UNION ALL
        SELECT policy_id, (bounds->>'rate')::bigint, (extract(epoch FROM leased_at) * 1000000)::bigint,
               (extract(epoch FROM ended_at) * 1000000)::bigint, NULL
        FROM runs WHERE policy_id IS NOT NULL AND ended_at IS NOT NULL AND NOT counted
        """,
    )


async def spent_on_jobs(tx: Transaction, job_ids: Sequence[int]) -> dict[int, int]:
    """Return what earlier runs of these jobs by policies have cost, in billionths; estimated for runs that are not counted yet."""
    rows = await tx.all(
        """
        SELECT job_id, sum(coalesce(cost, ceil((bounds->>'rate')::numeric
            * extract(epoch FROM ended_at - leased_at) / 3600)))::bigint AS cost
        FROM runs WHERE job_id = ANY(:jobs) AND policy_id IS NOT NULL AND ended_at IS NOT NULL GROUP BY job_id
        """,
        jobs=list(job_ids),
    )
    return {row.job_id: row.cost for row in rows}


async def recent_starts(tx: Transaction, policy_ids: Sequence[int], seconds: float) -> Mapping[int, list[float]]:
    """Return by policy when those of its runs were sent that have ended and were sent in the last ``seconds``; in seconds since the
    epoch.
    """
    found: dict[int, list[float]] = {}
    rows = await tx.all(
        """
        SELECT policy_id, extract(epoch FROM leased_at)::float8 AS at FROM runs
        WHERE policy_id = ANY(:ids) AND leased_at > now() - make_interval(secs => :seconds) AND ended_at IS NOT NULL
        """,
        ids=list(policy_ids),
        seconds=seconds,
    )
    for row in rows:
        found.setdefault(row.policy_id, []).append(row.at)
    return found


async def add_spent(tx: Transaction, costs: Mapping[tuple[int, int], int]) -> None:
    """Add what runs by policies have cost, by policy and hour (microseconds since the epoch), and notify the scheduler."""
    await tx.run(
        """
        INSERT INTO policy_spend (policy_id, hour, cost)
        SELECT policy, to_timestamp(hour), cost FROM json_to_recordset(CAST(:rows AS json)) AS n(policy int, hour bigint, cost numeric)
        ON CONFLICT (policy_id, hour) DO UPDATE SET cost = policy_spend.cost + excluded.cost
        """,
        rows=dumps(
            [
                {"policy": policy, "hour": hour // 1_000_000, "cost": str(cost)}
                for (policy, hour), cost in sorted(costs.items())
            ]
        ),
    )
    await note_change(tx, FeedKind.SPENDING, 0)


class Warned(NamedTuple):
    """A warning that a part of a budget is used up; ``since``: the start of the budget's window."""

    policy_id: int
    span: str
    since: datetime
    part: float


async def note_warnings(tx: Transaction, found: Sequence[Warned]) -> list[Warned]:
    """Store budget warnings; return those that were not stored before."""
    rows = await tx.all(
        """
        INSERT INTO budget_warnings (policy_id, span, since, part)
        SELECT policy, span, since, part
        FROM json_to_recordset(CAST(:rows AS json)) AS n(policy int, span text, since timestamptz, part float8)
        ON CONFLICT DO NOTHING RETURNING policy_id, span, since, part
        """,
        rows=dumps(
            [
                {"policy": one.policy_id, "span": one.span, "since": one.since.isoformat(), "part": one.part}
                for one in found
            ]
        ),
    )
    return [Warned(row.policy_id, row.span, row.since, row.part) for row in rows]
