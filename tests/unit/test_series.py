"""Time series: what is stored of them, how steps are summed up, and the sums of which samples are made."""

from math import isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cli.series import bars
from trainmaster.protocol.agent import CapacityReport, ClusterHealth
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.series import (
    HEARTBEAT,
    METRICS,
    MOST_SERIES,
    Rollup,
    SeriesKey,
    StepBuckets,
    pack,
    pack_sample,
    summed_up,
    unpack,
    unpack_sample,
    with_zeros,
)
from trainmaster_dispatcher.scheduling.queries.capacity_sums import (
    ClusterSums,
    CountedResource,
    QueueSums,
    counted_as,
)
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster, Queue
from trainmaster_dispatcher.services.series_sampling import SampledState, WaitingRow, bounded_values

CPU = CountedResource("cpu")


def same(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(
        (isnan(one) and isnan(other)) or one == other for one, other in zip(left, right, strict=True)
    )


@given(st.lists(st.one_of(st.floats(width=32, allow_nan=False), st.just(nan)), min_size=1, max_size=144))
def test_values_come_back_as_they_were_stored(values: list[float]) -> None:
    assert same(unpack(pack(values), len(values)), values)


def test_what_does_not_change_takes_one_value() -> None:
    assert len(pack([7.5] * 60)) == 4
    assert len(pack([7.5] * 59 + [nan])) == 240


def test_a_sample_comes_back_as_it_was_stored() -> None:
    ids, values = unpack_sample(*pack_sample([3, 2**31 - 1], [0.5, 2.0]))
    assert (list(ids), list(values)) == ([3, 2**31 - 1], [0.5, 2.0])


def test_steps_are_summed_up_by_the_rule_of_the_metric() -> None:
    values = [1.0, 3.0, nan, nan, nan, 5.0]
    assert same(summed_up(values, 2, Rollup.MEAN), [2.0, nan, 5.0])
    assert same(summed_up(values, 2, Rollup.MAX), [3.0, nan, 5.0])


def test_zeros_are_known_only_where_there_was_a_sample() -> None:
    assert same(with_zeros([nan, 2.0, nan], [1.0, 1.0, nan]), [0.0, 2.0, nan])


def test_a_step_weighs_its_values_by_their_time() -> None:
    buckets = StepBuckets(2, Rollup.MEAN)
    buckets.add(0, 10.0, 600)
    buckets.add(0, 0.0, 60)
    buckets.add(0, nan, 60)
    buckets.add(5, 1.0, 60)
    assert same(buckets.values(), [6000 / 660, nan])


@pytest.mark.parametrize("rollup", Rollup)
@given(
    values=st.lists(st.one_of(st.integers(0, 9).map(float), st.just(nan)), max_size=20),
    place=st.integers(-10, 10),
    per_step=st.integers(1, 7),
)
def test_many_values_are_added_as_one_by_one(rollup: Rollup, values: list[float], place: int, per_step: int) -> None:
    together, apart = StepBuckets(3, rollup), StepBuckets(3, rollup)
    for _ in range(2):
        together.add_all(place, values, per_step, 60)
        for number, value in enumerate(values):
            apart.add((place + number) // per_step, value, 60)
    assert same(together.values(), apart.values())


@pytest.mark.parametrize(
    ("resource", "product", "counted"),
    [
        ("cpu", "", CPU),
        ("nvidia.com/gpu", "H100", CountedResource("gpu", "H100")),
        ("nvidia.com/gpu", "", CountedResource("gpu", "nvidia.com/gpu")),
        ("rdma/hca_shared", "H100", None),
        ("ephemeral-storage", "", None),
    ],
)
def test_resources_are_counted_by_kind(resource: str, product: str, counted: CountedResource | None) -> None:
    assert counted_as(resource, product) == counted


def cluster(name: str, **fields: Any) -> ClusterSums:
    report = CapacityReport(groups=(), runtime="test", scheduler="test", **fields)
    return ClusterSums(Cluster(1, name, ClusterKind.PRIVATE, report=report), {CPU: 8.0}, {CPU: 3.0}, {CPU: 1.0})


def queue(path: str, used: float = 0.0, guaranteed: float = 0.0, running: int = 0) -> QueueSums:
    return QueueSums(Queue(1, path, None), {CPU: used}, {CPU: guaranteed}, running)


def values_of(found: SampledState, *waiting: WaitingRow) -> dict[SeriesKey, float]:
    return dict(bounded_values(found, waiting)[0])


def test_a_sample_has_the_values_of_clusters_and_queues_without_zeros() -> None:
    found = SampledState(
        [cluster("west", health=ClusterHealth(ready=5, not_ready=1))],
        [queue("a", used=6, guaranteed=4, running=2), queue("a/b", guaranteed=4), queue("c")],
        {"overflow": 12.5, "idle": 0.0},
        {"a": [10.0, 20.0, 90.0]},
    )
    values = values_of(found, WaitingRow("a/b", 3, 60.0), WaitingRow("a/b", 1, None))
    assert values == {
        SeriesKey(HEARTBEAT): 1.0,
        SeriesKey("cluster.cpu.capacity", "west"): 8.0,
        SeriesKey("cluster.cpu.used", "west"): 3.0,
        SeriesKey("cluster.cpu.free", "west"): 5.0,
        SeriesKey("cluster.cpu.others", "west"): 1.0,
        SeriesKey("cluster.nodes.ready", "west"): 5,
        SeriesKey("cluster.nodes.notReady", "west"): 1,
        SeriesKey("policy.rate", policy="overflow"): 12.5,
        SeriesKey("queue.cpu.used", queue="a"): 6.0,
        SeriesKey("queue.cpu.guaranteed", queue="a"): 4.0,
        SeriesKey("queue.cpu.borrowed", queue="a"): 2.0,
        SeriesKey("queue.jobs.queued", queue="a"): 4,
        SeriesKey("queue.jobs.running", queue="a"): 2,
        SeriesKey("queue.wait.oldest", queue="a"): 60.0,
        SeriesKey("queue.wait.p50", queue="a"): 20.0,
        SeriesKey("queue.cpu.guaranteed", queue="a/b"): 4.0,
        SeriesKey("queue.jobs.queued", queue="a/b"): 4,
        SeriesKey("queue.wait.oldest", queue="a/b"): 60.0,
    }
    assert {key.metric for key in values} - {HEARTBEAT} <= METRICS.keys()


def test_of_too_many_series_the_deepest_queues_are_left_out() -> None:
    paths = [f"q{number}" for number in range(10)] + [f"q0/{number}" for number in range(MOST_SERIES)]
    found = SampledState([cluster("west")], [queue(path, used=1.0, running=1) for path in paths], {}, {})
    kept, dropped = bounded_values(found, ())
    assert len(kept) == MOST_SERIES
    assert dropped == 3 * len(paths) + 6 - MOST_SERIES
    names = {key.queue for key, _ in kept}
    assert {f"q{number}" for number in range(10)} <= names
    assert "q0/19999" not in names


def test_clusters_take_at_most_half_of_the_series() -> None:
    found = SampledState([cluster(f"c{number}") for number in range(MOST_SERIES)], [queue("a", running=1)], {}, {})
    kept, dropped = bounded_values(found, ())
    assert (SeriesKey("queue.jobs.running", queue="a"), 1) in kept
    assert len(kept) == MOST_SERIES // 2 + 2
    assert dropped == 5 * MOST_SERIES - MOST_SERIES // 2


def test_what_is_borrowed_is_beyond_the_guarantee() -> None:
    used = {CPU: 6.0, CountedResource("gpu", "H100"): 3.0, CountedResource("gpu", "all"): 3.0}
    one = QueueSums(Queue(1, "a", None), used, {CPU: 10.0}, 1)
    assert one.borrowed() == {CPU: 0.0, CountedResource("gpu", "all"): 3.0}


def test_bars_show_the_highest_value_of_their_part() -> None:
    assert bars([0.0, 1.0, None, 8.0]) == "▁▂ █"
    assert bars([0.0, 0.0]) == "▁▁"
    assert bars([1.0] * 400, width=4) == "████"
    assert bars([]) == ""
