"""Simulated nodes as objects of the API server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.cluster.pod_status import rfc3339

ALLOCATABLE = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "1Ti", "pods": "110"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True)
class Shape:
    """What nodes of a kind have; ``allocatable`` is added to ``ALLOCATABLE``."""

    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()


def node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def node_object(name: str, shape: Shape, port: int) -> dict[str, Any]:
    """Return a node that is ready from its creation on and whose kubelet serves logs and exec at ``port`` of loopback.

    Its declared feature tells the API server to pass on the web sockets of exec, and not to speak SPDY instead (KEP-4006).
    """
    resources = ALLOCATABLE | dict(shape.allocatable)
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | dict(shape.labels)},
        "spec": {"taints": [dict(taint) for taint in shape.taints]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions(ready=True),
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "sim://1",
                "kernelVersion": "sim",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.36.0-sim",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "sim",
                "systemUUID": "",
            },
        },
    }


def conditions(ready: bool) -> list[dict[str, str]]:
    now = rfc3339(datetime.now(UTC))
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return [
        {"type": "Ready", "status": str(ready), "reason": "KubeletReady" if ready else "KubeletNotReady", **times},
        *(
            {"type": kind, "status": "False", "reason": "KubeletHasSufficientResources", **times}
            for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
        ),
    ]


def lease(name: str, seconds: float) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": max(1, round(4 * seconds)),
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
