"""Data that admins have declared."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from trainmaster.protocol.tenants import DatasetSpec
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.stored import readable
from trainmaster_dispatcher.store.tenants import note_change


async def stored_datasets(tx: Transaction) -> Sequence[Row[Any]]:
    """All datasets as they are stored: ``id``, ``name``, ``spec``."""
    return await tx.all("SELECT id, name, spec FROM datasets ORDER BY name")


async def datasets(tx: Transaction) -> list[DatasetSpec]:
    """All datasets whose stored specification can be read."""
    return readable(Part.DATASET, await stored_datasets(tx), lambda row: DatasetSpec.model_validate(row.spec))


async def has_dataset(tx: Transaction, name: str) -> bool:
    return await tx.first("SELECT 1 FROM datasets WHERE name = :name", name=name) is not None


async def put_dataset(tx: Transaction, spec: DatasetSpec) -> None:
    row = await tx.one(
        """
        INSERT INTO datasets (name, spec) VALUES (:name, CAST(:spec AS jsonb))
        ON CONFLICT (name) DO UPDATE SET spec = excluded.spec RETURNING id
        """,
        name=spec.name,
        spec=dumps(spec.to_wire()),
    )
    await note_change(tx, "dataset", row.id)


async def delete_dataset(tx: Transaction, name: str) -> bool:
    """Whether there was one."""
    row = await tx.first("DELETE FROM datasets WHERE name = :name RETURNING id", name=name)
    if row is not None:
        await note_change(tx, "dataset", row.id)
    return row is not None
