"""Routes of price books, and of what was done and used."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, AwareDatetime

from trainmaster.protocol import answers
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.usage import Per, UsageAnswer, check_dimension
from trainmaster.protocol.workload import Workload
from trainmaster_dispatcher.api.context import Admin, App, Person, State, answer
from trainmaster_dispatcher.api.declared import DeclaredKind
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.services import pricing, usage_report, workload_export
from trainmaster_dispatcher.store.keys import Caller

router = APIRouter(prefix="/v1", tags=["prices"])

_MOST_DIMENSIONS = 6
Dimension = Annotated[str, AfterValidator(check_dimension)]


async def _books(state: State, caller: Caller) -> list[dict[str, Any]]:
    async with state.stores.database.transaction() as tx:
        return await pricing.list_books(tx, caller)


DeclaredKind(
    name="price book",
    address="/price-books",
    listed="priceBooks",
    list_view=answers.PriceBookList,
    spec=PriceBookSpec,
    view=PriceBookSpec,
    every=_books,
    put=pricing.put_book,
    delete=pricing.delete_book,
    lists="Price books of the clusters that the caller's jobs may go to; for admins, all.",
    shows="One price book.",
    puts="Make or change a price book; clusters that name it charge the new prices from now on.",
    deletes="Remove a price book that no cluster names.",
).add_routes(router)


@router.get("/workload", **contract(gives=Workload))
async def export_workload(
    state: App,
    _caller: Admin,
    begin: AwareDatetime,
    end: AwareDatetime | None = None,
    cursor: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """What was submitted in this time and has run, as a workload for simulations; the latest first, page by page."""
    async with state.stores.database.transaction() as tx:
        found = await workload_export.workload(tx, begin, end or datetime.now(UTC), cursor)
    return answer(found.model_dump(mode="json", by_alias=True))


@router.get("/usage", **contract(gives=UsageAnswer))
async def show_usage(
    state: App,
    caller: Person,
    begin: AwareDatetime | None = None,
    end: AwareDatetime | None = None,
    per: Per = "all",
    by: Annotated[list[Dimension] | None, Query(max_length=_MOST_DIMENSIONS)] = None,
    queue: str | None = None,
) -> Response:
    """What the caller's queues have used and what it cost: of the last 30 days, unless told otherwise. Begun hours count whole."""
    settings = state.stores.settings
    until = end or datetime.now(UTC)
    question = usage_report.UsageQuestion.of(begin or until - timedelta(days=30), until, per, by or (), queue)
    database = state.stores.database
    found = await usage_report.report(database, caller, question, settings.currency, settings.counted_labels)
    return answer(found.model_dump(mode="json", by_alias=True))
