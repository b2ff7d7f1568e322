"""Price books: what admins say that clusters cost, and what that was at any time."""

from decimal import Decimal
from typing import Any, NamedTuple

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster_dispatcher.domain.prices import FREE, PriceHistory, Tariff, tariff_of
from trainmaster_dispatcher.store import prices as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


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


class Histories(NamedTuple):
    """What clusters have charged since when; ``unreadable``: clusters of which that is not known, each with the error."""

    known: dict[int, PriceHistory]
    unreadable: dict[int, Exception]


async def histories(tx: Transaction) -> Histories:
    """Read what clusters have charged; a tariff that cannot be read leaves out its cluster alone."""
    found: dict[int, tuple[list[int], list[Tariff]]] = {}
    unreadable: dict[int, Exception] = {}
    for row in await store.tariffs(tx):
        since, tariffs = found.setdefault(row.cluster_id, ([], []))
        since.append(row.since)
        try:
            tariffs.append(_tariff(row.book, row.correction))
        except Exception as error:  # noqa: BLE001 - given to the caller, who notes it
            unreadable[row.cluster_id] = error
    known = {
        cluster: PriceHistory(since, tariffs)
        for cluster, (since, tariffs) in found.items()
        if cluster not in unreadable
    }
    return Histories(known, unreadable)


def _tariff(book: Any, correction: str) -> Tariff:
    return FREE if book is None else tariff_of(PriceBookSpec.model_validate(book), Decimal(correction))
