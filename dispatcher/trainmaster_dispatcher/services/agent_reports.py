"""Reports of agents on runs: their effects, gathered before anything is written. The module knows neither leases nor orders."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.protocol.agent import RunEnd, RunReport, SyncRequest
from trainmaster.protocol.ids import BadIdError, RunRef, parse_run_id
from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.states import FailureCategory, JobState, RunState, StopCause
from trainmaster_dispatcher.domain import lifecycle, run_machine
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.job_machine import RunEnding
from trainmaster_dispatcher.domain.run_machine import ReportVerdict
from trainmaster_dispatcher.services import absences, arrays, gauges, recovery, required_outputs
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import agents, runs, scheduling
from trainmaster_dispatcher.store import arrays as array_store
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.database import Transaction, to_epoch
from trainmaster_dispatcher.store.declared import note_change
from trainmaster_dispatcher.store.feed_kinds import FeedKind
from trainmaster_dispatcher.store.keys import Caller

log = logging.getLogger(__name__)

_QUIET = {RunState.ACCEPTED, RunState.PENDING, RunState.RUNNING}
"""States that a run passes through without freeing or taking resources."""
UNVERIFIED = "unverified"
"""Verdict beside those of the run machine: a reported absence that is no evidence."""


@dataclass(slots=True)
class Findings:
    """Effects of a sync's reports, gathered before anything is written."""

    settled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    transitions: list[job_store.Transition] = field(default_factory=list)
    changes: list[runs.RunChange] = field(default_factory=list)
    sizes: dict[RunRef, dict[str, int]] = field(default_factory=dict)
    """New sizes of runs whose resize is over."""
    cool_downs: list[scheduling.NewCoolDown] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    troubles: Counter[int] = field(default_factory=Counter)
    """By cluster: number of runs that the cluster returned or lost, or whose nodes it lost."""
    adopted: list[RunRef] = field(default_factory=list)
    """Runs that this agent holds and that were leased to another one's records."""
    awaiting: list[RunRef] = field(default_factory=list)
    """Changed runs for which pools of their cluster have to grow."""

    @property
    def concerns_scheduler(self) -> bool:
        return not all(transition.is_neutral for transition in self.transitions)


def reports_by_run(reports: Sequence[RunReport]) -> tuple[dict[RunRef, RunReport], list[str]]:
    """Return the reports by run, and the ids that name no run."""
    by_ref: dict[RunRef, RunReport] = {}
    strange = []
    for report in reports:
        try:
            by_ref[parse_run_id(report.run)] = report
        except BadIdError:
            strange.append(report.run)
    return by_ref, strange


async def take_reports(
    tx: Transaction,
    stores: Stores,
    caller: Caller,
    cluster_id: int,
    request: SyncRequest,
    by_ref: Mapping[RunRef, RunReport],
    holder: int,
    found: Findings,
    *,
    is_recovering: bool,
) -> None:
    """Lock the reported runs of this cluster and their jobs, and add the effects of the reports to ``found``."""
    if not by_ref:
        return
    clusters = await runs.clusters_of(tx, by_ref)
    # Other clusters' runs are not this agent's to lock.
    found.unknown += [report.run for ref, report in by_ref.items() if clusters.get(ref) != cluster_id]
    by_ref = {ref: report for ref, report in by_ref.items() if clusters.get(ref) == cluster_id}
    if not by_ref:
        return
    jobs = await job_store.lock(tx, [ref.job_key for ref in by_ref])
    records = await runs.lock(tx, by_ref)
    doubtful, origins = await absences.split(
        tx, cluster_id, by_ref, request.place, {ref: record.run.known for ref, record in records.items()}
    )
    resized = [ref for ref, report in by_ref.items() if report.sizes is not None]
    sizes = await runs.resized(tx, resized) if resized else {}
    by_ref, final = await _with_elements(tx, by_ref, jobs)
    by_ref = await required_outputs.with_outputs(tx, by_ref)
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
        if record is None:
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
        policy = Retries() if ref in final else policies.get(job.spec_id, Retries())
        _take_report(found, record, report, job, policy, now, stores, settles=settles)
    if found.adopted:
        await runs.adopt(tx, found.adopted, holder)
    found.transitions += absences.note_doubtful(doubtful, origins, records, jobs, caller.cluster or "")


async def _with_elements(
    tx: Transaction, by_ref: Mapping[RunRef, RunReport], jobs: Mapping[int, job_store.JobRecord]
) -> tuple[Mapping[RunRef, RunReport], set[RunRef]]:
    """Return the reports, those of arrays whose elements have not all succeeded as of failed runs, and the runs of arrays that no
    retry of the job can change.
    """
    ended = [ref for ref, report in by_ref.items() if report.state.is_terminal and _is_array(jobs.get(ref.job_key))]
    if not ended:
        return by_ref, set()
    await array_store.none_runs(tx, [ref.job_key for ref in ended])
    done = [ref for ref in ended if by_ref[ref].state is RunState.SUCCEEDED]
    verdicts = await arrays.verdicts(tx, [ref.job_key for ref in done])
    failed = {ref: verdicts[ref.job_key] for ref in done if not verdicts[ref.job_key].succeeded}
    changed = dict(by_ref)
    for ref, end in failed.items():
        update = {
            "state": RunState.FAILED,
            "message": end.message,
            "end": RunEnd(category=FailureCategory.EXIT, message=end.message),
        }
        changed[ref] = by_ref[ref].model_copy(update=update)
    return changed, {ref for ref, end in failed.items() if end.is_final}


def _is_array(job: job_store.JobRecord | None) -> bool:
    return job is not None and job.elements is not None


def _settles(
    found: Findings, record: runs.RunRecord, report: RunReport, known: tuple[dict[str, int], bool] | None
) -> bool:
    """Return whether a report ends a resize: members that had to leave have gone, or no capacity was free for more members.

    If so, note the run's sizes.
    """
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
    """Add the effects of one report to ``found``. ``settles``: the report ends a resize, of which the scheduler must be notified."""
    stayed_up = False
    if record.run.stop_cause is StopCause.UNKNOWN and report.state is RunState.CANCELLED:
        # The run was stopped because its agent had lost it, not because a user wanted its end.
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
        # What an agent reports before it knows of a resize is of no use.
        is_of_now = report.generation >= record.run.generation
        moved = report.placement if is_of_now and report.placement != record.placement else None
        status = record.object_status if report.object_status is None else report.object_status
        taken = outcome.verdict in (ReportVerdict.APPLIED, ReportVerdict.DUPLICATE)
        is_other_status = taken and status != record.object_status
        is_reported = outcome.verdict is ReportVerdict.APPLIED and (report.end or report.message or report.members)
        # In an unchanged state only a new message matters, the reason why the run is held up, and where its members are.
        tells_more = report.message != record.said or (moved is not None and report.members)
        if is_reported or is_other_status or (outcome.verdict is ReportVerdict.DUPLICATE and tells_more):
            result = report.model_dump(
                mode="json", by_alias=True, include={"end", "message", "members"}, exclude_none=True
            )
            if status is not None:
                result["objectStatus"] = status
        has_results = outcome.verdict is ReportVerdict.APPLIED and outcome.run.state.has_results
        found.changes.append(
            runs.RunChange(
                record.ref,
                outcome.run,
                result=result,
                results=report.results if has_results else None,
                results_error=report.results_error if has_results else "",
                placement=moved,
                has_nodes=bool(report.placement) or report.state in (RunState.RUNNING, RunState.SUCCEEDED),
                ended_ago=report.ended_seconds_ago,
            )
        )
        tells = moved is not None or settles
        if (
            (tells or is_other_status)
            and outcome.verdict is not ReportVerdict.APPLIED
            and not outcome.run.state.is_terminal
        ):
            # No transition of the run, yet the scheduler's state must learn where the members are now, and who watches the job's
            # object that its status is another one.
            kind = JobEventKind.RUN_MOVED if moved is not None else JobEventKind.RUN_STATUS
            found.transitions.append(
                job_store.Transition(
                    job,
                    job.job,
                    JobEventKind.RUN_RESIZED if settles else kind,
                    attempt=record.ref.attempt,
                    cluster_id=record.cluster_id,
                    message=_members_now(found.sizes[record.ref]) if settles else report.message,
                    details={"sizes": found.sizes[record.ref]} if settles else {},
                    is_neutral=not tells,
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
        lacks_room=end is not None and end.lacks_room,
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
    """Let the job follow its run, and add what has to be stored to ``found``. ``stays``: the run's members have not moved."""
    settled = lifecycle.follow(job.job, record.ref.attempt, outcome, ending, policy, now)
    after = settled.job
    if settled.cool_down_seconds:
        seconds = settled.cool_down_seconds * cool_down_factor
        found.cool_downs.append(
            scheduling.NewCoolDown(job.id, record.cluster_id, seconds, ending.message, ending.lacks_room)
        )
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
            kind=JobEventKind.of_run(outcome.run.state),
            states=tuple(state.value for state in outcome.passed),
            attempt=record.ref.attempt,
            cluster_id=record.cluster_id,
            message=ending.message,
            details=details,
            is_neutral=stays and outcome.run.state in _QUIET and after.state in (JobState.DISPATCHED, JobState.RUNNING),
        )
    )


async def write_findings(tx: Transaction, found: Findings) -> None:
    """Store all findings, in bulk statements."""
    await job_store.write(tx, found.transitions)
    await runs.write(tx, found.changes)
    if found.awaiting and await runs.note_pools(tx, found.awaiting):
        await note_change(tx, FeedKind.PROVISIONING, 0)
    if found.troubles:
        await scheduling.add_trouble(tx, found.troubles)
    if found.sizes:
        await runs.settle_sizes(tx, found.sizes)
    if found.cool_downs:
        await scheduling.add_cool_downs(tx, found.cool_downs)


async def lock_all(
    tx: Transaction, cluster_id: int, reports: Mapping[RunRef, RunReport], unread: Collection[RunRef]
) -> list[runs.RunRecord]:
    """Lock the runs that the agent once reported and that its full list lacks, and return them.

    Runs in ``unread`` are in its list, although their reports could not be read.
    Their jobs and those of the reports are locked together, in the order of their keys, as everywhere.
    """
    held = await runs.reported_to_holder(tx, cluster_id)
    missing = [ref for ref in held if ref not in reports and ref not in unread]
    if not missing:
        return []
    clusters = await runs.clusters_of(tx, reports)
    own = [ref for ref, cluster in clusters.items() if cluster == cluster_id]
    await job_store.lock(tx, [ref.job_key for ref in (*missing, *own)])
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
    """Declare runs lost whose disconnect limit has passed; return how many. Only for the leader, and never right after an outage."""
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
