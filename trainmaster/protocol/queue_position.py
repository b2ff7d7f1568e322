"""A job's place in its queue and what it goes by, what queues use, and what would become of a job that is not submitted yet."""

from pydantic import Field

from trainmaster.protocol.base import Lenient, Timestamp
from trainmaster.protocol.reasons import Reason


class QueueTurn(Lenient):
    """What a queue's turn among its siblings goes by. Shares are parts of the whole capacity, by the queue's weight."""

    queue: str
    weight: float
    share_beyond_guarantee: float
    """Of what it uses beyond what is guaranteed to it. The lowest has the next turn."""
    share: float
    """Of all that it uses; decides between those that are equal in the first."""
    past_share: float = 0.0
    """What counts of the shares beyond guarantee that it had before; added to both where past usage counts."""
    rank: int
    """Among its siblings that have jobs waiting, itself included: 1 has the next turn."""
    siblings: int


class Factors(Lenient):
    """What makes a job's key inside its queue, and its queues' turns from the root to its own."""

    urgent: bool
    urgent_at: Timestamp | None = None
    """When it becomes urgent, or did; None if its class has no longest wait."""
    priority_class: str
    class_value: int
    submitted_at: Timestamp
    priority: int
    seconds_earlier: float
    """By how many seconds the priority makes it older than it is."""
    queues: tuple[QueueTurn, ...] = ()


class Place(Lenient):
    """Where a job stands among the queued jobs of its own queue."""

    queue: str
    position: int
    """1 is next."""
    jobs_ahead: int
    jobs_in_queue: int
    factors: Factors


class QueueFigures(Lenient):
    """What the live runs of a queue and of all below it take, as the leading scheduler counts it."""

    running: int
    """Live runs, those that are stopping included: what they hold is not free yet."""
    used: dict[str, str] = Field(default_factory=dict)
    """By line, such as ``cpu`` or ``cpu@kind=public``, as a quantity; lines of which nothing is used are left out."""
    share: float
    """The largest part of any line that it uses, by its weight."""
    share_beyond_guarantee: float
    """The same for what it uses beyond its guarantees; the lowest among siblings has the next turn."""
    past_share: float = 0.0
    """What counts of the shares beyond guarantee that it had before, where past usage counts."""


class QueueUsage(QueueFigures):
    """The same with the queue's path."""

    queue: str


class Usages(Lenient):
    """What queues use at one moment."""

    queues: tuple[QueueUsage, ...]


class Trial(Lenient):
    """What would become of a job if it were submitted now."""

    could_run: bool
    """Whether waiting may help it to a start; not so if it can never run as it is written."""
    starts_now: bool
    """Whether the next cycle would start it."""
    why: str
    """Why it would start where it would, or why it would not."""
    cluster: str | None = None
    """Where it would start, now or at ``expected_start``."""
    expected_start: Timestamp | None = None
    """It starts by then if runs keep to their time limits."""
    runs_ended: int = 0
    """How many runs of others would be ended for it."""
    fits_empty: tuple[str, ...] = ()
    """Clusters that would have room for it without any run."""
    fits_now: tuple[str, ...] = ()
    """Those of them that have room for it now."""
    place: Place
    reason: Reason | None = None
    """Why it would wait; None if it would start."""
