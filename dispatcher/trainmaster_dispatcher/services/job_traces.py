"""Spans of jobs: made from the store by a task of its own, after what they stand for was committed.

Whoever schedules, or takes an agent's reports, hands over keys and goes on. What cannot be read, or does not fit into the queue, is
counted as dropped.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.reasons import Reason
from trainmaster.tracing.context import SpanRef, read_stored
from trainmaster.tracing.recording import Recorder
from trainmaster.tracing.spans import FinishedSpan
from trainmaster_dispatcher.domain import job_spans
from trainmaster_dispatcher.domain.job_spans import DecisionTimes, PastEvent, TracedJob, TracedRun
from trainmaster_dispatcher.scheduling.state.plan import Start
from trainmaster_dispatcher.store import traces
from trainmaster_dispatcher.store.agents import DesiredRun
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.traces import EndedWork

log = logging.getLogger(__name__)

_MOST_QUEUED = 10_000
_MOST_AT_ONCE = 200
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StoredStart:
    """A stored decision to start a traced job."""

    ref: RunRef
    cluster: str
    times: DecisionTimes
    reason: str
    score: float | None
    evicts: int


class JobTraces:
    """The spans of one process's jobs. Use within one event loop."""

    def __init__(self, database: Database, recorder: Recorder) -> None:
        self._database = database
        self._recorder = recorder
        self._queue: asyncio.Queue[StoredStart | EndedWork] = asyncio.Queue(_MOST_QUEUED)
        self._task = asyncio.create_task(self._run(), name="job-traces")

    def decided(self, starts: Iterable[StoredStart]) -> None:
        """Take decisions that were stored."""
        self._put(starts)

    def ended(self, work: Sequence[EndedWork]) -> None:
        """Take what has ended, once that is committed."""
        self._put(work)

    def sent(self, rows: Iterable[DesiredRun], cluster: str) -> None:
        """Record that the orders to start runs, of jobs that belong to traces, are handed to their agent now."""
        now = time.time()
        for row in rows:
            trace = None if row.trace is None else read_stored(row.trace)
            if trace is not None:
                job = TracedJob(row.job_id, row.name, row.queue, trace, row.leased_at, row.leased_at)
                run = TracedRun(row.job_id, row.attempt, cluster, row.leased_at)
                self._recorder.record(job_spans.sent_span(job, run, now))

    async def close(self) -> None:
        """Make the spans of what was handed over, for a short time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), _CLOSE_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _put(self, work: Iterable[StoredStart | EndedWork]) -> None:
        for one in work:
            try:
                self._queue.put_nowait(one)
            except asyncio.QueueFull:
                self._recorder.dropped("full", 1)

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _MOST_AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                spans = await self._spans(batch)
            except Exception as error:  # noqa: BLE001 - counted: traces must not end anything
                log.warning("spans of %d jobs could not be made: %s", len(batch), error)
                self._recorder.dropped("failed", len(batch))
                spans = []
            for span in spans:
                self._recorder.record(span)
            for _ in batch:
                self._queue.task_done()

    async def _spans(self, batch: Sequence[StoredStart | EndedWork]) -> list[FinishedSpan]:
        ended = [one for one in batch if isinstance(one, EndedWork)]
        async with self._database.reading() as tx:
            jobs = {
                RunRef(row.job_id, row.attempt): row for row in await traces.jobs_of(tx, [one.ref for one in batch])
            }
            refs = [one.ref for one in ended if one.run_state is not None]
            runs = {RunRef(row.job_id, row.attempt): row for row in await traces.runs_of(tx, refs)} if refs else {}
            past = await traces.events_of(tx, [one.ref.job_key for one in ended]) if ended else ()
        events: defaultdict[int, list[PastEvent]] = defaultdict(list)
        for row in past:
            events[row.job_id].append(PastEvent(row.job_id, row.attempt, row.kind, tuple(row.states), row.at))
        spans: list[FinishedSpan] = []
        for one in batch:
            job = jobs.get(one.ref)
            trace = None if job is None else read_stored(job.trace)
            if job is None or trace is None:
                continue
            if isinstance(one, StoredStart):
                spans += _of_decision(one, _traced(job, trace))
            else:
                spans += _of_end(one, job, trace, runs, events[job.job_id])
        return spans


def _traced(row: traces.TracedJobRow, trace: SpanRef) -> TracedJob:
    return TracedJob(row.job_id, row.name, row.queue, trace, row.submitted_at, row.waits_since)


def _of_decision(one: StoredStart, job: TracedJob) -> list[FinishedSpan]:
    return job_spans.wait_spans(job, one.ref.attempt, one.cluster, one.times, one.reason, one.score, one.evicts)


def _of_end(
    one: EndedWork,
    row: traces.TracedJobRow,
    trace: SpanRef,
    runs: Mapping[RunRef, traces.TracedRunRow],
    events: Sequence[PastEvent],
) -> list[FinishedSpan]:
    job = _traced(row, trace)
    spans = []
    last = events[-1].at if events else row.waits_since
    run = runs.get(one.ref)
    if run is not None and one.run_state is not None:
        known = TracedRun(run.job_id, run.attempt, run.cluster, run.leased_at)
        spans.append(
            job_spans.run_ended(job, known, one.run_state, last if run.ended_at is None else run.ended_at, events)
        )
    if one.job_state is not None:
        at = last if row.ended_at is None else row.ended_at
        spans.append(job_spans.job_ended(job, one.job_state, one.ref.attempt, at, events))
    return spans


def decisions_of(
    starts: Iterable[Start],
    traced: Mapping[int, int],
    clusters: Mapping[int, str],
    waited: Mapping[int, Reason],
    times: DecisionTimes,
) -> list[StoredStart]:
    """Return the decisions that were stored for jobs of a trace. ``traced``: the attempts of these jobs that begin."""
    found = []
    for start in starts:
        attempt = traced.get(start.job.id)
        if attempt is None:
            continue
        reason = waited.get(start.job.id)
        found.append(
            StoredStart(
                RunRef(start.job.id, attempt),
                clusters.get(start.cluster_id, ""),
                times,
                "" if reason is None else reason.token.value,
                _score(start, clusters.get(start.cluster_id, "")),
                len(start.evicts),
            )
        )
    return found


def _score(start: Start, cluster: str) -> float | None:
    """Return the sum of the scores of the chosen cluster, if it has one."""
    found = next((line.get("score") for line in start.table if line["cluster"] == cluster), None)
    return None if found is None else float(found)
