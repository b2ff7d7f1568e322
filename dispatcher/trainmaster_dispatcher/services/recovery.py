"""Recovery after a restore: runs that agents hold and that the store has forgotten are adopted, or quarantined and shown.

During a recovery nothing starts: a job that is queued in the restored store may run already. The recovery ends once every cluster's
agent has reported all its runs.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.protocol.agent import RunReport, run_digest
from trainmaster.protocol.base import format_time
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import RunRef, job_id, run_id
from trainmaster.protocol.states import JobState
from trainmaster.protocol.suggestions import suggestion
from trainmaster_dispatcher.domain import job_machine
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.run_orders import NO_ORDERS
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import keys, runs, scheduling, tenants
from trainmaster_dispatcher.store import recovery as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

log = logging.getLogger(__name__)

_ADOPTED = "it was running when the store was restored from a backup"


@dataclass(slots=True)
class ForgottenRuns:
    """Runs of a full list that the store had forgotten. ``waiting``: those whose job still has another live run."""

    adopted: list[RunRef] = field(default_factory=list)
    quarantined: dict[str, tuple[int, str]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)


async def take_up(
    tx: Transaction, cluster_id: int, holder: int, reports: Mapping[RunRef, RunReport]
) -> tuple[ForgottenRuns, list[job_store.Transition]]:
    """Adopt those runs of an agent's full list that the store has forgotten and has a waiting job for; quarantine the others.

    The rows of adopted runs are new and ``leased``: the reports are applied to these rows as to any other.
    """
    found = ForgottenRuns()
    clusters = await runs.clusters_of(tx, reports)
    jobs = await job_store.lock(tx, [ref.job_key for ref in reports if clusters.get(ref, cluster_id) == cluster_id])
    known = await runs.clusters_of(tx, reports)
    live = await runs.lock_live(tx, jobs)
    chosen: dict[RunRef, job_store.JobRecord] = {}
    for ref, report in reports.items():
        if ref in known or not report.is_held:
            continue
        job = jobs.get(ref.job_key)
        is_its = job is not None and run_id(job_id(job.name, job.id), ref.attempt) == report.run
        if job is not None and is_its and _may_be_adopted(job, ref, live):
            chosen[ref] = job
        elif not report.state.is_terminal:
            found.quarantined[report.run] = (run_digest(ref), report.state.value)
            if job is not None and is_its and not job.job.state.is_terminal:
                found.waiting.append(report.run)
    transitions = await _adopt(tx, cluster_id, holder, chosen, reports) if chosen else []
    found.adopted = list(chosen)
    await store.quarantine(tx, cluster_id, found.quarantined)
    if not found.waiting:
        await store.note_recovered(tx, cluster_id)
    return found, transitions


def _may_be_adopted(job: job_store.JobRecord, ref: RunRef, live: Mapping[int, runs.RunRecord]) -> bool:
    waits = job.job.state in (JobState.QUEUED, JobState.HELD)
    return waits and ref.attempt > job.job.attempt and ref.job_key not in live


async def _adopt(
    tx: Transaction,
    cluster_id: int,
    holder: int,
    chosen: Mapping[RunRef, job_store.JobRecord],
    reports: Mapping[RunRef, RunReport],
) -> list[job_store.Transition]:
    transitions = [
        job_store.Transition(
            job,
            job_machine.adopt(job.job, ref.attempt),
            kind=JobEventKind.RUN_ADOPTED,
            states=(JobState.DISPATCHED.value,),
            attempt=ref.attempt,
            cluster_id=cluster_id,
            message=_ADOPTED,
            details={"job": JobState.DISPATCHED.value},
        )
        for ref, job in chosen.items()
    ]
    await job_store.write(tx, transitions)
    specs = await job_store.specs(tx, [job.spec_id for job in chosen.values()])
    version = (await runs.raise_desired(tx, [cluster_id]))[cluster_id]
    await runs.insert(
        tx,
        [
            runs.NewRun(
                ref=ref,
                cluster_id=cluster_id,
                digest=run_digest(ref),
                desired_version=version,
                disconnect_seconds=job.disconnect_seconds,
                sizes=reports[ref].sizes or _sizes(specs[job.spec_id]),
                assumed=reports[ref].placement or {},
                orders=NO_ORDERS,
                decision={"why": _ADOPTED, "table": [], "cycle": 0},
            )
            for ref, job in chosen.items()
        ],
    )
    await runs.adopt(tx, list(chosen), holder)
    return transitions


def _sizes(spec: Mapping[str, Any]) -> dict[str, int]:
    return {role["name"]: role.get("replicas", 1) for role in spec["roles"]}


def with_generation(record: runs.RunRecord, report: RunReport) -> runs.RunRecord:
    """Return the run with its agent's generation: the agent may know of stops and resizes that the store has forgotten."""
    if report.generation <= record.run.generation:
        return record
    return dataclasses.replace(record, run=record.run._replace(generation=report.generation))


async def forget_ended(tx: Transaction, cluster_id: int, reports: Mapping[RunRef, RunReport]) -> None:
    """Forget quarantined runs that an agent's full list lacks, or lists as ended."""
    await store.drop_others(tx, cluster_id, [report.run for report in reports.values() if not report.state.is_terminal])


async def leave_quarantined(tx: Transaction, cluster_id: int, unknown: list[str]) -> tuple[list[str], list[str]]:
    """Return which of the runs unknown to the store are to be stopped, and which are to be left alone."""
    if not unknown:
        return [], []
    kept = {row.run for row in await store.quarantined(tx, cluster_id) if not row.stop}
    return [run for run in unknown if run not in kept], [run for run in unknown if run in kept]


async def begin(stores: Stores) -> int:
    """Enter a recovery after the store was restored; return the new store epoch."""
    async with stores.database.transaction() as tx:
        return await store.begin(tx)


async def note_restore(settings: Settings, details: Mapping[str, Any]) -> int:
    """Write to the audit that the store was restored from a backup; return the store epoch."""
    stores = Stores.open(settings)
    try:
        async with stores.database.transaction() as tx:
            epoch = await store.epoch(tx)
            await keys.note_audit(tx, None, "restore backup", "store", "", {**details, "newEpoch": epoch})
    finally:
        await stores.close()
    return epoch


async def begin_unless_on(stores: Stores) -> bool:
    """Enter a recovery because this process has read data that the store does not have any more; return whether none was on yet."""
    async with stores.database.transaction() as tx:
        if await store.is_on(tx):
            return False
        await store.begin(tx)
    return True


async def protect(tx: Transaction, cluster: str, cluster_id: int, reports: Mapping[RunRef, RunReport]) -> None:
    """Quarantine runs of an agent's full list that a restored store has forgotten, before anybody has begun a recovery.

    Nothing else is stopped for an agent's report alone: the agent may be wrong.
    """
    known = await runs.clusters_of(tx, reports)
    forgotten = {
        report.run: (run_digest(ref), report.state.value)
        for ref, report in reports.items()
        if ref not in known and report.is_held and not report.state.is_terminal
    }
    log.error(
        "the agent of cluster %s has received later orders than the store knows: it seems that the store was restored from a backup."
        " %d runs that it has forgotten are left alone. Stop the dispatcher, and run: trainmaster admin recovered",
        cluster,
        len(forgotten),
    )
    await store.quarantine(tx, cluster_id, forgotten)


async def finish(stores: Stores) -> bool:
    """End a recovery by an admin's word; return whether there was one."""
    async with stores.database.transaction() as tx:
        return await store.finish(tx)


async def finish_when_reported(stores: Stores, token: int) -> bool:
    """End a recovery once every cluster's agent has reported its runs; return whether the recovery has ended now."""
    async with stores.database.transaction() as tx:
        if not await store.is_on(tx) or not await scheduling.is_lead(tx, token) or await store.awaited(tx):
            return False
        await store.finish(tx)
    log.warning("every agent has reported what it runs since the store was restored; jobs start again")
    stores.tenants_changed()
    return True


async def list_quarantined(tx: Transaction, caller: Caller, name: str) -> list[dict[str, Any]]:
    """Return the runs that the agent of a cluster holds and that the store has forgotten. Raises ProblemError NOT_FOUND."""
    cluster_id = await _cluster_id(tx, caller, name)
    return [
        {"run": row.run, "state": row.state, "stopping": row.stop, "since": format_time(row.created_at)}
        for row in await store.quarantined(tx, cluster_id)
    ]


async def stop_quarantined(tx: Transaction, caller: Caller, name: str, wanted: list[str]) -> list[str]:
    """Have quarantined runs stopped, all of them if ``wanted`` is empty; return which. Raises ProblemError NOT_FOUND."""
    cluster_id = await _cluster_id(tx, caller, name)
    stopped = await store.ask_stop(tx, cluster_id, wanted)
    missing = sorted(set(wanted) - set(stopped))
    if missing:
        raise ProblemError(Code.NOT_FOUND, f"cluster {name!r} has no quarantined run {missing[0]!r}")
    return stopped


async def _cluster_id(tx: Transaction, caller: Caller, name: str) -> int:
    cluster_id = await tenants.cluster_id(tx, name)
    if cluster_id is None:
        near = suggestion(name, await tenants.CLUSTERS.wire(tx)) if caller.has_every_queue else ""
        raise ProblemError(Code.NOT_FOUND, f"there is no cluster {name!r}{near}")
    return cluster_id
