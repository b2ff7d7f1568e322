"""The kinds of workloads that an agent offers: served by its API server, and allowed to it."""

from collections.abc import Mapping
from typing import Any

import pytest

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.train_job import RUNTIMES
from trainmaster_agent.kube.errors import ForbiddenError, KubeError, NotFoundError, UnavailableError
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.runtime.kubernetes.served_kinds import ServedKinds

TRAIN_JOB = "workload:trainer.kubeflow.org/v1alpha1/TrainJob"
JOB, JOBSET = "workload:batch/v1/Job", "workload:jobset.x-k8s.io/v1alpha2/JobSet"


class Answers:
    """An API server's answers on its resources and on what the agent may do there."""

    def __init__(self) -> None:
        self.served = {"batch/v1": ["jobs", "jobs/status", "cronjobs"]}
        self.allowed = {("jobs", "a"), ("jobsets", "b")}
        self.is_away = False
        self.runtimes: list[dict[str, Any]] | None = None

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        if self.is_away:
            raise UnavailableError("away")
        if path == RUNTIMES:
            if self.runtimes is None:
                raise ForbiddenError(403, "may not list them")
            return {"items": self.runtimes}
        if method == "POST":
            wanted = body["spec"]["resourceAttributes"]
            assert wanted["verb"] == "create"
            return {"status": {"allowed": (wanted["resource"], wanted["namespace"]) in self.allowed}}
        names = self.served.get(path.removeprefix("/apis/"))
        if names is None:
            raise NotFoundError(404, "not served")
        return {"resources": [{"name": name} for name in names]}


async def test_a_kind_is_offered_while_it_is_served_and_may_be_created_anywhere() -> None:
    answers, found = Answers(), list[WorkloadKind]()
    kinds = ServedKinds(answers, lambda: ("a", "b"), found.append)  # type: ignore[arg-type]
    await kinds.look()
    assert kinds.offered(Gates()) == {JOB}
    assert [kind.capability for kind in found] == [JOB]
    answers.served["jobset.x-k8s.io/v1alpha2"] = ["jobsets"]
    await kinds.look()
    assert kinds.offered(Gates()) == {JOB, JOBSET}, "an operator was installed"
    assert [kind.capability for kind in found] == [JOB, JOBSET], "each is told once"
    assert [kind.capability for kind in kinds.kinds] == [JOB, JOBSET]
    answers.allowed.clear()
    await kinds.look()
    assert kinds.offered(Gates()) == frozenset()


def runtime(name: str, replicas: int = 1) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [{"name": "node"}]}}},
    }
    jobs = [{"name": "node", "replicas": replicas, "template": template}]
    return {"metadata": {"name": name}, "spec": {"template": {"spec": {"replicatedJobs": jobs}}}}


async def test_runtimes_of_train_jobs_are_offered_where_the_agent_may_list_them() -> None:
    answers = Answers()
    kinds = ServedKinds(answers, lambda: ("a",), lambda kind: None)  # type: ignore[arg-type]
    answers.served["trainer.kubeflow.org/v1alpha1"] = ["trainjobs"]
    answers.allowed.add(("trainjobs", "a"))
    answers.runtimes = [runtime("torch")]
    await kinds.look()
    assert kinds.offered(Gates()) == {JOB, TRAIN_JOB, "runtime:torch jobs=node requests="}
    assert kinds.offered(Gates("mine")) == {JOB}, "no TrainJob can give its pods a scheduler"
    answers.runtimes = None
    await kinds.look()
    assert kinds.offered(Gates()) == {JOB, TRAIN_JOB}


async def test_what_kueue_admits_is_offered_where_kueue_places() -> None:
    answers = Answers()
    kinds = ServedKinds(answers, lambda: ("a",), lambda kind: None)  # type: ignore[arg-type]
    answers.served |= {"leaderworkerset.x-k8s.io/v1": ["leaderworkersets"], "kubeflow.org/v1": ["mpijobs", "tfjobs"]}
    answers.allowed |= {("leaderworkersets", "a"), ("mpijobs", "a"), ("tfjobs", "a")}
    await kinds.look()
    assert len(kinds.offered(Gates())) == 4
    assert kinds.offered(Kueue().for_workloads) == {JOB, "workload:kubeflow.org/v1/TFJob"}


async def test_no_report_has_more_than_a_few_runtimes(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers()
    kinds = ServedKinds(answers, lambda: ("a",), lambda kind: None)  # type: ignore[arg-type]
    answers.served["trainer.kubeflow.org/v1alpha1"] = ["trainjobs"]
    answers.allowed.add(("trainjobs", "a"))
    answers.runtimes = [runtime("uncounted", replicas=2), *(runtime(f"torch-{index:03}") for index in range(70))]
    await kinds.look()
    await kinds.look()
    assert sum(one.startswith("runtime:") for one in kinds.offered(Gates())) == 64
    (words,) = [record.getMessage() for record in caplog.records if "not reported" in record.getMessage()]
    assert "uncounted" in words
    assert "torch-069" in words


async def test_what_was_found_stays_while_the_api_server_is_away() -> None:
    answers = Answers()
    kinds = ServedKinds(answers, lambda: ("a",), lambda kind: None)  # type: ignore[arg-type]
    await kinds.look()
    answers.is_away = True
    with pytest.raises(KubeError):
        await kinds.look()
    assert kinds.offered(Gates()) == {JOB}


async def test_devices_are_offered_where_the_agent_may_make_templates_of_claims() -> None:
    answers = Answers()
    kinds = ServedKinds(answers, lambda: ("a", "b"), lambda _: None)  # type: ignore[arg-type]
    answers.allowed.add(("resourceclaimtemplates", "b"))
    offered = []
    for resources in ([], ["deviceclasses", "resourceclaimtemplates"]):
        answers.served["resource.k8s.io/v1"] = resources
        await kinds.look()
        offered.append(kinds.takes_devices)
    shares = [kinds.takes_shared_devices]
    answers.allowed.add(("resourceclaims", "a"))
    await kinds.look()
    shares.append(kinds.takes_shared_devices)
    answers.allowed.clear()
    await kinds.look()
    assert [*offered, kinds.takes_devices] == [False, True, False]
    assert [*shares, kinds.takes_shared_devices] == [False, True, False]
