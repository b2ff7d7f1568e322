"""The engine: caches that follow the state's changes, forks that leave it alone, and refusals by quota that are remembered."""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import NOW, StateBuilder, nodes, simple
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import QueueState
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state import changes
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_WORKED_OUT = ("_policies_of", "_access", "_flavors", "_ancestry", "_changes", "_places")


def content(state: SchedulerState) -> dict[str, Any]:
    """Return everything in a state but the values that the state computes lazily."""
    return {name: deepcopy(value) for name, value in vars(state).items() if name not in _WORKED_OUT}


def busy() -> StateBuilder:
    builder = (
        StateBuilder()
        .queue("a", limits={"cpu": 6})
        .queue("b")
        .cluster("c", nodes(2, cpu=4))
        .cluster("d", nodes(1, cpu=2))
    )
    builder.run("r1", simple(cpu=2), on="c", queue="a").run("r2", simple(cpu=1), on="d", queue="b")
    for number in range(6):
        builder.job(f"j{number}", simple(cpu=f"{1000 + number}m"), queue="ab"[number % 2])
    return builder


# Changes of a fork

CHANGES: dict[str, Callable[[SchedulerState], None]] = {
    "a job comes": lambda state: state.put_waiting(WaitingJob(99, 1, "x", 1, 2, min(state.shapes), 0, NOW, 0)),
    "a job goes": lambda state: state.drop_job(min(state.jobs)),
    "a run ends": lambda state: state.drop_job(min(state.runs)),
    "a job starts": lambda state: state.put_run(replace(state.runs[min(state.runs)], job_id=min(state.jobs))),
    "jobs start together": lambda state: state.put_runs(
        [replace(state.runs[min(state.runs)], job_id=one) for one in sorted(state.jobs)[:2]]
    ),
    "a queue changes": lambda state: state.put_queue(Queue(1, "main", None, weight=9.0, time_limit=5.0)),
    "a queue goes": lambda state: state.drop_queue(1),
    "a class changes": lambda state: state.put_class(replace(state.classes[2], value=7)),
    "a cluster closes": lambda state: state.put_cluster(replace(state.clusters[1], report=None)),
    "a cluster goes": lambda state: state.drop_cluster(2),
    "a shape comes": lambda state: state.put_shape(77, simple(cpu=9)),
    "a lease ends": lambda state: state.set_lease(1, 0.0),
    "a job avoids a cluster": lambda state: state.set_avoided({min(state.jobs): (1,)}),
    "trouble": lambda state: state.set_trouble({1: 2.0}),
    "data": lambda state: state.set_datasets([]),
    "sweeping": lambda state: state.sweep(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_fork_leaves_the_state_as_it_was(change: Callable[[SchedulerState], None]) -> None:
    builder = busy()
    builder.applied()
    before, plan = content(builder.state), decide(builder.engine, NOW)
    fork = builder.engine.fork()
    change(fork.state)
    decide(fork, NOW)
    assert content(builder.state) == before
    assert decide(builder.engine, NOW) == plan


@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=8), st.integers(0, 99))
def test_a_fork_that_changes_decides_as_a_state_that_changes(names: list[str], seed: int) -> None:
    builder, twin = busy(), busy()
    decide(builder.engine, NOW)
    fork = builder.engine.fork()
    random.Random(seed).shuffle(names)
    for name in names:
        if name == "a queue goes":
            continue  # its jobs would go with it
        for state in (fork.state, twin.state):
            if len(state.jobs) > 2 and state.runs and len(state.clusters) > 1:
                CHANGES[name](state)
    assert decide(fork, NOW) == decide(twin.engine, NOW)


def test_only_the_jobs_of_a_question_wait_in_its_fork() -> None:
    builder = busy()
    job = WaitingJob(5000, 0, "asked", 1, 2, 4000, 0, NOW, 0)
    fork = builder.engine.fork(waiting=[job], shapes={4000: simple(cpu=1)})
    plan = decide(fork, NOW)
    assert [start.job.id for start in plan.starts] == [5000]
    assert set(fork.state.jobs) == {5000}
    assert fork.state.runs is builder.state.runs, "what it does not change is shared"
    assert 4000 not in builder.state.shapes
    assert len(builder.state.jobs) == 6


# Caches follow


def test_caches_are_made_anew_where_changes_were_not_taken_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_MOST_CHANGES", 3)
    builder = busy()
    decide(builder.engine, NOW)
    index = builder.engine.index
    for number in range(6):
        builder.run(f"more{number}", simple(cpu="100m"), on="c", queue="b")
    plan = decide(builder.engine, NOW)
    assert builder.engine.index is not index
    assert plan == decide(Engine(builder.state.fork()), NOW)


def test_a_layout_is_worked_out_once_until_the_load_of_its_group_changes() -> None:
    placed = {"nodes": {"worker": 1}}
    builder = StateBuilder().cluster("c", nodes(2, cpu=4)).run("r1", simple(cpu=2), on="c", placement=placed)
    layouts = ClusterLayouts(builder.state)
    first = layouts.now(1).groups
    assert all(layouts.now(1).groups[name] is entries for name, entries in first.items())
    builder.run("r3", simple(cpu=1), on="c", placement=placed)
    second, taken = layouts.now(1).groups, layouts.now(1).total()
    assert all(second[name] is not entries for name, entries in first.items())
    fork = builder.state.fork()
    forked = layouts.fork(fork)
    assert all(forked.now(1).groups[name] is entries for name, entries in second.items())
    fork.drop_job(builder.ids["r3"])
    assert forked.now(1).total() == ClusterLayouts(fork).now(1).total()
    assert forked.now(1).total() != taken
    assert layouts.now(1).total() == taken


# Refusals by quota


class Counted:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        real = getattr(owner, name)

        def counting(*given: Any, **named: Any) -> Any:
            self.calls += 1
            return real(*given, **named)

        monkeypatch.setattr(owner, name, counting)


def over_limit(classes: int = 50) -> StateBuilder:
    """Return a queue that has used up its limit, where ``classes`` classes of jobs wait, with one job each."""
    builder = StateBuilder().queue("a", limits={"cpu": 2}).cluster("c", nodes(4, cpu=8))
    builder.run("r", simple(cpu=2), on="c", queue="a")
    for number in range(classes):
        builder.job(f"j{number}", simple(cpu=f"{1000 + number}m"), queue="a")
    return builder


def test_classes_that_wait_for_quota_are_not_looked_at_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = over_limit()
    first = builder.cycle().plan
    counted = Counted(monkeypatch, QuotaTree, "obstacle")
    second = builder.cycle().plan
    assert counted.calls == 0
    assert len(second.reasons) == 50
    assert all(second.reasons[key] is reason for key, reason in first.reasons.items())


def test_they_are_looked_at_again_when_usage_the_limit_a_class_or_the_queue_changes() -> None:
    builder = over_limit(3)
    assert builder.cycle().reason("j1").token is Token.QUEUE_LIMIT
    builder.run("more", simple(cpu=1), on="c", queue="a")
    assert "uses 3" in builder.cycle().reason("j1").sentence
    builder.ended("more").ended("r")
    assert builder.cycle().started == ["j0"]
    builder.run("r", simple(cpu=2), on="c", queue="a")
    assert builder.cycle().started == []
    builder.queue("a", limits={"cpu": 4})
    assert builder.cycle().started == ["j0"]
    builder.queue("a", limits={"cpu": 2})
    assert builder.cycle().started == []
    found = next(one for one in builder.state.classes.values() if one.name == "normal")
    builder.state.put_class(replace(found, fault="its specification cannot be read"))
    assert builder.cycle().reason("j1").token is not Token.QUEUE_LIMIT
    builder.state.put_class(found)
    held = next(one for one in builder.state.queues.values() if one.path == "a")
    builder.state.put_queue(replace(held, state=QueueState.HELD))
    assert builder.cycle().reason("j1").token is Token.QUEUE_HELD


def test_a_job_of_a_higher_class_still_ends_a_run_of_its_queue() -> None:
    builder = over_limit(5)
    builder.cycle()
    builder.job("urgent", simple(cpu=1), queue="a", of="high")
    plan = builder.cycle().plan
    assert [one.job_id for one in plan.stops] == [builder.ids["r"]]
    builder.cycle()
    builder.stopping("r")
    assert builder.cycle().plan.stops == []


@pytest.mark.parametrize("seed", range(20))
def test_plans_with_remembered_refusals_equal_plans_without(seed: int) -> None:
    chance, builder = random.Random(seed), StateBuilder()
    builder.queue("org", limits={"cpu": 6}).queue("org/a", limits={"cpu": 3}).queue("org/b").queue(
        "other", limits={"cpu": 2}
    )
    builder.cluster("c", nodes(3, cpu=4))
    queues, alive = ("org/a", "org/b", "other"), list[str]()
    for step in range(40):
        name = f"x{step}"
        shape = simple(cpu=f"{chance.choice([500, 1000, 1001, 1002, 2500])}m")
        match chance.choice(["job", "job", "job", "run", "end", "limit"]):
            case "job":
                builder.job(name, shape, queue=chance.choice(queues), of=chance.choice(["low", "normal", "high"]))
            case "run":
                builder.run(name, shape, on="c", queue=chance.choice(queues), of=chance.choice(["low", "normal"]))
                alive.append(name)
            case "end" if alive:
                builder.ended(alive.pop(chance.randrange(len(alive))))
            case "limit":
                builder.queue(chance.choice(queues), limits={"cpu": chance.choice([1, 2, 3, 5])})
        plan, anew = decide(builder.engine, NOW), decide(Engine(builder.state.fork(), builder.engine.carried), NOW)
        assert (plan.starts, plan.stops, plan.reasons) == (anew.starts, anew.stops, anew.reasons)
