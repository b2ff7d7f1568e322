"""Logs of a job wherever it runs: what the agent streams while a run lives, what was kept when it ended."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import orjson

from trainmaster.dispatcher.services.agents import superseded
from trainmaster.dispatcher.services.steer import find_key
from trainmaster.dispatcher.services.stores import Stores
from trainmaster.dispatcher.store import agents, runs
from trainmaster.dispatcher.store import jobs as job_store
from trainmaster.dispatcher.store.keys import Caller
from trainmaster.dispatcher.store.soft import CLUSTERS, JOBS, wait_set
from trainmaster.protocol.agent import LogChunk, StreamPush
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id, run_id
from trainmaster.protocol.states import JobState, RunState

STREAM_SECONDS = 30.0
"""A stream that its follower does not keep alive for so long is over."""
_LOOK_SECONDS = 2.0
_SILENT_SECONDS = 8.0
"""Who does not follow waits so long for an agent's next piece."""
TAIL_BYTES = 65_536
_closings: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which output is wanted. ``attempt`` None means the newest run, and when following, those after it.

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
    """How far each member's output has been passed on, so that repeated chunks are dropped."""

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


async def read(stores: Stores, caller: Caller, text: str, options: LogOptions) -> AsyncIterator[dict[str, Any]]:
    """Output of a job as it comes, one object per piece; ``note`` objects say what happens in between.

    Raises ProblemError before the first piece when the job is not the caller's.
    """
    async with stores.database.transaction() as tx:
        key = await find_key(tx, caller, text)
    return _read(stores, key, text, options)


async def _read(stores: Stores, key: int, text: str, options: LogOptions) -> AsyncIterator[dict[str, Any]]:
    attempt = options.attempt or options.first
    with stores.soft.waiter(JOBS, key) as changed:
        while True:
            async with stores.database.transaction() as tx:
                job = await job_store.view(tx, key)
                attempts = {row.attempt: row for row in await runs.of_job(tx, key)}
            if job is None:
                return
            over = JobState(job.state).is_terminal
            if attempt is None and attempts:
                attempt = max(attempts)
            row = attempts.get(attempt) if attempt is not None else None
            if row is not None and attempt is not None:
                run = run_id(text, attempt)
                yield {"note": f"{run} on {row.cluster}, {row.state}", "run": run}
                seen = _Seen(options)
                if not RunState(row.state).is_terminal:
                    async for piece in _live(stores, row, RunRef(key, attempt), options, seen):
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
        chunk = LogChunk(role=tail.role, index=tail.index, offset=tail.start, data=tail.data, next_offset=end)
        if (chunk.role, chunk.index) not in seen.offsets:
            chunk = _end_of(chunk, seen.options.tail_bytes)
        piece = seen.news(chunk)
        if piece is not None:
            yield piece


async def _live(
    stores: Stores, row: Any, ref: RunRef, options: LogOptions, seen: _Seen
) -> AsyncIterator[dict[str, Any]]:
    stream = token_hex(12)
    async with stores.soft.following(stream) as queue:
        await _open(stores, stream, row.cluster_id, ref, options)
        try:
            kept_alive = heard = stores.clock()
            was_reachable = True
            while True:
                data = await _next(queue, _LOOK_SECONDS)
                if data is not None:
                    heard = stores.clock()
                    push = StreamPush.model_validate_json(data)
                    for chunk in push.chunks:
                        piece = seen.news(chunk)
                        if piece is not None:
                            yield piece
                    if push.end:
                        await _await_end(stores, ref)
                        return
                if data is None or stores.clock() - kept_alive > STREAM_SECONDS / 3:
                    kept_alive = stores.clock()
                    async with stores.database.transaction() as tx:
                        await agents.keep_stream(tx, stream, STREAM_SECONDS)
                        record = (await runs.lock(tx, [ref])).get(ref)
                        reachable = await agents.is_reachable(tx, row.cluster_id)
                    if record is None or record.run.state.is_terminal:
                        return
                    if not options.follow and (not reachable or stores.clock() - heard > _SILENT_SECONDS):
                        why = "does not send its output" if reachable else "is unreachable"
                        yield {"note": f"cluster {row.cluster} {why}; below is what was kept, if anything"}
                        return
                    if reachable != was_reachable:
                        state = "is back" if reachable else "is unreachable; its output follows when it is back"
                        yield {"note": f"cluster {row.cluster} {state}"}
                    was_reachable = reachable
                    yield {"alive": True}
        finally:
            # A follower who hangs up cancels whatever is awaited here; the closing goes on without it.
            closing = asyncio.create_task(_close(stores, stream))
            _closings.add(closing)
            closing.add_done_callback(_closings.discard)
            await asyncio.shield(closing)


async def _close(stores: Stores, stream: str) -> None:
    with suppress(ProblemError):
        async with stores.database.transaction() as tx:
            await agents.close_stream(tx, stream)


async def _open(stores: Stores, stream: str, cluster_id: int, ref: RunRef, options: LogOptions) -> None:
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
    stores.soft.wake(CLUSTERS, [cluster_id])


async def _await_end(stores: Stores, ref: RunRef) -> None:
    """The agent has sent all there is; wait a little for the run's end to be stored, as the tail comes with it."""
    with stores.soft.waiter(JOBS, ref.job_key) as changed:
        for _ in range(3):
            async with stores.database.transaction() as tx:
                record = (await runs.lock(tx, [ref])).get(ref)
            if record is None or record.run.state.is_terminal:
                return
            await wait_set(changed, 1.0)


async def _next(queue: asyncio.Queue[bytes], seconds: float) -> bytes | None:
    """The next item of a queue, or None when it takes longer."""
    try:
        return await asyncio.wait_for(queue.get(), seconds)
    except TimeoutError:
        return None


async def push(stores: Stores, caller: Caller, stream: str, body: StreamPush) -> None:
    """Take chunks from an agent: for a follower, or, under a run's id, the tail to keep.

    Raises ProblemError STREAM_CLOSED when nobody follows any more.
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
    stores.soft.relay(stream, orjson.dumps(body.model_dump(mode="json", by_alias=True)))


def _last_of_each(chunks: Sequence[LogChunk]) -> list[tuple[str, int, int, str, int]]:
    """One tail for each member, its newest and never more than is kept: role, index, byte offset, text, next offset."""
    newest = {(chunk.role, chunk.index): _end_of(chunk, TAIL_BYTES) for chunk in chunks}
    return [(chunk.role, chunk.index, chunk.offset, chunk.data, chunk.next_offset) for chunk in newest.values()]


def _end_of(chunk: LogChunk, most: int) -> LogChunk:
    """The chunk's last bytes, so many at most."""
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
