"""Garbage collection of a process that holds a million jobs.

Python's collector visits every object from time to time, which takes seconds with a million jobs, and nearly all of
them are no garbage. Objects that have lived for a while are therefore excluded from collection (``gc.freeze``);
reference counting frees them all the same.
"""

import gc

from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_YOUNG = 20_000
_FEW_JOBS = 50_000
_FEW_RUNS = 10_000
"""A run has more objects than a waiting job, and many come at once when a backlog starts."""


class GcTuning:
    """Excludes the objects of a state from garbage collection."""

    def __init__(self) -> None:
        self._state: SchedulerState | None = None
        self._jobs = self._runs = 0
        gc.set_threshold(_YOUNG, 20, 20)

    def look(self, state: SchedulerState) -> None:
        """Freeze existing objects when a state is new, or its number of jobs or runs has changed much since the last time."""
        jobs, runs = len(state.jobs), len(state.runs)
        if self._state is not None and state is not self._state:
            # The old state may be part of a reference cycle.
            self._state = None
            gc.unfreeze()
            gc.collect()
        elif self._state is not None and abs(jobs - self._jobs) < _FEW_JOBS and abs(runs - self._runs) < _FEW_RUNS:
            return
        self._state, self._jobs, self._runs = state, jobs, runs
        gc.freeze()
