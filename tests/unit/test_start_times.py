"""Start times: a moment, or a delay after the submission."""

import pytest

from trainmaster.protocol.start_times import StartTime, parse_start_time


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("2h", StartTime(7200.0, is_delay=True)),
        ("1h30m", StartTime(5400.0, is_delay=True)),
        ("0s", StartTime(0.0, is_delay=True)),
        ("1970-01-01T00:01:00Z", StartTime(60.0, is_delay=False)),
        ("1970-01-01t00:01:00z", StartTime(60.0, is_delay=False)),
        ("1970-01-01 01:01:00.5+01:00", StartTime(60.5, is_delay=False)),
    ],
)
def test_moments_and_delays_are_read(text: str, start: StartTime) -> None:
    assert parse_start_time(text) == start


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2037-01-01T08:00:00", "no zone"),
        ("9999-12-31T23:59:59-01:00", "between the years"),
        ("0001-01-01T00:00:00+14:00", "between the years"),
        ("2037-13-01T08:00:00Z", "month must be in"),
        ("2037-01-01", "is not a duration"),
        ("tomorrow", "is not a duration"),
        ("90", "did you mean 90s"),
        ("5000d", "longer than ten years"),
        ("-2h", "is not a duration"),
        ("2037-01-01T" + "0" * 60, "at most 40 characters"),
    ],
)
def test_others_are_refused_with_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_start_time(text)


def test_a_delay_counts_from_the_submission_and_a_moment_does_not() -> None:
    assert parse_start_time("2h").at(1000.0) == 8200.0
    assert parse_start_time("1970-01-01T00:01:00Z").at(1000.0) == 60.0
