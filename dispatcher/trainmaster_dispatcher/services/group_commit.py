"""Group commit of small submissions: those that arrive while one transaction is under way share the next one.

A transaction of one job costs a dozen statements and a flush of Postgres's log, as does one of many jobs. An api that is
called by many people at once therefore stores pending submissions as one group. Exceptional submissions leave the group and are
stored alone: a repeated idempotency key, or a submission among several whose group could not be stored.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.services.auditing import jobs_of, number_of_jobs
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.submit import Submission, Submitted, submit
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store.database import StoreAwayError, Transaction
from trainmaster_dispatcher.store.keys import AuditLine, Claim

CREATED = 201
_SMALL = 100
"""Most jobs of a submission that joins a group."""
_MOST_JOBS = 1_000
"""Most jobs of a group."""
_MOST_WAITING = 2_000
_PATIENCE_SECONDS = 0.02
"""Time after which a group no longer waits for the previous group, which may be blocked by a queue that this group does not need."""
_MOST_GROUPS = 4
"""Most transactions under way at once."""


@dataclass(frozen=True, slots=True)
class PendingSubmission:
    """A submission with the data of its request."""

    submission: Submission
    claim: Claim | None
    body_hash: bytes
    request_id: str
    address: str = ""
    """Address of the client."""

    @property
    def jobs(self) -> int:
        return len(self.submission.prepared)


class StoredSubmission(NamedTuple):
    """A submission that is committed, and the body of its answer."""

    body: bytes
    submitted: Submitted


class ByItselfError(Exception):
    """The submission has to be stored in a transaction of its own."""


@dataclass(slots=True)
class _QueuedSubmission:
    pending: PendingSubmission
    answer: "asyncio.Future[StoredSubmission]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class GroupCommits:
    """The groups of one process. For use within one event loop."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._waiting: deque[_QueuedSubmission] = deque()
        self._groups: set[asyncio.Task[None]] = set()
        self._claims: set[Claim] = set()
        """Idempotency keys of submissions that wait or are being stored: each key is at most once in a group."""
        self._look: asyncio.TimerHandle | None = None

    @staticmethod
    def takes(pending: PendingSubmission) -> bool:
        """Return whether a submission may join a group."""
        submission = pending.submission
        # One that closes groups locks them alone, which all of a transaction have to do in one order.
        return submission.prepared.parameters is None and pending.jobs <= _SMALL and not submission.closes_groups

    async def submit(self, pending: PendingSubmission) -> StoredSubmission:
        """Store a submission together with others; return its answer once it is committed.

        Raises ProblemError when the submission may not be stored, and ByItselfError when it has to be stored alone.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise ProblemError(Code.TOO_BUSY, "many submissions wait to be stored already", retry_after=1.0)
        waiting, claim = _QueuedSubmission(pending), pending.claim
        if claim is not None:
            if claim in self._claims:
                raise ByItselfError  # a group would have to wait for the first one with this key
            self._claims.add(claim)
            waiting.answer.add_done_callback(lambda _: self._claims.discard(claim))
        self._waiting.append(waiting)
        self._start(at_once=not self._groups)
        return await waiting.answer

    async def close(self) -> None:
        """Let transactions under way end; refuse submissions that wait."""
        if self._look is not None:
            self._look.cancel()
        for waiting in self._waiting:
            _settle(waiting, ProblemError(Code.TOO_BUSY, "this process ends; try again", retry_after=1.0))
        self._waiting.clear()
        await asyncio.gather(*self._groups, return_exceptions=True)

    def _start(self, *, at_once: bool) -> None:
        """Start the next group, now or after ``_PATIENCE_SECONDS``."""
        if at_once and len(self._groups) < _MOST_GROUPS and (waiting := self._next()):
            # A group has many requests, so its log lines carry the id of none.
            group = asyncio.create_task(self._store(waiting), name="submissions", context=Context())
            self._groups.add(group)
            group.add_done_callback(self._ended)
        if self._waiting and self._look is None and len(self._groups) < _MOST_GROUPS:
            self._look = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._look = None
        self._start(at_once=True)

    def _ended(self, group: "asyncio.Task[None]") -> None:
        self._groups.discard(group)
        self._start(at_once=True)

    def _next(self) -> list[_QueuedSubmission]:
        """Return the next group. Cancelled requests are left out: such a request may have been repeated with its key."""
        group: list[_QueuedSubmission] = []
        jobs = 0
        while self._waiting and jobs + self._waiting[0].pending.jobs <= _MOST_JOBS:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                jobs += waiting.pending.jobs
                group.append(waiting)
        return group

    async def _store(self, group: list[_QueuedSubmission]) -> None:
        try:
            async with self._stores.database.transaction() as tx:
                outcomes = await store_group(tx, self._stores, [waiting.pending for waiting in group])
        except StoreAwayError as error:
            outcomes = [_like(error) for _ in group]
        except Exception as error:  # noqa: BLE001 - raised to every caller that waits for it
            # A submission that Postgres refuses must not fail the others. Alone, each gets its own error.
            outcomes = [ByItselfError() for _ in group] if len(group) > 1 else [error]
        except BaseException:
            for waiting in group:
                waiting.answer.cancel()
            raise
        for waiting, outcome in zip(group, outcomes, strict=True):
            _settle(waiting, outcome)


def _like(error: StoreAwayError) -> StoreAwayError:
    """Return an equal error for another request, with the cause, which the log shows."""
    other = StoreAwayError(error.detail)
    other.__cause__ = error.__cause__
    return other


def _settle(waiting: _QueuedSubmission, outcome: StoredSubmission | Exception) -> None:
    if waiting.answer.done():
        return  # its request was given up
    if isinstance(outcome, Exception):
        waiting.answer.set_exception(outcome)
    else:
        waiting.answer.set_result(outcome)


async def store_group(
    tx: Transaction, stores: Stores, group: Sequence[PendingSubmission]
) -> list[StoredSubmission | Exception]:
    """Store submissions with their audit rows and idempotency keys; return for each its answer, or its error."""
    outcomes: list[StoredSubmission | Exception] = [ByItselfError() for _ in group]
    places = await _unrepeated(tx, group)
    if not places:
        return outcomes
    stored = await submit(tx, stores, [group[place].submission for place in places], waits=False)
    made: list[AuditLine] = []
    answers: dict[Claim, tuple[int, bytes]] = {}
    given_back: list[Claim] = []
    for place, outcome in zip(places, stored, strict=True):
        pending = group[place]
        if isinstance(outcome, Submitted):
            body = orjson.dumps(pending.submission.prepared.answer(outcome.ids))
            outcomes[place] = StoredSubmission(body, outcome)
            one, target, details = pending.submission, number_of_jobs(pending.jobs), jobs_of(outcome.ids)
            caller = one.through or one.caller
            if one.through is not None:
                details = details | {"onBehalfOf": one.caller.name}
            line = AuditLine(caller.key_id, caller.name, "submit", target, pending.request_id, pending.address, details)
            made.append(line)
            if pending.claim is not None:
                answers[pending.claim] = CREATED, body
        else:
            if isinstance(outcome, ProblemError):
                outcomes[place] = outcome
            if pending.claim is not None:
                given_back.append(pending.claim)
    if made:
        await keys.note_lines(tx, made)
    if answers:
        await keys.keep_answers(tx, answers)
    if given_back:
        await keys.drop_claims(tx, given_back)
    return outcomes


async def _unrepeated(tx: Transaction, group: Sequence[PendingSubmission]) -> list[int]:
    """Return the indices in the group of submissions without an idempotency key or with an unused one, which is now claimed."""
    claims = {pending.claim: pending.body_hash for pending in group if pending.claim is not None}
    unused = await keys.claim_unused(tx, claims) if claims else set()
    return [place for place, pending in enumerate(group) if pending.claim is None or pending.claim in unused]
