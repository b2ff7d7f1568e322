"""Kinds of metrics: their definition, the processes that show them, and gauges that are replaced as a whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "trainmaster_"


class Process(StrEnum):
    """The kinds of processes, each with a page of its own."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    BEAT = "beat"
    AGENT = "agent"


class Picture(Collector):
    """A gauge whose samples all come from one measurement and are replaced at once, so that no page shows half of one.

    Without a measurement it shows nothing instead of an old value, so Prometheus sees that nobody measures.
    """

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._samples: Mapping[tuple[str, ...], float] = {}

    def show(self, samples: Mapping[tuple[str, ...], float]) -> None:
        """Replace all samples; keys are label values in the order of the labels."""
        self._samples = samples

    def clear(self) -> None:
        self._samples = {}

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._samples.items():
            family.add_metric(labels, value)
        return [family]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric on the pages of ``processes``. ``name`` is the name in queries."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...]
    processes: frozenset[Process]
    collector: Collector

    @property
    def family(self) -> str:
        """Name in the client library: without the suffix of counters."""
        return self.name.removesuffix("_total")

    @property
    def series(self) -> frozenset[str]:
        """Names of all its time series."""
        if self.kind == "histogram":
            return frozenset(self.name + ending for ending in ("_bucket", "_count", "_sum"))
        return frozenset((self.name,))


class Registry:
    """All definitions, in reading order."""

    def __init__(self) -> None:
        self.definitions: dict[str, Definition] = {}

    def counter(self, name: str, text: str, *processes: Process, labels: tuple[str, ...] = ()) -> Counter:
        metric = Counter(PREFIX + name, text, labels, registry=None)
        self._enter(PREFIX + name + "_total", "counter", text, labels, processes, metric)
        return metric

    def gauge(self, name: str, text: str, *processes: Process, labels: tuple[str, ...] = ()) -> Gauge:
        # The mode matters only where several processes share one page: the highest value of the living ones.
        metric = Gauge(PREFIX + name, text, labels, registry=None, multiprocess_mode="livemax")
        self._enter(PREFIX + name, "gauge", text, labels, processes, metric)
        return metric

    def picture(self, name: str, text: str, *processes: Process, labels: tuple[str, ...] = ()) -> Picture:
        metric = Picture(PREFIX + name, text, labels)
        self._enter(PREFIX + name, "gauge", text, labels, processes, metric)
        return metric

    def histogram(
        self, name: str, text: str, *processes: Process, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        metric = Histogram(PREFIX + name, text, labels, registry=None, buckets=buckets)
        self._enter(PREFIX + name, "histogram", text, labels, processes, metric)
        return metric

    def _enter(
        self,
        name: str,
        kind: Literal["counter", "gauge", "histogram"],
        text: str,
        labels: tuple[str, ...],
        processes: tuple[Process, ...],
        collector: Collector,
    ) -> None:
        self.definitions[name] = Definition(name, kind, text, labels, frozenset(processes), collector)

    def of(self, process: Process) -> list[Definition]:
        return [definition for definition in self.definitions.values() if process in definition.processes]

    def registry(self, process: Process) -> CollectorRegistry:
        """Return a registry of the metrics of this kind of process."""
        registry = CollectorRegistry(auto_describe=True)
        for definition in self.of(process):
            registry.register(definition.collector)
        return registry
