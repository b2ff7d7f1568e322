"""Files of specifications: YAML with one or more documents, or JSON; each mistake names its file and document."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import note
from trainmaster.protocol.documents import Document, placed
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.validation_errors import mistakes_of

Model = TypeVar("Model", bound=BaseModel)

_PLACEHOLDER = re.compile(r"@[A-Z][A-Z0-9_]*@")
_JOB_INDEX = re.compile(r"^jobs\[(\d+)\]\.?")


class _Loader(yaml.SafeLoader):
    """A YAML loader for which only true and false are booleans, as in YAML 1.2: ``on``, ``no`` and ``y`` are words."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` arguments as a mapping. Raises UsageError."""
    out = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes NAME=VALUE, not {item!r}")
        out[name] = value
    return out


def read_documents(files: Sequence[str], settings: Mapping[str, str]) -> list[Document]:
    """Return all documents of all files, ``-`` being stdin, with ``@NAME@`` replaced.

    Raises UsageError for a file that cannot be read, and ProblemError for mistakes in its content.
    """
    texts = [("stdin" if file == "-" else file, _read(file)) for file in files]
    for name in settings:
        if not any(f"@{name}@" in text for _, text in texts):
            raise UsageError(f"--set {name}=...: no file has @{name}@: {', '.join(files)}")
    out: list[Document] = []
    for file, text in texts:
        for name, value in settings.items():
            text = text.replace(f"@{name}@", value)
        for left in sorted(set(_PLACEHOLDER.findall(text))):
            note(f"{file}: {left} has no value; give one with --set {left.strip('@')}=VALUE")
        found = list(_documents(file, text))
        if not found:
            raise ProblemError(Code.MALFORMED_BODY, f"{file} is empty: it holds no specification")
        out += found
    return out


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(Code.MALFORMED_BODY, f"cannot read {file}: it is not text in UTF-8") from error


def _documents(file: str, text: str) -> Iterator[Document]:
    try:
        # JSON is not quite a subset of YAML: it may be indented with tabs.
        values = [json.loads(text)] if file.endswith(".json") else list(yaml.load_all(text, _Loader))  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ProblemError(Code.MALFORMED_BODY, f"{file}: {_where(error)}") from error
    values = [value for value in values if value is not None]
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    for number, value in enumerate(values, 1):
        place = f"{file} document {number}" if len(values) > 1 else file
        if not isinstance(value, dict):
            message = f"a specification has to be a mapping, this is {type(value).__name__}"
            raise ProblemError(Code.MALFORMED_BODY, f"{place}: {message}")
        yield Document({str(key): item for key, item in value.items()}, place)


def _where(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    return str(error) or type(error).__name__


def validated(model: type[Model], value: Mapping[str, Any], place: str = "") -> Model:
    """Parse ``value`` as ``model``. Raises ProblemError with each mistake and its place."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = mistakes_of(error)
        mistakes = tuple(placed(mistake, place) for mistake in found)
        raise ProblemError(Code.INVALID_SPEC, found[0].message, mistakes=mistakes) from error


def with_places(error: ProblemError, documents: Sequence[Document]) -> ProblemError:
    """Return a refused submission's error with each mistake named by file and document instead of by number."""
    mistakes = []
    for mistake in error.mistakes:
        match = _JOB_INDEX.match(mistake.path)
        if match is None or int(match[1]) >= len(documents):
            mistakes.append(mistake)
            continue
        rest = Mistake(path=mistake.path[match.end() :] or "(whole)", message=mistake.message)
        mistakes.append(placed(rest, documents[int(match[1])].place))
    return ProblemError(
        error.code, error.detail, mistakes=tuple(mistakes), retry_after=error.retry_after, extra=error.extra
    )
