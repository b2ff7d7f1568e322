"""`GarbageCollector`: removes what ended runs leave once their end is settled: pods, objects, and later the record."""

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Callable, Iterable

from trainmaster_agent.containment import contain, run_for_ever
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, KubeError, NotFoundError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS, Resource
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT, LABEL_RECORD, TOMBSTONE
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

log = logging.getLogger(__name__)

_AT_ONCE = 8
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_MOST_LOOKS, _LOOK_SECONDS = 20, 0.1


class GarbageCollector:
    """An interrupted removal is done by the next agent: it finds the record, reports the run as ended, and is ordered to forget it."""

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
        """``home``: the agent's namespace. ``is_busy``: whether runs wait for their start; ``is_gone``: whether a namespace is."""
        self._api = api
        self._home = home
        self._is_gone = is_gone
        self._lease = lease
        self._agent = agent
        self._tombstone = tombstone
        self._is_busy = is_busy
        self._queue: asyncio.Queue[tuple[RunTracker, tuple[tuple[Resource, str], ...]]] = asyncio.Queue()
        self._stones: list[tuple[float, str, str, str]] = []
        """Records by time of their removal: moment, namespace, name, uid."""
        self._more = asyncio.Event()
        self._removing: set[str] = set()
        """Runs that are no longer reported and whose records still exist."""

    def add(self, tracker: RunTracker, objects: tuple[tuple[Resource, str], ...]) -> None:
        self._removing.add(tracker.run)
        self._queue.put_nowait((tracker, objects))

    def holds(self, run: str) -> bool:
        """Return whether the run is no longer reported but its record still exists."""
        return run in self._removing

    async def take_over(self, older: Iterable[tuple[str, str, str]]) -> None:
        """Find tombstones that an earlier agent left; ``older``: those of an older release. Raises KubeError."""
        selector = f"{LABEL_AGENT}={self._agent},{LABEL_RECORD}={TOMBSTONE}"
        async for items, _ in self._api.pages(CONFIG_MAPS, self._home, selector=selector):
            for obj in items:
                self._place_stone(self._home, obj["metadata"]["name"], obj["metadata"]["uid"])
        for stone in older:
            self._place_stone(*stone)

    async def close(self) -> None:
        """Mark runs not removed yet, so that the next agent does not report them again; takes a moment at most."""
        marks = [self._mark(name) for name in self._removing]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*marks, return_exceptions=True)

    async def _mark(self, name: str) -> None:
        body = {"metadata": {"labels": {LABEL_RECORD: TOMBSTONE}}}
        await self._api.patch(CONFIG_MAPS, self._home, name, body)

    async def run(self) -> None:
        """Remove what is due, for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(run_for_ever("clear", self._clear_all))
            group.create_task(run_for_ever("clear", self._remove_stones))

    async def _clear_all(self) -> None:
        while True:
            tracker, objects = await self._queue.get()
            try:
                await self._turn()
                await self._lease.confirm()
                await self._clear(tracker, objects)
            except KubeError as error:
                log.info("cannot remove the objects of ended run %s now, trying again: %s", tracker.run, error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._queue.put_nowait((tracker, objects))
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("clear", error, run=tracker.run)
                await asyncio.sleep(_RETRY_SECONDS)
                self._queue.put_nowait((tracker, objects))

    async def _turn(self) -> None:
        """Wait for running starts, which have priority because the API server slows down under load; but not for ever."""
        for _ in range(_MOST_LOOKS):
            if not self._is_busy():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _clear(self, tracker: RunTracker, objects: tuple[tuple[Resource, str], ...]) -> None:
        namespace = tracker.record.namespace
        if self._is_gone(namespace):
            # Its content is gone with it, and so is the permission to list it.
            self._place_stone(self._home, tracker.run, tracker.record.uid)
            return
        if len(tracker.pods) == 1:
            pod = next(iter(tracker.pods.values()))
            await self._delete(PODS, namespace, pod.name, pod.uid)
        elif tracker.pods:
            await self._api.delete_all(PODS, namespace, f"{LABEL_AGENT}={self._agent},{LABEL_RUN}={tracker.run}")
        for resource, name in objects:
            await self._delete(resource, namespace, name)
        if tracker.record.was_moved:
            await self._delete(CONFIG_MAPS, namespace, tracker.run)
        self._place_stone(self._home, tracker.run, tracker.record.uid)

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
                self._removing.discard(name)
            except KubeError as error:
                log.info("cannot remove the ConfigMap of ended run %s now, trying again: %s", name, error)
                heapq.heappush(self._stones, (at + _RETRY_SECONDS, namespace, name, uid))
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("clear", error, run=name)
                heapq.heappush(self._stones, (time.monotonic() + _RETRY_SECONDS, namespace, name, uid))

    async def _delete(self, resource: Resource, namespace: str, name: str, uid: str | None = None) -> None:
        with contextlib.suppress(NotFoundError, ConflictError):
            await self._api.delete(resource, namespace, name, uid=uid)
