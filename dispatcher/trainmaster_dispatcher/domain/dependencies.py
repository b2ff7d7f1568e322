"""Dependencies between jobs: whether the condition on a predecessor is met, and whether jobs of one submission wait for each other."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from trainmaster.protocol.states import Condition, ConditionState, JobState


def verdict(condition: Condition, state: JobState, *, has_started: bool) -> ConditionState:
    """Return the state of a condition on a job. ``has_started``: whether one of the job's runs has run."""
    match condition:
        case Condition.STARTED:
            if has_started or state in (JobState.RUNNING, JobState.SUCCEEDED):
                return ConditionState.MET
            return ConditionState.NEVER if state.is_terminal else ConditionState.WAITING
        case Condition.ENDED:
            return ConditionState.MET if state.is_terminal else ConditionState.WAITING
        case _:
            if not state.is_terminal:
                return ConditionState.WAITING
            return ConditionState.MET if state.value == condition.value else ConditionState.NEVER


_BECOME = {
    Condition.SUCCEEDED: "succeed",
    Condition.FAILED: "fail",
    Condition.ENDED: "end",
    Condition.STARTED: "start",
}


def words_on_failure(job: str, state: JobState, condition: Condition) -> str:
    """Return the message about a condition on ``job``, which has ended, that can no longer be met."""
    ended = "was cancelled" if state is JobState.CANCELLED else f"has {state}"
    return f"{job} {ended}, so it will not {_BECOME[condition]}"


def words_on_waiting(job: str, state: JobState, condition: Condition) -> str:
    """Return the message about a condition on ``job`` that is open."""
    return f"{job}, which is {state}, has to {_BECOME[condition]}"


_STEPS = 8
"""Parts are rounded to eighths: jobs with equal parts are equivalent to the scheduler, so there must not be many different ones."""


def parts_by_cluster(counts: Mapping[int, int]) -> dict[int, float]:
    """Return, by cluster, the part of a job's predecessors whose last run was there; clusters with next to none are left out.

    ``counts``: by cluster, the number of predecessors. Those that never ran are not counted.
    """
    total = sum(counts.values())
    parts = {cluster: round(_STEPS * many / total) / _STEPS for cluster, many in counts.items()} if total else {}
    return {cluster: part for cluster, part in parts.items() if part}


def cycle_of(predecessors: Mapping[int, Sequence[int]]) -> list[int] | None:
    """Return jobs of one submission, by index, of which each waits for the next, and the last for the first; None without such."""
    try:
        TopologicalSorter(predecessors).prepare()
    except CycleError as error:
        found: list[int] = error.args[1]
        return found[:0:-1]
    return None
