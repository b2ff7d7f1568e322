"""Burst decisions: whether a job may go to a public cluster under a policy, because private clusters cannot start it soon enough.

A queue with a policy, its own or of a queue above, reaches public clusters by its policies alone. For a class of jobs that cannot
start on the clusters of its queue, not even by preemption, the policies are tried one after the other, those of the nearest queue
first. Each checks whether the job may go now, whether the policy's limits allow it, where it fits, and whether the budgets hold if
the job runs until its time limit. The first policy that grants the job wins; if none does, the job's reason names the policy that
opens first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import NamedTuple

from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.bursting import SpotUse
from trainmaster.protocol.device_parts import format_counted
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Token, Verdict
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.budgets import (
    FORECAST_MICROS,
    HOUR,
    BudgetAccount,
    BudgetForecast,
    Excess,
    Window,
    forecast,
    window_at,
    windows,
)
from trainmaster_dispatcher.domain.burst_policies import Bounds, BurstPolicy, BurstRun
from trainmaster_dispatcher.domain.prices import MICROS, SPOT_LABELS, is_spot
from trainmaster_dispatcher.domain.run_times import RunSeconds
from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.scheduling.cycle import explain
from trainmaster_dispatcher.scheduling.cycle.cluster_selection import admitted, narrowing, option_grown
from trainmaster_dispatcher.scheduling.cycle.context import CycleContext
from trainmaster_dispatcher.scheduling.packing.gang_packing import Size, products_on
from trainmaster_dispatcher.scheduling.packing.node_buckets import NodeBucket
from trainmaster_dispatcher.scheduling.quotas.quota import Obstacle
from trainmaster_dispatcher.scheduling.selection.cluster_index import ClusterIndex, Option, SchedulingKey
from trainmaster_dispatcher.scheduling.selection.cost_estimate import groups_of, hourly
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, Queue
from trainmaster_dispatcher.scheduling.state.flavors import Product, by_resource
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey, WaitingJob
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, load_of
from trainmaster_dispatcher.scheduling.state.plan import Fault, Granted
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_EPSILON = 1e-9


class BurstRefusal(NamedTuple):
    """The reason why a job may not go by a policy now. ``token`` None: the policy is not the cause, or the job may never go by it.

    ``at``: the earliest time at which the job may go, in seconds since the epoch; infinite if waiting does not help.
    """

    policy: str
    token: Token | None
    sentence: str
    at: float = inf
    verdicts: tuple[Verdict, ...] = ()
    is_own: bool = False
    """Whether other jobs of the class may go."""
    is_for_ever: bool = False
    """Whether the job exceeds the policy's limits even when no other job uses them."""


@dataclass(frozen=True, slots=True)
class BurstStart:
    """The decision that a job goes by a policy."""

    option: Option
    others: tuple[Option, ...]
    granted: Granted


class First(NamedTuple):
    """The first job of a class that could not start on the clusters of its queue."""

    job: WaitingJob
    key: ClassKey
    queue: Queue
    sizes: Sequence[Size]
    """The sizes that the job may start with, the largest first."""
    full: Iterable[int]
    """Clusters of the job's queue that only lack capacity for the job."""


class BurstQuestion(NamedTuple):
    """The outcome of a policy for the first job of a class, for a preview."""

    key: ClassKey
    job: WaitingJob
    policy: BurstPolicy
    outcome: BurstStart | BurstRefusal


@dataclass(slots=True)
class Bursts:
    """The policies of one cycle, with the questions and outcomes, and with the starts that they have granted."""

    cycle: CycleContext
    open: set[int] = field(init=False)
    """Policies that are open because of the utilisation of private clusters; carried over to the next cycle."""
    questions: list[BurstQuestion] = field(default_factory=list)
    next_look: float = inf
    """The earliest time at which a refused job may go, if nothing else happens."""
    faults: list[Fault] = field(default_factory=list)
    """Unexpected errors of single policies: the policy is closed to the job that was tried, or to all jobs."""
    _broken: dict[int, BurstRefusal] = field(default_factory=dict)
    _accounts: dict[int, BudgetAccount] = field(default_factory=dict)
    _granted: list[tuple[int, float, Resources]] = field(default_factory=list)
    """The starts of this cycle: policy, nodes and resources."""
    _held_before: dict[int, tuple[float, Resources]] = field(default_factory=dict)
    """By policy: the nodes and resources that its runs held when the cycle began."""
    _fullness: float | None = None

    def __post_init__(self) -> None:
        state = self.cycle.index.state
        self.open = set(self.cycle.before.bursting & state.policies.keys())
        for policy in state.policies.values():
            if policy.utilisation is not None:
                try:
                    above, until = policy.utilisation
                    is_open = self.fullness() >= (until if policy.id in self.open else above)
                except Exception as error:  # noqa: BLE001 - the caller reports it
                    self._broken[policy.id] = self._note(policy, error)
                    is_open = False
                if is_open:
                    self.open.add(policy.id)
                else:
                    self.open.discard(policy.id)

    @property
    def _state(self) -> SchedulerState:
        return self.cycle.index.state

    def attempt(self, first: First) -> BurstStart | BurstRefusal | None:
        """Return whether the job goes to a public cluster now, and how; None if its queue has no policy."""
        nearest: BurstRefusal | None = None
        is_own = False
        for policy in self._state.policies_of(first.queue.id):
            try:
                outcome = self._broken.get(policy.id) or self._ask(policy, first)
            except Exception as error:  # noqa: BLE001 - the caller reports it
                outcome = self._note(policy, error)
            self.questions.append(BurstQuestion(first.key, first.job, policy, outcome))
            if isinstance(outcome, BurstStart):
                return outcome
            if nearest is None or outcome.at < nearest.at:
                nearest = outcome
            is_own = is_own or outcome.is_own
        if nearest is None:
            return None
        self.next_look = min(self.next_look, nearest.at)
        return nearest._replace(is_own=is_own)

    def _note(self, policy: BurstPolicy, error: Exception) -> BurstRefusal:
        self.faults.append(Fault("burst_policy", policy.id, policy.name, error))
        sentence = f"an error inside Trainmaster ({type(error).__name__}) keeps the policy from being evaluated"
        return BurstRefusal(policy.name, None, sentence)

    def note_start(self, job: WaitingJob, burst: BurstStart) -> None:
        """Count the job as started in this cycle by its policy."""
        granted, option = burst.granted, burst.option
        run = granted.run(self.cycle.now)
        self.account(self._state.policies[granted.policy_id]).start(job.id, run.commitment)
        nodes = nodes_of(self._state, option.cluster, needs_of(self._state, job.shape_id, option))
        self._granted.append((granted.policy_id, nodes, self._amounts_of(job.shape_id, option)))

    def _amounts_of(self, shape_id: int, option: Option) -> Resources:
        """Return what an option needs by resource, devices in thousandths."""
        members = [
            (group, role, many) for group, of in option.fitted.placement.items() for role, many in of.items() if many
        ]
        return by_resource(self._state.places_at(option.cluster.id, shape_id, members))

    def _ask(self, policy: BurstPolicy, first: First) -> BurstStart | BurstRefusal:
        limit = self._limit(policy, first.key, first.queue)
        if isinstance(limit, BurstRefusal):
            return limit
        refused = self._when(policy, first) or self._how_many(policy)
        if refused is not None:
            return self._never(policy, first) or refused
        return self._where(policy, first, limit)

    def _never(self, policy: BurstPolicy, first: First) -> BurstRefusal | None:
        """Return the refusal if the job could run on no public cluster that the policy opens, not even on an empty one."""
        index, shape_id = self.cycle.index, first.key.shape_id
        access = self._state.access_of(first.queue, by_policy=True)
        scheduling_key = SchedulingKey(shape_id, len(first.sizes), access, ())
        verdicts: list[Verdict] = []
        for cluster in index.clusters:
            if cluster.kind is ClusterKind.PUBLIC and (not policy.clusters or cluster.name in policy.clusters):
                verdict = index.not_allowed(scheduling_key, cluster) or index.never(shape_id, cluster)
                if verdict is None or verdict.check is Check.NO_ROOM:  # where pools may bring nodes
                    return None
                verdicts.append(verdict)
        return self._nowhere(policy, verdicts)

    def _nowhere(self, policy: BurstPolicy, verdicts: Sequence[Verdict]) -> BurstRefusal:
        """Return the refusal of a job that none of the public clusters of a policy takes."""
        if not verdicts:
            named = f" named {', '.join(policy.clusters)}" if policy.clusters else ""
            return BurstRefusal(policy.name, None, f"there is no public cluster{named}")
        near = min(verdicts, key=lambda one: one.check.precedence)
        return BurstRefusal(policy.name, None, f"{near.cluster}: {near.sentence}", verdicts=tuple(verdicts))

    # When

    def _limit(self, policy: BurstPolicy, key: ClassKey, queue: Queue) -> float | BurstRefusal:
        """Return the time limit that a run of the job would have, or why the policy never takes the job."""
        state = self._state
        if policy.fault:
            return BurstRefusal(policy.name, None, policy.fault)
        if policy.paused:
            return BurstRefusal(policy.name, None, "it is paused")
        if policy.class_at_least is not None:
            least = next((one for one in state.classes.values() if one.name == policy.class_at_least), None)
            own = state.classes[key.class_id]
            if least is None:
                return BurstRefusal(
                    policy.name, None, f"it names priority class {policy.class_at_least}, which does not exist"
                )
            if own.value < least.value:
                return BurstRefusal(
                    policy.name, None, f"it takes jobs of class {least.name} and above, this one is {own.name}"
                )
        own_limit = state.shapes[key.shape_id].time_limit_seconds
        limit = policy.limit_for(own_limit, state.queue_limit_of(queue.id))
        if limit is None:
            return BurstRefusal(
                policy.name, None, "it takes jobs with a time limit: nothing else ends what they may cost"
            )
        if policy.time_limit is not None and limit > policy.time_limit:
            most, has = explain.span(policy.time_limit), explain.span(limit)
            return BurstRefusal(policy.name, None, f"it takes jobs of at most {most}, the limit of this one is {has}")
        return limit

    def _when(self, policy: BurstPolicy, first: First) -> BurstRefusal | None:
        now = self.cycle.now
        opens = policy.opens_at(now)
        if opens > now:
            when = f"it opens at {explain.clock(opens)}" if opens < inf else "it is closed at all hours"
            return BurstRefusal(policy.name, Token.BURST_NOT_YET, when, opens)
        at = first.job.waits_since + policy.after
        if policy.after and at > now:
            sentence = f"it may go once it has waited {explain.span(policy.after)}, at {explain.clock(at)}"
            # Job priority may put it before others of its class that have waited for longer.
            return BurstRefusal(policy.name, Token.BURST_NOT_YET, sentence, at, is_own=first.job.priority > 0)
        if policy.utilisation is not None and policy.id not in self.open:
            above, used = policy.utilisation[0], self.fullness()
            sentence = f"it opens when private clusters are {above:.0%} in use, they are {used:.0%}"
            return BurstRefusal(policy.name, Token.BURST_NOT_YET, sentence)
        if policy.expected_wait is not None:
            start = self._expected_start(first)
            if start - now <= policy.expected_wait:
                sentence = f"it takes jobs that wait longer than {explain.span(policy.expected_wait)} from now on"
                sentence += f", this one may start at {explain.clock(start)}"
                return BurstRefusal(policy.name, Token.BURST_NOT_YET, sentence)
        return None

    def _expected_start(self, first: First) -> float:
        """Return the earliest start on the clusters ``first.full``, behind the jobs that these clusters are reserved for."""
        windows_of, shape_id, queue_id = self.cycle.advance, first.key.shape_id, first.queue.id
        entitled, limit = windows_of.entitled(queue_id), self._state.limit_of(shape_id, queue_id)
        earliest = inf
        for cluster_id in first.full:
            at = self.cycle.reservations.earliest(cluster_id, shape_id, first.sizes[-1])
            earliest = min(earliest, windows_of.not_before(cluster_id, entitled, at, limit))
        return earliest

    def fullness(self) -> float:
        """Return the utilisation of private clusters, computed on the first request in this cycle."""
        if self._fullness is None:
            self._fullness = fullness(self.cycle.index)
        return self._fullness

    # How much

    def account(self, policy: BurstPolicy) -> BudgetAccount:
        """Return what was spent by the policy, and what its runs are committed to."""
        found = self._accounts.get(policy.id)
        if found is None:
            found = self._accounts[policy.id] = account_of(self._state, policy, self.cycle.now)
        return found

    def _how_many(self, policy: BurstPolicy) -> BurstRefusal | None:
        account, now = self.account(policy), self.cycle.now
        if policy.jobs is not None and len(account.live) >= policy.jobs:
            many = "1 job" if len(account.live) == 1 else f"{len(account.live)} jobs"
            sentence = f"{many} of at most {policy.jobs} are at public clusters by it"
            return BurstRefusal(policy.name, Token.BURST_LIMIT, sentence)
        if policy.ramp is not None:
            began = [one.begin / MICROS for one in account.live.values()]
            at = policy.ramp_opens_at([*began, *self._state.spending.starts.get(policy.id, ())], now)
            if at > now:
                sentence = f"it lets {policy.ramp.jobs} jobs start every {explain.span(policy.ramp.every)}"
                return BurstRefusal(
                    policy.name, Token.BURST_NOT_YET, f"{sentence}, the next one at {explain.clock(at)}", at
                )
        return None

    def _held(self, policy: BurstPolicy) -> tuple[float, Resources]:
        """Return the nodes and resources that the policy's runs hold, including starts of this cycle."""
        known = self._held_before.get(policy.id)
        if known is None:
            known = self._held_before[policy.id] = held_by_all(self._state, policy)
        nodes, resources = known[0], Resources(known[1])
        for policy_id, part, needs in self._granted:
            if policy_id == policy.id:
                nodes += part
                _add_all(resources, needs)
        return nodes, resources

    def _over(self, policy: BurstPolicy, shape_id: int, option: Option) -> BurstRefusal | None:
        """Return the refusal if the option would exceed the policy's limit of nodes or of a resource; None if it would not."""
        if policy.nodes is None and not policy.resources:
            return None
        nodes, held = self._held(policy)
        more = nodes_of(self._state, option.cluster, needs_of(self._state, shape_id, option))
        if policy.nodes is not None and nodes + more > policy.nodes + _EPSILON:
            sentence = f"its jobs hold {nodes:.3g} of at most {policy.nodes} nodes, this one needs {more:.3g}"
            for_ever = more > policy.nodes + _EPSILON
            return BurstRefusal(policy.name, Token.BURST_LIMIT, sentence, is_for_ever=for_ever)
        amounts = self._amounts_of(shape_id, option) if policy.resources else {}
        for name, most in policy.resources.items():
            needs = amounts.get(name, 0)
            if needs and held.get(name, 0) + needs > most:
                has, wants, top = (format_counted(name, one) for one in (held.get(name, 0), needs, most))
                sentence = f"its jobs hold {has} of at most {top} {name}, this one needs {wants}"
                return BurstRefusal(policy.name, Token.BURST_LIMIT, sentence, is_for_ever=needs > most)
        return None

    # Where

    def _where(self, policy: BurstPolicy, first: First, limit: float) -> BurstStart | BurstRefusal:
        index, key, queue = self.cycle.index, first.key, first.queue
        entitled = self.cycle.advance.entitled(queue.id)
        access = self._state.access_of(queue, by_policy=True)
        scheduling_key = SchedulingKey(
            key.shape_id,
            len(first.sizes),
            access,
            key.avoided,
            entitled,
            self._state.weights_of(key),
            key.predecessors,
        )
        verdicts: list[Verdict] = []
        found: list[tuple[Option, Bounds]] = []
        worst: BurstRefusal | None = None
        is_own = False
        for cluster, ruled_out in index.looked_at(scheduling_key):
            if cluster.kind is not ClusterKind.PUBLIC or (policy.clusters and cluster.name not in policy.clusters):
                continue
            refusal = self.cycle.start_rules.refusal(scheduling_key, first.sizes[-1].members, cluster)
            if refusal is not None:
                verdicts.append(refusal)
                continue
            # The pools of a cluster without enough free capacity may add nodes.
            if ruled_out is not None and ruled_out.check is not Check.NO_ROOM:
                verdicts.append(ruled_out)
                continue
            if cluster.tariff.is_free:
                sentence = "it has no price book, so the cost there, which a budget bounds, is unknown"
                verdicts.append(Verdict(cluster=cluster.name, check=Check.BURST, sentence=sentence))
                continue
            outcome = self._best_on(policy, first, scheduling_key, limit, cluster)
            if isinstance(outcome, Verdict):
                verdicts.append(outcome)
            elif isinstance(outcome, BurstRefusal):
                is_own = is_own or outcome.is_own
                worst = outcome if worst is None or outcome.at < worst.at else worst
                verdicts.append(Verdict(cluster=cluster.name, check=Check.BURST, sentence=outcome.sentence))
            else:
                found.append(outcome)
        if found:
            best = self._choose(policy, found)
            granted = Granted(policy.id, policy.name, policy.revision, found[best][1], binding(policy, found[best][0]))
            option = found[best][0]
            return BurstStart(option, tuple(one for one, _ in found if one is not option), granted)
        if worst is not None:
            return worst._replace(verdicts=tuple(verdicts), is_own=is_own)
        return self._nowhere(policy, verdicts)

    def _choose(self, policy: BurstPolicy, found: Sequence[tuple[Option, Bounds]]) -> int:
        """Return the index in ``found`` of the chosen option."""

        def rank(place: int) -> tuple[float, str]:
            option = found[place][0]
            if policy.in_order:
                return policy.clusters.index(option.cluster.name), option.cluster.name
            return -option.total, option.cluster.name

        return min(range(len(found)), key=rank)

    def _best_on(
        self, policy: BurstPolicy, first: First, scheduling_key: SchedulingKey, limit: float, cluster: Cluster
    ) -> tuple[Option, Bounds] | BurstRefusal | Verdict:
        """Return the largest size that fits on a cluster within quota, the policy's limits and its budgets."""
        queue, sizes = first.queue, first.sizes
        groups = groups_for(policy, cluster)
        _, device = narrowing(self.cycle, queue, scheduling_key.shape_id)
        refused: BurstRefusal | None = None
        verdict: Verdict | None = None
        best: tuple[Option, Bounds] | None = None
        for product in products_on(cluster.report, device, grown=True):
            for larger in range(len(sizes)):
                outcome: Option | Verdict | Obstacle
                outcome = self._option(scheduling_key, limit, queue, sizes[larger:], cluster, product, groups)
                if isinstance(outcome, Verdict) and cluster.report is not None and cluster.report.pools:
                    outcome = option_grown(self.cycle, scheduling_key, queue, sizes[larger:], cluster, product, groups)
                if isinstance(outcome, Obstacle):
                    outcome = Verdict(cluster=cluster.name, check=Check.QUOTA, sentence=outcome.sentence)
                if isinstance(outcome, Verdict):
                    verdict = verdict or outcome
                    continue
                bounds = self._bounds(scheduling_key, limit, outcome, groups)
                over = self._over(policy, scheduling_key.shape_id, outcome) or self._too_expensive(
                    policy, first.job, bounds
                )
                if over is None:
                    if best is None or outcome.total > best[0].total:
                        best = outcome, bounds
                    break
                refused = over if refused is None or over.at < refused.at else refused
        if best is not None:
            return best
        if refused is not None:
            return refused
        return verdict or Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence="no capacity is left there")

    def _option(
        self,
        scheduling_key: SchedulingKey,
        limit: float,
        queue: Queue,
        sizes: Sequence[Size],
        cluster: Cluster,
        product: Product | None,
        groups: frozenset[str] | None,
    ) -> Option | Verdict:
        """Return the largest of these sizes that fits."""
        index = self.cycle.index
        if groups is None:
            outcome = index.option(
                scheduling_key.shape_id,
                list(sizes),
                cluster,
                product,
                scheduling_key.weights,
                scheduling_key.predecessors,
            )
        else:
            outcome = index.option_among(
                scheduling_key.shape_id,
                sizes,
                cluster,
                product,
                groups,
                scheduling_key.weights,
                scheduling_key.predecessors,
            )
        if not isinstance(outcome, Option):
            among = "" if groups is None else " among the nodes that the policy allows"
            return Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=outcome.sentence + among)
        obstacle = self.cycle.quotas.obstacle(queue.id, outcome.charge)
        if obstacle is not None:
            return Verdict(cluster=cluster.name, check=Check.QUOTA, sentence=obstacle.sentence)
        # Reservations are checked against the latest time at which its members have ended.
        total = self._bounds(scheduling_key, limit, outcome, groups).total
        return admitted(self.cycle, scheduling_key, RunSeconds(total, total), outcome, groups)

    def _bounds(
        self, scheduling_key: SchedulingKey, limit: float, option: Option, groups: frozenset[str] | None
    ) -> Bounds:
        shape, cluster = self._state.shapes[scheduling_key.shape_id], option.cluster
        rate = hourly(cluster, shape, option.size.members, option.product, groups)
        patience = cluster.report.start_seconds if cluster.report is not None else 0.0
        return Bounds(cluster.placement_timeout + option.timeout + patience, limit, shape.stop_seconds, rate)

    def _too_expensive(self, policy: BurstPolicy, job: WaitingJob, bounds: Bounds) -> BurstRefusal | None:
        now = self.cycle.now
        run = BurstRun(policy.id, now, bounds.until(now, None), bounds.rate)
        account, spent = self.account(policy), self._state.job_spent.get(job.id, 0)
        excess = account.excess(run.commitment, job_spent=spent)
        if excess is None:
            return None
        own = excess.window is None and excess.spent > 0
        sentence = explain.excess(excess, bounds, policy.queues)
        for_ever = _is_for_ever(excess, bounds)
        again = inf if for_ever else _again_at(excess, bounds, now)
        return BurstRefusal(policy.name, Token.BURST_BUDGET, sentence, again, is_own=own, is_for_ever=for_ever)


def _is_for_ever(excess: Excess, bounds: Bounds) -> bool:
    """Return whether the run exceeds the budget whenever it starts: at best, half of it falls into one window, or it fills one."""
    if excess.window is None:
        return True
    whole = (excess.window.end - excess.window.begin) / MICROS
    return bounds.rate * min(whole, bounds.total / 2) / 3600 > excess.limit


def _again_at(excess: Excess, bounds: Bounds, now: float) -> float:
    """Return when the part of the run that falls into the window is small enough for the budget, if nothing else happens."""
    if excess.window is None:
        return inf
    left = max(0, excess.limit - excess.spent - excess.committed)
    seconds = left / bounds.rate * (HOUR / MICROS) if bounds.rate else inf
    return max(excess.window.end / MICROS - seconds, now + 1.0)


def fullness(index: ClusterIndex) -> float:
    """Return the utilisation of the most used resource over all private clusters together; 1 where none reports capacity."""
    used: Resources = {}
    there: Resources = {}
    for cluster in index.clusters:
        if cluster.kind is ClusterKind.PRIVATE and cluster.report is not None:
            for name, (taken, has) in index.usage(cluster).items():
                used[name] = used.get(name, 0) + taken
                there[name] = there.get(name, 0) + has
    return max((used[name] / has for name, has in there.items() if has), default=1.0)


def account_of(state: SchedulerState, policy: BurstPolicy, now: float) -> BudgetAccount:
    """Return what a policy has spent, and what its runs are committed to. A run that outlives its limit costs until now at least."""
    spent, sums = spent_in_windows(state, policy), state.committed.get(policy.id, {})
    live = {}
    for job_id, run in state.burst_runs.get(policy.id, {}).items():
        if run.burst is None:
            continue
        live[job_id] = one = run.burst.commitment
        if run.burst.until < now:
            late = one._replace(begin=one.end, end=ceil(now * MICROS))
            for span in policy.budget.limits:
                for window in windows(span, late.begin, late.end):
                    spent[window] = spent.get(window, 0) + late.within(window)
    return BudgetAccount(policy.budget, spent, live, sums)


def spent_in_windows(state: SchedulerState, policy: BurstPolicy) -> dict[Window, int]:
    """Return the cost of ended runs by the windows of the policy's budgets."""
    out: dict[Window, int] = {}
    for hour, nanos in state.spending.hours.get(policy.id, {}).items():
        for span in policy.budget.limits:
            window = window_at(span, hour)
            out[window] = out.get(window, 0) + nanos
    return out


class BudgetState(NamedTuple):
    """The state of a budget in its current window; money in billionths."""

    window: Window
    limit: int
    spent: int
    """Until now, including live runs."""
    committed: int
    """The cost that live runs may still cause in the window."""
    forecast: BudgetForecast


def budget_states_of(state: SchedulerState, policy: BurstPolicy, now: float) -> list[BudgetState]:
    """Return the state of each budget of a policy."""
    moment = int(now * MICROS)
    account, out = account_of(state, policy, now), []
    ended = state.spending.hours.get(policy.id, {})
    burned = account.burned(moment - FORECAST_MICROS, moment, ended)
    for span, limit in policy.budget.limits.items():
        window, spent = window_at(span, moment), account.used(span, moment)
        whole = account.spent.get(window, 0) + account.committed(window)
        committed = max(0, whole - spent)
        expected = forecast(window, limit, spent, committed, burned, moment)
        out.append(BudgetState(window, limit, spent, committed, expected))
    return out


def groups_for(policy: BurstPolicy, cluster: Cluster) -> frozenset[str] | None:
    """Return the node groups of a cluster that the policy may use, spot or not; None for all.

    Only the spot groups with the most common spot label are returned, as the members of a run are bound by one label.
    """
    if policy.spot is SpotUse.ALLOWED or cluster.report is None:
        return None
    if policy.spot is SpotUse.ONLY:
        label = _spot_label(cluster)
        return frozenset(
            name for name, one in groups_of(cluster).items() if label in one.labels and is_spot(one.labels)
        )
    every = groups_of(cluster)
    found = frozenset(name for name, one in every.items() if not is_spot(one.labels))
    return None if len(found) == len(every) else found


def binding(policy: BurstPolicy, option: Option) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return the node affinity that keeps members where the policy allows them: key, operator, values."""
    if policy.spot is SpotUse.ALLOWED:
        return ()
    if policy.spot is SpotUse.NEVER:
        # All known spot labels, because a pool may add nodes with a label that no present node has.
        return tuple((name, "NotIn", tuple(sorted(values))) for name, values in sorted(SPOT_LABELS.items()))
    label = _spot_label(option.cluster)
    return ((label, "In", tuple(sorted(SPOT_LABELS[label]))),) if label else ()


def _spot_label(cluster: Cluster) -> str:
    """Return the label that marks the most spot nodes of a cluster; empty if no node has a spot label."""
    counts: dict[str, int] = {}
    for group in groups_of(cluster).values():
        for name, values in SPOT_LABELS.items():
            if group.labels.get(name) in values:
                counts[name] = counts.get(name, 0) + group.count
    return max(sorted(counts), key=lambda name: counts[name], default="")


Needs = Sequence[tuple[str, Resources, int]]
"""Node group, the needs of a member, and the number of members."""


def needs_of(state: SchedulerState, shape_id: int, option: Option) -> Needs:
    """Return the members that an option would place in each node group."""
    roles, groups = {role.name: role for role in state.shapes[shape_id].roles}, groups_of(option.cluster)
    return [
        (group, _taken(roles[role], groups.get(group)), many)
        for group, of in option.fitted.placement.items()
        for role, many in of.items()
        if many
    ]


def _taken(role: RoleShape, group: NodeGroup | None) -> Resources:
    """Return what a member takes of a node of a group: an exclusive one all of it."""
    return role.needs if group is None else role.taken_of(group.free)


def nodes_of(state: SchedulerState, cluster: Cluster, needs: Needs) -> float:
    """Return the number of whole nodes that these members take up; each counts by the resource of which it takes the largest part."""
    groups = {name: NodeBucket.of(one, 1).sums() for name, one in groups_of(cluster).items()}
    total = 0.0
    for name, each, many in needs:
        free = groups.get(name)
        if free is None:
            total += many
            continue
        total += many * max((min(1.0, need / free[one]) for one, need in each.items() if free.get(one)), default=0.0)
    return total


def held_by_all(state: SchedulerState, policy: BurstPolicy) -> tuple[float, Resources]:
    """Return the nodes and the resources, devices in thousandths, that the runs of a policy hold."""
    nodes, resources = 0.0, Resources()
    for run in state.burst_runs.get(policy.id, {}).values():
        part, needs = held_by(state, run)
        nodes += part
        _add_all(resources, needs)
    return nodes, resources


def held_by(state: SchedulerState, run: LiveRun) -> tuple[float, Resources]:
    """Return the nodes and the resources, devices in thousandths, that a run holds."""
    roles = {role.name: role for role in state.shapes[run.shape_id].roles}
    cluster = state.clusters.get(run.cluster_id)
    groups = {} if cluster is None else groups_of(cluster)
    needs = [(key.group, _taken(roles[key.role], groups.get(key.group)), many) for key, many in load_of(run)]
    return (0.0 if cluster is None else nodes_of(state, cluster, needs)), by_resource(state.places_of(run))


def _add_all(into: Resources, more: Resources) -> None:
    for name, amount in more.items():
        into[name] = into.get(name, 0) + amount
