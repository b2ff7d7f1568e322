"""Routes of simulations that run in the background."""

from typing import Annotated

import orjson
from fastapi import Query, Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code
from trainmaster.protocol.simulations import QuotaWhatIfSpec, SimulationSpec, SimulationView
from trainmaster_dispatcher.api.context import App, SimulationReader, SimulationRunner, answer, once, read_large_model
from trainmaster_dispatcher.api.declared import change
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import NumberCursor, NumberInPath, QueueInPath
from trainmaster_dispatcher.services import simulations
from trainmaster_dispatcher.store.database import Transaction

router = documented_router("/v1/simulations", "simulations")
queues_router = documented_router("/v1", "simulations")

_MOST_ON_A_PAGE = 500
_PAGE_HEADERS = {
    # The page is whole in itself; whatever a name in it may say, it runs and fetches nothing.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}


def _shown(view: SimulationView) -> dict[str, object]:
    return view.model_dump(mode="json", by_alias=True, exclude_none=True)


@router.post("", **contract(takes=SimulationSpec, gives=SimulationView, status=202, is_once=True))
async def create_simulation(request: Request, state: App, caller: SimulationRunner) -> Response:
    """Ask for a simulation: a worker carries it out. Without a fleet, it is the installation's own as it is then."""
    body = await request.body()
    spec = await read_large_model(SimulationSpec, body, state.stores.settings.largest_body_bytes)

    async def work(tx: Transaction) -> tuple[int, dict[str, object]]:
        return 202, _shown(await simulations.add(tx, caller, spec))

    response = await once(request, state, caller, body, work, action="simulate", target=spec.title or "simulation")
    response.headers["Location"] = f"/v1/simulations/{orjson.loads(response.body)['id']}"
    return response


@queues_router.post(
    "/queues/{path:path}/what-if",
    **contract(takes=QuotaWhatIfSpec, gives=SimulationView, status=202, is_once=True, refuses=(Code.TOO_BUSY,)),
)
async def what_if_of_queue(path: QueueInPath, request: Request, state: App, caller: SimulationRunner) -> Response:
    """Ask what edited quotas would have done: a simulation of the jobs of a time on the clusters of now, with two cases.

    ``present`` has the quotas as they are, ``edited`` those of the body. Changes no queue.
    """
    body = await request.body()
    question = await read_large_model(QuotaWhatIfSpec, body, state.stores.settings.largest_body_bytes)

    async def work(tx: Transaction) -> tuple[int, dict[str, object]]:
        return 202, _shown(await simulations.what_if(tx, caller, path, question))

    response = await once(request, state, caller, body, work, action="what-if", target=path)
    response.headers["Location"] = f"/v1/simulations/{orjson.loads(response.body)['id']}"
    return response


@router.get("", **contract(gives=answers.SimulationPage))
async def list_simulations(
    state: App,
    _caller: SimulationReader,
    cursor: NumberCursor | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_ON_A_PAGE, description="The most entries of the answer.")] = 100,
) -> Response:
    """List simulations, the latest first, without their results."""
    async with state.stores.database.transaction() as tx:
        found = await simulations.page(tx, cursor, limit)
    more = found[-1].id if len(found) == limit else None
    return answer({"simulations": [_shown(one) for one in found], "next": more})


@router.get("/{simulation}", **contract(gives=SimulationView))
async def show_simulation(simulation: NumberInPath, state: App, _caller: SimulationReader) -> Response:
    """Show one simulation, with what was asked for and, once it has succeeded, its figures."""
    async with state.stores.database.transaction() as tx:
        return answer(_shown(await simulations.show(tx, simulation)))


@router.get("/{simulation}/report", **contract(media_type="text/html", refuses=(Code.WRONG_STATE,)))
async def show_simulation_report(simulation: NumberInPath, state: App, _caller: SimulationReader) -> Response:
    """Show the report of a simulation that has succeeded, as a page."""
    async with state.stores.database.transaction() as tx:
        page = await simulations.report(tx, simulation)
    return Response(page, media_type="text/html", headers=_PAGE_HEADERS)


@router.post("/{simulation}/cancel", **contract(gives=SimulationView, is_once=True, refuses=(Code.WRONG_STATE,)))
async def cancel_simulation(
    simulation: NumberInPath, request: Request, state: App, caller: SimulationRunner
) -> Response:
    """Cancel a simulation that is queued or running."""
    body = await request.body()

    async def work(tx: Transaction) -> tuple[int, dict[str, object]]:
        return 200, _shown(await simulations.cancel(tx, simulation))

    return await once(request, state, caller, body, work, action="cancel simulation", target=str(simulation))


@router.delete("/{simulation}", **contract(status=204, refuses=(Code.WRONG_STATE,)))
async def delete_simulation(simulation: NumberInPath, state: App, caller: SimulationRunner) -> Response:
    """Delete a simulation that has ended."""
    await change(state, caller, "delete simulation", str(simulation), lambda tx: simulations.remove(tx, simulation))
    return Response(status_code=204)
