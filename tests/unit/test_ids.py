"""Identifiers: unique without a check, not a counter to the eye, and short enough for Kubernetes."""

import re
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.ids import (
    BadIdError,
    RunRef,
    job_id,
    member_id,
    parse_job_id,
    parse_run_id,
    run_id,
)
from trainmaster.protocol.jobs import MOST_MEMBERS

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
keys = st.one_of(st.integers(1, 2**35 - 1), st.integers(2**35, 2**45 - 1), st.integers(1, 100_000))
names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?", fullmatch=True)
attempts = st.integers(1, 99_999)
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@given(names, keys)
def test_a_job_id_tells_its_name_and_key_again(name: str, key: int) -> None:
    assert parse_job_id(job_id(name, key)) == (name, key)


@given(names, keys, attempts)
def test_a_run_id_tells_its_job_and_attempt_again(name: str, key: int, attempt: int) -> None:
    assert parse_run_id(run_id(job_id(name, key), attempt)) == RunRef(key, attempt)


@given(st.text(_LETTERS, min_size=7, max_size=7) | st.text(_LETTERS, min_size=9, max_size=9))
def test_every_suffix_that_is_read_is_the_one_that_is_written(suffix: str) -> None:
    try:
        name, key = parse_job_id(f"bert-{suffix}")
    except BadIdError:
        return
    assert job_id(name, key) == f"bert-{suffix}"


def test_a_long_text_is_no_id_and_is_not_told_whole() -> None:
    for parse in (parse_job_id, parse_run_id):
        with pytest.raises(BadIdError) as refused:
            parse("a-" * 500_000)
        assert len(str(refused.value)) < 200


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_a_bad_id(text: str) -> None:
    for parse in (parse_job_id, parse_run_id):
        with suppress(BadIdError):
            parse(text)


def test_no_two_of_many_keys_share_an_id() -> None:
    some = [*range(1, 20_000), *range(2**35 - 5_000, 2**35 + 5_000)]
    assert len({job_id("x", key) for key in some}) == len(some)


def test_adjacent_keys_look_unrelated() -> None:
    suffixes = [job_id("x", key)[2:] for key in range(1, 4_001)]
    matches = [sum(a == b for a, b in zip(one, two, strict=True)) for one, two in pairwise(suffixes)]
    assert sum(matches) / len(matches) < 1.0  # of seven letters; chance alone would be 7/32
    assert max(matches) < 6
    for place in range(7):
        assert len({suffix[place] for suffix in suffixes[:500]}) > 20
    assert suffixes != sorted(suffixes)


def test_the_longest_member_id_fits_a_dns_label() -> None:
    job = job_id("n" * 24, 2**45 - 1)
    longest = member_id(run_id(job, 99_999), "r" * 12, MOST_MEMBERS - 1)
    assert len(longest) <= 63
    assert DNS_LABEL.fullmatch(longest)


@given(names, keys, attempts, st.integers(0, MOST_MEMBERS - 1))
def test_every_member_id_is_a_dns_label(name: str, key: int, attempt: int, index: int) -> None:
    label = member_id(run_id(job_id(name, key), attempt), "worker", index)
    assert DNS_LABEL.fullmatch(label)
    assert len(label) <= 63


def test_names_with_dashes_and_digits_are_told_from_the_suffix() -> None:
    for name in ("a-b", "a-r1", "resnet-50-v2", "x-7k2p9xq"):
        assert parse_job_id(job_id(name, 42)) == (name, 42)
        assert parse_run_id(run_id(job_id(name, 42), 3)) == RunRef(42, 3)


GOOD = job_id("bert", 7)
BAD_JOBS = {
    "nothing": "",
    "a name alone": "bert",
    "no name": GOOD.removeprefix("bert"),
    "a suffix that is too short": GOOD[:-1],
    "a suffix that is too long": GOOD + "0",
    "letters that Crockford leaves out": "bert-iloulou",
    "upper case": GOOD.upper(),
    "a name that is none": f"-{GOOD}",
    "a name with a space": GOOD.replace("bert", "be rt"),
    "a name that is too long": GOOD.replace("bert", "b" * 25),
    "a line end": GOOD + "\n",
    "the id of a run": f"{GOOD}-r1",
}
BAD_RUNS = {
    "the id of a job": GOOD,
    "no attempt": f"{GOOD}-r",
    "attempt 0": f"{GOOD}-r0",
    "an attempt with a zero in front": f"{GOOD}-r01",
    "an attempt that is too large": f"{GOOD}-r100000",
    "an attempt of thousands of digits": f"{GOOD}-r{'9' * 5_000}",
    "an attempt in other digits": f"{GOOD}-r\u0661",
    "a negative attempt": f"{GOOD}-r-1",
    "no r": f"{GOOD}-1",
    "a bad job": "bert-r1",
    "the id of a member": f"{GOOD}-r1-worker-0",
    "a line end": f"{GOOD}-r1\n",
}


@pytest.mark.parametrize("text", BAD_JOBS.values(), ids=BAD_JOBS)
def test_this_is_no_job_id(text: str) -> None:
    with pytest.raises(BadIdError, match="bert-7k2p9xq"):
        parse_job_id(text)


@pytest.mark.parametrize("text", BAD_RUNS.values(), ids=BAD_RUNS)
def test_this_is_no_run_id(text: str) -> None:
    with pytest.raises(BadIdError):
        parse_run_id(text)


@pytest.mark.parametrize("key", [0, -1, 2**45])
def test_keys_outside_the_range_have_no_id(key: int) -> None:
    with pytest.raises(BadIdError, match="outside"):
        job_id("bert", key)


def test_the_keys_that_a_suffix_may_not_hide_are_refused() -> None:
    """A short key written long, or key 0, would be a second id of the same job."""
    refused = 0
    for number in range(3_000):
        digits = "".join(_LETTERS[number >> shift & 31] for shift in range(40, -1, -5))
        try:
            assert parse_job_id(f"x-{digits}")[1] >= 2**35
        except BadIdError:
            refused += 1
    assert refused < 30  # one in 1024 long codes
