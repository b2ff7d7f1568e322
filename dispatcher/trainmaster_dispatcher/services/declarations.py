"""Declared state as a whole: documents applied together in one transaction, the history of objects, and the way back.

References are checked by the hooks that a change of a single object has. Nothing is left of a call with a mistake: the caller's
transaction is rolled back. So it is after a dry run, which does the same work.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.declarations import (
    AppliedObject,
    ApplyOutcome,
    ApplyWarning,
    HistoryPage,
    RevisionView,
)
from trainmaster.protocol.documents import Document, placed
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.quota import parse_flavor
from trainmaster.protocol.resource_kinds import CLUSTER, PRIORITY_CLASS, QUEUE, RESERVATION, Kind
from trainmaster.protocol.suggestions import suggestion
from trainmaster.protocol.tenants import QueueSpec
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_dispatcher.containment import Part, contained
from trainmaster_dispatcher.domain.declared_fields import Wire, owners_after
from trainmaster_dispatcher.domain.reserved_nodes import shortage
from trainmaster_dispatcher.services import auditing
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.declared_documents import (
    BY_WORD,
    Draft,
    ObjectChange,
    conflicts_of,
    let_others_go_on,
    order_of,
    read_drafts,
)
from trainmaster_dispatcher.services.feed_follower import overpromised
from trainmaster_dispatcher.services.references import UnknownReferencesError
from trainmaster_dispatcher.services.revisions import UNRECORDED, Author, Written, read_owners, record
from trainmaster_dispatcher.store import agents, declared, scheduling, tenants
from trainmaster_dispatcher.store import declarations as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declarations import ObjectName

_ALL = "all declared state"
"""The lock under which documents are applied: of two calls, one waits for the other."""
_WARNED = (QUEUE.kind, CLUSTER.kind)
"""Kinds whose changes may make a guarantee exceed what the clusters have."""
_UNBOUNDED = "no longestWait: its jobs may wait for as long as smaller or higher ones come; the shipped classes have 10m, 30m and 2h"
_NO_DEFAULT = "it was the default, and now no class is: jobs that name none are refused"


@dataclass(frozen=True, slots=True)
class ApplyTerms:
    """Terms on which documents are applied, see ``ApplySpec``. ``prune``: the applier whose other objects are removed."""

    replace: bool = False
    force: bool = False
    prune: str | None = None


class AuditedChange(NamedTuple):
    """A line for the audit."""

    action: str
    target: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AppliedDocuments:
    """The effects of documents that were applied, in the order of the changes."""

    objects: tuple[AppliedObject, ...]
    warnings: tuple[ApplyWarning, ...]
    audit: tuple[AuditedChange, ...]


async def apply_documents(
    tx: Transaction, documents: Sequence[Document], author: Author, terms: ApplyTerms = ApplyTerms()
) -> AppliedDocuments:
    """Create and change the objects of documents, and remove others with ``prune``.

    Raises ProblemError with each mistake that can be found, or CONFLICT with each field that belongs to another applier.
    """
    drafts, mistakes = await read_drafts(documents)
    work = _Application(tx, author, terms, sorted(drafts, key=lambda draft: draft.order), mistakes)
    return await work.run()


def _names_to_read(kind: str, targets: Iterable[ObjectName]) -> list[str] | None:
    """Return the names of the objects of a kind to lock and to read; None for all."""
    if BY_WORD[kind].changes_others:
        return None
    return [one.name for one in targets if one.kind == kind]


_IN_DOCUMENT = re.compile(r"documents\[(\d+)\]")


def _document_of(mistake: Mistake) -> float:
    """Return the number of the document with the mistake; infinity for one in none."""
    found = _IN_DOCUMENT.match(mistake.path)
    return int(found[1]) if found else math.inf


@dataclass(slots=True)
class _Application:
    """One call's work, step by step. ``failed``: objects that have mistakes, whose names are no further mistakes."""

    tx: Transaction
    author: Author
    terms: ApplyTerms
    drafts: list[Draft]
    mistakes: list[Mistake]
    codes: list[Code] = field(default_factory=list)
    conflicts: list[tuple[Mistake, dict[str, Any]]] = field(default_factory=list)
    failed: set[ObjectName] = field(default_factory=set)
    before: dict[Kind, dict[str, Wire]] = field(default_factory=dict)
    owners: dict[ObjectName, dict[str, frozenset[tuple[str, ...]]]] = field(default_factory=dict)

    async def run(self) -> AppliedDocuments:
        """Do the work. Raises ProblemError."""
        self.codes += [Code.INVALID_SPEC] * len(self.mistakes)
        await declared.lock(self.tx, _ALL)
        candidates = await self._candidates()
        targets = [*(draft.target for draft in self.drafts), *candidates]
        await declared.lock_all(self.tx, [f"{BY_WORD[one.kind].kind.name} {one.name}" for one in targets])
        await self._hold(targets, candidates)
        self.before = await self._snapshot(targets)
        self.owners = await read_owners(self.tx, targets)
        await self._merge()
        await self._write()
        existing = [one for one in candidates if one.name in self.before[BY_WORD[one.kind].kind.kind]]
        await self._prune(existing)
        effects = await self._effects(targets)
        await self._find_conflicts(effects)
        self._check()
        await self._record(effects)
        await store.forget_owners(self.tx, [one for one in candidates if one not in existing])
        objects, lines = list[AppliedObject](), list[AuditedChange]()
        for number, effect in enumerate(effects):
            await let_others_go_on(number)
            objects.append(effect.applied())
            lines += self._audit(effect)
        return AppliedDocuments(tuple(objects), await self._warnings(effects), tuple(lines))

    async def _candidates(self) -> list[ObjectName]:
        """Return the objects to remove, those first that others may refer to last."""
        if self.terms.prune is None:
            return []
        named = {draft.target for draft in self.drafts}
        found = [one for one in await store.applied_by(self.tx, self.terms.prune) if one.kind in BY_WORD]
        return sorted((one for one in found if one not in named), key=order_of, reverse=True)

    async def _hold(self, targets: Sequence[ObjectName], candidates: Sequence[ObjectName]) -> None:
        """Lock the rows that this work changes in the order in which other transactions lock them: queues first, by their keys."""
        queues = {one.name for one in targets if one.kind == QUEUE.kind}
        above = {name.rpartition("/")[0] for name in queues if "/" in name}
        above |= {one.name for one in candidates if one.kind == QUEUE.kind}
        above |= {str(one.value.get("queue")) for one in self.drafts if one.word == RESERVATION.kind}
        await BY_WORD[QUEUE.kind].table.hold(self.tx, above, for_removal=True)
        for kind in sorted({one.kind for one in targets}, key=lambda kind: (kind != QUEUE.kind, kind)):
            await BY_WORD[kind].table.hold(self.tx, _names_to_read(kind, targets))

    async def _snapshot(self, targets: Sequence[ObjectName]) -> dict[Kind, dict[str, Wire]]:
        """Return these objects and those that change with them, whose rows are all locked."""
        kinds = dict.fromkeys(one.kind for one in targets)
        return {
            BY_WORD[kind].kind.kind: await BY_WORD[kind].table.wire(self.tx, _names_to_read(kind, targets))
            for kind in kinds
        }

    async def _merge(self) -> None:
        for number, draft in enumerate(self.drafts):
            await let_others_go_on(number)
            if not draft.mistakes:
                draft.merge(
                    self.before[draft.word].get(draft.name),
                    self.owners.get(draft.target, {}),
                    self.author.applier,
                    replace=self.terms.replace,
                )
                self._refuse(draft.target, Code.INVALID_SPEC, draft.mistakes)
                if draft.spec is not None:
                    self.author.check_spec(draft.word, draft.name, draft.spec)
            if draft.spec is None:
                self.failed.add(draft.target)

    def _refuse(self, target: ObjectName, code: Code, mistakes: Sequence[Mistake]) -> None:
        self.mistakes += mistakes
        self.codes += [code] * len(mistakes)
        if mistakes:
            self.failed.add(target)

    async def _write(self) -> None:
        """Write what changes. Documents of one position in the order do not refer to each other, and are written together."""
        for _, several in groupby(await self._changing(), key=lambda draft: draft.order):
            group = list(several)
            refusals = await group[0].kind.write(self.tx, [draft.spec for draft in group])
            for draft, refusal in zip(group, refusals, strict=True):
                if refusal is not None:
                    self._refuse_draft(draft, refusal)

    async def _changing(self) -> list[Draft]:
        found = []
        for number, draft in enumerate(self.drafts):
            await let_others_go_on(number)
            if draft.spec is None:
                continue
            before = self.before[draft.word].get(draft.name)
            effect = ObjectChange.of(draft.kind, draft.name, before, draft.spec.to_wire())
            if effect.outcome is not ApplyOutcome.UNCHANGED:
                found.append(draft)
        return found

    def _refuse_draft(self, draft: Draft, refusal: ProblemError) -> None:
        if isinstance(refusal, UnknownReferencesError):
            # An object that is declared here, with a mistake of its own, is not missing.
            self.failed.add(draft.target)
            for one in refusal.references:
                if ObjectName(one.kind, one.name) not in self.failed:
                    mistake = Mistake(path=one.path, message=one.message)
                    self._refuse(draft.target, one.code, [placed(mistake, draft.place)])
        else:
            found = refusal.mistakes or (Mistake(path=draft.kind.kind.key, message=refusal.detail),)
            self._refuse(draft.target, refusal.code, [placed(one, draft.place) for one in found])

    async def _prune(self, candidates: Sequence[ObjectName]) -> None:
        """Remove objects. Those of which others own fields are conflicts."""
        for one in candidates:
            kind, place = BY_WORD[one.kind], f"{one.kind} {one.name}"
            others = sorted(
                applier
                for applier, paths in self.owners.get(one, {}).items()
                if paths and applier not in (self.terms.prune, self.author.applier)
            )
            if others and not self.terms.force:
                message = f"is not removed: fields of it are owned by {', '.join(map(repr, others))}"
                more = {"kind": one.kind, "name": one.name, "field": "", "owners": others}
                self.conflicts.append((Mistake(path=place, message=message), more))
                continue
            try:
                self.author.check_target(kind.kind.kind, one.name)
                await kind.before_prune(self.tx, one.name)
                await kind.erase(self.tx, one.name)
            except ProblemError as error:
                self._refuse(one, error.code, [Mistake(path=place, message=error.detail)])

    async def _effects(self, targets: Sequence[ObjectName]) -> list[ObjectChange]:
        """Return what has become of the documents' objects, of others that changed with them, and of removed ones."""
        after = await self._snapshot(targets)
        named = dict.fromkeys(draft.target for draft in self.drafts)
        removed = [one for one in targets if one not in named and one.name in self.before[BY_WORD[one.kind].kind.kind]]
        others = [
            ObjectName(kind, name)
            for kind, objects in self.before.items()
            for name, before in objects.items()
            if name in after[kind] and after[kind][name] != before
        ]
        effects = []
        for number, one in enumerate(dict.fromkeys((*named, *others, *removed))):
            await let_others_go_on(number)
            kind = BY_WORD[one.kind]
            word = kind.kind.kind
            if one in self.failed:
                continue
            effects.append(ObjectChange.of(kind, one.name, self.before[word].get(one.name), after[word].get(one.name)))
        return effects

    async def _find_conflicts(self, effects: Sequence[ObjectChange]) -> None:
        more = [one.target for one in effects if one.target not in self.owners]
        self.owners |= await read_owners(self.tx, more)
        if self.terms.force:
            return
        places = {draft.target: draft.place for draft in self.drafts}
        for effect in effects:
            if effect.outcome is ApplyOutcome.CHANGED:
                place = places.get(effect.target, f"{effect.target.kind} {effect.name}")
                owners = self.owners.get(effect.target, {})
                self.conflicts += conflicts_of(effect, owners, self.author.applier, place)

    def _check(self) -> None:
        """Raise ProblemError for all mistakes, or for all conflicts, in the order of the documents."""
        found = tuple(sorted((*self.mistakes, *(mistake for mistake, _ in self.conflicts)), key=_document_of))
        if not found:
            return
        detail = f"{found[0].path}: {found[0].message}"
        if self.mistakes:
            code = self.codes[0] if len(set(self.codes)) == 1 else Code.INVALID_SPEC
            raise ProblemError(code, detail, mistakes=found)
        extra = {"conflicts": [more for _, more in self.conflicts[:100]]}
        many = "1 change concerns" if len(found) == 1 else f"{len(found)} changes concern"
        detail = f"{many} fields of other appliers; apply under the same name as they do, or take the fields over with --force"
        raise ProblemError(Code.CONFLICT, detail, mistakes=found, extra=extra)

    async def _record(self, effects: Sequence[ObjectChange]) -> None:
        stated = {draft.target: draft.stated for draft in self.drafts}
        written = []
        for effect in effects:
            owners = self.owners.get(effect.target, {})
            applier = self.author.applier if effect.target in stated else None
            now = owners_after(owners, applier, stated.get(effect.target, ()), effect.changed)
            written.append(Written(effect.kind.kind.kind, effect.name, effect.before, effect.after, now))
        removed = [one for one in written if one.after is None]
        await record(self.tx, self.author, [one for one in written if one.after is not None])
        if removed:
            await record(self.tx, replace(self.author, action="prune"), removed)
        if self.author.applier is not None and stated:
            created = [one.target for one in effects if one.outcome is ApplyOutcome.CREATED]
            await store.note_applied(self.tx, self.author.applier, list(stated), created)

    async def _warnings(self, effects: Sequence[ObjectChange]) -> tuple[ApplyWarning, ...]:
        changed = [one.target for one in effects if one.outcome is not ApplyOutcome.UNCHANGED]
        return (
            *await self._unbounded(changed),
            *await self._without_default(effects),
            *await self._overpromised({one.kind for one in changed}),
            *await self._limits_of_nothing(changed),
            *await self._short_of_nodes(changed),
        )

    async def _unbounded(self, changed: Sequence[ObjectName]) -> tuple[ApplyWarning, ...]:
        names = [one.name for one in changed if one.kind == PRIORITY_CLASS.kind]
        found = await tenants.CLASSES.by_name(self.tx, names) if names else {}
        return tuple(
            ApplyWarning(kind=PRIORITY_CLASS.kind, name=name, message=_UNBOUNDED)
            for name, one in found.items()
            if one.spec.longest_wait is None
        )

    async def _without_default(self, effects: Sequence[ObjectChange]) -> tuple[ApplyWarning, ...]:
        """Return a warning of the class that was the default, if no class is after the changes."""
        classes = [one for one in effects if one.kind.kind == PRIORITY_CLASS]
        before = [one.name for one in classes if (one.before or {}).get("default")]
        if not before or any((one.after or {}).get("default") for one in classes):
            return ()
        if any(one.spec.default for one in await tenants.CLASSES.every(self.tx)):
            return ()
        return (ApplyWarning(kind=PRIORITY_CLASS.kind, name=before[0], message=_NO_DEFAULT),)

    async def _overpromised(self, touched: Set[str]) -> tuple[ApplyWarning, ...]:
        if touched.isdisjoint(_WARNED):
            return ()
        rows = await tenants.QUEUES.every(self.tx)
        found = await overpromised(self.tx, rows)
        return tuple(
            ApplyWarning(kind=QUEUE.kind, name=row.spec.path, message=message)
            for row in rows
            for message in found.get(row.id, ())
        )

    async def _limits_of_nothing(self, changed: Sequence[ObjectName]) -> tuple[ApplyWarning, ...]:
        """Return a warning for each limit on a resource that no cluster has; none before a cluster has reported what it has.

        ``_overpromised`` warns of guarantees.
        """
        names = [one.name for one in changed if one.kind == QUEUE.kind]
        found = await tenants.QUEUES.by_name(self.tx, names) if names else {}
        limits = {name: [*_limited(row.spec)] for name, row in found.items()}
        if not any(limits.values()):
            return ()
        known = {resource for row in await agents.admissions(self.tx) for resource in row.resources or ()}
        return tuple(
            ApplyWarning(
                kind=QUEUE.kind,
                name=name,
                message=f"limits {resource}, which no cluster has now{suggestion(resource, known)}",
            )
            for name, resources in limits.items()
            for resource in resources
            if known and resource not in known
        )

    async def _short_of_nodes(self, changed: Sequence[ObjectName]) -> tuple[ApplyWarning, ...]:
        names = [one.name for one in changed if one.kind == RESERVATION.kind]
        found = await tenants.RESERVATIONS.by_name(self.tx, names) if names else {}
        if not found:
            return ()
        reports = {}
        for row in await scheduling.clusters(self.tx):
            with contained(Part.CLUSTER, row.name):
                if row.report is not None:
                    reports[row.name] = CapacityReport.model_validate(row.report)
        said = {name: shortage(one.spec, reports) for name, one in found.items()}
        return tuple(
            ApplyWarning(kind=RESERVATION.kind, name=name, message=message) for name, message in said.items() if message
        )

    def _audit(self, effect: ObjectChange) -> list[AuditedChange]:
        """Return the line of the audit for an object; none if it has not changed."""
        if effect.outcome is ApplyOutcome.UNCHANGED:
            return []
        action = "prune" if effect.outcome is ApplyOutcome.REMOVED else self.author.action
        details = auditing.change_of(*effect.as_audited())
        if self.author.applier is not None:
            details["applier"] = self.author.applier
        return [AuditedChange(f"{action} {effect.kind.kind.name}", effect.name, details)]


def _limited(spec: QueueSpec) -> list[str]:
    """Return the resources that a queue limits without a guarantee of them, in order of their names."""
    limited = {parse_flavor(flavor)[0] for flavor, one in spec.resources.items() if one.guaranteed is None}
    return sorted(limited | set(spec.limits_per_user))


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The effect of a rollback to a revision."""

    revision: int
    object: AppliedObject
    audit: AuditedChange


async def rollback(tx: Transaction, word: Kind, name: str, revision: int | None, author: Author) -> RolledBack:
    """Return an object to a revision; by default to the last one that differs from it. A removed object is created again.

    Its author owns its fields then. Raises ProblemError, NOT_FOUND where there is no such revision.
    """
    kind = BY_WORD[word]
    await declared.lock(tx, f"{kind.kind.name} {name}")
    author.check_target(word, name)
    before = (await kind.table.wire(tx, [name])).get(name)
    found = await store.revision_to_restore(tx, word, name, revision, before)
    if found is None:
        if revision is None and before is None:
            near = suggestion(name, await kind.table.wire(tx))
            raise ProblemError(Code.NOT_FOUND, f"there is no {kind.kind.name} {name!r}, and it has no history{near}")
        wanted = "other revision" if revision is None else f"revision {revision}"
        raise ProblemError(Code.NOT_FOUND, f"{kind.kind.name} {name!r} has no {wanted} to return to in its history")
    try:
        spec = kind.kind.spec.model_validate(found.spec)
    except ValidationError as error:
        mistakes = mistakes_of(error)
        detail = f"revision {found.revision} has mistakes by the rules of this release: {mistakes[0].message}"
        raise ProblemError(Code.INVALID_SPEC, detail, mistakes=mistakes) from error
    await kind.put(tx, spec, author)
    effect = ObjectChange.of(kind, name, before, spec.to_wire())
    details = auditing.change_of(*effect.as_audited()) | {"revision": found.revision}
    return RolledBack(
        found.revision, effect.applied(), AuditedChange(f"{author.action} {kind.kind.name}", name, details)
    )


async def history(tx: Transaction, word: Kind, name: str, before: int | None, limit: int) -> HistoryPage:
    """Return a page of an object's revisions. Raises ProblemError NOT_FOUND where it neither exists nor has any."""
    kind = BY_WORD[word]
    rows = await store.revisions_of(tx, word, name, before, limit + 1)
    if not rows and before is None and not await kind.table.exists(tx, name):
        near = suggestion(name, await kind.table.wire(tx))
        raise ProblemError(Code.NOT_FOUND, f"there is no {kind.kind.name} {name!r}, and it has no history{near}")
    earlier: list[store.StoredRevision | None] = [*rows, None][1:]
    page = [_view(kind, name, row, older) for row, older in zip(rows, earlier, strict=True)][:limit]
    return HistoryPage(
        kind=word, name=name, revisions=tuple(page), next=page[-1].revision if len(rows) > limit else None
    )


def _view(
    kind: DeclaredKind[Any, Any], name: str, row: store.StoredRevision, older: store.StoredRevision | None
) -> RevisionView:
    is_known = older is not None or (row.revision == 1 and row.action != UNRECORDED)
    effect = ObjectChange.of(kind, name, None if older is None else older.spec, row.spec)
    spec: Mapping[str, Any] | None = row.spec
    return RevisionView(
        revision=row.revision,
        at=row.at,
        actor=row.actor,
        applier=row.applier,
        action=row.action,
        fields=effect.applied().fields if is_known else (),
        spec=None if spec is None else {"kind": kind.kind.kind, **spec},
    )
