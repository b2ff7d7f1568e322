"""Burst policies, as admins write them: when, where, how much and at what cost jobs may go to public clusters."""

from enum import StrEnum
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.base import Lenient, Name40, QueuePath, Strict, Timestamp, bounded, example, text_schema
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.prices import Money
from trainmaster.protocol.quantities import Quantity, parse_quantity

Part = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Choose(StrEnum):
    """Rule for choosing one of a policy's clusters."""

    SCORE = "score"
    """The best by scores, as among private clusters."""
    ORDER = "order"
    """The first of the policy's list where the job fits."""


class SpotUse(StrEnum):
    """Use of nodes that the provider may take back."""

    ALLOWED = "allowed"
    ONLY = "only"
    NEVER = "never"


class Day(StrEnum):
    """Days of the week, in their order."""

    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


def _clock_check(text: str) -> str:
    hour, colon, minute = text.partition(":")
    digits = hour + minute
    if not colon or len(hour) != 2 or len(minute) != 2 or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is not a time of the day; write for example 08:30")
    if int(minute) > 59 or int(hour) * 60 + int(minute) > 24 * 60:
        raise ValueError(f"{text!r} is not a time of the day; the last one is 24:00")
    return text


def _from_minutes(value: object) -> object:
    """Return ``HH:MM`` for minutes: YAML reads an unquoted 18:00 as a number to base 60, which is minutes."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 24 * 60:
        return f"{value // 60:02}:{value % 60:02}"
    return value


ClockTime = Annotated[
    str,
    BeforeValidator(_from_minutes),
    AfterValidator(_clock_check),
    text_schema(
        "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$",
        5,
        "08:30",
        least=5,
        also={"type": "integer", "minimum": 0, "maximum": 24 * 60},
    ),
]
"""``HH:MM``, from 00:00 to 24:00."""


def minutes_of(text: str) -> int:
    """Return the minutes since midnight."""
    return int(text[:2]) * 60 + int(text[3:])


def _zone_check(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}; write for example UTC or Europe/Berlin") from error
    return name


def _any_day(days: tuple[Day, ...]) -> tuple[Day, ...]:
    if not days:
        raise ValueError(f"name at least one of {', '.join(Day)}")
    return days


class HoursSpec(Strict):
    """Hours of the day in which jobs may go. If ``end`` is not later than ``start``, it is on the next day."""

    days: Annotated[tuple[Day, ...], bounded(100, least=1), AfterValidator(_any_day)] = tuple(Day)
    """Days of the week on which the window begins."""
    start: ClockTime = "00:00"
    """Time of the day at which the window begins."""
    end: ClockTime = "24:00"
    """Time of the day at which it ends; on the next day if it is not later than ``start``."""
    time_zone: Annotated[str, StringConstraints(max_length=64), AfterValidator(_zone_check)] = "UTC"
    """Time zone of both, such as ``Europe/Berlin``."""


class UtilisationSpec(Strict):
    """Utilisation of private clusters: the used part of the most used resource."""

    above: Part
    """Jobs may go from this utilisation on."""
    until: Part | None = None
    """No more jobs go once it falls below this; by default ``above``."""

    @model_validator(mode="after")
    def _ends_below_its_begin(self) -> Self:
        if self.until is not None and self.until > self.above:
            raise ValueError(f"until must not be higher than above, which is {self.above:g}")
        return self


class WhenSpec(Strict):
    """Conditions for a job to go: all must hold. It never goes while it could start on a cluster of its queue."""

    after: Duration = "0s"
    """The shortest wait since the job was submitted."""
    expected_wait: Duration | None = None
    """The shortest expected wait from now, by the time limits of runs."""
    utilisation: UtilisationSpec | None = None
    """Utilisation of private clusters from which on jobs may go."""
    class_at_least: Name40 | None = None
    """The lowest priority class, by value."""


class RampSpec(Strict):
    """At most ``jobs`` jobs start in any period of length ``every``."""

    jobs: Annotated[int, Field(ge=1, le=1_000_000)]
    """The most jobs that start in a period."""
    every: Duration
    """Length of the period, 1s to 1d."""

    @field_validator("every")
    @classmethod
    def _within_a_day(cls, value: str) -> str:
        if not 1 <= parse_duration(value) <= 86400:
            raise ValueError("must be 1s to 1d")
        return value


class AtMostSpec(Strict):
    """The most that may be at public clusters at a time. What is not named is not limited."""

    jobs: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """The most jobs."""
    nodes: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Whole nodes, counted as the sum of the parts of nodes that the jobs hold."""
    resources: Annotated[dict[ResourceName, Quantity], bounded(200)] = Field(default_factory=dict)
    """The most of each resource."""
    ramp: RampSpec | None = None
    """The most starts in a period."""

    @field_validator("resources")
    @classmethod
    def _quantities(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            parse_quantity(name, text)
        return value


class BudgetSpec(Strict):
    """The most that may be spent in an hour, a day, a month (calendar, UTC) and on one job; one of the first three is needed."""

    hour: Money | None = None
    """The most for an hour."""
    day: Money | None = None
    """The most for a day."""
    month: Money | None = None
    """The most for a month."""
    job: Money | None = None
    """The most for one job, by its time limit."""
    warn_at: Annotated[tuple[Part, ...], bounded(10)] = (0.5, 0.8, 0.95)
    """Parts of a budget at which a warning is given."""

    @model_validator(mode="after")
    def _ends_somewhere(self) -> Self:
        if self.hour is None and self.day is None and self.month is None:
            raise ValueError("a budget needs at least one of hour, day and month: one per job does not limit the total")
        return self


class BurstPolicySpec(Strict):
    """Rules by which jobs of queues may go to public clusters: when, to which, how many, and at what cost."""

    model_config = example(
        kind="BurstPolicy",
        name="overflow",
        queues=["research"],
        when={"after": "15m", "utilisation": {"above": 0.9, "until": 0.7}},
        atMost={"jobs": 20},
        budget={"day": "500", "job": "40"},
        timeLimit="8h",
    )

    kind: Literal["BurstPolicy"] = "BurstPolicy"
    """Kind of this document."""
    name: Name40
    """Name of the policy."""
    queues: Annotated[tuple[QueuePath, ...], Field(min_length=1), bounded(1000)]
    """These queues and those below them. Only policies open public clusters to their jobs."""
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Public clusters that jobs may use; without any, all."""
    choose: Choose = Choose.SCORE
    """Rule for choosing one of the clusters."""
    when: WhenSpec = WhenSpec()
    """Conditions for a job to go."""
    at_most: AtMostSpec = AtMostSpec()
    """The most that may be at public clusters by the policy at a time."""
    budget: BudgetSpec
    """The most that may be spent by the policy."""
    time_limit: Duration | None = None
    """Time limit of a job that has none; one with a longer limit does not go."""
    spot: SpotUse = SpotUse.ALLOWED
    """Use of nodes that the provider may take back."""
    hours: Annotated[tuple[HoursSpec, ...], bounded(100)] = ()
    """Hours in which jobs may go; without any, at all times. Running jobs go on afterwards."""
    paused: bool = False
    """True if no more jobs go; running jobs go on."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""

    @model_validator(mode="after")
    def _order_needs_clusters(self) -> Self:
        if self.choose is Choose.ORDER and not self.clusters:
            raise ValueError("choose: order needs the list of clusters in which they are tried")
        if self.time_limit is not None and parse_duration(self.time_limit) <= 0:
            raise ValueError("timeLimit: must be above 0s")
        return self


class Standing(Lenient):
    """Use of a budget in its current window."""

    span: str
    """Window of the budget: ``hour``, ``day`` or ``month``."""
    limit: Money
    """The most that may be spent in the window."""
    spent: Money
    """Spent by runs until now."""
    committed: Money
    """The most that running jobs may still cost."""
    until: Timestamp
    """End of the window."""
    forecast: Money | None = None
    """Spending expected by the end of the window, if it goes on as in the last 24 hours and running jobs do not end before their
    limits."""
    reached_at: Timestamp | None = None
    """Time at which the limit is expected to be reached; missing where that is not in the window."""


class PolicyFigures(Lenient):
    """State of a policy, by the leading scheduler."""

    jobs: int
    """Number of jobs at public clusters by the policy."""
    nodes: float
    """Number of whole nodes that they hold."""
    resources: dict[str, str] = {}
    """Amounts that they hold, by resource."""
    budgets: tuple[Standing, ...] = ()
    """Use of its budgets."""
    closed: str = ""
    """Reason for which no job may go by it now; empty if that depends on the job."""
    utilisation: float | None = None
    """Utilisation of private clusters, if the policy uses it."""


class PolicyStatus(PolicyFigures):
    """State of a policy, with its name."""

    name: str
    """Name of the policy."""


class Preview(Lenient):
    """Result of a policy for equivalent jobs, if they were decided on now."""

    model_config = example(
        job="bert-7k2p9xq",
        jobs=3,
        queue="research/vision",
        waitedSeconds=1260.0,
        policy="overflow",
        goes=True,
        cluster="cloud",
        pricePerHour="12.5",
        atMost="40",
        sentence="It goes to cloud for at most 40 EUR.",
    )

    job: str
    """Id of the first of these jobs."""
    jobs: int
    """Number of equivalent jobs."""
    queue: str
    """Path of their queue."""
    waited_seconds: float
    """Wait of the first of them until now."""
    policy: str
    """Name of the policy."""
    goes: bool
    """True if it would go now."""
    cluster: str | None = None
    """Cluster that it would go to."""
    price_per_hour: Money | None = None
    """Price of one job per hour there."""
    at_most: Money | None = None
    """The most that a job may cost until its time limit, including start and end."""
    sentence: str
    """Sentence that explains the result."""
    at: Timestamp | None = None
    """The earliest time at which the job may go, if known."""


class Previews(Lenient):
    """A preview for every class of jobs that a policy applies to."""

    live: bool = True
    """True if the leading scheduler answered."""
    currency: str = ""
    """Currency of the installation."""
    looked_at: int = 0
    """Number of jobs that were looked at."""
    previews: tuple[Preview, ...] = ()
    """Previews."""


class PolicyStatuses(Lenient):
    """States of policies, by policy."""

    policies: tuple[PolicyStatus, ...]
