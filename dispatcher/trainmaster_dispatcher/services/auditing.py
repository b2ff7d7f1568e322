"""Audit details of a call: an object before and after, ids of jobs, and refused calls. All of them are bounded."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.keys import AuditLine

log = logging.getLogger(__name__)

MOST_IDS = 50
"""Most ids of jobs in one line."""
MOST_BYTES = 8_192
"""Most bytes of an object before, and of the object after."""

Object = Mapping[str, Any]


def change_of(before: Object | None, after: Object | None) -> dict[str, Any]:
    """Return the fields that differ, before and after; all fields of an object that was created or removed. Bounded."""
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


def number_of_jobs(many: int) -> str:
    """Return the target of an action on several jobs."""
    return "1 job" if many == 1 else f"{many} jobs"


def jobs_of(ids: Sequence[str], many: int | None = None) -> dict[str, Any]:
    """Return the first ids of jobs, and how many more there are. ``many``: their total number, where ``ids`` has only the first."""
    more = (len(ids) if many is None else many) - MOST_IDS
    return {"jobs": list(ids[:MOST_IDS])} | ({"more": more} if more > 0 else {})


REFUSED = frozenset((Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.JOB_OF_ANOTHER, Code.PRIORITY_CLASS_NOT_ALLOWED))
"""Refusals that are recorded: of callers without a valid key, and of callers without the right to the action."""


def _clean(text: str) -> str:
    """Return the beginning of an untrusted text, without characters that Postgres rejects."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:_LONGEST])


_MOST_LINES = 60
_MOST_KINDS = 1_000
_WINDOW_SECONDS = 60.0
_LONGEST = 300


@dataclass(slots=True)
class _Refused:
    """Equivalent calls that were refused: the first of them, and how many."""

    line: AuditLine
    count: int = 1


@dataclass(slots=True)
class Refusals:
    """Refused calls of one process until they are stored: equivalent calls are one line, and the lines per minute are limited.

    Nothing is stored while a call is answered, so that a flood of refused calls costs the store only an occasional transaction.
    """

    clock: Callable[[], float] = time.monotonic
    _equivalent: dict[tuple[str, ...], _Refused] = field(default_factory=dict)
    _beyond: int = 0
    _window: float = float("-inf")
    _stored: int = 0

    def note(self, error: ProblemError, actor: str, address: str, route: str, request_id: str) -> None:
        """Count a refused call. ``actor`` is the key's name, empty where none is known; ``route`` such as ``GET /v1/jobs``."""
        counted = self._equivalent.get(key := (actor, address, route, error.code.value))
        if counted is not None:
            counted.count += 1
        elif len(self._equivalent) >= _MOST_KINDS:
            self._beyond += 1
        else:
            details = {"status": error.status, "code": error.code.value, "detail": _clean(error.detail)}
            self._equivalent[key] = _Refused(
                AuditLine(None, actor, "refused", _clean(route), request_id, address, details)
            )

    def take(self) -> list[AuditLine]:
        """Return the lines to store now; calls beyond the limit are counted in one line."""
        if not self._equivalent and not self._beyond:
            return []
        now = self.clock()
        if now - self._window >= _WINDOW_SECONDS:
            self._window, self._stored = now, 0
        elif self._stored >= _MOST_LINES:
            return []  # until the minute is over
        lines = []
        for one in self._equivalent.values():
            if self._stored < _MOST_LINES:
                self._stored += 1
                lines.append(one.line._replace(details=dict(one.line.details) | {"count": one.count}))
            else:
                self._beyond += one.count
        self._equivalent.clear()
        if self._beyond and lines:
            lines.append(AuditLine(None, "", "refused", "others", "", "", {"count": self._beyond}))
            self._beyond = 0
        return lines

    async def store(self, database: Database) -> None:
        """Store the counted calls. Raises ProblemError when the store is unreachable; those lines are lost, and the log has them."""
        lines = self.take()
        if not lines:
            return
        for line in lines:
            log.info("refused: %s %s", line.target, line.details, extra={"actor": line.actor, "client": line.address})
        async with database.transaction() as tx:
            await keys.note_lines(tx, lines)
