"""Sweeps over a field of burst policies: which documents are changed, and where."""

import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.whatif.sweeping import NONE, is_burst, with_burst, with_field

QUEUE = Document({"kind": "Queue", "path": "research", "weight": 2}, "queues.yaml")
JOB = Document({"kind": "Job", "name": "bert", "when": {"after": "1s"}}, "jobs.yaml document 1")


def policy(name: str = "overflow", **fields: Any) -> Document:
    value = {"kind": "BurstPolicy", "name": name, "queues": ["research"], "budget": {"day": 100}, **fields}
    return Document(value, f"{name}.yaml")


def changed(document: Document, name: str, value: str) -> dict[str, Any]:
    """Return what is new or different in the only document after it was set."""
    (found,) = with_burst([document], name, value)
    assert found.place == document.place, "mistakes are still told with their file"
    return {key: found.value[key] for key in found.value if found.value[key] != document.value.get(key)}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("burst.after", True), ("burst.atMost.jobs", True), ("N", False), ("burst", False), ("bursts.after", False)],
)
def test_settings_that_begin_with_burst_are_fields_of_policies(name: str, is_one: bool) -> None:
    assert is_burst(name) is is_one


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("burst.aftr", "15m", "burst.aftr=15m: this field is not known; did you mean burst.after?"),
        ("burst.timelimit", "2h", "burst.timelimit=2h: this field is not known; did you mean burst.timeLimit?"),
        ("burst.after", "soon", "burst.after=soon: when.after: 'soon' is not a duration; write for example "),
        ("burst.budget.yer", "2", "burst.budget.yer=2: this field is not known"),
    ],
)
def test_a_mistake_of_a_sweep_is_not_one_of_the_file(name: str, value: str, message: str) -> None:
    with pytest.raises(ProblemError, match=f"^{re.escape(message)}") as raised:
        with_burst([policy()], name, value)
    assert "overflow.yaml" not in str(raised.value)
    given = policy(bogus=1)
    assert with_burst([given], "burst.after", "5m")[0].value["bogus"] == 1, "a mistake of the file is told as one"


SET: dict[str, tuple[Document, str, str, dict[str, Any]]] = {
    "a short name stands for its path": (policy(), "burst.after", "5m", {"when": {"after": "5m"}}),
    "so does the one of the expected wait": (policy(), "burst.expectedWait", "1h", {"when": {"expectedWait": "1h"}}),
    "so does the one of jobs": (policy(), "burst.jobs", "4", {"atMost": {"jobs": 4}}),
    "so does the one of nodes": (policy(), "burst.nodes", "0", {"atMost": {"nodes": 0}}),
    "a field of the policy itself": (policy(), "burst.timeLimit", "2h", {"timeLimit": "2h"}),
    "a nested path": (policy(), "burst.when.utilisation.above", "0.9", {"when": {"utilisation": {"above": 0.9}}}),
    "a nested path keeps what is beside it": (
        policy(when={"after": "1m", "utilisation": {"above": 0.5, "until": 0.4}}),
        "burst.when.utilisation.above",
        "0.9",
        {"when": {"after": "1m", "utilisation": {"above": 0.9, "until": 0.4}}},
    ),
    "a short name keeps what is beside it": (
        policy(atMost={"jobs": 1, "nodes": 2}),
        "burst.jobs",
        "8",
        {"atMost": {"jobs": 8, "nodes": 2}},
    ),
    "a budget": (policy(), "burst.budget.day", "12.5", {"budget": {"day": 12.5}}),
    "another budget beside it": (policy(), "burst.budget.hour", "7", {"budget": {"day": 100, "hour": 7}}),
    "in place of what cannot be gone into": (policy(when=None), "burst.after", "5m", {"when": {"after": "5m"}}),
    "a truth value": (policy(paused=True), "burst.paused", "false", {"paused": False}),
    "a word": (policy(), "burst.spot", "never", {"spot": "never"}),
    "a list": (policy(), "burst.clusters", '["a","b"]', {"clusters": ["a", "b"]}),
    "a duration that is a number": (policy(), "burst.after", "300", {"when": {"after": 300}}),
    "none pauses, whatever the field": (policy(), "burst.after", NONE, {"paused": True}),
    "none leaves the field as it is": (policy(when={"after": "1m"}), "burst.when.after", NONE, {"paused": True}),
}


@pytest.mark.parametrize("sentence", SET)
def test_what_a_setting_changes(sentence: str) -> None:
    document, name, value, expected = SET[sentence]
    assert changed(document, name, value) == expected


@pytest.mark.parametrize("sentence", [one for one in SET if one != "in place of what cannot be gone into"])
def test_what_was_changed_is_a_policy_still(sentence: str) -> None:
    document, name, value, _ = SET[sentence]
    (found,) = with_burst([document], name, value)
    BurstPolicySpec.model_validate(found.value)


@pytest.mark.parametrize("sentence", SET)
def test_what_was_read_stays_as_it_was(sentence: str) -> None:
    """The next value of the sweep begins with it."""
    document, name, value, _ = SET[sentence]
    before = deepcopy(document)
    with_burst([document], name, value)
    assert document == before


def test_all_policies_are_changed_and_no_other_document() -> None:
    nights, days = policy("nights", when={"after": "1m"}), policy("days")
    found = with_burst([QUEUE, nights, JOB, days], "burst.after", "5m")
    assert [one.place for one in found] == ["queues.yaml", "nights.yaml", "jobs.yaml document 1", "days.yaml"]
    assert (found[0], found[2]) == (QUEUE, JOB)
    assert [found[number].value["when"] for number in (1, 3)] == [{"after": "5m"}] * 2
    assert [found[number].value["name"] for number in (1, 3)] == ["nights", "days"]


def test_several_settings_add_up() -> None:
    found = [policy()]
    for name, value in {"burst.after": "5m", "burst.expectedWait": "1h", "burst.jobs": "4"}.items():
        found = with_burst(found, name, value)
    assert found[0].value["when"] == {"after": "5m", "expectedWait": "1h"}
    assert found[0].value["atMost"] == {"jobs": 4}


@pytest.mark.parametrize("value", ["5m", NONE])
@pytest.mark.parametrize("documents", [[], [QUEUE, JOB]])
def test_without_a_policy_there_is_nothing_to_change(documents: list[Document], value: str) -> None:
    with pytest.raises(ProblemError, match=r"burst\.after is a field of burst policies, and there is no burst policy"):
        with_burst(documents, "burst.after", value)


paths = st.lists(st.from_regex(r"[a-z]{1,4}", fullmatch=True), min_size=1, max_size=4).filter(
    lambda one: one != ["jobs"]
)


@given(paths, st.integers())
def test_what_is_set_by_a_path_is_found_by_it(path: list[str], value: int) -> None:
    into: Any = with_field(policy(), ".".join(path), str(value)).value
    for part in path:
        into = into[part]
    assert into == value
