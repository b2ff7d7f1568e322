"""Burst: sending a job to a public cluster because private ones cannot start it soon enough, under a policy.

A queue with a policy, its own or of a queue above, reaches public clusters by its policies alone. A class of jobs that cannot start
on the clusters of its queue, also not by ending others, is asked for by one policy after the other, those of the nearest queue
first: whether it may go now, whether so much more may be there, where it fits, and whether the budgets hold if it runs until
its time limit. The first policy that grants it wins; else the job is told what the one lacks that opens first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import NamedTuple

from trainmaster.dispatcher.domain.budgets import Account, Commitment, Excess, Window, window_at
from trainmaster.dispatcher.domain.burst_policies import Bounds, BurstPolicy, BurstRun
from trainmaster.dispatcher.domain.prices import MICROS, is_spot
from trainmaster.dispatcher.scheduling import explain
from trainmaster.dispatcher.scheduling.candidates import Alike, Option, Rooms
from trainmaster.dispatcher.scheduling.costs import hourly
from trainmaster.dispatcher.scheduling.fit import Product, Size, products_on
from trainmaster.dispatcher.scheduling.looks import Cycle, admitted, narrowing
from trainmaster.dispatcher.scheduling.plan import Granted
from trainmaster.dispatcher.scheduling.view import ClassKey, Cluster, LiveRun, Queue, View, WaitingJob, load_of
from trainmaster.protocol.agent import NodeGroup
from trainmaster.protocol.bursting import SpotUse
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Check, Token, Verdict
from trainmaster.protocol.states import ClusterKind

PUBLIC = frozenset({ClusterKind.PUBLIC})
_EPSILON = 1e-9


class Refusal(NamedTuple):
    """Why a job may not go by a policy now. ``token`` None: not because of the policy, or never under it.

    ``at``: when it may go at the earliest, in seconds since the epoch; infinite where that is not a matter of time.
    """

    policy: str
    token: Token | None
    sentence: str
    at: float = inf
    verdicts: tuple[Verdict, ...] = ()
    is_own: bool = False
    """Whether others of its class may go."""


@dataclass(frozen=True, slots=True)
class Burst:
    """A job that goes by a policy."""

    option: Option
    others: tuple[Option, ...]
    granted: Granted


class Asked(NamedTuple):
    """What a policy said of the first job of a class, for a preview."""

    key: ClassKey
    job: WaitingJob
    policy: BurstPolicy
    outcome: Burst | Refusal


@dataclass(slots=True)
class Bursts:
    """The policies of one cycle. It notes what it was asked and what it has granted."""

    cycle: Cycle
    open: set[int] = field(init=False)
    """Policies that are open by how full private clusters are; kept for the next cycle."""
    asked: list[Asked] = field(default_factory=list)
    next_look: float = inf
    """When a job that was refused may go, if nothing else happens."""
    _accounts: dict[int, Account] = field(default_factory=dict)
    _granted: list[tuple[int, float, Resources]] = field(default_factory=list)
    """What starts in this cycle: policy, nodes and resources."""
    _fullness: float | None = None

    def __post_init__(self) -> None:
        view = self.cycle.rooms.view
        self.open = set(view.bursting & view.policies.keys())
        for policy in view.policies.values():
            if policy.utilisation is not None:
                above, until = policy.utilisation
                if self.fullness() >= (until if policy.id in self.open else above):
                    self.open.add(policy.id)
                else:
                    self.open.discard(policy.id)

    @property
    def _view(self) -> View:
        return self.cycle.rooms.view

    def attempt(
        self, job: WaitingJob, key: ClassKey, queue: Queue, sizes: Sequence[Size], full: Iterable[int]
    ) -> Burst | Refusal | None:
        """Whether the first job of a class goes to a public cluster now. ``full``: clusters that only lack room for it.

        None where no policy is for its queue.
        """
        nearest: Refusal | None = None
        for policy in self._view.policies_of(queue.id):
            outcome = self._ask(policy, job, key, queue, sizes, full)
            self.asked.append(Asked(key, job, policy, outcome))
            if isinstance(outcome, Burst):
                return outcome
            if nearest is None or outcome.at < nearest.at:
                nearest = outcome
        if nearest is not None:
            self.next_look = min(self.next_look, nearest.at)
        return nearest

    def note_start(self, job: WaitingJob, burst: Burst) -> None:
        """It starts in this cycle."""
        granted, option = burst.granted, burst.option
        run = granted.run(self.cycle.now)
        self.account(self._view.policies[granted.policy_id]).start(job.id, commitment_of(run, self.cycle.now))
        nodes = nodes_of(self._view, option.cluster, needs_of(self._view, job.shape_id, option))
        self._granted.append((granted.policy_id, nodes, option.size.needs))

    def _ask(
        self,
        policy: BurstPolicy,
        job: WaitingJob,
        key: ClassKey,
        queue: Queue,
        sizes: Sequence[Size],
        full: Iterable[int],
    ) -> Burst | Refusal:
        limit = self._limit(policy, key, queue)
        if isinstance(limit, Refusal):
            return limit
        refused = self._when(policy, job, key, sizes, full) or self._how_many(policy)
        return refused or self._where(policy, job, key, queue, sizes, limit)

    # When

    def _limit(self, policy: BurstPolicy, key: ClassKey, queue: Queue) -> float | Refusal:
        """The time limit that a run of it would have, or why it is none for this policy at all."""
        view = self._view
        if policy.paused:
            return Refusal(policy.name, None, "it is paused")
        if policy.class_at_least is not None:
            least = next((one for one in view.classes.values() if one.name == policy.class_at_least), None)
            own = view.classes[key.class_id]
            if least is None:
                return Refusal(policy.name, None, f"it names class {policy.class_at_least}, which is not there")
            if own.value < least.value:
                return Refusal(
                    policy.name, None, f"it takes jobs of class {least.name} and above, this one is {own.name}"
                )
        own_limit = view.shapes[key.shape_id].time_limit_seconds
        limit = policy.limit_for(own_limit, view.queue_limit_of(queue.id))
        if limit is None:
            return Refusal(policy.name, None, "it takes jobs with a time limit: nothing else ends what they may cost")
        if policy.time_limit is not None and limit > policy.time_limit:
            most, has = explain.span(policy.time_limit), explain.span(limit)
            return Refusal(policy.name, None, f"it takes jobs of at most {most}, the limit of this one is {has}")
        return limit

    def _when(
        self, policy: BurstPolicy, job: WaitingJob, key: ClassKey, sizes: Sequence[Size], full: Iterable[int]
    ) -> Refusal | None:
        now = self.cycle.now
        opens = policy.opens_at(now)
        if opens > now:
            when = f"it opens at {explain.clock(opens)}" if opens < inf else "it is closed at all hours"
            return Refusal(policy.name, Token.BURST_NOT_YET, when, opens)
        at = job.submitted_at + policy.after
        if policy.after and at > now:
            told = f"it may go once it has waited {explain.span(policy.after)}, at {explain.clock(at)}"
            return Refusal(policy.name, Token.BURST_NOT_YET, told, at)
        if policy.utilisation is not None and policy.id not in self.open:
            above, used = policy.utilisation[0], self.fullness()
            told = f"it opens when private clusters are {above:.0%} in use, they are {used:.0%}"
            return Refusal(policy.name, Token.BURST_NOT_YET, told)
        if policy.expected_wait is not None:
            start = self._expected_start(key, sizes, full)
            if start - now <= policy.expected_wait:
                told = f"it takes jobs that wait longer than {explain.span(policy.expected_wait)} from now on"
                told += f", this one may start at {explain.clock(start)}"
                return Refusal(policy.name, Token.BURST_NOT_YET, told)
        return None

    def _expected_start(self, key: ClassKey, sizes: Sequence[Size], full: Iterable[int]) -> float:
        """When it could start at the earliest where only room is lacking, behind those that clusters are kept for."""
        earliest = inf
        for cluster_id in full:
            at = self.cycle.reservations.earliest(cluster_id, key.shape_id, sizes[-1])
            earliest = min(earliest, at)
        return earliest

    def fullness(self) -> float:
        """How full private clusters are, as it was when first asked in this cycle."""
        if self._fullness is None:
            self._fullness = fullness(self.cycle.rooms)
        return self._fullness

    # How much

    def runs(self, policy: BurstPolicy) -> list[LiveRun]:
        return list(self._view.burst_runs.get(policy.id, {}).values())

    def account(self, policy: BurstPolicy) -> Account:
        """What was spent by it, and what its runs are committed to."""
        found = self._accounts.get(policy.id)
        if found is None:
            now = self.cycle.now
            live = {run.job_id: commitment_of(run.burst, now) for run in self.runs(policy) if run.burst is not None}
            found = self._accounts[policy.id] = Account(policy.budget, spent_in_windows(self._view, policy), live)
        return found

    def _how_many(self, policy: BurstPolicy) -> Refusal | None:
        account, now = self.account(policy), self.cycle.now
        if policy.jobs is not None and len(account.live) >= policy.jobs:
            many = "1 job" if len(account.live) == 1 else f"{len(account.live)} jobs"
            told = f"{many} of at most {policy.jobs} are at public clusters by it"
            return Refusal(policy.name, Token.BURST_LIMIT, told)
        if policy.ramp is not None:
            began = [one.begin / MICROS for one in account.live.values()]
            at = policy.ramp_opens_at([*began, *self._view.spending.starts.get(policy.id, ())], now)
            if at > now:
                told = f"it lets {policy.ramp.jobs} jobs start every {explain.span(policy.ramp.every)}"
                return Refusal(policy.name, Token.BURST_NOT_YET, f"{told}, the next one at {explain.clock(at)}", at)
        return None

    def _held(self, policy: BurstPolicy) -> tuple[float, Resources]:
        """Nodes and resources that its runs hold, those of this cycle included."""
        nodes, resources = 0.0, Resources()
        for run in self.runs(policy):
            part, needs = held_by(self._view, run)
            nodes += part
            _add_all(resources, needs)
        for policy_id, part, needs in self._granted:
            if policy_id == policy.id:
                nodes += part
                _add_all(resources, needs)
        return nodes, resources

    def _over(self, policy: BurstPolicy, shape_id: int, option: Option) -> Refusal | None:
        """Whether with this one too much would be there."""
        if policy.nodes is None and not policy.resources:
            return None
        nodes, held = self._held(policy)
        more = nodes_of(self._view, option.cluster, needs_of(self._view, shape_id, option))
        if policy.nodes is not None and nodes + more > policy.nodes + _EPSILON:
            told = f"its jobs hold {nodes:.3g} of at most {policy.nodes} nodes, this one needs {more:.3g}"
            return Refusal(policy.name, Token.BURST_LIMIT, told)
        for name, most in policy.resources.items():
            needs = option.size.needs.get(name, 0)
            if needs and held.get(name, 0) + needs > most:
                has, wants, top = (explain.amount(name, one) for one in (held.get(name, 0), needs, most))
                told = f"its jobs hold {has} of at most {top} {name}, this one needs {wants}"
                return Refusal(policy.name, Token.BURST_LIMIT, told)
        return None

    # Where

    def _where(
        self,
        policy: BurstPolicy,
        job: WaitingJob,
        key: ClassKey,
        queue: Queue,
        sizes: Sequence[Size],
        limit: float,
    ) -> Burst | Refusal:
        rooms = self.cycle.rooms
        entitled = self.cycle.windows.entitled(queue.id)
        alike = Alike(key.shape_id, len(sizes), PUBLIC, key.avoided, limit, entitled, self._view.weights_of(key))
        verdicts: list[Verdict] = []
        found: list[tuple[Option, Bounds]] = []
        worst: Refusal | None = None
        for cluster, ruled_out in rooms.looked_at(alike):
            if cluster.kind is not ClusterKind.PUBLIC or (policy.clusters and cluster.name not in policy.clusters):
                continue
            if ruled_out is not None:
                verdicts.append(ruled_out)
                continue
            if cluster.tariff.is_free:
                told = "it has no price book, so no budget can hold there"
                verdicts.append(Verdict(cluster=cluster.name, check=Check.BURST, sentence=told))
                continue
            outcome = self._best_on(policy, job, alike, queue, sizes, cluster)
            if isinstance(outcome, Verdict):
                verdicts.append(outcome)
            elif isinstance(outcome, Refusal):
                worst = outcome if worst is None or outcome.at < worst.at else worst
                verdicts.append(Verdict(cluster=cluster.name, check=Check.BURST, sentence=outcome.sentence))
            else:
                found.append(outcome)
        if found:
            best = self._choose(policy, found)
            granted = Granted(policy.id, policy.name, found[best][1], binding(policy, found[best][0]))
            option = found[best][0]
            return Burst(option, tuple(one for one, _ in found if one is not option), granted)
        if worst is not None:
            return worst._replace(verdicts=tuple(verdicts))
        if not verdicts:
            named = f" named {', '.join(policy.clusters)}" if policy.clusters else ""
            return Refusal(policy.name, None, f"there is no public cluster{named}")
        first = min(verdicts, key=lambda one: _NEAREST.get(one.check, 0))
        return Refusal(policy.name, None, f"{first.cluster}: {first.sentence}", verdicts=tuple(verdicts))

    def _choose(self, policy: BurstPolicy, found: Sequence[tuple[Option, Bounds]]) -> int:
        """The place of the one that is taken."""

        def rank(place: int) -> tuple[float, str]:
            option = found[place][0]
            if policy.in_order:
                return policy.clusters.index(option.cluster.name), option.cluster.name
            return -option.total, option.cluster.name

        return min(range(len(found)), key=rank)

    def _best_on(
        self,
        policy: BurstPolicy,
        job: WaitingJob,
        alike: Alike,
        queue: Queue,
        sizes: Sequence[Size],
        cluster: Cluster,
    ) -> tuple[Option, Bounds] | Refusal | Verdict:
        """The largest size that fits on a cluster within quota, the policy's limits and its budgets."""
        groups = groups_for(policy, cluster)
        _, device = narrowing(self.cycle, queue, alike.shape_id)
        refused: Refusal | None = None
        verdict: Verdict | None = None
        best: tuple[Option, Bounds] | None = None
        for product in products_on(cluster.report, device):
            for larger in range(len(sizes)):
                outcome = self._option(alike, queue, sizes[larger:], cluster, product, groups)
                if isinstance(outcome, Verdict):
                    verdict = verdict or outcome
                    continue
                bounds = self._bounds(alike, outcome, groups)
                over = self._over(policy, alike.shape_id, outcome) or self._too_expensive(policy, job, bounds)
                if over is None:
                    if best is None or outcome.total > best[0].total:
                        best = outcome, bounds
                    break
                refused = over if refused is None or over.at < refused.at else refused
        if best is not None:
            return best
        if refused is not None:
            return refused
        return verdict or Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence="no room is left there")

    def _option(
        self,
        alike: Alike,
        queue: Queue,
        sizes: Sequence[Size],
        cluster: Cluster,
        product: Product | None,
        groups: frozenset[str] | None,
    ) -> Option | Verdict:
        """The largest of these sizes that fits."""
        rooms = self.cycle.rooms
        if groups is None:
            outcome = rooms.option(alike.shape_id, list(sizes), cluster, product, alike.weights)
        else:
            outcome = rooms.option_among(alike.shape_id, sizes, cluster, product, groups, alike.weights)
        if not isinstance(outcome, Option):
            among = "" if groups is None else " among the nodes that the policy allows"
            return Verdict(cluster=cluster.name, check=Check.NO_ROOM, sentence=outcome.sentence + among)
        obstacle = self.cycle.ledger.obstacle(queue.id, outcome.charge)
        if obstacle is not None:
            return Verdict(cluster=cluster.name, check=Check.QUOTA, sentence=obstacle.sentence)
        return admitted(self.cycle, alike, outcome)

    def _bounds(self, alike: Alike, option: Option, groups: frozenset[str] | None) -> Bounds:
        grace = self._view.shapes[alike.shape_id].stop_grace
        rate = hourly(option.cluster, option.size.needs, option.product, groups)
        return Bounds(option.cluster.placement_timeout, alike.limit, grace, rate)

    def _too_expensive(self, policy: BurstPolicy, job: WaitingJob, bounds: Bounds) -> Refusal | None:
        now = self.cycle.now
        run = BurstRun(policy.id, now, bounds.until(now, None), bounds.rate)
        account, spent = self.account(policy), self._view.spending.jobs.get(job.id, 0)
        excess = account.excess(commitment_of(run, now), job_spent=spent)
        if excess is None:
            return None
        return Refusal(
            policy.name,
            Token.BURST_BUDGET,
            explain.excess(excess, bounds),
            _again_at(excess, now),
            is_own=excess.window is None and excess.spent > 0,
        )


_NEAREST = {
    Check.NO_ROOM: -5,
    Check.RESERVED: -4,
    Check.WINDOW: -4,
    Check.COOLING_DOWN: -3,
    Check.QUOTA: -2,
    Check.BURST: -1,
}
"""Which verdict is told of several: that which is nearest to a start."""


def _again_at(excess: Excess, now: float) -> float:
    """When to look again: when the window has passed. What live runs no longer need is known when they end."""
    if excess.window is None or excess.needed > excess.limit:
        return inf
    return max(excess.window.end / MICROS, now)


def fullness(rooms: Rooms) -> float:
    """The part in use of the resource of which most is in use, on all private clusters together; 1 where there is none."""
    used: Resources = {}
    there: Resources = {}
    for cluster in rooms.clusters:
        if cluster.kind is ClusterKind.PRIVATE and cluster.report is not None:
            for name, (taken, has) in rooms.measure(cluster).items():
                used[name] = used.get(name, 0) + taken
                there[name] = there.get(name, 0) + has
    return max((used[name] / has for name, has in there.items() if has), default=1.0)


def commitment_of(run: BurstRun, now: float) -> Commitment:
    """What a run is committed to; one that has outlived its limit costs until now at least."""
    return Commitment(run.rate, int(run.leased_at * MICROS), ceil(max(run.until, now) * MICROS))


def spent_in_windows(view: View, policy: BurstPolicy) -> dict[Window, int]:
    """What runs that have ended have cost, by the windows of the policy's budgets."""
    out: dict[Window, int] = {}
    for hour, nanos in view.spending.hours.get(policy.id, {}).items():
        for span in policy.budget.limits:
            window = window_at(span, hour)
            out[window] = out.get(window, 0) + nanos
    return out


class Standing(NamedTuple):
    """What a budget has left in its window of now; money in billionths."""

    window: Window
    limit: int
    spent: int
    """Until now, that of runs at work included."""
    committed: int
    """What runs at work may still cost in it."""


def standings_of(view: View, policy: BurstPolicy, now: float) -> list[Standing]:
    """How the budgets of a policy stand."""
    moment = int(now * MICROS)
    live = {
        run.job_id: commitment_of(run.burst, now)
        for run in view.burst_runs.get(policy.id, {}).values()
        if run.burst is not None
    }
    account, out = Account(policy.budget, spent_in_windows(view, policy), live), []
    for span, limit in policy.budget.limits.items():
        window, spent = window_at(span, moment), account.used(span, moment)
        whole = account.spent.get(window, 0) + sum(run.within(window) for run in account.live.values())
        out.append(Standing(window, limit, spent, whole - spent))
    return out


def groups_for(policy: BurstPolicy, cluster: Cluster) -> frozenset[str] | None:
    """The node groups that it may use, by their being spot or not; None for all."""
    if policy.spot is SpotUse.ALLOWED or cluster.report is None:
        return None
    wanted = policy.spot is SpotUse.ONLY
    found = frozenset(one.name for one in cluster.report.groups if is_spot(one.labels) is wanted)
    return None if len(found) == len(cluster.report.groups) else found


def binding(policy: BurstPolicy, option: Option) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Node affinity that keeps members where the policy allows them: key, operator, values."""
    report = option.cluster.report
    if report is None or policy.spot is SpotUse.ALLOWED:
        return ()
    spot = [one for one in report.groups if is_spot(one.labels)]
    labels = _spot_labels(spot)
    if policy.spot is SpotUse.NEVER:
        return tuple((name, "NotIn", tuple(sorted(values))) for name, values in sorted(labels.items()))
    chosen = _spot_labels([one for one in spot if one.name in option.fitted.placement])
    common = [name for name in chosen if all(name in one.labels for one in spot if one.name in option.fitted.placement)]
    return tuple((name, "In", tuple(sorted(labels[name]))) for name in sorted(common)[:1])


def _spot_labels(groups: Iterable[NodeGroup]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for group in groups:
        for name, value in group.labels.items():
            if is_spot({name: value}):
                found.setdefault(name, set()).add(value)
    return found


Needs = Sequence[tuple[str, Resources, int]]
"""Node group, what a member needs, and how many members."""


def needs_of(view: View, shape_id: int, option: Option) -> Needs:
    """What an option would put where."""
    roles = {role.name: role.needs for role in view.shapes[shape_id].roles}
    return [
        (group, roles[role], many) for group, of in option.fitted.placement.items() for role, many in of.items() if many
    ]


def nodes_of(view: View, cluster: Cluster, needs: Needs) -> float:
    """As many whole nodes as these members come to: each counts by the resource that it takes most of."""
    groups = {one.name: one.free for one in cluster.report.groups} if cluster.report is not None else {}
    total = 0.0
    for name, each, many in needs:
        free = groups.get(name)
        if free is None:
            total += many
            continue
        total += many * max((min(1.0, need / free[one]) for one, need in each.items() if free.get(one)), default=0.0)
    return total


def held_by(view: View, run: LiveRun) -> tuple[float, Resources]:
    """The nodes and the resources that a run holds."""
    roles = {role.name: role.needs for role in view.shapes[run.shape_id].roles}
    cluster, resources = view.clusters.get(run.cluster_id), Resources()
    needs = [(key.group, roles[key.role], many) for key, many in load_of(run)]
    for _, each, many in needs:
        _add_all(resources, {name: amount * many for name, amount in each.items()})
    return (0.0 if cluster is None else nodes_of(view, cluster, needs)), resources


def _add_all(into: Resources, more: Resources) -> None:
    for name, amount in more.items():
        into[name] = into.get(name, 0) + amount
