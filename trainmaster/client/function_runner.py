"""The program of a member that runs one pickled function and writes its outcome to the results of its job.

Standard library only, and Python 3.8: ``python3 -c`` of the member gets it as its text. It has no dollar sign, since Kubernetes
replaces variables in arguments.

Arguments: the version of Python that has pickled the function, such as ``3.11``; the modules of cloudpickle, packed, or an empty text;
and, in parts of one text, the pickled function with its arguments.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import sys
import traceback
import types
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Dumps = Callable[[Any], bytes]

VALUE, PACKED, LOST, ERROR, REFUSED = "value", "packed", "lost", "error", "refused"
"""Names of results: a value of JSON; another value, pickled; why the value is not returned; what the function has raised; why it
cannot be run."""
MOST_BYTES = 4096
"""The most bytes of results."""
_MOST_NAME, _MOST_MESSAGE, _MOST_TRACEBACK = 200, 800, 2400
"""The most bytes of a name, of a message and of the end of a traceback in results."""
_DEEPEST = 30
_NUMBERS_DEEPEST = 6
_EXACT = 1e16
"""Floating point numbers from here on are written with an exponent, which the store does not keep."""


def pack(data: bytes) -> str:
    """Return ``data`` compressed, as text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def is_json(value: Any, depth: int = 0) -> bool:
    """Return whether JSON and the dispatcher's store give a value back as it is."""
    kind = type(value)
    if value is None or kind is bool:
        return True
    if kind is str:
        return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    if kind is int:
        return bool(abs(value) < 2**63)
    if kind is float:
        return bool(abs(value) < _EXACT) and str(value) != "-0.0"
    if depth >= _DEEPEST:
        return False
    if kind is list:
        return all(is_json(one, depth + 1) for one in value)
    if kind is dict:
        return all(type(name) is str and is_json(name) and is_json(one, depth + 1) for name, one in value.items())
    return False


def _with_plain_numbers(value: Any, depth: int = 0) -> Any:
    """Return a value with Python's numbers in place of those of numpy and PyTorch."""
    kind = type(value)
    if depth < _NUMBERS_DEEPEST and kind in (list, tuple):
        return kind(_with_plain_numbers(one, depth + 1) for one in value)
    if depth < _NUMBERS_DEEPEST and kind is dict:
        return {name: _with_plain_numbers(one, depth + 1) for name, one in value.items()}
    if kind is not type and getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return value


def _bytes_of(outcome: dict[str, Any]) -> bytes:
    return json.dumps(outcome, ensure_ascii=False, separators=(",", ":")).encode()


def _fits(outcome: dict[str, Any]) -> bool:
    return len(_bytes_of(outcome)) <= MOST_BYTES


def outcome_of_value(value: Any, dumps: Dumps) -> dict[str, Any]:
    """Return the results of a function that has returned ``value``."""
    with contextlib.suppress(Exception):  # attributes of any class are read
        value = _with_plain_numbers(value)
    if is_json(value) and _fits({VALUE: value}):
        return {VALUE: value}
    kind = type(value).__name__
    try:
        packed = pack(dumps(value))
    except Exception as error:  # noqa: BLE001 - pickling calls methods of any class
        return {LOST: _cut(f"the value, a {kind}, cannot be pickled: {_sentence(error)}", _MOST_MESSAGE)}
    if _fits({PACKED: packed}):
        return {PACKED: packed}
    size = f"{len(packed)} bytes when it is pickled and compressed"
    return {LOST: f"the value, a {kind}, has {size}, and the results of a job have at most {MOST_BYTES}"}


def outcome_of_error(error: BaseException, shown: str, dumps: Dumps) -> dict[str, Any]:
    """Return the results of a function that has raised ``error``, whose traceback is ``shown``."""
    kind = type(error)
    found: dict[str, Any] = {
        "type": _cut(kind.__name__, _MOST_NAME),
        "module": _cut(kind.__module__, _MOST_NAME),
        "message": _cut(_sentence(error), _MOST_MESSAGE),
    }
    arguments = list(error.args)
    if is_json(arguments) and len(_bytes_of({"args": arguments})) <= _MOST_MESSAGE:
        found["args"] = arguments
    # The end of a text is its begin when it is read backwards.
    found["traceback"] = _cut(shown[::-1], min(_MOST_TRACEBACK, MOST_BYTES - len(_bytes_of({ERROR: found})) - 40))[::-1]
    try:
        whole = dict(found, packed=pack(dumps(error)))
    except Exception:  # noqa: BLE001 - the error is known by its text, too
        return {ERROR: found}
    return {ERROR: whole if _fits({ERROR: whole}) else found}


def _cut(text: str, most: int) -> str:
    """Return as much of a text from its begin as has ``most`` bytes in JSON, in characters that can be stored."""
    text = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    while text and len(_bytes_of({"": text})) > most:
        text = text[: len(text) * 9 // 10]
    return text


def _sentence(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _write(outcome: dict[str, Any]) -> None:
    """Write results, of several processes of the member that of rank 0."""
    path = os.environ.get("TRAINMASTER_RESULTS")
    if path and os.environ.get("RANK", "0") == "0":
        with open(path, "wb") as file:  # noqa: PTH123 - nothing more is imported than is needed
            file.write(_bytes_of(outcome))


def _make_modules(library: str) -> Dumps:
    """Make the modules of cloudpickle from their texts; return its function that pickles."""
    texts = json.loads(_unpack(library))
    for name in texts:
        sys.modules[name] = module = types.ModuleType(name)
        module.__package__ = "cloudpickle"
        module.__file__ = f"<{name}>"
    package = sys.modules["cloudpickle"]
    package.__path__ = []
    for name, text in texts.items():  # the package itself is the last one
        exec(compile(text, f"<{name}>", "exec"), sys.modules[name].__dict__)  # noqa: S102 - of the submitter, as the function
    dumps: Dumps = package.__dict__["dumps"]
    return dumps


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)  # noqa: T201 - the output of the member
    _write({REFUSED: _cut(sentence, _MOST_MESSAGE)})
    return 1


def main(arguments: list[str]) -> int:
    """Run the function; return the exit code of the member."""
    version, library, *parts = arguments
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != own:
        return _refuse(
            f"the function was pickled by Python {version}, and the member has Python {own}: use an image with Python {version},"
            " or name its program in command"
        )
    dumps: Dumps = pickle.dumps
    try:
        if library:
            dumps = _make_modules(library)
        function, args, kwargs = pickle.loads(_unpack("".join(parts)))  # noqa: S301 - of the submitter, as all of the member
    except Exception as error:  # noqa: BLE001 - unpickling imports modules of any kind
        traceback.print_exc()
        advice = "; the member needs the modules that the function uses" if isinstance(error, ImportError) else ""
        return _refuse(f"the function cannot be loaded: {_sentence(error)}{advice}")
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        behind = error.__traceback__.tb_next if error.__traceback__ else None
        shown = "".join(traceback.format_exception(type(error), error, behind))
        _write(outcome_of_error(error, shown, dumps))
        if isinstance(error, SystemExit):
            raise
        sys.stdout.flush()
        sys.stderr.write(shown)
        return 1
    outcome = outcome_of_value(value, dumps)
    if LOST in outcome:
        print(outcome[LOST], file=sys.stderr)  # noqa: T201 - the output of the member
    _write(outcome)
    return 0


if __name__ == "__main__":
    given, sys.argv[1:] = sys.argv[1:], []
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(given))
