"""Checks of an installation: what was found, what it means and what to do. Reports of the api and lines of ``doctor``."""

from enum import StrEnum

from trainmaster.protocol.base import Lenient, Timestamp, example
from trainmaster.protocol.states import KeyRole


class HealthState(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works, and needs attention."""
    ERROR = "error"
    """Something does not work."""


class HealthCheck(Lenient):
    """One check and what it has found."""

    model_config = example(
        name="leader",
        state="error",
        message="no scheduler leads since 5m: no job starts",
        advice="start a scheduler: trainmaster scheduler",
    )

    name: str
    """Name of the check, such as `database` or `agent private`."""
    state: HealthState
    """Result of the check."""
    message: str
    """Finding, and its meaning."""
    advice: str = ""
    """Advice; empty where nothing is to be done."""


class KeyInUse(Lenient):
    """The key that a call was made with."""

    model_config = example(name="vision-team", role="user", queues=["research/vision"])

    name: str
    """Name of the key."""
    role: KeyRole
    """Rights of the key."""
    queues: tuple[str, ...] = ()
    """Queues, with all below them, that a user's key may use."""
    clusters: tuple[str, ...] = ()
    """Clusters that an owner's key may look after."""


class HealthReport(Lenient):
    """State of an installation, as an api sees it. ``checks`` is empty for users; owners get those of their clusters' agents."""

    model_config = example(
        release="0.1.0",
        time="2026-11-24T08:00:00.000Z",
        key={"name": "admin", "role": "admin"},
        checks=[{"name": "database", "state": "ok", "message": "Postgres 18.6 answers in 1 ms"}],
    )

    release: str
    """Release of the api."""
    time: Timestamp
    """Time of the api's clock."""
    key: KeyInUse
    """The key of this call."""
    checks: tuple[HealthCheck, ...] = ()
    """Checks that the api has made: all for an admin, those of agents of its clusters for an owner, none for a user."""


def warning(name: str, message: str, advice: str = "") -> HealthCheck:
    """Return a check that has found something that needs attention."""
    return HealthCheck(name=name, state=HealthState.WARNING, message=message, advice=advice)


def error(name: str, message: str, advice: str = "") -> HealthCheck:
    """Return a check that has found something that does not work."""
    return HealthCheck(name=name, state=HealthState.ERROR, message=message, advice=advice)


def fine(name: str, message: str) -> HealthCheck:
    """Return a check that has found nothing wrong."""
    return HealthCheck(name=name, state=HealthState.OK, message=message)


def clock_check(name: str, least: float, most: float, between: str) -> HealthCheck:
    """Return the check of two clocks that differ by ``least`` to ``most`` seconds, which is as exact as it could be measured.

    No difference is said where there may be none.
    """
    if least <= 0 <= most:
        return fine(name, f"{between} agree, as exactly as this can be measured: to {max(most - least, 0.1):.1f} s")
    difference = min(least, most, key=abs)
    message = f"{between} differ by {abs(difference):.1f} s"
    if abs(difference) < _FINE_SECONDS:
        return fine(name, message)
    advice = "let NTP set the clocks of both machines"
    made = error if abs(difference) >= _WRONG_SECONDS else warning
    return made(name, f"{message}: times that people read, and certificates, may seem wrong", advice)


_FINE_SECONDS = 2.0
_WRONG_SECONDS = 60.0
