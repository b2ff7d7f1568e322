"""Kubernetes' own Job: https://kubernetes.io/docs/concepts/workloads/controllers/job/"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import PodSet, Wire, WorkloadKind, counts, number, refuse_set

_OF_ANOTHER = "belongs to a Job that exists already: Kubernetes sets it, so leave it out"


def pods_at_a_time(spec: JsonNode) -> int:
    """Return how many pods of a Job run at a time: its parallelism, or its completions where they are fewer."""
    parallelism = number(spec.get("parallelism"), 1)
    return min(parallelism, number(spec.get("completions"), parallelism))


class BatchJob(WorkloadKind):
    """A Job of Kubernetes. Its pods at a time are the gang, as with other queues for Jobs."""

    api_version, kind, plural = "batch/v1", "Job", "jobs"
    end_conditions = "Complete", "Failed"
    name_labels = "batch.kubernetes.io/job-name", "job-name"
    is_built_in = True

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        return [PodSet("main", ("spec", "template"), pods_at_a_time(manifest.get("spec")))]

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "selector"), _OF_ANOTHER)
        refuse_set(manifest, ("spec", "manualSelector"), "cannot be honoured: each run's Job selects its own pods")

    def time_limit(self, manifest: JsonNode) -> int | None:
        seconds = manifest.get("spec").get("activeDeadlineSeconds")
        return None if seconds.value is None else number(seconds, 1)

    def progress(self, status: Mapping[str, Any]) -> str:
        return counts(status)

    def shown_spec(self, spec: Wire, pods: Mapping[str, str]) -> Wire:
        return {**spec, "selector": {"matchLabels": dict(pods)}}
