"""Price books, and the tariffs of clusters over time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainmaster.protocol import resource_kinds
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import DeclaredTable, StoredObject
from trainmaster_dispatcher.store.feed_kinds import FeedKind

BOOKS = DeclaredTable(
    kind=resource_kinds.PRICE_BOOK, table="price_books", row=StoredObject, part=Part.PRICE_BOOK, feed=FeedKind.PRICES
)


class StoredTariff(NamedTuple):
    """A cluster's tariff since a moment, in microseconds since the epoch; ``book``: its price book at that time."""

    cluster_id: int
    since: int
    book: object
    correction: str


async def hold_books(tx: Transaction, names: Iterable[str]) -> set[str]:
    """Return those of these price books that exist; they cannot be removed until the transaction ends."""
    wanted = sorted(set(names))
    if not wanted:
        return set()
    rows = await tx.all("SELECT name FROM price_books WHERE name = ANY(:names) ORDER BY id FOR KEY SHARE", names=wanted)
    return {row.name for row in rows}


async def clusters_with(tx: Transaction, book: str) -> list[str]:
    """Return the names of the clusters that name a price book, without removed clusters."""
    rows = await tx.all(
        "SELECT name FROM clusters WHERE spec->>'priceBook' = :book AND removed_at IS NULL ORDER BY name", book=book
    )
    return [row.name for row in rows]


async def note_tariffs(tx: Transaction) -> None:
    """Store the tariffs of clusters from now on, where they have changed."""
    await tx.run(
        """
        INSERT INTO tariffs (cluster_id, book, correction)
        SELECT c.id, b.spec, coalesce(c.spec->>'priceCorrection', '1')
        FROM clusters c
        LEFT JOIN price_books b ON b.name = c.spec->>'priceBook'
        LEFT JOIN LATERAL (
            SELECT t.book, t.correction FROM tariffs t WHERE t.cluster_id = c.id ORDER BY t.since DESC LIMIT 1) last ON true
        WHERE b.spec IS DISTINCT FROM last.book
           OR (b.spec IS NOT NULL AND coalesce(c.spec->>'priceCorrection', '1') <> last.correction)
        ON CONFLICT (cluster_id, since) DO UPDATE SET book = excluded.book, correction = excluded.correction
        """
    )


async def had_books(tx: Transaction, clusters: Iterable[int]) -> bool:
    """Return whether one of these clusters has a price book, or once had one."""
    row = await tx.first(
        "SELECT 1 FROM tariffs WHERE cluster_id = ANY(:clusters) AND book IS NOT NULL LIMIT 1",
        clusters=sorted(set(clusters)),
    )
    return row is not None


async def tariffs(tx: Transaction, clusters: Iterable[int] | None = None) -> Sequence[StoredTariff]:
    """Return the tariffs of these clusters, or of all, oldest first."""
    chosen = "" if clusters is None else "WHERE cluster_id = ANY(:clusters)"
    wanted = {} if clusters is None else {"clusters": sorted(set(clusters))}
    return await tx.all_of(
        StoredTariff,
        f"""
        SELECT cluster_id, (extract(epoch FROM since) * 1000000)::bigint AS since, book, correction
        FROM tariffs {chosen} ORDER BY cluster_id, since
        """,
        **wanted,
    )
