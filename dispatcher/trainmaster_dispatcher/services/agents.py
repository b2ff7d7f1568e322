"""Syncing with agents: leases, reports, desired state."""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from trainmaster import process_logs
from trainmaster.protocol.admission import pod_requests
from trainmaster.protocol.agent import PROTOCOL, RunReport, SyncAnswer, SyncRequest
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import BadIdError, RunRef, job_id, parse_run_id, run_id
from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.parameters import substitute
from trainmaster.protocol.states import FailureCategory, JobState, RunState, StopCause
from trainmaster.protocol.sync_parts import CAPACITY, Sync
from trainmaster_dispatcher.domain import lifecycle, run_machine
from trainmaster_dispatcher.domain.burst_binding import bound_spec
from trainmaster_dispatcher.domain.job_machine import RunEnding
from trainmaster_dispatcher.domain.run_machine import ReportVerdict
from trainmaster_dispatcher.services import absences, gauges, recovery
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.stop_orders import grace_of, stop_of
from trainmaster_dispatcher.store import agents, datasets, runs, scheduling, tenants
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import Transaction, to_epoch
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import CLUSTERS, SCHEDULER, wait_set

log = logging.getLogger(__name__)

OLDEST_PROTOCOL = max(PROTOCOL - 1, 1)
_LOOK_SECONDS = 1.0
_CHECK_SECONDS, _CHECK_ALL_SECONDS = 2.0, 60.0
_QUIET = {RunState.ACCEPTED, RunState.PENDING, RunState.RUNNING}
UNVERIFIED = "unverified"
"""Beside the verdicts of the run machine: a reported absence that is no evidence."""
_UNUSABLE = "its agent's last capacity report cannot be used"
_LONGEST_WORDS = 300
_DATASETS = '"datasets"'
"""In the text of a specification that names any."""
"""States that a run passes on its way without freeing or taking anything."""


def _cluster_of(caller: Caller) -> int:
    if caller.cluster_id is None:
        raise ProblemError(Code.FORBIDDEN, "only an agent's key opens the agent calls")
    process_logs.note(cluster=caller.cluster or "")
    return caller.cluster_id


def superseded() -> ProblemError:
    """What a session hears that is no longer the newest of its cluster."""
    return ProblemError(
        Code.SESSION_SUPERSEDED,
        "a newer session of this cluster's agent has taken over; this one must create nothing more",
    )


@dataclass(slots=True)
class Findings:
    """What a sync's reports come to, gathered before anything is written."""

    settled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    transitions: list[job_store.Transition] = field(default_factory=list)
    changes: list[runs.RunChange] = field(default_factory=list)
    sizes: dict[RunRef, dict[str, int]] = field(default_factory=dict)
    """Of runs whose resize is over."""
    cool_downs: list[tuple[int, int, float, str]] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    troubles: Counter[int] = field(default_factory=Counter)
    """By cluster: runs that it has returned or lost, or whose nodes it has lost."""
    adopted: list[RunRef] = field(default_factory=list)
    """Runs that this agent holds and that were leased to another one's records."""
    awaiting: list[RunRef] = field(default_factory=list)
    """Runs that have changed for which pools of their cluster have to grow."""

    @property
    def concerns_scheduler(self) -> bool:
        return not all(transition.is_neutral for transition in self.transitions)


async def sync(stores: Stores, caller: Caller, given: Sync) -> SyncAnswer:
    """Take an agent's state and renew its lease, in one transaction that is committed before the answer.

    What could not be read of it is told in the answer, and to the log; a capacity report that cannot be used closes the cluster.
    """
    cluster_id = _cluster_of(caller)
    request = given.request
    if not OLDEST_PROTOCOL <= request.protocol <= PROTOCOL:
        raise ProblemError(
            Code.PROTOCOL_UNSUPPORTED,
            f"protocol {request.protocol} is not served; this dispatcher serves {OLDEST_PROTOCOL} to {PROTOCOL}",
        )
    lease = stores.settings.lease_seconds
    async with stores.database.transaction() as tx:
        standing = await agents.standing(tx, cluster_id)
        if standing.session != request.session or standing.holder is None:
            # What it reports is looked at once it is known whose records it has: it is asked for all of them.
            return await _begin_session(tx, stores, caller, cluster_id, given)
        reports, strange = _by_ref(request.runs)
        found = Findings(unknown=strange)
        lists_all = request.full and given.names_all
        restored: list[job_store.Transition] = []
        # The store is behind what this agent was told: it was restored, and nobody has said so yet.
        is_behind = not standing.is_recovering and request.desired_version > (standing.desired or 0)
        if standing.is_awaited and lists_all:
            _, restored = await recovery.take_up(tx, cluster_id, standing.holder, reports)
        elif is_behind and lists_all:
            await recovery.protect(tx, caller.cluster or "", cluster_id, reports)
        elif lists_all:
            await recovery.forget_ended(tx, cluster_id, reports)
        missing = await _lock_all(tx, cluster_id, reports, given.unread) if lists_all else []
        await _take_reports(
            tx, stores, caller, request, reports, standing.holder, found, is_recovering=standing.is_recovering
        )
        unknown, quarantined = await recovery.leave_quarantined(tx, cluster_id, found.unknown)
        if is_behind and not request.full:
            unknown = []  # they are quarantined with the full list that it is asked for
        await write_findings(tx, found)
        if request.capacity is not None:
            await agents.save_capacity(tx, cluster_id, request.capacity.model_dump(mode="json", by_alias=True))
        elif given.capacity_mistake:
            await agents.close_capacity(tx, cluster_id, f"{_UNUSABLE} ({given.capacity_mistake})")
        asked = await absences.ask_to_verify(tx, cluster_id, missing, absences.MISSING)
        differs = await _holds_others(tx, cluster_id, request, standing)
        # Last, so that the lease runs from as late as possible and the contact row is locked only briefly.
        is_current = await agents.renew(tx, cluster_id, request.session, request.number, lease, request.agent_version)
        if not is_current:
            gauges.note_contact(caller.cluster or "", agents.Contact(is_current=False))
            raise superseded()
    gauges.count_reports(found.verdicts, len(found.unknown))
    _tell_refused(caller.cluster or "", given)
    gauges.count_ends(found.transitions, {cluster_id: caller.cluster or ""})
    stores.jobs_changed([t.record.id for t in found.transitions], for_scheduler=found.concerns_scheduler)
    if asked or restored:
        stores.jobs_changed([t.record.id for t in (*asked, *restored)], [cluster_id])
    if request.capacity is not None or given.capacity_mistake:
        stores.soft.wake(SCHEDULER)
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
        refused=given.refused,
    )


def _tell_refused(cluster: str, given: Sync) -> None:
    for one in given.refused:
        gauges.count_refused(cluster, is_capacity=one.part == CAPACITY)
        without = f"; taken without {', '.join(one.left_out)}" if one.left_out else ""
        log.warning("cluster %s: its agent's report of %s has a mistake: %s%s", cluster, one.part, one.message, without)


async def _begin_session(tx: Transaction, stores: Stores, caller: Caller, cluster_id: int, given: Sync) -> SyncAnswer:
    """Take a session that is not the cluster's newest yet, or refuse it. Its reports come with the full list that it is asked for."""
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
    told = await absences.note_takeover(tx, cluster_id, cluster) if contact.is_new_holder else []
    standing = await agents.standing(tx, cluster_id)

    async def wake() -> None:
        _tell_refused(cluster, given)
        stores.jobs_changed([t.record.id for t in told], for_scheduler=False)
        stores.soft.wake(SCHEDULER)

    tx.after_commit(wake)
    return SyncAnswer(
        number=request.number,
        epoch=standing.epoch,
        lease_seconds=lease,
        send_full=True,
        send_capacity=request.capacity is None and not given.capacity_mistake and not standing.has_capacity,
        refused=given.refused,
        quarantined=(),
    )


async def _holds_others(tx: Transaction, cluster_id: int, request: SyncRequest, standing: Any) -> bool:
    """Whether agent and store hold different runs.

    Counting all live runs of a large cluster at each sync would cost more than the sync. What was equal stays equal as long as
    neither side changes it; under load, when it always changes, it is compared once in ``_CHECK_SECONDS``.
    """
    said = (request.held_count, request.held_digest)
    age = standing.checked_age
    if age is not None and not request.full:
        if said == (standing.checked_count, standing.checked_digest) and not request.runs and age < _CHECK_ALL_SECONDS:
            return False
        if request.runs and age < _CHECK_SECONDS:
            return False
    found = await runs.digest_of_cluster(tx, cluster_id, standing.holder)
    if found == said:
        await agents.note_checked(tx, cluster_id, *said, standing.checked_at)
    return found != said


def _by_ref(reports: Sequence[RunReport]) -> tuple[dict[RunRef, RunReport], list[str]]:
    """The reports by run, and what is no id of a run."""
    by_ref: dict[RunRef, RunReport] = {}
    strange = []
    for report in reports:
        try:
            by_ref[parse_run_id(report.run)] = report
        except BadIdError:
            strange.append(report.run)
    return by_ref, strange


async def _take_reports(
    tx: Transaction,
    stores: Stores,
    caller: Caller,
    request: SyncRequest,
    by_ref: Mapping[RunRef, RunReport],
    holder: int,
    found: Findings,
    *,
    is_recovering: bool,
) -> None:
    if not by_ref:
        return
    cluster_id = _cluster_of(caller)
    jobs = await job_store.lock(tx, [ref.job_key for ref in by_ref])
    records = await runs.lock(tx, by_ref)
    doubtful, origins = await absences.split(
        tx, cluster_id, by_ref, request.place, {ref: record.run.known for ref, record in records.items()}
    )
    resized = [ref for ref, report in by_ref.items() if report.sizes is not None]
    sizes = await runs.resized(tx, resized) if resized else {}
    failed = [
        jobs[ref.job_key].spec_id
        for ref, report in by_ref.items()
        if report.state is RunState.FAILED and ref.job_key in jobs
    ]
    policies = {
        spec_id: Retries.model_validate(spec.get("retries", {}))
        for spec_id, spec in (await job_store.specs(tx, failed)).items()
    }
    now = await to_epoch(tx)
    for ref, report in by_ref.items():
        record = records.get(ref)
        if record is None or record.cluster_id != cluster_id:
            found.unknown.append(report.run)
            continue
        if is_recovering:
            record = recovery.with_generation(record, report)
        if ref in doubtful and record.run.is_live:
            found.verdicts[UNVERIFIED] += 1
            continue
        if record.holder != holder and report.is_held:
            found.adopted.append(ref)
        job = jobs[ref.job_key]
        settles = _settles(found, record, report, sizes.get(ref))
        policy = policies.get(job.spec_id, Retries())
        _take_report(found, record, report, job, policy, now, stores, settles=settles)
    if found.adopted:
        await runs.adopt(tx, found.adopted, holder)
    found.transitions += absences.note_doubtful(doubtful, origins, records, jobs, caller.cluster or "")


def _settles(
    found: Findings, record: runs.RunRecord, report: RunReport, known: tuple[dict[str, int], bool] | None
) -> bool:
    """Whether a report ends a resize: members that were to leave have gone, or there was no room for more. Notes the sizes then."""
    if known is None or report.sizes is None or report.generation != record.run.generation:
        return False
    wanted, is_shrinking = known
    there: Counter[str] = Counter()
    for roles in (report.placement or {}).values():
        there.update(roles)
    kept = {role: max(1, min(size, report.sizes.get(role, size))) for role, size in wanted.items()}
    if kept == wanted and not (is_shrinking and all(there[role] <= size for role, size in wanted.items())):
        return False
    found.sizes[record.ref] = kept
    return True


def _take_report(
    found: Findings,
    record: runs.RunRecord,
    report: RunReport,
    job: job_store.JobRecord,
    policy: Retries,
    now: float,
    stores: Stores,
    *,
    settles: bool = False,
) -> None:
    """``settles``: it ends a resize, of which the scheduler has to learn."""
    stayed_up = False
    if record.run.stop_cause is StopCause.UNKNOWN and report.state is RunState.CANCELLED:
        # It was stopped because its agent had lost it, not because anybody wanted its end.
        report = report.model_copy(update={"state": RunState.LOST, "message": job.job.message or absences.MISSING})
        stayed_up = record.run.known
    outcome = run_machine.apply(record.run, run_machine.Report(report.state, report.generation, report.seq))
    found.verdicts[outcome.verdict] += 1
    if outcome.verdict is ReportVerdict.ILLEGAL:
        log.error("illegal report of run %s: %s", report.run, outcome.why, extra={"run_id": report.run})
    if report.state.is_terminal and outcome.run.state.is_terminal:
        found.settled.append(report.run)
    elif outcome.run.state.is_terminal:
        found.unknown.append(report.run)
    if outcome.run != record.run:
        if record.awaits_pools:
            found.awaiting.append(record.ref)
        result = None
        is_told = outcome.verdict is ReportVerdict.APPLIED and (report.end or report.message or report.members)
        # In an unchanged state only another message is news: what holds the run up, while it does.
        if is_told or (outcome.verdict is ReportVerdict.DUPLICATE and report.message != record.said):
            result = report.model_dump(
                mode="json", by_alias=True, include={"end", "message", "members"}, exclude_none=True
            )
        # What an agent says before it has heard of a resize is of no use.
        is_of_now = report.generation >= record.run.generation
        moved = report.placement if is_of_now and report.placement != record.placement else None
        found.changes.append(
            runs.RunChange(
                record.ref,
                outcome.run,
                result=result,
                placement=moved,
                has_nodes=bool(report.placement) or report.state in (RunState.RUNNING, RunState.SUCCEEDED),
                ended_ago=report.ended_seconds_ago,
            )
        )
        tells = moved is not None or settles
        if tells and outcome.verdict is not ReportVerdict.APPLIED and not outcome.run.state.is_terminal:
            # No transition of the run, yet the scheduler's view must learn where its members are now.
            found.transitions.append(
                job_store.Transition(
                    job,
                    job.job,
                    "run.resized" if settles else "run.moved",
                    attempt=record.ref.attempt,
                    cluster_id=record.cluster_id,
                    message=_members_now(found.sizes[record.ref]) if settles else "",
                    details={"sizes": found.sizes[record.ref]} if settles else {},
                )
            )
    if outcome.verdict is ReportVerdict.APPLIED:
        ending = dataclasses.replace(_ending(report), cluster_stayed_up=stayed_up)
        stays = not settles and (report.placement is None or report.placement == record.placement)
        follow_run(found, record, job, outcome, ending, policy, now, stores.settings.cool_down_factor, stays=stays)
        if settles:
            found.transitions[-1].details["sizes"] = found.sizes[record.ref]


def _members_now(sizes: Mapping[str, int]) -> str:
    return "members now: " + ", ".join(f"{size} {role}" for role, size in sorted(sizes.items()))


def _ending(report: RunReport) -> RunEnding:
    end = report.end
    message = report.message or (end.message if end else "")
    if end is not None and end.member and report.state is RunState.FAILED and end.member not in message:
        message = f"{end.member}: {message}" if message else f"member {end.member} failed"
    return RunEnding(
        state=report.state,
        category=end.category if end else None,
        exit_code=end.exit_code if end else None,
        message=message,
    )


def follow_run(
    found: Findings,
    record: runs.RunRecord,
    job: job_store.JobRecord,
    outcome: run_machine.RunOutcome,
    ending: RunEnding,
    policy: Retries,
    now: float,
    cool_down_factor: float = 1.0,
    *,
    stays: bool = False,
) -> None:
    """Let the job follow its run, and add what has to be stored to the findings. ``stays``: its members are where they were."""
    settled = lifecycle.follow(job.job, record.ref.attempt, outcome, ending, policy, now)
    after = settled.job
    if settled.cool_down_seconds:
        seconds = settled.cool_down_seconds * cool_down_factor
        found.cool_downs.append((job.id, record.cluster_id, seconds, ending.message))
    details: dict[str, object] = {}
    if after.state is not job.job.state:
        details["job"] = after.state.value
    if outcome.run.state in (RunState.RETURNED, RunState.LOST) or ending.category is FailureCategory.NODE_LOST:
        found.troubles[record.cluster_id] += 1
    if outcome.run.state.is_terminal:
        details |= {
            key: value
            for key, value in (
                ("category", ending.category and ending.category.value),
                ("exitCode", ending.exit_code),
                ("holdUntil", after.hold_until),
            )
            if value is not None
        }
    found.transitions.append(
        job_store.Transition(
            job,
            after,
            kind=f"run.{outcome.run.state.value}",
            states=tuple(state.value for state in outcome.passed),
            attempt=record.ref.attempt,
            cluster_id=record.cluster_id,
            message=ending.message,
            details=details,
            is_neutral=stays and outcome.run.state in _QUIET and after.state in (JobState.DISPATCHED, JobState.RUNNING),
        )
    )


async def write_findings(tx: Transaction, found: Findings) -> None:
    """Store everything that was found, sets at a time."""
    await job_store.write(tx, found.transitions)
    await runs.write(tx, found.changes)
    if found.awaiting and await runs.note_pools(tx, found.awaiting):
        await tenants.note_change(tx, "provisioning", 0)
    if found.troubles:
        await scheduling.add_trouble(tx, found.troubles)
    if found.sizes:
        await runs.settle_sizes(tx, found.sizes)
    if found.cool_downs:
        await scheduling.add_cool_downs(tx, found.cool_downs)


async def _lock_all(
    tx: Transaction, cluster_id: int, reports: Mapping[RunRef, RunReport], unread: Collection[RunRef]
) -> list[runs.RunRecord]:
    """Lock the runs that the agent once reported and that its full list lacks, and return them.

    Those in ``unread`` are in its list, though nothing else is known of them.
    Their jobs and those of the reports are locked in one go, as everybody locks jobs: in the order of their keys.
    """
    held = await runs.reported_to_holder(tx, cluster_id)
    missing = [ref for ref in held if ref not in reports and ref not in unread]
    if not missing:
        return []
    await job_store.lock(tx, [ref.job_key for ref in (*missing, *reports)])
    return list((await runs.lock(tx, missing)).values())


async def give_up(tx: Transaction, refs: Sequence[RunRef], ending: RunEnding, found: Findings) -> None:
    """Declare runs lost, unless they have ended meanwhile."""
    if not refs:
        return
    jobs = await job_store.lock(tx, [ref.job_key for ref in refs])
    records = await runs.lock(tx, refs)
    now = await to_epoch(tx)
    for record in records.values():
        outcome = lifecycle.give_up(record.run)
        if outcome is None:
            continue
        found.changes.append(runs.RunChange(record.ref, outcome.run, result={"message": ending.message}))
        follow_run(found, record, jobs[record.ref.job_key], outcome, ending, Retries(), now)


async def give_up_overdue(stores: Stores, token: int) -> int:
    """Call runs lost whose disconnect limit has passed; how many. Only the leader does, and never right after an outage."""
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        if not await agents.service_is_back(tx, stores.settings.lease_seconds):
            return 0
        margin = stores.settings.lost_margin_seconds
        found = Findings()
        silent = [record.ref for record in await runs.overdue(tx, margin)]
        gone = [record.ref for record in await runs.orphaned(tx, margin) if record.ref not in set(silent)]
        for refs, message in (
            (silent, "no contact with its cluster for longer than onDisconnect allows"),
            (gone, "the agent that held it was replaced by one that does not know it"),
        ):
            if refs:
                await give_up(tx, refs, RunEnding(RunState.LOST, message=message), found)
        await write_findings(tx, found)
        await agents.unset_checked(tx, {t.cluster_id for t in found.transitions if t.cluster_id is not None})
        names = await gauges.cluster_names(tx) if found.transitions else {}
    gauges.count_ends(found.transitions, names)
    if found.transitions:
        stores.jobs_changed([t.record.id for t in found.transitions])
    return len(found.transitions)


async def desired(
    stores: Stores, caller: Caller, session: str, after: int, seconds: float, check: Callable[[], None]
) -> bytes:
    """What changed for the caller's cluster after a version, a ``DesiredAnswer`` as JSON text.

    Waits up to ``seconds`` for it, holding no connection. ``check`` raises ProblemError once the caller may hear no more; it is called
    each time the call is woken.
    """
    cluster_id = _cluster_of(caller)
    loop_ends = stores.clock() + min(seconds, stores.settings.lease_seconds / 3)
    with stores.soft.waiter(CLUSTERS, cluster_id) as woken:
        while True:
            check()
            async with stores.database.transaction() as tx:
                wanted = await agents.wanted(tx, cluster_id)
                if wanted is None or wanted.session not in (session, None):
                    raise superseded()
                # Nobody has the lease after the cluster was declared lost: the next sync begins a session, and then there are orders.
                answer = None
                if wanted.session is not None and wanted.version != after:
                    since = 0 if wanted.version < after else after
                    timeout = parse_duration(wanted.placement_timeout)
                    failed: dict[RunRef, str] = {}
                    answer = orjson.dumps(await _changes(tx, cluster_id, since, wanted, timeout, failed))
            if answer is not None:
                if failed:
                    await _fail_without_order(stores, caller, failed)
                return answer
            left = loop_ends - stores.clock()
            # Not woken: nothing has changed, or ``watch_desired`` tells within a second of what has, at the next call.
            if left <= 0 or not await wait_set(woken, left):
                return orjson.dumps({"version": after, "start": [], "stop": [], "resize": [], "streams": []})


async def watch_desired(stores: Stores) -> None:
    """Look once a second whether a wake-up was lost, in one query for all agents that wait at this api."""
    told: dict[int, int] = {}
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        waiting = stores.soft.waited_for(CLUSTERS)
        if not waiting:
            continue
        try:
            async with stores.database.transaction() as tx:
                versions = await agents.desired_versions(tx, waiting)
        except ProblemError as error:
            log.warning("desired states could not be looked at: %s", error)
            continue
        except Exception:
            # Without it an agent whose wake-up was lost would hear of its runs only when its poll ends.
            log.exception("desired states could not be looked at")
            continue
        stores.soft.wake_here(CLUSTERS, [key for key, version in versions.items() if told.get(key) != version])
        told = versions


async def _fail_without_order(stores: Stores, caller: Caller, failed: Mapping[RunRef, str]) -> None:
    """End runs of which no order can be made for their cluster: ``failed``, category ``config``, with the words."""
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
    tx: Transaction, cluster_id: int, since: int, wanted: Any, timeout: float, failed: dict[RunRef, str]
) -> dict[str, Any]:
    """A ``DesiredAnswer`` in wire form. Specifications go through as the text that is stored, unread.

    A run of which no order can be made is left out, so that the others get theirs; ``failed`` gets it with the reason.
    """
    start: list[dict[str, Any]] = []
    stop: list[dict[str, Any]] = []
    resize: list[dict[str, Any]] = []
    version = wanted.version
    rows = await agents.desired_runs(tx, cluster_id, since, wanted.holder)
    if rows and not rows[-1].is_last:
        # The agent asks again from the last version that is here as a whole; runs that it holds by then are not sent again.
        version = max(
            (row.desired_version for row in rows if row.desired_version < rows[-1].desired_version), default=since
        )
    elif rows:
        # Versions of a cluster are committed in their order, each as a whole: one that came since is here, too.
        version = max(version, rows[-1].desired_version)
    reads = any(row.state == RunState.LEASED and _DATASETS in row.spec for row in rows)
    declared = {one.name for one in await datasets.datasets(tx)} if reads else set[str]()
    for row in rows:
        try:
            order = _order_of(row, declared, timeout)
        except Exception as error:
            # One that is to start can only fail. One that is to stop must stop, whatever its specification says.
            run = run_id(job_id(row.name, row.job_id), row.attempt)
            log.exception("no order can be made for run %s", run, extra={"run_id": run})
            if row.state == RunState.LEASED:
                words = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_WORDS]
                failed[RunRef(row.job_id, row.attempt)] = f"its order for the cluster cannot be made: {words}"
            elif row.state == RunState.STOPPING:
                stop.append({"run": run, "generation": row.generation, **stop_of({}, row.stop_cause, row.stop_grace)})
            continue
        for kind, into in (("start", start), ("resize", resize), ("stop", stop)):
            if kind in order:
                into.append(order[kind])
    streams = [
        {"stream": row.id, "run": run_id(job_id(row.name, row.job_id), row.attempt), **row.options}
        for row in await agents.desired_streams(tx, cluster_id, since)
    ]
    return {"version": version, "start": start, "stop": stop, "resize": resize, "streams": streams}


def _order_of(row: Any, declared: Collection[str], timeout: float) -> dict[str, dict[str, Any]]:
    """What an agent is to do about one run: ``start``, ``resize`` or both, or ``stop``."""
    job = job_id(row.name, row.job_id)
    run = run_id(job, row.attempt)
    order: dict[str, dict[str, Any]] = {}
    if row.state == RunState.LEASED:
        order["start"] = {
            "run": run,
            "job": job,
            "queue": row.queue,
            "attempt": row.attempt,
            "token": row.attempt,
            "generation": row.generation,
            "spec": _spec_of(row, declared),
            "sizes": row.sizes,
            "pins": row.assumed,
            "placementTimeoutSeconds": timeout + (row.awaits or 0.0),
            "disconnectSeconds": row.disconnect_seconds,
        }
    if row.state != RunState.STOPPING and row.generation > 1:
        # Of one to start, too: the agent may hold it at its first size, and not have said so yet.
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


def _spec_of(row: Any, declared: Collection[str]) -> Any:
    """``declared``: data of which the dispatcher knows where it is; an agent looks for all else that a job reads."""
    reads = bool(declared) and _DATASETS in row.spec
    if row.parameters is None and row.narrowed is None and row.burst is None and not reads:
        return orjson.Fragment(row.spec)
    spec = orjson.loads(row.spec)
    if reads:
        placement = spec.get("placement", {})
        placement["datasets"] = [name for name in placement.get("datasets", ()) if name not in declared]
    if row.burst is not None:
        spec = bound_spec(spec, row.burst["limitSeconds"], row.burst["binding"])
    if row.parameters is not None:
        spec = substitute(spec, row.parameters)
    return spec if row.narrowed is None else _narrowed(spec, **row.narrowed)


def _narrowed(spec: dict[str, Any], resource: str, selector: dict[str, str]) -> dict[str, Any]:
    """The specification with members that take a device bound to the product that they are charged for."""
    for role in spec["roles"]:
        template, pod = role.get("template"), (role.get("podTemplate") or {}).get("spec")
        if template is not None and resource in template.get("resources", {}):
            template["nodeSelector"] = {**template.get("nodeSelector", {}), **selector}
        elif pod is not None and resource in pod_requests(role["podTemplate"]):
            pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **selector}
    return spec
