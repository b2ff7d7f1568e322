"""The part of an agent that reports what members use, by itself, for ``bench.use``: the reading and the sending are the agent's own.

Prints a line of JSON at the begin of each round and at the end: its CPU seconds and its reports until then; ``took``: the seconds
of the round before, from its first request to its last answer; ``bytes``: of the reports of the first round.
"""

import argparse
import asyncio
import json
import time
from typing import cast

import uvloop
from kubernetes.aio.client import Configuration

from bench.cpu import cpu_seconds
from bench.kubelets import NAMESPACE, node_of, pod_of, uid_of
from trainmaster.client.aio import AgentClient
from trainmaster.protocol.ids import job_id, run_id
from trainmaster.protocol.member_use import UsePush
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.access import ApiServerAccess
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes.member_use import PodUse, UseSource
from trainmaster_agent.runtime.port import RunStatus, Runtime, UseReading
from trainmaster_agent.use_reports import UseReports

JOB = "train"
ROLE = "main"
_GIB = 2**30


def runs_of(first: int, members: int, size: int) -> list[str]:
    """Return the ids of the runs of consecutive jobs, of which the first one has this key."""
    return [run_id(job_id(JOB, first + number), 1) for number in range(-(-members // size))]


class MembersInUse:
    """The runtime as far as use needs it, and the sender; both count."""

    def __init__(self, client: AgentClient, use: PodUse, pods: list[PodSight], rounds: int) -> None:
        self._client = client
        self._use = use
        self._pods = pods
        self._left = rounds
        self._held = {pod.run: RunStatus(pod.run, 1, 1, RunState.RUNNING) for pod in pods}
        self._rounds = self._reports = self._bytes = 0
        self._began = self._took = 0.0
        self.is_over = asyncio.Event()

    def held(self) -> dict[str, RunStatus]:
        return self._held

    async def member_use(self) -> UseReading:
        line = {"cpu_seconds": cpu_seconds(), "reports": self._reports, "bytes": self._bytes, "took": self._took}
        print(json.dumps(line), flush=True)
        if not self._left:
            self.is_over.set()
            return UseReading()
        self._left -= 1
        self._began = time.monotonic()
        self._rounds += 1
        reading = await self._use.read(self._pods)
        if reading.missing or len(reading.members) != len(self._pods):
            print(json.dumps({"error": f"{len(reading.members)} members are known: {reading.missing}"}), flush=True)
            self.is_over.set()
        return reading

    async def report_use(self, body: UsePush) -> None:
        if self.is_over.is_set():
            return
        await self._client.report_use(body)
        self._reports += 1
        if self._rounds == 1:  # the others are measured
            self._bytes += len(body.model_dump_json(by_alias=True, exclude_defaults=True))
        self._took = time.monotonic() - self._began


async def play(options: argparse.Namespace) -> None:
    runs = runs_of(options.first, options.members, options.size)
    pods = [
        PodSight(
            name=pod_of(member),
            namespace=NAMESPACE,
            uid=uid_of(pod_of(member)),
            version=1,
            run=runs[member // options.size],
            role=ROLE,
            index=member % options.size,
            stage="running",
            node=node_of(member, options.per_node),
            memory_limit=4 * _GIB,
        )
        for member in range(options.members)
    ]
    source: UseSource = options.source
    access = ApiServerAccess(Configuration(host=options.kube), None)
    async with ApiServer(access) as api, AgentClient(options.url, options.key) as client:
        members = MembersInUse(client, PodUse(api, source), pods, options.rounds)
        reports = UseReports(members, cast(Runtime, members), options.session, options.seconds)
        reports.set_taken(True)
        await members.is_over.wait()
        await reports.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("first", "members", "size", "per-node", "rounds", "seconds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("url", "key", "kube", "session"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--source", choices=("kubelet", "metrics"), required=True)
    uvloop.run(play(parser.parse_args()))


if __name__ == "__main__":
    main()
