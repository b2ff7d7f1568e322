"""The agent of a cluster that stops to serve the version of its scheduler's objects: closed, or begun anew with another version."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runtime_suite import RUNS, A, B, Part, eventually, start_run, until_over, until_state
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import AGENT_NAMESPACE, NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.protocol.states import RunState
from trainmaster_agent.cli.kubernetes import run_kubernetes_agent
from trainmaster_agent.runtime.kubernetes import served_placement
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime

VOLCANO, OLDER, NEWER = "scheduling.volcano.sh/v1beta1", "kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"


@pytest.fixture
async def kube(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeKube]:
    monkeypatch.setattr(served_placement, "_LOOK_SECONDS", 0.1)
    async with fake_cluster() as server:
        yield server


async def test_a_cluster_is_closed_while_the_version_is_not_served_and_runs_go_on(kube: FakeKube) -> None:
    kube.serve(VOLCANO, ["podgroups"])
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, placement={"scheduler": "volcano", "schedulerName": "default-scheduler"})
        await lab.open()
        try:
            await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2)))
            await until_state(lab, A, RunState.RUNNING)
            kube.withdraw(VOLCANO)
            words = f"the cluster no longer serves podgroups of {VOLCANO}"
            while words not in (await lab.runtime.capacity()).closed:
                await lab.runtime.wait_changed(0.1)
            await lab.runtime.start(start_run(lab, B, Part(RUNS)))
            refused = await until_over(lab, B)
            assert (refused.state, words in refused.message) == (RunState.RETURNED, True)
            assert lab.runtime.held()[A].state is RunState.RUNNING
            kube.serve(VOLCANO, ["podgroups"])
            while (await lab.runtime.capacity()).closed:
                await lab.runtime.wait_changed(0.1)
        finally:
            await lab.close()


async def test_the_agent_begins_anew_with_another_version_that_is_served(
    kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (OLDER, NEWER):
        kube.serve(version, ["workloads"])
    begun: list[KubernetesRuntime] = []

    class Dispatched:
        """Takes the place of the loop that talks to the dispatcher."""

        def __init__(self, client: object, runtime: KubernetesRuntime, **_: Any) -> None:
            begun.append(runtime)

        async def run(self, stop: asyncio.Event) -> None:
            await stop.wait()

    monkeypatch.setattr("trainmaster_agent.sync.Agent", Dispatched)
    cluster = {"name": "fake", "cluster": {"server": kube.url}}
    context = {"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}
    kubeconfig = tmp_path / "kubeconfig"
    access = {"current-context": "fake", "clusters": [cluster], "contexts": [context]}
    users = [{"name": "nobody", "user": {"token": "none"}}]
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users, **access}))
    config = KubernetesCluster.model_validate(
        {
            "cluster": "lab",
            "namespace": NAMESPACE,
            "placement": {"scheduler": "kueue", "defaultQueue": "default"},
            "lease": {"duration": "4s", "namespace": AGENT_NAMESPACE},
        }
    )
    stop = asyncio.Event()
    acting = asyncio.create_task(run_kubernetes_agent(config, "http://127.0.0.1:1", "key", stop, kubeconfig=kubeconfig))
    try:
        await eventually(lambda: len(begun) == 1, "the agent acts")
        kube.withdraw(NEWER)
        await eventually(lambda: len(begun) == 2, "it begins anew")
        assert not (await begun[1].capacity()).closed
        assert (await begun[1].capacity()).scheduler == "kueue"
        assert not acting.done()
    finally:
        stop.set()
        await acting
