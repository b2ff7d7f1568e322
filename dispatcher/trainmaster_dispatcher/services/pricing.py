"""Price books: the prices of clusters that admins declare, and their history."""

from collections.abc import Container, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.suggestions import suggestion
from trainmaster_dispatcher.domain.prices import FREE, PriceHistory, Tariff, tariff_of
from trainmaster_dispatcher.services.references import Reference, check_references
from trainmaster_dispatcher.store import prices as store
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


async def note_new_prices(tx: Transaction, _book_ids: Sequence[int]) -> None:
    """Let clusters that name a price book charge its new prices from now on."""
    await store.note_tariffs(tx)


async def list_books(tx: Transaction, caller: Caller) -> list[dict[str, Any]]:
    """Return price books; for a user, those of clusters that the user's jobs may go to."""
    shown = [row.spec.model_dump(mode="json", by_alias=True) for row in await store.BOOKS.every(tx)]
    if caller.has_every_queue:
        return shown
    charged = {
        row.spec.price_book for row in await tenants.CLUSTERS.every(tx) if caller.may_go_to(row.spec.only_queues)
    }
    return [book for book in shown if book["name"] in charged]


async def check_book_is_unused(tx: Transaction, name: str) -> None:
    """Raise ProblemError IN_USE where a cluster names a price book."""
    users = await store.clusters_with(tx, name)
    if users:
        raise ProblemError(Code.IN_USE, f"price book {name!r} is named by {', '.join(users)}")


def check_book(name: str | None, known: Container[str], every: Iterable[str]) -> None:
    """Raise ProblemError where a cluster names a book that is not among the known ones; the message names the most similar of
    ``every``.
    """
    if name is not None and name not in known:
        message = f"there is no price book {name!r}{suggestion(name, every) or '; make it first'}"
        check_references([Reference("PriceBook", name, "priceBook", Code.UNKNOWN_PRICE_BOOK, message)])


class Histories(NamedTuple):
    """Prices of clusters over time; ``unreadable``: clusters whose prices cannot be read, each with the error."""

    known: dict[int, PriceHistory]
    unreadable: dict[int, Exception]


async def histories(tx: Transaction, clusters: Iterable[int] | None = None) -> Histories:
    """Return the prices of these clusters, or of all, over time; a tariff that cannot be read leaves out its cluster alone."""
    found: dict[int, tuple[list[int], list[Tariff]]] = {}
    unreadable: dict[int, Exception] = {}
    for row in await store.tariffs(tx, clusters):
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
