"""Reading of the text files that people write: UTF-8, and YAML as ``trainmaster.protocol.yaml_text`` reads it."""

import sys
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trainmaster.cli.errors import UsageError
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster.protocol.yaml_text import load, place_of

Model = TypeVar("Model", bound=BaseModel)

_MOST_BYTES = 32 * 1024 * 1024
"""The most bytes of a file: what one call to the dispatcher may have."""
_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


def read_text(file: str) -> str:
    """Return the text of a file, ``-`` being stdin, without a byte order mark.

    Raises UsageError for a file that cannot be read, and ProblemError for one that is not text in UTF-8.
    """
    try:
        data = sys.stdin.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(Code.MALFORMED_BODY, "cannot read stdin: it is not text in UTF-8") from error
    name = "stdin" if file == "-" else file
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    if len(data) > _MOST_BYTES:
        raise ProblemError(Code.MALFORMED_BODY, f"cannot read {name}: it has more than {_MOST_BYTES // 2**20} MiB")
    encoding = next((encoding for mark, encoding in _BOMS if data.startswith(mark)), "utf-8")
    if encoding == "UTF-16":
        raise ProblemError(Code.MALFORMED_BODY, f"cannot read {name}: it is text in UTF-16; save it as UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"cannot read {name}: line {line}: it is not text in UTF-8"
        raise ProblemError(Code.MALFORMED_BODY, message) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        message = f"cannot read {name}: line {line} has a NUL character; text is saved as UTF-8"
        raise ProblemError(Code.MALFORMED_BODY, message)
    return text


def read_config(model: type[Model], path: Path) -> Model:
    """Return a file with the configuration of a process. Raises UsageError with the path of every mistake."""
    try:
        value = load(read_text(str(path)))
    except ProblemError as error:
        raise UsageError(error.detail) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path}: {place_of(error)}") from error
    try:
        return model.model_validate({} if value is None else value)
    except ValidationError as error:
        raise UsageError("\n".join(f"{path}: {worded(one)}" for one in mistakes_of(error))) from error
