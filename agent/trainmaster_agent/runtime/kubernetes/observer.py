"""`Observer`: passes watch events to the runs and to the cluster's ledger."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.capacity.quotas import Quotas
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS, RESOURCE_QUOTAS, Resource, key_of
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.kube.watch import Sink
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.event_handlers import NodeSink, ObjectSink, PodSink
from trainmaster_agent.runtime.kubernetes.node_health import NodeHealth
from trainmaster_agent.runtime.kubernetes.orphans import Orphans
from trainmaster_agent.runtime.kubernetes.record import (
    ALIVE,
    LABEL_AGENT,
    LABEL_ANCHOR,
    RunAnchor,
    UnreadableAnchorError,
    read_record,
)
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, facts_of
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.kubernetes.watch_setup import entries

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watched:
    """One watch and its event handler."""

    resource: Resource
    sink: Sink
    namespace: str | None = None
    selector: str = ""
    is_needed: bool = True
    """Whether the agent needs it to act."""


class Observer:
    """``home`` is the agent's namespace, where anchors are. ``is_known`` returns whether a run's anchor is already known.

    ``on_found`` is called with an unknown anchor, ``doubt`` with a namespace where a pod disappeared that this agent had not deleted.
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
        lose_anchor: Callable[[RunTracker], None],
        is_known: Callable[[str], bool],
        on_found: Callable[[RunAnchor, Facts], None],
        doubt: Callable[[str], None],
    ) -> None:
        self._config = config
        self._placement = placement
        self._trackers = trackers
        self._orphans = orphans
        self._home = home
        self._look_at = look_at
        self._lose_anchor = lose_anchor
        self._is_known = is_known
        self._on_found = on_found
        self._doubt = doubt

    def sinks(
        self, inventory: Inventory, quotas: Quotas, health: NodeHealth, on_room_change: Callable[[], None]
    ) -> Iterator[Watched]:
        """Yield every watch of this cluster."""
        cluster = self._config.cluster
        pods = PodSink(inventory, cluster, on_put=self._on_pod, on_gone=self._on_pod_gone, on_change=on_room_change)
        yield Watched(PODS, pods)
        selector = f"{LABEL_AGENT}={cluster}"
        anchors = ObjectSink(self._on_anchor, self._on_anchor_gone)
        yield Watched(CONFIG_MAPS, anchors, self._home, f"{LABEL_ANCHOR}={ALIVE},{selector}")
        for namespace in self._config.job_namespaces:
            of_quotas = ObjectSink(quotas.put, lambda obj: quotas.drop(key_of(obj)))
            yield Watched(RESOURCE_QUOTAS, of_quotas, namespace, is_needed=False)
            for resource in self._placement.watched:
                objects = ObjectSink(self._on_object, self._on_object_gone)
                own = "" if resource.plural == "workloads" else selector
                yield Watched(resource, objects, namespace, own, is_needed=False)
        for entry in entries(inventory, health):
            sink = NodeSink(inventory, entry.kind, entry.put, entry.drop, on_room_change, entry.keep)
            yield Watched(entry.resource, sink, is_needed=entry.needed)

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

    def _on_anchor(self, obj: dict[str, Any]) -> None:
        run = obj["metadata"]["name"]
        if run in self._trackers or self._is_known(run):
            return
        try:
            record = read_record(obj)
            facts = facts_of(record.start)
        except (UnreadableAnchorError, ValidationError) as error:
            log.error("%s", error)  # noqa: TRY400 - the words are the whole of it
            return
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("anchor", error, run=run)
            return
        self._on_found(record, facts)

    def _on_anchor_gone(self, obj: dict[str, Any]) -> None:
        tracker = self._trackers.get(obj["metadata"]["name"])
        if tracker is not None and tracker.record.uid == obj["metadata"]["uid"]:
            self._lose_anchor(tracker)
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
