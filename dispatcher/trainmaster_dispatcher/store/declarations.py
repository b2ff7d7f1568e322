"""Who owns the fields of declared objects, and the revisions that these objects have had."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainmaster_dispatcher.store.database import Transaction, dumps


class ObjectName(NamedTuple):
    """A declared object: the word of its kind in documents, and its name or path."""

    kind: str
    name: str


class FieldOwner(NamedTuple):
    """The fields of an object that an applier has set, as lists of keys.

    ``created``: the applier has created the object; ``is_last``: nobody else has applied it since. Both are false for those who change
    objects one by one.
    """

    kind: str
    name: str
    applier: str
    fields: list[list[str]]
    created: bool
    is_last: bool


class StoredRevision(NamedTuple):
    """A revision of an object. ``spec`` None: the object was removed."""

    revision: int
    at: datetime
    actor: str
    applier: str
    action: str
    spec: Any


class NewRevision(NamedTuple):
    """A revision to store."""

    kind: str
    name: str
    revision: int
    actor: str
    applier: str
    action: str
    spec: Mapping[str, Any] | None


def _columns(objects: Iterable[ObjectName]) -> dict[str, list[str]]:
    several = list(objects)
    return {"kinds": [one.kind for one in several], "names": [one.name for one in several]}


_OBJECTS = "unnest(CAST(:kinds AS text[]), CAST(:names AS text[])) AS n(kind, name)"


async def field_owners(tx: Transaction, objects: Iterable[ObjectName]) -> Sequence[FieldOwner]:
    """Return who owns fields of these objects."""
    return await tx.all_of(
        FieldOwner,
        f"""
        SELECT o.kind, o.name, o.applier, o.fields, o.created,
               o.applied_at IS NOT NULL AND NOT EXISTS (
                   SELECT 1 FROM field_owners l
                   WHERE l.kind = o.kind AND l.name = o.name AND l.applied_at > o.applied_at) AS is_last
        FROM field_owners o JOIN {_OBJECTS} ON n.kind = o.kind AND n.name = o.name
        """,
        **_columns(objects),
    )


async def applied_by(tx: Transaction, applier: str) -> list[ObjectName]:
    """Return the objects that an applier has created, or was the last one to apply."""
    rows = await tx.all(
        """
        SELECT o.kind, o.name FROM field_owners o
        WHERE o.applier = :applier AND o.applied_at IS NOT NULL AND (o.created OR NOT EXISTS (
            SELECT 1 FROM field_owners l WHERE l.kind = o.kind AND l.name = o.name AND l.applied_at > o.applied_at))
        ORDER BY o.kind, o.name
        """,
        applier=applier,
    )
    return [ObjectName(row.kind, row.name) for row in rows]


async def write_owners(tx: Transaction, owners: Mapping[ObjectName, Mapping[str, Iterable[tuple[str, ...]]]]) -> None:
    """Store who owns the fields of objects; a row keeps when its applier has applied the object."""
    rows = [
        {"kind": target.kind, "name": target.name, "applier": applier, "fields": sorted(map(list, fields))}
        for target, by_applier in owners.items()
        for applier, fields in by_applier.items()
    ]
    if rows:
        await tx.run(
            """
            INSERT INTO field_owners (kind, name, applier, fields)
            SELECT kind, name, applier, fields
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS n(kind text, name text, applier text, fields jsonb)
            ON CONFLICT (kind, name, applier) DO UPDATE SET fields = excluded.fields
            WHERE field_owners.fields <> excluded.fields
            """,
            rows=dumps(rows),
        )


async def note_applied(
    tx: Transaction, applier: str, objects: Iterable[ObjectName], created: Iterable[ObjectName]
) -> None:
    """Note that an applier has applied these objects now, unless it was the last one to do so, and which of them it has created."""
    await tx.run(
        f"""
        UPDATE field_owners o SET applied_at = clock_timestamp() FROM {_OBJECTS}
        WHERE o.kind = n.kind AND o.name = n.name AND o.applier = :applier AND (o.applied_at IS NULL OR EXISTS (
            SELECT 1 FROM field_owners l WHERE l.kind = o.kind AND l.name = o.name AND l.applied_at > o.applied_at))
        """,
        applier=applier,
        **_columns(objects),
    )
    await tx.run(
        f"""
        UPDATE field_owners o SET created = true FROM {_OBJECTS}
        WHERE o.kind = n.kind AND o.name = n.name AND o.applier = :applier
        """,
        applier=applier,
        **_columns(created),
    )


async def forget_owners(tx: Transaction, objects: Iterable[ObjectName]) -> None:
    """Delete who owned fields of objects that do not exist any more."""
    await tx.run(
        f"DELETE FROM field_owners o USING {_OBJECTS} WHERE o.kind = n.kind AND o.name = n.name", **_columns(objects)
    )


async def last_revisions(tx: Transaction, objects: Iterable[ObjectName]) -> dict[ObjectName, tuple[int, Any]]:
    """Return the number and the specification of the last revision of those of these objects that have any."""
    rows = await tx.all(
        f"""
        SELECT DISTINCT ON (r.kind, r.name) r.kind, r.name, r.revision, r.spec
        FROM declared_revisions r JOIN {_OBJECTS} ON n.kind = r.kind AND n.name = r.name
        ORDER BY r.kind, r.name, r.revision DESC
        """,
        **_columns(objects),
    )
    return {ObjectName(row.kind, row.name): (row.revision, row.spec) for row in rows}


async def write_revisions(tx: Transaction, revisions: Sequence[NewRevision]) -> None:
    """Store revisions of objects that the caller has locked."""
    if revisions:
        await tx.run(
            """
            INSERT INTO declared_revisions (kind, name, revision, actor, applier, action, spec)
            SELECT kind, name, revision, actor, applier, action, nullif(spec, 'null')
            FROM jsonb_to_recordset(CAST(:rows AS jsonb))
                 AS n(kind text, name text, revision int, actor text, applier text, action text, spec jsonb)
            """,
            rows=dumps([one._asdict() for one in revisions]),
        )


async def revisions_of(
    tx: Transaction, kind: str, name: str, before: int | None, limit: int
) -> Sequence[StoredRevision]:
    """Return the revisions of an object below ``before``, the latest first."""
    return await tx.all_of(
        StoredRevision,
        """
        SELECT revision, at, actor, applier, action, spec FROM declared_revisions
        WHERE kind = :kind AND name = :name AND (CAST(:before AS bigint) IS NULL OR revision < CAST(:before AS bigint))
        ORDER BY revision DESC LIMIT :limit
        """,
        kind=kind,
        name=name,
        before=before,
        limit=limit,
    )


async def revision_to_restore(
    tx: Transaction, kind: str, name: str, revision: int | None, now: Mapping[str, Any] | None
) -> StoredRevision | None:
    """Return a revision in which an object exists: this one, or the last one that differs from ``now``."""
    return await tx.first_of(
        StoredRevision,
        """
        SELECT revision, at, actor, applier, action, spec FROM declared_revisions
        WHERE kind = :kind AND name = :name AND spec IS NOT NULL
          AND CASE WHEN CAST(:revision AS int) IS NULL THEN spec IS DISTINCT FROM CAST(:now AS jsonb) ELSE revision = :revision END
        ORDER BY revision DESC LIMIT 1
        """,
        kind=kind,
        name=name,
        revision=revision,
        now=None if now is None else dumps(now),
    )


async def remove_revisions(tx: Transaction, keep: int, limit: int) -> bool:
    """Remove revisions of objects that have more than ``keep``; return whether there may be more to remove."""
    removed = await tx.run(
        """
        DELETE FROM declared_revisions WHERE id IN (
            SELECT r.id FROM declared_revisions r JOIN (
                SELECT kind, name, max(revision) AS last FROM declared_revisions GROUP BY kind, name
                HAVING count(*) > :keep) m ON m.kind = r.kind AND m.name = r.name
            WHERE r.revision <= m.last - :keep LIMIT :limit)
        """,
        keep=keep,
        limit=limit,
    )
    return removed >= limit


async def remove_histories(tx: Transaction, seconds: float, limit: int) -> bool:
    """Remove the revisions of objects that were removed ``seconds`` ago or earlier; return whether there may be more to remove."""
    removed = await tx.run(
        """
        DELETE FROM declared_revisions WHERE id IN (
            SELECT r.id FROM declared_revisions r JOIN (
                SELECT DISTINCT ON (kind, name) kind, name, spec, at FROM declared_revisions
                ORDER BY kind, name, revision DESC) m ON m.kind = r.kind AND m.name = r.name
            WHERE m.spec IS NULL AND m.at < now() - make_interval(secs => :seconds) ORDER BY r.id LIMIT :limit)
        """,
        seconds=seconds,
        limit=limit,
    )
    return removed >= limit
