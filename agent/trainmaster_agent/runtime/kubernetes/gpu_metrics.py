"""The use of GPUs, from the metrics of NVIDIA's DCGM exporter.

Fields: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html; the exporter adds the labels ``namespace`` and
``pod`` of the pod that has the GPU.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from math import isfinite
from typing import Annotated

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field, StringConstraints

from trainmaster.protocol.base import Strict, bounded, worded_pattern
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import KubeError
from trainmaster_agent.kube.paths import PODS
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.port import MemberUse, UseReading

_UTILIZATION, _MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
_MIB = 2**20
_SECONDS, _READING_SECONDS = 5.0, 15.0
_AT_ONCE = 8
_MOST_BYTES = 16 << 20
PodName = tuple[str, str]
"""Namespace and name."""
Endpoint = Annotated[
    str,
    StringConstraints(
        max_length=500,
        pattern=worded_pattern(r"^https?://[^\s]+$", "an address such as http://dcgm-exporter:9400/metrics"),
    ),
]


class GpuMetrics(Strict):
    """Where the metrics of the GPUs are: at addresses, or at the exporter's pods, of which those on members' nodes are read."""

    endpoints: Annotated[tuple[Endpoint, ...], bounded(1000)] = ()
    """Addresses of exporters."""
    namespace: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Namespace of the exporter's pods, whose addresses the agent reaches by itself; None: they are not looked for."""
    selector: Annotated[str, StringConstraints(max_length=500)] = "app=nvidia-dcgm-exporter"
    """Labels of the exporter's pods."""
    port: Annotated[int, Field(ge=1, le=65535)] = 9400
    """Port of the exporter's pods."""


@dataclass(slots=True)
class GpuAmounts:
    """The GPUs of one pod: percentages, and bytes of memory."""

    percents: list[float] = field(default_factory=list)
    memory: int | None = None

    @property
    def percent(self) -> float | None:
        return sum(self.percents) / len(self.percents) if self.percents else None


def gpus_in(text: str) -> dict[PodName, GpuAmounts]:
    """Return the use of the GPUs that pods have, of one exporter's metrics. Raises ValueError for what is no such text."""
    found: dict[PodName, GpuAmounts] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in (_UTILIZATION, _MEMORY):
            continue
        for one in family.samples:
            pod = one.labels.get("pod") or one.labels.get("pod_name")
            namespace = one.labels.get("namespace") or one.labels.get("pod_namespace")
            if not pod or not namespace or not isfinite(one.value) or one.value < 0:
                continue
            amounts = found.setdefault((namespace, pod), GpuAmounts())
            if family.name == _UTILIZATION:
                amounts.percents.append(min(one.value, 100.0))
            else:
                amounts.memory = (amounts.memory or 0) + round(one.value * _MIB)
    return found


class GpuUse:
    """Reads what the GPUs of members do."""

    def __init__(self, api: ApiServer, config: GpuMetrics) -> None:
        self._api = api
        self._config = config

    async def added_to(self, reading: UseReading, pods: Iterable[PodSight]) -> UseReading:
        """Return the reading with the use of the GPUs of these pods, and why some of it is not known."""
        running = {(pod.namespace, pod.name): pod for pod in pods if pod.stage == "running" and pod.node}
        if not running:
            return reading
        found, missing = await self._read({pod.node for pod in running.values()})
        members = {(one.run, one.role, one.index): one for one in reading.members}
        for name, pod in running.items():
            if (gpus := found.get(name)) is not None:
                place = (pod.run, pod.role, pod.index)
                known = members.get(place, MemberUse(*place))
                members[place] = replace(known, gpu=gpus.percent, gpu_memory=gpus.memory)
        reasons = [reason for reason in (reading.missing, missing) if reason]
        return UseReading(tuple(members.values()), "; ".join(reasons))

    async def _read(self, nodes: set[str]) -> tuple[Mapping[PodName, GpuAmounts], str]:
        addresses = list(self._config.endpoints)
        if self._config.namespace is not None:
            try:
                addresses += await self._exporters(self._config.namespace, nodes)
            except KubeError as error:
                return {}, f"the agent cannot list the pods of the DCGM exporter in {self._config.namespace}: {error}"
        found: dict[PodName, GpuAmounts] = {}
        failed: list[str] = []
        turns = asyncio.Semaphore(_AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def one(address: str) -> None:
                async with turns:
                    try:
                        found.update(gpus_in(await _text(session, address)))
                    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                        failed.append(f"{address} ({error or type(error).__name__})")

            tasks = [asyncio.create_task(one(address)) for address in addresses]
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=_READING_SECONDS)
                for task in late:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                failed += ["others, which take too long"] if late else []
        if not failed:
            return found, ""
        return found, f"{len(failed)} DCGM exporters cannot be read, such as {min(failed)}"

    async def _exporters(self, namespace: str, nodes: set[str]) -> list[str]:
        """Return the addresses of the exporter's pods on these nodes."""
        addresses = []
        async for pods, _ in self._api.pages(PODS, namespace, selector=self._config.selector):
            for pod in pods:
                ip, status = (pod.get("status") or {}).get("podIP"), pod.get("status") or {}
                if status.get("phase") == "Running" and ip and (pod.get("spec") or {}).get("nodeName") in nodes:
                    host = f"[{ip}]" if ip_address(ip).version == 6 else ip
                    addresses.append(f"http://{host}:{self._config.port}/metrics")
        return addresses


async def _text(session: aiohttp.ClientSession, address: str) -> str:
    async with session.get(address, raise_for_status=True) as answer:
        parts, size = [], 0
        async for part in answer.content.iter_chunked(1 << 16):
            size += len(part)
            if size > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace")
