"""How a run is stopped: what its specification says of the time that its members get."""

from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import Checkpoint
from trainmaster.protocol.states import StopCause

_KEEPS_STATE = {StopCause.PREEMPT, StopCause.SUSPEND}
"""Why runs are stopped whose jobs go on later."""


def stop_of(spec: Mapping[str, Any], cause: str) -> dict[str, Any]:
    """The part of a ``StopRun`` in wire form that follows from a specification in wire form.

    Who cancels a job wants nothing of it any more; in all other cases its state is saved first.
    """
    stop = {"cause": cause, "graceSeconds": parse_duration(spec.get("stopGrace", "10s"))}
    checkpoint = spec.get("checkpoint")
    if checkpoint is not None and cause in _KEEPS_STATE:
        wanted = Checkpoint.model_validate(checkpoint)
        stop |= {"checkpointSignal": wanted.signal, "checkpointSeconds": parse_duration(wanted.wait)}
    return stop


def stop_seconds(spec: Mapping[str, Any], cause: str) -> float:
    """How long its members may take to be gone."""
    stop = stop_of(spec, cause)
    return float(stop["graceSeconds"]) + float(stop.get("checkpointSeconds", 0.0))
