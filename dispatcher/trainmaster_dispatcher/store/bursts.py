"""Burst policies, and what was spent by them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row

from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.stored import readable
from trainmaster_dispatcher.store.tenants import note_change


class PolicyRow(NamedTuple):
    """A policy, its key, and which of its versions it is."""

    id: int
    spec: BurstPolicySpec
    revision: int


async def stored_policies(tx: Transaction) -> Sequence[Row[Any]]:
    """All burst policies as they are stored: ``id``, ``name``, ``spec``, ``revision``."""
    return await tx.all("SELECT id, name, spec, revision FROM burst_policies WHERE removed_at IS NULL ORDER BY name")


async def policies(tx: Transaction) -> list[PolicyRow]:
    """All burst policies whose stored specification can be read."""
    return readable(
        Part.BURST_POLICY,
        await stored_policies(tx),
        lambda row: PolicyRow(row.id, BurstPolicySpec.model_validate(row.spec), row.revision),
    )


async def has_policy(tx: Transaction, name: str) -> bool:
    return (
        await tx.first("SELECT 1 FROM burst_policies WHERE name = :name AND removed_at IS NULL", name=name) is not None
    )


async def revisions(tx: Transaction, ids: Sequence[int]) -> dict[int, int]:
    """The versions of those of these policies that are there; they stay so until the transaction ends."""
    if not ids:
        return {}
    rows = await tx.all(
        "SELECT id, revision FROM burst_policies WHERE id = ANY(:ids) AND removed_at IS NULL ORDER BY id FOR SHARE",
        ids=list(ids),
    )
    return {row.id: row.revision for row in rows}


async def put_policy(tx: Transaction, spec: BurstPolicySpec) -> None:
    """Make or change a policy. One that was removed goes on with what it has spent."""
    row = await tx.one(
        """
        INSERT INTO burst_policies (name, spec) VALUES (:name, CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, revision = burst_policies.revision + 1, removed_at = NULL
        RETURNING id
        """,
        name=spec.name,
        spec=dumps(spec.to_wire()),
    )
    await note_change(tx, "policy", row.id)


async def delete_policy(tx: Transaction, name: str) -> bool:
    """Whether there was one. What was spent by it stays counted."""
    row = await tx.first(
        """
        UPDATE burst_policies SET removed_at = now(), revision = revision + 1
        WHERE name = :name AND removed_at IS NULL RETURNING id
        """,
        name=name,
    )
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


async def spent_on_jobs(tx: Transaction, job_ids: Sequence[int]) -> dict[int, int]:
    """What earlier runs of these jobs by policies have cost, in billionths; estimated until it is counted."""
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
