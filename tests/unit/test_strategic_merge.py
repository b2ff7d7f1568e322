"""Strategic merge patches: the rules of Kubernetes for lists with keys, and its directives."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain.strategic_merge import StrategicMergeError, merged

ONE, TWO = {"name": "one", "image": "a", "env": [{"name": "A", "value": "1"}]}, {"name": "two", "image": "b"}


def containers(*items: Any, **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(items), **more}}


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 2, "c": 3}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}, {"a": {"d": 3}}),
        ({"a": {"b": 1}, "c": 2}, {"a": {"$patch": "delete"}}, {"a": {}, "c": 2}),
        ({"a": 1, "b": 2, "c": 3}, {"$retainKeys": ["a", "d"], "d": 4}, {"a": 1, "d": 4}),
        (containers(ONE, TWO), containers({"name": "two", "image": "c"}), containers(ONE, {**TWO, "image": "c"})),
        (containers(ONE, TWO), containers({"name": "one", "$patch": "delete"}), containers(TWO)),
        (containers(ONE), containers(TWO), containers(ONE, TWO)),
        (containers(ONE, TWO), containers({"$patch": "replace"}, {"name": "new"}), containers({"name": "new"})),
        (
            containers(ONE),
            containers({"name": "one", "env": [{"name": "B", "value": "2"}]}),
            containers({**ONE, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
        ),
        (
            containers(ONE, TWO),
            containers({"name": "two"}, **{"$setElementOrder/containers": [{"name": "two"}, {"name": "one"}]}),
            containers(TWO, ONE),
        ),
        ({"finalizers": ["a", "b"]}, {"finalizers": ["c"]}, {"finalizers": ["a", "b", "c"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
        ({"containers": "text"}, {"containers": [ONE]}, {"containers": [ONE]}),
    ],
)
def test_what_a_patch_makes_of_an_object(before: Any, patch: Any, after: Any) -> None:
    kept = repr(before)
    assert merged(before, patch) == after
    assert repr(before) == kept, "the object before is as it was"


@pytest.mark.parametrize(
    "patch",
    [
        {"$patch": "burn"},
        {"containers": [{"image": "without a name"}]},
        {"$retainKeys": "a"},
        {"$setElementOrder/containers": {"a": 1}, "containers": [ONE]},
        {"$deleteFromPrimitiveList/finalizers": 1},
    ],
)
def test_a_patch_that_means_nothing_is_refused(patch: Any) -> None:
    with pytest.raises(StrategicMergeError):
        merged({"containers": [ONE], "finalizers": ["a"]}, patch)


_FIELDS = st.sampled_from(
    ["a", "containers", "env", "name", "finalizers", "$patch", "$retainKeys", "$setElementOrder/env"]
)
_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_FIELDS, _JSON, max_size=4), st.dictionaries(_FIELDS, _JSON, max_size=4))
def test_any_patch_is_merged_or_refused(before: dict[str, Any], patch: dict[str, Any]) -> None:
    with suppress(StrategicMergeError):
        assert isinstance(merged(before, patch), dict)
