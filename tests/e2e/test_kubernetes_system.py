"""The whole system with an agent on a real control plane, installed by its chart: a job from submission to its end."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.chart import apply, helm, install_agent, render
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from trainmaster.client.http import Client
from trainmaster.client.streams import LogPiece

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the charts with", allow_module_level=True)
__all__ = ["cluster", "plane"]

NODE = {"cpu": "2", "memory": "4Gi", "pods": "20"}


def _as_pod(container: dict[str, Any]) -> dict[str, Any]:
    return {**container, "command": ["sim", "succeed"], "resources": {"requests": container["resources"]}}


def run_jobs(url: str) -> list[str]:
    """Run a job, a gang that prints, a job that fails, and a Job of Kubernetes; return how each ended, and what the gang printed."""
    container = {"image": "sim", "resources": {"cpu": "500m"}}
    with Client(url, ADMIN_KEY) as client:
        one = {"name": "main", "template": {**container, "command": ["sim", "succeed"]}}
        gang = {
            "name": "worker",
            "replicas": 3,
            "template": {**container, "command": ["sim", "print", "hello", "succeed"]},
        }
        bad = {"name": "main", "template": {**container, "command": ["sim", "exit", "7"]}}
        pods = {"restartPolicy": "Never", "containers": [{"name": "main", **_as_pod(container)}]}
        own = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "own", "annotations": {"trainmaster.dev/queue": "default"}},
            "spec": {"parallelism": 2, "completions": 4, "template": {"spec": pods}},
        }
        roles = (("one", one), ("gang", gang), ("bad", bad))
        ids = client.submit([*({"name": name, "queue": "default", "roles": [role]} for name, role in roles), own])
        ended = client.wait(ids, timeout=120)
        states = [str(view.state) for view in ended]
        said = "".join(piece.data for piece in client.logs(ids[1]) if isinstance(piece, LogPiece))
        return [*states, said]


async def test_the_agent_of_the_chart_finishes_jobs_with_the_role_that_the_chart_gives_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.kubelet.add_nodes("node", 2, allocatable=NODE)
    installed = await install_agent(cluster.plane, "north")
    stage = KubeStage(tmp_path, [KubeCluster("north", installed.kubeconfig, installed.config)])
    try:
        began = time.monotonic()
        await asyncio.to_thread(stage.start)
        one, gang, bad, own, said = await asyncio.to_thread(run_jobs, stage.urls[0])
        print(f"\nfour jobs in {time.monotonic() - began:.1f} s, the start of the system included")
    finally:
        stage.stop()
    assert (one, gang, bad, own) == ("succeeded", "succeeded", "failed", "succeeded")
    assert said.count("hello") == 3


async def test_an_api_server_takes_all_that_the_dispatchers_chart_renders(cluster: Cluster) -> None:
    documents = await render(
        "dispatcher", "trainmaster", cluster.namespace, "postgresql.bundled=true", "redis.bundled=true"
    )
    taken = [await apply(cluster.api, document, cluster.namespace) for document in documents]
    kinds = {one["kind"] for one in documents}
    assert {"Deployment", "StatefulSet", "Service", "Job", "NetworkPolicy", "PodDisruptionBudget"} <= kinds
    print(f"\n{len(taken)} objects of {len(kinds)} kinds were taken with fieldValidation=Strict")
