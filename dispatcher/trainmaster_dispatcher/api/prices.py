"""Routes of price books, and of what was done and used."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, AwareDatetime

from trainmaster.protocol import answers
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.usage import Per, UsageAnswer, check_dimension
from trainmaster.protocol.workload import Workload
from trainmaster_dispatcher.api.context import Admin, App, Person, answer, read_model
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.api.tenants import change, named, same_name
from trainmaster_dispatcher.services import pricing, usage_report, workload_export

router = APIRouter(prefix="/v1", tags=["prices"])

_MOST_DIMENSIONS = 6
Dimension = Annotated[str, AfterValidator(check_dimension)]


@router.get("/price-books", **contract(gives=answers.PriceBookList))
async def list_price_books(state: App, caller: Person) -> Response:
    """Price books of the clusters that the caller's jobs may go to; for admins, all."""
    async with state.stores.database.transaction() as tx:
        return answer({"priceBooks": await pricing.list_books(tx, caller)})


@router.get("/price-books/{name}", **contract(gives=PriceBookSpec))
async def show_price_book(name: str, state: App, caller: Person) -> Response:
    """One price book."""
    async with state.stores.database.transaction() as tx:
        return named(await pricing.list_books(tx, caller), name, "price book")


@router.put("/price-books/{name}", **contract(takes=PriceBookSpec, gives=PriceBookSpec))
async def put_price_book(name: str, request: Request, state: App, caller: Admin) -> Response:
    """Make or change a price book; clusters that name it charge the new prices from now on."""
    spec = read_model(PriceBookSpec, await request.body())
    same_name(spec.name, name, "price book")
    await change(state, caller, "put price book", name, lambda tx: pricing.put_book(tx, spec))
    return answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.delete("/price-books/{name}", **contract(status=204))
async def delete_price_book(name: str, state: App, caller: Admin) -> Response:
    """Remove a price book that no cluster names."""
    await change(state, caller, "delete price book", name, lambda tx: pricing.delete_book(tx, name))
    return Response(status_code=204)


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
    question = usage_report.Question.of(begin or until - timedelta(days=30), until, per, by or (), queue)
    database = state.stores.database
    found = await usage_report.report(database, caller, question, settings.currency, settings.counted_labels)
    return answer(found.model_dump(mode="json", by_alias=True))
