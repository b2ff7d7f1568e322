"""The agent's loop with the dispatcher.

Two tasks. *Sync* reports the runs held and the capacity, on change and at least every third of the lease; its answer renews the
session lease. *Desired* is a long poll for the dispatcher's orders: start, stop, open streams. Both are level-triggered: what was not
acknowledged is sent again, and an order carried out already is carried out again without harm.

Two clocks. The lease counts on CLOCK_BOOTTIME from the time a sync was sent; after it has expired, nothing new is started. The
disconnect limit of each run is enforced by the runtime, which is notified of each answered sync.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from trainmaster import __version__
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.agent import (
    CapacityReport,
    DesiredAnswer,
    OutputAnswer,
    OutputPush,
    RunEnd,
    RunReport,
    StartRun,
    StopRun,
    StreamPush,
    SyncAnswer,
    SyncRequest,
    run_digest,
)
from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.ids import parse_run_id
from trainmaster.protocol.member_use import USE_SECONDS, UsePush
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster.tracing import recording
from trainmaster_agent.absences import Absences
from trainmaster_agent.arrays.server import ArrayServer
from trainmaster_agent.contact_log import ContactLog
from trainmaster_agent.containment import contain
from trainmaster_agent.log_tails import LogTails
from trainmaster_agent.member_streams import MemberStreams, StreamLine
from trainmaster_agent.output_collector import OutputCollector
from trainmaster_agent.output_times import OutputTimes
from trainmaster_agent.run_spans import RunSpans
from trainmaster_agent.runtime.port import RunStatus, Runtime, RuntimeAwayError
from trainmaster_agent.streams import LogStreams
from trainmaster_agent.use_reports import UseReports

log = logging.getLogger(__name__)

_FIRST_BACK_OFF, _MOST_BACK_OFF = 0.1, 5.0
_GATHER_SECONDS, _LONGEST_GATHER = 0.005, 0.1
"""Bounds of the seconds in which changes are gathered: as long as the last sync took, so that a slow dispatcher gets
fewer and larger ones."""
_NO_LEASE_SECONDS = 0.05
_SHORTEST_AGO = 1.0
"""Seconds below which the age of a run's end is reported as 0."""
_CAPACITY_SECONDS = 10.0
_STARTS_AT_ONCE = 32
"""Runs recorded at once: recording one may be a call over the network."""


class Dispatcher(Protocol):
    """The calls of the protocol, as the client package has them. Each raises ProblemError or UnreachableError."""

    async def sync(self, request: SyncRequest) -> SyncAnswer: ...

    async def desired(self, session: str, after: int, wait: float) -> DesiredAnswer: ...

    async def push(self, stream: str, body: StreamPush) -> None: ...

    async def store_output(self, run: str, body: OutputPush) -> OutputAnswer: ...

    async def report_use(self, body: UsePush) -> None: ...

    async def connect(self, stream: str, session: str) -> StreamLine: ...


class SupersededError(Exception):
    """A newer session of this cluster's agent has taken over; this process must create nothing any more."""


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """One renewal of the lease, in seconds. ``margin``: the time that was left; negative when the lease had expired."""

    margin: float
    lease: float
    round_trip: float


def boot_time() -> float:
    """Return seconds since the machine started, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Agent:
    """One agent session. ``run`` returns only when ``stop`` is set, and raises SupersededError.

    ``cluster``: the cluster's name in the agent's configuration, where it has one; the dispatcher compares it with its key's.
    ``use_seconds``: time from one report of what members use to the next; 0: there are none. ``arrays``: serves members that run
    elements of arrays, and those with files; None: the cluster takes neither.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        runtime: Runtime,
        *,
        cluster: str = "",
        use_seconds: int = USE_SECONDS,
        lease_hint: float = 15.0,
        clock: Callable[[], float] = boot_time,
        on_renewal: Callable[[LeaseRenewal], None] | None = None,
        arrays: ArrayServer | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._arrays = arrays
        self._runtime = runtime
        self._cluster = cluster
        self._clock = clock
        self._on_renewal = on_renewal
        self._session = uuid.uuid4().hex
        self._contact = ContactLog(clock)
        self._number = 0
        self._sync_took = 0.0
        self._lease_seconds = lease_hint
        self._lease_until = -1.0
        self._epoch = ""
        self._epoch_is_new = False
        self._acknowledged: dict[str, int] = {}
        """Sequence number that the dispatcher has stored, by run."""
        self._unknown_since: dict[str, float] = {}
        """Runs unknown to the dispatcher, with the time of its first such answer."""
        self._ended_at: dict[str, float] = {}
        """Ended runs that are not forgotten yet, with the time when the end was first seen."""
        self._digests: dict[str, int] = {}
        self._full = False
        self._is_known = False
        """Whether the dispatcher has answered a sync of this session."""
        self._capacity: CapacityReport | None = None
        self._send_capacity = True
        self._capacity_at = -1e9
        self._version = 0
        """Version of the desired state that has been carried out."""
        self._highest_version = 0
        """Highest version of the desired state received in the current epoch."""
        self._forgotten: set[str] = set()
        self._forgotten_before: set[str] = set()
        """Runs that were forgotten since the latest call for the desired state began, and between the one before and it."""
        self._kick = asyncio.Event()
        self._absences = Absences(runtime, self._kick.set)
        times = OutputTimes(time.time)
        self._streams = LogStreams(dispatcher, runtime, self._session, times)
        self._member_streams = MemberStreams(dispatcher, runtime, self._session)
        self._tails = LogTails(dispatcher, runtime, self._session, times)
        self._output = OutputCollector(dispatcher, runtime, self._session, times, self._forget)
        self._use = UseReports(dispatcher, runtime, self._session, use_seconds)
        self._spans = None if recording.recorder is None else RunSpans(recording.recorder, cluster)

    async def run(self, stop: asyncio.Event) -> None:
        """Hold the session until ``stop``. The runtime must be open; it stays open."""
        if self._arrays is not None:
            await self._arrays.start(self._session)
        tasks = [
            asyncio.create_task(self._for_ever(self._sync_once), name="sync"),
            asyncio.create_task(self._for_ever(self._desired_once), name="desired"),
            asyncio.create_task(stop.wait(), name="stop"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._streams.close()
            await self._member_streams.close()
            await self._tails.close()
            await self._output.close()
            await self._use.close()
            await self._absences.close()
            if self._spans is not None:
                self._spans.close()
            if self._arrays is not None:
                await self._arrays.close()

    def has_lease(self) -> bool:
        """Return whether this session may start runs now."""
        return self._clock() < self._lease_until

    async def _for_ever(self, once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat a call; wait after failures with growing pauses, because everything is sent again anyway."""
        pause = _FIRST_BACK_OFF
        while True:
            try:
                await once()
                pause = _FIRST_BACK_OFF
                continue
            except ProblemError as error:
                if error.code is Code.SESSION_SUPERSEDED:
                    raise SupersededError(error.detail) from error
                self._contact.failed(
                    f"the dispatcher refused a call of this agent, trying again: {error}{self._remedy(error)}"
                )
                wait = error.retry_after or pause
            except UnreachableError as error:
                self._contact.failed(f"the dispatcher does not answer, trying again: {error}")
                wait = pause
            except RuntimeAwayError as error:
                log.warning("%s", error)
                wait = pause
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain(once.__name__.strip("_"), error)
                wait = pause
            await asyncio.sleep(min(wait, self._lease_seconds / 3) * random.uniform(0.7, 1.3))
            pause = min(pause * 2, _MOST_BACK_OFF)

    def _remedy(self, error: ProblemError) -> str:
        """Return what to do about a refused key; empty for other errors."""
        if error.code not in (Code.UNAUTHENTICATED, Code.FORBIDDEN):
            return ""
        name = self._cluster or "CLUSTER"
        return f". Give this agent a key of its cluster; an admin or the owner makes one with: trainmaster clusters rotate {name}"

    # -- sync

    async def _sync_once(self) -> None:
        capacity = await self._capacity_news()
        await self._keep_tails()
        reports, full = self._reports(), self._full
        held = [status for status in self._runtime.held().values() if not status.state.is_terminal]
        self._number += 1
        request = SyncRequest(
            session=self._session,
            holder=self._runtime.holder,
            place=self._runtime.place,
            number=self._number,
            agent_version=__version__,
            cluster=self._cluster,
            runs=tuple(reports),
            full=full,
            held_count=len(held),
            held_digest=self._digest(status.run for status in held),
            capacity=capacity,
            epoch=self._epoch,
            desired_version=self._highest_version,
        )
        asked_at = self._clock()
        try:
            answer = await self._dispatcher.sync(request)
        except (UnreachableError, ProblemError):
            self._contact.lost()
            self._tails.unanswered()
            self._send_capacity = self._send_capacity or capacity is not None
            raise
        self._sync_took = self._clock() - asked_at
        self._is_known = True
        self._contact.answered(self._session)
        self._tails.answered()
        await self._take_answer(request, answer, asked_at)
        if answer.send_full or answer.send_capacity:
            return
        await self._wait_for_news()

    def _digest(self, runs: Iterable[str]) -> int:
        """Return the fingerprint of the runs held; each run's own is computed once."""
        known, self._digests = self._digests, {}
        total = 0
        for run in runs:
            one = known.get(run)
            if one is None:
                one = run_digest(parse_run_id(run))
            self._digests[run] = one
            total ^= one
        return total

    def _news(self) -> list[RunStatus]:
        """Return the statuses of held runs that the dispatcher does not know yet, or of all of them before a full sync."""
        return [
            status
            for status in self._runtime.held().values()
            if (self._full or self._acknowledged.get(status.run) != status.seq)
            and not self._output.is_settled(status.run)
        ]

    def _reports(self) -> list[RunReport]:
        """Return what a sync reports. A full one leaves nothing out: a run that it does not name counts as not held."""
        now = self._clock()
        news = [self._report(status, now) for status in self._news() if self._full or not self._awaits_tail(status)]
        held = self._runtime.held()
        return [*news, *(report for report in self._absences.reports() if report.run not in held)]

    def _report(self, status: RunStatus, now: float) -> RunReport:
        try:
            return _report(status, self._ended_ago(status, now))
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            words = contain("run-report", error, run=status.run)
            return RunReport(
                run=status.run,
                generation=status.generation,
                seq=status.seq,
                state=status.state,
                message=f"the agent cannot report more of it: {words}",
            )

    def _ended_ago(self, status: RunStatus, now: float) -> float:
        """Return how many seconds ago a run was first seen to have ended; an unreachable dispatcher learns of it late."""
        if not status.state.is_terminal:
            return 0.0
        ago = now - self._ended_at.setdefault(status.run, now)
        return round(ago, 3) if ago >= _SHORTEST_AGO else 0.0

    async def _capacity_news(self) -> CapacityReport | None:
        now = self._clock()
        if now - self._capacity_at < _CAPACITY_SECONDS and not self._send_capacity:
            return None
        try:
            fresh = await self._runtime.capacity()
            if self._arrays is not None and self._arrays.is_listening:
                more = [str(Capability.ARRAYS)]
                if self._arrays.takes_files:
                    more += [str(Capability.FILES), str(Capability.ARTIFACT_INPUTS)]
                more += [str(Capability.IMAGE_ENTRY_POINTS)] * self._arrays.reads_entry_points
                fresh = fresh.model_copy(update={"capabilities": (*fresh.capabilities, *more)})
        except RuntimeAwayError:
            raise
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            # The lease is renewed all the same: running members need it, and the reason reaches those who can fix it.
            closed = f"the agent cannot report its cluster's capacity: {contain('capacity', error)}"
            known = self._capacity or CapacityReport(groups=(), runtime="", scheduler="")
            fresh = known.model_copy(update={"closed": closed})
        self._capacity_at = now
        if fresh == self._capacity and not self._send_capacity:
            return None
        self._capacity = fresh
        return fresh

    def _awaits_tail(self, status: RunStatus) -> bool:
        return status.state.is_terminal and status.run not in self._absences and not self._tails.is_over(status.run)

    async def _keep_tails(self) -> None:
        """Send the last output of runs before their end is reported.

        A sync waits at most a sixth of the lease for them; a later sync reports the ends of late ones. Before the first answer to this
        session none is sent: the dispatcher refuses the output of a session that it does not know.
        """
        over = [status.run for status in self._news() if self._awaits_tail(status)]
        now = self._clock()
        for run in over:
            self._ended_at.setdefault(run, now)
        if over and not (self._is_known and await self._tails.keep(over, self._lease_seconds / 6, self._lease_seconds)):
            self._kick.set()

    async def _take_answer(self, request: SyncRequest, answer: SyncAnswer, asked_at: float) -> None:
        if answer.number != request.number:
            return
        if self._on_renewal is not None:
            now = self._clock()
            margin = self._lease_until - now if self._lease_until > 0 else answer.lease_seconds
            self._on_renewal(LeaseRenewal(margin, answer.lease_seconds, now - asked_at))
        if self._runtime.stores_output:
            self._output.set_limit(answer.output_bytes)
        self._use.set_taken(answer.takes_use)
        self._lease_seconds = answer.lease_seconds
        self._lease_until = asked_at + answer.lease_seconds
        try:
            await self._runtime.renew(asked_at)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("renew", error)
        if request.capacity is not None:
            self._send_capacity = False
        self._send_capacity = self._send_capacity or answer.send_capacity
        self._full = answer.send_full
        for report in request.runs:
            self._acknowledged[report.run] = report.seq
        for part in answer.refused:
            log.warning("the dispatcher could not read part of the report of %s: %s", part.part, part.message)
        held = self._runtime.held() if answer.settled else {}
        for run in answer.settled:
            self._absences.drop(run)
            self._unknown_since.pop(run, None)
            self._acknowledged.pop(run, None)
            self._tails.forget(run)
            self._ended_at.pop(run, None)
            if not self._output.keeps(run, held.get(run)):
                await self._forget(run)
        await self._meet_unknown(answer, asked_at)
        self._epoch = answer.epoch

    async def _forget(self, run: str) -> None:
        """Let the runtime forget an ended run; one that it cannot forget is reported, and settled, again."""
        self._forgotten.add(run)
        try:
            await self._runtime.forget(run)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("forget", error, run=run)

    async def _meet_unknown(self, answer: SyncAnswer, asked_at: float) -> None:
        """Stop runs that the dispatcher does not know, after two agreeing answers one lease apart; never on a new epoch.

        A new epoch means that the dispatcher's store was restored or replaced: it may have lost runs that should go on.
        """
        if self._epoch and answer.epoch != self._epoch:
            # A dispatcher that quarantines forgotten runs names as unknown only runs that have to stop.
            self._epoch_is_new = answer.quarantined is None
            log.error(
                "the dispatcher's store was replaced, or restored from a backup (epoch %s, was %s); runs that it has forgotten go on",
                answer.epoch,
                self._epoch,
            )
        held = self._runtime.held()
        for run in answer.unknown:
            self._acknowledged.pop(run, None)
            status = held.get(run)
            if status is None:
                self._absences.drop(run)
                continue
            if status.state.is_terminal:
                self._tails.forget(run)
                self._ended_at.pop(run, None)
                await self._forget(run)
                continue
            since = self._unknown_since.setdefault(run, asked_at)
            if not self._epoch_is_new and asked_at - since >= answer.lease_seconds:
                log.warning("stopping run %s, which the dispatcher does not know", run, extra={"run_id": run})
                order = StopRun(run=run, generation=status.generation + 1, cause=StopCause.UNKNOWN, grace_seconds=10)
                try:
                    await self._runtime.stop(order)
                except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                    contain("stop", error, run=run)

    async def _wait_for_news(self) -> None:
        """Wait until something has changed or a third of the lease has passed. Changes close together are gathered."""
        longest = self._lease_seconds / 3
        changed = asyncio.ensure_future(self._runtime.wait_changed(longest))
        kicked = asyncio.ensure_future(self._kick.wait())
        try:
            await asyncio.wait({changed, kicked}, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (changed, kicked):
                waiting.cancel()
            await asyncio.gather(changed, kicked, return_exceptions=True)
        self._kick.clear()
        if self._spans is not None:
            self._spans.look(self._runtime.held())
        await asyncio.sleep(min(_LONGEST_GATHER, max(_GATHER_SECONDS, self._sync_took)))

    # -- desired

    async def _desired_once(self) -> None:
        if not self.has_lease():
            # Nothing new is started without a lease; the sync task asks for one.
            await asyncio.sleep(_NO_LEASE_SECONDS)
            return
        self._forgotten_before, self._forgotten = self._forgotten, set()
        answer = await self._dispatcher.desired(self._session, self._version, self._lease_seconds / 3)
        failed = await self._start_all(answer.start)
        if answer.start and not self.has_lease():
            return
        held = self._runtime.held()
        for resize in answer.resize:
            if not self.has_lease():
                return
            if resize.run in held:
                failed += await self._tried("resize", resize.run, self._runtime.resize(resize))
        for stop in answer.stop:
            # For a run that is not held, too: the runtime may be about to hold it.
            stopped = await self._tried("stop", stop.run, self._runtime.stop(stop))
            failed += stopped
            if not stopped and stop.run not in held:
                self._absences.add(stop, self._installation)
        self._open_streams(answer)
        if failed:
            # Everything is requested again, and orders carried out already are repeated without harm.
            self._kick.set()
            raise failed[0]
        if answer.version == self._version and answer.start:
            # More orders than fit into one answer: the rest comes once these are reported as held.
            self._kick.set()
            await asyncio.sleep(_NO_LEASE_SECONDS)
        self._version = answer.version
        self._highest_version = max(self._highest_version, answer.version)
        if answer.stop or answer.resize:
            self._kick.set()

    def _open_streams(self, answer: DesiredAnswer) -> None:
        for stream in answer.streams:
            self._streams.open(stream)
        for order in answer.member_streams:
            self._member_streams.open(order)

    @property
    def _installation(self) -> str:
        """The dispatcher's installation, the first part of the epoch."""
        return self._epoch.partition(":")[0]

    async def _tried(self, place: str, run: str, order: Coroutine[Any, Any, None]) -> list[RuntimeAwayError]:
        """Carry out an order for one run; return what prevented it, so that the orders for others are carried out."""
        try:
            await order
        except RuntimeAwayError as error:
            return [error]
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            return [RuntimeAwayError(f"run {run}: {contain(place, error, run=run)}")]
        return []

    async def _start_all(self, runs: tuple[StartRun, ...]) -> list[RuntimeAwayError]:
        """Start runs batch by batch while there is a lease; return the errors of runs that could not be recorded now."""
        away: list[RuntimeAwayError] = []
        for begin in range(0, len(runs), _STARTS_AT_ONCE):
            if not self.has_lease():
                break
            batch = runs[begin : begin + _STARTS_AT_ONCE]
            failed = await self._start(batch)
            away += failed
            if len(failed) == len(batch):
                break  # the runtime's store is unreachable: the other runs would wait for it in vain
        return away

    async def _start(self, orders: tuple[StartRun, ...]) -> list[RuntimeAwayError]:
        """Start some runs together; return the errors of runs that could not be recorded now.

        A run that the runtime refuses, or does not hold after an unexpected error, has failed: it is reported as such.
        """
        runs = [run.model_copy(update={"installation": self._installation}) for run in orders]
        if len(runs) == 1:
            outcomes: list[BaseException | None] = [None]
            try:
                await self._start_once(runs[0])
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                outcomes = [error]
        else:
            outcomes = await asyncio.gather(*(self._start_once(run) for run in runs), return_exceptions=True)
        away = []
        for run, outcome in zip(runs, outcomes, strict=True):
            if isinstance(outcome, RuntimeAwayError):
                away.append(outcome)
            elif isinstance(outcome, Exception):
                self._failed_to_start(run, outcome)
            elif outcome is not None:
                raise outcome
        return away

    async def _start_once(self, run: StartRun) -> None:
        """Start a run unless it has ended and was forgotten already.

        The dispatcher may have read its orders before it stored the run's end, and the answer may come after that end was settled. The
        runtime knows nothing of the run any more, and would start it a second time, beside the job's next run.
        """
        if run.run in self._forgotten or run.run in self._forgotten_before:
            return
        if self._spans is not None and run.run not in self._runtime.held():
            self._spans.ordered(run)
        if self._arrays is not None and self._arrays.concerns(run.spec) and run.run not in self._runtime.held():
            run = await self._prepared(run, self._arrays)
        await self._runtime.start(run)

    async def _prepared(self, run: StartRun, arrays: ArrayServer) -> StartRun:
        """Return the run of an array, or one with files, as it is started. Raises RuntimeAwayError if that has to be tried again."""
        try:
            return await arrays.prepared(run)
        except (UnreachableError, ProblemError) as error:
            raise RuntimeAwayError(f"run {run.run}: its array or files cannot be read: {error}") from error

    def _failed_to_start(self, run: StartRun, error: Exception) -> None:
        words = contain("start", error, run=run.run)
        if run.run in self._runtime.held():
            return
        message = f"the agent cannot start this run: {words}"
        end = RunEnd(category=FailureCategory.CONFIG, message=message)
        self._absences.add_failed(run, end)
        self._kick.set()


def _report(status: RunStatus, ended_ago: float = 0.0) -> RunReport:
    members = status.members if status.state.is_terminal or status.state is RunState.RUNNING else ()
    return RunReport(
        run=status.run,
        generation=status.generation,
        seq=status.seq,
        state=status.state,
        message=status.message,
        end=status.end,
        placement=status.placement,
        members=members,
        sizes=status.sizes,
        ended_seconds_ago=ended_ago,
        object_status=None if status.object_status is None else dict(status.object_status),
        results=None if status.results is None else dict(status.results),
        results_error=status.results_error,
    )
