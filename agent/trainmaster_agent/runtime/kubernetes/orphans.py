"""`Orphans`: deletes our pods whose run has no readable record any more. Otherwise they would run on unsupervised.

This happens when somebody deleted or damaged the record while no agent was running, and when a paused agent resumed and created a
pod of a run that is over.
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
from trainmaster_agent.runtime.kubernetes.record import ALIVE, LABEL_RECORD, UnreadableRecordError, read_record

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that a pod waits, in case its run is just being removed."""
_LOOK_SECONDS = 10.0


class KnownRecords:
    """Runs that have a record in the API server; ``home`` is the agent's namespace."""

    def __init__(self, api: ApiServer, home: str) -> None:
        self._api = api
        self._home = home
        self.holder = ""
        """Identity of these records at the dispatcher."""

    def may_be_here(self, holder: str) -> bool:
        """Return whether the run of an object with this label may be in these records; objects of older releases have no label.

        Objects of other records are left alone: their agent may come back, and the dispatcher decides when their runs end.
        """
        return holder in ("", self.holder)

    async def has(self, run: str) -> bool:
        """Return whether a readable record of an unfinished run exists. Raises KubeError."""
        try:
            stored = await self._api.get(CONFIG_MAPS, self._home, run)
            is_over = read_record(stored).progress.ended_at is not None
        except (NotFoundError, UnreadableRecordError):
            return False
        return not is_over and bool(stored["metadata"]["labels"].get(LABEL_RECORD) == ALIVE)


class Orphans:
    """Pods without a held run, by uid, with the time since when. One is deleted only after its record was searched and not found."""

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
        """Return and forget the pods of a run that is held now."""
        found = [sight for sight, _ in self._pods.values() if sight.run == run]
        for sight in found:
            del self._pods[sight.uid]
        return found

    async def run(self, is_held: Callable[[str], bool], may_clear: Callable[[], bool]) -> None:
        """Delete orphans now and then, for ever. ``may_clear``: whether the dispatcher has given the cluster to this agent."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._patience))
            try:
                if may_clear():
                    await self.clear(is_held)
            except KubeError as error:
                log.info("cannot delete pods without a run now, trying again: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("orphans", error)

    async def clear(self, is_held: Callable[[str], bool]) -> None:
        """Delete pods that have waited long enough. Raises KubeError."""
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
                log.warning("deleting pod %s: its run has no record any more", pod.name, extra={"run_id": run})
                with contextlib.suppress(NotFoundError, ConflictError):
                    await self._api.delete(PODS, namespace, pod.name, uid=pod.uid)
