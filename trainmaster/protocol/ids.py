"""Identifiers that are for people and for Kubernetes.

A job's id is its name and a suffix made from its key (a positive integer of the store) by a bijective scramble, written in
Crockford's base 32: unique without a check, and not a counter to the eye. A run is ``<job>-r<attempt>``, a member
``<run>-<role>-<index>``; the longest fits the 63 characters of a DNS label.
Alphabet: https://www.crockford.com/base32.html
"""

import re
from functools import lru_cache
from typing import NamedTuple

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}
_SHORT_BITS, _LONG_BITS = 35, 45
MOST_KEY = (1 << _LONG_BITS) - 1
"""The greatest key of the store that an id can have."""
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,22}[a-z0-9])?")
_WORKFLOW = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,22}[a-z0-9])?-w(?:[0-9a-hjkmnp-tv-z]{7}|[0-9a-hjkmnp-tv-z]{9})")
_ATTEMPT = re.compile(r"r[1-9][0-9]{0,4}")
_LONGEST = 64
"""The most characters of an id; a longer text is refused unread."""
_ROUND_KEYS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)


class BadIdError(ValueError):
    """The text is not an id of a job, run or member."""


class RunRef(NamedTuple):
    """A run: the key of its job and its attempt, counted from 1."""

    job_key: int
    attempt: int


def _scramble(value: int, bits: int, *, back: bool) -> int:
    """Scramble ``value`` by a Feistel network of four rounds over ``bits`` bits, unbalanced for odd widths (Luby, Rackoff 1988)."""
    low_bits = bits // 2
    high_bits = bits - low_bits
    low_mask, high_mask = (1 << low_bits) - 1, (1 << high_bits) - 1
    high, low = value >> low_bits, value & low_mask
    rounds = tuple(enumerate(_ROUND_KEYS))
    for index, key in reversed(rounds) if back else rounds:
        if index % 2 == 0:
            high ^= _mix(low, key) & high_mask
        else:
            low ^= _mix(high, key) & low_mask
    return high << low_bits | low


def _mix(value: int, key: int) -> int:
    value = (value + key) * 0x45D9F3B & 0xFFFFFFFFFFFF
    return (value ^ value >> 16) * 0x2C1B3C6D >> 7


def job_id(name: str, key: int) -> str:
    """Return the id of the job ``name`` with store key ``key`` (1 to 2**45 - 1)."""
    return f"{name}-{_suffix(key)}"


@lru_cache(maxsize=4096)
def _suffix(key: int) -> str:
    """Return the scrambled key of a job. Cached, some 1 MB at most: the same jobs are listed and reported again and again."""
    bits = _SHORT_BITS if key < 1 << _SHORT_BITS else _LONG_BITS
    if not 0 < key < 1 << _LONG_BITS:
        raise BadIdError(f"job key {key} is outside 1..2**{_LONG_BITS}-1")
    code = _scramble(key, bits, back=False)
    digits = [_ALPHABET[code >> shift & 31] for shift in range(bits - 5, -1, -5)]
    return "".join(digits)


def parse_job_id(text: str) -> tuple[str, int]:
    """Return name and key of a job id. Raises BadIdError when the text cannot be one."""
    if len(text) > _LONGEST:
        raise BadIdError(f"{text[:_LONGEST]!r}... is not a job id; a job id looks like bert-7k2p9xq")
    name, dash, suffix = text.rpartition("-")
    bits = {_SHORT_BITS // 5: _SHORT_BITS, _LONG_BITS // 5: _LONG_BITS}.get(len(suffix))
    if not dash or not _NAME.fullmatch(name) or bits is None or any(letter not in _VALUE for letter in suffix):
        if _WORKFLOW.fullmatch(text):
            raise BadIdError(f"{text!r} is the id of a workflow, not of a job; use: trainmaster workflows show {text}")
        raise BadIdError(f"{text!r} is not a job id; a job id looks like bert-7k2p9xq")
    code = 0
    for letter in suffix:
        code = code << 5 | _VALUE[letter]
    key = _scramble(code, bits, back=True)
    if key == 0 or (bits == _LONG_BITS and key < 1 << _SHORT_BITS):
        raise BadIdError(f"{text!r} is not a job id; a job id looks like bert-7k2p9xq")
    return name, key


def workflow_id(name: str, key: int) -> str:
    """Return the id of the workflow ``name`` with store key ``key``; no id of a job has its form."""
    return f"{name}-w{_suffix(key)}"


def parse_workflow_id(text: str) -> tuple[str, int]:
    """Return name and key of a workflow's id. Raises BadIdError when the text cannot be one."""
    name, mark, suffix = text.rpartition("-w")
    try:
        if not mark:
            raise BadIdError(text)
        return parse_job_id(f"{name}-{suffix}")
    except BadIdError:
        raise BadIdError(f"{text[:_LONGEST]!r} is not the id of a workflow; one looks like nightly-w7k2p9xq") from None


def run_id(job: str, attempt: int) -> str:
    """Return the id of run number ``attempt`` of ``job``."""
    return f"{job}-r{attempt}"


def parse_run_id(text: str) -> RunRef:
    """Return job key and attempt of a run id. Raises BadIdError."""
    if len(text) > _LONGEST:
        raise BadIdError(f"{text[:_LONGEST]!r}... is not a run id; a run id looks like bert-7k2p9xq-r1")
    job, dash, tail = text.rpartition("-")
    if not dash or not _ATTEMPT.fullmatch(tail):
        raise BadIdError(f"{text!r} is not a run id; a run id looks like bert-7k2p9xq-r1")
    return RunRef(parse_job_id(job)[1], int(tail[1:]))


def member_id(run: str, role: str, index: int) -> str:
    """Return the id of one member, usable as a pod's name and host name."""
    return f"{run}-{role}-{index}"
