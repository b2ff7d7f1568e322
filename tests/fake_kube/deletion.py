"""Deleting: grace, preconditions, finalizers, and what becomes of dependents.

After BeforeDelete (k8s.io/apiserver/pkg/registry/rest/delete.go) and Store.Delete of the generic registry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from tests.fake_kube import errors, pods
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object, copied, is_deleting, parse_time, rfc3339
from tests.fake_kube.resources import NAMESPACES, PODS, Resource, Table
from tests.fake_kube.store import Key, Store

FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class Options:
    """``DeleteOptions``: seconds of grace, what must still be so, and Background, Foreground or Orphan."""

    grace: int | None = None
    preconditions: Object = field(default_factory=dict)
    propagation: str = "Background"

    @classmethod
    def read(cls, body: Object, query: Callable[[str], str | None]) -> "Options":
        """Parse the options from the body of a request or, if it has none, its query. Raises ApiError 400 or 422."""
        grace = body.get("gracePeriodSeconds", query("gracePeriodSeconds"))
        try:
            seconds = None if grace is None else int(grace)
        except ValueError as error:
            raise ApiError(400, f"gracePeriodSeconds is not a number: {grace}") from error
        propagation = body.get("propagationPolicy") or query("propagationPolicy") or "Background"
        if propagation not in ("Background", "Foreground", "Orphan"):
            raise ApiError(422, f'DeleteOptions is invalid: propagationPolicy: Unsupported value: "{propagation}"')
        return cls(seconds, body.get("preconditions") or {}, propagation)


class Deletion:
    """Deletes one object at a time; dependents are left to the garbage collector."""

    def __init__(self, store: Store, table: Table) -> None:
        self._store = store
        self._table = table

    def delete(self, resource: Resource, namespace: str, name: str, options: Options) -> tuple[Object, bool]:
        """Return the last state of the object, and whether it is gone already. Raises ApiError."""
        key = Key(*resource.id, namespace, name)
        held = self._store.get(key)
        if held is None:
            raise errors.not_found(resource, name)
        _check_preconditions(resource, held, options.preconditions)
        if options.propagation == "Orphan":
            self._let_go_of_dependents(held)
        if resource == NAMESPACES:
            return self._end_namespace(key, held), False
        if not is_deleting(held):
            return self._begin(resource, key, held, options)
        return self._hasten(key, held, options.grace)

    def was_held(self, value: Object) -> bool:
        """Return whether an object that is being deleted exists only for its finalizers, so that it goes with the last."""
        return bool(value["metadata"].get("finalizers")) and not value["metadata"].get("deletionGracePeriodSeconds")

    def _begin(self, resource: Resource, key: Key, held: Object, options: Options) -> tuple[Object, bool]:
        seconds = pods.grace_of(held, options.grace) if resource == PODS else 0
        if options.propagation == "Foreground":
            held["metadata"].setdefault("finalizers", []).append(FOREGROUND)
        finalizers = held["metadata"].get("finalizers")
        if resource != PODS and not finalizers:
            return self._store.remove(key), True
        pods.mark_deleting(held, seconds)
        marked = self._store.update(key, held)
        if seconds or finalizers:
            return marked, False
        return self._store.remove(key), True

    def _hasten(self, key: Key, held: Object, grace: int | None) -> tuple[Object, bool]:
        """Shorten the grace, which is all a later deletion may do; at zero the object goes, unless finalizers hold it."""
        metadata = held["metadata"]
        before = metadata.get("deletionGracePeriodSeconds", 0)
        wanted = 1 if grace is not None and grace < 0 else grace
        if wanted is None or wanted >= before:
            return held, False
        began = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=before)
        metadata["deletionTimestamp"] = rfc3339(began + timedelta(seconds=wanted))
        metadata["deletionGracePeriodSeconds"] = wanted
        marked = self._store.update(key, held)
        if wanted or metadata.get("finalizers"):
            return marked, False
        return self._store.remove(key), True

    def _end_namespace(self, key: Key, held: Object) -> Object:
        if is_deleting(held):
            raise errors.conflict(
                NAMESPACES, key.name, "The system is ensuring all content is removed from this namespace."
            )
        pods.mark_deleting(held, 0)
        del held["metadata"]["deletionGracePeriodSeconds"]
        held["status"]["phase"] = "Terminating"
        return self._store.update(key, held)

    def _let_go_of_dependents(self, owner: Object) -> None:
        for resource in self._table.all():
            for key, value in self._store.scan(resource.id).items():
                references = value["metadata"].get("ownerReferences") or []
                kept = [one for one in references if one["uid"] != owner["metadata"]["uid"]]
                if len(kept) < len(references):
                    free = copied(value)
                    free["metadata"]["ownerReferences"] = kept
                    self._store.update(key, free)


def _check_preconditions(resource: Resource, held: Object, preconditions: Object) -> None:
    for name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, actual = preconditions.get(name), held["metadata"][name]
        if wanted is not None and wanted != actual:
            why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {actual}"
            raise errors.conflict(resource, held["metadata"]["name"], why)
