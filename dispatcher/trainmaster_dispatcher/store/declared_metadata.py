"""Metadata of declared objects for the Kubernetes API: labels, annotations, versions, and specifications as they were written."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster_dispatcher.store.database import Transaction, dumps
from trainmaster_dispatcher.store.declarations import ObjectName
from trainmaster_dispatcher.store.declared import DeclaredTable, Spec, Stored
from trainmaster_dispatcher.store.versions import FROM_LATEST, version_of


class DeclaredMetadata(NamedTuple):
    """Metadata of one object. ``wire``: the specification as it is stored; ``spec``: as it was written, if it is known."""

    name: str
    version: int
    created_at: datetime
    wire: Any
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    spec: dict[str, Any] | None


class AppliedFields(NamedTuple):
    """Fields of an object that an applier has set, as lists of keys. ``applied_at``: None for who has changed it by itself."""

    applier: str
    fields: list[list[str]]
    applied_at: datetime | None


class RemovedObject(NamedTuple):
    """An object that was removed, and when it was created; None where that revision is no longer stored."""

    name: str
    created_at: datetime | None


async def of_kind(
    tx: Transaction, table: DeclaredTable[Spec, Stored], name: str | None = None
) -> dict[str, DeclaredMetadata]:
    """Return what Kubernetes has of the objects of a kind, or of one of them, by their names."""
    rows = await tx.all_of(
        DeclaredMetadata,
        f"""
        SELECT t.{table.kind.key} AS name, greatest({version_of("t")}, {version_of("m")}) AS version, t.created_at, t.spec AS wire,
               m.labels, m.annotations, m.spec
        FROM {table.table} t LEFT JOIN declared_metadata m ON m.kind = :kind AND m.name = t.{table.kind.key} {FROM_LATEST}
        WHERE {table.is_there} AND (CAST(:name AS text) IS NULL OR t.{table.kind.key} = :name)
        """,
        kind=table.kind.kind,
        name=name,
    )
    return {row.name: row for row in rows}


async def managers(tx: Transaction, kind: str, name: str | None = None) -> dict[str, list[AppliedFields]]:
    """Return who has set fields of the objects of a kind, or of one of them, by their names."""
    rows = await tx.all(
        """
        SELECT name, applier, fields, applied_at FROM field_owners
        WHERE kind = :kind AND (CAST(:name AS text) IS NULL OR name = :name)
        """,
        kind=kind,
        name=name,
    )
    found: dict[str, list[AppliedFields]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(AppliedFields(row.applier, row.fields, row.applied_at))
    return found


async def write(
    tx: Transaction,
    target: ObjectName,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: Mapping[str, Any] | None,
) -> None:
    """Store what Kubernetes has of an object, if it differs."""
    await tx.run(
        """
        INSERT INTO declared_metadata AS m (kind, name, labels, annotations, spec)
        VALUES (:kind, :name, CAST(:labels AS jsonb), CAST(:annotations AS jsonb), CAST(:spec AS jsonb))
        ON CONFLICT (kind, name) DO UPDATE SET labels = excluded.labels, annotations = excluded.annotations, spec = excluded.spec
        WHERE (m.labels, m.annotations, m.spec) IS DISTINCT FROM (excluded.labels, excluded.annotations, excluded.spec)
        """,
        kind=target.kind,
        name=target.name,
        labels=dumps(labels) if labels else None,
        annotations=dumps(annotations) if annotations else None,
        spec=None if spec is None else dumps(spec),
    )


async def forget(tx: Transaction, objects: Sequence[ObjectName]) -> None:
    """Remove what Kubernetes has of objects that are removed."""
    await tx.run(
        """
        DELETE FROM declared_metadata WHERE (kind, name) IN (
            SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:names AS text[])))
        """,
        kinds=[one.kind for one in objects],
        names=[one.name for one in objects],
    )


async def removed_since(tx: Transaction, kind: str, version: int) -> Sequence[RemovedObject]:
    """Return the objects of a kind that were removed by changes of a version or later."""
    return await tx.all_of(
        RemovedObject,
        f"""
        SELECT r.name, max(m.at) AS created_at FROM declared_revisions r {FROM_LATEST}
        LEFT JOIN declared_revisions m ON m.kind = r.kind AND m.name = r.name AND m.revision < r.revision AND m.spec IS NOT NULL
             AND NOT EXISTS (
                 SELECT 1 FROM declared_revisions b
                 WHERE b.kind = m.kind AND b.name = m.name AND b.revision = m.revision - 1 AND b.spec IS NOT NULL)
        WHERE r.kind = :kind AND r.spec IS NULL AND {version_of("r")} >= :version GROUP BY r.name, r.revision ORDER BY r.revision
        """,
        kind=kind,
        version=version,
    )
