"""Kubernetes' own Pod: https://kubernetes.io/docs/concepts/workloads/pods/"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import PodSet, Wire, WorkloadEnd, WorkloadKind, at, node_at, refuse_set

_ONCE = (
    "must be Never: a pod that is taken as a job runs to its end once, and no node restarts it; a Job has backoffLimit for that, and a"
    " job of Trainmaster has retries"
)
_NO_GROUP = (
    "cannot be honoured here: a group of pods is taken by its labels of Kueue, pod by pod, by the Kubernetes API of the dispatcher"
    " (kubectl apply); else submit a Job, a JobSet, or a job with roles"
)
_GROUP_LABELS = ("kueue.x-k8s.io/pod-group-name", "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "kueue.x-k8s.io/pod-group-total-count", "pod-group-name")


class PlainPod(WorkloadKind):
    """A single pod, which the agent makes like the member of any job."""

    api_version, kind, plural = "v1", "Pod", "pods"
    is_built_in = True
    is_made_by_agent = True
    short_names = ("po",)
    suspend_path = ()
    manager_path = ()
    time_to_live_path = ()

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        return [PodSet("pod", (), 1, is_pod=True)]

    def check(self, manifest: JsonNode) -> None:
        metadata = manifest.get("metadata")
        for field, keys in (("labels", _GROUP_LABELS), ("annotations", _GROUP_ANNOTATIONS)):
            for key in keys:
                refuse_set(metadata, (field, key), _NO_GROUP)
        refuse_set(manifest, ("spec", "schedulingGroup"), _NO_GROUP)
        spec = manifest.get("spec")
        if not spec.is_set:
            spec.refuse("must be the specification of a pod")
        if spec.get("containers").is_set and spec.get("restartPolicy").value != "Never":
            spec.get("restartPolicy").refuse(_ONCE)

    def time_limit(self, manifest: JsonNode) -> int | None:
        seconds = node_at(manifest, ("spec", "activeDeadlineSeconds")).value
        return seconds if isinstance(seconds, int) and not isinstance(seconds, bool) and seconds > 0 else None

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        phase = at(stored, ("status", "phase"))
        words = (str(one) for field in ("reason", "message") if (one := at(stored, ("status", field))))
        return WorkloadEnd(phase == "Succeeded", ": ".join(words)) if phase in ("Succeeded", "Failed") else None

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        words = {"reason": reason, **({"message": end.message} if end.message else {})}
        return {**status, "phase": "Succeeded" if end.has_succeeded else "Failed", **words}

    def progress(self, status: Mapping[str, Any]) -> str:
        return str(status.get("phase") or "")


POD = PlainPod()
