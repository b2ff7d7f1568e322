"""References between declared objects: the names in a specification whose object does not exist, each with its path."""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.suggestions import suggestion
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import Columns, DeclaredTable

_Spec = TypeVar("_Spec")

Checks = Sequence[Columns | ProblemError]
"""For each of several specifications, the columns stored beside it, or why it is refused."""


class Reference(NamedTuple):
    """A name in a specification whose object does not exist: the object, the path of the field, and what to say of it."""

    kind: Kind
    name: str
    path: str
    code: Code
    message: str


class UnknownReferencesError(ProblemError):
    """A specification that names objects that do not exist. The code is that of the first."""

    def __init__(self, references: Sequence[Reference]) -> None:
        mistakes = tuple(Mistake(path=one.path, message=one.message) for one in references)
        super().__init__(references[0].code, references[0].message, mistakes=mistakes)
        self.references = tuple(references)


async def names_like(
    tx: Transaction, table: DeclaredTable[Any, Any], names: Iterable[str], there: Container[str]
) -> Collection[str]:
    """Return the names of all objects of a table where one of ``names`` is not ``there``, to suggest one of them; else none."""
    return () if all(name in there for name in names) else await table.wire(tx)


def unknown_queues(names: Sequence[str], field: str, there: Container[str], every: Iterable[str]) -> list[Reference]:
    """Return those queues of a list in ``field`` that are not ``there``, each with the most similar one of ``every``."""
    return _unknown("Queue", Code.UNKNOWN_QUEUE, names, field, there, every)


def unknown_clusters(names: Sequence[str], there: Container[str], every: Iterable[str] = ()) -> list[Reference]:
    """Return those of the list ``clusters`` that are not ``there``, each with the most similar one of ``every``."""
    return _unknown("Cluster", Code.UNKNOWN_CLUSTER, names, "clusters", there, every)


def _unknown(
    kind: Kind, code: Code, names: Sequence[str], field: str, there: Container[str], every: Iterable[str]
) -> list[Reference]:
    return [
        Reference(
            kind, name, f"{field}[{index}]", code, f"there is no {kind.lower()} {name!r}{suggestion(name, every)}"
        )
        for index, name in enumerate(names)
        if name not in there
    ]


def check_references(missing: Sequence[Reference]) -> None:
    """Raise UnknownReferencesError if there are any."""
    if missing:
        raise UnknownReferencesError(missing)


def each_checked(specs: Sequence[_Spec], check: Callable[[_Spec], Columns]) -> Checks:
    """Return, for each specification, what ``check`` returns, or the ProblemError that it raises."""
    found: list[Columns | ProblemError] = []
    for spec in specs:
        try:
            found.append(check(spec))
        except ProblemError as error:
            found.append(error)
    return found
