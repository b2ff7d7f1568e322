"""Logs of a job wherever it runs: the agent's stream while a run lives, the stored tail after its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from trainmaster.protocol.agent import LogChunk, StreamPush
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id, run_id
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.followers import STREAM_SECONDS, Followers
from trainmaster_dispatcher.services.job_actions import find_key
from trainmaster_dispatcher.store import agents, runs
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import CLUSTERS, JOBS, wait_set

_LOOK_SECONDS = 2.0
_MOST_SECONDS_UNLOOKED = 10.0
"""Longest time between two checks of a run that sends output all the time."""
_SILENT_SECONDS = 8.0
"""Time that a reader who does not follow waits for an agent's next chunk."""
TAIL_BYTES = 65_536
_closings: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The wanted output. ``attempt`` None means the newest run, and when following, those after it.

    ``first``: the run to begin with in place of the newest one.
    """

    follow: bool = False
    role: str | None = None
    index: int | None = None
    attempt: int | None = None
    tail_bytes: int = TAIL_BYTES
    first: int | None = None


@dataclass(slots=True)
class _Seen:
    """The offset to which each member's output has been passed on, so that repeated chunks are dropped."""

    options: LogOptions
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def news(self, chunk: LogChunk) -> dict[str, Any] | None:
        place = (chunk.role, chunk.index)
        wanted = self.options.role in (None, chunk.role) and self.options.index in (None, chunk.index)
        seen = self.offsets.get(place)
        if not wanted or (seen is not None and chunk.next_offset <= seen):
            return None
        data, offset = chunk.data, chunk.offset
        if seen is not None and offset < seen:
            data, offset = data.encode()[seen - offset :].decode(errors="replace"), seen
        self.offsets[place] = chunk.next_offset
        out: dict[str, Any] = {
            "role": chunk.role,
            "index": chunk.index,
            "data": data,
            "offset": offset,
            "next": chunk.next_offset,
        }
        if seen is not None and chunk.offset > seen:
            out["missed"] = chunk.offset - seen
        return out


async def find(stores: Stores, caller: Caller, text: str) -> int:
    """Return the key of a job. Raises ProblemError when the job is not the caller's."""
    async with stores.database.transaction() as tx:
        return await find_key(tx, caller, text)


async def read(
    stores: Stores, followers: Followers, key: int, text: str, options: LogOptions, check: Callable[[], None]
) -> AsyncIterator[dict[str, Any]]:
    """Yield output of a job as it arrives, one object per piece; ``note`` objects say what happens in between.

    ``check`` raises ProblemError once the caller may not go on; it is called every few seconds, and at each change of the job.
    """
    attempt = options.attempt or options.first
    with stores.channels.waiter(JOBS, key) as changed:
        while True:
            check()
            async with followers.reads, stores.database.transaction() as tx:
                job = await job_store.view(tx, key)
                attempts = {row.attempt: row for row in await runs.of_job(tx, key)}
            if job is None:
                return
            over = job.state.is_terminal
            if attempt is None and attempts:
                attempt = max(attempts)
            row = attempts.get(attempt) if attempt is not None else None
            if row is not None and attempt is not None:
                run = run_id(text, attempt)
                yield {"note": f"{run} on {row.cluster}, {row.state}", "run": run}
                seen = _Seen(options)
                if not row.state.is_terminal:
                    following = _Following(stores, followers, row, RunRef(key, attempt), options, changed, check)
                    async for piece in following.live(seen):
                        yield piece
                async for piece in _kept(stores, RunRef(key, attempt), seen):
                    yield piece
                if not options.follow or options.attempt is not None:
                    return
                attempt += 1
                if over or attempt in attempts:
                    if attempt not in attempts:
                        yield {"end": job.state}
                        return
                    continue
            elif over or not options.follow:
                yield {"end": job.state} if over else {"note": f"the job is {job.state}, it has no output yet"}
                return
            await wait_set(changed, _LOOK_SECONDS)


async def _kept(stores: Stores, ref: RunRef, seen: _Seen) -> AsyncIterator[dict[str, Any]]:
    async with stores.database.transaction() as tx:
        tails = await runs.tails(tx, ref)
    for tail in tails:
        end = tail.start + len(tail.data.encode()) if tail.next is None else tail.next
        chunk = LogChunk(role=tail.role, index=tail.member_index, offset=tail.start, data=tail.data, next_offset=end)
        if (chunk.role, chunk.index) not in seen.offsets:
            chunk = _end_of(chunk, seen.options.tail_bytes)
        piece = seen.news(chunk)
        if piece is not None:
            yield piece


@dataclass(frozen=True, slots=True)
class _Following:
    """One follower of a run that has not ended."""

    stores: Stores
    followers: Followers
    row: runs.ShownRun
    ref: RunRef
    options: LogOptions
    changed: asyncio.Event
    """Set when the job has changed."""
    check: Callable[[], None]

    async def live(self, seen: _Seen) -> AsyncIterator[dict[str, Any]]:
        """Yield what the agent sends, until the run has ended. Costs the store nothing while nothing changes."""
        stores, cluster_id = self.stores, self.row.cluster_id
        stream = stores.channels.new_stream()
        async with stores.channels.following(stream) as inbox:
            is_reachable = await _open(stores, stream, cluster_id, self.ref, self.options)
            was_reachable = True  # so that an unreachable cluster is reported
            try:
                with self.followers.stream(stream, cluster_id, is_reachable=is_reachable):
                    heard = looked = stores.clock()
                    while True:
                        self.check()
                        data = await inbox.next(_LOOK_SECONDS)
                        if data is not None:
                            heard = stores.clock()
                            push = StreamPush.model_validate_json(data)
                            for chunk in push.chunks:
                                if piece := seen.news(chunk):
                                    yield piece
                            if push.end:
                                await _await_end(stores, self.ref)
                                return
                        if data is None or stores.clock() - looked > _MOST_SECONDS_UNLOOKED:
                            looked = stores.clock()
                            if await self._has_ended():
                                return
                            reachable = self.followers.is_reachable(cluster_id)
                            if note := self._silence(heard, reachable=reachable):
                                yield {"note": note}
                                return
                            if reachable != was_reachable:
                                state = "is back" if reachable else "is unreachable; its output follows when it is back"
                                yield {"note": f"cluster {self.row.cluster} {state}"}
                            was_reachable = reachable
                            yield {"alive": True}
            finally:
                # A follower who disconnects cancels whatever is awaited here; closing the stream goes on nevertheless.
                closing = asyncio.create_task(_close(stores, stream))
                _closings.add(closing)
                closing.add_done_callback(_closings.discard)
                await asyncio.shield(closing)

    async def _has_ended(self) -> bool:
        if not self.changed.is_set():
            return False
        self.changed.clear()
        async with self.followers.reads, self.stores.database.transaction() as tx:
            return await runs.has_ended(tx, self.ref)

    def _silence(self, heard: float, *, reachable: bool) -> str | None:
        """Return why a reader who does not follow need not wait for more, or None."""
        if self.options.follow or (reachable and self.stores.clock() - heard <= _SILENT_SECONDS):
            return None
        why = "does not send its output" if reachable else "is unreachable"
        return f"cluster {self.row.cluster} {why}; below is what was kept, if anything"


async def _close(stores: Stores, stream: str) -> None:
    with suppress(ProblemError):
        async with stores.database.transaction() as tx:
            await agents.close_stream(tx, stream)


async def _open(stores: Stores, stream: str, cluster_id: int, ref: RunRef, options: LogOptions) -> bool:
    """Ask a cluster's agent for output; return whether the cluster is reachable."""
    async with stores.database.transaction() as tx:
        version = (await runs.raise_desired(tx, [cluster_id]))[cluster_id]
        await agents.open_stream(
            tx,
            stream,
            cluster_id=cluster_id,
            job_id=ref.job_key,
            attempt=ref.attempt,
            options={
                "follow": options.follow,
                "roles": [options.role] if options.role else [],
                "index": options.index,
                "tailBytes": options.tail_bytes,
            },
            desired=version,
            seconds=STREAM_SECONDS,
        )
        is_reachable = bool(await agents.reachable(tx, [cluster_id]))
    stores.channels.wake(CLUSTERS, [cluster_id])
    return is_reachable


async def _await_end(stores: Stores, ref: RunRef) -> None:
    """Wait a little for the run's end to be stored, with the tail, after the agent has sent all output."""
    with stores.channels.waiter(JOBS, ref.job_key) as changed:
        for _ in range(3):
            async with stores.database.transaction() as tx:
                if await runs.has_ended(tx, ref):
                    return
            await wait_set(changed, 1.0)


async def push(stores: Stores, caller: Caller, stream: str, body: StreamPush) -> None:
    """Accept chunks from an agent: for a follower, or, under a run's id, the tail to store.

    Raises ProblemError STREAM_CLOSED when nobody follows the stream any more.
    """
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    ref = _run_of(stream)
    async with stores.database.transaction() as tx:
        if not await agents.is_current(tx, caller.cluster_id, body.session):
            raise superseded()
        if ref is not None:
            record = (await runs.lock(tx, [ref])).get(ref)
            if record is None or record.cluster_id != caller.cluster_id:
                raise ProblemError(Code.NOT_FOUND, f"this cluster has no run {stream!r}")
            await runs.save_tails(tx, ref, _last_of_each(body.chunks))
            return
        if not await agents.stream_is_open(tx, stream, caller.cluster_id):
            raise ProblemError(Code.STREAM_CLOSED, "nobody follows this stream any more")
    stores.channels.relay(stream, orjson.dumps(body.model_dump(mode="json", by_alias=True)))


def _last_of_each(chunks: Sequence[LogChunk]) -> list[tuple[str, int, int, str, int]]:
    """Return the newest tail of each member, cut to the stored size: role, index, byte offset, text, next offset."""
    newest = {(chunk.role, chunk.index): _end_of(chunk, TAIL_BYTES) for chunk in chunks}
    return [(chunk.role, chunk.index, chunk.offset, chunk.data, chunk.next_offset) for chunk in newest.values()]


def _end_of(chunk: LogChunk, most: int) -> LogChunk:
    """Return the chunk's last ``most`` bytes at most."""
    data = chunk.data.encode()
    cut = len(data) - most
    if cut <= 0:
        return chunk
    return chunk.model_copy(update={"offset": chunk.offset + cut, "data": data[cut:].decode(errors="ignore")})


def _run_of(stream: str) -> RunRef | None:
    try:
        return parse_run_id(stream)
    except BadIdError:
        return None
