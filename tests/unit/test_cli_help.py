"""Help: sections, an example of every command that really parses, suggestions for typos, and the version."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException
from typer.main import get_command
from typer.testing import CliRunner

from tests.forbidden_words import forbidden
from tests.unit.fake_api import run
from trainmaster import __version__
from trainmaster.cli import command_help, errors
from trainmaster.cli.main import Commands
from trainmaster.cli.main import app as common
from trainmaster_agent.cli import register as register_agent
from trainmaster_dispatcher.cli import register as register_dispatcher


def _every_command() -> Any:
    """Return the commands of all distributions, as ``main`` adds them."""
    others = typer.Typer()
    register_dispatcher(others)
    register_agent(others)
    app = typer.Typer(
        name="trainmaster", cls=Commands, rich_markup_mode=None, context_settings=common.info.context_settings
    )
    app.registered_callback = common.registered_callback
    # Some of the dispatcher's are among the common ones already, where another test has added them.
    commands = [*common.registered_commands, *others.registered_commands]
    app.registered_commands = list(
        {one.name or one.callback.__name__: one for one in commands if one.callback}.values()
    )
    app.registered_groups = list(
        {one.name: one for one in (*common.registered_groups, *others.registered_groups)}.values()
    )
    return get_command(app)


def _walk(command: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    if not command.hidden:
        yield words, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _walk(one, f"{words} {name}".strip())


ROOT = _every_command()
EVERY = dict(_walk(ROOT))


@pytest.mark.parametrize("words", EVERY)
def test_a_command_has_examples_that_parse(words: str) -> None:
    shown = EVERY[words].epilog
    assert shown, f"no example of {words!r}; command_help.EXAMPLES has those of all commands"
    for line in [line.strip() for line in shown.splitlines() if line.strip().startswith("trainmaster ")]:
        command = line.partition(" > ")[0]
        given = shlex.split(command)[1:]
        assert command.removeprefix("trainmaster ").startswith(words), f"an example of {words!r}"
        context = ROOT.make_context("trainmaster", given)
        group = ROOT
        while context._protected_args:
            rest = [*context._protected_args, *context.args]
            name, group, rest = group.resolve_command(context, rest)
            context = group.make_context(name, rest, parent=context)


def test_no_example_is_of_a_command_that_does_not_exist() -> None:
    assert set(command_help.EXAMPLES) <= set(EVERY)


def test_every_command_is_in_a_section() -> None:
    named = {name for names in command_help.SECTIONS.values() for name in names}
    every = {words for words in EVERY if words and " " not in words}
    assert named | {"version"} == every, "each command is in SECTIONS of trainmaster/cli/command_help.py"
    text = run("--help").stdout
    places = [text.index(f"{section}:") for section in ("Jobs", "Access", "Administration", "Other commands")]
    assert places == sorted(places)


def test_help_of_a_command_shows_its_examples_as_they_are_written() -> None:
    text = run("run", "--help").stdout
    for example in command_help.EXAMPLES["run"]:
        assert f"  trainmaster {example}\n" in text


def test_the_version_is_an_option_too() -> None:
    assert (run("--version").stdout, run("version").exit_code) == (run("version").stdout, 0)
    assert run("--version").stdout.startswith(f"trainmaster {__version__} ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("jbos", "Did you mean 'jobs'?"),
        ("keys revok 1", "Did you mean 'revoke'?"),
        ("jobs --sort ended --lable a=b", "--label"),
        ("jobs --sort ende", "did you mean ended?"),
        ("clusters cordn west", "'cordon'"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_word(words: str, said: str) -> None:
    done = CliRunner().invoke(common, words.split())
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("words", [words for words, command in EVERY.items() if hasattr(command, "commands")])
def test_a_list_of_commands_cuts_no_sentence(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*words.split(), "--help").output.partition("\n")[2].splitlines()
    assert lines
    assert not [line for line in lines if line.endswith("...")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("jobs --limit x", "'--limit': must be a whole number, not 'x'"),
        ("jobs --limit 0", "'--limit': must be at least 1, not '0'"),
        ("keys revoke one", "'ID': must be a whole number, not 'one'"),
        ("run --kind prvate -- true", "must be one of private, public, edge, not 'prvate'; did you mean private?"),
        ("jobs -o jso", "must be one of table, wide, json, yaml, id, name, not 'jso'; did you mean json?"),
        ("jobs --sort it's", 'not "it\'s"'),
        ("usage --per dai", "must be one of hour, day, month, all, not 'dai'"),
    ],
)
def test_the_value_of_an_option_is_refused_in_the_words_of_users(words: str, message: str) -> None:
    done = run(*words.split())
    assert done.exit_code == 2
    assert message in done.output
    assert not forbidden(done.output.partition("Error: ")[2])


def test_each_typed_option_of_each_command_refuses_a_wrong_value_without_words_of_python() -> None:
    said = {}
    for words, command in EVERY.items():
        for option in [one for one in command.params if one.param_type_name == "option" and not one.is_flag]:
            try:
                command.make_context(words, [option.opts[-1], "no such value!"])
            except typer.BadParameter as error:
                if error.__cause__ is not None:
                    said[words, option.opts[-1]] = errors.in_words(error)
            except (typer.Exit, TyperException):
                continue
    assert len(said) > 30
    assert {place: message for place, message in said.items() if forbidden(message)} == {}
