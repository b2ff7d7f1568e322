"""Keys that JSON text has twice are found, wherever they are, and no others."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.json_duplicates import duplicate_key
from trainmaster_dispatcher.services.submission_parsing import Most, parse_json, prepare

TEXTS: dict[str, str | None] = {
    '{"a": 1, "a": 1}': "a",
    '{"a": {"b": [0, {"c": 1, "c": 2}]}}': "a.b[1].c",
    '{"a": 1, "\\u0061": 2}': "a",
    '{"a": 1, "a": 2, "b": "\\u003a"}': "a",
    '{"a": 1, "a": 2, "b": "\\u003A\\u003a"}': "a",
    '{"b": "\\u003a"}': None,
    '{"a": "a:a", "b:": ":"}': None,
    '{"a:": 1, "a:": 2}': '["a:"]',
    '[{"a": 1}, {"a": 2}]': None,
    '{"nvidia.com/gpu": 1, "nvidia.com/gpu": 2}': '["nvidia.com/gpu"]',
    '{"a": 1e999}': None,
    "7": None,
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_key_that_is_given_twice_is_found_with_its_path(text: str) -> None:
    value = json.loads(text)
    assert duplicate_key(text.encode(), value) == TEXTS[text]


KEYS = st.text(st.sampled_from('ab:"\\\u00e9'), max_size=3)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_text_with_unique_keys_has_none(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert duplicate_key(text, orjson.loads(text)) is None


@given(VALUES, st.lists(st.tuples(KEYS, VALUES), min_size=2, max_size=4), st.booleans())
def test_an_object_with_a_key_twice_is_found_in_any_surroundings(
    value: Any, pairs: list[tuple[str, Any]], ascii_only: bool
) -> None:
    def written(one: Any) -> str:
        return json.dumps(one, ensure_ascii=ascii_only)

    inner = ", ".join(f"{written(key)}: {written(one)}" for key, one in pairs)
    text = f'[{written(value)}, {{"x": {{{inner}}}}}]'.encode()
    is_twice = len({key for key, _ in pairs}) < len(pairs)
    found = duplicate_key(text, orjson.loads(text))
    assert (found is not None) == is_twice
    if found is not None:
        assert found.startswith("[1].x")


def test_a_submission_with_a_key_twice_is_refused_with_its_path() -> None:
    body = b'{"jobs": [{"name": "a", "queue": "q", "roles": [], "queue": "r"}]}'
    with pytest.raises(ProblemError) as refused:
        prepare(body, Most())
    assert refused.value.code is Code.INVALID_SPEC
    assert [(one.path, one.message) for one in refused.value.mistakes] == [
        ("jobs[0].queue", "this field is given twice")
    ]


def test_text_that_is_nested_deep_is_read() -> None:
    body = b'{"a":' * 900 + b"1" + b"}" * 900
    assert isinstance(parse_json(body), dict)
