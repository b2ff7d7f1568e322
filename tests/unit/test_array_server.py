"""The agent's server of arrays: when the dispatcher is called."""

import pytest

from tests.unit.test_array_distribution import call_of
from trainmaster_agent.arrays.distribution import LEASE_SECONDS, Distribution
from trainmaster_agent.arrays.server import RunningArray


@pytest.fixture
def array() -> RunningArray:
    return RunningArray("token", Distribution(10, (), 0, 0.0), heard_at=0.0)


def test_without_news_the_dispatcher_is_called_now_and_then_while_there_are_workers(array: RunningArray) -> None:
    array.distribution.call(call_of("0"), 100.0)
    array.heard_at = 100.0
    assert not array.is_due(101.0)
    assert array.is_due(103.0)
    assert not array.is_due(100.0 + LEASE_SECONDS), "the workers have ended"


def test_results_are_reported_although_there_are_no_workers_any_more(array: RunningArray) -> None:
    array.distribution.call(call_of("0", want=1), 0.0)
    array.distribution.call(call_of("0", 1, done=[(1, [(0, 0)], ())]), 0.0)
    assert array.is_due(1000.0)
    array.is_gone = True
    assert not array.is_due(1000.0)
