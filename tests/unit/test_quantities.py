"""Kubernetes quantities: read as Kubernetes reads them, written as people do."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from trainmaster.protocol import quantities
from trainmaster.protocol.quantities import (
    Quantity,
    format_apart,
    format_quantity,
    format_resources,
    parse_quantity,
    parse_resources,
)

CPU: dict[str, tuple[str, int]] = {
    "half a core": ("500m", 500),
    "one and a half": ("1.5", 1500),
    "a tenth": ("0.1", 100),
    "a point in front": (".5", 500),
    "a point behind": ("2.", 2000),
    "a plus": ("+2", 2000),
    "less than a thousandth rounds up": ("100u", 1),
    "a thousandth and a little rounds up": ("1.0001m", 2),
    "nothing": ("0", 0),
    "minus nothing": ("-0", 0),
    "thousands": ("1k", 1_000_000),
    "an exponent": ("1e3", 1_000_000),
}
MEMORY: dict[str, tuple[str, int]] = {
    "bytes": ("128974848", 128974848),
    "gibibytes": ("4Gi", 4 * 2**30),
    "gigabytes": ("4G", 4 * 10**9),
    "half a mebibyte": ("0.5Mi", 2**19),
    "an exponent": ("129e6", 129_000_000),
    "an exponent in capitals": ("2E3", 2000),
    "a negative exponent": ("15e-1", 2),
    "exabytes, not an exponent": ("2E", 2 * 10**18),
    "a part of a byte rounds up": ("100u", 1),
    "thousandths of bytes round up": ("1001m", 2),
    "many digits are not lost": ("1." + "0" * 50 + "1", 2),
    "a tiny exponent": ("1e-999", 1),
}
REFUSED: dict[str, str] = {
    "nothing": "",
    "an unknown suffix": "1Q",
    "a suffix alone": "Gi",
    "a small k with i": "1ki",
    "a negative amount": "-1",
    "words": "two",
    "two points": "1.2.3",
    "a space in front": " 1",
    "a line end": "1\n",
    "a space before the suffix": "1 Gi",
    "suffix and exponent": "1e3Gi",
    "an exponent without digits": "1e",
    "not a number": "nan",
    "infinity": "inf",
    "a comma": "1,5",
    "other digits": "\u0661",
    "digits that do not end": "1" * 100_000,
    "beyond 2**62": "8Ei",
    "an endless exponent": "1e999",
    "a long number": "9" * 60,
}


@pytest.mark.parametrize(("text", "amount"), CPU.values(), ids=CPU)
def test_cpu_is_counted_in_thousandths(text: str, amount: int) -> None:
    assert parse_quantity("cpu", text) == amount


@pytest.mark.parametrize(("text", "amount"), MEMORY.values(), ids=MEMORY)
def test_memory_is_counted_in_bytes(text: str, amount: int) -> None:
    assert parse_quantity("memory", text) == amount


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_this_is_no_quantity(text: str, resource: str) -> None:
    with pytest.raises(ValueError, match="quantity") as caught:
        parse_quantity(resource, text)
    assert len(str(caught.value)) < 250


@given(
    st.decimals(0, 10**9, places=9).map("{:f}".format), st.sampled_from(["", "m", "u", "n", "k", "M", "Ki", "Mi", "Gi"])
)
def test_amounts_are_exact_and_round_up(number: str, suffix: str) -> None:
    factor = {
        "": Fraction(1),
        "m": Fraction(1, 1000),
        "u": Fraction(1, 10**6),
        "n": Fraction(1, 10**9),
        "k": Fraction(1000),
        "M": Fraction(10**6),
        "Ki": Fraction(2**10),
        "Mi": Fraction(2**20),
        "Gi": Fraction(2**30),
    }[suffix]
    assert parse_quantity("memory", number + suffix) == math.ceil(Fraction(number) * factor)


@given(st.integers(0, 2**62))
def test_cpu_and_devices_are_written_without_loss(amount: int) -> None:
    assert parse_quantity("cpu", format_quantity("cpu", amount)) == amount
    assert parse_quantity("nvidia.com/gpu", format_quantity("nvidia.com/gpu", amount)) == amount


@given(st.integers(0, 2**62))
def test_memory_is_written_to_a_hundredth_of_its_unit(amount: int) -> None:
    assert parse_quantity("memory", format_quantity("memory", amount)) == pytest.approx(amount, rel=0.006)


@given(st.integers(0, 1023), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_whole_units_of_memory_come_back_as_they_were(number: int, suffix: str) -> None:
    amount = parse_quantity("memory", f"{number}{suffix}")
    assert format_quantity("memory", amount) == (f"{number}{suffix}" if number else "0")


@given(st.integers(0, 2**50), st.integers(1, 2**20), st.sampled_from(["cpu", "memory", "gpu"]))
def test_amounts_that_differ_are_told_apart(amount: int, more: int, resource: str) -> None:
    one, other = format_apart(resource, amount, amount + more)
    assert one != other


WRITTEN = {
    "1.5": ("cpu", 1500),
    "0": ("cpu", 0),
    "100": ("cpu", 100_000),
    "0.001": ("cpu", 1),
    "1Gi": ("memory", 2**30),
    "1.5Gi": ("memory", 3 * 2**29),
    "512": ("memory", 512),
    "2Mi": ("hugepages-2Mi", 2**21),
    "8": ("nvidia.com/gpu", 8),
}


@pytest.mark.parametrize(("text", "what"), WRITTEN.items(), ids=WRITTEN)
def test_amounts_are_written_as_people_read_them(text: str, what: tuple[str, int]) -> None:
    assert format_quantity(*what) == text


def test_resources_are_one_line_by_name() -> None:
    assert format_resources({"memory": 2**32, "cpu": 2000}) == "cpu 2, memory 4Gi"
    assert format_resources({}) == "nothing"


def test_resources_of_amount_nothing_are_left_out() -> None:
    assert parse_resources({"cpu": "0", "memory": "1Ki"}) == {"memory": 1024}


def test_numbers_of_yaml_are_quantities_and_truth_values_are_not() -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.validate_python(2) == "2"
    assert adapter.validate_python(0.5) == "0.5"
    assert adapter.validate_python(-0.0) == "0.0"
    refused: tuple[object, ...] = (True, None, [], float("nan"), float("inf"), "-0")
    for wrong in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


@pytest.mark.parametrize("text", ["1" * 2**20, "1." * 2**19, "9" * 65, "1" * 60 + "Gi" * 500_000])
def test_long_texts_are_refused_unread_and_told_in_short(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: str, *, is_cpu: bool) -> int:
        raise AssertionError("it was read")

    monkeypatch.setattr(quantities, "_amount", read)
    with pytest.raises(ValueError, match="at most 64 characters") as refused:
        parse_quantity("cpu" * 1000, text)
    assert len(str(refused.value)) < 300


@given(st.text("0123456789.+-eEkMGTPEinum", max_size=80), st.sampled_from(["cpu", "memory", "x" * 400]))
def test_any_text_is_a_quantity_within_bounds_or_is_refused(text: str, resource: str) -> None:
    try:
        amount = parse_quantity(resource, text)
    except ValueError:
        return
    assert 0 <= amount <= 2**62


@pytest.mark.parametrize(
    ("text", "meant"),
    [("8GB", "8Gi or 8G"), ("8 gb", "8Gi or 8G"), ("1.5GiB", "1.5Gi"), ("10kb", "10Ki or 10k")],
)
def test_other_units_of_bytes_are_refused_with_what_is_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"; did you mean {meant}\?$"):
        parse_quantity("memory", text)
