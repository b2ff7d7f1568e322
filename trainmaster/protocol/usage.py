"""What was used and what it cost, as it is asked for and shown."""

from decimal import Decimal
from typing import Literal

from trainmaster.protocol.base import Lenient, Timestamp

Per = Literal["hour", "day", "month", "all"]
LABEL = "label:"
DIMENSIONS = ("queue", "user", "cluster", "kind")
"""By what usage is told apart, beside labels (``label:team``)."""


class UsageRow(Lenient):
    """One line. Amounts are of a resource for an hour: core-hours, GiB-hours, device-hours, member-hours."""

    since: Timestamp
    """When the hour, day or month begins, in UTC; the begin of all where it is not split."""
    of: dict[str, str] = {}
    """Of what it is, by dimension. Empty text: not known any more, or a job without that label."""
    runs: int = 0
    """Runs that ended."""
    cpu: float = 0.0
    memory: float = 0.0
    devices: dict[str, float] = {}
    members: float = 0.0
    cost: Decimal = Decimal(0)
    """In the installation's currency, to the last place."""


class UsageAnswer(Lenient):
    """``total`` is of all rows, the line of everything that was asked for."""

    currency: str
    begin: Timestamp
    end: Timestamp
    rows: tuple[UsageRow, ...]
    total: UsageRow


def check_dimension(text: str) -> str:
    """Raises ValueError for what is no dimension."""
    if text in DIMENSIONS:
        return text
    if text.startswith(LABEL) and len(text) > len(LABEL):
        return text
    raise ValueError(f"{text!r} is none of {', '.join(DIMENSIONS)}, or label:KEY")
