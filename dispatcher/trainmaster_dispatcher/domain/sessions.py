"""Interactive sessions: what their jobs have by default, and when they are warned and ended. Pure; times in seconds since the epoch.

    use ──▶ idle ──▶ warning ──▶ end          start ──▶ warning ──▶ end of the longest life
     ▲        │         │
     └────────┴─────────┘ used again

Each end has a warning, as late as that may be: after an outage of the dispatcher the time between both begins with the warning.
"""

from typing import NamedTuple

from trainmaster.protocol.durations import format_duration, parse_duration
from trainmaster.protocol.jobs import JobSpec, Retries
from trainmaster.protocol.sessions import SessionSpec
from trainmaster.protocol.states import FailureCategory
from trainmaster_dispatcher.domain.member_use import RunSums

LOOK_SECONDS = 15.0
"""Time after which a session is looked at again that does not run."""
_WARNING_SECONDS = 300.0
"""The longest time between a warning and the end."""
_WARNING_PART = 10
"""The time between a warning and the end is one part in this many of the time-out, where that is shorter."""
_LEAST_WARNING = 1.0
_RESTARTS = 10
_LOST = (FailureCategory.EVICTED, FailureCategory.NODE_LOST)
"""Failures that are none of the session's processes."""
_MARGIN_SECONDS = 60.0
_BUSY_THOUSANDTHS = 50
"""The thousandths of the requested GPUs above which their work counts as use."""


class SessionTimes(NamedTuple):
    """Seconds of a session's terms."""

    idle: float
    life: float


class SessionClock(NamedTuple):
    """A running session. ``began_at``: its first start. ``warned_at`` and ``life_warned_at``: its last warnings, if there were any."""

    times: SessionTimes
    began_at: float
    active_at: float
    warned_at: float | None = None
    life_warned_at: float | None = None


class SessionStep(NamedTuple):
    """The result of a look at a session. ``end`` and ``warning`` are words, empty for nothing; ``ends_at``: its end unless it is used.

    ``next_look``: when something changes next unless the session is used.
    """

    ends_at: float
    next_look: float
    end: str = ""
    warning: str = ""
    warns_of_life: bool = False


def with_session(spec: JobSpec) -> JobSpec:
    """Return a specification with what a session has by default; that of another job as it is.

    A lost node or an eviction starts it again, the end of its processes does not. A run that outlives the dispatcher's own end of the
    session is ended by its agent.
    """
    session = SessionSpec() if spec.session is None and spec.kind == "Session" else spec.session
    if session is None:
        return spec
    changes: dict[str, object] = {"session": session, "kind": "Job"}
    if "retries" not in spec.model_fields_set:
        changes["retries"] = Retries(limit=_RESTARTS, categories=_LOST)
    if spec.time_limit is None:
        life = times_of(session).life
        changes["time_limit"] = f"{round(life + warning_seconds(life) + _MARGIN_SECONDS)}s"
    return spec.model_copy(update=changes)


def times_of(session: SessionSpec) -> SessionTimes:
    return SessionTimes(parse_duration(session.idle_timeout), parse_duration(session.longest_life))


def is_busy(sums: RunSums) -> bool:
    """Return whether the use of a run's GPUs counts as use of its session."""
    # What is used is counted in thousandths of a GPU, what was requested in GPUs.
    return (
        sums.gpu is not None and bool(sums.requested_gpu) and sums.gpu > _BUSY_THOUSANDTHS * (sums.requested_gpu or 0)
    )


def warning_seconds(seconds: float) -> float:
    """Return the time between a warning and the end of a time-out of ``seconds``."""
    return max(_LEAST_WARNING, min(_WARNING_SECONDS, seconds / _WARNING_PART))


def advance_session(clock: SessionClock, now: float) -> SessionStep:
    """Return whether a running session is warned or ended now. It ends for idleness or by its longest life, whichever is first."""
    # A warning before the last use is about another idle period.
    idle_warning = clock.warned_at if clock.warned_at is not None and clock.warned_at >= clock.active_at else None
    idle = _end_of(clock.active_at, clock.times.idle, idle_warning)
    life = _end_of(clock.began_at, clock.times.life, clock.life_warned_at)
    ends = (life,) if life.at <= idle.at else (idle, life)
    over = next((one for one in ends if one.is_warned and now >= one.at), None)
    if over is not None:
        return SessionStep(over.at, now + LOOK_SECONDS, end=_words_at_end(clock.times, of_life=over is life))
    late = next((one for one in ends if not one.is_warned and now >= one.warning_at), None)
    if late is None:
        return SessionStep(ends[0].at, min(map(_next, ends)))
    at = max(late.at, now + late.notice)
    words = _warning(clock, now, at, of_life=late is life)
    later = [_next(one) for one in ends if one is not late]
    return SessionStep(at, max(now, min([at, *later])), warning=words, warns_of_life=late is life)


def _words_at_end(times: SessionTimes, *, of_life: bool) -> str:
    if of_life:
        return f"the session's longest life of {format_duration(times.life)} is over"
    return f"the session was idle for {format_duration(times.idle)}"


def _warning(clock: SessionClock, now: float, at: float, *, of_life: bool) -> str:
    left = format_duration(at - now)
    if of_life:
        return f"the session ends in {left}: its longest life is {format_duration(clock.times.life)}"
    return f"the session is idle for {format_duration(now - clock.active_at)}, and ends in {left} unless it is used"


class _End(NamedTuple):
    """One of the two ends of a session."""

    at: float
    warning_at: float
    notice: float
    is_warned: bool


def _end_of(since: float, seconds: float, warned_at: float | None) -> _End:
    notice = warning_seconds(seconds)
    at = since + seconds
    if warned_at is not None:
        at = max(at, warned_at + notice)
    return _End(at, since + seconds - notice, notice, warned_at is not None)


def _next(one: _End) -> float:
    return one.at if one.is_warned else one.warning_at
