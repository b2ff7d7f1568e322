"""Who runs which element of an array: no element is lost, and none is given away again after its success is known."""

import random
from collections import Counter
from itertools import count as counting
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.protocol.arrays import ArrayCounts, FailedElement, Span
from trainmaster_agent.arrays import distribution
from trainmaster_agent.arrays.distribution import (
    IDLE_SECONDS,
    LEASE_SECONDS,
    MOST_LOSSES,
    RECLAIM_SECONDS,
    Distribution,
    EndedBatch,
    WorkerAnswer,
    WorkerCall,
)
from trainmaster_agent.arrays.server import read_request
from trainmaster_agent.arrays.worker import ArrayWorker, ElementFailed, ElementRunner
from trainmaster_dispatcher.domain.arrays import Block, counts_after, masks, spans_of_blocks

RUNS = counting()
"""Numbers of runs of elements."""


def elements_of(spans: Any) -> list[int]:
    return [element for first, last in spans for element in range(first, last + 1)]


def call_of(member: str, number: int = 0, **fields: Any) -> WorkerCall:
    """Return a call; ``done``: batches, each as a tuple."""
    given: dict[str, Any] = {"done": (), "held": (), "running": (), "want": 0, "life": "x", "agent": ""} | fields
    given["done"] = [EndedBatch(*batch) for batch in given["done"]]
    return WorkerCall(member=member, number=number, **given)


class StoredArray:
    """What the dispatcher has of an array: each element counts once."""

    def __init__(self, count: int) -> None:
        self.count, self.block, self.counts = count, Block(), ArrayCounts()
        self.results: dict[int, str] = {}

    def take(self, distribution: Distribution) -> None:
        report = distribution.report()
        good, bad = (
            masks(spans).get(0, 0) for spans in (report.succeeded, [(f.element, f.element) for f in report.failed])
        )
        after = self.block.with_ended(succeeded=good, failed=bad)
        new = after.succeeded & ~self.block.succeeded
        self.results |= {element: value for element, value in report.results if new & 1 << element}
        self.counts, self.block = counts_after(self.counts, {0: self.block}, {0: after}), after
        distribution.reported(report)
        if self.counts.ended == self.count:
            distribution.set_over()

    @property
    def ended(self) -> tuple[Span, ...]:
        return tuple(spans_of_blocks({0: self.block.ended}))


class NoRunner(ElementRunner):
    """A runner whose elements are run by the test."""

    def run(self, element: int) -> ElementFailed | None:
        raise AssertionError("the test runs elements by itself")


class SimulatedWorker(ArrayWorker):
    """A worker whose elements end when the test says so."""

    def __init__(self, member: int, slots: int) -> None:
        super().__init__([NoRunner({}) for _ in range(slots)])
        self.member = str(member)

    def begin(self, slot: int) -> int | None:
        if slot in self._running or not self._waiting or self._is_over:
            return None
        element = self._running[slot] = self._waiting.popleft()
        return element

    def finish(self, slot: int, failure: ElementFailed | None) -> int | None:
        if slot not in self._running:
            return None
        element = self._running[slot]
        result = f"[{element},{next(RUNS)}]" if failure is None else None
        self._note_end(slot, element, failure, result, 0.01)
        return element


class Cluster:
    """An agent with its workers, all of which may end at any moment, and what was run."""

    def __init__(self, seed: int, count: int, workers: int, retries: int, max_running: int | None = None) -> None:
        self.max_running = max_running
        self.random = random.Random(seed)
        self.now, self.retries, self.slots = 0.0, retries, self.random.randint(1, 3)
        self.stored = StoredArray(count)
        self.distribution = self.new_distribution()
        self.workers = [SimulatedWorker(member, self.slots) for member in range(workers)]
        self.ended_workers: set[str] = set()
        self.known: set[int] = set()
        """Elements whose success the agent has, or has stored."""
        self.begun: Counter[int] = Counter()

    def new_distribution(self) -> Distribution:
        stored = self.stored
        return Distribution(stored.count, stored.ended, self.retries, self.now, str(self.now), self.max_running)

    @property
    def running(self) -> int:
        return sum(len(worker._running) for worker in self.workers)

    def call(self, worker: SimulatedWorker, *, is_lost: bool) -> None:
        call = read_request(orjson.dumps(worker.request()))
        answer = self.distribution.call(call, self.now)
        if call.agent == answer.agent:
            for batch in call.done:
                self.known.update(elements_of(batch.succeeded))
        assert not self.known.intersection(elements_of(answer.elements)), (
            "an element is given away again after its success"
        )
        if not is_lost and worker.take(answer.to_wire()):
            self.ended_workers.add(worker.member)

    def restart_agent(self) -> None:
        """Start another agent: it knows what is stored, and learns the rest of workers that are still there."""
        self.distribution = self.new_distribution()
        self.known = set(elements_of(self.stored.ended))

    def step(self, *, faults: bool) -> None:
        self.now += self.random.choice((0.0, 0.1, 0.5, 2.0)) if faults else 0.01
        worker = self.random.choice(self.workers)
        if worker.member in self.ended_workers:
            return
        action = self.random.random()
        slot = self.random.randrange(self.slots)
        if action < 0.4:
            self.call(worker, is_lost=faults and self.random.random() < 0.2)
        elif action < 0.65:
            element = worker.begin(slot)
            if element is not None:
                self.begun[element] += 1
        elif action < 0.85:
            is_bad = self.random.random() < 0.2
            worker.finish(slot, ElementFailed(1, message="no") if is_bad else None)
        elif action < 0.95:
            self.stored.take(self.distribution)
        elif faults and action < 0.98:
            self.workers[int(worker.member)] = SimulatedWorker(int(worker.member), self.slots)
        elif faults:
            self.restart_agent()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 4), st.integers(0, 2))
def test_each_element_ends_and_counts_once_whatever_is_killed(
    seed: int, count: int, workers: int, retries: int
) -> None:
    cluster = Cluster(seed, count, workers, retries)
    for _ in range(400):
        cluster.step(faults=True)
    for _ in range(40_000):
        if len(cluster.ended_workers) == workers:
            break
        cluster.step(faults=False)
    assert cluster.stored.counts.ended == count
    assert len(cluster.ended_workers) == workers
    # Each success has the result of one of its runs.
    succeeded = elements_of(spans_of_blocks({0: cluster.stored.block.succeeded}))
    assert sorted(cluster.stored.results) == succeeded
    assert all(orjson.loads(value)[0] == element for element, value in cluster.stored.results.items())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 4))
def test_where_nothing_is_killed_each_element_runs_once(seed: int, count: int, workers: int) -> None:
    cluster = Cluster(seed, count, workers, retries=0)
    for _ in range(40_000):
        if len(cluster.ended_workers) == workers:
            break
        cluster.step(faults=False)
    assert cluster.stored.counts.ended == count
    assert cluster.begun == Counter(range(count))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 6), st.integers(1, 5))
def test_no_more_elements_run_than_the_array_allows_and_all_of_them_end(
    seed: int, count: int, workers: int, max_running: int
) -> None:
    cluster = Cluster(seed, count, workers, 0, max_running)
    most = 0
    for _ in range(40_000):
        if len(cluster.ended_workers) == workers:
            break
        cluster.step(faults=False)
        most = max(most, cluster.running)
    assert cluster.stored.counts.ended == count
    assert most <= max_running


@pytest.mark.parametrize(("workers", "max_running", "most"), [(4, 4, 1), (4, 8, 2), (3, 4, 2), (4, 2, 1)])
def test_elements_that_may_run_are_shared_among_the_workers(workers: int, max_running: int, most: int) -> None:
    found = Distribution(100, (), 0, 0.0, max_running=max_running)
    for member in range(workers):
        found.call(call_of(str(member)), 0.0)
    given = [len(elements_of(found.call(call_of(str(n), 1, want=9), 0.0).elements)) for n in range(workers)]
    assert sum(given) == max_running
    assert max(given) == most


def test_elements_of_a_worker_that_calls_no_more_are_given_to_others() -> None:
    found = Distribution(10, (), 0, 0.0)
    assert elements_of(found.call(call_of("0", want=2), 0.0).elements) == [0, 1]
    assert elements_of(found.call(call_of("1", want=9), 1.0).elements) == [2]
    later = 1.0 + LEASE_SECONDS
    given = found.call(call_of("1", 1, held=[(2, 2)], want=9), later).elements
    assert elements_of(given) == [3]
    done = [(1, [(2, 9)], ())]
    assert elements_of(found.call(call_of("1", 2, done=done, want=9), later).elements) == [
        0
    ]  # alone, to find what ends workers
    assert elements_of(found.call(call_of("1", 3, held=[(0, 0)], want=9), later).elements) == []
    assert elements_of(found.call(call_of("1", 4, done=[(2, [(0, 0)], ())], want=9), later).elements) == [1]


def test_an_element_whose_workers_end_again_and_again_has_failed_and_takes_no_other_one_with_it() -> None:
    found = Distribution(4, (), 0, 0.0)
    done: tuple[Any, ...] = ()
    for life in range(20):
        given = elements_of(found.call(call_of("0", life=str(life), done=done, want=4), life).elements)
        # The member ends with the element 2, and runs all others.
        done = ((1, [(given[0], given[0])], ()),) if given and given[0] != 2 else ()
        if done:
            found.call(call_of("0", 1, life=str(life), done=done, want=0), life)
            done = ()
    report = found.report()
    assert [one.element for one in report.failed] == [2]
    assert report.failed[0].message == f"{MOST_LOSSES} members ended while they ran it"
    assert elements_of(report.succeeded) == [0, 1, 3]


def test_an_agent_that_starts_again_gives_nothing_away_until_workers_have_said_what_they_hold() -> None:
    found = Distribution(10, [(0, 3)], 0, 100.0)
    assert found.call(call_of("0", 7, held=[(4, 5)], running=[(4, 4)], want=3), 100.0) == WorkerAnswer()
    assert found.call(call_of("1", 9, held=[(6, 6)], want=3), 101.0).elements == ()
    given = found.call(call_of("1", 10, held=[(6, 6)], want=3), 100.0 + RECLAIM_SECONDS).elements
    assert elements_of(given) == [7]


def test_what_two_workers_hold_is_run_by_the_one_that_said_so_first() -> None:
    found = Distribution(10, (), 0, 0.0)
    found.call(call_of("0", 1, held=[(4, 5)]), 0.0)
    answer = found.call(call_of("1", 1, held=[(5, 6)]), 0.0)
    assert elements_of(answer.drop) == [5]


def test_a_failed_element_is_tried_again_as_often_as_the_array_says() -> None:
    found = Distribution(1, (), 2, 0.0)
    failure = FailedElement(element=0, exit_code=1)
    for batch in range(3):
        assert elements_of(
            found.call(call_of("0", batch, done=[(batch, (), [failure])] if batch else (), want=1), 0.0).elements
        ) == [0]
        assert not found.report().failed
    found.call(call_of("0", 3, done=[(3, (), [failure])]), 0.0)
    assert found.report().failed == (failure,)


def test_results_count_as_stored_once_the_dispatcher_has_them() -> None:
    found = Distribution(2, (), 0, 0.0)
    found.call(call_of("0", want=1), 0.0)
    assert found.call(call_of("0", 1, done=[(1, [(0, 0)], ())]), 0.0).stored == 0
    report = found.report()
    found.reported(report)
    assert report.succeeded == ((0, 0),)
    assert found.call(call_of("0", 2, done=[(1, [(0, 0)], ())]), 0.0).stored == 1
    assert not found.has_report()


def test_cancelled_elements_are_neither_given_nor_run_on() -> None:
    found = Distribution(10, (), 0, 0.0)
    found.call(call_of("0", want=2), 0.0)
    found.cancel([(1, 8)])
    answer = found.call(call_of("0", 1, held=[(0, 1)], want=5), 0.0)
    assert elements_of(answer.drop) == [1]
    assert elements_of(answer.elements) == [9]


def test_workers_end_once_the_array_is_over_and_all_results_are_stored() -> None:
    found = Distribution(2, (), 0, 0.0)
    found.call(call_of("0", want=1), 0.0)
    found.set_over()
    answer = found.call(call_of("0", 1, held=[(1, 1)], done=[(1, [(0, 0)], ())]), 0.0)
    assert (answer.end, elements_of(answer.drop)) == (False, [1])
    found.reported(found.report())
    assert found.call(call_of("0", 2), 0.0).end


def test_elements_behind_one_that_takes_long_are_given_back_for_a_worker_without_any() -> None:
    found = Distribution(4, (), 0, 0.0)
    found.call(call_of("1"), 0.0)
    for number in range(4):
        found.call(
            call_of("0", number, held=[(0, number - 1)] if number else (), running=[(0, 0)] if number else (), want=1),
            0.0,
        )
    slow = {"held": [(0, 3)], "running": [(0, 0)]}
    assert found.call(call_of("0", 4, **slow), 0.1).recall == ()
    assert found.call(call_of("1", 1, want=1), 0.1) == WorkerAnswer(wait=IDLE_SECONDS)
    assert found.call(call_of("0", 5, **slow), 0.2).recall == ((1, 3),)
    assert found.call(call_of("1", 2, want=1), 0.3).elements == ()  # it may have begun them
    found.call(call_of("0", 6, held=[(0, 1)], running=[(0, 1)]), 0.4)
    assert found.call(call_of("1", 3, want=1), 0.5).elements == ((2, 2),)


def test_a_report_with_too_many_results_has_the_first_successes_and_what_these_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distribution, "MOST_REPORTED_RESULTS", 3)
    found = Distribution(10, (), 0, 0.0)
    found.call(call_of("0", 1, done=[(1, [(0, 9)], (), {element: f'"{element}"' for element in range(9)})]), 0.0)
    stored: dict[int, str] = {}
    for first, last, seen in ((0, 2, {}), (3, 5, {}), (6, 9, {"0": ("x", 1)})):
        report = found.report()
        assert (report.succeeded, len(report.results), report.seen) == (((first, last),), 3, seen)
        stored |= dict(report.results)
        found.reported(report)
    assert not found.has_report()
    assert stored == {element: f'"{element}"' for element in range(9)}


def test_a_repeated_batch_does_not_change_what_an_element_returned() -> None:
    found = Distribution(2, (), 0, 0.0)
    found.call(call_of("0", 1, done=[(1, [(0, 0)], (), {0: "1"})]), 0.0)
    found.call(call_of("1", 1, done=[(1, [(0, 0)], (), {0: "2"})]), 0.0)
    assert found.report().results == ((0, "1"),)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_last_elements_are_shared_among_the_workers(workers: int) -> None:
    found = Distribution(100, (), 0, 0.0)
    for member in range(workers):
        found.call(call_of(str(member)), 0.0)
    assert len(elements_of(found.call(call_of("0", 1, want=512), 0.0).elements)) == 100 // (4 * workers)
