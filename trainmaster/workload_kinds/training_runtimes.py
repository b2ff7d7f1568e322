"""Runtimes of Kubeflow Trainer as capabilities of a cluster: what an agent reports of each, and what a TrainJob needs. Pure.

A TrainJob names a runtime, and the pod templates are the runtime's. So it runs only where its cluster has a runtime of that name
with the very steps that the TrainJob is counted by, and whose own requests the TrainJob replaces.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainmaster.workload_kinds.kind import at

NODE = "node"
"""Name of the job, and of its container, that trains."""
STEPS: Mapping[str, str] = {
    "dataset-initializer": "dataset-initializer",
    "model-initializer": "model-initializer",
    NODE: "trainer",
}
"""Values of the label of each job that a TrainJob has fields for, by the name of the job."""
ANY_REQUEST = "*"
"""Stands for requests that no TrainJob can replace: those of containers beside the one that trains."""
_STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_PREFIX, _JOBS, _REQUESTS = "runtime:", " jobs=", " requests="
_MOST_JOBS = 20
_LONGEST = 253
"""Characters of a capability."""


class TrainingRuntime(NamedTuple):
    """A runtime of a cluster, or one that a TrainJob needs."""

    name: str
    jobs: frozenset[str]
    """Names of the jobs that it has."""
    requests: frozenset[str]
    """Resources that it requests for the pods that train; of one that is needed: those that its TrainJob sets."""

    @property
    def capability(self) -> str:
        return f"{_PREFIX}{self.name}{_JOBS}{','.join(sorted(self.jobs))}{_REQUESTS}{','.join(sorted(self.requests))}"


def runtime_of(stored: Mapping[str, Any]) -> TrainingRuntime | None:
    """Return a ClusterTrainingRuntime; None if the pods that a TrainJob makes with it cannot be counted beforehand, or are gangs of
    another scheduler.
    """
    jobs = at(stored, ("spec", "template", "spec", "replicatedJobs"))
    name = at(stored, ("metadata", "name"))
    if not isinstance(name, str) or not isinstance(jobs, list) or not 0 < len(jobs) <= _MOST_JOBS:
        return None
    if at(stored, ("spec", "podGroupPolicy")) is not None:
        return None
    names = [str(at(job, ("name",))) for job in jobs]
    if set(names) <= STEPS.keys() and not all(_is_countable(job) for job in jobs):
        return None
    requests = {one for job in jobs if at(job, ("name",)) == NODE for one in _requests_of(job)}
    found = TrainingRuntime(name, frozenset(names), frozenset(requests))
    return found if len(found.capability) <= _LONGEST else None


def is_offered(capability: str, offered: Iterable[str]) -> bool:
    """Return whether one of the capabilities of a cluster is a runtime that a TrainJob needs."""
    wanted = _parsed(capability)
    return wanted is not None and any(_suits(one, wanted) for one in map(_parsed, offered))


def why_not_offered(capability: str, offered: Iterable[str]) -> str | None:
    """Return why a cluster does not have a runtime that a TrainJob needs; None for a capability of another sort."""
    wanted = _parsed(capability)
    if wanted is None:
        return None
    found = next((one for one in map(_parsed, offered) if one is not None and one.name == wanted.name), None)
    named = f"ClusterTrainingRuntime {wanted.name}"
    if found is None:
        return f"its agent reports no {named} that a TrainJob can use"
    if found.jobs != wanted.jobs:
        return f"its {named} has the jobs {_listed(found.jobs)}, and the TrainJob is for {_listed(wanted.jobs)}"
    if ANY_REQUEST in found.requests:
        return f"its {named} has containers with requests that no TrainJob can set"
    more = _listed(found.requests - wanted.requests)
    return f"its {named} requests {more} for each node, and spec.trainer.resourcesPerNode does not say how much"


def _suits(found: TrainingRuntime | None, wanted: TrainingRuntime) -> bool:
    return found is not None and found[:2] == wanted[:2] and found.requests <= wanted.requests


def _parsed(capability: str) -> TrainingRuntime | None:
    if not capability.startswith(_PREFIX):
        return None
    name, _, rest = capability.removeprefix(_PREFIX).partition(_JOBS)
    jobs, _, requests = rest.partition(_REQUESTS)
    return TrainingRuntime(name, frozenset(filter(None, jobs.split(","))), frozenset(filter(None, requests.split(","))))


def _is_countable(job: Any) -> bool:
    """Return whether a job has one pod, or as many as the TrainJob has nodes, and the container that TrainJobs set."""
    name = str(at(job, ("name",)))
    template = ("template", "spec")
    if at(job, ("template", "metadata", "labels", _STEP_LABEL)) != STEPS[name] or at(job, ("replicas",)) not in (
        None,
        1,
    ):
        return False
    parallelism = at(job, (*template, "parallelism"))
    if name != NODE and parallelism not in (None, 1):
        return False
    if at(job, (*template, "template", "spec", "resourceClaims")):
        return False  # devices that no TrainJob says
    return name in [at(one, ("name",)) for one in _containers(job, "containers")]


def _requests_of(job: Any) -> set[str]:
    found = set[str]()
    for one in _containers(job, "containers"):
        names = requested(at(one, ("resources",)))
        found |= names if at(one, ("name",)) == NODE or not names else {ANY_REQUEST}
    if any(requested(at(one, ("resources",))) for one in _containers(job, "initContainers")):
        found.add(ANY_REQUEST)
    return found


def _containers(job: Any, field: str) -> Sequence[Any]:
    found = at(job, ("template", "spec", "template", "spec", field))
    return found if isinstance(found, list) else ()


def requested(resources: Any) -> set[str]:
    """Return the names of the resources in the requests and limits of a container."""
    lists = (at(resources, (field,)) for field in ("limits", "requests"))
    return {str(name) for one in lists if isinstance(one, dict) for name in one}


def _listed(names: Collection[str]) -> str:
    *others, last = sorted(names) or [""]
    return f"{', '.join(others)} and {last}" if others else last
