"""Logs of the processes: JSON lines, or plain text for people.

Fields of a request (its id, the caller's cluster, a job) are set once in its context; a filter adds them to every record
that any module writes while the request is served.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

import orjson

_PLAIN = set(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}

_about: ContextVar[dict[str, str] | None] = ContextVar("log_about", default=None)


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Add these fields, such as ``request_id`` or ``run_id``, to all records written inside, also by tasks started there."""
    mark = _about.set({**(_about.get() or {}), **fields})
    try:
        yield
    finally:
        _about.reset(mark)


def note(**fields: str) -> None:
    """Add fields to the innermost ``about``, once they are known; does nothing outside of one."""
    known = _about.get()
    if known is not None:
        known.update(fields)


class AboutFilter(logging.Filter):
    """Adds the fields of ``about`` and ``note``; a record's own fields win."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (_about.get() or {}).items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and the fields given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up(*, json: bool = True, level: str = "INFO") -> None:
    """Send all records to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(AboutFilter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for quiet in ("uvicorn.access", "httpx", "httpcore", "alembic.runtime"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
