"""The search for victims: whole runs that are ended so that a blocked job can start, all on one cluster.

A run may be ended

* for a job of its own queue with a strictly higher class, or
* for a job of another queue, if after the preemption the taker's queue and its ancestors below the common one use at most what is
  guaranteed to them, and the victim's queues still use at least what is guaranteed to them.

The members of an elastic run beyond its least size are taken first, for any waiting job: the run got them only because
no job waited. They are not taken for another queue where the run's own queue would fall below its guarantee.

Age, job priority and shares order jobs; they never justify an eviction. Since a class is strictly higher and a
guarantee is only ever filled up, evictions never form a cycle.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.protocol.device_parts import device_of
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import Preemption
from trainmaster_dispatcher.scheduling.packing.free_capacity import ClusterLayouts, FreeCapacity, add_members
from trainmaster_dispatcher.scheduling.packing.gang_packing import Fitted, Size, products_on
from trainmaster_dispatcher.scheduling.packing.node_layout import NodeLayout
from trainmaster_dispatcher.scheduling.preemption.what_if import ClearedCluster, Victim, WhatIf
from trainmaster_dispatcher.scheduling.quotas.quota import QuotaTree
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Flavor, Product, plain, product_of
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun, LoadKey, load_of, members_of, surplus_of
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

PAUSE_SECONDS = 60.0
"""The time after a cluster has lost nodes in which no run of another queue is ended there: nodes that come back would
make it pointless."""


class PreemptionPlan(NamedTuple):
    """Runs to be ended on a cluster, and the packing of the gang after they have ended."""

    cluster_id: int
    victims: tuple[Victim, ...]
    size: Size
    fitted: Fitted
    charge: Amounts
    at_once: bool
    """Whether the taker is sent there immediately. If quota is what is freed, the taker waits until the victims have
    ended: no limit is exceeded even for a moment."""
    product: Product | None
    """The product of a device that the gang is bound to, where quota depends on the product."""


_LEAST = -(10**9)
"""Below the value of every class."""


class Guess(NamedTuple):
    """The estimated cost of a preemption: the highest class of a victim, the number of victims, their work; the cluster
    and the product."""

    value: int
    runs: int
    work: float
    cluster_id: int
    product: Product | None


class _Rights(NamedTuple):
    """The rights of a queue to what others use."""

    resources: tuple[str, ...]
    """The resources on which it has a guarantee of any flavor."""
    used: Mapping[Flavor, int]
    """What it and the queues below it use, as it changes."""
    most: Mapping[Flavor, int]
    """By each flavor on which any queue has a guarantee: the use at which its own is used up, which what is stopping adds to."""


def _by_cost(guess: Guess) -> tuple[int, int, float, int, str]:
    return guess.value, guess.runs, guess.work, guess.cluster_id, guess.product.name if guess.product else ""


@dataclass(slots=True)
class VictimSearch:
    """The search for preemptions in one cycle."""

    layouts: ClusterLayouts
    quotas: QuotaTree
    now: float
    state: SchedulerState = field(init=False)
    _surplus_left: bool | None = None
    shrunk: set[int] = field(default_factory=set)
    """Jobs whose elastic runs give members back by decisions of this cycle."""
    extra: dict[int, dict[LoadKey, int]] = field(default_factory=dict)
    """By cluster: the load that this cycle has started there."""
    ending: dict[int, set[int]] = field(default_factory=dict)
    """By cluster: the jobs whose runs end by decisions of this cycle or of earlier ones."""
    _cleared: dict[int, ClearedCluster] = field(default_factory=dict)
    _guesses: dict[int, dict[tuple[ClassKey, bool, Product | None], Guess | None]] = field(default_factory=dict)
    _candidates: dict[int, list[LiveRun]] = field(default_factory=dict)
    _by_queue: dict[int, dict[int, list[LiveRun]]] = field(default_factory=dict)
    """By cluster and queue: the runs that were on the cluster when the cycle began."""
    _own: dict[int, dict[int, list[LiveRun]]] = field(default_factory=dict)
    """By cluster and queue: those of them that may be ended, in their order; filled on request."""
    _leaving: dict[int, Amounts] | None = None
    _leaving_runs: dict[int, int] = field(default_factory=dict)
    _above: dict[int, Amounts] | None = None
    _lower: dict[tuple[int, int], bool] = field(default_factory=dict)
    _rights: dict[int, _Rights] = field(default_factory=dict)
    _spent: dict[int, list[Flavor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.layouts.state

    def note_start(self, cluster_id: int, load: Mapping[LoadKey, int]) -> None:
        extra = self.extra.setdefault(cluster_id, {})
        for key, count in load.items():
            extra[key] = extra.get(key, 0) + count
        if cluster_id in self._cleared:
            self._cleared[cluster_id].move(load.items(), 1)
            self._guesses.pop(cluster_id, None)

    def may_help(self, key: ClassKey, queue: Queue, size: Size, *, for_quota: bool) -> bool:
        """Return whether any run at all might be ended for this class: a quick check before the full search."""
        if self._has_lower(key.class_id, queue) or self._any_surplus():
            return True
        return self._may_reclaim(queue, size, for_quota=for_quota)

    def _may_reclaim(self, queue: Queue, size: Size, *, for_quota: bool = False) -> bool:
        """Return whether the queue may have a right to what others use."""
        if not self._may_be_owed(queue, size):
            return False
        if self.state.flavors.any_narrowed or (for_quota and self._leaving_of()):
            return True  # it depends on the cluster, or on what is stopping
        _, used, most = self._rights_of(queue)
        owed = (flavor for flavor in size.charge if flavor in most)
        return all(used.get(flavor, 0) + size.charge[flavor] <= most[flavor] for flavor in owed)

    def _rights_of(self, queue: Queue) -> _Rights:
        """Return what the queue may reclaim, kept until something more is stopping."""
        found = self._rights.get(queue.id)
        if found is None:
            above: Amounts = self._leaving_above().get(queue.id, {})
            guarantees = {flavor: self.quotas.guarantee(queue, flavor) for flavor in self.quotas.tree.guaranteed}
            resources = dict.fromkeys(flavor.resource for flavor, amount in guarantees.items() if amount)
            most = {flavor: amount + above.get(flavor, 0) for flavor, amount in guarantees.items()}
            found = self._rights[queue.id] = _Rights(tuple(resources), self.quotas.account(queue.id).used, most)
        return found

    def helpless(self, queue: Queue) -> Callable[[int, Size | None], bool | None] | None:
        """Return a function that reports, by priority class and size, whether no run can be ended for jobs of a queue
        that lack capacity.

        Without a size the function returns True if none can whatever the size, None if that depends on the size. Its
        answer equals that of ``may_help`` until something starts or is ended. None instead of a function if elastic
        runs have members that could leave.
        """
        if self._any_surplus():
            return None
        spent = self._spent.get(queue.id)
        if spent is None:
            spent = self._spent[queue.id] = self._spent_flavors(queue)
        is_spent = len(spent) == len(self.quotas.tree.guaranteed)

        def is_helpless(class_id: int, size: Size | None) -> bool | None:
            if self._has_lower(class_id, queue):
                return False
            if is_spent:
                return True
            if size is None:
                return None
            return any(flavor in size.charge for flavor in spent) or not self._may_reclaim(queue, size)

        return is_helpless

    def helpless_for_quota(self, queue: Queue) -> Callable[[int, Size | None], bool | None] | None:
        """Return what ``helpless`` returns, for jobs of a queue that lack quota; None also if anything is stopping.

        What stops may give back the quota that the jobs lack.
        """
        return None if self._leaving_of() else self.helpless(queue)

    def _any_surplus(self) -> bool:
        """Return whether any elastic run has members that could leave."""
        if self._surplus_left is None:
            self._surplus_left = any(self._has_surplus_on(cluster_id) for cluster_id in self.state.elastic_on)
        return self._surplus_left

    def _has_surplus_on(self, cluster_id: int) -> bool:
        return next(self._with_surplus(cluster_id), None) is not None

    def _with_surplus(self, cluster_id: int) -> Iterator[tuple[LiveRun, dict[str, int]]]:
        """Yield the elastic runs of a cluster with members that could leave, and their number by role."""
        for job_id in sorted(self.state.elastic_on.get(cluster_id, ())):
            run = self.state.runs[job_id]
            spare = surplus_of(run, self.state.shapes[run.shape_id])
            is_free = job_id not in self.shrunk and job_id not in self.state.spared
            if spare and is_free and run.queue_id in self.state.queues:
                yield run, spare

    def _spent_flavors(self, queue: Queue) -> list[Flavor]:
        """Return the flavors on which the queue has used up its guarantee, if any; starts can only add to them."""
        _, used, most = self._rights_of(queue)
        return [flavor for flavor, amount in most.items() if used.get(flavor, 0) >= amount]

    def _leaving_above(self) -> dict[int, Amounts]:
        """Return, by queue, the charge of stopping runs in the queue and below it."""
        leaving = self._leaving_of()
        if self._above is None:
            self._above = {}
            for queue_id, charge in leaving.items():
                for queue in self.state.ancestry(queue_id):
                    total = self._above.setdefault(queue.id, {})
                    for flavor, amount in charge.items():
                        total[flavor] = total.get(flavor, 0) + amount
        return self._above

    def _may_be_owed(self, queue: Queue, size: Size) -> bool:
        """Return whether the queue has a guarantee on any resource that is needed; with quota by product it depends on
        the cluster."""
        return any(size.needs.get(name) for name in self._rights_of(queue).resources)

    def _is_owed_somewhere(self, queue: Queue, size: Size) -> bool:
        """Return whether the queue has a right to what others use; with quota by product that depends on the cluster."""
        return self._may_be_owed(queue, size) and (self.state.flavors.any_narrowed or self._is_owed(queue, size.charge))

    def _may_help_on(self, cluster_id: int, key: ClassKey, queue: Queue) -> bool:
        """Return whether anything is stopping or could be ended on a cluster, except what other queues have to give back."""
        # What is stopping already may be enough.
        return (
            bool(self._ending(cluster_id))
            or cluster_id in self.state.elastic_on
            or self._has_lower_on(cluster_id, key, queue)
        )

    def _has_lower_on(self, cluster_id: int, key: ClassKey, queue: Queue) -> bool:
        """Return whether the queue itself has runs of a lower class on a cluster that may be ended."""
        value, classes = self.state.classes[key.class_id].value, self.state.classes
        return any(
            run.class_id in classes and classes[run.class_id].value < value
            for run in self._ranked_of(cluster_id, queue.id)
        )

    def _has_lower(self, class_id: int, queue: Queue) -> bool:
        """Return whether the queue itself had runs of a lower class when the cycle began."""
        lower = self._lower.get((queue.id, class_id))
        if lower is None:
            value = self.state.classes[class_id].value
            of_queue = (self.state.classes.get(class_id) for class_id in self.state.running_classes.get(queue.id, ()))
            lower = any(of is not None and of.preemptible and of.value < value for of in of_queue)
            self._lower[queue.id, class_id] = lower
        return lower

    def _is_owed(self, queue: Queue, need: Amounts) -> bool:
        """Return whether the queue itself would still be within its guarantee, and has one on what is needed."""
        return any(self.quotas.guarantee(queue, flavor) for flavor in need) and self.quotas.within_guarantee(
            queue, need
        )

    def find(
        self, key: ClassKey, queue: Queue, sizes: list[Size], clusters: list[int], *, for_quota: bool
    ) -> PreemptionPlan | None:
        """Return the preemption on one of these clusters that ends the fewest and least valuable runs; None if none helps.

        If a gang would fit as soon as runs have ended that are stopping already, nothing is ended for it: with
        ``for_quota`` that is a preemption without victims.
        """
        best: PreemptionPlan | None = None
        # Guarantees are checked as if everything that is stopping had ended; limits hold even while it still runs.
        self._count_leaving(-1)
        try:
            is_owed = self._is_owed_somewhere(queue, sizes[-1]) or (for_quota and bool(self._leaving_of()))
            helpful = [one for one in clusters if is_owed or self._may_help_on(one, key, queue)]
            device = self.device(queue, sizes[-1])
            guesses = (
                self._guess(one, key, queue, sizes[-1], product, for_quota=for_quota)
                for one in helpful
                for product in products_on(self.state.clusters[one].report, device)
            )
            for guess in sorted((guess for guess in guesses if guess is not None), key=_by_cost):
                if best is not None and self._cost(best)[:2] <= guess[:2]:
                    break
                plan = self._on(guess, key, queue, sizes[-1], for_quota=for_quota)
                if plan is None:
                    continue
                if not plan.victims:
                    return plan if for_quota else None
                if not for_quota and self._exceeds(queue, plan.charge):
                    continue
                if best is None or self._cost(plan) < self._cost(best):
                    best = plan
        finally:
            self._count_leaving(1)
        return best

    def _exceeds(self, queue: Queue, charge: Amounts) -> bool:
        """Return whether a limit would be exceeded while everything that is stopping still runs. What others keep is no
        limit of the queue."""
        self._count_leaving(1)
        try:
            obstacle = self.quotas.obstacle(queue.id, charge)
        finally:
            self._count_leaving(-1)
        return obstacle is not None and obstacle.token is not Token.KEPT_FOR_OTHERS

    def _count_leaving(self, sign: int) -> None:
        for queue_id, charge in self._leaving_of().items():
            self.quotas.add(queue_id, charge, running=self._leaving_runs[queue_id], sign=sign)

    def _leaving_of(self) -> dict[int, Amounts]:
        """Return, by queue, the charge of runs that are stopping by decisions of this cycle or of earlier ones."""
        if self._leaving is None:
            self._leaving = {}
            for runs in self.state.runs_on.values():
                for run in runs.values():
                    if run.is_stopping:
                        self._leave(run.queue_id, self.state.flavors.charge(self.state.places_of(run)))
            for run in self._shrinking():
                self._leave(run.queue_id, self._charge_of(run, members_of(run, dict(run.leaving))), runs=0)
        return self._leaving

    def _shrinking(self) -> Iterator[LiveRun]:
        """Yield the elastic runs whose members leave by decisions of earlier cycles."""
        for job_ids in self.state.elastic_on.values():
            for job_id in job_ids:
                run = self.state.runs[job_id]
                if run.leaving and not run.is_stopping:
                    yield run

    def _charge_of(self, run: LiveRun, members: Iterable[tuple[LoadKey, int]]) -> Amounts:
        """Return the charge of members of a run."""
        places = ((key.group, key.role, count) for key, count in members)
        return self.state.flavors.charge(self.state.places_at(run.cluster_id, run.shape_id, places))

    def _leave(self, queue_id: int, charge: Amounts, runs: int = 1) -> None:
        if self._leaving is not None:
            total = self._leaving.setdefault(queue_id, {})
            for flavor, amount in charge.items():
                total[flavor] = total.get(flavor, 0) + amount
            self._leaving_runs[queue_id] = self._leaving_runs.get(queue_id, 0) + runs
            self._above = None
            self._rights.clear()
            self._spent.clear()

    def take(self, plan: PreemptionPlan) -> None:
        """Record that the preemption is decided: its victims are stopping."""
        self._leaving_of()
        self._surplus_left = None
        ending = self._ending(plan.cluster_id)
        self._guesses.pop(plan.cluster_id, None)
        leaving = {victim.run.job_id for victim in plan.victims if victim.keeps is None}
        ranked = self._candidates.get(plan.cluster_id)
        if ranked is not None:
            self._candidates[plan.cluster_id] = [run for run in ranked if run.job_id not in leaving]
        self._own.pop(plan.cluster_id, None)
        for victim in plan.victims:
            if victim.keeps is None:
                ending.add(victim.run.job_id)
            else:
                self.shrunk.add(victim.run.job_id)
            if plan.cluster_id in self._cleared:
                self._cleared[plan.cluster_id].move(victim.members, -1)
            self._leave(victim.run.queue_id, victim.charge, runs=int(victim.keeps is None))

    def leave(self, run: LiveRun) -> None:
        """Record that a run ends without a preemption; its resources count as stopping."""
        self._leaving_of()
        self._ending(run.cluster_id).add(run.job_id)
        self._leave(run.queue_id, self.rest_of(run, None, by_class=False).charge)

    def free_capacity(self, cluster_id: int) -> FreeCapacity:
        """Return what is free for others on a cluster after preemptions: until the victims have ended, both they and
        the takers are counted."""
        load = dict(self.state.load.get(cluster_id, {}))
        add_members(load, self.extra.get(cluster_id, {}).items())
        return self.layouts.under(cluster_id, load)

    # One cluster

    def device(self, queue: Queue, size: Size) -> str:
        """Return the device of the gang whose product decides the charge of the gang and the right to it; empty if
        there is none."""
        if not self.state.flavors.any_narrowed:
            return ""
        flavors = [flavor for above in self.state.ancestry(queue.id) for flavor in above.quotas]
        flavors += sorted(self.quotas.tree.guaranteed)
        needed = {plain(device_of(name)) for name, amount in size.needs.items() if amount}
        return next((flavor.resource for flavor in flavors if flavor.product and plain(flavor.resource) in needed), "")

    def what_if(
        self,
        cluster_id: int,
        key: ClassKey,
        size: Size,
        product: Product | None,
        nodes: NodeLayout | None = None,
    ) -> WhatIf:
        """Return a cluster from which runs can be removed hypothetically, after everything that is stopping has ended.

        ``nodes``: see ``WhatIf``.
        """
        cleared = self.cleared(cluster_id)
        return WhatIf(cleared, self.quotas, key, size, self._need(cluster_id, size, product), product, nodes)

    def cleared(self, cluster_id: int) -> ClearedCluster:
        """Return a cluster after everything that is stopping has ended."""
        cleared = self._cleared.get(cluster_id)
        if cleared is None:
            cleared = self._cleared[cluster_id] = ClearedCluster(self.layouts, cluster_id, self._load(cluster_id))
        return cleared

    def _need(self, cluster_id: int, size: Size, product: Product | None) -> Amounts:
        if not self.state.flavors.any_narrowed:
            return size.charge
        cluster = self.state.clusters[cluster_id]
        groups = cluster.report.groups if cluster.report is not None else ()
        out: Amounts = {}
        for flavor, amount in size.charge.items():
            name = flavor.resource
            products = {product_of(group) for group in groups if group.free.get(name)} if "/" in name else {""}
            if product is not None and name == product.resource:
                products = {product.name}
            out[Flavor(name, products.pop() if len(products) == 1 else "", cluster.kind.value)] = amount
        return self.state.flavors.charge(out)

    def _guess(
        self, cluster_id: int, key: ClassKey, queue: Queue, size: Size, product: Product | None, *, for_quota: bool
    ) -> "Guess | None":
        """Return the cost of a preemption on a cluster if nodes did not matter, to try the cheapest first; None if none helps."""
        known = self._guesses.setdefault(cluster_id, {})
        if (key, for_quota, product) not in known:
            known[key, for_quota, product] = self._guess_anew(cluster_id, key, queue, size, product)
        return known[key, for_quota, product]

    def _guess_anew(
        self, cluster_id: int, key: ClassKey, queue: Queue, size: Size, product: Product | None
    ) -> "Guess | None":
        what_if = self.what_if(cluster_id, key, size, product)
        if not what_if.could_ever_fit():
            return None
        chosen: list[Victim] = []
        try:
            victims = self._victims(cluster_id, key, queue, what_if.need)
            while not what_if.is_near() or self.quotas.obstacle(queue.id, what_if.need) is not None:
                victim = next(victims, None)
                if victim is None:
                    if not what_if.has_total():
                        return None
                    break  # nodes that are packed again may have enough free where the present packing has not
                chosen.append(victim)
                what_if.let_go(victim)
            return Guess(*self._price(chosen), cluster_id, product)
        finally:
            for victim in chosen:
                what_if.put_back(victim)

    def _on(self, guess: Guess, key: ClassKey, queue: Queue, size: Size, *, for_quota: bool) -> PreemptionPlan | None:
        """Return the preemption on the cluster of a guess; without victims if the gang fits once everything that is
        stopping has ended."""
        cluster_id, product = guess.cluster_id, guess.product
        what_if = self.what_if(cluster_id, key, size, product)
        victims = self._victims(cluster_id, key, queue, what_if.need)
        chosen: list[Victim] = []
        try:
            fitted = what_if.fits(queue)
            look_at = 1
            while fitted is None:
                victim = next(victims, None)
                if victim is None:
                    fitted = (
                        what_if.fits(queue) if chosen else None
                    )  # a victim that was not tried separately may have helped
                    if fitted is None:
                        return None
                    break
                chosen.append(victim)
                what_if.let_go(victim)
                if len(chosen) >= look_at and what_if.may_have_helped(victim) and what_if.has_total():
                    fitted = what_if.fits(queue)
                    look_at = 1 + len(chosen) if size.total == 1 else 1 + len(chosen) * 5 // 4
            fitted = self._spare(what_if, chosen, queue, fitted)
            charge = what_if.charge_of(fitted)
            if self.quotas.obstacle(queue.id, charge) is not None:
                return None
            return PreemptionPlan(cluster_id, tuple(chosen), size, fitted, charge, not for_quota, product)
        finally:
            for victim in chosen:
                what_if.put_back(victim)

    def _spare(self, what_if: WhatIf, chosen: list[Victim], queue: Queue, fitted: Fitted) -> Fitted:
        """Remove victims that were not needed from the list. Fewer victims never make a preemption unjust."""
        elsewhere = [one for one in chosen if not any(key.group in fitted.placement for key, _ in one.members)]
        there = [one for one in chosen if any(key.group in fitted.placement for key, _ in one.members)]
        spared: set[tuple[int, bool]] = set()
        for some in ([elsewhere] if elsewhere else []) + [[one] for one in reversed(there)]:
            for victim in some:
                what_if.put_back(victim)
            again = what_if.fits(queue) if what_if.may_have_helped(some[0]) or some is elsewhere else None
            if again is None:
                for victim in some:
                    what_if.let_go(victim)
            else:
                fitted = again
                spared.update(victim.key for victim in some)
        chosen[:] = [victim for victim in chosen if victim.key not in spared]
        return fitted

    def _victims(self, cluster_id: int, key: ClassKey, queue: Queue, need: Amounts) -> Iterator[Victim]:
        """Yield the runs that may be ended for this class, the least valuable first; each is checked as if those before
        it had ended."""
        state, quotas = self.state, self.quotas
        value = state.classes[key.class_id].value
        may_reclaim = state.shrunk_at.get(cluster_id, 0.0) + PAUSE_SECONDS <= self.now and self._is_owed(queue, need)
        taker = state.ancestry(queue.id)
        too_much = {one.id for one in taker if not quotas.within_guarantee(one, need)} if may_reclaim else set()
        ending = self._ending(cluster_id)
        shrunk_victims: dict[int, Victim] = {}
        for victim in self._surplus(cluster_id, queue):
            shrunk_victims[victim.run.job_id] = victim
            yield victim
        for run in self._ranked(cluster_id) if may_reclaim else self._ranked_of(cluster_id, queue.id):
            owner, of = state.queues.get(run.queue_id), state.classes.get(run.class_id)
            if run.job_id in ending or run.job_id in self.shrunk or owner is None or of is None or not of.preemptible:
                continue
            if owner.id == queue.id:
                if of.value < value and owner.preemption is not Preemption.NEVER:
                    yield self.rest_of(run, shrunk_victims.get(run.job_id), by_class=True)
            elif owner.preemption is Preemption.ANY_BORROWER:
                giver = state.ancestry(owner.id)
                common = {one.id for one in taker} & {one.id for one in giver}
                victim = self.rest_of(run, shrunk_victims.get(run.job_id), by_class=False)
                if too_much <= common and all(
                    quotas.keeps_guarantee(one, victim.charge) for one in giver if one.id not in common
                ):
                    yield victim

    def is_settled(self, cluster_id: int) -> bool:
        """Return whether nothing on a cluster is being stopped or shrunk."""
        runs = self.state.runs_on.get(cluster_id, {})
        elastic = self.state.elastic_on.get(cluster_id, ())
        return not self._ending(cluster_id) and not any(runs[one].leaving or one in self.shrunk for one in elastic)

    def _surplus(self, cluster_id: int, queue: Queue) -> Iterator[Victim]:
        """Yield the members of elastic runs beyond their least sizes, of the run with the most of them first."""
        state, quotas = self.state, self.quotas
        taker = state.ancestry(queue.id)
        ending = self._ending(cluster_id)
        runs = sorted(self._with_surplus(cluster_id), key=lambda found: (-sum(found[1].values()), found[0].job_id))
        for run, spare in runs:
            if run.job_id in ending:
                continue
            members = members_of(run, spare)
            charge = self._charge_of(run, members)
            common = {one.id for one in taker}
            if run.queue_id == queue.id or all(
                quotas.keeps_guarantee(one, charge) for one in state.ancestry(run.queue_id) if one.id not in common
            ):
                leaving = dict(run.leaving)
                keeps = {role: size - leaving.get(role, 0) - spare.get(role, 0) for role, size in run.sizes}
                yield Victim(run, False, charge, members, keeps)

    def rest_of(self, run: LiveRun, given_back: Victim | None, *, by_class: bool) -> Victim:
        """Return a run that ends completely, without the members that are leaving already or that are in ``given_back``."""
        state = self.state
        if given_back is None and not run.leaving:
            return Victim(run, by_class, state.flavors.charge(state.places_of(run)), tuple(load_of(run)))
        left = dict(load_of(run))
        for key, count in (
            *members_of(run, dict(run.leaving)),
            *(given_back.members if given_back is not None else ()),
        ):
            left[key] -= count
        members = tuple((key, count) for key, count in left.items() if count > 0)
        return Victim(run, by_class, self._charge_of(run, members), members)

    def _ranked_of(self, cluster_id: int, queue_id: int) -> list[LiveRun]:
        """Return the runs of one queue on a cluster that may be ended, in the order of ``_ranked``."""
        by_queue = self._by_queue.get(cluster_id)
        if by_queue is None:
            by_queue = self._by_queue[cluster_id] = {}
            for run in self.state.runs_on.get(cluster_id, {}).values():
                by_queue.setdefault(run.queue_id, []).append(run)
        own = self._own.setdefault(cluster_id, {})
        ranked = own.get(queue_id)
        if ranked is None:
            ending = self._ending(cluster_id)
            may_end = (run for run in by_queue.get(queue_id, ()) if run.job_id not in ending and self.may_end(run))
            ranked = own[queue_id] = sorted(may_end, key=self._rank_in_queue)
        return ranked

    def _ranked(self, cluster_id: int) -> list[LiveRun]:
        """Return the runs of a cluster that may be ended: of the queue that is most over its guarantee first, of the
        lowest class, with the least work done, the youngest."""
        ranked = self._candidates.get(cluster_id)
        if ranked is None:
            state = self.state
            runs = state.runs_on.get(cluster_id, {}).values()
            queues = {run.queue_id for run in runs} & state.queues.keys()
            shares = {queue_id: self.quotas.share(state.queues[queue_id])[0] for queue_id in queues}
            ranked = self._candidates[cluster_id] = sorted(
                (run for run in runs if self.may_end(run)),
                key=lambda run: (-shares[run.queue_id], *self._rank_in_queue(run)),
            )
        return ranked

    def may_end(self, run: LiveRun) -> bool:
        """Return whether the run has had the minimum run time of its queue, and that of its own job."""
        queue = self.state.queues.get(run.queue_id)
        if queue is None or run.is_stopping or run.job_id in self.state.spared:
            return False
        least = max(queue.min_run_time, self.state.shapes[run.shape_id].min_run_seconds)
        return self.now - run.began_at >= least

    def _rank_in_queue(self, run: LiveRun) -> tuple[int, float, float, int]:
        of = self.state.classes.get(run.class_id)
        return 0 if of is None else of.value, self.work(run), -run.began_at, run.job_id

    def work(self, run: LiveRun) -> float:
        """Return the member-seconds that are lost with a run."""
        each = self.state.shapes[run.shape_id].members_per_unit
        members = sum(count * each.get(role, 1) for role, count in run.sizes)
        return members * max(0.0, self.now - run.began_at)

    def _cost(self, plan: PreemptionPlan) -> tuple[float, ...]:
        return *self._price(plan.victims), plan.cluster_id

    def _price(self, victims: Iterable[Victim]) -> tuple[int, int, float]:
        """Return the highest class among the ended runs, their number, and their work. Members that an elastic run
        gives back cost nothing."""
        ended = [victim.run for victim in victims if victim.keeps is None]
        values = (self.state.classes[run.class_id].value for run in ended)
        return max(values, default=_LEAST), len(ended), sum(map(self.work, ended))

    def _ending(self, cluster_id: int) -> set[int]:
        if cluster_id not in self.ending:
            runs = self.state.runs_on.get(cluster_id, {}).values()
            self.ending[cluster_id] = {run.job_id for run in runs if run.is_stopping}
        return self.ending[cluster_id]

    def _load(self, cluster_id: int) -> dict[str, dict[LoadKey, int]]:
        """Return the load of a cluster after everything that is stopping has ended."""
        load = dict(self.state.load.get(cluster_id, {}))
        add_members(load, self.extra.get(cluster_id, {}).items())
        runs = self.state.runs_on.get(cluster_id, {})
        for job_id in self._ending(cluster_id):
            add_members(load, load_of(runs[job_id]), -1)
        for job_id in self.state.elastic_on.get(cluster_id, ()):
            run = runs[job_id]
            if run.leaving and job_id not in self._ending(cluster_id):
                add_members(load, members_of(run, dict(run.leaving)), -1)
        return load
