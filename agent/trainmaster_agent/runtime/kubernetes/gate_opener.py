"""`Opening`: emulated gangs. Gates of all members are opened once the agent's own books say that the gang fits.

Not all or nothing: another pod may come first. Members that then have no node within a short while are all taken back, and the gang
waits anew.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

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
from trainmaster_agent.runtime.kubernetes.record import Progress
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker


class Opening:
    """``patience``: seconds from open gates to nodes for the whole gang."""

    def __init__(
        self, api: ApiServer, room: NodeCapacity, placement: PlacementPort, patience: float, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._room = room
        self._placement = placement
        self._patience = patience
        self._clock = clock
        self.waiting: dict[str, float] = {}
        """Runs that wait for room, by when they were accepted."""

    async def open(
        self, book: RunTracker, manifests: Manifests, levels: Mapping[str, str], confirm: Callable[[], Awaitable[None]]
    ) -> Progress | None:
        """Open the gates if there is room. A changed record is given where all members are to be taken back."""
        self._room.settle(book.run, book.pods.values())
        gated = [pod for pod in book.pods.values() if GATE in pod.gates and not pod.deleting]
        if not gated:
            self.waiting.pop(book.run, None)
            return self._take_back(book)
        if len(gated) < len(book.pods) and not book.has_run:
            # An earlier opening was cut off: the rest follows, where the first were sent.
            book.opened_at = book.opened_at or self._clock()
            if book.facts.spec.topology.required is not None and not any(pod.node for pod in book.pods.values()):
                return self._take_back(book)  # not before it is seen where that was
        found = self._find(book, manifests, gated)
        if isinstance(found, PackingShortfall):
            book.waits_for = found.sentence
            self.waiting[book.run] = book.record.accepted_at
            return self._take_back(book)
        places, chosen = found
        self.waiting.pop(book.run, None)
        book.waits_for = ""
        self._room.keep(book.run, book.facts, places)
        book.opened_at = self._clock()
        book.next_look = min(book.next_look, book.opened_at + self._patience)
        selector = self._selector(book, manifests, places, levels)
        await confirm()
        await asyncio.gather(*(self._open_one(book, pod, selector) for pod in chosen))
        return None

    def _find(
        self, book: RunTracker, manifests: Manifests, gated: list[PodSight]
    ) -> tuple[Assignment, list[PodSight]] | PackingShortfall:
        """Places for all members behind gates; if there are not as many, for as many as the gang needs."""
        pods = {role.name: role.pod for role in manifests.gang.roles}
        level = book.facts.spec.topology.required
        at_work = next((pod.node for pod in book.pods.values() if pod.node), "")
        counts: dict[str, int] = {}
        for pod in gated:
            counts[pod.role] = counts.get(pod.role, 0) + 1
        found = self._room.find(book.run, book.facts, counts, pods, level, at_work)
        if not isinstance(found, PackingShortfall):
            return found, gated
        fewer = {role.name: count for role, count in manifests.gang.quorum()}
        if at_work or fewer == counts or any(count > counts.get(role, 0) for role, count in fewer.items()):
            return found
        less = self._room.find(book.run, book.facts, fewer, pods, level)
        if isinstance(less, PackingShortfall):
            return less
        chosen = []
        for pod in sorted(gated, key=lambda one: one.index):
            if fewer[pod.role]:
                fewer[pod.role] -= 1
                chosen.append(pod)
        return less, chosen

    def _selector(
        self, book: RunTracker, manifests: Manifests, places: Assignment, levels: Mapping[str, str]
    ) -> dict[str, str]:
        """The node labels that keep the gang in the domain that was found for it."""
        level = book.facts.spec.topology.required
        if level is None:
            return {}
        if level == HOST_LEVEL:
            return {HOST_LEVEL: next(iter(places))}
        return {levels.get(name, name): value for name, value in self._room.domain(places, level).items()}

    async def _open_one(self, book: RunTracker, pod: PodSight, selector: Mapping[str, str]) -> None:
        patch = opening_patch([{"name": name} for name in pod.gates], selector)
        try:
            stored = await self._api.patch(PODS, pod.namespace, pod.name, patch)
        except NotFoundError:
            return
        sight = see(stored)
        if sight is not None:
            book.note(sight)

    def _take_back(self, book: RunTracker) -> Progress | None:
        """All members again behind gates, if the gang did not come together in time."""
        if book.opened_at is None:
            return None
        progress = book.record.progress
        unplaced = [pod for pod in book.pods.values() if not pod.node]
        if not unplaced or progress.running_since is not None or book.has_run:
            book.opened_at = None
            return None
        late_at = book.opened_at + self._patience
        now = self._clock()
        if now < late_at:
            book.next_look = min(book.next_look, late_at)
            return None
        book.opened_at = None
        self._room.drop(book.run)
        wait = random.uniform(0.5, 3.0)  # two gangs that took each other's places must not do it again together
        return replace(progress, round=progress.round + 1, created=False, again={}, not_before=now + wait)
