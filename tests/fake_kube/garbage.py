"""The two controllers that delete: dependents whose owners are gone, and what is left in a namespace that ends.

Each works in a turn of the event loop of its own, right after the write that gives it work: in the background, at once.
"""

import asyncio

from tests.fake_kube.deletion import FOREGROUND, Deletion, Options
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object, copied, is_deleting
from tests.fake_kube.resources import NAMESPACES, Resource, Table
from tests.fake_kube.store import Change, ChangeKind, Key, Store


class GarbageCollector:
    """Deletes what has owners of which none is left, and drops the references to those that are gone."""

    def __init__(self, store: Store, table: Table, deletion: Deletion) -> None:
        self._store = store
        self._table = table
        self._deletion = deletion
        self._dependents: dict[str, dict[Key, None]] = {}
        store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        before, after = _owners(change.old), _owners(change.new)
        for uid in before - after:
            self._dependents[uid].pop(change.key, None)
            if not self._dependents[uid]:
                del self._dependents[uid]
        for uid in after - before:
            self._dependents.setdefault(uid, {})[change.key] = None
        loop = asyncio.get_running_loop()
        if after:
            loop.call_soon(self._judge, change.key)
        uid = change.value["metadata"]["uid"]
        if change.new is None or FOREGROUND in (change.new["metadata"].get("finalizers") or ()):
            for key in tuple(self._dependents.get(uid, ())):
                loop.call_soon(self._judge, key)
        if change.new is not None and is_deleting(change.new):
            loop.call_soon(self._let_foreground_end, change.key)
        for owner in before - after:
            if owner_key := self._store.key_of(owner):
                loop.call_soon(self._let_foreground_end, owner_key)

    def _judge(self, key: Key) -> None:
        value, resource = self._store.get(key), self._table.find(*key.resource)
        if value is None or resource is None:
            return
        references = value["metadata"].get("ownerReferences") or []
        solid = [one for one in references if self._stands(key, one["uid"])]
        if references and not solid:
            if not is_deleting(value):
                _delete(self._deletion, resource, key)
        elif len(solid) < len(references) and not all(self._store.key_of(one["uid"]) for one in references):
            value["metadata"]["ownerReferences"] = [one for one in references if self._store.key_of(one["uid"])]
            self._store.update(key, value)

    def _stands(self, dependent: Key, uid: str) -> bool:
        """Return whether the owner exists, where an owner can exist, and is not waiting for its dependents to go."""
        key = self._store.key_of(uid)
        owner = self._store.peek(key) if key else None
        if key is None or owner is None or key.namespace not in ("", dependent.namespace):
            return False
        return not (is_deleting(owner) and FOREGROUND in (owner["metadata"].get("finalizers") or ()))

    def _let_foreground_end(self, key: Key) -> None:
        owner = self._store.get(key)
        if owner is None or not is_deleting(owner) or FOREGROUND not in (owner["metadata"].get("finalizers") or ()):
            return
        uid = owner["metadata"]["uid"]
        for dependent in self._dependents.get(uid, ()):
            value = self._store.peek(dependent)
            references = (value or {}).get("metadata", {}).get("ownerReferences") or []
            if any(one["uid"] == uid and one.get("blockOwnerDeletion") for one in references):
                return
        owner["metadata"]["finalizers"].remove(FOREGROUND)
        if not owner["metadata"]["finalizers"] and not owner["metadata"].get("deletionGracePeriodSeconds"):
            self._store.remove(key, last=owner)
        else:
            self._store.update(key, owner)


class NamespaceController:
    """Empties namespaces that are being deleted, and then removes them."""

    def __init__(self, store: Store, table: Table, deletion: Deletion) -> None:
        self._store = store
        self._table = table
        self._deletion = deletion
        store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        name = change.key.name if change.key.resource == NAMESPACES.id else change.key.namespace
        begins = change.key.resource == NAMESPACES.id and change.kind is ChangeKind.MODIFIED
        namespace = self._store.peek(Key(*NAMESPACES.id, "", name)) if name else None
        if namespace is not None and is_deleting(namespace) and (begins or change.kind is ChangeKind.DELETED):
            asyncio.get_running_loop().call_soon(self._empty, name)

    def _empty(self, name: str) -> None:
        key = Key(*NAMESPACES.id, "", name)
        namespace = self._store.peek(key)
        if namespace is None or not is_deleting(namespace):
            return
        inside = self._content(name)
        for resource, one in inside:
            value = self._store.peek(one)
            if value is not None and not is_deleting(value):
                _delete(self._deletion, resource, one)
        if not inside:
            last = copied(namespace)
            last["spec"]["finalizers"] = []
            self._store.remove(key, last=last)

    def _content(self, name: str) -> list[tuple[Resource, Key]]:
        resources = [resource for resource in self._table.all() if resource.namespaced]
        return [(one, key) for one in resources for key in self._store.scan(one.id) if key.namespace == name]


def _owners(value: Object | None) -> set[str]:
    return {one["uid"] for one in (value or {}).get("metadata", {}).get("ownerReferences") or ()}


def _delete(deletion: Deletion, resource: Resource, key: Key) -> None:
    try:
        deletion.delete(resource, key.namespace, key.name, Options())
    except ApiError as error:
        if error.code != 404:
            raise
