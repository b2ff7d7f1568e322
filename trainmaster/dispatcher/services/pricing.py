"""Price books: what admins say that clusters cost, and what that was at any time."""

from decimal import Decimal
from typing import Any

from trainmaster.dispatcher.domain.prices import FREE, PriceHistory, Tariff, tariff_of
from trainmaster.dispatcher.store import prices as store
from trainmaster.dispatcher.store import tenants
from trainmaster.dispatcher.store.database import Transaction
from trainmaster.dispatcher.store.keys import Caller
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.prices import PriceBookSpec


async def put_book(tx: Transaction, spec: PriceBookSpec) -> None:
    """Make or change a price book; clusters that name it charge the new prices from now on."""
    await store.put_book(tx, spec)
    await store.note_tariffs(tx)
    await tenants.note_change(tx, "prices", 0)


async def list_books(tx: Transaction, caller: Caller) -> list[dict[str, Any]]:
    """Price books; for a user, those of clusters that the user's jobs may go to."""
    shown = [book.model_dump(mode="json", by_alias=True) for book in await store.books(tx)]
    if caller.is_admin:
        return shown
    charged = {row.spec.price_book for row in await tenants.clusters(tx) if caller.may_go_to(row.spec.only_queues)}
    return [book for book in shown if book["name"] in charged]


async def delete_book(tx: Transaction, name: str) -> None:
    """Raises ProblemError where it is not there, or a cluster names it."""
    users = await store.clusters_with(tx, name)
    if users:
        raise ProblemError(Code.IN_USE, f"price book {name!r} is named by {', '.join(users)}")
    if not await store.delete_book(tx, name):
        raise ProblemError(Code.NOT_FOUND, f"there is no price book {name!r}")


async def check_book(tx: Transaction, name: str | None) -> None:
    """Raises ProblemError where a cluster names a book that is not there."""
    if name is not None and not await store.has_book(tx, name):
        raise ProblemError(Code.UNKNOWN_PRICE_BOOK, f"there is no price book {name!r}; make it first")


async def histories(tx: Transaction) -> dict[int, PriceHistory]:
    """By cluster: what it has charged since when."""
    found: dict[int, tuple[list[int], list[Tariff]]] = {}
    for row in await store.tariffs(tx):
        since, tariffs = found.setdefault(row.cluster_id, ([], []))
        since.append(row.since)
        book = None if row.book is None else PriceBookSpec.model_validate(row.book)
        tariffs.append(FREE if book is None else tariff_of(book, Decimal(row.correction)))
    return {cluster: PriceHistory(since, tariffs) for cluster, (since, tariffs) in found.items()}
