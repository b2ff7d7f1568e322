"""Arrays as people see them, and how they end."""

import json
import secrets
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from trainmaster.protocol.arrays import (
    ArrayCounts,
    BadRangesError,
    CancelElements,
    CancelledElements,
    ElementCounts,
    ElementFailure,
    ElementsOfJob,
    JobOfElement,
    JobsOfElements,
    parse_ranges,
    ranges_text,
)
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import job_id
from trainmaster_dispatcher.domain.arrays import ArrayVerdict, Block, counts_after, masks, spans_of_blocks, verdict
from trainmaster_dispatcher.services.job_actions import check_may_change, find_job
from trainmaster_dispatcher.store import arrays as store
from trainmaster_dispatcher.store import element_jobs
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

_MOST_RANGES = 10_000
"""The most ranges of one state in an answer."""
_MOST_FAILURES = 100
_PAGE_ROWS = 10
"""Rows of results in a page."""
_PAGE_JOBS = 1000
_NAMED_FAILURES = 6
_TOKEN_BYTES = 24


def new_token() -> str:
    """Return a secret by which members of an array identify themselves to their agent."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


async def verdicts(tx: Transaction, job_ids: Iterable[int]) -> dict[int, ArrayVerdict]:
    """Return how the arrays of runs whose members have all succeeded have ended, by job.

    One with elements that are still to be run has failed: its members have ended without them.
    """
    specs = await store.specs(tx, job_ids)
    rows = await store.rows(tx, specs)
    found = {}
    for key, spec in specs.items():
        counts = rows[key].counts if key in rows else ArrayCounts()
        failed = await store.failures(tx, key, _NAMED_FAILURES) if counts.failed else ()
        end = verdict(spec.elements, spec.stop, counts, ((one.element, one.element) for one in failed))
        left = spec.elements - counts.ended
        lacks = f"its members have ended and left {left} of {spec.elements} elements"
        found[key] = end or ArrayVerdict(succeeded=False, message=lacks, is_final=False)
    return found


async def counts_of(tx: Transaction, key: int, count: int) -> ElementCounts:
    """Return the numbers of the elements of an array by state."""
    row = (await store.rows(tx, [key])).get(key)
    if row is None:
        return ElementCounts(count=count)
    return ElementCounts(
        count=count, succeeded=row.succeeded, failed=row.failed, cancelled=row.cancelled, running=row.running
    )


async def show(tx: Transaction, caller: Caller, text: str) -> dict[str, Any]:
    """Return the elements of an array by state. Raises ProblemError where the caller sees no such job, or it is no array."""
    key, count = await _array(tx, caller, text)
    blocks = await store.blocks(tx, key)
    succeeded, succeeded_cut = _text({number: block.succeeded for number, block in blocks.items()})
    failed, failed_cut = _text({number: block.failed for number, block in blocks.items()})
    cancelled, cancelled_cut = _text({number: block.cancelled for number, block in blocks.items()})
    known = await store.failures(tx, key, _MOST_FAILURES)
    answer = ElementsOfJob(
        job=text,
        count=count,
        succeeded=succeeded,
        failed=failed,
        cancelled=cancelled,
        cut=succeeded_cut or failed_cut or cancelled_cut,
        failures=tuple(
            ElementFailure(element=one.element, exit_code=one.exit_code, signal=one.signal, message=one.message)
            for one in known
        ),
    )
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _number(text: str) -> int | float:
    """Return a number as readers of JSON take it: workers keep to 64 bits."""
    number = int(text)
    return number if -(2**63) <= number < 2**63 else float(text)


async def results(tx: Transaction, caller: Caller, text: str, after: int) -> dict[str, Any]:
    """Return a page of what elements returned, behind the position ``after``.

    Raises ProblemError where the caller sees no such job, or it is no array.
    """
    key, _ = await _array(tx, caller, text)
    rows = await store.results(tx, key, after, _PAGE_ROWS + 1)
    page = rows[:_PAGE_ROWS]
    read = (json.loads(row.elements, parse_int=_number) for row in page)
    found = [{"element": element, "value": value} for pairs in read for element, value in pairs]
    return {"job": text, "results": found} | ({"next": page[-1].id} if len(rows) > len(page) else {})


async def jobs_of_elements(
    tx: Transaction, caller: Caller, text: str, ranges: str | None, after: int | None
) -> dict[str, Any]:
    """Return a page of the jobs of an array's elements, of those in ``ranges`` if given, behind the element ``after``.

    Raises ProblemError NOT_FOUND where the caller sees no such job, it is no array, or its elements are no jobs, and
    INVALID_PARAMETER for what is no element.
    """
    key, count = await _array(tx, caller, text)
    if not await element_jobs.exists(tx, key):
        raise ProblemError(Code.NOT_FOUND, f"the elements of {text!r} are no jobs: its array has not mode: jobs")
    try:
        wanted = () if ranges is None else parse_ranges(ranges, count)
    except BadRangesError as error:
        message = f"elements: {error}"
        raise ProblemError(
            Code.INVALID_PARAMETER, message, mistakes=(Mistake(path="elements", message=str(error)),)
        ) from error
    rows = await element_jobs.page(tx, key, -1 if after is None else after, _PAGE_JOBS + 1, wanted)
    page = rows[:_PAGE_JOBS]
    answer = JobsOfElements(
        job=text,
        jobs=tuple(JobOfElement(element=row.element, id=job_id(row.name, row.job_id), state=row.state) for row in page),
        next=page[-1].element if len(rows) > len(page) else None,
    )
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _text(bitmaps: Mapping[int, int]) -> tuple[str, bool]:
    """Return elements as text, and whether ranges were left out."""
    spans = list(islice(spans_of_blocks(bitmaps), _MOST_RANGES + 1))  # there may be half a million
    return ranges_text(spans[:_MOST_RANGES]), len(spans) > _MOST_RANGES


async def cancel(tx: Transaction, caller: Caller, text: str, wanted: CancelElements) -> dict[str, Any]:
    """Cancel elements that have not ended; those that run are killed once their agent has reported the next time.

    Raises ProblemError: INVALID_SPEC for what is no element, WRONG_STATE for a job that has ended, and as ``check_may_change`` does.
    """
    key, count = await _array(tx, caller, text)
    await check_may_change(tx, caller, key)
    job = await find_job(tx, caller, text)
    if job.state.is_terminal:
        raise ProblemError(Code.WRONG_STATE, f"the job is {job.state}: no element of it will be run")
    try:
        wanted_bits = masks(parse_ranges(wanted.elements, count))
    except BadRangesError as error:
        raise ProblemError(
            Code.INVALID_SPEC, str(error), mistakes=(Mistake(path="elements", message=str(error)),)
        ) from error
    await store.create(tx, key, new_token())
    row = await store.lock(tx, key)
    if row is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no job {text!r}")
    before = await store.blocks(tx, key, wanted_bits)
    changed = {}
    for number, bits in wanted_bits.items():
        old = before.get(number, Block())
        if (new := old.with_ended(cancelled=bits)) != old:
            changed[number] = new
    counts = counts_after(row.counts, before, changed)
    if changed:
        await store.save(tx, key, changed, counts, row.running)
        await element_jobs.wake(tx, [key] if job.has_element_jobs else [])
    done = CancelledElements(job=text, cancelled=counts.cancelled - row.cancelled)
    return done.model_dump(mode="json", by_alias=True)


async def _array(tx: Transaction, caller: Caller, text: str) -> tuple[int, int]:
    """Return the key of an array and its number of elements. Raises ProblemError NOT_FOUND, also for a job that is none."""
    job = await find_job(tx, caller, text)
    if job.elements is None:
        raise ProblemError(Code.NOT_FOUND, f"job {text!r} is no array: its specification has no `array`")
    return job.id, job.elements
