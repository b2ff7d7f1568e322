"""Mapping of errors to one or two lines on stderr and an exit code; never a stack trace."""

import os
import re
import sys
import traceback
from typing import TYPE_CHECKING

from trainmaster.cli import tables
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    import typer

    from trainmaster.protocol.errors import Code, ProblemError

BROKEN_PIPE = 141
"""The exit code that shells show for a program whose reader closed the pipe."""
_OF_ALL_COMMANDS = ("--url", "--key", "--context")
_QUOTED = re.compile(r"'([^']*)'")


class UsageError(Exception):
    """Invalid command line arguments; the message says what is wrong and what is allowed."""


def reported_errors() -> tuple[type[BaseException], ...]:
    """Return the errors with messages of their own. A function, because their import takes time that only failures should pay."""
    from trainmaster.protocol.errors import TrainmasterError

    return (UsageError, TrainmasterError)


def in_words(error: "typer.BadParameter") -> str:
    """Return the message of an option's or argument's invalid value, in the words of all other messages about input."""
    from pydantic import ValidationError

    from trainmaster.protocol.suggestions import did_you_mean
    from trainmaster.protocol.validation_errors import sentence_of

    if not isinstance(error.__cause__, ValidationError):
        return error.message
    mistake = error.__cause__.errors(include_url=False)[0]
    sentence = sentence_of(mistake)
    _, is_choice, listed = sentence.rpartition(" is not one of ")
    if not is_choice:
        return sentence
    given, known = str(mistake["input"]), _QUOTED.findall(listed)
    return f"must be one of {', '.join(known)}, not {given!r}{did_you_mean(given, known)}"


def name_place(error: Exception) -> None:
    """Let the error about an option of all commands say that it stands before the command; leave others as they are."""
    option = getattr(error, "option_name", None)
    if option in _OF_ALL_COMMANDS and hasattr(error, "possibilities"):
        error.possibilities = None
        error.message = f"{option} stands before the command: trainmaster {option} VALUE COMMAND"  # type: ignore[attr-defined]


def report(error: BaseException) -> int:
    """Print an expected error; return its exit code."""
    from trainmaster.client.errors import StreamLostError
    from trainmaster.protocol.errors import ProblemError, UnreachableError

    if isinstance(error, ProblemError):
        _tell_problem(error)
        return exit_of(error.code)
    if isinstance(error, StreamLostError):
        tell(str(error))
        return Exit.UNREACHABLE
    if isinstance(error, UnreachableError):
        tell(str(error))
        print("  check that the dispatcher runs and that this is its address; --url sets another one", file=sys.stderr)
        return Exit.UNREACHABLE
    tell(str(error))
    return Exit.USAGE


def report_unexpected(error: Exception) -> int:
    """Print an unexpected error; return its exit code."""
    tell(f"this is a bug in Trainmaster: {type(error).__name__}: {error}")
    if os.environ.get("TRAINMASTER_DEBUG"):
        traceback.print_exception(error)
    else:
        print("  TRAINMASTER_DEBUG=1 shows the stack trace", file=sys.stderr)
    return Exit.INTERNAL


def is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error, as where it comes while Python makes a class."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def tell(text: str) -> None:
    _print_fitted("error: ", text)


def _print_fitted(begin: str, text: str) -> None:
    """Print on stderr, its lines broken between words where the terminal is too narrow for them."""
    width = tables.terminal_width(sys.stderr)
    first, *others = text.split("\n")
    lines = [
        begin + tables.wrapped(first, width, len(begin), 2),
        *(tables.wrapped(line, width, 0, 2) for line in others),
    ]
    print("\n".join(lines), file=sys.stderr)


def _tell_problem(error: "ProblemError") -> None:
    from trainmaster.protocol.errors import Code

    listed = error.mistakes
    known = any(mistake.message in error.detail for mistake in listed)
    title = str(error.to_problem()["title"])
    tell(title[0].lower() + title[1:] if known else error.detail)
    for mistake in listed:
        said = f"{mistake.path}: {mistake.message}" if mistake.path else mistake.message
        _print_fitted("  ", said)
    if error.code is Code.UNAUTHENTICATED:
        from trainmaster.cli.config import config_path

        print(
            f"  the key is taken from --key, TRAINMASTER_API_KEY or {config_path()}; trainmaster login gives another one",
            file=sys.stderr,
        )
    if error.code is Code.INTERNAL and error.extra.get("requestId"):
        print(f"  request id: {error.extra['requestId']}", file=sys.stderr)


def exit_of(code: "Code") -> Exit:
    """Return the exit code for a problem's code."""
    from trainmaster.protocol.errors import Code

    if code is Code.INTERNAL:
        return Exit.INTERNAL
    by_status = {
        401: Exit.DENIED,
        403: Exit.DENIED,
        404: Exit.NOT_FOUND,
        409: Exit.CONFLICT,
        410: Exit.CONFLICT,
        412: Exit.CONFLICT,
    }
    by_status |= {429: Exit.CONFLICT, 503: Exit.STORE_AWAY}
    return by_status.get(code.status, Exit.BAD_REQUEST)
