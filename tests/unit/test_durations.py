"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from trainmaster.protocol import durations
from trainmaster.protocol.durations import MOST_CHARACTERS, Duration, format_duration, parse_duration

READ = {
    "500ms": 0.5,
    "30s": 30.0,
    "0s": 0.0,
    "0.5s": 0.5,
    "10m": 600.0,
    "1h30m": 5400.0,
    "2d": 172800.0,
    "1d2h3m4s5ms": 93784.005,
    "3650d": 315_360_000.0,
}
REFUSED = {
    "nothing": "",
    "a number alone": "10",
    "a unit alone": "m",
    "a negative one": "-1s",
    "a space": "1h 30m",
    "an unknown unit": "3w",
    "words": "soon",
    "something behind": "10m!",
    "a line end": "10m\n",
    "an exponent": "1e3s",
    "other digits": "\u0661s",
    "more than ten years": "3651d",
    "digits that do not end": "9" * 5_000 + "s",
}


@pytest.mark.parametrize(("text", "seconds"), READ.items(), ids=READ)
def test_this_is_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_this_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|ten years|at most 32 characters"):
        parse_duration(text)


LONG = {
    "digits": "1" * 60_000,
    "many that are durations": "0s" * 8_000_000,
    "one part too many": "0s" * (MOST_CHARACTERS // 2) + "0s",
    "a megabyte of minutes": "1m" * 500_000,
    "points": "1." * 500_000,
    "digits in front of a unit": "0" * 1_000_000 + "s",
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_texts_are_refused_unread_and_leave_nothing_behind(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: str) -> float:
        raise AssertionError("it was read")

    monkeypatch.setattr(durations, "_seconds", read)
    with pytest.raises(ValueError, match="at most 32 characters"):
        parse_duration(text)


@given(st.text("0123456789.smhd", max_size=64) | st.text(max_size=64))
def test_any_text_is_a_duration_of_at_most_ten_years_or_is_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= 315_360_000
    assert len(text) <= MOST_CHARACTERS


WRITTEN = {
    0.0: "0s",
    0.3: "0.3s",
    9.94: "9.9s",
    9.97: "10s",
    45.0: "45s",
    59.7: "1m",
    5400.0: "1h30m",
    5401.0: "1h30m",
    86_400.0: "1d",
    90_000.0: "1d1h",
    -5.0: "0s",
}


@pytest.mark.parametrize(("seconds", "text"), WRITTEN.items(), ids=WRITTEN.values())
def test_durations_are_written_with_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(10, 3599) | st.integers(1, 2000).map(lambda hours: hours * 3600))
def test_what_needs_at_most_two_units_comes_back_as_it_was(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(0, 3.0e8))
def test_what_is_written_is_near_and_can_be_read(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.04, abs=0.051)


def test_a_bare_number_counts_as_seconds() -> None:
    adapter = TypeAdapter(Duration)
    assert parse_duration(adapter.validate_python(90)) == 90
    assert parse_duration(adapter.validate_python(0.25)) == 0.25
    assert adapter.validate_python(-0.0) == "0.0s"
    refused: tuple[object, ...] = (True, None, -3, float("nan"), float("inf"), [1])
    for wrong in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


def test_a_bare_number_as_text_is_refused_with_what_is_meant() -> None:
    with pytest.raises(
        ValueError, match=r"'300' is not a duration; .*; it has no unit: did you mean 300s, 300m, 300h or 300d\?$"
    ):
        parse_duration("300")
