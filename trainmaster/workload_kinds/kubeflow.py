"""Kubeflow's training jobs, version 1, and MPIJob: https://www.kubeflow.org/docs/components/trainer/legacy-v1/

They differ in the field with their replica types only.
"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import (
    PodSet,
    WorkloadKind,
    counts,
    number,
    refuse_set,
    role_name,
)

_OF_GANGS = "cannot be honoured: gangs are placed by the cluster's own scheduler, as its agent tells it"
_OF_SIZES = "cannot be honoured: a job of this kind keeps its size; give fixed replicas"


class TrainingJob(WorkloadKind):
    """A training job whose replica types are in the field ``replicas`` of its specification."""

    needs = "the Kubeflow training operator"
    end_conditions = "Succeeded", "Failed"
    name_labels = ("training.kubeflow.org/job-name",)

    def __init__(self, kind: str, replicas: str, *, version: str = "v1", needs: str = "") -> None:
        self.api_version, self.kind, self.plural = f"kubeflow.org/{version}", kind, f"{kind.lower()}s"
        self.needs = needs or self.needs
        self._replicas = replicas

    suspend_path = ("spec", "runPolicy", "suspend")
    manager_path = ("spec", "runPolicy", "managedBy")
    time_to_live_path = ("spec", "runPolicy", "ttlSecondsAfterFinished")

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        found: list[PodSet] = []
        waits = manifest.get("spec").get("launcherCreationPolicy").value == "WaitForWorkersReady"
        # By name, as the store does not keep the order of fields.
        for kind, replica in sorted(manifest.get("spec").get(self._replicas).fields(), key=lambda one: one[0]):
            role = role_name(kind, [one.role for one in found])
            path = ("spec", self._replicas, kind, "template")
            found.append(PodSet(role, path, number(replica.get("replicas"), 1), waits and kind == "Launcher"))
        return found

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "runPolicy", "schedulingPolicy"), _OF_GANGS)
        refuse_set(manifest, ("spec", "elasticPolicy"), _OF_SIZES)

    def time_limit(self, manifest: JsonNode) -> int | None:
        seconds = manifest.get("spec").get("runPolicy").get("activeDeadlineSeconds")
        return None if seconds.value is None else number(seconds, 1)

    def progress(self, status: Mapping[str, Any]) -> str:
        types = status.get("replicaStatuses")
        named = sorted((name, counts(one)) for name, one in types.items()) if isinstance(types, Mapping) else []
        return "; ".join(f"{name}: {many}" for name, many in named if many)


TRAINING_JOBS = (
    TrainingJob("PyTorchJob", "pytorchReplicaSpecs"),
    TrainingJob("TFJob", "tfReplicaSpecs"),
    TrainingJob("XGBoostJob", "xgbReplicaSpecs"),
    TrainingJob("PaddleJob", "paddleReplicaSpecs"),
    TrainingJob("JAXJob", "jaxReplicaSpecs"),
    TrainingJob("MPIJob", "mpiReplicaSpecs"),
    TrainingJob("MPIJob", "mpiReplicaSpecs", version="v2beta1", needs="the MPI operator"),
)
