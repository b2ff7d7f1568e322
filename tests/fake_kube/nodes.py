"""Nodes for a fake API server: a scheduler that binds pods to them, and kubelets that run them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.fake_kube.deletion import Options
from tests.fake_kube.kubelet import Kubelet, Start
from tests.fake_kube.objects import Object, copied, is_finished, node_of, now, rfc3339, set_condition
from tests.fake_kube.resources import NODES, PODS
from tests.fake_kube.scheduler import Scheduler
from tests.fake_kube.server import FakeKube
from tests.fake_kube.store import Key

__all__ = ["FakeNodes", "Start"]


class FakeNodes:
    """Works on the server's store, not over HTTP, so it goes on while the server is stopped or answers with faults.

    Pods' first containers behave by their command, ``["sim", WORD]`` or ``["sim", WORD, ARGUMENT]``: ``succeed``,
    ``exit CODE``, ``signal NUMBER``, ``oom``, ``run`` (for ever; 143 when deleted), ``stubborn`` (137 when its grace is
    over), ``peaceful`` (0 when deleted), ``sleep SECONDS``, ``gate NAME``, ``print TEXT``, ``image-error``,
    ``config-error``, ``no-such-command``. Any other command is ``run``.
    """

    def __init__(self, server: FakeKube) -> None:
        self._server = server
        self._kubelet = Kubelet(server.store, server.verbs, server.logs)
        self._scheduler = Scheduler(server.store, server.table, server.verbs)

    @property
    def starts(self) -> list[Start]:
        """Every start of a container so far, in order."""
        return self._kubelet.starts

    def add_node(
        self,
        name: str,
        allocatable: Mapping[str, str | int],
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add a ready node; if ``pods`` is not in ``allocatable``, their number is not bounded."""
        self._kubelet.nodes.add(name)
        amounts = {resource: str(amount) for resource, amount in allocatable.items()}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": rfc3339(now())}
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": [dict(taint) for taint in taints]} if taints else {},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [ready],
                "addresses": [{"type": "Hostname", "address": name}],
            },
        }
        self._server.verbs.create(NODES, "", node)

    def remove_node(self, name: str) -> None:
        """Remove the node and its pods, without grace, as the control plane does after a while."""
        self._kubelet.nodes.discard(name)
        deletion = self._server.verbs.deletion
        deletion.delete(NODES, "", name, Options())
        for key, pod in self._server.store.scan(PODS.id).items():
            if node_of(pod) == name:
                deletion.delete(PODS, key.namespace, key.name, Options(grace=0))

    def set_ready(self, name: str, status: str, reason: str, message: str = "") -> None:
        """Report a node as ready (``True``), not ready (``False``) or silent (``Unknown``)."""
        key = Key(*NODES.id, "", name)
        node = self._server.store.get(key)
        if node is None:
            raise KeyError(name)
        node["status"]["conditions"] = [
            {
                "type": "Ready",
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": rfc3339(now()),
            }
        ]
        self._server.store.update(key, node)

    def crash_node(self, name: str) -> None:
        """Let the machine go down; the control plane has noticed that its kubelet is silent."""
        self._kubelet.crash(name)
        self.set_ready(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def boot_node(self, name: str) -> None:
        """Start the machine again; its kubelet finds what is left of its pods."""
        self.set_ready(name, "True", "KubeletReady")
        self._kubelet.boot(name)

    def evict_from(self, name: str) -> None:
        """Delete the pods of a silent node, as the control plane does after their toleration; they exist until the node answers."""
        for key, pod in self._server.store.scan(PODS.id).items():
            if node_of(pod) == name and not is_finished(pod):
                marked = copied(pod)
                reason = "DeletionByTaintManager"
                set_condition(
                    marked["status"],
                    "DisruptionTarget",
                    "True",
                    reason,
                    "Taint manager: deleting due to NoExecute taint",
                )
                self._server.store.update(key, marked)
                self._server.verbs.deletion.delete(PODS, key.namespace, key.name, Options())

    def fail(self, namespace: str, name: str, code: int) -> None:
        """Let the first container of a running pod exit with a code."""
        self._kubelet.exit(namespace, name, code)

    def open_gate(self, name: str) -> None:
        """Let ``["sim", "gate", NAME]`` succeed, now and from now on."""
        self._kubelet.open_gate(name)

    def living(self, predicate: Callable[[Object], bool] = lambda _: True) -> list[Object]:
        """Return pods whose first container runs now, as far as ``predicate`` is true of them."""
        return [pod for pod in self._kubelet.living() if predicate(pod)]

    def write_log(self, namespace: str, name: str, text: str, container: str = "") -> None:
        """Print lines as a running container; the first one of the pod if none is named. Raises KeyError if it never ran."""
        pod = self._server.store.get(Key(*PODS.id, namespace, name))
        if pod is None:
            raise KeyError(name)
        self._server.logs.write(pod["metadata"]["uid"], container or pod["spec"]["containers"][0]["name"], text)

    def close(self) -> None:
        """Stop at once, without a report, as when all machines lose power."""
        self._scheduler.close()
        self._kubelet.close()
