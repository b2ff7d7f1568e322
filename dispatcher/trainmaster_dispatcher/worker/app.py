"""The Celery application: its broker, its timetable, the worker and beat.

The pool is of threads. Tasks wait for Postgres and for receivers, and share one event loop; a process that is killed
leaves no children behind; and all metrics are in one process.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

from celery import Celery, signals
from celery.beat import Scheduler, Service
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.schedules import crontab
from celery.signals import worker_shutting_down

from trainmaster.protocol.errors import ProblemError
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.worker import broker_troubles
from trainmaster_dispatcher.worker.async_bridge import AsyncBridge
from trainmaster_dispatcher.worker.broker_troubles import (
    PREFIX,
    QUEUE,
    QuietFilter,
    SteadyConsumer,
    is_stopping,
    note_trouble,
)
from trainmaster_dispatcher.worker.tasks import (
    LABELS,
    NOTICES,
    RELAY,
    RETENTION,
    SCHEDULES,
    SIMULATE,
    USAGE,
    make_tasks,
)

log = logging.getLogger(__name__)

_TROUBLES = broker_troubles.__name__

_MOST_WAITING = 20
_RELAY_SECONDS = 1.0
_NOTICES_SECONDS = 2.0
_TROUBLED_SECONDS = 1.0
_LABELS_SECONDS = 10.0
_USAGE_SECONDS = 10.0
_SIMULATE_SECONDS = 1.0
_SCHEDULES_SECONDS = 1.0
_VISIBILITY_SECONDS = 3600


def make_app(settings: Settings) -> Celery:
    """Return the application without tasks, which is enough for beat."""
    app = Celery("trainmaster", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": PREFIX,
            "visibility_timeout": _VISIBILITY_SECONDS,
            "socket_timeout": 10,
            "socket_connect_timeout": 2,
        },
        beat_enable_remote_control=False,
        beat_max_loop_interval=_RELAY_SECONDS,
        beat_schedule={
            # A task that is not taken in time is dropped: the next one does the same.
            RELAY: {"task": RELAY, "schedule": _RELAY_SECONDS, "options": {"expires": 10}},
            NOTICES: {"task": NOTICES, "schedule": _NOTICES_SECONDS, "options": {"expires": 10}},
            LABELS: {"task": LABELS, "schedule": _LABELS_SECONDS, "options": {"expires": 10}},
            USAGE: {"task": USAGE, "schedule": _USAGE_SECONDS, "options": {"expires": 60}},
            SIMULATE: {"task": SIMULATE, "schedule": _SIMULATE_SECONDS, "options": {"expires": 10}},
            SCHEDULES: {"task": SCHEDULES, "schedule": _SCHEDULES_SECONDS, "options": {"expires": 10}},
            # By the clock and not by the start of beat, which may be restarted more often than once an hour.
            RETENTION: {"task": RETENTION, "schedule": crontab(minute="17"), "options": {"expires": 1800}},
        },
    )
    return app


def run_worker(settings: Settings, concurrency: int) -> int:
    """Work until SIGTERM or SIGINT; return the exit code."""
    app = make_app(settings)
    bridge = AsyncBridge(settings, is_stopping)
    for name, task in make_tasks(bridge).items():
        app.task(task, name=name, throws=(ProblemError,))
    _keep_logs()
    # Celery reports its end on standard output, in its own format; logs go to standard error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    worker = app.Worker(
        pool="threads",
        concurrency=concurrency,
        consumer_cls=SteadyConsumer,
        hostname=f"worker@{os.uname().nodename}-{os.getpid()}",
        quiet=True,
        loglevel=logging.INFO,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    stopped_by: list[str] = []

    def note_stop(sig: str = "", **_: object) -> None:
        stopped_by.append(sig)

    worker_shutting_down.connect(note_stop, weak=False)
    try:
        worker.start()
    finally:
        bridge.close()
    # Celery takes Ctrl-C for a failure.
    return 0 if "SIGINT" in stopped_by else int(worker.exitcode or 0)


def run_beat(settings: Settings, until_stopped: Callable[[Callable[[], None]], None]) -> None:
    """Send tasks when they are due. ``until_stopped`` receives the function that stops it; several beats do no harm."""
    _keep_logs()
    service = Service(make_app(settings), scheduler_cls=Timetable)
    until_stopped(lambda: service.stop(wait=False))
    service.start()


class Timetable(Scheduler):  # type: ignore[misc] # celery has no types
    """The timetable in memory, without a file: it is fixed. Tasks that no worker takes do not pile up in Redis."""

    _is_full = False

    def tick(self, *args: Any, **options: Any) -> float:
        """Send what is due; return the seconds to the next look. Redis may be in any state."""
        try:
            return float(super().tick(*args, **options))
        except Exception as error:  # noqa: BLE001 - noted: without beat there are no side jobs
            self._begin_anew(error)
            self._heap = None  # it may lack the entry that was due
            return _TROUBLED_SECONDS

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a task that is due, unless too many wait already or Redis does not take it."""
        try:
            waiting = _waiting(producer)
            is_full = waiting >= _MOST_WAITING and entry.task != RETENTION
            if is_full != self._is_full:
                self._is_full = is_full
                log.warning("%d tasks wait for a worker%s", waiting, "; no more are sent" if is_full else " again")
            if not is_full:
                self.apply_async(entry, producer=producer, advance=False)
        except Exception as error:  # noqa: BLE001 - noted: the others are sent all the same
            self._begin_anew(error)

    def _begin_anew(self, error: Exception) -> None:
        """Note a trouble and leave the connection, on which answers may be left."""
        note_trouble("beat", error, self.app.conf.broker_url)
        with contextlib.suppress(Exception):
            self.close()

    def _ensure_connected(self) -> Any:
        """Connect once: beat tries again at its next tick, and ends in between when it is told to."""
        self.connection.connect()
        return self.connection


def _waiting(producer: Any) -> int:
    """Return the number of tasks that wait for a worker."""
    return int(producer.channel.queue_declare(QUEUE).message_count)


def _keep_logs() -> None:
    """Keep the logging set-up of this process, without a line for each successful task."""
    signals.setup_logging.connect(_nothing, weak=False, dispatch_uid="trainmaster-logs")
    for chatty in ("celery.beat", "celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for repeating in ("celery.bootsteps", "celery.worker.consumer.consumer", _TROUBLES):
        logging.getLogger(repeating).addFilter(QuietFilter())
    logging.captureWarnings(True)
    # One warning is about pickle, which is not accepted here; the other about tasks that run twice after a lost
    # connection, which is safe.
    for needless in (SecurityWarning, CPendingDeprecationWarning):
        warnings.filterwarnings("ignore", category=needless)


def _nothing(**_: Any) -> None:
    """Replace Celery's own logging set-up by nothing."""
