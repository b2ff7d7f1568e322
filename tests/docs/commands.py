"""What can be said of a command without running it: the command line, the charts and the api have what it names."""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import yaml
from starlette.routing import Match
from typer.exceptions import TyperException

from tests.unit import test_charts as charts
from tests.unit.test_cli_help import ROOT as COMMANDS
from trainmaster_dispatcher.api.app import make_routes
from trainmaster_dispatcher.services.settings import Settings

Object = dict[str, Any]

_ENDS = {"|", "||", "&&", ";", "&", "(", ")"}
_PROGRAM = "trainmaster"
_CONTAINERS = ("api-users",)
"""Services of the compose file behind whose name a command runs in their container."""
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*(\.\.\.)?")
_HELP = {"-h", "--help"}
_OF_CUT_COMMANDS = ("MissingParameter", "BadOptionUsage")
"""Errors that typer raises, and does not export, where an argument, an option or an option's value is missing."""
_VALUE_OPTIONS = ("--set", "--set-json", "--set-string", "--set-file")
_BASES: dict[str, Object] = {"agent": charts.AGENT, "dispatcher": charts.BUNDLED}
"""Values with which each chart's schema is content, below those of a page."""


def simple_commands(line: str) -> Iterator[list[str]]:
    """Split a line of a shell into commands, each as words, without the assignments before it and without redirections."""
    line = line.replace("\\\n", " ")
    for inner in _SUBSTITUTION.findall(line):
        yield from simple_commands(inner)
    lexer = shlex.shlex(_SUBSTITUTION.sub("SUBSTITUTED", line), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for word in lexer:
        if is_target:
            is_target = False
        elif word in _ENDS:
            if words:
                yield words
            words = []
        elif set(word) <= set("<>&"):
            is_target = True
        elif words or not re.match(r"\w+=", word):
            words.append(word)
    if words:
        yield words


def mistakes_in(line: str, *, is_whole: bool = True) -> list[str]:
    """Return what is wrong in a command: Trainmaster's own commands and options, values of helm, paths of curl.

    A command that is not whole, as sentences name them, may lack arguments and options that are required.
    """
    found: list[str] = []
    for words in simple_commands(line):
        container = next((number for number, word in enumerate(words) if word in _CONTAINERS), None)
        if words[0] == _PROGRAM:
            found += _mistakes_of_ours(words[1:], is_whole)
        elif container is not None and words[container + 1 : container + 2] == [_PROGRAM]:
            found += _mistakes_of_ours(words[container + 2 :], is_whole)
        elif words[0] == "helm":
            found += _mistakes_of_helm(words)
        elif words[0] == "curl":
            paths = [urlsplit(word).path for word in words if word.startswith("http")]
            found += [f"the api has no {path}" for path in paths if not is_route("GET", path)]
    return found


def _mistakes_of_ours(words: list[str], is_whole: bool) -> list[str]:
    """Return what the command line's own parser says against these words; nothing is run."""
    command, parent, path = COMMANDS, None, _PROGRAM
    words = [word for word in words if word != "..."]
    while True:
        # Options such as --version and --install-completion act as soon as they are parsed.
        acting = {
            option for one in command.params if one.is_eager or not one.expose_value for option in one.opts
        } | _HELP
        if words[:1] and words[0] in acting:
            return []
        try:
            context = command.make_context(path, _with_numbers(command, words), parent=parent)
        except TyperException as error:
            is_cut = type(error).__name__ in _OF_CUT_COMMANDS and not is_whole
            return [] if is_cut else [f"{path}: {error.format_message()}"]
        words = [*context._protected_args, *context.args] if hasattr(command, "commands") else []
        if not words:
            return []
        if words[0] not in command.commands:
            return [f"{path}: no such command {words[0]!r}"]
        path = f"{path} {words[0]}"
        command, parent, words = command.commands[words[0]], context, words[1:]


def _with_numbers(command: Any, words: list[str]) -> list[str]:
    """Put a number in the place of a word such as N or ID where an option or an argument takes one."""
    numbers = [one for one in command.params if re.search("int|float", str(one.type_descriptor.annotation))]
    options = {option for parameter in numbers for option in parameter.opts}
    has_argument = any(parameter.param_type_name == "argument" for parameter in numbers)
    return [
        "1" if _PLACEHOLDER.fullmatch(word) and (option in options or (has_argument and option[:1] != "-")) else word
        for option, word in zip(["", *words], words, strict=False)
    ]


def _mistakes_of_helm(words: list[str]) -> list[str]:
    chart = next((name for name in _BASES if any(f"charts/{name}" in word for word in words)), None)
    if chart is None:
        return []
    given: Object = {}
    for option, value in pairwise(words):
        if option in _VALUE_OPTIONS:
            given = charts.merged(given, _nested(option, value))
    return chart_mistakes(chart, given)


def _nested(option: str, text: str) -> Object:
    """Return the values that one ``--set a.b=c`` gives."""
    path, _, value = text.partition("=")
    if option == "--set-json":
        read = json.loads(value)
    elif option == "--set":
        read = yaml.safe_load(value.replace("{", "[").replace("}", "]"))
    else:
        read = value
    for name in reversed(re.split(r"(?<!\\)\.", path)):
        read = {name: read}
    made: Object = read
    return made


def chart_mistakes(chart: str, given: Object) -> list[str]:
    """Return what a chart's schema refuses in these values, above those that it cannot do without."""
    base = dict(_BASES[chart])
    if "existingSecret" in given:
        base.pop("joinToken", None)
    for name in ("postgresql", "redis"):
        if {"existingSecret", "url"} & set(given.get(name, {})):
            base.pop(name, None)
    return charts.mistakes(chart, charts.merged(base, _with_secrets(given)))


def _with_secrets(value: Any) -> Any:
    """Put whole keys and digests in the place of those that a page cuts short by ``...``."""
    if isinstance(value, dict):
        return {key: _with_secrets(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_with_secrets(below) for below in value]
    if isinstance(value, str):
        return value.replace("sha256:...", "sha256:" + "0" * 64).replace("tmk_...", charts.TOKEN)
    return value


@cache
def _routes() -> list[Any]:
    made = make_routes(Settings.model_validate({"database_url": "postgresql://nobody/nothing", "redis_url": None}))
    return list(made.routes)


def is_route(method: str, path: str) -> bool:
    """Return whether the api has this call; any text stands for a part of a path that varies."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return any(route.matches(scope)[0] is Match.FULL for route in _routes())
