"""The lab of the runtime suite over any API server with nodes that play kubelet: the fake one and real ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kubernetes.aio.client import Configuration

from tests.conformance.runtime_suite import Behaviour, Does
from trainmaster_agent.kube.access import ApiServerAccess, open_access
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.runtime import KubernetesRuntime
from trainmaster_agent.runtime.local.layout import boottime
from trainmaster_agent.runtime.port import Runtime

PRIORITY_CLASS: dict[str, Any] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "trainmaster"},
    "value": 0,
    "preemptionPolicy": "Never",
}
"""What the agent's chart makes."""


def plain_access(url: str) -> ApiServerAccess:
    """Return access without TLS and without credentials."""
    return ApiServerAccess(Configuration(host=url), None)


async def access_by(kubeconfig: Path) -> ApiServerAccess:
    return await open_access(kubeconfig)


class KubeLab:
    """``living`` counts the containers of a run that are alive as the nodes see it; ``home`` is the agent's own namespace."""

    def __init__(
        self,
        access: ApiServerAccess,
        namespace: str,
        *,
        living: Callable[[dict[str, str]], int],
        open_gate: Callable[[str], None],
        placement: Mapping[str, Any] = MappingProxyType({"scheduler": "gates"}),
        home: str = "agent",
        **config: Any,
    ) -> None:
        self._access = access
        self.home = home
        self._living = living
        self._open_gate = open_gate
        self.config = KubernetesCluster.model_validate(
            {
                "cluster": "lab",
                "namespace": namespace,
                "placement": dict(placement),
                "lease": {"duration": "4s", "namespace": home},
                "tombstone": "1s",
                "patience": {"image": "300ms", "container": "300ms", "opened": "2s"},
                **config,
            }
        )
        self.api = ApiServer(access)
        self.kubernetes = self._make()

    def _make(self) -> KubernetesRuntime:
        return KubernetesRuntime(self.api, self.config, namespace=self.home, clock=boottime)

    @property
    def runtime(self) -> Runtime:
        return self.kubernetes

    async def open(self) -> None:
        await self.kubernetes.open()

    async def restart(self) -> None:
        await self.close()
        self.api = ApiServer(self._access)
        self.kubernetes = self._make()
        await self.kubernetes.open()

    async def close(self) -> None:
        await self.kubernetes.close()
        await self.api.close()

    def template(self, run: str, behaviour: Behaviour) -> dict[str, Any]:
        words = {
            Does.SUCCEED: ["succeed"],
            Does.EXIT: ["exit", str(behaviour.code)],
            Does.DIE_BY_SIGNAL: ["signal", str(behaviour.code)],
            Does.PRINT: ["print", behaviour.text],
            Does.RETURN: ["results", behaviour.text, "exit", str(behaviour.code)],
            Does.RUN: ["run"],
            Does.RUN_STUBBORNLY: ["stubborn"],
            Does.LEAVE_IN_PEACE: ["peaceful"],
            Does.SAVE_STATE: ["run"],
            Does.WAIT_FOR_GATE: ["gate", run],
            Does.FAIL_AT_FIRST: ["fail-first", str(behaviour.times), str(behaviour.code)],
        }
        return {"image": "sim", "command": ["sim", *words[behaviour.does]]}

    def open_gate(self, run: str) -> None:
        self._open_gate(run)

    def living(self, run: str) -> int:
        return self._living({LABEL_RUN: run})

    def ready(self, run: str) -> int:
        return self.living(run)

    def now(self) -> float:
        return boottime()
