"""A simulated cluster: what it holds and how that changes, driven by ``now`` alone.

Whoever drives it says what is wanted (``start``, ``stop``, ``forget``, ``renew``), lets time pass (``advance``) and reads
``runs``, ``take_changed`` and ``next_event_at``. Events happen at their own moments, in order, however seldom it is driven; so one
large step ends where many small ones do. Times are seconds on any one clock.
"""

from heapq import heapify, heappop, heappush
from math import inf

from trainmaster.cluster_model.packing import PackingShortfall
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster.fake_cluster.node_ledger import Floor
from trainmaster.fake_cluster.node_life import Effect, NodeEvent, NodeLife
from trainmaster.fake_cluster.plan import FakeRefusal, FakeSpec, Plans
from trainmaster.fake_cluster.pools import SimulatedNode
from trainmaster.fake_cluster.run import SUCCEEDED, FakeEnd, FakeRun
from trainmaster.fake_cluster.run_outcome import Fate, overdue
from trainmaster.protocol.agent import CapacityReport, ResizeRun, StartRun, StopRun
from trainmaster.protocol.states import FailureCategory, RunState

# What the timer of a run is for; from _AGAIN on, a member of the role with that position starts again, from _RESTS on it has failed
# and waits for that.
_ENDS, _STARTED, _RETURN, _GONE, _LEFT, _REGROUPED, _AGAIN = range(7)
_RESTS = 1000
_ANY = -1
"""The token of a timer that counts whatever else has happened to its run, as long as it goes on."""

_LEAST_SWEPT = 4096
_WAITS = "it waits for room: "
_RUNNING, _PENDING, _STOPPING = RunState.RUNNING, RunState.PENDING, RunState.STOPPING


CAPABILITIES = (
    "checkpoint",
    "gang",
    "gangRestart",
    "gangStrict",
    "maxPerNode",
    "memberRestart",
    "resize",
    "successRole",
)


class FakeCluster:
    """The state machine of one simulated cluster."""

    def __init__(self, spec: FleetCluster, now: float, seed: int = 0) -> None:
        self.spec = spec
        self.now = now
        self.runs: dict[str, FakeRun] = {}
        """Every run held, by id."""
        self.floor = Floor(spec)
        self._seed = seed
        self._plans = Plans(spec.defaults, spec.datasets)
        self._fate = Fate(seed, spec.speed)
        self._timers: list[tuple[float, int, int, FakeRun | SimulatedNode, int]] = []
        self._sweep_at = _LEAST_SWEPT
        self._count = 0
        """Of timers ever set: those of one moment go off in the order they were set."""
        self._silent: list[tuple[float, int, FakeRun]] = []
        """Runs that end when the dispatcher is silent, by how long after its last word that begins."""
        self._lease: float | None = None
        self._waiting: dict[str, FakeRun] = {}
        self._blocked: dict[FakeSpec, str] = {}
        """Gangs that did not fit since anything was last given back, and why."""
        self._freed = False
        self._changed: dict[str, FakeRun] = {}
        self._life = NodeLife(self.floor, seed, self._set)
        self._life.begin(now)

    # What the driver reads

    def next_event_at(self) -> float:
        """When something happens next by itself; ``inf`` if nothing does."""
        at = self._timers[0][0] if self._timers else inf
        silent = self._silent_at()
        return silent if silent < at else at

    def take_changed(self) -> dict[str, FakeRun]:
        """Runs that changed since the last call. Forgotten ones are not among them."""
        changed, self._changed = self._changed, {}
        return changed

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    @property
    def minds_silence(self) -> bool:
        """Whether any run held would end if the dispatcher kept silent."""
        return self._silent_at() < inf

    def report(self) -> CapacityReport:
        """What the cluster has beside our own members."""
        return CapacityReport(
            groups=self.floor.report(),
            runtime="simulated",
            scheduler="simulated",
            capabilities=CAPABILITIES,
            dies_without_agent=True,
            pools=self.floor.pools_left(),
            datasets=self.spec.datasets,
        )

    # What the driver says

    def start(self, order: StartRun, now: float) -> None:
        """Hold a run. It gets places at once if its gang fits, else it waits; a run already held is left as it is."""
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
        """Stop a run: a higher generation takes the place of a lower one, a shorter grace takes effect at once."""
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
        """Bring a run to other sizes: members leave once they have ended, and come if there is room for all of them now."""
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
        """A run that waits for room waits for as much as it is to have now."""
        run.plan = plan.at(order.sizes)
        run.pins = order.pins
        self._say(run)
        self._freed = run.id in self._waiting

    def _shrink(self, run: FakeRun, plan: FakeSpec, sizes: dict[str, int], grace: float) -> None:
        """Members of the highest indexes leave, within ``grace``; their places are free once all of them have ended."""
        run.plan = smaller = plan.at(sizes)
        counts = {
            place: before.count - after.count
            for place, (before, after) in enumerate(zip(plan.roles, smaller.roles, strict=True))
            if before.count > after.count
        }
        spans = [
            self._fate.span(plan.roles[place].behaviour.stop_time, run.id, plan.roles[place].name, "leave")
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
            for node in self.floor.take_some(run, run.plan, counts):
                self._life.mind_idle(node, self.now)
            self._freed = bool(self._waiting)

    def _left(self, run: FakeRun) -> None:
        """Members that were told to leave have ended."""
        due = [counts for at, counts in run.leaving or () if at <= self.now]
        run.leaving = [entry for entry in run.leaving or () if entry[0] > self.now] or None
        if due and run.places is not None:
            for counts in due:
                self._let_go(run, counts)
            self._say(run)

    def _extend(self, run: FakeRun, order: ResizeRun) -> None:
        """Start more members if there is room for all of them, beside those that have not left yet."""
        plan = run.plan
        if plan is None:
            return
        counts = {role.name: order.sizes.get(role.name, role.count) - role.count for role in plan.roles}
        if not any(count > 0 for count in counts.values()):
            return
        more = plan.at({name: max(count, 0) for name, count in counts.items()})
        if self.floor.give_more(run, more, {}):
            run.plan = plan.at(order.sizes)

    def forget(self, run_id: str, now: float) -> None:
        """Drop a run that has ended."""
        self.advance(now)
        run = self.runs.get(run_id)
        if run is not None and run.state.is_terminal:
            del self.runs[run_id]
            self._changed.pop(run_id, None)

    def renew(self, asked_at: float, now: float) -> None:
        """The dispatcher answered what was asked at ``asked_at``: runs may go on without news from then on."""
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
        """A node is gone with all that is on it. Raises KeyError."""
        self.advance(now)
        self._take_effect(self._life.fail(self.floor.node(name)))
        self._settle()

    def recover_node(self, name: str, now: float) -> None:
        """A failed node is back, empty. Raises KeyError."""
        self.advance(now)
        self._take_effect(self._life.recover(self.floor.node(name)))
        self._settle()

    def advance(self, now: float) -> None:
        """Let everything happen that is due by ``now``. A clock that steps back is not followed."""
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
        """Drop timers of what is over, so that runs that ended early do not stay until they would have ended."""
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
        """When the next run must begin to stop for want of news. Ended ones are dropped on the way."""
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
        """Give a gang its places and start it; False if there is no room now."""
        if not self.floor.give(run, plan):
            return False
        run.message = ""
        delay = self._fate.start_time(run.id, plan) if plan.starts_late else 0.0
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
        outcome = self._fate.outcome(
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
        """All members are told to end; they start again together a while after the last of them has."""
        ends = []
        for role, end in zip(plan.roles, run.role_ends, strict=True):
            after = self._fate.span(role.behaviour.stop_time, run.id, role.name, "stop")
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
        never = self.floor.never(plan)
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
        """Start what waits and fits, once something was given back; one that does not fit lets others pass."""
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
        self._end(run, FakeEnd(RunState.RETURNED, f"it waited for room: {self._why(plan)}"))

    def _why(self, plan: FakeSpec) -> str:
        """What a gang that does not fit lacks; looked up once as long as nothing is given back."""
        if plan not in self._blocked:
            found = self.floor.search(plan)
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
        """Members are told to stop after ``wait`` at the latest, and are gone ``grace`` later. Whether all of them are gone."""
        plan = run.plan
        if plan is None:
            return True
        told_at = self.now + wait
        if told_at < run.stopping_at:
            run.stopping_at = told_at
            ends = []
            for place, (role, end) in enumerate(zip(plan.roles, run.role_ends, strict=True)):
                after = self._fate.span(role.behaviour.stop_time, run.id, role.name, "stop")
                is_gone = end <= self.now or (role.count == 1 and place in run.resting)
                ends.append(min(end, self.now if is_gone else told_at + after))
            run.role_gone = tuple(ends)
        latest = told_at + grace
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
            for node in self.floor.take_back(run, run.plan):
                self._life.mind_idle(node, self.now)
            self._freed = bool(self._waiting)
        elif self._waiting.pop(run.id, None) is not None:
            self._freed = bool(self._waiting)
        if not self._waiting:
            self._blocked.clear()

    # Silence of the dispatcher

    def _mind_silence(self, run: FakeRun, plan: FakeSpec, limit: float) -> None:
        """A tenth of the limit, at most a second, is kept back; the grace is at most half of the limit."""
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

    # Nodes that come and go

    def _take_effect(self, effect: Effect) -> None:
        for run in effect.moved:
            self._say(run)
        for run in effect.lost:
            if run.plan is not None and run.verdict is None:
                message = "a node failed that members were on"
                self._conclude(run, FakeEnd(RunState.FAILED, message, FailureCategory.NODE_LOST), run.plan.stop_grace)
        if effect.freed:
            self._freed = bool(self._waiting)
