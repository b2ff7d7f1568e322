"""Requests to the extension API server as Kubernetes' authorization has them, and their users. Pure.

The attributes are those that an API server itself computes of a request (``k8s.io/apiserver/pkg/endpoints/request``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

GROUP, VERSION = "trainmaster.dev", "v1"
_RESOURCES = ("apis", GROUP, VERSION)
OPEN_PATHS = frozenset(
    {
        "/apis",
        f"/apis/{GROUP}",
        f"/apis/{GROUP}/{VERSION}",
        "/openapi/v2",
        "/openapi/v3",
        f"/openapi/v3/apis/{GROUP}/{VERSION}",
        "/version",
    }
)
"""Discovery and schemas, which are the same for everybody."""
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_TRUE = ("1", "t", "T", "true", "True", "TRUE")
_NAME_SELECTOR = "metadata.name="


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a request for a resource: empty ones do not apply."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return them as those of a SubjectAccessReview."""
        found = {
            "verb": self.verb,
            "group": GROUP,
            "version": VERSION,
            "resource": self.resource,
            "namespace": self.namespace,
            "name": self.name,
            "subresource": self.subresource,
        }
        return {field: value for field, value in found.items() if value}

    def refusal(self, user: str, reason: str) -> str:
        """Return the words by which an API server refuses the request to a user."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        name = f' "{self.name}"' if self.name else ""
        place = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        why = f": {reason}" if reason else ""
        return (
            f'{self.resource}.{GROUP}{name} is forbidden: User "{user}" cannot {self.verb} resource "{resource}" in API group'
            f' "{GROUP}" {place}{why}'
        )


def attributes_of(method: str, raw_path: str, query: Mapping[str, str]) -> Attributes | None:
    """Return the attributes of a request; None for an address that is none of a resource.

    An address that two servers could read differently, with encoded slashes or dots as parts, is none.
    """
    parts = [unquote(part) for part in raw_path.split("/")[1:]]
    if any(part in ("", ".", "..") or "/" in part or "\\" in part for part in parts):
        return None
    if tuple(parts[:3]) != _RESOURCES:
        return None
    rest, namespace = parts[3:], ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    resource, name, subresource = (*rest, "", "")[:3]
    return Attributes(_verb(method, name, query), resource, namespace, name or _selected(query), subresource)


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method in _VERBS:
        return _VERBS[method]
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    if name:
        return "get"
    return "watch" if query.get("watch", "") in _TRUE else "list"


def _selected(query: Mapping[str, str]) -> str:
    """Return the name of the only object that a list or watch selects; empty if there may be several."""
    selector = query.get("fieldSelector", "")
    return selector.removeprefix(_NAME_SELECTOR) if selector.startswith(_NAME_SELECTOR) and "," not in selector else ""


@dataclass(frozen=True, slots=True)
class User:
    """A user of a cluster, as its API server has authenticated them, also by impersonation."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The way in which a cluster's API server names users: what the ConfigMap ``extension-apiserver-authentication`` says."""

    authority: str
    """PEM."""
    names: tuple[str, ...]
    """The common names that its certificate may have; empty: any."""
    user_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @classmethod
    def read(cls, data: Mapping[str, str], lists: Mapping[str, list[str]]) -> "FrontProxy":
        """Return what the ConfigMap says; ``lists``: its values that are lists of JSON. Raises KeyError for what is missing."""

        def names(field: str, default: str) -> tuple[str, ...]:
            return tuple(one.lower() for one in lists.get(field) or [default])

        return cls(
            data["requestheader-client-ca-file"],
            tuple(lists.get("requestheader-allowed-names") or ()),
            names("requestheader-username-headers", "X-Remote-User"),
            names("requestheader-uid-headers", "X-Remote-Uid"),
            names("requestheader-group-headers", "X-Remote-Group"),
            names("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        )

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a peer is the API server, by its certificate, which the authority has signed; None: it has shown none."""
        if not certificate:
            return False
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        common = [value for field, value in subject if field == "commonName"]
        return not self.names or any(name in self.names for name in common)

    def user(self, headers: list[tuple[str, str]]) -> User | None:
        """Return the user in the headers of a request; None if there is none."""
        lower = [(name.lower(), value) for name, value in headers]

        def values(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(value for name, value in lower if name in names)

        found = values(self.user_headers)
        if not found or not found[0]:
            return None
        extra: dict[str, list[str]] = {}
        for name, value in lower:
            for prefix in self.extra_prefixes:
                if name.startswith(prefix):
                    extra.setdefault(unquote(name.removeprefix(prefix)), []).append(value)
        return User(
            found[0],
            next(iter(values(self.uid_headers)), ""),
            values(self.group_headers),
            tuple((name, tuple(many)) for name, many in sorted(extra.items())),
        )
