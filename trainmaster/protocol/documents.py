"""Documents of files and of calls that declare something, checked by the models of their kinds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainmaster.protocol.base import Strict
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.meaningless import meaningless
from trainmaster.protocol.resource_kinds import KINDS, Kind, ResourceKind
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster.protocol.validation_errors import mistakes_of

_JOBS = ("Job", "Session")


@dataclass(frozen=True, slots=True)
class Document:
    """One specification and where it stands. ``is_stored``: an installation has it, maybe by the rules of an older release."""

    value: dict[str, Any]
    place: str
    is_stored: bool = False

    @property
    def kind(self) -> str | None:
        kind = self.value.get("kind")
        return kind if isinstance(kind, str) else None

    @property
    def name(self) -> str | None:
        """The name of the object, unique among those of its kind."""
        name = self.value.get("path", self.value.get("name"))
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Item:
    """A checked specification."""

    kind: Kind
    name: str
    spec: Strict
    place: str


def read_declared(documents: Iterable[Document]) -> list[Item]:
    """Return all but jobs, which are only checked, in an order in which they can be made. Raises ProblemError with each mistake."""
    found: list[Item] = []
    mistakes: list[Mistake] = []
    places: dict[tuple[Kind, str], str] = {}
    for document in documents:
        kind = next((one for one in KINDS.values() if one.kind == document.kind), None)
        if kind is None and document.kind not in _JOBS:
            mistakes.append(placed(Mistake(path="kind", message=no_kind(document)), document.place))
            continue
        try:
            spec = (JobSpec if kind is None else kind.spec).model_validate(document.value)
        except ValidationError as error:
            mistakes += [placed(one, document.place) for one in mistakes_of(error)]
            continue
        if not document.is_stored:
            mistakes += [placed(one, document.place) for one in meaningless(spec)]
        if kind is not None:
            item = Item(kind.kind, kind.name_of(spec), spec, document.place)
            first = places.get((item.kind, item.name))
            if first is None:
                places[item.kind, item.name] = document.place
            else:
                message = f"{kind.name} {item.name!r} is declared twice, first in {first or 'an earlier document'}"
                mistakes.append(placed(Mistake(path=kind.key, message=message), document.place))
            found.append(item)
    if mistakes:
        raise ProblemError(Code.INVALID_SPEC, mistakes[0].message, mistakes=tuple(mistakes))
    order = list(KINDS)
    return sorted(found, key=lambda item: (order.index(item.kind), item.name.count("/")))


def document_of(kind: ResourceKind[Strict], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of an object that the API has shown: what was declared, without defaults, states and counts."""
    declared = {info.alias or name for name, info in kind.spec.model_fields.items()}
    spec = kind.spec.model_validate({key: value for key, value in present.items() if key in declared})
    return {"kind": kind.kind, **spec.to_wire()}


def no_kind(document: Document, known: Sequence[str] = (*KINDS, *_JOBS)) -> str:
    """Return the mistake of a document that is of none of the ``known`` kinds."""
    kind = document.value.get("kind")
    if kind is None:
        return f"is missing; it is one of {', '.join(known)}"
    hint = did_you_mean(kind, known) if isinstance(kind, str) else ""
    return f"must be one of {', '.join(known)}, not {shown(kind)}{hint}"


def placed(mistake: Mistake, place: str) -> Mistake:
    """Return the mistake with the place of its document, which is all of its path where it is in the whole."""
    path = f"{place}: {mistake.path}" if place and mistake.path else place or mistake.path
    return Mistake(path=path, message=mistake.message)


def in_place_of(own: Sequence[Document], given: Sequence[Document]) -> list[Document]:
    """Return the given documents, and those of the others that none of these replaces."""
    named = {(one.kind, one.name) for one in given}
    return [*given, *(one for one in own if (one.kind, one.name) not in named)]
