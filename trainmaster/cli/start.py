"""The program's first steps. Loads nothing slow before Ctrl-C ends it without a stack trace."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""The exit code that shells show for a program that Ctrl-C ended."""


def main() -> None:
    """Run the command line."""
    is_heard = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # shells start background jobs with it ignored
    if is_heard:
        signal.signal(signal.SIGINT, _end)
    from trainmaster.cli.main import main as run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: an exception could be swallowed by a module that is being imported, and nothing has begun yet."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
