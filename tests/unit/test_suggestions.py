"""Known names that a mistyped one may be meant to be."""

import pytest

from trainmaster.protocol.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("Jbo", ("Job", "Queue"), "Job"),
        ("oJb", ("Job", "Queue"), "Job"),
        ("Obj", ("Job", "Queue"), None),
        ("Job1", ("Job", "Queue"), "Job"),
        ("gpu", ("cpu", "memory", "nvidia.com/gpu"), "nvidia.com/gpu"),
        ("x", ("xy",), None),
    ],
)
def test_a_mistyped_word_is_met_with_the_one_that_is_meant(
    given: str, known: tuple[str, ...], meant: str | None
) -> None:
    assert did_you_mean(given, known) == (f"; did you mean {meant}?" if meant else "")
