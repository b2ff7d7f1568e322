"""`ClaimTemplates` and `NamedClaims`: what pods may name in the namespaces for jobs, as capabilities of the cluster. Pure."""

from collections.abc import Collection
from typing import Any

from trainmaster.protocol.device_claims import ClaimTemplate, read_claim_template, read_resource_claim
from trainmaster_agent.kube.paths import key_of

_MOST_REPORTED = 100
"""Templates that are reported: each report has all of them."""


class ClaimTemplates:
    """The ResourceClaimTemplates. ``own_label``: label of the templates that the agent makes for runs, which nobody else can name."""

    def __init__(self, own_label: str) -> None:
        self._own_label = own_label
        self._found: dict[str, dict[str, ClaimTemplate]] = {}
        """By namespace and name."""

    def put(self, obj: dict[str, Any]) -> None:
        metadata = obj["metadata"]
        if self._own_label in (metadata.get("labels") or {}):
            return
        self._found.setdefault(metadata["namespace"], {})[metadata["name"]] = self._read(obj)

    def drop(self, obj: dict[str, Any]) -> None:
        namespace, _, name = key_of(obj).partition("/")
        self._found.get(namespace, {}).pop(name, None)

    def capabilities(self, namespaces: Collection[str]) -> frozenset[str]:
        """Return the capabilities of the templates in these namespaces; countable are those that are in all of them."""
        names = sorted({name for namespace in namespaces for name in self._found.get(namespace, {})})
        return frozenset(self._reported(name, namespaces).capability for name in names[:_MOST_REPORTED])

    def _read(self, obj: dict[str, Any]) -> ClaimTemplate:
        return read_claim_template(obj)

    def _reported(self, name: str, namespaces: Collection[str]) -> ClaimTemplate:
        found = {self._found.get(namespace, {}).get(name) for namespace in namespaces}
        only = found.pop()
        if found or only is None:
            return ClaimTemplate(name, fault="it is not the same in all namespaces for jobs")
        return only


class NamedClaims(ClaimTemplates):
    """The ResourceClaims that others have made, but not those that were made for a pod. A pod may name one in any namespace for jobs,
    so that others are left out.
    """

    def put(self, obj: dict[str, Any]) -> None:
        if any(owner.get("kind") == "Pod" for owner in obj["metadata"].get("ownerReferences") or ()):
            return
        super().put(obj)

    def capabilities(self, namespaces: Collection[str]) -> frozenset[str]:
        everywhere = [set(self._found.get(namespace, {})) for namespace in namespaces]
        names = sorted(set.intersection(*everywhere)) if everywhere else []
        found = (self._reported(name, namespaces)._replace(is_claim=True) for name in names[:_MOST_REPORTED])
        return frozenset(one.capability for one in found)

    def _read(self, obj: dict[str, Any]) -> ClaimTemplate:
        return read_resource_claim(obj)
