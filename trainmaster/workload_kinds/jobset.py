"""JobSet, groups of Jobs that run as one: https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.batch_job import pods_at_a_time
from trainmaster.workload_kinds.kind import (
    NO_CLAIMS,
    PodSet,
    WorkloadKind,
    counts,
    number,
    refuse_set,
    role_name,
)

_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_BY_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
_FOLLOWS = (
    "cannot be honoured: the pods of a Job would be made only once its first one has a node, and that waits for all of them; "
    f"with {_BY_SELECTOR} they are made at once"
)


class JobSet(WorkloadKind):
    """A JobSet. Each of its replicated Jobs is a role; those that wait for others start after them."""

    api_version, kind, plural = "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"
    needs = "the JobSet controller"
    end_conditions = "Completed", "Failed"
    name_labels = ("jobset.sigs.k8s.io/jobset-name",)

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        found: list[PodSet] = []
        spec = manifest.get("spec")
        is_in_order = spec.get("startupPolicy").get("startupPolicyOrder").value == "InOrder"
        for index, job in enumerate(spec.get("replicatedJobs").items()):
            role = role_name(job.get("name").value, [one.role for one in found])
            pods = number(job.get("replicas"), 1) * pods_at_a_time(job.get("template").get("spec"))
            path = ("spec", "replicatedJobs", index, "template", "spec", "template")
            is_late = bool(index) and (is_in_order or bool(job.get("dependsOn").items()))
            found.append(PodSet(role, path, pods, is_late))
        return found

    def check(self, manifest: JsonNode) -> None:
        refuse_set(manifest, ("spec", "volumeClaimPolicies"), NO_CLAIMS)
        jobs = manifest.get("spec").get("replicatedJobs").items()
        for metadata in (manifest.get("metadata"), *(job.get("template").get("metadata") for job in jobs)):
            refuse_exclusive(metadata)

    def progress(self, status: Mapping[str, Any]) -> str:
        jobs = status.get("replicatedJobsStatus")
        named = (
            [(one.get("name"), counts(one)) for one in jobs if isinstance(one, Mapping)]
            if isinstance(jobs, list)
            else []
        )
        return "; ".join(f"{name}: {many}" for name, many in named if many)


def refuse_exclusive(metadata: JsonNode) -> None:
    """Refuse exclusive placement of the pods of a JobSet or of one of its Jobs that is not by node selectors."""
    annotations = metadata.get("annotations")
    if annotations.get(_EXCLUSIVE).is_set and not annotations.get(_BY_SELECTOR).is_set:
        annotations.get(_EXCLUSIVE).refuse(_FOLLOWS)
