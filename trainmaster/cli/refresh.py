"""Output that is shown again whenever it changes: ``--watch``."""

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated

import typer

_PAUSE_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

WatchOption = Annotated[
    bool, typer.Option("-w", "--watch", help="Show it again whenever it has changed, until Ctrl-C.")
]


class _Page(io.StringIO):
    """Output that is drawn as for the terminal."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def repeated(draw: Callable[[], None], *, watch: bool) -> None:
    """Draw once or, with ``watch``, again and again: on a terminal in place, elsewhere one page after another."""
    if not watch:
        draw()
        return
    on_terminal = sys.stdout.isatty()
    before = None
    while True:
        page = _Page()
        # Notes belong to the page: on a terminal it is cleared before each.
        with redirect_stdout(page), redirect_stderr(page if on_terminal else sys.stderr):
            draw()
        if (text := page.getvalue()) != before:
            before = text
            sys.stdout.write(f"{_CLEAR}{text}" if on_terminal else text)
            sys.stdout.flush()
        pause()


def pause() -> None:
    """Wait between two looks."""
    time.sleep(_PAUSE_SECONDS)
