"""The route of the checks of an installation."""

from datetime import UTC, datetime

from fastapi import Response

from trainmaster import __version__
from trainmaster.protocol.health import HealthReport, KeyInUse
from trainmaster_dispatcher.api.context import App, HealthReader, answer
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.services.doctor import examine, examine_agents

router = documented_router("/v1", "doctor")


@router.get("/doctor", **contract(gives=HealthReport))
async def show_health(state: App, caller: HealthReader) -> Response:
    """Show the api's release and clock and the key of this call; to admins also checks of stores, processes and agents, to owners
    those of the agents of their clusters.
    """
    database = state.stores.database
    if caller.has_every_queue:
        checks = await examine(database, state.stores.settings)
    else:
        checks = await examine_agents(database, caller.clusters) if caller.clusters else []
    report = HealthReport(
        release=__version__,
        time=datetime.now(UTC),
        key=KeyInUse(name=caller.name, role=caller.role, queues=caller.queues, clusters=caller.clusters),
        checks=tuple(checks),
    )
    return answer(report.model_dump(mode="json", by_alias=True))
