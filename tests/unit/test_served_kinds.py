"""The kinds of workloads that an agent offers: served by its API server, and allowed to it."""

from typing import Any

import pytest

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.kube.errors import KubeError, NotFoundError, UnavailableError
from trainmaster_agent.runtime.kubernetes.served_kinds import ServedKinds

JOB, JOBSET = "workload:batch/v1/Job", "workload:jobset.x-k8s.io/v1alpha2/JobSet"


class Answers:
    """An API server's answers on its resources and on what the agent may do there."""

    def __init__(self) -> None:
        self.served = {"batch/v1": ["jobs", "jobs/status", "cronjobs"]}
        self.allowed = {("jobs", "a"), ("jobsets", "b")}
        self.is_away = False

    async def call(self, method: str, path: str, *, body: Any = None) -> dict[str, Any]:
        if self.is_away:
            raise UnavailableError("away")
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
    assert kinds.capabilities == {JOB}
    assert [kind.capability for kind in found] == [JOB]
    answers.served["jobset.x-k8s.io/v1alpha2"] = ["jobsets"]
    await kinds.look()
    assert kinds.capabilities == {JOB, JOBSET}, "an operator was installed"
    assert [kind.capability for kind in found] == [JOB, JOBSET], "each is told once"
    assert [kind.capability for kind in kinds.kinds] == [JOB, JOBSET]
    answers.allowed.clear()
    await kinds.look()
    assert kinds.capabilities == frozenset()


async def test_what_was_found_stays_while_the_api_server_is_away() -> None:
    answers = Answers()
    kinds = ServedKinds(answers, lambda: ("a",), lambda kind: None)  # type: ignore[arg-type]
    await kinds.look()
    answers.is_away = True
    with pytest.raises(KubeError):
        await kinds.look()
    assert kinds.capabilities == {JOB}
