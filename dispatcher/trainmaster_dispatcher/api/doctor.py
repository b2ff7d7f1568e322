"""The route of the checks of an installation."""

from datetime import UTC, datetime

from fastapi import APIRouter, Response

from trainmaster import __version__
from trainmaster.protocol.health import HealthReport, KeyInUse
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.api.context import App, Person, answer
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.services.doctor import examine

router = APIRouter(prefix="/v1", tags=["doctor"])


@router.get("/doctor", **contract(gives=HealthReport))
async def show_health(state: App, caller: Person) -> Response:
    """Show the api's release and clock and the key of this call; to admins also checks of stores, processes and agents."""
    is_admin = caller.role is KeyRole.ADMIN
    report = HealthReport(
        release=__version__,
        time=datetime.now(UTC),
        key=KeyInUse(name=caller.name, role=caller.role, queues=tuple(caller.queues)),
        checks=tuple(await examine(state.stores.database, state.stores.settings)) if is_admin else (),
    )
    return answer(report.model_dump(mode="json", by_alias=True))
