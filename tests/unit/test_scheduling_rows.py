"""Equivalent jobs directly behind one another start together: as they would one after the other, and in turns with others."""

import os
import random
from collections import Counter
from typing import Any

import pytest

from tests.unit.building import StateBuilder, nodes, simple
from trainmaster.protocol.states import ClusterKind, Order
from trainmaster_dispatcher.scheduling.cycle import start_accounting
from trainmaster_dispatcher.scheduling.quotas.fair_share import LONGEST_ROW, STEP, FairShareQueue
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

NOW = 1_000_000.0
WORLDS = 3000 if os.environ.get("TRAINMASTER_DEEP") else 600


def outcome(plan: Plan) -> tuple[Any, ...]:
    """Return the part of a plan that does not depend on why a cluster was chosen."""
    starts = [(one.job.id, one.cluster_id, one.sizes, one.placement, one.product, one.evicts) for one in plan.starts]
    return starts, plan.stops, plan.holds, plan.is_cut, plan.reasons, plan.reservations


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The number of rows of each length."""
    lengths: Counter[int] = Counter()
    end_row = FairShareQueue.end_row

    def counted(self: Any, key: Any, count: int) -> None:
        lengths[count + 1] += 1
        end_row(self, key, count)

    monkeypatch.setattr(FairShareQueue, "end_row", counted)
    return lengths


def some_world(seed: int) -> StateBuilder:
    """Return a few queues with quotas, clusters of some nodes, and jobs of few shapes that often come one behind the other."""
    chance = random.Random(seed)
    world = StateBuilder()
    queues = ["main", "main/a", "main/b", "other"][: chance.randint(1, 4)]
    for path in queues:
        world.queue(
            path,
            weight=chance.choice([1.0, 1.0, 2.0]),
            guaranteed={"cpu": chance.choice([0, 0, 3])},
            limits={"cpu": chance.randint(4, 20)} if chance.random() < 0.3 else None,
            lending={"cpu": 1} if chance.random() < 0.1 else None,
            max_running=chance.randint(1, 9) if chance.random() < 0.2 else None,
            order=chance.choice([Order.BEST_EFFORT, Order.BEST_EFFORT, Order.STRICT]),
            time_limit=chance.choice([None, 60.0]),
        )
    if chance.random() < 0.3:
        world.longest_wait("normal", 0.01)
    for number in range(chance.randint(1, 3)):
        groups = [
            nodes(
                chance.randint(1, 4),
                f"g{one}",
                cpu=chance.randint(1, 8),
                gpu=chance.choice([0, 2, 2]),
                labels={"product": chance.choice(["A", "B", "C"])},
            )
            for one in range(chance.randint(1, 3))
        ]
        world.cluster(f"c{number}", *groups, kind=chance.choice([ClusterKind.PRIVATE, ClusterKind.EDGE]))
    shapes = [simple(cpu=1), simple(cpu=2), simple(cpu=1, gpu=1), simple(3, cpu=1), simple(cpu=9)]
    for number in range(chance.randint(1, 12)):
        few = {"queue": chance.choice(queues), "of": chance.choice(["normal", "normal", "high"])}
        world.jobs(chance.randint(1, 8), f"j{number}-", chance.choice(shapes), **few)
    return world


@pytest.mark.parametrize("batch", range(4))
def test_rows_decide_as_one_job_after_the_other(
    batch: int, rows: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(batch, WORLDS, 4):
        plan = some_world(seed).cycle().plan
        with monkeypatch.context() as patched:
            patched.setattr(start_accounting, "LONGEST_ROW", 1)
            one_by_one = some_world(seed).cycle().plan
        assert outcome(plan) == outcome(one_by_one), f"seed {seed}"
    assert sum(many for length, many in rows.items() if length > 2) > WORLDS / 6, "hardly any rows, so little was shown"


def test_a_queue_alone_starts_its_jobs_in_long_rows(rows: Counter[int]) -> None:
    stage = StateBuilder().cluster("c", nodes(50, cpu=4)).jobs(150, "j", simple(cpu=1))
    plan = stage.cycle().plan
    assert [one.job.id for one in plan.starts] == sorted(one.job.id for one in plan.starts)
    assert len(plan.starts) == 150
    assert max(rows) == LONGEST_ROW


def test_what_does_not_fit_on_the_best_cluster_goes_to_the_next(rows: Counter[int]) -> None:
    stage = StateBuilder().cluster("c1", nodes(2, cpu=4)).cluster("c2", nodes(3, cpu=4))
    plan = stage.jobs(30, "j", simple(cpu=1)).cycle().plan
    assert Counter(one.cluster_id for one in plan.starts) == {1: 8, 2: 12}
    assert len(plan.reasons) == 1


def test_a_limit_ends_a_row_where_it_would_end_the_jobs_one_by_one(rows: Counter[int]) -> None:
    stage = StateBuilder().queue("main", limits={"cpu": 7}).cluster("c", nodes(10, cpu=4)).jobs(20, "j", simple(cpu=2))
    assert len(stage.cycle().plan.starts) == 3
    stage = StateBuilder().queue("main", max_running=5).cluster("c", nodes(10, cpu=4)).jobs(20, "j", simple(cpu=2))
    assert len(stage.cycle().plan.starts) == 5


def test_others_of_the_queue_keep_their_places(rows: Counter[int]) -> None:
    """A job of another shape that was submitted between equivalent jobs starts between them."""
    stage = StateBuilder().cluster("c", nodes(50, cpu=4))
    stage.jobs(5, "early", simple(cpu=1)).jobs(1, "other", simple(cpu=2)).jobs(5, "late", simple(cpu=1))
    plan = stage.cycle().plan
    assert [one.job.name for one in plan.starts] == [
        *(f"early{n}" for n in range(1, 6)),
        "other1",
        *(f"late{n}" for n in range(1, 6)),
    ]


def test_siblings_are_ahead_of_one_another_by_a_step_and_a_job_at_most(rows: Counter[int]) -> None:
    whole = 40_000
    stage = StateBuilder().queue("a").queue("b", weight=2.0).cluster("c", nodes(whole // 4, cpu=4))
    stage.jobs(400, "x", simple(cpu=1), queue="a").jobs(400, "y", simple(cpu=1), queue="b")
    a, b = stage.queues["a"], stage.queues["b"]
    used = {a: 0.0, b: 0.0}
    weights = {a: 1.0, b: 2.0}
    last = 0
    for start in stage.cycle(600).plan.starts:
        queue = start.job.queue_id
        if queue != last:
            ahead = abs(used[a] / weights[a] - used[b] / weights[b])
            assert ahead <= STEP + 2 / whole
        used[queue] += 1 / whole
        last = queue
    assert max(rows) > 5


def test_runs_alike_are_counted_together_as_one_by_one() -> None:
    def of(job_id: int, shape_id: int = 1) -> LiveRun:
        return LiveRun(job_id, 1, shape_id, 1, (("worker", 1),), (("nodes", (("worker", 1),)),), 2, NOW)

    def state() -> SchedulerState:
        stage = StateBuilder().cluster("c", nodes(10, cpu=4))
        stage.jobs(6, "j", simple(cpu=1)).jobs(2, "k", simple(cpu=2))
        return stage.state

    together, single = state(), state()
    runs = [of(1), of(2), of(3), of(7, 2), of(8, 2), of(5)]
    together.put_runs(runs)
    for run in runs:
        single.put_run(run)
    for name in ("jobs", "runs", "waiting", "heads", "load", "runs_on", "used", "running", "running_classes"):
        assert getattr(together, name) == getattr(single, name), name
    together.drop_job(2)
    single.drop_job(2)
    assert (together.load, together.used, together.runs_on) == (single.load, single.used, single.runs_on)
