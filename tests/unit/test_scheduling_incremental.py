"""A state that has followed the world for many cycles leads to the same decisions as one that was just built from it.

Worlds are made from a seed, so that an example is told by its number; ``TRAINMASTER_DEEP`` makes them live longer.
"""

import os
import random
from copy import deepcopy
from dataclasses import replace

import pytest

from tests.unit.building import GPU, gang, nodes, role
from tests.unit.test_scheduling_properties import IDS, LEAVES, PATHS, SHAPES, World, bare_state
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Numa, Pool, Taint
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.prices import NANOS, PriceBookSpec
from trainmaster.protocol.start_conditions import StartsWhenSpec
from trainmaster.protocol.states import ClusterKind, FairBy, Order, OrderBy, QueueState
from trainmaster_dispatcher.domain.burst_policies import Spending, policy_of
from trainmaster_dispatcher.domain.prices import FREE, tariff_of
from trainmaster_dispatcher.domain.provisioning import learn
from trainmaster_dispatcher.domain.shapes import Elasticity
from trainmaster_dispatcher.domain.start_conditions import Quiet, StartConditions, start_conditions_of
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.state.declared_objects import AdvanceReservation, Cluster, PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Quota
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, freeze_placement
from trainmaster_dispatcher.scheduling.state.plan import Plan, grown, shrinking
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services.feed_follower import Applied, Follower

IS_DEEP = bool(os.environ.get("TRAINMASTER_DEEP"))
# Each batch has to show every kind of decision, so it holds a hundred short lives or some long ones.
EXAMPLES, CYCLES, BATCHES = (50, 2000, 20) if IS_DEEP else (160, 40, 2)
"""The examples are dealt out to ``BATCHES`` tests."""
MOST_WAITING = 25
START = 1_000_000.0


ELASTIC = (
    gang(role(6, least=1, cpu=1), elastic=Elasticity(2, 5.0), capabilities=("resize",)),
    gang(role(4, "a", least=1, cpu=1), role(3, "b", least=2, cpu=1), elastic=Elasticity(1, 0.0)),
)
BOUND = (gang(role(1, numa="singleNode", cpu=1, gpu=1)), gang(role(2, numa="restricted", cpu=2)))
"""Members that their nodes keep to NUMA zones."""
MORE = (*ELASTIC, *BOUND)
CONDITIONS = [
    StartConditions(Quiet(0.3, 0.6)),
    StartConditions(price=20 * NANOS),
    # A few minutes after ``START``.
    start_conditions_of(StartsWhenSpec.model_validate({"hours": [{"start": "13:48", "end": "14:00"}]})),
]
PRICED = tariff_of(PriceBookSpec.model_validate({"name": "book", "onDemand": {"cpu": 1, "devices": {GPU: 5}}}))


def empty_state() -> SchedulerState:
    """Return a state that has the shapes of other tests, and more."""
    state = bare_state()
    for number, shape in enumerate(MORE, start=len(SHAPES) + 1):
        state.put_shape(number, shape)
    return state


class Life:
    """A world in which things happen, a state that follows it, and states that are built from it again."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = START
        self.world = World()
        self.follower = Follower(engine=Engine(empty_state()))
        self.classes = [PriorityClass(1, "low", 0), PriorityClass(2, "high", 100, longest_wait=30.0)]
        self.next_job = 1
        self.put_classes(self.state)
        for path in PATHS:
            self.put_queue(path)
        for number in range(1, self.chance.randint(1, 4) + 1):
            self.put_cluster(number)
        for _ in range(self.chance.randint(0, 12)):
            self.submit()
        if self.chance.random() < 0.7:
            self.set_policies()

    @property
    def state(self) -> SchedulerState:
        return self.follower.state

    def put_classes(self, state: SchedulerState) -> None:
        for one in self.classes:
            state.put_class(one)

    # What happens

    def put_queue(self, path: str) -> None:
        chance = self.chance
        quotas = {}
        if chance.random() < 0.4:
            flavor = chance.choice(
                [Flavor("cpu"), Flavor("cpu"), Flavor(GPU), Flavor("cpu", kind="private"), Flavor(GPU, "A")]
            )
            unit = 1000 if flavor.resource == "cpu" else 1
            quotas[flavor] = Quota(
                guaranteed=chance.choice([0, 2, 4]) * unit,
                limit=chance.choice([None, None, 3 * unit, 6 * unit]),
                borrowing=chance.choice([None, None, 2 * unit]),
                lending=chance.choice([None, None, None, unit]),
            )
        queue = Queue(
            IDS[path],
            path,
            IDS.get(path.rpartition("/")[0]),
            weight=chance.choice([0.5, 1.0, 3.0]),
            quotas=quotas,
            max_running=chance.choice([None, None, None, 2, 4]),
            allowed_kinds=frozenset(ClusterKind) if chance.random() < 0.5 else frozenset({ClusterKind.PRIVATE}),
            state=chance.choice([QueueState.OPEN] * 14 + [QueueState.HELD, QueueState.HELD, QueueState.SUSPENDED]),
            order=chance.choice([Order.BEST_EFFORT] * 4 + [Order.STRICT]),
            time_limit=chance.choice([None, 20.0]),
            order_by=chance.choice([None, None, *OrderBy]),
            fair_by=chance.choice([None, None, FairBy.USER, FairBy.NONE]),
            user_weights=chance.choice([{}, {}, {"ann": 3.0}]),
            max_running_per_user=chance.choice([None] * 4 + [1, 3]),
            limits_per_user=chance.choice([{}, {}, {}, {Flavor("cpu"): 3000}, {Flavor("cpu"): 5000, Flavor(GPU): 2}]),
            starts_when=chance.choice([None] * 6 + CONDITIONS),
        )
        self.world.queues[queue.id] = queue
        self.state.put_queue(queue)

    def group(self) -> NodeGroup:
        chance = self.chance
        gpu, rack = chance.choice([0, 0, 1, 2]), chance.choice(["r1", "r2"])
        ssd, taint, product = chance.random() < 0.3, chance.random() < 0.2, chance.choice(["A", "B"])
        labels = ({"disk": "ssd"} if ssd else {}) | ({"nvidia.com/gpu.product": product} if gpu else {})
        cpu = chance.randint(1, 4)
        one = nodes(
            chance.randint(1, 3),
            f"{rack}{ssd:d}{taint:d}{product}-{cpu}-{gpu}",
            cpu=cpu,
            gpu=gpu,
            at=(("zone", "z"), ("rack", rack)),
            labels=labels,
            taints=(Taint(key="gpu"),) if taint else (),
        )
        if chance.random() < 0.75:
            return one
        halves = [{name: amount // 2 for name, amount in one.free.items()} for _ in range(2)]
        for name, amount in one.free.items():
            halves[0][name] += amount % 2
        zones = Numa(policy=chance.choice(["singleNode", "restricted"]), zones=tuple(halves))
        return one.model_copy(update={"name": f"{one.name}-{zones.policy}", "numa": zones})

    def put_cluster(self, number: int) -> None:
        chance = self.chance
        found = {group.name: group for group in (self.group() for _ in range(chance.randint(1, 3)))}
        report = CapacityReport(
            groups=tuple(found.values()),
            runtime="local",
            scheduler="local",
            capabilities=("gang", "resize") if chance.random() < 0.7 else (),
            closed=chance.choice([""] * 6 + ["the API server does not answer", "it is being upgraded"]),
            pools=(Pool(most=3, **self.group().model_dump()),) if chance.random() < 0.2 else (),
        )
        kind = chance.choice([ClusterKind.PRIVATE, ClusterKind.PRIVATE, ClusterKind.EDGE, ClusterKind.PUBLIC])
        cluster = Cluster(
            number,
            f"c{number}",
            kind,
            {"name": f"c{number}"},
            chance.random() < 0.1,
            report if chance.random() < 0.9 else None,
            chance.choice([PRICED, FREE]),
            chance.choice([0.0, 10.0]),
        )
        self.world.clusters[number] = cluster
        self.state.put_cluster(cluster, self.now)
        self.set_lease(number)

    def set_lease(self, number: int) -> None:
        until = self.now + self.chance.choice([60.0, 60.0, 60.0, -1.0])
        self.world.leases[number] = self.state.lease_until[number] = until

    def submit(self) -> None:
        chance = self.chance
        job = WaitingJob(
            id=self.next_job,
            version=1,
            name=f"j{self.next_job}",
            queue_id=IDS[chance.choice(LEAVES)],
            class_id=chance.choice([1, 1, 2]),
            shape_id=len(SHAPES) + chance.choice((1, 1, 1, 2, 2, 2, 3, 4))
            if chance.random() < 0.45
            else chance.randint(1, len(SHAPES)),
            priority=chance.choice([0, 0, 1, -1]),
            waits_since=self.now - chance.choice([0, 0, 5, 40]),
            attempt=0,
            user=chance.choice(["", "ann", "ben", "ben"]),
            deadline=chance.choice([None, None, self.now + chance.choice([-5, 5, 40, 200])]),
            predecessors=chance.choice([(), (), ((1, 1.0),), ((1, 0.5), (2, 0.5))]),
        )
        self.next_job += 1
        self.put_waiting(job)

    def put_waiting(self, job: WaitingJob) -> None:
        self.world.waiting[job.id] = job
        self.state.put_waiting(job)

    def end(self) -> None:
        """End a run; its job may wait again."""
        job_id = self.chance.choice(sorted(self.world.runs))
        run = self.world.runs.pop(job_id)
        self.state.end_job(job_id, self.now)
        if run.is_stopping or self.chance.random() < 0.2:
            again = WaitingJob(
                job_id, 9, f"j{job_id}", run.queue_id, run.class_id, run.shape_id, 0, self.now, run.attempt, run.user
            )
            self.put_waiting(again)

    def move(self) -> None:
        """Move a run's members to other nodes, as its agent reports it."""
        job_id = self.chance.choice(sorted(self.world.runs))
        run = self.world.runs[job_id]
        report = self.world.clusters[run.cluster_id].report
        if report is None:
            return
        group = self.chance.choice(report.groups).name
        run = replace(run, placement=freeze_placement({group: dict(run.sizes)}), is_assumed=False)
        self.world.runs[job_id] = run
        self.state.put_run(run)

    def leave(self) -> None:
        """Let members leave that were asked to."""
        shrinking = sorted(job_id for job_id, run in self.world.runs.items() if run.leaving)
        if shrinking:
            job_id = self.chance.choice(shrinking)
            run = self.world.runs[job_id]
            leaving = dict(run.leaving)
            sizes = tuple((role, size - leaving.get(role, 0)) for role, size in run.sizes)
            self.world.runs[job_id] = replace(run, sizes=sizes, leaving=(), resized_at=self.now)
            self.state.put_run(self.world.runs[job_id])

    def avoid(self) -> None:
        some = [job_id for job_id in self.world.waiting if self.chance.random() < 0.1]
        self.world.avoided = {job_id: (self.chance.choice(sorted(self.world.clusters)),) for job_id in some}
        self.world.for_room = frozenset(job_id for job_id in some if self.chance.random() < 0.5)
        self.state.set_avoided(dict(self.world.avoided), self.world.for_room)

    def happens(self) -> None:
        what = self.chance.random()
        if what < 0.4 and len(self.world.waiting) < MOST_WAITING:
            self.submit()
        elif what < 0.6 and self.world.runs:
            self.end()
        elif what < 0.63 and self.world.runs:
            self.move()
        elif what < 0.66:
            self.leave()
        elif what < 0.72:
            self.put_cluster(self.chance.randint(1, 4))
        elif what < 0.78:
            self.set_lease(self.chance.choice(sorted(self.world.clusters)))
        elif what < 0.82:
            self.put_queue(self.chance.choice(PATHS))
        elif what < 0.86:
            self.avoid()
        elif what < 0.88:
            self.reserve()
        elif what < 0.895:
            self.set_policies()
        elif self.world.waiting and (what < 0.91 or len(self.world.waiting) >= MOST_WAITING):
            job_id = self.chance.choice(sorted(self.world.waiting))
            del self.world.waiting[job_id]
            self.state.drop_job(job_id)

    def set_policies(self) -> None:
        """Let an admin create burst policies, count what they have spent, and let pools have grown."""
        chance = self.chance
        specs = [
            {
                "name": f"p{number}",
                "queues": chance.choice([[path] for path in PATHS] + [list(PATHS)] * 4),
                "when": {
                    "after": chance.choice(["0s", "5s"]),
                    "utilisation": chance.choice([None, {"above": 0.7, "until": 0.3}]),
                    "expectedWait": chance.choice([None, None, "10s"]),
                },
                "atMost": {"jobs": chance.choice([None, 1, 3]), "nodes": chance.choice([None, 1])},
                "budget": {"hour": chance.choice(["0.1", "100", "100"]), "job": chance.choice([None, "0.5"])},
                "timeLimit": chance.choice([None, "30s", "30s"]),
            }
            for number in range(chance.randint(0, 2))
        ]
        self.world.policies = [
            policy_of(number, BurstPolicySpec.model_validate(spec)) for number, spec in enumerate(specs, start=1)
        ]
        hour = int(self.now // 3600) * 3600 * 10**6
        self.world.job_spent = {job: 10**8 for job in self.world.waiting if chance.random() < 0.2}
        self.world.spending = Spending({1: {hour: chance.choice([0, 10**7, 10**9])}})
        self.world.provisioning = {(1, pool): learn([10.0] * 20) for pool in ("r1", "r2")}
        self.world.put_policies(self.state)

    def reserve(self) -> None:
        """Let an admin reserve nodes, or release all that were reserved."""
        chance = self.chance
        if self.world.advance and chance.random() < 0.5:
            self.world.advance = ()
        else:
            begins = self.now + chance.choice([-10.0, 5.0, 40.0])
            names = chance.choice([(), ("c1",), ("c1", "c2")])
            number = max((one.id for one in self.world.advance), default=0) + 1
            made = AdvanceReservation(
                id=number,
                name=f"r{number}",
                queue_id=IDS[chance.choice(PATHS)],
                clusters=names,
                nodes=chance.randint(1, 3),
                selector=chance.choice([(), (("disk", "ssd"),)]),
                begins_at=begins,
                ends_at=begins + chance.choice([20.0, 60.0]),
            )
            self.world.advance = (*self.world.advance[-2:], made)
        self.state.set_advance(self.world.advance)

    # Cycles

    def rebuilt(self) -> Engine:
        state = empty_state()
        self.put_classes(state)
        steps = self.world.steps()
        self.chance.shuffle(steps)
        for step in steps:
            step(state)
        state.shrunk_at = dict(self.state.shrunk_at)
        state.run_times = deepcopy(self.state.run_times)
        self.world.put_policies(state)
        return Engine(state, self.follower.engine.carried)

    def cycle(self) -> Plan:
        self.now += self.chance.choice([0.0, 1.0, 1.0, 15.0])
        for _ in range(self.chance.choice([0, 0, 1, 2, 5])):
            self.happens()
        most = self.chance.choice([2, 1000])
        plan, anew = decide(self.follower.engine, self.now, most), decide(self.rebuilt(), self.now, most)
        assert (plan.starts, plan.stops, plan.holds, plan.is_cut) == (anew.starts, anew.stops, anew.holds, anew.is_cut)
        assert plan.grows == anew.grows
        assert plan.reservations == anew.reservations
        assert plan.reasons == anew.reasons
        assert (plan.bursting, plan.next_look) == (anew.bursting, anew.next_look)
        return plan

    def apply(self, plan: Plan) -> None:
        """Apply all of it, or what is left when something else was stored first."""
        lost = {job.id for job in plan.jobs if self.chance.random() < 0.1}
        starts = [start for start in plan.starts if start.job.id not in lost]
        evicted = [*plan.stops, *(one for start in starts for one in start.evicts)]
        ending = {one.job_id for one in evicted if one.sizes is None}
        shrunk = tuple(one for one in evicted if one.sizes is not None)
        growing = tuple(one for one in plan.grows if self.chance.random() < 0.9)
        for job in plan.jobs:
            if job.id not in lost:
                del self.world.waiting[job.id]
        for start in starts:
            self.world.runs[start.job.id] = LiveRun(
                start.job.id,
                start.job.queue_id,
                start.job.shape_id,
                start.cluster_id,
                tuple(sorted(start.sizes.items())),
                freeze_placement(start.placement),
                start.job.class_id,
                self.now,
                start.job.attempt + 1,
                burst=None if start.granted is None else start.granted.run(self.now),
                user=start.job.user,
                is_assumed=True,
                predicted_seconds=start.predicted_seconds,
            )
        for job_id in ending:
            self.world.runs[job_id] = replace(self.world.runs[job_id], is_stopping=True)
        for one in shrunk:
            self.world.runs[one.job_id] = shrinking(self.world.runs[one.job_id], one.sizes or {}, self.now)
        for growth in growing:
            self.world.runs[growth.job_id] = grown(self.world.runs[growth.job_id], growth, self.now)
        self.follower.engine.carry_over(plan)
        applied = Applied({job.id for job in plan.jobs} - lost, ending, self.now, shrunk, growing)
        self.follower.note_applied(plan, applied)
        assert as_reported(self.state.runs) == as_reported(self.world.runs)


def as_reported(runs: dict[int, LiveRun]) -> dict[int, LiveRun]:
    """Return the runs without placements that are only assumed, which an engine may count elsewhere."""
    return {job_id: replace(run, placement=()) if run.is_assumed else run for job_id, run in runs.items()}


def live(seed: int, most_cycles: int) -> tuple[int, ...]:
    """Run a life of at most ``most_cycles`` cycles; return jobs started, runs ended for others, reservations made, runs that
    grew and shrank.

    Then jobs that went by a policy, and to nodes of a pool.
    """
    life = Life(seed)
    started = evicted = reserved = grew = shrank = burst = awaited = 0
    for _ in range(most_cycles if IS_DEEP else life.chance.randint(1, most_cycles)):
        plan = life.cycle()
        started += len(plan.starts)
        leaving = [*plan.stops, *(one for start in plan.starts for one in start.evicts)]
        evicted += sum(one.sizes is None for one in leaving)
        shrank += sum(one.sizes is not None for one in leaving)
        grew += len(plan.grows)
        reserved += len(plan.reservations)
        burst += sum(start.granted is not None for start in plan.starts)
        awaited += sum(bool(start.pools) for start in plan.starts)
        life.apply(plan)
    return started, evicted, reserved, grew, shrank, burst, awaited


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_state_that_has_followed_decides_as_one_that_was_just_built(batch: int) -> None:
    totals = [0] * 7
    for seed in range(batch, EXAMPLES, BATCHES):
        try:
            totals = [sum(pair) for pair in zip(totals, live(seed, CYCLES), strict=True)]
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert all(totals[:4] + totals[5:]), (
        f"nothing was shown: {totals} started, evicted, reserved, grew, shrank, by policy, to nodes to come"
    )
