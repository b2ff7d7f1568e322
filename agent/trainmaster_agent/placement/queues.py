"""From Trainmaster's queues to those of the scheduler. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rule of the longest path that a queue is at or below; else the default, which may be empty."""

    rules: Mapping[str, str] = field(default_factory=dict)
    """Scheduler's queue by Trainmaster's queue path."""
    default: str = ""

    def of(self, path: str) -> str:
        while path:
            if path in self.rules:
                return self.rules[path]
            path = path.rpartition("/")[0]
        return self.default
