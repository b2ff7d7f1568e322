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

from trainmaster.dispatcher.scheduling.fit import Fitted, Size
from trainmaster.dispatcher.scheduling.lines import Amounts, Line, product_of
from trainmaster.dispatcher.scheduling.quota import Ledger
from trainmaster.dispatcher.scheduling.room import Room, add_members, laid_out
from trainmaster.dispatcher.scheduling.trial import Cleared, Trial, Victim
from trainmaster.dispatcher.scheduling.view import ClassKey, LiveRun, LoadKey, Queue, View, load_of
from trainmaster.protocol.reasons import Token
from trainmaster.protocol.states import Preemption

PAUSE_SECONDS = 60.0
"""For how long after a cluster has lost nodes no other queue's run is ended there: nodes that come back would undo it."""


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


_LEAST = -(10**9)
"""Below the value of every class."""


class Guess(NamedTuple):
    """What an exchange might cost: the highest class that gives way, how many runs, their work, and on which cluster."""

    value: int
    runs: int
    work: float
    cluster_id: int


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
    _cleared: dict[int, Cleared] = field(default_factory=dict)
    _guesses: dict[int, dict[tuple[ClassKey, bool], Guess | None]] = field(default_factory=dict)
    _candidates: dict[int, list[LiveRun]] = field(default_factory=dict)
    _by_queue: dict[int, dict[int, list[LiveRun]]] = field(default_factory=dict)
    _leaving: dict[int, Amounts] | None = None
    _leaving_runs: dict[int, int] = field(default_factory=dict)
    _above: dict[int, Amounts] | None = None
    _lower: dict[tuple[int, int], bool] = field(default_factory=dict)
    _spent: dict[int, list[Line]] = field(default_factory=dict)

    def note_start(self, cluster_id: int, load: Mapping[LoadKey, int]) -> None:
        extra = self.extra.setdefault(cluster_id, {})
        for key, count in load.items():
            extra[key] = extra.get(key, 0) + count
        if cluster_id in self._cleared:
            self._cleared[cluster_id].move(load.items(), 1)
            self._guesses.pop(cluster_id, None)

    def may_help(self, key: ClassKey, queue: Queue, size: Size, *, for_quota: bool) -> bool:
        """Whether any run at all might be ended for this class: a quick look before the long one."""
        if self._has_lower(key, queue):
            return True
        if not self._may_be_owed(queue, size):
            return False
        if self.view.lines.any_narrowed or (for_quota and self._leaving_of()):
            return True  # it depends on the place, or on what is leaving
        above, used, nothing = self._leaving_above(), self.ledger.used, Amounts()
        return all(
            used(queue.id, line) - above.get(queue.id, nothing).get(line, 0) + amount
            <= self.ledger.guarantee(queue, line)
            for line, amount in size.charge.items()
            if line in self.ledger.tree.guaranteed
        )

    def is_helpless(self, key: ClassKey, queue: Queue, size: Size) -> bool:
        """Whether no run can be ended for a class that lacks room: what ``may_help`` says, remembered by queue as far as possible."""
        lower = self._lower.get((queue.id, key.class_id))
        if lower is None:
            lower = self._lower[queue.id, key.class_id] = self._has_lower(key, queue)
        if lower:
            return False
        spent = self._spent.get(queue.id)
        if spent is None:
            spent = self._spent[queue.id] = self._spent_lines(queue)
        charge = size.charge
        for line in spent:
            if line in charge:
                return True
        return not self.may_help(key, queue, size, for_quota=False)

    def _spent_lines(self, queue: Queue) -> list[Line]:
        """Lines on which the queue has used up what is guaranteed to it, if anything is; what starts only makes them more."""
        above: Amounts = self._leaving_above().get(queue.id, {})
        return [
            line
            for line in self.ledger.tree.guaranteed
            if self.ledger.used(queue.id, line) - above.get(line, 0) >= self.ledger.guarantee(queue, line)
        ]

    def _leaving_above(self) -> dict[int, Amounts]:
        """By queue: what it and those below it are charged for runs that are stopping."""
        leaving = self._leaving_of()
        if self._above is None:
            self._above = {}
            for queue_id, charge in leaving.items():
                for queue in self.view.ancestry(queue_id):
                    total = self._above.setdefault(queue.id, {})
                    for line, amount in charge.items():
                        total[line] = total.get(line, 0) + amount
        return self._above

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
        best: Exchange | None = None
        # Guarantees are judged as if all that is leaving had gone; limits hold even while it is still there.
        self._count_leaving(-1)
        try:
            # What is leaving already may be all that it takes.
            is_owed = self._may_be_owed(queue, sizes[-1]) or (for_quota and bool(self._leaving_of()))
            helpful = [one for one in clusters if is_owed or self._has_lower_on(one, key, queue)]
            guesses = (self._guess(one, key, queue, sizes[-1], for_quota=for_quota) for one in helpful)
            for guess in sorted(guess for guess in guesses if guess is not None):
                if best is not None and self._cost(best)[:2] <= guess[:2]:
                    break
                exchange = self._on(guess.cluster_id, key, queue, sizes[-1], for_quota=for_quota)
                if exchange is None:
                    continue
                if not exchange.victims:
                    return exchange if for_quota else None
                if not for_quota and self._exceeds(queue, exchange.charge):
                    continue
                if best is None or self._cost(exchange) < self._cost(best):
                    best = exchange
        finally:
            self._count_leaving(1)
        return best

    def _exceeds(self, queue: Queue, charge: Amounts) -> bool:
        """Whether a limit would be broken while all that is leaving is still there. What others keep is no limit of the queue."""
        self._count_leaving(1)
        obstacle = self.ledger.obstacle(queue.id, charge)
        self._count_leaving(-1)
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
            self._above = None
            self._spent.clear()

    def take(self, exchange: Exchange) -> None:
        """The exchange is decided: its victims are leaving."""
        self._leaving_of()
        gone = self._gone(exchange.cluster_id)
        self._guesses.pop(exchange.cluster_id, None)
        leaving = {victim.run.job_id for victim in exchange.victims}
        self._candidates[exchange.cluster_id] = [
            run for run in self._ranked(exchange.cluster_id) if run.job_id not in leaving
        ]
        self._by_queue.pop(exchange.cluster_id, None)
        for victim in exchange.victims:
            gone.add(victim.run.job_id)
            if exchange.cluster_id in self._cleared:
                self._cleared[exchange.cluster_id].move(victim.members, -1)
            self._leave(victim.run.queue_id, victim.charge)

    def leave(self, run: LiveRun) -> None:
        """A run ends for nobody's sake; what it holds counts as leaving."""
        self._leaving_of()
        self._gone(run.cluster_id).add(run.job_id)
        self._leave(run.queue_id, self.view.lines.charge(self.view.places_of(run)))

    def room(self, cluster_id: int) -> Room:
        """What is free for others on a cluster after exchanges: until the victims have gone, they and the takers are both there."""
        load = dict(self.view.load.get(cluster_id, {}))
        add_members(load, self.extra.get(cluster_id, {}).items())
        return laid_out(self.view, cluster_id, load)

    # One cluster

    def _trial(self, cluster_id: int, key: ClassKey, size: Size) -> Trial:
        cleared = self._cleared.get(cluster_id)
        if cleared is None:
            cleared = self._cleared[cluster_id] = Cleared(self.view, cluster_id, self._load(cluster_id))
        return Trial(cleared, self.ledger, key, size, self._need(cluster_id, size))

    def _need(self, cluster_id: int, size: Size) -> Amounts:
        if not self.view.lines.any_narrowed:
            return size.charge
        cluster = self.view.clusters[cluster_id]
        groups = cluster.report.groups if cluster.report is not None else ()
        out: Amounts = {}
        for name, amount in size.needs.items():
            products = {product_of(group) for group in groups if group.free.get(name)} if "/" in name else {""}
            if amount:
                out[Line(name, products.pop() if len(products) == 1 else "", cluster.kind.value)] = amount
        return self.view.lines.charge(out)

    def _guess(self, cluster_id: int, key: ClassKey, queue: Queue, size: Size, *, for_quota: bool) -> "Guess | None":
        """What an exchange on a cluster would cost if nodes did not matter, to look at the cheapest first; None if none helps."""
        known = self._guesses.setdefault(cluster_id, {})
        if (key, for_quota) not in known:
            known[key, for_quota] = self._guess_anew(cluster_id, key, queue, size)
        return known[key, for_quota]

    def _guess_anew(self, cluster_id: int, key: ClassKey, queue: Queue, size: Size) -> "Guess | None":
        trial = self._trial(cluster_id, key, size)
        taken: list[Victim] = []
        try:
            victims = self._victims(cluster_id, key, queue, trial.need)
            while not trial.is_near() or self.ledger.obstacle(queue.id, trial.need) is not None:
                victim = next(victims, None)
                if victim is None:
                    if not trial.has_total():
                        return None
                    break  # nodes that are laid out anew may have room where those as they stood seem not to
                taken.append(victim)
                trial.let_go(victim)
            values = (self.view.classes[victim.run.class_id].value for victim in taken)
            work = sum(self._work(victim.run) for victim in taken)
            return Guess(max(values, default=_LEAST), len(taken), work, cluster_id)
        finally:
            for victim in taken:
                trial.put_back(victim)

    def _on(self, cluster_id: int, key: ClassKey, queue: Queue, size: Size, *, for_quota: bool) -> Exchange | None:
        """The exchange on one cluster; without victims if the gang fits once what is stopping has gone."""
        trial = self._trial(cluster_id, key, size)
        victims = self._victims(cluster_id, key, queue, trial.need)
        taken: list[Victim] = []
        try:
            fitted = trial.fits(queue)
            look_at = 1
            while fitted is None:
                victim = next(victims, None)
                if victim is None:
                    fitted = trial.fits(queue) if taken else None  # what was passed over may have helped
                    if fitted is None:
                        return None
                    break
                taken.append(victim)
                trial.let_go(victim)
                if len(taken) >= look_at and trial.may_have_helped(victim) and trial.has_total():
                    fitted = trial.fits(queue)
                    look_at = 1 + len(taken) if size.total == 1 else 1 + len(taken) * 5 // 4
            fitted = self._spare(trial, taken, queue, fitted)
            charge = trial.charge_of(fitted)
            if self.ledger.obstacle(queue.id, charge) is not None:
                return None
            return Exchange(cluster_id, tuple(taken), size, fitted, charge, not for_quota)
        finally:
            for victim in taken:
                trial.put_back(victim)

    def _spare(self, trial: Trial, taken: list[Victim], queue: Queue, fitted: Fitted) -> Fitted:
        """Take from the list those that were not needed. Fewer victims never make an exchange unjust."""
        elsewhere = [one for one in taken if not any(key.group in fitted.placement for key, _ in one.members)]
        there = [one for one in taken if any(key.group in fitted.placement for key, _ in one.members)]
        spared: set[int] = set()
        for some in ([elsewhere] if elsewhere else []) + [[one] for one in reversed(there)]:
            for victim in some:
                trial.put_back(victim)
            again = trial.fits(queue) if trial.may_have_helped(some[0]) or some is elsewhere else None
            if again is None:
                for victim in some:
                    trial.let_go(victim)
            else:
                fitted = again
                spared.update(victim.run.job_id for victim in some)
        taken[:] = [victim for victim in taken if victim.run.job_id not in spared]
        return fitted

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
                    yield Victim(run, True, view.lines.charge(view.places_of(run)), tuple(load_of(run)))
            elif owner.preemption is Preemption.ANY_BORROWER:
                giver = view.ancestry(owner.id)
                common = {one.id for one in taker} & {one.id for one in giver}
                charge = view.lines.charge(view.places_of(run))
                if too_much <= common and all(
                    ledger.keeps_guarantee(one, charge) for one in giver if one.id not in common
                ):
                    yield Victim(run, False, charge, tuple(load_of(run)))

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
