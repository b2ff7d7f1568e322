"""Routes of price books, and of what was done, used and promised."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query, Response
from pydantic import AfterValidator

from trainmaster.protocol.attainment import AttainmentAnswer
from trainmaster.protocol.base import QueuePath, WrittenTime, text_schema
from trainmaster.protocol.errors import Code
from trainmaster.protocol.usage import DIMENSIONS, LABEL, Per, UsageAnswer, check_dimension
from trainmaster.protocol.workload import Workload
from trainmaster_dispatcher.api.context import App, SimulationRunner, UsageReader, answer
from trainmaster_dispatcher.api.declared import add_routes
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import NumberCursor
from trainmaster_dispatcher.services import attainment, usage_report, workload_export

router = documented_router("/v1", "prices")

_MOST_DIMENSIONS = 6
Dimension = Annotated[
    str,
    AfterValidator(check_dimension),
    text_schema(f"^({'|'.join(DIMENSIONS)}|{LABEL}.+)$", 323, "queue", "label:team", least=4),
]


add_routes(router, "prices")


@router.get("/workload", **contract(gives=Workload))
async def export_workload(
    state: App,
    _caller: SimulationRunner,
    begin: Annotated[WrittenTime, Query(description="Only jobs submitted at or after this time.")],
    end: Annotated[
        WrittenTime | None, Query(description="Only jobs submitted before this time; by default until now.")
    ] = None,
    cursor: NumberCursor | None = None,
) -> Response:
    """Export jobs that were submitted in this time and have run, as a workload for simulations; latest first, page by page."""
    async with state.stores.database.transaction() as tx:
        found = await workload_export.workload(tx, begin, end or datetime.now(UTC), cursor)
    return answer(found.model_dump(mode="json", by_alias=True))


@router.get("/usage", **contract(gives=UsageAnswer, refuses=(Code.UNKNOWN_QUEUE,)))
async def show_usage(
    state: App,
    caller: UsageReader,
    begin: Annotated[
        WrittenTime | None, Query(description="Begin of the time; by default 30 days before its end.")
    ] = None,
    end: Annotated[WrittenTime | None, Query(description="End of the time; by default now.")] = None,
    per: Annotated[Per, Query(description="Length of the time of each row.")] = "all",
    by: Annotated[
        list[Dimension] | None,
        Query(
            max_length=_MOST_DIMENSIONS, description="Dimensions to group by: one row for each combination of values."
        ),
    ] = None,
    queue: Annotated[QueuePath | None, Query(description="Only this queue and those below it.")] = None,
) -> Response:
    """Show usage and cost of the caller's queues: of the last 30 days, unless told otherwise. Begun hours count whole."""
    settings = state.stores.settings
    until = end or datetime.now(UTC)
    question = usage_report.UsageQuestion.of(begin or until - timedelta(days=30), until, per, by or (), queue)
    database = state.stores.database
    found = await usage_report.report(database, caller, question, settings.currency, settings.counted_labels)
    return answer(found.model_dump(mode="json", by_alias=True))


@router.get("/attainment", **contract(gives=AttainmentAnswer, refuses=(Code.UNKNOWN_QUEUE,)))
async def show_attainment(
    state: App,
    caller: UsageReader,
    begin: Annotated[
        WrittenTime | None, Query(description="A time in the first month; by default in the month of ``end``.")
    ] = None,
    end: Annotated[WrittenTime | None, Query(description="A time in the last month; by default now.")] = None,
    queue: Annotated[QueuePath | None, Query(description="Only this queue and those below it.")] = None,
) -> Response:
    """Show by month how many jobs of the caller's queues started within the wait that their class promises."""
    until = end or datetime.now(UTC)
    question = attainment.AttainmentQuestion.of(begin or until, until, queue)
    found = await attainment.report(state.stores.database, caller, question)
    return answer(found.model_dump(mode="json", by_alias=True))
