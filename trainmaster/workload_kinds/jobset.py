"""JobSet, groups of Jobs that run as one: https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode
from trainmaster.workload_kinds.batch_job import pods_at_a_time
from trainmaster.workload_kinds.kind import (
    PodSet,
    WorkloadEnd,
    WorkloadKind,
    end_by_conditions,
    number,
    role_name,
)

_IN_ORDER = "cannot be honoured: Jobs that wait for others would have to start with them, as one gang"


class JobSet(WorkloadKind):
    """A JobSet. Each of its replicated Jobs is a role."""

    api_version, kind, plural = "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"
    needs = "the JobSet controller"

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        found: list[PodSet] = []
        for index, job in enumerate(manifest.get("spec").get("replicatedJobs").items()):
            role = role_name(job.get("name").value, [one.role for one in found])
            pods = number(job.get("replicas"), 1) * pods_at_a_time(job.get("template").get("spec"))
            path = ("spec", "replicatedJobs", index, "template", "spec", "template")
            found.append(PodSet(role, path, pods))
        return found

    def check(self, manifest: JsonNode) -> None:
        spec = manifest.get("spec")
        order = spec.get("startupPolicy").get("startupPolicyOrder")
        if order.value == "InOrder":
            order.refuse(_IN_ORDER)
        for job in spec.get("replicatedJobs").items():
            depends = job.get("dependsOn")
            if depends.items():
                depends.refuse(_IN_ORDER)

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        return end_by_conditions(stored, "Completed", "Failed")
