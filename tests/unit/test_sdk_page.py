"""The reference of the SDK lists what the SDK has."""

import inspect
import re
from pathlib import Path

from trainmaster.client.function_jobs import AsyncFunctionJob, FunctionJob
from trainmaster.client.http import Client
from trainmaster.client.verbs import Verbs
from trainmaster.protocol.resource_kinds import KINDS

PAGE = (Path(__file__).parents[2] / "docs/reference/sdk.md").read_text()
VERBS = {
    name: value
    for shell in (Verbs, Client)  # the client adds what is no call of its own
    for name, value in vars(shell).items()
    if inspect.isfunction(value) and not name.startswith("_") and name != "close"
}
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
        listed = re.findall(r"(?:^|, )(?:\*(?=\w)|\*\*)?(\w+)", LISTED[name])
        if listed != there:
            wrong[name] = listed, there
    assert wrong == {}


def test_handles_of_functions_have_the_same_methods_for_both_clients() -> None:
    blocking, awaited = (
        {name: list(inspect.signature(value).parameters) for name, value in vars(kind).items() if name[0] != "_"}
        for kind in (FunctionJob, AsyncFunctionJob)
    )
    assert blocking == awaited != {}


def test_every_method_of_a_functions_handle_has_a_line_with_its_parameters() -> None:
    listed = {
        name: re.findall(r"(?:^|, )(\w+)", parameters)
        for name, parameters in re.findall(r"^\| `\.(\w+)\(([^`]*)\)`", PAGE, re.MULTILINE)
    }
    methods = {name: value for name, value in vars(FunctionJob).items() if inspect.isfunction(value) and name[0] != "_"}
    assert listed == {name: list(inspect.signature(value).parameters)[1:] for name, value in methods.items()}


def test_every_kind_of_object_is_named() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("| `objects(kind)`"))
    assert {name for name in KINDS if f'`"{name}"`' not in line} == set()
