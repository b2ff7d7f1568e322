"""Help: sections, an example of every command that really parses, suggestions for typos, and the version."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from tests.unit.fake_api import run
from trainmaster import __version__
from trainmaster.cli import command_help
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
    assert named | {"version"} == {words for words in EVERY if words and " " not in words}
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
        ("jobs --sort ende", "'ended'"),
        ("clusters cordn west", "'cordon'"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_word(words: str, said: str) -> None:
    done = CliRunner().invoke(common, words.split())
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
