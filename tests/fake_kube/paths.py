"""What a URL's path and a method ask for."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.fake_kube.errors import ApiError
from tests.fake_kube.resources import Resource, Table

_ALL_NAMESPACES = ("list", "watch")
_ON_ONE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ON_ALL = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


@dataclass(frozen=True, slots=True)
class Target:
    """A resource, where in it, and the verb, named as roles name them."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    verb: str

    @property
    def qualified(self) -> str:
        """The name in faults and roles: ``pods``, ``pods/status``."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def split_version(path: str) -> tuple[str, list[str]] | None:
    """Return ``v1`` or ``group/version`` of a path and the steps after it; None for a path that names no version."""
    steps = [step for step in path.split("/") if step]
    match steps:
        case ["api", version, *rest]:
            return version, rest
        case ["apis", group, version, *rest]:
            return f"{group}/{version}", rest
        case _:
            return None


def read_target(table: Table, method: str, group_version: str, steps: list[str], query: Mapping[str, str]) -> Target:
    """Parse a path. Raises ApiError: 404 for what is not served, 405 for what cannot be done with it."""
    namespace = ""
    if len(steps) > 2 and steps[0] == "namespaces" and steps[2] not in ("status", "finalize"):
        namespace, steps = steps[1], steps[2:]
    plural, name, subresource, *more = [*steps, "", "", ""][: max(3, len(steps))]
    resource = table.find(group_version, plural)
    known = resource is not None and (not subresource or subresource in resource.subresources)
    if resource is None or not known or any(more) or (namespace and not resource.namespaced):
        raise ApiError(404, "the server could not find the requested resource")
    verb = _verb(method, name, subresource, query)
    if verb is None or (resource.namespaced and not namespace and verb not in _ALL_NAMESPACES):
        raise ApiError(405, "the server does not allow this method on the requested resource")
    return Target(resource, namespace, name, subresource, verb)


def _verb(method: str, name: str, subresource: str, query: Mapping[str, str]) -> str | None:
    if subresource in ("binding", "eviction"):
        return "create" if method == "POST" else None
    if subresource in ("attach", "exec", "log", "portforward"):
        return "get" if method == "GET" else None
    if not name and method == "GET" and query.get("watch") in ("1", "true"):
        return "watch"
    verb = (_ON_ONE if name else _ON_ALL).get(method)
    return None if subresource and verb == "delete" else verb
