"""Ctrl-C that is never lost, for programs that clean up before they end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 1.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGINT and SIGTERM inside; ignore both afterwards, so that nothing interrupts the cleanup.

    Python drops an exception raised inside one of its own callbacks, for example of a weak reference, as happens at every import.
    So it is raised again each second until the block is left. For the main thread only; uses SIGALRM.
    """
    signs = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    # A shell starts background jobs with SIGINT ignored: the handler is set whatever it was.
    for sign in signs:
        signal.signal(sign, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for sign in signs:
            signal.signal(sign, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    raise KeyboardInterrupt
