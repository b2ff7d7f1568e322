"""`Anchors`: the records of runs in the API server, written and read again."""

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
    AnchoredEnd,
    Progress,
    UnreadableAnchorError,
    read_record,
)
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

_FRESH_SECONDS, _FRESH_PART = 4.0, 0.4
"""An answer about the anchor that is younger than this, and than this part of the Lease's duration, is as good as another reading:
no other agent can have acted meanwhile. A busy API server takes seconds between the creation of an anchor and that of its pod."""
PERMISSION_PATIENCE = 10.0
"""Seconds for which a missing permission is taken for an API server that has not read its roles yet."""


class Anchors:
    """``home`` is the agent's namespace, where the anchors are; ``duration`` is the Lease's, in seconds."""

    def __init__(self, api: ApiServer, lease: LeaseKeeper, home: str, duration: float) -> None:
        self._api = api
        self._home = home
        self._lease = lease
        self.holder = ""
        """What the dispatcher knows these records by; empty until ``identity`` has found it."""
        self._fresh = min(_FRESH_SECONDS, _FRESH_PART * duration)

    async def identity(self, agent: str, earlier: str) -> str:
        """Return what the dispatcher knows these records by. Raises KubeError.

        It is written beside them, so that it is another one once they are lost. ``earlier``: what an agent of an older release said,
        where it has left records: the uid of its first namespace for jobs. With another one those runs would be taken for lost.
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

    async def save(self, book: RunTracker, progress: Progress) -> None:
        """Write what was decided into the anchor. Raises KubeError; nothing has changed then."""
        record = book.record
        if book.anchor_is_gone:
            record.progress = progress
            return
        if not self._lease.is_valid():
            await self._lease.confirm()
        body = {"metadata": {"resourceVersion": record.version}, "data": {"progress": progress.dump()}}
        try:
            stored = await self._api.patch(CONFIG_MAPS, self._home, book.run, body)
        except NotFoundError:
            self.lose(book)
            return
        except ConflictError:
            await self.read(book)
            return
        record.take(stored)
        book.anchor_read_at = time.monotonic()
        record.progress = progress

    def lose(self, book: RunTracker) -> None:
        """Somebody deleted the anchor, or made it unreadable: with it goes all of the run."""
        if book.anchor_is_gone:
            return
        book.anchor_is_gone = True
        progress = book.record.progress
        if progress.verdict is None and progress.ended_at is None and progress.stop is None:
            message = "preempted by the cluster: somebody deleted the ConfigMap of the run"
            book.record.progress = replace(progress, verdict=AnchoredEnd(RunState.PREEMPTED, message))

    async def confirm(self, book: RunTracker) -> None:
        """See that the anchor is there and is as it was. Raises NotFoundError."""
        if time.monotonic() - book.anchor_read_at > self._fresh:
            await self.read(book)
        if book.anchor_is_gone:
            raise NotFoundError(404, "the ConfigMap of the run is gone")

    async def read(self, book: RunTracker) -> None:
        """Take the anchor as it is: another agent may have changed it before the Lease came here."""
        try:
            stored = await self._api.get(CONFIG_MAPS, self._home, book.run)
        except NotFoundError:
            self.lose(book)
            return
        if stored["metadata"]["uid"] != book.record.uid:
            self.lose(book)
            return
        created = book.record.progress.created
        try:
            fresh = read_record(stored)
        except UnreadableAnchorError:
            self.lose(book)
            return
        book.record.progress = replace(fresh.progress, created=created or fresh.progress.created)
        book.record.take(stored)
        book.anchor_read_at = time.monotonic()
