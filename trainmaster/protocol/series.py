"""Time series of the installation: what clusters, queues and burst policies had and used over time."""

from typing import Literal

from trainmaster.protocol.base import Lenient, Timestamp, example

SeriesBy = Literal["cluster", "queue", "product", "policy", "none"]


class SeriesValues(Lenient):
    """One series."""

    labels: dict[str, str]
    """Labels of the series, such as ``cluster`` and ``product``."""
    values: tuple[float | None, ...]
    """Value of each step from ``start`` of the answer on; null where nothing is known."""


class SeriesAnswer(Lenient):
    """The series of one metric."""

    model_config = example(
        metric="cluster.gpu.used",
        unit="devices",
        step=60,
        start="2037-03-02T08:00:00.000Z",
        series=[{"labels": {"cluster": "west", "product": "H100"}, "values": [6.0, 8.0, None]}],
    )

    metric: str
    """Name of the metric."""
    unit: str
    """Unit of the values; money is in the installation's currency."""
    step: int
    """Seconds of a step. It is longer than requested where values are kept only for longer steps."""
    start: Timestamp
    """Begin of the first step."""
    series: tuple[SeriesValues, ...] = ()
    """Series, by their labels. Those that were 0 all the time are left out."""
    left_out: int = 0
    """Number of further series, beyond the most of one answer."""


class SeriesMetricInfo(Lenient):
    """A metric of which there are series."""

    model_config = example(
        name="cluster.gpu.used",
        unit="devices",
        labels=["cluster", "product"],
        help="GPUs and other devices that live runs hold.",
        rollup="mean",
        leastStep=60,
    )

    name: str
    """Name of the metric."""
    unit: str
    """Unit of its values."""
    labels: tuple[str, ...]
    """Labels of its series."""
    help: str
    """Sentence that says which amount it counts."""
    rollup: str
    """Rule by which values become that of a longer step: ``mean`` or ``max``."""
    least_step: int
    """Seconds of the shortest step."""


class SeriesCatalogue(Lenient):
    """The metrics of which there are series, those that the caller may see."""

    metrics: tuple[SeriesMetricInfo, ...]
    """Metrics, by name."""
