"""Burst policies, and what was spent by them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row

from trainmaster.dispatcher.store.database import Transaction, dumps
from trainmaster.dispatcher.store.tenants import note_change
from trainmaster.protocol.bursting import BurstPolicySpec


class PolicyRow(NamedTuple):
    """A policy and its key."""

    id: int
    spec: BurstPolicySpec


async def policies(tx: Transaction) -> list[PolicyRow]:
    rows = await tx.all("SELECT id, spec FROM burst_policies ORDER BY name")
    return [PolicyRow(row.id, BurstPolicySpec.model_validate(row.spec)) for row in rows]


async def has_policy(tx: Transaction, name: str) -> bool:
    return await tx.first("SELECT 1 FROM burst_policies WHERE name = :name", name=name) is not None


async def policies_there(tx: Transaction, ids: Sequence[int]) -> set[int]:
    """Those of these policies that are there; they stay until the transaction ends."""
    if not ids:
        return set()
    rows = await tx.all("SELECT id FROM burst_policies WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE", ids=list(ids))
    return {row.id for row in rows}


async def put_policy(tx: Transaction, spec: BurstPolicySpec) -> None:
    row = await tx.one(
        """
        INSERT INTO burst_policies (name, spec) VALUES (:name, CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET spec = excluded.spec RETURNING id
        """,
        name=spec.name,
        spec=dumps(spec.to_wire()),
    )
    await note_change(tx, "policy", row.id)


async def delete_policy(tx: Transaction, name: str) -> bool:
    """Whether there was one. What was spent by it stays in the usage."""
    row = await tx.first("DELETE FROM burst_policies WHERE name = :name RETURNING id", name=name)
    if row is not None:
        await note_change(tx, "policy", row.id)
    return row is not None


async def spent(tx: Transaction) -> Sequence[Row[Any]]:
    """What runs that have ended have cost this month: ``policy_id``, ``rate``, and begin and end in microseconds since the epoch.

    Where ``rate`` is NULL, ``cost`` was counted in the hour of ``began``; else the run is not counted yet. One statement, hence one
    snapshot: no run is missed while it is counted.
    """
    return await tx.all(
        """
        SELECT policy_id, NULL::bigint AS rate, (extract(epoch FROM hour) * 1000000)::bigint AS began, NULL::bigint AS ended, cost
        FROM policy_spend WHERE hour >= date_trunc('month', now(), 'UTC')
        UNION ALL
        SELECT policy_id, (bounds->>'rate')::bigint, (extract(epoch FROM leased_at) * 1000000)::bigint,
               (extract(epoch FROM ended_at) * 1000000)::bigint, NULL
        FROM runs WHERE policy_id IS NOT NULL AND ended_at IS NOT NULL AND NOT counted
        """
    )


async def spent_on_jobs(tx: Transaction) -> Mapping[int, int]:
    """By job that has not ended: what its earlier runs by policies have cost, in billionths; estimated until it is counted."""
    rows = await tx.all(
        """
        SELECT r.job_id, sum(coalesce(r.cost, ceil((r.bounds->>'rate')::numeric
            * extract(epoch FROM r.ended_at - r.leased_at) / 3600)))::bigint AS cost
        FROM runs r JOIN jobs j ON j.id = r.job_id
        WHERE r.policy_id IS NOT NULL AND r.ended_at IS NOT NULL AND j.ended_at IS NULL GROUP BY r.job_id
        """
    )
    return {row.job_id: row.cost for row in rows}


async def recent_starts(tx: Transaction, policy_ids: Sequence[int], seconds: float) -> Mapping[int, list[float]]:
    """By policy: when those of its runs were sent, in the last so many seconds, that have ended; seconds since the epoch."""
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
    """Add what runs by policies have cost, by policy and hour (microseconds since the epoch), and let the scheduler know."""
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
    await note_change(tx, "spend", 0)


class Warned(NamedTuple):
    """That so much of a budget is used up; ``since``: the begin of its window."""

    policy_id: int
    span: str
    since: datetime
    part: float


async def note_warnings(tx: Transaction, found: Sequence[Warned]) -> list[Warned]:
    """Those of these that were not given before."""
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
