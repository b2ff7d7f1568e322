"""Traces of jobs: from a submission over HTTP to the members, with real processes and a real receiver; and what has none."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.conftest import Service, job
from tests.fake_kube.resources import ResourceId
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from tests.integration.processes import PROGRAM, Processes, api_alone, start_agent, start_scheduler
from tests.integration.rows import value
from tests.integration.running_agents import running_agent
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.waiting import eventually, eventually_sync
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.states import Exit, FailureCategory, RunState
from trainmaster.tracing import recording
from trainmaster.tracing.context import SpanRef, job_span, run_span
from trainmaster.tracing.export import SpanExport
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.store.jobs import MOST_TRACED_JOBS

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
WHOLE = {
    "trainmaster.submit": "trainmaster-api",
    "trainmaster.submit.parse": "trainmaster-api",
    "trainmaster.submit.store": "trainmaster-api",
    "trainmaster.job": "trainmaster-api",
    "trainmaster.job.wait": "trainmaster-scheduler",
    "trainmaster.schedule": "trainmaster-scheduler",
    "trainmaster.run": "trainmaster-api",
    "trainmaster.run.send": "trainmaster-api",
    "trainmaster.agent.create": "trainmaster-agent",
    "trainmaster.member.start": "trainmaster-agent",
}
"""The spans of a job that runs once, and who makes them."""
PARENTS = {
    "trainmaster.submit.parse": "trainmaster.submit",
    "trainmaster.submit.store": "trainmaster.submit",
    "trainmaster.job": "trainmaster.submit",
    "trainmaster.job.wait": "trainmaster.job",
    "trainmaster.schedule": "trainmaster.job",
    "trainmaster.run": "trainmaster.job",
    "trainmaster.run.send": "trainmaster.run",
    "trainmaster.agent.create": "trainmaster.run",
    "trainmaster.member.start": "trainmaster.run",
}


# Processes


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def variables(endpoint: str, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100", **more}


def start_all(processes: Processes) -> None:
    start_agent(processes)
    start_scheduler(processes)


def submit(processes: Processes, *words: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
    template = {"command": list(words), "resources": {"cpu": "1", "memory": "64Mi"}, "env": {"TOKEN": "hush-hush"}}
    spec = job(roles=[{"name": "main", "template": template}], **fields)
    with processes.http() as http:
        answer = http.post("/v1/jobs", json=spec, headers=headers or {})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def await_end(processes: Processes, job_id: str) -> str:
    state = ""

    def is_over() -> bool:
        nonlocal state
        with processes.http() as http:
            state = http.get(f"/v1/jobs/{job_id}").json()["state"]
        return state in ("succeeded", "failed", "cancelled")

    eventually_sync(is_over, 20, every=0.1)
    return state


def one_of_each(receiver: OtlpReceiver) -> dict[str, ReceivedSpan]:
    """Return the spans of the only job, once all are there."""
    eventually_sync(lambda: {span.name for span in receiver.spans} >= WHOLE.keys(), 10)
    assert Counter(span.name for span in receiver.spans) == Counter(WHOLE.keys())
    return {span.name: span for span in receiver.spans}


def test_one_trace_leads_from_the_submission_to_the_member(
    database_url: str, redis_url: str, tmp_path: Path, receiver: OtlpReceiver
) -> None:
    with api_alone(database_url, redis_url, tmp_path, **variables(receiver.url)) as processes:
        start_all(processes)
        began = time.time()
        program = "import os, time; open(os.environ['TO'], 'w').write(os.environ['TRACEPARENT']); time.sleep(0.3)"
        out = tmp_path / "traceparent"
        job_id = submit(processes, "env", f"TO={out}", sys.executable, "-c", program, headers=SAMPLED)
        assert await_end(processes, job_id) == "succeeded"
        spans = one_of_each(receiver)
        logged = [line for line in processes.log("api") if line.get("trace_id") == TRACE]
    assert {name: span.service for name, span in spans.items()} == WHOLE
    assert receiver.paths == {"/v1/traces"}
    assert {span.trace_id for span in spans.values()} == {TRACE}
    assert spans["trainmaster.submit"].parent == SPAN
    assert {name: spans[parent].span_id for name, parent in PARENTS.items()} == {
        name: spans[name].parent for name in PARENTS
    }
    assert out.read_text() == f"00-{TRACE}-{spans['trainmaster.run'].span_id}-01", "the program goes on with the trace"
    _check_times(spans, began)
    assert not any(span.is_failed for span in spans.values())
    assert {span.attributes.get("trainmaster.job.id", job_id) for span in spans.values()} == {job_id}
    assert spans["trainmaster.schedule"].attributes["trainmaster.cluster"] == "private"
    assert spans["trainmaster.member.start"].attributes["trainmaster.members"] == 1
    assert "hush-hush" not in repr(spans)
    assert "time.sleep" not in repr(spans), "no span has what a user has written"
    (access,) = [line for line in logged if line["logger"] == "trainmaster.access"]
    assert access["span_id"] == spans["trainmaster.submit"].span_id


def _check_times(spans: dict[str, ReceivedSpan], began: float) -> None:
    """Check the order of times; all clocks are this machine's, and a tenth of a second is allowed for roundings."""
    ends = time.time()
    for span in spans.values():
        assert began - 0.1 <= span.begin <= span.end <= ends + 0.1, span
    order = ["trainmaster.submit.parse", "trainmaster.job.wait", "trainmaster.run.send", "trainmaster.agent.create"]
    ended = [spans[name].end for name in (*order, "trainmaster.member.start", "trainmaster.run")]
    assert ended == sorted(ended)
    for name, parent in PARENTS.items():
        if parent != "trainmaster.submit" or name != "trainmaster.job":
            assert spans[parent].begin - 0.1 <= spans[name].begin <= spans[name].end <= spans[parent].end + 0.1, name
    assert spans["trainmaster.run"].end - spans["trainmaster.member.start"].end >= 0.2, "the member's own time"


def test_a_dead_receiver_holds_up_no_job_and_is_counted(database_url: str, redis_url: str, tmp_path: Path) -> None:
    dead = variables(f"http://127.0.0.1:{free_port()}", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    with api_alone(database_url, redis_url, tmp_path, **dead) as processes:
        start_all(processes)
        for _ in range(3):
            assert await_end(processes, submit(processes, "true", headers=SAMPLED)) == "succeeded"

        def is_counted() -> bool:
            page = httpx.get(f"http://127.0.0.1:{processes.ports['api']}/metrics", timeout=60).text
            lines = [line for line in page.splitlines() if line.startswith("trainmaster_dropped_spans_total{")]
            return any('reason="failed"' in line and float(line.split()[-1]) > 0 for line in lines)

        eventually_sync(is_counted, 20, every=0.2)
        lines = [line["message"] for line in processes.log("api") if "spans" in line["message"]]
    assert sum("cannot be exported" in line for line in lines) == 1


def test_a_process_whose_packages_are_missing_ends_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass No:\n    def find_spec(self, name, *_):\n"
        "        if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')):\n            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, No())\n"
    )
    env = os.environ | variables("http://127.0.0.1:4318") | {"DATABASE_URL": "postgresql://u@127.0.0.1/x"}
    env["PYTHONPATH"] = f"{tmp_path}:{env.get('PYTHONPATH', '')}"
    ended = subprocess.run([*PROGRAM, "scheduler"], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == Exit.MISSING_EXTRA, ended.stderr
    assert "install trainmaster-dispatcher[tracing]" in ended.stderr


# A dispatcher in this process


class Recorded:
    """The spans that all parts of the dispatcher in this process have recorded."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        self.drops: Counter[str] = Counter()

    @property
    def names(self) -> Counter[str]:
        return Counter(span.name for span in self.memory.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.memory.get_finished_spans() if span.name == name]

    async def until(self, name: str, many: int = 1) -> list[Any]:
        """Return the spans with a name, once there are at least ``many``."""

        async def look() -> bool:
            return self.names[name] >= many

        await eventually(look)
        return self.named(name)


@pytest.fixture
async def recorded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Recorded]:
    made = Recorded()

    def count(reason: str, many: int) -> None:
        made.drops[reason] += many

    monkeypatch.delenv("OTEL_TRACES_SAMPLER", raising=False)
    monkeypatch.setattr(recording, "recorder", SpanExport("api", made.memory, count, SimpleSpanProcessor(made.memory)))
    yield made
    assert not made.drops


@pytest.fixture
async def traced(recorded: Recorded, service: Service) -> Service:
    """A dispatcher that makes spans."""
    return service


async def submit_here(service: Service, headers: dict[str, str], **fields: Any) -> str:
    answer = await service.http.post("/v1/jobs", json=job(**fields), headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_without_traces_a_callers_position_is_not_stored_nor_handed_on(service: Service) -> None:
    agent = service.agent()
    await agent.connect()
    await submit_here(service, SAMPLED)
    assert "traceparent" not in await agent.next_start()
    assert await value(service.stores, "SELECT count(*) FROM jobs WHERE trace IS NOT NULL") == 0


async def test_a_caller_that_is_not_sampled_leaves_nothing(traced: Service, recorded: Recorded) -> None:
    agent = traced.agent()
    await agent.connect()
    job_id = await submit_here(traced, {"traceparent": f"00-{TRACE}-{SPAN}-00"})
    start = await agent.next_start()
    await agent.report(start["run"], RunState.SUCCEEDED, 1)
    await traced.until(job_id, "succeeded")
    assert "traceparent" not in start
    assert await value(traced.stores, "SELECT count(*) FROM jobs WHERE trace IS NOT NULL") == 0
    assert recorded.names == {}


async def test_a_job_of_a_caller_without_a_trace_begins_one(traced: Service, recorded: Recorded) -> None:
    agent = traced.agent()
    await agent.connect()
    await submit_here(traced, {"traceparent": "garbage"})
    (submission,) = await recorded.until("trainmaster.submit")
    assert submission.parent is None
    start = await agent.next_start()
    assert start["traceparent"].split("-")[1] == f"{submission.context.trace_id:032x}"


async def test_a_run_that_fails_and_is_tried_again_is_two_spans_that_are_linked(
    traced: Service, recorded: Recorded
) -> None:
    agent = traced.agent()
    await agent.connect()
    job_id = await submit_here(traced, SAMPLED, retries={"limit": 1, "exitCodes": [3], "backOff": "100ms"})
    end = RunEnd(category=FailureCategory.EXIT, exit_code=3, member="main-0", message="secret words of the program")
    first = await agent.next_start()
    await agent.report(first["run"], RunState.FAILED, 1, end=end)
    second = await agent.next_start()
    await agent.report(second["run"], RunState.SUCCEEDED, 1)
    await traced.until(job_id, "succeeded")
    runs = await recorded.until("trainmaster.run", 2)
    (whole,) = await recorded.until("trainmaster.job")
    key = int(await value(traced.stores, "SELECT id FROM jobs"))
    trace = SpanRef(bytes.fromhex(TRACE), bytes.fromhex(SPAN))
    ids = [f"{span.context.span_id:016x}" for span in runs]
    assert ids == [run_span(trace, key, attempt).span_id.hex() for attempt in (1, 2)]
    assert [[f"{link.context.span_id:016x}" for link in span.links] for span in runs] == [[], [ids[0]]]
    assert [span.attributes["trainmaster.run.state"] for span in runs] == ["failed", "succeeded"]
    assert [start["traceparent"] for start in (first, second)] == [f"00-{TRACE}-{one}-01" for one in ids]
    assert f"{whole.context.span_id:016x}" == job_span(trace, key).span_id.hex()
    assert [event.name for event in whole.events].count("trainmaster.dispatched") == 2
    assert whole.attributes["trainmaster.job.attempts"] == 2
    waits = await recorded.until("trainmaster.job.wait", 2)
    assert waits[1].start_time >= runs[0].end_time, "the second wait begins where the first run ended"
    assert "secret words" not in "".join(span.to_json() for span in recorded.memory.get_finished_spans())


async def test_a_preempted_run_shows_it_and_its_beneficiary_how_many_it_ended(
    traced: Service, recorded: Recorded
) -> None:
    for name, rank in (("low", 1), ("high", 9)):
        answer = await traced.http.put(f"/v1/priority-classes/{name}", json={"name": name, "value": rank})
        assert answer.is_success, answer.text
    agent = traced.agent()
    await agent.connect(cpu=4)
    low = await submit_here(traced, SAMPLED, cpu="4", priorityClass="low")
    first = await agent.next_start()
    await agent.report(first["run"], RunState.RUNNING, 1)
    await traced.until(low, "running")
    await submit_here(traced, SAMPLED, cpu="4", priorityClass="high")

    async def is_stopped() -> bool:
        await agent.sync()
        return bool((await agent.desired(0.5))["stop"])

    await eventually(is_stopped)
    await agent.report(first["run"], RunState.PREEMPTED, 2, generation=2)
    (run,) = await recorded.until("trainmaster.run")
    assert run.attributes["trainmaster.run.state"] == "preempted"
    assert "trainmaster.preempt" in [event.name for event in run.events]
    evicted = [
        span.attributes.get("trainmaster.schedule.evicted_runs")
        for span in await recorded.until("trainmaster.schedule", 2)
    ]
    assert evicted == [None, 1]


async def test_on_kubernetes_pods_get_the_position_and_the_span_names_their_namespace(
    traced: Service, recorded: Recorded
) -> None:
    async with fake_cluster() as kube:
        with two_nodes(kube) as nodes:
            lab = lab_on(kube, nodes)
            template = {"image": "sim", "command": ["sim", "run"], "resources": {"cpu": "1"}}
            async with running_agent(traced, lab.kubernetes):
                job_id = await submit_here(
                    traced, SAMPLED, roles=[{"name": "worker", "replicas": 2, "template": template}]
                )
                await traced.until(job_id, "running", seconds=20)
                pods = list(kube.store.scan(ResourceId("v1", "pods")).values())
            await lab.api.close()
    (create,) = await recorded.until("trainmaster.agent.create")
    (start,) = await recorded.until("trainmaster.member.start")
    assert (create.attributes["k8s.namespace.name"], create.attributes["trainmaster.members"]) == (NAMESPACE, 2)
    assert create.end_time == start.start_time < start.end_time
    found = {
        env["value"] for pod in pods for env in pod["spec"]["containers"][0]["env"] if env["name"] == "TRACEPARENT"
    }
    assert found == {f"00-{TRACE}-{create.parent.span_id:016x}-01"}


async def test_a_job_that_is_cancelled_while_it_waits_has_a_span_without_runs(
    traced: Service, recorded: Recorded
) -> None:
    job_id = await submit_here(traced, SAMPLED, cpu="64")
    await traced.http.post(f"/v1/jobs/{job_id}/cancel")
    (whole,) = await recorded.until("trainmaster.job")
    assert whole.attributes["trainmaster.job.state"] == "cancelled"
    assert "trainmaster.run" not in recorded.names


async def test_a_large_submission_is_one_span_and_its_first_jobs_alone_are_traced(
    traced: Service, recorded: Recorded
) -> None:
    many = MOST_TRACED_JOBS + 50
    swept = {"name": "main", "template": {"command": ["echo", "${n}"], "resources": {"cpu": "64"}}}
    answers = [
        await traced.http.post("/v1/jobs", json={"jobs": [job(cpu="64")] * many}, headers=SAMPLED),
        await traced.http.post(
            "/v1/jobs",
            json={"job": job(roles=[swept]), "parameters": [{"n": str(n)} for n in range(many)]},
            headers=SAMPLED,
        ),
    ]
    assert [answer.status_code for answer in answers] == [201, 201], answers[1].text
    spans = recorded.named("trainmaster.submit")
    assert [span.attributes["trainmaster.jobs"] for span in spans] == [many, many]
    ids = [f"{span.context.span_id:016x}" for span in spans]
    rows = [await value(traced.stores, f"SELECT count(*) FROM jobs WHERE trace = '\\x{TRACE}{one}'") for one in ids]
    assert rows == [MOST_TRACED_JOBS, MOST_TRACED_JOBS]
    assert await value(traced.stores, "SELECT count(*) FROM jobs") == 2 * many


async def test_a_refused_submission_is_a_span_with_its_code(traced: Service, recorded: Recorded) -> None:
    answer = await traced.http.post("/v1/jobs", json=job(queue="nowhere"), headers=SAMPLED)
    assert answer.status_code >= 400
    (span,) = recorded.named("trainmaster.submit")
    assert span.attributes["trainmaster.problem"] == answer.json()["code"]
    assert span.status.is_unset, "the caller was wrong, and not the api"
