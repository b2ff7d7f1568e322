"""Parsing of moments: dates, times, or durations ago."""

from datetime import UTC, datetime, timedelta

import typer

from trainmaster.cli.errors import UsageError


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of an option's duration. Raises UsageError."""
    from trainmaster.protocol.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def moment_of(text: str, reference: datetime, option: str) -> datetime:
    """Return a date or time in UTC, or the moment a duration before ``reference``."""
    from trainmaster.protocol.durations import parse_duration

    try:
        return reference - timedelta(seconds=parse_duration(text))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is neither a date such as 2026-11-01 nor a duration such as 7d"
        raise typer.BadParameter(message, param_hint=option) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
