"""The reference of the SDK lists what the SDK has."""

import inspect
import re
from pathlib import Path

from trainmaster.client.verbs import Verbs
from trainmaster.protocol.resource_kinds import KINDS

PAGE = (Path(__file__).parents[2] / "docs/reference/sdk.md").read_text()
VERBS = {name: value for name, value in vars(Verbs).items() if inspect.isfunction(value) and not name.startswith("_")}
LISTED = {
    name: parameters
    for line in PAGE.splitlines()
    if line.startswith("| `")
    for name, parameters in re.findall(r"`(\w+)\(([^`]*)\)`", line.split(" | ")[0])
}


def test_every_verb_has_a_line_and_no_other_has_one() -> None:
    assert set(VERBS) == set(LISTED), "docs/reference/sdk.md has one line for each verb"


def test_every_parameter_of_a_verb_is_in_its_line() -> None:
    wrong = {}
    for name, verb in VERBS.items():
        if name not in LISTED:
            continue
        _, *there = inspect.signature(verb).parameters
        listed = re.findall(r"(?:^|, )(\w+)", LISTED[name])
        if listed != there:
            wrong[name] = listed, there
    assert wrong == {}


def test_every_kind_of_object_is_named() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("| `objects(kind)`"))
    assert {name for name in KINDS if f'`"{name}"`' not in line} == set()
