"""`Outputs`: what members have written, by offset, though an API server tells only whole logs.

The log of a member that somebody reads is followed into memory: its last part, and how much there was before it. Offsets count from
what the API server still has: a node keeps some 10 MiB of a container's output.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

from trainmaster.agent.kube.client import ApiServer
from trainmaster.agent.kube.errors import KubeError, RefusedError
from trainmaster.agent.kube.paths import PODS
from trainmaster.agent.runtime.port import LogSlice

log = logging.getLogger(__name__)

_KEPT = 1 << 18
"""Bytes of a member's last output in memory."""
_MOST = 256
"""Members whose output is in memory at the same time; the one that was read longest ago goes."""
_IDLE_SECONDS = 60.0
_SILENCE = 3600.0
_FIRST_WAIT = 2.0
"""Seconds that a reader waits for the first bytes."""


@dataclass(slots=True)
class Spool:
    """The last output of one pod."""

    begin: int = 0
    """Offset of the first byte that is kept."""
    data: bytearray = field(default_factory=bytearray)
    over: bool = False
    """The output has ended; nothing follows."""
    task: "asyncio.Task[None] | None" = None
    read_at: float = 0.0
    fresh: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def add(self, chunk: bytes) -> None:
        self.data += chunk
        extra = len(self.data) - _KEPT
        if extra > 0:
            del self.data[:extra]
            self.begin += extra
        self.fresh.set()

    def slice(self, offset: int, limit: int, *, over: bool) -> LogSlice:
        start = self.end + offset if offset < 0 else offset
        start = min(max(start, self.begin), self.end)
        data = bytes(self.data[start - self.begin : start - self.begin + limit])
        return LogSlice(start, data, over and start + len(data) == self.end)


class Outputs:
    """All spools of one agent, by the uid of the pod."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._spools: dict[str, Spool] = {}

    async def read(
        self, namespace: str, pod: str, uid: str, container: str, offset: int, limit: int, *, ended: bool
    ) -> LogSlice:
        """A part of the output of a pod; ``ended`` says that its processes have ended."""
        spool = self.follow(namespace, pod, uid, container, ended=ended)
        if not spool.over and (ended or not spool.data):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_WAIT):
                    while not spool.over and (ended or not spool.data):
                        spool.fresh.clear()
                        await spool.fresh.wait()
        return spool.slice(offset, limit, over=spool.over)

    def kept(self, uid: str, offset: int, limit: int) -> LogSlice | None:
        """What is in memory of a pod that may be gone by now."""
        spool = self._spools.get(uid)
        return None if spool is None else spool.slice(offset, limit, over=True)

    def follow(self, namespace: str, pod: str, uid: str, container: str, *, ended: bool) -> Spool:
        """Begin to keep what a pod writes."""
        spool = self._spools.get(uid)
        now = time.monotonic()
        if spool is None or (spool.task is not None and spool.task.done() and not spool.over):
            self._make_room(now)
            spool = self._spools[uid] = Spool(read_at=now)
            spool.task = asyncio.create_task(self._fill(spool, namespace, pod, container, ended=ended))
        spool.read_at = now
        return spool

    async def close(self) -> None:
        tasks = [spool.task for spool in self._spools.values() if spool.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._spools.clear()

    def forget(self, uid: str) -> None:
        spool = self._spools.pop(uid, None)
        if spool is not None and spool.task is not None:
            spool.task.cancel()

    def _make_room(self, now: float) -> None:
        idle = [uid for uid, spool in self._spools.items() if now - spool.read_at > _IDLE_SECONDS]
        if not idle and len(self._spools) >= _MOST:
            idle = [min(self._spools, key=lambda uid: self._spools[uid].read_at)]
        for uid in idle:
            self.forget(uid)

    async def _fill(self, spool: Spool, namespace: str, pod: str, container: str, *, ended: bool) -> None:
        query = {"container": container}
        if not ended:
            query["follow"] = "true"
        try:
            async with self._api.stream(PODS.path(namespace, pod, "log"), query, silence=_SILENCE) as body:
                async for chunk in body.iter_any():
                    spool.add(chunk)
            spool.over = True
        except RefusedError as error:
            # The pod, its node or its output is gone: what there is, is all.
            log.info("no more output of pod %s: %s", pod, error)
            spool.over = True
        except KubeError as error:
            log.info("the output of pod %s cannot be read now: %s", pod, error)
            spool.over = ended
        finally:
            spool.fresh.set()
