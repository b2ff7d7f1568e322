"""What a cycle decides."""

from dataclasses import dataclass, field
from typing import Any

from trainmaster.dispatcher.scheduling.backfill import Reservation
from trainmaster.dispatcher.scheduling.fit import Product
from trainmaster.dispatcher.scheduling.view import ClassKey, WaitingJob
from trainmaster.protocol.reasons import Reason


@dataclass(frozen=True, slots=True)
class Start:
    """A job to be handed to a cluster. ``table``: what each candidate scored, for people."""

    job: WaitingJob
    cluster_id: int
    sizes: dict[str, int]
    placement: dict[str, dict[str, int]]
    why: str
    table: tuple[dict[str, Any], ...]
    product: Product | None = None
    """The one product of device that the members may be given, where quota depends on it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A job that no eligible cluster could place: it waits for a person."""

    job: WaitingJob
    message: str


@dataclass(slots=True)
class Plan:
    """The outcome of a cycle, with a reason for every class that was looked at and has jobs left waiting."""

    starts: list[Start] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    reasons: dict[ClassKey, Reason] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """By job: the clusters that are kept for jobs that lack room, to be given to the next cycle."""

    @property
    def jobs(self) -> list[WaitingJob]:
        """The jobs that are decided on."""
        return [*(start.job for start in self.starts), *(hold.job for hold in self.holds)]

    @property
    def sentence(self) -> str:
        """The cycle in one line, for the log."""
        held = f", {len(self.holds)} held as unplaceable" if self.holds else ""
        return f"{len(self.starts)} jobs start{held}, {len(self.reasons)} classes of jobs wait"
