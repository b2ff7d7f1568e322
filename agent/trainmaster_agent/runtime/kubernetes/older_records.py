"""`OlderRecords`: moves records that an older release wrote into the jobs' namespaces to where no job can read them.

It copies a record, then empties the old one: an agent that dies in between leaves both, and the next one repeats the move. The
emptied record stays until its run is over, because it owns that run's pods: without it Kubernetes would delete them.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, ForbiddenError, NotFoundError, UnavailableError
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import CONFIG_MAPS
from trainmaster_agent.runtime.kubernetes.record import (
    ACCEPTED_AT,
    ALIVE,
    LABEL_AGENT,
    LABEL_RECORD,
    MOVED,
    TOMBSTONE,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class OlderRecords:
    """``home`` is the agent's namespace; ``agent`` the name of its cluster."""

    def __init__(self, api: ApiServer, lease: LeaseKeeper, agent: str, home: str) -> None:
        self._api = api
        self._lease = lease
        self._agent = agent
        self._home = home

    async def find(self, namespaces: Iterable[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
        """Return namespace and name of live runs' records, and namespace, name and uid of tombstones. Raises KubeError."""
        alive, over = [], []
        selector = f"{LABEL_AGENT}={self._agent},{LABEL_RECORD} in ({ALIVE},{TOMBSTONE})"
        for namespace in namespaces:
            try:
                async for items, _ in self._api.pages(CONFIG_MAPS, namespace, selector=selector):
                    for metadata in (one["metadata"] for one in items):
                        if metadata["labels"][LABEL_RECORD] == ALIVE:
                            alive.append((namespace, metadata["name"]))
                        else:
                            over.append((namespace, metadata["name"], metadata["uid"]))
            except ForbiddenError as error:
                # Where this agent may not read, the earlier one could not write.
                log.warning("cannot look for records of an older release in namespace %s: %s", namespace, error)
        return alive, over

    async def move(self, namespace: str, name: str, *, replaces: bool) -> None:
        """Move one record. ``replaces``: overwrite the unused copy of an interrupted move. Raises KubeError."""
        for _ in range(_ATTEMPTS):
            try:
                older = await self._api.get(CONFIG_MAPS, namespace, name)
            except NotFoundError:
                return
            if older["metadata"]["labels"].get(LABEL_RECORD) != ALIVE:
                return
            await self._lease.confirm()
            copy = self._copy_of(older)
            try:
                await self._api.create(CONFIG_MAPS, self._home, copy)
            except ConflictError:
                if replaces:
                    fields = {field: copy[field] for field in ("data", "binaryData") if field in copy}
                    await self._api.patch(CONFIG_MAPS, self._home, name, fields)
            if await self._empty(older):
                log.info("moved the record of run %s to namespace %s", name, self._home, extra={"run_id": name})
                return
        raise UnavailableError(f"ConfigMap {namespace}/{name} was not moved: it changed during every try")

    def _copy_of(self, older: Mapping[str, Any]) -> dict[str, Any]:
        metadata = older["metadata"]
        copy = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": metadata["name"],
                "namespace": self._home,
                "labels": metadata["labels"],
                "annotations": {ACCEPTED_AT: metadata["creationTimestamp"]},
            },
            "data": {**(older.get("data") or {}), "namespace": metadata["namespace"]},
        }
        if older.get("binaryData"):
            copy["binaryData"] = older["binaryData"]
        return copy

    async def _empty(self, older: Mapping[str, Any]) -> bool:
        """Empty the record unless it changed since it was read; return whether it was emptied."""
        metadata = older["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "labels": {LABEL_RECORD: MOVED}},
            "data": None,
            "binaryData": None,
        }
        try:
            await self._api.patch(CONFIG_MAPS, metadata["namespace"], metadata["name"], body)
        except (ConflictError, NotFoundError):
            return False
        return True
