"""Price books, and what clusters have charged since when."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from trainmaster.protocol.prices import PriceBookSpec
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.stored import readable


async def books(tx: Transaction) -> list[PriceBookSpec]:
    """All price books that can be read."""
    rows = await tx.all("SELECT name, spec FROM price_books ORDER BY name")
    return readable(Part.PRICE_BOOK, rows, lambda row: PriceBookSpec.model_validate(row.spec))


async def has_book(tx: Transaction, name: str) -> bool:
    """Whether there is such a book; it stays until the transaction ends."""
    return await tx.first("SELECT 1 FROM price_books WHERE name = :name FOR KEY SHARE", name=name) is not None


async def put_book(tx: Transaction, spec: PriceBookSpec) -> None:
    await tx.run(
        """
        INSERT INTO price_books (name, spec) VALUES (:name, CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET spec = excluded.spec
        """,
        name=spec.name,
        spec=dumps(spec.to_wire() | {"name": spec.name}),
    )


async def delete_book(tx: Transaction, name: str) -> bool:
    return await tx.first("DELETE FROM price_books WHERE name = :name RETURNING id", name=name) is not None


async def clusters_with(tx: Transaction, book: str) -> list[str]:
    """Names of the clusters that name a book, those that were removed left out."""
    rows = await tx.all(
        "SELECT name FROM clusters WHERE spec->>'priceBook' = :book AND removed_at IS NULL ORDER BY name", book=book
    )
    return [row.name for row in rows]


async def note_tariffs(tx: Transaction) -> None:
    """Put down what clusters charge from now on, where that has changed."""
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


async def tariffs(tx: Transaction) -> Sequence[Row[Any]]:
    """Of all clusters, the oldest first: cluster_id, since (microseconds since the epoch), book, correction."""
    return await tx.all(
        """
        SELECT cluster_id, (extract(epoch FROM since) * 1000000)::bigint AS since, book, correction
        FROM tariffs ORDER BY cluster_id, since
        """
    )
