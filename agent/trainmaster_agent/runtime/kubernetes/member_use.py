"""The use of members that are pods: from the cluster's metrics API, or from the kubelets of the nodes where members run.

Metrics API: https://github.com/kubernetes/metrics. Kubelets: the Summary API (``/stats/summary``), through the API server, which
needs the permission ``nodes/proxy`` even where the kubelet itself would be content with ``nodes/stats``.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar

from trainmaster.protocol.quantities import parse_quantity
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ForbiddenError, KubeError, NotFoundError
from trainmaster_agent.kube.paths import NODES, Resource
from trainmaster_agent.kube.pods import LABEL_RUN, PodSight
from trainmaster_agent.runtime.port import MemberUse, UseReading

log = logging.getLogger(__name__)

UseSource = Literal["metrics", "kubelet"]

POD_METRICS = Resource("metrics.k8s.io/v1beta1", "pods", "PodMetrics")
_AT_ONCE = 8
"""The most concurrent requests of a reading."""
_CALL_SECONDS = 8.0
_READING_SECONDS = 20.0
"""Time after which a reading goes on without the answers that are still missing."""
_SKIP_SECONDS = 120.0
"""Time for which a node that did not answer in time is passed over."""
_REFUSED_SECONDS = 600.0
"""Time after which kubelets are tried again that may not be read."""

NO_METRICS = "the cluster has no metrics.k8s.io API: install metrics-server, or let the agent read the kubelets (useSource: kubelet)"
NO_PERMISSION = (
    "the agent may not list the pods of metrics.k8s.io: its role needs that, as with use.enabled of the agent's chart"
)
NO_KUBELETS = "the agent cannot read the kubelets (nodes/proxy, use.source: kubelet of its chart), and reads metrics.k8s.io instead"

_Key = TypeVar("_Key")


class PodAmounts(NamedTuple):
    """Use of one pod: cores and bytes. None: unknown."""

    cpu: float | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class _Counter:
    """A pod's used core-seconds at a time of its kubelet, in seconds."""

    at: float
    seconds: float


class PodUse:
    """Reads what members' pods use. ``clock`` returns monotonic seconds."""

    def __init__(self, api: ApiServer, source: UseSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._source = source
        self._clock = clock
        self._counters: dict[str, _Counter] = {}
        """By uid of the pod."""
        self._skipped: dict[str, float] = {}
        """Nodes that did not answer, and until when they are passed over."""
        self._refused_until = -1.0

    async def read(self, pods: Iterable[PodSight]) -> UseReading:
        """Return the use of these pods as far as it is known; those that do not run are left out."""
        running = [pod for pod in pods if pod.stage == "running" and pod.node]
        if not running:
            return UseReading()
        if self._source == "kubelet" and self._clock() >= self._refused_until:
            try:
                amounts, missing = await self._of_kubelets(running)
            except ForbiddenError:
                self._refused_until = self._clock() + _REFUSED_SECONDS
            except NotFoundError:
                pass  # such a cluster has no kubelets that could be read: virtual nodes
            else:
                return _reading(running, amounts, missing)
        amounts, missing = await self._of_metrics(running)
        if self._source == "kubelet":
            missing = f"{NO_KUBELETS}{f'; {missing}' if missing else ''}"
        return _reading(running, amounts, missing)

    # -- the metrics API

    async def _of_metrics(self, pods: Sequence[PodSight]) -> tuple[dict[str, PodAmounts], str]:
        namespaces = sorted({pod.namespace for pod in pods})
        answers, errors = await _gather(namespaces, self._list_metrics)
        uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
        found: dict[str, PodAmounts] = {}
        for answer in answers.values():
            for item in answer.get("items") or ():
                metadata = item.get("metadata") or {}
                uid = uids.get((str(metadata.get("namespace")), str(metadata.get("name"))))
                if uid is not None:
                    found[uid] = amounts_of_metrics(item)
        return found, _missing_metrics(errors)

    async def _list_metrics(self, namespace: str) -> dict[str, Any]:
        return await self._api.call("GET", POD_METRICS.path(namespace), query={"labelSelector": LABEL_RUN})

    # -- kubelets

    async def _of_kubelets(self, pods: Sequence[PodSight]) -> tuple[dict[str, PodAmounts], str]:
        """Return the amounts, by uid. Raises ForbiddenError where kubelets may not be read, NotFoundError where there are none."""
        now = self._clock()
        self._skipped = {node: until for node, until in self._skipped.items() if until > now}
        nodes = sorted({pod.node for pod in pods} - self._skipped.keys())
        answers, errors = await _gather(nodes, self._summary)
        for node, error in errors.items():
            if isinstance(error, ForbiddenError):
                raise error
            if not isinstance(error, NotFoundError):
                self._skipped[node] = self._clock() + _SKIP_SECONDS
                log.info("node %s does not say what its pods use: %s", node, error)
        if nodes and not answers and isinstance(lacking := next(iter(errors.values())), NotFoundError):
            raise lacking
        wanted = {pod.uid for pod in pods}
        counters: dict[str, _Counter] = {}
        found: dict[str, PodAmounts] = {}
        for answer in answers.values():
            for pod in answer.get("pods") or ():
                uid = str((pod.get("podRef") or {}).get("uid"))
                if uid in wanted:
                    found[uid] = self._of_summary(uid, pod, counters)
        # Nodes that did not answer this time go on from the reading before.
        self._counters = {uid: one for uid, one in self._counters.items() if uid in wanted} | counters
        missing = ""
        if self._skipped:
            missing = f"{len(self._skipped)} nodes did not answer, such as {min(self._skipped)}"
        return found, missing

    async def _summary(self, node: str) -> dict[str, Any]:
        return await self._api.call("GET", NODES.path(None, node, "proxy/stats/summary"))

    def _of_summary(self, uid: str, pod: Mapping[str, Any], counters: dict[str, _Counter]) -> PodAmounts:
        cpu, memory = pod.get("cpu") or {}, pod.get("memory") or {}
        cores = _nano(cpu.get("usageNanoCores"))
        total, at = _nano(cpu.get("usageCoreNanoSeconds")), _moment(cpu.get("time"))
        if total is not None and at is not None:
            counters[uid] = _Counter(at, total)
            before = self._counters.get(uid)
            # The kubelet's own rate is that of its last few seconds alone, and not of the time since the reading before. A counter
            # that went back is that of other containers: nothing is known of the time between.
            if before is not None and at > before.at and total >= before.seconds:
                cores = (total - before.seconds) / (at - before.at)
        working_set = memory.get("workingSetBytes")
        return PodAmounts(cores, working_set if isinstance(working_set, int) and working_set >= 0 else None)


def _reading(pods: Iterable[PodSight], amounts: Mapping[str, PodAmounts], missing: str) -> UseReading:
    members = tuple(
        MemberUse(
            *(pod.run, pod.role, pod.index),
            cpu=found.cpu,
            memory=found.memory,
            restarts=pod.restarts,
            oom_kills=pod.oom_kills,
            memory_limit=pod.memory_limit,
        )
        for pod in pods
        if (found := amounts.get(pod.uid)) is not None
    )
    return UseReading(members, missing)


async def _gather(
    keys: Sequence[_Key], call: Callable[[_Key], Awaitable[dict[str, Any]]]
) -> tuple[dict[_Key, dict[str, Any]], dict[_Key, Exception]]:
    """Call for each key, a few at a time; return the answers, and the errors of those that failed or took too long."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(key: _Key) -> dict[str, Any]:
        async with turns, asyncio.timeout(_CALL_SECONDS):
            return await call(key)

    tasks = {key: asyncio.create_task(one(key)) for key in keys}
    answers: dict[_Key, dict[str, Any]] = {}
    errors: dict[_Key, Exception] = {}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_READING_SECONDS)
        for key, task in tasks.items():
            if not task.done():
                errors[key] = TimeoutError("no answer in time")
                continue
            try:
                answers[key] = task.result()
            except TimeoutError:
                errors[key] = TimeoutError(f"no answer within {_CALL_SECONDS:g} s")
            except KubeError as error:
                errors[key] = error
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return answers, errors


def _missing_metrics(errors: Mapping[str, Exception]) -> str:
    """Return why the metrics of some namespaces are not known; empty if they are."""
    if not errors:
        return ""
    namespace, error = min(errors.items())
    if isinstance(error, ForbiddenError):
        return NO_PERMISSION
    if isinstance(error, NotFoundError):
        return NO_METRICS
    return f"metrics.k8s.io does not answer for namespace {namespace}: {error}"


def amounts_of_metrics(item: Mapping[str, Any]) -> PodAmounts:
    """Return the sums of the containers of a PodMetrics object; None where one of them is unreadable."""
    sums: dict[str, int | None] = {}
    for container in item.get("containers") or ():
        for resource, text in (container.get("usage") or {}).items():
            try:
                amount: int | None = parse_quantity(resource, str(text))
            except ValueError:
                amount = None
            before = sums.get(resource, 0)
            sums[resource] = None if amount is None or before is None else before + amount
    cpu = sums.get("cpu")
    return PodAmounts(None if cpu is None else cpu / 1000, sums.get("memory"))


def _nano(value: Any) -> float | None:
    return value / 1e9 if isinstance(value, int) and value >= 0 else None


def _moment(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None
