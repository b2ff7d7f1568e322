"""Unknown fields that are left out of objects, by the paths that mistakes have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import path_step
from trainmaster.protocol.validation_errors import UNKNOWN_FIELD
from trainmaster_dispatcher.api.kube.unknown_fields import steps_of, without_unknown


@given(st.lists(st.one_of(st.text(max_size=20), st.integers(0, 99)), min_size=1, max_size=5))
def test_a_path_is_read_as_it_is_written(steps: list[str | int]) -> None:
    if isinstance(steps[0], int):
        steps[0] = "a"
    path = "".join(path_step(step, is_first=place == 0) for place, step in enumerate(steps))
    assert steps_of(path) == steps


@pytest.mark.parametrize("path", ["a[", 'a["b', "a..b", "a[b]", "a]"])
def test_a_path_that_is_cut_off_is_not_read(path: str) -> None:
    assert steps_of(path) is None


@pytest.mark.parametrize("path", ["a", "b.c", "b[0]", "l[7].x", "l[0]", "l.x", "b.d.e", 'a["'])
def test_what_is_not_there_is_not_removed(path: str) -> None:
    item = {"b": {"d": 1}, "l": [{"y": 1}]}
    assert without_unknown(item, [Mistake(path=path, message=UNKNOWN_FIELD)]) == []
    assert item == {"b": {"d": 1}, "l": [{"y": 1}]}


def test_only_unknown_fields_are_removed() -> None:
    item = {"a": 1, "l": [{"y": 1, "z": 2}]}
    mistakes = [
        Mistake(path="a", message="must be a text"),
        Mistake(path="l[0].z", message=f"{UNKNOWN_FIELD}; did you mean y?"),
    ]
    assert without_unknown(item, mistakes) == ["l[0].z"]
    assert item == {"a": 1, "l": [{"y": 1}]}
