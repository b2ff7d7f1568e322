"""Time series of the installation: the catalogue of metrics, their packed values, and how steps are summed up. Pure.

Values are 32-bit floats; NaN stands for an unknown value.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import isnan, nan
from typing import Any, NamedTuple, TypeVar

_Array = TypeVar("_Array", bound="array[Any]")
FINE, MIDDLE, COARSE = 60, 600, 3600
"""Seconds between two values of a grain."""
HOUR, DAY = 3600, 86_400
KEEP_FINE, KEEP_MIDDLE, KEEP_COARSE = DAY + 2 * HOUR, 15 * DAY, 366 * DAY
"""Seconds for which the values of a grain are kept."""
MOST_SERIES = 20_000
"""The most series of one sample. Those of clusters come first, then those of queues from the top of the tree down."""
HEARTBEAT = "sampled"
"""Series with the value 1 in each sample: where it has one, the value of a series that has none is 0, if the metric says so."""


class Rollup(StrEnum):
    """Rule by which values become the value of a longer step."""

    MEAN = "mean"
    MAX = "max"


class Source(StrEnum):
    """Where the values of a metric come from."""

    SAMPLES = "samples"
    """Samples, one a minute."""
    LEDGER = "ledger"
    """The ledger of what ended runs have cost, by hour."""


class SeriesMetric(NamedTuple):
    """A metric of the catalogue."""

    name: str
    unit: str
    labels: tuple[str, ...]
    help: str
    rollup: Rollup = Rollup.MEAN
    is_additive: bool = True
    """Whether the values of different labels may be added up."""
    is_zero_left_out: bool = False
    """Whether a sample without a value means 0."""
    for_owners: bool = False
    """Whether the metric of a cluster is for its owners and admins alone."""
    source: Source = Source.SAMPLES


class SeriesKey(NamedTuple):
    """The labels of one series; those that its metric does not have are empty."""

    metric: str
    cluster: str = ""
    queue: str = ""
    product: str = ""
    policy: str = ""

    def label(self, name: str) -> str:
        return str(getattr(self, name))


_CLUSTER, _GPUS = ("cluster",), ("cluster", "product")
_QUEUE, _GPUS_OF_QUEUE = ("queue",), ("queue", "product")
ALL_PRODUCTS = "all"
"""Product of the series of a queue over the devices of all products."""


def _of_resource(resource: str, unit: str, words: str) -> Iterable[SeriesMetric]:
    labels, of_queue = (_GPUS, _GPUS_OF_QUEUE) if resource == "gpu" else (_CLUSTER, _QUEUE)
    cluster, queue = f"cluster.{resource}", f"queue.{resource}"
    yield SeriesMetric(f"{cluster}.capacity", unit, labels, f"{words} that jobs can have, in use or free")
    for name, what in (
        ("used", "that live runs hold"),
        ("free", "that are free"),
        ("others", "that pods of others use"),
    ):
        yield SeriesMetric(f"{cluster}.{name}", unit, labels, f"{words} {what}", is_zero_left_out=True, for_owners=True)
    for name, what in (
        ("used", "that live runs hold"),
        ("guaranteed", "that are guaranteed"),
        ("borrowed", "in use beyond the guarantee"),
    ):
        yield SeriesMetric(
            f"{queue}.{name}", unit, of_queue, f"{words} {what}", is_additive=False, is_zero_left_out=True
        )


_ALL = (
    *_of_resource("cpu", "cores", "Cores"),
    *_of_resource("memory", "bytes", "Bytes of memory"),
    *_of_resource("gpu", "devices", "GPUs and other devices"),
    SeriesMetric("cluster.nodes.ready", "nodes", _CLUSTER, "Nodes that are ready, by the agent's report"),
    SeriesMetric("cluster.nodes.notReady", "nodes", _CLUSTER, "Nodes that are not ready", is_zero_left_out=True),
    SeriesMetric("cluster.nodes.flapping", "nodes", _CLUSTER, "Nodes that keep becoming ready", is_zero_left_out=True),
    SeriesMetric("cluster.nodes.deviceErrors", "nodes", _CLUSTER, "Nodes with device errors", is_zero_left_out=True),
    SeriesMetric(
        "queue.jobs.queued", "jobs", _QUEUE, "Jobs that wait to start", is_additive=False, is_zero_left_out=True
    ),
    SeriesMetric(
        "queue.jobs.running", "jobs", _QUEUE, "Jobs with a live run", is_additive=False, is_zero_left_out=True
    ),
    SeriesMetric(
        "queue.wait.oldest",
        "seconds",
        _QUEUE,
        "Wait of the job that has waited longest for its first start",
        Rollup.MAX,
        is_additive=False,
        is_zero_left_out=True,
    ),
    SeriesMetric(
        "queue.wait.p50",
        "seconds",
        _QUEUE,
        "Median wait of the jobs that were first sent to a cluster",
        is_additive=False,
    ),
    SeriesMetric(
        "policy.rate", "money per hour", ("policy",), "Price of the live runs of a burst policy", is_zero_left_out=True
    ),
    SeriesMetric(
        "queue.cost",
        "money per hour",
        _QUEUE,
        "Cost of what ended runs have used in the hour, of the queue itself",
        source=Source.LEDGER,
    ),
    SeriesMetric(
        "policy.cost",
        "money per hour",
        ("policy",),
        "Cost of what ended runs of a burst policy have used in the hour",
        source=Source.LEDGER,
    ),
)
METRICS: Mapping[str, SeriesMetric] = {one.name: one for one in _ALL}


def pack(values: Iterable[float]) -> bytes:
    """Return values as they are stored: little-endian 32-bit floats; a single one where all are the same."""
    packed = array("f", values)
    if len(packed) > 1 and not isnan(packed[0]) and packed.count(packed[0]) == len(packed):
        packed = packed[:1]
    return _stored(packed)


def unpack(stored: bytes, count: int) -> Sequence[float]:
    """Return ``count`` values that were stored by ``pack``."""
    values = _loaded(array("f"), stored)
    return values * count if len(values) == 1 else values


def pack_sample(ids: Iterable[int], values: Iterable[float]) -> tuple[bytes, bytes]:
    """Return the ids of series and their values in one sample, as they are stored."""
    return _stored(array("i", ids)), _stored(array("f", values))


def unpack_sample(ids: bytes, values: bytes) -> tuple[Sequence[int], Sequence[float]]:
    """Return the ids of series and their values in one sample."""
    return _loaded(array("i"), ids), _loaded(array("f"), values)


def _stored(values: "array[Any]") -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _loaded(into: _Array, stored: bytes) -> _Array:
    into.frombytes(stored)
    if sys.byteorder == "big":
        into.byteswap()
    return into


def summed_up(values: Sequence[float], parts: int, rollup: Rollup) -> list[float]:
    """Return one value for each ``parts`` values; unknown where all of them are."""
    out = []
    for begin in range(0, len(values), parts):
        known = [value for value in values[begin : begin + parts] if not isnan(value)]
        if not known:
            out.append(nan)
        else:
            out.append(max(known) if rollup is Rollup.MAX else sum(known) / len(known))
    return out


def with_zeros(values: Sequence[float], sampled: Sequence[float]) -> list[float]:
    """Return values with 0 in place of unknown ones at times of which there was a sample."""
    return [0.0 if isnan(value) and not isnan(there) else value for value, there in zip(values, sampled, strict=True)]


class StepBuckets:
    """The values of one series in the steps of an answer, from values of any grain."""

    __slots__ = ("_counts", "_rollup", "_sums")

    def __init__(self, steps: int, rollup: Rollup) -> None:
        self._rollup = rollup
        self._sums = [nan] * steps
        self._counts = [0] * steps

    def add(self, step: int, value: float, weight: int) -> None:
        """Add a value that holds for ``weight`` seconds of a step; unknown values and other steps are passed over."""
        if not 0 <= step < len(self._sums) or isnan(value):
            return
        if self._rollup is Rollup.MAX:
            before = self._sums[step]
            self._sums[step] = value if isnan(before) else max(before, value)
            return
        before = self._sums[step]
        self._sums[step] = value * weight + (0.0 if isnan(before) else before)
        self._counts[step] += weight

    def add_all(self, place: int, values: Sequence[float], per_step: int, weight: int) -> None:
        """Add values that follow each other, ``per_step`` in each step; the first is ``place`` values after the begin of all."""
        step, first, last = place // per_step, 0, len(values)
        size = per_step - place % per_step
        while first < last:
            if 0 <= step < len(self._sums):
                known = [value for value in values[first : first + size] if not isnan(value)]
                if known:
                    before = self._sums[step]
                    if self._rollup is Rollup.MAX:
                        self._sums[step] = max(known) if isnan(before) else max(before, *known)
                    else:
                        self._sums[step] = sum(known) * weight + (0.0 if isnan(before) else before)
                        self._counts[step] += len(known) * weight
            first, step, size = first + size, step + 1, per_step

    def values(self) -> list[float]:
        """Return the values of all steps; NaN where nothing is known."""
        if self._rollup is Rollup.MAX:
            return list(self._sums)
        return [total / count if count else nan for total, count in zip(self._sums, self._counts, strict=True)]
