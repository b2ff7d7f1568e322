"""Ctrl-C is heard wherever it comes, and does not cut the cleaning up short."""

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from trainmaster.cli.interrupts import interruptible

SIGNS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = [(sign, signal.getsignal(sign)) for sign in SIGNS]
    yield
    for sign, handler in before:
        signal.signal(sign, handler)


class Thing:
    pass


def wait_long() -> None:
    with interruptible():
        time.sleep(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_one_that_python_drops_is_raised_again(sign: signal.Signals) -> None:
    dropped: list[bool] = []

    def wait_with_a_callback() -> None:
        thing = Thing()
        with interruptible():
            reference = weakref.ref(thing, lambda _: signal.raise_signal(sign))
            del thing
            dropped.append(reference() is None)
            time.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        wait_with_a_callback()
    assert dropped == [True]


def test_what_comes_after_it_is_ignored() -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        wait_long()
    for sign in SIGNS:
        os.kill(os.getpid(), sign)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_without_one_the_block_just_ends() -> None:
    with interruptible():
        ended = True
    assert ended
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
