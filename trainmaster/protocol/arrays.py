"""Arrays: one job of many elements, each with an index of its own: tasks that its members run one after the other, or jobs.

The specification, the calls between agent and dispatcher on what has ended, and the answers to users. Elements are written as ranges:
``0-99,105``.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator
from pydantic_core import from_json, to_json

from trainmaster.protocol.base import Lenient, Strict, bounded, example, worded_pattern
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.parameters import value_text

MOST_ELEMENTS = 1_000_000
"""The most elements of an array."""
MOST_SLOTS = 64
"""The most elements that a member runs at a time."""
MOST_GRID_VALUES = 10_000
"""The most values of all parameters of a grid together."""
MOST_GRID_BYTES = 65_536
"""The most bytes of all parameters as JSON: a member gets them in a variable."""
MOST_RESULT_BYTES = 1000
"""The most bytes of the result of an element as JSON."""
MOST_WITH_RESULTS = 100_000
"""The most elements of an array of which results are kept."""
MOST_REPORTED_RESULTS = 5000
"""The most results of one report."""
MOST_ELEMENT_MESSAGE = 1000
"""The most characters of a message on a failed element."""
MOST_REPORTED_FAILURES = 1000
"""The most failed elements of one report."""
MOST_REPORTED_RANGES = 20_000
"""The most ranges of one report."""
ARRAY_LABEL = "trainmaster.dev/array"
"""The label of jobs of elements: the id of their array."""
ELEMENT = "element"
"""The placeholder for the index of the element: ``${element}``."""

Span = tuple[int, int]
"""The first and the last element of a range."""


class BadRangesError(ValueError):
    """The text is no list of ranges. The message is for users."""


def spans_of(elements: Iterable[int]) -> Iterator[Span]:
    """Yield the ranges of elements that are in ascending order and differ from each other."""
    for _, run in groupby(enumerate(elements), key=lambda pair: pair[1] - pair[0]):
        those = [element for _, element in run]
        yield those[0], those[-1]


def ranges_text(spans: Iterable[Span]) -> str:
    """Return ranges as users write them: ``0-99,105``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def parse_ranges(text: str, count: int) -> tuple[Span, ...]:
    """Return the ranges in a text, in order and without overlaps. Raises BadRangesError for what is none of ``count`` elements."""
    spans = []
    for part in text.split(","):
        first, dash, last = (one.strip() for one in part.partition("-"))
        if not _is_number(first) or (dash and not _is_number(last)):
            raise BadRangesError(f"{part.strip()!r} is no element or range of elements: write them as 0-99,105")
        span = (int(first), int(last) if dash else int(first))
        if span[1] < span[0]:
            raise BadRangesError(f"{part.strip()!r} begins after its end")
        if span[1] >= count:
            raise BadRangesError(f"there is no element {span[1]}: the {count} elements are 0 to {count - 1}")
        spans.append(span)
    return merged(spans)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST_ELEMENTS))


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return ranges in order, with those that overlap or touch as one."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


class ArrayStop(Strict):
    """Numbers of ended elements at which the array ends early; the other elements are not run."""

    failures: Annotated[int, Field(ge=1, le=MOST_ELEMENTS)] | None = None
    """The array fails once this number of elements have failed."""
    successes: Annotated[int, Field(ge=1, le=MOST_ELEMENTS)] | None = None
    """The array succeeds once this number of elements have succeeded, whatever has failed."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.failures is None and self.successes is None:
            raise ValueError(
                "stopOn has failures or successes, such as {failures: 10}, or is firstFailure or firstSuccess"
            )
        return self


def _written_stop(value: Any) -> Any:
    match value:
        case "firstFailure":
            return {"failures": 1}
        case "firstSuccess":
            return {"successes": 1}
    return value


GridValue = Annotated[str, StringConstraints(max_length=4096)] | int | float | bool
GridName = Annotated[
    str,
    StringConstraints(
        pattern=worded_pattern(
            r"^[A-Za-z_][A-Za-z0-9_]{0,62}$", "a name of letters, digits and _, at most 63, no digit first"
        )
    ),
]
_CALL = worded_pattern(
    r"^[A-Za-z_][A-Za-z0-9_.]{0,199}:[A-Za-z_][A-Za-z0-9_]{0,99}$", "a function as MODULE:FUNCTION, such as study:work"
)


class ArrayMode(StrEnum):
    """Ways to run the elements of an array."""

    TASKS = "tasks"
    """The members of the job run them one after the other."""
    JOBS = "jobs"
    """Each element is a job of its own, with the members, the retries and the output of one."""


class JobArray(Strict):
    """Elements of a job: tasks that its members run one after the other, or jobs of their own.

    ``${element}`` and the parameters of its grid are filled in for each element.
    """

    model_config = example(count=100_000, retries=1, stopOn={"failures": 100})

    mode: ArrayMode = ArrayMode.TASKS
    """``tasks``: the members of the job run the elements one after the other. ``jobs``: each element is a job with all roles of this
    one, submitted once it may start soon."""
    count: Annotated[int, Field(ge=1, le=MOST_ELEMENTS)] | None = None
    """Number of elements. Give this, ``grid`` or ``parameters``."""
    grid: Annotated[
        dict[GridName, Annotated[tuple[GridValue, ...], bounded(MOST_GRID_VALUES, least=1)]], bounded(16)
    ] = Field(default_factory=dict)
    """Values by parameter: there is an element for each combination, the last parameter varying fastest."""
    parameters: Annotated[
        tuple[Annotated[dict[GridName, GridValue], bounded(16, least=1)], ...], bounded(MOST_GRID_VALUES)
    ] = ()
    """Parameters of each element, all with the same names: there is an element for each entry."""
    results: bool = False
    """True to keep what elements return: the value of the function, or the JSON value that the command writes to the file that
    ``TRAINMASTER_RESULTS`` names. With ``mode: jobs``: the results of the element's job, where they have at most 1,000 bytes."""
    slots: Annotated[int, Field(ge=1, le=MOST_SLOTS)] = 1
    """Number of elements that each member runs at a time."""
    max_running: Annotated[int, Field(ge=1, le=MOST_ELEMENTS)] | None = None
    """The most elements that run at a time, over all members; without it, as many as members have slots. With ``mode: jobs`` the most
    that are submitted and have not ended."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of times that a failed element is tried again."""
    time_limit: Duration | None = None
    """The longest execution of an element; a longer one is killed and has failed."""
    stop_on: Annotated[Literal["firstFailure", "firstSuccess"] | ArrayStop | None, BeforeValidator(_written_stop)] = (
        None
    )
    """Condition that ends the array before all elements have ended: ``firstFailure``, ``firstSuccess`` or a number of either."""
    call: Annotated[str, StringConstraints(pattern=_CALL)] | None = None
    """A Python function ``MODULE:FUNCTION`` that is called with the index of each element, and its parameters by name,
    instead of the role's command: nothing is started for an element."""

    @field_validator("time_limit")
    @classmethod
    def _is_above_zero(cls, value: str | None) -> str | None:
        if value is not None and parse_duration(value) <= 0:
            raise ValueError("the longest execution of an element is above 0")
        return value

    @model_validator(mode="after")
    def _runs_as_one_or_the_other(self) -> Self:
        if self.mode is ArrayMode.TASKS:
            return self
        of_tasks = {
            "slots": (self.slots > 1, "an element has the members of the roles"),
            "retries": (self.retries > 0, "give retries of the job, which each element has"),
            "timeLimit": (self.time_limit is not None, "give timeLimit of the job, which each element has"),
            "call": (self.call is not None, "an element executes the commands of the roles"),
        }
        for field, (is_given, instead) in of_tasks.items():
            if is_given:
                raise ValueError(f"array.{field} goes with mode: tasks; with mode: jobs {instead}")
        return self

    @model_validator(mode="after")
    def _has_elements(self) -> Self:
        if sum((self.count is not None, bool(self.grid), bool(self.parameters))) != 1:
            raise ValueError("an array has exactly one of count, grid and parameters")
        if len(to_json(self.grid or self.parameters)) > MOST_GRID_BYTES:
            raise ValueError(f"a grid, or parameters, have at most {MOST_GRID_BYTES} bytes as JSON")
        names = set(self.parameters[0]) if self.parameters else set(self.grid)
        if ELEMENT in names:
            raise ValueError(f"a parameter cannot have the name {ELEMENT!r}, which stands for the index")
        if not all(self.grid.values()):
            raise ValueError("each parameter of a grid has at least 1 value")
        if self.parameters and not names:
            raise ValueError("each entry of parameters has at least 1 parameter")
        for place, values in enumerate(self.parameters):
            if set(values) != names:
                raise ValueError(
                    f"each entry of parameters has the same names: entry {place} has {', '.join(sorted(values))}, the first one has"
                    f" {', '.join(sorted(names))}"
                )
        if sum(map(len, self.grid.values())) > MOST_GRID_VALUES:
            raise ValueError(f"the parameters of a grid have at most {MOST_GRID_VALUES} values together")
        if self.size > MOST_ELEMENTS:
            raise ValueError(f"the grid has {self.size} combinations, at most {MOST_ELEMENTS} are allowed")
        if self.results and self.size > MOST_WITH_RESULTS:
            raise ValueError(
                f"results are kept of arrays of at most {MOST_WITH_RESULTS} elements, and this one has {self.size}"
            )
        return self

    @property
    def has_jobs(self) -> bool:
        """Return whether each element is a job of its own."""
        return self.mode is ArrayMode.JOBS

    @property
    def stop(self) -> ArrayStop | None:
        """Numbers of ended elements at which the array ends early."""
        return self.stop_on if isinstance(self.stop_on, ArrayStop) else None

    @property
    def size(self) -> int:
        """Number of elements."""
        if self.count is not None:
            return self.count
        return len(self.parameters) or prod(map(len, self.grid.values()))

    @property
    def longest_values(self) -> dict[str, Any]:
        """The longest value of each parameter, and the longest index, for checks of the texts that they are filled into."""
        values = dict[str, Any]({ELEMENT: self.size - 1})
        for name in self.parameters[0] if self.parameters else self.grid:
            choices = [one[name] for one in self.parameters] if self.parameters else self.grid[name]
            values[name] = max(choices, key=lambda value: len(value_text(value)))
        return values

    def values_of(self, element: int) -> dict[str, Any]:
        """Return the parameters of an element; empty without any."""
        if self.parameters:
            return dict(self.parameters[element])
        values: dict[str, Any] = {}
        rest = element
        for name, choices in reversed(self.grid.items()):
            rest, position = divmod(rest, len(choices))
            values[name] = choices[position]
        return dict(reversed(values.items()))

    def texts_of(self, element: int) -> dict[str, str]:
        """Return what the placeholders of a command stand for in an element."""
        return {ELEMENT: str(element)} | {name: value_text(value) for name, value in self.values_of(element).items()}


class ArrayCounts(NamedTuple):
    """Numbers of ended elements."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        return sum(self)


# Between agent and dispatcher

ElementIndex = Annotated[int, Field(ge=0, lt=MOST_ELEMENTS)]
Spans = Annotated[tuple[tuple[ElementIndex, ElementIndex], ...], bounded(MOST_REPORTED_RANGES)]
"""Ranges of elements, each with its first and its last one."""


class ArrayState(Lenient):
    """The state of an array, as the agent that runs its elements needs it."""

    model_config = example(token="5f1d", count=100_000, ended=[[0, 41_999]], over=False)  # noqa: S106

    token: str
    """Secret by which the members of the run identify themselves to their agent."""
    count: int
    """Number of elements."""
    retries: int = 0
    """Number of times that a failed element is tried again."""
    max_running: int | None = None
    """The most elements that run at a time; without it, any number."""
    ended: tuple[Span, ...] = ()
    """Elements that have ended or were cancelled; all others have to be run."""
    over: bool = False
    """True if no further element has to be run."""


class FailedElement(Lenient):
    """An element that has failed for good."""

    element: ElementIndex
    """Index of the element."""
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """Exit code of its process."""
    signal: Annotated[int, Field(ge=0, le=128)] | None = None
    """Signal that ended its process."""
    message: Annotated[
        str, BeforeValidator(lambda text: text[-MOST_ELEMENT_MESSAGE:] if isinstance(text, str) else text)
    ] = ""
    """Message for people: the end of its output."""


def is_result(text: str) -> bool:
    """Return whether a text is what an element may return: a JSON value of at most ``MOST_RESULT_BYTES`` bytes."""
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return len(text.encode()) <= MOST_RESULT_BYTES


def _checked_result(text: str) -> str:
    if not is_result(text):
        raise ValueError(f"the result of an element is a JSON value of at most {MOST_RESULT_BYTES} bytes")
    return text


class ElementResult(Lenient):
    """The result of an element that has succeeded."""

    element: ElementIndex
    """Index of the element."""
    value: Annotated[str, AfterValidator(_checked_result)]
    """Value that it returned, as JSON."""


class ElementsPush(Lenient):
    """An agent's report of elements that have ended. Repeating it changes nothing."""

    model_config = example(
        session="b1c5e0f2", running=8, succeeded=[[0, 1999]], failed=[{"element": 2000, "exitCode": 1}]
    )

    session: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Session of the agent, as in its syncs."""
    running: Annotated[int, Field(ge=0, le=MOST_ELEMENTS)] = 0
    """Number of elements that run now."""
    succeeded: Spans = ()
    """Elements that have succeeded."""
    failed: Annotated[tuple[FailedElement, ...], bounded(MOST_REPORTED_FAILURES)] = ()
    """Elements that have failed for good."""
    results: Annotated[tuple[ElementResult, ...], bounded(MOST_REPORTED_RESULTS)] = ()
    """Results of those that have succeeded, where they are kept."""


class ElementsAnswer(Lenient):
    """Answer to a report of elements."""

    model_config = example(over=False, cancelled=[[5000, 5999]])

    over: bool = False
    """True if no further element has to be run: the members end."""
    cancelled: tuple[Span, ...] = ()
    """Elements that users have cancelled."""


# Answers to users


class ElementCounts(Lenient):
    """Numbers of the elements of an array by state; the others wait."""

    count: int
    """Number of elements."""
    succeeded: int = 0
    """Number of elements that have succeeded."""
    failed: int = 0
    """Number of elements that have failed."""
    cancelled: int = 0
    """Number of elements that were cancelled."""
    running: int = 0
    """Number of elements that ran when the agent reported last."""


class ElementFailure(Lenient):
    """A failed element."""

    element: int
    """Index of the element."""
    exit_code: int | None = None
    """Exit code of its process."""
    signal: int | None = None
    """Signal that ended its process."""
    message: str = ""
    """The end of its output, or why it was given up."""


class ElementsOfJob(Lenient):
    """The elements of an array by state, as ranges."""

    model_config = example(
        job="thumbnails-7k2p9xq",
        count=100_000,
        succeeded="0-1999,2001-41200",
        failed="2000",
        failures=[{"element": 2000, "exitCode": 1, "message": "no such file: 2000.png"}],
    )

    job: str
    """Id of the job."""
    count: int
    """Number of elements."""
    succeeded: str = ""
    """Elements that have succeeded."""
    failed: str = ""
    """Elements that have failed."""
    cancelled: str = ""
    """Elements that were cancelled."""
    cut: bool = False
    """True if ranges were left out, as there are too many."""
    failures: tuple[ElementFailure, ...] = ()
    """Failed elements with what is known of them; of many, the first."""


class JobOfElement(Lenient):
    """The job of an element."""

    element: int
    """Index of the element."""
    id: str
    """Id of its job."""
    state: str
    """State of its job."""


class JobsOfElements(Lenient):
    """A page of the jobs of an array's elements, by element: of those that were submitted."""

    model_config = example(
        job="sweep-7k2p9xq",
        jobs=[
            {"element": 0, "id": "sweep-7k2p9xr", "state": "succeeded"},
            {"element": 1, "id": "sweep-7k2p9xs", "state": "running"},
        ],
        next=1,
    )

    job: str
    """Id of the array."""
    jobs: tuple[JobOfElement, ...] = ()
    """Jobs of elements, the latest of each."""
    next: int | None = None
    """Element behind which the next page begins, for ``cursor``; missing on the last one."""


class ElementOf(Lenient):
    """The array and the element that a job belongs to."""

    job: str
    """Id of the array."""
    element: int
    """Index of the element."""


class ResultOfElement(Lenient):
    """The value that an element returned."""

    element: int
    """Index of the element."""
    value: Any
    """The value."""


class ResultsOfElements(Lenient):
    """A page of results of elements, in the order in which they came."""

    model_config = example(
        job="study-7k2p9xq",
        results=[{"element": 0, "value": {"loss": 0.31}}, {"element": 2, "value": {"loss": 0.29}}],
        next=2,
    )

    job: str
    """Id of the job."""
    results: tuple[ResultOfElement, ...] = ()
    """Results of elements that have succeeded, each once."""
    next: int | None = None
    """Position of the next page, for ``cursor``; missing on the last one."""


class CancelElements(Strict):
    """Elements of an array to cancel."""

    model_config = example(elements="5000-5999")

    elements: Annotated[str, StringConstraints(min_length=1, max_length=100_000)]
    """Ranges of elements; those that have ended stay as they are."""


class CancelledElements(Lenient):
    """Outcome of a cancellation of elements."""

    model_config = example(job="thumbnails-7k2p9xq", cancelled=1000)

    job: str
    """Id of the job."""
    cancelled: int
    """Number of elements that were cancelled by this call."""
