"""Positions in traces: W3C's ``traceparent``, the form in which the store has one, and computed ids of spans. Pure.

The spans of a job are made by several processes, mostly after what they stand for has ended. The ids of those that others name as
their parent are computed from the trace and the job, so that neither the store nor a message has to carry them.

The format: https://www.w3.org/TR/trace-context/
"""

import hashlib
import re
from typing import NamedTuple

TRACE_BYTES, SPAN_BYTES = 16, 8
STORED_BYTES = TRACE_BYTES + SPAN_BYTES
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
_LONGEST = 512


class SpanRef(NamedTuple):
    """A span of a trace, by the bytes of both ids."""

    trace_id: bytes
    span_id: bytes

    @property
    def traceparent(self) -> str:
        """The text that hands the trace on, as sampled: others are neither stored nor handed on."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-01"

    @property
    def stored(self) -> bytes:
        """The ids as the store has them."""
        return self.trace_id + self.span_id

    def computed(self, *parts: str | int) -> "SpanRef":
        """Return the span of the same trace whose id follows from ``parts``."""
        key = ":".join(map(str, parts)).encode()
        span_id = hashlib.blake2b(key, digest_size=SPAN_BYTES, key=self.trace_id).digest()
        return SpanRef(self.trace_id, span_id if any(span_id) else b"\1" * SPAN_BYTES)


class ReceivedContext(NamedTuple):
    """The position that a caller has sent, and whether the caller's own spans are recorded."""

    ref: SpanRef
    is_sampled: bool


def read_stored(data: bytes) -> SpanRef | None:
    """Return the span that the store has; None for bytes that are none."""
    raw = bytes(data)
    if len(raw) != STORED_BYTES:
        return None
    return SpanRef(raw[:TRACE_BYTES], raw[TRACE_BYTES:])


def parse_traceparent(text: str) -> ReceivedContext | None:
    """Return what a ``traceparent`` says; None for a text that is none, which W3C has ignored."""
    found = _FORM.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    ref = SpanRef(bytes.fromhex(found["trace"]), bytes.fromhex(found["span"]))
    if not any(ref.trace_id) or not any(ref.span_id):
        return None
    return ReceivedContext(ref, bool(int(found["flags"], 16) & _SAMPLED))


def job_span(trace: SpanRef, job_key: int) -> SpanRef:
    """Return the span of a whole job; ``trace`` is any span of its trace."""
    return trace.computed("job", job_key)


def run_span(trace: SpanRef, job_key: int, attempt: int) -> SpanRef:
    """Return the span of one run of a job, the parent of what its agent and its members do."""
    return trace.computed("run", job_key, attempt)
