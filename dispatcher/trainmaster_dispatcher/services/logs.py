"""Logs of a job wherever it runs: what is stored of its output, then the agent's stream while a run lives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from trainmaster.protocol.agent import LogChunk, OutputPiece, StreamPush
from trainmaster.protocol.base import format_time
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id, run_id
from trainmaster_dispatcher.services import output
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.followers import STREAM_SECONDS, Followers
from trainmaster_dispatcher.services.job_actions import find_job
from trainmaster_dispatcher.services.output import Extent, Mark, MemberOutput, Text, of_members, time_of
from trainmaster_dispatcher.store import agents, runs
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import output as output_store
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import CLUSTERS, JOBS, wait_set

_LOOK_SECONDS = 2.0
_MOST_SECONDS_UNLOOKED = 10.0
"""Longest time between two checks of a run that sends output all the time."""
_SILENT_SECONDS = 8.0
"""Time that a reader who does not follow waits for an agent's next chunk."""
TAIL_BYTES = 65_536
WHOLE = 1 << 30
"""Bytes of a tail that mean the whole output."""
_GAP: dict[str, Any] = {}
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
    tail_lines: int | None = None
    since: float | None = None
    """Seconds since the epoch: only output that was first seen then or later."""
    previous: bool = False
    """Whether the output before the last restart of each member is wanted, in place of all."""
    offset: int | None = None
    """Begin at this byte of each member's output, in place of the tail."""
    limit: int | None = None
    """At most this many bytes of each member."""
    timestamps: bool = False
    received: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The offset up to which a reader who has lost its connection has each member's output of the run ``first``."""

    @property
    def first_attempt(self) -> int | None:
        """The attempt to begin with; None for the newest."""
        return self.attempt or self.first

    @property
    def extent(self) -> Extent:
        last_bytes = None if self.offset is not None or self.tail_lines is not None else self.tail_bytes
        return Extent(last_bytes, self.tail_lines, self.since, self.offset, self.limit)

    @property
    def is_stored_only(self) -> bool:
        """Return whether a part of what exists is wanted, which a live run's agent cannot send."""
        return self.previous or self.offset is not None or self.limit is not None

    @property
    def reads_times(self) -> bool:
        return self.timestamps or self.since is not None

    def wants(self, role: str, index: int) -> bool:
        return self.role in (None, role) and self.index in (None, index)


@dataclass(slots=True)
class _Seen:
    """The offset to which each member's output has been passed on, so that repeated chunks are dropped."""

    options: LogOptions
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    started: frozenset[tuple[str, int]] = frozenset()
    """Members whose output the agent's stream began where the reader was."""

    def has_gap(self, chunk: LogChunk) -> bool:
        """Return whether output is missing before a chunk that its agent may have, as one that was started again meanwhile."""
        place = chunk.role, chunk.index
        return place not in self.started and chunk.offset > self.offsets.get(place, chunk.offset)

    def news(self, chunk: LogChunk) -> Iterator[dict[str, Any]]:
        """Yield what is new in a chunk of a live run's agent."""
        if self.options.wants(chunk.role, chunk.index):
            marks = [(one.offset, one.at) for one in chunk.marks]
            text = Text(chunk.offset, chunk.next_offset, chunk.data.encode(), marks)
            yield from self.pieces(chunk.role, chunk.index, text)

    def pieces(self, role: str, index: int, text: Text, wanted: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield output that was not passed on yet, with the bytes that are missing before it.

        ``wanted``: where output was to begin; None: wherever this does.
        """
        place = (role, index)
        seen = self.offsets.get(place, wanted)
        if seen is not None and text.next <= seen:
            return
        data, offset = text.data, text.offset
        if seen is not None and offset < seen:
            data, offset = data[seen - offset :], seen
        self.offsets[place] = text.next
        missed = offset - seen if seen is not None else 0
        for begin, end, at in self._stretches(offset, text.next, text.marks):
            out: dict[str, Any] = {
                "role": role,
                "index": index,
                "data": (data[begin - offset :] if end == text.next else data[begin - offset : end - offset]).decode(
                    errors="replace"
                ),
                "offset": begin,
                "next": end,
            }
            if missed > 0:
                out["missed"], missed = missed, 0
            if at is not None:
                out["at"] = format_time(datetime.fromtimestamp(at, UTC))
            yield out

    def _stretches(self, start: int, end: int, marks: Sequence[Mark]) -> Iterator[tuple[int, int, float | None]]:
        """Yield begin, end and time of stretches of output that were first seen together; one without times if nobody wants them."""
        if not self.options.timestamps:
            yield start, end, None
            return
        inner = [offset for offset, _ in marks if start < offset < end]
        for begin, after in zip([start, *inner], [*inner, end], strict=True):
            yield begin, after, time_of(marks, begin)


async def find(stores: Stores, caller: Caller, text: str, options: LogOptions) -> int:
    """Return the key of a job. Raises ProblemError NOT_FOUND when the job is not the caller's, or lacks the wanted member or attempt:
    its output would be empty for ever. Who follows may name an attempt that is to come.
    """
    async with stores.database.transaction() as tx:
        job = await find_job(tx, caller, text)
        if options.role is not None or options.index is not None:
            spec = (await job_store.specs(tx, [job.spec_id]))[job.spec_id]
            _check_member(text, spec, options)
    _check_attempt(text, job, options)
    return job.id


def _check_member(text: str, spec: Mapping[str, Any], options: LogOptions) -> None:
    sizes = {str(role["name"]): int(role.get("replicas", 1)) for role in spec["roles"]}
    if options.role is not None and options.role not in sizes:
        raise ProblemError(Code.NOT_FOUND, f"{text} has no role {options.role!r}; it has: {', '.join(sizes)}")
    most = max(size for name, size in sizes.items() if options.role in (None, name))
    if options.index is not None and options.index >= most:
        raise ProblemError(Code.NOT_FOUND, f"{text} has no member {options.index}; the indexes go from 0 to {most - 1}")


def _check_attempt(text: str, job: job_store.ShownJob, options: LogOptions) -> None:
    wanted = options.first_attempt
    if wanted is None or wanted <= job.attempt or (options.follow and not job.state.is_terminal):
        return
    there_are = f"its latest run is {job.attempt}" if job.attempt else "it has no run yet"
    raise ProblemError(Code.NOT_FOUND, f"{text} has no run {wanted}; {there_are}")


async def read(
    stores: Stores, followers: Followers, key: int, text: str, options: LogOptions, check: Callable[[], None]
) -> AsyncIterator[dict[str, Any]]:
    """Yield output of a job as it arrives, one object per piece; ``note`` objects say what happens in between.

    ``check`` raises ProblemError once the caller may not go on; it is called every few seconds, and at each change of the job.
    """
    attempt = options.first_attempt
    with stores.channels.waiter(JOBS, key) as changed:
        while True:
            check()
            async with followers.reads, stores.database.transaction() as tx:
                job = await job_store.view(tx, key)
                attempts = {row.attempt: row for row in await runs.of_job(tx, key)}
            if job is None:
                return
            if job.has_element_jobs:
                yield {
                    "note": f"the elements of {text} are jobs with output of their own: trainmaster logs {text} --element 0"
                }
                return
            over = job.state.is_terminal
            if attempt is None and attempts:
                attempt = max(attempts)
            row = attempts.get(attempt) if attempt is not None else None
            if row is not None and attempt is not None:
                run = run_id(text, attempt)
                yield {"note": f"{run} on {row.cluster}, {row.state}", "run": run}
                following = _Following(stores, followers, row, RunRef(key, attempt), options, changed, check)
                received = dict(options.received) if attempt == options.first else {}
                async for piece in following.output(_Seen(options, received)):
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


async def _stored(stores: Stores, ref: RunRef, seen: _Seen, *, is_live: bool) -> AsyncIterator[dict[str, Any]]:
    """Yield the stored output of a run. ``is_live``: its agent has the end of it, from which a tail is counted."""
    options = seen.options
    async with stores.database.transaction() as tx:
        rows, members, tails = (
            await output_store.pieces(tx, ref, options.role, options.index, with_marks=options.reads_times),
            await output_store.members(tx, ref),
            await runs.tails(tx, ref),
        )
    outputs = of_members(rows, members)
    for tail in tails:
        end = tail.start + len(tail.data.encode()) if tail.next is None else tail.next
        member = outputs.setdefault((tail.role, tail.member_index), MemberOutput(tail.role, tail.member_index))
        marks = [(int(offset), at) for offset, at in tail.marks]
        member.add_tail(tail.start, end, tail.data.encode(), marks)
        member.lives = max(member.lives, tail.lives, key=len)
    for (role, index), member in sorted(outputs.items()):
        if not options.wants(role, index) or not member.parts:
            continue
        if is_live and not _is_whole(options):
            continue  # where its tail begins is known to its agent
        begin, end_of_life = member.life(previous=True) if options.previous else (0, None)
        seen_to = seen.offsets.get((role, index))
        extent = Extent() if is_live else options.extent if seen_to is None else Extent(offset=seen_to)
        wanted: int | None = max(begin, extent.offset or 0)
        if extent.last_bytes is not None:
            wanted = max(wanted or 0, member.end - extent.last_bytes)
        if extent.last_lines is not None or extent.since is not None:
            wanted = None
        async for text in output.read(stores, ref, member, extent, begin, end_of_life):
            for piece in seen.pieces(role, index, text, wanted):
                yield piece


def _is_whole(options: LogOptions) -> bool:
    """Return whether all output is wanted from its begin on."""
    return options.tail_bytes >= WHOLE and options.tail_lines is None and options.since is None


@dataclass(frozen=True, slots=True)
class _Following:
    """One reader of a run's output."""

    stores: Stores
    followers: Followers
    row: runs.ShownRun
    ref: RunRef
    options: LogOptions
    changed: asyncio.Event
    """Set when the job has changed."""
    check: Callable[[], None]

    async def output(self, seen: _Seen) -> AsyncIterator[dict[str, Any]]:
        """Yield the output of the run: what is stored, what its agent sends while it lives, and what is stored at its end."""
        if not self.row.state.is_terminal and not self.options.is_stored_only:
            async for piece in _stored(self.stores, self.ref, seen, is_live=True):
                yield piece
            is_over = False
            while not is_over:
                is_over = True
                async for piece in self.live(seen):
                    if piece is _GAP:
                        is_over = False
                    else:
                        yield piece
        async for piece in _stored(self.stores, self.ref, seen, is_live=False):
            yield piece

    async def live(self, seen: _Seen) -> AsyncIterator[dict[str, Any]]:
        """Yield what the agent sends, until the run has ended. Costs the store nothing while nothing changes.

        ``_GAP`` is the last piece where output is missing: another stream begins where this one has.
        """
        stores, cluster_id = self.stores, self.row.cluster_id
        stream = stores.channels.new_stream()
        seen.started = frozenset(seen.offsets)
        async with stores.channels.following(stream) as inbox:
            is_reachable = await _open(stores, stream, cluster_id, self.ref, seen)
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
                            if any(seen.has_gap(chunk) for chunk in push.chunks):
                                yield _GAP
                                return
                            for chunk in push.chunks:
                                for piece in seen.news(chunk):
                                    yield piece
                            if push.end:
                                if self.options.follow:
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


async def _open(stores: Stores, stream: str, cluster_id: int, ref: RunRef, seen: _Seen) -> bool:
    """Ask a cluster's agent for output that was not seen yet; return whether the cluster is reachable."""
    options = seen.options
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
                "tailLines": options.tail_lines,
                "since": options.since,
                "starts": [
                    {"role": role, "index": index, "offset": offset} for (role, index), offset in seen.offsets.items()
                ],
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


def _last_of_each(chunks: Sequence[OutputPiece]) -> list[runs.StoredTail]:
    """Return the newest tail of each member, cut to the stored size."""
    newest = {(chunk.role, chunk.index): _end_of(chunk, TAIL_BYTES) for chunk in chunks}
    return [
        runs.StoredTail(
            chunk.role,
            chunk.index,
            chunk.offset,
            chunk.data,
            chunk.next_offset,
            [[float(one.offset), one.at] for one in chunk.marks],
            list(chunk.lives),
        )
        for chunk in newest.values()
    ]


def _end_of(chunk: OutputPiece, most: int) -> OutputPiece:
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
