"""`Leftovers`: removes objects, other than pods, of runs without a record: Services, rosters, schedulers' objects.

Normally they are deleted when the end of their run is settled. What remains of an agent that ended in between, or whose records
somebody deleted, is found here: at the start, and now and then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, KubeError, NotFoundError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import Resource
from trainmaster_agent.kube.pods import LABEL_HOLDER, LABEL_RUN
from trainmaster_agent.runtime.kubernetes.older_records import OlderRecords
from trainmaster_agent.runtime.kubernetes.orphans import KnownRecords
from trainmaster_agent.runtime.kubernetes.record import LABEL_AGENT

log = logging.getLogger(__name__)

_LOOK_SECONDS = 600.0
_FIRST_LOOK_SECONDS = 1.0


def _is_left(metadata: Mapping[str, Any]) -> bool:
    """Return whether nothing else removes an object: claims that were made for pods go with these."""
    owners = metadata.get("ownerReferences") or ()
    return "deletionTimestamp" not in metadata and not any(owner.get("kind") == "Pod" for owner in owners)


class Leftovers:
    """``resources`` returns the kinds of objects that are created for runs now."""

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseKeeper,
        agent: str,
        records: KnownRecords,
        older: OlderRecords,
        resources: Callable[[], Sequence[Resource]],
    ) -> None:
        self._api = api
        self._lease = lease
        self._selector = f"{LABEL_AGENT}={agent},{LABEL_RUN}"
        self._records = records
        self._older = older
        self._resources = resources

    async def run(
        self, namespaces: Callable[[], Sequence[str]], is_held: Callable[[str], bool], may_clear: Callable[[], bool]
    ) -> None:
        """Remove leftovers now and then, for ever. ``may_clear``: whether the dispatcher has given the cluster to this agent."""
        while True:
            if not may_clear():
                await asyncio.sleep(_FIRST_LOOK_SECONDS)
                continue
            try:
                await self.clear(namespaces(), is_held)
            except KubeError as error:
                log.info("cannot remove objects left by earlier runs now, trying again: %s", error)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("leftovers", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def clear(self, namespaces: Sequence[str], is_held: Callable[[str], bool]) -> None:
        """Delete leftovers, and move records that an agent of an older release wrote late. Raises KubeError."""
        late, _ = await self._older.find(namespaces)
        for namespace, name in late:
            await self._older.move(namespace, name, replaces=False)
        for namespace in namespaces:
            for resource in self._resources():
                await self._clear(namespace, resource, is_held)

    async def _clear(self, namespace: str, resource: Resource, is_held: Callable[[str], bool]) -> None:
        found = []
        try:
            async for items, _ in self._api.pages(resource, namespace, selector=self._selector):
                found += [one["metadata"] for one in items if _is_left(one["metadata"])]
        except NotFoundError:
            return  # this cluster has no such resource
        for metadata in found:
            run = metadata["labels"][LABEL_RUN]
            if not self._records.may_be_here(metadata["labels"].get(LABEL_HOLDER, "")):
                continue
            # A record is written before any other object of its run: an object without one has lost it and will not get it.
            if is_held(run) or await self._records.has(run):
                continue
            await self._lease.confirm()
            log.warning("deleting %s %s: its run has no record any more", resource.plural, metadata["name"])
            with contextlib.suppress(NotFoundError, ConflictError):
                await self._api.delete(resource, namespace, metadata["name"], uid=metadata["uid"])
