"""Reading of agents' messages: a mistake in a run's report or in the capacity report costs only that report.

Pure. However many reports have mistakes, only the first hundred are described, and each costs little.
"""

from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from pydantic import ValidationError

from trainmaster.protocol.agent import (
    MOST_PUSH_VALUES,
    MOST_RUNS,
    MOST_SYNC_VALUES,
    CapacityReport,
    OutputPush,
    RefusedPart,
    RunReport,
    StreamPush,
    SyncRequest,
)
from trainmaster.protocol.arrays import ElementsPush
from trainmaster.protocol.errors import Code
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id
from trainmaster.protocol.json_limits import check_values
from trainmaster.protocol.member_use import MOST_USE_VALUES, UsePush
from trainmaster.protocol.validation_errors import mistakes_of, worded

MOST_REFUSED = 100
"""The most reports of runs whose mistakes are sent back; further ones are only counted."""
_ALWAYS = frozenset(("run", "generation", "seq", "state"))
_NEEDED = _ALWAYS | {"absence"}
"""Fields without which a report is refused: without them it would mean something else."""
_LONGEST_NAME, _LONGEST_MESSAGE = 253, 300
CAPACITY = "capacity"
"""Name of the capacity report's part of a sync."""
_OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class Sync:
    """The readable parts of a sync."""

    request: SyncRequest
    refused: tuple[RefusedPart, ...] = ()
    """The capacity report, if it has a mistake, and the first reports of runs that have."""
    more_refused: int = 0
    """Number of further reports with mistakes."""
    unread: frozenset[RunRef] = field(default_factory=frozenset)
    """Runs with an unreadable report: the agent holds them, and nothing else is known."""
    names_all: bool = True
    """Whether every report's run is known; otherwise the runs that the agent does not hold are unknown."""

    @property
    def capacity_mistake(self) -> str:
        """Return why the capacity report cannot be used; empty if it can, or if there is none."""
        return next((one.message for one in self.refused if one.part == CAPACITY), "")

    @property
    def refused_in_answer(self) -> tuple[RefusedPart, ...]:
        """Return what was refused, for the answer: a last entry counts those beyond the first hundred."""
        if not self.more_refused:
            return self.refused
        message = f"and {self.more_refused} more reports have mistakes"
        return (*self.refused, RefusedPart(part=_OTHERS, code=_CODE, message=message))


def read_sync(body: bytes) -> Sync:
    """Read a sync. Raises ValidationError for a mistake in the sync itself, not only in a report; ProblemError if it is too large."""
    check_values(body, MOST_SYNC_VALUES)
    document = _parsed(body)
    if not isinstance(document, dict):
        return Sync(SyncRequest.model_validate(document))  # raises with the right message
    given, capacity = document.pop("runs", ()), document.pop("capacity", None)
    if not isinstance(given, list) or len(given) > MOST_RUNS:
        given = SyncRequest.model_validate(document | {"runs": given}).runs  # raises, unless there are none
    whole = SyncRequest.model_validate(document)
    refused: list[RefusedPart] = []
    found: CapacityReport | None = None
    if capacity is not None:
        try:
            found = CapacityReport.model_validate(capacity)
        except ValidationError as error:
            refused.append(RefusedPart(part=CAPACITY, code=_CODE, message=_first(error)))
    read = _Runs(refused)
    for item in given:
        read.add(item)
    request = whole.model_copy(update={"runs": tuple(read.runs), "capacity": found})
    return Sync(request, tuple(refused), read.more_refused, frozenset(read.unread), read.names_all)


def read_push(body: bytes) -> StreamPush:
    """Read a push. Raises ValidationError for a mistake in it, ProblemError if it is too large."""
    check_values(body, MOST_PUSH_VALUES)
    return StreamPush.model_validate(_parsed(body))


def read_output(body: bytes) -> OutputPush:
    """Read pieces of output. Raises ValidationError for a mistake in them, ProblemError if they are too large."""
    check_values(body, MOST_PUSH_VALUES)
    return OutputPush.model_validate(_parsed(body))


def read_use(body: bytes) -> UsePush:
    """Read a report of use. Raises ValidationError for a mistake in it, ProblemError if it is too large."""
    check_values(body, MOST_USE_VALUES)
    return UsePush.model_validate(_parsed(body))


def read_elements(body: bytes) -> ElementsPush:
    """Read a report of elements. Raises ValidationError for a mistake in it, ProblemError if it is too large."""
    check_values(body, MOST_PUSH_VALUES)
    return ElementsPush.model_validate(_parsed(body))


def _parsed(body: bytes) -> Any:
    try:
        return pydantic_core.from_json(body)
    except ValueError:
        SyncRequest.model_validate_json(body)  # raises ValidationError, which says where
        raise


_CODE = str(Code.INVALID_SPEC)


class _Runs:
    """The reports of runs read so far. ``refused`` gets the first of those with mistakes."""

    def __init__(self, refused: list[RefusedPart]) -> None:
        self._refused = refused
        self._most = len(refused) + MOST_REFUSED
        self.runs: list[RunReport] = []
        self.more_refused = 0
        self.unread: set[RunRef] = set()
        self.names_all = True

    def add(self, item: Any) -> None:
        is_described = len(self._refused) < self._most
        left_out: tuple[str, ...] = ()
        if is_described or (isinstance(item, dict) and item.keys() >= _ALWAYS):
            report, left_out, mistake = _read_run(item)
        else:
            report, mistake = None, "is no report of a run"
        if report is not None:
            self.runs.append(report)
        else:
            ref = _ref_of(item)
            self.names_all = self.names_all and ref is not None
            self.unread |= {ref} if ref is not None else set()
        if mistake and is_described:
            self._refused.append(RefusedPart(part=_name_of(item), code=_CODE, message=mistake, left_out=left_out))
        elif mistake:
            self.more_refused += 1


def _read_run(item: Any) -> tuple[RunReport | None, tuple[str, ...], str]:
    """Return the report, if needed without fields that have mistakes; these fields; and the first mistake."""
    try:
        return RunReport.model_validate(item), (), ""
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_context=False, include_input=False)
        mistake = _first(error)
        wrong = {str(one["loc"][0]) if one["loc"] else "" for one in mistakes}
        if not isinstance(item, dict) or wrong & _NEEDED:
            return None, (), mistake
    try:
        rest = {key: value for key, value in item.items() if key not in wrong}
        return RunReport.model_validate(rest), tuple(sorted(wrong)), mistake
    except ValidationError as error:
        return None, (), _first(error)


def _first(error: ValidationError) -> str:
    mistake = mistakes_of(error)[0]
    return worded(mistake)[:_LONGEST_MESSAGE]


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
