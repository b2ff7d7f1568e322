"""ConfigMaps by which KAI tells a pod the GPU that it has a part of, created as soon as the pod is.

KAI's admission names two in the pod, and its binder creates them while it binds the pod. KAI 0.17.0 fails to bind a pod whose
ConfigMaps its binder's cache does not hold yet; its scheduler then gives the part to another pod, the binder tries again, and the
GPU has both: https://github.com/kai-scheduler/KAI-Scheduler/issues/2153. ConfigMaps that exist by then are only updated.
Names: KAI's ``pkg/binder/common/gpusharingconfigmap``.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError
from trainmaster_agent.kube.paths import CONFIG_MAPS
from trainmaster_agent.runtime.kubernetes.gpu_parts import container_with_part

_PREFIX = "runai/shared-gpu-configmap"


def config_maps_of(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ConfigMaps of a pod as it is stored, which owns them; none for a pod in which KAI's admission named none. Pure."""
    metadata = pod["metadata"]
    prefix = (metadata.get("annotations") or {}).get(_PREFIX)
    if not prefix:
        return []
    containers = pod["spec"]["containers"]
    name = f"{prefix}-{containers.index(container_with_part(pod))}"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one, "ownerReferences": [owner]}}
        for one in (name, f"{name}-evar")
    ]


async def create_config_maps(api: ApiServer, pod: Mapping[str, Any]) -> None:
    """Create the ConfigMaps of a pod that has just been created; those that cannot be are left to KAI."""
    namespace = pod["metadata"]["namespace"]
    outcomes = await asyncio.gather(
        *(api.create(CONFIG_MAPS, namespace, body) for body in config_maps_of(pod)), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, KubeError):
            raise outcome
