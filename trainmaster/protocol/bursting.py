"""When, where, how much and at what cost jobs may go to public clusters: burst policies, as admins write them."""

from enum import StrEnum
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.base import Lenient, Name40, QueuePath, Strict, Timestamp, bounded
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.prices import Money
from trainmaster.protocol.quantities import Quantity, parse_quantity

Part = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Choose(StrEnum):
    """How one of a policy's clusters is chosen."""

    SCORE = "score"
    """The best by its scores, as among others."""
    ORDER = "order"
    """The first in the policy's list where it fits."""


class SpotUse(StrEnum):
    """Whether jobs may be on nodes that the provider may take back."""

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
        raise ValueError(f"{text!r} is no time of the day; write for example 08:30")
    if int(minute) > 59 or int(hour) * 60 + int(minute) > 24 * 60:
        raise ValueError(f"{text!r} is no time of the day; the last one is 24:00")
    return text


def _from_minutes(value: object) -> object:
    """YAML reads 18:00 without quotation marks as a number to the base of 60, which is minutes."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 24 * 60:
        return f"{value // 60:02}:{value % 60:02}"
    return value


ClockTime = Annotated[str, BeforeValidator(_from_minutes), AfterValidator(_clock_check)]
"""``HH:MM``, from 00:00 to 24:00."""


def minutes_of(text: str) -> int:
    """Minutes since midnight."""
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
    """Hours of the day in which jobs may go. Where ``end`` is not later than ``start``, it is on the next day."""

    days: Annotated[tuple[Day, ...], bounded(100), AfterValidator(_any_day)] = tuple(Day)
    """On which it begins."""
    start: ClockTime = "00:00"
    end: ClockTime = "24:00"
    time_zone: Annotated[str, StringConstraints(max_length=64), AfterValidator(_zone_check)] = "UTC"


class UtilisationSpec(Strict):
    """How full private clusters are: the part in use of the resource that is used most."""

    above: Part
    """Jobs may go from then on."""
    until: Part | None = None
    """No more once it falls below that; ``above`` where it is not given."""

    @model_validator(mode="after")
    def _ends_below_its_begin(self) -> Self:
        if self.until is not None and self.until > self.above:
            raise ValueError(f"until must not be above {self.above:g}, where it begins")
        return self


class WhenSpec(Strict):
    """When a job may go: all that is given must hold. It never goes while it could start on a cluster of its queue."""

    after: Duration = "0s"
    """It has waited for so long since it was submitted."""
    expected_wait: Duration | None = None
    """It would have to wait longer than that from now, as far as the time limits of runs tell."""
    utilisation: UtilisationSpec | None = None
    class_at_least: Name40 | None = None
    """Its priority class has at least the value of this one."""


class RampSpec(Strict):
    """So many jobs start at most in any such time."""

    jobs: Annotated[int, Field(ge=1, le=1_000_000)]
    every: Duration

    @field_validator("every")
    @classmethod
    def _within_a_day(cls, value: str) -> str:
        if not 1 <= parse_duration(value) <= 86400:
            raise ValueError("must be 1s to 1d")
        return value


class AtMostSpec(Strict):
    """How much may be at public clusters at a time. What is not named is not limited."""

    jobs: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    nodes: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """As many whole nodes as the parts of nodes that they hold come to."""
    resources: Annotated[dict[ResourceName, Quantity], bounded(200)] = Field(default_factory=dict)
    ramp: RampSpec | None = None

    @field_validator("resources")
    @classmethod
    def _quantities(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            parse_quantity(name, text)
        return value


class BudgetSpec(Strict):
    """What may be spent in an hour, a day, a month (of the calendar, UTC) and on one job; one of the first three is needed."""

    hour: Money | None = None
    day: Money | None = None
    month: Money | None = None
    job: Money | None = None
    warn_at: Annotated[tuple[Part, ...], bounded(10)] = (0.5, 0.8, 0.95)
    """Parts of a budget at which a warning is given."""

    @model_validator(mode="after")
    def _ends_somewhere(self) -> Self:
        if self.hour is None and self.day is None and self.month is None:
            raise ValueError("a budget needs at least one of hour, day and month; one for a job alone would never end")
        return self


class BurstPolicySpec(Strict):
    """When jobs of queues may go to public clusters, to which, how many, and at what cost."""

    kind: Literal["BurstPolicy"] = "BurstPolicy"
    name: Name40
    queues: Annotated[tuple[QueuePath, ...], Field(min_length=1), bounded(1000)]
    """These, and those below them. Public clusters are open to their jobs by their policies alone."""
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Public clusters; without any, all of them."""
    choose: Choose = Choose.SCORE
    when: WhenSpec = WhenSpec()
    at_most: AtMostSpec = AtMostSpec()
    budget: BudgetSpec
    time_limit: Duration | None = None
    """A job without a time limit is ended after that; one with a longer limit stays."""
    spot: SpotUse = SpotUse.ALLOWED
    hours: Annotated[tuple[HoursSpec, ...], bounded(100)] = ()
    """In which they may go; without any, at all times. What runs goes on when they end."""
    paused: bool = False
    """Nothing more goes; what runs goes on."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""

    @model_validator(mode="after")
    def _order_needs_clusters(self) -> Self:
        if self.choose is Choose.ORDER and not self.clusters:
            raise ValueError("choose: order needs the list of clusters in which they are tried")
        if self.time_limit is not None and parse_duration(self.time_limit) <= 0:
            raise ValueError("timeLimit: must be above 0s")
        return self


class Standing(Lenient):
    """What a budget has left in its window of now."""

    span: str
    limit: Money
    spent: Money
    """By runs until now."""
    committed: Money
    """What runs at work may still cost."""
    until: Timestamp


class PolicyFigures(Lenient):
    """How a policy stands, as the leading scheduler sees it."""

    jobs: int
    nodes: float
    resources: dict[str, str] = {}
    budgets: tuple[Standing, ...] = ()
    closed: str = ""
    """Why nothing may go by it now; empty where that depends on the job."""
    utilisation: float | None = None
    """How full private clusters are, where it matters."""


class PolicyStatus(PolicyFigures):
    """The same with the policy's name."""

    name: str


class Preview(Lenient):
    """What would become of equivalent jobs under a policy now."""

    job: str
    """The first of them."""
    jobs: int
    queue: str
    waited_seconds: float
    policy: str
    goes: bool
    cluster: str | None = None
    price_per_hour: Money | None = None
    at_most: Money | None = None
    """What it may cost until its time limit, with its start and its end."""
    sentence: str
    at: Timestamp | None = None
    """When it may go at the earliest, where that is known."""


class Previews(Lenient):
    """For every class of jobs that a policy was asked about."""

    live: bool = True
    currency: str = ""
    looked_at: int = 0
    previews: tuple[Preview, ...] = ()


class PolicyStatuses(Lenient):
    """By policy."""

    policies: tuple[PolicyStatus, ...]
