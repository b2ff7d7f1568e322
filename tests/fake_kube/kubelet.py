"""The kubelets of all fake nodes: they start what is bound, end what is deleted, and report every step.

Timers of the event loop, and nothing that polls. Containers are not started again, whatever the restart policy says.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from tests.fake_kube import containers
from tests.fake_kube.containers import Exit, Script
from tests.fake_kube.deletion import Options
from tests.fake_kube.errors import ApiError
from tests.fake_kube.logs import Logs
from tests.fake_kube.objects import Object, is_deleting, is_finished, node_of, now
from tests.fake_kube.resources import PODS
from tests.fake_kube.store import Change, Key, Store
from tests.fake_kube.verbs import Verbs


@dataclass(frozen=True, slots=True)
class Start:
    """A container that was started; one for every start of a pod's first container, ever."""

    namespace: str
    name: str
    uid: str
    node: str
    at: datetime


@dataclass
class _Life:
    """A pod on its node, from its start until it is gone. Times are the event loop's."""

    key: Key
    uid: str
    script: Script
    taken: float
    running: bool = False
    crashed: bool = False
    """It ran when its node went down."""
    began: datetime = field(default_factory=now)
    told_to_stop: float | None = None
    kill: asyncio.TimerHandle | None = None
    deadline: asyncio.TimerHandle | None = None
    work: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        for timer in (self.kill, self.deadline, self.work):
            if timer is not None:
                timer.cancel()


class Kubelet:
    """Plays the containers of pods on the nodes in ``nodes``."""

    def __init__(self, store: Store, verbs: Verbs, logs: Logs) -> None:
        self.nodes: set[str] = set()
        self.down: set[str] = set()
        """Nodes that have crashed: nothing of them runs or reports."""
        self.starts: list[Start] = []
        self._store = store
        self._verbs = verbs
        self._logs = logs
        self._lives: dict[str, _Life] = {}
        self._open_gates: set[str] = set()
        self._numbers = itertools.count(1)
        self._stop_listening = store.listen(self._follow)

    def close(self) -> None:
        """End all containers without a report, as when the machines lose power."""
        self._stop_listening()
        for life in self._lives.values():
            life.cancel()
        self._lives.clear()

    def open_gate(self, name: str) -> None:
        """Let all containers that wait at this gate succeed, and those that come to it later."""
        self._open_gates.add(name)
        for life in tuple(self._lives.values()):
            if life.script == Script("gate", name):
                self._end(life, Exit(0))

    def exit(self, namespace: str, name: str, code: int) -> None:
        """Let a running container exit. Raises KeyError for a pod that does not run."""
        found = [
            one
            for one in self._lives.values()
            if (one.key.namespace, one.key.name) == (namespace, name) and one.running
        ]
        if not found:
            raise KeyError(name)
        self._end(found[0], Exit(code))

    def living(self) -> list[Object]:
        """Return pods whose first container runs now."""
        pods = [self._store.get(life.key) for life in self._lives.values() if life.running]
        return [pod for pod in pods if pod is not None]

    def crash(self, node: str) -> None:
        """Stop the machine: its containers end without a report."""
        self.down.add(node)
        self._logs.silent.add(node)
        for life in list(self._lives.values()):
            pod = self._store.peek(life.key)
            if pod is not None and node_of(pod) == node:
                life.cancel()
                life.crashed, life.running = life.running, False
                if life.crashed:
                    self._logs.lose(life.uid)

    def boot(self, node: str) -> None:
        """Start the machine again; its kubelet reads what the API server has of its pods."""
        self.down.discard(node)
        self._logs.silent.discard(node)
        loop = asyncio.get_running_loop()
        for key, pod in self._store.scan(PODS.id).items():
            if node_of(pod) != node or is_finished(pod):
                continue
            uid = pod["metadata"]["uid"]
            life = self._lives.get(uid)
            if life is None:
                life = self._lives[uid] = _Life(key, uid, Script.of(pod), loop.time())
                loop.call_soon(self._start, life)
            elif life.crashed:
                loop.call_soon(self._find_crashed, life)
                continue
            if is_deleting(pod):
                loop.call_soon(self._stop, life)

    def _find_crashed(self, life: _Life) -> None:
        self._report(life, lambda one: containers.report_crashed(one, life.began))
        pod = self._current(life)
        if pod is not None and is_deleting(pod):
            self._let_go(life)

    def _follow(self, change: Change) -> None:
        if change.key.resource != PODS.id:
            return
        pod, uid = change.new, change.value["metadata"]["uid"]
        life = self._lives.get(uid)
        if pod is None:
            if life is not None:
                life.cancel()
                del self._lives[uid]
            self._logs.drop(uid)
        elif node_of(pod) in self.down:
            return
        elif life is not None:
            self._set_deadline(life, pod)
            if is_deleting(pod):
                asyncio.get_running_loop().call_soon(self._stop, life)
        elif node_of(pod) in self.nodes and not is_finished(pod):
            loop = asyncio.get_running_loop()
            life = self._lives[uid] = _Life(change.key, uid, Script.of(pod), loop.time())
            loop.call_soon(self._start, life)
            if is_deleting(pod):
                loop.call_soon(self._stop, life)

    def _start(self, life: _Life) -> None:
        pod = self._current(life)
        if pod is None or is_deleting(pod) or node_of(pod) in self.down:
            return
        self._set_deadline(life, pod)
        if life.script.never_starts:
            self._report(life, lambda one: containers.report_waiting(one, life.script, self._next_address()))
            return
        unstarted = life.script.exit_at_once
        if unstarted is not None and unstarted.never_began:
            for container in pod["spec"]["containers"]:
                self._logs.open(life.uid, container["name"])
                self._logs.end(life.uid, container["name"])
            self._report(life, lambda one: containers.report_ended(one, unstarted, life.began))
            return
        life.running, life.began = True, now()
        self.starts.append(Start(life.key.namespace, life.key.name, life.uid, node_of(pod), life.began))
        for container in pod["spec"]["containers"]:
            self._logs.open(life.uid, container["name"])
        address = self._next_address()
        self._report(life, lambda one: containers.report_running(one, address, life.began))
        if life.script.word == "print":
            self._logs.write(life.uid, pod["spec"]["containers"][0]["name"], life.script.argument)
        how = (
            Exit(0)
            if life.script.word == "gate" and life.script.argument in self._open_gates
            else life.script.exit_at_once
        )
        seconds = float(life.script.argument) if life.script.word == "sleep" else 0.0
        if how is not None or life.script.word == "sleep":
            life.work = asyncio.get_running_loop().call_later(seconds, self._end, life, how or Exit(0))

    def _next_address(self) -> str:
        number = next(self._numbers)
        return f"10.{number // 65536 % 256}.{number // 256 % 256}.{number % 256}"

    def _stop(self, life: _Life) -> None:
        """Send SIGTERM, and SIGKILL once the grace is over, which a later deletion may have shortened."""
        pod = self._current(life)
        if pod is None or node_of(pod) in self.down:
            return
        if not life.running:
            if not is_finished(pod):
                self._report(life, containers.report_never_ran)
            self._let_go(life)
            return
        loop = asyncio.get_running_loop()
        if life.told_to_stop is None:
            life.told_to_stop = loop.time()
            if how := life.script.exit_at_deletion:
                self._end(life, how)
                return
        if life.kill is not None:
            life.kill.cancel()
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
        life.kill = loop.call_at(life.told_to_stop + grace, self._end, life, Exit(containers.SIGKILL_CODE, 9))

    def _end(self, life: _Life, how: Exit, tell: Callable[[Object], None] = lambda _: None) -> None:
        """Report that the containers have ended, with what ``tell`` adds, and let the pod go if it is being deleted."""
        if not life.running:
            return
        life.running = False
        life.cancel()
        pod = self._current(life)
        if pod is None:
            return
        self._report(life, lambda one: containers.report_ended(one, how, life.began), tell)
        for container in pod["spec"]["containers"]:
            self._logs.end(life.uid, container["name"])
        if is_deleting(pod):
            self._let_go(life)

    def _exceed(self, life: _Life) -> None:
        pod = self._current(life)
        if pod is None or is_finished(pod):
            return
        if life.running:
            self._end(life, Exit(containers.SIGKILL_CODE, 9), containers.report_deadline)
        else:
            self._report(life, containers.report_deadline)

    def _set_deadline(self, life: _Life, pod: Object) -> None:
        seconds = pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None and not is_finished(pod):
            if life.deadline is not None:
                life.deadline.cancel()
            life.deadline = asyncio.get_running_loop().call_at(life.taken + seconds, self._exceed, life)

    def _let_go(self, life: _Life) -> None:
        """Delete the pod as its kubelet does, without grace, after which only finalizers can hold it."""
        with suppress(ApiError):  # gone already, or another pod has its name
            self._verbs.deletion.delete(PODS, life.key.namespace, life.key.name, Options(0, {"uid": life.uid}))

    def _current(self, life: _Life) -> Object | None:
        pod = self._store.peek(life.key)
        return pod if self._lives.get(life.uid) is life and pod and pod["metadata"]["uid"] == life.uid else None

    def _report(self, life: _Life, *writes: Callable[[Object], None]) -> None:
        """Apply ``writes`` to the pod in one update: a pod that has ended is never seen without its reason."""
        pod = self._store.get(life.key)
        if pod is not None and self._current(life) is not None:
            for write in writes:
                write(pod)
            self._store.update(life.key, pod)
