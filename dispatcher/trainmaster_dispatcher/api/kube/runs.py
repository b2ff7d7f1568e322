"""Runs of jobs as objects of Kubernetes: each attempt of a job on a cluster; they cannot be changed. Pure."""

from collections.abc import Mapping
from typing import Any

from trainmaster_dispatcher.api.kube.objects import (
    CLUSTER_LABEL,
    GROUP_VERSION,
    Wire,
    label_of,
    moment,
    owner_of,
    uid_of,
)
from trainmaster_dispatcher.services.job_objects import ReadJob

RUN_FIELDS = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "spec.cluster": ("spec", "cluster"),
    "status.state": ("status", "state"),
}
_IN_SPEC = ("attempt", "cluster")


def run_name(job: str, attempt: int) -> str:
    """Return the name of a run of the job whose object has this name."""
    return f"{job}-r{attempt}"


def job_in(name: str) -> str | None:
    """Return the name of the job of a run with this name; None for a name that no run can have."""
    job, dash, attempt = name.rpartition("-r")
    return job if dash and job and attempt.isdecimal() and len(attempt) < 10 else None


def run_object(job: ReadJob, run: Mapping[str, Any]) -> Wire:
    """Return a run, given as in answers of the REST API."""
    status = {field: value for field, value in run.items() if field not in _IN_SPEC}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "Run",
        "metadata": {
            "name": run_name(job.name, run["attempt"]),
            "namespace": job.namespace,
            "uid": uid_of("Run", run["id"]),
            "resourceVersion": str(job.metadata.version),
            "creationTimestamp": moment(run["leasedAt"]),
            "labels": {**job.line.get("labels", {}), **label_of(job.name), CLUSTER_LABEL: run["cluster"]},
            "ownerReferences": [owner_of(job)],
        },
        "spec": {"job": job.line["id"], **{field: run[field] for field in _IN_SPEC}},
        "status": status,
    }
