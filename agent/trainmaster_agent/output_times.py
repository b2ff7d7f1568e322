"""Times at which members' output was first seen. In memory, for runs that are held."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster.protocol.agent import OutputMark

_MOST = 4000
"""The most times of one member; beyond, every second one is dropped: a long log has coarser times."""

Key = tuple[str, str, int]
"""Run, role and index of a member."""


@dataclass(slots=True)
class _SeenOutput:
    end: int = 0
    marks: list[tuple[int, float]] = field(default_factory=list)


class OutputTimes:
    """The times of all members of one agent. ``clock`` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._runs: dict[str, dict[Key, _SeenOutput]] = {}

    def note(self, key: Key, end: int) -> None:
        """Note the current end of a member's output."""
        members = self._runs.setdefault(key[0], {})
        seen = members.get(key)
        if seen is None:
            seen = members[key] = _SeenOutput()
        if end <= seen.end:
            return
        seen.marks.append((seen.end, self._clock()))
        seen.end = end
        if len(seen.marks) > _MOST:
            del seen.marks[1::2]

    def between(self, key: Key, start: int, end: int) -> tuple[OutputMark, ...]:
        """Return the times of the output between two offsets; the first is that of ``start``, if it is known."""
        seen = self._seen(key)
        if seen is None:
            return ()
        before = [at for offset, at in seen.marks if offset <= start]
        first = [OutputMark(offset=start, at=before[-1])] if before and start < seen.end else []
        inner = [OutputMark(offset=offset, at=at) for offset, at in seen.marks if start < offset < end]
        return (*first, *inner)

    def since(self, key: Key, moment: float) -> int:
        """Return the offset of the first output that was seen at ``moment`` or later; where times are unknown, 0."""
        seen = self._seen(key)
        if seen is None:
            return 0
        return next((offset for offset, at in seen.marks if at >= moment), seen.end)

    def forget(self, run: str) -> None:
        """Forget the members of a run."""
        self._runs.pop(run, None)

    def _seen(self, key: Key) -> _SeenOutput | None:
        return self._runs.get(key[0], {}).get(key)
