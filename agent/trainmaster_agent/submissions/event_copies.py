"""`EventCopies`: what happened to a job, as events of the object that it came from, for ``kubectl describe``."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, RefusedError
from trainmaster_agent.kube.paths import EVENTS

log = logging.getLogger(__name__)

_COMPONENT = "trainmaster"
_LEFT_OUT = frozenset(("RunMoved", "RunStatus"))
"""Reasons of events that say no more than the status does."""
_MOST_KNOWN = 10_000


class EventCopies:
    """Events of the dispatcher, copied once each. Their names follow from those of the dispatcher's, so that none comes twice."""

    def __init__(self, local: ApiServer, dispatcher: ApiServer) -> None:
        self._local = local
        self._dispatcher = dispatcher
        self._known: OrderedDict[str, int] = OrderedDict()
        """By the uid of the job's object: how many of its events were copied."""

    async def copy(self, kind: WorkloadKind, local: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        """Create the events of a job that the object has not. Raises KubeError."""
        metadata = remote["metadata"]
        selector = f"involvedObject.name={metadata['name']},involvedObject.uid={metadata['uid']}"
        path = EVENTS.path(metadata["namespace"])
        found = (await self._dispatcher.call("GET", path, query={"fieldSelector": selector})).get("items") or []
        for one in found[self._known.get(metadata["uid"], 0) :]:
            if one["reason"] not in _LEFT_OUT:
                name = f"{local['metadata']['name'][:150]}.{one['metadata']['name']}"
                copied = {field: one[field] for field in ("type", "reason", "message", "count")}
                await self._create(kind, local, name, copied | {"at": one["lastTimestamp"]})
        self._known[metadata["uid"]] = len(found)
        self._known.move_to_end(metadata["uid"])
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def warn(self, kind: WorkloadKind, local: Mapping[str, Any], reason: str, message: str) -> None:
        """Create a warning that no job exists for. Raises KubeError."""
        digest = sha256(f"{reason}/{message}".encode()).hexdigest()[:16]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"type": "Warning", "reason": reason, "message": message[:1024], "count": 1, "at": now}
        await self._create(kind, local, f"{local['metadata']['name'][:150]}.{digest}", fields)

    async def _create(self, kind: WorkloadKind, local: Mapping[str, Any], name: str, fields: Mapping[str, Any]) -> None:
        metadata = local["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            **{field: fields[field] for field in ("type", "reason", "message", "count")},
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "firstTimestamp": fields["at"],
            "lastTimestamp": fields["at"],
        }
        with suppress(ConflictError):
            try:
                await self._local.create(EVENTS, metadata["namespace"], body)
            except ConflictError:
                raise
            except RefusedError as error:  # events are for people: nothing depends on them
                log.info("an event of %s is refused: %s", metadata["name"], error)
