"""The Kubernetes runtime on the fake API server: the conformance suite. On a real one: tests/e2e/test_kubernetes_conformance.py"""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RuntimeConformance
from tests.integration.fake_lab import fake_cluster, lab_on, two_nodes


@pytest.fixture
async def lab() -> AsyncIterator[KubeLab]:
    async with fake_cluster() as kube:
        with two_nodes(kube) as nodes:
            lab = lab_on(kube, nodes)
            await lab.open()
            try:
                yield lab
            finally:
                await lab.close()


class TestKubernetesRuntime(RuntimeConformance):
    """The suite, on gangs that are emulated by scheduling gates."""
