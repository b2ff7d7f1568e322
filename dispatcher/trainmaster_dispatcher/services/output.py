"""Members' output that is stored: taken from agents piece by piece, and read again by lines, by time or whole.

Each member's output has offsets in bytes from 0 on. What was not stored is a gap between two pieces: readers are told its bytes.
"""

import asyncio
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.protocol.agent import OutputAnswer, OutputPiece, OutputPush, StoredOutput
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id
from trainmaster.protocol.jobs import MOST_MEMBERS
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents
from trainmaster_dispatcher.store import output as store
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.output import NewPiece, StoredMember, StoredPiece

_LEVEL = 1
"""Of compression: higher ones take several times as long for a few percent."""
_SLACK = 1 << 20
"""Bytes beyond the limit that are still stored: agents send whole pieces."""

Member = tuple[str, int]
Mark = tuple[int, float]
"""Offset, and seconds since the epoch at which what follows was first seen."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A piece to be stored."""

    role: str
    index: int
    start: int
    next: int
    text: bytes
    marks: list[list[float]]


def accept(
    pieces: Iterable[OutputPiece], known: Mapping[Member, StoredMember], most: int
) -> tuple[list[Accepted], dict[Member, StoredMember]]:
    """Return the pieces to store, and the new values of their members.

    What is stored already is left out, so that repeating a call changes nothing. ``most``: the bytes that are stored of a member;
    what comes beyond is passed over, which leaves a gap.
    """
    accepted: list[Accepted] = []
    members = dict(known)
    for piece in pieces:
        place = (piece.role, piece.index)
        member = members[place]
        if piece.lives and len(piece.lives) >= len(member.lives):
            member = member._replace(lives=list(piece.lives))
        if piece.data and piece.next_offset > member.next:
            text, start = piece.data.encode(), piece.offset
            if start < member.next:
                text, start = text[member.next - start :], member.next
            if member.bytes + len(text) <= most + _SLACK:
                marks = [[float(one.offset), one.at] for one in piece.marks]
                accepted.append(Accepted(piece.role, piece.index, start, piece.next_offset, text, marks))
                member = member._replace(bytes=member.bytes + len(text))
            member = member._replace(next=piece.next_offset)
        members[place] = member
    return accepted, members


async def take(stores: Stores, caller: Caller, run: str, body: OutputPush) -> OutputAnswer:
    """Store pieces of output of a run on the caller's cluster; return up to where the output of these members is stored.

    Raises ProblemError NOT_FOUND for a run that is not on the cluster, SESSION_SUPERSEDED, and STORE_AWAY.
    """
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    try:
        ref = parse_run_id(run)
    except BadIdError as error:
        raise ProblemError(Code.NOT_FOUND, f"{run!r} is not the id of a run") from error
    places = {(piece.role, piece.index) for piece in body.pieces}
    async with stores.database.transaction() as tx:
        if not await agents.is_current(tx, caller.cluster_id, body.session):
            raise superseded()
        roles = await store.roles_of(tx, ref, caller.cluster_id)
        if roles is None:
            raise ProblemError(Code.NOT_FOUND, f"this cluster has no run {run!r}")
        strange = next(
            (f"{role}-{index}" for role, index in places if role not in roles or index >= MOST_MEMBERS), None
        )
        if strange is not None:
            raise ProblemError(Code.NOT_FOUND, f"run {run!r} has no member {strange!r}")
        await store.note_members(tx, ref, places)
        known = _by_place(await store.members(tx, ref), places)
    accepted, members = accept(body.pieces, known, stores.settings.output_bytes)
    packed = await asyncio.to_thread(_packed, ref, accepted)
    if packed:
        await stores.logs.put(packed)
    async with stores.database.transaction() as tx:
        now = _by_place(await store.members(tx, ref, lock=True), places)
        # A repeated call may have stored the same meanwhile; its pieces are as good.
        same = {place for place in places if now.get(place) == known[place]}
        new = [
            NewPiece(one.role, one.index, one.start, one.next, one.text.count(b"\n"), one.marks, len(packed[key]))
            for one in accepted
            if (one.role, one.index) in same and (key := store.key_of(ref, one.role, one.index, one.start))
        ]
        await store.save(tx, ref, [members[place] for place in sorted(same) if members[place] != known[place]], new)
    stored = {**now, **{place: members[place] for place in same}}
    return OutputAnswer(
        stored=tuple(
            StoredOutput(role=role, index=index, next_offset=stored[role, index].next)
            for role, index in sorted(places & stored.keys())
        )
    )


def _by_place(rows: Iterable[StoredMember], places: set[Member]) -> dict[Member, StoredMember]:
    return {(row.role, row.member_index): row for row in rows if (row.role, row.member_index) in places}


def _packed(ref: RunRef, accepted: Sequence[Accepted]) -> dict[str, bytes]:
    return {store.key_of(ref, one.role, one.index, one.start): zlib.compress(one.text, _LEVEL) for one in accepted}


# Reading


class OutputPart(NamedTuple):
    """A part of a member's output: its offsets, and its text where that is known without the log store."""

    start: int
    next: int
    lines: int
    marks: Sequence[Mark]
    text: bytes | None


@dataclass(frozen=True, slots=True)
class Text:
    """Output from ``offset`` on. ``marks``: times of what follows their offsets."""

    offset: int
    next: int
    data: bytes
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class Extent:
    """The wanted output of each member: whole, or less. With several bounds the least output."""

    last_bytes: int | None = None
    last_lines: int | None = None
    since: float | None = None
    """Seconds since the epoch: only what was first seen at that time or later."""
    offset: int | None = None
    """Only from this offset on."""
    limit: int | None = None
    """At most this many bytes."""


@dataclass(slots=True)
class MemberOutput:
    """The stored output of one member: pieces of the log store, then the tail that its agent sent at the end."""

    role: str
    index: int
    parts: list[OutputPart] = field(default_factory=list)
    lives: Sequence[int] = ()

    @property
    def end(self) -> int:
        return self.parts[-1].next if self.parts else 0

    def add_tail(self, start: int, next_offset: int, text: bytes, marks: Sequence[Mark] = ()) -> None:
        """Add the last output; what the pieces have already is left out."""
        if self.parts and start < self.end:
            cut = self.end - start
            start, text = self.end, text[cut:]
            if next_offset <= start:
                return
        self.parts.append(OutputPart(start, next_offset, text.count(b"\n"), marks, text))

    def life(self, previous: bool) -> tuple[int, int | None]:
        """Return begin and end of the output of the last life, or of the one before; the end None: there is no later life."""
        begins = [0, *self.lives]
        if not previous:
            return begins[-1], None
        return (begins[-2], begins[-1]) if len(begins) > 1 else (0, 0)


def of_members(rows: Iterable[StoredPiece], members: Iterable[StoredMember]) -> dict[Member, MemberOutput]:
    """Return the stored output by member, without the tails."""
    found = {(one.role, one.member_index): MemberOutput(one.role, one.member_index, lives=one.lives) for one in members}
    for row in rows:
        output = found.setdefault((row.role, row.member_index), MemberOutput(row.role, row.member_index))
        marks = [(int(offset), at) for offset, at in row.marks]
        output.parts.append(OutputPart(row.start, row.next, row.lines, marks, None))
    return found


async def read(
    stores: Stores, ref: RunRef, output: MemberOutput, extent: Extent, begin: int = 0, end: int | None = None
) -> AsyncIterator[Text]:
    """Yield the wanted output of a member, part by part. ``begin``, ``end``: only between these offsets."""
    start = max(begin, _start_by_count(output.parts, extent))
    lines_left = _lines_before(output.parts, extent)
    left = extent.limit
    for number, part in enumerate(output.parts):
        if part.next <= start or (end is not None and part.start >= end) or left == 0:
            continue
        data = part.text
        if data is None:
            packed = await stores.logs.get(store.key_of(ref, output.role, output.index, part.start))
            if packed is None:
                continue  # a gap: the next part's offset tells
            data = await asyncio.to_thread(zlib.decompress, packed)
        offset = part.start
        if lines_left is not None and number == lines_left.part:
            cut = _after_lines(data, lines_left.skip)
            data, offset = data[cut:], offset + cut
        if offset < start:
            data, offset = data[start - offset :], start
        next_offset = part.next
        if end is not None and next_offset > end:
            data, next_offset = data[: end - offset], end
        if left is not None and len(data) > left:
            data, next_offset = data[:left], offset + left
        if left is not None:
            left -= len(data)
        if data:
            yield Text(offset, next_offset, data, part.marks)


class _FirstLines(NamedTuple):
    """The part with which the last lines begin, and how many line ends of it are before them."""

    part: int
    skip: int


def _lines_before(parts: Sequence[OutputPart], extent: Extent) -> _FirstLines | None:
    """Return where the wanted last lines begin; None where they are the whole output.

    The last line counts although it may have no end; a piece whose text is not known here is taken to end with a line.
    """
    if extent.last_lines is None or not parts:
        return None
    last = parts[-1].text
    ends = extent.last_lines if last is None or last.endswith(b"\n") else extent.last_lines - 1
    count = 0
    for number in range(len(parts) - 1, -1, -1):
        count += parts[number].lines
        if count > ends:
            return _FirstLines(number, count - ends)
    return None


def _after_lines(data: bytes, lines: int) -> int:
    """Return the offset after ``lines`` line ends."""
    at = 0
    for _ in range(lines):
        found = data.find(b"\n", at)
        if found < 0:
            return len(data)
        at = found + 1
    return at


def _start_by_count(parts: Sequence[OutputPart], extent: Extent) -> int:
    """Return the first wanted offset, lines apart."""
    start = extent.offset or 0
    if not parts:
        return start
    if extent.last_bytes is not None:
        start = max(start, parts[-1].next - extent.last_bytes)
    if (first := _lines_before(parts, extent)) is not None:
        start = max(start, parts[first.part].start)
    if extent.since is not None:
        marks = [mark for part in parts for mark in part.marks]
        later = next((offset for offset, at in marks if at >= extent.since), None)
        start = max(start, parts[-1].next if later is None and marks else later or 0)
    return start


def time_of(marks: Sequence[Mark], offset: int) -> float | None:
    """Return when the output at this offset was first seen; None where that is unknown."""
    place = bisect_right(marks, offset, key=lambda mark: mark[0]) - 1
    return marks[place][1] if place >= 0 else None
