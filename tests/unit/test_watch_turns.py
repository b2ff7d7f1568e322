"""Watches of many callers: their turns in the event loop, and the batches that they share."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from trainmaster_dispatcher.api.kube.job_watches import JobWatches
from trainmaster_dispatcher.api.kube.watch_turns import WatchTurns
from trainmaster_dispatcher.services.event_feed import EventFeed, FeedPage, Position
from trainmaster_dispatcher.store.event_feed import FeedPlace


class TestTurns:
    async def test_a_round_of_the_loop_has_a_few_of_them_in_the_order_in_which_they_came(self) -> None:
        turns = WatchTurns(per_round=3)
        begun: list[int] = []

        async def watch(number: int) -> None:
            await turns.take()
            begun.append(number)

        tasks = [asyncio.create_task(watch(number)) for number in range(10)]
        seen = []
        while not all(task.done() for task in tasks):
            before = len(begun)
            await asyncio.sleep(0)
            seen.append(len(begun) - before)
        assert begun == list(range(10))
        assert max(seen) == 3

    async def test_a_watch_that_has_ended_takes_no_turn_of_another(self) -> None:
        turns = WatchTurns(per_round=1)
        tasks = [asyncio.create_task(turns.take()) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        await asyncio.wait_for(tasks[4], 5)
        await asyncio.wait_for(turns.take(), 5)


@dataclass
class _Feed:
    """A feed without events whose end moves on."""

    reads: list[int] = field(default_factory=list)
    xid: int = 10

    @property
    def end(self) -> Position:
        return Position(1, FeedPlace(self.xid), 1.0)

    async def after(self, position: Position) -> FeedPage:
        self.reads.append(position.place.xid)
        await asyncio.sleep(0)
        return FeedPage((), self.end, has_more=False)


def _watches(feed: _Feed) -> JobWatches:
    return JobWatches(cast(Any, None), cast(EventFeed, feed))


class TestBatches:
    async def test_watches_that_have_come_as_far_share_a_read_also_when_more_happens_meanwhile(self) -> None:
        feed = _Feed()
        watches = _watches(feed)
        begin = Position(1, FeedPlace(5), 1.0)
        first = await watches.after(begin)
        feed.xid = 20
        second = await watches.after(begin)
        assert (first.position.place.xid, first.has_more) == (10, False)
        assert (second.position.place.xid, second.has_more) == (10, True)  # its reader goes on at once
        third = await watches.after(second.position)
        assert (third.position.place.xid, third.has_more) == (20, False)
        assert feed.reads == [5, 10]

    async def test_a_watch_that_is_at_the_end_reads_again_once_there_is_more(self) -> None:
        feed = _Feed()
        watches = _watches(feed)
        end = feed.end
        assert (await watches.after(end)).position == end
        assert (await watches.after(end)).position == end
        assert feed.reads == [10]
        feed.xid = 11
        assert (await watches.after(end)).position.place.xid == 11
        assert feed.reads == [10, 10]
