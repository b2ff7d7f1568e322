"""Results of runs: what a member may leave, and what is said of the rest."""

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from trainmaster.protocol.agent import RunReport
from trainmaster.protocol.results import MOST_RESULTS_BYTES, mistake_in, read_results
from trainmaster.protocol.sync_parts import read_sync

REPORT: dict[str, Any] = {"run": "a-0000001-r1", "generation": 1, "seq": 4, "state": "succeeded"}


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"accuracy": 0.93, "epochs": 12, "_best": True, "none": None},
        {"model": "s3://bucket/model", "list": [1, {"deep": ["\u00e9", "\U0001f600"]}]},
        {"a" * 63: -(2**63) + 1},
    ],
    ids=str,
)
def test_a_json_object_is_read_as_text_and_as_bytes(found: dict[str, Any]) -> None:
    raw = b"\n " + orjson.dumps(found) + b"\n"
    assert read_results(raw) == read_results(raw.decode()) == (found, "")
    assert RunReport.model_validate(REPORT | {"results": found}).results == found


@pytest.mark.parametrize("text", ["", "\n", b"", b" \t\n"])
def test_a_blank_text_is_no_results_and_no_mistake(text: str | bytes) -> None:
    assert read_results(text) == (None, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accuracy=0.9", "are not a JSON object: Expecting value"),
        ('{"a": 1} {"b": 2}', "are not a JSON object: Extra data"),
        ("[1]", "are not a JSON object but another JSON value"),
        ("3", "are not a JSON object but another JSON value"),
        (b'{"a": "\xff"}', "are not a JSON object: 'utf-8' codec"),
        ('{"a": "\ud800"}', "are not a JSON object: 'utf-8' codec"),
        ('{"a": NaN}', "are not a JSON object: NaN is no number of JSON"),
        ('{"a": 1e999}', "a value that cannot be stored: a has a number that is too large"),
        ('{"a": [9223372036854775808]}', "a has a whole number of more than 64 bits"),
        (r'{"a": {"b\u0000": 1}}', "a has a NUL character, or half of a surrogate pair"),
        (r'{"a": "\ud800"}', "a has a NUL character, or half of a surrogate pair"),
        ('{"a-b": 1}', 'have the name "a-b"'),
        ('{"": 1}', 'have the name ""'),
        ('{"' + "a" * 64 + '": 1}', "at most 63"),
        (orjson.dumps({f"n{number}": 1 for number in range(65)}), "have 65 names, at most 64 are allowed"),
        ('{"a": ' + "[" * 33 + "]" * 33 + "}", "a is nested deeper than 32 levels"),
        ('{"a": ' + "[" * 2000 + "]" * 2000 + "}", "are nested deeper than 32 levels"),
        ('{"a": "' + "x" * MOST_RESULTS_BYTES + '"}', f"have more than {MOST_RESULTS_BYTES} bytes"),
    ],
)
def test_what_is_wrong_is_told(text: str | bytes, words: str) -> None:
    found, wrong = read_results(text)
    assert found is None
    assert words in wrong


def test_a_text_that_was_cut_by_a_kubelet_says_so() -> None:
    whole = '{"a": "' + "x" * (MOST_RESULTS_BYTES - 9) + '"}'
    assert read_results(whole) == ({"a": "x" * (MOST_RESULTS_BYTES - 9)}, "")
    assert read_results((whole + "}")[-MOST_RESULTS_BYTES:])[1].endswith("; a longer text is cut to this length")
    assert "cut" not in read_results(whole[1:])[1]


@pytest.mark.parametrize(
    "wrong", [{"a b": 1}, {"a": 2**64}, {"a": float("inf")}, {"a": "x" * 17_000}, {"a": [0] * 6000}, [1], "{}"]
)
def test_what_an_agent_may_not_report_is_left_out_of_its_report(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        RunReport.model_validate(REPORT | {"results": wrong})
    if wrong in ({"a": 2**64}, {"a": float("inf")}):
        return  # which no JSON of an agent has
    body = {"session": "a", "holder": "b", "number": 1, "runs": [REPORT | {"results": wrong, "resultsError": "none"}]}
    sync = read_sync(orjson.dumps(body))
    assert [(one.results, one.results_error, one.state) for one in sync.request.runs] == [(None, "none", "succeeded")]
    assert sync.refused[0].left_out == ("results",)


def test_numbers_that_are_longer_when_they_are_written_again_are_within_the_bound_of_reports() -> None:
    text = '{"a": [' + "1e15," * 800 + "1e15]}"
    found, wrong = read_results(text)
    assert (len(text) <= MOST_RESULTS_BYTES, wrong) == (True, "")
    assert RunReport.model_validate(REPORT | {"results": found}).results == found


def test_names_are_those_of_parameters() -> None:
    assert not mistake_in({"learning_rate": 1, "_x": 1, "A9": 1})
    for name in ("9a", "a.b", "ä", "a\n"):
        assert "have the name" in mistake_in({name: 1})
