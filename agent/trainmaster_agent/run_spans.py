"""Spans of runs on this cluster: until their members exist, and until these run.

Made of what the agent's loop sees, which is the same for all runtimes, and of ``note_created``, which runtimes call where they create
members. A run that an earlier process of this agent has accepted has none.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import RunState
from trainmaster.tracing.context import SpanRef, parse_traceparent
from trainmaster.tracing.recording import Recorder
from trainmaster.tracing.spans import AttributeValue, FinishedSpan
from trainmaster_agent.runtime.port import RunStatus

_MOST_RUNS = 10_000
_FORGET_SECONDS = 3600.0


@dataclass(slots=True)
class _StartingRun:
    """A run of a trace whose members do not run yet. ``span``: that of the run."""

    span: SpanRef
    members: int
    attributes: dict[str, AttributeValue]
    since: float
    is_created: bool = False
    was_held: bool = False


class RunSpans:
    """The spans of one agent session. ``cluster``: the cluster's name in the agent's configuration, where it has one."""

    def __init__(self, recorder: Recorder, cluster: str, clock: Callable[[], float] = time.time) -> None:
        self._recorder = recorder
        self._cluster = cluster
        self._clock = clock
        self._runs: dict[str, _StartingRun] = {}
        _SESSIONS.append(self)

    def close(self) -> None:
        """Record no more."""
        _SESSIONS.remove(self)

    def ordered(self, run: StartRun) -> None:
        """Note that the dispatcher has ordered a run; the same order may come again."""
        received = parse_traceparent(run.traceparent) if run.traceparent else None
        if received is None or not received.is_sampled or run.run in self._runs or len(self._runs) >= _MOST_RUNS:
            return
        members = sum(run.sizes.values())
        known: dict[str, AttributeValue] = {
            "trainmaster.job.id": run.job,
            "trainmaster.run.id": run.run,
            "trainmaster.run.attempt": run.attempt,
            "trainmaster.queue": run.queue,
            "trainmaster.members": members,
        }
        if self._cluster:
            known["trainmaster.cluster"] = self._cluster
        self._runs[run.run] = _StartingRun(received.ref, members, known, self._clock())

    def look(self, held: Mapping[str, RunStatus]) -> None:
        """Record what the runs held have come to since the last look."""
        if not self._runs:
            return
        now = self._clock()
        for run, starting in list(self._runs.items()):
            status = held.get(run)
            if status is None:
                if starting.was_held or now - starting.since > _FORGET_SECONDS:
                    del self._runs[run]  # it has ended and was forgotten, or is not ordered any more
                continue
            starting.was_held = True
            self._look_at(run, starting, status, now)

    def created(self, run: str, namespace: str) -> None:
        """Record that the members of a run exist; of later calls for the run, nothing."""
        starting = self._runs.get(run)
        if starting is None or starting.is_created:
            return
        if namespace:
            starting.attributes["k8s.namespace.name"] = namespace
        self._end_creation(starting, self._clock(), is_failed=False)

    def _look_at(self, run: str, starting: _StartingRun, status: RunStatus, now: float) -> None:
        if status.state.rank < RunState.RUNNING.rank:
            return
        is_failed = _never_ran(status)
        if not starting.is_created:
            self._end_creation(starting, now, is_failed=is_failed)
        self._record("trainmaster.member.start", starting, now, is_failed=is_failed)
        del self._runs[run]

    def _end_creation(self, starting: _StartingRun, at: float, *, is_failed: bool) -> None:
        self._record("trainmaster.agent.create", starting, at, is_failed=is_failed)
        starting.is_created, starting.since = True, at

    def _record(self, name: str, starting: _StartingRun, at: float, *, is_failed: bool) -> None:
        ref = starting.span.computed(name, starting.span.span_id.hex())
        span = FinishedSpan(
            name, ref, starting.span, starting.since, at, dict(starting.attributes), is_failed=is_failed
        )
        self._recorder.record(span)


def _never_ran(status: RunStatus) -> bool:
    """Return whether a run has ended before its members ran. One that failed with an exit code did run, however short."""
    if status.state is RunState.FAILED:
        return status.end is None or status.end.exit_code is None
    return status.state in (RunState.RETURNED, RunState.LOST)


_SESSIONS: list[RunSpans] = []
"""Those of this process: one, or one for each cluster of a simulated fleet."""


def note_created(run: str, namespace: str = "") -> None:
    """Note that the members of a run were created, for the sessions that record spans."""
    for session in _SESSIONS:
        session.created(run, namespace)
