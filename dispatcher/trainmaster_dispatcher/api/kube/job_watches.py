"""Changes of jobs for watches: read once for all watches of a process, and each frame written once for all that want the same.

A watch gets each object in the state in which it is when it is sent. One that has changed again meanwhile is sent with the version of
the change before, and once more with that change.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from enum import StrEnum

import orjson

from trainmaster_dispatcher.api.kube.job_resources import JobResource
from trainmaster_dispatcher.api.kube.objects import ListMetadata, Wire, job_object
from trainmaster_dispatcher.api.kube.selectors import Requirement
from trainmaster_dispatcher.api.kube.tables import Included, table_of
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.redaction import rendered_json
from trainmaster_dispatcher.services import job_objects
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.event_feed import EventFeed, Position
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store.event_feed import FeedEvent, FeedPlace, JobChange
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.versions import VERSION_BITS

_MOST_BATCHES = 8
_ITEMS_PER_SLICE = 100
_XID = (1 << VERSION_BITS) - 1


class WatchEvent(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


def frame(event: WatchEvent, payload: bytes) -> bytes:
    """Return one event of a watch: a line of JSON."""
    return b'{"type":"%s","object":%s}\n' % (event.value.encode(), payload)


@dataclass(frozen=True, slots=True)
class WatchedJobs:
    """The jobs that a watch is about, and how it wants them. ``values``: by fields, of ``JOB_FIELDS``."""

    of: JobResource
    caller: Caller
    namespace: str | None
    labels: tuple[Requirement, ...]
    values: dict[str, str]
    is_table: bool
    included: Included

    def key(self) -> Hashable:
        """Return what is the same for all watches that get the same bytes."""
        rights = None if self.caller.has_every_queue else tuple(self.caller.queues)
        form = self.is_table, self.included
        kind = self.of.resource.full_name, self.of.resource.version
        return kind, rights, self.namespace, self.labels, tuple(sorted(self.values.items())), form

    def is_about(self, job: ReadJob) -> bool:
        """Return whether a job is in the place that the watch is about, and the caller may see it."""
        queue = job.line["queue"]
        place = job.namespace
        return (
            self.of.kind.has(job)
            and self.caller.may_use(queue)
            and self.namespace in (None, place)
            and self.values.get("metadata.namespace", place) == place
            and self.values.get("metadata.name", job.name) == job.name
        )

    def selects(self, job: ReadJob, labels: dict[str, str] | None = None) -> bool:
        """Return whether the selectors select a job, or would with other labels."""
        own = job.line.get("labels", {}) if labels is None else labels
        line = job.line
        return (
            all(one.holds(own) for one in self.labels)
            and self.values.get("status.state", line["shownState"]) == line["shownState"]
            and self.values.get("status.cluster", line.get("cluster", "")) == line.get("cluster", "")
        )

    @property
    def selects_by_status(self) -> bool:
        return any(field.startswith("status.") for field in self.values)

    def payload(self, item: Wire, raw: bytes | None = None) -> bytes:
        """Return an object as the watch wants it, without what the caller may not read. ``raw``: the object as JSON."""
        if self.is_table:
            raw = orjson.dumps(table_of(self.of.resource.columns, [item], self.included, ListMetadata()))
        return rendered_json(raw or orjson.dumps(item), self.caller.may_use)


@dataclass(slots=True)
class _ChangedJob:
    """A job that has changed. ``labels_before``: those that it had before changes of its labels."""

    job: ReadJob
    event: WatchEvent
    labels_before: Sequence[dict[str, str]]
    item: Wire
    raw: bytes

    def payload(self, chosen: WatchedJobs) -> bytes:
        """Return its object as a watch wants it."""
        if chosen.of.kind.name is None:
            return chosen.payload(self.item, self.raw)
        return chosen.payload(chosen.of.item(self.job))


@dataclass(slots=True)
class Batch:
    """The changes of jobs behind a position, and the position behind them. ``missed``: why changes may be missing; else empty."""

    position: Position
    has_more: bool
    missed: str
    changed: Sequence[_ChangedJob]
    _frames: dict[Hashable, asyncio.Task[bytes]] = field(default_factory=dict)
    _by_name: dict[str, list[_ChangedJob]] = field(default_factory=dict)
    _by_namespace: dict[str, list[_ChangedJob]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self._by_name:
            for one in self.changed:
                self._by_name.setdefault(one.job.name, []).append(one)
                self._by_namespace.setdefault(one.job.namespace, []).append(one)

    def _for(self, chosen: WatchedJobs) -> Sequence[_ChangedJob]:
        """Return the changed jobs that a watch may be about: where a thousand people watch their own, few of all."""
        if (name := chosen.values.get("metadata.name")) is not None:
            return self._by_name.get(name, ())
        return self.changed if chosen.namespace is None else self._by_namespace.get(chosen.namespace, ())

    async def frames(self, chosen: WatchedJobs) -> bytes:
        """Return the events of a watch."""
        if not self._for(chosen):
            return b""
        key = chosen.key()
        task = self._frames.get(key)
        if task is None:
            # A task, as others that want the same come while it is written, and of no request: that of the first may end before.
            task = asyncio.create_task(self._written(chosen), name="frames of watched jobs", context=Context())
            self._frames[key] = task
        return await asyncio.shield(task)

    async def _written(self, chosen: WatchedJobs) -> bytes:
        parts = []
        for number, one in enumerate(self._for(chosen), 1):
            event = _event_of(one, chosen)
            if event is not None:
                parts.append(frame(event, one.payload(chosen)))
            if number % _ITEMS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return b"".join(parts)


def _event_of(one: _ChangedJob, chosen: WatchedJobs) -> WatchEvent | None:
    """Return what a watch is told of a changed job: one that no longer matches is deleted to it."""
    if not chosen.is_about(one.job):
        return None
    if chosen.selects(one.job):
        return one.event
    left = chosen.selects_by_status or any(chosen.selects(one.job, labels) for labels in one.labels_before)
    return WatchEvent.DELETED if left else None


class JobWatches:
    """The changes of jobs, read once for all watches of a process that have come as far."""

    def __init__(self, stores: Stores, events: EventFeed) -> None:
        self._stores = stores
        self._events = events
        self._batches: OrderedDict[Hashable, asyncio.Task[Batch]] = OrderedDict()

    async def after(self, position: Position) -> Batch:
        """Return the changes behind a position. Raises ProblemError if the store does not answer.

        They may end before the newest one that is known: many watches take a while to be served, and all that have come as far get the
        same batch, whatever happens meanwhile. Otherwise their positions would differ, and each would need batches of its own.
        """
        key = position.store_epoch, position.place
        task = self._batches.get(key)
        if task is None or (task.done() and not self._leads_on(task, position)):
            # Of no request: that of the first watch may end before the others.
            task = asyncio.create_task(self._read(position), name="watched jobs", context=Context())
            self._batches[key] = task
            while len(self._batches) > _MOST_BATCHES:
                self._batches.popitem(last=False)
        batch = await asyncio.shield(task)
        end = self._events.end
        is_behind = end is not None and not batch.missed and batch.position.place < end.place
        return replace(batch, has_more=True) if is_behind and not batch.has_more else batch

    def _leads_on(self, task: asyncio.Task[Batch], position: Position) -> bool:
        """Return whether the batch of a read that is done is behind its position, or nothing is known to be there."""
        if task.cancelled() or task.exception() is not None or task.result().missed:
            return False
        end = self._events.end
        return task.result().position.place > position.place or (end is not None and end.place <= position.place)

    async def _read(self, position: Position) -> Batch:
        found = await self._events.after(position)
        if found.has_more and not found.missed:
            # Much to catch up with: each job is read once, however many times it has changed, and a part of them at a time, so that a
            # watch which is cut again and again comes further each time.
            changed = await self._events.changed_jobs(position)
            return await self._batch(changed.jobs, changed.position, changed.missed, has_more=changed.has_more)
        return await self._batch(_changes_of(found.events), found.position, found.missed, has_more=False)

    async def _batch(self, changes: Sequence[JobChange], end: Position, missed: str, *, has_more: bool) -> Batch:
        by_job = {one.job_id: one for one in changes}
        changed: list[_ChangedJob] = []
        if by_job:
            async with self._stores.database.reading() as tx:
                jobs = await job_objects.read(tx, by_job)
            dated = [(_version_in(job, by_job[key], end), job) for key, job in jobs.items()]
            for number, (version, job) in enumerate(sorted(dated, key=lambda one: one[0]), 1):
                job = replace(job, metadata=job.metadata._replace(version=version))
                item = job_object(job)
                change = by_job[job.key]
                labels = change.labels_before or ()
                changed.append(_ChangedJob(job, _kind(job, is_new=change.is_new), labels, item, orjson.dumps(item)))
                if number % _ITEMS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        return Batch(end, has_more, missed, changed)


def _changes_of(events: Sequence[FeedEvent]) -> list[JobChange]:
    """Return the jobs of events that were read, as ``EventFeed.changed_jobs`` would."""
    by_job: dict[int, list[FeedEvent]] = {}
    for event in events:
        by_job.setdefault(event.job_id, []).append(event)
    return [
        JobChange(
            key,
            max(one.xid for one in of_job),
            max(one.at.timestamp() for one in of_job),
            any(one.kind == JobEventKind.SUBMITTED for one in of_job),
            [one.details["labelsBefore"] for one in of_job if one.details and "labelsBefore" in one.details],
        )
        for key, of_job in by_job.items()
    ]


def _version_in(job: ReadJob, change: JobChange, end: Position) -> int:
    """Return the version with which a watch gets a job: its own, unless it has changed again since ``end``.

    Then it is that of its last change before, and the job comes again with the later change: a client that goes on from its version
    must not pass over changes of other jobs in between.
    """
    own = job.metadata.version
    return own if own < version_of(end) else min(own, (end.store_epoch << VERSION_BITS) + change.xid)


def _kind(job: ReadJob, *, is_new: bool) -> WatchEvent:
    if job.is_gone:
        return WatchEvent.DELETED
    return WatchEvent.ADDED if is_new else WatchEvent.MODIFIED


def version_of(position: Position) -> int:
    """Return the version of a position."""
    return (position.store_epoch << VERSION_BITS) + position.place.xid


def position_of(version: int, at: float) -> Position:
    """Return the position before all changes of a version and of later ones."""
    return Position(version >> VERSION_BITS, FeedPlace(version & _XID), at)
