"""Which reasons are written again: another token at once, other words after a while where they are many, and never too many."""

import pytest

from trainmaster.protocol.reasons import Reason, Token
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.plan import Hold, Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services import reason_book
from trainmaster_dispatcher.services.reason_book import ReasonBook


def keys(many: int) -> list[ClassKey]:
    return [ClassKey(1, 1, shape, ()) for shape in range(1, many + 1)]


def waiting_plan(many: int, text: str, token: Token = Token.INSUFFICIENT_CAPACITY) -> Plan:
    one = Reason(token=token, tier=token.tier, sentence=text)
    return Plan(reasons=dict.fromkeys(keys(many), one))


def written(book: ReasonBook, plan: Plan, now: float) -> dict[ClassKey, Reason]:
    changed = book.changed(plan, now)
    book.note(plan, changed, now)
    return changed


def test_what_is_stored_is_not_written_again_and_a_few_new_words_are_at_once() -> None:
    book = ReasonBook()
    assert len(written(book, waiting_plan(3, "a"), 0)) == 3
    assert written(book, waiting_plan(3, "a"), 1) == {}
    assert len(written(book, waiting_plan(3, "b"), 1)) == 3


def test_many_new_words_wait_and_another_token_does_not() -> None:
    book = ReasonBook()
    written(book, waiting_plan(600, "a"), 0)
    assert written(book, waiting_plan(600, "b"), 1) == {}
    assert len(written(book, waiting_plan(600, "c", Token.QUEUE_LIMIT), 2)) == 600
    assert written(book, waiting_plan(600, "d", Token.QUEUE_LIMIT), 10) == {}
    assert len(written(book, waiting_plan(600, "d", Token.QUEUE_LIMIT), 17)) == 600


@pytest.mark.parametrize("token", [Token.INSUFFICIENT_CAPACITY, Token.QUEUE_LIMIT])
def test_a_plan_writes_no_more_than_a_short_transaction_takes_and_the_rest_follows(
    token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reason_book, "_MOST_REASONS", 1000)
    book = ReasonBook()
    sizes = [len(written(book, waiting_plan(2500, "a"), now)) for now in range(4)]
    assert sizes == [1000, 1000, 500, 0]
    sizes = [len(written(book, waiting_plan(2500, "b", token), 100 + now)) for now in range(4)]
    assert sizes == [1000, 1000, 500, 0]


def test_with_a_plan_by_which_runs_start_fewer_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reason_book, "_MOST_BESIDE", 100)
    book = ReasonBook()
    plan = waiting_plan(650, "a")
    plan.holds.append(Hold(WaitingJob(1, 1, "j", 1, 1, 1, 0, 0.0, 0), "no more clusters"))
    assert [len(written(book, plan, now)) for now in range(2)] == [100, 100]
    assert len(written(book, waiting_plan(650, "a"), 2)) == 450, "nothing waits for this one"


def test_a_class_that_waits_no_more_is_forgotten_once_a_plan_is_whole() -> None:
    book = ReasonBook()
    written(book, waiting_plan(3, "a"), 0)
    written(book, Plan(is_cut=True), 1)
    assert len(book.stored) == 3
    written(book, waiting_plan(1, "a"), 2)
    assert list(book.stored) == keys(1)


def test_waiting_jobs_are_counted_by_what_they_wait_for() -> None:
    book, state = ReasonBook(), SchedulerState()
    for number, shape in enumerate((1, 1, 2), start=1):
        state.put_waiting(WaitingJob(number, 1, "j", 1, 1, shape, 0, 0.0, 0))
    written(book, waiting_plan(1, "a"), 0)
    assert book.waits(state) == {"InsufficientCapacity": 2, "NotLookedAtYet": 1}
