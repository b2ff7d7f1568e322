"""`Anchors`: the records of runs in the API server, written and read again."""

import time
from dataclasses import replace

from trainmaster.agent.kube.client import ApiServer
from trainmaster.agent.kube.errors import ConflictError, ForbiddenError, NotFoundError
from trainmaster.agent.kube.lease import LeaseKeeper
from trainmaster.agent.kube.paths import CONFIG_MAPS, NAMESPACES
from trainmaster.agent.runtime.kubernetes.book import Book
from trainmaster.agent.runtime.kubernetes.record import Progress, UnreadableAnchorError, Verdict, read_record
from trainmaster.protocol.states import RunState

_FRESH_SECONDS, _FRESH_PART = 4.0, 0.4
"""An answer about the anchor that is younger than this, and than this part of the Lease's duration, is as good as another reading:
no other agent can have acted meanwhile. A busy API server takes seconds between the creation of an anchor and that of its pod."""
PERMISSION_PATIENCE = 10.0
"""Seconds for which a missing permission is taken for an API server that has not read its roles yet."""


class Anchors:
    """``duration`` is the Lease's, in seconds."""

    def __init__(self, api: ApiServer, lease: LeaseKeeper, duration: float) -> None:
        self._api = api
        self._lease = lease
        self._fresh = min(_FRESH_SECONDS, _FRESH_PART * duration)

    async def save(self, book: Book, progress: Progress) -> None:
        """Write what was decided into the anchor. Raises KubeError; nothing has changed then."""
        record = book.record
        if book.anchor_is_gone:
            record.progress = progress
            return
        if not self._lease.is_valid():
            await self._lease.confirm()
        body = {"metadata": {"resourceVersion": record.version}, "data": {"progress": progress.dump()}}
        try:
            stored = await self._api.patch(CONFIG_MAPS, record.namespace, book.run, body)
        except NotFoundError:
            self.lose(book)
            return
        except ConflictError:
            await self.read(book)
            return
        except ForbiddenError:
            # With its namespace the anchor is gone, and so is the permission to find that out.
            if not await self._has(record.namespace):
                self.lose(book)
                return
            raise
        record.take(stored)
        book.anchor_read_at = time.monotonic()
        record.progress = progress

    async def _has(self, namespace: str) -> bool:
        try:
            await self._api.get(NAMESPACES, None, namespace)
        except NotFoundError:
            return False
        return True

    def lose(self, book: Book) -> None:
        """Somebody deleted the anchor, or made it unreadable: with it goes all of the run."""
        if book.anchor_is_gone:
            return
        book.anchor_is_gone = True
        progress = book.record.progress
        if progress.verdict is None and progress.ended_at is None and progress.stop is None:
            message = "preempted by the cluster: somebody deleted the ConfigMap of the run, or its namespace"
            book.record.progress = replace(progress, verdict=Verdict(RunState.PREEMPTED, message))

    async def confirm(self, book: Book) -> None:
        """See that the anchor is there and is as it was. Raises NotFoundError."""
        if time.monotonic() - book.anchor_read_at > self._fresh:
            await self.read(book)
        if book.anchor_is_gone:
            raise NotFoundError(404, "the ConfigMap of the run is gone")

    async def read(self, book: Book) -> None:
        """Take the anchor as it is: another agent may have changed it before the Lease came here."""
        try:
            stored = await self._api.get(CONFIG_MAPS, book.record.namespace, book.run)
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
