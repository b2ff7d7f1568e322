"""What holds of every plan, on small worlds made at random, by checkers that share no code with the scheduler."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.packing import packs
from tests.unit.building import GPU, LEASE, NOW, gang, nodes, role, simple
from trainmaster.protocol.agent import CapacityReport, NodeGroup, Taint
from trainmaster.protocol.jobs import Toleration
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import ClusterKind, FairBy, QueueState
from trainmaster_dispatcher.domain.burst_policies import NOTHING_SPENT, BurstPolicy, Spending
from trainmaster_dispatcher.domain.provisioning import Learnt
from trainmaster_dispatcher.domain.shapes import Shape
from trainmaster_dispatcher.scheduling.cycle import attempt as attempt_module
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.packing.free_capacity import FreeCapacity
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, fit, needs_of, size_choices, take
from trainmaster_dispatcher.scheduling.state.declared_objects import AdvanceReservation, Cluster, PriorityClass, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Quota
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

# -- worlds

SHAPES: tuple[Shape, ...] = (
    gang(role()),
    gang(role(cpu=2)),
    gang(role(3, cpu=1)),
    gang(role(2, cpu=3), capabilities=("gang",)),
    gang(role(cpu=1, gpu=1)),
    gang(role(2, cpu=1, gpu=2)),
    gang(role(1, "launcher", cpu=1), role(3, "worker", cpu=2)),
    gang(role(6, least=2, cpu=1)),
    gang(role(1, "launcher", cpu=2), role(4, "worker", least=0, gpu=1)),
    gang(role(4, cpu=1), required_level="rack"),
    gang(role(cpu=1, node_selector=(("disk", "ssd"),))),
    gang(role(cpu=1, tolerations=(Toleration(key="gpu", operator="Exists"),)), kinds=(ClusterKind.EDGE,)),
    gang(role(cpu=1), clusters=("c1",)),
    gang(role(cpu=1), capabilities=("numa",)),
    gang(role(cpu=0)),
    gang(role(3, cpu=1), preferred_level="rack"),
    gang(role(2, cpu=2), time_limit_seconds=30),
    gang(role(cpu=1), time_limit_seconds=60),
    gang(role(3, cpu=1, max_per_node=1)),
    gang(role(2, cpu=1, exclusive=True)),
    gang(role(1, cpu=1, exclusive=True)),
    gang(role(4, least=2, cpu=1, max_per_node=2), required_level="rack"),
)
PATHS = ("a", "a/1", "a/2", "a/2/x", "b", "b/1", "c")
LEAVES = ("a/1", "a/2/x", "b/1", "c")
IDS = {path: number for number, path in enumerate(PATHS, start=1)}
QUEUE_PATHS = {number: path for path, number in IDS.items()}

few = st.integers(0, 4)
groups = st.builds(
    lambda count, cpu, gpu, rack, ssd, taint: nodes(
        count,
        f"{rack}{ssd:d}{taint:d}-{cpu}-{gpu}",
        cpu=cpu,
        gpu=gpu,
        at=(("zone", "z"), ("rack", rack)),
        labels={"disk": "ssd"} if ssd else {},
        taints=(Taint(key="gpu"),) if taint else (),
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2),
    st.sampled_from(["r1", "r2"]),
    st.booleans(),
    st.sampled_from([False, False, True]),
)


def different(found: list[NodeGroup]) -> tuple[NodeGroup, ...]:
    return tuple({group.name: group for group in found}.values())


reports = st.builds(
    lambda found, gang_too, closed: CapacityReport(
        groups=different(found),
        runtime="local",
        scheduler="local",
        capabilities=("gang",) if gang_too else (),
        closed=closed,
    ),
    st.lists(groups, min_size=1, max_size=3),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["", "", "", "", "the API server does not answer"]),
)
clusters = st.builds(
    Cluster,
    id=st.integers(1, 3),
    name=st.just(""),
    kind=st.sampled_from([ClusterKind.PRIVATE, ClusterKind.PRIVATE, ClusterKind.EDGE, ClusterKind.PUBLIC]),
    cordoned=st.sampled_from([False, False, False, True]),
    report=st.one_of(reports, reports, reports, st.none()),
).map(lambda cluster: replace(cluster, name=f"c{cluster.id}"))
queues = st.builds(
    lambda path, weight, limits, most, held, public, fair_by, of_user: Queue(
        id=IDS[path],
        path=path,
        parent_id=IDS.get(path.rpartition("/")[0]),
        weight=weight,
        quotas=limits,
        max_running=most,
        state=QueueState.HELD if held else QueueState.OPEN,
        allowed_kinds=frozenset(ClusterKind) if public else frozenset({ClusterKind.PRIVATE, ClusterKind.EDGE}),
        fair_by=fair_by,
        max_running_per_user=of_user,
    ),
    st.sampled_from(PATHS),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.dictionaries(
        st.sampled_from(["cpu", GPU]),
        st.dictionaries(
            st.sampled_from(["limit", "guaranteed", "borrowing", "lending"]), st.integers(0, 8), min_size=1
        ),
        max_size=1,
    ).map(
        lambda limits: {
            Flavor(name): Quota(**{what: value * 1000 if name == "cpu" else value for what, value in said.items()})
            for name, said in limits.items()
        }
    ),
    st.none() | st.integers(0, 4),
    st.sampled_from([False, False, False, False, True]),
    st.booleans(),
    st.sampled_from([None, FairBy.USER, FairBy.NONE]),
    st.none() | st.none() | st.integers(0, 3),
)
jobs = st.builds(
    lambda number, leaf, of, shape, priority, age, user, deadline, predecessors: WaitingJob(
        id=number,
        version=1,
        name=f"j{number}",
        queue_id=IDS[leaf],
        class_id=of,
        shape_id=shape,
        priority=priority,
        waits_since=NOW - age,
        attempt=0,
        user=user,
        deadline=None if deadline is None else NOW + deadline,
        predecessors=predecessors,
    ),
    st.integers(1, 30),
    st.sampled_from(LEAVES),
    st.integers(1, 2),
    st.integers(1, len(SHAPES)),
    st.integers(-1, 1),
    few.map(float),
    st.sampled_from(["", "ann", "ben"]),
    st.none() | few.map(float),
    st.sampled_from([(), (), ((1, 1.0),), ((2, 0.375), (3, 0.625))]),
)


@dataclass
class World:
    """The final state of everything that a plan depends on, as the store would hold it."""

    queues: dict[int, Queue] = field(default_factory=dict)
    clusters: dict[int, Cluster] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)
    waiting: dict[int, WaitingJob] = field(default_factory=dict)
    runs: dict[int, LiveRun] = field(default_factory=dict)
    avoided: dict[int, tuple[int, ...]] = field(default_factory=dict)
    for_room: frozenset[int] = frozenset()
    advance: tuple[AdvanceReservation, ...] = ()
    policies: list[BurstPolicy] = field(default_factory=list)
    spending: Spending = NOTHING_SPENT
    job_spent: dict[int, int] = field(default_factory=dict)
    provisioning: dict[tuple[int, str], Learnt] = field(default_factory=dict)

    def put_policies(self, state: SchedulerState) -> None:
        """Put in burst policies, what they have spent, and how pools were seen to grow."""
        state.set_policies(self.policies)
        state.spending, state.job_spent = self.spending, self.job_spent
        state.set_provisioning(self.provisioning)

    def steps(self) -> list[Callable[[SchedulerState], None]]:
        """Return the steps that build a state of this world; they may run in any order."""
        return [
            *(lambda state, queue=queue: state.put_queue(queue) for queue in self.queues.values()),
            *(lambda state, cluster=cluster: state.put_cluster(cluster) for cluster in self.clusters.values()),
            *(lambda state, job=job: state.put_waiting(job) for job in self.waiting.values()),
            *(lambda state, run=run: state.put_run(run) for run in self.runs.values()),
            lambda state: state.lease_until.update(self.leases),
            lambda state: state.set_avoided(dict(self.avoided), self.for_room),
            lambda state: state.set_advance(self.advance),
        ]

    def state(self, shuffled: int | None = None) -> SchedulerState:
        state = bare_state()
        steps = self.steps()
        if shuffled is not None:
            random.Random(shuffled).shuffle(steps)
        for step in steps:
            step(state)
        return state

    def apply(self, plan: Plan) -> None:
        for start in plan.starts:
            del self.waiting[start.job.id]
            self.runs[start.job.id] = start.run(NOW)
        for hold in plan.holds:
            del self.waiting[hold.job.id]


def bare_state() -> SchedulerState:
    state = SchedulerState()
    for number, value in ((1, 0), (2, 100)):
        state.put_class(PriorityClass(number, f"class{number}", value))
    for number, shape in enumerate(SHAPES, start=1):
        state.put_shape(number, shape)
    return state


@st.composite
def worlds(draw: st.DrawFn, *, most_jobs: int = 16) -> World:
    world = World()
    for path in PATHS:
        world.queues[IDS[path]] = Queue(IDS[path], path, IDS.get(path.rpartition("/")[0]))
    world.queues |= {queue.id: queue for queue in draw(st.lists(queues, max_size=4))}
    world.clusters = {cluster.id: cluster for cluster in draw(st.lists(clusters, min_size=1, max_size=4))}
    world.leases = {number: NOW + draw(st.sampled_from([LEASE, LEASE, LEASE, -1.0])) for number in world.clusters}
    world.waiting = {job.id: job for job in draw(st.lists(jobs, max_size=most_jobs))}
    avoid = st.lists(st.sampled_from([1, 2, 3]), min_size=1, unique=True).map(lambda ids: tuple(sorted(ids)))
    world.avoided = draw(st.dictionaries(st.integers(1, 30), avoid, max_size=3))
    return world


def lived(world: World, ended: Iterable[int]) -> World:
    """Apply one cycle to the world, end the runs of these jobs, and return it."""
    world.apply(decide(Engine(world.state()), NOW))
    for job_id in ended:
        world.runs.pop(job_id, None)
    return world


used_worlds = st.builds(lived, worlds(most_jobs=10), st.sets(st.integers(1, 30), max_size=15))


@st.composite
def busy_worlds(draw: st.DrawFn) -> World:
    """Draw a world with runs of an earlier cycle and more jobs that wait."""
    world = draw(used_worlds)
    more = draw(st.lists(jobs, max_size=10))
    world.waiting |= {job.id + 100: replace(job, id=job.id + 100) for job in more}
    return world


# -- checkers


def needs(shape: Shape, sizes: dict[str, int]) -> Counter[str]:
    out: Counter[str] = Counter()
    for part in shape.roles:
        for name, amount in part.needs.items():
            out[name] += amount * sizes.get(part.name, 0)
    return out


def members_by_group(world: World, cluster_id: int, plan: Plan) -> dict[str, list[Resources]]:
    """Return what each group has to hold, member by member: runs and starts together."""
    out: dict[str, list[Resources]] = {}
    leaving = {one.job_id for start in plan.starts for one in start.evicts} | {one.job_id for one in plan.stops}
    placements = [
        (run.shape_id, dict(run.placement))
        for run in world.runs.values()
        if run.cluster_id == cluster_id and run.job_id not in leaving
    ]
    placed = [(shape, {group: dict(roles) for group, roles in placement.items()}) for shape, placement in placements]
    placed += [(start.job.shape_id, start.placement) for start in plan.starts if start.cluster_id == cluster_id]
    for shape_id, placement in placed:
        by_role = {part.name: part.needs for part in SHAPES[shape_id - 1].roles}
        for group, roles in placement.items():
            for name, count in roles.items():
                out.setdefault(group, []).extend([by_role[name]] * count)
    return out


def above(world: World, queue_id: int) -> list[Queue]:
    queue = world.queues[queue_id]
    return [queue] if queue.parent_id is None else [queue, *above(world, queue.parent_id)]


def comparable(plan: Plan) -> object:
    return (
        [
            (start.job.id, start.cluster_id, start.sizes, start.placement, start.why, start.table)
            for start in plan.starts
        ],
        [(hold.job.id, hold.message) for hold in plan.holds],
        plan.reasons,
    )


# -- properties of a plan


@given(worlds())
def test_the_members_that_start_fit_their_nodes(world: World) -> None:
    plan = decide(Engine(world.state()), NOW)
    for cluster in world.clusters.values():
        by_group = members_by_group(world, cluster.id, plan)
        if cluster.report is None:
            assert by_group == {}
            continue
        for group in cluster.report.groups:
            members = sorted(by_group.pop(group.name, []), key=lambda one: sorted(one.items()), reverse=True)
            assert packs(members, [dict(group.free)] * group.count)
        assert by_group == {}


@given(busy_worlds())
def test_free_capacity_is_never_promised_twice(world: World) -> None:
    plan = decide(Engine(world.state()), NOW)
    for cluster in world.clusters.values():
        by_group = members_by_group(world, cluster.id, plan)
        for group in cluster.report.groups if cluster.report else ():
            used: Counter[str] = Counter()
            for member in by_group.get(group.name, []):
                used.update(member)
                assert all(group.free.get(name, 0) >= amount for name, amount in member.items())
            assert all(amount <= group.free.get(name, 0) * group.count for name, amount in used.items())


@given(busy_worlds())
def test_no_queue_exceeds_a_limit(world: World) -> None:
    plan = decide(Engine(world.state()), NOW)
    used: dict[int, Counter[str]] = {number: Counter() for number in world.queues}
    running: Counter[int] = Counter()
    for run in world.runs.values():
        for queue in above(world, run.queue_id):
            used[queue.id].update(needs(SHAPES[run.shape_id - 1], dict(run.sizes)))
            running[queue.id] += 1
    for start in plan.starts:
        wanted = needs(SHAPES[start.job.shape_id - 1], start.sizes)
        for queue in above(world, start.job.queue_id):
            used[queue.id].update(wanted)
            running[queue.id] += 1
            assert queue.state is QueueState.OPEN
            assert queue.max_running is None or running[queue.id] <= queue.max_running
            for name, limit in ((flavor.resource, quota.limit) for flavor, quota in queue.quotas.items()):
                assert not wanted[name] or limit is None or used[queue.id][name] <= limit


@given(busy_worlds())
def test_every_run_that_ends_for_another_had_to_give_way(world: World) -> None:
    """The rules, judged again from the world: see ``scheduling/preemption/victims.py``."""
    plan = decide(Engine(world.state()), NOW)
    ending = [(start.job, start.cluster_id, one) for start in plan.starts for one in start.evicts]
    assert len({one.job_id for _, _, one in ending}) == len(ending), "nobody gives way twice"
    used: dict[int, Counter[str]] = {number: Counter() for number in world.queues}
    for run in world.runs.values():
        for queue in above(world, run.queue_id):
            used[queue.id].update(needs(SHAPES[run.shape_id - 1], dict(run.sizes)))
    # What starts beside the exchanges makes the victims' queues larger, never smaller: only the exchanges are counted here.
    for taker, cluster_id, one in ending:
        run = world.runs[one.job_id]
        assert run.cluster_id == cluster_id
        assert run.attempt == one.attempt
        for queue in above(world, run.queue_id):
            used[queue.id].subtract(needs(SHAPES[run.shape_id - 1], dict(run.sizes)))
        if run.queue_id == taker.queue_id:
            assert run.class_id < taker.class_id
            continue
        common = {queue.id for queue in above(world, taker.queue_id)} & {q.id for q in above(world, run.queue_id)}
        started = [start for start in plan.starts if start.job.queue_id == run.queue_id]
        for queue in above(world, run.queue_id):
            for flavor, quota in queue.quotas.items():
                if queue.id not in common and quota.guaranteed and not started:
                    taken = needs(SHAPES[run.shape_id - 1], dict(run.sizes))[flavor.resource]
                    assert not taken or used[queue.id][flavor.resource] >= quota.guaranteed


@given(busy_worlds(), st.integers(0, 5))
def test_evictions_come_to_an_end(world: World, seed: int) -> None:
    """Whoever gave way waits again; with nothing else changing, there is a cycle in which nobody gives way, and it stays so."""
    quiet = 0
    for _ in range(60):
        plan = decide(Engine(world.state(seed)), NOW)
        ending = {one.job_id for start in plan.starts for one in start.evicts} | {one.job_id for one in plan.stops}
        quiet = 0 if ending or plan.starts else quiet + 1
        world.apply(plan)
        for job_id in ending:
            run = world.runs.pop(job_id)
            world.waiting[job_id] = WaitingJob(
                job_id, 2, f"j{job_id}", run.queue_id, run.class_id, run.shape_id, 0, NOW, run.attempt, run.user
            )
        if quiet == 2:
            return
    raise AssertionError("runs are still ended for others after 60 cycles")


@given(busy_worlds())
def test_only_waiting_jobs_start_once_and_only_where_they_may(world: World) -> None:
    plan = decide(Engine(world.state()), NOW)
    decided = [job.id for job in plan.jobs]
    assert len(decided) == len(set(decided))
    assert set(decided) <= set(world.waiting)
    for start in plan.starts:
        cluster, shape = world.clusters[start.cluster_id], SHAPES[start.job.shape_id - 1]
        assert not cluster.cordoned
        assert world.leases[cluster.id] > NOW
        assert cluster.report is not None
        assert not cluster.report.closed
        assert set(shape.capabilities) <= set(cluster.report.capabilities)
        assert cluster.kind in world.queues[start.job.queue_id].allowed_kinds
        assert not shape.kinds or cluster.kind in shape.kinds
        assert not shape.clusters or cluster.name in shape.clusters
        assert cluster.id not in world.avoided.get(start.job.id, ())
        placed = Counter[str]()
        for roles in start.placement.values():
            placed.update(roles)
        assert placed == Counter({name: size for name, size in start.sizes.items() if size})
        assert shape.least_members <= placed.total() <= shape.members
        for part in shape.roles:
            assert part.least <= placed[part.name] <= part.replicas
        if shape.required_level is not None:
            by_name = {group.name: dict(group.topology) for group in cluster.report.groups}
            assert len({by_name[group][shape.required_level] for group in start.placement}) == 1


@given(busy_worlds(), st.integers(0, 5))
def test_every_class_that_is_left_waiting_has_a_reason_and_no_other(world: World, most_starts: int) -> None:
    state = world.state()
    plan = decide(Engine(state), NOW, most_starts)
    assert len(plan.starts) <= most_starts
    gone = {job.id for job in plan.jobs}
    left = {state.class_of(job_id) for job_id in world.waiting if job_id not in gone}
    assert set(plan.reasons) <= left if plan.is_cut else set(plan.reasons) == left
    for reason in plan.reasons.values():
        assert reason.tier is reason.token.tier
        assert reason.sentence.endswith(".")
        assert reason.advice


@given(busy_worlds(), st.integers(0, 1000))
def test_the_plan_does_not_depend_on_the_order_in_which_rows_came(world: World, shuffled: int) -> None:
    engine = Engine(world.state())
    plan = comparable(decide(engine, NOW))
    assert comparable(decide(engine, NOW)) == plan
    assert comparable(decide(Engine(world.state(shuffled)), NOW)) == plan


@given(busy_worlds())
def test_trying_the_best_clusters_alone_chooses_as_looking_at_all_of_them_does(world: World) -> None:
    quick = decide(Engine(world.state()), NOW)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attempt_module, "search_best", lambda *_: None)
        thorough = decide(Engine(world.state()), NOW)
    assert [(start.job.id, start.cluster_id, start.placement, start.why) for start in quick.starts] == [
        (start.job.id, start.cluster_id, start.placement, start.why) for start in thorough.starts
    ]
    assert (quick.holds, quick.stops, quick.reasons, quick.reservations) == (
        thorough.holds,
        thorough.stops,
        thorough.reasons,
        thorough.reservations,
    )


@given(busy_worlds())
def test_of_alike_jobs_none_is_overtaken(world: World) -> None:
    """Inside a class: if a job starts, every one before it was decided on, too."""
    state = world.state()
    plan = decide(Engine(state), NOW)
    decided = {job.id for job in plan.jobs}
    for of_queue in state.waiting.values():
        for keys in of_queue.values():
            left = [key.job_id not in decided for key in keys]
            assert left == sorted(left)


@given(busy_worlds(), st.data())
def test_changing_what_the_reason_names_starts_the_job_or_leads_to_another_reason(
    world: World, data: st.DataObject
) -> None:
    assume(world.waiting)
    job = world.waiting[data.draw(st.sampled_from(sorted(world.waiting)))]
    world.waiting = {job.id: job}
    for _ in range(8):
        plan = decide(Engine(world.state()), NOW)
        if plan.starts or plan.holds:
            return
        (reason,) = plan.reasons.values()
        if not mend(world, job, reason.token):
            assert reason.tier.value == "cannot run as written", f"mend has no case of {reason.token}"
            return
        after = decide(Engine(world.state()), NOW)
        if not after.starts and not after.holds:
            (next_reason,) = after.reasons.values()
            assert next_reason.token is not reason.token
    raise AssertionError("the reasons go round in a circle")


def mend(world: World, job: WaitingJob, token: Token) -> bool:
    """Change exactly what the token names; return False when only the job itself could change."""
    match token:
        case Token.QUEUE_HELD:
            world.queues = {number: replace(queue, state=QueueState.OPEN) for number, queue in world.queues.items()}
        case Token.OUTSIDE_HOURS | Token.START_CONDITION:
            world.queues = {number: replace(queue, starts_when=None) for number, queue in world.queues.items()}
        case Token.BORROWING_LIMIT | Token.KEPT_FOR_OTHERS:
            world.queues = {
                number: replace(
                    queue, quotas={flavor: Quota(limit=quota.limit) for flavor, quota in queue.quotas.items()}
                )
                for number, queue in world.queues.items()
            }
        case Token.QUEUE_LIMIT:
            open_ended = {number: replace(queue, quotas={}, max_running=None) for number, queue in world.queues.items()}
            world.queues = open_ended
        case Token.USER_LIMIT:
            unlimited = (
                replace(queue, max_running_per_user=None, limits_per_user={}) for queue in world.queues.values()
            )
            world.queues = {queue.id: queue for queue in unlimited}
        case Token.CORDONED:
            world.clusters = {number: replace(cluster, cordoned=False) for number, cluster in world.clusters.items()}
        case Token.UNREACHABLE:
            world.leases = dict.fromkeys(world.clusters, NOW + LEASE)
            for number, cluster in world.clusters.items():
                report = cluster.report or CapacityReport(groups=(nodes(9, cpu=9),), runtime="local", scheduler="local")
                open_report = report.model_copy(update={"closed": ""})
                world.clusters[number] = replace(cluster, report=open_report)
        case Token.COOLING_DOWN:
            world.avoided = {}
        case Token.INSUFFICIENT_CAPACITY | Token.PREEMPTING:
            world.runs = {}
        case _:
            return False
    return True


# -- the state


@given(worlds(most_jobs=6), st.data())
def test_a_state_that_absorbed_changes_plans_as_one_that_was_rebuilt(world: World, data: st.DataObject) -> None:
    engine = Engine(world.state())
    state = engine.state
    for _ in range(data.draw(st.integers(0, 25))):
        change(world, engine, data)
        if data.draw(st.integers(0, 4)) == 0:
            assert comparable(decide(engine, NOW)) == comparable(decide(Engine(world.state(7)), NOW))
    rebuilt = world.state(data.draw(st.integers(0, 99)))
    assert comparable(decide(engine, NOW)) == comparable(decide(Engine(rebuilt), NOW))
    assert {queue: {key: list(keys) for key, keys in of.items()} for queue, of in state.waiting.items()} == {
        queue: {key: list(keys) for key, keys in of.items()} for queue, of in rebuilt.waiting.items()
    }
    assert (state.jobs, state.runs) == (rebuilt.jobs, rebuilt.runs)
    assert state.deadlines == rebuilt.deadlines


def change(world: World, engine: Engine, data: st.DataObject) -> None:  # noqa: C901 - one case for each kind of change
    """Make one change, absorbed by the engine's state and noted in the world."""
    state = engine.state
    match data.draw(
        st.sampled_from(["job", "job", "run", "drop", "plan", "queue", "cluster", "lease", "avoid", "again"])
    ):
        case "job":
            job = data.draw(jobs)
            world.runs.pop(job.id, None)
            world.waiting[job.id] = job
            state.put_waiting(job)
        case "run":
            job = data.draw(jobs)
            shape = SHAPES[job.shape_id - 1]
            sizes = tuple((part.name, part.replicas) for part in shape.roles)
            run = LiveRun(job.id, job.queue_id, job.shape_id, data.draw(st.integers(1, 3)), sizes, (), user=job.user)
            world.waiting.pop(job.id, None)
            world.runs[job.id] = run
            state.put_run(run)
        case "drop":
            job_id = data.draw(st.integers(1, 30))
            world.waiting.pop(job_id, None)
            world.runs.pop(job_id, None)
            state.drop_job(job_id)
        case "plan":
            plan = decide(engine, NOW)
            world.apply(plan)
            for start in plan.starts:
                state.put_run(world.runs[start.job.id])
            for hold in plan.holds:
                state.drop_job(hold.job.id)
        case "queue":
            queue = data.draw(queues)
            world.queues[queue.id] = queue
            state.put_queue(queue)
        case "cluster":
            cluster = data.draw(clusters)
            world.clusters[cluster.id] = cluster
            state.put_cluster(cluster)
        case "lease":
            number, seconds = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([LEASE, -1.0]))
            world.leases[number] = state.lease_until[number] = NOW + seconds
        case "avoid":
            some = st.sampled_from(sorted(world.waiting)) if world.waiting else st.integers(1, 30)
            avoided = data.draw(st.dictionaries(some, st.sampled_from([(1,), (2,), (1, 2)]), max_size=4))
            world.avoided = avoided
            state.set_avoided(dict(avoided))
        case _:
            for row in list(world.waiting.values()):
                state.put_waiting(row)
            for live in list(world.runs.values()):
                state.put_run(live)


# -- the fit

small_groups = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=3).map(
    lambda rows: [nodes(count, f"g{n}", cpu=cpu, gpu=gpu) for n, (count, cpu, gpu) in enumerate(rows)]
)
small_roles = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.sampled_from([None, None, 1, 2])),
    min_size=1,
    max_size=3,
).map(
    lambda rows: gang(
        *(role(size, f"r{n}", cpu=cpu, gpu=gpu, max_per_node=most) for n, (size, cpu, gpu, most) in enumerate(rows))
    )
)


def apart(shape: Shape, node: Resources) -> Resources:
    """Return a node that takes as many members of each role as it may, said as amounts of something that they need one of."""
    return node | {f"places/{part.name}": part.max_per_node for part in shape.roles if part.max_per_node is not None}


def members_apart(shape: Shape) -> list[Resources]:
    return [
        part.needs | ({} if part.max_per_node is None else {f"places/{part.name}": 1})
        for part in shape.roles
        for _ in range(part.replicas)
    ]


@given(small_groups, small_roles)
def test_fit_never_says_yes_where_no_packing_exists(found: list[NodeGroup], shape: Shape) -> None:
    capacity = FreeCapacity.empty(CapacityReport(groups=tuple(found), runtime="local", scheduler="local"))
    free = [dict(one.free) for one in capacity.nodes for _ in range(one.count)]
    members, places = members_apart(shape), [apart(shape, node) for node in free]
    outcome = fit(shape, size_choices(shape)[0].members, capacity)
    assert [one.free for one in capacity.nodes for _ in range(one.count)] == free
    if isinstance(outcome, Fitted):
        assert packs(members, places)
        before, needed = capacity.total(), needs_of(shape, size_choices(shape)[0].members)
        take(capacity, outcome)
        assert sum(one.count for one in capacity.nodes) == len(free), "no node is made or lost"
        assert all(amount >= 0 for one in capacity.nodes for amount in one.free.values())
        assert {name: before.get(name, 0) - amount for name, amount in capacity.total().items() if amount} == {
            name: needed.get(name, 0) for name, amount in capacity.total().items() if amount
        }
    elif len(shape.roles) == 1:
        assert not packs(members, places), "members alike are packed whenever they can be"


def test_the_brute_force_packer_knows_when_to_give_up() -> None:
    """The checker itself: against sums over every assignment of three members to two nodes."""
    for sizes in combinations_with_replacement(range(1, 4), 3):
        members = [{"cpu": size} for size in sizes]
        ways = ((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1))
        fits = any(all(sum(s for s, w in zip(sizes, way, strict=True) if w == n) <= 4 for n in (0, 1)) for way in ways)
        assert packs(members, [{"cpu": 4}, {"cpu": 4}]) is fits


def test_shapes_that_no_job_has_any_more_are_forgotten() -> None:
    state = SchedulerState()
    many = 2500
    for number in range(1, many + 1):
        state.put_shape(number, simple(cpu=number))
        state.put_waiting(WaitingJob(number, 1, f"j{number}", 1, 1, number, 0, float(number), 0))
    state.sweep()
    assert len(state.shapes) == many, "all are needed"
    for number in range(11, many + 1):
        state.drop_job(number)
    for number in range(many + 1, 2 * many + 2000):
        state.put_shape(number, simple(cpu=1))
    state.sweep()
    assert sorted(state.shapes) == list(range(1, 11))
