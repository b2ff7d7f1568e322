"""Reading of syncs part by part: a mistake in a run's report or in the capacity report costs only that report.

Pure. A valid sync is read at once; only one with a mistake is taken apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from pydantic import ValidationError

from trainmaster.protocol.agent import MOST_RUNS, CapacityReport, RefusedPart, RunReport, SyncRequest
from trainmaster.protocol.errors import Code
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id
from trainmaster.protocol.validation_errors import mistakes_of

_NEEDED = frozenset(("run", "generation", "seq", "state", "absence"))
"""Fields without which a report is refused: without them it would mean something else."""
_LONGEST_NAME, _LONGEST_MESSAGE = 253, 300
CAPACITY = "capacity"
"""Name of the capacity report's part of a sync."""


@dataclass(frozen=True, slots=True)
class Sync:
    """The readable parts of a sync."""

    request: SyncRequest
    refused: tuple[RefusedPart, ...] = ()
    unread: frozenset[RunRef] = field(default_factory=frozenset)
    """Runs with an unreadable report: the agent holds them, and nothing else is known."""
    names_all: bool = True
    """Whether every report's run is known; otherwise the runs that the agent does not hold are unknown."""

    @property
    def capacity_mistake(self) -> str:
        """Return why the capacity report cannot be used; empty if it can, or if there is none."""
        return next((one.message for one in self.refused if one.part == CAPACITY), "")


def read_sync(body: bytes) -> Sync:
    """Read a sync. Raises ValidationError for a mistake in the sync itself, not only in a report."""
    try:
        return Sync(SyncRequest.model_validate_json(body))
    except ValidationError as error:
        try:
            document = pydantic_core.from_json(body)
        except ValueError:
            raise error from None
        if not isinstance(document, dict):
            raise
        return _taken_apart(document)


def _taken_apart(document: dict[str, Any]) -> Sync:
    given, capacity = document.pop("runs", ()), document.pop("capacity", None)
    if not isinstance(given, list | tuple) or len(given) > MOST_RUNS:
        given = SyncRequest.model_validate(document | {"runs": given}).runs  # raises with the right message
    whole = SyncRequest.model_validate(document)
    refused: list[RefusedPart] = []
    runs: list[RunReport] = []
    unread: set[RunRef] = set()
    names_all = True
    for item in given:
        report, left_out, mistake = _read_run(item)
        if report is not None:
            runs.append(report)
        else:
            ref = _ref_of(item)
            names_all = names_all and ref is not None
            unread |= {ref} if ref is not None else set()
        if mistake:
            refused.append(RefusedPart(part=_name_of(item), code=_CODE, message=mistake, left_out=left_out))
    found: CapacityReport | None = None
    if capacity is not None:
        try:
            found = CapacityReport.model_validate(capacity)
        except ValidationError as error:
            refused.append(RefusedPart(part=CAPACITY, code=_CODE, message=_first(error)))
    request = whole.model_copy(update={"runs": tuple(runs), "capacity": found})
    return Sync(request, tuple(refused), frozenset(unread), names_all)


_CODE = str(Code.INVALID_SPEC)


def _read_run(item: Any) -> tuple[RunReport | None, tuple[str, ...], str]:
    """Return the report, if needed without fields that have mistakes; these fields; and the first mistake."""
    try:
        return RunReport.model_validate(item), (), ""
    except ValidationError as error:
        mistake = _first(error)
        wrong = set(_fields(error))
        if not isinstance(item, dict) or wrong & _NEEDED:
            return None, (), mistake
    try:
        rest = {key: value for key, value in item.items() if key not in wrong}
        return RunReport.model_validate(rest), tuple(sorted(wrong)), mistake
    except ValidationError as error:
        return None, (), _first(error)


def _fields(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        yield str(one["loc"][0]) if one["loc"] else ""


def _first(error: ValidationError) -> str:
    mistake = mistakes_of(error)[0]
    return f"{mistake.path}: {mistake.message}"[:_LONGEST_MESSAGE]


def _name_of(item: Any) -> str:
    run = item.get("run") if isinstance(item, dict) else None
    return run[:_LONGEST_NAME] if isinstance(run, str) else "(a run without a name)"


def _ref_of(item: Any) -> RunRef | None:
    try:
        return parse_run_id(_name_of(item))
    except BadIdError:
        return None


def read_capacity(stored: object) -> tuple[CapacityReport | None, str]:
    """Return a stored capacity report, and why it is unreadable: then it has no nodes and closes its cluster for that reason."""
    if stored is None:
        return None, ""
    try:
        return CapacityReport.model_validate(stored), ""
    except ValidationError as error:
        mistake = _first(error)
    closed = f"its stored capacity report cannot be read ({mistake}); restart its agent, so that it reports again"
    return CapacityReport(groups=(), runtime="unknown", scheduler="unknown", closed=closed), mistake
