"""From errors to a line or two on stderr and an exit code; never a stack trace."""

import os
import sys
import traceback
from typing import TYPE_CHECKING

from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.protocol.errors import Code, ProblemError

BROKEN_PIPE = 141
"""What a shell shows for a program whose reader went away."""


class UsageError(Exception):
    """The command was given what it cannot work with; says what and what is allowed."""


def told_errors() -> tuple[type[BaseException], ...]:
    """Errors that have words of their own. A function, for their import takes time that only failures should pay."""
    from trainmaster.protocol.errors import TrainmasterError

    return (UsageError, TrainmasterError)


def report(error: BaseException) -> int:
    """Tell an error that was raised knowingly; its exit code."""
    from trainmaster.protocol.errors import ProblemError, UnreachableError

    if isinstance(error, ProblemError):
        _tell_problem(error)
        return exit_of(error.code)
    if isinstance(error, UnreachableError):
        tell(str(error))
        print("  is the dispatcher up, and is this its address? --url names another one", file=sys.stderr)
        return Exit.UNREACHABLE
    tell(str(error))
    return Exit.USAGE


def report_unexpected(error: Exception) -> int:
    """Tell an error that nobody foresaw."""
    tell(f"this is a mistake in Trainmaster itself: {type(error).__name__}: {error}")
    if os.environ.get("TRAINMASTER_DEBUG"):
        traceback.print_exception(error)
    else:
        print("  TRAINMASTER_DEBUG=1 shows where", file=sys.stderr)
    return Exit.INTERNAL


def tell(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)


def _tell_problem(error: "ProblemError") -> None:
    from trainmaster.protocol.errors import Code

    listed = error.mistakes
    known = any(mistake.message in error.detail for mistake in listed)
    title = str(error.to_problem()["title"])
    tell(title[0].lower() + title[1:] if known else error.detail)
    for mistake in listed:
        print(f"  {mistake.path}: {mistake.message}", file=sys.stderr)
    if error.code is Code.UNAUTHENTICATED:
        from trainmaster.cli.config import config_path

        print(f"  the key is taken from --key, TRAINMASTER_API_KEY or {config_path()}", file=sys.stderr)
    if error.code is Code.INTERNAL and error.extra.get("requestId"):
        print(f"  request id: {error.extra['requestId']}", file=sys.stderr)


def exit_of(code: "Code") -> Exit:
    """The exit code that stands for a problem."""
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
