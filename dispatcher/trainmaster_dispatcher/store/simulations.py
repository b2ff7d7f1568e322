"""Simulations in the background: specification, claim and result.

A worker claims a simulation for some seconds and renews the claim; the number of attempts is the claim's token, so that a slow
worker writes nothing any more once another one has taken over.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster.protocol.simulations import SimulationState
from trainmaster_dispatcher.store.database import Transaction, dumps

_SHOWN = "id, title, state, created_at, created_by, started_at, ended_at, progress, message"


class ShownSimulation(NamedTuple):
    """A simulation as people see it in a list. ``progress``: a ``SimulationProgress``."""

    id: int
    title: str
    state: SimulationState
    created_at: datetime
    created_by: str
    started_at: datetime | None
    ended_at: datetime | None
    progress: dict[str, Any]
    message: str


class WholeSimulation(NamedTuple):
    """A simulation with its specification, without the texts of workloads, and the figures."""

    id: int
    title: str
    state: SimulationState
    created_at: datetime
    created_by: str
    started_at: datetime | None
    ended_at: datetime | None
    progress: dict[str, Any]
    message: str
    spec: dict[str, Any]
    result: dict[str, Any] | None


class SimulationReport(NamedTuple):
    """The report page, and the state, which matters where there is no page."""

    state: SimulationState
    report: str | None


class ClaimedSimulation(NamedTuple):
    """A simulation that a worker has claimed; ``token`` of the claim. ``spec``: a ``SimulationSpec`` as it is stored, not parsed."""

    id: int
    title: str
    spec: dict[str, Any]
    token: int
    created_at: datetime


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
    """Return how many simulations are queued or running."""
    row = await tx.one("SELECT count(*) AS many FROM simulations WHERE state IN ('queued', 'running')")
    return int(row.many)


async def page(tx: Transaction, before: int | None, limit: int) -> Sequence[ShownSimulation]:
    """Return a page of simulations, latest first, without results."""
    return await tx.all_of(
        ShownSimulation,
        f"""
        SELECT {_SHOWN} FROM simulations WHERE CAST(:before AS bigint) IS NULL OR id < :before ORDER BY id DESC LIMIT :limit
        """,
        before=before,
        limit=limit,
    )


async def find(tx: Transaction, simulation: int) -> WholeSimulation | None:
    """Return a simulation with its specification and figures, or None."""
    return await tx.first_of(
        WholeSimulation,
        f"SELECT {_SHOWN}, spec #- '{{workload,swf}}' #- '{{workload,csv}}' AS spec, result FROM simulations WHERE id = :id",
        id=simulation,
    )


async def report(tx: Transaction, simulation: int) -> SimulationReport | None:
    """Return the report page of a simulation and its state, or None."""
    return await tx.first_of(SimulationReport, "SELECT state, report FROM simulations WHERE id = :id", id=simulation)


async def cancel(tx: Transaction, simulation: int) -> bool:
    """Cancel a simulation; return whether it was queued or running. The simulation's worker notices when it renews its claim."""
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
    """Delete a simulation that has ended; return whether there was one."""
    return bool(
        await tx.run("DELETE FROM simulations WHERE id = :id AND state NOT IN ('queued', 'running')", id=simulation)
    )


async def claim(tx: Transaction, seconds: float) -> ClaimedSimulation | None:
    """Claim the oldest simulation that no worker has claimed."""
    return await tx.first_of(
        ClaimedSimulation,
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
    """Renew a claim and store the progress; return whether the claim still holds: it ends by cancellation or a take-over."""
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
    """Release a claim, so that another worker may claim the simulation at once; the attempt does not count."""
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
    """Store the outcome of a simulation, unless the claim holds no more."""
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
    """Remove simulations that ended at least ``seconds`` ago; return whether there may be more."""
    removed = await tx.run(
        """
        DELETE FROM simulations WHERE id IN (
            SELECT id FROM simulations WHERE ended_at < now() - make_interval(secs => :seconds) LIMIT :limit)
        """,
        seconds=seconds,
        limit=limit,
    )
    return removed == limit
