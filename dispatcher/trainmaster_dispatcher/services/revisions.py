"""The record of each change of declared objects: a revision, and who owns which fields from then on. In the change's transaction.

An object whose last revision differs from what it was before a change was changed without a record: by a release that has none, or as
the consequence of another object's change. It gets a revision of that state first, so that every state can be returned to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.protocol.resource_kinds import Kind
from trainmaster_dispatcher.domain.declared_fields import (
    FieldPath,
    Owners,
    Wire,
    changed_fields,
    owners_after,
    value_at,
)
from trainmaster_dispatcher.store import declarations as store
from trainmaster_dispatcher.store import declared_metadata
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declarations import NewRevision, ObjectName

UNRECORDED = "unrecorded"
"""The action of a revision whose change was not recorded."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change. ``applier``: who owns the fields that it states; None: nobody. ``action``: in the audit and the history."""

    actor: str
    applier: str | None
    action: str


SYSTEM = Author("local", None, "make")
"""The author of objects that an installation makes by itself."""


@dataclass(frozen=True, slots=True)
class Written:
    """An object before and after a change, in wire form; None where it does not exist. ``owners``: of its fields, after the change."""

    kind: Kind
    name: str
    before: Wire | None
    after: Wire | None
    owners: Owners

    @property
    def target(self) -> ObjectName:
        return ObjectName(self.kind, self.name)

    @property
    def changes_nothing(self) -> bool:
        return self.before == self.after


async def read_owners(
    tx: Transaction, objects: Sequence[ObjectName]
) -> dict[ObjectName, dict[str, frozenset[FieldPath]]]:
    """Return who owns fields of these objects; an object of which nobody owns any has no entry."""
    found: dict[ObjectName, dict[str, frozenset[FieldPath]]] = {}
    for row in await store.field_owners(tx, objects):
        paths = frozenset(tuple(path) for path in row.fields)
        found.setdefault(ObjectName(row.kind, row.name), {})[row.applier] = paths
    return found


async def record(tx: Transaction, author: Author, written: Sequence[Written]) -> None:
    """Store a revision of each object that has changed, and the owners of the fields of each object that exists."""
    changed = [one for one in written if not one.changes_nothing]
    last = await store.last_revisions(tx, [one.target for one in changed]) if changed else {}
    revisions: list[NewRevision] = []
    for one in changed:
        number, spec = last.get(one.target, (0, None))
        if spec != one.before:
            number += 1
            revisions.append(NewRevision(*one.target, number, "", "", UNRECORDED, one.before))
        revisions.append(
            NewRevision(*one.target, number + 1, author.actor, author.applier or "", author.action, one.after)
        )
    await store.write_revisions(tx, revisions)
    removed = [one.target for one in written if one.after is None]
    if removed:
        await store.forget_owners(tx, removed)
        await declared_metadata.forget(tx, removed)
    await store.write_owners(tx, {one.target: one.owners for one in written if one.after is not None})


async def record_one(
    tx: Transaction,
    author: Author,
    target: tuple[Kind, str],
    before: Wire | None,
    after: Wire | None,
    stated: Sequence[FieldPath] = (),
    *,
    keeps: bool = False,
) -> None:
    """Record the change of one object by force: the author owns the fields that it states, and those that it unsets, so that nobody
    sets them again without a conflict. ``keeps``: also those it owned before.
    """
    kind, name = target
    owners: Mapping[str, Any] = (await read_owners(tx, [ObjectName(kind, name)])).get(ObjectName(kind, name), {})
    changed = changed_fields(before or {}, after or {})
    own = set(stated)
    if after is not None:
        own.update(path for path in changed if value_at(after, path) is None)
    if keeps and author.applier is not None:
        own |= owners.get(author.applier, frozenset())
    await record(tx, author, [Written(kind, name, before, after, owners_after(owners, author.applier, own, changed))])
