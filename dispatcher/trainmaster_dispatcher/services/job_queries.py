"""Queries for people: jobs, events, reasons, queues and clusters."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.answers import DependencyView, GroupDependencyView, JobDependencies
from trainmaster.protocol.arrays import ElementOf
from trainmaster.protocol.base import format_time
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import job_id, run_id
from trainmaster.protocol.parameters import substitute
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.quantities import format_quantity
from trainmaster.protocol.reasons import Reason, Tier, Token
from trainmaster.protocol.states import ClusterKind, ConditionState, HoldCause, JobState, QueueState, Wish
from trainmaster.protocol.sync_parts import read_capacity
from trainmaster.protocol.tenants import ClusterSpec, EventView, JobView, PriorityClassSpec, RunView
from trainmaster_dispatcher.containment import Part, note
from trainmaster_dispatcher.domain.recovery import closed_by_recovery
from trainmaster_dispatcher.services import arrays, usage_ledger
from trainmaster_dispatcher.services.bursting import as_money
from trainmaster_dispatcher.services.deadlines import standing_of, with_deadline
from trainmaster_dispatcher.services.dependencies import words_on_open
from trainmaster_dispatcher.services.feed_follower import overpromised
from trainmaster_dispatcher.services.job_actions import BulkFilter, find_key, read_job_id, to_filter
from trainmaster_dispatcher.services.ownership import check_owns, clusters_of
from trainmaster_dispatcher.services.use_views import shown_with_job
from trainmaster_dispatcher.store import dependencies as dependency_store
from trainmaster_dispatcher.store import element_jobs, keys, outbox, runs, scheduling, tenants
from trainmaster_dispatcher.store import jobs as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.event_feed import FeedEvent
from trainmaster_dispatcher.store.keys import Caller

MOST_PER_PAGE = 1000
_LONGEST_CURSOR = 64
_VIEWS_PER_SLICE = 100


def read_cursor(text: str | None) -> int | None:
    """Return the key in a cursor. Raises ProblemError BAD_CURSOR."""
    if text is None:
        return None
    try:
        if len(text) > _LONGEST_CURSOR:
            raise ValueError(f"{len(text)} characters")
        head, _, digits = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode().partition(":")
        key = int(digits)
        if head != "before" or not 0 <= key < 2**63:
            raise ValueError(head)
        return key
    except ValueError as error:
        raise ProblemError(Code.BAD_CURSOR, "the cursor is not one that this API gave out") from error


def make_cursor(key: int) -> str:
    return urlsafe_b64encode(f"before:{key}".encode()).decode().rstrip("=")


def job_view(row: store.ShownJob, *, spec: dict[str, Any] | None = None, attempts: Sequence[RunView] = ()) -> JobView:
    return JobView(
        id=job_id(row.name, row.id),
        name=row.name,
        queue=row.queue,
        priority_class=row.priority_class,
        priority=row.priority,
        state=row.state,
        shown_state=row.shown_state,
        hold_cause=row.hold_cause,
        hold_until=row.hold_until,
        deadline=row.deadline,
        deadline_state=standing_of(row),
        message=row.message,
        attempt=row.attempt,
        retries_used=row.retries_used,
        version=row.version,
        cluster=row.cluster,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        ran_seconds=row.ran_seconds,
        running_since=row.running_since,
        submitted_by=row.submitted_by or "",
        submitted_through=row.submitted_through,
        labels=row.labels or {},
        group=row.group,
        parameters=row.parameters,
        spec=spec if spec is None or row.parameters is None else substitute(spec, row.parameters),
        runs=list(attempts),
    )


def job_line(row: store.ShownJob) -> dict[str, Any]:
    """Return a job as a line of a list: the JSON of ``job_view`` without empty fields, in less than half of the time.

    A page has up to a thousand lines, and other callers wait meanwhile.
    """
    line = {
        "id": job_id(row.name, row.id),
        "name": row.name,
        "queue": row.queue,
        "priorityClass": row.priority_class,
        "priority": row.priority,
        "state": row.state,
        "shownState": row.wish or row.state,
        "holdCause": row.hold_cause,
        "holdUntil": _moment(row.hold_until),
        "deadline": _moment(row.deadline),
        "deadlineState": standing_of(row),
        "message": row.message or None,
        "attempt": row.attempt,
        "retriesUsed": row.retries_used,
        "version": row.version,
        "cluster": row.cluster,
        "submittedAt": _moment(row.submitted_at),
        "startedAt": _moment(row.started_at),
        "endedAt": _moment(row.ended_at),
        "ranSeconds": row.ran_seconds,
        "runningSince": _moment(row.running_since),
        "submittedBy": row.submitted_by or "",
        "submittedThrough": row.submitted_through,
        "labels": row.labels or None,
        "group": row.group,
        "parameters": row.parameters,
        "undelivered": 0,
    }
    return {key: value for key, value in line.items() if value is not None}


def _moment(at: datetime | None) -> str | None:
    return None if at is None else format_time(at)


async def list_jobs(
    tx: Transaction, caller: Caller, wanted: BulkFilter | None, cursor: str | None, limit: int
) -> dict[str, Any]:
    """Return a page of jobs, newest first, and the cursor of the next page. An owner sees no parameters of them."""
    page, following = await page_of(tx, await filter_of(tx, caller, wanted), cursor, limit)
    views = []
    for number, row in enumerate(page, 1):
        views.append(job_line(row._replace(parameters=None) if caller.is_owner else row))
        if number % _VIEWS_PER_SLICE == 0:
            await asyncio.sleep(0)  # let other calls run: a thousand views take some 10 ms
    return {"jobs": views, "next": following}


async def filter_of(tx: Transaction, caller: Caller, wanted: BulkFilter | None) -> store.Filter:
    """Return the store's filter for the jobs that a caller may see, of those that are wanted. Raises ProblemError."""
    if wanted is not None and wanted != BulkFilter():
        return await to_filter(tx, caller, wanted)
    if caller.has_every_queue:
        return store.Filter()
    return store.Filter(owned=caller.clusters) if caller.is_owner else store.Filter(below=tuple(caller.queues))


async def page_of(
    tx: Transaction, found: store.Filter, cursor: str | None, limit: int, kind: str | None = None
) -> tuple[Sequence[store.ShownJob], str | None]:
    """Return a page of jobs, newest first, and the cursor of the next page; with ``kind``, of those that were submitted as manifests
    of this kind. Raises ProblemError BAD_CURSOR.
    """
    rows = await store.page(tx, found, read_cursor(cursor), limit + 1, kind)
    page = rows[:limit]
    return page, make_cursor(page[-1].id) if len(rows) > limit else None


def run_line(row: runs.RunLine) -> dict[str, Any]:
    """Return a run in a line."""
    line = {
        "attempt": row.attempt,
        "cluster": row.cluster,
        "state": row.state,
        "startedAt": _moment(row.started_at),
        "endedAt": _moment(row.ended_at),
    }
    return {key: value for key, value in line.items() if value is not None}


def _dump(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    for key in (
        "runs",
        "labels",
        "members",
        "scores",
        "placement",
        "message",
        "states",
        "details",
        "whyHere",
        "resultsError",
    ):
        if key in data and not data[key]:
            del data[key]
    return data


async def show_job(tx: Transaction, caller: Caller, text: str, currency: str) -> dict[str, Any]:
    """Return one job with its specification and all its runs; to the owner of its cluster without what it says, does and costs.

    ``currency``: of the installation.
    """
    if caller.is_owner:
        return await _job_of_cluster(tx, caller, text)
    key = await find_key(tx, caller, text)
    row = await store.view(tx, key)
    if row is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no job {text!r}")
    spec = (await store.specs(tx, [row.spec_id])).get(row.spec_id, {})
    attempts = [_run_view(text, run) for run in await runs.of_job(tx, key)]
    ended = next((run for run in reversed(attempts) if run.state.has_results), None)
    view = job_view(row, spec=spec)
    if ended is not None:
        view = view.model_copy(update={"results": ended.results, "results_error": ended.results_error})
    data = _dump(view)
    data["runs"] = [_dump(run) for run in attempts]
    if row.notifies and (given_up := await outbox.dead_of_job(tx, key)):
        data["undelivered"] = given_up
    if row.elements is not None:
        data["elements"] = _dump(await arrays.counts_of(tx, key, row.elements))
    if (found := await element_jobs.array_of(tx, key)) is not None:
        array, name, element = found
        data["elementOf"] = _dump(ElementOf(job=job_id(name, array), element=element))
    if row.attempt and (used := await shown_with_job(tx, key)) is not None:
        data["use"] = used
    if row.attempt and caller.has(Permission.USAGE_READ, row.queue):
        cost = await usage_ledger.cost_of(tx, key)
        if cost is not None and cost.is_priced:
            data["cost"] = {"cost": as_money(cost.cost), "charge": as_money(cost.charge), "currency": currency}
    return data


async def runs_of(tx: Transaction, texts: Mapping[int, str]) -> dict[int, list[dict[str, Any]]]:
    """Return the runs of jobs as in answers, those of each job in order; ``texts``: the ids of the jobs by their keys."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in await runs.of_jobs(tx, list(texts)):
        found.setdefault(row.job_id, []).append(_dump(_run_view(texts[row.job_id], row)))
    return found


async def _job_of_cluster(tx: Transaction, caller: Caller, text: str) -> dict[str, Any]:
    """Return a job whose latest run is or was on a cluster of this owner, with its runs there: neither its specification and
    parameters nor why its runs were sent there, which tells of other clusters and queues.

    Raises ProblemError NOT_FOUND for all other jobs.
    """
    name, key = read_job_id(text)
    row = await store.view(tx, key)
    if row is None or row.name != name or row.cluster is None or not caller.owns(row.cluster):
        raise ProblemError(Code.NOT_FOUND, f"there is no job {text!r} on {clusters_of(caller)}")
    data = _dump(job_view(row._replace(parameters=None)))
    there = [
        _run_view(text, run._replace(decision={}, results=None, results_error=None))
        for run in await runs.of_job(tx, key)
        if caller.owns(run.cluster)
    ]
    data["runs"] = [_dump(run) for run in there]
    return data


def _run_view(job: str, row: runs.ShownRun) -> RunView:
    result: runs.StoredResult = row.result or {}
    end: runs.StoredEnd = result.get("end") or {}
    return RunView(
        id=run_id(job, row.attempt),
        attempt=row.attempt,
        cluster=row.cluster,
        state=row.state,
        message=result.get("message") or end.get("message") or "",
        category=end.get("category"),
        exit_code=end.get("exitCode"),
        signal=end.get("signal"),
        why_here=row.decision.get("why", ""),
        scores={"table": row.decision.get("table", [])},
        leased_at=row.leased_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        silent_since=row.silent_since,
        members=list(result.get("members", ())),
        placement=row.placement,
        burst=_burst_view(row.decision.get("burst")),
        results=row.results,
        results_error=row.results_error or "",
    )


def _burst_view(kept: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the shown data of a run by a burst policy. Releases before schema 0024 stored the binding of its members there, too."""
    return None if kept is None else {key: value for key, value in kept.items() if key != "binding"}


def event_view(row: store.StoredEvent | FeedEvent) -> dict[str, Any]:
    return _dump(
        EventView(
            seq=row.seq,
            at=row.at,
            kind=row.kind,
            states=row.states,
            attempt=row.attempt,
            cluster=row.cluster,
            actor=row.actor,
            message=row.message,
            details=row.details or {},
        )
    )


async def why(tx: Transaction, caller: Caller, text: str) -> dict[str, Any]:
    """Return why a job is in its state, with the verdict on each cluster and the verdict's age."""
    key = await find_key(tx, caller, text)
    row = await store.view(tx, key)
    if row is None:
        raise ProblemError(Code.NOT_FOUND, f"there is no job {text!r}")
    reason = await with_deadline(tx, row, await _reason(tx, row))
    data = reason.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"job": text, "state": row.shown_state, **data}


_MOST_DEPENDENCIES = 1000


async def dependencies(tx: Transaction, caller: Caller, text: str) -> dict[str, Any]:
    """Return the conditions of a job on others, and of others on it. Raises ProblemError when the caller may see no such job."""
    key = await find_key(tx, caller, text)
    queue_ids = None if caller.has_every_queue else await tenants.queue_ids_below(tx, caller.queues)
    of_job = await dependency_store.of_job(tx, key, queue_ids, _MOST_DEPENDENCIES)
    on_job = await dependency_store.on_job(tx, key, queue_ids, _MOST_DEPENDENCIES)
    found = JobDependencies(
        job=text,
        after=_as_shown(of_job),
        after_count=of_job[0].many if of_job else 0,
        after_groups=tuple(
            GroupDependencyView(
                group=one.name,
                queue=one.queue,
                state=one.state,
                condition=one.condition,
                condition_state=one.verdict,
            )
            for one in await dependency_store.of_job_on_groups(tx, key, queue_ids, _MOST_DEPENDENCIES)
        ),
        dependants=_as_shown(on_job),
        dependants_count=on_job[0].many if on_job else 0,
    )
    return found.model_dump(mode="json", by_alias=True)


def _as_shown(rows: Sequence[dependency_store.ShownCondition]) -> tuple[DependencyView, ...]:
    return tuple(
        DependencyView(
            job=job_id(one.name, one.key), state=one.state, condition=one.condition, condition_state=one.verdict
        )
        for one in rows
    )


async def _reason(tx: Transaction, row: store.ShownJob) -> Reason:
    if row.has_element_jobs and not row.state.is_terminal and row.state is not JobState.HELD:
        return await _array_reason(tx, row)
    if row.state in (JobState.HELD, JobState.QUEUED):
        return (await waiting_reasons(tx, [row]))[row.id]
    return _with_wait(_running_reason(row, await runs.of_job(tx, row.id)), await store.last_wait(tx, row.id))


async def _array_reason(tx: Transaction, row: store.ShownJob) -> Reason:
    """Return how far an array is whose elements are jobs, and why further ones are not submitted or do not start."""
    counts = await arrays.counts_of(tx, row.id, row.elements or 0)
    shown = [f"{counts.running} of {counts.count} run", f"{counts.succeeded} have succeeded"]
    shown += [
        f"{many} {state}"
        for state, many in (("have failed", counts.failed), ("were cancelled", counts.cancelled))
        if many
    ]
    job = job_id(row.name, row.id)
    because = ""
    if row.wish is not None:
        because = f"; it is being {_STOPPED_BY[row.wish]}"
    elif (message := await element_jobs.message_of(tx, row.id)) or (message := await _of_elements_before(tx, row.id)):
        because = f"; {message}"
    elif (first := await element_jobs.first_waiting(tx, row.id)) is not None:
        element, key = first
        waiting = await store.view(tx, key)
        if waiting is not None and waiting.state in (JobState.HELD, JobState.QUEUED):
            reason = (await waiting_reasons(tx, [waiting]))[key]
            because = f"; element {element} waits: {reason.sentence.rstrip('.')}"
    return Token.ELEMENTS.reason(counts=", ".join(shown), because=because, job=job)


async def _of_elements_before(tx: Transaction, key: int) -> str:
    """Return for which other array elements of an array wait, where no job of it is open."""
    others = await element_jobs.predecessors(tx, key)
    if not others or await element_jobs.with_open_jobs(tx, [key]):
        return ""
    names = ", ".join(job_id(one.name, one.on_job_id) if one.name else "a job that has been removed" for one in others)
    return f"its elements wait for those of {names}"


def _with_wait(reason: Reason, waited: dict[str, Any] | None) -> Reason:
    """Return the reason with what the job waited for before its last dispatch, as long as the job's events are stored."""
    if waited is None:
        return reason
    return reason.model_copy(update={"details": reason.details | {"waitedFor": waited}})


def _after_a_run(row: store.ShownJob, reason: Reason) -> Reason:
    """Return the reason, for a job that has run before with the message of its last run."""
    if not row.attempt or not row.message:
        return reason
    update = {
        "sentence": f"{reason.sentence} Its last run: {row.message}.",
        "details": reason.details | {"lastRun": row.message},
    }
    return reason.model_copy(update=update)


async def waiting_reasons(tx: Transaction, rows: Sequence[store.ShownJob]) -> dict[int, Reason]:
    """Return why jobs wait, by key, of those of these that are held or queued."""
    queued = [row for row in rows if row.state is JobState.QUEUED and not row.has_element_jobs]
    depending = [row.id for row in rows if row.hold_cause is HoldCause.DEPENDENCY]
    conditions = await dependency_store.first_open(tx, depending) if depending else {}
    reasons = {row.id: _held_reason(row, conditions.get(row.id)) for row in rows if row.state is JobState.HELD}
    for row in rows:
        if row.state is JobState.QUEUED and row.has_element_jobs:
            reasons[row.id] = await _array_reason(tx, row)
    if not queued:
        return reasons
    # Jobs of a class share its reason, but for those for which some clusters are left out: it is read once for all of them.
    apart = await scheduling.with_cool_downs(tx, [row.id for row in queued])
    first: dict[tuple[int, int, int, str], int] = {}
    wanted: dict[int, scheduling.Classified] = {}
    source: dict[int, int] = {}
    for row in queued:
        key = (row.queue_id, row.class_id, row.shape_id, row.submitted_by or "")
        source[row.id] = row.id if row.id in apart else first.setdefault(key, row.id)
        if source[row.id] == row.id:
            wanted[row.id] = scheduling.Classified(row.id, *key)
    found = {
        key: (one, Reason.model_validate(one.reason | {"cycle": one.cycle, "at": one.at}))
        for key, one in (await scheduling.reasons_of(tx, list(wanted.values()))).items()
    }
    names = {row.priority_class for row in queued} if found else set()
    classes = await tenants.CLASSES.by_name(tx, sorted(names)) if names else {}
    for row in queued:
        of_class = [classes[row.priority_class].spec] if row.priority_class in classes else []
        reasons[row.id] = _after_a_run(row, _waiting_reason(row, found.get(source[row.id]), of_class))
    return reasons


def first_reason(row: store.ShownJob) -> Reason:
    """Return why a job waits that was just submitted."""
    return _held_reason(row) if row.state is JobState.HELD else _waiting_reason(row, None, ())


def _waiting_reason(
    row: store.ShownJob, found: tuple[scheduling.StoredReason, Reason] | None, classes: Sequence[PriorityClassSpec]
) -> Reason:
    if found is None:
        return Token.NOT_LOOKED_AT.reason()
    stored, reason = found
    if row.submitted_at > stored.at and reason.tier is Tier.UNSEEN:
        return Token.NOT_LOOKED_AT.reason()
    shown = _told_to(job_id(row.name, row.id), reason)
    if reason.token in _ENDED_BY_KEEPING and not _is_bounded(shown.details):
        return _with_longest_wait(shown, row, classes)
    return shown


_ENDED_BY_KEEPING = (Token.INSUFFICIENT_CAPACITY, Token.RESERVED)
"""Reasons that end once what is freed on a cluster is kept for the job."""


def _is_bounded(details: Mapping[str, Any]) -> bool:
    """Return whether it is known when the job starts at the latest, or everything that is freed is kept for it already."""
    return "expectedCluster" in details and "expected" not in details.get("expectedStart", {})


def _with_longest_wait(reason: Reason, row: store.ShownJob, classes: Sequence[PriorityClassSpec]) -> Reason:
    """Return the reason with the time from which what is freed is kept for a job, or that its class has none."""
    longest = next((one.longest_wait for one in classes), None)
    if longest is None:
        never = f"Its class {row.priority_class} has no longestWait, so nothing bounds how long it may wait."
        return reason.model_copy(update={"sentence": f"{reason.sentence} {never}"})
    at = max(row.submitted_at, row.eligible_at or row.submitted_at) + timedelta(seconds=parse_duration(longest))
    text = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = f"From {text} on, what is freed on a cluster is kept for it, after jobs before it for which that is done already."
    return reason.model_copy(
        update={"sentence": f"{reason.sentence} {kept}", "details": reason.details | {"keptFrom": text}}
    )


def _told_to(job: str, reason: Reason) -> Reason:
    """Return a class's reason for one of its jobs: only for the first job it says that capacity is reserved for it."""
    details = dict(reason.details)
    first = details.pop("first", None)
    if first is None:
        return reason
    if first["job"] != job:
        return reason.model_copy(update={"details": details})
    details |= {"expectedCluster": first["cluster"]}
    if "assuming" in first:
        details["expectedStart"] = {name: first[name] for name in ("notAfter", "expected", "assuming") if name in first}
    return reason.model_copy(update={"details": details, "sentence": f"{reason.sentence} {first['sentence']}"})


_HELD = {
    HoldCause.USER: Token.HELD_BY_USER,
    HoldCause.SUSPENDED: Token.SUSPENDED,
    HoldCause.BACK_OFF: Token.BACKING_OFF,
    HoldCause.START_TIME: Token.START_TIME,
    HoldCause.DEPENDENCY: Token.DEPENDENCY,
    HoldCause.QUEUE_HELD: Token.QUEUE_HELD,
    HoldCause.UNPLACEABLE: Token.UNPLACEABLE,
}


def _held_reason(row: store.ShownJob, condition: dependency_store.OpenCondition | None = None) -> Reason:
    """Return why a job is held. ``condition``: the first of those on other jobs that are not met."""
    if row.hold_cause is None:
        raise LookupError(f"job {row.id} is held and has no cause")
    details = {"until": format_time(row.hold_until)} if row.hold_until is not None else {}
    because = f": {row.message}" if row.message else ""
    if row.hold_cause is HoldCause.START_TIME and row.hold_until is not None:
        because = f": it starts after {format_time(row.hold_until)}"
    elif condition is not None:
        because = f": {words_on_open(condition)}"
    reason = _HELD[row.hold_cause].reason(
        (),
        details,
        because=because,
        job=job_id(row.name, row.id),
        queue=row.queue,
        state=QueueState.HELD.value,
    )
    if condition is not None and condition.verdict is ConditionState.NEVER:
        return reason.model_copy(update={"advice": _advice_on_failure(row, condition)})
    return reason


def _advice_on_failure(row: store.ShownJob, condition: dependency_store.OpenCondition) -> str:
    """Return what to do about a job that stays held, as a condition can no longer be met."""
    job = job_id(row.name, row.id)
    others = f"start it all the same with: trainmaster resume {job}, or end it with: trainmaster cancel {job}"
    if condition.name is None:
        return f"It stays held: {others}"
    if condition.on_job_id is None:
        again = f"trainmaster retry --group {condition.name} --state failed"
        return f"It stays held. Have jobs of the group tried again, such as with: {again}; {others}"
    other = job_id(condition.name, condition.on_job_id)
    return f"It stays held. Have the other job tried again with: trainmaster retry {other}; {others}"


_STOPPED_BY = {Wish.CANCEL: "cancelled", Wish.SUSPEND: "suspended"}


def _running_reason(row: store.ShownJob, attempts: Sequence[runs.ShownRun]) -> Reason:
    if row.state.is_terminal:
        ended = "was cancelled" if row.state is JobState.CANCELLED else f"has {row.state}"
        because = f": {row.message.removesuffix('.')}" if row.message and row.message != row.state else ""
        return Token.ENDED.reason(ended=ended, because=because)
    last = attempts[-1] if attempts else None
    where = f" on {last.cluster}" if last is not None else ""
    chosen = f"; {last.decision.get('why', '')}" if last is not None else ""
    if row.wish is not None:
        chosen = f"; it is being {_STOPPED_BY[row.wish]}, and is over once its members have ended"
    elif row.message:
        is_stopping = last is not None and last.is_stopping
        chosen = f"; it is being stopped: {row.message}" if is_stopping else f"; {row.message}"
    said = str((last.result or {}).get("message") or "") if last is not None and last.ended_at is None else ""
    added = f" Its cluster says: {said.removesuffix('.')}." if said else ""
    if last is not None and last.silent_since is not None:
        since = last.silent_since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        added += f" The agent of {last.cluster} has been silent since {since}: what has become of it since then is not known here."
    details = {"clusterSays": said} if said else {}
    if row.state is JobState.RUNNING:
        return Token.RUNNING.reason((), details, where=where, chosen=chosen, added=added)
    progress = (
        "its agent has it and starts the members"
        if last is not None and last.known
        else "the cluster's agent has not taken it yet"
    )
    return Token.BEING_PLACED.reason((), details, where=where, progress=progress, chosen=chosen, added=added)


async def list_queues(tx: Transaction, caller: Caller, *, with_ended: bool = False) -> list[dict[str, Any]]:
    """Return the queues that the caller may see, with the number of their jobs by state; of ended ones, if these are wanted."""
    every = await tenants.QUEUES.every(tx)
    rows = [row for row in every if caller.may_know(row.spec.path)]
    counts = await store.state_counts(tx, [row.id for row in rows], with_ended=with_ended)
    warnings = await overpromised(tx, every)
    return [queue_view(row, counts.get(row.id, {}), warnings.get(row.id, [])) for row in rows]


def queue_view(row: tenants.QueueRow, counts: dict[str, int], warnings: Sequence[str] = ()) -> dict[str, Any]:
    return {**row.as_declared(), "isLeaf": row.row.is_leaf, "jobs": counts} | (
        {"warnings": list(warnings)} if warnings else {}
    )


async def list_reservations(tx: Transaction, caller: Caller) -> list[dict[str, Any]]:
    """Return the reservations for queues that concern the caller."""
    every = await tenants.RESERVATIONS.every(tx)
    return [row.as_declared() for row in every if caller.may_know(row.spec.queue)]


async def list_clusters(tx: Transaction, caller: Caller) -> list[dict[str, Any]]:
    """Return the clusters that jobs of the caller may go to, with their contact and their agents' reports.

    A user sees neither which other queues a cluster is for nor how many runs it has. An owner sees all of the own clusters, and no
    others.
    """
    out = []
    for row in await tenants.cluster_overview(tx):
        declared, fault = _declared(row)
        if not caller.may_see(row.name, declared.only_queues):
            continue
        if not caller.oversees(row.name):
            known = tuple(path for path in declared.only_queues if caller.may_know(path))
            declared = declared.model_copy(update={"only_queues": known})
        spec = declared.model_dump(mode="json", by_alias=True, exclude_none=True)
        report, _ = read_capacity(row.report)
        contact = row.contact_at if row.contact_at is not None and row.contact_at.year > 1970 else None
        out.append(
            {
                **spec,
                "state": _cluster_state(row, contact is not None, report),
                "cordoned": row.cordoned,
                "draining": row.draining,
                "closed": fault or _closed(row, report),
                "lastContact": _moment(contact),
                "agentVersion": row.agent_version or "",
                **(
                    {
                        "liveRuns": row.live_runs,
                        "stoppingRuns": row.stopping_runs,
                        "orphanedRuns": row.orphaned_runs,
                        "quarantinedRuns": row.quarantined_runs,
                    }
                    if caller.oversees(row.name)
                    else {}
                ),
                "runtime": report.runtime if report else None,
                "scheduler": report.scheduler if report else None,
                "capacity": _totals(report) if report else {},
                "nodes": sum(group.count for group in report.groups) if report else 0,
                "groups": [group.model_dump(mode="json", by_alias=True) for group in report.groups] if report else [],
                "pools": [pool.model_dump(mode="json", by_alias=True) for pool in report.pools] if report else [],
                "capabilities": list(report.capabilities) if report else [],
                "notCounted": list(report.not_counted) if report else [],
                **_health(report, caller.owns(row.name)),
            }
        )
    return out


def _declared(row: tenants.ClusterOverview) -> tuple[ClusterSpec, str]:
    """Return an admin's specification of a cluster; if it cannot be read, one with the name alone, and why."""
    try:
        return ClusterSpec.model_validate(row.spec), ""
    except Exception as error:  # noqa: BLE001 - noted
        note(Part.CLUSTER, row.name, error)
        kind = row.spec.get("kind") if isinstance(row.spec, dict) else None
        known = ClusterKind(kind) if kind in tuple(ClusterKind) else ClusterKind.PRIVATE
        return ClusterSpec(name=row.name, cluster_kind=known), "what is declared of it cannot be read; apply it again"


def _closed(row: tenants.ClusterOverview, report: CapacityReport | None) -> str:
    if row.awaited is not None:
        return closed_by_recovery(row.awaited)
    return report.closed if report else ""


def _cluster_state(row: tenants.ClusterOverview, heard: bool, report: CapacityReport | None) -> str:
    if not heard:
        return "never connected"
    if not row.reachable:
        return "unreachable"
    if _closed(row, report):
        return "closed"
    if row.draining:
        return "draining" if row.live_runs else "drained"
    return "cordoned" if row.cordoned else "ready"


def _health(report: CapacityReport | None, names_nodes: bool) -> dict[str, Any]:
    """Return the numbers of nodes in trouble, where the agent reports them; with the names of nodes for those who look after them."""
    if report is None or report.health is None:
        return {}
    left_out = None if names_nodes else {"troubled"}
    return {"health": report.health.model_dump(mode="json", by_alias=True, exclude=left_out)}


def _totals(report: CapacityReport) -> dict[str, str]:
    total: dict[str, int] = {}
    for group in report.groups:
        for name, amount in group.free.items():
            total[name] = total.get(name, 0) + amount * group.count
    return {name: format_quantity(name, amount) for name, amount in sorted(total.items())}


async def list_audit(
    tx: Transaction, caller: Caller, wanted: keys.AuditFilter, cursor: str | None, limit: int
) -> dict[str, Any]:
    """Return a page of the audit, newest first; for an owner, of what was done to the owner's clusters."""
    if caller.is_owner:
        if wanted.target is not None:
            check_owns(caller, wanted.target)
        wanted = replace(wanted, clusters=caller.clusters)
    rows = await keys.audit_page(tx, wanted, read_cursor(cursor), limit + 1)
    page = rows[:limit]
    return {
        "audit": [
            {
                "at": format_time(row.at),
                "actor": row.actor,
                "action": row.action,
                "target": row.target,
                "requestId": row.request_id,
                "address": row.address,
                "details": row.details,
            }
            for row in page
        ],
        "next": make_cursor(page[-1].id) if len(rows) > limit else None,
    }
