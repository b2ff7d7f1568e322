"""Requests for objects, answered from the store: one function of a target, a query and a body, without HTTP."""

from collections.abc import Mapping
from typing import Any

from tests.fake_kube import errors
from tests.fake_kube.deletion import Options
from tests.fake_kube.errors import ApiError
from tests.fake_kube.faults import Faults
from tests.fake_kube.objects import Object
from tests.fake_kube.paths import Target
from tests.fake_kube.reading import Query, as_list, check_reached, read_list
from tests.fake_kube.resources import ACCESS_REVIEWS, PODS
from tests.fake_kube.store import Store
from tests.fake_kube.verbs import Verbs


class Answers:
    """Everything but watches and logs, which are streams."""

    def __init__(self, store: Store, verbs: Verbs, faults: Faults) -> None:
        self._store = store
        self._verbs = verbs
        self._faults = faults

    def answer(self, target: Target, query: Mapping[str, str], content_type: str, body: Any) -> tuple[int, Object]:
        """Return code and body of the answer. Raises ApiError."""
        dry_run = bool(query.get("dryRun"))
        if dry_run and (target.verb, target.subresource) != ("create", ""):
            raise ApiError(400, "this fake knows dryRun only where objects are created")
        resource, namespace, name = target.resource, target.namespace, target.name
        if target.verb != "patch" and not isinstance(body, dict):
            raise ApiError(400, "the object provided is unrecognized (must be of type Object)")
        match target.verb:
            case "list":
                return 200, read_list(self._store, Query(resource, namespace, query))
            case "get":
                check_reached(self._store, Query(resource, namespace, query).number("resourceVersion"))
                return 200, self._verbs.get(resource, namespace, name)
            case "create" if resource == ACCESS_REVIEWS:
                return 201, self._review(body)
            case "create" if target.subresource:
                return 201, self._act(target, body)
            case "create":
                return 201, self._verbs.create(resource, namespace, body, dry_run=dry_run)
            case "update":
                return 200, self._verbs.replace(resource, namespace, name, body, target.subresource)
            case "patch":
                kind = content_type.partition(";")[0].strip()
                return 200, self._verbs.patch(resource, namespace, name, kind, body, target.subresource)
            case "delete":
                return 200, self._delete(target, Options.read(body, query.get))
            case _:
                return 200, self._delete_collection(target, query, Options.read(body, query.get))

    def _act(self, target: Target, body: Object) -> Object:
        if target.subresource == "binding":
            self._verbs.bind(target.namespace, target.name, body)
        else:
            options = Options.read(body.get("deleteOptions") or {}, lambda _: None)
            self._verbs.evict(target.namespace, target.name, options)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _delete(self, target: Target, options: Options) -> Object:
        last, gone = self._verbs.deletion.delete(target.resource, target.namespace, target.name, options)
        if gone and target.resource != PODS:
            return errors.success(target.resource, target.name, last["metadata"]["uid"])
        return last

    def _delete_collection(self, target: Target, query: Mapping[str, str], options: Options) -> Object:
        selected = Query(target.resource, target.namespace, query).selector()
        deleted = []
        for key, value in self._store.scan(target.resource.id).items():
            if selected(value):
                deleted.append(self._verbs.deletion.delete(target.resource, key.namespace, key.name, options)[0])
        return as_list(target.resource, deleted, {"resourceVersion": str(self._store.version)})

    def _review(self, review: Object) -> Object:
        attributes = (review.get("spec") or {}).get("resourceAttributes") or {}
        name = "/".join(filter(None, (attributes.get("resource", "*"), attributes.get("subresource"))))
        allowed = not self._faults.is_denied(attributes.get("verb", "*"), name)
        status = {"allowed": allowed, **({} if allowed else {"reason": "denied by the test"})}
        return {**review, "kind": ACCESS_REVIEWS.kind, "apiVersion": ACCESS_REVIEWS.group_version, "status": status}
