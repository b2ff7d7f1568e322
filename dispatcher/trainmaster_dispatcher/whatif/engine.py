"""`Simulation`: a trace through the scheduler's own decision and simulated clusters.

Time jumps to the next submission, end, or event of a cluster. At each stop the clusters advance to that time, changes
of runs go into the state as the store would put them there, and the engine decides until nothing more starts. Decisions
take no time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Any

from trainmaster.fake_cluster.cluster import FakeCluster as SimulatedCluster
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.fake_cluster.run import FakeRun
from trainmaster.protocol.agent import ResizeRun, StartRun, StopRun
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import job_id, run_id
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.start_times import parse_start_time
from trainmaster.protocol.states import ClusterKind, JobState, RunState, StopCause
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.domain import job_machine
from trainmaster_dispatcher.domain.burst_policies import Spending, policy_of
from trainmaster_dispatcher.domain.job_machine import Job, RunEnding
from trainmaster_dispatcher.domain.prices import FREE, Tariff, tariff_of
from trainmaster_dispatcher.domain.priority_classes import SHIPPED
from trainmaster_dispatcher.domain.provisioning import Learnt, learn
from trainmaster_dispatcher.domain.redaction import rendered
from trainmaster_dispatcher.domain.run_times import RunTimes
from trainmaster_dispatcher.domain.shapes import count_units, shape_bytes, shape_from, shape_of
from trainmaster_dispatcher.domain.spec_rendering import apply_orders
from trainmaster_dispatcher.domain.wait_forecasts import ForecastOutcome
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster
from trainmaster_dispatcher.scheduling.state.flavors import product_of
from trainmaster_dispatcher.scheduling.state.from_specs import class_of, cluster_of, dataset_of, queue_of
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import freeze_placement
from trainmaster_dispatcher.scheduling.state.plan import Eviction, Growth, Plan, grown, shrinking
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.scheduling.state.usage_decay import USER_HALF_LIFE, DecayedUsage
from trainmaster_dispatcher.scheduling.state.writes import RunStart, victims_of, writes_of
from trainmaster_dispatcher.whatif.stays import Groups, Stay
from trainmaster_dispatcher.whatif.trace import Trace, TraceJob

_PLACEMENT_TIMEOUT = 300.0
_A_MOMENT = 0.001
_MOST_RETURNS = 200
"""The number of returns in a row after which a job is not tried again: the simulation would never end."""
_MOST_BEGAN = 10_000
"""The number of starts by a policy that are remembered for its ramp."""
Progress = Callable[[int, int], None]
"""Receives the number of jobs that have ended, and the number of all jobs."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared objects, as in the files of ``trainmaster apply``."""

    queues: Sequence[QueueSpec]
    classes: Sequence[PriorityClassSpec] = ()
    clusters: Sequence[ClusterSpec] = ()
    """Clusters of the fleet that are not named here have the kind that the fleet gives."""
    books: Sequence[PriceBookSpec] = ()
    policies: Sequence[BurstPolicySpec] = ()
    datasets: Sequence[DatasetSpec] = ()


@dataclass(slots=True)
class StudiedJob:
    """A job of the trace and its outcome. Times are seconds since the trace began; ``inf`` if the event never happened."""

    job: TraceJob
    machine: Job = field(default_factory=Job)
    first_start: float = inf
    """The first time that a run of it was running."""
    last_start: float = inf
    ended_at: float = inf
    done: float = 0.0
    """Seconds of its work that a checkpoint has saved."""
    cluster: str = ""
    preemptions: int = 0
    """Orders to its runs to end for other jobs."""
    stays: list[Stay] = field(default_factory=list)

    @property
    def wait(self) -> float:
        return self.first_start - self.job.submit


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """The outcome of a simulation. ``finished_at``: the time of the last event."""

    records: Sequence[StudiedJob]
    finished_at: float
    cycles: int
    preemptions: int
    capacity: Mapping[str, Mapping[str, int]]
    """By cluster: its capacity of each resource."""
    kinds: Mapping[str, str]
    products: Mapping[str, Groups]
    """By cluster."""
    learnt: Mapping[tuple[str, str], Learnt]
    """By cluster and pool: the learnt times of its growth."""
    bursts: Mapping[str, int]
    """By burst policy: the number of runs sent to public clusters."""
    tariffs: Mapping[str, Tariff]
    forecasts: Mapping[str, Sequence[ForecastOutcome]]
    """By queue: forecasts of the waits of jobs that had to wait, and what came of them."""


class Simulation:
    """One fleet under one set of declarations. ``run`` may be called once. Raises ProblemError for declarations that
    contradict each other."""

    def __init__(self, fleet: Fleet, declared: Declared, *, predicts: bool = True) -> None:
        """``predicts``: plan with predicted run times, as the scheduler does unless it is told not to."""
        self._engine = Engine()
        self._state = self._engine.state
        self._state.run_times = RunTimes(is_on=predicts)
        self._queues = _put_queues(self._state, declared.queues)
        self._classes, self._default_class = _put_classes(self._state, declared.classes)
        specs = {spec.name: spec for spec in declared.clusters}
        books = {book.name: book for book in declared.books}
        self._clusters: dict[int, SimulatedCluster] = {}
        self._specs: dict[int, ClusterSpec] = {}
        self._tariffs: dict[int, Tariff] = {}
        self._reported: dict[int, Any] = {}
        for key, one in enumerate(fleet.clusters, start=1):
            spec = specs.get(one.name) or ClusterSpec(
                name=one.name, cluster_kind=one.kind, region=one.region, provider=one.provider, labels=one.labels
            )
            self._specs[key] = spec
            self._tariffs[key] = _tariff(spec, books)
            self._clusters[key] = SimulatedCluster(one, 0.0, fleet.seed)
            self._state.set_lease(key, inf)
            self._take_report(key, 0.0)
        self._never_changes = not any(
            group.failures or group.foreign or group.provisioning for one in fleet.clusters for group in one.groups
        )
        self._capacity = {self._specs[key].name: _capacity_of(cluster) for key, cluster in self._clusters.items()}
        self._wires: dict[int, dict[str, Any]] = {}
        """By the id of a specification's object, which the trace keeps alive."""
        self._shape_ids: dict[bytes, int] = {}
        self._shape_of_spec: dict[int, int] = {}
        self._records: dict[int, StudiedJob] = {}
        self._numbers: dict[str, int] = {}
        """By run: its job."""
        self._ends: list[tuple[float, str, int]] = []
        """The times at which runs have done their work: time, run, cluster."""
        self._releases: list[tuple[float, int]] = []
        self._cooling: list[tuple[float, int, int]] = []
        self._without_room: set[int] = set()
        """Jobs that were last returned for want of room."""
        self._generations: dict[str, int] = {}
        self._growing: dict[int, tuple[int, tuple[str, ...], float]] = {}
        """By job: its cluster, the pools that have to grow for it, and the time since when."""
        self._samples: dict[tuple[int, str], list[float | None]] = {}
        self._spent: dict[int, dict[int, int]] = {}
        self._spent_on: dict[int, int] = {}
        self._began: dict[int, list[float]] = {}
        self._next_look = inf
        self._bursts = {one.name: 0 for one in declared.policies}
        self._state.set_datasets(dataset_of(spec) for spec in declared.datasets)
        _put_policies(self._state, declared.policies, self._queues, self._specs, self._classes)
        self._state.past_of_users = DecayedUsage(parse_duration(USER_HALF_LIFE), 0.0, {})
        self._forecaster = WaitForecaster()
        self._forecasts: dict[int, list[ForecastOutcome]] = {}
        self.cycles = 0
        self.preemptions = 0

    def run(self, trace: Trace, on_progress: Progress = lambda done, total: None) -> StudyOutcome:
        """Run the trace and return the outcome. Raises ProblemError for a job that names what does not exist."""
        jobs = trace.jobs
        self._records = {job.number: StudiedJob(job) for job in jobs}
        next_job = ended = 0
        now = 0.0
        while True:
            arrival = jobs[next_job].submit if next_job < len(jobs) else inf
            now = min(arrival, self._next_event())
            if now == inf:
                break
            self._count_usage(now)
            ended += self._live_until(now)
            while next_job < len(jobs) and jobs[next_job].submit <= now:
                self._submit(self._records[jobs[next_job].number], now)
                next_job += 1
            ended += self._decide(now)
            on_progress(ended, len(jobs))
            if ended == len(jobs):
                break
        return StudyOutcome(
            records=list(self._records.values()),
            finished_at=now if now < inf else self._last_event(),
            cycles=self.cycles,
            preemptions=self.preemptions,
            capacity=self._capacity,
            kinds={spec.name: spec.cluster_kind.value for spec in self._specs.values()},
            products={self._specs[key].name: self._groups_of(key) for key in self._clusters},
            learnt={(self._specs[key].name, pool): one for (key, pool), one in self._state.provisioning.items()},
            bursts=self._bursts,
            tariffs={self._specs[key].name: tariff for key, tariff in self._tariffs.items()},
            forecasts={path: self._forecasts[key] for path, key in self._queues.items() if key in self._forecasts},
        )

    def _last_event(self) -> float:
        moments = [stay.ended_at for record in self._records.values() for stay in record.stays]
        return max(moments, default=0.0)

    def _next_event(self) -> float:
        """Return the time of the next event that may concern a waiting or running job."""
        if not self._state.jobs and not self._state.runs and not self._releases:
            return inf
        moments = [
            self._ends[0][0] if self._ends else inf,
            self._releases[0][0] if self._releases else inf,
            self._cooling[0][0] if self._cooling else inf,
            self._next_look,
            *(cluster.next_event_at() for cluster in self._clusters.values()),
        ]
        return min(moments)

    # Time passes

    def _count_usage(self, now: float) -> None:
        """Add what users have used since the last event to their past usage, as the leader does with its default half-life."""
        past = self._state.past_of_users
        if past is None or now <= past.at:
            return
        shares = self._engine.quotas(past.at).shares_of_users() if self._state.used_by else {}
        self._state.past_of_users = past.advanced(now, shares, inf)

    def _live_until(self, now: float) -> int:
        """Advance to ``now``; return the number of jobs that have ended for good."""
        while self._ends and self._ends[0][0] <= now:
            at, run, key = heappop(self._ends)
            self._clusters[key].finish(run, at)
        ended = 0
        for key, cluster in self._clusters.items():
            if cluster.next_event_at() <= now:
                cluster.advance(now)
            if cluster.has_changed:
                ended += self._take_changes(key, now)
            self._take_report(key, now)
        while self._releases and self._releases[0][0] <= now:
            record = self._records[heappop(self._releases)[1]]
            record.machine = job_machine.release(record.machine)
            self._wait(record)
        self._cool(now)
        return ended

    def _take_report(self, key: int, now: float) -> None:
        groups = self._clusters[key].ledger.report()
        if self._reported.get(key) is not groups:
            self._reported[key] = groups
            report = self._clusters[key].report()
            self._state.put_cluster(cluster_of(key, self._specs[key], report, tariff=self._tariffs[key]), now)

    def _take_changes(self, key: int, now: float) -> int:
        ended = 0
        cluster = self._clusters[key]
        for run in list(cluster.take_changed().values()):
            number = self._numbers.get(run.id)
            if number is None:
                continue
            record = self._records[number]
            if run.state.is_terminal:
                cluster.forget(run.id, now)
                ended += self._end(record, run, key, now)
            else:
                self._follow(record, run, key)
        return ended

    def _follow(self, record: StudiedJob, run: FakeRun, key: int) -> None:
        if run.state is RunState.RUNNING and record.machine.state is JobState.DISPATCHED:
            record.machine = job_machine.run_started(record.machine)
            record.first_start = min(record.first_start, run.started_at)
            record.last_start = run.started_at
            left = (record.job.run - record.done) / self._clusters[key].spec.speed
            heappush(self._ends, (run.started_at + max(left, 0.0), run.id, key))
        live = self._state.runs.get(record.job.number)
        if run.placement and run.started_at < inf:
            self._note_growth(record.job.number, run.started_at)
        if live is not None and run.placement is not None:
            each = self._state.shapes[live.shape_id].members_per_unit
            placed = (
                {group: count_units(roles, each) for group, roles in run.placement.items()} if each else run.placement
            )
            self._state.put_run(replace(live, placement=freeze_placement(placed)))

    def _end(self, record: StudiedJob, run: FakeRun, key: int, now: float) -> int:
        """Record the end of a run; return 1 if its job has ended for good."""
        number = record.job.number
        del self._numbers[run.id]
        started = record.machine.state is JobState.RUNNING
        if run.placed and run.placement is not None and run.plan is not None:
            each = {role.name: role.members_per_claim for role in record.job.spec.roles}
            record.stays.append(
                Stay(
                    number=number,
                    cluster=self._specs[key].name,
                    placed_at=min(run.started_at, run.ended_at),
                    ended_at=run.ended_at,
                    sizes=count_units({role.name: role.count for role in run.plan.roles}, each),
                    placement={group: count_units(roles, each) for group, roles in run.placement.items()},
                    state=run.state,
                )
            )
        if started and run.state is not RunState.SUCCEEDED and record.job.spec.checkpoint is not None:
            record.done += (run.ended_at - record.last_start) * self._clusters[key].spec.speed
        record.cluster = self._specs[key].name
        verdict = run.verdict
        ending = RunEnding(
            run.state,
            category=None if verdict is None else verdict.category,
            exit_code=None if verdict is None else verdict.exit_code,
            message=run.message,
            cluster_stayed_up=True,
            lacks_room=verdict is not None and verdict.lacks_room,
        )
        settled = job_machine.settle(record.machine, ending, record.job.spec.retries, now)
        record.machine = settled.job
        if run.placed or run.state is RunState.RETURNED:
            self._note_growth(number, min(run.started_at, run.ended_at) if run.placed else inf)
        self._growing.pop(number, None)
        self._note_spent(number, run)
        if record.machine.state.is_terminal:
            self._state.end_job(number, now)
        else:
            self._state.drop_job(number)
        if record.machine.returns >= _MOST_RETURNS:
            return 1  # it waits for ever
        if settled.cool_down_seconds:
            heappush(self._cooling, (now + settled.cool_down_seconds, number, key))
            if ending.lacks_room:
                self._without_room.add(number)
            else:
                self._without_room.discard(number)
            self._avoid(number, key, now)
        if record.machine.state is JobState.QUEUED:
            self._wait(record)
        elif record.machine.state is JobState.HELD:
            if record.machine.hold_until is None:
                return 1
            heappush(self._releases, (record.machine.hold_until, number))
        else:
            record.ended_at = run.ended_at
            return 1
        return 0

    def _note_growth(self, number: int, placed_at: float) -> None:
        """Record when pools have grown for a run; infinity means that they have not."""
        found = self._growing.pop(number, None)
        if found is not None:
            key, pools, since = found
            for pool in pools:
                self._samples.setdefault((key, pool), []).append(placed_at - since if placed_at < inf else None)
            self._state.set_provisioning({one: learn(samples) for one, samples in self._samples.items()})

    def _note_spent(self, number: int, run: FakeRun) -> None:
        """Record the cost of a run by a policy, as the dispatcher counts it."""
        live = self._state.runs.get(number)
        if live is None or live.burst is None:
            return
        policy, stays = live.burst.policy_id, self._records[number].stays
        began = self._began.setdefault(policy, [])
        began.append(live.burst.leased_at)
        del began[:-_MOST_BEGAN]
        if stays and stays[-1].ended_at == run.ended_at:
            needs = {role.name: role.needs for role in self._state.shapes[live.shape_id].roles}
            amounts = stays[-1].amounts(needs, self._groups_of(live.cluster_id))
            for part, used in stays[-1].used(amounts, self._tariffs[live.cluster_id]).items():
                of_policy = self._spent.setdefault(policy, {})
                of_policy[part.hour] = of_policy.get(part.hour, 0) + used.cost
                self._spent_on[number] = self._spent_on.get(number, 0) + used.cost
        self._state.spending, self._state.job_spent = Spending(self._spent, self._began), self._spent_on

    def _avoid(self, number: int, key: int, now: float) -> None:
        avoided = dict(self._state.avoided)
        avoided[number] = tuple(sorted({*avoided.get(number, ()), key}))
        self._state.set_avoided(avoided, self._without_room & avoided.keys())

    def _cool(self, now: float) -> None:
        if not self._cooling or self._cooling[0][0] > now:
            return
        avoided = dict(self._state.avoided)
        while self._cooling and self._cooling[0][0] <= now:
            _, number, key = heappop(self._cooling)
            left = tuple(one for one in avoided.get(number, ()) if one != key)
            if left:
                avoided[number] = left
            else:
                avoided.pop(number, None)
        self._state.set_avoided(avoided, self._without_room & avoided.keys())

    # Jobs

    def _submit(self, record: StudiedJob, now: float) -> None:
        spec = record.job.spec
        if spec.queue not in self._queues:
            raise ProblemError(
                Code.UNKNOWN_QUEUE, f"there is no queue {spec.queue!r}; there are: {', '.join(self._queues)}"
            )
        if spec.priority_class is not None and spec.priority_class not in self._classes:
            names = ", ".join(self._classes)
            raise ProblemError(
                Code.UNKNOWN_PRIORITY_CLASS, f"there is no priority class {spec.priority_class!r}; there are: {names}"
            )
        self._wait(record)

    def _wait(self, record: StudiedJob) -> None:
        job, spec = record.job, record.job.spec
        self._state.put_waiting(
            WaitingJob(
                id=job.number,
                version=1,
                name=spec.name,
                queue_id=self._queues[spec.queue],
                class_id=self._classes[spec.priority_class] if spec.priority_class else self._default_class,
                shape_id=self._shape_id(job),
                priority=spec.priority,
                waits_since=job.submit,
                attempt=record.machine.attempt,
                user=job.user,
                deadline=None if spec.deadline is None else parse_start_time(spec.deadline).at(job.submit),
            )
        )

    def _shape_id(self, job: TraceJob) -> int:
        known = self._shape_of_spec.get(id(job.spec))
        if known is None:
            _, digest = shape_bytes(job.spec)
            known = self._shape_ids.setdefault(digest, len(self._shape_ids) + 1)
            self._shape_of_spec[id(job.spec)] = known
            self._state.put_shape(known, shape_from(shape_of(job.spec)))
        return known

    # Decisions

    def _decide(self, now: float) -> int:
        """Decide until nothing more changes; return the number of jobs that are held for ever."""
        held, self._next_look = 0, inf
        while self._state.jobs or self._state.elastic_on:
            plan = decide(self._engine, now)
            self.cycles += 1
            self._engine.carry_over(plan)
            # A moment later than reported, because times are rounded.
            self._next_look = plan.next_look + _A_MOMENT
            held += self._apply(plan, now)
            for outcome in self._forecaster.observe(self._state, plan, now):
                self._forecasts.setdefault(outcome.queue_id, []).append(outcome)
            if self._never_changes:
                self._pass_over(plan)
            if not plan.changes_anything:
                break
        return held

    def _pass_over(self, plan: Plan) -> None:
        """Exclude jobs that could never start on this fleet from further decisions."""
        for key, reason in plan.reasons.items():
            if reason.for_ever or reason.token is Token.TOO_LARGE:
                for place in list(self._state.waiting.get(key.queue_id, {}).get(key, ())):
                    record = self._records[place.job_id]
                    record.machine = record.machine._replace(message=rendered(reason.sentence))
                    self._state.drop_job(place.job_id)

    def _apply(self, plan: Plan, now: float) -> int:
        named = [*(job.id for job in plan.jobs), *(one.job_id for one in victims_of(plan))]
        named += [one.job_id for one in plan.grows]
        runs = self._state.runs
        writes = writes_of(
            plan,
            {number: self._records[number].machine for number in named},
            {number: dict(runs[number].sizes) for number in named if number in runs},
            cycle=self.cycles,
        )
        for changed in writes.jobs:
            self._records[changed.job_id].machine = changed.job
        for victim in writes.stops:
            self._stop(victim, now)
        for victim in writes.shrinks:
            self._shrink(victim, now)
        for start in writes.starts:
            self._start(start, now)
        for growth in writes.grows:
            self._grow(growth, now)
        for hold in plan.holds:
            self._state.drop_job(hold.job.id)
        return len(plan.holds) + sum(self._take_changes(key, now) for key in writes.clusters)

    def _start(self, one: RunStart, now: float) -> None:
        start = one.start
        record = self._records[start.job.id]
        name = job_id(record.job.spec.name, start.job.id)
        run = run_id(name, one.attempt)
        self._numbers[run] = start.job.id
        self._generations[run] = 1
        spec = self._specs[start.cluster_id]
        self._state.put_run(start.run(now))
        if start.pools:
            self._growing[start.job.id] = start.cluster_id, start.pools, now
        if start.granted is not None:
            self._bursts[start.granted.policy] += 1
        self._clusters[start.cluster_id].start(
            StartRun(
                run=run,
                job=name,
                queue=record.job.spec.queue,
                attempt=one.attempt,
                token=one.attempt,
                generation=1,
                spec=apply_orders(self._wire(record.job.spec), one.orders),
                sizes=start.members,
                pins=start.member_placement,
                placement_timeout_seconds=(parse_duration(spec.placement_timeout) or _PLACEMENT_TIMEOUT)
                + one.orders.awaits_seconds,
            ),
            now,
        )

    def _wire(self, spec: JobSpec) -> dict[str, Any]:
        """Return the wire form, created once for all equivalent jobs."""
        known = self._wires.get(id(spec))
        if known is None:
            known = self._wires[id(spec)] = spec.to_wire()
        return known

    def _run_of(self, number: int) -> str:
        record = self._records[number]
        return run_id(job_id(record.job.spec.name, number), record.machine.attempt)

    def _stop(self, one: Eviction, now: float) -> None:
        run, spec = self._run_of(one.job_id), self._records[one.job_id].job.spec
        self.preemptions += 1
        self._records[one.job_id].preemptions += 1
        self._generations[run] += 1
        self._state.put_run(replace(self._state.runs[one.job_id], is_stopping=True))
        self._clusters[one.cluster_id].stop(
            StopRun(
                run=run,
                generation=self._generations[run],
                cause=StopCause.PREEMPT,
                grace_seconds=parse_duration(spec.stop_grace),
            ),
            now,
        )

    def _shrink(self, one: Eviction, now: float) -> None:
        run, spec, sizes = self._run_of(one.job_id), self._records[one.job_id].job.spec, one.sizes or {}
        self._resize(run, one.cluster_id, sizes, {}, parse_duration(spec.stop_grace), now)
        self._state.put_run(shrinking(self._state.runs[one.job_id], sizes, now))

    def _grow(self, one: Growth, now: float) -> None:
        self._resize(self._run_of(one.job_id), one.cluster_id, one.sizes, one.placement, 0.0, now)
        self._state.put_run(grown(self._state.runs[one.job_id], one, now))

    def _resize(
        self, run: str, key: int, sizes: dict[str, int], pins: MemberPlacement, grace: float, now: float
    ) -> None:
        self._generations[run] += 1
        order = ResizeRun(run=run, generation=self._generations[run], sizes=sizes, pins=pins, grace_seconds=grace)
        self._clusters[key].resize(order, now)

    def _groups_of(self, key: int) -> Groups:
        return {group.name: (product_of(group), group.labels) for group in self._clusters[key].ledger.report()}


def _put_queues(state: SchedulerState, specs: Sequence[QueueSpec]) -> dict[str, int]:
    """Put the queues into the state, parents first; return their keys by path."""
    keys: dict[str, int] = {}
    for spec in sorted(specs, key=lambda spec: spec.path.count("/")):
        if spec.parent is not None and spec.parent not in keys:
            raise ProblemError(Code.UNKNOWN_QUEUE, f"there is no queue {spec.parent!r}, the parent of {spec.path!r}")
        keys[spec.path] = len(keys) + 1
        state.put_queue(queue_of(keys[spec.path], keys.get(spec.parent or ""), spec))
    return keys


def _put_classes(state: SchedulerState, specs: Sequence[PriorityClassSpec]) -> tuple[dict[str, int], int]:
    """Put the classes into the state; return their keys by name, and the default one's."""
    every = specs or SHIPPED
    keys = {spec.name: key for key, spec in enumerate(every, start=1)}
    for spec in every:
        state.put_class(class_of(keys[spec.name], spec))
    default = next((spec.name for spec in every if spec.default), every[0].name)
    return keys, keys[default]


def _put_policies(
    state: SchedulerState,
    specs: Sequence[BurstPolicySpec],
    queues: Mapping[str, int],
    clusters: Mapping[int, ClusterSpec],
    classes: Mapping[str, int],
) -> None:
    """Put the policies into the state. Raises ProblemError for one that names what does not exist."""
    kinds = {spec.name: spec.cluster_kind for spec in clusters.values()}
    for spec in specs:
        for path in spec.queues:
            if path not in queues:
                raise ProblemError(Code.UNKNOWN_QUEUE, f"policy {spec.name}: there is no queue {path!r}")
        for name in spec.clusters:
            if kinds.get(name) is not ClusterKind.PUBLIC:
                raise ProblemError(
                    Code.NOT_FOUND, f"policy {spec.name}: there is no public cluster {name!r} in the fleet"
                )
        least = spec.when.class_at_least
        if least is not None and least not in classes:
            raise ProblemError(Code.UNKNOWN_PRIORITY_CLASS, f"policy {spec.name}: there is no priority class {least!r}")
    state.set_policies(policy_of(key, spec) for key, spec in enumerate(specs, start=1))


def _tariff(spec: ClusterSpec, books: Mapping[str, PriceBookSpec]) -> Tariff:
    if spec.price_book is None:
        return FREE
    if spec.price_book not in books:
        raise ProblemError(
            Code.UNKNOWN_PRICE_BOOK, f"there is no price book {spec.price_book!r}, which {spec.name} names"
        )
    return tariff_of(books[spec.price_book], spec.price_correction)


def _capacity_of(cluster: SimulatedCluster) -> dict[str, int]:
    total: dict[str, int] = {}
    for group in cluster.ledger.report():
        for name, amount in group.free.items():
            total[name] = total.get(name, 0) + amount * group.count
    return total
