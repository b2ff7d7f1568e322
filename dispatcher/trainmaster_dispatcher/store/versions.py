"""Versions of objects for the Kubernetes API: the transaction that has written a row last, below the store's epoch.

The epoch is above the 48 bits of the transaction, so that versions of a restored store are later than those before.
"""

from typing import NamedTuple

from trainmaster_dispatcher.store.database import Transaction

VERSION_BITS = 48
FROM_LATEST = (
    "CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS latest) c CROSS JOIN installation i"
)
"""What a statement joins that has versions."""


VERSION_OF_THIS = (
    f"((SELECT store_epoch::bigint << {VERSION_BITS} FROM installation) + pg_current_xact_id()::text::bigint)"
)
"""The expression for the version of the rows that a transaction writes."""


class Horizon(NamedTuple):
    """The version below which all changes are seen by who reads from now on, and that of the oldest change that is stored; None where
    none is. No change that is seen has a version of ``latest`` or above.
    """

    version: int
    latest: int
    oldest: int | None


def version_of(alias: str) -> str:
    """Return the expression for the version of a row.

    Its ``xmin`` has the lower 32 bits of a transaction, and no row is of a transaction that is still to come.
    """
    near = f"((c.latest >> 32 << 32) | {alias}.xmin::text::bigint)"
    return (
        f"(i.store_epoch::bigint << {VERSION_BITS}) +"
        f" CASE WHEN {near} > c.latest THEN {near} - 4294967296 ELSE {near} END"
    )


async def horizon(tx: Transaction) -> Horizon:
    """Return the version from which a reader who begins now has to follow changes."""
    epoch = f"(i.store_epoch::bigint << {VERSION_BITS})"
    return await tx.one_of(
        Horizon,
        f"""
        SELECT {epoch} + pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS version, {epoch} + c.latest AS latest,
               {epoch} + (SELECT f.xid::text::bigint FROM changes f ORDER BY f.xid LIMIT 1) AS oldest
        FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS latest) c CROSS JOIN installation i
        """,
    )
