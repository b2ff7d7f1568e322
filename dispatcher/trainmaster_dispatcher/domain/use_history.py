"""History of what members use, packed: the bytes of a chunk, and series of values made of chunks. Pure.

A chunk has samples of the same members, one after the other. A sample: its time (4 bytes, seconds since the epoch), a byte with a bit
for each column that it has, and the columns: 2 bytes for each member, and 1 for percent.
"""

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainmaster.protocol.member_use import UseMetric
from trainmaster_dispatcher.domain.member_use import UNKNOWN, MemberValues

SHORT_STEP = 0
"""Step of chunks whose samples are as agents sent them."""
LONG_STEP = 300
"""Seconds of a sample in chunks that have been rolled up."""
METRICS: Sequence[UseMetric] = ("cpu", "memory", "gpu", "gpuMemory")
UNITS: Mapping[UseMetric, str] = {"cpu": "cores", "memory": "bytes", "gpu": "percent", "gpuMemory": "bytes"}

_UNITS: Sequence[int] = (1, 1024, 1, 1024)
"""What 1 stands for, by column, in the units of ``MemberValues``: memory is in KiB."""
_SCALES: Sequence[float] = (1000, 1, 1, 1)
"""What ``MemberValues`` have for 1 of the metric."""
_IS_PERCENT = (False, False, True, False)
_IS_MOST = (False, True, False, True)
"""Whether the largest value stands for several; otherwise it is their average."""
_HEAD = struct.Struct(">IB")
_MANTISSA = 11
_NONE, _NONE_PERCENT = 0xFFFF, 0xFF
_LARGEST = 0xFFFE

Places = tuple[tuple[str, int, int], ...]
"""Members of a chunk: role, first index and number, in the order of the values."""


class UseChunk(NamedTuple):
    """Samples of the same members in a row of the store."""

    places: Places
    data: bytes


class UseSample(NamedTuple):
    """One sample of a chunk. ``columns``: by metric, in the order of the members; None: unknown. Units as in ``MemberValues``."""

    at: int
    columns: Sequence[Sequence[float | None]]


def pack_value(value: int) -> int:
    """Return a number in 16 bits: exact below 4096, with 12 significant bits above, as a floating-point number without sign."""
    shift = max(0, value.bit_length() - _MANTISSA - 1)
    if not shift:
        return value
    rounded = (value + (1 << (shift - 1))) >> shift
    if rounded >> (_MANTISSA + 1):
        rounded, shift = rounded >> 1, shift + 1
    return min((shift + 1) << _MANTISSA | rounded & ((1 << _MANTISSA) - 1), _LARGEST)


def unpack_value(packed: int) -> int:
    """Return the number that ``pack_value`` packed."""
    exponent = packed >> _MANTISSA
    if exponent <= 1:
        return packed
    return (packed & ((1 << _MANTISSA) - 1) | 1 << _MANTISSA) << (exponent - 1)


def pack_sample(values: MemberValues, at: int) -> bytes:
    """Return the bytes of a sample; empty where nothing of it is known."""
    return _packed(at, (values.cpu, values.memory, values.gpu, values.gpu_memory))


def _packed(at: int, columns: Sequence[Sequence[int]]) -> bytes:
    mask, parts = 0, []
    for place, column in enumerate(columns):
        if not column:
            continue
        mask |= 1 << place
        if _IS_PERCENT[place]:
            parts.append(bytes(_NONE_PERCENT if one == UNKNOWN else min(one, 100) for one in column))
            continue
        unit = _UNITS[place]
        numbers = array("H", (_NONE if one == UNKNOWN else pack_value(one // unit) for one in column))
        parts.append(struct.pack(f">{len(numbers)}H", *numbers))
    return b"".join((_HEAD.pack(at, mask), *parts)) if mask else b""


def members_of(places: Places) -> list[tuple[str, int]]:
    """Return role and index of the members of a chunk, in the order of the values."""
    return [(role, index) for role, first, many in places for index in range(first, first + many)]


def samples_of(chunk: UseChunk, most: int | None = None) -> Iterator[UseSample]:
    """Yield the samples of a chunk, with the values of its first ``most`` members. Bytes that end within a sample are left out."""
    many = sum(one[2] for one in chunk.places)
    shown = many if most is None else min(many, most)
    data, at = chunk.data, 0
    while at + _HEAD.size <= len(data):
        moment, mask = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        columns: list[Sequence[float | None]] = []
        for place in range(len(METRICS)):
            if not mask & 1 << place:
                columns.append(())
                continue
            size = many if _IS_PERCENT[place] else 2 * many
            if at + size > len(data):
                return
            columns.append(_column(data, at, shown, place))
            at += size
        yield UseSample(moment, columns)


def _column(data: bytes, at: int, shown: int, place: int) -> list[float | None]:
    if _IS_PERCENT[place]:
        return [None if one == _NONE_PERCENT else one for one in data[at : at + shown]]
    unit = _UNITS[place]
    numbers = struct.unpack_from(f">{shown}H", data, at)
    return [None if one == _NONE else unpack_value(one) * unit for one in numbers]


@dataclass(slots=True)
class _StepValues:
    total: float = 0.0
    many: int = 0
    most: float = 0.0

    def add(self, value: float) -> None:
        self.total += value
        self.many += 1
        self.most = max(self.most, value)

    def value(self, place: int) -> float:
        return self.most if _IS_MOST[place] else self.total / self.many


def rolled_up(chunks: Iterable[UseChunk], step: int = LONG_STEP) -> dict[Places, bytes]:
    """Return the samples of chunks of one run rolled up to one for each step: averages of cores and GPUs, the most of memory."""
    found: dict[Places, dict[int, list[dict[int, _StepValues]]]] = {}
    for chunk in chunks:
        of_members = found.setdefault(chunk.places, {})
        for sample in samples_of(chunk):
            buckets = of_members.setdefault(sample.at // step * step, [{} for _ in METRICS])
            for place, column in enumerate(sample.columns):
                for member, value in enumerate(column):
                    if value is not None:
                        buckets[place].setdefault(member, _StepValues()).add(value)
    out = {}
    for places, by_time in found.items():
        many = sum(one[2] for one in places)
        out[places] = b"".join(
            _packed(at, [_values(buckets, place, many) for place, buckets in enumerate(columns)])
            for at, columns in sorted(by_time.items())
        )
    return out


def _values(buckets: Mapping[int, _StepValues], place: int, many: int) -> list[int]:
    if not buckets:
        return []
    return [round(buckets[member].value(place)) if member in buckets else UNKNOWN for member in range(many)]


@dataclass(slots=True)
class SeriesOfMembers:
    """Series of the use of members, of samples from ``start`` until before ``end``, in seconds since the epoch.

    Only the first ``most`` members are in it; ``left_out`` has the others.
    """

    start: int
    end: int
    step: int
    most: int
    left_out: set[tuple[str, int]] = field(default_factory=set)
    _found: dict[tuple[str, int], dict[int, dict[int, _StepValues]]] = field(default_factory=dict)

    def add(self, chunk: UseChunk) -> None:
        """Add the samples of a chunk."""
        members = members_of(chunk.places)
        for member in members:
            if member in self._found:
                continue
            if len(self._found) < self.most:
                self._found[member] = defaultdict(dict)
            else:
                self.left_out.add(member)
        shown = [(place, self._found[member]) for place, member in enumerate(members) if member in self._found]
        for sample in samples_of(chunk):
            if not self.start <= sample.at < self.end:
                continue
            at = (sample.at - self.start) // self.step
            for metric, column in enumerate(sample.columns):
                for place, buckets in shown if column else ():
                    if (value := column[place]) is not None:
                        buckets[metric].setdefault(at, _StepValues()).add(value)

    def series(self) -> Iterator[tuple[str, UseMetric, tuple[float | None, ...]]]:
        """Yield member, metric and values of each series of which something is known, by member."""
        steps = -(-(self.end - self.start) // self.step)
        for (role, index), by_metric in sorted(self._found.items()):
            for place, metric in enumerate(METRICS):
                if not (buckets := by_metric.get(place)):
                    continue
                values = (buckets[at].value(place) / _SCALES[place] if at in buckets else None for at in range(steps))
                yield f"{role}-{index}", metric, tuple(None if one is None else round(one, 3) for one in values)
