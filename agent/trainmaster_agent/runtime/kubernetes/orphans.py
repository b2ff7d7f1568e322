"""`Orphans`: pods of ours whose run has no readable record any more. They would run on with nobody to watch over them.

That is so where somebody deleted or spoilt the record while no agent was there, and where an agent that was paused woke and created a
pod of a run that is over. What is left of such a run has to go.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, KubeError, NotFoundError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes.record import ALIVE, LABEL_ANCHOR, UnreadableAnchorError, read_record

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds for whoever is about to clear a run away."""
_LOOK_SECONDS = 10.0


class KnownRecords:
    """Which runs have a record, by the API server; ``home`` is the agent's namespace."""

    def __init__(self, api: ApiServer, home: str) -> None:
        self._api = api
        self._home = home
        self.holder = ""
        """What the dispatcher knows these records by."""

    def may_be_here(self, holder: str) -> bool:
        """Return whether the run of an object with this label would be in these records; objects of older releases have none.

        What other records hold is not cleared away: their agent may come back, and the dispatcher says when it is to end.
        """
        return holder in ("", self.holder)

    async def has(self, run: str) -> bool:
        """Return whether there is a readable record of a run that is not over. Raises KubeError."""
        try:
            stored = await self._api.get(CONFIG_MAPS, self._home, run)
            is_over = read_record(stored).progress.ended_at is not None
        except (NotFoundError, UnreadableAnchorError):
            return False
        return not is_over and bool(stored["metadata"]["labels"].get(LABEL_ANCHOR) == ALIVE)


class Orphans:
    """Pods whose run is not held, by uid, and since when. A pod is deleted only once its record was looked for and not found."""

    def __init__(
        self, api: ApiServer, lease: LeaseKeeper, records: KnownRecords, patience: float | None = None
    ) -> None:
        self._api = api
        self._records = records
        self._lease = lease
        self._patience = _PATIENCE if patience is None else patience
        self._pods: dict[str, tuple[PodSight, float]] = {}

    def put(self, sight: PodSight) -> None:
        _, since = self._pods.get(sight.uid, (sight, time.monotonic()))
        self._pods[sight.uid] = sight, since

    def drop(self, sight: PodSight) -> None:
        self._pods.pop(sight.uid, None)

    def take(self, run: str) -> list[PodSight]:
        """Those of a run that is held now."""
        found = [sight for sight, _ in self._pods.values() if sight.run == run]
        for sight in found:
            del self._pods[sight.uid]
        return found

    async def run(self, is_held: Callable[[str], bool], may_clear: Callable[[], bool]) -> None:
        """For ever. ``may_clear``: whether this agent is the one that the dispatcher has given the cluster to."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._patience))
            try:
                if may_clear():
                    await self.clear(is_held)
            except KubeError as error:
                log.info("pods without a run cannot be cleared away now: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("orphans", error)

    async def clear(self, is_held: Callable[[str], bool]) -> None:
        """Delete those that have waited for long enough. Raises KubeError."""
        late = time.monotonic() - self._patience
        runs = {
            (sight.namespace, sight.run)
            for sight, since in self._pods.values()
            if since <= late and not is_held(sight.run) and self._records.may_be_here(sight.holder)
        }
        for namespace, run in sorted(runs):
            if await self._records.has(run):
                continue
            await self._lease.confirm()
            pods = [
                sight
                for sight, since in self._pods.values()
                if sight.run == run and not sight.deleting and self._records.may_be_here(sight.holder)
            ]
            for pod in pods:
                log.warning("pod %s is deleted: its run has no record any more", pod.name, extra={"run_id": run})
                with contextlib.suppress(NotFoundError, ConflictError):
                    await self._api.delete(PODS, namespace, pod.name, uid=pod.uid)
