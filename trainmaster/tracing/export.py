"""The export of spans by OpenTelemetry's SDK. Imported only where the environment asks for traces.

The SDK reads its own variables: endpoint, headers, time-out, sampler, resource. Spans are batched by a thread of this module, as the
SDK's counts nothing that it drops.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from trainmaster import __version__
from trainmaster.tracing.context import SPAN_BYTES, TRACE_BYTES, ReceivedContext, SpanRef
from trainmaster.tracing.recording import Dropped
from trainmaster.tracing.spans import Attributes, FinishedSpan

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0
_DELAY_MILLISECONDS, _MOST_QUEUED, _MOST_SENT = 5_000, 2_048, 512
"""Defaults of the SDK's own batches, by the same variables."""


def exporter_of_environment() -> SpanExporter:
    """Return the exporter for the endpoint, headers and certificates of the environment."""
    # Each failed attempt would be a line; the change from one state to the other is logged here.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    return OTLPSpanExporter()


class _GivenIds(RandomIdGenerator):
    """Ids of new spans: the one that is given, or random ones."""

    span_id: bytes | None = None

    def generate_span_id(self) -> int:
        if self.span_id is None:
            return super().generate_span_id()
        return int.from_bytes(self.span_id, "big")


class SpanBatches(SpanProcessor):
    """Sends ended spans in batches from a thread of its own.

    What does not fit into its queue, or cannot be sent, is counted and dropped.
    """

    def __init__(
        self, exporter: SpanExporter, on_dropped: Dropped, *, delay_seconds: float, most_queued: int, most_sent: int
    ) -> None:
        self._exporter = exporter
        self._on_dropped = on_dropped
        self._delay, self._most_queued, self._most_sent = delay_seconds, most_queued, min(most_sent, most_queued)
        self._queue: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: spans are sent when they have ended."""

    def on_end(self, span: ReadableSpan) -> None:
        with self._changed:
            takes = len(self._queue) < self._most_queued and not self._is_closing
            if takes:
                self._queue.append(span)
            if len(self._queue) in (1, self._most_sent):
                self._changed.notify()
        if not takes:
            self._on_dropped("full", 1)

    def shutdown(self) -> None:
        """Send what is queued, for at most ``_CLOSE_SECONDS``; count the rest as dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)
        self._exporter.shutdown()
        with self._changed:
            left = len(self._queue)
            self._queue.clear()
        if left:
            self._on_dropped("failed", left)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return whether all spans were taken from the queue within the time."""
        ends = time.monotonic() + timeout_millis / 1000
        with self._changed:
            while self._queue and time.monotonic() < ends:
                self._changed.wait(0.01)
            return not self._queue

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._send(batch)

    def _next(self) -> list[ReadableSpan] | None:
        """Return the next batch, as soon as it is full or the delay is over; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            self._changed.wait_for(lambda: len(self._queue) >= self._most_sent or self._is_closing, self._delay)
            many = min(len(self._queue), self._most_sent)
            if not many and self._is_closing:
                return None
            return [self._queue.popleft() for _ in range(many)]

    def _send(self, batch: Sequence[ReadableSpan]) -> None:
        try:
            is_sent, why = self._exporter.export(batch) is SpanExportResult.SUCCESS, "the receiver did not take them"
        except Exception as error:  # noqa: BLE001 - counted: traces must not end anything
            is_sent, why = False, f"{type(error).__name__}: {error}"
        if not is_sent:
            self._on_dropped("failed", len(batch))
        if is_sent == self._has_failed:
            self._has_failed = not is_sent
            if is_sent:
                log.info("spans are exported again")
            else:
                log.warning("spans cannot be exported, and are dropped and counted: %s", why)


class _OpenSdkSpan:
    """A span of the SDK that has begun."""

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.ref = SpanRef(context.trace_id.to_bytes(TRACE_BYTES, "big"), context.span_id.to_bytes(SPAN_BYTES, "big"))

    def end(self, attributes: Attributes, *, is_failed: bool = False) -> None:
        self._span.set_attributes(dict(attributes))
        if is_failed:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class SpanExport:
    """Records spans by the SDK, in batches to ``exporter``. ``batches``: what takes them in its place, for tests."""

    def __init__(
        self, process: str, exporter: SpanExporter, on_dropped: Dropped, batches: SpanProcessor | None = None
    ) -> None:
        self._ids = _GivenIds()
        self._lock = threading.Lock()
        self.dropped = on_dropped
        self._provider = TracerProvider(resource=_resource(process), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(batches or _batches(exporter, on_dropped))
        self._tracer = self._provider.get_tracer("trainmaster", __version__)

    def open(self, name: str, received: ReceivedContext | None) -> _OpenSdkSpan | None:
        """Begin the span of a call; None where it is not sampled."""
        try:
            parent = Context() if received is None else _context(received.ref, is_sampled=received.is_sampled)
            with self._lock:
                span = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER)
        except Exception:
            log.exception("a span could not be begun")
            return None
        return _OpenSdkSpan(span) if isinstance(span, Span) and span.is_recording() else None

    def record(self, span: FinishedSpan) -> None:
        try:
            self._record(span)
        except Exception:
            log.exception("span %s could not be recorded", span.name)
            self.dropped("failed", 1)

    def _record(self, span: FinishedSpan) -> None:
        links = [Link(_sdk_context(ref, is_sampled=True)) for ref in span.links]
        begin, end = _nanoseconds(span.begin), _nanoseconds(max(span.begin, span.end))
        with self._lock:
            self._ids.span_id = span.ref.span_id
            try:
                made = self._tracer.start_span(
                    span.name,
                    context=_context(span.parent, is_sampled=True),
                    attributes=dict(span.attributes),
                    links=links,
                    start_time=begin,
                )
            finally:
                self._ids.span_id = None
        for event in span.events:
            made.add_event(event.name, dict(event.attributes), _nanoseconds(event.at))
        if span.is_failed:
            made.set_status(Status(StatusCode.ERROR))
        made.end(end)

    def close(self) -> None:
        self._provider.shutdown()


def _batches(exporter: SpanExporter, on_dropped: Dropped) -> SpanBatches:
    return SpanBatches(
        exporter,
        on_dropped,
        delay_seconds=_whole("OTEL_BSP_SCHEDULE_DELAY", _DELAY_MILLISECONDS) / 1000,
        most_queued=_whole("OTEL_BSP_MAX_QUEUE_SIZE", _MOST_QUEUED),
        most_sent=_whole("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _MOST_SENT),
    )


def _whole(name: str, default: int) -> int:
    """Return a variable's positive number; the default for any other text, as OpenTelemetry's specification has it."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else default


def _resource(process: str) -> Resource:
    """Return what the environment says of this process, and else its name and version."""
    given = OTELResourceDetector().detect().attributes
    own = {SERVICE_NAME: f"trainmaster-{process}", SERVICE_VERSION: __version__}
    return Resource.create({name: value for name, value in own.items() if name not in given})


def _context(ref: SpanRef, *, is_sampled: bool) -> Context:
    return set_span_in_context(NonRecordingSpan(_sdk_context(ref, is_sampled=is_sampled)), Context())


def _sdk_context(ref: SpanRef, *, is_sampled: bool) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    return SpanContext(
        int.from_bytes(ref.trace_id, "big"), int.from_bytes(ref.span_id, "big"), is_remote=True, trace_flags=flags
    )


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1_000
