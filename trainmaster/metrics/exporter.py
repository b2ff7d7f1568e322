"""Metrics page of a process without an HTTP interface of its own, and the one page of a process that forks.

    start_exporter(9470, Process.SCHEDULER)      a single process: scheduler, beat, agent

    share_between_processes(folder)              first of all, before anything else of the system is imported
    start_shared_exporter(9470, Process.WORKER)  in the parent: the sum over all its children
    forget_process(pid)                          in the parent, when a child has ended

The client library decides at its import, by an environment variable, whether values live in the process or in files that
processes share. So nothing here imports it before it is needed.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from trainmaster.metrics.kinds import Process

_PATIENCE_SECONDS = 15.0
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True, slots=True)
class Exporter:
    """A page that is served by a thread."""

    server: Any
    thread: threading.Thread

    @property
    def port(self) -> int:
        return int(self.server.server_port)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def page(process: "Process") -> tuple[bytes, str]:
    """Return the metrics page of this process and its content type."""
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    return generate_latest(_registry(process)), CONTENT_TYPE_PLAIN_0_0_4


def start_exporter(
    port: int,
    process: "Process",
    address: str = "127.0.0.1",
    is_alive: Callable[[], bool] | None = None,
) -> Exporter:
    """Serve this process's metrics at ``/metrics``. Raises OSError when the port is taken.

    With ``is_alive``, ``/healthz`` and ``/readyz`` answer 503 while it returns False.
    """
    return _serve(port, address, _registry(process), is_alive)


def share_between_processes(folder: Path) -> None:
    """Store values in files under ``folder``, so that one page can show the sum of a process and its children.

    Removes files of an earlier process. Raises RuntimeError when it is called too late to have an effect.
    """
    if "prometheus_client" in sys.modules:
        raise RuntimeError("share_between_processes was called too late: metrics are imported already")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.db"):
        old.unlink()
    os.environ[SHARED_FOLDER] = str(folder)


def start_shared_exporter(port: int, process: "Process", address: str = "127.0.0.1") -> Exporter:
    """Serve the metrics of this process and of all that it forks. ``share_between_processes`` must have been called."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import Collector

    from trainmaster.metrics.definitions import BOOK

    families = {definition.family for definition in BOOK.of(process)}
    files: Any = MultiProcessCollector(None)  # type: ignore[no-untyped-call]

    class Shared(Collector):
        def collect(self) -> Iterable["Metric"]:
            return [metric for metric in files.collect() if metric.name.removesuffix("_total") in families]

    registry = CollectorRegistry()
    registry.register(Shared())
    ProcessCollector(registry=registry)
    _announce(process)
    return _serve(port, address, registry)


def forget_process(pid: int) -> None:
    """Drop the gauges of an ended child; its counters stay in the sum. Does nothing without shared files."""
    if SHARED_FOLDER not in os.environ:
        return
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _registry(process: "Process") -> "CollectorRegistry":
    from prometheus_client.process_collector import ProcessCollector

    from trainmaster.metrics.definitions import BOOK

    registry = BOOK.registry(process)
    ProcessCollector(registry=registry)
    _announce(process)
    return registry


def _announce(process: "Process") -> None:
    from trainmaster import __version__
    from trainmaster.metrics.definitions import build_info

    build_info.labels(process.value, __version__).set(1)


def _serve(
    port: int, address: str, registry: "CollectorRegistry", is_alive: Callable[[], bool] | None = None
) -> Exporter:
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

    class MetricsRequestHandler(WSGIRequestHandler):
        timeout = _PATIENCE_SECONDS
        """Seconds after which a silent peer loses its thread."""

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called there
            """Log nothing: probes come every few seconds."""

    metrics = make_wsgi_app(registry)

    def answer(environ: Any, start_response: Any) -> Any:
        if is_alive is None or environ.get("PATH_INFO") not in ("/healthz", "/readyz"):
            return metrics(environ, start_response)
        well = is_alive()
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if well else b"the event loop stands still\n"]

    server = make_server(address, port, answer, ThreadingWSGIServer, handler_class=MetricsRequestHandler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return Exporter(server, thread)
