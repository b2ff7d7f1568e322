"""Fixtures: one control plane and kubelet for all tests of a process, and a fresh namespace for each test.

A module of tests takes them by ``from tests.cluster.fixtures import cluster, plane`` and names them in ``__all__``.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane, assets
from tests.cluster.kubelet import Kubelet
from tests.waiting import eventually

_numbers = itertools.count()


def need_programs(whole_module: bool = False) -> Path:
    """Return the folder of Kubernetes programs; without them skip the test, or the whole module when called at its top."""
    folder = assets(SCHEDULER, CONTROLLER_MANAGER, "kubectl")
    if folder is None:
        pytest.skip("KUBEBUILDER_ASSETS names no folder of Kubernetes programs", allow_module_level=whole_module)
    return folder


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Shared: a test that stops parts of it starts them again. It belongs to no event loop, so tests of any loop may use it."""
    need_programs()
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(ControlPlane.start(tmp_path_factory.mktemp("plane")))
    yield made
    loop.run_until_complete(made.stop())
    loop.close()


@dataclass
class Cluster:
    """The control plane with a kubelet of this test's own, and a namespace."""

    plane: ControlPlane
    kubelet: Kubelet
    api: ApiClient
    """The administrator's."""
    namespace: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def run(self, name: str, *words: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
        """Create a pod whose container does ``sim WORDS``; ``spec`` holds further fields of its spec."""
        return await self.api.post(self.pods, pod(name, *words, cpu=cpu, **spec))

    async def pod(self, name: str) -> dict[str, Any] | None:
        """Return the pod, or None where there is none."""
        try:
            found: dict[str, Any] = await self.api.get(f"{self.pods}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def phases(self) -> dict[str, str]:
        return {one["metadata"]["name"]: one["status"]["phase"] for one in (await self.api.get(self.pods))["items"]}

    async def until_phase(self, name: str, phase: str, seconds: float = 10) -> dict[str, Any]:
        """Return the pod, once it is in that phase."""

        async def reached() -> bool:
            found = await self.pod(name)
            return found is not None and found["status"]["phase"] == phase

        await eventually(reached, seconds)
        found = await self.pod(name)
        assert found is not None
        return found

    async def until_gone(self, name: str, seconds: float = 10) -> None:
        async def gone() -> bool:
            return await self.pod(name) is None

        await eventually(gone, seconds)


def pod(name: str, *words: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """Return a pod with one container ``main``."""
    container = {"name": "main", "image": "sim", "command": ["sim", *words], "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"name": name}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


@asynccontextmanager
async def open_cluster(plane: ControlPlane, lease_seconds: float | None = None) -> AsyncIterator[Cluster]:
    """Provide a new namespace in which pods can be made, and no nodes yet; afterwards the plane runs and is empty again."""
    namespace = f"test-{os.getpid()}-{next(_numbers)}"
    async with plane.client() as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await has_default_account(api, namespace)
        try:
            async with await Kubelet.start(plane, lease_seconds) as kubelet:
                yield Cluster(plane, kubelet, api, namespace)
        finally:
            plane.resume()
            await plane.start_api_server()
            await clear(api, namespace)


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    async with open_cluster(plane) as opened:
        yield opened


async def has_default_account(api: ApiClient, namespace: str) -> None:
    """Wait until the controller manager has made the ServiceAccount without which the namespace takes no pods."""

    async def there() -> bool:
        accounts = await api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")
        return any(one["metadata"]["name"] == "default" for one in accounts["items"])

    await eventually(there)


async def clear(api: ApiClient, namespace: str) -> None:
    """Delete all nodes, all pods of the namespace without grace, and then the namespace, which the controller manager empties."""
    await api.delete("/api/v1/nodes")
    await api.delete(f"/api/v1/namespaces/{namespace}/pods", query={"gracePeriodSeconds": 0})
    await api.delete(f"/api/v1/namespaces/{namespace}")


__all__ = ["Cluster", "cluster", "has_default_account", "need_programs", "open_cluster", "plane", "pod"]
