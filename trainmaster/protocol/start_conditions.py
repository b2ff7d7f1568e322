"""Conditions on the start of a queue's jobs, as admins write them: hours, quiet clusters, low prices."""

from decimal import Decimal
from typing import Annotated, Self

from pydantic import field_validator, model_validator

from trainmaster.protocol.base import Strict, bounded
from trainmaster.protocol.bursting import HoursSpec, Part
from trainmaster.protocol.prices import Money


class QuietSpec(Strict):
    """Utilisation of a cluster: the used part of its most used resource."""

    below: Part
    """Jobs start on a cluster once its utilisation is below this."""
    until: Part | None = None
    """Then they start there until its utilisation is not below this any more; by default ``below``."""

    @model_validator(mode="after")
    def _ends_above_its_begin(self) -> Self:
        if self.until is not None and self.until < self.below:
            raise ValueError(f"until must not be lower than below, which is {self.below:g}")
        return self


class LowPriceSpec(Strict):
    """Price of a job on a cluster for an hour, by the price book of the cluster."""

    below: Money
    """Jobs start on clusters where one costs less than this for an hour, in the currency of the installation."""

    @field_validator("below")
    @classmethod
    def _lets_something_start(cls, value: Decimal) -> Decimal:
        if not value:
            raise ValueError("must be above 0, as no cluster costs less than nothing")
        return value


class StartsWhenSpec(Strict):
    """Conditions on the start of jobs: all must hold. Runs go on when they do not hold any more."""

    utilisation: QuietSpec | None = None
    """Utilisation of the cluster where a job starts, before its start."""
    hours: Annotated[tuple[HoursSpec, ...], bounded(100)] = ()
    """Hours in which jobs start; without any, at all times."""
    price: LowPriceSpec | None = None
    """Price of the job on the cluster where it starts."""

    @model_validator(mode="after")
    def _has_any(self) -> Self:
        if self.utilisation is None and self.price is None and not self.hours:
            raise ValueError("give at least one of utilisation, hours and price")
        return self
