"""Garbage collection of a process that holds a million jobs.

Python's collector looks at every object now and then, which takes seconds with a million jobs, and nearly all of them are no
garbage. What has lived for a while is therefore taken out of its sight (``gc.freeze``); counting references frees it all the same.
"""

import gc

from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_YOUNG = 20_000
_FEW_JOBS = 50_000
_FEW_RUNS = 10_000
"""A run is made of more objects than a job that waits, and many come at once where a backlog starts."""


class Memory:
    """Keeps the collector away from what a state holds."""

    def __init__(self) -> None:
        self._state: SchedulerState | None = None
        self._jobs = self._runs = 0
        gc.set_threshold(_YOUNG, 20, 20)

    def look(self, state: SchedulerState) -> None:
        """Freeze what is there when a state is new, or holds many more jobs or runs than at the last time, or many less."""
        jobs, runs = len(state.jobs), len(state.runs)
        if self._state is not None and state is not self._state:
            # The old view may be part of a cycle.
            self._state = None
            gc.unfreeze()
            gc.collect()
        elif self._state is not None and abs(jobs - self._jobs) < _FEW_JOBS and abs(runs - self._runs) < _FEW_RUNS:
            return
        self._state, self._jobs, self._runs = state, jobs, runs
        gc.freeze()
