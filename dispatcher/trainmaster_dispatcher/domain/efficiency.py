"""Requests that would suit recurring jobs, from what their runs used. Pure.

A suggestion for memory is never below the peak that was observed, and none is made to request less where a limit was reached: the peak
is then that of the limit.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from trainmaster.protocol.efficiency import LEAST_RUNS
from trainmaster.protocol.quantities import format_quantity
from trainmaster_dispatcher.domain.member_use import RequestedAmounts

MARGIN = 0.2
"""Part that a request should be above what was observed."""
_WORTH = 0.1
"""Part of a request below which a change is not suggested."""
_CPU_GRID, _MEMORY_GRID = 100, 64 * 2**20


@dataclass(frozen=True, slots=True)
class RecurringUse:
    """The use of runs of a recurring job. ``cpu``: the highest average of a run's members, in thousandths of a core.

    ``member_hours``: of all its members, for the time in which their use was measured.
    """

    runs: int
    cpu: int | None
    peak_memory: int | None
    was_short_of_memory: bool
    member_hours: float

    def plus(self, other: "RecurringUse") -> "RecurringUse":
        return replace(
            self,
            runs=self.runs + other.runs,
            cpu=max(self.cpu or 0, other.cpu or 0) or None,
            peak_memory=max(self.peak_memory or 0, other.peak_memory or 0) or None,
            was_short_of_memory=self.was_short_of_memory or other.was_short_of_memory,
            member_hours=self.member_hours + other.member_hours,
        )


class Suggestion(NamedTuple):
    """A request for each member that should be made in place of the present one, in thousandths of a core or bytes."""

    resource: Literal["cpu", "memory"]
    requested: int
    suggested: int
    observed: int

    @property
    def margin_percent(self) -> float:
        return round(100 * (self.suggested / self.observed - 1), 1)

    def sentence(self, runs: int) -> str:
        """Return the suggestion in words."""
        requested, suggested, observed = (format_quantity(self.resource, one) for one in self[1:])
        seen = (
            "the peak of a member was"
            if self.resource == "memory"
            else "the members of a run used at most, on average,"
        )
        return (
            f"request {self.resource} {suggested} instead of {requested}, from {runs} runs: {seen} {observed},"
            f" and {self.margin_percent:g} % are added"
        )


def suggestions_for(use: RecurringUse, each: RequestedAmounts) -> list[Suggestion]:
    """Return suggestions for a recurring job whose members request ``each``; none from fewer than ``LEAST_RUNS`` runs."""
    if use.runs < LEAST_RUNS:
        return []
    found = []
    if use.cpu and each.cpu:
        wanted = _above(use.cpu, _CPU_GRID)
        if wanted < (1 - _WORTH) * each.cpu:
            found.append(Suggestion("cpu", each.cpu, wanted, use.cpu))
    if use.peak_memory and each.memory:
        wanted = _above(use.peak_memory, _MEMORY_GRID)
        is_less = wanted < (1 - _WORTH) * each.memory and not use.was_short_of_memory
        is_more = wanted > each.memory and (use.was_short_of_memory or use.peak_memory > each.memory)
        if is_less or is_more:
            found.append(Suggestion("memory", each.memory, wanted, use.peak_memory))
    return found


def _above(observed: int, grid: int) -> int:
    wanted = round(observed * (1 + MARGIN))
    return max(-(-wanted // grid) * grid, grid)
