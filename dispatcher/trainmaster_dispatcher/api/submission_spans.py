"""The span of a submission: within the trace of its caller, or the first one of a trace."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from trainmaster import process_logs
from trainmaster.protocol.errors import ProblemError
from trainmaster.tracing import recording
from trainmaster.tracing.context import parse_traceparent
from trainmaster.tracing.recording import OpenSpan, Recorder, fields_of
from trainmaster.tracing.spans import AttributeValue, FinishedSpan
from trainmaster_dispatcher.services.submission_parsing import PreparedSubmission

_LEAST_SERVER_ERROR = 500


class SubmissionSpan:
    """The span of one submission, and of its two parts. Without a span it does nothing: the submission is of no sampled trace."""

    def __init__(self, recorder: Recorder | None = None, span: OpenSpan | None = None) -> None:
        self._recorder = recorder
        self._span = span
        self._began = time.time()
        self._parsed_at = 0.0
        self._attributes: dict[str, AttributeValue] = {"http.request.method": "POST", "http.route": "/v1/jobs"}

    @property
    def trace(self) -> bytes | None:
        """The position as the store has it."""
        return None if self._span is None else self._span.ref.stored

    def parsed(self, prepared: PreparedSubmission, *, is_dry: bool) -> None:
        """Note that the body was read and checked, and what it has."""
        if self._span is None:
            return
        self._parsed_at = time.time()
        self._attributes["trainmaster.jobs"] = len(prepared)
        queues = {spec.queue for spec in prepared.specs}
        if len(queues) == 1:
            self._attributes["trainmaster.queue"] = next(iter(queues))
        if is_dry:
            self._attributes["trainmaster.dry_run"] = True
        self._part("trainmaster.submit.parse", self._began, self._parsed_at)

    def end(self, error: BaseException | None = None) -> None:
        """End the span, after what has been done since the body was read. ``error``: why nothing was stored."""
        if self._span is None:
            return
        is_refusal = isinstance(error, ProblemError) and error.code.status < _LEAST_SERVER_ERROR
        is_failed = error is not None and not is_refusal
        if isinstance(error, ProblemError):
            self._attributes["trainmaster.problem"] = error.code.value
        if self._parsed_at:
            self._part("trainmaster.submit.store", self._parsed_at, time.time(), is_failed=is_failed)
        self._span.end(self._attributes, is_failed=is_failed)

    def _part(self, name: str, begin: float, end: float, *, is_failed: bool = False) -> None:
        if self._recorder is not None and self._span is not None:
            ref = self._span.ref.computed(name, self._span.ref.span_id.hex())
            self._recorder.record(FinishedSpan(name, ref, self._span.ref, begin, end, is_failed=is_failed))


_UNTRACED = SubmissionSpan()


@contextmanager
def submission_span(request: Request) -> Iterator[SubmissionSpan]:
    """Record the submission that is made inside, if this process makes spans and the trace is sampled."""
    recorder = recording.recorder
    span = (
        None
        if recorder is None
        else recorder.open("trainmaster.submit", parse_traceparent(request.headers.get("traceparent", "")))
    )
    if span is None:
        yield _UNTRACED
        return
    process_logs.note(**fields_of(span.ref))
    submission = SubmissionSpan(recorder, span)
    try:
        yield submission
    except BaseException as error:
        submission.end(error)
        raise
    submission.end()
