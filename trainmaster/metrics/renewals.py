"""Metrics of an agent: its lease renewals, and the errors that it contained."""

from typing import Protocol

from trainmaster.metrics.definitions import (
    agent_contained_errors,
    agent_lease_margin_seconds,
    agent_lease_seconds,
    agent_sync_seconds,
)


class Renewal(Protocol):
    """A lease renewal, as ``trainmaster_agent.sync`` reports it."""

    @property
    def margin(self) -> float: ...

    @property
    def lease(self) -> float: ...

    @property
    def round_trip(self) -> float: ...


def note_renewal(renewal: Renewal) -> None:
    agent_lease_margin_seconds.set(renewal.margin)
    agent_lease_seconds.set(renewal.lease)
    agent_sync_seconds.observe(renewal.round_trip)


def note_contained(place: str) -> None:
    agent_contained_errors.labels(place).inc()
