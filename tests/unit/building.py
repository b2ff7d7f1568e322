"""Fluent builders: a scheduler's state, jobs and nodes said in few words."""

from collections import Counter
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Self

from trainmaster.protocol.agent import CapacityReport, NodeGroup, Pool, ReportedAdmission, Sharing, Taint
from trainmaster.protocol.bursting import BurstPolicySpec, HoursSpec
from trainmaster.protocol.device_parts import parse_counted
from trainmaster.protocol.jobs import GpuPart
from trainmaster.protocol.prices import PriceBookSpec, to_nanos
from trainmaster.protocol.quantities import parse_resources
from trainmaster.protocol.quota import parse_flavor
from trainmaster.protocol.reasons import Reason, Verdict
from trainmaster.protocol.start_conditions import StartsWhenSpec
from trainmaster.protocol.states import ClusterKind, FairBy, Order, OrderBy, Preemption, QueueState
from trainmaster_dispatcher.domain.burst_policies import Spending, hours_of, policy_of
from trainmaster_dispatcher.domain.datasets import Dataset
from trainmaster_dispatcher.domain.prices import FREE, MICROS, tariff_of
from trainmaster_dispatcher.domain.redaction import MayRead, everything, rendered, rendered_json
from trainmaster_dispatcher.domain.shapes import RoleShape, Shape
from trainmaster_dispatcher.domain.start_conditions import start_conditions_of
from trainmaster_dispatcher.domain.weights import Weights
from trainmaster_dispatcher.scheduling.cycle.decide import MOST_STARTS, decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.state.declared_objects import (
    AdvanceReservation,
    Cluster,
    MoveTerms,
    PriorityClass,
    Queue,
)
from trainmaster_dispatcher.scheduling.state.flavors import Flavor, Quota
from trainmaster_dispatcher.scheduling.state.jobs import WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, freeze_placement
from trainmaster_dispatcher.scheduling.state.member_nodes import MemberNodes, NodeMembers, RunOnNodes
from trainmaster_dispatcher.scheduling.state.plan import Plan, Start, grown, shrinking
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

GPU = "nvidia.com/gpu"
NOW = 1000.0
LEASE = 15.0


def amounts(**quantities: str | int) -> dict[str, int]:
    """Return amounts by resource: ``amounts(cpu=2, memory="4Gi", gpu=1)``."""
    named = {GPU if name == "gpu" else name: str(value) for name, value in quantities.items()}
    return parse_resources(named)


def nodes(
    count: int = 1,
    name: str = "nodes",
    *,
    labels: dict[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    at: tuple[tuple[str, str], ...] = (),
    sharing: Sharing | None = None,
    occupied: bool = False,
    **free: str | int,
) -> NodeGroup:
    """Return a group of equivalent nodes; ``at`` is its topology path from wide to narrow; ``occupied``: with pods of others."""
    return NodeGroup(
        name=name,
        count=count,
        free=amounts(**(free or {"cpu": 4})),
        labels=labels or {},
        taints=taints,
        topology=at,
        sharing=sharing,
        occupied=occupied,
    )


def role(
    size: int = 1,
    name: str = "worker",
    *,
    least: int | None = None,
    gpu_part: dict[str, str] | None = None,
    **more: Any,
) -> RoleShape:
    """Return a role of ``size`` members; ``more`` are other fields of a role, and what each member needs: by default one CPU.

    ``gpu_part``: the field ``gpu`` of a template.
    """
    fields = {
        key: more.pop(key)
        for key in ("node_selector", "affinity", "tolerations", "max_per_node", "numa", "exclusive")
        if key in more
    }
    part = {} if gpu_part is None else GpuPart.model_validate(gpu_part).amounts
    return RoleShape(name, size, size if least is None else least, amounts(**(more or {"cpu": 1})) | part, **fields)


def gang(*roles: RoleShape, least: int | None = None, **fields: Any) -> Shape:
    """Return a gang of these roles; ``least`` is its ``minMember``."""
    minimum = max(1, sum(role.least for role in roles)) if least is None else least
    return Shape(roles=roles, least_members=minimum, **fields)


def flavor_of(text: str) -> Flavor:
    """Parse a flavor; ``gpu`` stands for GPUs of NVIDIA."""
    return Flavor(*parse_flavor(text.replace("gpu", GPU, 1) if text.startswith("gpu") else text))


def simple(size: int = 1, *, limit: float | None = None, **needs: Any) -> Shape:
    """Return a gang of one role; ``limit`` is its time limit in seconds."""
    return gang(role(size, **needs), time_limit_seconds=limit)


@dataclass
class Outcome:
    """A plan, read by the names that the builder gave."""

    plan: Plan
    state: SchedulerState
    ids: dict[str, int]

    @property
    def started(self) -> list[str]:
        """Names of the jobs that start, in order."""
        return [start.job.name for start in self.plan.starts]

    @property
    def where(self) -> dict[str, str]:
        """The cluster of each job that starts."""
        return {start.job.name: self.state.clusters[start.cluster_id].name for start in self.plan.starts}

    @property
    def held(self) -> dict[str, str]:
        return {hold.job.name: hold.message for hold in self.plan.holds}

    def start(self, job: str) -> Start:
        """Return a job's start, its texts as an admin reads them."""
        found = next(start for start in self.plan.starts if start.job.name == job)
        evicts = tuple(one._replace(why=rendered(one.why)) for one in found.evicts)
        return replace(found, why=rendered(found.why), evicts=evicts)

    def reason(self, job: str, may_read: MayRead = everything) -> Reason:
        """Return why a job waits, as an admin reads it or as ``may_read`` allows."""
        found = self.plan.reasons[self.state.class_of(self.ids[job])]
        return Reason.model_validate_json(rendered_json(found.model_dump_json().encode(), may_read))

    def verdict(self, job: str, cluster: str) -> Verdict:
        return next(verdict for verdict in self.reason(job).verdicts if verdict.cluster == cluster)


@dataclass
class StateBuilder:
    """Builds a state with queue ``main`` and the priority classes low (0), normal (100) and high (1000)."""

    engine: Engine = field(default_factory=Engine)
    ids: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    clusters: dict[str, int] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    policies: dict[str, int] = field(default_factory=dict)
    now: float = NOW

    @property
    def state(self) -> SchedulerState:
        return self.engine.state

    def __post_init__(self) -> None:
        for number, (name, value) in enumerate((("low", 0), ("normal", 100), ("high", 1000)), start=1):
            self.state.put_class(PriorityClass(number, name, value))
        self.queue("main")

    def lasting(self, of: str) -> Self:
        """Make the runs of a priority class non-preemptible."""
        found = next(one for one in self.state.classes.values() if one.name == of)
        self.state.put_class(replace(found, preemptible=False))
        return self

    def stopping(self, name: str) -> Self:
        """Mark a run as being stopped."""
        self.state.put_run(replace(self.state.runs[self.ids[name]], is_stopping=True))
        return self

    def older(self, name: str, seconds: float) -> Self:
        """Move the begin of a run back by ``seconds``."""
        run = self.state.runs[self.ids[name]]
        self.state.put_run(replace(run, began_at=run.began_at - seconds))
        return self

    def moved(self, name: str, queue: str) -> Self:
        """Move a run to another queue."""
        self.state.put_run(replace(self.state.runs[self.ids[name]], queue_id=self.queues[queue]))
        return self

    def requeued(self, name: str) -> Self:
        """End a run; its job waits again."""
        run = self.state.runs[self.ids[name]]
        self.state.put_waiting(
            WaitingJob(run.job_id, 2, name, run.queue_id, run.class_id, run.shape_id, 0, NOW, run.attempt, run.user)
        )
        return self

    def longest_wait(self, of: str, seconds: float) -> Self:
        """Make jobs of a class urgent once they have waited for ``seconds``."""
        found = next(one for one in self.state.classes.values() if one.name == of)
        self.state.put_class(replace(found, longest_wait=seconds))
        return self

    def queue(
        self,
        path: str,
        *,
        weight: float = 1.0,
        limits: dict[str, str | int] | None = None,
        guaranteed: dict[str, str | int] | None = None,
        borrowing: dict[str, str | int] | None = None,
        lending: dict[str, str | int] | None = None,
        weights: dict[str, float] | None = None,
        order: Order = Order.BEST_EFFORT,
        time_limit: float | None = None,
        preemption: Preemption = Preemption.ANY_BORROWER,
        min_run_time: float = 0.0,
        max_running: int | None = None,
        kinds: tuple[ClusterKind, ...] = (ClusterKind.PRIVATE, ClusterKind.EDGE),
        held: bool = False,
        state: QueueState = QueueState.OPEN,
        profile: Weights | None = None,
        regions: tuple[str, ...] = (),
        fair_by: FairBy | None = None,
        user_weights: dict[str, float] | None = None,
        order_by: OrderBy | None = None,
        max_running_per_user: int | None = None,
        limits_per_user: dict[str, str | int] | None = None,
        consolidation: MoveTerms | None = None,
        starts_when: dict[str, Any] | None = None,
    ) -> Self:
        """Add a queue; missing parents are created. A second call changes it.

        Quotas are by flavor: ``limits={"cpu": 3, "gpu@product=H100": 8}``.
        """
        parent = path.rpartition("/")[0]
        if parent and parent not in self.queues:
            self.queue(parent)
        quotas: dict[Flavor, Quota] = {}
        for field_name, given in (
            ("limit", limits),
            ("guaranteed", guaranteed),
            ("borrowing", borrowing),
            ("lending", lending),
        ):
            for text, value in (given or {}).items():
                flavor = flavor_of(text)
                amount = parse_counted(flavor.resource, str(value))
                quotas[flavor] = replace(quotas.get(flavor, Quota()), **{field_name: amount})
        for text, weighed in (weights or {}).items():
            quotas[flavor_of(text)] = replace(quotas.get(flavor_of(text), Quota()), weight=weighed)
        self.state.put_queue(
            Queue(
                id=self.queues.setdefault(path, len(self.queues) + 1),
                path=path,
                parent_id=self.queues[parent] if parent else None,
                weight=weight,
                quotas=quotas,
                max_running=max_running,
                allowed_kinds=frozenset(kinds),
                state=QueueState.HELD if held else state,
                order=order,
                time_limit=time_limit,
                preemption=preemption,
                min_run_time=min_run_time,
                weights=profile,
                regions=frozenset(regions),
                fair_by=fair_by,
                user_weights=user_weights or {},
                order_by=order_by,
                consolidation=consolidation,
                starts_when=None
                if starts_when is None
                else start_conditions_of(StartsWhenSpec.model_validate(starts_when)),
                max_running_per_user=max_running_per_user,
                limits_per_user={
                    Flavor(name): parse_counted(name, str(amount)) for name, amount in (limits_per_user or {}).items()
                },
            )
        )
        return self

    def profile(self, of: str, weights: Weights | None) -> Self:
        """Set the weights by which clusters are chosen for jobs of a priority class."""
        found = next(one for one in self.state.classes.values() if one.name == of)
        self.state.put_class(replace(found, weights=weights))
        return self

    def cluster(
        self,
        name: str,
        *groups: NodeGroup,
        kind: ClusterKind = ClusterKind.PRIVATE,
        labels: dict[str, str] | None = None,
        cordoned: bool = False,
        lease: float | None = LEASE,
        silent: bool = False,
        capabilities: tuple[str, ...] = ("checkpoint", "gang", "maxPerNode", "memberRestart", "resize"),
        datasets: tuple[str, ...] = (),
        closed: str = "",
        at: float = 0.0,
        prices: dict[str, Any] | None = None,
        timeout: float = 0.0,
        pools: tuple[Pool, ...] = (),
        uplink: float | None = None,
        connected: list[dict[str, Any]] | None = None,
        only_queues: tuple[str, ...] = (),
        admission: ReportedAdmission | None = None,
    ) -> Self:
        """Add a cluster; ``silent`` has not reported, ``lease`` is what is left of its agent's. A second call changes it.

        ``prices``: fields of a price book, such as ``{"onDemand": {"cpu": 1}}``.
        """
        cluster_id = self.clusters.setdefault(name, len(self.clusters) + 1)
        report = CapacityReport(
            groups=groups,
            runtime="local",
            scheduler="local",
            capabilities=capabilities,
            datasets=datasets,
            closed=closed,
            pools=pools,
            admission=admission,
        )
        tariff = FREE if prices is None else tariff_of(PriceBookSpec.model_validate({"name": "book", **prices}))
        known = None if silent else report
        hours = hours_of([HoursSpec.model_validate(one) for one in connected or ()])
        self.state.put_cluster(
            Cluster(cluster_id, name, kind, labels or {}, cordoned, known, tariff, timeout, uplink, hours, only_queues),
            at,
        )
        if lease is None:
            self.state.lease_until.pop(cluster_id, None)
        else:
            self.state.lease_until[cluster_id] = NOW + lease
        return self

    def reserved(
        self,
        name: str,
        nodes: int,
        *,
        queue: str,
        starts: float,
        ends: float,
        on: tuple[str, ...] = (),
        selector: tuple[tuple[str, str], ...] = (),
    ) -> Self:
        """Reserve nodes for a queue from ``starts`` to ``ends`` seconds after NOW."""
        number = len(self.state.advance) + 1
        made = AdvanceReservation(number, name, self.queues[queue], on, nodes, selector, NOW + starts, NOW + ends)
        self.state.set_advance([*self.state.advance.values(), made])
        return self

    def dataset(self, *datasets: Dataset) -> Self:
        """Declare datasets, in addition to those declared before."""
        self.state.set_datasets([*self.state.datasets.values(), *datasets])
        return self

    def trouble(self, cluster: str, trouble: float) -> Self:
        """Set how many runs a cluster has returned or lost lately."""
        self.state.set_trouble({**self.state.trouble, self.clusters[cluster]: trouble})
        return self

    def policy(self, name: str = "overflow", *queues: str, **fields: Any) -> Self:
        """Add a burst policy, as an admin writes it; for queue main by default. A second call changes it."""
        spec = BurstPolicySpec.model_validate({"name": name, "queues": queues or ("main",), **fields})
        number = self.policies.setdefault(name, len(self.policies) + 1)
        self.state.set_policies([*({**self.state.policies, number: policy_of(number, spec)}.values())])
        return self

    def spent(self, policy: str, amount: str, *, hours_ago: int = 0, job: str | None = None) -> Self:
        """Set what ended runs of a policy cost in the hour ``hours_ago`` before NOW's; ``job``: the waiting job that they were of."""
        number, nanos = self.policies[policy], to_nanos(Decimal(amount))
        hour = int(NOW // 3600 - hours_ago) * 3600 * MICROS
        known = self.state.spending
        hours = {**known.hours, number: {**known.hours.get(number, {}), hour: nanos}}
        if job is not None:
            self.state.job_spent = {**self.state.job_spent, self.ids[job]: nanos}
        self.state.spending = Spending(hours, known.starts)
        return self

    def shape(self, shape: Shape) -> int:
        if shape not in self.shapes:
            self.shapes.append(shape)
            self.state.put_shape(len(self.shapes), shape)
        return self.shapes.index(shape) + 1

    def job(
        self,
        name: str,
        shape: Shape | None = None,
        *,
        queue: str = "main",
        of: str = "normal",
        priority: int = 0,
        age: float = 0.0,
        returned_by: tuple[str, ...] = (),
        user: str = "",
        deadline: float | None = None,
        after: dict[str, float] | None = None,
    ) -> Self:
        """Add a waiting job, by default of one member with one CPU. Jobs that are added first are older. ``deadline``: seconds from
        ``NOW``; ``after``: by cluster, the part of its predecessors that ran there.
        """
        job_id = self.ids.setdefault(name, len(self.ids) + 1)
        if returned_by:
            avoided = tuple(sorted(self.clusters[cluster] for cluster in returned_by))
            self.state.set_avoided({**self.state.avoided, job_id: avoided})
        self.state.put_waiting(
            WaitingJob(
                id=job_id,
                version=1,
                name=name,
                queue_id=self.queues[queue],
                class_id={"low": 1, "normal": 2, "high": 3}[of],
                shape_id=self.shape(shape or simple()),
                priority=priority,
                waits_since=NOW - age + job_id / 1000,
                attempt=0,
                user=user,
                deadline=None if deadline is None else NOW + deadline,
                predecessors=tuple(sorted((self.clusters[cluster], part) for cluster, part in (after or {}).items())),
            )
        )
        return self

    def jobs(self, many: int, name: str, shape: Shape | None = None, **more: Any) -> Self:
        """Add ``many`` equivalent jobs, named ``name1``, ``name2`` and so on."""
        for number in range(1, many + 1):
            self.job(f"{name}{number}", shape, **more)
        return self

    def run(
        self,
        name: str,
        shape: Shape | None = None,
        *,
        on: str,
        queue: str = "main",
        placement: dict[str, dict[str, int]] | None = None,
        of: str = "normal",
        ago: float = 0.0,
        sizes: dict[str, int] | None = None,
        resized: float | None = None,
        user: str = "",
        predicted: float | None = None,
        assumed: bool = False,
    ) -> Self:
        """Add a job that runs on a cluster, since ``ago`` seconds: whole, or at ``sizes`` since ``resized`` seconds.

        ``predicted``: how long it was predicted to run, in seconds. ``assumed``: its placement has not been reported.
        """
        shape = shape or simple()
        self.state.put_run(
            LiveRun(
                job_id=self.ids.setdefault(name, len(self.ids) + 1),
                queue_id=self.queues[queue],
                shape_id=self.shape(shape),
                cluster_id=self.clusters[on],
                sizes=tuple(sorted((sizes or {role.name: role.replicas for role in shape.roles}).items())),
                placement=freeze_placement(placement or {}),
                class_id={"low": 1, "normal": 2, "high": 3}[of],
                began_at=NOW - ago,
                resized_at=0.0 if resized is None else NOW - resized,
                user=user,
                is_assumed=assumed,
                predicted_seconds=predicted,
            )
        )
        return self

    def on_nodes(self, cluster: str, *members: tuple[str, str, str], attempt: int = 1) -> Self:
        """Let the nodes of a cluster's members be read: of each the run, the node group and the node, all of one role."""
        runs: dict[int, RunOnNodes] = {}
        for (name, group, node), many in Counter(members).items():
            job_id = self.ids[name]
            (role, *_) = self.state.shapes[self.state.runs[job_id].shape_id].roles
            known = runs.get(job_id, RunOnNodes(attempt, ()))
            runs[job_id] = RunOnNodes(attempt, (*known.members, NodeMembers(group, node, role.name, many)))
        known_nodes = self.state.member_nodes or {}
        self.state.member_nodes = {**known_nodes, self.clusters[cluster]: MemberNodes(self.now, runs)}
        return self

    def returned_for_room(self, *names: str, by: str) -> Self:
        """Let a cluster have returned jobs a short while ago because it had no room for them."""
        jobs = {self.ids[name] for name in names}
        avoided = {**self.state.avoided, **dict.fromkeys(jobs, (self.clusters[by],))}
        self.state.set_avoided(avoided, jobs)
        return self

    def ended(self, name: str) -> Self:
        self.state.drop_job(self.ids[name])
        return self

    def completed(self, name: str) -> Self:
        """Let a run end by itself now, from which its run time is learnt."""
        self.state.end_job(self.ids[name], self.now)
        return self

    def learnt(self, shape: Shape, seconds: float, user: str = "") -> Self:
        """Let a job of a user with this shape have taken so long before."""
        self.state.run_times.note(user, self.shape(shape), seconds)
        return self

    def cycle(self, most_starts: int = MOST_STARTS) -> Outcome:
        """Return what one cycle decides now; nothing is applied."""
        return Outcome(decide(self.engine, self.now, most_starts), self.state, self.ids)

    def later(self, seconds: float) -> Self:
        """Let ``seconds`` pass; all leases are extended by as much."""
        self.now += seconds
        self.state.lease_until = {cluster: until + seconds for cluster, until in self.state.lease_until.items()}
        return self

    def applied(self) -> Outcome:
        """Run one cycle, apply its plan to the state as the leader does, and return the outcome."""
        outcome = self.cycle()
        for start in outcome.plan.starts:
            self.state.put_run(start.run(self.now))
        for victim in (*outcome.plan.stops, *(one for start in outcome.plan.starts for one in start.evicts)):
            run = self.state.runs[victim.job_id]
            stops = replace(run, is_stopping=True) if victim.sizes is None else shrinking(run, victim.sizes, self.now)
            self.state.put_run(stops)
        for growth in outcome.plan.grows:
            self.state.put_run(grown(self.state.runs[growth.job_id], growth, self.now))
        self.engine.carry_over(outcome.plan)
        for hold in outcome.plan.holds:
            self.state.drop_job(hold.job.id)
        return outcome
