"""Discovery: which groups, versions and resources there are, as lists and aggregated. Pure."""

from collections.abc import Iterable
from typing import Any

from trainmaster import __version__
from trainmaster_dispatcher.api.kube.objects import GROUP, GROUP_VERSION, VERSION
from trainmaster_dispatcher.api.kube.resources import ApiResource

_LEVEL = ("1", "31")
"""The version of Kubernetes whose conventions of API this one follows."""
Wire = dict[str, Any]


def core_versions() -> Wire:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups() -> Wire:
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{key: value for key, value in group().items() if key not in ("kind", "apiVersion")}],
    }


def group() -> Wire:
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version}


def resources(group_version: str, found: Iterable[ApiResource]) -> Wire:
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
        ],
    }


def aggregated(name: str, found: Iterable[ApiResource]) -> Wire:
    """Return a group with its resources, for clients that ask for all groups at once; the core group has no name."""
    version = {"version": VERSION, "resources": [_discovered(one) for one in found], "freshness": "Current"}
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [{"metadata": {"name": name or None, "creationTimestamp": None}, "versions": [version]}],
    }


def _discovered(one: ApiResource) -> Wire:
    return {
        "resource": one.plural,
        "responseKind": {"group": one.group, "version": VERSION, "kind": one.kind},
        "scope": "Namespaced" if one.is_namespaced else "Cluster",
        "singularResource": one.singular,
        "verbs": list(one.verbs),
        "shortNames": list(one.short_names),
        "categories": _categories(one),
    }


def _categories(one: ApiResource) -> list[str]:
    return ["trainmaster"] if one.group else []


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
