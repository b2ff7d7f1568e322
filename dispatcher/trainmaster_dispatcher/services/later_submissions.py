"""Submissions that the leader makes for their owner: the jobs of workflows, and of arrays whose elements are jobs.

Each of these objects is dealt with in a transaction of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.containment import Part, contained, note
from trainmaster_dispatcher.domain.default_requests import read_requests
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster
from trainmaster_dispatcher.services import auditing
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.submission_parsing import Most, PreparedSubmission, prepare
from trainmaster_dispatcher.services.submit import Submission, Submitted, submit
from trainmaster_dispatcher.services.workflow_parsing import check_sizes
from trainmaster_dispatcher.store import keys, scheduling, submitters
from trainmaster_dispatcher.store.database import StoreAwayError, Transaction, dumps
from trainmaster_dispatcher.store.keys import AuditLine, Caller

FOR_NOW: Final = frozenset((Code.QUEUE_FULL, Code.TOO_BUSY, Code.QUEUE_CLOSED))
"""Refusals that pass by themselves, or once somebody opens a queue."""

KnownClusters = Callable[[], Awaitable[Sequence[Cluster]]]
"""Returns the clusters whose refusals count."""


_BROKEN_SECONDS: Final = 60.0
BUSY_SECONDS: Final = 1.0

Advance = Callable[[Transaction, int], Awaitable[None]]
"""Deals with an object, by its key."""
PutOff = Callable[[Transaction, int, float], Awaitable[None]]
"""Has an object looked at again in some seconds, and not before."""


async def advance_each(
    stores: Stores, token: int, due: Sequence[int], part: Part, advance: Advance, put_off: PutOff
) -> int:
    """Deal with each of these objects, as the leader with this token; return with how many.

    One that cannot be dealt with is put off, and keeps no others waiting.
    """
    done = 0
    for key in due:
        try:
            async with stores.database.transaction() as tx:
                if not await scheduling.is_lead(tx, token):
                    return done
                await advance(tx, key)
            done += 1
        except StoreAwayError:
            raise
        except Exception as error:  # noqa: BLE001 - the others are dealt with all the same, and it is noted
            is_busy = isinstance(error, ProblemError) and error.code is Code.TOO_BUSY
            if not is_busy:
                note(part, str(key), error)
            with contained(part, str(key)):
                async with stores.database.transaction() as tx:
                    if await scheduling.is_lead(tx, token):
                        await put_off(tx, key, BUSY_SECONDS if is_busy else _BROKEN_SECONDS)
    return done


class Owner(NamedTuple):
    """Whose jobs are submitted: the API key, and its name for messages."""

    api_key_id: int
    name: str | None


async def submit_later(
    tx: Transaction,
    stores: Stores,
    owner: Owner,
    document: dict[str, Any],
    sets: Sequence[dict[str, Any]] | None,
    details: dict[str, str],
    clusters: KnownClusters,
) -> Submitted:
    """Submit one job for each of these sets of parameters, or with None one without any.

    As many as their queue has places for, but at least one. ``details``: what made them, for the audit. Raises ProblemError,
    MissingValueError, and QueueBusyError where others are filling the queue.
    """
    caller, through = await _submitter(tx, owner)
    settings = stores.settings
    most = Most(
        default_requests=read_requests(settings.default_requests),
        default_memory_limit=settings.default_memory_limit,
        clusters=tuple(await clusters()),
    )
    prepared, texts = await asyncio.to_thread(_prepared, dumps(document).encode(), most, sets)
    submitted = await _submit_places(tx, stores, Submission(caller, prepared, through), texts)
    actor = through or caller
    noted: dict[str, Any] = {**auditing.jobs_of(submitted.ids), **details}
    if through is not None:
        noted["onBehalfOf"] = caller.name
    line = AuditLine(actor.key_id, actor.name, "submit", auditing.number_of_jobs(len(submitted.ids)), "", "", noted)
    await keys.note_lines(tx, [line])
    return submitted


async def _submitter(tx: Transaction, owner: Owner) -> tuple[Caller, Caller | None]:
    """Return whose jobs these are, and who submits them. Raises ProblemError FORBIDDEN where the key is not valid any more."""
    known = await submitters.submitters(tx, [owner.api_key_id])
    found = None if owner.api_key_id not in known else submitters.caller_of(known[owner.api_key_id])
    if found is None:
        raise ProblemError(Code.FORBIDDEN, f"the API key {owner.name or 'of its owner'!r} is not valid any more")
    return found


async def _submit_places(tx: Transaction, stores: Stores, one: Submission, texts: Sequence[bytes] | None) -> Submitted:
    """Submit jobs with these parameters, or one without any. Where their queue has no place for all, half of them, and so on."""
    many = 1 if texts is None else len(texts)
    while True:
        given = one
        if texts is not None:
            given = replace(one, prepared=replace(one.prepared, many=True, parameters=list(texts[:many])))
        # Not after others that fill the queue: the scheduler has more to do.
        (outcome,) = await submit(tx, stores, [given], waits=False)
        if isinstance(outcome, Submitted):
            return outcome
        if many == 1 or not isinstance(outcome, ProblemError) or outcome.code is not Code.QUEUE_FULL:
            raise outcome
        many //= 2


def _prepared(
    body: bytes, most: Most, sets: Sequence[dict[str, Any]] | None
) -> tuple[PreparedSubmission, list[bytes] | None]:
    """Return the checked job, and the parameters as JSON texts. Raises ProblemError, and MissingValueError."""
    prepared = prepare(body, most)
    return prepared, None if sets is None else check_sizes(sets, orjson.loads(prepared.specs[0].spec))
