"""`Orphans`: pods of ours whose run has no readable anchor any more. They would run on with nobody to watch over them.

As a rule the cluster's garbage collector removes them with the anchor that owns them. It does not where somebody deleted the anchor
with ``--cascade=orphan`` or spoilt it while no agent was there. The dispatcher is told that this agent does not hold such a run and
sends the job elsewhere, so what is left of it has to go.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from trainmaster.agent.containment import contain
from trainmaster.agent.kube.client import ApiServer
from trainmaster.agent.kube.errors import ConflictError, KubeError, NotFoundError
from trainmaster.agent.kube.lease import LeaseKeeper
from trainmaster.agent.kube.paths import CONFIG_MAPS, PODS
from trainmaster.agent.kube.pods import PodSight
from trainmaster.agent.runtime.kubernetes.record import UnreadableAnchorError, read_record

log = logging.getLogger(__name__)

_PATIENCE = 30.0
"""Seconds for the garbage collector, and for whoever is about to clear a run away."""
_LOOK_SECONDS = 10.0


class Orphans:
    """Pods whose run is not held, by uid, and since when. A pod is deleted only once its anchor was looked for and not found."""

    def __init__(self, api: ApiServer, lease: LeaseKeeper, patience: float | None = None) -> None:
        self._api = api
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

    async def run(self, is_held: Callable[[str], bool]) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._patience))
            try:
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
            if since <= late and not is_held(sight.run)
        }
        for namespace, run in sorted(runs):
            if await self._has_anchor(namespace, run):
                continue
            await self._lease.confirm()
            pods = [sight for sight, since in self._pods.values() if sight.run == run and not sight.deleting]
            for pod in pods:
                log.warning("pod %s is deleted: its run has no record any more", pod.name, extra={"run_id": run})
                with contextlib.suppress(NotFoundError, ConflictError):
                    await self._api.delete(PODS, namespace, pod.name, uid=pod.uid)

    async def _has_anchor(self, namespace: str, run: str) -> bool:
        try:
            read_record(await self._api.get(CONFIG_MAPS, namespace, run))
        except (NotFoundError, UnreadableAnchorError):
            return False
        return True
