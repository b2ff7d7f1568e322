"""Orders to stop a run: the time that its specification gives to its members."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import LONGEST_STOP_GRACE, Checkpoint
from trainmaster.protocol.states import StopCause

_DEFAULT = "10s"
_KEEPS_STATE = {StopCause.PREEMPT, StopCause.SUSPEND}
"""Causes of stops after which the job goes on later."""


def grace_of(spec: Mapping[str, Any]) -> float:
    """Return the seconds between SIGTERM and SIGKILL, never more than the longest allowed, whatever was stored."""
    try:
        return min(parse_duration(spec.get("stopGrace", _DEFAULT)), LONGEST_STOP_GRACE)
    except ValueError:  # stored by a release that accepted longer texts
        return LONGEST_STOP_GRACE


def stop_of(spec: Mapping[str, Any], cause: str | None, most: float | None = None) -> dict[str, Any]:
    """Return the part of a ``StopRun`` that follows from a specification, both in wire form.

    ``most``: seconds that the caller of the stop leaves to the members in all, where the specification says more; or None.
    A job that is cancelled needs no state any more; in all other cases its state is saved first.
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
    """Return how long the members of a run with this specification may take to terminate."""
    stop = stop_of(spec, cause)
    return float(stop["graceSeconds"]) + float(stop.get("checkpointSeconds", 0.0))
