"""Syncing with agents: sessions, leases, capacity and desired state. The effects of reports on runs are in ``agent_reports.py``."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from trainmaster import process_logs
from trainmaster.protocol.agent import PROTOCOL, SyncAnswer, SyncRequest
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import RunRef, job_id, run_id
from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster.protocol.sync_parts import CAPACITY, Sync
from trainmaster.tracing.context import read_stored, run_span
from trainmaster_dispatcher.domain import run_machine
from trainmaster_dispatcher.domain.job_machine import RunEnding
from trainmaster_dispatcher.domain.run_machine import ReportVerdict
from trainmaster_dispatcher.domain.run_orders import UnreadableOrdersError, read_orders
from trainmaster_dispatcher.domain.spec_rendering import may_name_datasets, render
from trainmaster_dispatcher.services import absences, gauges, recovery
from trainmaster_dispatcher.services.agent_reports import (
    Findings,
    follow_run,
    lock_all,
    reports_by_run,
    take_reports,
    write_findings,
)
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.stop_orders import grace_of, stop_of
from trainmaster_dispatcher.store import agents, runs, tenants
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import member_streams as member_store
from trainmaster_dispatcher.store.database import Transaction, to_epoch
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import CLUSTERS, SCHEDULER, wait_set

log = logging.getLogger(__name__)

OLDEST_PROTOCOL = max(PROTOCOL - 1, 1)
_NO_STREAMS: dict[str, list[object]] = {"streams": [], "memberStreams": []}
_LOOK_SECONDS = 1.0
_CHECK_SECONDS, _CHECK_ALL_SECONDS = 2.0, 60.0
_UNUSABLE = "its agent's last capacity report cannot be used"
_LONGEST_WORDS = 300


def _cluster_of(caller: Caller) -> int:
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    process_logs.note(cluster=caller.cluster or "")
    return caller.cluster_id


def superseded() -> ProblemError:
    """Return the error for a session that is no longer the newest of its cluster."""
    return ProblemError(
        Code.SESSION_SUPERSEDED,
        "a newer session of this cluster's agent has taken over; this one must create nothing more",
    )


def _check_is_served(caller: Caller, request: SyncRequest) -> None:
    """Raise ProblemError for a protocol that is not served, and for an agent that is configured for another cluster than its key."""
    if not OLDEST_PROTOCOL <= request.protocol <= PROTOCOL:
        raise ProblemError(
            Code.PROTOCOL_UNSUPPORTED,
            f"protocol {request.protocol} is not served; this dispatcher serves {OLDEST_PROTOCOL} to {PROTOCOL}",
        )
    if request.cluster not in ("", caller.cluster):
        raise ProblemError(
            Code.FORBIDDEN,
            f"the key is of cluster {caller.cluster}, and the agent's configuration names cluster {request.cluster!r}; correct the"
            f" name, or use a key of that cluster",
        )


async def sync(stores: Stores, caller: Caller, given: Sync) -> SyncAnswer:
    """Take an agent's state and renew its lease, in one transaction that is committed before the answer.

    The answer and the log name what could not be read; a capacity report that cannot be used closes the cluster.
    """
    cluster_id = _cluster_of(caller)
    request = given.request
    _check_is_served(caller, request)
    lease = stores.settings.lease_seconds
    async with stores.database.transaction() as tx:
        standing = await agents.standing(tx, cluster_id)
        if standing.session != request.session or standing.holder is None:
            # Reports are processed once it is known whose records they are from: all of them are requested from the agent.
            return await _begin_session(tx, stores, caller, cluster_id, given)
        reports, strange = reports_by_run(request.runs)
        found = Findings(unknown=strange)
        lists_all = request.full and given.names_all
        restored: list[job_store.Transition] = []
        # The store is behind the orders that this agent has received: the store was restored, and no recovery was begun yet.
        is_behind = not standing.is_recovering and request.desired_version > (standing.desired or 0)
        if standing.is_awaited and lists_all:
            _, restored = await recovery.take_up(tx, cluster_id, standing.holder, reports)
        elif is_behind and lists_all:
            await recovery.protect(tx, caller.cluster or "", cluster_id, reports)
        elif lists_all:
            await recovery.forget_ended(tx, cluster_id, reports)
        missing = await lock_all(tx, cluster_id, reports, given.unread) if lists_all else []
        await take_reports(
            tx,
            stores,
            caller,
            cluster_id,
            request,
            reports,
            standing.holder,
            found,
            is_recovering=standing.is_recovering,
        )
        unknown, quarantined = await recovery.leave_quarantined(tx, cluster_id, found.unknown)
        if is_behind and not request.full:
            unknown = []  # quarantined with the full list that is requested from the agent
        await write_findings(tx, found)
        if request.capacity is not None:
            await agents.save_capacity(tx, cluster_id, request.capacity.model_dump(mode="json", by_alias=True))
        elif given.capacity_mistake:
            await agents.close_capacity(tx, cluster_id, f"{_UNUSABLE} ({given.capacity_mistake})")
        to_verify = await absences.ask_to_verify(tx, cluster_id, missing, absences.MISSING)
        differs = await _holds_others(tx, cluster_id, standing.holder, request, standing)
        # Last, so that the lease runs from as late as possible and the contact row is locked only briefly.
        is_current = await agents.renew(tx, cluster_id, request.session, request.number, lease, request.agent_version)
        if not is_current:
            gauges.note_contact(caller.cluster or "", agents.Contact(is_current=False))
            raise superseded()
    gauges.count_reports(found.verdicts, len(found.unknown))
    _tell_refused(caller.cluster or "", given)
    gauges.count_ends(found.transitions, {cluster_id: caller.cluster or ""})
    stores.jobs_changed([t.record.id for t in found.transitions], for_scheduler=found.concerns_scheduler)
    if to_verify or restored:
        stores.jobs_changed([t.record.id for t in (*to_verify, *restored)], [cluster_id])
    if request.capacity is not None or given.capacity_mistake:
        stores.channels.wake(SCHEDULER)
    return SyncAnswer(
        number=request.number,
        epoch=standing.epoch,
        lease_seconds=lease,
        settled=tuple(found.settled),
        unknown=tuple(unknown),
        quarantined=tuple(quarantined),
        send_full=not request.full
        and (differs or standing.is_awaited or standing.is_clearing or (is_behind and bool(found.unknown))),
        send_capacity=request.capacity is None and not given.capacity_mistake and not standing.has_capacity,
        refused=given.refused_in_answer,
        output_bytes=stores.settings.output_bytes,
        takes_use=True,
    )


def _tell_refused(cluster: str, given: Sync) -> None:
    for one in given.refused:
        gauges.count_refused(cluster, is_capacity=one.part == CAPACITY)
        without = f"; taken without {', '.join(one.left_out)}" if one.left_out else ""
        log.warning("cluster %s: its agent's report of %s has a mistake: %s%s", cluster, one.part, one.message, without)
    if given.more_refused:
        gauges.count_refused(cluster, is_capacity=False, many=given.more_refused)
        log.warning("cluster %s: %d more of its agent's reports have mistakes", cluster, given.more_refused)


async def _begin_session(tx: Transaction, stores: Stores, caller: Caller, cluster_id: int, given: Sync) -> SyncAnswer:
    """Accept a session that is not the cluster's newest yet, or refuse it. Its reports come with the full list requested from it."""
    lease, request = stores.settings.lease_seconds, given.request
    contact = await agents.begin_session(tx, cluster_id, request, lease)
    cluster = caller.cluster or ""
    if contact.held_for is not None:
        raise ProblemError(
            Code.CLUSTER_HELD,
            f"another agent with other records acts for cluster {cluster}, and was in contact less than {lease:g} s ago. Two agents"
            f" must not use the same key: stop one of them. If the other one is gone, this one is served in"
            f" {max(1, round(contact.held_for))} s",
            retry_after=max(1.0, contact.held_for),
        )
    gauges.note_contact(cluster, contact)
    if not contact.is_current:
        raise superseded()
    if request.capacity is not None:
        await agents.save_capacity(tx, cluster_id, request.capacity.model_dump(mode="json", by_alias=True))
    elif given.capacity_mistake:
        await agents.close_capacity(tx, cluster_id, f"{_UNUSABLE} ({given.capacity_mistake})")
    transitions = await absences.note_takeover(tx, cluster_id, cluster) if contact.is_new_holder else []
    standing = await agents.standing(tx, cluster_id)

    async def wake() -> None:
        _tell_refused(cluster, given)
        stores.jobs_changed([t.record.id for t in transitions], for_scheduler=False)
        stores.channels.wake(SCHEDULER)

    tx.after_commit(wake)
    return SyncAnswer(
        number=request.number,
        epoch=standing.epoch,
        lease_seconds=lease,
        send_full=True,
        send_capacity=request.capacity is None and not given.capacity_mistake and not standing.has_capacity,
        refused=given.refused_in_answer,
        quarantined=(),
        output_bytes=stores.settings.output_bytes,
        takes_use=True,
    )


async def _holds_others(
    tx: Transaction, cluster_id: int, holder: int, request: SyncRequest, standing: agents.SyncBasis
) -> bool:
    """Return whether agent and store hold different runs.

    Counting all live runs of a large cluster at each sync would cost more than the sync. Equal sets stay equal as long as
    neither side changes them; under load, when they always change, they are compared once in ``_CHECK_SECONDS``.
    """
    said = (request.held_count, request.held_digest)
    age = standing.checked_age
    if age is not None and not request.full:
        if said == (standing.checked_count, standing.checked_digest) and not request.runs and age < _CHECK_ALL_SECONDS:
            return False
        if request.runs and age < _CHECK_SECONDS:
            return False
    found = await runs.digest_of_cluster(tx, cluster_id, holder)
    if found == said:
        await agents.note_checked(tx, cluster_id, *said, standing.checked_at)
    return found != said


async def desired(
    stores: Stores, caller: Caller, session: str, after: int, seconds: float, check: Callable[[], None]
) -> bytes:
    """Return what changed for the caller's cluster after a version, a ``DesiredAnswer`` as JSON text.

    Waits up to ``seconds`` for a change, without holding a connection. ``check`` raises ProblemError once the caller may hear no more;
    it is called at each wake-up of the call.
    """
    cluster_id = _cluster_of(caller)
    loop_ends = stores.clock() + min(seconds, stores.settings.lease_seconds / 3)
    with stores.channels.waiter(CLUSTERS, cluster_id) as woken:
        while True:
            check()
            async with stores.database.transaction() as tx:
                wanted = await agents.wanted(tx, cluster_id)
                if wanted is None or wanted.session not in (session, None):
                    raise superseded()
                # Nobody has the lease after the cluster was declared lost: the next sync begins a session, which gets orders.
                answer = None
                if wanted.session is not None and wanted.version != after:
                    since = 0 if wanted.version < after else after
                    timeout = parse_duration(wanted.placement_timeout)
                    failed: dict[RunRef, str] = {}
                    traced: list[agents.DesiredRun] = []
                    answer = orjson.dumps(await _changes(tx, cluster_id, since, wanted, timeout, failed, traced))
            if answer is not None:
                if stores.traces is not None:
                    stores.traces.sent(traced, caller.cluster or "")
                if failed:
                    await _fail_without_order(stores, caller, failed)
                return answer
            left = loop_ends - stores.clock()
            # Not woken: nothing has changed, or ``watch_desired`` reports the change within a second, at the next call.
            if left <= 0 or not await wait_set(woken, left):
                return orjson.dumps({"version": after, "start": [], "stop": [], "resize": [], **_NO_STREAMS})


async def watch_desired(stores: Stores) -> None:
    """Check once a second whether a wake-up was lost, in one query for all agents that wait at this api."""
    announced: dict[int, int] = {}
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        waiting = stores.channels.waited_for(CLUSTERS)
        if not waiting:
            continue
        try:
            async with stores.database.transaction() as tx:
                versions = await agents.desired_versions(tx, waiting)
        except ProblemError as error:
            log.warning("desired states could not be looked at: %s", error)
            continue
        except Exception:
            # Otherwise an agent whose wake-up was lost would hear of its runs only when its poll ends.
            log.exception("desired states could not be looked at")
            continue
        stores.channels.wake_here(CLUSTERS, [key for key, version in versions.items() if announced.get(key) != version])
        announced = versions


async def _fail_without_order(stores: Stores, caller: Caller, failed: Mapping[RunRef, str]) -> None:
    """End runs for which no order can be built for their cluster: ``failed``, category ``config``, with the message."""
    found = Findings()
    async with stores.database.transaction() as tx:
        jobs = await job_store.lock(tx, [ref.job_key for ref in failed])
        records = await runs.lock(tx, failed)
        now = await to_epoch(tx)
        specs = await job_store.specs(tx, [jobs[ref.job_key].spec_id for ref in records])
        for ref, record in records.items():
            report = run_machine.Report(RunState.FAILED, record.run.generation, record.run.seq + 1)
            outcome = run_machine.apply(record.run, report)
            if record.run.state is not RunState.LEASED or outcome.verdict is not ReportVerdict.APPLIED:
                continue
            job = jobs[ref.job_key]
            ending = RunEnding(RunState.FAILED, category=FailureCategory.CONFIG, message=failed[ref])
            policy = Retries.model_validate(specs.get(job.spec_id, {}).get("retries", {}))
            end = {"category": FailureCategory.CONFIG.value, "message": failed[ref]}
            found.changes.append(runs.RunChange(ref, outcome.run, result={"message": failed[ref], "end": end}))
            follow_run(found, record, job, outcome, ending, policy, now)
        await write_findings(tx, found)
    gauges.count_ends(found.transitions, {_cluster_of(caller): caller.cluster or ""})
    stores.jobs_changed([one.record.id for one in found.transitions])


async def _changes(
    tx: Transaction,
    cluster_id: int,
    since: int,
    wanted: agents.DesiredBasis,
    timeout: float,
    failed: dict[RunRef, str],
    traced: list[agents.DesiredRun],
) -> dict[str, Any]:
    """Return a ``DesiredAnswer`` in wire form. Specifications are passed on as their stored text, unparsed.

    A run for which no order can be built is left out, so that the other runs get theirs; ``failed`` gets the run with the reason.
    ``traced`` gets the runs to start that belong to a trace.
    """
    start: list[dict[str, Any]] = []
    stop: list[dict[str, Any]] = []
    resize: list[dict[str, Any]] = []
    version = wanted.version
    rows = await agents.desired_runs(tx, cluster_id, since, wanted.holder)
    if rows and not rows[-1].is_last:
        # The agent asks again from the last complete version in this answer; runs that it holds by then are not sent again.
        version = max(
            (row.desired_version for row in rows if row.desired_version < rows[-1].desired_version), default=since
        )
    elif rows:
        # Versions of a cluster are committed in order, each as a whole: a version that was added since is included.
        version = max(version, rows[-1].desired_version)
    reads = any(row.state == RunState.LEASED and may_name_datasets(row.spec) for row in rows)
    declared = {row.spec.name for row in await tenants.DATASETS.every(tx)} if reads else set[str]()
    for row in rows:
        try:
            order = _order_of(row, declared, timeout)
        except Exception as error:
            # A run that is to start can only fail. A run that is to stop must stop, whatever its specification says.
            run = run_id(job_id(row.name, row.job_id), row.attempt)
            log.exception("no order can be made for run %s", run, extra={"run_id": run})
            if row.state == RunState.LEASED:
                named = str(error) if isinstance(error, UnreadableOrdersError) else f"{type(error).__name__}: {error}"
                words = " ".join(named.split())[:_LONGEST_WORDS]
                failed[RunRef(row.job_id, row.attempt)] = f"its order for the cluster cannot be made: {words}"
            elif row.state == RunState.STOPPING:
                stop.append({"run": run, "generation": row.generation, **stop_of({}, row.stop_cause, row.stop_grace)})
            continue
        for kind, into in (("start", start), ("resize", resize), ("stop", stop)):
            if kind in order:
                into.append(order[kind])
        if row.trace is not None and "start" in order:
            traced.append(row)
    streams = [
        {"stream": row.id, "run": run_id(job_id(row.name, row.job_id), row.attempt), **row.options}
        for row in await agents.desired_streams(tx, cluster_id, since)
    ]
    member_streams = [
        {
            "stream": row.id,
            "run": run_id(job_id(row.name, row.job_id), row.attempt),
            "role": row.role,
            "index": row.member_index,
            "options": row.options,
        }
        for row in await member_store.desired(tx, cluster_id, since)
    ]
    return {
        "version": version,
        "start": start,
        "stop": stop,
        "resize": resize,
        "streams": streams,
        "memberStreams": member_streams,
    }


def _order_of(row: agents.DesiredRun, declared: Collection[str], timeout: float) -> dict[str, dict[str, Any]]:
    """Return what an agent is to do about one run: ``start``, ``resize`` or both, or ``stop``."""
    job = job_id(row.name, row.job_id)
    run = run_id(job, row.attempt)
    order: dict[str, dict[str, Any]] = {}
    if row.state == RunState.LEASED:
        orders = read_orders(row.orders)
        order["start"] = {
            "run": run,
            "job": job,
            "queue": row.queue,
            "attempt": row.attempt,
            "token": row.attempt,
            "generation": row.generation,
            "spec": orjson.Fragment(render(row.spec, orders, row.parameters, declared)),
            "sizes": row.sizes,
            "pins": row.assumed,
            "placementTimeoutSeconds": timeout + orders.awaits_seconds,
            "disconnectSeconds": row.disconnect_seconds,
        }
        if row.trace is not None and (trace := read_stored(row.trace)) is not None:
            order["start"]["traceparent"] = run_span(trace, row.job_id, row.attempt).traceparent
    if row.state != RunState.STOPPING and row.generation > 1:
        # Also for a run that is to start: the agent may hold it at its first size, and not have reported it yet.
        grace = grace_of(orjson.loads(row.spec))
        wanted = {"sizes": row.sizes, "pins": row.assumed, "graceSeconds": grace}
        order["resize"] = {"run": run, "generation": row.generation, **wanted}
    elif row.state == RunState.STOPPING:
        order["stop"] = {
            "run": run,
            "generation": row.generation,
            **stop_of(orjson.loads(row.spec), row.stop_cause, row.stop_grace),
        }
    return order
