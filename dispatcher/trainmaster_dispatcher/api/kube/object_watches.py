"""Watches of schedules and of workflows: changes since a version, as clients' caches need them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import orjson
from fastapi import Request, Response

from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.kube.calls import Listing, ListToken, listed
from trainmaster_dispatcher.api.kube.job_watches import WatchEvent, frame
from trainmaster_dispatcher.api.kube.object_changes import LOOK_SECONDS, XID_BITS, ObjectChanges
from trainmaster_dispatcher.api.kube.objects import ListMetadata, Wire
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.api.kube.selectors import FieldRequirement, parse_fields
from trainmaster_dispatcher.api.kube.tables import table_of
from trainmaster_dispatcher.api.kube.watching import WatchTerms, bookmark, error_frame, expired, start_of, streaming
from trainmaster_dispatcher.api.limits import CountedStream, StreamKind
from trainmaster_dispatcher.domain.redaction import rendered_json
from trainmaster_dispatcher.services.job_queries import make_cursor
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

T = TypeVar("T")
_NAME = "metadata.name"


class ObjectFacts(NamedTuple):
    """Facts of a row that a watch needs: its key, its queue and the namespace of that, the transaction that made it, and whether its
    object exists no more.
    """

    key: int
    queue: str
    namespace: str
    created_xid: int
    is_gone: bool


@dataclass(frozen=True, slots=True)
class ChosenObjects(ABC, Generic[T]):
    """The objects that a list or a watch is about, and how it wants them. ``selects``: by labels and fields."""

    resource: ApiResource
    caller: Caller
    namespace: str | None
    selects: Callable[[Wire], bool]
    wanted: Listing
    is_table: bool

    @abstractmethod
    def facts(self, one: T) -> ObjectFacts:
        """Return the facts of a row that a watch needs."""

    @abstractmethod
    def item(self, one: T) -> Wire:
        """Return the object that a row is."""

    @abstractmethod
    async def page(self, tx: Transaction, cursor: str | None) -> tuple[Sequence[T], str | None]:
        """Return a page of the rows that exist, and the cursor of the next one."""

    def has(self, one: T) -> bool:
        """Return whether a row is an object of the resource."""
        return True

    def is_about(self, one: T) -> bool:
        """Return whether a row is in the place that the call is about, and the caller may see it."""
        facts = self.facts(one)
        return self.has(one) and self.namespace in (None, facts.namespace) and self.caller.may_use(facts.queue)

    @property
    def _named(self) -> Iterator[FieldRequirement]:
        """Yield the requirements of names."""
        for part in self.wanted.fields.split(","):
            if part.strip().partition("=")[0].rstrip("!=") == _NAME:
                yield from parse_fields(part, (_NAME,), self.resource.plural)

    def frame(self, event: WatchEvent, item: Wire) -> bytes:
        if self.is_table:
            item = table_of(self.resource.columns, [item], self.wanted.included, ListMetadata())
        return frame(event, rendered_json(orjson.dumps(item), self.caller.may_use))

    def changed(self, one: T, begin: int) -> bytes:
        """Return the event of a row that has changed since ``begin``: one that no longer matches is deleted to the watch."""
        if not self.is_about(one):
            return b""
        item, facts = self.item(one), self.facts(one)
        if not all(requirement.holds(item["metadata"]["name"]) for requirement in self._named):
            return b""  # names never change, so that it cannot have matched before
        if facts.is_gone or not self.selects(item):
            return self.frame(WatchEvent.DELETED, item)
        return self.frame(WatchEvent.ADDED if facts.created_xid >= begin & XID_BITS else WatchEvent.MODIFIED, item)


async def list_objects(request: Request, state: State, chosen: ChosenObjects[T]) -> Response:
    """Answer with a page of objects. Raises ProblemError."""
    wanted = chosen.wanted
    token = ListToken.read(wanted.following)
    items: list[Wire] = []
    cursor = token.cursor
    async with state.stores.database.reading() as tx:
        version = token.version or (await versions.horizon(tx)).version
        while True:
            page, following = await chosen.page(tx, cursor)
            for one in page:
                if chosen.is_about(one) and chosen.selects(item := chosen.item(one)):
                    items.append(item)
                if len(items) == wanted.limit:
                    is_last = following is None and one is page[-1]
                    after = None if is_last else make_cursor(chosen.facts(one).key)
                    metadata = ListMetadata(version, ListToken(version, after).written())
                    return listed(request, wanted, items, chosen.resource, metadata)
            cursor = following
            if cursor is None:
                return listed(request, wanted, items, chosen.resource, ListMetadata(version))


async def watch_objects(
    request: Request, state: State, chosen: ChosenObjects[T], changes: ObjectChanges[T]
) -> Response:
    """Answer a watch of objects. Raises ProblemError EXPIRED for a version from which changes are no longer known."""
    wanted = chosen.wanted
    is_from_now = not wanted.version or bool(wanted.wants_initial)
    version = await start_of(state, 0 if is_from_now else wanted.version)
    stream = state.limits.open_stream(request.scope, StreamKind.EVENTS, state.events.wake)
    return streaming(_events(state, chosen, changes, version, stream, sends_all=is_from_now))


async def _events(
    state: State,
    chosen: ChosenObjects[T],
    changes: ObjectChanges[T],
    version: int,
    stream: CountedStream,
    *,
    sends_all: bool,
) -> AsyncIterator[bytes]:
    wanted, resource = chosen.wanted, chosen.resource
    terms = WatchTerms(wanted, stream)
    if sends_all and wanted.wants_initial is not False:
        async for existing in _existing(state, chosen):
            yield existing
        if wanted.wants_initial:
            yield bookmark(version, resource, is_table=chosen.is_table, is_initial=True)
    while not terms.is_over:
        try:
            batch = await changes.after(version)
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


async def _existing(state: State, chosen: ChosenObjects[T]) -> AsyncIterator[bytes]:
    """Yield the events of the objects that exist, by pages."""
    cursor: str | None = None
    while True:
        async with state.stores.database.reading() as tx:
            page, cursor = await chosen.page(tx, cursor)
        items = [chosen.item(one) for one in page if chosen.is_about(one)]
        yield b"".join(chosen.frame(WatchEvent.ADDED, item) for item in items if chosen.selects(item))
        if cursor is None:
            return
