"""How a run is stopped: what its specification says of the time that its members get."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, Checkpoint
from trainmaster.protocol.states import StopCause

_DEFAULT = "10s"
_KEEPS_STATE = {StopCause.PREEMPT, StopCause.SUSPEND}
"""Why runs are stopped whose jobs go on later."""


def grace_of(spec: Mapping[str, Any]) -> float:
    """Return the seconds between SIGTERM and SIGKILL, never more than the longest there is, whatever was stored."""
    try:
        return min(parse_duration(spec.get("stopGrace", _DEFAULT)), LONGEST_STOP_GRACE)
    except ValueError:  # stored by a release that took longer texts
        return LONGEST_STOP_GRACE


def stop_of(spec: Mapping[str, Any], cause: str, most: float | None = None) -> dict[str, Any]:
    """The part of a ``StopRun`` in wire form that follows from a specification in wire form.

    ``most``: seconds that who stopped it leaves to its members in all; less than its specification says, or None.
    Who cancels a job wants nothing of it any more; in all other cases its state is saved first.
    """
    stop: dict[str, Any] = {"cause": cause, "graceSeconds": grace_of(spec)}
    checkpoint = spec.get("checkpoint")
    if checkpoint is not None and cause in _KEEPS_STATE:
        wanted = Checkpoint.model_validate(checkpoint)
        stop |= {"checkpointSignal": wanted.signal, "checkpointSeconds": parse_duration(wanted.wait)}
    if most is not None:
        stop["graceSeconds"] = min(stop["graceSeconds"], most)
        if "checkpointSeconds" in stop:
            stop["checkpointSeconds"] = min(stop["checkpointSeconds"], most - stop["graceSeconds"])
    return stop


def stop_seconds(spec: Mapping[str, Any], cause: str) -> float:
    """How long its members may take to be gone."""
    stop = stop_of(spec, cause)
    return float(stop["graceSeconds"]) + float(stop.get("checkpointSeconds", 0.0))
