"""Conditions on other jobs: when they are met, when they cannot be any more, and jobs that wait for each other."""

import pytest

from trainmaster.protocol.states import Condition, ConditionState, JobState
from trainmaster_dispatcher.domain.dependencies import cycle_of, parts_by_cluster, verdict, words_on_failure

WAITING, MET, NEVER = ConditionState.WAITING, ConditionState.MET, ConditionState.NEVER
BEFORE_RUNS = (JobState.HELD, JobState.QUEUED, JobState.DISPATCHED)
ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@pytest.mark.parametrize(
    ("condition", "ends"),
    [
        (Condition.SUCCEEDED, (MET, NEVER, NEVER)),
        (Condition.FAILED, (NEVER, MET, NEVER)),
        (Condition.ENDED, (MET, MET, MET)),
    ],
)
def test_conditions_on_ends(condition: Condition, ends: tuple[ConditionState, ...]) -> None:
    for state in (*BEFORE_RUNS, JobState.RUNNING):
        for has_started in (False, True):
            assert verdict(condition, state, has_started=has_started) is WAITING
    for has_started in (False, True):
        assert tuple(verdict(condition, state, has_started=has_started) for state in ENDS) == ends


def test_a_start_counts_also_when_the_job_waits_again() -> None:
    for state in BEFORE_RUNS:
        assert verdict(Condition.STARTED, state, has_started=False) is WAITING
        assert verdict(Condition.STARTED, state, has_started=True) is MET
    assert verdict(Condition.STARTED, JobState.RUNNING, has_started=False) is MET
    assert verdict(Condition.STARTED, JobState.SUCCEEDED, has_started=False) is MET
    for state in (JobState.FAILED, JobState.CANCELLED):
        assert verdict(Condition.STARTED, state, has_started=False) is NEVER
        assert verdict(Condition.STARTED, state, has_started=True) is MET


def test_jobs_that_wait_for_each_other_are_found() -> None:
    assert cycle_of({}) is None
    assert cycle_of({1: [0], 2: [0, 1], 3: [2]}) is None
    assert cycle_of({0: [0]}) == [0]
    found = cycle_of({0: [1], 1: [2], 2: [0], 3: [0]})
    assert found is not None
    assert set(found) == {0, 1, 2}
    follows = {0: 1, 1: 2, 2: 0}
    assert all(follows[one] == after for one, after in zip(found, [*found[1:], found[0]], strict=True))


def test_the_words_say_what_has_happened_and_what_will_not() -> None:
    assert words_on_failure("a-1", JobState.FAILED, Condition.SUCCEEDED) == "a-1 has failed, so it will not succeed"
    assert words_on_failure("a-1", JobState.CANCELLED, Condition.STARTED) == "a-1 was cancelled, so it will not start"


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        ({}, {}),
        ({7: 3}, {7: 1.0}),
        ({1: 1, 2: 1}, {1: 0.5, 2: 0.5}),
        ({1: 2, 2: 1}, {1: 0.625, 2: 0.375}),
        ({1: 99, 2: 1}, {1: 1.0}),
    ],
)
def test_predecessors_count_by_the_clusters_where_they_ran(counts: dict[int, int], parts: dict[int, float]) -> None:
    assert parts_by_cluster(counts) == parts


def test_there_are_few_different_parts() -> None:
    """Jobs with equal parts are equivalent to the scheduler."""
    assert len({frozenset(parts_by_cluster({1: one, 2: 997 - one}).items()) for one in range(998)}) == 9
