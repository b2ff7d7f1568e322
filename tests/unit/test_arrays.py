"""Arrays: their specification, ranges, bitmaps and ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmaster.protocol.arrays import (
    ArrayCounts,
    ArrayStop,
    BadRangesError,
    JobArray,
    merged,
    parse_ranges,
    ranges_text,
    spans_of,
)
from trainmaster.protocol.jobs import JobSpec
from trainmaster_dispatcher.domain.arrays import (
    BLOCK,
    Block,
    counts_after,
    from_bytes,
    is_over,
    masks,
    spans_of_bits,
    spans_of_blocks,
    to_bytes,
    verdict,
)
from trainmaster_dispatcher.domain.shapes import shape_of

COUNT = 3 * BLOCK
ELEMENTS = st.sets(st.integers(0, COUNT - 1), max_size=60)


def elements_of(bitmaps: dict[int, int]) -> set[int]:
    return {
        block * BLOCK + bit for block, bits in bitmaps.items() for bit in range(bits.bit_length()) if bits >> bit & 1
    }


def spec(**fields: Any) -> JobSpec:
    template = {"command": ["./thumbnail", "${element}"], "resources": {"cpu": "1"}}
    return JobSpec.model_validate(
        {"name": "thumbs", "queue": "a", "roles": [{"name": "worker", "template": template}], "array": {"count": 10}}
        | fields
    )


@given(ELEMENTS)
def test_elements_written_as_ranges_are_read_as_the_same_elements(elements: set[int]) -> None:
    text = ranges_text(spans_of(sorted(elements)))
    found = parse_ranges(text, COUNT) if elements else ()
    assert {element for first, last in found for element in range(first, last + 1)} == elements


def test_ranges_may_overlap_and_come_in_any_order() -> None:
    assert parse_ranges("7, 3-5,4-6,20", 21) == ((3, 7), (20, 20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no element"),
        ("1,,2", "'' is no element"),
        ("-3", "'-3' is no element"),
        ("a-b", "'a-b' is no element"),
        ("3-", "'3-' is no element"),
        ("1-2-3", "'1-2-3' is no element"),
        ("²", "is no element"),
        ("5-3", "'5-3' begins after its end"),
        ("0-10", "there is no element 10: the 10 elements are 0 to 9"),
        ("9" * 5000, "is no element"),
    ],
)
def test_a_text_that_is_no_list_of_ranges_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadRangesError, match=message):
        parse_ranges(text, 10)


@given(ELEMENTS)
def test_bitmaps_have_exactly_the_bits_of_their_elements(elements: set[int]) -> None:
    bitmaps = masks(spans_of(sorted(elements)))
    assert elements_of(bitmaps) == elements
    assert tuple(spans_of_blocks(bitmaps)) == merged(spans_of(sorted(elements)))
    assert all(from_bytes(to_bytes(bits)) == bits for bits in bitmaps.values())


def test_a_range_over_the_end_of_a_block_is_one_range_again() -> None:
    assert tuple(spans_of_blocks(masks([(BLOCK - 5, 2 * BLOCK + 3)]))) == ((BLOCK - 5, 2 * BLOCK + 3),)
    assert len(to_bytes(masks([(0, BLOCK - 1)])[0])) == BLOCK // 8


def test_ranges_of_a_bitmap_begin_at_its_first_element() -> None:
    assert list(spans_of_bits(0b1101, 100)) == [(100, 100), (102, 103)]


@given(
    st.lists(st.tuples(st.sampled_from(("succeeded", "failed", "cancelled")), st.sets(st.integers(0, 20))), max_size=12)
)
def test_each_element_is_counted_once_by_what_was_reported_of_it_first(reports: list[tuple[str, set[int]]]) -> None:
    block, counts, first = Block(), ArrayCounts(), dict[int, str]()
    for state, elements in reports:
        (bits,) = masks(spans_of(sorted(elements))).values() if elements else (0,)
        after = block.with_ended(**{state: bits})
        counts = counts_after(counts, {0: block}, {0: after})
        block = after
        for element in elements:
            first.setdefault(element, state)
    for state in ("succeeded", "failed", "cancelled"):
        expected = {element for element, known in first.items() if known == state}
        assert elements_of({0: getattr(block, state)}) == expected
        assert getattr(counts, state) == len(expected)
    assert counts.ended == len(first)


def test_failed_and_cancelled_elements_can_wait_again_and_succeeded_ones_cannot() -> None:
    block = Block().with_ended(succeeded=0b001, failed=0b010, cancelled=0b100)
    assert block.without(0b111) == Block(succeeded=0b001)


@pytest.mark.parametrize(
    ("stop", "counts", "succeeded", "message"),
    [
        (None, ArrayCounts(10), True, ""),
        (None, ArrayCounts(9), None, ""),
        (None, ArrayCounts(7, 0, 3), True, ""),
        (None, ArrayCounts(8, 2), False, "2 of 10 elements failed (3, 4)"),
        (ArrayStop(failures=2), ArrayCounts(3, 1), None, ""),
        (
            ArrayStop(failures=2),
            ArrayCounts(3, 2),
            False,
            "2 of 10 elements failed (3, 4); 5 were not run, as stopOn says",
        ),
        (ArrayStop(successes=1), ArrayCounts(0, 3), None, ""),
        (ArrayStop(successes=1), ArrayCounts(1, 3), True, ""),
        (ArrayStop(successes=2), ArrayCounts(1, 9), False, "9 of 10 elements failed (3, 4, ...)"),
    ],
)
def test_an_array_ends_with_its_elements_or_as_stop_on_says(
    stop: ArrayStop | None, counts: ArrayCounts, succeeded: bool | None, message: str
) -> None:
    end = verdict(10, stop, counts, [(3, 4)])
    assert is_over(10, stop, counts) == (end is not None)
    assert (None if end is None else end.succeeded) == succeeded
    assert end is None or end.message == message


def test_of_many_failed_elements_the_first_are_named() -> None:
    end = verdict(100, None, ArrayCounts(0, 100), [(0, 99)])
    assert end is not None
    assert end.message == "100 of 100 elements failed (0, 1, 2, 3, 4, ...)"


def test_a_grid_has_an_element_for_each_combination_the_last_parameter_varying_fastest() -> None:
    array = JobArray.model_validate({"grid": {"rate": [0.1, 0.01], "seed": [1, 2, 3]}})
    assert array.size == 6
    assert [array.values_of(element) for element in range(6)] == [
        {"rate": rate, "seed": seed} for rate in (0.1, 0.01) for seed in (1, 2, 3)
    ]
    assert array.texts_of(4) == {"element": "4", "rate": "0.01", "seed": "2"}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ({}, "exactly one of count, grid and parameters"),
        ({"count": 3, "grid": {"a": [1]}}, "exactly one of count, grid and parameters"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"count": 1_000_001}, "less than or equal to 1000000"),
        ({"grid": {"a": list(range(1001)), "b": list(range(1000))}}, "has 1001000 combinations"),
        ({"grid": {"a": [1], "b": []}}, "at least 1 value"),
        ({"grid": {"element": [1]}}, "cannot have the name 'element'"),
        ({"count": 1, "parameters": [{"a": 1}]}, "exactly one of count, grid and parameters"),
        ({"parameters": [{"a": 1}, {"b": 1}]}, "entry 1 has b, the first one has a"),
        ({"parameters": [{"element": 1}]}, "cannot have the name 'element'"),
        ({"parameters": [{}]}, "at least 1"),
        ({"parameters": [{"a": "x" * 4096}] * 17}, "at most 65536 bytes"),
        ({"count": 100_001, "results": True}, "of at most 100000 elements, and this one has 100001"),
        ({"grid": {"a": ["x" * 4096] * 17}}, "at most 65536 bytes"),
        ({"count": 3, "stopOn": "lastFailure"}, "stopOn"),
        ({"count": 3, "stopOn": {}}, "firstFailure or firstSuccess"),
        ({"count": 3, "timeLimit": "0s"}, "above 0"),
        ({"count": 3, "call": "no function"}, "call"),
    ],
)
def test_an_array_that_means_nothing_is_refused(array: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(array=array)


def test_stop_on_has_short_forms() -> None:
    assert JobArray.model_validate({"count": 3, "stopOn": "firstFailure"}).stop == ArrayStop(failures=1)
    assert JobArray.model_validate({"count": 3, "stopOn": "firstSuccess"}).stop == ArrayStop(successes=1)


POD = {"spec": {"containers": [{"name": "main", "image": "i"}]}}
TEMPLATE = {"command": ["true"], "resources": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"roles": [{"name": "a", "podTemplate": POD}]}, "podTemplate has to be left out"),
        ({"roles": [{"name": "a", "template": {"resources": {"cpu": "1"}}}]}, "the role has no command, and no image"),
        ({"roles": [{"name": "a", "template": {"args": ["-v"]}}]}, "the role has no command, and no image"),
        ({"roles": [{"name": name, "template": TEMPLATE} for name in "ab"]}, "leave out the others"),
        ({"array": {"count": 3, "call": "a:b"}}, "leave them out"),
        ({"success": {"role": "worker"}}, "cannot be combined with success"),
    ],
)
def test_the_members_of_an_array_are_of_one_role_with_a_command(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**fields)


@pytest.mark.parametrize(
    ("template", "array", "expected"),
    [
        ({"image": "i"}, {}, True),
        ({"image": "i", "args": ["${element}"]}, {}, True),
        ({"image": "i", "command": ["true"]}, {}, False),
        ({"image": "i"}, {"call": "a:b"}, False),
        ({"image": "i"}, {"mode": "jobs"}, False),
    ],
)
def test_a_role_without_a_command_goes_where_entry_points_of_images_are_executed(
    template: dict[str, Any], array: dict[str, Any], expected: bool
) -> None:
    found = spec(roles=[{"name": "a", "template": template}], array={"count": 3} | array)
    assert found.executes_entry_points is expected
    assert ("imageEntryPoints" in shape_of(found)["capabilities"]) is expected


def test_a_member_of_an_array_restarts_unless_the_job_says_otherwise() -> None:
    assert spec().failure_of(spec().roles[0]).action == "restartMember"
    gang = spec(memberFailure={"action": "restartGang"})
    assert gang.failure_of(gang.roles[0]).action == "restartGang"
    plain = JobSpec.model_validate(spec().to_wire() | {"array": None})
    assert plain.failure_of(plain.roles[0]).action == "failRun"
