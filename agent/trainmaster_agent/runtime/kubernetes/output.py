"""`Outputs`: members' output by offset, although an API server offers only the whole log of one pod.

The log of a member that somebody reads is followed into memory: its last part, and the number of bytes before it. A restarted member
has had several pods, one for each of its *lives*: offsets continue over them, so a reader who knows its offset misses nothing. Within
a life they count from what the API server still has: a node stores some 10 MiB of a container's output.

The follower reads no faster than its reader: the rest stays on the node. Output is dropped only when the reader stops reading.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError, NotFoundError, RefusedError
from trainmaster_agent.kube.paths import PODS
from trainmaster_agent.kube.pods import PodSight, see
from trainmaster_agent.runtime.port import LogSlice

log = logging.getLogger(__name__)

_KEPT = 1 << 18
"""The most bytes of a member's last output in memory."""
_KEPT_OF_EARLIER_LIVES = 1 << 16
"""Bytes of them that stay of a member's earlier lives when nobody reads any more: no node has these."""
_MOST = 256
"""The most members whose output is followed at once; the one that was read longest ago is dropped first."""
_MOST_PARKED = 512
"""The most members whose earlier output stays cached although nobody reads it."""
_AHEAD = 3 * _KEPT // 4
"""Bytes that a reader may be behind before the log is read no further."""
_PIECE = 1 << 16
_PATIENCE_WITH_READERS = 5.0
"""Seconds after its last read for which a reader is waited for."""
_IDLE_SECONDS = 60.0
_SILENCE = 3600.0
_FIRST_WAIT = 2.0
"""Seconds that a reader waits for the first bytes, or for the rest of an ended member's output."""
_QUIET_SECONDS = 0.3
"""Seconds without new output after which the output that existed before is taken to be read."""
_MOST_CATCHING_UP = 5.0
"""The most seconds that a reader of the end waits for that."""
_LAST_LIFE_SECONDS = 2.0
"""Seconds that the next life of a member waits for the rest of the previous life's output."""
_TRIES = 3
_PAUSE = 0.5
_UNABLE = re.compile(
    rb"\s*(unable to retrieve container logs for [a-z0-9.-]+://[0-9a-f]*"
    rb"|failed to try resolving symlinks in path \"/var/log/pods/[^\"\n]*\": [^\n]*)\s*"
)
"""Answers of a kubelet, with status 200 and in place of output, for a container or a file that no longer exists."""
_LONGEST_UNABLE = 2000
_BEGINNINGS = (b"unable to retrieve container logs for ", b"failed to try resolving symlinks in path ")

Key = tuple[str, str, int]
"""Run, role and index of a member."""


class OutputGoneError(Exception):
    """The node reports that it no longer has the output."""


@dataclass(slots=True)
class Spool:
    """The last output of one member. ``life`` is the uid of the pod that is being read, empty while none is."""

    begin: int = 0
    """Offset of the first cached byte."""
    data: bytearray = field(default_factory=bytearray)
    life: str = ""
    life_begin: int = 0
    """Offset at which the output of this life begins."""
    over: bool = False
    """The output of this life has ended."""
    task: "asyncio.Task[None] | None" = None
    read_at: float = 0.0
    followed_at: float = -1e9
    """Time of the last read, and (``read_to``) the furthest offset that a reader has reached."""
    read_to: int = 0
    hurried: bool = False
    """Whether readers are no longer waited for."""
    arrived_at: float = 0.0
    """Time of the last output that was added."""
    caught_up: bool = False
    """Whether the output that existed when reading began has been read: before that, the end of the output is not known."""
    fresh: asyncio.Event = field(default_factory=asyncio.Event)
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    @property
    def is_catching_up(self) -> bool:
        now = time.monotonic()
        waits = self.end - self.read_to > _AHEAD and self.followed_at + _PATIENCE_WITH_READERS > now
        return waits or now - self.arrived_at < _QUIET_SECONDS

    def add(self, chunk: bytes) -> None:
        self.arrived_at = time.monotonic()
        self.data += chunk
        extra = len(self.data) - _KEPT
        if extra > 0:
            del self.data[:extra]
            self.begin += extra
        self.fresh.set()

    def end_life(self, pod: PodSight) -> None:
        """Mark this pod's output as complete, unless another pod has followed it."""
        if self.life == pod.uid:
            self.over = True

    async def pace(self) -> None:
        """Wait while an active reader is far behind."""
        while not self.hurried and self.end - self.read_to > _AHEAD:
            left = self.followed_at + _PATIENCE_WITH_READERS - time.monotonic()
            if left <= 0:
                return
            self.taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.taken.wait()

    def slice(self, offset: int, limit: int, *, over: bool, follows: bool = False) -> LogSlice:
        """Return cached output from ``offset`` on. ``follows``: the reader wants what comes after it, too."""
        start = self.end + offset if offset < 0 else offset
        start = min(max(start, self.begin), self.end)
        data = bytes(self.data[start - self.begin : start - self.begin + limit])
        if follows:
            self.read_to = max(self.read_to, start + len(data))
            self.followed_at = time.monotonic()
            self.taken.set()
        return LogSlice(start, data, over and start + len(data) == self.end)

    def park(self) -> bool:
        """Keep only the end of earlier lives, which no node has; return whether there is any."""
        del self.data[max(0, self.life_begin - self.begin) :]
        extra = len(self.data) - _KEPT_OF_EARLIER_LIVES
        if extra > 0:
            del self.data[:extra]
            self.begin += extra
        self.life, self.task, self.over = "", None, False
        return bool(self.data)


class Outputs:
    """All spools of one agent."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._spools: dict[Key, Spool] = {}
        self._parked: dict[Key, Spool] = {}

    async def read(self, pod: PodSight, offset: int, limit: int, *, said: int = 0) -> LogSlice:
        """Return a part of a member's output. ``pod`` is its current life; ``said``: bytes of earlier lives, if unknown here."""
        ended = pod.is_over
        is_new = (spool := self._spools.get(key_of(pod))) is None or spool.life != pod.uid
        spool = self.follow(pod, ended=ended, said=said)
        if ended and 0 <= offset < spool.begin and offset >= spool.life_begin:
            spool = self._rewind(spool, pod, offset)
        follows = offset >= 0 or not ended
        if offset < 0 and not ended and not spool.caught_up:
            await self._catch_up(spool)
        if follows:
            spool.followed_at = time.monotonic()
        if offset < 0 and ended:
            await self._wait(spool, lambda: spool.over)
            spool.hurried = (
                True  # this is the tail that is stored for good: a reader may miss something; the output says so
            )
            spool.taken.set()
            await self._wait(spool, lambda: spool.over)
        elif ended:
            enough = min(limit, _AHEAD // 2)
            await self._wait(spool, lambda: spool.over or spool.end - offset >= enough)
        elif is_new and offset >= 0:
            await self._wait(spool, lambda: spool.over or bool(spool.data))
        return spool.slice(offset, limit, over=spool.over, follows=follows)

    def _rewind(self, spool: Spool, pod: PodSight, offset: int) -> Spool:
        """Read an ended pod's output again from ``offset`` on, if that is still in its life."""
        _cancel(spool)
        fresh = Spool(begin=offset, life=pod.uid, life_begin=spool.life_begin, read_to=offset)
        fresh.read_at = fresh.followed_at = time.monotonic()
        self._spools[key_of(pod)] = fresh
        fresh.task = asyncio.create_task(self._fill(fresh, pod, ended=True, skip=offset - spool.life_begin))
        return fresh

    def kept(self, key: Key, offset: int, limit: int) -> LogSlice | None:
        """Return cached output of a member whose pod may be gone; None if there is none."""
        spool = self._spools.get(key) or self._parked.get(key)
        return None if spool is None else spool.slice(offset, limit, over=True)

    def follow(self, pod: PodSight, *, ended: bool, said: int = 0) -> Spool:
        """Begin to cache a pod's output."""
        key, now = key_of(pod), time.monotonic()
        spool = self._spools.get(key)
        if spool is None:
            self._make_room(now)
            spool = self._parked.pop(key, None) or Spool(begin=said, life_begin=said, read_to=said)
            self._spools[key] = spool
        if spool.life != pod.uid:
            before, spool.life, spool.over = spool.task, pod.uid, False
            spool.task = asyncio.create_task(self._next_life(spool, before, pod, ended=ended))
        elif spool.task is not None and spool.task.done() and not spool.over:
            # The connection broke: earlier output of this life is cached already.
            spool.task = asyncio.create_task(self._fill(spool, pod, ended=ended, skip=spool.end - spool.life_begin))
        spool.read_at = now
        return spool

    async def finish(self, pod: PodSight, *, said: int = 0) -> int:
        """Read the rest of an ended life's output if that is quick; return the offset at which the next life begins."""
        spool = self.follow(pod, ended=True, said=said)
        await self._wait(spool, lambda: spool.over)
        return spool.end

    def end_of(self, key: Key) -> int | None:
        """Return the current end of a member's output; None where it is unknown."""
        spool = self._spools.get(key) or self._parked.get(key)
        return None if spool is None else spool.end

    def whole_length(self, key: Key) -> int | None:
        """Return the length of a member's output once all of it was read; None before that."""
        spool = self._spools.get(key)
        return spool.end if spool is not None and spool.over else None

    def lives(self, key: Key) -> tuple[int, ...]:
        """Return the offset at which the current life's output begins, if earlier ones had any; those of earlier lives are unknown."""
        spool = self._spools.get(key) or self._parked.get(key)
        return (spool.life_begin,) if spool is not None and spool.life_begin else ()

    async def close(self) -> None:
        tasks = [spool.task for spool in self._spools.values() if spool.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._spools.clear()
        self._parked.clear()

    def forget(self, run: str) -> None:
        """Drop all cached output of a run."""
        for key in [key for key in self._spools if key[0] == run]:
            _cancel(self._spools.pop(key))
        for key in [key for key in self._parked if key[0] == run]:
            del self._parked[key]

    async def _catch_up(self, spool: Spool) -> None:
        """Wait until the output that exists already has been read, which an API server sends before what comes later."""
        await self._wait(spool, lambda: spool.over or bool(spool.arrived_at))
        until = time.monotonic() + _MOST_CATCHING_UP
        while not spool.over and time.monotonic() < until and spool.is_catching_up:
            spool.fresh.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_QUIET_SECONDS / 3):
                    await spool.fresh.wait()
        spool.caught_up = True  # also where nothing came: a member that is silent is waited for once

    async def _wait(self, spool: Spool, is_so: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WAIT):
                while not is_so():
                    spool.fresh.clear()
                    await spool.fresh.wait()

    def _make_room(self, now: float) -> None:
        idle = [key for key, spool in self._spools.items() if now - spool.read_at > _IDLE_SECONDS]
        if not idle and len(self._spools) >= _MOST:
            idle = [min(self._spools, key=lambda key: self._spools[key].read_at)]
        for key in idle:
            spool = self._spools.pop(key)
            _cancel(spool)
            if spool.park():
                self._parked[key] = spool
        while len(self._parked) > _MOST_PARKED:
            del self._parked[next(iter(self._parked))]

    async def _next_life(
        self, spool: Spool, before: "asyncio.Task[None] | None", pod: PodSight, *, ended: bool
    ) -> None:
        """Read the rest of the previous life, whose pod is gone, then the output of this one."""
        if before is not None and not before.done():
            await asyncio.wait({before}, timeout=_LAST_LIFE_SECONDS)
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        spool.over, spool.hurried, spool.caught_up, spool.life_begin = False, False, False, spool.end
        spool.arrived_at = 0.0
        await self._fill(spool, pod, ended=ended, skip=0)

    async def _fill(self, spool: Spool, pod: PodSight, *, ended: bool, skip: int) -> None:
        try:
            for attempt in range(_TRIES):
                try:
                    await self._read_once(spool, pod, ended=ended, skip=skip)
                except OutputGoneError as error:
                    log.info("%s: %s", pod.name, error, extra={"run_id": pod.run})
                    if attempt + 1 < _TRIES:
                        await asyncio.sleep(_PAUSE)  # a kubelet that has just started answers so too
                        continue
                if ended or await self._has_ended(pod):
                    spool.end_life(pod)
                else:
                    log.info("reading the output of pod %s ended before the pod did, trying again", pod.name)
                return
        except RefusedError as error:
            # The pod, its node or its output is gone, and nothing more will come; or, of a pod that lives, the kubelet is away.
            log.info("the rest of the output of pod %s is not available: %s", pod.name, error)
            if ended:
                spool.end_life(pod)
        except KubeError as error:
            log.info("cannot read the output of pod %s now, trying again: %s", pod.name, error)
            if ended:
                spool.end_life(pod)
        except Exception as error:  # noqa: BLE001 - contained: the next reader tries again
            contain("output", error, pod.name, run=pod.run)
            if ended:
                spool.end_life(pod)
        finally:
            spool.fresh.set()

    async def _has_ended(self, pod: PodSight) -> bool:
        """Return whether a pod whose followed log has ended writes nothing more. Raises KubeError.

        An API server ends a followed log without an error when the kubelet stops, too, and the member may write on. A kubelet reports
        the end of a pod a moment after that of its log.
        """
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE)
            try:
                now = see(await self._api.get(PODS, pod.namespace, pod.name))
            except NotFoundError:
                return True
            if now is None or now.uid != pod.uid or now.is_over:
                return True
        return False

    async def _read_once(self, spool: Spool, pod: PodSight, *, ended: bool, skip: int) -> None:
        """Read until the log ends. Raises OutputGoneError for a kubelet's error text in place of output; KubeError."""
        query = {"container": pod.container}
        if not ended:
            query["follow"] = "true"
        held: bytes | None = b""
        """First bytes, which may still turn out to be a kubelet's error text."""
        async with self._api.stream(PODS.path(pod.namespace, pod.name, "log"), query, silence=_SILENCE) as body:
            async for piece in body.iter_chunked(_PIECE):
                chunk = piece
                if held is not None:
                    held += chunk
                    if _may_be_excuse(held):
                        continue
                    chunk, held = held, None
                if skip:
                    chunk, skip = chunk[skip:], max(0, skip - len(chunk))
                if chunk:
                    spool.add(chunk)
                    await spool.pace()
        if held and _UNABLE.fullmatch(held):
            raise OutputGoneError(held.decode(errors="replace").strip())
        if held:
            spool.add(held[skip:])


def key_of(pod: PodSight) -> Key:
    return pod.run, pod.role, pod.index


def _may_be_excuse(text: bytes) -> bool:
    start = text.lstrip()
    return len(text) <= _LONGEST_UNABLE and any(start.startswith(one[: len(start)]) for one in _BEGINNINGS)


def _cancel(spool: Spool) -> None:
    if spool.task is not None:
        spool.task.cancel()
