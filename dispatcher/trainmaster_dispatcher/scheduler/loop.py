"""The loop of a scheduler process.

    absorb the feed ─▶ leader? ─ no ──▶ wait for a change or for the lead
          ▲               │ yes
          │               ▼
          └── wait ◀── timers ─▶ decide ─▶ apply (only under our token)

Standbys absorb the same feed, so that a take-over has only the tail left to read. Leadership is renewed by a task of its
own; the store is guarded by the token that each apply reads, never by this process's belief that it leads.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.reasons import Reason
from trainmaster_dispatcher.containment import Part, contained, note, run_for_ever
from trainmaster_dispatcher.domain.job_spans import DecisionTimes
from trainmaster_dispatcher.scheduler.gc_tuning import GcTuning
from trainmaster_dispatcher.scheduler.leader_api import LeadingEngine, serving
from trainmaster_dispatcher.scheduling.cycle.decide import decide
from trainmaster_dispatcher.scheduling.cycle.engine import Engine
from trainmaster_dispatcher.scheduling.queries.wait_forecaster import WaitForecaster
from trainmaster_dispatcher.scheduling.state.jobs import ClassKey
from trainmaster_dispatcher.scheduling.state.plan import Plan
from trainmaster_dispatcher.scheduling.state.state import SchedulerState
from trainmaster_dispatcher.services import (
    absences,
    agent_reports,
    apply_plan,
    bursting,
    deadlines,
    dependencies,
    element_jobs,
    gauges,
    group_ends,
    idle_gpus,
    recovery,
    sessions,
    workflow_steps,
)
from trainmaster_dispatcher.services.apply_plan import NotLeaderError
from trainmaster_dispatcher.services.cluster_admissions import ClusterAdmissions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.feed_follower import Applied, Follower
from trainmaster_dispatcher.services.job_traces import decisions_of
from trainmaster_dispatcher.services.reason_book import ReasonBook
from trainmaster_dispatcher.services.series_sampling import SeriesSampler
from trainmaster_dispatcher.store import scheduling
from trainmaster_dispatcher.store.database import process_name
from trainmaster_dispatcher.store.redis_channels import SCHEDULER, wait_set
from trainmaster_dispatcher.store.scheduling import LeaderAddress, StoreRestoredError
from trainmaster_dispatcher.store.schema import PARTITIONS_SQL

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_RECALL_SECONDS = 5.0
_IDLE_SECONDS = 60.0
_UNSETTLED_SECONDS = 0.003
_CHORES_SECONDS = 3600.0
_USAGE_SECONDS = 10.0
_MOST_PAUSE = 0.05
_STALE_SECONDS = 600.0
_MANY_JOBS = 20_000
_LONG_DECISION_SECONDS = 0.1
_REHEARSAL_SECONDS = 10.0
_REHEARSAL_PART = 20
"""A standby rehearses for at most one part in this many of its time."""


def _is_large(state: SchedulerState) -> bool:
    return len(state.jobs) + len(state.runs) >= _MANY_JOBS


class Decider:
    """Computes plans: in a thread where that may take long, so that the lead is renewed meanwhile; for a short decision, a thread
    costs more.

    A decision may take long with many jobs, and where the one before did: few jobs can have shapes that are slow to place.
    """

    def __init__(self) -> None:
        self._took = 0.0

    async def decide(self, engine: Engine, now: float) -> Plan:
        began = time.perf_counter()
        try:
            if _is_large(engine.state) or self._took > _LONG_DECISION_SECONDS:
                return await asyncio.to_thread(decide, engine, now)
            return decide(engine, now)
        finally:
            self._took = time.perf_counter() - began


def _held(engine: Engine) -> dict[tuple[str, ...], float]:
    held_back = engine.carried.held_back
    return {(Part.JOB_CLASS.value,): float(len(held_back))} if held_back else {}


class Scheduler:
    """One scheduler process. ``clock`` is monotonic, in seconds; ``boot_clock`` also counts the time the machine sleeps."""

    def __init__(
        self,
        stores: Stores,
        clock: Callable[[], float] = time.monotonic,
        boot_clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self.stores = stores
        self.clock = clock
        self.boot_clock = boot_clock
        self._absorbed_at = boot_clock()
        self._unsettled = _UNSETTLED_SECONDS / 2
        self.name = process_name("scheduler")
        self.token: int | None = None
        self.cycle = 0
        self._follower = Follower()
        self._admissions = ClusterAdmissions(stores)
        self._book = ReasonBook()
        self._next_timers = 0.0
        self._next_recalls = 0.0
        self._next_idle_looks = 0.0
        self._next_chores = 0.0
        self._next_usage = 0.0
        self._next_rehearsal = 0.0
        self._must_recover = False
        """Whether the store was restored and no recovery could be begun yet."""
        self._lead_changed = asyncio.Event()
        self._address: LeaderAddress | None = None
        self._gc_tuning = GcTuning()
        self._decider = Decider()
        self._forecaster = WaitForecaster()
        self._sampler = SeriesSampler()
        self._deciding = asyncio.Lock()
        """Held during a decision, which may run in a thread."""
        self._changing = asyncio.Lock()
        """Held while the state is changed."""
        self._loaded = asyncio.Event()
        """Set when the state is complete: before that this process cannot lead."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set; then release the lead at once. Raises CannotListenError."""
        async with serving(self.stores.settings, self.sight, self._deciding, self._changing) as self._address:
            await self._run(stop)

    def sight(self) -> LeadingEngine | None:
        """Return the engine and the time of the leader; None if this process does not lead."""
        follower = self._follower
        if self.token is None or follower.cursor is None:
            return None
        return LeadingEngine(follower.engine, self.clock() + follower.ahead, self._book.stored, self._forecaster)

    async def _run(self, stop: asyncio.Event) -> None:
        lead = asyncio.create_task(run_for_ever("leadership", self._keep_lead), name="leadership")
        measure = asyncio.create_task(run_for_ever("measuring", self._measure), name="measuring")
        sample = asyncio.create_task(run_for_ever("sampling", self._sample), name="sampling")
        try:
            with self.stores.channels.waiter(SCHEDULER) as woken:
                while not stop.is_set():
                    try:
                        await self._turn(woken, stop)
                    except Exception as error:  # noqa: BLE001 - noted: a scheduler that ends schedules no jobs
                        note(Part.CYCLE, "of the scheduler", error)
                        await asyncio.sleep(_LOOK_SECONDS)
        finally:
            lead.cancel()
            measure.cancel()
            sample.cancel()
            await asyncio.gather(lead, measure, sample, return_exceptions=True)
            if self.token is not None:
                with contextlib.suppress(ProblemError), contained(Part.CYCLE, "of the scheduler, leaving the lead"):
                    async with self.stores.database.transaction() as tx:
                        await scheduling.leave_lead(tx, self.token)

    async def _turn(self, woken: asyncio.Event, stop: asyncio.Event) -> None:
        """Do one step, and wait until the next one is due."""
        began = self.clock()
        again = await self._guarded_step()
        if again == 0:
            # Under load, cycles of few jobs cost as much as cycles of many: let some gather.
            await asyncio.sleep(min((self.clock() - began) / 2, _MOST_PAUSE))
            return
        await self._wait(woken, stop, again)

    async def _measure(self) -> None:
        gauges.watch(self.stores)
        metrics.leader.set_function(lambda: float(self.token is not None))
        await gauges.measure_for_ever(
            self.stores,
            lambda: self._follower.cursor,
            lambda: self.token is not None,
            lambda: self._book.waits(self._follower.state),
            lambda: bursting.budgets_used(self._follower.state, self._follower.now),
            lambda: self._follower.quarantine.counts() | _held(self._follower.engine),
        )

    async def _sample(self) -> None:
        def seen() -> tuple[Engine, float] | None:
            sight = self.sight()
            return None if sight is None else (sight.engine, sight.now)

        await self._sampler.run(self.stores, seen, self._deciding)

    async def _wait(self, woken: asyncio.Event, stop: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.create_task(wait_set(woken, seconds)), asyncio.create_task(stop.wait())]
        waits.append(asyncio.create_task(self._lead_changed.wait()))
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        metrics.wakeups.labels("wake" if waits[0] in done and waits[0].result() else "look").inc()
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._lead_changed.clear()

    async def _guarded_step(self) -> float:
        """Do one step; return how long to wait before the next one. An unreachable store is waited for."""
        try:
            if self._must_recover:
                await self._begin_recovery()
            return await self.step()
        except NotLeaderError:
            log.warning("another scheduler has taken the lead; following it as a standby")
            self._resign()
        except StoreRestoredError:
            # The state that showed it is given up, so it must not be forgotten where the store cannot be written now.
            self._must_recover = True
            self._resign()
            return 0.0
        except ProblemError as error:
            gauges.note_problem(error)
            log.warning("the cycle could not be done: %s", error)
        except Exception as error:
            # A scheduler that ends schedules no jobs: read everything again and retry, and log it as an error.
            log.exception("the cycle failed unexpectedly; the state is read anew")
            note(Part.CYCLE, "of the scheduler", error)
            self._follower, self._book = Follower(quarantine=self._follower.quarantine), ReasonBook()
            return _LOOK_SECONDS
        return 0.25

    async def _begin_recovery(self) -> None:
        """Enter a recovery after this process has seen that the store was restored. Until then it reads nothing and cannot lead."""
        if await recovery.begin_unless_on(self.stores):
            log.error("the store was restored; nothing starts before every agent has reported what it runs")
        self._must_recover = False

    def _resign(self) -> None:
        self.token = None
        self._loaded.clear()
        # Changes that this process believed to have applied may not be stored: read everything again.
        self._follower = Follower()
        self._book = ReasonBook()

    async def step(self) -> float:
        """Absorb the feed, and as the leader decide and apply once; return the seconds to wait before the next step."""
        # Local names are kept: if the lead is lost meanwhile, ``_resign`` replaces the attributes.
        follower, book = self._follower, self._book
        with metrics.absorb_seconds.time():
            async with self._changing:
                unsettled = await self._absorb(follower)
        self._gc_tuning.look(follower.state)
        token = self.token
        if token is None:
            await self._rehearse(follower)
            return self._pause(unsettled)
        if follower.state.past is None and follower.state.past_of_users is None:
            await self._count_usage(token, follower)
        with metrics.cycle_seconds.time():
            again = await self._decide_and_apply(token, follower, book, unsettled=unsettled)
        # After the decision: a new leader decides first.
        await self._timers(token, follower)
        return again

    async def _rehearse(self, follower: Follower) -> None:
        """Decide now and then without applying the plan, as a standby with a large state.

        The caches of the engine are then filled when this process has to lead: its first decision takes no longer than
        another one. The reservations equal the leader's, as both decide on the same state.
        """
        engine, began = follower.engine, self.clock()
        if began < self._next_rehearsal or not _is_large(engine.state):
            return
        async with self._deciding:
            plan = await self._decider.decide(engine, began + follower.ahead)
        engine.carry_over(plan)
        follower.note_faults(plan)
        ended = self.clock()
        self._next_rehearsal = ended + max(_REHEARSAL_SECONDS, _REHEARSAL_PART * (ended - began))

    def _pause(self, unsettled: bool) -> float:
        """Return how long to wait for a wake-up. Changes that cannot be read yet are polled soon, and less often the
        longer they take."""
        self._unsettled = min(2 * self._unsettled, _MOST_PAUSE) if unsettled else _UNSETTLED_SECONDS / 2
        return self._unsettled if unsettled else _LOOK_SECONDS

    async def _absorb(self, follower: Follower) -> bool:
        """Read the changes of the feed. After a long silence everything is read again: the feed is kept for at least an hour."""
        now = self.boot_clock()
        if follower.cursor is not None and now - self._absorbed_at > _STALE_SECONDS:
            log.warning("nothing was read for %d s; the state is read anew", now - self._absorbed_at)
            follower.begin_anew()
        unsettled = await follower.absorb(self.stores, self.clock())
        self._absorbed_at = now
        if follower is self._follower:
            self._loaded.set()
        return unsettled

    async def _decide_and_apply(self, token: int, follower: Follower, book: ReasonBook, *, unsettled: bool) -> float:
        began = self.clock()
        async with self._deciding:
            plan = await self._decider.decide(follower.engine, began + follower.ahead)
        follower.engine.carry_over(plan)
        follower.needs_nodes = plan.needs_nodes
        if plan.faults:
            async with self._changing:
                follower.note_faults(plan)
        metrics.decide_seconds.observe(self.clock() - began)
        changed = book.changed(plan, began)
        applied = None
        if plan.changes_anything or changed:
            applied = await self._apply(token, follower, book, plan, changed, began)
        with contained(Part.CYCLE, "of the scheduler, forecasting waits"):
            outcomes = self._forecaster.observe(follower.state, plan, began + follower.ahead)
            gauges.note_forecasts(follower.state, outcomes)
        if applied is None:
            return self._pause(unsettled)
        if not applied.is_nothing:
            return 0
        # If nothing was applied, the whole plan depended on changes that cannot be read yet.
        return _UNSETTLED_SECONDS if plan.changes_anything else self._pause(unsettled)

    async def _apply(
        self,
        token: int,
        follower: Follower,
        book: ReasonBook,
        plan: Plan,
        changed: dict[ClassKey, Reason],
        began: float,
    ) -> Applied:
        """Store a plan and the changed reasons, and put what was stored into the state."""
        self.cycle += 1
        decided = self.clock()
        waited = book.waited(follower.state, plan)
        factors = follower.price_factors(plan)
        applied = await apply_plan.apply_plan(self.stores, token, plan, changed, self.cycle, waited, factors)
        metrics.apply_seconds.observe(self.clock() - decided)
        gauges.note_applied(follower.state, plan, applied.jobs)
        self._sampler.note_starts(follower.state, plan, applied.jobs)
        async with self._changing:
            follower.note_applied(plan, applied)
            if applied.unwritten:
                follower.note_unwritten(applied.unwritten, applied, plan)
                book.leave_out(applied.unwritten, began)
        if self.stores.traces is not None and applied.traced:
            times = DecisionTimes(*(one + follower.ahead for one in (began, decided, self.clock())))
            names = {key: cluster.name for key, cluster in follower.state.clusters.items()}
            self.stores.traces.decided(decisions_of(plan.starts, applied.traced, names, waited, times))
        book.note(plan, changed, began, began + follower.ahead)
        log.info(
            "cycle %d: %s",
            self.cycle,
            plan.sentence,
            extra={
                "decide_seconds": round(decided - began, 6),
                "apply_seconds": round(self.clock() - decided, 6),
                "applied": len(applied.jobs),
            },
        )
        return applied

    async def _timers(self, token: int, follower: Follower) -> None:
        now = self.clock()
        if (
            now >= self._next_recalls
        ):  # not in one cycle with the others: a job that comes meanwhile would wait for all of them
            self._next_recalls = now + _RECALL_SECONDS
            with contained(Part.CHORE, "recall runs that no agent has spoken of"):
                await absences.recall_unheard(self.stores, token)
            with contained(Part.CHORE, "end a recovery"):
                await recovery.finish_when_reported(self.stores, token)
            with contained(Part.CHORE, "warn and end sessions"):
                await sessions.advance_due(self.stores, token)
        elif now >= self._next_idle_looks:
            self._next_idle_looks = now + _IDLE_SECONDS
            with contained(Part.CHORE, "find idle GPUs"):
                await idle_gpus.advance_all(self.stores, token)
        elif now >= self._next_timers:
            self._next_timers = now + min(_LOOK_SECONDS, self.stores.settings.lease_seconds / 4)
            with contained(Part.CHORE, "release holds"):
                await apply_plan.release_holds(self.stores, token)
            with contained(Part.CHORE, "give up overdue runs"):
                await agent_reports.give_up_overdue(self.stores, token)
            with contained(Part.CHORE, "note missed deadlines"):
                await deadlines.note_missed(self.stores, token, follower.state)
            with contained(Part.CHORE, "note deadlines at risk"):
                await deadlines.note_at_risk(self.stores, token, follower.state, now + follower.ahead)
        # Each time, as the end of a job wakes the scheduler, and the next job of a chain is to start at once.
        with contained(Part.CHORE, "deal with groups"):
            await group_ends.settle_due(self.stores, token)
        with contained(Part.CHORE, "release jobs that waited for others"):
            await dependencies.release_decided(self.stores, token)
        with contained(Part.CHORE, "submit jobs of workflows"):
            await workflow_steps.advance_due(self.stores, token, self._admissions.known)
        with contained(Part.CHORE, "submit jobs of arrays"):
            await element_jobs.advance_due(self.stores, token, self._admissions.known)
        if now >= self._next_usage:
            await self._count_usage(token, follower)
        if now >= self._next_chores:
            self._next_chores = now + _CHORES_SECONDS
            with contained(Part.CHORE, "keep house"):
                await apply_plan.keep_house(self.stores, token, PARTITIONS_SQL)

    async def _count_usage(self, token: int, follower: Follower) -> None:
        self._next_usage = self.clock() + _USAGE_SECONDS
        with contained(Part.CHORE, "look at groups again"):
            await group_ends.look_again(self.stores, token)
        with contained(Part.CHORE, "count past usage"):
            await apply_plan.count_usage(self.stores, token, follower)
        with contained(Part.CHORE, "warn of budgets"):
            await apply_plan.warn_of_budgets(self.stores, token, follower)

    async def _keep_lead(self) -> None:
        seconds = self.stores.settings.leader_seconds
        while True:
            if self.token is None:
                await self._loaded.wait()
            try:
                async with self.stores.database.transaction() as tx:
                    if self.token is not None and not await scheduling.keep_lead(tx, self.token, seconds):
                        log.warning("the lead was taken over")
                        self._resign()
                    elif self.token is None:
                        self.token = await scheduling.take_lead(tx, self.name, seconds, self._address)
                        if self.token is not None:
                            log.info("leading with token %d", self.token)
                            self._lead_changed.set()
            except ProblemError as error:
                log.warning("leadership could not be renewed: %s", error)
            except Exception:
                # Ending here would leave a process that never leads again.
                log.exception("leadership could not be renewed")
            await asyncio.sleep(seconds / 10 if self.token is None else seconds / 3)
