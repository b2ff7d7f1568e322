"""Traces: positions in them, what the environment asks for, the export of spans, and the spans of jobs and runs."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from opentelemetry.trace.status import StatusCode

from tests.waiting import eventually_sync
from trainmaster.client import wire
from trainmaster.client.core import ask, post
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import JobState, RunState
from trainmaster.tracing import recording
from trainmaster.tracing.context import (
    ReceivedContext,
    SpanRef,
    job_span,
    parse_traceparent,
    read_stored,
    run_span,
)
from trainmaster.tracing.export import SpanBatches, SpanExport
from trainmaster.tracing.recording import TracingError, TracingMissingError, is_wanted
from trainmaster.tracing.spans import FinishedSpan, SpanEvent
from trainmaster_agent.member_env import member_environment, seats
from trainmaster_agent.run_spans import RunSpans, note_created
from trainmaster_agent.runtime.port import RunStatus
from trainmaster_dispatcher.domain.job_spans import (
    DecisionTimes,
    PastEvent,
    TracedJob,
    TracedRun,
    job_ended,
    run_ended,
    sent_span,
    wait_spans,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = SpanRef(bytes.fromhex(TRACE), bytes.fromhex(SPAN))
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


class Exported:
    """Spans that a recorder has exported, and what it has dropped."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        self.drops: Counter[str] = Counter()
        self.recorder = SpanExport("api", self.memory, self._count, SimpleSpanProcessor(self.memory))

    def _count(self, reason: str, many: int) -> None:
        self.drops[reason] += many

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.memory.get_finished_spans()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Exported:
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    return Exported()


# Positions


def test_the_position_of_a_caller_is_read_and_written_as_w3c_has_it() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-01") == ReceivedContext(PARENT, is_sampled=True)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == ReceivedContext(PARENT, is_sampled=False)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-later-versions-add") == ReceivedContext(
        PARENT, is_sampled=True
    )
    assert PARENT.traceparent == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-zz",
        "cc-" + "a" * 5000,
    ],
)
def test_what_is_no_position_is_ignored(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8), st.integers(1, 2**45 - 1))
def test_positions_survive_the_store_and_computed_ids_are_valid(trace: bytes, span: bytes, key: int) -> None:
    ref = SpanRef(trace, span)
    assert read_stored(ref.stored) == ref
    job, first, second = job_span(ref, key), run_span(ref, key, 1), run_span(ref, key, 2)
    assert len({job, first, second}) == 3
    assert job == job_span(SpanRef(trace, b"another!"), key), "it follows from the trace and the job alone"
    assert all(len(one.span_id) == 8 and any(one.span_id) and one.trace_id == trace for one in (job, first, second))


def test_other_bytes_than_a_position_are_none() -> None:
    assert read_stored(b"") is None
    assert read_stored(b"x" * 25) is None


# What the environment asks for


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_TRACES_SAMPLER": "always_on"}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ],
)
def test_traces_are_off_unless_an_exporter_is_named(environ: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environ) is wanted


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc.*http/protobuf.*4318"),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "user:secret@collector:4318"},
            "^OTEL_EXPORTER_OTLP_ENDPOINT: must be an address",
        ),
    ],
)
def test_what_cannot_be_done_is_an_error_at_the_start(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TracingError, match=words) as error:
        recording.set_up("api", lambda *_: None, environ)
    assert "secret" not in str(error.value)
    assert recording.recorder is None


def test_missing_packages_are_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "find_spec", lambda module: None)
    with pytest.raises(TracingMissingError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT asks for traces"):
        recording.set_up("api", lambda *_: None, ENDPOINT)
    assert not recording.set_up("api", lambda *_: None, {}), "without traces they are not needed"


def test_a_process_without_traces_imports_nothing_for_them() -> None:
    # The client of Redis imports the SDK's metrics by itself where they are installed.
    program = """
import sys
import trainmaster_dispatcher.api.app, trainmaster_dispatcher.scheduler.loop, trainmaster_agent.sync
import trainmaster_agent.cli.run, trainmaster_dispatcher.cli.processes
from trainmaster.cli.process import start_tracing
from trainmaster.tracing import recording
start_tracing("api", "it")
assert recording.recorder is None
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry.sdk.trace", "opentelemetry.exporter"))
             or name in ("trainmaster.tracing.export", "requests", "google.protobuf")))
"""
    environ = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    made = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert (made.stdout, made.returncode) == ("[]\n", 0), made.stderr


# Export


def test_a_span_is_exported_with_its_ids_times_events_and_links(exported: Exported) -> None:
    ref, other = PARENT.computed("a"), PARENT.computed("b")
    event = SpanEvent("trainmaster.preempt", 11.5, {"n": 1})
    exported.recorder.record(
        FinishedSpan("trainmaster.run", ref, PARENT, 10.0, 12.25, {"x": "y"}, (event,), (other,), is_failed=True)
    )
    (span,) = exported.spans
    assert span.name == "trainmaster.run"
    assert (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}") == (TRACE, ref.span_id.hex())
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == SPAN
    assert (span.start_time, span.end_time) == (10_000_000_000, 12_250_000_000)
    assert span.attributes == {"x": "y"}
    assert [(one.name, one.timestamp, dict(one.attributes or {})) for one in span.events] == [
        ("trainmaster.preempt", 11_500_000_000, {"n": 1})
    ]
    assert [f"{link.context.span_id:016x}" for link in span.links] == [other.span_id.hex()]
    assert span.status.status_code is StatusCode.ERROR


def test_a_call_begins_a_trace_or_goes_on_with_that_of_its_caller(exported: Exported) -> None:
    first = exported.recorder.open("trainmaster.submit", None)
    second = exported.recorder.open("trainmaster.submit", ReceivedContext(PARENT, is_sampled=True))
    assert first is not None
    assert second is not None
    assert second.ref.trace_id == PARENT.trace_id
    assert first.ref.trace_id != PARENT.trace_id
    first.end({"trainmaster.jobs": 1})
    second.end({}, is_failed=True)
    assert [span.parent and f"{span.parent.span_id:016x}" for span in exported.spans] == [None, SPAN]
    assert [span.status.status_code for span in exported.spans] == [StatusCode.UNSET, StatusCode.ERROR]


def test_a_caller_whose_spans_are_not_recorded_has_none_here(exported: Exported) -> None:
    assert exported.recorder.open("trainmaster.submit", ReceivedContext(PARENT, is_sampled=False)) is None


@pytest.mark.parametrize(
    ("sampler", "argument"), [("always_off", ""), ("traceidratio", "0.0"), ("parentbased_traceidratio", "0")]
)
def test_a_sampler_that_takes_nothing_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    exported = Exported()
    assert exported.recorder.open("trainmaster.submit", None) is None
    assert exported.spans == ()


def test_a_process_is_named_by_the_environment_or_by_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def resource() -> dict[str, Any]:
        exported = Exported()
        exported.recorder.record(FinishedSpan("a", PARENT.computed("a"), PARENT, 1.0, 2.0))
        return dict(exported.spans[0].resource.attributes)

    assert resource()["service.name"] == "trainmaster-api"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,service.version=7")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    found = resource()
    assert (found["service.name"], found["service.version"], found["deployment.environment"]) == ("mine", "7", "prod")


class SlowExporter(SpanExporter):
    """Answers once ``go`` is set; ``outcome`` gives the result of each call."""

    def __init__(self, outcome: Callable[[], SpanExportResult]) -> None:
        self.go = threading.Event()
        self.batches: list[int] = []
        self._outcome = outcome

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go.wait(20)
        self.batches.append(len(spans))
        return self._outcome()

    def shutdown(self) -> None:
        self.go.set()


def batched(exporter: SpanExporter, drops: Counter[str], **options: Any) -> SpanExport:
    def count(reason: str, many: int) -> None:
        drops[reason] += many

    settings: dict[str, Any] = {"delay_seconds": 0.01, "most_queued": 10, "most_sent": 5, **options}
    return SpanExport("api", exporter, count, SpanBatches(exporter, count, **settings))


def record(recorder: SpanExport, many: int) -> None:
    for number in range(many):
        recorder.record(FinishedSpan("a", PARENT.computed(number), PARENT, 1.0, 2.0))


def test_what_does_not_fit_into_the_queue_is_counted_and_nobody_waits() -> None:
    drops: Counter[str] = Counter()
    exporter = SlowExporter(lambda: SpanExportResult.SUCCESS)
    recorder = batched(exporter, drops)
    began = time.monotonic()
    record(recorder, 100)
    assert time.monotonic() - began < 5, "the receiver answers after 20 s only"
    assert drops["full"] >= 85, "at most 10 are queued and 5 on their way"
    exporter.go.set()
    eventually_sync(lambda: sum(exporter.batches) + drops["full"] == 100)
    assert max(exporter.batches) <= 5
    recorder.close()
    assert drops["failed"] == 0


def _raise() -> SpanExportResult:
    raise OSError("no route to host")


@pytest.mark.parametrize("outcome", [lambda: SpanExportResult.FAILURE, _raise], ids=["refused", "raised"])
def test_what_cannot_be_sent_is_counted(
    outcome: Callable[[], SpanExportResult], caplog: pytest.LogCaptureFixture
) -> None:
    drops: Counter[str] = Counter()
    exporter = SlowExporter(outcome)
    exporter.go.set()
    recorder = batched(exporter, drops)
    for total in (3, 6):
        record(recorder, 3)
        eventually_sync(lambda total=total: drops["failed"] == total)  # type: ignore[misc]
    recorder.close()
    lines = [line for line in caplog.messages if "cannot be exported" in line]
    assert len(lines) == 1, "the log has the change, not each attempt"


def test_spans_are_sent_before_a_process_ends() -> None:
    drops: Counter[str] = Counter()
    memory = InMemorySpanExporter()
    recorder = batched(memory, drops, delay_seconds=60.0)
    record(recorder, 3)
    recorder.close()
    assert len(memory.get_finished_spans()) == 3
    assert not drops


def test_a_dead_receiver_holds_up_the_end_of_a_process_for_two_seconds_at_most() -> None:
    drops: Counter[str] = Counter()
    exporter = SlowExporter(lambda: SpanExportResult.FAILURE)
    recorder = batched(exporter, drops, most_sent=1)
    record(recorder, 4)
    began = time.monotonic()
    recorder.close()
    assert time.monotonic() - began < 4
    assert drops["failed"] >= 3, "those that were still queued are counted, too"


def test_a_span_that_cannot_be_made_is_counted_and_raises_nothing(exported: Exported) -> None:
    bad: Any = FinishedSpan("a", PARENT.computed("a"), PARENT, "no time", 2.0)  # type: ignore[arg-type]
    exported.recorder.record(bad)
    assert exported.drops == {"failed": 1}


# Spans of jobs


JOB = TracedJob(7, "bert", "research/nlp", PARENT, 100.0, 110.0)
RUN = TracedRun(7, 2, "west", 120.0)
EVENTS = (
    PastEvent(7, None, "released", ("queued",), 101.0),
    PastEvent(7, 1, "preempt", (), 111.0),
    PastEvent(7, 2, "dispatched", ("dispatched",), 120.0),
    PastEvent(7, 2, "run.running", ("accepted", "pending", "running"), 121.0),
)


def test_the_wait_of_a_job_ends_with_the_decision_on_it() -> None:
    times = DecisionTimes(118.0, 119.0, 120.0)
    wait, decision = wait_spans(JOB, 2, "west", times, "NoRoom", 0.75, 1)
    assert (wait.name, wait.begin, wait.end) == ("trainmaster.job.wait", 110.0, 119.0)
    assert (decision.name, decision.begin, decision.end) == ("trainmaster.schedule", 118.0, 120.0)
    assert wait.parent == decision.parent == job_span(PARENT, 7)
    assert wait.attributes == {
        "trainmaster.job.id": JOB.id,
        "trainmaster.queue": "research/nlp",
        "trainmaster.run.attempt": 2,
        "trainmaster.wait.reason": "NoRoom",
    }
    assert decision.attributes["trainmaster.schedule.score"] == 0.75
    assert decision.attributes["trainmaster.schedule.evicted_runs"] == 1
    assert decision.attributes["trainmaster.cluster"] == "west"


def test_a_run_has_its_own_events_and_is_linked_to_the_attempt_before() -> None:
    span = run_ended(JOB, RUN, RunState.FAILED, 130.0, EVENTS)
    assert (span.ref, span.parent) == (run_span(PARENT, 7, 2), job_span(PARENT, 7))
    assert (span.begin, span.end, span.is_failed) == (120.0, 130.0, True)
    assert [(one.name, one.at) for one in span.events] == [
        ("trainmaster.dispatched", 120.0),
        ("trainmaster.run.running", 121.0),
    ]
    assert span.events[1].attributes["trainmaster.states"] == "accepted,pending,running"
    assert span.links == (run_span(PARENT, 7, 1),)
    assert run_ended(JOB, RUN._replace(attempt=1), RunState.PREEMPTED, 112.0, EVENTS).links == ()
    assert not run_ended(JOB, RUN, RunState.PREEMPTED, 130.0, EVENTS).is_failed, "what was preempted has not failed"


def test_a_job_is_a_child_of_its_submission_with_all_its_events() -> None:
    span = job_ended(JOB, JobState.SUCCEEDED, 2, 131.0, EVENTS)
    assert (span.ref, span.parent, span.begin, span.end) == (job_span(PARENT, 7), PARENT, 100.0, 131.0)
    assert [one.name for one in span.events][1] == "trainmaster.preempt"
    assert (span.attributes["trainmaster.job.state"], span.attributes["trainmaster.job.attempts"]) == ("succeeded", 2)
    assert not span.is_failed
    assert job_ended(JOB, JobState.FAILED, 2, 131.0, EVENTS).is_failed


def test_a_job_that_ends_again_has_a_second_span_which_is_linked_to_the_first() -> None:
    again = job_ended(JOB, JobState.SUCCEEDED, 3, 140.0, (*EVENTS, PastEvent(7, 2, "retry", ("queued",), 133.0)))
    assert again.ref != job_span(PARENT, 7)
    assert again.links == (job_span(PARENT, 7),)


def test_a_long_history_is_cut() -> None:
    many = [PastEvent(7, 2, "resize", (), 120.0 + number) for number in range(1000)]
    assert len(job_ended(JOB, JobState.SUCCEEDED, 2, 2000.0, many).events) == 100


def test_the_way_to_the_agent_is_a_part_of_the_run() -> None:
    span = sent_span(JOB, RUN, 120.5)
    assert (span.name, span.parent, span.begin, span.end) == (
        "trainmaster.run.send",
        run_span(PARENT, 7, 2),
        120.0,
        120.5,
    )


# Runs on a cluster


def start_run(traceparent: str = "") -> StartRun:
    return StartRun(
        run="bert-7k2p9xq-r2",
        job="bert-7k2p9xq",
        queue="research/nlp",
        attempt=2,
        token=2,
        generation=1,
        spec={"roles": [{"name": "worker", "replicas": 2, "template": {"env": {"SECRET": "hush"}}}]},
        sizes={"worker": 2},
        placement_timeout_seconds=300,
        traceparent=traceparent,
    )


class Watched:
    """The spans of a session, with a clock of the test's own."""

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        self.now = 100.0
        self.spans = RunSpans(exported.recorder, "west", lambda: self.now)

    def look(self, state: RunState, at: float) -> None:
        self.now = at
        self.spans.look({"bert-7k2p9xq-r2": RunStatus("bert-7k2p9xq-r2", 1, 1, state)})

    @property
    def made(self) -> list[tuple[str, float, float]]:
        return [(span.name, (span.start_time or 0) / 1e9, (span.end_time or 0) / 1e9) for span in self.exported.spans]


@pytest.fixture
def watched(exported: Exported) -> Iterator[Watched]:
    watched = Watched(exported)
    yield watched
    watched.spans.close()


def test_an_agent_records_the_creation_of_members_and_their_start(watched: Watched) -> None:
    of_run = run_span(PARENT, 7, 2)
    for _ in range(2):
        watched.spans.ordered(start_run(of_run.traceparent))  # an order may come again
    watched.look(RunState.ACCEPTED, 101.0)
    watched.now = 102.0
    for _ in range(2):
        note_created("bert-7k2p9xq-r2", "trainmaster-jobs-research")
    watched.look(RunState.PENDING, 103.0)
    watched.look(RunState.RUNNING, 105.0)
    watched.look(RunState.SUCCEEDED, 109.0)
    assert watched.made == [("trainmaster.agent.create", 100.0, 102.0), ("trainmaster.member.start", 102.0, 105.0)]
    create, start = watched.exported.spans
    assert create.attributes is not None
    assert create.attributes["k8s.namespace.name"] == "trainmaster-jobs-research"
    assert (create.attributes["trainmaster.members"], create.attributes["trainmaster.cluster"]) == (2, "west")
    for span in (create, start):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == of_run.span_id.hex()
        assert "hush" not in str(span.to_json()), "nothing that a user has written"


def test_a_run_that_ends_before_it_runs_has_failed_spans(watched: Watched) -> None:
    watched.spans.ordered(start_run(PARENT.traceparent))
    watched.look(RunState.RETURNED, 104.0)
    assert watched.made == [("trainmaster.agent.create", 100.0, 104.0), ("trainmaster.member.start", 104.0, 104.0)]
    assert {span.status.status_code for span in watched.exported.spans} == {StatusCode.ERROR}


@pytest.mark.parametrize("traceparent", ["", "garbage", f"00-{TRACE}-{SPAN}-00"])
def test_a_run_of_no_sampled_trace_has_no_spans(watched: Watched, traceparent: str) -> None:
    watched.spans.ordered(start_run(traceparent))
    watched.look(RunState.RUNNING, 101.0)
    assert watched.made == []


def test_a_run_that_is_held_no_more_is_forgotten(watched: Watched) -> None:
    watched.spans.ordered(start_run(PARENT.traceparent))
    watched.look(RunState.ACCEPTED, 101.0)
    watched.spans.look({})
    watched.look(RunState.RUNNING, 102.0)
    assert watched.made == []


def test_members_get_the_position_of_their_run_and_nothing_without_one() -> None:
    def environment(run: StartRun) -> Mapping[str, str]:
        everyone = seats(run)
        return member_environment(run, everyone[0], everyone, dict.fromkeys(everyone, ("host", 1)), processes={})

    assert environment(start_run(PARENT.traceparent))["TRACEPARENT"] == PARENT.traceparent
    assert "TRACEPARENT" not in environment(start_run())


def test_an_earlier_agent_ignores_the_field_and_an_earlier_dispatcher_sends_none() -> None:
    wire_form = start_run().model_dump(mode="json", by_alias=True)
    del wire_form["traceparent"]
    assert StartRun.model_validate(wire_form).traceparent == ""
    assert StartRun.model_validate({**wire_form, "fieldOfALaterRelease": 1}) == start_run()


# Callers


def sent_header(request: Any) -> str | None:
    with httpx.Client(base_url="http://127.0.0.1") as client:
        value: str | None = wire.build(client, request, 5.0).headers.get("traceparent")
        return value


def test_the_client_hands_on_the_trace_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT.traceparent)
    assert sent_header(post("/v1/jobs", {})) == PARENT.traceparent
    assert sent_header(ask("/v1/jobs/search", {})) is None, "only calls that create or change something"
    monkeypatch.setenv("TRACEPARENT", "not one")
    assert sent_header(post("/v1/jobs", {})) is None


def test_the_client_hands_on_the_span_that_its_program_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{'1' * 32}-{'2' * 16}-01")
    context = SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=TraceFlags(1))
    with use_span(NonRecordingSpan(context)):
        assert sent_header(post("/v1/jobs", {})) == PARENT.traceparent
    assert sent_header(post("/v1/jobs", {})) == f"00-{'1' * 32}-{'2' * 16}-01"
