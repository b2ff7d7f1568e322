"""Handlers of watch events: update the cluster's ledger and the runs that objects belong to.

`EventHandlers` says which resources are watched, and which handler each has. Nothing here speaks with the API server.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.capacity.claim_templates import ClaimTemplates, NamedClaims
from trainmaster_agent.capacity.inventory import Inventory, Kind
from trainmaster_agent.capacity.quotas import Quotas
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.paths import (
    CONFIG_MAPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    Resource,
    key_of,
)
from trainmaster_agent.kube.pods import LABEL_RUN, PodSight, see
from trainmaster_agent.kube.watch import EventHandler
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.node_health import NodeHealth
from trainmaster_agent.runtime.kubernetes.orphans import Orphans
from trainmaster_agent.runtime.kubernetes.record import (
    ALIVE,
    LABEL_AGENT,
    LABEL_RECORD,
    KubeRunRecord,
    UnreadableRecordError,
    read_record,
)
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, UnknownWorkloadError, facts_of
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.kubernetes.watch_setup import entries
from trainmaster_agent.runtime.kubernetes.workload_objects import NewPod, new_pod, resource_of, see_workload

log = logging.getLogger(__name__)


class PodHandler:
    """All pods of the cluster: each is counted in the ledger, and our own are members of runs."""

    def __init__(
        self,
        inventory: Inventory,
        agent: str,
        *,
        on_put: Callable[[PodSight], None],
        on_gone: Callable[[PodSight], None],
        on_new: Callable[[NewPod], None],
        on_new_indexed: Callable[[NewPod], None],
        on_new_gone: Callable[[NewPod], None],
        on_change: Callable[[], None],
    ) -> None:
        """``on_new``: called with a pod that a controller has made for a run, until it has an index or, as far as was seen, is gone
        without one.
        """
        self._inventory = inventory
        self._agent = agent
        self._on_put = on_put
        self._on_gone = on_gone
        self._on_new = on_new
        self._on_new_indexed = on_new_indexed
        self._on_new_gone = on_new_gone
        self._on_change = on_change
        self._ours: dict[str, PodSight] = {}
        self._new: dict[str, NewPod] = {}

    def put(self, obj: dict[str, Any]) -> None:
        try:
            self._inventory.pod_put(obj)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("pod", error, key_of(obj))
            self._inventory.pod_unreadable(obj)
        if (obj["metadata"].get("labels") or {}).get(LABEL_AGENT) == self._agent:
            key, sight = key_of(obj), see(obj)
            if any(held is not None and held.uid != obj["metadata"]["uid"] for held in self._held(key)):
                self._lose_ours(key)  # an earlier pod of this name
            if (new := new_pod(obj)) is not None:
                self._new[key] = new
                self._on_new(new)
            elif (known := self._new.pop(key, None)) is not None:
                self._on_new_indexed(known)
            if sight is not None:
                self._ours[key] = sight
                self._on_put(sight)
        self._on_change()

    def drop(self, obj: dict[str, Any]) -> None:
        self._lose(key_of(obj))
        self._on_change()

    def listed(self, keys: set[str]) -> None:
        self._inventory.relisted(Kind.POD, keys)
        for key in [key for key in (*self._ours, *self._new) if key not in keys]:
            self._lose(key)
        self._on_change()

    def _held(self, key: str) -> tuple[NewPod | None, PodSight | None]:
        return self._new.get(key), self._ours.get(key)

    def _lose(self, key: str) -> None:
        self._inventory.pod_drop(key)
        self._lose_ours(key)

    def _lose_ours(self, key: str) -> None:
        if (new := self._new.pop(key, None)) is not None:
            self._on_new_gone(new)
        sight = self._ours.pop(key, None)
        if sight is not None:
            self._on_gone(sight)


class NodeHandler:
    """Nodes, or other objects that the ledger keys by their name, and by their namespace where they have one."""

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
        name = key_of(obj)
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
        self._drop(key_of(obj))
        self._inventory.unreadable.discard((self._kind, key_of(obj)))
        self._on_change()

    def listed(self, keys: set[str]) -> None:
        self._inventory.relisted(self._kind, keys)
        if self._keep is not None:
            self._keep(keys)
        for kind, name in [one for one in self._inventory.unreadable if one[0] is self._kind and one[1] not in keys]:
            self._inventory.unreadable.discard((kind, name))
        self._on_change()


class ObjectHandler:
    """Namespaced objects that each belong to one run: records, and schedulers' objects for gangs."""

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


@dataclass(frozen=True, slots=True)
class Watched:
    """One watch and its event handler."""

    resource: Resource
    handler: EventHandler
    namespace: str | None = None
    selector: str = ""
    is_needed: bool = True
    """Whether the agent needs it to act."""
    name: str = ""
    """Name of the only object that is watched; empty: all of them."""


class EventHandlers:
    """``home`` is the agent's namespace, where records are. ``is_known`` returns whether a run's record is already known.

    ``on_found`` is called with an unknown record, ``doubt`` with a namespace where a pod disappeared that this agent had not deleted.
    """

    def __init__(
        self,
        config: KubernetesCluster,
        placement: PlacementPort,
        trackers: Mapping[str, RunTracker],
        orphans: Orphans,
        *,
        home: str,
        look_at: Callable[[str], None],
        lose_record: Callable[[RunTracker], None],
        is_known: Callable[[str], bool],
        on_found: Callable[[KubeRunRecord, Facts], None],
        doubt: Callable[[str], None],
    ) -> None:
        self._config = config
        self._placement = placement
        self._trackers = trackers
        self._orphans = orphans
        self._home = home
        self._look_at = look_at
        self._lose_record = lose_record
        self._is_known = is_known
        self._on_found = on_found
        self._doubt = doubt
        self._new_pods: dict[str, NewPod] = {}
        """Pods without an index, by uid; also of runs that are not known yet."""

    def watched(
        self,
        inventory: Inventory,
        quotas: Quotas,
        claim_templates: ClaimTemplates,
        named_claims: NamedClaims,
        health: NodeHealth,
        on_capacity_change: Callable[[], None],
    ) -> Iterator[Watched]:
        """Yield every watch of this cluster."""
        cluster = self._config.cluster
        pods = PodHandler(
            inventory,
            cluster,
            on_put=self._on_pod,
            on_gone=self._on_pod_gone,
            on_new=self._on_new_pod,
            on_new_indexed=self._on_pod_indexed,
            on_new_gone=self._on_new_pod_gone,
            on_change=on_capacity_change,
        )
        yield Watched(PODS, pods)
        selector = f"{LABEL_AGENT}={cluster}"
        records = ObjectHandler(self._on_record, self._on_record_gone)
        yield Watched(CONFIG_MAPS, records, self._home, f"{LABEL_RECORD}={ALIVE},{selector}")
        for namespace in self._config.job_namespaces:
            of_quotas = ObjectHandler(quotas.put, lambda obj: quotas.drop(key_of(obj)))
            yield Watched(RESOURCE_QUOTAS, of_quotas, namespace, is_needed=False)
            of_templates = ObjectHandler(claim_templates.put, claim_templates.drop)
            yield Watched(RESOURCE_CLAIM_TEMPLATES, of_templates, namespace, is_needed=False)
            of_claims = ObjectHandler(named_claims.put, named_claims.drop)
            yield Watched(RESOURCE_CLAIMS, of_claims, namespace, f"!{LABEL_AGENT}", is_needed=False)
            for resource in self._placement.watched:
                objects = ObjectHandler(self._on_object, self._on_object_gone)
                own = "" if resource.plural == "workloads" else selector
                yield Watched(resource, objects, namespace, own, is_needed=False)
        for entry in entries(inventory, health, self._config.capacity.autoscaler):
            handler = NodeHandler(inventory, entry.kind, entry.put, entry.drop, on_capacity_change, entry.keep)
            yield Watched(entry.resource, handler, entry.namespace, is_needed=entry.needed, name=entry.name)

    def watched_workloads(self, kind: WorkloadKind) -> Iterator[Watched]:
        """Yield the watches of the objects of a kind that run as jobs."""
        for namespace in self._config.job_namespaces:
            handler = ObjectHandler(partial(self._on_workload, kind), self._on_workload_gone)
            selector = f"{LABEL_AGENT}={self._config.cluster}"
            yield Watched(resource_of(kind), handler, namespace, selector, is_needed=False)

    def _on_workload(self, kind: WorkloadKind, obj: dict[str, Any]) -> None:
        sight = see_workload(kind, obj)
        tracker = None if sight is None else self._trackers.get(sight.run)
        if tracker is not None and tracker.facts.workload is kind and tracker.workload != sight:
            tracker.workload = sight
            self._look_at(tracker.run)

    def _on_workload_gone(self, obj: dict[str, Any]) -> None:
        run = (obj["metadata"].get("labels") or {}).get(LABEL_RUN)
        tracker = self._trackers.get(run or "")
        if tracker is not None and tracker.workload is not None and tracker.workload.uid == obj["metadata"]["uid"]:
            tracker.workload = None
            self._look_at(tracker.run)

    def meet(self, tracker: RunTracker) -> None:
        """Give a run that has become known the pods that a controller has made for it."""
        tracker.new_pods.update({uid: pod for uid, pod in self._new_pods.items() if pod.run == tracker.run})

    def _on_new_pod(self, pod: NewPod) -> None:
        self._new_pods[pod.uid] = pod
        tracker = self._trackers.get(pod.run)
        if tracker is not None and pod.uid not in tracker.gone:
            tracker.new_pods[pod.uid] = pod
            self._look_at(pod.run)

    def _on_pod_indexed(self, pod: NewPod) -> None:
        self._new_pods.pop(pod.uid, None)
        tracker = self._trackers.get(pod.run)
        if tracker is not None and tracker.new_pods.pop(pod.uid, None) is not None:
            self._look_at(pod.run)

    def _on_new_pod_gone(self, pod: NewPod) -> None:
        self._new_pods.pop(pod.uid, None)
        tracker = self._trackers.get(pod.run)
        if tracker is not None:
            tracker.lose_new(pod.uid)
            self._look_at(pod.run)

    def _on_pod(self, sight: PodSight) -> None:
        tracker = self._trackers.get(sight.run)
        if tracker is None:
            self._orphans.put(sight)
            return
        if tracker.note(sight):
            self._look_at(sight.run)

    def _on_pod_gone(self, sight: PodSight) -> None:
        self._orphans.drop(sight)
        tracker = self._trackers.get(sight.run)
        if tracker is not None:
            if sight.uid not in tracker.ours:
                self._doubt(sight.namespace)
            tracker.lose(sight)
            self._look_at(sight.run)

    def _on_record(self, obj: dict[str, Any]) -> None:
        run = obj["metadata"]["name"]
        if run in self._trackers or self._is_known(run):
            return
        try:
            record = read_record(obj)
            facts = facts_of(record.start)
        except (UnknownWorkloadError, UnreadableRecordError, ValidationError) as error:
            log.error("%s", error)  # noqa: TRY400 - the words are the whole of it
            return
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("anchor", error, run=run)
            return
        self._on_found(record, facts)

    def _on_record_gone(self, obj: dict[str, Any]) -> None:
        tracker = self._trackers.get(obj["metadata"]["name"])
        if tracker is not None and tracker.record.uid == obj["metadata"]["uid"]:
            self._lose_record(tracker)
            self._look_at(tracker.run)

    def _on_object(self, obj: dict[str, Any]) -> None:
        run = self._placement.run_of(obj)
        tracker = None if run is None else self._trackers.get(run)
        if tracker is not None:
            tracker.objects[obj["metadata"]["uid"]] = obj
            self._look_at(tracker.run)

    def _on_object_gone(self, obj: dict[str, Any]) -> None:
        for tracker in self._trackers.values():
            if tracker.objects.pop(obj["metadata"]["uid"], None) is not None:
                self._look_at(tracker.run)
