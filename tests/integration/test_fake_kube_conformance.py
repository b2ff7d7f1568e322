"""The fake API server keeps what the agent relies on; ``tests/e2e/test_kube_api_conformance.py`` says the same of real ones."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.api_suite import ApiConformance, Environment
from tests.conformance.kube_lab import plain_access
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.server import FakeKube
from trainmaster_agent.kube.client import ApiServer


class TestFakeKube(ApiConformance):
    """The suite, on the fake."""

    @pytest.fixture
    async def testbed(self) -> AsyncIterator[Environment]:
        async with FakeKube() as kube, ApiServer(plain_access(kube.url)) as api:
            kube.add_namespace("jobs")
            nodes = FakeNodes(kube)

            async def add_node(name: str) -> None:
                nodes.add_node(name, {"cpu": "4", "memory": "8Gi", "pods": "10"})

            async def outage() -> None:
                await kube.stop()
                await kube.start()

            yield Environment(api, "jobs", add_node, outage)
            nodes.close()
