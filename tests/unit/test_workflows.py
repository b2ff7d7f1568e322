"""Steps of workflows: which start, which are skipped, when the whole has ended, and what goes on after a resume."""

import random
from collections.abc import Sequence

import pytest

from trainmaster.protocol.states import Condition, StepState, WorkflowState
from trainmaster.protocol.workflows import OnStepFailure
from trainmaster_dispatcher.domain.workflows import (
    Moves,
    StepFacts,
    StepPlan,
    WorkflowWish,
    advance,
    condition_on,
    predecessors,
    reopen,
    words_on_waiting,
)

STOP, CANCEL, CONTINUE = OnStepFailure.STOP, OnStepFailure.CANCEL, OnStepFailure.CONTINUE
RUNS_ON = WorkflowWish()
S, F = Condition.SUCCEEDED, Condition.FAILED
ENDS = (StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED, StepState.SKIPPED)


class Board:
    """A workflow whose jobs the test ends."""

    def __init__(self, *steps: StepPlan, on_failure: OnStepFailure = STOP) -> None:
        self.steps = steps
        self.on_failure = on_failure
        self.wish = RUNS_ON
        self.facts = [StepFacts() for _ in steps]
        self.end: WorkflowState | None = None
        self.cancelled: set[str] = set()

    def look(self, totals: dict[str, int] | None = None) -> Moves:
        """Do what is to be done until nothing is left, with ``totals`` jobs for steps that start, one by default."""
        while True:
            moves = advance(self.steps, self.facts, self.on_failure, self.wish)
            self.cancelled |= {self.steps[index].name for index in moves.cancel}
            self.end = moves.end
            if not moves.start and not moves.more:
                return moves
            for index in moves.start:
                one, step = self.facts[index], self.steps[index]
                one.state, one.total = StepState.RUNNING, (totals or {}).get(step.name, 1)
                one.submitted = min(one.total, step.max_running or one.total)
            for index, more in moves.more.items():
                self.facts[index].submitted += more

    def of(self, name: str) -> StepFacts:
        return self.facts[[step.name for step in self.steps].index(name)]

    def ends(self, name: str, **many: int) -> None:
        """End jobs of a step: ``succeeded=2, failed=1``."""
        one = self.of(name)
        one.has_started = True
        for field, count in many.items():
            setattr(one, field, getattr(one, field) + count)
        assert one.open >= 0
        self.look()

    def states(self) -> dict[str, str]:
        return {step.name: one.state.value for step, one in zip(self.steps, self.facts, strict=True)}


def chain(on_failure: OnStepFailure = STOP) -> Board:
    return Board(StepPlan("a"), StepPlan("b", ((0, S),)), StepPlan("c", ((1, S),)), on_failure=on_failure)


def test_steps_start_one_after_the_other_and_the_last_one_ends_the_workflow() -> None:
    board = chain()
    board.look()
    assert board.states() == {"a": "running", "b": "waiting", "c": "waiting"}
    board.ends("a", succeeded=1)
    assert board.states() == {"a": "succeeded", "b": "running", "c": "waiting"}
    board.ends("b", succeeded=1)
    assert board.end is None
    board.ends("c", succeeded=1)
    assert board.end is WorkflowState.SUCCEEDED


@pytest.mark.parametrize("on_failure", list(OnStepFailure))
def test_steps_after_a_failed_one_are_skipped(on_failure: OnStepFailure) -> None:
    board = chain(on_failure)
    board.look()
    board.ends("a", failed=1)
    assert board.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert board.end is WorkflowState.FAILED
    assert "step a" in board.of("b").message


@pytest.mark.parametrize(
    ("on_failure", "other", "cancelled"),
    [(STOP, "skipped", set()), (CANCEL, "skipped", {"first", "side"}), (CONTINUE, "running", set())],
)
def test_a_failure_stops_what_does_not_need_the_failed_step_as_the_workflow_says(
    on_failure: OnStepFailure, other: str, cancelled: set[str]
) -> None:
    board = Board(
        StepPlan("a"), StepPlan("first"), StepPlan("side"), StepPlan("other", ((1, S),)), on_failure=on_failure
    )
    board.look()
    board.ends("a", failed=1)
    board.ends("first", succeeded=1)
    assert board.states()["other"] == other
    assert board.cancelled == cancelled
    assert board.states()["side"] == "running"


def test_a_step_that_may_fail_stops_nothing() -> None:
    board = Board(StepPlan("a", may_fail=True), StepPlan("b"), StepPlan("c", ((1, S),)))
    board.look()
    board.ends("a", failed=1)
    board.ends("b", succeeded=1)
    board.ends("c", succeeded=1)
    assert board.end is WorkflowState.SUCCEEDED


def test_a_step_for_the_failure_of_another_runs_only_then() -> None:
    for failed in (False, True):
        board = Board(StepPlan("a"), StepPlan("mend", ((0, F),)))
        board.look()
        board.ends("a", **({"failed": 1} if failed else {"succeeded": 1}))
        assert board.states()["mend"] == ("running" if failed else "skipped")
        if failed:
            board.ends("mend", succeeded=1)
        assert board.end is (WorkflowState.FAILED if failed else WorkflowState.SUCCEEDED)


def test_cleanup_starts_after_all_other_steps_however_they_ended() -> None:
    for outcome in ("succeeded", "failed", "cancelled"):
        board = Board(StepPlan("tidy", is_cleanup=True), StepPlan("a"), StepPlan("b", ((1, S),)))
        board.look()
        assert board.states()["tidy"] == "waiting"
        board.ends("a", **{outcome: 1})
        if outcome == "succeeded":
            assert board.states()["tidy"] == "waiting"
            board.ends("b", succeeded=1)
        assert board.states()["tidy"] == "running"
        assert board.end is None
        board.ends("tidy", succeeded=1)
        assert board.end is (WorkflowState.SUCCEEDED if outcome == "succeeded" else WorkflowState.FAILED)


@pytest.mark.parametrize("with_cleanup", [False, True])
def test_a_cancelled_workflow_cancels_its_jobs_and_runs_its_cleanup(with_cleanup: bool) -> None:
    board = Board(StepPlan("a"), StepPlan("b", ((0, S),)), StepPlan("tidy", is_cleanup=True))
    board.look()
    board.wish = WorkflowWish(cancel=True, with_cleanup=with_cleanup)
    board.look()
    assert board.cancelled == {"a"}
    assert board.states()["b"] == "skipped"
    board.ends("a", cancelled=1)
    assert board.states()["tidy"] == ("skipped" if with_cleanup else "running")
    if not with_cleanup:
        assert board.end is None
        board.ends("tidy", succeeded=1)
    assert board.end is WorkflowState.CANCELLED


def test_jobs_of_a_step_are_submitted_as_others_end() -> None:
    board = Board(StepPlan("fan", max_running=3))
    board.look({"fan": 8})
    fan = board.of("fan")
    assert fan.submitted == 3
    board.ends("fan", succeeded=2)
    assert (fan.submitted, fan.open) == (5, 3)
    for _ in range(6):
        board.ends("fan", succeeded=1)
    assert (fan.submitted, fan.open, board.end) == (8, 0, WorkflowState.SUCCEEDED)


@pytest.mark.parametrize(("on_failure", "submitted"), [(STOP, 4), (CANCEL, 4), (CONTINUE, 6)])
def test_a_step_with_a_failed_job_gets_no_others_unless_the_workflow_continues(
    on_failure: OnStepFailure, submitted: int
) -> None:
    board = Board(StepPlan("fan", max_running=3), on_failure=on_failure)
    board.look({"fan": 6})
    board.ends("fan", succeeded=1)
    board.ends("fan", failed=1)
    board.ends("fan", succeeded=2)
    if on_failure is CONTINUE:
        board.ends("fan", succeeded=2)
    fan = board.of("fan")
    assert (fan.submitted, fan.state, board.end) == (submitted, StepState.FAILED, WorkflowState.FAILED)
    assert fan.message.startswith("1 of 6 jobs failed")


@pytest.mark.parametrize(("on_failure", "cancelled"), [(STOP, set()), (CANCEL, {"fan"})])
def test_other_steps_get_no_further_jobs_once_the_workflow_stops(
    on_failure: OnStepFailure, cancelled: set[str]
) -> None:
    board = Board(StepPlan("a"), StepPlan("fan", max_running=2, may_fail=True), on_failure=on_failure)
    board.look({"fan": 6})
    board.ends("a", failed=1)
    board.ends("fan", succeeded=1)
    assert board.cancelled == cancelled
    board.ends("fan", **({"cancelled": 1} if cancelled else {"succeeded": 1}))
    fan = board.of("fan")
    assert (fan.submitted, fan.state, board.end) == (2, StepState.CANCELLED, WorkflowState.FAILED)


def test_a_step_without_elements_has_succeeded_at_once() -> None:
    board = Board(StepPlan("fan"), StepPlan("b", ((0, S),)))
    board.look({"fan": 0})
    assert board.states() == {"fan": "succeeded", "b": "running"}


def test_a_resumed_workflow_goes_on_from_what_has_not_succeeded() -> None:
    board = Board(
        StepPlan("a"),
        StepPlan("b", ((0, S),)),
        StepPlan("told", ((1, Condition.ENDED),)),
        StepPlan("c", ((1, S),)),
        StepPlan("tidy", is_cleanup=True),
    )
    board.look()
    board.ends("a", succeeded=1)
    board.ends("b", failed=1)
    board.ends("told", succeeded=1)
    board.ends("tidy", succeeded=1)
    assert board.states()["c"] == "skipped"
    assert reopen(board.steps, board.facts) == [2, 3, 4]
    board.of("b").failed = 0  # its job is tried again
    board.look()
    assert board.states() == {"a": "succeeded", "b": "running", "told": "waiting", "c": "waiting", "tidy": "waiting"}
    board.ends("b", succeeded=1)
    board.ends("c", succeeded=1)
    board.ends("told", succeeded=1)
    board.ends("tidy", succeeded=1)
    assert board.end is WorkflowState.SUCCEEDED


def test_a_resume_leaves_alone_what_was_skipped_rightly_and_what_came_after_it() -> None:
    board = Board(
        StepPlan("a"),
        StepPlan("mend", ((0, F),)),
        StepPlan("report", ((1, Condition.ENDED),)),
        StepPlan("z"),
        StepPlan("last", ((3, S),)),
    )
    board.look()
    board.ends("a", succeeded=1)
    board.ends("report", succeeded=1)
    board.ends("z", failed=1)
    assert board.states() == {
        "a": "succeeded",
        "mend": "skipped",
        "report": "succeeded",
        "z": "failed",
        "last": "skipped",
    }
    assert reopen(board.steps, board.facts) == [4]
    board.of("z").failed = 0
    board.look()
    board.ends("z", succeeded=1)
    board.ends("last", succeeded=1)
    assert board.end is WorkflowState.SUCCEEDED
    assert board.states()["mend"] == "skipped"


def test_the_words_say_what_a_step_waits_for() -> None:
    board = Board(StepPlan("a"), StepPlan("b"), StepPlan("c", ((0, S), (1, F))), StepPlan("tidy", is_cleanup=True))
    board.look()
    words = words_on_waiting(board.steps[2], board.steps, board.facts)
    assert words == "step a, which is running, has to succeed, and 1 more"
    assert words_on_waiting(board.steps[3], board.steps, board.facts) == "waits for the end of 3 steps"


def random_workflow(chance: random.Random) -> Board:
    many = chance.randint(1, 9)
    steps: list[StepPlan] = []
    for index in range(many):
        earlier = chance.sample(range(index), chance.randint(0, min(index, 3)))
        is_cleanup = index > 0 and chance.random() < 0.15
        after = () if is_cleanup else tuple((one, chance.choice(list(Condition))) for one in earlier)
        after = tuple((one, condition) for one, condition in after if not steps[one].is_cleanup)
        steps.append(
            StepPlan(
                f"s{index}",
                after,
                chance.choice([None, 1, 2, 5]),
                may_fail=chance.random() < 0.2,
                is_cleanup=is_cleanup,
            )
        )
    return Board(*steps, on_failure=chance.choice(list(OnStepFailure)))


def holds(board: Board, index: int) -> bool:
    """Return whether a step may start, said without the code under test."""
    step = board.steps[index]
    if step.is_cleanup:
        return all(
            one.state in ENDS for other, one in zip(board.steps, board.facts, strict=True) if not other.is_cleanup
        )
    for at, condition in step.after:
        before = board.facts[at]
        met = {
            Condition.SUCCEEDED: before.state is StepState.SUCCEEDED,
            Condition.FAILED: before.state is StepState.FAILED,
            Condition.ENDED: before.state in ENDS,
            Condition.STARTED: before.has_started or before.state is StepState.SUCCEEDED,
        }
        if not met[condition]:
            return False
    return True


@pytest.mark.parametrize("seed", range(400))
def test_random_workflows_start_nothing_early_and_come_to_an_end(seed: int) -> None:
    """Jobs end in any order and way, now and then somebody cancels; each look must be right, and the last one ends the workflow."""
    chance = random.Random(seed)
    board = random_workflow(chance)
    ended: set[int] = set()
    for _ in range(500):
        moves = advance(board.steps, board.facts, board.on_failure, board.wish)
        terminal = {index for index, one in enumerate(board.facts) if one.state in ENDS}
        assert ended <= terminal, "a step that has ended stays so"
        ended = terminal
        if moves.end is not None:
            break
        for index in moves.start:
            one, step = board.facts[index], board.steps[index]
            assert one.state is StepState.WAITING
            assert holds(board, index), (board.steps, board.facts, index)
            assert not (board.wish.cancel and not step.is_cleanup), "nothing but cleanup starts in a cancelled workflow"
            one.state, one.total = StepState.RUNNING, chance.choice([1, 1, 0, 3, 7])
            one.submitted = min(one.total, step.max_running or one.total)
        for index, more in moves.more.items():
            one, step = board.facts[index], board.steps[index]
            one.submitted += more
            assert one.submitted <= (one.total or 0)
            assert step.max_running is None or one.open <= step.max_running
        running = [index for index, one in enumerate(board.facts) if one.open]
        if running:
            index = chance.choice(running)
            one = board.facts[index]
            one.has_started = True
            outcome = chance.choice(["succeeded", "succeeded", "succeeded", "failed", "cancelled"])
            outcome = "cancelled" if index in moves.cancel else outcome
            setattr(one, outcome, getattr(one, outcome) + 1)
        else:
            assert moves.start or moves.more, "nothing runs, nothing starts, and it has not ended"
        if chance.random() < 0.03:
            board.wish = WorkflowWish(cancel=True, with_cleanup=chance.random() < 0.3)
    else:
        pytest.fail("the workflow has not ended")
    check_end(board, moves.end)


def check_end(board: Board, end: WorkflowState | None) -> None:
    for step, one in zip(board.steps, board.facts, strict=True):
        assert one.open == 0
        if one.state is StepState.SUCCEEDED:
            assert one.succeeded == one.total == one.submitted
        if one.state is StepState.SKIPPED:
            assert one.submitted == 0, step
    unsuccessful = [
        one
        for step, one in zip(board.steps, board.facts, strict=True)
        if one.state in (StepState.FAILED, StepState.CANCELLED) and not step.may_fail
    ]
    if board.wish.cancel:
        assert end is WorkflowState.CANCELLED
    else:
        assert end is (WorkflowState.FAILED if unsuccessful else WorkflowState.SUCCEEDED)


def test_all_steps_before_a_step_are_found() -> None:
    steps: Sequence[StepPlan] = [
        StepPlan("a"),
        StepPlan("b", ((0, S),)),
        StepPlan("c", ((1, S), (0, F))),
        StepPlan("d"),
    ]
    assert predecessors(steps) == [set(), {0}, {0, 1}, set()]
    started = [*steps[:2], StepPlan("c", ((1, Condition.STARTED),))]
    assert predecessors(started) == [set(), {0}, {0, 1}]
    assert predecessors(started, ended_only=True) == [set(), {0}, {0}]


def test_a_start_of_jobs_that_ended_counts_as_a_start() -> None:
    facts = StepFacts(state=StepState.FAILED, total=1, submitted=1, failed=1, has_started=True)
    assert condition_on(Condition.STARTED, facts).value == "met"
    assert condition_on(Condition.STARTED, StepFacts(state=StepState.SKIPPED)).value == "never"
