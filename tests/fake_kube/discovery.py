"""What the server says of itself: versions, groups and resources, read from the table."""

from tests.fake_kube.objects import Object
from tests.fake_kube.resources import Resource, Table

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES = {
    "attach": ("PodAttachOptions", ["create", "get"]),
    "binding": ("Binding", ["create"]),
    "eviction": ("Eviction", ["create"]),
    "finalize": ("", ["update"]),
    "exec": ("PodExecOptions", ["create", "get"]),
    "log": ("", ["get"]),
    "portforward": ("PodPortForwardOptions", ["create", "get"]),
    "status": ("", ["get", "patch", "update"]),
}


def version_info(git_version: str) -> Object:
    """Return ``/version`` of a server that calls itself ``git_version``, such as ``v1.35.0``."""
    major, minor, *_ = git_version.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": git_version,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "go1.25.0",
        "compiler": "gc",
        "platform": "linux/amd64",
    }


def core_versions() -> Object:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(table: Table) -> Object:
    groups = [_group(name, versions) for name, versions in table.groups().items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(table: Table, name: str) -> Object | None:
    """Return a group; None if it is not served."""
    versions = table.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def resource_list(table: Table, group_version: str) -> Object | None:
    """Return the resources of a version; None if it is not served."""
    if not table.serves(group_version):
        return None
    rows = [row for resource in table.of(group_version) for row in _rows(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _rows(resource: Resource) -> list[Object]:
    reviews = resource.plural.endswith("reviews")
    row = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": ["create"] if reviews else _VERBS,
    }
    rows = [row]
    for name in resource.subresources:
        kind, verbs = _SUBRESOURCES[name]
        rows.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind or resource.kind,
                "verbs": verbs,
            }
        )
    return rows
