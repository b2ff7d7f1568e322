"""Used resources and their cost: requests and answers."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from trainmaster.protocol.base import Lenient, Timestamp, example

Per = Literal["hour", "day", "month", "all"]
LABEL = "label:"
DIMENSIONS = ("queue", "user", "cluster", "kind", "class")
"""Dimensions to group usage by, beside labels (``label:team``)."""


class UsageRow(Lenient):
    """One row. Amounts are resources multiplied by hours: core-hours, GiB-hours, device-hours, member-hours."""

    model_config = example(
        since="2026-11-01T00:00:00.000Z",
        of={"queue": "research/vision"},
        runs=40,
        cpu=1280.5,
        memory=10244.0,
        devices={"nvidia.com/gpu": 160.0},
        members=160.0,
        cost="412.75",
        charge="619.125",
    )

    since: Timestamp
    """Begin of the hour, day or month, in UTC; begin of the whole time if it is not split."""
    of: dict[str, str] = {}
    """The row's value of each dimension. Empty text: no longer known, or a job without that label."""
    runs: int = 0
    """Number of ended runs."""
    cpu: float = 0.0
    """Core-hours."""
    memory: float = 0.0
    """GiB-hours of memory."""
    devices: dict[str, float] = {}
    """Device-hours by resource."""
    members: float = 0.0
    """Member-hours."""
    cost: Decimal = Decimal(0)
    """Cost in the installation's currency, not rounded."""
    charge: Decimal | None = None
    """Cost times the price factors of the jobs' priority classes and queues; None: a release that has none."""


class CostOfJob(Lenient):
    """Cost of the runs of a job until now, at the prices of their time."""

    cost: Annotated[Decimal, Field(examples=["12.5"])]
    """Cost in the installation's currency, not rounded."""
    charge: Annotated[Decimal, Field(examples=["18.75"])]
    """Cost times the price factors of the job's priority class and queue."""
    currency: Annotated[str, Field(examples=["EUR"])]
    """Currency of the installation."""


class UsageAnswer(Lenient):
    """``total`` is the sum of all rows."""

    currency: Annotated[str, Field(examples=["EUR"])]
    """Currency of the installation."""
    begin: Timestamp
    """Begin of the time."""
    end: Timestamp
    """End of the time."""
    rows: tuple[UsageRow, ...]
    """Rows, by time and dimensions."""
    total: UsageRow
    """Sum of all rows."""


def check_dimension(text: str) -> str:
    """Check the name of a dimension and return it. Raises ValueError."""
    if text in DIMENSIONS:
        return text
    if text.startswith(LABEL) and len(text) > len(LABEL):
        return text
    raise ValueError(f"{text!r} is none of {', '.join(DIMENSIONS)}, or label:KEY")
