"""Ctrl-C that is heard in any case, by programs that leave nothing behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 1.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGINT and SIGTERM raise KeyboardInterrupt; after it both are ignored, so that nothing cuts the cleaning up short.

    Python drops what is raised while it runs a callback of its own, of a weak reference for instance, as happens at every import.
    So it is raised once a second until the block is left. For the main thread; takes SIGALRM.
    """
    signs = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    # A shell starts what it puts into the background with SIGINT ignored: it is set anew, whatever it was.
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
