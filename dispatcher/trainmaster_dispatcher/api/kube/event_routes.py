"""Events of jobs, schedules and workflows by the Kubernetes API: all that are stored of one of them, or those of the last hour."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fastapi import Request, Response

from trainmaster.protocol.ids import BadIdError, job_id, parse_job_id
from trainmaster_dispatcher.api.context import App, State
from trainmaster_dispatcher.api.kube.calls import (
    KubernetesRouter,
    ListedBy,
    Listing,
    ListToken,
    listed,
    person,
    selector,
    shown,
    wants_table,
)
from trainmaster_dispatcher.api.kube.events import (
    EVENT_FIELDS,
    InvolvedJob,
    event_object,
    folded,
    schedule_event,
    workflow_event,
)
from trainmaster_dispatcher.api.kube.job_resources import OWN_JOBS, JobResource, submitted_as
from trainmaster_dispatcher.api.kube.job_selection import filter_of
from trainmaster_dispatcher.api.kube.job_watches import WatchEvent
from trainmaster_dispatcher.api.kube.objects import GROUP_VERSION, ListMetadata, Wire
from trainmaster_dispatcher.api.kube.resources import EVENTS
from trainmaster_dispatcher.api.kube.selectors import parse_fields
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.api.kube.watching import Followed, Watch, each_page, frames
from trainmaster_dispatcher.domain.namespaces import namespace_of
from trainmaster_dispatcher.services import job_objects, workflow_objects
from trainmaster_dispatcher.services.event_feed import EventFilter, Position
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store import job_objects as store
from trainmaster_dispatcher.store import jobs, schedules, versions, workflow_events
from trainmaster_dispatcher.store.event_feed import FeedEvent
from trainmaster_dispatcher.store.keys import Caller

router = KubernetesRouter()

_MOST_OF_SCHEDULES = 500
_MOST_OF_WORKFLOWS = 500
KEPT_SECONDS = 3600.0
"""The age of the oldest events in lists that are not of one job: that to which an API server keeps events."""
_ALL = "/api/v1/namespaces/{namespace}/events"


@router.get("/api/v1/events")
async def list_all_events(request: Request, state: App, wanted: ListedBy) -> Response:
    return await _list(request, state, wanted, None)


@router.get(_ALL)
async def list_events(namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
    return await _list(request, state, wanted, namespace)


@router.get(f"{_ALL}/{{name}}")
async def show_event(namespace: str, name: str, request: Request, state: App) -> Response:
    caller = await person(request)
    text, _, number = name.rpartition(".")
    with suppress(BadIdError):
        key = parse_job_id(text)[1]
        async with state.stores.database.reading() as tx:
            job = (await job_objects.read(tx, [key])).get(key)
            if job is not None and number.isdecimal() and len(number) < 10:
                involved = _involved(job, submitted_as(job.metadata.kind))
                found = await jobs.events_after(tx, key, int(number) - 1, 1)
                if (
                    found
                    and involved.namespace == namespace
                    and found[0].seq == int(number)
                    and caller.may_use(job.line["queue"])
                ):
                    return shown(request, event_object(found[0], involved, job.metadata.version), EVENTS)
    raise not_found(EVENTS.full_name, name)


@dataclass(frozen=True, slots=True)
class _ChosenEvents:
    """The events that a call is about. ``job``: the name of the object of one job; None for those of all.

    ``fields``: the values by which they are selected.
    """

    request: Request
    wanted: Listing
    caller: Caller
    namespace: str | None
    job: str | None
    fields: Mapping[str, str]

    @classmethod
    def of(cls, request: Request, wanted: Listing, caller: Caller, namespace: str | None) -> "_ChosenEvents":
        """Return what a call chooses. Raises ProblemError INVALID_PARAMETER."""
        fields = parse_fields(wanted.fields, EVENT_FIELDS, "events")
        values = {one.path: one.value for one in fields if not one.is_negated}
        place = values.get("involvedObject.namespace", values.get("metadata.namespace", namespace))
        return cls(request, wanted, caller, namespace or place or None, values.get("involvedObject.name"), values)

    def resource_of(self, job: ReadJob) -> JobResource:
        """Return the resource as which a job is the object of its events: the one as which it was submitted, or where the call is
        about its Job of this system, that.
        """
        of = submitted_as(job.metadata.kind)
        own = {"apiVersion": GROUP_VERSION, "uid": OWN_JOBS.uid(str(job.line["id"]))}
        wants_own = any(self.fields.get(f"involvedObject.{field}") == value for field, value in own.items())
        is_other = self.fields.get("involvedObject.kind", of.resource.kind) != of.resource.kind
        return OWN_JOBS if wants_own or is_other else of

    async def filter(self, state: State) -> EventFilter | None:
        """Return the filter of the feed of events; None if no event can match."""
        async with state.stores.database.reading() as tx:
            found = await filter_of(tx, self.caller, self.namespace, {})
        if found is None:
            return None
        queues = None if found.queues is None else frozenset(one.path for one in found.queues)
        return EventFilter(self.caller, found.wanted, queues=queues)

    def added(self, items: Iterable[Wire]) -> bytes:
        """Return those of these events that the selectors select, as a watch has them."""
        selects = selector(self.wanted, EVENT_FIELDS, "events")
        included = self.wanted.included if wants_table(self.request) else None
        return frames(WatchEvent.ADDED, filter(selects, items), EVENTS, self.caller, included)


def _involved(job: ReadJob, of: JobResource) -> InvolvedJob:
    return _involved_as(of, str(job.line["id"]), job.name, job.namespace)


def _involved_as(of: JobResource, text: str, name: str, namespace: str) -> InvolvedJob:
    resource = of.resource
    return InvolvedJob(text, name, namespace, resource.group_version, resource.kind, of.uid(text))


async def _list(request: Request, state: State, wanted: Listing, namespace: str | None) -> Response:
    chosen = _ChosenEvents.of(request, wanted, await person(request), namespace)
    selects = selector(wanted, EVENT_FIELDS, "events")
    if wanted.is_watch:
        return await _watch(state, chosen)
    token = ListToken.read(wanted.following)
    async with state.stores.database.reading() as tx:
        version = token.version or (await versions.horizon(tx)).version
    items, following = await _page(state, chosen, token.cursor)
    if token.cursor is None:
        items += [*await _of_schedules(state, chosen), *await _of_workflows(state, chosen)]
    items = [item for item in items if selects(item)]
    return listed(request, wanted, items, EVENTS, ListMetadata(version, ListToken(version, following).written()))


async def _page(state: State, chosen: _ChosenEvents, cursor: str | None) -> tuple[list[Wire], str | None]:
    """Return a page of the chosen events, and the cursor of the next one."""
    return await (_of_all if chosen.job is None else _of_one_job)(state, chosen, cursor)


async def _of_one_job(state: State, chosen: _ChosenEvents, cursor: str | None) -> tuple[list[Wire], str | None]:
    """Return the events of the jobs whose objects have the name, also of deleted ones; and the cursor of the next page."""
    begin = int(cursor) if cursor and cursor.isdecimal() else 0
    limit = chosen.wanted.limit
    items: list[Wire] = []
    following: str | None = None
    async with state.stores.database.reading() as tx:
        keys = await job_objects.find_all(tx, chosen.caller, chosen.namespace, chosen.job or "")
        for key, job in (await job_objects.read(tx, keys)).items():
            found = await jobs.events_after(tx, key, begin, limit)
            involved = _involved(job, chosen.resource_of(job))
            items += folded(event_object(one, involved, job.metadata.version) for one in found)
            if len(found) == limit:
                following = str(found[-1].seq)
    return items, following


async def _of_schedules(state: State, chosen: _ChosenEvents) -> list[Wire]:
    """Return the events of schedules: those of the name, or of all in the last hour."""
    async with state.stores.database.reading() as tx:
        if chosen.job is not None:
            named = await schedules.named_schedules(tx, chosen.job, namespace=chosen.namespace)
            found = await schedules.events_of_schedules(tx, [row.id for row in named], None, _MOST_OF_SCHEDULES)
        else:
            found = await schedules.events_of_schedules(tx, None, KEPT_SECONDS, _MOST_OF_SCHEDULES)
    wants_own = chosen.fields.get("involvedObject.apiVersion") == GROUP_VERSION
    return [
        schedule_event(one, is_own=wants_own)
        for one in found
        if chosen.caller.may_use(one.queue) and chosen.namespace in (None, one.namespace)
    ]


async def _of_workflows(state: State, chosen: _ChosenEvents) -> list[Wire]:
    """Return the events of workflows: those of the name, or of all in the last hour."""
    async with state.stores.database.reading() as tx:
        ids: list[int] | None = None
        seconds: float | None = KEPT_SECONDS
        if chosen.job is not None:
            named = await workflow_objects.named(tx, chosen.caller, chosen.job, chosen.namespace)
            ids, seconds = [one.row.id for one in named], None
        found = await workflow_events.events_of_workflows(tx, ids, seconds, _MOST_OF_WORKFLOWS)
    return [
        workflow_event(one)
        for one in found
        if chosen.caller.may_use(one.queue) and chosen.namespace in (None, one.namespace)
    ]


async def _of_all(state: State, chosen: _ChosenEvents, cursor: str | None) -> tuple[list[Wire], str | None]:
    """Return a page of the events of the last hour, oldest first, and the cursor of the next page."""
    wanted = await chosen.filter(state)
    if wanted is None:
        return [], None
    position = Position.read(cursor) if cursor else await state.events.since(time.time() - KEPT_SECONDS)
    page = await state.events.page(position, wanted, chosen.wanted.limit)
    items = await _objects(state, page.events, page.position.store_epoch)
    return items, page.position.written() if page.has_more else None


async def _objects(state: State, events: Sequence[FeedEvent], epoch: int) -> list[Wire]:
    """Return events of the feed as objects."""
    if not events:
        return []
    async with state.stores.database.reading() as tx:
        metadata = await store.of_jobs(tx, {one.job_id for one in events})
    found = []
    for event in events:
        text = job_id(event.name or "", event.job_id)
        known = metadata.get(event.job_id)
        name = text if known is None or known.name is None else known.name
        version = (epoch << versions.VERSION_BITS) + event.xid
        of = submitted_as(None if known is None else known.kind)
        namespace = known.namespace if known is not None and known.namespace else namespace_of(event.queue)
        found.append(event_object(event, _involved_as(of, text, name, namespace), version))
    return found


async def _watch(state: State, chosen: _ChosenEvents) -> Response:
    """Answer a watch of events. Raises ProblemError EXPIRED for a version from which events are no longer known."""
    wanted = await chosen.filter(state)

    async def read(position: Position) -> Followed:
        found = await state.events.after(position)
        matching = [one for one in found.events if wanted is not None and wanted.matches(one)]
        items = await _objects(state, matching, found.position.store_epoch)
        return Followed(chosen.added(items), found.position, found.has_more, found.missed)

    existing = each_page(lambda cursor: _existing(state, chosen, cursor))
    watch = Watch(EVENTS, chosen.wanted, wants_table(chosen.request), existing, read)
    return await watch.answer(chosen.request, state)


async def _existing(state: State, chosen: _ChosenEvents, cursor: str | None) -> tuple[bytes, str | None]:
    """Return a page of the events that a list would have, and the cursor of the next one."""
    items, following = await _page(state, chosen, cursor)
    return chosen.added(items), following
