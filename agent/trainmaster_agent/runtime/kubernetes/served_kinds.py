"""`ServedKinds`: the kinds of objects that run as jobs on this cluster: those that its API server serves and the agent may create.

An operator may be installed, or a permission given, while the agent runs: so it is looked up again now and then.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.registry import KINDS
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError, NotFoundError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class ServedKinds:
    """``on_found`` is called once with each kind that is found, in the order in which they are found."""

    def __init__(
        self, api: ApiServer, namespaces: Callable[[], Iterable[str]], on_found: Callable[[WorkloadKind], None]
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._on_found = on_found
        self._known: set[str] = set()
        self.capabilities: frozenset[str] = frozenset()
        """Capabilities of the kinds that can be created in at least one namespace for jobs now."""

        self.kinds: tuple[WorkloadKind, ...] = ()
        """Those kinds."""

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except KubeError as error:
                log.info("cannot look up the kinds of workloads now, trying again: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("workload kinds", error)

    async def look(self) -> None:
        """Find the kinds that are served and may be created. Raises KubeError."""
        served: dict[str, set[str]] = {}
        found = []
        for kind in KINDS:
            if kind.is_made_by_agent:
                continue
            if kind.api_version not in served:
                served[kind.api_version] = await self._resources(kind.api_version)
            if kind.plural in served[kind.api_version] and await self._may_create(kind):
                found.append(kind)
        self.capabilities = frozenset(kind.capability for kind in found)
        self.kinds = tuple(found)
        for kind in found:
            if kind.capability not in self._known:
                self._known.add(kind.capability)
                log.info("takes %s", kind.name)
                self._on_found(kind)

    async def _resources(self, api_version: str) -> set[str]:
        """Return the resources of a group and version; none where it is not served."""
        try:
            answer: dict[str, Any] = await self._api.call("GET", f"/apis/{api_version}")
        except NotFoundError:
            return set()
        return {str(one.get("name")) for one in answer.get("resources") or ()}

    async def _may_create(self, kind: WorkloadKind) -> bool:
        group = kind.api_version.split("/")[0]
        for namespace in self._namespaces():
            attributes = {"group": group, "resource": kind.plural, "verb": "create", "namespace": namespace}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = await self._api.call("POST", _REVIEWS, body=review)
            if (answer.get("status") or {}).get("allowed"):
                return True
        return False
