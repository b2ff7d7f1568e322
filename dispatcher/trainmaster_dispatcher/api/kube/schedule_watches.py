"""Watches of schedules: changes since a version, as clients' caches need them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import orjson
from fastapi import Request, Response

from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.kube.calls import Listing
from trainmaster_dispatcher.api.kube.job_watches import WatchEvent, frame
from trainmaster_dispatcher.api.kube.objects import ListMetadata, Wire
from trainmaster_dispatcher.api.kube.schedule_changes import LOOK_SECONDS, XID_BITS
from trainmaster_dispatcher.api.kube.schedule_objects import ScheduleResource
from trainmaster_dispatcher.api.kube.tables import table_of
from trainmaster_dispatcher.api.kube.watching import WatchTerms, bookmark, error_frame, expired, start_of, streaming
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.domain.redaction import rendered_json
from trainmaster_dispatcher.services import schedules
from trainmaster_dispatcher.services.schedules import ReadSchedule
from trainmaster_dispatcher.store.keys import Caller


@dataclass(frozen=True, slots=True)
class WatchedSchedules:
    """The schedules that a watch is about, and how it wants them. ``selects``: by labels and fields."""

    of: ScheduleResource
    caller: Caller
    namespace: str | None
    selects: Callable[[Wire], bool]
    wanted: Listing
    is_table: bool

    def is_about(self, one: ReadSchedule) -> bool:
        """Return whether a schedule is in the place that the watch is about, and the caller may see it."""
        return self.of.has(one) and self.namespace in (None, one.row.namespace) and self.caller.may_use(one.row.queue)

    def frame(self, event: WatchEvent, item: Wire) -> bytes:
        if self.is_table:
            item = table_of(self.of.resource.columns, [item], self.wanted.included, ListMetadata())
        return frame(event, rendered_json(orjson.dumps(item), self.caller.may_use))

    def changed(self, one: ReadSchedule, begin: int) -> bytes:
        """Return the event of a schedule that has changed since ``begin``: one that no longer matches is deleted to the watch."""
        if not self.is_about(one):
            return b""
        item = self.of.item(one)
        if one.row.deleted_at is not None or not self.selects(item):
            return self.frame(WatchEvent.DELETED, item)
        return self.frame(WatchEvent.ADDED if one.row.created_xid >= begin & XID_BITS else WatchEvent.MODIFIED, item)


async def watch_schedules(request: Request, state: State, chosen: WatchedSchedules) -> Response:
    """Answer a watch of schedules. Raises ProblemError EXPIRED for a version from which changes are no longer known."""
    wanted = chosen.wanted
    is_from_now = not wanted.version or bool(wanted.wants_initial)
    version = await start_of(state, 0 if is_from_now else wanted.version)
    stream = state.limits.open_stream(request.scope, StreamKind.EVENTS, state.events.wake)
    return streaming(_events(state, chosen, version, stream, sends_all=is_from_now))


async def _events(
    state: State, chosen: WatchedSchedules, version: int, stream: CountedStream, *, sends_all: bool
) -> AsyncIterator[bytes]:
    wanted, resource = chosen.wanted, chosen.of.resource
    terms = WatchTerms(wanted, stream)
    if sends_all and wanted.wants_initial is not False:
        cursor: str | None = None
        while True:
            async with state.stores.database.reading() as tx:
                page, cursor = await schedules.page(tx, chosen.caller, None, cursor, 500, chosen.of.kind)
            items = [chosen.of.item(one) for one in page if chosen.is_about(one)]
            yield b"".join(chosen.frame(WatchEvent.ADDED, item) for item in items if chosen.selects(item))
            if cursor is None:
                break
        if wanted.wants_initial:
            yield bookmark(version, resource, is_table=chosen.is_table, is_initial=True)
    while not terms.is_over:
        try:
            batch = await state.schedule_watches.after(version)
        except ProblemError:
            await asyncio.sleep(LOOK_SECONDS)  # the store does not answer; nothing is lost by that
            continue
        if not batch.is_known:
            yield error_frame(expired(version))
            return
        found = b"".join(chosen.changed(one, version) for one in batch.changed)
        if found:
            yield found
        version = batch.version
        if terms.is_bookmark_due(version):
            yield bookmark(version, resource, is_table=chosen.is_table)
        await asyncio.sleep(LOOK_SECONDS)
    if last := terms.last_words():
        yield last
