"""The Kubernetes runtime on the fake API server: the conformance suite. On a real one: tests/e2e/test_kubernetes_conformance.py"""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.kube_lab import PRIORITY_CLASS, KubeLab, plain_access
from tests.conformance.runtime_suite import RuntimeConformance
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.resources import PRIORITY_CLASSES
from tests.fake_kube.server import FakeKube

NAMESPACE = "jobs"


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        server.add_namespace(NAMESPACE)
        server.verbs.create(PRIORITY_CLASSES, "", PRIORITY_CLASS)
        yield server


@pytest.fixture
async def nodes(kube: FakeKube) -> AsyncIterator[FakeNodes]:
    nodes = FakeNodes(kube)
    for number in range(2):
        nodes.add_node(f"node-{number}", {"cpu": "4", "memory": "8Gi", "pods": "110"})
    yield nodes
    nodes.close()


@pytest.fixture
async def lab(kube: FakeKube, nodes: FakeNodes) -> AsyncIterator[KubeLab]:
    def living(labels: dict[str, str]) -> int:
        return len(nodes.living(lambda pod: labels.items() <= (pod["metadata"].get("labels") or {}).items()))

    lab = KubeLab(plain_access(kube.url), NAMESPACE, living=living, open_gate=nodes.open_gate)
    await lab.open()
    try:
        yield lab
    finally:
        await lab.close()


class TestKubernetesRuntime(RuntimeConformance):
    """The suite, on gangs that are emulated by scheduling gates."""
