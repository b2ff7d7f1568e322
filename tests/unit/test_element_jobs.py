"""Arrays whose elements are jobs: which elements are submitted, what becomes of open jobs, and how the array ends."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.arrays import ArrayCounts, ArrayStop
from trainmaster.protocol.states import Condition, HoldCause, JobState, Wish
from trainmaster_dispatcher.domain.arrays import BLOCK, Block
from trainmaster_dispatcher.domain.element_jobs import (
    MOST_WAITING,
    ArrayFacts,
    ArrayMoves,
    Before,
    OnOpen,
    OpenJobs,
    eligible,
    next_moves,
)
from trainmaster_dispatcher.domain.job_machine import Job

QUEUED, RUNNING = Job(), Job(JobState.RUNNING)
NONE = ArrayCounts()
NONE_OPEN = OpenJobs()


def facts(job: Job, counts: ArrayCounts = NONE, still_open: OpenJobs = NONE_OPEN, **fields: object) -> ArrayFacts:
    return ArrayFacts(job=job, elements=10, counts=counts, open=still_open, **fields)  # type: ignore[arg-type]


def ended(moves: ArrayMoves) -> tuple[JobState, str]:
    assert moves.job is not None
    return moves.job.state, moves.job.message


def test_it_is_queued_until_the_job_of_an_element_has_started() -> None:
    assert next_moves(facts(QUEUED, still_open=OpenJobs(waiting=10))).job is None
    moves = next_moves(facts(QUEUED, still_open=OpenJobs(waiting=9, live=1)))
    assert ended(moves)[0] is JobState.RUNNING


def test_as_many_wait_as_the_scheduler_can_choose_from_and_further_ones_come_many_at_once() -> None:
    assert next_moves(facts(QUEUED)).submit == MOST_WAITING
    assert next_moves(facts(RUNNING, still_open=OpenJobs(waiting=MOST_WAITING - 1, live=5000))).submit == 0
    assert next_moves(facts(RUNNING, still_open=OpenJobs(waiting=10, live=5000))).submit == MOST_WAITING - 10


@pytest.mark.parametrize(("still_open", "more"), [(OpenJobs(), 3), (OpenJobs(1, 1), 1), (OpenJobs(0, 2, 1), 0)])
def test_no_more_are_open_than_max_running_allows(still_open: OpenJobs, more: int) -> None:
    assert next_moves(facts(RUNNING, still_open=still_open, max_running=3)).submit == more


def test_it_succeeds_once_all_elements_have_and_names_those_that_have_failed() -> None:
    assert ended(next_moves(facts(RUNNING, ArrayCounts(10)))) == (JobState.SUCCEEDED, "")
    state, message = ended(next_moves(facts(RUNNING, ArrayCounts(8, 2), failed=(3, 7))))
    assert (state, message) == (JobState.FAILED, "2 of 10 elements failed (3, 7)")


def test_it_ends_although_all_its_elements_were_cancelled_before_one_started() -> None:
    assert ended(next_moves(facts(QUEUED, ArrayCounts(0, 0, 10))))[0] is JobState.SUCCEEDED


def test_it_has_failed_where_elements_were_not_run_as_those_before_them_did_not_come_to_their_state() -> None:
    state, message = ended(next_moves(facts(RUNNING, ArrayCounts(7, 0, 3), follows=True)))
    assert state is JobState.FAILED
    assert message == "3 of 10 elements were not run, as those before them have not come to their state"


def test_a_stop_cancels_what_is_open_and_then_ends_it() -> None:
    stop = ArrayStop(failures=1)
    moves = next_moves(facts(RUNNING, ArrayCounts(2, 1), OpenJobs(3, 2), stop=stop))
    assert moves == ArrayMoves(OnOpen.CANCEL)
    state, message = ended(next_moves(facts(RUNNING, ArrayCounts(2, 1, 5), stop=stop, failed=(4,))))
    assert (state, message) == (JobState.FAILED, "1 of 10 elements failed (4); 2 were not run, as stopOn says")
    assert ended(next_moves(facts(RUNNING, ArrayCounts(1, 3), stop=ArrayStop(successes=1))))[0] is JobState.SUCCEEDED


def test_a_cancelled_array_is_over_once_none_of_its_jobs_is_open() -> None:
    job = RUNNING._replace(wish=Wish.CANCEL)
    assert next_moves(facts(job, still_open=OpenJobs(2, 1, 1))) == ArrayMoves(OnOpen.CANCEL)
    moves = next_moves(facts(job, ArrayCounts(3)))
    assert ended(moves) == (JobState.CANCELLED, "cancelled")
    assert moves.job is not None
    assert moves.job.wish is None
    at_once = Job(JobState.CANCELLED)
    assert next_moves(facts(at_once, still_open=OpenJobs(2))) == ArrayMoves(OnOpen.CANCEL)
    assert next_moves(facts(at_once)) == ArrayMoves()


def test_a_suspended_array_is_held_once_none_of_its_jobs_runs_and_resumes_them_with_it() -> None:
    job = RUNNING._replace(wish=Wish.SUSPEND)
    assert next_moves(facts(job, still_open=OpenJobs(2, 1))) == ArrayMoves(OnOpen.SUSPEND)
    moves = next_moves(facts(job, still_open=OpenJobs(0, 0, 3)))
    assert moves.job is not None
    assert (moves.job.state, moves.job.hold_cause, moves.job.wish) == (JobState.HELD, HoldCause.SUSPENDED, None)
    held = QUEUED.held(HoldCause.USER)
    assert next_moves(facts(held, still_open=OpenJobs(waiting=3))) == ArrayMoves(OnOpen.SUSPEND)
    assert next_moves(facts(held)) == ArrayMoves()
    again = next_moves(facts(QUEUED, still_open=OpenJobs(0, 0, 3), was_suspended=True))
    assert again.on_open is OnOpen.RESUME
    assert next_moves(facts(QUEUED, still_open=OpenJobs(0, 0, 3))).on_open is None, "a person holds these"


# -- elements that may be submitted


def test_elements_are_taken_in_order_without_those_that_are_open_or_have_ended() -> None:
    blocks = {0: Block(succeeded=0b11, failed=0b100, cancelled=0b1000)}
    assert eligible(8, blocks, [5]).first(10) == [4, 6, 7]
    assert eligible(BLOCK + 2, {0: Block(succeeded=(1 << BLOCK) - 2)}, []).first(2) == [0, BLOCK]


@pytest.mark.parametrize(
    ("condition", "has_ended", "ready", "never"),
    [
        (Condition.SUCCEEDED, False, [0], [1, 2]),
        (Condition.SUCCEEDED, True, [0], [1, 2, 3]),
        (Condition.FAILED, False, [1], [0, 2]),
        (Condition.FAILED, True, [1], [0, 2, 3]),
        (Condition.ENDED, False, [0, 1, 2], []),
        (Condition.ENDED, True, [0, 1, 2, 3], []),
    ],
)
def test_an_element_waits_for_that_of_the_other_array_with_its_index(
    condition: Condition, has_ended: bool, ready: list[int], never: list[int]
) -> None:
    other = {0: Block(succeeded=0b1, failed=0b10, cancelled=0b100)}
    found = eligible(4, {}, [], [Before(condition, other, has_ended)])
    assert found.first(9) == ready
    assert found.never == ({0: sum(1 << one for one in never)} if never else {})


ELEMENTS = 70
BITS = st.integers(min_value=0, max_value=(1 << ELEMENTS) - 1)


@given(own=st.tuples(BITS, BITS, BITS), others=st.lists(st.tuples(BITS, BITS, BITS), max_size=3), seed=st.integers())
def test_what_may_be_submitted_is_as_by_brute_force(
    own: tuple[int, int, int], others: list[tuple[int, int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    mine = Block().with_ended(*own)
    submitted = [one for one in range(ELEMENTS) if rng.random() < 0.2 and not mine.ended >> one & 1]
    before = [
        Before(
            rng.choice([Condition.SUCCEEDED, Condition.FAILED, Condition.ENDED]),
            {0: Block().with_ended(*one)},
            rng.random() < 0.5,
        )
        for one in others
    ]
    found = eligible(ELEMENTS, {0: mine}, submitted, before)
    states = [[_state(one.blocks[0], element) for one in before] for element in range(ELEMENTS)]
    waits = [one for one in range(ELEMENTS) if not mine.ended >> one & 1 and one not in submitted]
    never = [
        element
        for element in waits
        if any(_never(one, state) for one, state in zip(before, states[element], strict=True))
    ]
    ready = [
        element
        for element in waits
        if all(_met(one, state) for one, state in zip(before, states[element], strict=True))
    ]
    assert found.first(ELEMENTS) == ready
    assert [element for element in range(ELEMENTS) if found.never.get(0, 0) >> element & 1] == never


def _state(block: Block, element: int) -> str:
    names = ("succeeded", "failed", "cancelled")
    return next((name for name, bits in zip(names, block, strict=True) if bits >> element & 1), "waiting")


def _met(one: Before, state: str) -> bool:
    if one.condition is Condition.ENDED:
        return state != "waiting" or one.has_ended
    return state == one.condition.value


def _never(one: Before, state: str) -> bool:
    return not _met(one, state) and (state != "waiting" or one.has_ended)
