"""Troubles with Redis as the broker of side jobs: none of them ends the worker or beat, and what is left of them is cleared.

All that Redis holds may be lost at any time, as the work is rows in Postgres. So what cannot be read is deleted.
"""

import logging
import time
from contextlib import suppress
from typing import Any

from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from trainmaster_dispatcher.containment import Part, note
from trainmaster_dispatcher.store.redis_channels import TASKS

log = logging.getLogger(__name__)

PREFIX = "trainmaster:"
QUEUE = TASKS
_SEPARATOR = "\x06\x16"
_TYPES = {
    QUEUE: "list",
    **{f"{QUEUE}{_SEPARATOR}{step}": "list" for step in (3, 6, 9)},
    "unacked": "hash",
    "unacked_index": "zset",
    "unacked_mutex": "string",
    f"_kombu.binding.{QUEUE}": "set",
    f"_kombu.binding_permanent.{QUEUE}": "set",
    "_kombu.binding_deadlines": "zset",
}
"""The keys of the broker, without the prefix, and the type of each."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
_CALM_SECONDS = 30.0
_QUIET_SECONDS = 60.0
_MOST_KNOWN = 1000


def cause_of(error: BaseException) -> BaseException:
    """Return the error behind one that Celery or kombu made of it."""
    while type(error).__module__.startswith(("celery.", "kombu.")):
        behind = error.__cause__ or error.__context__
        if behind is None:
            break
        error = behind
    return error


def is_outage(error: BaseException) -> bool:
    """Return whether Redis is unreachable or starting, which passes by itself."""
    return isinstance(
        cause_of(error), (OperationalError, RedisConnectionError, RedisTimeoutError, BusyLoadingError, OSError)
    )


def note_trouble(who: str, error: BaseException, url: str) -> None:
    """Log a trouble, once in a minute for each kind; count it and clear up after it, unless Redis is unreachable."""
    cause = cause_of(error)
    if is_outage(cause):
        log.warning("%s cannot use Redis now, trying again: %s", who, cause)
        return
    note(Part.TASK, f"of {who} with Redis", cause)
    with (
        suppress(RedisError, OSError, ValueError),
        Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as redis,
    ):
        clear_up(redis, cause)


def clear_up(redis: Any, error: BaseException) -> list[str]:
    """Delete the broker's keys of a wrong type, and all of them after an error that was no answer of Redis: then something that
    they hold cannot be read. Return the keys deleted, without their prefix.
    """
    holds_garbage = not isinstance(error, RedisError)
    deleted = []
    for key, wanted in _TYPES.items():
        found = redis.type(PREFIX + key)
        found = found.decode() if isinstance(found, bytes) else str(found)
        if found != "none" and (holds_garbage or found != wanted):
            redis.delete(PREFIX + key)
            deleted.append(key)
            why = "what it holds cannot be read" if found == wanted else f"it is a {found} instead of a {wanted}"
            log.warning("the key %s of Redis was deleted, as %s", PREFIX + key.replace(_SEPARATOR, " "), why)
    return deleted


def is_stopping() -> bool:
    """Return whether this worker was told to end."""
    return any(sign is not None and sign is not False for sign in (state.should_stop, state.should_terminate))


class SteadyConsumer(Consumer):  # type: ignore[misc] # celery has no types
    """Celery's consumer, which begins again after every error and not after lost connections alone; pauses grow to 5 s."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_errors = (Exception,)
        self._pause = _FIRST_PAUSE
        self._failed_at = -_CALM_SECONDS
        self._failed_acknowledgement: Exception | None = None
        if self.hub:
            self.hub.on_tick.add(self._begin_anew_if_one_failed)

    def call_soon_ack(self, acknowledge: Any, logger: Any, errors: Any, *options: Any) -> Any:
        """Acknowledge or reject a message soon, and begin again if that fails.

        Celery only logs the failure. But the message counts as being worked on for ever then, and a worker that is at its limit
        of such messages asks Redis for nothing more: it meets no error that would make it begin again, and idles until its end.
        """
        channel = acknowledge.__self__.channel

        def settle() -> None:
            try:
                acknowledge(logger, (), *options)
            except Exception as error:  # noqa: BLE001 - raised from the loop
                if not channel.closed:  # else its messages were given back, and the connection is a new one
                    self._failed_acknowledgement = error

        return super().call_soon_ack(settle)

    def _begin_anew_if_one_failed(self) -> None:
        error, self._failed_acknowledgement = self._failed_acknowledgement, None
        if error is not None:
            raise error

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Note that no connection could be made, and pause."""
        self._note_and_pause(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection after an error, note it, and pause."""
        super().on_connection_error_after_connected(exc)
        self._note_and_pause(exc)

    def _note_and_pause(self, error: Exception) -> None:
        note_trouble("the worker", error, self.app.conf.broker_url)
        now = time.monotonic()
        if now - self._failed_at > _CALM_SECONDS:
            self._pause = _FIRST_PAUSE
        ends = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        while time.monotonic() < ends and not is_stopping():
            time.sleep(0.05)
        self._failed_at = time.monotonic()


class QuietFilter(logging.Filter):
    """Passes each line once in a minute: while a trouble lasts, Celery logs it at each try."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line was not logged within the last minute."""
        key, now = (str(record.msg), str(record.args)[:500]), time.monotonic()
        if now - self._logged_at.get(key, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        if len(self._logged_at) >= _MOST_KNOWN:
            self._logged_at.clear()
        self._logged_at[key] = now
        return True
