"""The route of the events of all jobs that match a filter."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.context import App, JobReader, State, answer, readable
from trainmaster_dispatcher.api.jobs import COMMENT_SECONDS, LOOK_SECONDS, labels_of, server_sent
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import (
    ClassFilter,
    ClusterOfRun,
    FeedPosition,
    GroupFilter,
    JobNameFilter,
    LabelFilter,
    PageLimit,
    QueueFilter,
    SubmitterFilter,
)
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.services.event_feed import EventFilter, Position, job_event_view
from trainmaster_dispatcher.services.job_actions import MOST_LABELS, BulkFilter, ShownState
from trainmaster_dispatcher.store.redis_channels import wait_set

router = documented_router("/v1", "jobs")

_EVENTS_PER_SLICE = 200


@router.get(
    "/events",
    **contract(
        gives=answers.JobEventPage,
        also="text/event-stream",
        refuses=(Code.BAD_CURSOR, Code.UNKNOWN_QUEUE, Code.UNKNOWN_PRIORITY_CLASS, Code.UNKNOWN_GROUP, Code.NOT_FOUND),
    ),
)
async def list_events_of_jobs(
    request: Request,
    state: App,
    caller: JobReader,
    queue: QueueFilter = None,
    state_filter: Annotated[
        list[ShownState] | None,
        Query(alias="state", description="Only transitions by which a job enters one of these states."),
    ] = None,
    kind: Annotated[list[JobEventKind] | None, Query(description="Only transitions of one of these kinds.")] = None,
    name: JobNameFilter | None = None,
    priority_class: ClassFilter = None,
    label: Annotated[
        list[LabelFilter] | None,
        Query(max_length=MOST_LABELS, description="Only of jobs with all of these labels, each as `key=value`."),
    ] = None,
    group: GroupFilter = None,
    cluster: ClusterOfRun = None,
    submitted_by: SubmitterFilter = None,
    after: Annotated[
        FeedPosition | None,
        Query(
            description="Only what is later: `next` of a page or an id of a stream; 0: all that is stored. Without it, from now on."
        ),
    ] = None,
    limit: PageLimit = 1000,
    last_event_id: Annotated[
        FeedPosition | None, Header(description="For a stream: the last id received, instead of `after`.")
    ] = None,
) -> Response:
    """List transitions of all jobs that match, in one order: JSON, or server-sent events with ``Accept: text/event-stream``.

    The transitions of each job are in the order of their versions.
    """
    wanted = EventFilter(
        caller,
        BulkFilter(
            queue=queue,
            states=tuple(state_filter or ()),
            name=name,
            priority_class=priority_class,
            labels=labels_of(label or []),
            group=group,
            cluster=cluster,
            submitted_by=submitted_by,
        ),
        frozenset(one.value for one in kind or ()),
    )
    # Both are read, so that a mistake in the one that does not count is answered as well.
    positions = [Position.read(one) for one in (last_event_id, after) if one is not None]
    position = positions[0] if positions else None
    async with state.stores.database.reading() as tx:
        await wanted.check(tx)
    if "text/event-stream" not in request.headers.get("accept", ""):
        found = await state.events.page(position or await state.events.start(), wanted, limit)
        page = {
            "events": [job_event_view(event, found.position) for event in found.events],
            "next": found.position.written(),
            "more": found.has_more,
        }
        return answer(page | ({"missed": found.missed} if found.missed else {}))
    stream = state.limits.open_stream(request.scope, StreamKind.EVENTS, state.events.wake)
    events = server_sent(_events_of(state, stream, wanted, position), "all jobs of a filter")
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events_of(
    state: State, stream: CountedStream, wanted: EventFilter, position: Position | None
) -> AsyncIterator[bytes]:
    """Yield events as they are committed, until the caller's key is revoked.

    A comment of a silent stream has the id of its position, so that a reader that comes back need not pass over the same events.
    """
    with state.events.waiter() as changed:
        while not stream.is_ended:
            try:
                if position is None:
                    position = await state.events.start()
                    yield b"id: %s\n: from now on\n\n" % position.written().encode()
                found = await state.events.after(position)
            except ProblemError:
                yield b"event: away\ndata: the store does not answer; trying again\n\n"
                await wait_set(changed, LOOK_SECONDS)
                continue
            if found.missed:
                yield b"event: missed\ndata: %s\n\n" % found.missed.encode()
            for number, event in enumerate(found.events, 1):
                if wanted.matches(event):
                    view = job_event_view(event, found.position)
                    parts = view["position"].encode(), event.kind.encode(), readable(view)
                    yield b"id: %s\nevent: %s\ndata: %s\n\n" % parts
                if number % _EVENTS_PER_SLICE == 0:
                    await asyncio.sleep(0)  # let other calls run
            position = found.position
            while not found.has_more and not await wait_set(changed, COMMENT_SECONDS * random.uniform(0.5, 1)):
                yield b"id: %s\n: still here\n\n" % position.written().encode()
    yield b": the API key was revoked or has expired\n\n"
