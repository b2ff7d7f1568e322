"""Spans as values, with times in seconds since the epoch. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster.tracing.context import SpanRef

AttributeValue = str | int | float | bool
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    at: float
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """A span with both its times. ``parent`` is of the same trace, which is sampled."""

    name: str
    ref: SpanRef
    parent: SpanRef
    begin: float
    end: float
    attributes: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanRef, ...] = ()
    is_failed: bool = False
