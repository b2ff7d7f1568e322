"""Volumes, entries of Secrets, shared memory and small files of members, which these have beside their image."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, StringConstraints, model_validator

from trainmaster.protocol.base import Strict, example, worded_pattern
from trainmaster.protocol.quantities import Quantity

MOST_FILE_BYTES = 262_144
"""The most bytes of all files of one template together; a ConfigMap has at most 1 MiB."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of the member, not of this machine
ROSTER = "/etc/trainmaster"
"""The folder with the list of a gang's members."""
_MEMORY_VOLUME, _FILES_VOLUME = "shared-memory", "files"

ObjectName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=253,
        pattern=worded_pattern(
            r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "lower-case letters, digits, '-' and '.', as Kubernetes names objects"
        ),
    ),
]
DataKey = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=253, pattern=worded_pattern(r"^[-._a-zA-Z0-9]+$", "letters, digits, '-', '_' and '.'")
    ),
]
_SEGMENTS = re.compile(r"(^|/)\.{1,2}(/|$)")


def _whole_path(value: str) -> str:
    if not value.startswith("/") or value == "/":
        raise ValueError(f"{value!r} is no path in the member's file system: it begins with '/', and is not '/' alone")
    if value.endswith("/"):
        raise ValueError(f"{value!r} ends with '/': leave that out")
    if is_below(value, ROSTER):
        raise ValueError(f"{value!r} is where the agent puts the list of members: choose another path than {ROSTER}")
    return _plain_path(value)


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is that of a folder, or is inside of it."""
    return path == folder or path.startswith(f"{folder}/")


def _plain_path(value: str) -> str:
    if _SEGMENTS.search(value) or ":" in value or "//" in value or "\0" in value:
        raise ValueError(f"{value!r} has '.' or '..' as a part, ':' or '//'")
    return value


MountPath = Annotated[str, StringConstraints(min_length=2, max_length=1024), AfterValidator(_whole_path)]
_SOURCES = ("claim", "secret", "config_map", "scratch")


class MemberVolume(Strict):
    """A volume of each member, from one source."""

    model_config = example(path="/data", claim="team-data", readOnly=True)

    path: MountPath
    """Path at which members find it."""
    claim: ObjectName | None = None
    """Name of a PersistentVolumeClaim in the namespace where the member runs."""
    secret: ObjectName | None = None
    """Name of a Secret there, whose entries are files."""
    config_map: ObjectName | None = None
    """Name of a ConfigMap there, whose entries are files."""
    scratch: Quantity | None = None
    """Size of an empty folder on the node's disk, which is removed with the member."""
    sub_path: Annotated[str, StringConstraints(max_length=1024), AfterValidator(_plain_path)] = ""
    """Path inside of the volume; empty: all of it."""
    read_only: bool = False
    """True if members may not write to it."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of claim, secret, configMap and scratch, not {len(given)}")
        if self.sub_path.startswith("/"):
            raise ValueError("subPath is a path inside of the volume: it does not begin with '/'")
        return self

    def source(self) -> dict[str, Any]:
        """Return the source as Kubernetes writes it."""
        if self.claim is not None:
            return {"persistentVolumeClaim": {"claimName": self.claim}}
        if self.secret is not None:
            return {"secret": {"secretName": self.secret}}
        if self.config_map is not None:
            return {"configMap": {"name": self.config_map}}
        return {"emptyDir": {"sizeLimit": self.scratch}}

    @property
    def kind(self) -> str:
        """Return the type of the volume as admission policies name it."""
        return next(iter(self.source()))


class SecretKey(Strict):
    """An entry of a Secret."""

    model_config = example(secret="wandb", key="api-key")  # noqa: S106 - the name of a secret

    secret: ObjectName
    """Name of a Secret in the namespace where the member runs."""
    key: DataKey
    """Name of the entry."""


class Mounts(NamedTuple):
    """Volumes of a pod, and where its container has them."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


def mounts_of(
    volumes: Iterable[MemberVolume], shared_memory: str | None, files: Iterable[str], files_map: str
) -> Mounts:
    """Return what gives a member its volumes. ``files``: their paths; ``files_map``: the name of the ConfigMap that has them."""
    found = Mounts([], [])
    for index, one in enumerate(volumes):
        name = f"volume-{index}"
        found.volumes.append({"name": name, **one.source()})
        mount: dict[str, Any] = {"name": name, "mountPath": one.path}
        if one.sub_path:
            mount["subPath"] = one.sub_path
        if one.read_only:
            mount["readOnly"] = True
        found.mounts.append(mount)
    if shared_memory is not None:
        found.volumes.append({"name": _MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}})
        found.mounts.append({"name": _MEMORY_VOLUME, "mountPath": SHARED_MEMORY})
    paths = list(files)
    if paths:
        found.volumes.append({"name": _FILES_VOLUME, "configMap": {"name": files_map}})
        # Each by itself, so that the other files of its folder stay.
        found.mounts.extend(
            {"name": _FILES_VOLUME, "mountPath": path, "subPath": file_key(index), "readOnly": True}
            for index, path in enumerate(paths)
        )
    return found


def file_key(index: int) -> str:
    """Return the entry of the ConfigMap for the file of this number: paths cannot be names of entries."""
    return f"file-{index}"


def secret_variables(given: dict[str, SecretKey]) -> list[dict[str, Any]]:
    """Return the environment variables with entries of Secrets."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": one.secret, "key": one.key}}}
        for name, one in given.items()
    ]


FileText = Annotated[str, StringConstraints(max_length=MOST_FILE_BYTES)]
