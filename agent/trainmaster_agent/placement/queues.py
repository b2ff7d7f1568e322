"""Mapping of Trainmaster's queues to the scheduler's queues. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Maps a queue by the rule of the longest path that it is at or below; else to the default, which may be empty."""

    rules: Mapping[str, str] = field(default_factory=dict)
    """The scheduler's queue by Trainmaster's queue path."""
    default: str = ""

    def of(self, path: str) -> str:
        while path:
            if path in self.rules:
                return self.rules[path]
            path = path.rpartition("/")[0]
        return self.default
