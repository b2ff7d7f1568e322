"""Objects that the scheduler's state leaves out after an unexpected error, until they change or are tried again."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from trainmaster_dispatcher.containment import Part, note

_FIRST_SECONDS = 5.0
_MOST_SECONDS = 300.0
"""Longest time after which an unchanged object is tried again."""


def describe_error(error: BaseException) -> str:
    """Return what tenants may read of an error: where a stored object is wrong, or the error's type. The log has the whole error."""
    if isinstance(error, ValidationError) and error.error_count():
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
    return type(error).__name__


@dataclass(frozen=True, slots=True)
class QuarantinedObject:
    """An object that is left out. ``sentence`` is for tenants, ``retry_at`` by the caller's clock.

    ``version``: the version of the object that failed.
    """

    part: Part
    key: int
    name: str
    sentence: str
    failures: int
    retry_at: float
    version: int = 0

    def holds(self, version: int, now: float) -> bool:
        """Return whether the object is left out in this version, and not due to be tried again."""
        return self.version == version and now < self.retry_at


@dataclass(slots=True)
class Quarantine:
    """The objects that are left out now."""

    entries: dict[tuple[Part, int], QuarantinedObject] = field(default_factory=dict)

    def add(
        self, part: Part, key: int, name: str, error: BaseException, now: float, version: int = 0
    ) -> QuarantinedObject:
        """Record the error of an object, and leave the object out."""
        note(part, name, error)
        before = self.entries.get((part, key))
        failures = 1 if before is None else before.failures + 1
        seconds = min(_FIRST_SECONDS * 2.0 ** min(failures - 1, 10), _MOST_SECONDS)
        sentence = f"{part.value.replace('_', ' ')} {name} cannot be used ({describe_error(error)})"
        entry = self.entries[part, key] = QuarantinedObject(part, key, name, sentence, failures, now + seconds, version)
        return entry

    def release(self, part: Part, key: int) -> None:
        """Remove an object that is in use again or that does not exist any more."""
        self.entries.pop((part, key), None)

    def keep_only(self, part: Part, keys: Iterable[int]) -> None:
        """Forget the objects of a part that are not among these."""
        wanted = set(keys)
        for entry in [one for one in self.entries.values() if one.part is part and one.key not in wanted]:
            del self.entries[part, entry.key]

    def holds(self, part: Part, key: int, version: int, now: float) -> bool:
        """Return whether an object is left out in this version, and not due to be tried again."""
        entry = self.entries.get((part, key))
        return entry is not None and entry.holds(version, now)

    def due(self, now: float) -> list[QuarantinedObject]:
        """Return the objects to be tried again."""
        return [entry for entry in self.entries.values() if entry.retry_at <= now]

    def counts(self) -> dict[tuple[str, ...], float]:
        """Return the number of objects that are left out, by part."""
        return {(part,): float(many) for part, many in Counter(one.part.value for one in self.entries.values()).items()}
