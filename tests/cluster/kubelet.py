"""Plays kubelet for any number of nodes of one API server: pods start, behave as their commands say, and end.

It never trusts the API server about what runs: its own records (``starts``, ``living``) are the world that tests compare with.
What containers may be told to do is in ``tests.cluster.behaviour``.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

from tests.cluster.api import ApiError
from tests.cluster.behaviour import CRASHED, KILLED, NO_SUCH_COMMAND, WordsOf
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet_port import KubeletPort
from tests.cluster.nodes import LEASES, Shape, conditions, lease, node_object, node_path
from tests.cluster.pod_status import lost_patch, never_ran_patch, status_patch
from tests.cluster.programs import exit_of
from tests.cluster.sandbox import Container, Life, Sandbox, Selector, chosen

_BOUND = {"fieldSelector": "spec.nodeName!="}
_RETRY_SECONDS = 0.2
_AWAY = (aiohttp.ClientError, TimeoutError, ConnectionError)


class Kubelet:
    """One for all nodes; lives in the event loop it was started in."""

    def __init__(self, plane: ControlPlane) -> None:
        self._api = plane.client()
        self._port = KubeletPort(self._container)
        self._pods: dict[str, Sandbox] = {}
        self._by_name: dict[tuple[str, str], Sandbox] = {}
        self._awake: dict[str, asyncio.Event] = {}
        """By node: cleared while the node is frozen."""
        self._unready: set[str] = set()
        self._down: set[str] = set()
        self._crashed: list[Sandbox] = []
        """Pods that ran on machines that have gone down."""
        self._gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_pod: dict[str, list[asyncio.Task[None]]] = {}
        self._numbers = itertools.count(1)
        self._names: dict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._living: dict[str, Life] = {}
        self.starts: list[Life] = []
        """Every start of a pod's containers, in order."""
        self.words_of: WordsOf | None = None
        """Words after ``sim`` for containers whose command is another program; without it, these run until they are asked to end."""
        self.failures: list[BaseException] = []
        """What went wrong in here; ``stop`` raises the first."""

    @classmethod
    async def start(cls, plane: ControlPlane, lease_seconds: float | None = None) -> "Kubelet":
        """Start it; with ``lease_seconds``, nodes renew their leases that often, for planes whose nodes have a short grace."""
        kubelet = cls(plane)
        await kubelet._port.start(plane.certificates)
        kubelet._spawn(kubelet._follow())
        if lease_seconds is not None:
            kubelet._spawn(kubelet._beat(lease_seconds))
        return kubelet

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._port.stop()
        await self._api.close()
        if self.failures:
            raise self.failures[0]

    async def __aenter__(self) -> "Kubelet":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # What tests look at and do

    def living(self, selector: Selector = None) -> list[Life]:
        """Return the selected pods with a living container, whatever the API server says of them."""
        return chosen(self._living.values(), selector)

    def started(self, selector: Selector = None) -> list[Life]:
        """Return the starts so far that ``selector`` selects."""
        return chosen(self.starts, selector)

    def open_gate(self, name: str) -> None:
        """Open a gate: containers that wait at it, now or later, go on."""
        self._gates[name].set()

    def freeze(self, *nodes: str) -> None:
        """Stop these nodes, by default all, from starting, ending and reporting; what runs there continues."""
        for node in nodes or list(self._awake):
            self._awake[node].clear()

    def thaw(self, *nodes: str) -> None:
        for node in nodes or list(self._awake):
            self._awake[node].set()

    def crash(self, *nodes: str) -> None:
        """Let these machines go down: their containers end without a report. The control plane finds out by their leases."""
        for node in nodes:
            self._awake[node].clear()
            self._down.add(node)
            for pod in [pod for pod in self._pods.values() if pod.node == node and pod.life is not None]:
                if pod.ended:
                    continue
                for task in self._of_pod.pop(pod.uid, ()):
                    task.cancel()
                for container in pod.containers:
                    if container.exit is None:
                        pod.end(container, CRASHED)
                    container.lost = True
                self._living.pop(pod.uid, None)
                self._crashed.append(pod)

    def boot(self, *nodes: str) -> None:
        """Start crashed machines again; their kubelets find what is left of their pods."""
        for node in nodes:
            self._down.discard(node)
            self._awake[node].set()
        for pod in [pod for pod in self._crashed if pod.node in nodes]:
            self._crashed.remove(pod)
            self._of_pod[pod.uid] = [self._spawn(self._delete_ended(pod, lost=True))]

    def write_log(self, namespace: str, pod: str, text: str, container: str | None = None) -> None:
        """Add lines to the log of a pod's container, the first unless one is named."""
        sandbox = self._by_name[namespace, pod]
        next(one for one in sandbox.containers if container in (None, one.name)).write(text)

    async def add_nodes(
        self,
        prefix: str,
        count: int = 1,
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> list[str]:
        """Create nodes ``PREFIX-0``, ``PREFIX-1`` and so on, continuing the numbers of earlier calls; return the names."""
        names = [f"{prefix}-{next(self._names[prefix])}" for _ in range(count)]
        await self._create_nodes(names, Shape(allocatable or {}, labels or {}, taints))
        return names

    async def add_node(
        self,
        name: str,
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        await self._create_nodes([name], Shape(allocatable or {}, labels or {}, taints))

    def adopt(self, annotation: str) -> None:
        """Play the nodes with this annotation that something else creates, until their objects are deleted."""
        self._spawn(self._adopt(annotation))

    async def remove_node(self, name: str) -> None:
        """Remove the machine and its object; its containers end without a report."""
        self._lose_node(name)
        await self._api.delete(node_path(name))

    async def set_ready(self, name: str, ready: bool) -> None:
        """Report the node as ready or not ready."""
        (self._unready.discard if ready else self._unready.add)(name)
        await self._say_ready(name)

    async def cordon(self, name: str, unschedulable: bool = True) -> None:
        await self._api.patch(node_path(name), {"spec": {"unschedulable": unschedulable}})

    # Nodes

    async def _create_nodes(self, names: Iterable[str], shape: Shape) -> None:
        async def create(name: str) -> None:
            self._awake[name] = asyncio.Event()
            self._awake[name].set()
            await self._api.post("/api/v1/nodes", node_object(name, shape, self._port.port))

        await asyncio.gather(*map(create, names))

    def _lose_node(self, name: str) -> None:
        del self._awake[name]
        self._unready.discard(name)
        for pod in [pod for pod in self._pods.values() if pod.node == name]:
            self._forget(pod)

    async def _adopt(self, annotation: str) -> None:
        """List and watch nodes, as ``_follow`` does pods."""
        adopted: set[str] = set()
        while True:
            try:
                listing = await self._api.get("/api/v1/nodes")
                found = {node["metadata"]["name"]: node for node in listing["items"] if _has(node, annotation)}
                for name in adopted - found.keys():
                    adopted.discard(name)
                    self._lose_node(name)
                for name in found.keys() - adopted:
                    adopted.add(name)
                    await self._take_over(name)
                async for event in self._api.watch("/api/v1/nodes", listing["metadata"]["resourceVersion"]):
                    name = event["object"]["metadata"].get("name", "")
                    is_new = event["type"] == "ADDED" and _has(event["object"], annotation)
                    if event["type"] == "ERROR" or is_new or (event["type"] == "DELETED" and name in adopted):
                        break
            except (*_AWAY, ApiError):
                await asyncio.sleep(_RETRY_SECONDS)

    async def _take_over(self, name: str) -> None:
        """Report a node as ready and as served here, and start the pods that have been bound to it."""
        status = node_object(name, Shape(), self._port.port)["status"]
        said = {key: status[key] for key in ("conditions", "addresses", "daemonEndpoints", "declaredFeatures")}
        await self._api.patch(f"{node_path(name)}/status", {"status": said}, "strategic")
        self._awake[name] = asyncio.Event()
        self._awake[name].set()
        bound = await self._api.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"})
        for pod in bound["items"]:
            self._take(pod, gone=False)

    async def _say_ready(self, name: str) -> None:
        status = {"conditions": conditions(name not in self._unready)}
        await self._api.patch(f"{node_path(name)}/status", {"status": status}, "strategic")

    async def _beat(self, seconds: float) -> None:
        """Renew leases, and report nodes as ready again that the controller manager has called unreachable meanwhile."""
        while True:
            with suppress(*_AWAY, ApiError):
                nodes = (await self._api.get("/api/v1/nodes", {"resourceVersion": "0"}))["items"]
                given_up = {node["metadata"]["name"] for node in nodes if _ready_status(node) == "Unknown"}
                names = [name for name, awake in self._awake.items() if awake.is_set()]
                await asyncio.gather(*(self._renew(name, seconds) for name in names))
                await asyncio.gather(*(self._say_ready(name) for name in names if name in given_up))
            await asyncio.sleep(seconds)

    async def _renew(self, name: str, seconds: float) -> None:
        body = lease(name, seconds)
        try:
            await self._api.patch(f"{LEASES}/{name}", body)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._api.post(LEASES, body)

    # Pods: what is wanted

    async def _follow(self) -> None:
        """List and watch the pods of all nodes; after any break, list again, as nothing else shows what was missed."""
        while True:
            try:
                listing = await self._api.get("/api/v1/pods", _BOUND)
                self._compare(listing["items"])
                version = listing["metadata"]["resourceVersion"]
                async for event in self._api.watch("/api/v1/pods", version, _BOUND):
                    if event["type"] == "ERROR":
                        break
                    self._take(event["object"], gone=event["type"] == "DELETED")
            except (*_AWAY, ApiError):
                await asyncio.sleep(_RETRY_SECONDS)

    def _compare(self, pods: list[dict[str, Any]]) -> None:
        listed = {pod["metadata"]["uid"] for pod in pods}
        for uid in self._pods.keys() - listed:
            self._mark_gone(self._pods[uid])
        for pod in pods:
            self._take(pod, gone=False)

    def _take(self, pod: dict[str, Any], gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        known = self._pods.get(uid)
        if known is not None:
            known.update(pod, gone)
            if gone:
                self._mark_gone(known)
            return
        status = pod.get("status", {})
        if gone or pod["spec"]["nodeName"] not in self._awake:
            return
        over = status.get("phase") in ("Succeeded", "Failed")
        if over and "deletionTimestamp" not in pod["metadata"]:
            return
        try:
            sandbox = Sandbox.of(pod, next(self._numbers), self.words_of)
        except ValueError as error:  # a word that means nothing is the test's mistake, and this pod's alone
            self.failures.append(error)
            return
        self._pods[uid] = self._by_name[sandbox.namespace, sandbox.name] = sandbox
        lost = status.get("phase") == "Running"
        self._of_pod[uid] = [self._spawn(self._delete_ended(sandbox, lost) if over or lost else self._live(sandbox))]

    def _mark_gone(self, pod: Sandbox) -> None:
        """End containers of a pod that vanished from the API server as after a deletion, with its grace period."""
        pod.gone = True
        pod.deleted.set()
        pod.changed.set()
        if pod.life is None or pod.life.ended is not None:
            self._forget(pod)

    def _forget(self, pod: Sandbox) -> None:
        if pod.life is not None:
            for container in pod.containers:
                if container.exit is None:
                    pod.end(container, KILLED)
        self._living.pop(pod.uid, None)
        self._pods.pop(pod.uid, None)
        if self._by_name.get((pod.namespace, pod.name)) is pod:
            del self._by_name[pod.namespace, pod.name]
        for task in self._of_pod.pop(pod.uid, ()):
            if task is not asyncio.current_task():
                task.cancel()

    # Pods: what happens

    async def _live(self, pod: Sandbox) -> None:
        await self._awake[pod.node].wait()
        if not pod.deleted.is_set() and pod.waiting_reason is None:
            if all(one.behaviour.at_once == NO_SUCH_COMMAND for one in pod.containers):
                await self._fail_to_start(pod)
            else:
                await self._run(pod)
        elif not pod.deleted.is_set():
            await self._report(pod, status_patch(pod))
            await pod.deleted.wait()
        if pod.life is None and not pod.overdue and not pod.forced:
            await self._report(pod, never_ran_patch(pod))
        await self._delete_ended(pod)

    async def _fail_to_start(self, pod: Sandbox) -> None:
        """Report that the runtime cannot execute the command: the pod never runs."""
        pod.begin()
        for container in pod.containers:
            pod.end(container, NO_SUCH_COMMAND)
        await self._report(pod, status_patch(pod))

    async def _run(self, pod: Sandbox) -> None:
        life = pod.begin()
        self.starts.append(life)
        self._living[pod.uid] = life
        running = status_patch(pod)
        tasks = self._of_pod[pod.uid]
        tasks.append(self._spawn(self._reap(pod)))
        programs = [self._spawn(self._play(pod, container)) for container in pod.containers]
        tasks.extend(programs)
        await self._report(pod, running)
        alive = set(programs)
        while alive:
            _, alive = await asyncio.wait(alive, return_when=asyncio.FIRST_COMPLETED)
            await self._report(pod, status_patch(pod))

    async def _delete_ended(self, pod: Sandbox, lost: bool = False) -> None:
        """Delete the object of a pod whose containers have ended, if its deletion was requested."""
        if lost:
            await self._report(pod, lost_patch(pod))
        await pod.deleted.wait()
        if pod.forced:
            return
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._insist(pod, "DELETE", pod.path, body, "application/json")
        if pod.gone:
            self._forget(pod)

    async def _reap(self, pod: Sandbox) -> None:
        """Send SIGTERM when the pod is deleted or overdue, and SIGKILL when its grace period is over too."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not pod.deleted.is_set() and not pod.ended:
            left = None if pod.deadline_seconds is None else begun + pod.deadline_seconds - loop.time()
            if left is not None and left <= 0:
                pod.overdue = True
                break
            await _changed(pod, left)
        await self._awake[pod.node].wait()
        pod.terminate.set()
        begun = loop.time()
        while pod.life is not None and not pod.ended and (left := begun + pod.grace_seconds - loop.time()) > 0:
            await _changed(pod, left)
        pod.kill.set()

    async def _play(self, pod: Sandbox, container: Container) -> None:
        pod.end(container, await exit_of(pod, container, self._gates))
        if pod.ended:
            self._living.pop(pod.uid, None)

    # Talking to the API server

    async def _report(self, pod: Sandbox, patch: dict[str, Any]) -> None:
        await self._insist(pod, "PATCH", f"{pod.path}/status", patch, "application/strategic-merge-patch+json")

    async def _insist(self, pod: Sandbox, method: str, path: str, body: dict[str, Any], kind: str) -> None:
        """Retry until the API server has it, or does not know this pod any more; a frozen node reports nothing."""
        while not pod.gone:
            await self._awake[pod.node].wait()
            try:
                await self._api.request(method, path, body, kind)
                return
            except ApiError as error:
                if error.status == 404 or (error.status == 422 and "metadata.uid" in str(error)):
                    return  # it is gone, or another one has its name
                if error.status < 500 and error.status not in (409, 429):
                    raise
            except _AWAY:
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    def _container(self, namespace: str, pod: str, container: str) -> Container | None:
        sandbox = self._by_name.get((namespace, pod))
        if sandbox is not None and sandbox.node in self._down:
            raise web.HTTPInternalServerError(text="dial tcp: connect: no route to host")
        return next((one for one in sandbox.containers if one.name == container), None) if sandbox else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)


def _has(node: dict[str, Any], annotation: str) -> bool:
    return annotation in (node["metadata"].get("annotations") or {})


def _ready_status(node: dict[str, Any]) -> str | None:
    return next((one["status"] for one in node["status"].get("conditions", ()) if one["type"] == "Ready"), None)


async def _changed(pod: Sandbox, seconds: float | None) -> None:
    """Wait until something about the pod has changed, at most ``seconds``; None: without a limit."""
    pod.changed.clear()
    with suppress(TimeoutError):
        await asyncio.wait_for(pod.changed.wait(), seconds)
