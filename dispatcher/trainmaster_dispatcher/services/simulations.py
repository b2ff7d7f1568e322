"""Simulations in the background: queueing orders, and the data that a worker needs to run one.

The api checks an order against what is declared and queues it; a worker claims the order, gathers the installation as it is
at that moment, and passes all of it to a process of its own, which knows no store; the process's results are stored as they arrive.

What-if and the fake cluster are imported where an order is checked, so that no api or worker loads them before somebody simulates.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import ValidationError

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.resource_kinds import QUEUE, Kind
from trainmaster.protocol.simulations import (
    MOST_WHAT_IF_JOBS,
    CaseSpec,
    HistoryPart,
    Installation,
    QuotaWhatIfSpec,
    SimulationOrder,
    SimulationProgress,
    SimulationSpec,
    SimulationView,
    WorkloadSpec,
)
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.suggestions import suggestion
from trainmaster.protocol.workload import MOST_JOBS, Workload
from trainmaster_dispatcher.services import declared_kinds, job_queries, workload_export
from trainmaster_dispatcher.store import jobs, tenants
from trainmaster_dispatcher.store import simulations as store
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.keys import Caller

_Found = TypeVar("_Found")

_WORKER = Caller(0, "worker", KeyRole.ADMIN)
_WHAT_IF_DAYS = 7
MOST_OPEN = 100
"""Most simulations that are queued or running."""


async def installation(tx: Transaction, caller: Caller) -> Installation:
    """Return the current and the declared objects, as the API shows them to an admin."""
    clusters = await job_queries.list_clusters(tx, caller)
    shown: dict[Kind, list[dict[str, Any]]] = {
        "Queue": await job_queries.list_queues(tx, caller),
        "PriorityClass": await declared_kinds.PRIORITY_CLASS.declared(tx),
        "PriceBook": await declared_kinds.PRICE_BOOK.declared(tx),
        "Cluster": clusters,
        "Dataset": await declared_kinds.DATASET.declared(tx),
        "BurstPolicy": await declared_kinds.BURST_POLICY.declared(tx),
    }
    return Installation(clusters=tuple(clusters), declared={kind: tuple(items) for kind, items in shown.items()})


def _check(spec: SimulationSpec, there: Installation) -> None:
    from trainmaster_dispatcher.whatif.engine import Simulation
    from trainmaster_dispatcher.whatif.scenario import first_leaf, plan_of, read_workload

    fleet, cases = plan_of(spec, there)
    for _, one in cases:
        Simulation(fleet, one)
    if spec.workload.history is None:
        read_workload(spec.workload, spec.workload.queue or first_leaf(cases[0][1]), spec.limits, ())


async def add(tx: Transaction, caller: Caller, spec: SimulationSpec) -> SimulationView:
    """Queue a simulation. Raises ProblemError TOO_BUSY, and others for what could not be simulated as things are now."""
    if await store.open_ones(tx) >= MOST_OPEN:
        raise ProblemError(Code.TOO_BUSY, f"{MOST_OPEN} simulations are queued already; cancel some, or wait")
    await asyncio.to_thread(_check, spec, await installation(tx, caller))
    return await show(tx, await store.add(tx, spec.title, spec.to_wire(), caller.name))


async def what_if(tx: Transaction, caller: Caller, path: str, question: QuotaWhatIfSpec) -> SimulationView:
    """Queue a simulation of the jobs of a time with the present quotas and with edited ones, on the clusters as they are now.

    Raises ProblemError NOT_FOUND, INVALID_SPEC, TOO_BUSY, and others for what could not be simulated as things are now.
    """
    known = await tenants.QUEUES.wire(tx)
    if path not in known:
        raise ProblemError(Code.NOT_FOUND, f"there is no queue {path!r}{suggestion(path, known)}")
    for number, queue in enumerate(question.queues):
        if queue.path != path and not queue.path.startswith(path + "/"):
            message = f"{queue.path} is neither {path} nor below it"
            place = f"queues[{number}].path"
            raise ProblemError(
                Code.INVALID_SPEC, f"{place}: {message}", mistakes=(Mistake(path=place, message=message),)
            )
    end = question.until or datetime.now(UTC)
    begin = question.since or end - timedelta(days=_WHAT_IF_DAYS)
    if begin >= end:
        raise ProblemError(Code.INVALID_SPEC, "since has to be earlier than until, and than now")
    many = await jobs.count_submitted(tx, begin, end, MOST_JOBS)
    if many > MOST_WHAT_IF_JOBS:
        raise ProblemError(
            Code.INVALID_SPEC,
            f"{many:,} jobs were submitted in this time, at most {MOST_WHAT_IF_JOBS:,} are replayed; choose a shorter one",
        )
    spec = SimulationSpec(
        title=question.title or f"what-if of {path}",
        workload=WorkloadSpec(history=HistoryPart(since=begin, until=end)),
        cases=(
            CaseSpec(name="present"),
            CaseSpec(
                name="edited", documents=tuple({"kind": QUEUE.kind, **queue.to_wire()} for queue in question.queues)
            ),
        ),
    )
    return await add(tx, caller, spec)


async def show(tx: Transaction, simulation: int) -> SimulationView:
    """Return a simulation. Raises ProblemError NOT_FOUND."""
    return view_of(_found(await store.find(tx, simulation), simulation))


def _found(row: _Found | None, simulation: int) -> _Found:
    if row is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no simulation {simulation}")
    return row


async def page(tx: Transaction, before: int | None, limit: int) -> list[SimulationView]:
    return [view_of(row) for row in await store.page(tx, before, limit)]


async def report(tx: Transaction, simulation: int) -> str:
    """Return a simulation's report page. Raises ProblemError NOT_FOUND, WRONG_STATE."""
    row = _found(await store.report(tx, simulation), simulation)
    if row.report is None:
        raise ProblemError(
            Code.WRONG_STATE, f"simulation {simulation} is {row.state}; only one that succeeded has a report"
        )
    return row.report


async def cancel(tx: Transaction, simulation: int) -> SimulationView:
    """Cancel a simulation. Raises ProblemError NOT_FOUND, WRONG_STATE."""
    if not await store.cancel(tx, simulation):
        row = _found(await store.find(tx, simulation), simulation)
        raise ProblemError(Code.WRONG_STATE, f"simulation {simulation} is {row.state}; it has ended already")
    return await show(tx, simulation)


async def remove(tx: Transaction, simulation: int) -> None:
    """Remove a simulation. Raises ProblemError NOT_FOUND, WRONG_STATE."""
    if not await store.remove(tx, simulation):
        row = _found(await store.find(tx, simulation), simulation)
        raise ProblemError(Code.WRONG_STATE, f"simulation {simulation} is {row.state}; cancel it first")


def view_of(row: store.ShownSimulation | store.WholeSimulation) -> SimulationView:
    fields = row._asdict()
    return SimulationView.model_validate({**fields, "progress": SimulationProgress.model_validate(fields["progress"])})


async def order(
    database: Database, claimed: store.ClaimedSimulation, currency: str, goes_on: Callable[[], Awaitable[bool]]
) -> SimulationOrder | None:
    """Return the input of the process that runs a simulation, as of now. Raises ProblemError, INVALID_SPEC for a bad order."""
    try:
        spec = SimulationSpec.model_validate(claimed.spec)
    except ValidationError as error:
        raise ProblemError(
            Code.INVALID_SPEC, f"this worker does not understand it: {error.errors()[0]['msg']}"
        ) from error
    async with database.transaction() as tx:
        there = await installation(tx, _WORKER)
    pages = await workload(database, spec, claimed.created_at, goes_on)
    if pages is None:
        return None
    return SimulationOrder(spec=spec, installation=there, history=tuple(pages), currency=currency)


async def workload(
    database: Database, spec: SimulationSpec, asked_at: datetime, goes_on: Callable[[], Awaitable[bool]]
) -> list[Workload] | None:
    """Return the recorded workload of the time that the order names, up to the moment of the order.

    ``goes_on`` is called between pages; None if ``goes_on`` returned False. Raises ProblemError for too many jobs.
    """
    wanted = spec.workload.history
    if wanted is None:
        return []
    pages: list[Workload] = []
    cursor: int | None = None
    while True:
        async with database.transaction() as tx:
            pages.append(
                await workload_export.workload(tx, wanted.since, wanted.until or asked_at.astimezone(UTC), cursor)
            )
        if sum(len(one.jobs) for one in pages) > MOST_JOBS:
            raise ProblemError(
                Code.INVALID_SPEC, f"more than {MOST_JOBS:,} jobs were submitted in this time; choose a shorter one"
            )
        cursor = pages[-1].next
        if cursor is None:
            return pages
        if not await goes_on():
            return None
