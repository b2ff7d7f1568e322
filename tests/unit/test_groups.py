"""Groups: when one has ended and how, conditions on it, changes of its numbers, and what specifications may say of them."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmaster.protocol.dependencies import Predecessor
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.states import Condition, ConditionState, GroupState, JobState
from trainmaster_dispatcher.domain.groups import (
    GroupFacts,
    counted,
    deltas_of,
    state_of,
    verdict_on_group,
    words_on_group,
)

STATES = {
    "an open group with unfinished jobs": (GroupFacts(False, True, 3, 1, 0, 0), GroupState.OPEN),
    "an open group whose jobs have all ended": (GroupFacts(False, False, 3, 1, 1, 1), GroupState.OPEN),
    "a closed group with unfinished jobs": (GroupFacts(True, True, 3, 1, 1, 0), GroupState.CLOSED),
    "all have succeeded": (GroupFacts(True, False, 3, 3, 0, 0), GroupState.SUCCEEDED),
    "one was cancelled": (GroupFacts(True, False, 3, 2, 0, 1), GroupState.CANCELLED),
    "one has failed": (GroupFacts(True, False, 3, 2, 1, 0), GroupState.FAILED),
    "a failure counts more than a cancellation": (GroupFacts(True, False, 3, 1, 1, 1), GroupState.FAILED),
}


@pytest.mark.parametrize(("facts", "state"), STATES.values(), ids=STATES)
def test_states(facts: GroupFacts, state: GroupState) -> None:
    assert state_of(facts) is state


VERDICTS = {
    (Condition.SUCCEEDED, GroupState.SUCCEEDED): ConditionState.MET,
    (Condition.SUCCEEDED, GroupState.FAILED): ConditionState.NEVER,
    (Condition.SUCCEEDED, GroupState.CANCELLED): ConditionState.NEVER,
    (Condition.FAILED, GroupState.SUCCEEDED): ConditionState.NEVER,
    (Condition.FAILED, GroupState.FAILED): ConditionState.MET,
    (Condition.FAILED, GroupState.CANCELLED): ConditionState.NEVER,
    (Condition.ENDED, GroupState.SUCCEEDED): ConditionState.MET,
    (Condition.ENDED, GroupState.FAILED): ConditionState.MET,
    (Condition.ENDED, GroupState.CANCELLED): ConditionState.MET,
}


def test_conditions_on_groups_are_decided_by_their_ends_alone() -> None:
    for condition, state in product((Condition.SUCCEEDED, Condition.FAILED, Condition.ENDED), GroupState):
        expected = VERDICTS.get((condition, state), ConditionState.WAITING)
        assert verdict_on_group(condition, state) is expected, (condition, state)


def test_words_say_what_a_group_lacks() -> None:
    assert words_on_group("g", GroupState.OPEN, Condition.SUCCEEDED) == (
        "group g, which is open: it has to be closed, and all its jobs have to succeed"
    )
    assert words_on_group("g", GroupState.CLOSED, Condition.FAILED) == (
        "group g, which is closed: all its jobs have to end, and one has to fail"
    )
    assert words_on_group("g", GroupState.CANCELLED, Condition.SUCCEEDED) == (
        "group g has ended and a job of it was cancelled, so the condition succeeded will not be met"
    )


@given(st.lists(st.lists(st.sampled_from(JobState), min_size=1, max_size=8), max_size=8))
def test_changes_of_numbers_add_up_to_the_jobs_that_there_are(lives: list[list[JobState]]) -> None:
    """Each life is that of a job, by its states one after the other."""
    numbers = dict.fromkeys(("total", "succeeded", "failed", "cancelled"), 0)
    for life in lives:
        for before, after in zip([None, *life], life, strict=False):
            for name, many in deltas_of(before, after).items():
                numbers[name] += many
    last = [life[-1] for life in lives]
    assert numbers == {"total": len(lives), **{name: last.count(JobState(name)) for name in list(numbers)[1:]}}


def test_numbers_that_are_not_consistent_are_counted_by_the_stored_jobs() -> None:
    facts = GroupFacts(True, False, 10, 4, 0, 1)
    assert not facts.is_consistent
    again = counted(facts, {JobState.SUCCEEDED: 3, JobState.FAILED: 5})
    assert again == GroupFacts(True, False, 10, 4, 5, 1), "one that has succeeded was removed"
    assert again.is_consistent
    assert state_of(again) is GroupState.FAILED
    assert GroupFacts(True, True, 10, 4, 0, 1).is_consistent


def spec(**fields: Any) -> JobSpec:
    role = {"name": "main", "template": {"command": ["true"]}}
    return JobSpec.model_validate({"name": "a", "queue": "q", "roles": [role], **fields})


@pytest.mark.parametrize("name", ["g", "sweep-7", "A.b_c", "7", "x" * 63])
def test_names(name: str) -> None:
    assert spec(group=name).group == name


@pytest.mark.parametrize("name", ["", "-g", "g-", "a b", "a/b", "ü", "x" * 64])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValidationError, match="group"):
        spec(group=name)


def test_a_webhook_of_the_group_has_neither_states_nor_deadline() -> None:
    hook = {"url": "https://example.org/hook", "group": True}
    written = spec(group="g", notify=[hook]).to_wire()
    assert written["notify"] == [hook]
    assert spec(**written | {"kind": "Job"}).notify[0].group
    for fields in ({"states": ["failed"]}, {"deadline": True}):
        with pytest.raises(ValidationError, match="leave out states and deadline"):
            spec(group="g", notify=[hook | fields])
    with pytest.raises(ValidationError, match="give the job a group"):
        spec(notify=[hook])


def test_a_predecessor_is_one_of_three() -> None:
    assert Predecessor.model_validate({"group": "g", "queue": "other"}).condition is Condition.SUCCEEDED
    for wrong in ({}, {"group": "g", "job": "a"}, {"group": "g", "labels": {"a": "b"}}):
        with pytest.raises(ValidationError, match="exactly one of job, labels and group"):
            Predecessor.model_validate(wrong)
    with pytest.raises(ValidationError, match="no moment at which it has started"):
        Predecessor.model_validate({"group": "g", "condition": "started"})
