"""Used resources and their cost: requests and answers."""

from decimal import Decimal
from typing import Literal

from trainmaster.protocol.base import Lenient, Timestamp

Per = Literal["hour", "day", "month", "all"]
LABEL = "label:"
DIMENSIONS = ("queue", "user", "cluster", "kind")
"""Dimensions to group usage by, beside labels (``label:team``)."""


class UsageRow(Lenient):
    """One row. Amounts are resources multiplied by hours: core-hours, GiB-hours, device-hours, member-hours."""

    since: Timestamp
    """Begin of the hour, day or month, in UTC; begin of the whole time if it is not split."""
    of: dict[str, str] = {}
    """The row's value of each dimension. Empty text: no longer known, or a job without that label."""
    runs: int = 0
    """Number of ended runs."""
    cpu: float = 0.0
    memory: float = 0.0
    devices: dict[str, float] = {}
    members: float = 0.0
    cost: Decimal = Decimal(0)
    """Cost in the installation's currency, not rounded."""


class UsageAnswer(Lenient):
    """``total`` is the sum of all rows."""

    currency: str
    begin: Timestamp
    end: Timestamp
    rows: tuple[UsageRow, ...]
    total: UsageRow


def check_dimension(text: str) -> str:
    """Check the name of a dimension and return it. Raises ValueError."""
    if text in DIMENSIONS:
        return text
    if text.startswith(LABEL) and len(text) > len(LABEL):
        return text
    raise ValueError(f"{text!r} is none of {', '.join(DIMENSIONS)}, or label:KEY")
