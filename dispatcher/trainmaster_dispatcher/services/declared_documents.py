"""Documents of a call to apply, read and merged with the objects that exist. The store is not read here."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from pydantic import BaseModel, ValidationError

from trainmaster.protocol.base import Strict
from trainmaster.protocol.declarations import AppliedObject, ApplyOutcome, ChangedField
from trainmaster.protocol.documents import Document, no_kind, placed
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.resource_kinds import KINDS, PRIORITY_CLASS, Kind
from trainmaster.protocol.validation_errors import UNKNOWN_FIELD, mistakes_of
from trainmaster_dispatcher.domain import declared_fields as fields
from trainmaster_dispatcher.domain.declared_fields import FieldPath, Owners, Wire
from trainmaster_dispatcher.services import declared_kinds
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.store.declarations import ObjectName

BY_WORD: Mapping[str, DeclaredKind[Any, Any]] = {one.kind.kind: one for one in declared_kinds.KINDS}
"""The kinds by their word in documents."""
_AT_ONCE = 25
"""The number of documents that are looked at before other calls of this process go on: some 10 ms."""
_ORDER = {word: position for position, word in enumerate(KINDS)}


@dataclass(slots=True)
class Draft:
    """A document whose object is known. ``value``: its fields, without short forms; ``mistakes``: what prevents it from being applied.

    ``spec`` and ``stated`` are set when it is merged with the object that exists.
    """

    kind: DeclaredKind[Any, Any]
    name: str
    place: str
    value: Wire
    mistakes: list[Mistake] = field(default_factory=list)
    spec: Strict | None = None
    stated: frozenset[FieldPath] = frozenset()

    @property
    def word(self) -> Kind:
        return self.kind.kind.kind

    @property
    def target(self) -> ObjectName:
        return ObjectName(self.word, self.name)

    @property
    def order(self) -> tuple[int, int, bool]:
        """Position among documents: after those that it may name, and a new default class after the old one."""
        return (*order_of(self.target), self._is_default_class)

    @property
    def _is_default_class(self) -> bool:
        return self.word == PRIORITY_CLASS.kind and self.value.get("default") is True

    def merge(self, before: Wire | None, owners: Owners, applier: str | None, *, replace: bool) -> None:
        """Set the specification that results, and the fields that the document states.

        Fields that it leaves out stay, but for those that only ``applier`` owns; with ``replace`` all of them get their defaults.
        """
        stated = self.kind.fields_of(self.value)
        base = {} if before is None or replace else before
        for path in fields.given_up(stated, owners, applier):
            base = fields.without_field(base, path)
        try:
            spec = self.kind.kind.spec.model_validate(fields.overlaid(base, self.value))
        except ValidationError as error:
            self.mistakes += [placed(one, self.place) for one in mistakes_of(error)]
            return
        full, wire = full_form(spec), spec.to_wire()
        unknown = [path for path in stated if not fields.is_known(full, path)]
        if unknown:
            self.mistakes += [
                Mistake(path=f"{self.place}: {fields.written(path)}", message=UNKNOWN_FIELD) for path in unknown
            ]
            return
        # An empty mapping states nothing, unless it makes an object of fields that all have their defaults.
        self.stated = frozenset(
            path for path, value in stated.items() if value != {} or fields.value_at(wire, path) == {}
        )
        self.spec = spec


async def let_others_go_on(number: int) -> None:
    """Let other calls of this process go on, once in a while."""
    if number % _AT_ONCE == _AT_ONCE - 1:
        await asyncio.sleep(0)


def order_of(target: ObjectName) -> tuple[int, int]:
    """Return the position of an object in an order in which objects can be made."""
    return _ORDER[target.kind], target.name.count("/")  # type: ignore[index] # kinds in the store are those of documents


async def read_drafts(documents: Iterable[Document]) -> tuple[list[Draft], list[Mistake]]:
    """Return the documents whose object is known, and the mistakes of all, also those of the drafts."""
    drafts: dict[ObjectName, Draft] = {}
    mistakes: list[Mistake] = []
    default: Draft | None = None
    for number, document in enumerate(documents):
        await let_others_go_on(number)
        draft = _read(document, mistakes)
        if draft is None:
            continue
        key = draft.kind.kind.key
        if (first := drafts.setdefault(draft.target, draft)) is not draft:
            message = f"{draft.word} {draft.name!r} is declared already, by {first.place}"
            mistakes.append(Mistake(path=f"{draft.place}: {key}", message=message))
            continue
        if draft.order[-1]:
            if default is not None:
                message = f"there is one default class, and {default.place} makes {default.name!r} that"
                draft.mistakes.append(Mistake(path=f"{draft.place}: default", message=message))
            default = default or draft
        mistakes += draft.mistakes
    return list(drafts.values()), mistakes


def _read(document: Document, mistakes: list[Mistake]) -> Draft | None:
    """Return a document's draft; None, with a mistake, where its object cannot be known."""

    def refuse(path: str, message: str) -> None:
        mistakes.append(Mistake(path=f"{document.place}: {path}" if path else document.place, message=message))

    kind = BY_WORD.get(document.kind or "")
    if kind is None:
        refuse("kind", no_kind(document, tuple(KINDS)))
        return None
    key = kind.kind.key
    name = document.value.get(key)
    if not isinstance(name, str) or not name:
        refuse(key, f"give the {key} of the object")
        return None
    if fields.is_too_deep(document.value):
        refuse("", f"mappings and lists are nested deeper than {fields.MOST_DEPTH} levels")
        return None
    draft = Draft(kind, name, document.place, document.value)
    undeclared = _undeclared(draft.word)
    for extra in sorted(document.value.keys() & undeclared):
        message = "is shown by the API and cannot be declared; trainmaster export writes documents without such fields"
        draft.mistakes.append(Mistake(path=f"{document.place}: {extra}", message=message))
    value = {one: inner for one, inner in document.value.items() if one not in undeclared}
    try:
        draft.value = kind.kind.spec.long_form(value)
    except ValueError as error:
        draft.mistakes.append(Mistake(path=document.place, message=str(error)))
    return draft


@cache
def _undeclared(word: str) -> frozenset[str]:
    """Return the fields of a kind that the API shows beside those that are declared."""
    kind = BY_WORD[word]
    return _names_of(kind.view) - _names_of(kind.kind.spec)


def _names_of(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in model.model_fields.items())


def full_form(spec: Strict) -> dict[str, Any]:
    """Return a specification with all its fields."""
    return spec.model_dump(mode="json", by_alias=True)


@dataclass(frozen=True)
class ObjectChange:
    """An object before and after a change, in wire form of this release; None where it does not exist."""

    kind: DeclaredKind[Any, Any]
    name: str
    before: Wire | None
    after: Wire | None

    @classmethod
    def of(cls, kind: DeclaredKind[Any, Any], name: str, before: Wire | None, after: Wire | None) -> "ObjectChange":
        """Return the effect of a change of what is stored, in which defaults may be written out."""
        if before == after:
            return cls(kind, name, before, before)
        return cls(kind, name, _wire_form(kind, before), _wire_form(kind, after))

    @property
    def target(self) -> ObjectName:
        return ObjectName(self.kind.kind.kind, self.name)

    @property
    def outcome(self) -> ApplyOutcome:
        if self.before is None:
            return ApplyOutcome.CREATED
        if self.after is None:
            return ApplyOutcome.REMOVED
        return ApplyOutcome.UNCHANGED if self.before == self.after else ApplyOutcome.CHANGED

    @cached_property
    def changed(self) -> list[FieldPath]:
        """The paths of the fields that differ."""
        return fields.changed_fields(self.before or {}, self.after or {}, without=("kind", self.kind.kind.key))

    def applied(self) -> AppliedObject:
        """Return what people are told of the change."""
        return AppliedObject(
            kind=self.kind.kind.kind, name=self.name, outcome=self.outcome, fields=tuple(self._changed_values())
        )

    def _changed_values(self) -> Iterator[ChangedField]:
        if not self.changed:
            return
        old, new = self._full_forms
        for path in self.changed:
            yield ChangedField(
                field=fields.written(path), before=_shown(self.before, old, path), after=_shown(self.after, new, path)
            )

    @cached_property
    def _full_forms(self) -> tuple[Wire | None, Wire | None]:
        return self._full(self.before), self._full(self.after)

    def _full(self, wire: Wire | None) -> Wire | None:
        if wire is None:
            return None
        try:
            return full_form(self.kind.kind.spec.model_validate(wire))
        except ValidationError:  # of an earlier release, which allowed more
            return wire

    def as_audited(self) -> tuple[Wire | None, Wire | None]:
        """Return the object before and after, with defaults, as the audit has it."""
        before, after = self._full_forms
        return _without_none(before), _without_none(after)


def _without_none(value: Wire | None) -> Wire | None:
    return None if value is None else {key: inner for key, inner in value.items() if inner is not None}


def _wire_form(kind: DeclaredKind[Any, Any], stored: Wire | None) -> Wire | None:
    if stored is None:
        return None
    try:
        spec: Strict = kind.kind.spec.model_validate(stored)
        return spec.to_wire()
    except ValidationError:
        return stored


def _shown(wire: Wire | None, full: Wire | None, path: FieldPath) -> Any:
    """Return the value at a path, or its default."""
    given = fields.value_at(wire, path)
    return fields.value_at(full, path) if given is None else given


def conflicts_of(
    effect: ObjectChange, owners: Owners, applier: str | None, place: str
) -> list[tuple[Mistake, dict[str, Any]]]:
    """Return the changed fields that other appliers own: for each a mistake, and its parts for programs."""
    found = []
    for path in effect.changed:
        others: Sequence[str] = fields.owners_of(path, owners, but=applier)
        if others:
            message = f"is owned by {', '.join(map(repr, others))}"
            found.append(
                (
                    Mistake(path=f"{place}: {fields.written(path)}", message=message),
                    {
                        "kind": effect.kind.kind.kind,
                        "name": effect.name,
                        "field": fields.written(path),
                        "owners": list(others),
                    },
                )
            )
    return found
