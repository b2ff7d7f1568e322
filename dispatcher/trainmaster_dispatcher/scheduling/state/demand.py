"""The jobs that need capacity now, counted from time to time: what is asked for devices depends on them."""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_SECONDS = 60.0
"""The time after which the jobs are counted again: a single job makes little difference."""


class Demand(NamedTuple):
    """Jobs by shape that waited or ran at a time, in seconds since the epoch."""

    jobs: Mapping[int, int]
    counted_at: float

    def at(self, now: float, state: SchedulerState) -> "Demand":
        """Return the demand to count with at ``now``: this one, or that of the state if this one is a while old."""
        if now - self.counted_at < _SECONDS:
            return self
        jobs = Counter(run.shape_id for run in state.runs.values())
        for of_queue in state.waiting.values():
            for key, keys in of_queue.items():
                jobs[key.shape_id] += len(keys)
        return Demand(jobs, now)


NO_DEMAND = Demand({}, -inf)
