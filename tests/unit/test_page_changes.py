"""Texts for groups of open pages: when they are made, and what slow readers get; and reads that calls share."""

import asyncio

import orjson
import pytest

from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.services.event_feed import Position
from trainmaster_dispatcher.services.page_changes import MOST_JOBS, PageDelta, PageGroup
from trainmaster_dispatcher.services.shared_reads import SharedReads, visibility_of
from trainmaster_dispatcher.store.event_feed import FeedPlace
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.page_changes import JobLine

ADMIN = Caller(1, "admin", KeyRole.ADMIN)
ANN = Caller(2, "ann", KeyRole.USER, ("org/a",))


def at(xid: int) -> Position:
    return Position(1, FeedPlace(xid), 2_114_380_800.0 + xid)


def changes(xid: int, *lines: tuple[int, str, str]) -> PageDelta:
    return PageDelta(at(xid), {key: JobLine(key, "job", queue, state, None) for key, queue, state in lines})


def data(text: bytes | None) -> dict[str, object]:
    assert text is not None
    found: dict[str, object] = orjson.loads(text.partition(b"data: ")[2])
    return found


def states(text: bytes | None) -> list[str]:
    return [one["state"] for one in data(text)["jobs"]]  # type: ignore[attr-defined]


def group(every: float = 2.0, caller: Caller = ADMIN) -> PageGroup:
    return PageGroup(caller, None, every, at(0), 0.0)


def test_a_text_has_each_job_once_as_it_was_last() -> None:
    pages = group()
    pages.send(0.0)
    assert pages.number == 0, "nothing has changed"
    pages.collect(changes(1, (1, "org/a", "queued"), (2, "org/a", "queued")))
    pages.send(0.0)
    pages.collect(changes(2, (1, "org/a", "running")))
    pages.send(1.0)
    assert pages.number == 1, "the next one is due 2 s after the last"
    pages.collect(changes(3, (1, "org/a", "failed")))
    pages.send(2.0)
    assert [states(one.text) for one in pages.texts] == [["queued", "queued"], ["failed"]]
    assert pages.position == at(3)


def test_changes_that_nobody_of_a_group_sees_make_no_text_but_move_its_position() -> None:
    pages = group(caller=ANN)
    pages.collect(changes(5, (1, "org/ab", "queued")))
    pages.send(10.0)
    assert (pages.number, pages.position) == (0, at(5))


def test_a_text_has_the_newest_changes_and_says_that_there_are_more() -> None:
    many = changes(1, *((key, "org/a", "queued") for key in range(MOST_JOBS + 1)))
    found = data(many.seen_by(ADMIN, None))
    assert (len(found["jobs"]), found["more"]) == (MOST_JOBS, True)  # type: ignore[arg-type]
    assert data(changes(1, (1, "org/a", "queued")).seen_by(ADMIN, None))["more"] is False
    assert data(PageDelta(at(1), is_flood=True).seen_by(ANN, None))["more"] is True


def test_a_slow_reader_is_not_waited_for() -> None:
    pages = group()
    for number in range(20):
        pages.put(b"%d" % number)
    newest = pages.after(18)
    assert newest is not None
    assert [one.text for one in newest] == [b"18", b"19"]
    assert pages.after(20) == ()
    assert pages.after(3) is None, "the texts that it has not received are not kept"
    assert len(pages.texts) < 20


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        (Caller(3, "bob", KeyRole.USER, ("org/a",)), True),
        (Caller(3, "bob", KeyRole.USER, ("org/a", "org/b")), False),
        (Caller(3, "bob", KeyRole.ADMIN, ("org/a",)), False),
        (Caller(3, "bob", KeyRole.OWNER, clusters=("west",)), False),
    ],
)
def test_callers_share_what_they_see_if_role_and_queues_are_equal(other: Caller, is_equal: bool) -> None:
    assert (visibility_of(ANN) == visibility_of(other)) is is_equal


async def test_calls_share_a_read_that_has_not_begun_and_no_other() -> None:
    reads = SharedReads[int](at_once=1)
    begun, go_on = asyncio.Event(), asyncio.Event()
    count = 0

    async def read() -> int:
        nonlocal count
        count += 1
        begun.set()
        await go_on.wait()
        return count

    first = asyncio.create_task(reads.get("a", read))
    await begun.wait()
    later = [asyncio.create_task(reads.get("a", read)) for _ in range(5)]
    other = asyncio.create_task(reads.get("b", read))
    await asyncio.sleep(0)
    later[0].cancel()
    go_on.set()
    assert await first == 1
    assert await asyncio.gather(*later[1:]) == [2, 2, 2, 2], "what was read before they came is not for them"
    assert await other == 3


async def test_an_error_of_a_shared_read_is_raised_to_each_call() -> None:
    reads = SharedReads[int]()

    async def read() -> int:
        raise ValueError("no")

    found = await asyncio.gather(*(reads.get("a", read) for _ in range(3)), return_exceptions=True)
    assert [str(one) for one in found] == ["no"] * 3
