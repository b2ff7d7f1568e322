"""Filters of the client's calls, and lists that they return with more beside the items."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from trainmaster.protocol.answers import SubmissionWarning

Item = TypeVar("Item")


class WithWarnings(list[Item]):
    """A list, with possible mistakes in what was submitted as ``warnings``."""

    def __init__(self, items: Iterable[Item], warnings: "tuple[SubmissionWarning, ...]" = ()) -> None:
        super().__init__(items)
        self.warnings = warnings


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects jobs that meet all conditions. ``name`` may have ``*``; ``queue`` includes all queues below it."""

    queue: str | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    priority_class: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    cluster: str | None = None

    def to_query(self) -> Iterator[tuple[str, str | None]]:
        yield "queue", self.queue
        yield from (("state", state) for state in self.states)
        yield "name", self.name
        yield "priorityClass", self.priority_class
        yield from (("label", f"{key}={value}") for key, value in self.labels.items())
        yield "cluster", self.cluster

    def to_wire(self) -> dict[str, Any]:
        fields = {
            "queue": self.queue,
            "states": list(self.states),
            "name": self.name,
            "priorityClass": self.priority_class,
            "labels": self.labels,
            "cluster": self.cluster,
        }
        return {key: value for key, value in fields.items() if value}
