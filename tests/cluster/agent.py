"""The agent of a real control plane, in this process, under the role that its chart gives it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.cluster.chart import NAMESPACE, install_agent
from tests.cluster.fixtures import Cluster
from tests.conformance.kube_lab import access_by
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.local.layout import boottime


@asynccontextmanager
async def agent(cluster: Cluster, scheduler: str, *sets: str, **config: Any) -> AsyncIterator[KubernetesRuntime]:
    """Provide a runtime that acts as the chart's ServiceAccount; ``sets``: values of the chart."""
    installed = await install_agent(cluster.plane, "north", *sets)
    data = {**installed.config, "tombstone": "1s", **config}
    data["placement"] = {**data.get("placement", {}), "scheduler": scheduler}
    async with ApiServer(await access_by(installed.kubeconfig)) as api:
        made = KubernetesCluster.model_validate(data)
        runtime = KubernetesRuntime(api, made, namespace=NAMESPACE, clock=boottime)
        await runtime.open()
        try:
            yield runtime
        finally:
            await runtime.close()
