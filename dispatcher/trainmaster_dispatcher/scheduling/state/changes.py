"""Changes of a state, for the caches that are derived from it. They contain what changed, not what follows from it."""

from dataclasses import dataclass, field

from trainmaster_dispatcher.scheduling.state.live_runs import LiveRun

_MOST_CHANGES = 50_000
"""The largest number of recorded changes of runs; if no engine takes them before that, everything counts as changed."""


@dataclass(slots=True)
class Changes:
    """The changes of a state, for the caches that are derived from it."""

    is_everything: bool = False
    """Whether something has changed on which all derived values may depend: all have to be computed again."""
    clusters: set[int] = field(default_factory=set)
    """Clusters that were added, removed or changed themselves."""
    runs: list[tuple[LiveRun, int, float]] = field(default_factory=list)
    """In order: a run, the number of equivalent runs that were added or -1 for one that was removed, and their latest end."""

    @property
    def touched(self) -> set[int]:
        """The clusters that have changed themselves, or of which a run has."""
        return self.clusters | {run.cluster_id for run, _, _ in self.runs}

    def note_run(self, run: LiveRun, many: int, ends_at: float) -> None:
        """Record that ``many`` equivalent runs were added, or with -1 that one was removed."""
        if self.is_everything:
            return
        self.runs.append((run, many, ends_at))
        if len(self.runs) > _MOST_CHANGES:
            self.is_everything = True
            self.runs.clear()
