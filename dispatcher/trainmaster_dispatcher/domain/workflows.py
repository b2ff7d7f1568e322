"""Workflows: which steps may start, which are skipped, and when the whole has ended. Pure.

                       ┌── conditions can no longer be met, or the workflow stops ──▶ skipped
    waiting ───────────┤
                       └── conditions are met ──▶ running ──▶ succeeded | failed | cancelled

The states of jobs are facts; of a step only its own state is stored, so that looking again changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import NamedTuple

from trainmaster.protocol.states import Condition, ConditionState, StepState, WorkflowState
from trainmaster.protocol.workflows import OnStepFailure


class StepPlan(NamedTuple):
    """A step as the order of a workflow has it. ``after``: indexes of other steps, each with the condition on it."""

    name: str
    after: tuple[tuple[int, Condition], ...] = ()
    max_running: int | None = None
    may_fail: bool = False
    is_cleanup: bool = False

    @property
    def handles_failure(self) -> bool:
        """Return whether the step is started although another one failed."""
        return self.is_cleanup or any(one in (Condition.FAILED, Condition.ENDED) for _, one in self.after)


@dataclass(slots=True)
class StepFacts:
    """A step and its jobs. ``total``: the number of its jobs in the end, None until it is started; ``submitted``: of those that exist,
    of which ``succeeded``, ``failed`` and ``cancelled`` have ended.
    """

    state: StepState = StepState.WAITING
    message: str = ""
    total: int | None = None
    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    has_started: bool = False

    @property
    def open(self) -> int:
        return self.submitted - self.succeeded - self.failed - self.cancelled

    @property
    def is_broken(self) -> bool:
        """Return whether a job of the step has not succeeded."""
        return self.failed + self.cancelled > 0


@dataclass(slots=True)
class Moves:
    """Changes to make next. ``start``: steps whose conditions are met; ``more``: by step, the number of further jobs to submit;
    ``cancel``: steps whose open jobs are to be cancelled; ``end``: the last state of the workflow.
    """

    start: list[int] = field(default_factory=list)
    more: dict[int, int] = field(default_factory=dict)
    cancel: list[int] = field(default_factory=list)
    end: WorkflowState | None = None


class WorkflowWish(NamedTuple):
    """A person's request about a running workflow. ``with_cleanup``: cleanup steps are cancelled as well."""

    cancel: bool = False
    with_cleanup: bool = False


def condition_on(condition: Condition, facts: StepFacts) -> ConditionState:
    """Return the state of a condition on a step."""
    state = facts.state
    match condition:
        case Condition.ENDED:
            return ConditionState.MET if state.is_terminal else ConditionState.WAITING
        case Condition.STARTED:
            if facts.has_started or state is StepState.SUCCEEDED:
                return ConditionState.MET
            return ConditionState.NEVER if state.is_terminal else ConditionState.WAITING
        case _:
            if not state.is_terminal:
                return ConditionState.WAITING
            return ConditionState.MET if state.value == condition.value else ConditionState.NEVER


def advance(
    steps: Sequence[StepPlan], facts: Sequence[StepFacts], on_failure: OnStepFailure, wish: WorkflowWish
) -> Moves:
    """Bring the states of steps up to the facts, in place, and return what is to be done.

    Steps that are to be started stay ``waiting`` until the caller has submitted their first jobs.
    """
    stops = on_failure is not OnStepFailure.CONTINUE
    changed, is_broken = True, False
    while changed:  # a step that has ended decides conditions of others, and whether the workflow stops
        is_broken = stops and any(_breaks(step, one) for step, one in zip(steps, facts, strict=True))
        changed = _settle(steps, facts, wish, stops=stops, is_broken=is_broken)
    moves = Moves()
    for index, (step, one) in enumerate(zip(steps, facts, strict=True)):
        if one.state is StepState.WAITING and _is_ready(step, steps, facts):
            moves.start.append(index)
        elif one.state is StepState.RUNNING:
            is_cancelled = on_failure is OnStepFailure.CANCEL and is_broken and not step.handles_failure
            if one.open and (is_cancelled or _wants_end(step, wish)):
                moves.cancel.append(index)
            more = 0 if _halts(step, one, wish, stops=stops, is_broken=is_broken) else _more(step, one)
            if more > 0:
                moves.more[index] = more
    if all(one.state.is_terminal for one in facts):
        moves.end = _end(steps, facts, wish)
    return moves


def _settle(
    steps: Sequence[StepPlan], facts: Sequence[StepFacts], wish: WorkflowWish, *, stops: bool, is_broken: bool
) -> bool:
    """Give steps their last states; return whether one got it."""
    changed = False
    for step, one in zip(steps, facts, strict=True):
        if one.state is StepState.RUNNING:
            _finish(one, halts=_halts(step, one, wish, stops=stops, is_broken=is_broken))
            changed = changed or one.state.is_terminal
        elif one.state is StepState.WAITING:
            words = _skipped(step, steps, facts, wish, is_broken=is_broken)
            if words:
                one.state, one.message = StepState.SKIPPED, words
                changed = True
    return changed


def _wants_end(step: StepPlan, wish: WorkflowWish) -> bool:
    return wish.cancel and (wish.with_cleanup or not step.is_cleanup)


def _halts(step: StepPlan, one: StepFacts, wish: WorkflowWish, *, stops: bool, is_broken: bool) -> bool:
    """Return whether a running step gets no further jobs."""
    if _wants_end(step, wish) or (is_broken and not step.handles_failure):
        return True
    return stops and one.is_broken and not step.may_fail


def _finish(one: StepFacts, *, halts: bool) -> None:
    """Give a running step its last state once its jobs have ended."""
    if one.open or one.total is None or (one.submitted < one.total and not halts):
        return
    if one.failed:
        one.state = StepState.FAILED
        one.message = _words_on_failed(one)
    elif one.succeeded == one.total:
        one.state, one.message = StepState.SUCCEEDED, ""
    else:
        one.state = StepState.CANCELLED
        one.message = "cancelled" if one.total == 1 else f"{one.succeeded} of {one.total} jobs succeeded"


def _words_on_failed(one: StepFacts) -> str:
    if one.total == 1:
        return "its job failed"
    left = (one.total or 0) - one.submitted
    return f"{one.failed} of {one.total} jobs failed" + (f", {left} were not submitted" if left else "")


def _more(step: StepPlan, one: StepFacts) -> int:
    """Return the number of jobs that a running step gets now."""
    left = (one.total or 0) - one.submitted
    return left if step.max_running is None else min(left, step.max_running - one.open)


def _breaks(step: StepPlan, one: StepFacts) -> bool:
    """Return whether a step stops the workflow: a cleanup step or one that may fail does not."""
    return one.state in (StepState.FAILED, StepState.CANCELLED) and not step.may_fail and not step.is_cleanup


def _is_ready(step: StepPlan, steps: Sequence[StepPlan], facts: Sequence[StepFacts]) -> bool:
    if step.is_cleanup:
        others = zip(steps, facts, strict=True)
        return all(one.state.is_terminal for other, one in others if not other.is_cleanup)
    return all(condition_on(condition, facts[index]) is ConditionState.MET for index, condition in step.after)


def _skipped(
    step: StepPlan, steps: Sequence[StepPlan], facts: Sequence[StepFacts], wish: WorkflowWish, *, is_broken: bool
) -> str:
    """Return why a waiting step is skipped; empty if it is not."""
    if _wants_end(step, wish):
        return "the workflow was cancelled"
    for index, condition in step.after:
        if condition_on(condition, facts[index]) is ConditionState.NEVER:
            return f"step {steps[index].name} {_PAST[facts[index].state]}, and had to {_NEEDED[condition]}"
    if is_broken and not step.handles_failure:
        first = next(other.name for other, one in zip(steps, facts, strict=True) if _breaks(other, one))
        return f"the workflow stops, as step {first} has not succeeded"
    return ""


_PAST: Mapping[StepState, str] = {
    StepState.SUCCEEDED: "succeeded",
    StepState.FAILED: "failed",
    StepState.CANCELLED: "was cancelled",
    StepState.SKIPPED: "was skipped",
}
_NEEDED: Mapping[Condition, str] = {
    Condition.SUCCEEDED: "succeed",
    Condition.FAILED: "fail",
    Condition.ENDED: "end",
    Condition.STARTED: "start",
}


def words_on_waiting(step: StepPlan, steps: Sequence[StepPlan], facts: Sequence[StepFacts]) -> str:
    """Return what a waiting step waits for; empty where all its conditions are met."""
    if step.is_cleanup:
        many = sum(not one.state.is_terminal for other, one in zip(steps, facts, strict=True) if not other.is_cleanup)
        return f"waits for the end of {many} {'step' if many == 1 else 'steps'}" if many else ""
    open_ones = [one for one in step.after if condition_on(one[1], facts[one[0]]) is ConditionState.WAITING]
    if not open_ones:
        return ""
    index, condition = open_ones[0]
    others = "" if len(open_ones) == 1 else f", and {len(open_ones) - 1} more"
    return f"step {steps[index].name}, which is {facts[index].state}, has to {_NEEDED[condition]}{others}"


def _end(steps: Sequence[StepPlan], facts: Sequence[StepFacts], wish: WorkflowWish) -> WorkflowState:
    if wish.cancel:
        return WorkflowState.CANCELLED
    bad = (StepState.FAILED, StepState.CANCELLED)
    is_bad = any(one.state in bad and not step.may_fail for step, one in zip(steps, facts, strict=True))
    return WorkflowState.FAILED if is_bad else WorkflowState.SUCCEEDED


def reopen(steps: Sequence[StepPlan], facts: list[StepFacts]) -> list[int]:
    """Let a workflow that has not succeeded go on, in place; return the steps that begin anew, whose jobs are theirs no more.

    Steps that have not succeeded run on with the jobs that they have, or wait again; so do skipped ones, unless what they were skipped
    for stays as it is. Those after them, and cleanup steps, begin anew.
    """
    again: set[int] = set()
    for index in _in_order(steps):
        one = facts[index]
        if one.state is StepState.SKIPPED:
            stays = any(
                before not in again and condition_on(condition, facts[before]) is ConditionState.NEVER
                for before, condition in steps[index].after
            )
            if not stays:
                again.add(index)
        elif one.state is not StepState.SUCCEEDED:
            again.add(index)
    before = predecessors(steps)
    anew = [index for index, step in enumerate(steps) if step.is_cleanup or before[index] & again]
    for index, one in enumerate(facts):
        if index in anew:
            facts[index] = StepFacts()
        elif index in again:
            one.message = ""
            one.state = StepState.WAITING if one.total is None else StepState.RUNNING
    return anew


def _in_order(steps: Sequence[StepPlan]) -> list[int]:
    """Return the steps by index, each after those that it names."""
    return list(
        TopologicalSorter({index: [one for one, _ in step.after] for index, step in enumerate(steps)}).static_order()
    )


def predecessors(steps: Sequence[StepPlan], *, ended_only: bool = False) -> list[set[int]]:
    """Return, for each step, all steps that have started before it, or with ``ended_only`` those that have ended by then. There must
    be no cycle, see ``dependencies.cycle_of``.
    """
    found: list[set[int]] = [set() for _ in steps]
    for index in _in_order(steps):
        for before, condition in steps[index].after:
            found[index] |= found[before]
            if not ended_only or condition is not Condition.STARTED:
                found[index].add(before)
    return found
