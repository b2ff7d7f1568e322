"""What stands between a request and the store: form, names, namespaces, and what the server fills in itself."""

import random
import re

from tests.fake_kube import errors, pods
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object, is_deleting
from tests.fake_kube.quota import Quota
from tests.fake_kube.resources import DISRUPTION_BUDGETS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, Resource, Table
from tests.fake_kube.store import Key, Store

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_SERVER_SET = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_LAST_FINALIZERS = "no new finalizers can be added if the object is being deleted"


class Admission:
    """Prepares what is to be created or changed, in place. All methods raise ApiError."""

    def __init__(self, store: Store, table: Table) -> None:
        self._store = store
        self._table = table
        self._quota = Quota(store)

    def prepare_new(self, resource: Resource, namespace: str, body: Object) -> None:
        """Give a new object its name and defaults; refuse what may not be created."""
        check_form(resource, namespace, body)
        metadata = body["metadata"]
        for field in _SERVER_SET:
            metadata.pop(field, None)
        if metadata.pop("resourceVersion", None):
            raise ApiError(500, "resourceVersion should not be set on objects to be created", reason="")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._free_name(resource, namespace, metadata["generateName"])
        _check_name(resource, metadata)
        self._check_namespace(resource, namespace, metadata["name"])
        if resource == PODS:
            self._prepare_pod(namespace, body)
        elif resource == NAMESPACES:
            body["spec"] = {"finalizers": ["kubernetes"]}
            body["status"] = {"phase": "Active"}
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
        elif resource.has_status and resource not in (NODES, DISRUPTION_BUDGETS):
            body.pop("status", None)

    def prepare_change(self, resource: Resource, new: Object, old: Object, subresource: str) -> None:
        """Restore the fields that may not change; refuse a change that is out of date or forbidden."""
        check_form(resource, old["metadata"].get("namespace", ""), new)
        metadata, held = new["metadata"], old["metadata"]
        name = held["name"]
        _check_identity(resource, metadata, held)
        if subresource == "status":
            desired = {field: part for field, part in old.items() if field != "status"}
            status = new.get("status")
            new.clear()
            new.update(desired)
            if status is not None:
                new["status"] = status
            return
        for field in _SERVER_SET:
            metadata.pop(field, None)
            if field in held:
                metadata[field] = held[field]
        if resource.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        if is_deleting(old) and set(metadata.get("finalizers") or ()) - set(held.get("finalizers") or ()):
            raise errors.invalid(resource, name, "metadata.finalizers", f"Forbidden: {_LAST_FINALIZERS}")
        if resource == PODS:
            pods.check_change(new, old)

    def _prepare_pod(self, namespace: str, pod: Object) -> None:
        pods.check_new(pod)
        pods.prepare(pod)
        if not self._table.pod_groups():
            pod["spec"].pop("schedulingGroup", None)  # a server drops the fields of a feature that it does not have
        self._set_priority(pod)
        self._quota.admit(namespace, pod)

    def _set_priority(self, pod: Object) -> None:
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        held = self._store.peek(Key(*PRIORITY_CLASSES.id, "", name)) if name else None
        if name and held is None and name not in _SYSTEM_CLASSES:
            raise errors.forbidden(PODS, pod["metadata"]["name"], f"no PriorityClass with name {name} was found")
        spec["priority"] = held["value"] if held else _SYSTEM_CLASSES.get(name or "", 0)
        spec.setdefault("preemptionPolicy", (held or {}).get("preemptionPolicy", "PreemptLowerPriority"))

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        held = self._store.peek(Key(*NAMESPACES.id, "", namespace))
        if held is None:
            raise errors.not_found(NAMESPACES, namespace)
        if is_deleting(held):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(resource, name, why, cause="NamespaceTerminating")

    def _free_name(self, resource: Resource, namespace: str, base: str) -> str:
        while True:
            name = base + "".join(random.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH))
            if self._store.peek(Key(*resource.id, namespace, name)) is None:
                return name


def check_form(resource: Resource, namespace: str, body: Object) -> None:
    """Fill in kind, version and namespace, as decoding does; raises ApiError 400 when they are others than the URL's."""
    for field, expected in (("apiVersion", resource.group_version), ("kind", resource.kind)):
        if body.setdefault(field, expected) != expected:
            what = "API version" if field == "apiVersion" else "kind"
            raise ApiError(
                400, f"the {what} in the data ({body[field]}) does not match the expected {what} ({expected})"
            )
    metadata = body.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise ApiError(400, "metadata must be an object")
    if namespace and metadata.setdefault("namespace", namespace) != namespace:
        raise ApiError(400, "the namespace of the provided object does not match the namespace sent on the request")


def _check_identity(resource: Resource, metadata: Object, held: Object) -> None:
    """Check that the change is meant for this object, in this state."""
    name, version = held["name"], metadata.get("resourceVersion")
    if metadata.get("name", name) != name:
        raise ApiError(400, f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    if metadata.get("uid", held["uid"]) != held["uid"]:
        why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {held['uid']}"
        raise errors.conflict(resource, name, why)
    if not version and not resource.takes_blind_updates:
        why = "Invalid value: 0: must be specified for an update"
        raise errors.invalid(resource, name, "metadata.resourceVersion", why)
    if version and version != held["resourceVersion"]:
        raise errors.modified(resource, name)


def _check_name(resource: Resource, metadata: Object) -> None:
    name = metadata.get("name") or ""
    if not name:
        why = "Required value: name or generateName is required"
        raise errors.invalid(resource, name, "metadata.name", why)
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        why = f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters'
        raise errors.invalid(resource, name, "metadata.name", why)
