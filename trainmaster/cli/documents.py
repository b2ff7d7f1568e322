"""Files of specifications: YAML with one or more documents, or JSON; each mistake names its file and document."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trainmaster.cli.errors import UsageError
from trainmaster.cli.yaml_files import read_text
from trainmaster.protocol.documents import Document, placed
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.json_duplicates import duplicate_key
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster.protocol.yaml_text import load_all, place_of

Model = TypeVar("Model", bound=BaseModel)

_PLACEHOLDER = re.compile(r"@[A-Z][A-Z0-9_]*@")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_SET_INDEX = re.compile(r"^parameters\[(\d+)\]\.?")
_JOB_INDEX = re.compile(r"^jobs\[(\d+)\]\.?")
_JOB_OF_TABLE = re.compile(r"job(\.|$)")


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

    Raises UsageError for a file that cannot be read, or has an ``@NAME@`` without a value outside of comments, and ProblemError for
    mistakes in its content.
    """
    texts = [("stdin" if file == "-" else file, read_text(file)) for file in files]
    for name in settings:
        if not any(f"@{name}@" in text for _, text in texts):
            raise UsageError(f"--set {name}=...: no file has @{name}@: {', '.join(files)}")
    for file, text in texts:
        _check_placeholders(file, text, settings)
    out: list[Document] = []
    for file, text in texts:
        for name, value in settings.items():
            text = text.replace(f"@{name}@", value)
        found = list(_documents(file, text))
        if not found:
            raise ProblemError(Code.MALFORMED_BODY, f"{file} is empty: it holds no specification")
        out += found
    return out


def _check_placeholders(file: str, text: str, settings: Mapping[str, str]) -> None:
    """Raise UsageError for placeholders that no setting replaces."""
    left = sorted({found.strip("@") for found in _PLACEHOLDER.findall(_COMMENT.sub("", text))} - set(settings))
    if left:
        listed = ", ".join(f"@{name}@" for name in left)
        raise UsageError(
            f"{file}: {listed} {'has' if len(left) == 1 else 'have'} no value; give {'one' if len(left) == 1 else 'each one'} with"
            f" {' '.join(f'--set {name}=VALUE' for name in left)}, or keep a text as it is with --set {left[0]}=@{left[0]}@"
        )


def _documents(file: str, text: str) -> Iterator[Document]:
    try:
        # JSON is not quite a subset of YAML: it may be indented with tabs.
        values = [_json(text)] if file.endswith(".json") else list(load_all(text))
    except json.JSONDecodeError as error:
        message = f"{file}: line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise ProblemError(Code.MALFORMED_BODY, message) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ProblemError(Code.MALFORMED_BODY, f"{file}: {place_of(error)}") from error
    values = [value for value in values if value is not None]
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    for number, value in enumerate(values, 1):
        place = f"{file} document {number}" if len(values) > 1 else file
        if not isinstance(value, dict):
            raise ProblemError(
                Code.MALFORMED_BODY, f"{place}: a specification has to be a mapping, this is {shown(value)}"
            )
        yield Document({str(key): item for key, item in value.items()}, place)


def _json(text: str) -> Any:
    value = json.loads(text, parse_constant=_no_number)
    twice = duplicate_key(text.encode("utf-8", "surrogatepass"), value)
    if twice is not None:
        raise ValueError(f"{twice} is given twice")
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def validated(model: type[Model], value: Mapping[str, Any], place: str = "") -> Model:
    """Parse ``value`` as ``model``. Raises ProblemError with each mistake and its place."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = mistakes_of(error)
        mistakes = tuple(placed(mistake, place) for mistake in found)
        raise ProblemError(Code.INVALID_SPEC, found[0].message, mistakes=mistakes) from error


def with_places(error: ProblemError, documents: Sequence[Document], table: str = "") -> ProblemError:
    """Return a refused submission's error with each mistake named by file and document, or by the row of the table, instead of by
    number.
    """
    mistakes = tuple(_in_row(in_place(mistake, documents), table) for mistake in error.mistakes)
    return ProblemError(error.code, error.detail, mistakes=mistakes, retry_after=error.retry_after, extra=error.extra)


def _in_row(mistake: Mistake, table: str) -> Mistake:
    match = _SET_INDEX.match(mistake.path) if table else None
    if match is None:
        return mistake
    rest = Mistake(path=mistake.path[match.end() :], message=mistake.message)
    return placed(rest, f"{'stdin' if table == '-' else table} row {int(match[1]) + 1}")


def in_place(mistake: Mistake, documents: Sequence[Document]) -> Mistake:
    """Return a mistake in a call of many jobs, or of a table, with the file and the document of its job instead of the number."""
    if len(documents) == 1 and (of_table := _JOB_OF_TABLE.match(mistake.path)):
        return placed(Mistake(path=mistake.path[of_table.end() :], message=mistake.message), documents[0].place)
    match = _JOB_INDEX.match(mistake.path)
    if match is None or int(match[1]) >= len(documents):
        return mistake
    rest = Mistake(path=mistake.path[match.end() :], message=mistake.message)
    return placed(rest, documents[int(match[1])].place)
