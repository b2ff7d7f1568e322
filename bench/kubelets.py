"""A stub of an API server for ``bench.use``: what its kubelets and its metrics API say of the pods of all nodes.

    python -m bench.kubelets --port PORT --members 10000 --per-node 8 --others 10

A summary has all that a kubelet of Kubernetes 1.34 says of a pod with one container and a volume. Counters grow, memory moves a
little.
"""

import argparse
import hashlib
import math
import time
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web

NAMESPACE = "jobs"
_MIB = 2**20
_CORES = 0.5
"""Average use of a member."""


def node_of(member: int, per_node: int) -> str:
    return f"node-{member // per_node}"


def pod_of(member: int) -> str:
    """Return the name of a member's pod."""
    return f"train-{member:06d}-main-0"


def uid_of(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def _cores(number: int, now: float) -> float:
    return _CORES + 0.3 * math.sin(now / 40 + number)


def _memory(number: int, now: float) -> int:
    return int((900 + 100 * math.sin(now / 300 + number)) * _MIB)


def _text(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")


def _file_system(at: str, used: int) -> dict[str, Any]:
    return {
        "time": at,
        "availableBytes": 412_316_860_416 - used,
        "capacityBytes": 528_309_530_624,
        "usedBytes": used,
        "inodesFree": 32_211_214,
        "inodes": 32_768_000,
        "inodesUsed": 17,
    }


def summary_of_pod(name: str, number: int, began: float, now: float) -> dict[str, Any]:
    """Return what a kubelet says of one pod."""
    at, start = _text(now), _text(began)
    memory = _memory(number, now)
    cpu = {
        "time": at,
        "usageNanoCores": int(_cores(number, now) * 1e9),
        "usageCoreNanoSeconds": int((_CORES * (now - began) - 12 * math.cos(now / 40 + number) + 20) * 1e9),
        "psi": {kind: {"total": 12345678, "avg10": 0.12, "avg60": 0.1, "avg300": 0.05} for kind in ("full", "some")},
    }
    used = {
        "time": at,
        "usageBytes": memory + 40 * _MIB,
        "workingSetBytes": memory,
        "rssBytes": memory - 30 * _MIB,
        "pageFaults": 512_345,
        "majorPageFaults": 12,
    }
    interface = {"name": "eth0", "rxBytes": 123_456_789, "rxErrors": 0, "txBytes": 98_765_432, "txErrors": 0}
    return {
        "podRef": {"name": name, "namespace": NAMESPACE, "uid": uid_of(name)},
        "startTime": start,
        "containers": [
            {
                "name": "main",
                "startTime": start,
                "cpu": cpu,
                "memory": {**used, "availableBytes": 3 * 2**30},
                "rootfs": _file_system(at, 49_152),
                "logs": _file_system(at, 20_480),
                "swap": {"time": at, "swapAvailableBytes": 0, "swapUsageBytes": 0},
            }
        ],
        "cpu": cpu,
        "memory": {**used, "availableBytes": 3 * 2**30},
        "network": {"time": at, **interface, "interfaces": [interface]},
        "volume": [{**_file_system(at, 12_288), "name": "kube-api-access-x7k2p"}],
        "ephemeral-storage": _file_system(at, 81_920),
        "process_stats": {"process_count": 4},
        "swap": {"time": at, "swapUsageBytes": 0},
    }


class Kubelets:
    """The answers. ``counted``: requests and bytes until now."""

    def __init__(self, members: int, per_node: int, others: int) -> None:
        self._members = members
        self._per_node = per_node
        self._others = others
        self._began = time.time() - 3600
        self.counted = {"requests": 0, "bytes": 0}

    async def summary(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        number, now = int(node.rpartition("-")[2]), time.time()
        first = number * self._per_node
        names = [pod_of(one) for one in range(first, min(first + self._per_node, self._members))]
        names += [f"daemon-{number}-{other}" for other in range(self._others)]
        pods = [summary_of_pod(name, first + place, self._began, now) for place, name in enumerate(names)]
        system = {key: pods[0][key] for key in ("cpu", "memory", "network")}
        systems = [
            {"name": name, "startTime": pods[0]["startTime"], **system} for name in ("kubelet", "runtime", "pods")
        ]
        node_part = {"nodeName": node, "systemContainers": systems, **system, "fs": pods[0]["ephemeral-storage"]}
        return self._answer({"node": node_part, "pods": pods})

    async def metrics(self, _: web.Request) -> web.Response:
        now = time.time()
        items = [
            {
                "metadata": {
                    "name": pod_of(member),
                    "namespace": NAMESPACE,
                    "creationTimestamp": _text(now),
                    "labels": {"trainmaster.dev/run": f"train-{member:06d}-r1", "trainmaster.dev/role": "main"},
                },
                "timestamp": _text(now),
                "window": "15.123s",
                "containers": [
                    {
                        "name": "main",
                        "usage": {
                            "cpu": f"{int(_cores(member, now) * 1e9)}n",
                            "memory": f"{_memory(member, now) // 1024}Ki",
                        },
                    }
                ],
            }
            for member in range(self._members)
        ]
        return self._answer(
            {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}
        )

    async def count(self, _: web.Request) -> web.Response:
        return web.json_response(self.counted)

    def _answer(self, body: dict[str, Any]) -> web.Response:
        text = orjson.dumps(body)
        self.counted["requests"] += 1
        self.counted["bytes"] += len(text)
        return web.Response(body=text, content_type="application/json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("port", "members", "per-node", "others"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    kubelets = Kubelets(options.members, options.per_node, options.others)
    app = web.Application()
    app.add_routes(
        [
            web.get("/api/v1/nodes/{node}/proxy/stats/summary", kubelets.summary),
            web.get(f"/apis/metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/pods", kubelets.metrics),
            web.get("/counted", kubelets.count),
        ]
    )
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
