"""A large cluster as objects of an API server: nodes of several kinds in racks, and the foreign pods that are bound to them."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import orjson

from bench.bare_kube import BareKube, Call
from tests.cluster.nodes import Shape, node_object

TOKEN = "bench.dev/token"  # noqa: S105 - a resource
PROBE_NODES = 20
"""Nodes with tokens; a pod that takes one is visible in a report as one token less."""
TOKENS = 100_000
"""Of each of these nodes."""
FOREIGN = "apps"
PODS = f"/api/v1/namespaces/{FOREIGN}/pods"

_KINDS: tuple[dict[str, Any], ...] = (
    {"share": 0.3, "product": "NVIDIA-H100-80GB-HBM3", "cpu": 192, "memory": "2Ti", "gpu": 8},
    {"share": 0.2, "product": "NVIDIA-A100-SXM4-80GB", "cpu": 128, "memory": "1Ti", "gpu": 8},
    {"share": 0.2, "product": "NVIDIA-L4", "cpu": 48, "memory": "192Gi", "gpu": 4},
    {"share": 0.3, "product": "", "cpu": 64, "memory": "256Gi", "gpu": 0},
)
_PER_RACK, _ZONES = 40, 4
_IMAGES = [
    {"names": [f"registry.example.com/images/{number}@sha256:{number:064x}"], "sizeBytes": 10**9}
    for number in range(25)
]
"""As many as a kubelet reports at most are 50."""


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def make_node(number: int, count: int) -> dict[str, Any]:
    kind = _kind_of(number, count)
    rack = number // _PER_RACK
    labels = {
        "topology.kubernetes.io/region": "north",
        "topology.kubernetes.io/zone": f"north-{rack % _ZONES}",
        "topology.kubernetes.io/rack": f"rack-{rack}",
        "node.kubernetes.io/instance-type": f"type-{kind['cpu']}",
        **(
            {"nvidia.com/gpu.product": kind["product"], "nvidia.com/gpu.count": str(kind["gpu"])} if kind["gpu"] else {}
        ),
        **{f"feature.node.kubernetes.io/cpu-feature-{feature}": "true" for feature in range(20)},
    }
    allocatable = {
        "cpu": str(kind["cpu"]),
        "memory": kind["memory"],
        "ephemeral-storage": "1Ti",
        "pods": "250",
        **({"nvidia.com/gpu": str(kind["gpu"])} if kind["gpu"] else {}),
        **({TOKEN: str(TOKENS)} if number < PROBE_NODES else {}),
    }
    node = node_object(node_name(number), Shape(allocatable, labels), 1)
    node["status"]["images"] = _IMAGES
    return node


def make_pod(name: str, node: int, draw: random.Random, token: bool = False) -> dict[str, Any]:
    """Return a service's pod that is bound to a node."""
    requests = {
        "cpu": draw.choice(("50m", "100m", "250m", "500m", "1", "2")),
        "memory": draw.choice(("64Mi", "128Mi", "512Mi", "1Gi", "4Gi")),
    }
    limits = {"memory": requests["memory"]}
    if token:
        requests[TOKEN] = limits[TOKEN] = "1"
    env = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(20)]
    container = {"name": "main", "image": "registry.example.com/app:1", "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name.partition("-")[0]}},
        "spec": {
            "nodeName": node_name(node),
            "containers": [container | {"resources": {"requests": requests, "limits": limits}}],
        },
    }


async def fill(bare: BareKube, nodes: int, pods: int, seed: int) -> float:
    """Create the cluster; return the seconds that it took."""
    draw = random.Random(seed)

    def calls() -> Iterator[list[Call]]:
        for number in range(nodes):
            yield [Call("POST", "/api/v1/nodes", orjson.dumps(make_node(number, nodes)))]
        for number in range(pods):
            yield [Call("POST", PODS, orjson.dumps(make_pod(f"app-{number}", draw.randrange(nodes), draw)))]

    return await bare.seconds_for(calls())


def _kind_of(number: int, count: int) -> dict[str, Any]:
    place = number / count
    for kind in _KINDS:
        place -= kind["share"]
        if place < 0:
            return kind
    return _KINDS[-1]


class Churn:
    """Foreign pods that come and go at a steady rate, half of the changes each; one in five that come takes a token."""

    def __init__(self, bare: BareKube, nodes: int, pods: int, seed: int) -> None:
        self._bare = bare
        self._nodes = nodes
        self._draw = random.Random(seed)
        self._old = list(range(pods))
        self._draw.shuffle(self._old)
        self._number = 0
        self._probes = 0
        self.probed_at: list[float] = []
        """When the creation of each pod with a token was answered, of the loop's clock; in the order in which they were asked for."""
        self.late: list[float] = []
        """Seconds by which changes were made later than they were due."""

    async def run(self, rate: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began, done = loop.time(), 0
        changing: set[asyncio.Task[None]] = set()
        while (at := loop.time() - began) < seconds:
            for due in range(done, int(at * rate)):
                task = asyncio.create_task(self._change(due, began + due / rate))
                changing.add(task)
                task.add_done_callback(changing.discard)
                done = due + 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*changing)

    async def _change(self, number: int, due_at: float) -> None:
        loop = asyncio.get_running_loop()
        if number % 2:
            await self._bare.one(Call("DELETE", f"{PODS}/app-{self._old.pop()}", b'{"gracePeriodSeconds":0}'))
        elif number % 10:
            pod = make_pod(f"new-{number}", self._draw.randrange(self._nodes), self._draw)
            await self._bare.one(Call("POST", PODS, orjson.dumps(pod)))
        else:
            pod = make_pod(
                f"probe-{number}", self._draw.randrange(min(PROBE_NODES, self._nodes)), self._draw, token=True
            )
            await self._bare.one(Call("POST", PODS, orjson.dumps(pod)))
            self.probed_at.append(loop.time())
        self.late.append(loop.time() - due_at)
