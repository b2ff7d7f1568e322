"""Changes for pages that stay open: one read of the feed a second, and one text for all pages that may see the same.

A page is sent what a few seconds have changed, each job once. Nothing waits for a slow reader: the newest texts are kept, and who has
not received the ones before them begins again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from trainmaster.protocol.base import format_time
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.declared_kinds import KINDS
from trainmaster_dispatcher.services.event_feed import EventFeed, Position
from trainmaster_dispatcher.services.shared_reads import visibility_of
from trainmaster_dispatcher.store import page_changes as store
from trainmaster_dispatcher.store.feed_kinds import FeedKind
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.page_changes import FeedObject, JobLine, KnownCluster

log = logging.getLogger(__name__)

MOST_JOBS = 500
"""The most jobs of one text."""
_LOOK_SECONDS = 1.0
_MOST_READS = 5
"""The most reads of changed jobs at a look: of a larger flood, pages are told that there is more."""
_MOST_TEXTS = 8
"""The texts that are kept for readers that have not received them yet."""
_EARLY = 0.1
"""Seconds by which a text may be early: looks are not exactly a second apart."""
_OF_CLUSTERS = frozenset({FeedKind.CLUSTER, FeedKind.CONTACT, FeedKind.CAPACITY})
_KINDS = {one.table.feed: one.kind.command for one in KINDS}


class SentText(NamedTuple):
    """Bytes for all pages of a group. ``number``: one more than that of the text before."""

    number: int
    text: bytes


@dataclass(slots=True)
class PageDelta:
    """Changes until a position: jobs by their keys in the order of their changes, clusters and kinds. ``is_flood``: there
    were more changed jobs than are known.
    """

    position: Position
    jobs: dict[int, JobLine] = field(default_factory=dict)
    clusters: dict[int, KnownCluster] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    is_flood: bool = False

    def add(self, later: "PageDelta") -> None:
        """Add what has changed later."""
        for key, line in later.jobs.items():
            self.jobs.pop(key, None)
            self.jobs[key] = line
        self.clusters.update(later.clusters)
        self.kinds |= later.kinds
        self.is_flood |= later.is_flood
        self.position = later.position

    def seen_by(self, caller: Caller, queue: str | None) -> bytes | None:
        """Return the event for callers that may see what this one may; None where nothing of it has changed."""
        lines = [one for one in self.jobs.values() if _is_shown(one.queue, caller, queue)]
        clusters = sorted({one.name for one in self.clusters.values() if caller.may_see(one.name, one.only_queues)})
        if not (lines or clusters or self.kinds or self.is_flood):
            return None
        newest = lines[-MOST_JOBS:]
        data = {
            "at": format_time(datetime.fromtimestamp(self.position.at, UTC)),
            "jobs": [
                {"id": job_id(one.name, one.id), "queue": one.queue, "state": one.state, "cluster": one.cluster}
                for one in newest
            ],
            "more": self.is_flood or len(newest) < len(lines),
            "queues": sorted({one.queue for one in lines}),
            "clusters": clusters,
            "kinds": sorted(self.kinds),
        }
        return b"id: %s\nevent: changes\ndata: %s\n\n" % (self.position.written().encode(), orjson.dumps(data))


def _is_shown(path: str, caller: Caller, queue: str | None) -> bool:
    return caller.may_use(path) and (queue is None or path == queue or path.startswith(queue + "/"))


@dataclass(eq=False, slots=True)
class PageGroup:
    """The open pages that are sent the same bytes. ``caller``: any of theirs. ``position``: up to which they have been sent all."""

    caller: Caller
    queue: str | None
    every: float
    position: Position
    due: float
    collected: PageDelta | None = None
    texts: deque[SentText] = field(default_factory=lambda: deque(maxlen=_MOST_TEXTS))
    number: int = 0
    """The number of the newest text."""
    waiting: set[asyncio.Event] = field(default_factory=set)

    def collect(self, found: PageDelta) -> None:
        if self.collected is None:
            self.collected = PageDelta(found.position)
        self.collected.add(found)

    def send(self, now: float) -> None:
        """Make the text of what was collected, if it is time, and wake all pages."""
        if now < self.due - _EARLY or self.collected is None:
            return
        self.due = now + self.every
        found, self.collected = self.collected, None
        self.position = found.position
        text = found.seen_by(self.caller, self.queue)
        if text is not None:
            self.put(text)

    def put(self, text: bytes) -> None:
        self.number += 1
        self.texts.append(SentText(self.number, text))
        for event in self.waiting:
            event.set()

    def after(self, number: int) -> Sequence[SentText] | None:
        """Return the texts after the one with this number; None where one of them is not kept any more."""
        missing = self.number - number
        if missing > len(self.texts):
            return None
        return list(self.texts)[len(self.texts) - missing :] if missing else ()


class PageChanges:
    """The groups of open pages of one api, and what they are sent."""

    def __init__(self, stores: Stores, feed: EventFeed) -> None:
        self._stores = stores
        self._feed = feed
        self._groups: dict[Hashable, PageGroup] = {}
        self._position: Position | None = None
        """Up to which changes were read; None while there is no page."""
        self._reads = asyncio.Lock()

    @contextmanager
    def page(self, group: PageGroup) -> Iterator[asyncio.Event]:
        """Open an event that is set when a group has a new text. A group without pages is forgotten."""
        event = asyncio.Event()
        group.waiting.add(event)
        try:
            yield event
        finally:
            group.waiting.discard(event)
            if not group.waiting:
                self._groups = {key: one for key, one in self._groups.items() if one is not group}

    async def group_of(self, caller: Caller, queue: str | None, every: float) -> PageGroup:
        """Return the group of a page. Raises ProblemError if the store does not answer."""
        key = visibility_of(caller), queue, every
        if key not in self._groups:
            async with self._reads:
                if self._position is None:
                    self._position = await self._feed.start()
                if key not in self._groups:
                    self._groups[key] = PageGroup(
                        caller, queue, every, self._position, asyncio.get_running_loop().time()
                    )
        return self._groups[key]

    def wake(self) -> None:
        """Wake all pages: each looks whether it has ended."""
        for group in self._groups.values():
            for event in group.waiting:
                event.set()

    async def missed(self, position: Position, group: PageGroup) -> PageDelta | None:
        """Return what has changed between the position of a page that comes back and that of its group; None where that is not known
        any more. Raises ProblemError if the store does not answer.
        """
        end = group.position
        if position.store_epoch != end.store_epoch:
            return None
        if position.place >= end.place:
            return PageDelta(end)
        found = await self._read(position)
        return None if found is None or found.is_flood else found

    async def watch(self) -> None:
        """Look once a second until cancelled. A look that has failed is done again from the same position."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except ProblemError as error:
                log.warning("changes for open pages could not be read: %s", error)
            except Exception:
                log.exception("changes for open pages could not be read")

    async def look(self) -> None:
        """Read what has changed since the last look, once for all pages. Raises ProblemError if the store does not answer."""
        async with self._reads:
            if not self._groups:
                self._position = None
                return
            if self._position is None:
                self._position = await self._feed.start()
            found = await self._read(self._position)
            if found is None:
                await self._begin_again()
                return
            self._position = found.position
        now = asyncio.get_running_loop().time()
        for group in list(self._groups.values()):
            group.collect(found)
            group.send(now)
            await asyncio.sleep(0)  # let other calls run

    async def _begin_again(self) -> None:
        """Let all pages read all again: what has changed meanwhile is not known."""
        self._position = position = await self._feed.start()
        for group in self._groups.values():
            group.collected, group.position = None, position
            group.put(reset_at(position))

    async def _read(self, position: Position) -> PageDelta | None:
        """Return what has changed beyond a position; None where that is not known any more."""
        keys: dict[int, None] = {}
        begin, has_more = position, True
        for _ in range(_MOST_READS):
            page = await self._feed.changed_jobs(position)
            if page.missed:
                return None
            keys |= dict.fromkeys(one.job_id for one in page.jobs)
            position, has_more = page.position, page.has_more
            if not has_more:
                break
        if has_more:
            position = await self._feed.start()
        async with self._stores.database.reading() as tx:
            lines = {one.id: one for one in await store.job_lines(tx, list(keys))}
            objects = await store.object_changes(tx, begin.place, position.place.xid)
            known = await store.clusters(tx) if any(one.kind in _OF_CLUSTERS for one in objects) else ()
        jobs = {key: lines[key] for key in keys if key in lines}
        kinds = {_KINDS[one.kind] for one in objects if one.kind in _KINDS}
        return PageDelta(position, jobs, _changed(objects, {one.id: one for one in known}), kinds, has_more)


def reset_at(position: Position) -> bytes:
    """Return the event that lets a page read all again, and continue from a position."""
    return b"id: %s\nevent: reset\ndata: {}\n\n" % position.written().encode()


def _changed(objects: Sequence[FeedObject], known: Mapping[int, KnownCluster]) -> dict[int, KnownCluster]:
    refs = {one.ref for one in objects if one.kind in _OF_CLUSTERS}
    return {key: one for key, one in known.items() if 0 in refs or key in refs}
