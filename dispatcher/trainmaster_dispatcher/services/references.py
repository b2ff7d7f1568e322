"""References between declared objects: the names in a specification whose object does not exist, each with its path."""

from collections.abc import Sequence
from typing import NamedTuple

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.resource_kinds import Kind


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


def check_references(missing: Sequence[Reference]) -> None:
    """Raise UnknownReferencesError if there are any."""
    if missing:
        raise UnknownReferencesError(missing)
