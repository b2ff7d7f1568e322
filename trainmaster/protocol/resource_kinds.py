"""What admins declare, by kind: documents of files and of calls, and the models that they are checked by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from trainmaster.protocol.base import Strict
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec, ReservationSpec
from trainmaster.protocol.validation_errors import mistakes_of

Kind = Literal["PriorityClass", "Queue", "PriceBook", "Cluster", "Dataset", "BurstPolicy", "Reservation"]
MODELS: Mapping[Kind, type[Strict]] = {
    "PriorityClass": PriorityClassSpec,
    "Queue": QueueSpec,
    "PriceBook": PriceBookSpec,
    "Cluster": ClusterSpec,
    "Dataset": DatasetSpec,
    "BurstPolicy": BurstPolicySpec,
    "Reservation": ReservationSpec,
}
"""By kind, in an order in which they can be made: each after those that it names."""
_JOB = "Job"


@dataclass(frozen=True, slots=True)
class Document:
    """One specification and where it stands."""

    value: dict[str, Any]
    place: str

    @property
    def kind(self) -> str | None:
        kind = self.value.get("kind")
        return kind if isinstance(kind, str) else None

    @property
    def name(self) -> str | None:
        """What it is called among those of its kind."""
        name = self.value.get("path", self.value.get("name"))
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Item:
    """A checked specification."""

    kind: Kind
    name: str
    spec: Strict


def read_declared(documents: Iterable[Document]) -> list[Item]:
    """All but jobs, which are only checked, in an order in which they can be made. Raises ProblemError with each mistake."""
    found: list[Item] = []
    mistakes: list[Mistake] = []
    for document in documents:
        kind = next((kind for kind in MODELS if kind == document.kind), None)
        if kind is None and document.kind != _JOB:
            message = f"{document.value.get('kind')!r} is not one of {', '.join((*MODELS, _JOB))}"
            mistakes.append(Mistake(path=f"{document.place}: kind", message=message))
            continue
        try:
            spec = (JobSpec if kind is None else MODELS[kind]).model_validate(document.value)
        except ValidationError as error:
            mistakes += [placed(one, document.place) for one in mistakes_of(error)]
            continue
        if kind is not None:
            found.append(Item(kind, spec.path if isinstance(spec, QueueSpec) else str(getattr(spec, "name", "")), spec))
    if mistakes:
        raise ProblemError(Code.INVALID_SPEC, mistakes[0].message, mistakes=tuple(mistakes))
    order = list(MODELS)
    return sorted(found, key=lambda item: (order.index(item.kind), item.name.count("/")))


def placed(mistake: Mistake, place: str) -> Mistake:
    """A mistake told with the document that it is in."""
    return Mistake(path=f"{place}: {mistake.path}" if place else mistake.path, message=mistake.message)


def in_place_of(own: Sequence[Document], given: Sequence[Document]) -> list[Document]:
    """The given documents, and of the others those that none of these names."""
    named = {(one.kind, one.name) for one in given}
    return [*given, *(one for one in own if (one.kind, one.name) not in named)]
