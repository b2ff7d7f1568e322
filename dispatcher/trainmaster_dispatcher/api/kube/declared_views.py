"""Views of declared objects as callers see them, for lists and watches: read at most once a second for each kind and caller.

What is shown beside a specification, such as the numbers of a queue's jobs, changes without a change of the object. A watch therefore
compares views; it begins with the view of the list from whose version it goes on, if that is still known.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from pydantic import ValidationError

from trainmaster.protocol.base import format_time
from trainmaster_dispatcher.api.kube.objects import GROUP_VERSION, Wire, moment, object_name, uid_of
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.domain import managed_fields
from trainmaster_dispatcher.domain.managed_fields import Managed, Manager, Operation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.leader_queries import Leader
from trainmaster_dispatcher.store import declared_metadata as store
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.declared_metadata import AppliedFields, DeclaredMetadata
from trainmaster_dispatcher.store.keys import Caller

_YOUNG_SECONDS = 1.0
_MOST_VIEWS = 64
_MOST_KEPT = 4
"""The most earlier views of a kind and caller that are kept, for watches that go on from them."""
_VOLATILE = ("lastContact",)
"""What changes all the time, and would be a change of the object each second."""


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """The objects of a kind that a caller sees, by name, as JSON as well. ``version``: below which all changes are seen; ``latest``: a
    change that is seen has a lower version.
    """

    version: int
    latest: int
    items: Mapping[str, tuple[Wire, bytes]]

    def values(self) -> list[Wire]:
        """Return the objects, by name."""
        return [item for item, _ in self.items.values()]


@dataclass(slots=True)
class _Views:
    kept: OrderedDict[int, DeclaredView] = field(default_factory=OrderedDict)
    read_at: float = float("-inf")
    reading: asyncio.Task[DeclaredView] | None = None


class DeclaredViews:
    """The views of one process."""

    def __init__(self, stores: Stores, leader: Leader, clock: Callable[[], float] = time.monotonic) -> None:
        self._stores = stores
        self._leader = leader
        self._clock = clock
        self._views: OrderedDict[tuple[str, int], _Views] = OrderedDict()

    async def now(
        self, resource: ApiResource, of: DeclaredKind[Any, Any], caller: Caller, *, is_fresh: bool
    ) -> DeclaredView:
        """Return the objects that a caller sees now, or with ``is_fresh`` false at most a second ago. Raises ProblemError."""
        views = self._of(resource, caller)
        if not is_fresh and views.kept and self._clock() - views.read_at < _YOUNG_SECONDS:
            return next(reversed(views.kept.values()))
        if is_fresh or views.reading is None or views.reading.done():
            # Of no request: that of the first caller may end before the others.
            views.reading = asyncio.create_task(
                self._read(views, resource, of, caller), name="declared objects", context=Context()
            )
        return await asyncio.shield(views.reading)

    def at(self, resource: ApiResource, caller: Caller, version: int) -> DeclaredView | None:
        """Return the view of this version, if it is still known."""
        return self._of(resource, caller).kept.get(version)

    def _of(self, resource: ApiResource, caller: Caller) -> _Views:
        key = resource.plural, caller.key_id
        views = self._views.setdefault(key, _Views())
        self._views.move_to_end(key)
        while len(self._views) > _MOST_VIEWS:
            self._views.popitem(last=False)
        return views

    async def _read(
        self, views: _Views, resource: ApiResource, of: DeclaredKind[Any, Any], caller: Caller
    ) -> DeclaredView:
        begun = self._clock()
        async with self._stores.database.reading() as tx:
            before = await versions.horizon(tx)
            known = await store.of_kind(tx, of.table)
            managers = await store.managers(tx, of.kind.kind)
        shown = await of.every(self._stores, self._leader, caller)
        async with self._stores.database.reading() as tx:
            latest = (await versions.horizon(tx)).latest
        items: dict[str, tuple[Wire, bytes]] = {}
        for one in sorted(shown, key=lambda one: str(of.kind.name_in(one))):
            name = of.kind.name_in(one)
            if name in known:  # one that was made meanwhile is seen next time
                item = declared_object(resource, of, one, known[name], managers.get(name, ()), is_admin=caller.is_admin)
                items[item["metadata"]["name"]] = item, orjson.dumps(item)
        view = DeclaredView(before.version, latest, items)
        views.kept[view.version] = view
        views.kept.move_to_end(view.version)
        while len(views.kept) > _MOST_KEPT:
            views.kept.popitem(last=False)
        views.read_at = begun
        return view


def declared_object(
    resource: ApiResource,
    of: DeclaredKind[Any, Any],
    shown: Mapping[str, Any],
    known: DeclaredMetadata,
    managers: Sequence[AppliedFields],
    *,
    is_admin: bool,
) -> Wire:
    """Return a declared object: what is declared is its spec, and what is shown beside it its status.

    An admin sees a specification as it was written, if it still means the same.
    """
    fields = {info.alias or name for name, info in of.kind.spec.model_fields.items()} - {"kind", of.kind.key}
    spec = {key: value for key, value in shown.items() if key in fields}
    if is_admin and known.spec is not None and meaning(of, known.name, known.spec) == known.wire:
        spec = known.spec
    status = {
        key: value for key, value in shown.items() if key not in fields and key not in ("kind", "name", *_VOLATILE)
    }
    name = object_name(known.name)
    metadata: Wire = {
        "name": name,
        "uid": declared_uid(resource, name, known.created_at),
        "resourceVersion": str(known.version),
        "creationTimestamp": moment(format_time(known.created_at)),
    }
    for key, value in (("labels", known.labels), ("annotations", known.annotations)):
        if value:
            metadata[key] = value
    if is_admin and managers:
        metadata["managedFields"] = managed_fields.write(_managers(managers), GROUP_VERSION)
    found = {"apiVersion": GROUP_VERSION, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return found | ({"status": status} if status else {})


def declared_uid(resource: ApiResource, name: str, created_at: datetime | None) -> str:
    """Return the uid of an object: one that is created again has another."""
    return uid_of(resource.kind, f"{name} {'' if created_at is None else created_at.isoformat()}")


def _managers(applied: Sequence[AppliedFields]) -> dict[str, Managed]:
    found = {}
    for one in applied:
        operation = Operation.UPDATE if one.applied_at is None else Operation.APPLY
        time_of_it = "" if one.applied_at is None else str(moment(format_time(one.applied_at)))
        paths = frozenset(("spec", *path) for path in one.fields)
        found[Manager(one.applier, operation).key] = Managed(paths, time_of_it)
    return found


def meaning(of: DeclaredKind[Any, Any], name: str, spec: Mapping[str, Any]) -> Any:
    """Return a specification as it would be stored; None if it means nothing to this release."""
    with suppress(ValidationError, ValueError):
        return of.kind.spec.model_validate(of.kind.spec.long_form({**spec, of.kind.key: name})).to_wire()
    return None
