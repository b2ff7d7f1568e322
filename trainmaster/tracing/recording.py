"""The one place that takes a process's spans.

Imports nothing of OpenTelemetry. ``recorder`` is None unless the environment asks for traces, and whoever makes spans looks at that
before anything else.
"""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Protocol

from trainmaster.tracing.context import ReceivedContext, SpanRef, parse_traceparent
from trainmaster.tracing.spans import Attributes, FinishedSpan

Dropped = Callable[[str, int], None]
"""Counts spans that were dropped: the reason, ``full`` or ``failed``, and how many."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER = "OTEL_TRACES_EXPORTER"
_PROTOCOL = "http/protobuf"
_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class OpenSpan(Protocol):
    """A span that has begun, of a sampled trace."""

    @property
    def ref(self) -> SpanRef: ...

    def end(self, attributes: Attributes, *, is_failed: bool = False) -> None: ...


class Recorder(Protocol):
    """Takes spans. Its methods never raise an error and never wait."""

    def open(self, name: str, received: ReceivedContext | None) -> OpenSpan | None:
        """Begin the span of a call that others make, within the caller's trace or a new one; None: it is not sampled."""
        ...

    def record(self, span: FinishedSpan) -> None: ...

    def dropped(self, reason: str, many: int) -> None:
        """Count spans that could not be made: ``full`` or ``failed``."""
        ...

    def close(self) -> None:
        """Export what is left, for a short time."""
        ...


class TracingError(Exception):
    """The environment asks for traces in a way that is not possible."""


class TracingMissingError(TracingError):
    """The environment asks for traces, and the packages for them are not installed."""


recorder: Recorder | None = None
"""Takes this process's spans; None: it makes none."""


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment asks for traces: an exporter is named, or where to export to. Raises TracingError."""
    exporter = environ.get(_EXPORTER, "").strip().lower()
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if exporter not in ("", "otlp"):
        raise TracingError(
            f"{_EXPORTER}={exporter[:100]}: spans are exported by otlp alone; leave it out, or set none for no traces"
        )
    return exporter == "otlp" or any(environ.get(name, "").strip() for name in ENDPOINTS)


def check(environ: Mapping[str, str]) -> None:
    """Raise TracingError where the environment asks for traces in a way that is not possible.

    TracingMissingError is the one for packages that are not installed.
    """
    name = next((one for one in _PROTOCOLS if environ.get(one, "").strip()), "")
    protocol = environ.get(name, "").strip().lower()
    if name and protocol != _PROTOCOL:
        raise TracingError(
            f"{name}={protocol[:100]}: spans are exported by {_PROTOCOL} alone; set it to that, and the endpoint to the receiver's"
            " port for OTLP over HTTP, which is 4318 as a rule"
        )
    for name in ENDPOINTS:
        endpoint = environ.get(name, "").strip()
        if endpoint and not endpoint.lower().startswith(("http://", "https://")):
            # What is there may have a password.
            raise TracingError(f"{name}: must be an address of http:// or https://, such as http://collector:4318")
    if not all(map(_is_installed, _MODULES)):
        named = next((one for one in (*ENDPOINTS, _EXPORTER) if environ.get(one, "").strip()), _EXPORTER)
        raise TracingMissingError(
            f"{named} asks for traces, and OpenTelemetry's SDK and OTLP exporter are not installed"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def set_up(process: str, on_dropped: Dropped, environ: Mapping[str, str] | None = None) -> bool:
    """Record spans of this process from now on, if the environment asks for it; return whether it does.

    ``process`` names the service, where the environment does not. Raises TracingError.
    """
    global recorder
    given = os.environ if environ is None else environ
    if not is_wanted(given):
        return False
    check(given)
    from trainmaster.tracing.export import SpanExport, exporter_of_environment

    recorder = SpanExport(process, exporter_of_environment(), on_dropped)
    return True


def shut_down() -> None:
    """Export what is left, and record no more."""
    global recorder
    before, recorder = recorder, None
    if before is not None:
        before.close()


def log_fields(traceparent: str) -> dict[str, str]:
    """Return the fields by which logs of a call are found from its trace; none for a call without one."""
    received = parse_traceparent(traceparent)
    return {} if received is None else fields_of(received.ref)


def fields_of(ref: SpanRef) -> dict[str, str]:
    """Return the fields of logs for a span."""
    return {"trace_id": ref.trace_id.hex(), "span_id": ref.span_id.hex()}
