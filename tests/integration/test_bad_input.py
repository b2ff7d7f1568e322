"""What cannot be done is refused with its status, code and the path of the mistake, and changes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from tests.conftest import ADMIN_KEY, FakeAgent, Service, job
from tests.integration.rows import picture
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.job_queries import make_cursor

HUGE = 10**30
DEEP = 300
Body = bytes | dict[str, Any] | list[Any] | None


@dataclass(frozen=True)
class Case:
    """A request and the refusal it gets. ``{waiting}`` and ``{running}`` in the address stand for jobs in these states."""

    what: str
    call: str
    body: Body
    status: int
    code: str
    at: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    key: str = "tmk_admin"


@dataclass
class World:
    """An installation with a queue tree, a waiting and a running job, whose cluster is in contact."""

    service: Service
    agent: FakeAgent
    names: dict[str, str]

    async def refusal(self, case: Case) -> tuple[int, str, list[str]]:
        method, _, path = case.call.partition(" ")
        for name, value in self.names.items():
            path = path.replace(f"{{{name}}}", value)
        content = case.body if isinstance(case.body, bytes) else None if case.body is None else orjson.dumps(case.body)
        headers = {"Authorization": f"Bearer {case.key}", **case.headers}
        answer = await self.service.http.request(method, path, content=content, headers=headers)
        if answer.status_code < 400:
            return answer.status_code, answer.text, []
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["status"] == answer.status_code
        assert problem["type"].endswith(f"#{problem['code']}")
        return answer.status_code, problem["code"], [mistake["path"] for mistake in problem.get("mistakes", [])]

    async def check(self, cases: Sequence[Case]) -> None:
        """Check that every case is refused as written and leaves the store as it was."""
        wrong = []
        for case in cases:
            await self.agent.sync()
            before = await picture(self.service.stores)
            status, code, paths = await self.refusal(case)
            if (status, code) != (case.status, case.code) or (case.at and case.at not in paths):
                wrong.append(f"{case.what}: {status} {code} at {paths}; not {case.status} {case.code} at {case.at!r}")
            if await picture(self.service.stores) != before:
                wrong.append(f"{case.what}: changed something")
        assert not wrong, "\n".join(wrong)


@pytest.fixture
async def world(service: Service) -> World:
    for path in ("team", "team/a"):
        answer = await service.http.put(f"/v1/queues/{path}", json={"path": path})
        assert answer.status_code == 201, answer.text
    agent = service.agent()
    await agent.connect(cpu=1)
    running = await service.submit("busy")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    waiting = await service.submit("waits", "team/a", "64")
    await service.until(running, "running")
    return World(service, agent, {"waiting": waiting, "running": running, "run": run})


def role(**fields: Any) -> dict[str, Any]:
    return {**job(), "roles": [{"name": "main", "template": {"command": ["true"]}, **fields}]}


def template(**fields: Any) -> dict[str, Any]:
    return role(template={"command": ["true"], **fields})


def pod(**fields: Any) -> dict[str, Any]:
    """Return a job whose pod template is allowed but for these fields of its spec."""
    container = {
        "name": "main",
        "image": "busybox",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"automountServiceAccountToken": False, "securityContext": context, "containers": [container], **fields}
    return {**job(), "roles": [{"name": "main", "podTemplate": {"spec": spec}}]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


SUBMIT = "POST /v1/jobs"
SUBMISSIONS = [
    Case("no JSON", SUBMIT, b"{", 400, "malformed-body"),
    Case("empty", SUBMIT, b"", 400, "malformed-body"),
    Case("a list", SUBMIT, b"[]", 400, "malformed-body"),
    Case("a number", SUBMIT, b"7", 400, "malformed-body"),
    Case("not UTF-8", SUBMIT, b'{"name": "\xff"}', 400, "malformed-body"),
    Case("a lone surrogate", SUBMIT, b'{"name": "\\ud800"}', 400, "malformed-body"),
    Case("a raw NUL", SUBMIT, b'{"name": "a\x00"}', 400, "malformed-body"),
    Case("a NUL", SUBMIT, template(env={"A": "\0"}), 422, "invalid-spec"),
    Case("nothing in it", SUBMIT, {}, 422, "invalid-spec", "roles"),
    Case("a field that is unknown", SUBMIT, job(nmae="x"), 422, "invalid-spec", "nmae"),
    Case("unknown deep inside", SUBMIT, template(resorces={}), 422, "invalid-spec", "roles[0].template.resorces"),
    Case("a queue that is not there", SUBMIT, job(queue="none"), 422, "unknown-queue"),
    Case("a queue with queues below", SUBMIT, job(queue="team"), 422, "queue-not-a-leaf"),
    Case("no queue path", SUBMIT, job(queue="A//b"), 422, "invalid-spec", "queue"),
    Case("an unknown class", SUBMIT, job(priorityClass="best"), 422, "unknown-priority-class"),
    Case("no quantity", SUBMIT, job(cpu="1x"), 422, "invalid-spec", "roles[0].template.resources.cpu"),
    Case("less than nothing", SUBMIT, job(cpu="-1"), 422, "invalid-spec", "roles[0].template.resources.cpu"),
    Case("too much", SUBMIT, job(cpu="16E"), 422, "invalid-spec"),
    Case("too many members", SUBMIT, job(replicas=10_001), 422, "invalid-spec", "roles[0].replicas"),
    Case("no member", SUBMIT, job(replicas=0), 422, "invalid-spec", "roles[0].replicas"),
    Case("beyond a smallint", SUBMIT, job(priority=40_000), 422, "invalid-spec", "priority"),
    Case("beyond a bigint", SUBMIT, job(priority=0) | {"priority": 2**63}, 422, "invalid-spec", "priority"),
    Case("beyond 64 bits", SUBMIT, b'{"priority": %d}' % HUGE, 422, "invalid-spec", "priority"),
    Case("a bad duration", SUBMIT, job(timeLimit="soon"), 422, "invalid-spec", "timeLimit"),
    Case("a duration as a clock shows it", SUBMIT, job(timeLimit="1:30:00"), 422, "invalid-spec", "timeLimit"),
    Case("a duration of digits", SUBMIT, job(timeLimit="1" * 60_000), 422, "invalid-spec", "timeLimit"),
    Case("a duration of a megabyte", SUBMIT, job(timeLimit="1" * 2**20), 422, "invalid-spec", "timeLimit"),
    Case("a duration of many parts", SUBMIT, job(stopGrace="0s" * 500_000), 422, "invalid-spec", "stopGrace"),
    Case("a quantity of a megabyte", SUBMIT, job(cpu="1" * 2**20), 422, "invalid-spec"),
    Case("a queue of slashes", SUBMIT, job(queue="/" * 2**20), 422, "invalid-spec", "queue"),
    Case("a bad label", SUBMIT, job(labels={"a": "b c"}), 422, "invalid-spec"),
    Case("a long name", SUBMIT, job("n" * 25), 422, "invalid-spec", "name"),
    Case("two templates", SUBMIT, role(podTemplate={}), 422, "invalid-spec", "roles[0]"),
    Case("no jobs", SUBMIT, {"jobs": []}, 422, "invalid-spec", "jobs"),
    Case("one bad of two", SUBMIT, {"jobs": [job(), job("")]}, 422, "invalid-spec", "jobs[1].name"),
    Case("too many jobs", SUBMIT, b'{"jobs": [%s]}' % b",".join([b"1"] * 10_001), 422, "invalid-spec"),
    Case("a long idempotency key", SUBMIT, job(), 422, "invalid-parameter", headers={"Idempotency-Key": "k" * 201}),
    Case("an empty idempotency key", SUBMIT, job(), 422, "invalid-parameter", headers={"Idempotency-Key": ""}),
    Case("host network", SUBMIT, pod(hostNetwork=True), 422, "pod-template-refused"),
    Case("a host path", SUBMIT, pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), 422, "pod-template-refused"),
    Case("no container", SUBMIT, pod(containers=[]), 422, "pod-template-refused"),
    Case("not even a pod", SUBMIT, pod(containers=7, overhead=[1]), 422, "pod-template-refused"),
    Case(
        "deep as a well",
        SUBMIT,
        json.dumps(pod(affinity=nested(DEEP))).encode(),
        422,
        "pod-template-refused",
        "roles[0].podTemplate.spec.affinity.a",
    ),
    Case("a name of Python", SUBMIT, job(time_limit="1h"), 422, "invalid-spec", "time_limit"),
    Case("a flag for a number", SUBMIT, job(priority=True), 422, "invalid-spec", "priority"),
    Case("a text for a number", SUBMIT, job(priority="5"), 422, "invalid-spec", "priority"),
    Case("a text for a flag", SUBMIT, job(suspend="yes"), 422, "invalid-spec", "suspend"),
    Case("a number for a flag", SUBMIT, job(suspend=1), 422, "invalid-spec", "suspend"),
    Case("a text for a list", SUBMIT, template(command="true"), 422, "invalid-spec", "roles[0].template.command"),
    Case("a program without a name", SUBMIT, template(command=[]), 422, "invalid-spec", "roles[0].template.command"),
    Case("no time", SUBMIT, job(timeLimit=0), 422, "invalid-spec", "timeLimit"),
    Case("no time as text", SUBMIT, job(timeLimit="0s"), 422, "invalid-spec", "timeLimit"),
    Case("a field twice", SUBMIT, b'{"name": "a", "name": "b"}', 422, "invalid-spec", "name"),
    Case("a field twice inside", SUBMIT, b'{"jobs": [{"a": {"b": 1, "b": 1}}]}', 422, "invalid-spec", "jobs[0].a.b"),
    Case(
        "a field twice in a set",
        SUBMIT,
        b'{"job": {}, "parameters": [{"a": 1, "a": 2}]}',
        422,
        "invalid-spec",
        "parameters[0].a",
    ),
    Case("a wrong name of a list", SUBMIT, {"jobs": [job()], "parameter": []}, 422, "invalid-spec", "parameter"),
    Case("deep beyond JSON", SUBMIT, b'{"a":' * 2000 + b"1" + b"}" * 2000, 400, "malformed-body"),
]

BULK = "POST /v1/jobs/cancel"
STEERING = [
    Case("no id", "GET /v1/jobs/nonsense", None, 404, "bad-id"),
    Case("no id with NUL", "GET /v1/jobs/a%00-0000001", None, 404, "bad-id"),
    Case("an id of nobody", "POST /v1/jobs/waits-0000001/cancel", None, 404, "not-found"),
    Case("a wrong name before an id", "GET /v1/jobs/x{waiting}", None, 404, "not-found"),
    Case("resume of a running job", "POST /v1/jobs/{running}/resume", None, 409, "wrong-state"),
    Case("retry of a running job", "POST /v1/jobs/{running}/retry", None, 409, "wrong-state"),
    Case("change of a running job", "PATCH /v1/jobs/{running}", {"priority": 1}, 409, "wrong-state"),
    Case("change to far up", "PATCH /v1/jobs/{waiting}", {"priority": 1001}, 422, "invalid-spec", "priority"),
    Case("change of what is fixed", "PATCH /v1/jobs/{waiting}", {"queue": "default"}, 422, "invalid-spec", "queue"),
    Case("change to no class", "PATCH /v1/jobs/{waiting}", {"priorityClass": "x"}, 422, "unknown-priority-class"),
    Case("change with a NUL", "PATCH /v1/jobs/{waiting}", {"priorityClass": "a\0"}, 422, "invalid-spec"),
    Case("change that is a list", "PATCH /v1/jobs/{waiting}", [], 422, "invalid-spec"),
    Case("bulk of nothing", BULK, {"filter": {}}, 422, "invalid-parameter"),
    Case("bulk without filter", BULK, {}, 422, "invalid-spec", "filter"),
    Case("bulk of a long name", BULK, {"filter": {"name": "*" * 101}}, 422, "invalid-spec", "filter.name"),
    Case("bulk of no state", BULK, {"filter": {"states": ["lost"]}}, 422, "invalid-parameter"),
    Case("bulk of no queue", BULK, {"filter": {"queue": "none"}}, 422, "unknown-queue", "filter.queue"),
    Case("jobs of no queue", "GET /v1/jobs?queue=none", None, 422, "unknown-queue", "queue"),
    Case("usage of no queue", "GET /v1/usage?queue=none", None, 422, "unknown-queue", "queue"),
    Case(
        "a webhook for no state",
        SUBMIT,
        job(notify=[{"url": "https://a.b", "states": []}]),
        422,
        "invalid-spec",
        "notify[0].states",
    ),
    Case("bulk with a NUL", BULK, {"filter": {"name": "\0"}}, 422, "invalid-spec"),
    Case("bulk with a patch", BULK, {"filter": {"name": "a"}, "patch": {"priority": 1}}, 422, "invalid-spec"),
    Case("no patch", "POST /v1/jobs/reprioritise", {"filter": {"name": "*"}}, 422, "invalid-spec"),
    Case("a foreign cursor", "GET /v1/jobs?cursor=abc", None, 400, "bad-cursor"),
    Case("a cursor of a large number", f"GET /v1/jobs?cursor={make_cursor(2**63)}", None, 400, "bad-cursor"),
    Case("a cursor of a page", f"GET /v1/jobs?cursor={'Y' * 4000}", None, 400, "bad-cursor"),
    Case("an id of a page", f"GET /v1/jobs/{'a-' * 2000}", None, 404, "bad-id"),
    Case(
        "many labels",
        "GET /v1/jobs?" + "&".join(f"label=k{n}=v" for n in range(21)),
        None,
        422,
        "invalid-parameter",
        "label",
    ),
    Case("a cursor of no text", "GET /v1/jobs?cursor=%ff", None, 400, "bad-cursor"),
    Case("a label without a value", "GET /v1/jobs?label=foo", None, 422, "invalid-parameter", "label"),
    Case("a state that does not exist", "GET /v1/jobs?state=foo", None, 422, "invalid-parameter"),
    Case("no limit", "GET /v1/jobs?limit=0", None, 422, "invalid-parameter", "limit"),
    Case("a high limit", "GET /v1/jobs?limit=1001", None, 422, "invalid-parameter", "limit"),
    Case("a limit of words", "GET /v1/jobs?limit=all", None, 422, "invalid-parameter", "limit"),
    Case("a label without value", "GET /v1/jobs?label=a", None, 422, "invalid-parameter", "label"),
    Case("a label of spaces", "GET /v1/jobs?label=a=b%20c", None, 422, "invalid-parameter"),
    Case("an unknown state", "GET /v1/jobs?state=lost", None, 422, "invalid-parameter"),
    Case("a limit twice", "GET /v1/jobs?limit=5&limit=6", None, 422, "invalid-parameter", "limit"),
    Case("a filter that there is not", "GET /v1/jobs?states=queued", None, 422, "invalid-parameter", "states"),
    Case(
        "bulk by a name of Python",
        BULK,
        {"filter": {"priority_class": "a"}},
        422,
        "invalid-spec",
        "filter.priority_class",
    ),
    Case(
        "a change twice", "PATCH /v1/jobs/{waiting}", b'{"priority": 1, "priority": 2}', 422, "invalid-spec", "priority"
    ),
    Case("a change by a flag", "PATCH /v1/jobs/{waiting}", {"priority": True}, 422, "invalid-spec", "priority"),
    Case("a queue of NUL", "GET /v1/jobs?queue=%00", None, 422, "invalid-parameter", "queue"),
    Case("a name of NUL", "GET /v1/jobs?name=%00", None, 422, "invalid-parameter", "name"),
    Case("an audit of NUL", "GET /v1/audit?target=%00", None, 422, "invalid-parameter", "target"),
    Case("after less than none", "GET /v1/jobs/{waiting}/events?after=-1", None, 422, "invalid-parameter", "after"),
    Case(
        "a long event id",
        "GET /v1/jobs/{waiting}/events",
        None,
        400,
        "bad-cursor",
        headers={"Accept": "text/event-stream", "Last-Event-ID": "9" * 5000},
    ),
    *(
        Case(
            f"an event id that is none: {wrong!r}",
            "GET /v1/jobs/{waiting}/events",
            None,
            400,
            "bad-cursor",
            headers={"Last-Event-ID": wrong},
        )
        for wrong in ("", "x", "9" * 30)
    ),
    Case("an index below none", "GET /v1/jobs/{waiting}/logs?index=-1", None, 422, "invalid-parameter", "index"),
    Case("a role that there is not", "GET /v1/jobs/{waiting}/logs?role=nope&follow=true", None, 404, "not-found"),
    Case("a member beyond the last", "GET /v1/jobs/{waiting}/logs?index=9", None, 404, "not-found"),
    Case("an attempt that there was not", "GET /v1/jobs/{waiting}/logs?attempt=9", None, 404, "not-found"),
    Case("from an attempt that there was not", "GET /v1/jobs/{waiting}/logs?fromAttempt=9", None, 404, "not-found"),
    Case("usage of the last hour of all", "GET /v1/usage?end=9999-12-31T23:59:59Z", None, 422, "invalid-parameter"),
    Case(
        "usage before the first hour", "GET /v1/usage?begin=0001-01-01T00:00:00%2B14:00", None, 422, "invalid-parameter"
    ),
    Case("a wrong method", "PUT /v1/jobs", None, 405, "method-not-allowed"),
    Case("an unknown path", "GET /v1/nothing", None, 404, "not-found"),
]


async def test_submissions_with_mistakes(world: World) -> None:
    await world.check(SUBMISSIONS)


async def test_steering_and_reading_with_mistakes(world: World) -> None:
    await world.check(STEERING)


async def test_a_body_above_the_limit_is_refused_however_it_is_sent(world: World) -> None:
    most = world.service.settings.largest_body_bytes

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(most // 2**20):
            yield b" " * 2**20
        yield b" "

    before = await picture(world.service.stores)
    answer = await world.service.http.post("/v1/jobs", content=chunks())
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    host, _, port = world.service.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nContent-Length: {most + 1}\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] == b"413"
    writer.close()
    assert await picture(world.service.stores) == before


async def test_a_wrong_filter_is_told_with_what_is_allowed(service: Service) -> None:
    label = (await service.http.get("/v1/jobs?label=foo")).json()
    assert label["mistakes"] == [{"path": "label", "message": "must be key=value, not 'foo'"}]
    state = (await service.http.get("/v1/jobs?state=runing")).json()
    assert state["detail"].endswith("; did you mean running?")


async def test_a_name_pattern_may_hold_any_character(service: Service) -> None:
    await service.submit("abc")
    for pattern, found in {"a*": 1, "a_c": 0, "%": 0, "\\": 0, "a\\": 0, "\\%": 0, "*": 1}.items():
        answer = await service.http.get("/v1/jobs", params={"name": pattern})
        assert (answer.status_code, len(answer.json().get("jobs", []))) == (200, found), pattern


async def test_a_caller_that_hangs_up_in_its_body_is_no_error_of_the_dispatcher(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = service.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {ADMIN_KEY}\r\nContent-Length: 100\r\n\r\n{{"
    )
    with caplog.at_level("INFO"):
        writer.write(head.encode())
        await writer.drain()
        writer.close()

        async def was_told() -> bool:
            return any(record.message == "POST /v1/jobs 400" for record in caplog.records)

        await eventually(was_told, 5)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
