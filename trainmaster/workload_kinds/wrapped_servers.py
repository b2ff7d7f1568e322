"""Deployments and StatefulSets, as they may be in an AppWrapper: https://kubernetes.io/docs/concepts/workloads/controllers/

They are no jobs by themselves: nothing of them comes to an end, and what they are for is to be changed while they run.
"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.workload_kinds.kind import NO_CLAIMS, PodSet, WorkloadKind, number, refuse_set

_ONE_BY_ONE = "must be Parallel: with OrderedReady each pod is made once the one before it is ready, and that waits for all of them"
_PAUSED = "cannot be honoured: a Deployment that is paused makes no pods"


class _ServingKind(WorkloadKind):
    """A kind of Kubernetes whose pods run until it is deleted. Every cluster has it."""

    api_version = "apps/v1"
    ends = False
    is_built_in = True
    suspend_path = ()
    manager_path = ()
    time_to_live_path = ()

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        many = number(manifest.get("spec").get("replicas"), 1, least=0)
        return [PodSet("server", ("spec", "template"), many)] if many else []

    def demands(self, manifest: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
        return ()


class WrappedDeployment(_ServingKind):
    """A Deployment."""

    kind, plural = "Deployment", "deployments"

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "paused"), _PAUSED)


class WrappedStatefulSet(_ServingKind):
    """A StatefulSet."""

    kind, plural = "StatefulSet", "statefulsets"

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "volumeClaimTemplates"), NO_CLAIMS)
        spec = manifest.get("spec")
        if number(spec.get("replicas"), 1, least=0) > 1 and spec.get("podManagementPolicy").value != "Parallel":
            spec.get("podManagementPolicy").refuse(f"{_ONE_BY_ONE}, not {shown(spec.get('podManagementPolicy').value)}")
