"""Groups of jobs: when a group has ended, how, and what that means for jobs that start after it.

open ──close──▶ closed ──all jobs have ended──▶ succeeded | failed | cancelled
                  ▲                                   │
                  └────── a job is tried again ───────┘
"""

from typing import NamedTuple

from trainmaster.protocol.states import Condition, ConditionState, GroupState, JobState


class GroupFacts(NamedTuple):
    """Facts that decide the state of a group: numbers of its jobs, of those that have ended by outcome. ``has_live``: whether a job
    of it has not ended.
    """

    is_closed: bool
    has_live: bool
    total: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def ended(self) -> int:
        """Return the number of jobs that have ended."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def is_consistent(self) -> bool:
        """Return whether the numbers agree with ``has_live``: they do not where an older release has ended jobs."""
        return self.has_live or self.ended == self.total


def state_of(facts: GroupFacts) -> GroupState:
    """Return the state of a group."""
    if not facts.is_closed:
        return GroupState.OPEN
    if facts.has_live:
        return GroupState.CLOSED
    if facts.failed:
        return GroupState.FAILED
    return GroupState.CANCELLED if facts.cancelled else GroupState.SUCCEEDED


def counted(facts: GroupFacts, stored: dict[JobState, int]) -> GroupFacts:
    """Return the facts about a group without unfinished jobs whose numbers are not consistent. ``stored``: its jobs by state, as
    their rows have them; others may have been removed.
    """
    facts = facts._replace(
        succeeded=max(facts.succeeded, stored.get(JobState.SUCCEEDED, 0)),
        failed=max(facts.failed, stored.get(JobState.FAILED, 0)),
        cancelled=max(facts.cancelled, stored.get(JobState.CANCELLED, 0)),
    )
    return facts._replace(total=facts.ended)


def verdict_on_group(condition: Condition, state: GroupState) -> ConditionState:
    """Return the state of a condition on a group."""
    if not state.is_terminal:
        return ConditionState.WAITING
    if condition is Condition.ENDED or condition.value == state.value:
        return ConditionState.MET
    return ConditionState.NEVER


_OF_ALL = {
    Condition.SUCCEEDED: "all its jobs have to succeed",
    Condition.FAILED: "all its jobs have to end, and one has to fail",
    Condition.ENDED: "all its jobs have to end",
}
_OUTCOME = {
    GroupState.SUCCEEDED: "all its jobs have succeeded",
    GroupState.FAILED: "a job of it has failed",
    GroupState.CANCELLED: "a job of it was cancelled",
}


def words_on_group(name: str, state: GroupState, condition: Condition) -> str:
    """Return the message about a condition on a group that is open, or that can no longer be met."""
    if state.is_terminal:
        return f"group {name} has ended and {_OUTCOME[state]}, so the condition {condition} will not be met"
    closing = "it has to be closed, and " if state is GroupState.OPEN else ""
    return f"group {name}, which is {state}: {closing}{_OF_ALL[condition]}"


def deltas_of(before: JobState | None, after: JobState) -> dict[str, int]:
    """Return by how much the numbers of a group change when a job of it goes from one state to another; None: it is new."""
    changes: dict[str, int] = {} if before is not None else {"total": 1}
    if before is not None and before.is_terminal:
        changes[before.value] = changes.get(before.value, 0) - 1
    if after.is_terminal:
        changes[after.value] = changes.get(after.value, 0) + 1
    return {name: many for name, many in changes.items() if many}
