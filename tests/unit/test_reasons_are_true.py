"""What jobs are told while they wait, held against what then happens in random worlds that are played to their end.

A world has queues with limits, clusters, running jobs and waiting ones, and no job comes later. Runs take a random part of their time
limits. Everything that a cycle says of a job is noted, and checked once nothing more starts; what it advises is tried at once.
"""

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import ceil, inf

import pytest

from tests.unit.building import Outcome, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.queue_position import Trial
from trainmaster.protocol.reasons import Check, Reason, Tier, Token
from trainmaster.protocol.states import FairBy, Order
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.queries.dry_run import try_out
from trainmaster_dispatcher.scheduling.queries.queue_position import place_of, quotas_of
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob

WORLDS = 400 if os.environ.get("TRAINMASTER_DEEP") else 60
USERS = ("ann", "ben")
SHAPES: tuple[Shape, ...] = (
    simple(cpu=1),
    simple(cpu=3),
    simple(cpu=1, gpu=1),
    simple(3, cpu=1),
    gang(role(2, cpu=2), role(1, "chief", cpu=1, gpu=1)),
    simple(cpu=9),
    simple(cpu=1, gpu=4),
)


@dataclass(frozen=True)
class Said:
    """What a job was told at a time."""

    at: float
    job: str
    reason: Reason
    cycle: int
    jobs_ahead: int | None
    """None for a job that has no turn."""


@dataclass
class World:
    """A world and what was said in it."""

    chance: random.Random
    builder: StateBuilder
    names: dict[int, str] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    cycles: int = 0
    has_turns: bool = True
    """Whether queues or users take turns: not in one queue that is not fair between users."""


def some_world(seed: int, *, with_limits: bool) -> World:
    """Return a random world. ``with_limits``: all jobs have time limits."""
    chance, builder = random.Random(f"words {seed}"), StateBuilder()
    paths = ["main", *chance.sample(["a/x", "a/y", "b"], chance.choice([0, 0, 1, 2, 3]))]
    is_fair = len(paths) > 1 or chance.random() < 0.5
    for path in paths:
        builder.queue(
            path,
            weight=chance.choice([1.0, 2.0]),
            limits={"cpu": chance.randint(2, 8)} if chance.random() < 0.3 else None,
            max_running=chance.randint(1, 3) if chance.random() < 0.2 else None,
            max_running_per_user=chance.randint(1, 2) if chance.random() < 0.2 else None,
            order=Order.STRICT if chance.random() < 0.15 else Order.BEST_EFFORT,
            borrowing={"cpu": 1} if chance.random() < 0.1 else None,
            fair_by=None if is_fair else FairBy.NONE,
        )
    if chance.random() < 0.5:
        builder.longest_wait("normal", chance.choice([20.0, 100.0]))
    for number in range(chance.randint(1, 3)):
        groups = [
            nodes(chance.randint(1, 3), f"g{one}", cpu=chance.choice([2, 4, 6]), gpu=chance.choice([0, 0, 2]))
            for one in range(chance.randint(1, 2))
        ]
        builder.cluster(f"c{number}", *groups, lease=1e6)
    world = World(chance, builder, has_turns=is_fair)
    for number in range(chance.randint(6, 18)):
        shape = chance.choice(SHAPES)
        if with_limits or chance.random() < 0.5:
            shape = replace(shape, time_limit_seconds=chance.choice([10.0, 30.0, 90.0]))
        name = f"j{number}"
        builder.job(
            name,
            shape,
            queue=chance.choice(paths),
            of=chance.choice(["normal", "normal", "high"]),
            age=chance.uniform(0.0, 60.0),
            user=chance.choice(USERS),
        )
        world.names[builder.ids[name]] = name
    return world


def takes(world: World, name: str) -> float:
    """Return how long a job runs: a part of its limit."""
    limit = world.builder.state.limit_of(world.builder.state.runs[world.builder.ids[name]].shape_id, 0)
    return world.chance.uniform(0.2, 1.0) * (limit if limit < inf else 60.0)


def play(world: World) -> None:
    """Let cycles decide and runs end until nothing more happens."""
    builder = world.builder
    for _ in range(500):
        outcome = builder.applied()
        for name in outcome.started:
            world.started[name] = builder.now
            world.ends[name] = builder.now + takes(world, name)
        note(world, outcome)
        if not world.ends and not outcome.started:
            return
        if outcome.started:
            continue
        name = min(world.ends, key=lambda one: world.ends[one])
        until = world.ends.pop(name)
        # Long waits are in the world, too: urgency comes with time.
        builder.later(max(until - builder.now, 0.0))
        builder.completed(name)
    raise AssertionError("the world does not come to rest")


def note(world: World, outcome: Outcome) -> None:
    world.cycles += 1
    state, quotas = world.builder.state, quotas_of(world.builder.engine, world.builder.now)
    for job_id in state.jobs:
        name = world.names[job_id]
        reason = outcome.reason(name)
        place = place_of(state, quotas, job_id, world.builder.now, outcome.plan.reasons)
        assert place is not None
        ahead = None if reason.has_no_turn else place.jobs_ahead
        world.said.append(Said(world.builder.now, name, reason, world.cycles, ahead))


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """Worlds that were played to their end: in half of them every job has a time limit."""
    found = [some_world(seed, with_limits=with_limits) for with_limits in (True, False) for seed in range(WORLDS)]
    for world in found:
        play(world)
    return found


def every(worlds: list[World], *tokens: Token) -> Iterator[tuple[World, Said]]:
    for world in worlds:
        for said in world.said:
            if said.reason.token in tokens or not tokens:
                yield world, said


def test_a_job_that_can_never_run_never_does_and_all_others_do(worlds: list[World]) -> None:
    never = 0
    for world, said in every(worlds):
        if said.reason.for_ever or said.reason.tier is Tier.CANNOT_RUN:
            assert said.job not in world.started, (said, "was told that it can never run")
            never += 1
    assert never > WORLDS
    for world in worlds:
        last = {said.job: said.reason for said in world.said if said.at == world.builder.now}
        for name, reason in last.items():
            if name not in world.started:
                assert reason.has_no_turn or reason.token is Token.BEHIND_OTHERS, (name, reason)


def test_a_job_starts_by_the_time_that_it_is_told(worlds: list[World]) -> None:
    """Limits are kept in these worlds, and the sentence says that no other job may get its turn before it."""
    kept = overtaken = 0
    for world, said in every(worlds):
        first = said.reason.details.get("first", {})
        if "notAfter" not in first or first["job"].rpartition("-")[0] != said.job:
            continue
        assert said.job in world.started, said
        latest = ceil(datetime.fromisoformat(first["notAfter"]).timestamp())
        if world.started[said.job] <= latest:
            kept += 1
            continue
        between = [one for one, at in world.started.items() if said.at <= at <= latest and one != said.job]
        assert between, (said, world.started[said.job])
        assert world.has_turns, (said, world.started[said.job], "jobs have one order in this world")
        overtaken += 1
    assert kept > WORLDS / 2
    assert overtaken < kept / 4


def test_a_job_is_before_others_by_as_many_as_can_start(worlds: list[World]) -> None:
    """Jobs ahead are waited for: each of them starts at some time."""
    for world, said in every(worlds):
        if said.jobs_ahead is None:
            continue
        others = {one.job for one in world.said if one.cycle == said.cycle and one.job != said.job}
        assert said.jobs_ahead <= len(others & world.started.keys() | may_wait_for_ever(world, others)), said


def may_wait_for_ever(world: World, names: set[str]) -> set[str]:
    """Return jobs that are behind one that can never start in a queue that keeps its order: only an admin can change that."""
    return {said.job for said in world.said if said.job in names - world.started.keys() and not said.reason.has_no_turn}


def test_findings_of_nodes_say_less_than_is_needed(worlds: list[World]) -> None:
    """``needs 4 cpu on one node, the best node has 3``: never as much as is needed."""
    found = 0
    for _, said in every(worlds):
        for verdict in said.reason.verdicts:
            if verdict.check in (Check.NO_ROOM, Check.NEVER_FITS) and (
                match := re.search(
                    r"needs ([\d.]+m?) (\S+) on one node, the best node has ([\d.]+m?)", verdict.sentence
                )
            ):
                found += 1
                assert float(match[3].rstrip("m") or 0) < float(match[1].rstrip("m")), said
    assert found > WORLDS


def test_the_job_that_is_named_as_before_others_waits_before_them(worlds: list[World]) -> None:
    found = 0
    for world, said in every(worlds, Token.BEHIND_OTHERS):
        match = re.search(r"and (j\d+)-\w+ is before it", said.reason.sentence)
        assert match, said
        before = next(one for one in world.said if (one.cycle, one.job) == (said.cycle, match[1]))
        assert said.jobs_ahead is not None
        assert before.jobs_ahead is not None
        assert before.jobs_ahead < said.jobs_ahead, (said, before)
        found += 1
    assert found > WORLDS / 4


def tried(world: World, name: str, shape: Shape) -> Trial:
    """Return what would happen to a job with another shape in place of a waiting one."""
    builder = world.builder
    job = builder.state.jobs[builder.ids[name]]
    builder.state.drop_job(job.id)
    try:
        quotas = quotas_of(builder.engine, builder.now)
        again = WaitingJob(0, 0, name, job.queue_id, job.class_id, 0, 0, job.waits_since, 0, job.user)
        found = try_out(builder.engine, quotas, again, shape, builder.now)
    finally:
        builder.state.put_waiting(job)
    assert found is not None
    return found


@pytest.mark.parametrize("with_limits", [True, False])
def test_what_is_advised_helps(with_limits: bool) -> None:
    """A shorter time limit, where that is advised; the end of other jobs, where these are waited for."""
    shorter = ended = 0
    for seed in range(WORLDS):
        world = some_world(seed, with_limits=with_limits)
        builder = world.builder
        for _ in range(12):
            outcome = builder.applied()
            for name in outcome.started:
                world.ends[name] = builder.now + takes(world, name)
            # Where jobs have started, what is free is not what these reasons speak of.
            for job_id in () if outcome.started else list(builder.state.jobs):
                name = world.names[job_id]
                reason, job = outcome.reason(name), builder.state.jobs[job_id]
                shape = builder.state.shapes[job.shape_id]
                if reason.token is Token.RESERVED and re.search(r"kept for .* from \d", reason.sentence):
                    assert "can go first with a time limit" in reason.advice
                    trial = tried(world, name, replace(shape, time_limit_seconds=0.001))
                    assert trial.starts_now, (seed, name, reason, trial)
                    shorter += 1
                if reason.token in (Token.QUEUE_LIMIT, Token.USER_LIMIT) and not reason.for_ever:
                    queues = {queue.id for queue in builder.state.ancestry(job.queue_id)}
                    waited_for: list[object] = [
                        run
                        for run in builder.state.runs.values()
                        if queues & {queue.id for queue in builder.state.ancestry(run.queue_id)}
                        and (reason.token is Token.QUEUE_LIMIT or run.user == job.user)
                    ]
                    # Quota that is being given back for a job counts as used by it.
                    waited_for += [key for key, one in outcome.plan.reasons.items() if one.token is Token.PREEMPTING]
                    assert waited_for, (seed, name, reason, "there is no run whose end would help")
                    ended += 1
            if not world.ends:
                break
            if outcome.started:
                continue
            name = min(world.ends, key=lambda one: world.ends[one])
            builder.later(max(world.ends.pop(name) - builder.now, 0.0))
            builder.completed(name)
    assert ended > WORLDS / 4
    assert shorter


def test_a_dry_run_that_starts_now_does(worlds: list[World]) -> None:
    """Jobs are submitted after their dry runs, in worlds that are some cycles old."""
    starts = never = 0
    for seed in range(WORLDS):
        world = some_world(seed, with_limits=seed % 2 == 0)
        builder = world.builder
        for _ in range(3):
            for name in builder.applied().started:
                world.ends[name] = builder.now + takes(world, name)
        shape, path, user = (
            world.chance.choice(SHAPES),
            world.chance.choice(sorted(builder.queues)),
            world.chance.choice(USERS),
        )
        if any(queue.parent_id == builder.queues[path] for queue in builder.state.queues.values()):
            continue
        job = WaitingJob(0, 0, "new", builder.queues[path], 2, 0, 0, builder.now, 0, user)
        reasons = builder.cycle().plan.reasons
        trial = try_out(builder.engine, quotas_of(builder.engine, builder.now), job, shape, builder.now, reasons)
        assert trial is not None
        builder.job("new", shape, queue=path, user=user, age=-(builder.now - 1000.0))
        world.names[builder.ids["new"]] = "new"
        starts += trial.starts_now
        assert trial.starts_now == ("new" in builder.cycle().started), (seed, trial)
        play(world)
        if not trial.could_run:
            never += 1
            assert "new" not in world.started, (seed, trial)
    assert starts > WORLDS / 12
    assert never > WORLDS / 12
