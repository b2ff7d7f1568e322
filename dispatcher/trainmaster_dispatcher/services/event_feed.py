"""The events of the jobs that match a filter, in one order, from a position on: for streams and pages.

One read a second serves all streams of a process that have received what was there: the newest events are kept in memory, and each
stream chooses its own. A stream that continues from an older position reads by itself until it has come to these.
"""

import asyncio
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.followers import LOOK_SECONDS
from trainmaster_dispatcher.services.job_actions import BulkFilter, to_filter
from trainmaster_dispatcher.services.job_queries import event_view
from trainmaster_dispatcher.store import event_feed as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.event_feed import FeedEvent, FeedPlace, JobChange
from trainmaster_dispatcher.store.keys import Caller

log = logging.getLogger(__name__)

OLDEST = "0"
"""The position before the oldest stored event."""
_LONGEST_POSITION = 120
_MOST_READ = 1000
"""The most events of one read of the store."""
_MOST_READS = 5
"""The most reads for one page: where few events match, a page has fewer than it may, and says that there are more."""
_MOST_KEPT = 5000
"""The most events in memory."""
_READS_AT_ONCE = 2
_SHORTEST_PAUSE = 0.2
_PAUSE_PER_STREAM = 0.0004
"""Seconds between two looks, and those that each stream adds: to wake it takes a part of a millisecond."""
_MOST_LOOKED_AT = 20_000
"""The most events of which the changed jobs are read at once, but for those of one transaction."""
_MOST_CHANGED_JOBS = 1000
_RESTORED = "the store was restored from a backup"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the feed of one store: what was read when the clock was ``at``, in seconds since the epoch. ``at`` 0: from the oldest
    stored event on.
    """

    store_epoch: int
    place: FeedPlace
    at: float

    def written(self) -> str:
        """Return the position as text for callers, for whom it has no parts."""
        text = ":".join(map(str, (self.store_epoch, *self.place, int(self.at))))
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "Position":
        """Return the position that a caller gives. Raises ProblemError BAD_CURSOR."""
        if text == OLDEST:
            return cls(0, FeedPlace(0), 0.0)
        try:
            if len(text) > _LONGEST_POSITION:
                raise ValueError(f"{len(text)} characters")
            padded = text.encode() + b"=" * (-len(text) % 4)
            epoch, xid, job, seq, at = map(int, urlsafe_b64decode(padded).decode().split(":"))
            if not (0 <= xid < 2**63 and 0 <= job < 2**63 and 0 <= seq < 2**31 and 0 <= epoch < 2**31 and at > 0):
                raise ValueError(text)
        except ValueError as error:
            raise ProblemError(Code.BAD_CURSOR, "the position is not one that this API gave out") from error
        return cls(epoch, FeedPlace(xid, job, seq), float(at))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events that a caller wants and may see. ``queues``: of jobs of these queues alone; None: of all."""

    caller: Caller
    wanted: BulkFilter
    kinds: frozenset[str] = frozenset()
    queues: frozenset[str] | None = None

    async def check(self, tx: Transaction) -> None:
        """Raise ProblemError for names of queues, classes, clusters and states that do not exist."""
        if self.wanted != BulkFilter():
            await to_filter(tx, self.caller, self.wanted)

    def matches(self, event: FeedEvent) -> bool:
        """Return whether the filter selects an event. States are those that the job enters by it, a cluster is that of the event."""
        wanted = self.wanted
        return (
            self.caller.may_use(event.queue)
            and (self.queues is None or event.queue in self.queues)
            and (wanted.queue is None or event.queue == wanted.queue or event.queue.startswith(wanted.queue + "/"))
            and (not self.kinds or event.kind in self.kinds)
            and (not wanted.states or not entered(event).isdisjoint(wanted.states))
            and (wanted.name is None or _is_named(event.name or "", wanted.name))
            and wanted.priority_class in (None, event.priority_class)
            and wanted.labels.items() <= (event.labels or {}).items()
            and wanted.group in (None, event.group)
            and wanted.cluster in (None, event.cluster)
            and wanted.submitted_by in (None, event.submitted_by)
            and (wanted.since is None or event.submitted_at >= wanted.since)
            and (wanted.until is None or event.submitted_at < wanted.until)
        )


def entered(event: FeedEvent) -> set[str]:
    """Return the states that a job enters by an event. The states of an event of a run are those of the run."""
    if event.kind.startswith("run."):
        state = (event.details or {}).get("job")
        return {str(state)} if state is not None else set()
    return set(event.states)


def _is_named(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def job_event_view(event: FeedEvent, position: Position) -> dict[str, Any]:
    """Return an event with the id and the queue of its job, and the position behind it. ``position``: one of the same store."""
    at = Position(position.store_epoch, event.place, event.at.timestamp()).written()
    return {"job": job_id(event.name or "", event.job_id), "queue": event.queue, **event_view(event), "position": at}


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Events beyond a position, and the position behind them. ``missed``: why events before them may be missing; else empty."""

    events: Sequence[FeedEvent]
    position: Position
    has_more: bool
    missed: str = ""


@dataclass(frozen=True, slots=True)
class ChangedPage:
    """Jobs that have changed beyond a position, and the position behind these changes. ``missed``: as of a ``FeedPage``."""

    jobs: Sequence[JobChange]
    position: Position
    has_more: bool
    missed: str = ""


@dataclass(slots=True)
class EventFeed:
    """The newest events of a process that has streams of them."""

    _stores: Stores
    _begin: Position | None = None
    """Where the kept events begin; None while there is no stream."""
    _end: Position | None = None
    _kept: deque[FeedEvent] = field(default_factory=deque)
    _waiting: set[asyncio.Event] = field(default_factory=set)
    _reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_READS_AT_ONCE))

    @property
    def end(self) -> Position | None:
        """The position behind the newest event in memory; None while nothing is kept."""
        return self._end

    @contextmanager
    def waiter(self) -> Iterator[asyncio.Event]:
        """Open an event that is set when there may be something new."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            yield changed
        finally:
            self._waiting.discard(changed)

    async def look(self) -> None:
        """Read the newest events once for all streams, if there are any. Raises ProblemError if the store does not answer."""
        if not self._waiting:
            self._forget()
            return
        if self._end is None:
            self._begin = self._end = await self.start()
            self.wake()
        has_more = True
        while has_more:
            found = await self._read(self._end)
            if found.missed:
                self._forget()
                self.wake()
                return
            self._keep(found)
            has_more = found.has_more

    def _keep(self, found: FeedPage) -> None:
        """Append what is new to the kept events."""
        self._kept.extend(found.events)
        self._end = found.position
        while len(self._kept) > _MOST_KEPT:
            first = self._kept.popleft()
            self._begin = Position(found.position.store_epoch, first.place, first.at.timestamp())
        if found.events:
            self.wake()

    def _forget(self) -> None:
        """Forget the kept events: each stream reads by itself."""
        self._begin = self._end = None
        self._kept.clear()

    @property
    def _pause(self) -> float:
        """The seconds until the next look: few streams cost little, and their readers wait for what they see."""
        return min(LOOK_SECONDS, _SHORTEST_PAUSE + len(self._waiting) * _PAUSE_PER_STREAM)

    async def watch(self) -> None:
        """Look now and then until cancelled. After a look that has failed, each stream looks by itself, and tells its reader."""
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self.look()
            except ProblemError as error:
                log.warning("new events could not be read: %s", error)
                self._forget()
                self.wake()
            except Exception:
                log.exception("new events could not be read")
                self._forget()
                self.wake()

    def wake(self) -> None:
        """Wake all streams: each looks by itself for what is new."""
        for changed in self._waiting:
            changed.set()

    async def start(self) -> Position:
        """Return the position behind all that has happened until now."""
        async with self._reads, self._stores.database.reading() as tx:
            return _now(await store.feed_end(tx))

    async def since(self, at: float) -> Position:
        """Return the position before all that has happened since a moment, in seconds since the epoch."""
        async with self._reads, self._stores.database.reading() as tx:
            end = await store.feed_end(tx)
            return Position(end.store_epoch, FeedPlace(await store.place_at(tx, at, end.xmin)), at)

    async def after(self, position: Position) -> FeedPage:
        """Return events beyond a position: from memory, if it has them. Raises ProblemError if the store does not answer."""
        begin, end = self._begin, self._end
        if begin is None or end is None or position.store_epoch != end.store_epoch:
            return await self._read(position)
        if not begin.place <= position.place <= end.place:
            return await self._read(position)
        return FeedPage([one for one in self._kept if one.place > position.place], end, has_more=False)

    async def changed_jobs(self, position: Position) -> ChangedPage:
        """Return the jobs that have changed beyond a position. Raises ProblemError if the store does not answer."""
        async with self._reads, self._stores.database.reading() as tx:
            end = await store.feed_end(tx)
            if missed := self._missed(position, end):
                return ChangedPage((), _now(end), has_more=False, missed=missed)
            found = await store.changed_jobs(tx, position.place, end.xmin, _MOST_LOOKED_AT, _MOST_CHANGED_JOBS)
        at = max((one.at for one in found.jobs), default=position.at) if found.has_more else end.now
        return ChangedPage(found.jobs, Position(end.store_epoch, found.place, at), found.has_more)

    async def page(self, position: Position, wanted: EventFilter, limit: int) -> FeedPage:
        """Return at most ``limit`` events that match, beyond a position."""
        chosen: list[FeedEvent] = []
        missed, has_more = "", True
        for _ in range(_MOST_READS):
            found = await self._read(position)
            missed = missed or found.missed
            for event in found.events:
                if wanted.matches(event):
                    chosen.append(event)
                if len(chosen) == limit:
                    place = Position(found.position.store_epoch, event.place, event.at.timestamp())
                    return FeedPage(chosen, place, has_more=True, missed=missed)
            position, has_more = found.position, found.has_more
            if not has_more:
                break
        return FeedPage(chosen, position, has_more, missed)

    def _missed(self, position: Position, end: store.FeedEnd) -> str:
        """Return why events beyond a position may be missing; empty where none are."""
        if position.at and (position.store_epoch != end.store_epoch or position.place.xid > end.xmin):
            return _RESTORED
        if position.at and end.now - position.at > self._stores.settings.keep_changes_seconds:
            return "submissions of that time are no longer stored"
        return ""

    async def _read(self, position: Position) -> FeedPage:
        async with self._reads, self._stores.database.reading() as tx:
            end = await store.feed_end(tx)
            missed = self._missed(position, end)
            if missed == _RESTORED:
                return FeedPage((), _now(end), has_more=False, missed=missed)
            found = await store.events_from(tx, position.place, end.xmin, _MOST_READ)
        at = found.events[-1].at.timestamp() if found.has_more and found.events else end.now
        if found.has_more and not found.events:
            at = position.at or end.now
        return FeedPage(found.events, Position(end.store_epoch, found.place, at), found.has_more, missed)


def _now(end: store.FeedEnd) -> Position:
    return Position(end.store_epoch, FeedPlace(end.xmin), end.now)
