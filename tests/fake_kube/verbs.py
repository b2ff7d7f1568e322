"""Create, replace, patch, bind and evict, on the store and without HTTP: the rules of the API server's writes."""

from typing import Any

from tests.fake_kube import errors, pods
from tests.fake_kube.admission import Admission
from tests.fake_kube.deletion import Deletion, Options
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object, copied, is_deleting, without_nulls
from tests.fake_kube.patches import apply_patch
from tests.fake_kube.resources import DISRUPTION_BUDGETS, PODS, Resource, Table
from tests.fake_kube.selectors import matches_labels
from tests.fake_kube.store import Key, Store


class Verbs:
    """All methods raise ApiError; what they return is to be read only."""

    def __init__(self, store: Store, table: Table) -> None:
        self._store = store
        self._admission = Admission(store, table)
        self.deletion = Deletion(store, table)

    def create(self, resource: Resource, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        new: Object = without_nulls(body)
        self._admission.prepare_new(resource, namespace, new)
        key = Key(*resource.id, namespace, new["metadata"]["name"])
        if self._store.peek(key) is not None:
            raise errors.already_exists(resource, key.name)
        return new if dry_run else self._store.create(key, new)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        held = self._store.peek(Key(*resource.id, namespace, name))
        if held is None:
            raise errors.not_found(resource, name)
        return held

    def replace(self, resource: Resource, namespace: str, name: str, body: Object, subresource: str = "") -> Object:
        return self._change(resource, self.get(resource, namespace, name), without_nulls(body), subresource)

    def patch(
        self, resource: Resource, namespace: str, name: str, content_type: str, patch: Any, subresource: str = ""
    ) -> Object:
        old = self.get(resource, namespace, name)
        return self._change(resource, old, without_nulls(apply_patch(resource, content_type, old, patch)), subresource)

    def bind(self, namespace: str, name: str, binding: Object) -> None:
        pod = copied(self.get(PODS, namespace, name))
        pods.bind(pod, binding)
        self._store.update(Key(*PODS.id, namespace, name), pod)

    def evict(self, namespace: str, name: str, options: Options) -> None:
        """Delete the pod unless a disruption budget with nothing left covers it: ApiError 429 then."""
        pod = self.get(PODS, namespace, name)
        for key, budget in self._store.scan(DISRUPTION_BUDGETS.id).items():
            covers = key.namespace == namespace and matches_labels(
                budget["spec"].get("selector"), pod["metadata"].get("labels") or {}
            )
            if covers and not (budget.get("status") or {}).get("disruptionsAllowed"):
                raise ApiError(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        self.deletion.delete(PODS, namespace, name, options)

    def _change(self, resource: Resource, old: Object, new: Object, subresource: str) -> Object:
        self._admission.prepare_change(resource, new, old, subresource)
        key = Key(*resource.id, old["metadata"].get("namespace", ""), old["metadata"]["name"])
        if is_deleting(old) and not new["metadata"].get("finalizers") and self.deletion.was_held(old):
            self._store.remove(key, last=new)
            return new
        return self._store.update(key, new)
