"""A receiver of spans on this machine: OTLP over HTTP, protobuf as OpenTelemetry defines it."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span; times in seconds since the epoch."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent: str
    begin: float
    end: float
    attributes: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[str, ...]
    is_failed: bool


@dataclass
class OtlpReceiver:
    """Serves from ``with`` to its end."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.paths.add(self.path)
                receiver.spans.extend(_spans_of(request))
                body = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called there
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]


def _spans_of(request: Any) -> list[ReceivedSpan]:
    found = []
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes).get("service.name", "")
        found += [_span(span, service) for scope in resource.scope_spans for span in scope.spans]
    return found


def _span(span: Any, service: str) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        service,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        _attributes(span.attributes),
        tuple(event.name for event in span.events),
        tuple(link.span_id.hex() for link in span.links),
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
