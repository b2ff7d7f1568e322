"""The Kubernetes agent on a real API server: a large gang, and a steady stream of small runs.

    python -m bench.agent [--members 1000] [--rate 200] [--calm-rate 15] [--seconds 30] [--fsync]

Needs KUBEBUILDER_ASSETS with etcd, kube-apiserver, kube-scheduler and kube-controller-manager. The runtime is in this process, as in
the agent; there is no dispatcher. Nodes are simulated in a process of their own. Each part measures its limit in the same run: bare
requests with as many connections as the agent has, and manifests that are ready as bytes. Unless ``--fsync`` is given, etcd does not
wait for the disk, so that it is the work of the agent and of the API server that is measured, and not this machine's disk.

``gang_create_ratio`` is the runtime's pods per second divided by those of the bare loop, of the median of rounds by turns;
``gang_create_cpu_ratio`` compares what all processes spend on a pod, which other load on the machine hardly changes.
Fewer runs end per second than ``--rate`` offers, as each is some ten writes of the agent, the scheduler and the nodes. ``calm`` is
the same where nothing queues.
"""

import argparse
from pathlib import Path
from typing import Any

from bench.agent_gang import gang_rounds
from bench.agent_rate import bare_writes, steady_load
from bench.agent_setup import control_plane, facts, print_measured
from bench.cpu import load_average
from bench.kube_nodes import NodesProcess

_NODES, _ALLOCATABLE = 20, {"cpu": "64", "memory": "512Gi", "pods": "1000"}


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    before = load_average()
    async with (
        control_plane(folder / "plane", fsync=options.fsync) as plane,
        NodesProcess(plane, _NODES, _ALLOCATABLE) as nodes,
    ):
        gangs = {name: await gang_rounds(plane, name, options.members, options.rounds) for name in ("native", "gates")}
        return {
            "bench": "agent",
            "control_plane": facts(plane, fsync=options.fsync),
            "load_average_before": before,
            "gang": gangs,
            "single": {
                "bare": await bare_writes(plane, options.members),
                "calm": await steady_load(plane, nodes, options.calm_rate, options.seconds),
                "full": await steady_load(plane, nodes, options.rate, options.seconds),
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1000, help="of the gang, and bare requests of each kind")
    parser.add_argument("--rounds", type=int, default=3, help="of runtime and bare loop")
    parser.add_argument("--rate", type=float, default=200.0, help="one-member runs offered per second")
    parser.add_argument("--calm-rate", type=float, default=15.0, help="the same where nothing queues")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which they are offered")
    parser.add_argument("--fsync", action="store_true", help="etcd waits for the disk with every write")
    options = parser.parse_args()
    print_measured(measure, options)


if __name__ == "__main__":
    main()
