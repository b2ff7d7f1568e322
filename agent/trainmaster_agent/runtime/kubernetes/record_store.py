"""`RecordStore`: writes runs' records to the API server and reads them again."""

import time
import uuid
from dataclasses import replace

from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, NotFoundError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import CONFIG_MAPS
from trainmaster_agent.runtime.kubernetes.record import (
    LABEL_AGENT,
    MANAGED_BY,
    Progress,
    RecordedEnd,
    UnreadableRecordError,
    read_record,
)
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

_FRESH_SECONDS, _FRESH_PART = 4.0, 0.4
"""Seconds, and part of the Lease's duration, for which an answer about the record is as good as another reading:
no other agent can have acted meanwhile. A busy API server may take seconds between creating a record and its pod."""
PERMISSION_PATIENCE = 10.0
"""Seconds in which a missing permission is attributed to an API server that has not read its roles yet."""


class RecordStore:
    """``home`` is the agent's namespace, where the records are; ``duration`` is the Lease's, in seconds."""

    def __init__(self, api: ApiServer, lease: LeaseKeeper, home: str, duration: float) -> None:
        self._api = api
        self._home = home
        self._lease = lease
        self.holder = ""
        """Identity of these records at the dispatcher; empty until ``identity`` has read it."""
        self._fresh = min(_FRESH_SECONDS, _FRESH_PART * duration)

    async def identity(self, agent: str, earlier: str) -> str:
        """Return the identity of these records at the dispatcher. Raises KubeError.

        It is stored beside them, so that it changes once they are lost. ``earlier``: the identity that an older release reported
        where it has left records: the uid of its first namespace for jobs. With another identity those runs would count as lost.
        """
        name = f"trainmaster-records-{agent}"
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {MANAGED_BY[0]: MANAGED_BY[1], LABEL_AGENT: agent}},
            "data": {"holder": earlier or uuid.uuid4().hex},
        }
        try:
            stored = await self._api.create(CONFIG_MAPS, self._home, body)
        except ConflictError:
            stored = await self._api.get(CONFIG_MAPS, self._home, name)
        self.holder = str((stored.get("data") or {}).get("holder") or stored["metadata"]["uid"])
        return self.holder

    async def save(self, tracker: RunTracker, progress: Progress) -> None:
        """Write ``progress`` into the record. Raises KubeError; then nothing has changed."""
        record = tracker.record
        if tracker.record_is_gone:
            record.progress = progress
            return
        if not self._lease.is_valid():
            await self._lease.confirm()
        body = {"metadata": {"resourceVersion": record.version}, "data": {"progress": progress.dump()}}
        try:
            stored = await self._api.patch(CONFIG_MAPS, self._home, tracker.run, body)
        except NotFoundError:
            self.lose(tracker)
            return
        except ConflictError:
            await self.read(tracker)
            return
        record.take(stored)
        tracker.record_read_at = time.monotonic()
        record.progress = progress

    def lose(self, tracker: RunTracker) -> None:
        """End a run whose record was deleted or made unreadable: the whole run is lost with it."""
        if tracker.record_is_gone:
            return
        tracker.record_is_gone = True
        progress = tracker.record.progress
        if progress.verdict is None and progress.ended_at is None and progress.stop is None:
            message = "preempted by the cluster: the run's ConfigMap was deleted"
            tracker.record.progress = replace(progress, verdict=RecordedEnd(RunState.PREEMPTED, message))

    async def confirm(self, tracker: RunTracker) -> None:
        """Check that the record exists and is unchanged. Raises NotFoundError."""
        if time.monotonic() - tracker.record_read_at > self._fresh:
            await self.read(tracker)
        if tracker.record_is_gone:
            raise NotFoundError(404, "the run's ConfigMap does not exist any more")

    async def read(self, tracker: RunTracker) -> None:
        """Read the record again: another agent may have changed it before this one got the Lease."""
        try:
            stored = await self._api.get(CONFIG_MAPS, self._home, tracker.run)
        except NotFoundError:
            self.lose(tracker)
            return
        if stored["metadata"]["uid"] != tracker.record.uid:
            self.lose(tracker)
            return
        created = tracker.record.progress.created
        try:
            fresh = read_record(stored)
        except UnreadableRecordError:
            self.lose(tracker)
            return
        tracker.record.progress = replace(fresh.progress, created=created or fresh.progress.created)
        tracker.record.take(stored)
        tracker.record_read_at = time.monotonic()
