"""What etcd and the watch cache are to a real API server: objects, one revision for all, and a bounded past.

Knows nothing of HTTP, of kinds, or of rules: whatever is written here is taken as it is. Single-threaded: every call runs
to its end within one turn of the event loop, so there are no locks.
"""

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tests.fake_kube.objects import Object, copied, now, rfc3339
from tests.fake_kube.resources import ResourceId

_SERVER_OWNED = ("uid", "creationTimestamp")


class ChangeKind(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Key(NamedTuple):
    """Where an object is; ``namespace`` is empty for what belongs to the whole cluster."""

    group_version: str
    plural: str
    namespace: str
    name: str

    @property
    def resource(self) -> ResourceId:
        return ResourceId(self.group_version, self.plural)


@dataclass(frozen=True, slots=True)
class Change:
    """One write. ``old`` is missing for what was added, ``new`` for what was deleted.

    ``last`` is what watchers see go, where a write that was never stored of itself (the last finalizer's removal) did it.
    """

    kind: ChangeKind
    version: int
    key: Key
    new: Object | None
    old: Object | None
    last: Object | None = None

    @property
    def value(self) -> Object:
        """The object after the write, or the last of it."""
        value = self.new or self.last or self.old
        assert value is not None
        return value


class ExpiredError(Exception):
    """A resource version before the past that is still known; ``oldest`` is the first that would do."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"history begins at {oldest}")
        self.oldest = oldest


class Store:
    """Objects by key. ``history`` bounds how many changes of each resource are remembered."""

    def __init__(self, history: int = 10_000) -> None:
        self.version = 1
        self._bound = history
        self._objects: dict[ResourceId, dict[Key, Object]] = {}
        self._keys: dict[str, Key] = {}
        self._past: dict[ResourceId, deque[Change]] = {}
        self._oldest: dict[ResourceId, int] = {}
        self._compacted_version = 0
        self._listeners: list[Callable[[Change], None]] = []
        self._untold: deque[Change] = deque()
        self._telling = False

    def get(self, key: Key) -> Object | None:
        """Return a copy of an object, which the caller may change; None if it does not exist."""
        stored = self.peek(key)
        return None if stored is None else copied(stored)

    def peek(self, key: Key) -> Object | None:
        """Return the stored object itself: to be read only."""
        return self._objects.get(key.resource, {}).get(key)

    def scan(self, resource: ResourceId) -> dict[Key, Object]:
        """Return all of a resource in order of creation, to be read only; the mapping itself is a copy."""
        return dict(self._objects.get(resource, {}))

    def key_of(self, uid: str) -> Key | None:
        return self._keys.get(uid)

    def create(self, key: Key, value: Object) -> Object:
        """Store a new object and return it, read only, with uid, creation time, generation and resource version.

        Raises KeyError when there is one at that key.
        """
        if self.peek(key) is not None:
            raise KeyError(key)
        new = copied(value)
        metadata = new.setdefault("metadata", {})
        metadata.update(name=key.name, uid=str(uuid.uuid4()), creationTimestamp=rfc3339(now()), generation=1)
        if key.namespace:
            metadata["namespace"] = key.namespace
        self._stamp(new)
        self._objects.setdefault(key.resource, {})[key] = new
        self._keys[metadata["uid"]] = key
        self._record(Change(ChangeKind.ADDED, self.version, key, new, None))
        return new

    def update(self, key: Key, value: Object) -> Object:
        """Replace an object and return it, read only; nothing is written when nothing differs, as in a real server.

        The generation rises with any change outside metadata and status. Raises KeyError when there is nothing at that key.
        """
        old = self._objects.get(key.resource, {})[key]
        new = copied(value)
        metadata = new.setdefault("metadata", {})
        metadata.update(name=key.name, resourceVersion=old["metadata"]["resourceVersion"])
        metadata.update({field: old["metadata"][field] for field in _SERVER_OWNED})
        metadata.setdefault("generation", old["metadata"]["generation"])
        if key.namespace:
            metadata["namespace"] = key.namespace
        if new == old:
            return old
        if _desired(new) != _desired(old):
            metadata["generation"] += 1
        self._stamp(new)
        self._objects[key.resource][key] = new
        self._record(Change(ChangeKind.MODIFIED, self.version, key, new, old))
        return new

    def remove(self, key: Key, last: Object | None = None) -> Object:
        """Take an object out and return it; ``last`` is the state that watchers see go, where it differs from the stored one.

        Raises KeyError when there is nothing at that key.
        """
        old = self._objects.get(key.resource, {}).pop(key)
        del self._keys[old["metadata"]["uid"]]
        self.version += 1
        self._record(Change(ChangeKind.DELETED, self.version, key, None, old, None if last is None else copied(last)))
        return old

    def since(self, resource: ResourceId, version: int) -> list[Change]:
        """Return changes after ``version``, oldest first. Raises ExpiredError when some of them are forgotten."""
        self._check(resource, version)
        return [change for change in self._past.get(resource, ()) if change.version > version]

    def at(self, resource: ResourceId, version: int) -> dict[Key, Object]:
        """Return all of a resource as it was at ``version``, found by undoing what came after. Raises ExpiredError."""
        self._check(resource, version)
        objects = self.scan(resource)
        for change in reversed(self._past.get(resource, ())):
            if change.version <= version:
                break
            if change.old is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.old
        return objects

    def expire_history(self) -> None:
        """Forget the past, as compaction does: only the present version may still be asked for."""
        self._compacted_version = self.version
        self._past.clear()

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``listener`` after every write, in order, even when a listener writes; returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _check(self, resource: ResourceId, version: int) -> None:
        oldest = max(self._compacted_version, self._oldest.get(resource, 0))
        if version < oldest:
            raise ExpiredError(oldest)

    def _stamp(self, value: Object) -> None:
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)

    def _record(self, change: Change) -> None:
        past = self._past.setdefault(change.key.resource, deque())
        past.append(change)
        if len(past) > self._bound:
            self._oldest[change.key.resource] = past.popleft().version
        self._untold.append(change)
        if not self._telling:
            self._tell()

    def _tell(self) -> None:
        self._telling = True
        try:
            while self._untold:
                change = self._untold.popleft()
                for listener in tuple(self._listeners):
                    listener(change)
        finally:
            self._telling = False


def _desired(value: Object) -> Object:
    return {field: part for field, part in value.items() if field not in ("metadata", "status")}
