"""Kubernetes' own Job: https://kubernetes.io/docs/concepts/workloads/controllers/job/"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.kind import PodSet, Wire, WorkloadEnd, WorkloadKind, at, counts, number, refuse_set

_BEFORE_END = ("FailureTarget", "SuccessCriteriaMet")
"""Types of the conditions that a Job has before it has failed, and before it is complete."""
_OF_LIVING_PODS = frozenset(("active", "completionTime", "ready", "terminating", "uncountedTerminatedPods"))
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
    added_labels = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"
    is_built_in = True

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        return [PodSet("main", ("spec", "template"), pods_at_a_time(manifest.get("spec")))]

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "selector"), _OF_ANOTHER)
        refuse_set(manifest, ("spec", "manualSelector"), "cannot be honoured: each run's Job selects its own pods")

    def time_limit(self, manifest: JsonNode) -> int | None:
        seconds = manifest.get("spec").get("activeDeadlineSeconds")
        return None if seconds.value is None else number(seconds, 1)

    def as_submitted(self, stored: Mapping[str, Any]) -> Wire:
        spec = super().as_submitted(stored)
        if not spec.get("manualSelector"):
            spec.pop("selector", None)
            labels = at(spec, ("template", "metadata", "labels"))
            for label in self.added_labels if isinstance(labels, dict) else ():
                labels.pop(label, None)
        return spec

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        # As an API server demands it of who writes the status of a Job: a target before the end, a start, and no living pods.
        found = super().ended_status(status, end, reason, when)
        before = _BEFORE_END[end.has_succeeded]
        kept = [one for one in found["conditions"] if one.get("type") not in _BEFORE_END]
        counted = {field: value for field, value in found.items() if field not in _OF_LIVING_PODS}
        times = {"startTime": status.get("startTime") or when}
        if end.has_succeeded:
            times["completionTime"] = status.get("completionTime") or when
        return {**counted, **times, "conditions": [*kept[:-1], {**kept[-1], "type": before}, kept[-1]]}

    def progress(self, status: Mapping[str, Any]) -> str:
        return counts(status)

    def shown_spec(self, spec: Wire, pods: Mapping[str, str]) -> Wire:
        return {**spec, "selector": {"matchLabels": dict(pods)}}
