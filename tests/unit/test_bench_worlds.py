"""The worlds that the scheduler is measured on are what they are said to be, and the same each time."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from bench.worlds import GPU, HIGH, LOW, NORMAL, NOW, ROLE, Size, World, gangs, make, make_kinds, reclaim_storm
from trainmaster.protocol.reasons import Tier
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, freeze_placement
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

SMALL = Size(jobs=400, queues=30, kinds=40, clusters=4, groups=10, starts=100)


FULL = Size(jobs=2000, queues=4, kinds=40, clusters=4, groups=10, starts=300)


def free(state: SchedulerState, resource: str) -> int:
    """Return what is free of a resource on all clusters."""
    layouts = ClusterLayouts(state)
    return sum(layouts.now(cluster_id).total().get(resource, 0) for cluster_id in state.clusters)


def nodes_of(world: World) -> int:
    reports = [cluster.report for cluster in world.state.clusters.values()]
    return sum(group.count for report in reports if report is not None for group in report.groups)


def settle(world: World) -> int:
    """Decide and apply until nothing starts; return how many jobs have started. Preempted runs end at once."""
    started = 0
    while (plan := decide(world.engine, NOW)).starts:
        for victim in [*plan.stops, *(one for start in plan.starts for one in start.evicts)]:
            world.state.drop_job(victim.job_id)
        for start in plan.starts:
            sizes, placement = tuple(start.sizes.items()), freeze_placement(start.placement)
            job = start.job
            world.state.put_run(
                LiveRun(job.id, job.queue_id, job.shape_id, start.cluster_id, sizes, placement, job.class_id, NOW)
            )
        started += len(plan.starts)
    return started


def test_the_same_seed_gives_the_same_world() -> None:
    one, same, other = make(SMALL), make(SMALL), make(replace(SMALL, seed=2))
    assert one.state.jobs == same.state.jobs
    assert one.state.clusters == same.state.clusters
    assert one.state.shapes == same.state.shapes
    assert one.state.jobs != other.state.jobs


def test_a_world_has_what_its_size_says() -> None:
    world = make(SMALL)
    state = world.state
    parents = {queue.parent_id for queue in state.queues.values() if queue.parent_id is not None}
    assert len(state.jobs) == 400
    assert len(world.leaves) == 30
    assert len(state.queues) == 32, "25 teams at most below one queue"
    assert all(state.queues[parent].parent_id is None for parent in parents), "a tree of two levels"
    assert {job.queue_id for job in state.jobs.values()} <= set(world.leaves)
    assert len(set(state.shapes.values())) == 40
    assert [len(cluster.report.groups) for cluster in state.clusters.values() if cluster.report] == [10] * 4
    assert not state.runs


def test_the_first_kind_is_asked_for_most_by_the_law_of_zipf() -> None:
    world = make(replace(SMALL, jobs=20_000))
    demand = Counter(job.shape_id for job in world.state.jobs.values())
    assert demand.most_common(1)[0][0] == 1
    assert demand[1] / demand[2] == pytest.approx(2, rel=0.15)
    assert demand[1] / demand[10] == pytest.approx(10, rel=0.25)


def test_about_as_many_jobs_start_as_there_is_room_for() -> None:
    size = Size(jobs=6000, queues=10, kinds=50, clusters=4, groups=10, starts=1500)
    world = make(size)
    started = settle(world)
    assert 0.8 * size.starts < started < 1.6 * size.starts, "when large jobs no longer fit, small ones still do"
    devices = {kind for kind, made in enumerate(world.kinds, start=1) if made.takes_devices}
    assert {run.shape_id in devices for run in world.state.runs.values()} == {True, False}


def test_a_full_world_is_full_to_the_last_core_and_device_however_it_is_laid_out() -> None:
    world = make(FULL, full=True)
    assert len(world.state.runs) > 200
    assert free(world.state, GPU) == 0
    assert free(world.state, "cpu") == 500 * nodes_of(world)
    plan = decide(world.engine, NOW)
    assert not plan.starts
    assert not plan.stops
    assert not plan.holds
    assert {reason.tier for reason in plan.reasons.values()} == {Tier.CAPACITY}


def test_what_ends_in_a_full_world_makes_room_for_as_much_again() -> None:
    world = make(FULL, full=True)
    world.happens(NOW, ends=20).put(world.state)
    assert settle(world) > 0
    assert free(world.state, "cpu") == 500 * nodes_of(world)


def test_changes_are_as_many_as_asked_and_wait_to_be_put() -> None:
    world = make(SMALL, full=True)
    state = world.state
    runs, jobs, clusters = len(state.runs), len(state.jobs), dict(state.clusters)
    changes = world.happens(NOW + 5, ends=7, submits=9, reports=3)
    assert (len(state.runs), len(state.jobs), state.clusters) == (runs, jobs, clusters)
    changes.put(state)
    assert (len(state.runs), len(state.jobs)) == (runs - 7, jobs + 9)
    assert {job.waits_since for job in changes.submitted} == {NOW + 5}
    assert sum(state.clusters[key] != cluster for key, cluster in clusters.items()) == 3


def test_every_job_may_be_of_a_kind_of_its_own() -> None:
    state = make(SMALL, all_distinct=True).state
    assert len(set(state.shapes.values())) == len(state.jobs) == 400
    assert len({job.shape_id for job in state.jobs.values()}) == 400


def test_kinds_may_come_from_one_queue_each() -> None:
    state = make(SMALL, own_kinds=True).state
    assert len({state.class_of(job_id) for job_id in state.jobs}) <= 40
    usual = make(SMALL).state
    assert len({usual.class_of(job_id) for job_id in usual.jobs}) > 200


def test_kinds_are_of_every_size_in_every_class() -> None:
    kinds = make_kinds(200, random.Random(5))
    assert {(kind.members * kind.units, kind.class_id) for kind in kinds if not kind.takes_devices} == {
        (units, class_id) for units in (1, 2, 4, 8) for class_id in (LOW, NORMAL, HIGH)
    }
    assert (kinds[0].members, kinds[0].units) == (kinds[9].members, kinds[9].units) == (1, 1)
    assert kinds[9].takes_devices
    assert sum(kind.takes_devices for kind in kinds) == 20
    assert sum(kind.members > 1 for kind in kinds) == 20
    assert not any(kind.takes_devices for kind in make_kinds(200, random.Random(5), devices=False))


def test_gangs_fill_the_whole_racks_and_leave_the_broken_ones() -> None:
    size = Size(jobs=60, queues=5, kinds=3, clusters=3, groups=5, starts=24)
    world = gangs(size)
    devices = free(world.state, GPU)
    assert settle(world) == size.starts, "two on each of four whole racks of three clusters"
    placed = [run for run in world.state.runs.values() if run.sizes == ((ROLE, 64),)]
    assert len(placed) == size.starts
    assert {len(run.placement) for run in placed} == {1}, "each gang is in one rack"
    assert free(world.state, GPU) == devices - 64 * size.starts > 0, (
        "broken racks have devices left, too few for a gang"
    )


def test_in_a_reclaim_storm_owed_queues_wait_and_others_hold_all_they_are_owed() -> None:
    world = reclaim_storm(Size(jobs=100, queues=6, kinds=4, clusters=2, groups=2, starts=320))
    state = world.state
    owed = {queue.id for queue in state.queues.values() if queue.quotas}
    assert {job.queue_id for job in state.jobs.values()} == owed
    assert {run.queue_id for run in state.runs.values()}.isdisjoint(owed)
    assert len(state.runs) == 320
    guaranteed = sum(quota.guaranteed for key in owed for quota in state.queues[key].quotas.values())
    assert guaranteed == pytest.approx(320_000, rel=0.01), "in thousandths of a core"


def test_sizes_shrink_together_and_leave_a_few_of_each() -> None:
    assert Size().scaled(1.0) == Size()
    assert Size().scaled(0.1) == Size(100_000, 100, 100, 10, 100, 20_000)
    assert Size().scaled(0.001) == Size(1000, 2, 20, 4, 100, 200)
    assert Size(queues=1, kinds=5).scaled(0.001).queues == 1
