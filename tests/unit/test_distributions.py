"""The four distributions: one version, few packages for the client, and a word about each command that is not installed."""

import tomllib
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.compose_file import ROOT
from trainmaster import __version__
from trainmaster.cli import main
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.up import up

FOLDERS = (".", "dispatcher", "agent", "migrations")


def project(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return found


def test_all_have_one_version_and_ask_for_each_other_in_it() -> None:
    projects = [project(folder) for folder in FOLDERS]
    assert {one["version"] for one in projects} == {__version__}
    requirements = [line for one in projects for line in one["dependencies"]]
    requirements += [
        line for one in projects for lines in one.get("optional-dependencies", {}).values() for line in lines
    ]
    ours = [line for line in requirements if line.startswith("trainmaster") and "==" in line]
    assert len(ours) > 5
    assert {line.partition("==")[2] for line in ours} == {__version__}


def test_the_client_asks_for_few_packages() -> None:
    assert len(project(".")["dependencies"]) <= 8


def test_the_commands_that_a_missing_distribution_is_named_for_are_those_that_it_brings() -> None:
    brought = {}
    for point in entry_points(group="trainmaster.commands"):
        app = typer.Typer()
        point.load()(app)
        names = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
        brought[point.name] = names | {group.name or "" for group in app.registered_groups}
    assert brought == {distribution: set(names) for distribution, names in main._OTHERS.items()}


def test_up_says_what_it_lacks_where_there_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "trainmaster.cli.process.find_spec", lambda name: None if name == "trainmaster_agent" else find_spec(name)
    )
    app = typer.Typer()
    app.command()(up)
    result = CliRunner().invoke(app, [])
    assert (result.exit_code, result.output) == (
        Exit.MISSING_EXTRA,
        "this command needs packages that are not installed: install trainmaster[embedded]\n",
    )
