"""What pods use: the kubelets' Summary API through the API server, and the metrics API as metrics-server serves it."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.fake_kube.errors import ApiError
from tests.fake_kube.faults import Call, Faults
from tests.fake_kube.objects import Object, now, rfc3339
from tests.fake_kube.resources import NODES, PODS
from tests.fake_kube.store import Store


@dataclass
class Amounts:
    """``nano``: billionths of a core, None where the kubelet has no rate yet; ``total``: used billionths of core-seconds."""

    nano: int | None = 0
    memory: int = 0
    total: int = 0
    at: float = 0.0
    """Time of the counter, in seconds of the epoch; 0: now."""


@dataclass
class PodUses:
    """Amounts by the name of a pod; of others nothing is known."""

    store: Store
    faults: Faults
    amounts: dict[str, Amounts] = field(default_factory=dict)
    has_metrics: bool = True
    """Whether metrics-server is installed."""
    silent: set[str] = field(default_factory=set)
    """Nodes whose kubelets accept a request and never answer."""
    asked_nodes: list[str] = field(default_factory=list)

    async def answer(self, path: str) -> Object | None:
        """Return the answer to a request of one of the two APIs; None for others. Raises ApiError."""
        match [step for step in path.split("/") if step]:
            case ["api", "v1", "nodes", node, "proxy", "stats", "summary"]:
                return await self._summary(node)
            case ["apis", "metrics.k8s.io", "v1beta1", "namespaces", namespace, "pods"] if self.has_metrics:
                self.faults.check(Call("list", "pods.metrics.k8s.io", namespace), "metrics.k8s.io")
                return self._metrics(namespace)
            case _:
                return None

    async def _summary(self, node: str) -> Object:
        self.asked_nodes.append(node)
        self.faults.check(Call("get", "nodes/proxy", "", node), "")
        if node in self.silent:
            await asyncio.Event().wait()
        if not any(one["metadata"]["name"] == node for one in self.store.scan(NODES.id).values()):
            raise ApiError(404, f'nodes "{node}" not found')
        return {"node": {"nodeName": node}, "pods": [self._of_pod(pod) for pod in self._known("", node)]}

    def _known(self, namespace: str, node: str) -> list[Object]:
        return [
            pod
            for pod in self.store.scan(PODS.id).values()
            if pod["metadata"]["name"] in self.amounts
            and namespace in ("", pod["metadata"]["namespace"])
            and node in ("", pod["spec"].get("nodeName"))
        ]

    def _of_pod(self, pod: Object) -> Object:
        metadata = pod["metadata"]
        found = self.amounts[metadata["name"]]
        cpu: Object = {
            "time": rfc3339(datetime.fromtimestamp(found.at, UTC) if found.at else now()),
            "usageCoreNanoSeconds": found.total,
        }
        if found.nano is not None:
            cpu["usageNanoCores"] = found.nano
        return {
            "podRef": {name: metadata[name] for name in ("name", "namespace", "uid")},
            "cpu": cpu,
            "memory": {"workingSetBytes": found.memory, "usageBytes": 2 * found.memory},
        }

    def _metrics(self, namespace: str) -> Object:
        items = []
        for pod in self._known(namespace, ""):
            found = self.amounts[pod["metadata"]["name"]]
            halves = {"cpu": f"{(found.nano or 0) // 2}n", "memory": f"{found.memory // 2048}Ki"}
            items.append(
                {
                    "metadata": {"name": pod["metadata"]["name"], "namespace": namespace},
                    "containers": [{"name": name, "usage": halves} for name in ("main", "beside")],
                }
            )
        return {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}
