"""`Burial`: what is left of runs whose end is told goes: pods, objects, and after a while the anchor."""

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Callable, Iterable

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, KubeError, NotFoundError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS, Resource
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT, LABEL_ANCHOR, TOMBSTONE
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

log = logging.getLogger(__name__)

_AT_ONCE = 8
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_MOST_LOOKS, _LOOK_SECONDS = 20, 0.1


class Burial:
    """What is cut off is done by the next agent: it finds the anchor of an ended run, tells of it, and is told to forget it."""

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseKeeper,
        agent: str,
        home: str,
        tombstone: float,
        *,
        is_busy: Callable[[], bool],
        is_gone: Callable[[str], bool],
    ) -> None:
        """``home``: the agent's namespace. ``is_busy``: whether runs wait to be started; ``is_gone``: whether a namespace is."""
        self._api = api
        self._home = home
        self._is_gone = is_gone
        self._lease = lease
        self._agent = agent
        self._tombstone = tombstone
        self._is_busy = is_busy
        self._queue: asyncio.Queue[tuple[RunTracker, tuple[tuple[Resource, str], ...]]] = asyncio.Queue()
        self._stones: list[tuple[float, str, str, str]] = []
        """Anchors by when they go: moment, namespace, name, uid."""
        self._more = asyncio.Event()
        self._buried: set[str] = set()
        """Runs that are told of no more and whose anchors are there."""

    def bury(self, book: RunTracker, objects: tuple[tuple[Resource, str], ...]) -> None:
        self._buried.add(book.run)
        self._queue.put_nowait((book, objects))

    def holds(self, run: str) -> bool:
        """Whether the run is told of no more, though its anchor is there."""
        return run in self._buried

    async def take_over(self, older: Iterable[tuple[str, str, str]]) -> None:
        """Find the tombstones that an agent before this one has left; ``older``: those of an older release. Raises KubeError."""
        selector = f"{LABEL_AGENT}={self._agent},{LABEL_ANCHOR}={TOMBSTONE}"
        async for items, _ in self._api.pages(CONFIG_MAPS, self._home, selector=selector):
            for obj in items:
                self._place_stone(self._home, obj["metadata"]["name"], obj["metadata"]["uid"])
        for stone in older:
            self._place_stone(*stone)

    async def close(self) -> None:
        """Mark what is not cleared away yet, so that the next agent does not tell of it again; not for longer than a moment."""
        marks = [self._mark(name) for name in self._buried]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*marks, return_exceptions=True)

    async def _mark(self, name: str) -> None:
        body = {"metadata": {"labels": {LABEL_ANCHOR: TOMBSTONE}}}
        await self._api.patch(CONFIG_MAPS, self._home, name, body)

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._clear_all())
            group.create_task(self._remove_stones())

    async def _clear_all(self) -> None:
        while True:
            book, objects = await self._queue.get()
            await self._turn()
            try:
                await self._lease.confirm()
                await self._clear(book, objects)
            except KubeError as error:
                log.info("run %s cannot be cleared away now: %s", book.run, error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._queue.put_nowait((book, objects))
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("clear", error, run=book.run)
                await asyncio.sleep(_RETRY_SECONDS)
                self._queue.put_nowait((book, objects))

    async def _turn(self) -> None:
        """Starts go first: the API server is slow enough when many come at once. But no waiting for ever."""
        for _ in range(_MOST_LOOKS):
            if not self._is_busy():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _clear(self, book: RunTracker, objects: tuple[tuple[Resource, str], ...]) -> None:
        namespace = book.record.namespace
        if self._is_gone(namespace):
            # With it went all that was in it, and the permission to look for it.
            self._place_stone(self._home, book.run, book.record.uid)
            return
        if len(book.pods) == 1:
            pod = next(iter(book.pods.values()))
            await self._delete(PODS, namespace, pod.name, pod.uid)
        elif book.pods:
            await self._api.delete_all(PODS, namespace, f"{LABEL_AGENT}={self._agent},{LABEL_RUN}={book.run}")
        for resource, name in objects:
            await self._delete(resource, namespace, name)
        if book.record.was_moved:
            await self._delete(CONFIG_MAPS, namespace, book.run)
        self._place_stone(self._home, book.run, book.record.uid)

    def _place_stone(self, namespace: str, name: str, uid: str) -> None:
        heapq.heappush(self._stones, (time.monotonic() + self._tombstone, namespace, name, uid))
        self._more.set()

    async def _remove_stones(self) -> None:
        while True:
            self._more.clear()
            wait = self._stones[0][0] - time.monotonic() if self._stones else 3600.0
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._more.wait()
                continue
            at, namespace, name, uid = heapq.heappop(self._stones)
            try:
                await self._lease.confirm()
                await self._delete(CONFIG_MAPS, namespace, name, uid)
                self._buried.discard(name)
            except KubeError as error:
                log.info("the anchor %s cannot be removed now: %s", name, error)
                heapq.heappush(self._stones, (at + _RETRY_SECONDS, namespace, name, uid))
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("clear", error, run=name)
                heapq.heappush(self._stones, (time.monotonic() + _RETRY_SECONDS, namespace, name, uid))

    async def _delete(self, resource: Resource, namespace: str, name: str, uid: str | None = None) -> None:
        with contextlib.suppress(NotFoundError, ConflictError):
            await self._api.delete(resource, namespace, name, uid=uid)
