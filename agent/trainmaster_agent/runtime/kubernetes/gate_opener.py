"""`GateOpener`: emulated gangs. Opens the gates of all members once the agent's own ledger shows free capacity for the gang.

Not all or nothing: another pod may come first. If a member then has no node within a short while, all are recreated and the gang
waits again. The gates of a run that was sent for nodes to come are opened at once, because no autoscaler adds nodes for pods behind
gates; it then waits for its nodes until its placement time-out ends. Where nodes are asked for by an object, the gates stay closed
until there are enough.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.cluster_model.packing import Assignment, PackingShortfall
from trainmaster.protocol.agent import HOST_LEVEL
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import NotFoundError
from trainmaster_agent.kube.paths import PODS
from trainmaster_agent.kube.pods import PodSight, see
from trainmaster_agent.placement.gates import GATE, opening_patch
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.node_plan import divide
from trainmaster_agent.runtime.kubernetes.record import Progress
from trainmaster_agent.runtime.kubernetes.run_spec import Facts
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker


class GateOpener:
    """``patience``: seconds from open gates to nodes for the whole gang."""

    def __init__(
        self,
        api: ApiServer,
        node_capacity: NodeCapacity,
        placement: PlacementPort,
        patience: float,
        clock: Callable[[], float],
        prefers_planned_nodes: bool,
    ) -> None:
        self._api = api
        self._node_capacity = node_capacity
        self._placement = placement
        self._patience = patience
        self._clock = clock
        self._prefers_planned_nodes = prefers_planned_nodes
        self.waiting: dict[str, float] = {}
        """Runs that wait for free capacity, with the time of their acceptance."""

    async def open(
        self,
        tracker: RunTracker,
        manifests: Manifests,
        levels: Mapping[str, str],
        confirm: Callable[[], Awaitable[None]],
    ) -> Progress | None:
        """Open the gates if there is free capacity. Returns a changed record where all members have to be recreated."""
        gated = [pod for pod in tracker.pods.values() if GATE in pod.gates and not pod.deleting]
        if not gated:
            self.waiting.pop(tracker.run, None)
            return self._take_back(tracker)
        if len(gated) < len(tracker.pods) and not tracker.has_run:
            # An earlier opening was interrupted: the rest follows into the domain of the first ones.
            tracker.opened_at = tracker.opened_at or self._clock()
            if tracker.facts.spec.topology.required is not None and not any(pod.node for pod in tracker.pods.values()):
                return self._take_back(tracker)  # not before the domain of the first ones is known
        found = self._find(tracker, manifests, gated)
        if isinstance(found, PackingShortfall) and self._shows_pods(tracker, manifests):
            self.waiting.pop(tracker.run, None)
            tracker.waits_for, tracker.opened_at = "", None
            await confirm()
            await asyncio.gather(*(self._open_one(tracker, pod, {}, {}) for pod in gated))
            return None
        if isinstance(found, PackingShortfall):
            tracker.waits_for = found.sentence
            self.waiting[tracker.run] = tracker.record.accepted_at
            return self._take_back(tracker)
        places, chosen = found
        self.waiting.pop(tracker.run, None)
        tracker.waits_for = ""
        self._node_capacity.keep(tracker.run, tracker.facts, places)
        tracker.opened_at = self._clock()
        tracker.next_look = min(tracker.next_look, tracker.opened_at + self._patience)
        selector = self._selector(tracker, manifests, places, levels)
        nodes = divide([(pod.role, pod.index) for pod in chosen], places)
        whole = _whole_groups(tracker.facts, chosen)
        await confirm()
        await asyncio.gather(
            *(
                self._open_one(
                    tracker, pod, selector | self._pin(tracker, pod, node, whole), self._wish(manifests, pod, node)
                )
                for pod in chosen
                for node in [nodes[pod.role, pod.index]]
            )
        )
        return None

    def _shows_pods(self, tracker: RunTracker, manifests: Manifests) -> bool:
        """Return whether the pods have to wait without gates, so that an autoscaler adds nodes for them."""
        facts = tracker.facts
        asks_by_object = self._placement.requests_nodes and facts.workload is None and not facts.is_placed_by_gates
        return manifests.gang.awaits_nodes and not tracker.has_run and not asks_by_object

    def _find(
        self, tracker: RunTracker, manifests: Manifests, gated: list[PodSight]
    ) -> tuple[Assignment, list[PodSight]] | PackingShortfall:
        """Find nodes for all members behind gates; if there are too few, for as many as the gang needs."""
        pods = {role.name: role.pod for role in manifests.gang.roles}
        level = tracker.facts.spec.topology.required
        at_work = next((pod.node for pod in tracker.pods.values() if pod.node), "")
        counts: dict[str, int] = {}
        for pod in gated:
            counts[pod.role] = counts.get(pod.role, 0) + 1
        found = self._node_capacity.find(tracker.run, tracker.facts, counts, pods, level, at_work)
        if not isinstance(found, PackingShortfall):
            return found, gated
        fewer = {role.name: count for role, count in manifests.gang.quorum()}
        if at_work or fewer == counts or any(count > counts.get(role, 0) for role, count in fewer.items()):
            return found
        less = self._node_capacity.find(tracker.run, tracker.facts, fewer, pods, level)
        if isinstance(less, PackingShortfall):
            return less
        chosen = []
        for pod in sorted(gated, key=lambda one: one.index):
            if fewer[pod.role]:
                fewer[pod.role] -= 1
                chosen.append(pod)
        return less, chosen

    def _selector(
        self, tracker: RunTracker, manifests: Manifests, places: Assignment, levels: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the node labels that keep the gang in the domain found for it."""
        level = tracker.facts.spec.topology.required
        if level is None:
            return {}
        if level == HOST_LEVEL:
            return {HOST_LEVEL: next(iter(places))}
        return {levels.get(name, name): value for name, value in self._node_capacity.domain(places, level).items()}

    def _wish(self, manifests: Manifests, pod: PodSight, node: str) -> dict[str, Any]:
        """Return the affinity by which a pod prefers its node."""
        return manifests.preference(pod.role, node) if self._prefers_planned_nodes else {}

    def _pin(self, tracker: RunTracker, pod: PodSight, node: str, whole: Container[tuple[str, int]]) -> dict[str, str]:
        """Return the label of a member's node where only the agent knows that its NUMA zones have room, that no other pods are on
        it, or that all members that share devices fit there; else nothing.
        """
        facts = tracker.facts
        is_shared = (pod.role, pod.index // facts.roles[pod.role].members_per_claim) in whole
        if facts.spec.topology.numa not in STRICT_NUMA and not facts.is_exclusive and not is_shared:
            return {}
        return {HOST_LEVEL: self._node_capacity.label(node, HOST_LEVEL) or node}

    async def _open_one(
        self, tracker: RunTracker, pod: PodSight, selector: Mapping[str, str], affinity: Mapping[str, Any]
    ) -> None:
        patch = opening_patch([{"name": name} for name in pod.gates], selector, affinity)
        try:
            stored = await self._api.patch(PODS, pod.namespace, pod.name, patch)
        except NotFoundError:
            return
        sight = see(stored)
        if sight is not None:
            tracker.note(sight)

    def _take_back(self, tracker: RunTracker) -> Progress | None:
        """Return the record of another round, with all members behind gates again, if the gang did not come together in time."""
        if tracker.opened_at is None:
            return None
        progress = tracker.record.progress
        unplaced = [pod for pod in tracker.pods.values() if not pod.node]
        if not unplaced or progress.running_since is not None or tracker.has_run:
            tracker.opened_at = None
            return None
        late_at = tracker.opened_at + self._patience
        now = self._clock()
        if now < late_at:
            tracker.next_look = min(tracker.next_look, late_at)
            return None
        tracker.opened_at = None
        self._node_capacity.drop(tracker.run)
        wait = random.uniform(0.5, 3.0)  # random, so that two gangs that blocked each other do not retry together
        return replace(progress, round=progress.round + 1, created=False, again={}, not_before=now + wait)


def _whole_groups(facts: Facts, chosen: Iterable[PodSight]) -> frozenset[tuple[str, int]]:
    """Return role and number of the groups that share a claim and start as a whole: others have their node by the claim."""
    each = {name: role.members_per_claim for name, role in facts.roles.items()}
    found = Counter((pod.role, pod.index // each[pod.role]) for pod in chosen if each[pod.role] > 1)
    return frozenset(group for group, many in found.items() if many == each[group[0]])
