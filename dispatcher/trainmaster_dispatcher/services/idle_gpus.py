"""The leader's part in idle GPUs: jobs that hold GPUs which do nothing are found, warned, and suspended where their queue says so."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from trainmaster.metrics import definitions as metrics
from trainmaster.protocol.base import format_time
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.states import JobState, KeyRole
from trainmaster_dispatcher.domain.idle_gpus import (
    IdleStep,
    IdleTerms,
    advance_idle,
    idle_since,
    release_words,
    terms_by_queue,
    warning_words,
)
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.member_use import RequestedAmounts
from trainmaster_dispatcher.services import job_actions
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.job_actions import Action
from trainmaster_dispatcher.services.use_views import requests_of
from trainmaster_dispatcher.store import idle_gpus as store
from trainmaster_dispatcher.store import jobs, scheduling, tenants
from trainmaster_dispatcher.store.database import Transaction, to_epoch
from trainmaster_dispatcher.store.idle_gpus import IdleCandidate, IdleMark
from trainmaster_dispatcher.store.keys import Caller

_BATCH = 50
_SYSTEM = Caller(0, "idle-gpus", KeyRole.ADMIN)
"""As whom jobs are suspended."""


async def advance_all(stores: Stores, token: int, limit: int = _BATCH) -> int:
    """Look at the running jobs of queues with a policy, as the leader with this token; return how many were warned or suspended."""
    async with stores.database.transaction() as tx:
        queues = {row.id: row.spec for row in await tenants.QUEUES.every(tx)}
    terms = terms_by_queue(queues)
    done, after = 0, 0
    while terms:
        async with stores.database.transaction() as tx:
            most = max(one.below for one in terms.values())
            found = await store.candidates(tx, sorted(terms), most, after, limit)
            looks = await _looks(tx, found, terms)
            acts = await _write(tx, stores, token, looks) if looks else []
        for look in acts:
            outcome = "released" if look.step.releases else "warned"
            metrics.idle_gpu_jobs.labels(queues[look.run.queue_id].path, outcome).inc()
        done += len(acts)
        if len(found) < limit:
            break
        after = found[-1].job_id
    return done


class _GpuLook(NamedTuple):
    """A look at a run, and its outcome."""

    run: IdleCandidate
    terms: IdleTerms
    step: IdleStep
    now: float

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run.job_id, self.run.attempt)


async def _looks(tx: Transaction, found: Sequence[IdleCandidate], terms: Mapping[int, IdleTerms]) -> list[_GpuLook]:
    each = await requests_of(tx, {run.shape_id for run in found})
    now = await to_epoch(tx)
    looks = []
    for run in found:
        of = terms[run.queue_id]
        chunks = await store.history(tx, RunRef(run.job_id, run.attempt), 2 * of.after)
        members = _gpu_members(run.sizes, each.get(run.shape_id, {}))
        since = await asyncio.to_thread(idle_since, chunks, members, of.below, run.seconds, now, run.idle_since)
        looks.append(_GpuLook(run, of, advance_idle(of, since, run.warned_at, now), now))
    return looks


def _gpu_members(sizes: Mapping[str, int], each: Mapping[str, RequestedAmounts]) -> list[tuple[str, int]]:
    """Return the members that have GPUs."""
    roles = {role for role, amounts in each.items() if amounts.gpu or amounts.shared_gpu}
    return [(role, index) for role, size in sorted(sizes.items()) if role in roles for index in range(size)]


async def _write(tx: Transaction, stores: Stores, token: int, looks: Sequence[_GpuLook]) -> list[_GpuLook]:
    """Store the outcome of looks; return those that warned or suspended."""
    if not await scheduling.is_lead(tx, token):
        return []
    acting = {look.run.job_id: look for look in looks if look.step.warns or look.step.releases}
    records = await jobs.lock(tx, sorted(acting))
    running = {
        key: record
        for key, record in records.items()
        if record.job.state is JobState.RUNNING
        and record.job.wish is None
        and record.job.attempt == acting[key].run.attempt
    }
    warnings = [_warning(record, acting[key]) for key, record in running.items() if acting[key].step.warns]
    await jobs.write(tx, warnings)
    changed = [
        look
        for look in looks
        if (look.step.since, look.step.warned_at) != (look.run.idle_since, look.run.warned_at)
        and (look.run.job_id in running or not look.step.warns)
    ]
    await store.mark(tx, [IdleMark(look.ref, look.step.since, look.step.warned_at) for look in changed])
    for key in sorted(running):
        look = acting[key]
        if look.step.releases and look.step.since is not None:
            why = release_words(look.terms, look.step.since, look.now)
            await job_actions.act_on_all(tx, stores, _SYSTEM, [key], Action.SUSPEND, why)

    async def wake() -> None:
        stores.jobs_changed([one.record.id for one in warnings], for_scheduler=False)

    tx.after_commit(wake)
    return [acting[key] for key in sorted(running)]


def _warning(record: jobs.JobRecord, look: _GpuLook) -> jobs.Transition:
    since = look.now if look.step.since is None else look.step.since
    return jobs.Transition(
        record,
        record.job,
        JobEventKind.GPU_IDLE,
        attempt=record.job.attempt,
        message=warning_words(look.terms, since, look.now),
        details={"idleSince": format_time(datetime.fromtimestamp(since, UTC))},
        is_neutral=True,
    )
