"""Fields of declared objects by path, and the rules of their owners."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain import declared_fields as fields
from trainmaster_dispatcher.domain.declared_fields import MOST_DEPTH, FieldPath

KEYS = st.sampled_from(("a", "b", "c"))
VALUES = st.one_of(st.none(), st.integers(0, 3), st.lists(st.integers(0, 2), max_size=2))
TREES = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=3), lambda inner: st.dictionaries(KEYS, inner | VALUES, max_size=3)
)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)


def overlap(one: FieldPath, other: FieldPath) -> bool:
    """Return whether one path is the beginning of the other, as the definition has it."""
    return all(first == second for first, second in zip(one, other, strict=False))


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7396(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps(target)
    assert fields.merge_patched(target, patch) == result
    assert json.dumps(target) == before


@given(TREES, TREES)
def test_what_is_laid_over_an_object_is_found_in_it_and_the_rest_stays(
    below: dict[str, Any], above: dict[str, Any]
) -> None:
    made = fields.overlaid(below, above)
    for path, leaf in fields.leaves(above).items():
        if leaf != {}:
            assert fields.value_at(made, path) == leaf
    over = frozenset(fields.leaves(above))
    for path, leaf in fields.leaves(below).items():
        if not fields.overlaps(path, over):
            assert fields.value_at(made, path) == leaf


@given(TREES)
def test_an_object_without_all_of_its_fields_is_empty(value: dict[str, Any]) -> None:
    left: dict[str, Any] = value
    for path in fields.leaves(value):
        left = fields.without_field(left, path)
    assert left == {}


@given(TREES, TREES)
def test_equal_objects_have_no_changed_fields_and_others_have_some(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert fields.changed_fields(one, one) == []
    assert bool(fields.changed_fields(one, other)) == (fields.leaves(one) != fields.leaves(other))


@given(PATHS, st.frozensets(PATHS, max_size=5))
def test_paths_overlap_where_one_leads_through_the_other(path: FieldPath, others: frozenset[FieldPath]) -> None:
    assert fields.overlaps(path, others) == any(overlap(path, other) for other in others)


@given(st.dictionaries(KEYS, st.frozensets(PATHS, max_size=4)), st.frozensets(PATHS), st.frozensets(PATHS))
def test_who_states_a_field_owns_it_and_nobody_owns_what_another_has_changed(
    owners: dict[str, frozenset[FieldPath]], stated: frozenset[FieldPath], changed: frozenset[FieldPath]
) -> None:
    after = fields.owners_after(owners, "a", stated, changed)
    assert after["a"] == stated
    for applier in owners.keys() - {"a"}:
        assert after[applier] == {path for path in owners[applier] if not any(overlap(path, one) for one in changed)}
        for path in changed:
            assert applier not in fields.owners_of(path, after, but="a")


@given(st.dictionaries(KEYS, st.frozensets(PATHS, max_size=4)), st.frozensets(PATHS, max_size=3))
def test_a_field_is_given_up_by_its_only_owner(
    owners: dict[str, frozenset[FieldPath]], stated: frozenset[FieldPath]
) -> None:
    for path in fields.given_up(stated, owners, "a"):
        assert path in owners["a"]
        assert not fields.overlaps(path, stated)
        assert fields.owners_of(path, owners, but="a") == []
    assert fields.given_up(stated, owners, None) == []


@pytest.mark.parametrize("wraps", [lambda inner: {"a": inner}, lambda inner: [inner]], ids=["mappings", "lists"])
def test_depth_is_bounded(wraps: Callable[[Any], Any]) -> None:
    deep: Any = 1
    for _ in range(MOST_DEPTH - 1):
        deep = wraps(deep)
    assert not fields.is_too_deep(deep)
    assert fields.is_too_deep(wraps(deep))
