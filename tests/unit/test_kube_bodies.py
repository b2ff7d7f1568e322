"""Bodies of the Kubernetes API: whatever is sent is read, or refused with a code."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.kube import bodies, job_changes

BEFORE = {"spec": {"a": {"b": 1}, "list": [1, 2]}, "metadata": {"name": "x"}}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "a", "/spec", "/spec/a", "/spec/list/0", "~2"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
OPERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "jump"]) | ANYTHING,
        "path": ANYTHING,
        "from": ANYTHING,
        "value": ANYTHING,
    },
)


def outcome(patch: Any, kind: str) -> Any:
    """Return the object after a patch, or the code by which it is refused; the object before must not change."""
    before = orjson.dumps(BEFORE)
    try:
        return bodies.patched(*_with_object(bodies.read_patch(orjson.dumps(patch), kind)))
    except ProblemError as error:
        return error.code
    finally:
        assert orjson.dumps(BEFORE) == before


def _with_object(read: tuple[bodies.PatchType, Any]) -> tuple[bodies.PatchType, Any, Any]:
    return read[0], BEFORE, read[1]


@given(st.lists(OPERATIONS, max_size=4) | ANYTHING)
def test_a_json_patch_changes_a_copy_or_is_refused(patch: Any) -> None:
    found = outcome(patch, "application/json-patch+json")
    assert isinstance(found, dict) or found in (Code.INVALID_SPEC, Code.MALFORMED_BODY)


@given(ANYTHING)
def test_a_merge_patch_changes_a_copy_or_is_refused(patch: Any) -> None:
    found = outcome(patch, "application/merge-patch+json; charset=utf-8")
    assert isinstance(found, dict) or found is Code.MALFORMED_BODY


def test_copies_do_not_make_an_object_of_any_size() -> None:
    before: Any = {"spec": {"text": "x" * 1000}}
    patch = [{"op": "copy", "from": "/spec", "path": f"/spec/a{number}"} for number in range(40)]
    with pytest.raises(ProblemError) as caught:
        bodies.patched(bodies.PatchType.JSON, before, patch)
    assert caught.value.code is Code.BODY_TOO_LARGE


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"{}", "text/plain", Code.UNSUPPORTED_MEDIA_TYPE),
        (b"", "application/json", Code.MALFORMED_BODY),
        (b"[]", "application/json", Code.MALFORMED_BODY),
        (b"a: 1", "application/json", Code.MALFORMED_BODY),
        (b"a: [", "application/yaml", Code.MALFORMED_BODY),
        (b"a: \xff", "application/yaml", Code.MALFORMED_BODY),
        (b"1: 2", "application/yaml", Code.INVALID_SPEC),
        (b"a: 123456789012345678901234567890", "application/yaml", Code.INVALID_SPEC),
        (b"{" * 50 + b"}" * 50, "application/yaml", Code.MALFORMED_BODY),
        (b'{"a":' * 50 + b"1" + b"}" * 50, "application/json", Code.INVALID_SPEC),
        (b'{"a": "' + b"x" * 1024 * 1024 + b'"}', "application/json", Code.BODY_TOO_LARGE),
        (b'{"a": 1, "a": 2}', "application/json", Code.INVALID_SPEC),
    ],
)
def test_what_is_no_object_is_refused(body: bytes, kind: str, code: Code) -> None:
    with pytest.raises(ProblemError) as caught:
        bodies.read_object(body, kind)
    assert caught.value.code is code


def test_yaml_means_what_a_person_means() -> None:
    assert bodies.read_object(b"spec: {at: 2026-11-28, mode: 010, on: yes}", "application/yaml") == {
        "spec": {"at": "2026-11-28", "mode": "010", "on": "yes"}
    }
    assert bodies.read_options(b" ") == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train", "train"),
        ("a-name.that-is-longer-than-those", "a-name-that-is-longer-th"),
        ("0123456789-0123456789-12--x", "0123456789-0123456789-12"),
        ("ü", "job"),
    ],
)
def test_the_name_of_a_job_is_the_begin_of_its_objects_name(name: str, expected: str) -> None:
    assert job_changes.job_name(name) == expected
