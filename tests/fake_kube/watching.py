"""A watch: changes as they look through a selector, in order, with bookmarks, until its time is over."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import orjson

from tests.fake_kube import errors
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object
from tests.fake_kube.reading import Query
from tests.fake_kube.selectors import Selector
from tests.fake_kube.store import Change, ChangeKind, ExpiredError, Store

_NEVER = 10**9


class Watch:
    """One client's watch, which follows the store from the moment it is made until it is closed.

    Raises ApiError where the request itself is wrong: 400, 410 for a version that is forgotten, 422 for what is not served.
    """

    def __init__(self, store: Store, query: Query, bookmark_seconds: float) -> None:
        if query.options.get("sendInitialEvents"):
            why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise ApiError(422, f"ListOptions is invalid: sendInitialEvents: Forbidden: {why}")
        self._store = store
        self._query = query
        self._bookmark_seconds = bookmark_seconds if query.flag("allowWatchBookmarks") else math.inf
        self._selected: Selector = query.selector()
        self._queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._first: list[Object] = []
        self._since = query.number("resourceVersion")
        if self._since:
            try:
                past = store.since(query.resource.id, self._since)
            except ExpiredError as error:
                raise errors.expired(self._since, error.oldest) from error
            for change in past:
                self._queue.put_nowait(change)
        else:
            self._first = [one for one in store.scan(query.resource.id).values() if self._selected(one)]
            self._since = store.version
        self.close: Callable[[], None] = store.listen(self._take)

    def end(self) -> None:
        """Let the watch end cleanly after what is in it, as when a server's own timeout is over."""
        self._queue.put_nowait(None)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield events as they are sent, one or more to a piece, each a line of JSON."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        ends = began + (self._query.number("timeoutSeconds") or _NEVER)
        bookmark = began + self._bookmark_seconds
        yield b"".join(_line("ADDED", one) for one in self._first)
        while loop.time() < ends:
            try:
                async with asyncio.timeout_at(min(bookmark, ends)):
                    changes = [await self._queue.get()]
            except TimeoutError:
                if loop.time() >= bookmark and self._queue.empty():
                    bookmark = loop.time() + self._bookmark_seconds
                    yield self._bookmark()
                continue
            while not self._queue.empty():
                changes.append(self._queue.get_nowait())
            yield b"".join(self._seen(change) for change in changes if change is not None)
            if None in changes:
                return

    def _take(self, change: Change) -> None:
        if change.key.resource == self._query.resource.id and change.version > self._since:
            self._queue.put_nowait(change)

    def _seen(self, change: Change) -> bytes:
        """Return the event that a watch sends: an object that begins to match is added, one that stops is deleted, in
        its last matching state."""
        was = change.old is not None and self._selected(change.old)
        if change.new is not None and self._selected(change.new):
            return _line("MODIFIED" if was else "ADDED", change.new)
        if not was or change.old is None:
            return b""
        gone = change.old if change.kind is ChangeKind.MODIFIED else change.value
        return _line("DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(change.version)}})

    def _bookmark(self) -> bytes:
        # Only sent while the queue is empty: all up to the store's version has been sent.
        resource = self._query.resource
        metadata = {"resourceVersion": str(max(self._since, self._store.version)), "creationTimestamp": None}
        return _line("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": metadata})


def _line(kind: str, value: Object) -> bytes:
    return orjson.dumps({"type": kind, "object": value}) + b"\n"


def error_line(error: ApiError) -> bytes:
    """Return the error line of a watch that began with 200 and cannot continue."""
    return _line("ERROR", error.body())
