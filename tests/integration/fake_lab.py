"""A small cluster on the fake API server, and labs on it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.conformance.kube_lab import PRIORITY_CLASS, KubeLab, plain_access
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.resources import PRIORITY_CLASSES
from tests.fake_kube.server import FakeKube

NAMESPACE = "jobs"
AGENT_NAMESPACE = "agent"


@asynccontextmanager
async def fake_cluster() -> AsyncIterator[FakeKube]:
    """Provide an API server with the namespaces of jobs and agent, and the PriorityClass of ours."""
    async with FakeKube() as server:
        server.add_namespace(NAMESPACE)
        server.add_namespace(AGENT_NAMESPACE)
        server.verbs.create(PRIORITY_CLASSES, "", PRIORITY_CLASS)
        yield server


@contextmanager
def two_nodes(kube: FakeKube) -> Iterator[FakeNodes]:
    """Nodes of 4 CPUs and 8 GiB, with the kubelet that plays them."""
    nodes = FakeNodes(kube)
    for number in range(2):
        nodes.add_node(f"node-{number}", {"cpu": "4", "memory": "8Gi", "pods": "110"})
    yield nodes
    nodes.close()


def lab_on(kube: FakeKube, nodes: FakeNodes, **config: Any) -> KubeLab:
    """Return a lab whose runtime is not open yet; ``config``: fields of the agent's configuration."""

    def living(labels: dict[str, str]) -> int:
        return len(nodes.living(lambda pod: labels.items() <= (pod["metadata"].get("labels") or {}).items()))

    return KubeLab(plain_access(kube.url), NAMESPACE, living=living, open_gate=nodes.open_gate, **config)
