"""Jobs of Kubernetes that run as themselves: the agent creates them, Kubernetes' own Job controller runs them.

The agent acts under the very role that its chart gives it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.agent import agent
from tests.cluster.chart import JOBS, NAMESPACE, helm
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.conformance.runtime_suite import eventually
from trainmaster.protocol.agent import StartRun, StopRun
from trainmaster.protocol.states import FailureCategory, RunState, StopCause
from trainmaster.workload_kinds.specification import translated
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.port import RunStatus

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
__all__ = ["cluster", "plane"]

RUN = "pi-0000001-r1"
NODE = {"cpu": "1", "memory": "4Gi", "pods": "20"}
KUBERNETES_JOB = "workload:batch/v1/Job"


def a_job(*words: str, restart: str = "Never", **spec: Any) -> StartRun:
    """Return a run of a Job of Kubernetes; ``spec``: further fields of its specification."""
    container = {"name": "main", "image": "sim", "command": ["sim", *words], "resources": {"requests": {"cpu": "1"}}}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pi", "annotations": {"trainmaster.dev/queue": "default/team"}},
        "spec": {**spec, "template": {"spec": {"restartPolicy": restart, "containers": [container]}}},
    }
    made = translated(manifest).spec
    return StartRun(
        run=RUN,
        job="pi-0000001",
        queue="default/team",
        attempt=1,
        token=1,
        generation=1,
        spec=made,
        sizes={role["name"]: role["replicas"] for role in made["roles"]},
        placement_timeout_seconds=300,
    )


async def until(runtime: KubernetesRuntime, holds: Callable[[RunStatus], bool], seconds: float = 60) -> RunStatus:
    try:
        await eventually(lambda: holds(runtime.held()[RUN]), "the run comes that far", seconds)
    except AssertionError as error:
        raise AssertionError(f"not within {seconds:g} s: {runtime.held()[RUN]}") from error
    return runtime.held()[RUN]


async def objects(cluster: Cluster) -> list[str]:
    """Return what there is of runs in the API server."""
    found = []
    for path in ("api/v1/namespaces/{}/pods", "apis/batch/v1/namespaces/{}/jobs", "api/v1/namespaces/{}/configmaps"):
        for namespace in (JOBS, NAMESPACE):
            items = (await cluster.api.get(f"/{path.format(namespace)}", {"labelSelector": "trainmaster.dev/run"}))[
                "items"
            ]
            found += [f"{path.rsplit('/', 1)[1]}/{one['metadata']['name']}" for one in items]
    return found


async def nothing_is_left(cluster: Cluster, runtime: KubernetesRuntime) -> None:
    """Acknowledge the end of the run, and wait until no object of it exists in the API server."""
    await runtime.forget(RUN)
    for _ in range(600):
        if not await objects(cluster):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"left in the API server: {await objects(cluster)}")


def started(cluster: Cluster) -> int:
    return len(cluster.kubelet.started({"trainmaster.dev/run": RUN}))


@pytest.mark.parametrize("scheduler", ["native", "gates"])
async def test_a_job_is_one_gang_and_runs_to_its_end(cluster: Cluster, scheduler: str) -> None:
    await cluster.kubelet.add_nodes("node", 3, allocatable=NODE)
    async with agent(cluster, scheduler) as runtime:
        assert KUBERNETES_JOB in (await runtime.capacity()).capabilities
        await runtime.start(
            a_job("print", "hello", "gate", RUN, parallelism=4, completions=4, completionMode="Indexed")
        )
        await until(runtime, lambda status: status.state is RunState.PENDING and "4 members" in status.message)
        await asyncio.sleep(2)  # what must not happen would have happened by now
        assert (runtime.held()[RUN].state, started(cluster)) == (RunState.PENDING, 0), "four pods, three nodes"
        await cluster.kubelet.add_node("late", allocatable=NODE)
        status = await until(runtime, lambda status: status.state is RunState.RUNNING)
        assert sum(roles["main"] for roles in (status.placement or {}).values()) == 4
        assert sorted(one.index for one in status.members) == [0, 1, 2, 3]
        stored = await cluster.api.get(f"/apis/batch/v1/namespaces/{JOBS}/jobs/{RUN}")
        assert stored["spec"]["completionMode"] == "Indexed"
        cluster.kubelet.open_gate(RUN)
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster)) == (RunState.SUCCEEDED, 4)
        assert (await runtime.read_log(RUN, "main", 2, 0, 100)).data == b"hello\n"
        await nothing_is_left(cluster, runtime)


async def test_completions_beyond_its_parallelism_come_one_after_the_other(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 4, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("print", "done", parallelism=2, completions=6))
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster), len(done.members)) == (RunState.SUCCEEDED, 6, 2)
        written = [(await runtime.read_log(RUN, "main", index, 0, 100)).data for index in range(2)]
        assert sum(one.count(b"done\n") for one in written) == 6, "a member's output is that of all its pods"
        await nothing_is_left(cluster, runtime)


async def test_a_pod_that_fails_is_replaced_by_the_job_until_its_back_off_limit(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 2, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("exit", "3", backoffLimit=1))
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster)) == (RunState.FAILED, 2)
        assert done.end is not None
        assert (done.end.category, done.end.exit_code) == (FailureCategory.EXIT, 3)
        assert "BackoffLimitExceeded" in done.message
        await nothing_is_left(cluster, runtime)


async def test_a_field_that_the_cluster_does_not_know_is_told_and_not_dropped(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 1, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("succeed", backOffLimit=3))
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster)) == (RunState.FAILED, 0)
        assert "does not take its Job: " in done.message
        assert 'unknown field "spec.backOffLimit"' in done.message
        await nothing_is_left(cluster, runtime)


async def test_without_the_right_to_create_them_no_kind_is_offered(cluster: Cluster) -> None:
    async with agent(cluster, "gates", "workloads.enabled=false") as runtime:
        assert not [one for one in (await runtime.capacity()).capabilities if one.startswith("workload:")]


async def test_its_own_deadline_ends_it(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 1, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("run", activeDeadlineSeconds=2))
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert done.state is RunState.FAILED
        assert done.end is not None
        assert done.end.category is FailureCategory.DEADLINE
        await nothing_is_left(cluster, runtime)


async def test_a_stop_removes_the_job_and_its_pods(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 2, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("run", parallelism=2, completions=2))
        await until(runtime, lambda status: status.state is RunState.RUNNING)
        await runtime.stop(StopRun(run=RUN, generation=2, cause=StopCause.CANCEL, grace_seconds=1))
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert done.state is RunState.CANCELLED
        assert not cluster.kubelet.living({"trainmaster.dev/run": RUN}), "its members were gone before its end was told"
        assert started(cluster) == 2, "nothing was started in place of what was stopped"
        await nothing_is_left(cluster, runtime)


async def test_a_job_that_somebody_deletes_is_preempted(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 1, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("run"))
        await until(runtime, lambda status: status.state is RunState.RUNNING)
        await cluster.api.delete(f"/apis/batch/v1/namespaces/{JOBS}/jobs/{RUN}", {"propagationPolicy": "Background"})
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, "somebody deleted its Job" in done.message) == (RunState.PREEMPTED, True)
        await nothing_is_left(cluster, runtime)


@pytest.mark.parametrize("stage", ["pending", "running", "over"])
async def test_another_agent_goes_on_where_one_has_ended(cluster: Cluster, stage: str) -> None:
    await cluster.kubelet.add_nodes("node", 2 if stage != "pending" else 1, allocatable=NODE)
    async with agent(cluster, "gates") as runtime:
        await runtime.start(a_job("print", "hello", "gate", RUN, parallelism=2, completions=2))
        wanted = RunState.PENDING if stage == "pending" else RunState.RUNNING
        await until(runtime, lambda status: status.state is wanted and len(status.members) == 2)
        if stage == "pending":
            await until(runtime, lambda status: "2 members" in status.message)
    if stage == "over":
        cluster.kubelet.open_gate(RUN)
        await asyncio.sleep(2)
    async with agent(cluster, "gates") as runtime:
        if stage == "pending":
            await until(runtime, lambda status: status.state is RunState.PENDING)
            await cluster.kubelet.add_node("late", allocatable=NODE)
        if stage != "over":
            await until(runtime, lambda status: status.state is RunState.RUNNING)
            cluster.kubelet.open_gate(RUN)
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster)) == (RunState.SUCCEEDED, 2), "nothing was started twice"
        await nothing_is_left(cluster, runtime)


async def test_a_pod_that_was_submitted_is_made_by_the_agent_as_it_was_written(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 1, allocatable=NODE)
    container = {"name": "main", "image": "sim", "command": ["sim", "print", "hello"]}
    beside = {"name": "beside", "image": "sim", "command": ["sim", "print", "other"]}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pi", "labels": {"app": "x"}, "annotations": {"trainmaster.dev/queue": "default/team"}},
        "spec": {"restartPolicy": "Never", "containers": [container, beside], "terminationGracePeriodSeconds": 5},
    }
    made = translated(manifest).spec
    start = a_job()
    async with agent(cluster, "native") as runtime:
        assert "workload:v1/Pod" in (await runtime.capacity()).capabilities
        await runtime.start(start.model_copy(update={"spec": made, "sizes": {"pod": 1}}))
        done = await until(runtime, lambda status: status.state.is_terminal)
        assert (done.state, started(cluster)) == (RunState.SUCCEEDED, 1)
        (pod,) = (await cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods"))["items"]
        assert [one["name"] for one in pod["spec"]["containers"]] == ["main", "beside"]
        assert (pod["metadata"]["labels"]["app"], pod["spec"]["terminationGracePeriodSeconds"]) == ("x", 5)
        assert (await runtime.read_log(RUN, "pod", 0, 0, 100)).data == b"hello\n"
        await nothing_is_left(cluster, runtime)


async def test_a_job_whose_pods_are_refused_says_why(cluster: Cluster) -> None:
    """The Job controller tells it in an event alone: the Job itself has no condition."""
    await cluster.kubelet.add_nodes("node", 1, allocatable=NODE)
    async with agent(cluster, "gates", admission={"serviceAccounts": ["nobody-made-it"]}) as runtime:
        start = a_job("run")
        start.spec["roles"][0]["podTemplate"]["spec"]["serviceAccountName"] = "nobody-made-it"
        await runtime.start(start)
        status = await until(runtime, lambda one: "FailedCreate" in one.message)
        assert f"its Job has made 0 of the 1 pods that start together; Job {RUN}: FailedCreate: " in status.message
        assert 'serviceaccount "nobody-made-it" not found' in status.message
        account = {"metadata": {"name": "nobody-made-it"}}
        await cluster.api.post(f"/api/v1/namespaces/{JOBS}/serviceaccounts", account)
        await until(runtime, lambda one: one.state is RunState.RUNNING, 120)
