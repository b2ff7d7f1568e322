"""What the agent relies on of an API server, on a real one."""

import signal
from collections.abc import AsyncIterator

import pytest

from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.conformance.api_suite import ApiConformance, Environment
from tests.conformance.kube_lab import access_by
from trainmaster_agent.kube.client import ApiServer

need_programs(whole_module=True)
__all__ = ["cluster", "plane"]


class TestRealApiServer(ApiConformance):
    """The suite, on Kubernetes."""

    @pytest.fixture
    async def testbed(self, cluster: Cluster) -> AsyncIterator[Environment]:
        async with ApiServer(await access_by(cluster.plane.kubeconfig)) as api:

            async def add_node(name: str) -> None:
                await cluster.kubelet.add_node(name, allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"})

            async def outage() -> None:
                await cluster.plane.stop_api_server(signal.SIGKILL)
                await cluster.plane.start_api_server()

            yield Environment(api, cluster.namespace, add_node, outage)
