"""Calls of agents on arrays: what an agent has to know to run the elements, and its reports of those that have ended.

Elements are counted once: what a second report says of an element that has ended changes nothing, whichever attempt it is of.
"""

from collections.abc import Mapping

from trainmaster.protocol.arrays import ArrayState, ElementsAnswer, ElementsPush, Span
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id
from trainmaster_dispatcher.domain.arrays import Block, counts_after, is_over, masks, spans_of_blocks
from trainmaster_dispatcher.services.agents import superseded
from trainmaster_dispatcher.services.arrays import new_token
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents
from trainmaster_dispatcher.store import arrays as store
from trainmaster_dispatcher.store.arrays import ArraySpecRow
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


async def _array_of_run(tx: Transaction, caller: Caller, run: str, session: str) -> tuple[RunRef, ArraySpecRow]:
    """Return a run on the caller's cluster and its array. Raises ProblemError NOT_FOUND, FORBIDDEN and SESSION_SUPERSEDED."""
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    if not await agents.is_current(tx, caller.cluster_id, session):
        raise superseded()
    try:
        ref = parse_run_id(run)
    except BadIdError as error:
        raise ProblemError(Code.NOT_FOUND, f"{run!r} is not the id of a run") from error
    spec = (await store.specs(tx, [ref.job_key])).get(ref.job_key)
    if spec is None or not await store.is_on_cluster(tx, ref, caller.cluster_id):
        raise ProblemError(Code.NOT_FOUND, f"this cluster has no run {run!r} of an array")
    return ref, spec


async def state(stores: Stores, caller: Caller, run: str, session: str) -> ArrayState:
    """Return what the agent has to know to run the elements of a run's array that have not ended.

    Raises ProblemError NOT_FOUND for a run that is not live on the caller's cluster, SESSION_SUPERSEDED, and STORE_AWAY.
    """
    async with stores.database.transaction() as tx:
        ref, spec = await _array_of_run(tx, caller, run, session)
        if not await store.is_latest(tx, ref):
            raise ProblemError(Code.NOT_FOUND, f"run {run!r} has ended")
        await store.create(tx, ref.job_key, new_token())
        row = (await store.rows(tx, [ref.job_key]))[ref.job_key]
        blocks = await store.blocks(tx, ref.job_key)
    array = spec.parsed()
    return ArrayState(
        token=row.token,
        count=spec.elements,
        retries=array.retries,
        max_running=array.max_running,
        ended=tuple(spans_of_blocks({number: block.ended for number, block in blocks.items()})),
        over=is_over(spec.elements, spec.stop, row.counts),
    )


async def take(stores: Stores, caller: Caller, run: str, body: ElementsPush) -> ElementsAnswer:
    """Store which elements have ended; repeating a report changes nothing.

    Reports of a run that has ended count, too: what its members did is done. Raises ProblemError NOT_FOUND, SESSION_SUPERSEDED, and
    STORE_AWAY.
    """
    async with stores.database.transaction() as tx:
        ref, spec = await _array_of_run(tx, caller, run, body.session)
        key = ref.job_key
        await store.create(tx, key, new_token())
        row = await store.lock(tx, key)
        if row is None:
            raise ProblemError(Code.NOT_FOUND, f"this cluster has no run {run!r} of an array")
        within = spec.elements - 1
        succeeded = masks((first, min(last, within)) for first, last in body.succeeded if first <= min(last, within))
        failures = [one for one in body.failed if one.element <= within]
        failed = masks((one.element, one.element) for one in failures)
        before = await store.blocks(tx, key, {*succeeded, *failed}) if succeeded or failed else {}
        after = {
            number: before.get(number, Block()).with_ended(succeeded.get(number, 0), failed.get(number, 0))
            for number in {*succeeded, *failed}
        }
        changed = {number: block for number, block in after.items() if block != before.get(number, Block())}
        counts = counts_after(row.counts, before, changed)
        running = body.running if await store.is_latest(tx, ref) else 0
        if changed or running != row.running:
            await store.save(tx, key, changed, counts, running)
        news = {number: block.since(before.get(number, Block())) for number, block in changed.items()}
        newly_failed = {number: block.failed for number, block in news.items()}
        if new := [one for one in failures if _is_in(one.element, newly_failed)]:
            await store.add_failures(tx, key, new)
        if body.results and spec.parsed().results:
            newly_succeeded = {number: block.succeeded for number, block in news.items()}
            results = {one.element: one for one in body.results if _is_in(one.element, newly_succeeded)}
            await store.add_results(tx, key, list(results.values()))
        cancelled = await _cancelled(tx, key) if counts.cancelled else ()
    return ElementsAnswer(over=is_over(spec.elements, spec.stop, counts), cancelled=cancelled)


async def _cancelled(tx: Transaction, key: int) -> tuple[Span, ...]:
    blocks = await store.blocks(tx, key)
    return tuple(spans_of_blocks({number: block.cancelled for number, block in blocks.items()}))


def _is_in(element: int, bitmaps: Mapping[int, int]) -> bool:
    """Return whether an element is in these bitmaps by block."""
    ((number, bit),) = masks([(element, element)]).items()
    return bool(bitmaps.get(number, 0) & bit)
