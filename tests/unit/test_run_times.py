"""Predicted run times: the mean of the last two of equivalent jobs, and longer ones for runs that outlast them."""

from math import inf

import pytest

from tests.unit.building import StateBuilder, gang, nodes, role
from trainmaster.protocol.states import FairBy, OrderBy
from trainmaster_dispatcher.domain import run_times
from trainmaster_dispatcher.domain.run_times import RunTime, RunTimes, expected_end


def test_the_last_two_of_the_same_user_and_shape_count() -> None:
    past = [RunTime("ann", 1, 100.0), RunTime("ann", 1, 15.0), RunTime("ben", 1, 50.0), RunTime("ann", 1, 20.0)]
    found = RunTimes.of(past)
    assert found.predicted("ann", 1) == 17.5
    assert found.predicted("ben", 1) == 50.0
    assert found.predicted("", 1) == 35.0, "of all users, the last two"
    assert found.predicted("ann", 2) is None
    assert found.predicted("carl", 1) is None


def test_no_prediction_is_shorter_than_what_a_start_takes() -> None:
    assert RunTimes.of([RunTime("ann", 1, 0.5)]).predicted("ann", 1) == 10.0


def test_what_is_off_learns_and_predicts_nothing() -> None:
    found = RunTimes(is_on=False)
    found.note("ann", 1, 100.0)
    assert not found
    assert found.predicted("ann", 1) is None


MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("ran", "end"),
    [
        (0, 100),
        (99.5, 100),
        (100, 100 + MINUTE),
        (100 + MINUTE, 100 + 6 * MINUTE),
        (100 + 6 * MINUTE, 100 + 21 * MINUTE),
        (100 + 51 * MINUTE, 100 + 111 * MINUTE),
        (100 + 189 * HOUR, 1000 * HOUR),
    ],
)
def test_a_run_that_outlasts_its_prediction_is_given_longer_ones(ran: float, end: float) -> None:
    assert expected_end(5000.0, 100.0, 5000.0 + 1000 * HOUR, 5000.0 + ran) == 5000.0 + end
    assert expected_end(5000.0, 100.0, 5000.0 + 130.0, 5000.0 + ran) == 5000.0 + min(end, 130.0)
    assert expected_end(5000.0, 100.0, inf, 5000.0 + 190 * HOUR) == inf


def test_what_was_not_seen_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "_MOST_KEYS", 4)
    found = RunTimes.of([RunTime("ann", 1, 10.0), RunTime("ben", 2, 20.0)])
    found.note("ann", 1, 30.0)
    found.note("carl", 3, 4.0)
    assert found.predicted("ben", 2) is None
    assert found.predicted("ann", 1) == 20.0


def test_who_used_to_be_quick_goes_first_whatever_the_limit_says() -> None:
    builder = StateBuilder().queue("main", order_by=OrderBy.SLOWDOWN, fair_by=FairBy.NONE, time_limit=3600.0)
    builder.cluster("c", nodes(1, cpu=1))
    builder.job("slow", user="ann", age=200).job("quick", user="ben", age=100)
    assert builder.cycle().started == ["slow"]
    builder.run("before", on="c", ago=60.0, user="ben")
    builder.state.end_job(builder.ids["before"], builder.now)
    assert builder.cycle().started == ["quick"], "100 of about 60 seconds, before 200 of 3,600"
    builder.job("limited", gang(role(1), time_limit_seconds=30.0), user="ben", age=99)
    assert builder.cycle().started == ["limited"], (
        "another limit is another shape, of which nothing is known but the limit"
    )


def test_a_run_that_ended_for_others_teaches_nothing() -> None:
    builder = StateBuilder().cluster("c", nodes(1, cpu=1)).run("r", on="c", ago=60.0, user="ann")
    shape_id = builder.state.runs[builder.ids["r"]].shape_id
    builder.requeued("r")
    assert builder.state.run_times.predicted("ann", shape_id) is None
