"""Decisions that may take long are computed in a thread, so that the lead is renewed meanwhile."""

import threading
from itertools import count

import pytest

from tests.unit.building import StateBuilder
from trainmaster_dispatcher.scheduler import loop
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.state.plan import Plan


async def test_after_a_long_decision_the_next_ones_are_computed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[bool] = []
    seconds = iter((0.001, 0.001, 5.0, 5.0, 0.001, 0.001))
    clock = count(0.0, 100.0)
    now = [0.0]

    def decide(_engine: Engine, _now: float) -> Plan:
        places.append(threading.current_thread() is threading.main_thread())
        now[0] += next(seconds)
        if len(places) == 4:
            raise RuntimeError("a decision that fails takes its time, too")
        return Plan()

    monkeypatch.setattr(loop, "decide", decide)
    monkeypatch.setattr("trainmaster_dispatcher.scheduler.loop.time.perf_counter", lambda: now[0])
    engine = Engine(StateBuilder().state)
    decider = loop.Decider()
    for _ in range(3):
        await decider.decide(engine, next(clock))
    with pytest.raises(RuntimeError):
        await decider.decide(engine, next(clock))
    for _ in range(2):
        await decider.decide(engine, next(clock))
    assert places == [True, True, True, False, False, True]
