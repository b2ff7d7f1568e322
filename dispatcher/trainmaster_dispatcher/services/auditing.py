"""What the audit says of a call: an object before and after, ids of jobs, and calls that were refused. All of it is bounded."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from trainmaster.protocol.base import Strict
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.store import bursts, datasets, keys, prices, tenants
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.keys import AuditLine

log = logging.getLogger(__name__)

MOST_IDS = 50
"""Ids of jobs that one line names."""
MOST_BYTES = 8_192
"""Of an object before, and as much of it after."""

Object = Mapping[str, Any]


def _wire(spec: Strict) -> Object:
    value: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value


async def _queue(tx: Transaction, path: str) -> Object | None:
    found = await tenants.queues_by_path(tx, [path])
    return _wire(found[path].spec) if path in found else None


async def _class(tx: Transaction, name: str) -> Object | None:
    return next((_wire(row.spec) for row in await tenants.classes(tx) if row.spec.name == name), None)


async def _reservation(tx: Transaction, name: str) -> Object | None:
    return next((_wire(row.spec) for row in await tenants.reservations(tx) if row.spec.name == name), None)


async def _cluster(tx: Transaction, name: str) -> Object | None:
    rows = await tenants.clusters(tx)
    return next(({**_wire(row.spec), "cordoned": row.cordoned} for row in rows if row.spec.name == name), None)


async def _dataset(tx: Transaction, name: str) -> Object | None:
    return next((_wire(spec) for spec in await datasets.datasets(tx) if spec.name == name), None)


async def _book(tx: Transaction, name: str) -> Object | None:
    return next((_wire(spec) for spec in await prices.books(tx) if spec.name == name), None)


async def _policy(tx: Transaction, name: str) -> Object | None:
    return next((_wire(row.spec) for row in await bursts.policies(tx) if row.spec.name == name), None)


async def _key(tx: Transaction, key_id: str) -> Object | None:
    row = next((row for row in await keys.listing(tx) if str(row.id) == key_id), None)
    if row is None:
        return None
    told = {"name": row.name, "role": row.role, "queues": list(row.queues), "cluster": row.cluster}
    return told | {"revoked": row.revoked_at is not None}


_READERS: dict[str, Callable[[Transaction, str], Awaitable[Object | None]]] = {
    "queue": _queue,
    "priority class": _class,
    "reservation": _reservation,
    "cluster": _cluster,
    "dataset": _dataset,
    "price book": _book,
    "burst policy": _policy,
    "key": _key,
}
"""How an object is read, by its kind: the words after the first one of an action, as in ``put queue``."""


async def object_of(tx: Transaction, action: str, target: str) -> Object | None:
    """Return the object that an action such as ``put queue`` is about; None where it does not exist or is of no such kind."""
    reader = _READERS.get(action.partition(" ")[2])
    return None if reader is None else await reader(tx, target)


def change_of(before: Object | None, after: Object | None) -> dict[str, Any]:
    """Return the fields that differ, before and after; all of an object that was made or removed. Bounded."""
    if before is None and after is None:
        return {}
    if before is not None and after is not None:
        differing = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        before = {key: before.get(key) for key in differing}
        after = {key: after.get(key) for key in differing}
    return {"before": _bounded(before), "after": _bounded(after)}


def _bounded(value: Object | None) -> Any:
    payload = orjson.dumps(value)
    if len(payload) <= MOST_BYTES:
        return value
    return {"truncated": payload[:MOST_BYTES].decode(errors="ignore"), "bytes": len(payload)}


def jobs_of(ids: Sequence[str], many: int | None = None) -> dict[str, Any]:
    """Return the first ids of jobs, and how many more there are; ``many``: all of them, where ``ids`` are the first."""
    more = (len(ids) if many is None else many) - MOST_IDS
    return {"jobs": list(ids[:MOST_IDS])} | ({"more": more} if more > 0 else {})


REFUSED = frozenset((Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.PRIORITY_CLASS_NOT_ALLOWED))
"""Refusals that are recorded: of who shows no valid key, and of who has no right to something."""


def _clean(text: str) -> str:
    """Return the beginning of a text that strangers wrote, without what Postgres takes into no text."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:_LONGEST])


_MOST_LINES = 60
_MOST_KINDS = 1_000
_WINDOW_SECONDS = 60.0
_LONGEST = 300


@dataclass(slots=True)
class _Refused:
    """Calls alike that were refused: the first of them, and how many."""

    line: AuditLine
    count: int = 1


@dataclass(slots=True)
class Refusals:
    """Refused calls of one process until they are stored: calls alike are one line, and a minute has a limited number of lines.

    Nothing is stored while a call is answered, so that a flood of refused calls costs the store one transaction now and then.
    """

    clock: Callable[[], float] = time.monotonic
    _alike: dict[tuple[str, ...], _Refused] = field(default_factory=dict)
    _beyond: int = 0
    _window: float = float("-inf")
    _stored: int = 0

    def note(self, error: ProblemError, actor: str, address: str, route: str, request_id: str) -> None:
        """Count a refused call. ``actor`` is the key's name, empty where none is known; ``route`` such as ``GET /v1/jobs``."""
        alike = self._alike.get(key := (actor, address, route, error.code.value))
        if alike is not None:
            alike.count += 1
        elif len(self._alike) >= _MOST_KINDS:
            self._beyond += 1
        else:
            details = {"status": error.status, "code": error.code.value, "detail": _clean(error.detail)}
            self._alike[key] = _Refused(AuditLine(None, actor, "refused", _clean(route), request_id, address, details))

    def take(self) -> list[AuditLine]:
        """Return the lines to store now; what goes beyond their number is one line that counts it."""
        if not self._alike and not self._beyond:
            return []
        now = self.clock()
        if now - self._window >= _WINDOW_SECONDS:
            self._window, self._stored = now, 0
        elif self._stored >= _MOST_LINES:
            return []  # until the minute is over
        lines = []
        for one in self._alike.values():
            if self._stored < _MOST_LINES:
                self._stored += 1
                lines.append(one.line._replace(details=dict(one.line.details) | {"count": one.count}))
            else:
                self._beyond += one.count
        self._alike.clear()
        if self._beyond and lines:
            lines.append(AuditLine(None, "", "refused", "others", "", "", {"count": self._beyond}))
            self._beyond = 0
        return lines

    async def store(self, database: Database) -> None:
        """Store what was counted. Raises ProblemError when the store is unreachable; those lines are lost, and the log has them."""
        lines = self.take()
        if not lines:
            return
        for line in lines:
            log.info("refused: %s %s", line.target, line.details, extra={"actor": line.actor, "client": line.address})
        async with database.transaction() as tx:
            await keys.note_lines(tx, lines)
