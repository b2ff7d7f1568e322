"""All kinds of other APIs that are taken as jobs."""

from collections.abc import Mapping

from trainmaster.workload_kinds.app_wrapper import AppWrapper
from trainmaster.workload_kinds.batch_job import BatchJob
from trainmaster.workload_kinds.jobset import JobSet
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.kubeflow import TRAINING_JOBS
from trainmaster.workload_kinds.leader_worker_set import LeaderWorkerSet
from trainmaster.workload_kinds.pod import POD
from trainmaster.workload_kinds.ray import RayCluster, RayJob
from trainmaster.workload_kinds.spark import SparkApplication
from trainmaster.workload_kinds.train_job import TrainJob
from trainmaster.workload_kinds.wrapped_servers import WrappedDeployment, WrappedStatefulSet

_WRAPPED: tuple[WorkloadKind, ...] = (
    BatchJob(),
    JobSet(),
    *TRAINING_JOBS,
    RayJob(),
    RayCluster(),
    LeaderWorkerSet(),
    POD,
)
"""Kinds that may also be components of an AppWrapper: their pods have the templates of the manifest."""
_APP_WRAPPER = AppWrapper((*_WRAPPED, WrappedDeployment(), WrappedStatefulSet()))
KINDS: tuple[WorkloadKind, ...] = (*_WRAPPED, TrainJob(), SparkApplication(), _APP_WRAPPER)
_BY_NAME: Mapping[tuple[str, str], WorkloadKind] = {(one.api_version, one.kind): one for one in KINDS}
_BY_FULL_NAME: Mapping[str, WorkloadKind] = {one.name: one for one in KINDS}
_BY_CAPABILITY: Mapping[str, WorkloadKind] = {one.capability: one for one in KINDS}


def kind_of(api_version: object, kind: object) -> WorkloadKind | None:
    """Return the kind of a manifest by its ``apiVersion`` and ``kind``; None if it is not taken."""
    known = isinstance(api_version, str) and isinstance(kind, str)
    return _BY_NAME.get((str(api_version), str(kind))) if known else None


def kind_by_capability(capability: str) -> WorkloadKind | None:
    """Return the kind whose capability this is; None for a capability of another sort."""
    return _BY_CAPABILITY.get(capability)


def kind_by_name(name: str) -> WorkloadKind | None:
    """Return the kind with this name, such as ``batch/v1 Job``; None if it is not taken."""
    return _BY_FULL_NAME.get(name)
