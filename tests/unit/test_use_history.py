"""The packed history of use: its values, its size, and series made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain.member_use import UNKNOWN, MemberValues
from trainmaster_dispatcher.domain.use_history import (
    Places,
    SeriesOfMembers,
    UseChunk,
    pack_sample,
    pack_value,
    rolled_up,
    samples_of,
    unpack_value,
)

PLACES: Places = (("main", 0, 2), ("side", 4, 1))


def values(cpu: list[int], memory: list[int], gpu: list[int] | None = None) -> MemberValues:
    return MemberValues(PLACES, cpu, memory, (), gpu or [], [])


@given(st.integers(0, 2**41))
def test_a_packed_value_is_right_to_one_part_in_four_thousand(value: int) -> None:
    packed = pack_value(value)
    assert 0 <= packed < 0xFFFF
    assert unpack_value(packed) == pytest.approx(value, rel=1 / 4096)
    assert value >= 4096 or unpack_value(packed) == value


def test_values_that_are_too_large_are_the_largest_one() -> None:
    assert unpack_value(pack_value(2**60)) == unpack_value(pack_value(2**50)) > 2**41


@given(st.lists(st.tuples(st.integers(0, 2**31), st.lists(st.integers(-1, 5000), min_size=3, max_size=3)), max_size=5))
def test_samples_come_back_as_they_were_packed(samples: list[tuple[int, list[int]]]) -> None:
    data = b"".join(
        pack_sample(values(cpu, [one * 2**20 if one > 0 else one for one in cpu]), at) for at, cpu in samples
    )
    found = list(samples_of(UseChunk(PLACES, data)))
    assert [one.at for one in found] == [at for at, _ in samples]
    for one, (_, cpu) in zip(found, samples, strict=True):
        assert one.columns[0] == [None if value == UNKNOWN else pytest.approx(value, rel=1 / 4096) for value in cpu]
        assert not one.columns[2]
        assert not one.columns[3]


def test_bytes_that_end_within_a_sample_are_left_out() -> None:
    data = pack_sample(values([1, 2, 3], [1024] * 3), 10)
    assert len(list(samples_of(UseChunk(PLACES, data + data[:-1])))) == 1


def test_a_sample_takes_four_bytes_of_each_member_without_gpus_and_seven_with_them() -> None:
    many = 1000
    plain = MemberValues((("main", 0, many),), [950] * many, [2**31] * many, (), [], [])
    full = plain._replace(gpu=[93] * many, gpu_memory=[2**36] * many)
    assert len(pack_sample(plain, 0)) == 5 + 4 * many
    assert len(pack_sample(full, 0)) == 5 + 7 * many


def test_nothing_is_stored_of_a_sample_without_values() -> None:
    assert pack_sample(values([], []), 0) == b""


def test_rolled_up_are_the_average_of_cores_and_gpus_and_the_most_of_memory() -> None:
    data = b"".join(
        pack_sample(values([cpu, UNKNOWN, 100], [memory] * 3, [gpu] * 3), at)
        for at, cpu, memory, gpu in (
            (600, 100, 2**30, 10),
            (630, 300, 2**31, 30),
            (899, 200, 2**20, 20),
            (900, 7, 1024, 1),
        )
    )
    rolled = rolled_up([UseChunk(PLACES, data)])
    first, second = samples_of(UseChunk(PLACES, rolled[PLACES]))
    assert (first.at, second.at) == (600, 900)
    assert first.columns[0] == [200, None, 100]
    assert first.columns[1] == [2**31] * 3
    assert first.columns[2] == [20] * 3
    assert second.columns[0] == [7, None, 100]


def test_a_series_has_a_value_for_each_step_and_null_where_nothing_is_known() -> None:
    data = b"".join(
        pack_sample(values([cpu, UNKNOWN, 0], [2**30] * 3), at) for at, cpu in ((100, 1000), (130, 2000), (221, 500))
    )
    series = SeriesOfMembers(100, 280, 60, 10)
    series.add(UseChunk(PLACES, data))
    found = {(member, metric): numbers for member, metric, numbers in series.series()}
    assert found["main-0", "cpu"] == (1.5, None, 0.5)
    assert ("main-1", "cpu") not in found
    side, memory = found["side-4", "cpu"], found["main-1", "memory"]
    assert (side, memory) == ((0, None, 0), (2**30, None, 2**30))


def test_samples_outside_of_the_time_are_not_in_a_series_and_members_beyond_the_most_are_named() -> None:
    data = b"".join(pack_sample(values([1000] * 3, [2**30] * 3), at) for at in (99, 160))
    series = SeriesOfMembers(100, 160, 60, 2)
    series.add(UseChunk(PLACES, data))
    assert list(series.series()) == []
    assert series.left_out == {("side", 4)}
