"""Who has to give way: whole runs that are ended so that a blocked job can start, all on one cluster.

A run may be ended

* for a job of its own queue with a strictly higher class, or
* for a job of another queue, if after the exchange the taker's queue and its ancestors below the common one use at most what is
  guaranteed to them, and the victim's still use at least what is guaranteed to theirs.

Age, job priority and shares order jobs; they never justify an eviction. Since a class is strictly higher and a guarantee is only ever
filled up, no eviction comes back around.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.dispatcher.scheduling.fit import Fitted, Size, fit
from trainmaster.dispatcher.scheduling.lines import Amounts, Line, product_of
from trainmaster.dispatcher.scheduling.quota import Ledger
from trainmaster.dispatcher.scheduling.room import Room, add_members, laid_out, needs_of_load
from trainmaster.dispatcher.scheduling.view import ClassKey, LiveRun, LoadKey, Queue, View, load_of
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import Preemption

PAUSE_SECONDS = 60.0
"""For how long after a cluster has lost nodes no other queue's run is ended there: nodes that come back would undo it."""


class Victim(NamedTuple):
    """A run to be ended, and by which of the two rules."""

    run: LiveRun
    by_class: bool
    charge: Amounts


class Exchange(NamedTuple):
    """Runs to be ended on a cluster, and how the gang fits there once they are gone."""

    cluster_id: int
    victims: tuple[Victim, ...]
    size: Size
    fitted: Fitted
    charge: Amounts
    at_once: bool
    """Whether the taker is sent there already. Where it is quota that is freed, it waits until the victims have gone: no limit is
    exceeded even for a moment."""


@dataclass(slots=True)
class _Trial:
    """A cluster from which runs are taken one by one, in thought, until a gang fits there within quota."""

    view: View
    ledger: Ledger
    cluster_id: int
    key: ClassKey
    size: Size
    load: dict[str, dict[LoadKey, int]]
    need: Amounts = field(init=False)
    """On every line, as far as it is known before the gang is placed: by product where the cluster has only one."""
    _free: Resources = field(init=False)

    def __post_init__(self) -> None:
        self.need = self.view.lines.charge(self._places())
        self._free = dict(self._room().total())

    def _places(self) -> Amounts:
        cluster = self.view.clusters[self.cluster_id]
        groups = cluster.report.groups if cluster.report is not None else ()
        out: Amounts = {}
        for name, amount in self.size.needs.items():
            products = {product_of(group) for group in groups if group.free.get(name)} if "/" in name else {""}
            if amount:
                out[Line(name, products.pop() if len(products) == 1 else "", cluster.kind.value)] = amount
        return out

    def _room(self) -> Room:
        return laid_out(self.view, self.cluster_id, self.load)

    def fits(self, queue: Queue) -> Fitted | None:
        if any(self._free.get(name, 0) < amount for name, amount in self.size.needs.items()):
            return None
        if self.ledger.obstacle(queue.id, self.need) is not None:
            return None
        outcome = fit(self.view.shapes[self.key.shape_id], self.size.members, self._room())
        return outcome if isinstance(outcome, Fitted) else None

    def let_go(self, victim: Victim) -> None:
        self._move(victim, -1)

    def put_back(self, victim: Victim) -> None:
        self._move(victim, 1)

    def _move(self, victim: Victim, sign: int) -> None:
        self.ledger.add(victim.run.queue_id, victim.charge, sign=sign)
        members = load_of(victim.run)
        add_members(self.load, members, sign)
        for key, count in members:
            for name, amount in needs_of_load(self.view, key).items():
                self._free[name] = self._free.get(name, 0) - sign * amount * count

    def charge_of(self, fitted: Fitted) -> Amounts:
        members = ((group, role, count) for group, roles in fitted.placement.items() for role, count in roles.items())
        return self.view.lines.charge(self.view.places_at(self.cluster_id, self.key.shape_id, members))


@dataclass(slots=True)
class Evictions:
    """The exchanges of one cycle."""

    view: View
    ledger: Ledger
    now: float
    extra: dict[int, dict[LoadKey, int]] = field(default_factory=dict)
    """By cluster: what this cycle has started there."""
    gone: dict[int, set[int]] = field(default_factory=dict)
    """By cluster: the jobs whose runs end, by decisions of this cycle and of earlier ones."""
    _candidates: dict[int, list[LiveRun]] = field(default_factory=dict)
    _by_queue: dict[int, dict[int, list[LiveRun]]] = field(default_factory=dict)
    _leaving: dict[int, Amounts] | None = None
    _leaving_runs: dict[int, int] = field(default_factory=dict)

    def note_start(self, cluster_id: int, load: Mapping[LoadKey, int]) -> None:
        extra = self.extra.setdefault(cluster_id, {})
        for key, count in load.items():
            extra[key] = extra.get(key, 0) + count

    def may_help(self, key: ClassKey, queue: Queue, size: Size) -> bool:
        """Whether any run at all might be ended for this class: a quick look before the long one."""
        return self._has_lower(key, queue) or self._may_be_owed(queue, size)

    def _may_be_owed(self, queue: Queue, size: Size) -> bool:
        """Whether the queue has a guarantee on any line that is needed; on a narrowed one it depends on the place."""
        guaranteed = (line for line in self.ledger.tree.guaranteed if size.needs.get(line.resource))
        return any(self.ledger.guarantee(queue, line) for line in guaranteed)

    def _has_lower_on(self, cluster_id: int, key: ClassKey, queue: Queue) -> bool:
        """Whether its own queue has runs of a lower class on a cluster that may be ended."""
        value, classes = self.view.classes[key.class_id].value, self.view.classes
        return any(
            run.class_id in classes and classes[run.class_id].value < value
            for run in self._ranked_of(cluster_id, queue.id)
        )

    def _has_lower(self, key: ClassKey, queue: Queue) -> bool:
        """Whether its own queue has runs of a lower class."""
        value = self.view.classes[key.class_id].value
        of_queue = (self.view.classes.get(class_id) for class_id in self.view.running_classes.get(queue.id, ()))
        return any(of is not None and of.preemptible and of.value < value for of in of_queue)

    def _is_owed(self, queue: Queue, need: Amounts) -> bool:
        """Whether the queue itself would still be within its guarantee, and has one on what is needed."""
        return any(self.ledger.guarantee(queue, line) for line in need) and self.ledger.within_guarantee(queue, need)

    def find(
        self, key: ClassKey, queue: Queue, sizes: list[Size], clusters: list[int], *, for_quota: bool
    ) -> Exchange | None:
        """The exchange on one of these clusters that ends the fewest and least valuable runs; None if none helps.

        Where a gang would fit as soon as runs have ended that are stopping already, nothing is ended for it: with ``for_quota``
        that is an exchange without victims.
        """
        found: list[Exchange] = []
        # Guarantees are judged as if all that is leaving had gone; limits hold even while it is still there.
        self._count_leaving(-1)
        try:
            # What is leaving already may be all that it takes.
            is_owed = self._may_be_owed(queue, sizes[-1]) or (for_quota and bool(self._leaving_of()))
            for cluster_id in clusters:
                if not is_owed and not self._has_lower_on(cluster_id, key, queue):
                    continue
                exchange = self._on(cluster_id, key, queue, sizes[-1], for_quota=for_quota)
                if exchange is not None and not exchange.victims:
                    return exchange if for_quota else None
                if exchange is not None:
                    found.append(exchange)
        finally:
            self._count_leaving(1)
        if not for_quota:
            found = [one for one in found if not self._exceeds(queue, one.charge)]
        return min(found, key=self._cost) if found else None

    def _exceeds(self, queue: Queue, charge: Amounts) -> bool:
        """Whether a limit would be broken while all that is leaving is still there. What others keep is no limit of the queue."""
        obstacle = self.ledger.obstacle(queue.id, charge)
        return obstacle is not None and obstacle.token is not Token.KEPT_FOR_OTHERS

    def _count_leaving(self, sign: int) -> None:
        for queue_id, charge in self._leaving_of().items():
            self.ledger.add(queue_id, charge, running=self._leaving_runs[queue_id], sign=sign)

    def _leaving_of(self) -> dict[int, Amounts]:
        """By queue: what runs are charged that are stopping, by decisions of this cycle and of earlier ones."""
        if self._leaving is None:
            self._leaving = {}
            for runs in self.view.runs_on.values():
                for run in runs.values():
                    if run.is_stopping:
                        self._leave(run.queue_id, self.view.lines.charge(self.view.places_of(run)))
        return self._leaving

    def _leave(self, queue_id: int, charge: Amounts) -> None:
        if self._leaving is not None:
            total = self._leaving.setdefault(queue_id, {})
            for line, amount in charge.items():
                total[line] = total.get(line, 0) + amount
            self._leaving_runs[queue_id] = self._leaving_runs.get(queue_id, 0) + 1

    def take(self, exchange: Exchange) -> None:
        """The exchange is decided: its victims are leaving."""
        self._leaving_of()
        gone = self._gone(exchange.cluster_id)
        for victim in exchange.victims:
            gone.add(victim.run.job_id)
            self._leave(victim.run.queue_id, victim.charge)

    def room(self, cluster_id: int) -> Room:
        """What is free for others on a cluster after exchanges: until the victims have gone, they and the takers are both there."""
        load = dict(self.view.load.get(cluster_id, {}))
        add_members(load, self.extra.get(cluster_id, {}).items())
        return laid_out(self.view, cluster_id, load)

    # One cluster

    def _on(self, cluster_id: int, key: ClassKey, queue: Queue, size: Size, *, for_quota: bool) -> Exchange | None:
        """The exchange on one cluster; without victims if the gang fits once what is stopping has gone."""
        trial = _Trial(self.view, self.ledger, cluster_id, key, size, self._load(cluster_id))
        victims = self._victims(cluster_id, key, queue, trial.need)
        taken: list[Victim] = []
        try:
            fitted = trial.fits(queue)
            while fitted is None:
                victim = next(victims, None)
                if victim is None:
                    return None
                taken.append(victim)
                trial.let_go(victim)
                fitted = trial.fits(queue)
            # The last one was needed; of the others some may not be. Fewer victims never make an exchange unjust.
            for victim in reversed(taken[:-1]):
                trial.put_back(victim)
                again = trial.fits(queue)
                if again is None:
                    trial.let_go(victim)
                else:
                    fitted = again
                    taken.remove(victim)
            charge = trial.charge_of(fitted)
            if self.ledger.obstacle(queue.id, charge) is not None:
                return None
            return Exchange(cluster_id, tuple(taken), size, fitted, charge, not for_quota)
        finally:
            for victim in taken:
                trial.put_back(victim)

    def _victims(self, cluster_id: int, key: ClassKey, queue: Queue, need: Amounts) -> Iterator[Victim]:
        """Runs that may be ended for this class, the least valuable first; each is judged with those before it gone."""
        view, ledger = self.view, self.ledger
        value = view.classes[key.class_id].value
        may_reclaim = view.shrunk_at.get(cluster_id, 0.0) + PAUSE_SECONDS <= self.now and self._is_owed(queue, need)
        taker = view.ancestry(queue.id)
        too_much = {one.id for one in taker if not ledger.within_guarantee(one, need)} if may_reclaim else set()
        gone = self._gone(cluster_id)
        for run in self._ranked(cluster_id) if may_reclaim else self._ranked_of(cluster_id, queue.id):
            owner, of = view.queues.get(run.queue_id), view.classes.get(run.class_id)
            if run.job_id in gone or owner is None or of is None or not of.preemptible:
                continue
            if owner.id == queue.id:
                if of.value < value and owner.preemption is not Preemption.NEVER:
                    yield Victim(run, True, view.lines.charge(view.places_of(run)))
            elif owner.preemption is Preemption.ANY_BORROWER:
                giver = view.ancestry(owner.id)
                common = {one.id for one in taker} & {one.id for one in giver}
                charge = view.lines.charge(view.places_of(run))
                if too_much <= common and all(
                    ledger.keeps_guarantee(one, charge) for one in giver if one.id not in common
                ):
                    yield Victim(run, False, charge)

    def _ranked_of(self, cluster_id: int, queue_id: int) -> list[LiveRun]:
        """The runs of one queue among those of a cluster that may be ended."""
        by_queue = self._by_queue.get(cluster_id)
        if by_queue is None:
            by_queue = self._by_queue[cluster_id] = {}
            for run in self._ranked(cluster_id):
                by_queue.setdefault(run.queue_id, []).append(run)
        return by_queue.get(queue_id, [])

    def _ranked(self, cluster_id: int) -> list[LiveRun]:
        """The runs of a cluster that may be ended at all: of the queue that is most over its guarantee, of the lowest class, with
        the least work done, the youngest."""
        ranked = self._candidates.get(cluster_id)
        if ranked is None:
            view = self.view
            shares: dict[int, float] = {}
            for queue_id in {run.queue_id for run in view.runs_on.get(cluster_id, {}).values()} & view.queues.keys():
                shares[queue_id] = self.ledger.share(view.queues[queue_id])[0]
            old_enough = [
                run
                for run in view.runs_on.get(cluster_id, {}).values()
                if not run.is_stopping
                and run.queue_id in view.queues
                and self.now - run.began_at >= view.queues[run.queue_id].min_run_time
            ]
            ranked = self._candidates[cluster_id] = sorted(
                old_enough,
                key=lambda run: (
                    -shares[run.queue_id],
                    view.classes[run.class_id].value if run.class_id in view.classes else 0,
                    self._work(run),
                    -run.began_at,
                    run.job_id,
                ),
            )
        return ranked

    def _work(self, run: LiveRun) -> float:
        """Member-seconds that are lost with a run."""
        return sum(count for _, count in run.sizes) * max(0.0, self.now - run.began_at)

    def _cost(self, exchange: Exchange) -> tuple[float, ...]:
        values = [self.view.classes[victim.run.class_id].value for victim in exchange.victims]
        work = sum(self._work(victim.run) for victim in exchange.victims)
        return max(values), len(exchange.victims), work, exchange.cluster_id

    def _gone(self, cluster_id: int) -> set[int]:
        if cluster_id not in self.gone:
            runs = self.view.runs_on.get(cluster_id, {}).values()
            self.gone[cluster_id] = {run.job_id for run in runs if run.is_stopping}
        return self.gone[cluster_id]

    def _load(self, cluster_id: int) -> dict[str, dict[LoadKey, int]]:
        """What is on a cluster once everything that is stopping has gone."""
        load = dict(self.view.load.get(cluster_id, {}))
        add_members(load, self.extra.get(cluster_id, {}).items())
        runs = self.view.runs_on.get(cluster_id, {})
        for job_id in self._gone(cluster_id):
            add_members(load, load_of(runs[job_id]), -1)
        return load
