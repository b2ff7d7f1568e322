"""The record of each change of declared objects: a revision, and who owns which fields from then on. In the change's transaction.

An object whose last revision differs from what it was before a change was changed without a record: by a release that has none, or as
the consequence of another object's change. It gets a revision of that state first, so that every state can be returned to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.protocol.base import Strict
from trainmaster.protocol.resource_kinds import Kind
from trainmaster_dispatcher.domain.declared_fields import (
    FieldPath,
    Owners,
    Wire,
    changed_fields,
    owners_after,
    value_at,
)
from trainmaster_dispatcher.services import write_rights
from trainmaster_dispatcher.store import declarations as store
from trainmaster_dispatcher.store import declared_metadata
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declarations import NewRevision, ObjectName
from trainmaster_dispatcher.store.keys import Caller

UNRECORDED = "unrecorded"
"""The action of a revision whose change was not recorded."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change. ``applier``: who owns the fields that it states; None: nobody. ``action``: in the audit and the history.
    ``caller``: whose rights the change needs; None: nobody's, as it follows from a call whose rights were checked.
    """

    actor: str
    applier: str | None
    action: str
    caller: Caller | None = None

    def check_target(self, kind: Kind, name: str) -> None:
        """Raise ProblemError FORBIDDEN where the caller may not change this object, whatever it is and becomes."""
        if self.caller is not None:
            write_rights.check_target(self.caller, kind, name)

    def check_spec(self, kind: Kind, name: str, spec: Strict) -> None:
        """Raise ProblemError FORBIDDEN where a specification is about more than what the caller may change."""
        if self.caller is not None:
            write_rights.check_spec(self.caller, kind, name, spec)


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
    """Store a revision of each object that has changed, and the owners of the fields of each object that exists.

    Raises ProblemError FORBIDDEN where the author may not make such changes.
    """
    changed = [one for one in written if not one.changes_nothing]
    if author.caller is not None:
        changes = [(one.kind, one.name, one.before, one.after) for one in changed]
        await write_rights.check_changes(tx, author.caller, changes)
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
