"""`FakeCluster`: the runs and nodes of a simulated cluster over time, driven by ``now`` alone.

Its driver gives orders (``start``, ``stop``, ``forget``, ``renew``), lets time pass (``advance``) and reads
``runs``, ``take_changed`` and ``next_event_at``. Events happen at their own times, in order, however rarely it is driven; so one
large step has the same result as many small ones. Times are seconds on any one clock.
"""

from heapq import heapify, heappop, heappush
from math import inf

from trainmaster.cluster_model.capabilities import WITHOUT_PODS, Capability
from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.fake_cluster.node_ledger import NodeLedger
from trainmaster.fake_cluster.node_life import Effect, NodeEvent, NodeLife
from trainmaster.fake_cluster.plan import FakeRefusal, FakeSpec, Plans
from trainmaster.fake_cluster.pools import SimulatedNode
from trainmaster.fake_cluster.run import SUCCEEDED, FakeEnd, FakeRun
from trainmaster.fake_cluster.run_outcome import OutcomeSampler, overdue
from trainmaster.protocol.agent import CapacityReport, ResizeRun, StartRun, StopRun
from trainmaster.protocol.states import FailureCategory, RunState

# Purposes of a run's timer; from _AGAIN on, a member of the role with that position restarts, from _RESTS on it has failed
# and waits to restart.
_ENDS, _STARTED, _RETURN, _GONE, _LEFT, _REGROUPED, _AGAIN = range(7)
_RESTS = 1000
_ANY = -1
"""Token of a timer that stays valid for as long as its run goes on."""

_LEAST_SWEPT = 4096
_WAITS = "it waits for free capacity: "
_RUNNING, _PENDING, _STOPPING = RunState.RUNNING, RunState.PENDING, RunState.STOPPING


class FakeCluster:
    """The state machine of one simulated cluster."""

    def __init__(self, spec: FleetCluster, now: float, seed: int = 0) -> None:
        self.spec = spec
        self.now = now
        self.runs: dict[str, FakeRun] = {}
        """Every run held, by id."""
        self.ledger = NodeLedger(spec)
        self._seed = seed
        self._plans = Plans(spec.defaults, spec.datasets)
        self._sampler = OutcomeSampler(seed, spec.speed)
        self._timers: list[tuple[float, int, int, FakeRun | SimulatedNode, int]] = []
        self._sweep_at = _LEAST_SWEPT
        self._count = 0
        """Number of timers ever set: timers of the same time fire in the order they were set."""
        self._silent: list[tuple[float, int, FakeRun]] = []
        """Runs that end when the dispatcher is silent, by the seconds of silence after which they start to stop."""
        self._lease: float | None = None
        self._waiting: dict[str, FakeRun] = {}
        self._blocked: dict[FakeSpec, str] = {}
        """Gangs that did not fit since capacity was last freed, and why."""
        self._freed = False
        self._changed: dict[str, FakeRun] = {}
        self._life = NodeLife(self.ledger, seed, self._set)
        self._life.begin(now)

    # Read by the driver

    def next_event_at(self) -> float:
        """Return the time of the next event; ``inf`` if there is none."""
        at = self._timers[0][0] if self._timers else inf
        silent = self._silent_at()
        return silent if silent < at else at

    def take_changed(self) -> dict[str, FakeRun]:
        """Return the runs that changed since the last call, without forgotten ones."""
        changed, self._changed = self._changed, {}
        return changed

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    @property
    def minds_silence(self) -> bool:
        """Return whether any held run would end if the dispatcher stayed silent."""
        return self._silent_at() < inf

    def report(self) -> CapacityReport:
        """Return the cluster's capacity without our own members."""
        return CapacityReport(
            groups=self.ledger.report(),
            runtime="simulated",
            scheduler="simulated",
            capabilities=tuple(sorted((*WITHOUT_PODS, Capability.EXCLUSIVE_NODES, Capability.MOUNTS))),
            dies_without_agent=True,
            pools=self.ledger.pools_left(),
            datasets=self.spec.datasets,
        )

    # Called by the driver

    def start(self, order: StartRun, now: float) -> None:
        """Hold a run. It starts at once if its gang fits, else it waits; a run already held is left as it is."""
        self.advance(now)
        if order.run in self.runs:
            return
        plan = self._plans.get(order.spec, order.sizes)
        if isinstance(plan, FakeRefusal):
            run = self.runs[order.run] = FakeRun(order, None, self.now)
            self._end(run, FakeEnd(plan.state, plan.message, plan.category))
            return
        run = self.runs[order.run] = FakeRun(order, plan, self.now)
        self._changed[run.id] = run
        if run.disconnect is not None:
            self._mind_silence(run, plan, run.disconnect)
        if plan in self._blocked or not self._place(run, plan):
            self._wait(run, plan)
        if self._freed:
            self._settle()

    def stop(self, order: StopRun, now: float) -> None:
        """Stop a run: a higher generation replaces a lower one, a shorter grace takes effect at once."""
        self.advance(now)
        run = self.runs.get(order.run)
        if run is None or run.state.is_terminal or order.generation < run.generation:
            return
        known = run.stop
        if known is not None and (order.generation, -order.longest) <= (known.generation, -known.longest):
            return
        run.stop = order
        run.generation = order.generation
        message = f"stopped: {order.cause}" if run.places else f"stopped before it started: {order.cause}"
        if run.verdict is None or run.verdict.by_stop:
            verdict = FakeEnd(order.cause.ends_as, message, by_stop=True)
            self._conclude(run, verdict, order.grace_seconds, order.checkpoint_seconds)
        elif not self._hasten(run, order.grace_seconds, order.checkpoint_seconds):
            self._say(run)
        self._settle()

    def resize(self, order: ResizeRun, now: float) -> None:
        """Resize a run: members leave once they have ended, and new ones start if all of them fit now."""
        self.advance(now)
        run = self.runs.get(order.run)
        if run is None or run.plan is None or run.verdict is not None or order.generation <= run.generation:
            return
        run.generation = order.generation
        run.resized = True
        plan = run.plan
        fewer = {role.name: min(role.count, order.sizes.get(role.name, role.count)) for role in plan.roles}
        if run.places is None:
            self._waits_otherwise(run, plan, order)
        else:
            if any(role.count > fewer[role.name] for role in plan.roles):
                self._shrink(run, plan, fewer, order.grace_seconds)
            self._extend(run, order)
            self._say(run)
        self._settle()

    def _waits_otherwise(self, run: FakeRun, plan: FakeSpec, order: ResizeRun) -> None:
        """Make a waiting run wait for its new size."""
        run.plan = plan.at(order.sizes)
        run.pins = order.pins
        self._say(run)
        self._freed = run.id in self._waiting

    def _shrink(self, run: FakeRun, plan: FakeSpec, sizes: dict[str, int], grace: float) -> None:
        """Let members with the highest indexes leave within ``grace``; their capacity is free once all have ended."""
        run.plan = smaller = plan.at(sizes)
        counts = {
            place: before.count - after.count
            for place, (before, after) in enumerate(zip(plan.roles, smaller.roles, strict=True))
            if before.count > after.count
        }
        spans = [
            self._sampler.span(plan.roles[place].behaviour.stop_time, run.id, plan.roles[place].name, "leave")
            for place in counts
        ]
        takes = min(grace, max(spans, default=0.0)) if run.started_at < inf else 0.0
        if takes <= 0:
            self._let_go(run, counts)
            return
        run.leaving = [*(run.leaving or ()), (self.now + takes, counts)]
        self._set(self.now + takes, _LEFT, run, _ANY)

    def _let_go(self, run: FakeRun, counts: dict[int, int]) -> None:
        if run.plan is not None and run.places is not None:
            for node in self.ledger.take_some(run, run.plan, counts):
                self._life.mind_idle(node, self.now)
            self._freed = bool(self._waiting)

    def _left(self, run: FakeRun) -> None:
        """Free the capacity of members that have ended after they were ordered to leave."""
        due = [counts for at, counts in run.leaving or () if at <= self.now]
        run.leaving = [entry for entry in run.leaving or () if entry[0] > self.now] or None
        if due and run.places is not None:
            for counts in due:
                self._let_go(run, counts)
            self._say(run)

    def _extend(self, run: FakeRun, order: ResizeRun) -> None:
        """Start more members if all of them fit beside those that have not left yet."""
        plan = run.plan
        if plan is None:
            return
        counts = {role.name: order.sizes.get(role.name, role.count) - role.count for role in plan.roles}
        if not any(count > 0 for count in counts.values()):
            return
        more = plan.at({name: max(count, 0) for name, count in counts.items()})
        if self.ledger.give_more(run, more, {}):
            run.plan = plan.at(order.sizes)

    def forget(self, run_id: str, now: float) -> None:
        """Drop a run that has ended."""
        self.advance(now)
        run = self.runs.get(run_id)
        if run is not None and run.state.is_terminal:
            del self.runs[run_id]
            self._changed.pop(run_id, None)

    def renew(self, asked_at: float, now: float) -> None:
        """Note that the dispatcher answered a sync sent at ``asked_at``: disconnect limits count from then."""
        self.advance(now)
        if self._lease is None or asked_at > self._lease:
            self._lease = asked_at

    def finish(self, run_id: str, now: float) -> None:
        """Let the members of a run succeed now, or as soon as they run. For drivers that know the end from elsewhere."""
        self.advance(now)
        run = self.runs.get(run_id)
        if run is None or run.verdict is not None or run.released:
            return
        run.released = True
        if run.state is _RUNNING:
            run.role_ends = tuple(min(end, self.now) for end in run.role_ends)
            run.paused = False
            self._end(run, SUCCEEDED)
        self._settle()

    def fail_node(self, name: str, now: float) -> None:
        """Fail a node with everything on it. Raises KeyError."""
        self.advance(now)
        self._take_effect(self._life.fail(self.ledger.node(name)))
        self._settle()

    def recover_node(self, name: str, now: float) -> None:
        """Recover a failed node; it is empty. Raises KeyError."""
        self.advance(now)
        self._take_effect(self._life.recover(self.ledger.node(name)))
        self._settle()

    def advance(self, now: float) -> None:
        """Handle every event due by ``now``. A clock that steps back is ignored."""
        while True:
            at = self.next_event_at()
            if at > now:
                break
            if at > self.now:
                self.now = at
            while self._timers and self._timers[0][0] <= self.now:
                _, _, what, subject, token = heappop(self._timers)
                self._go_off(what, subject, token)
            while self._silent_at() <= self.now:
                self._lose(heappop(self._silent)[2])
            self._settle()
        if now > self.now:
            self.now = now

    # Timers

    def _set(self, at: float, what: int, subject: FakeRun | SimulatedNode, token: int = 0) -> None:
        if at < inf:
            self._count += 1
            heappush(self._timers, (at, self._count, what, subject, token))
            if len(self._timers) > self._sweep_at:
                self._sweep()

    def _sweep(self) -> None:
        """Drop timers of ended runs, so that these do not stay in memory until their timers would fire."""
        self._timers = [
            timer
            for timer in self._timers
            if isinstance(timer[3], SimulatedNode)
            or timer[3].token == timer[4]
            or (timer[4] == _ANY and not timer[3].state.is_terminal)
        ]
        self._silent = [entry for entry in self._silent if not entry[2].state.is_terminal]
        heapify(self._timers)
        heapify(self._silent)
        self._sweep_at = 2 * (len(self._timers) + len(self._silent)) + _LEAST_SWEPT

    def _go_off(self, what: int, subject: FakeRun | SimulatedNode, token: int) -> None:
        if isinstance(subject, SimulatedNode):
            self._take_effect(self._life.happen(NodeEvent(what), subject, token, self.now))
        elif what == _LEFT:
            if not subject.state.is_terminal:
                self._left(subject)
        elif subject.token == token:
            if what == _ENDS:
                self._come_to_end(subject)
            elif what == _STARTED:
                self._run(subject)
            elif what == _GONE:
                self._end(subject, subject.verdict or SUCCEEDED)
            elif what == _RETURN:
                self._return(subject)
            elif what == _REGROUPED:
                self._run(subject)
            elif what >= _RESTS:
                subject.resting.add(what - _RESTS)
                self._say(subject)
            else:
                self._start_again(subject, what - _AGAIN)

    def _silent_at(self) -> float:
        """Return when the next run must begin to stop because of silence. Drops ended runs on the way."""
        silent = self._silent
        while silent:
            offset, _, run = silent[0]
            if not run.state.is_terminal:
                return offset + (self._lease if self._lease is not None else inf)
            heappop(silent)
        return inf

    # The life of a run

    def _say(self, run: FakeRun) -> None:
        run.seq += 1
        self._changed[run.id] = run

    def _place(self, run: FakeRun, plan: FakeSpec) -> bool:
        """Place a gang and start it; return False if it does not fit now."""
        if not self.ledger.give(run, plan):
            return False
        run.message = ""
        delay = self._sampler.start_time(run.id, plan) if plan.starts_late else 0.0
        if delay > 0:
            run.state = _PENDING
            self._say(run)
            run.token += 1
            self._set(self.now + delay, _STARTED, run, run.token)
        else:
            self._run(run)
        return True

    def _run(self, run: FakeRun) -> None:
        plan = run.plan
        if plan is None:
            return
        if run.paused:
            run.paused = False
            run.regroups += 1
        else:
            run.started_at = self.now
        outcome = self._sampler.outcome(
            run.id,
            run.attempt,
            plan,
            self.now,
            deadline=plan.deadline(run.started_at),
            regroups=run.regroups,
            restarted=run.restarts or {},
        )
        run.state = _RUNNING
        run.role_ends = outcome.role_ends
        run.outcome = None if outcome.regroups is not None else outcome.verdict
        run.pause = outcome.regroups or 0.0
        self._say(run)
        run.token += 1
        if run.released:
            run.role_ends = (self.now,) * len(plan.roles)
            self._end(run, SUCCEEDED)
            return
        self._set(outcome.at, _ENDS, run, run.token)
        for what, moments in ((_RESTS, outcome.rests), (_AGAIN, outcome.restarts)):
            for at, role in moments:
                if at < outcome.at:
                    self._set(at, what + role, run, run.token)

    def _start_again(self, run: FakeRun, role: int) -> None:
        if run.restarts is None:
            run.restarts = {}
        run.restarts[role] = run.restarts.get(role, 0) + 1
        run.resting.discard(role)
        self._say(run)

    def _come_to_end(self, run: FakeRun) -> None:
        plan, verdict = run.plan, run.outcome
        if plan is None:
            return
        if verdict is None:
            self._regroup(run, plan)
        elif verdict.state is RunState.SUCCEEDED and max(run.role_ends) <= self.now:
            self._end(run, verdict)
        else:
            self._conclude(run, verdict, plan.stop_grace)

    def _regroup(self, run: FakeRun, plan: FakeSpec) -> None:
        """End all members; they restart together some time after the last of them has ended."""
        ends = []
        for role, end in zip(plan.roles, run.role_ends, strict=True):
            after = self._sampler.span(role.behaviour.stop_time, run.id, role.name, "stop")
            ends.append(min(end, self.now + min(after, plan.stop_grace)))
        run.role_ends = tuple(ends)
        run.paused = True
        run.resting.clear()
        self._say(run)
        run.token += 1
        again_at, deadline = max(self.now, *ends) + run.pause, plan.deadline(run.started_at)
        if deadline <= again_at:
            run.outcome = overdue(plan)
            self._set(deadline, _ENDS, run, run.token)
        else:
            self._set(again_at, _REGROUPED, run, run.token)

    def _wait(self, run: FakeRun, plan: FakeSpec) -> None:
        never = self.ledger.never(plan)
        if never:
            self._end(run, FakeEnd(RunState.RETURNED, f"it can never fit here: {never}"))
            return
        run.state = _PENDING
        run.message = _WAITS + self._why(plan)
        self._say(run)
        self._waiting[run.id] = run
        run.token += 1
        self._set(run.return_at, _RETURN, run, run.token)
        self._life.order(plan, self.now)

    def _settle(self) -> None:
        """Start waiting gangs that fit, once capacity was freed; one that does not fit lets others pass."""
        while self._freed:
            self._freed = False
            self._blocked.clear()
            for run in tuple(self._waiting.values()):
                plan = run.plan
                if plan is None or plan in self._blocked:
                    continue
                if self._place(run, plan):
                    self._waiting.pop(run.id, None)
                else:
                    self._blocked[plan] = run.message.removeprefix(_WAITS)
                    if not self._life.is_coming:
                        self._life.order(plan, self.now)

    def _return(self, run: FakeRun) -> None:
        plan = run.plan
        if plan is None:
            return
        message = f"it found no free capacity within the placement time-out: {self._why(plan)}"
        self._end(run, FakeEnd(RunState.RETURNED, message, lacks_room=True))

    def _why(self, plan: FakeSpec) -> str:
        """Return what a gang that does not fit lacks; cached until capacity is freed."""
        if plan not in self._blocked:
            found = self.ledger.search(plan)
            self._blocked[plan] = found.sentence if isinstance(found, PackingShortfall) else "no packing was found"
        return self._blocked[plan]

    def _conclude(self, run: FakeRun, verdict: FakeEnd, grace: float, wait: float = 0.0) -> None:
        """Decide how a run ends. Its members save their state for ``wait`` and end within ``grace`` after that."""
        run.verdict = verdict
        if run.places is None or run.started_at == inf:
            self._end(run, verdict)
        elif not self._hasten(run, grace, wait):
            run.state, run.message = _STOPPING, verdict.message
            self._say(run)

    def _hasten(self, run: FakeRun, grace: float, wait: float = 0.0) -> bool:
        """Stop members after ``wait`` at the latest, and end them ``grace`` later; return whether all have ended already."""
        plan = run.plan
        if plan is None:
            return True
        ordered_at = self.now + wait
        if ordered_at < run.stopping_at:
            run.stopping_at = ordered_at
            ends = []
            for place, (role, end) in enumerate(zip(plan.roles, run.role_ends, strict=True)):
                after = self._sampler.span(role.behaviour.stop_time, run.id, role.name, "stop")
                is_gone = end <= self.now or (role.count == 1 and place in run.resting)
                ends.append(min(end, self.now if is_gone else ordered_at + after))
            run.role_gone = tuple(ends)
        latest = ordered_at + grace
        run.role_gone = tuple(min(end, latest) if end > self.now else end for end in run.role_gone)
        gone_at = max(run.role_gone)
        run.token += 1
        if gone_at <= self.now:
            self._end(run, run.verdict or SUCCEEDED)
            return True
        run.gone_at = gone_at
        self._set(gone_at, _GONE, run, run.token)
        return False

    def _end(self, run: FakeRun, verdict: FakeEnd) -> None:
        run.verdict = verdict
        run.state, run.message = verdict.state, verdict.message
        run.ended_at = self.now
        run.token += 1
        run.pins = {}
        self._say(run)
        if run.places is not None and run.plan is not None:
            for node in self.ledger.take_back(run, run.plan):
                self._life.mind_idle(node, self.now)
            self._freed = bool(self._waiting)
        elif self._waiting.pop(run.id, None) is not None:
            self._freed = bool(self._waiting)
        if not self._waiting:
            self._blocked.clear()

    # Silence of the dispatcher

    def _mind_silence(self, run: FakeRun, plan: FakeSpec, limit: float) -> None:
        """Stop a run in time before its disconnect limit; a tenth, at most a second, is a reserve, half is the most grace."""
        if self._lease is None:
            self._lease = self.now
        self._count += 1
        kill_after = limit - min(1.0, limit / 10)
        heappush(self._silent, (kill_after - min(plan.stop_grace, limit / 2), self._count, run))
        if len(self._silent) > self._sweep_at:
            self._sweep()

    def _lose(self, run: FakeRun) -> None:
        if run.plan is None or run.disconnect is None:
            return
        limit = run.disconnect
        message = (
            f"no contact with the dispatcher: after {limit:g} s the job may start elsewhere, so it was stopped here"
        )
        kill_at = (self._lease or 0.0) + limit - min(1.0, limit / 10)
        grace = max(0.0, min(run.plan.stop_grace, limit / 2, kill_at - self.now))
        if run.verdict is None:
            self._conclude(run, FakeEnd(RunState.LOST, message), grace)
        else:
            self._hasten(run, grace)

    # Node failures

    def _take_effect(self, effect: Effect) -> None:
        for run in effect.moved:
            self._say(run)
        for run in effect.lost:
            if run.plan is not None and run.verdict is None:
                message = "a node failed that members were on"
                self._conclude(run, FakeEnd(RunState.FAILED, message, FailureCategory.NODE_LOST), run.plan.stop_grace)
        if effect.freed:
            self._freed = bool(self._waiting)
