"""Simulations in the background: what was asked for, who is at it, and what came out.

A worker claims one for some seconds and renews its claim; its number of attempts is its token, so that a worker that was slow writes
nothing any more once another one has taken over.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from trainmaster.protocol.simulations import SimulationState
from trainmaster_dispatcher.store.database import Transaction, dumps

_SHOWN = "id, title, state, created_at, created_by, started_at, ended_at, progress, message"


async def add(tx: Transaction, title: str, spec: dict[str, Any], created_by: str) -> int:
    row = await tx.one(
        """
        INSERT INTO simulations (title, spec, created_by) VALUES (:title, CAST(:spec AS jsonb), :created_by) RETURNING id
        """,
        title=title,
        spec=dumps(spec),
        created_by=created_by,
    )
    return int(row.id)


async def open_ones(tx: Transaction) -> int:
    """How many are queued or running."""
    row = await tx.one("SELECT count(*) AS many FROM simulations WHERE state IN ('queued', 'running')")
    return int(row.many)


async def page(tx: Transaction, before: int | None, limit: int) -> Sequence[Row[Any]]:
    """The latest first, without what came out."""
    return await tx.all(
        f"""
        SELECT {_SHOWN} FROM simulations WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit
        """,
        before=before,
        limit=limit,
    )


async def find(tx: Transaction, simulation: int) -> Row[Any] | None:
    """With what was asked for, without the texts of workloads, and the figures."""
    return await tx.first(
        f"SELECT {_SHOWN}, spec #- '{{workload,swf}}' #- '{{workload,csv}}' AS spec, result FROM simulations WHERE id = :id",
        id=simulation,
    )


async def report(tx: Transaction, simulation: int) -> Row[Any] | None:
    """The page, and the state for where there is none."""
    return await tx.first("SELECT state, report FROM simulations WHERE id = :id", id=simulation)


async def cancel(tx: Transaction, simulation: int) -> bool:
    """Whether it was queued or running; its worker finds out when it renews its claim."""
    return bool(
        await tx.run(
            """
            UPDATE simulations SET state = 'cancelled', ended_at = now(), claimed_until = NULL
            WHERE id = :id AND state IN ('queued', 'running')
            """,
            id=simulation,
        )
    )


async def remove(tx: Transaction, simulation: int) -> bool:
    """Whether there was one that had ended."""
    return bool(
        await tx.run("DELETE FROM simulations WHERE id = :id AND state NOT IN ('queued', 'running')", id=simulation)
    )


async def claim(tx: Transaction, seconds: float) -> Row[Any] | None:
    """Take the oldest one that nobody is at, as its own from now on; its specification and the token of the claim."""
    return await tx.first(
        """
        UPDATE simulations SET state = 'running', attempts = attempts + 1, progress = '{}',
            started_at = coalesce(started_at, now()), claimed_until = now() + make_interval(secs => :seconds)
        WHERE id = (
            SELECT id FROM simulations
            WHERE state = 'queued' OR (state = 'running' AND claimed_until < now())
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
        ) RETURNING id, title, spec, attempts AS token, created_at
        """,
        seconds=seconds,
    )


async def renew(tx: Transaction, simulation: int, token: int, progress: dict[str, Any], seconds: float) -> bool:
    """Whether the claim still holds: not if it was cancelled, or taken over."""
    return bool(
        await tx.run(
            """
            UPDATE simulations SET progress = CAST(:progress AS jsonb), claimed_until = now() + make_interval(secs => :seconds)
            WHERE id = :id AND attempts = :token AND state = 'running'
            """,
            id=simulation,
            token=token,
            progress=dumps(progress),
            seconds=seconds,
        )
    )


async def give_back(tx: Transaction, simulation: int, token: int) -> None:
    """Another worker may have it at once, and it is as if this one had not tried."""
    await tx.run(
        """
        UPDATE simulations SET state = 'queued', attempts = attempts - 1, claimed_until = NULL, progress = '{}'
        WHERE id = :id AND attempts = :token AND state = 'running'
        """,
        id=simulation,
        token=token,
    )


async def finish(
    tx: Transaction,
    simulation: int,
    token: int,
    state: SimulationState,
    message: str = "",
    result: dict[str, Any] | None = None,
    report: str | None = None,
) -> None:
    """What came out, unless the claim holds no more."""
    await tx.run(
        """
        UPDATE simulations SET state = :state, message = :message, result = CAST(:result AS jsonb), report = :report,
            ended_at = now(), claimed_until = NULL
        WHERE id = :id AND attempts = :token AND state = 'running'
        """,
        id=simulation,
        token=token,
        state=state.value,
        message=message,
        result=None if result is None else dumps(result),
        report=report,
    )


async def remove_old(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove what ended so long ago; whether there may be more."""
    removed = await tx.run(
        """
        DELETE FROM simulations WHERE id IN (
            SELECT id FROM simulations WHERE ended_at < now() - make_interval(secs => :seconds) LIMIT :limit)
        """,
        seconds=seconds,
        limit=limit,
    )
    return removed == limit
