"""The cost of a large cluster for an agent, and the age of the capacity that it reports.

    python -m bench.capacity [--nodes 5000] [--pods 50000] [--changes 100] [--seconds 30]

Needs KUBEBUILDER_ASSETS with etcd and kube-apiserver; no scheduler runs, as all pods are foreign and name their node.
The agent is ``trainmaster agent run --kubernetes``, a process of its own that talks to a stub of the dispatcher over
HTTP. Its reports leave at most every ten seconds (``_CAPACITY_SECONDS`` in ``trainmaster_agent/sync.py``), with a sync,
of which there is one every third of the lease: the age of what the dispatcher knows follows from that. It is measured
by pods with a token, since reports contain the number of tokens left.

The limit in the same run is the time to read all nodes and pods page by page and to parse the answers.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import psutil
import uvloop
import yaml

from bench.agent_setup import CLUSTER, HOME, control_plane, facts, need_programs, plane_cpu_seconds
from bench.bare_kube import BareKube, Call
from bench.capacity_cluster import FOREIGN, PROBE_NODES, TOKEN, TOKENS, Churn, fill
from bench.cpu import cpu_seconds, differences, load_average
from bench.dispatcher_stub import LEASE_SECONDS, DispatcherStub, Heard, serve_stub
from bench.numbers import summary
from bench.stage import PROGRAM
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import Daemon, reserve_port
from trainmaster_agent import sync

_FIRST_REPORT_SECONDS = 300.0
_SETTLE_SECONDS = 20.0
_LAST_REPORT_SECONDS = 60.0
_PARALLEL = 32
_PAGE = 500


async def read_all(bare: BareKube) -> dict[str, float]:
    """Read nodes and pods page by page, as the agent lists them, without processing them; return what it cost."""
    began, cpu, size = time.perf_counter(), cpu_seconds(), 0
    for path in ("/api/v1/nodes", "/api/v1/pods"):
        more = ""
        while True:
            raw = await bare.one(Call("GET", f"{path}?limit={_PAGE}{more}"))
            size += len(raw)
            following = orjson.loads(raw)["metadata"].get("continue")
            if not following:
                break
            more = f"&continue={following}"
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(cpu_seconds() - cpu, 2),
        "bytes": size,
    }


def start_agent(plane: ControlPlane, folder: Path, port: int) -> Daemon:
    config, key = folder / "agent.yaml", folder / "agent.key"
    config.write_text(yaml.safe_dump({"cluster": CLUSTER, "namespace": "jobs", "lease": {"namespace": HOME}}))
    key.write_text("tmk_bench")
    agent = Daemon(
        [
            *PROGRAM,
            *("agent", "run", "--kubernetes", str(config), "--kubeconfig", str(plane.kubeconfig)),
            *("--url", f"http://127.0.0.1:{port}", "--key-file", str(key)),
        ],
        folder / "agent.log",
    )
    agent.start()
    return agent


async def with_changes(
    plane: ControlPlane, agent: Daemon, stub: DispatcherStub, churn: Churn, rate: float, seconds: float
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    cpu, of_plane, began = cpu_seconds(agent.pid), plane_cpu_seconds(plane), loop.time()
    await churn.run(rate, seconds)
    took = loop.time() - began
    used, of_plane = cpu_seconds(agent.pid) - cpu, differences(plane_cpu_seconds(plane), of_plane)
    load = load_average()
    async with asyncio.timeout(_LAST_REPORT_SECONDS):
        while _seen(stub.reports[-1]) < len(churn.probed_at):  # noqa: ASYNC110 - reports are seconds apart
            await asyncio.sleep(0.1)
    reports = [one for one in stub.reports if one.at > began]
    return {
        "changes_per_second": round(len(churn.late) / took, 1),
        "seconds": round(took, 1),
        "change_made_late": summary(churn.late),
        "agent_cpu_share": round(used / took, 4),
        "agent_cpu_milliseconds_per_change": round(used / len(churn.late) * 1e3, 3),
        "plane_cpu_share": {name: round(value / took, 4) for name, value in of_plane.items()},
        "reports": len(reports),
        "age_of_what_the_dispatcher_knows": summary(ages(churn, reports)),
        "probes": len(churn.probed_at),
        "load_average": load,
    }


def ages(churn: Churn, reports: list[Heard]) -> list[float]:
    """Return the seconds from the creation of each pod with a token until the first report with that many tokens fewer came."""
    return [
        next(one.at for one in reports if _seen(one) > number) - at for number, at in enumerate(sorted(churn.probed_at))
    ]


def _seen(report: Heard) -> int:
    """Return the number of pods with tokens that a report reflects."""
    return PROBE_NODES * TOKENS - report.total_free(TOKEN)


async def idle(agent: Daemon, seconds: float) -> float:
    cpu = cpu_seconds(agent.pid)
    await asyncio.sleep(seconds)
    return round((cpu_seconds(agent.pid) - cpu) / seconds, 4)


def memory(agent: Daemon) -> dict[str, int]:
    status = Path(f"/proc/{agent.pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return {"rss_bytes": psutil.Process(agent.pid).memory_info().rss, "rss_peak_bytes": peak * 1024}


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    port = reserve_port()
    async with (
        control_plane(folder / "plane", fsync=False, whole=False) as plane,
        BareKube(plane, _PARALLEL) as bare,
        serve_stub(port) as stub,
    ):
        await bare.make("/api/v1/namespaces", {"metadata": {"name": FOREIGN}})
        filled = await fill(bare, options.nodes, options.pods, options.seed)
        everything = await read_all(bare)
        before, began = load_average(), time.perf_counter()
        agent = start_agent(plane, folder, port)
        try:
            async with asyncio.timeout(_FIRST_REPORT_SECONDS):
                await stub.first.wait()
            first = {
                "start_to_first_report_seconds": round(time.perf_counter() - began, 2),
                "agent_cpu_seconds_until_then": round(cpu_seconds(agent.pid), 2),
            }
            idle_share = await idle(agent, _SETTLE_SECONDS)
            churn = Churn(bare, options.nodes, options.pods, options.seed + 1)
            changing = await with_changes(plane, agent, stub, churn, options.changes, options.seconds)
            of_memory = memory(agent)
        finally:
            await agent.stop()
    last = stub.reports[-1]
    return {
        "bench": "capacity",
        "control_plane": facts(plane, fsync=False),
        "nodes": options.nodes,
        "pods": options.pods,
        "filled_in_seconds": round(filled, 1),
        "load_average_before": before,
        "bare_reading_of_everything": everything,
        **first,
        **of_memory,
        "groups": len(last.capacity["groups"]),
        "bytes_per_report": last.bytes,
        "not_counted": last.capacity["notCounted"],
        "agent_cpu_share_idle": idle_share,
        "with_changes": changing,
        "limits_of_age": {"report_every_seconds": sync._CAPACITY_SECONDS, "sync_every_seconds": LEASE_SECONDS / 3},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--changes", type=float, default=100.0, help="foreign pods created or deleted per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which pods change")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep logs and data there")
    options = parser.parse_args()
    need_programs()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as temporary:
        result = uvloop.run(measure(options.folder or Path(temporary), options))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
