"""Declared objects as they are stored: the statements common to all kinds, built from a kind's ``DeclaredTable``.

Each change writes a row in ``changes``, which the scheduler and open pages follow. This module does not check the names that an
object refers to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from trainmaster.protocol.base import Strict
from trainmaster.protocol.resource_kinds import ResourceKind
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.feed_kinds import FeedKind

Columns = Mapping[str, str | int | bool | datetime | None]
"""The stored values of an object beside its name and specification, by column."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A row of a declared object. Its specification is not parsed yet, which may fail."""

    id: int
    name: str
    spec: object


Spec = TypeVar("Spec", bound=Strict)
Stored = TypeVar("Stored", bound=StoredObject)


@dataclass(frozen=True, slots=True)
class DeclaredObject(Generic[Spec, Stored]):
    """A declared object: its row, and its specification as a model."""

    row: Stored
    spec: Spec

    @property
    def id(self) -> int:
        return self.row.id

    def as_declared(self) -> dict[str, Any]:
        """Return the specification as it was declared, with defaults."""
        return self.spec.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass(frozen=True, slots=True)
class DeclaredTable(Generic[Spec, Stored]):
    """The table of a kind's objects.

    ``reads``: columns, or expressions, that ``row`` has after id, name and specification. ``order``: of lists; by name, if not
    given. ``feed``: the kind of the table's rows in ``changes``. ``keeps_removed``: a removed object keeps its row, with
    ``removed_at``. ``has_revision``: the column ``revision`` rises with each change.
    """

    kind: ResourceKind[Spec]
    table: str
    row: type[Stored]
    feed: FeedKind
    part: Part = Part.DECLARED
    reads: tuple[str, ...] = ()
    order: str = ""
    keeps_removed: bool = False
    has_revision: bool = False

    async def stored(self, tx: Transaction) -> list[Stored]:
        """Return all objects as they are stored."""
        return await self._select(tx, "true")

    async def every(self, tx: Transaction) -> list[DeclaredObject[Spec, Stored]]:
        """Return all objects whose specification can be parsed; others are logged and left out."""
        return self.readable(await self.stored(tx))

    async def by_name(self, tx: Transaction, names: Iterable[str]) -> dict[str, DeclaredObject[Spec, Stored]]:
        """Return those of these objects that exist and can be parsed."""
        rows = await self._select(tx, f"{self.kind.key} = ANY(:names)", names=sorted(set(names)))
        return {one.row.name: one for one in self.readable(rows)}

    async def wire(self, tx: Transaction, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the specifications of these objects as they are stored, by name; of all objects, if ``names`` is None."""
        condition, parameters = self._named(names)
        rows = await tx.all(
            f"SELECT {self.kind.key} AS name, spec FROM {self.table} WHERE {condition} AND {self.is_there}",
            **parameters,
        )
        return {row.name: row.spec for row in rows}

    async def hold(self, tx: Transaction, names: Iterable[str] | None, *, for_removal: bool = False) -> None:
        """Lock the rows of these objects, or of all, in the order of their keys, which all transactions share.

        ``for_removal``: as a removal, or a new queue below, would lock them.
        """
        condition, parameters = self._named(names)
        strength = "UPDATE" if for_removal else "NO KEY UPDATE"
        await tx.run(f"SELECT 1 FROM {self.table} WHERE {condition} ORDER BY id FOR {strength}", **parameters)

    def _named(self, names: Iterable[str] | None) -> tuple[str, dict[str, Any]]:
        """Return the condition of these names, and its parameters."""
        if names is None:
            return "true", {}
        return f"{self.kind.key} = ANY(:names)", {"names": sorted(set(names))}

    async def exists(self, tx: Transaction, name: str) -> bool:
        row = await tx.first(f"SELECT 1 FROM {self.table} WHERE {self.kind.key} = :name AND {self.is_there}", name=name)
        return row is not None

    async def put(self, tx: Transaction, objects: Sequence[tuple[Spec, Columns]]) -> list[int]:
        """Create or change objects of different names, each with the same columns, in one statement; return their keys.

        A removed object whose row still exists becomes the same object again.
        """
        if not objects:
            return []
        columns = tuple(objects[0][1])
        written = ", ".join((self.kind.key, "spec", *columns))
        changed = [f"{column} = excluded.{column}" for column in ("spec", *columns)]
        changed += ["removed_at = NULL"] * self.keeps_removed + self._counting
        rows = await tx.all(
            f"""
            INSERT INTO {self.table} ({written})
            SELECT {written} FROM jsonb_populate_recordset(CAST(NULL AS {self.table}), CAST(:rows AS jsonb))
            ON CONFLICT ({self.kind.key}) DO UPDATE SET {", ".join(changed)} RETURNING id
            """,
            rows=dumps(
                [{**beside, self.kind.key: self.kind.name_of(one), "spec": one.to_wire()} for one, beside in objects]
            ),
        )
        keys = [int(row.id) for row in rows]
        await note_changes(tx, self.feed, keys)
        return keys

    async def delete(self, tx: Transaction, name: str) -> bool:
        """Remove an object; return whether it existed."""
        removal = f"DELETE FROM {self.table}"
        if self.keeps_removed:
            removal = f"UPDATE {self.table} SET {', '.join(('removed_at = now()', *self._counting))}"
        row = await tx.first(f"{removal} WHERE {self.kind.key} = :name AND {self.is_there} RETURNING id", name=name)
        if row is not None:
            await note_change(tx, self.feed, row.id)
        return row is not None

    def readable(self, rows: Iterable[Stored]) -> list[DeclaredObject[Spec, Stored]]:
        """Return the objects of these rows. Those whose specification cannot be parsed are logged and left out."""
        model = self.kind.spec
        found: list[DeclaredObject[Spec, Stored]] = []
        for row in rows:
            with contained(self.part, row.name):
                found.append(DeclaredObject(row, model.model_validate(row.spec)))
        return found

    async def _select(self, tx: Transaction, condition: str, **parameters: object) -> list[Stored]:
        rows: Sequence[Any] = await tx.all(
            f"""
            SELECT {", ".join(("id", f"{self.kind.key} AS name", "spec", *self.reads))} FROM {self.table}
            WHERE {condition} AND {self.is_there} ORDER BY {self.order or self.kind.key}
            """,
            **parameters,
        )
        return [self.row(*row) for row in rows]

    @property
    def is_there(self) -> str:
        return "removed_at IS NULL" if self.keeps_removed else "true"

    @property
    def _counting(self) -> list[str]:
        return [f"revision = {self.table}.revision + 1"] * self.has_revision


async def note_change(tx: Transaction, kind: FeedKind, ref: int) -> None:
    """Notify the scheduler and open pages by a row of ``changes``. ``ref``: the key of the changed object; 0 where any of the kind may
    have changed.
    """
    await note_changes(tx, kind, [ref])


async def note_changes(tx: Transaction, kind: FeedKind, refs: Sequence[int]) -> None:
    """Notify the scheduler and open pages of several changed objects of a kind, as ``note_change`` does of one."""
    await tx.run(
        "INSERT INTO changes (kind, ref) SELECT CAST(:kind AS text), ref FROM unnest(CAST(:refs AS bigint[])) AS n(ref)",
        kind=kind,
        refs=list(refs),
    )


async def lock(tx: Transaction, name: str) -> None:
    """Lock the declared object of this kind and name against changes by other transactions until this transaction ends."""
    await tx.run("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))", name=name)


async def lock_all(tx: Transaction, names: Iterable[str]) -> None:
    """Lock several declared objects as ``lock`` does, in an order that all transactions share."""
    await tx.run(
        "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest(CAST(:names AS text[])) AS n(name)",
        names=sorted(set(names)),
    )
