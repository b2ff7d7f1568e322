"""`ServedKinds`: the kinds of objects that run as jobs on this cluster, or are made for devices of members: those that its API
server serves and the agent may create.

An operator may be installed, or a permission given, while the agent runs: so it is looked up again now and then. The same goes for
the runtimes of Kubeflow Trainer, which TrainJobs name.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.registry import KINDS
from trainmaster.workload_kinds.train_job import RUNTIMES, TrainJob
from trainmaster.workload_kinds.training_runtimes import runtime_of
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError, NotFoundError, RefusedError
from trainmaster_agent.kube.paths import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from trainmaster_agent.placement.pod_fields import pod_fields
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.workload_objects import resource_of

log = logging.getLogger(__name__)

_LOOK_SECONDS = 60.0
_MOST_RUNTIMES = 64
"""Runtimes that are reported, and ten times as many that are looked at: each report has all of them."""
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
        self._runtimes: frozenset[str] = frozenset()
        self._not_listed = ""
        self.takes_devices = False
        """Whether ResourceClaimTemplates can be created for members with devices."""
        self.takes_shared_devices = False
        """Whether ResourceClaims can be created for members that share devices."""
        self.kinds: tuple[WorkloadKind, ...] = ()
        """Kinds that can be created in at least one namespace for jobs now."""

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
            if kind.plural in served[kind.api_version] and await self._may_create(resource_of(kind)):
                found.append(kind)
        claims = RESOURCE_CLAIM_TEMPLATES
        self.takes_devices = claims.plural in await self._resources(claims.version) and await self._may_create(claims)
        self.takes_shared_devices = self.takes_devices and await self._may_create(RESOURCE_CLAIMS)
        self.kinds = tuple(found)
        takes_train_jobs = any(isinstance(kind, TrainJob) for kind in found)
        self._runtimes = await self._look_at_runtimes() if takes_train_jobs else frozenset()
        for kind in found:
            if kind.capability not in self._known:
                self._known.add(kind.capability)
                log.info("takes %s", kind.name)
                self._on_found(kind)

    def offered(self, placement: PlacementPort) -> frozenset[str]:
        """Return the capabilities of the kinds whose objects can give their pods what a placement sets, and of the runtimes of
        theirs.
        """
        fields = pod_fields(placement)
        kinds = [kind for kind in self.kinds if placement.takes_object(kind) and kind.takes_pod_fields(fields)]
        runtimes = self._runtimes if any(isinstance(kind, TrainJob) for kind in kinds) else frozenset[str]()
        return frozenset(kind.capability for kind in kinds) | runtimes

    async def _look_at_runtimes(self) -> frozenset[str]:
        """Return the capabilities of the runtimes that TrainJobs can name; none where the agent may not list them."""
        try:
            answer = await self._api.call("GET", RUNTIMES, query={"limit": str(10 * _MOST_RUNTIMES)})
        except (NotFoundError, RefusedError) as error:
            self._log_once(f"no TrainJob is taken: the runtimes of Kubeflow Trainer cannot be listed: {error}")
            return frozenset()
        found = [(one, runtime_of(one)) for one in answer.get("items") or ()]
        usable = sorted(runtime.capability for _, runtime in found if runtime is not None)
        left_out = sorted(str(one["metadata"].get("name")) for one, runtime in found if runtime is None)
        more = usable[_MOST_RUNTIMES:]
        if left_out or more:
            names = ", ".join((*left_out, *more))
            self._log_once(
                f"runtimes that are not reported, as no TrainJob can be counted with them, or there are too many: {names}"
            )
        return frozenset(usable[:_MOST_RUNTIMES])

    def _log_once(self, words: str) -> None:
        if words != self._not_listed:
            self._not_listed = words
            log.warning("%s", words)

    async def _resources(self, api_version: str) -> set[str]:
        """Return the resources of a group and version; none where it is not served."""
        try:
            answer: dict[str, Any] = await self._api.call("GET", f"/apis/{api_version}")
        except NotFoundError:
            return set()
        return {str(one.get("name")) for one in answer.get("resources") or ()}

    async def _may_create(self, resource: Resource) -> bool:
        group = resource.version.split("/")[0]
        for namespace in self._namespaces():
            attributes = {"group": group, "resource": resource.plural, "verb": "create", "namespace": namespace}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = await self._api.call("POST", _REVIEWS, body=review)
            if (answer.get("status") or {}).get("allowed"):
                return True
        return False
