"""Discovery: which groups, versions and resources there are, as lists and aggregated. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainmaster import __version__
from trainmaster_dispatcher.api.kube.objects import GROUP, VERSION
from trainmaster_dispatcher.api.kube.resources import CORE, CRON_JOBS, RESOURCES, WORKLOADS, ApiResource

_LEVEL = ("1", "31")
"""The version of Kubernetes whose conventions of API this one follows."""
_SCALE_VERBS = ("get", "patch", "update")
Wire = dict[str, Any]


def core_versions() -> Wire:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _by_version(found: Iterable[ApiResource]) -> dict[str, dict[str, list[ApiResource]]]:
    """Return resources by their groups and versions, each in the order in which it comes first."""
    groups: dict[str, dict[str, list[ApiResource]]] = {}
    for one in found:
        groups.setdefault(one.group, {}).setdefault(one.version, []).append(one)
    return groups


CORE_VERSIONS: Mapping[str, list[ApiResource]] = {VERSION: list(CORE)}
GROUPS: Mapping[str, Mapping[str, list[ApiResource]]] = _by_version((*RESOURCES.values(), *WORKLOADS, CRON_JOBS))
"""Resources by group and version. Clients take a name that several groups have for the one of the first group."""


def groups() -> Wire:
    found = [{key: value for key, value in group(name).items() if key not in ("kind", "apiVersion")} for name in GROUPS]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def group(name: str) -> Wire:
    """Return a group. Raises KeyError for one that does not exist."""
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in GROUPS[name]]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def resources(group_version: str, found: Sequence[ApiResource]) -> Wire:
    """Return the resources of a group, as a list."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": [
            {
                "name": one.plural,
                "singularName": one.singular,
                "namespaced": one.is_namespaced,
                "kind": one.kind,
                "verbs": list(one.verbs),
                "shortNames": list(one.short_names),
                "categories": _categories(one),
            }
            for one in found
        ]
        + [_scale(one) for one in found if one.count],
    }


def _scale(one: ApiResource) -> Wire:
    """Return the subresource by which an object's number is scaled, as a list has it."""
    kind = {"group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": list(_SCALE_VERBS)}
    return {"name": f"{one.plural}/scale", "singularName": "", "namespaced": one.is_namespaced, **kind}


def aggregated_core() -> Wire:
    """Return the core group, which has no name, with its resources, for clients that ask for all at once."""
    return _aggregated({"": CORE_VERSIONS})


def aggregated_groups() -> Wire:
    """Return all other groups with their resources, for clients that ask for all at once."""
    return _aggregated(GROUPS)


def _aggregated(found: Mapping[str, Mapping[str, list[ApiResource]]]) -> Wire:
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name or None, "creationTimestamp": None},
                "versions": [
                    {"version": version, "resources": [_discovered(one) for one in of_version], "freshness": "Current"}
                    for version, of_version in versions.items()
                ],
            }
            for name, versions in found.items()
        ],
    }


def _discovered(one: ApiResource) -> Wire:
    kind = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    scale = [{"subresource": "scale", "responseKind": kind, "verbs": list(_SCALE_VERBS)}] if one.count else []
    return {
        "resource": one.plural,
        "responseKind": {"group": one.group, "version": one.version, "kind": one.kind},
        "scope": "Namespaced" if one.is_namespaced else "Cluster",
        "singularResource": one.singular,
        "verbs": list(one.verbs),
        "shortNames": list(one.short_names),
        "categories": _categories(one),
        **({"subresources": scale} if scale else {}),
    }


def _categories(one: ApiResource) -> list[str]:
    return ["trainmaster"] if one.group == GROUP else []


def version() -> Wire:
    return {
        "major": _LEVEL[0],
        "minor": _LEVEL[1],
        "gitVersion": f"v{'.'.join(_LEVEL)}.0+trainmaster-{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }
