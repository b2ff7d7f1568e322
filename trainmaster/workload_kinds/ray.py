"""KubeRay's RayJob and RayCluster: https://docs.ray.io/en/latest/cluster/kubernetes/index.html"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.states import FailureCategory
from trainmaster.workload_kinds.kind import (
    PodSet,
    Step,
    Wire,
    WorkloadEnd,
    WorkloadKind,
    at,
    node_at,
    number,
    refuse_set,
    role_name,
)

_NO_AUTOSCALER = "cannot be honoured: a job of this kind keeps its size; give fixed replicas"
_NO_WAY_IN = "cannot be honoured: what leads into the cluster from outside is its owner's to make"
_NO_SELECTOR = "cannot be honoured: each run has a Ray cluster of its own"


def _ray_pod_sets(cluster: JsonNode, path: tuple[Step, ...]) -> list[PodSet]:
    found = [PodSet("head", (*path, "headGroupSpec", "template"), 1)]
    for index, group in enumerate(cluster.get("workerGroupSpecs").items()):
        hosts = number(group.get("numOfHosts"), 1)
        pods = number(group.get("replicas"), 1, least=0) * hosts
        if pods:
            role = role_name(group.get("groupName").value, [one.role for one in found])
            found.append(PodSet(role, (*path, "workerGroupSpecs", index, "template"), pods))
    return found


def _check_cluster(manifest: JsonNode, path: tuple[Step, ...]) -> None:
    refuse_set(manifest, (*path, "enableInTreeAutoscaling"), _NO_AUTOSCALER)
    head = node_at(manifest, (*path, "headGroupSpec"))
    for field in ("enableIngress", "headService"):
        refuse_set(manifest, (*path, "headGroupSpec", field), _NO_WAY_IN)
    if head.get("serviceType").value not in (None, "", "ClusterIP"):
        head.get("serviceType").refuse(_NO_WAY_IN)


def _workers(status: Mapping[str, Any]) -> str:
    ready, wanted = (status.get(field) or 0 for field in ("readyWorkerReplicas", "desiredWorkerReplicas"))
    workers = f"{ready} of {wanted} workers ready" if wanted else ""
    return ", ".join(filter(None, (workers, _trouble(status))))


def _trouble(status: Mapping[str, Any]) -> str:
    """Return the reason why the operator cannot create or delete a pod of a Ray cluster; empty if it can."""
    conditions = status.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and (one.get("type"), one.get("status")) == ("ReplicaFailure", "True"):
            return ": ".join(str(one[field]) for field in ("reason", "message") if one.get(field))
    return ""


_OTHER_MODES = {
    "InteractiveMode": "cannot be honoured: a job ends by itself; use K8sJobMode or HTTPMode",
    "SidecarMode": "cannot be honoured: the operator adds a container to the head that is in no template, so that it is not"
    " counted, and that may be root; use K8sJobMode or HTTPMode",
}
_IMAGE_USER = (1000, 100)
"""Its images start Ray in the folder of this user, which others may not enter."""


class RayCluster(WorkloadKind):
    """A Ray cluster: its head and its groups of workers. It runs until it is cancelled."""

    api_version, kind, plural = "ray.io/v1", "RayCluster", "rayclusters"
    name_labels = ("ray.io/cluster",)
    needs = "the KubeRay operator"
    image_user = _IMAGE_USER
    ends = False

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        return _ray_pod_sets(manifest.get("spec"), ("spec",))

    def check(self, manifest: JsonNode) -> None:
        _check_cluster(manifest, ("spec",))

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        return WorkloadEnd(False, str(at(stored, ("status", "reason")) or "")) if _state(stored) == "failed" else None

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        return {**status, "state": "failed", "reason": end.message or reason}

    def progress(self, status: Mapping[str, Any]) -> str:
        return ", ".join(filter(None, (str(status.get("state") or ""), _workers(status))))


class RayJob(WorkloadKind):
    """A Ray cluster with a program that runs on it, and the pod that hands it in once the cluster is up."""

    api_version, kind, plural = "ray.io/v1", "RayJob", "rayjobs"
    needs = "the KubeRay operator"
    image_user = _IMAGE_USER

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        found = _ray_pod_sets(manifest.get("spec").get("rayClusterSpec"), ("spec", "rayClusterSpec"))
        if manifest.get("spec").get("submissionMode").value in (None, "", "K8sJobMode"):
            found.append(PodSet("submitter", ("spec", "submitterPodTemplate"), 1, is_late=True))
        return found

    def completed(self, manifest: Wire) -> Wire:
        spec = manifest.get("spec")
        if not isinstance(spec, dict) or spec.get("submissionMode") not in (None, "", "K8sJobMode"):
            return manifest
        if spec.get("submitterPodTemplate"):
            return manifest
        head = at(spec, ("rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0))
        image = head.get("image") if isinstance(head, dict) else None
        # As KubeRay's own one: https://github.com/ray-project/kuberay, GetDefaultSubmitterTemplate.
        limits, requests = {"cpu": "1", "memory": "1Gi"}, {"cpu": "500m", "memory": "200Mi"}
        container = {
            "name": "ray-job-submitter",
            "image": image,
            "resources": {"limits": limits, "requests": requests},
        }
        template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
        return {**manifest, "spec": {**spec, "submitterPodTemplate": template}}

    def check(self, manifest: JsonNode) -> None:
        _check_cluster(manifest, ("spec", "rayClusterSpec"))
        refuse_set(manifest, ("spec", "clusterSelector"), _NO_SELECTOR)
        mode = manifest.get("spec").get("submissionMode")
        if isinstance(mode.value, str) and mode.value in _OTHER_MODES:
            mode.refuse(_OTHER_MODES[mode.value])

    def time_limit(self, manifest: JsonNode) -> int | None:
        seconds = manifest.get("spec").get("activeDeadlineSeconds")
        return None if seconds.value is None else number(seconds, 1)

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        deployment, job = (at(stored, ("status", field)) for field in ("jobDeploymentStatus", "jobStatus"))
        if deployment not in ("Complete", "Failed"):
            return None
        if job == "SUCCEEDED":
            return WorkloadEnd(True)
        words = ": ".join(str(one) for field in ("reason", "message") if (one := at(stored, ("status", field))))
        is_late = at(stored, ("status", "reason")) == "DeadlineExceeded"
        return WorkloadEnd(False, words, FailureCategory.DEADLINE if is_late else None)

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        states = ("Complete", "SUCCEEDED") if end.has_succeeded else ("Failed", "STOPPED")
        times = {"endTime": status.get("endTime", when)}
        words = {"reason": reason, "message": end.message}
        return {**status, "jobDeploymentStatus": states[0], "jobStatus": states[1], **times, **words}

    def progress(self, status: Mapping[str, Any]) -> str:
        cluster = status.get("rayClusterStatus")
        states = (str(status.get(field) or "") for field in ("jobDeploymentStatus", "jobStatus"))
        return ", ".join(filter(None, (*states, _workers(cluster) if isinstance(cluster, Mapping) else "")))


def _state(stored: Mapping[str, Any]) -> str:
    return str(at(stored, ("status", "state")) or "")
