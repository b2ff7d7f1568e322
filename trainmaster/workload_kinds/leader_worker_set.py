"""LeaderWorkerSet, groups of a leader with its workers: https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import NO_CLAIMS, PodSet, WorkloadKind, number, refuse_set

_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_FOLLOWS = "cannot be honoured: workers would be made only once their leader has a node, and that waits for all of them"


class LeaderWorkerSet(WorkloadKind):
    """Groups of pods that serve: one leader and its workers each. It runs until it is cancelled."""

    api_version, kind, plural = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets"
    needs = "the LeaderWorkerSet controller"
    ends = False
    name_labels = ("leaderworkerset.sigs.k8s.io/name",)
    suspend_path = ()
    time_to_live_path = ()
    manager_path = ()

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        spec = manifest.get("spec")
        groups, template = number(spec.get("replicas"), 1), spec.get("leaderWorkerTemplate")
        size = number(template.get("size"), 1)
        inside = ("spec", "leaderWorkerTemplate")
        if not template.get("leaderTemplate").is_set:
            return [PodSet("worker", (*inside, "workerTemplate"), groups * size)]
        leaders = PodSet("leader", (*inside, "leaderTemplate"), groups)
        waits = spec.get("startupPolicy").value == "LeaderReady"
        workers = PodSet("worker", (*inside, "workerTemplate"), groups * (size - 1), waits)
        return [leaders, workers] if size > 1 else [leaders]

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "leaderWorkerTemplate", "volumeClaimTemplates"), NO_CLAIMS)
        exclusive = manifest.get("metadata").get("annotations").get(_EXCLUSIVE)
        if exclusive.is_set:
            exclusive.refuse(_FOLLOWS)

    def progress(self, status: Mapping[str, Any]) -> str:
        ready, groups = (status.get(field) or 0 for field in ("readyReplicas", "replicas"))
        return f"{ready} of {groups} groups ready" if groups else ""
