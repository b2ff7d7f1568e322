"""Counts and times of Celery's tasks, from its signals."""

import time
from typing import Any

from celery import signals

from trainmaster.metrics.definitions import task_seconds, tasks
from trainmaster.metrics.exporter import forget_process

_OTHER = "other"
_began: dict[str, float] = {}


def watch_tasks() -> None:
    """Measure every task from here on; call it once per process, before the pool forks."""
    signals.task_prerun.connect(_note_start, weak=False, dispatch_uid="trainmaster-metrics-start")
    signals.task_postrun.connect(_note_end, weak=False, dispatch_uid="trainmaster-metrics-end")
    signals.worker_process_shutdown.connect(_note_gone, weak=False, dispatch_uid="trainmaster-metrics-gone")


def _note_start(task_id: str, **_: Any) -> None:
    _began[task_id] = time.perf_counter()


def _note_end(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    began = _began.pop(task_id, None)
    if began is not None:
        task_seconds.labels(task.name).observe(time.perf_counter() - began)
    outcome = state.lower() if state in ("SUCCESS", "FAILURE", "RETRY", "IGNORED", "REJECTED") else _OTHER
    tasks.labels(task.name, outcome).inc()


def _note_gone(pid: int, **_: Any) -> None:
    forget_process(pid)
