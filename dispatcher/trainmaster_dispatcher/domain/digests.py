"""Digests: when a user's events are reported one by one, and when they are gathered into one message. No clock: time is a parameter.

no window ──event──▶ window: up to ``most`` events one by one, the rest is held
                       │ ends: nothing held ──▶ no window
                       └─────  something held ──▶ one digest, and another window in which everything is held
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from trainmaster.protocol.notices import NoticeEvent
from trainmaster_dispatcher.domain.notices import SHOWN_JOBS


class DigestWindow(NamedTuple):
    """The window in which further events of a user are gathered. ``reported``: those that were reported one by one in it."""

    ends_at: float
    reported: int


class Gathering(StrEnum):
    """The treatment of the events that wait."""

    ONE_BY_ONE = "oneByOne"
    DIGEST = "digest"
    HOLD = "hold"


class GatheringStep(NamedTuple):
    """A decision about the events that wait, and the window after it."""

    gathering: Gathering
    window: DigestWindow | None


def next_step(
    window: DigestWindow | None, waiting: int, held: int, now: float, *, most: int, seconds: float
) -> GatheringStep:
    """Decide about ``waiting`` events, ``held`` of which arose before the end of the window. ``most``, ``seconds``: as preferred."""
    if window is not None and now >= window.ends_at:
        if held:
            return GatheringStep(Gathering.DIGEST, DigestWindow(now + seconds, most))
        window = None
    if not waiting:
        return GatheringStep(Gathering.HOLD, window)
    reported = 0 if window is None else window.reported
    ends_at = now + seconds if window is None else window.ends_at
    if reported + waiting <= most:
        return GatheringStep(Gathering.ONE_BY_ONE, DigestWindow(ends_at, reported + waiting))
    # No more of them are reported one by one, so that the digest has all the rest.
    return GatheringStep(Gathering.HOLD, DigestWindow(ends_at, max(reported, most)))


_FIRST_SHOWN: Final = (NoticeEvent.FAILED, NoticeEvent.DEADLINE_MISSED, NoticeEvent.DEADLINE_AT_RISK)


_BY_KIND: Final = (
    NoticeEvent.DEADLINE_AT_RISK,
    NoticeEvent.DEADLINE_MISSED,
    NoticeEvent.SESSION_WARNING,
    NoticeEvent.GPU_IDLE,
)


def event_of(body: Mapping[str, Any]) -> str:
    """Return the event that the body of a message about a job reports, as preferences name it."""
    return str(body["event"] if body["event"] in _BY_KIND else body["state"])


def digest_body(number: str, bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the body of a digest of messages about jobs: numbers by event, and the first jobs, failures before others."""
    order = {event.value: place for place, event in enumerate(_FIRST_SHOWN)}
    shown = sorted(bodies, key=lambda one: order.get(event_of(one), len(order)))[:SHOWN_JOBS]
    times = sorted(str(one["at"]) for one in bodies)
    return {
        "version": 1,
        "digest": number,
        "event": "digest",
        "state": "",
        "counts": dict(sorted(Counter(map(event_of, bodies)).items())),
        "since": times[0],
        "until": times[-1],
        "jobs": [dict(one) for one in shown],
    }
