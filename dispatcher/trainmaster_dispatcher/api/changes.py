"""The route of what has changed, for pages that stay open."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.context import App, JobReader, State
from trainmaster_dispatcher.api.jobs import COMMENT_SECONDS, LOOK_SECONDS, server_sent
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import FeedPosition, QueueFilter
from trainmaster_dispatcher.services.event_feed import Position
from trainmaster_dispatcher.services.job_actions import BulkFilter, to_filter
from trainmaster_dispatcher.services.page_changes import reset_at
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import wait_set

router = documented_router("/v1", "jobs")


@router.get("/changes", **contract(media_type="text/event-stream", refuses=(Code.BAD_CURSOR, Code.UNKNOWN_QUEUE)))
async def follow_changes(
    request: Request,
    state: App,
    caller: JobReader,
    queue: QueueFilter = None,
    every: Annotated[int, Query(ge=1, le=60, description="The least seconds between two events.")] = 2,
    last_event_id: Annotated[
        FeedPosition | None, Header(description="The last id received: only what has changed since.")
    ] = None,
) -> Response:
    """Follow what has changed of all that the caller may see, as server-sent events: for pages that stay open.

    An event `changes` has the jobs that have changed since the last one, each once as it is now, the queues of these jobs, the
    clusters that have reported, and the kinds of declared objects that were changed. It has at most 500 jobs, the latest: with `more`,
    a page reads its list again. Nothing is sent while nothing changes. After an event `reset`, a page reads all again: too much has
    changed, or too long ago.
    """
    position = None if last_event_id is None else Position.read(last_event_id)
    if queue is not None:
        async with state.stores.database.reading() as tx:
            await to_filter(tx, caller, BulkFilter(queue=queue))
    stream = state.limits.open_stream(request.scope, StreamKind.EVENTS, state.page_changes.wake)
    events = server_sent(_changes_for(state, stream, caller, queue, every, position), "open pages")
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _changes_for(
    state: State, stream: CountedStream, caller: Caller, queue: str | None, every: int, position: Position | None
) -> AsyncIterator[bytes]:
    """Yield what has changed, until the caller's key is revoked; at first what has changed since ``position``."""
    group = None
    while group is None:
        try:
            group = await state.page_changes.group_of(caller, queue, every)
        except ProblemError:
            yield b"event: away\ndata: the store does not answer; trying again\n\n"
            await asyncio.sleep(LOOK_SECONDS)
    with state.page_changes.page(group) as changed:
        number, begin = group.number, group.position
        yield b"id: %s\n: from now on\n\n" % (position or begin).written().encode()
        if position is not None:
            try:
                found = await state.page_changes.missed(position, group)
            except ProblemError:
                found = None
            yield reset_at(begin) if found is None else found.seen_by(caller, queue) or b": nothing since\n\n"
        while not stream.is_ended:
            texts = group.after(number)
            number = group.number
            if texts is None:
                yield reset_at(group.position)
            for one in texts or ():
                yield one.text
            if not texts and not await wait_set(changed, COMMENT_SECONDS * random.uniform(0.5, 1)):
                yield b": still here\n\n"
    yield b": the API key was revoked or has expired\n\n"
