"""Simulated behaviour of a job's members, declared by labels and variables.

A label ``sim.trainmaster.dev/run-time`` applies to all roles of a job, an environment variable ``SIM_RUN_TIME`` of a role's
template to that role only. ``docs/reference/simulation.md`` lists all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.fake_cluster.fleet import Defaults
from trainmaster.fake_cluster.seeded_random import DurationRange
from trainmaster.protocol.states import FailureCategory

PREFIX = "sim.trainmaster.dev/"
VARIABLE = "SIM_"
_WAYS_TO_FAIL = ("exit-code", "signal", "category")
_NAMES = frozenset(
    (
        "run-time",
        "start-time",
        "stop-time",
        "fail",
        "fail-runs",
        "member-failures",
        "output",
        "output-rate",
        "results",
        *_WAYS_TO_FAIL,
    )
)


class BehaviourError(ValueError):
    """A label or variable is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Behaviour of each member of a role. Times are in seconds before the cluster's speed is applied."""

    run_time: DurationRange
    start_time: DurationRange
    stop_time: DurationRange
    """Seconds that a member lives on after SIGTERM; the grace ends it in any case."""
    fail: float = 0.0
    fail_runs: int = 0
    exit_code: int | None = 1
    signal: int | None = None
    category: FailureCategory = FailureCategory.EXIT
    member_failures: int = 0
    output: str = ""
    output_rate: float = 0.0
    """Generated lines per second when ``output`` gives no text."""
    results: str = ""
    """Text that the member of rank 0 leaves as its results."""


def behaviour(labels: Mapping[str, str], variables: Mapping[str, str], defaults: Defaults) -> Behaviour:
    """Return the behaviour of a role. Raises BehaviourError."""
    said = {name.removeprefix(PREFIX): (name, value) for name, value in labels.items() if name.startswith(PREFIX)}
    for name, value in variables.items():
        if name.startswith(VARIABLE):
            said[name.removeprefix(VARIABLE).lower().replace("_", "-")] = (name, value)
    for option, (name, _) in said.items():
        if option not in _NAMES:
            raise BehaviourError(
                f"{name}: there is no such option of the simulation; there are {', '.join(sorted(_NAMES))}"
            )
    reader = _Reader(said)
    signal = reader.whole("signal", None, 1, 64)
    often = any(option in said for option in ("fail", "fail-runs", "member-failures"))
    how = any(option in said for option in _WAYS_TO_FAIL)
    return Behaviour(
        run_time=reader.span("run-time", defaults.run_time),
        start_time=reader.span("start-time", defaults.start_time),
        stop_time=reader.span("stop-time", defaults.stop_time),
        # A failure without a probability always happens.
        fail=reader.number("fail", (1.0 if how else defaults.fail) if not often else 0.0, 0.0, 1.0),
        fail_runs=reader.whole("fail-runs", 0, 0, 1_000_000) or 0,
        exit_code=None if signal is not None else reader.whole("exit-code", 1, 1, 255),
        signal=signal,
        category=reader.category(FailureCategory.EXIT if signal is None else FailureCategory.SIGNAL),
        member_failures=reader.whole("member-failures", 0, 0, 1000) or 0,
        output=said.get("output", ("", ""))[1],
        output_rate=reader.number("output-rate", 0.0, 0.0, 100_000.0),
        results=said.get("results", ("", ""))[1],
    )


class _Reader:
    def __init__(self, said: Mapping[str, tuple[str, str]]) -> None:
        self._said = said

    def span(self, option: str, default: str) -> DurationRange:
        name, text = self._said.get(option, (option, default))
        try:
            return DurationRange.parse(text)
        except ValueError as error:
            raise BehaviourError(f"{name}: {error}") from error

    def number(self, option: str, default: float, least: float, most: float) -> float:
        if option not in self._said:
            return default
        name, text = self._said[option]
        try:
            value = float(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise BehaviourError(f"{name}: a number from {least:g} to {most:g} is needed, not {text!r}")
        return value

    def whole(self, option: str, default: int | None, least: int, most: int) -> int | None:
        if option not in self._said:
            return default
        name, text = self._said[option]
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
            raise BehaviourError(f"{name}: a whole number from {least} to {most} is needed, not {text!r}")
        return int(text)

    def category(self, default: FailureCategory) -> FailureCategory:
        name, text = self._said.get("category", ("category", default.value))
        try:
            return FailureCategory(text)
        except ValueError as error:
            raise BehaviourError(f"{name}: {text!r} is none of {', '.join(FailureCategory)}") from error
