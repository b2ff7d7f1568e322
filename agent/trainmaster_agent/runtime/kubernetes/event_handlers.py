"""Handlers of watch events: update the cluster's ledger and the runs that objects belong to."""

from collections.abc import Callable
from typing import Any

from trainmaster_agent.capacity.inventory import Inventory, Kind
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.paths import key_of
from trainmaster_agent.kube.pods import PodSight, see
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT


class PodSink:
    """All pods of the cluster: each is counted in the ledger, and our own are members of runs."""

    def __init__(
        self,
        inventory: Inventory,
        agent: str,
        *,
        on_put: Callable[[PodSight], None],
        on_gone: Callable[[PodSight], None],
        on_change: Callable[[], None],
    ) -> None:
        self._inventory = inventory
        self._agent = agent
        self._on_put = on_put
        self._on_gone = on_gone
        self._on_change = on_change
        self._ours: dict[str, PodSight] = {}

    def put(self, obj: dict[str, Any]) -> None:
        try:
            self._inventory.pod_put(obj)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("pod", error, key_of(obj))
            self._inventory.pod_unreadable(obj)
        if (obj["metadata"].get("labels") or {}).get(LABEL_AGENT) == self._agent:
            sight = see(obj)
            if sight is not None:
                key = key_of(obj)
                before = self._ours.get(key)
                self._ours[key] = sight
                if before is not None and before.uid != sight.uid:
                    self._on_gone(before)
                self._on_put(sight)
        self._on_change()

    def drop(self, obj: dict[str, Any]) -> None:
        self._lose(key_of(obj))
        self._on_change()

    def listed(self, keys: set[str]) -> None:
        self._inventory.relisted(Kind.POD, keys)
        for key in [key for key in self._ours if key not in keys]:
            self._lose(key)
        self._on_change()

    def _lose(self, key: str) -> None:
        self._inventory.pod_drop(key)
        sight = self._ours.pop(key, None)
        if sight is not None:
            self._on_gone(sight)


class NodeSink:
    """Nodes, or other cluster-wide objects that the ledger keys by their name."""

    def __init__(
        self,
        inventory: Inventory,
        kind: Kind,
        put: Callable[[dict[str, Any]], None],
        drop: Callable[[str], None],
        on_change: Callable[[], None],
        keep: Callable[[set[str]], None] | None = None,
    ) -> None:
        self._inventory = inventory
        self._keep = keep
        self._kind = kind
        self._put = put
        self._drop = drop
        self._on_change = on_change

    def put(self, obj: dict[str, Any]) -> None:
        name = obj["metadata"]["name"]
        try:
            self._put(obj)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            # Its earlier state may be outdated: no entry is better than a wrong one.
            contain("node", error, f"{self._kind} {name}")
            self._drop(name)
            self._inventory.unreadable.add((self._kind, name))
        else:
            self._inventory.unreadable.discard((self._kind, name))
        self._on_change()

    def drop(self, obj: dict[str, Any]) -> None:
        self._drop(obj["metadata"]["name"])
        self._inventory.unreadable.discard((self._kind, obj["metadata"]["name"]))
        self._on_change()

    def listed(self, keys: set[str]) -> None:
        self._inventory.relisted(self._kind, keys)
        if self._keep is not None:
            self._keep(keys)
        for kind, name in [one for one in self._inventory.unreadable if one[0] is self._kind and one[1] not in keys]:
            self._inventory.unreadable.discard((kind, name))
        self._on_change()


class ObjectSink:
    """Namespaced objects that each belong to one run: anchors, and schedulers' objects for gangs."""

    def __init__(self, on_put: Callable[[dict[str, Any]], None], on_gone: Callable[[dict[str, Any]], None]) -> None:
        self._on_put = on_put
        self._on_gone = on_gone
        self._held: dict[str, dict[str, Any]] = {}
        """By key, only the fields that identify the object."""

    def put(self, obj: dict[str, Any]) -> None:
        key = key_of(obj)
        metadata = obj["metadata"]
        before = self._held.get(key)
        self._held[key] = {
            "metadata": {name: metadata.get(name) for name in ("name", "namespace", "uid", "labels")},
        }
        if before is not None and before["metadata"]["uid"] != metadata["uid"]:
            self._on_gone(before)
        self._on_put(obj)

    def drop(self, obj: dict[str, Any]) -> None:
        held = self._held.pop(key_of(obj), None)
        if held is not None:
            self._on_gone(held)

    def listed(self, keys: set[str]) -> None:
        for key in [key for key in self._held if key not in keys]:
            self._on_gone(self._held.pop(key))
