"""Credentials for registries in the format of ``docker login``, as in secrets of the type ``kubernetes.io/dockerconfigjson``. Pure.

They match images as in a kubelet: https://kubernetes.io/docs/concepts/containers/images/#config-json
"""

import base64
import binascii
import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainmaster_agent.images.references import normalized


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """A user and a password."""

    user: str
    password: str

    @property
    def basic(self) -> str:
        """The header by which they are sent."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_credentials(configs: Iterable[Any], host: str, repository: str) -> RegistryCredentials | None:
    """Return the credentials whose key matches most of a repository's name; None without any. ``configs``: parsed files."""
    best: tuple[int, RegistryCredentials] | None = None
    for key, entry in _entries(configs):
        key_host, _, path = _without_scheme(key).partition("/")
        if not _is_host(host, normalized(key_host)) or not _is_below(repository, path):
            continue
        found = _read(entry)
        if found is not None and (best is None or len(path) > best[0]):
            best = len(path), found
    return None if best is None else best[1]


def _entries(configs: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for config in configs:
        auths = config.get("auths") if isinstance(config, dict) else None
        if isinstance(auths, dict):
            yield from auths.items()


def _without_scheme(key: str) -> str:
    for scheme in ("https://", "http://"):
        key = key.removeprefix(scheme)
    key = key.rstrip("/")
    return key.removesuffix("/v1").removesuffix("/v2")


def _is_host(host: str, pattern: str) -> bool:
    """Return whether a host matches a pattern, in which ``*`` stands for one part of the name, or a piece of it."""
    parts, patterns = host.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _is_below(repository: str, path: str) -> bool:
    return not path or repository == path or repository.startswith(f"{path}/")


def _read(entry: Any) -> RegistryCredentials | None:
    """Return the credentials of an entry; None where it has none that can be read."""
    if not isinstance(entry, dict):
        return None
    user, password = entry.get("username"), entry.get("password")
    if isinstance(user, str) and isinstance(password, str) and user:
        return RegistryCredentials(user, password)
    text = entry.get("auth")
    if not isinstance(text, str):
        return None
    try:
        user, colon, password = base64.b64decode(text).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return RegistryCredentials(user, password) if colon and user else None
