"""Containment: an unexpected error in the handling of one run, object or message ends that handling and nothing else.

The caller decides what happens to the run or object.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_LONGEST_WORDS = 300
_QUIET_SECONDS = 60.0
"""Seconds after a logged traceback in which the same error at the same place is counted and logged without one."""
_MOST_KNOWN = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0

_logged_at: dict[tuple[str, str], float] = {}
_observers: list[Callable[[str], None]] = []


def observe(note: Callable[[str], None]) -> None:
    """Call ``note`` with the place of each contained error from now on."""
    if note not in _observers:
        _observers.append(note)


def contain(
    place: str, error: Exception, what: str = "", *, run: str = "", clock: Callable[[], float] = time.monotonic
) -> str:
    """Count and log an unexpected error with its traceback; return its text, at most 300 characters.

    ``place`` names the handler and is a metric label: it must never hold the name of a run or an object; ``what`` does.
    """
    for note in _observers:
        note(place)
    words = words_of(error)
    now, key = clock(), (place, words)
    is_known = now - _logged_at.get(key, -_QUIET_SECONDS) < _QUIET_SECONDS
    if not is_known:
        if len(_logged_at) >= _MOST_KNOWN:
            _logged_at.clear()
        _logged_at[key] = now
    extra = {"run_id": run} if run else {}
    log.error(
        "unexpected error at %s%s: %s",
        place,
        f" ({what or run})" if what or run else "",
        words,
        exc_info=None if is_known else error,
        extra=extra,
    )
    return words


async def run_for_ever(place: str, loop: Callable[[], Awaitable[None]], *passing: type[Exception]) -> None:
    """Run a loop that never ends; after an unexpected error begin it again, with growing pauses. Errors in ``passing`` leave it."""
    pause = _FIRST_PAUSE
    while True:
        began = time.monotonic()
        try:
            await loop()
            return
        except passing:
            raise
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain(place, error)
        if time.monotonic() - began > _LONGEST_PAUSE:
            pause = _FIRST_PAUSE
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def words_of(error: Exception) -> str:
    """Return the class and the message of an error in one line of bounded length."""
    text = str(error)[: 4 * _LONGEST_WORDS].encode("utf-8", "replace").decode()
    line = " ".join(f"{type(error).__name__}: {text}".split())
    return line if len(line) <= _LONGEST_WORDS else line[: _LONGEST_WORDS - 3] + "..."
