"""A job's place in its queue, usage of queues, and the trial of a job that is not submitted yet."""

from pydantic import Field

from trainmaster.protocol.base import Lenient, Timestamp
from trainmaster.protocol.reasons import Reason


class QueueTurn(Lenient):
    """Factors of a queue's turn among its siblings. Shares are parts of the whole capacity, divided by the queue's weight."""

    queue: str
    """Path of the queue."""
    weight: float
    """Weight of the queue."""
    share_beyond_guarantee: float
    """Share of its usage beyond its guarantee. The lowest has the next turn."""
    share: float
    """Share of its whole usage; decides between siblings that are equal in the first."""
    past_share: float = 0.0
    """Decayed past shares beyond guarantee; added to both where past usage counts."""
    rank: int
    """Rank among those siblings, itself included: 1 has the next turn."""
    siblings: int
    """Number of siblings whose next jobs need most of the same resource, itself included; at the top, of all with waiting jobs."""
    resource: str | None = None
    """Resource of which its shares are, for a queue with others below it: that of which the job's queue needs the largest part next.
    None: its shares are those of the resource of which it uses the largest part."""


class UserTurn(Lenient):
    """Factors of the turn of a job's user among those with waiting jobs in its queue."""

    user: str
    """Name of the key that submitted the job."""
    weight: float
    """Weight of the user in the queue."""
    share: float
    """Dominant share of what the user's live runs in the queue use, as part of the whole capacity, divided by the weight, and past
    usage where that counts. The lowest has the next turn."""
    rank: int
    """Rank among these users, this one included: 1 has the next turn."""
    users: int
    """Number of these users, this one included."""
    jobs_ahead: int
    """Number of this user's own queued jobs before it, without those that cannot run as they are written."""


class Factors(Lenient):
    """Factors of a job's sort key inside its queue, and its queues' turns from the root to its own."""

    urgent: bool
    """True if the job has waited longer than its class allows; it goes before others."""
    urgent_at: Timestamp | None = None
    """Time when it becomes or became urgent; None if its class has no longest wait."""
    priority_class: str
    """Priority class of the job."""
    class_value: int
    """Value of that class."""
    submitted_at: Timestamp
    """Time since when it waits: its submission, or its start time."""
    priority: int
    """Priority within the class."""
    seconds_earlier: float
    """Seconds that the priority adds to its age."""
    slowdown: float | None = None
    """Wait plus expected run time in run times, by which its queue orders the jobs of a class; None: it does not."""
    by_deadline: bool = False
    """True if its queue orders the jobs of a class by their deadlines; none of them becomes urgent."""
    deadline: Timestamp | None = None
    """Deadline, in such a queue; None: the job has none."""
    queues: tuple[QueueTurn, ...] = ()
    """Turns of its queues, from the root to its own."""
    user: UserTurn | None = None
    """Turn of its user; None in a queue that does not share its turns between users."""


class StartForecast(Lenient):
    """By when a waiting job is likely to start, from how long jobs of about its width and run time have waited before."""

    half_by: Timestamp
    """Half of such jobs start by then."""
    most_by: Timestamp
    """Nine tenths of such jobs start by then."""
    jobs: int
    """Number of jobs whose waits this was computed from."""


class Place(Lenient):
    """A job's place among the queued jobs of its own queue."""

    queue: str
    """Path of the queue."""
    position: int
    """Position; 1 is next."""
    jobs_ahead: int
    """Number of queued jobs before it, without those that cannot run as they are written. Where the queue's turns are shared
    between users, of others' jobs those that would start before it if nothing ended meanwhile."""
    jobs_in_queue: int
    """Number of queued jobs of the queue."""
    jobs_that_cannot_run: int = 0
    """Number of those that cannot run as they are written."""
    factors: Factors
    """Factors of the place."""
    forecast: StartForecast | None = None
    """By when it is likely to start; None if too few such jobs have started, or its reason says when it starts."""


class QueueFigures(Lenient):
    """Usage by the live runs of a queue and of all below it, as the leading scheduler counts it."""

    running: int
    """Number of live runs, including stopping ones: what they hold is not free yet."""
    used: dict[str, str] = Field(default_factory=dict)
    """Usage by flavor, such as ``cpu`` or ``cpu@kind=public``, as a quantity; unused flavors are left out."""
    share: float
    """Its dominant share: the largest fraction of any flavor that it uses, divided by its weight."""
    share_beyond_guarantee: float
    """Its dominant share of usage beyond its guarantees; the lowest among siblings has the next turn."""
    past_share: float = 0.0
    """Decayed past shares beyond guarantee, where past usage counts."""


class QueueUsage(QueueFigures):
    """Usage of a queue, with its path."""

    queue: str
    """Path of the queue."""


class Usages(Lenient):
    """Usage of queues at one time."""

    queues: tuple[QueueUsage, ...]
    """Usage of each queue."""


class Trial(Lenient):
    """Result of a dry run: what would happen to a job if it were submitted now."""

    could_run: bool
    """True if it may start after waiting; False if it can never run as it is written."""
    starts_now: bool
    """True if the next cycle would start it."""
    why: str
    """Sentence that explains why it would start on that cluster, or why it would not start."""
    cluster: str | None = None
    """Cluster where it would start, now or at ``expected_start``."""
    expected_start: Timestamp | None = None
    """Time at which it is expected to start, under the assumption ``assuming``."""
    assuming: str | None = None
    """Assumption behind ``expected_start``, such as ``runs there keep to their limits, and no other job gets its turn before it``.
    None without an expected start."""
    runs_ended: int = 0
    """Number of other runs that would be preempted for it."""
    fits_empty: tuple[str, ...] = ()
    """Clusters where it would fit if nothing ran."""
    fits_now: tuple[str, ...] = ()
    """Clusters where it fits now."""
    place: Place
    """Place that it would have in its queue."""
    reason: Reason | None = None
    """Reason why it would wait; None if it would start."""
