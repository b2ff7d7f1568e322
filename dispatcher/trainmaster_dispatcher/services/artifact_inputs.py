"""Inputs that are artifacts of other jobs: which ones a specification may name, and their rows. It reads no store.

The other jobs are found, and locked, where those of ``after`` are: see ``dependencies``.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, NoReturn

from trainmaster.protocol.errors import Code, Mistake
from trainmaster.protocol.states import JobState
from trainmaster.protocol.suggestions import suggestion
from trainmaster_dispatcher.services.submission_parsing import PreparedSpec, PreparedSubmission, mistaken
from trainmaster_dispatcher.store.files import ArtifactSource, NewArtifactInput


class TakenArtifact(NamedTuple):
    """An input that is an artifact of a stored job, by ``key``, or of another job of the submission, by its ``place``.

    ``spec``: of which specification it is the input with this ``number``.
    """

    spec: int
    number: int
    name: str
    key: int = 0
    place: int | None = None


def check_stored(source: ArtifactSource, job: str, state: JobState, name: str, path: str) -> None:
    """Check that a stored job leaves an artifact, or has left it if it has ended. ``path``: of the input.

    Raises ProblemError UNKNOWN_FILES.
    """
    _check_output(source.outputs, job, name, path, has_element_jobs=source.has_element_jobs)
    if state.is_terminal and name not in source.stored:
        ended = "was cancelled" if state is JobState.CANCELLED else f"has {state}"
        _refuse(path, f"job {job} {ended}, and its last run has left no artifact {name!r}")


def check_submitted(source: PreparedSpec, name: str, path: str) -> None:
    """Check that another job of the same submission leaves an artifact. Raises ProblemError UNKNOWN_FILES."""
    _check_output(source.outputs, source.name, name, path, has_element_jobs=source.has_element_jobs)


def _check_output(outputs: Collection[str], job: str, name: str, path: str, *, has_element_jobs: bool) -> None:
    if has_element_jobs:
        _refuse(
            path, f"{job} is an array of jobs, each of which leaves artifacts of its own: name the job of an element"
        )
    if name not in outputs:
        _refuse(path, no_output(f"job {job}", name, outputs))


def no_output(what: str, name: str, outputs: Collection[str]) -> str:
    """Return the message about an output that ``what``, a job or a step, does not have."""
    has = f"it has {', '.join(outputs)}" if outputs else "it has none"
    return f"{what} has no output {name!r}: {has}{suggestion(name, outputs)}"


def _refuse(path: str, message: str) -> NoReturn:
    raise mistaken(Mistake(path=f"{path}.artifact", message=message), code=Code.UNKNOWN_FILES)


def rows_of(prepared: PreparedSubmission, taken: Iterable[TakenArtifact], first: int) -> Iterator[NewArtifactInput]:
    """Yield the rows for the inputs of a submission whose first job got the key ``first``."""
    many = len(prepared.specs)
    for one in taken:
        on_job = one.key if one.place is None else first + one.place
        for repeat in range(prepared.repeats):
            yield NewArtifactInput(first + repeat * many + one.spec, one.number, on_job, one.name)
