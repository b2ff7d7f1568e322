"""Watches of the Kubernetes API: changes of objects from a version on, as clients' caches need them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.kube.calls import Listing
from trainmaster_dispatcher.api.kube.job_selection import conditions_of, filter_of
from trainmaster_dispatcher.api.kube.job_watches import WatchedJobs, WatchEvent, frame, position_of, version_of
from trainmaster_dispatcher.api.kube.objects import ListMetadata, Wire
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.api.kube.status import status_of
from trainmaster_dispatcher.api.kube.tables import Included, table_of
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.domain.redaction import rendered_json
from trainmaster_dispatcher.services import job_objects, job_queries
from trainmaster_dispatcher.services.event_feed import Position
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import wait_set

_SHORTEST_WATCH = 1800.0
"""The shortest time in seconds after which a watch ends that names none; the longest is twice that."""
_BOOKMARK_SECONDS = 5.0
_LONGEST_WAIT = 60.0
_LOOK_SECONDS = 1.0
_PAGE = 200


def expired(version: int) -> ProblemError:
    return ProblemError(Code.EXPIRED, f"too old resource version: {version}; list the objects again")


async def start_of(state: State, version: int) -> int:
    """Return the version from which a watch begins: that of the call, or what is seen now. Raises ProblemError EXPIRED."""
    async with state.stores.database.reading() as tx:
        horizon = await versions.horizon(tx)
    if not version:
        return horizon.version
    is_other_store = version >> versions.VERSION_BITS != horizon.version >> versions.VERSION_BITS
    if is_other_store or version > horizon.version or (horizon.oldest is not None and version < horizon.oldest):
        raise expired(version)
    return version


def bookmark(version: int, resource: ApiResource, *, is_table: bool, is_initial: bool = False) -> bytes:
    """Return a bookmark: all changes below this version were sent. ``is_initial``: it ends the objects that existed before."""
    metadata: Wire = {"resourceVersion": str(version), "creationTimestamp": None}
    if is_initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    item: Wire = {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata}
    if is_table:
        item = {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": [],
            "rows": [],
        }
    return frame(WatchEvent.BOOKMARK, orjson.dumps(item))


def error_frame(error: ProblemError) -> bytes:
    return frame(WatchEvent.ERROR, orjson.dumps(status_of(error)))


def streaming(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="application/json", headers={"Cache-Control": "no-store"})


class WatchTerms:
    """The end of a watch, and the time of its next bookmark."""

    def __init__(self, wanted: Listing, stream: CountedStream, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + (float(wanted.seconds) or _SHORTEST_WATCH * random.uniform(1, 2))
        self._stream = stream
        self._has_bookmarks = wanted.has_bookmarks
        self._bookmark_at = clock() + _BOOKMARK_SECONDS
        self._marked = 0

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end or self._stream.is_ended

    def last_words(self) -> bytes:
        """Return how a watch ends: with an error where the key is no longer valid."""
        if self._stream.is_ended:
            return error_frame(ProblemError(Code.UNAUTHENTICATED, "the API key was revoked or has expired"))
        return b""

    def is_bookmark_due(self, version: int) -> bool:
        """Return whether a bookmark of this version is to be sent now."""
        if not self._has_bookmarks or self._clock() < self._bookmark_at or version == self._marked:
            return False
        self._bookmark_at, self._marked = self._clock() + _BOOKMARK_SECONDS, version
        return True

    async def wait(self, changed: asyncio.Event) -> None:
        """Wait until something may have changed, a bookmark may be due, or the watch is over."""
        longest = _BOOKMARK_SECONDS if self._has_bookmarks else _LONGEST_WAIT
        await wait_set(changed, max(0.05, min(longest, self._end - self._clock())))


class Followed(NamedTuple):
    """The events of a watch behind a position, and the position behind them. ``missed``: why changes may be missing; else empty."""

    frames: bytes
    position: Position
    has_more: bool
    missed: str


def frames(
    event: WatchEvent, items: Iterable[Wire], resource: ApiResource, caller: Caller, included: Included | None
) -> bytes:
    """Return events of a watch, without what the caller may not read. ``included``: the part of each object beside its row of a table;
    None for whole objects.
    """
    found = []
    for item in items:
        if included is not None:
            item = table_of(resource.columns, [item], included, ListMetadata())
        found.append(frame(event, rendered_json(orjson.dumps(item), caller.may_use)))
    return b"".join(found)


async def each_page(read: Callable[[str | None], Awaitable[tuple[bytes, str | None]]]) -> AsyncIterator[bytes]:
    """Yield the pages of a list; ``read`` returns the page at a cursor, and the cursor of the next one."""
    cursor: str | None = None
    while True:
        page, cursor = await read(cursor)
        yield page
        if cursor is None:
            return


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch that follows the feed of events. ``existing`` yields the objects that exist, as added; ``read`` is for what is behind a
    position.
    """

    resource: ApiResource
    wanted: Listing
    is_table: bool
    existing: AsyncIterator[bytes]
    read: Callable[[Position], Awaitable[Followed]]

    async def answer(self, request: Request, state: State) -> Response:
        """Answer the call. Raises ProblemError EXPIRED for a version from which changes are no longer known."""
        is_from_now = not self.wanted.version or bool(self.wanted.wants_initial)
        version = await start_of(state, 0 if is_from_now else self.wanted.version)
        stream = state.limits.open_stream(request.scope, StreamKind.EVENTS, state.events.wake)
        return streaming(self._events(state, version, stream, sends_all=is_from_now))

    async def _events(
        self, state: State, version: int, stream: CountedStream, *, sends_all: bool
    ) -> AsyncIterator[bytes]:
        terms = WatchTerms(self.wanted, stream)
        if sends_all and self.wanted.wants_initial is not False:
            async for part in self.existing:
                yield part
            if self.wanted.wants_initial:
                yield bookmark(version, self.resource, is_table=self.is_table, is_initial=True)
        position = position_of(version, time.time())
        with state.events.waiter() as changed:
            while not terms.is_over:
                await state.watch_turns.take()
                try:
                    found = await self.read(position)
                except ProblemError:
                    await wait_set(changed, _LOOK_SECONDS)  # the store does not answer; nothing is lost by that
                    continue
                if found.missed:
                    yield error_frame(expired(version_of(position)))
                    return
                if found.frames:
                    yield found.frames
                position = found.position
                if terms.is_bookmark_due(version_of(position)):
                    yield bookmark(version_of(position), self.resource, is_table=self.is_table)
                if not found.has_more:
                    await terms.wait(changed)
        if last := terms.last_words():
            yield last


async def watch_jobs(request: Request, state: State, wanted: Listing, chosen: WatchedJobs) -> Response:
    """Answer a watch of jobs. Raises ProblemError EXPIRED for a version from which changes are no longer known."""
    async with state.stores.database.reading() as tx:  # so that what the selectors name wrongly is refused at once
        filtered = await filter_of(tx, chosen.caller, chosen.namespace, chosen.values)
        await job_queries.filter_of(tx, chosen.caller, None if filtered is None else filtered.wanted)

    async def read(position: Position) -> Followed:
        batch = await state.watches.after(position)
        return Followed(await batch.frames(chosen), batch.position, batch.has_more, batch.missed)

    existing = each_page(lambda cursor: _existing(state, chosen, cursor))
    watch = Watch(chosen.of.resource, wanted, chosen.is_table, existing, read)
    return await watch.answer(request, state)


async def _existing(state: State, chosen: WatchedJobs, cursor: str | None) -> tuple[bytes, str | None]:
    """Return a page of the jobs that exist, as added, and the cursor of the next one."""
    async with state.stores.database.reading() as tx:
        filtered = await filter_of(tx, chosen.caller, chosen.namespace, chosen.values)
        if filtered is None:
            return b"", None
        labels = conditions_of(chosen.labels)
        page = await job_objects.page(
            tx, chosen.caller, filtered, labels, cursor, _PAGE, is_whole=True, kind=chosen.of.kind
        )
    items = [chosen.of.item(job) for job in page.jobs if chosen.is_about(job)]
    return b"".join(frame(WatchEvent.ADDED, chosen.payload(item)) for item in items), page.following
