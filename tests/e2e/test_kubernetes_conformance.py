"""The Kubernetes runtime on a real control plane: the conformance suite, on native gangs and on emulated ones."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.cluster.shipped import Installed
from tests.conformance.kube_lab import PRIORITY_CLASS, KubeLab, access_by
from tests.conformance.runtime_suite import RuntimeConformance
from tests.conformance.scheduler_suite import SchedulerConformance, serve_zones, urgent_pod

need_programs(whole_module=True)
__all__ = ["cluster", "plane"]


async def make_lab(cluster: Cluster, placement: dict[str, Any], **config: Any) -> KubeLab:
    """Return a lab with two nodes. ``placement`` is that of the agent's configuration, as ``config`` are further fields."""
    await cluster.kubelet.add_nodes("node", 2, allocatable={"cpu": "4", "memory": "8Gi", "pods": "110"})
    classes = await cluster.api.get("/apis/scheduling.k8s.io/v1/priorityclasses")
    if "trainmaster" not in {one["metadata"]["name"] for one in classes["items"]}:
        await cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", PRIORITY_CLASS)
    home = f"{cluster.namespace}-agent"
    await cluster.api.post("/api/v1/namespaces", {"metadata": {"name": home}})
    return KubeLab(
        await access_by(cluster.plane.kubeconfig),
        cluster.namespace,
        living=lambda labels: len(cluster.kubelet.living(labels)),
        open_gate=cluster.kubelet.open_gate,
        placement=placement,
        home=home,
        **config,
    )


class OnKubeScheduler(SchedulerConformance, RuntimeConformance):
    """The suites on the scheduler of the control plane, which has no quota and no webhook of its own."""

    @pytest.fixture
    def site(self) -> None:
        """Return None: there are no programs beside those of the control plane."""

    async def urgent(self, cluster: Cluster) -> dict[str, Any]:
        return urgent_pod()


class TestNativeGangs(OnKubeScheduler):
    """The scheduler of Kubernetes itself places whole PodGroups. It takes their members in an order of its own, not by size."""

    large_members_first = False
    guarded = ("scheduling.k8s.io", "v1alpha2", "podgroups")

    @pytest.fixture
    async def lab(self, cluster: Cluster) -> AsyncIterator[KubeLab]:
        lab = await make_lab(cluster, {"scheduler": "native"})
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()


class TestEmulatedGangs(OnKubeScheduler):
    """Pods are held by gates that the agent opens."""

    async def set_up_zones(self, site: Installed | None, cluster: Cluster) -> None:
        await serve_zones(cluster)

    @pytest.fixture
    async def lab(self, cluster: Cluster) -> AsyncIterator[KubeLab]:
        lab = await make_lab(cluster, {"scheduler": "gates"})
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()
