"""The client's core: what is sent, what answers mean, and what is tried again."""

import errno
import json
import ssl
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest

from tests.unit.scripted import JOB, URL, Script, job, problem
from trainmaster.cli.config import open_client
from trainmaster.client import calls, core
from trainmaster.client.aio import AgentClient
from trainmaster.client.config import Context
from trainmaster.client.core import Request, Response, Retries
from trainmaster.client.errors import AddressError, ConfigurationError, StrangerError
from trainmaster.client.http import Client
from trainmaster.client.values import JobFilter
from trainmaster.client.wire import goes_through_proxies, trusted_certificates
from trainmaster.protocol.agent import StreamPush, SyncRequest
from trainmaster.protocol.errors import Code, Mistake, ProblemError, TrainmasterError, UnreachableError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.tenants import KeySpec

SPEC = JobSpec.model_validate(
    {"name": "bert", "queue": "q", "roles": [{"name": "main", "template": {"command": ["train", "${lr}"]}}]}
)
GET, ONCE = core.get("/v1/jobs"), core.post_once("/v1/keys", {})


# Requests


@pytest.mark.parametrize("status", [200, 201])
async def test_an_object_that_was_created_is_read_as_one_that_was_replaced(status: int) -> None:
    made = {"path": "team", "weight": 2.0}
    script = Script(*[httpx.Response(status, json=made, headers={"Location": "/v1/queues/team"}) for _ in range(2)])
    assert script.client().put("Queue", "team", made) == made
    assert await script.async_client().put("Queue", "team", made) == made


def test_each_post_has_an_idempotency_key_of_its_own_except_where_the_api_takes_none() -> None:
    first, second = calls.act(JOB, "cancel"), calls.act(JOB, "cancel")
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]
    key = calls.make_key(KeySpec.model_validate({"name": "a", "role": "admin"}))
    assert "Idempotency-Key" not in key.headers
    assert not key.repeatable


def test_a_dry_run_changes_nothing_and_may_be_repeated_without_a_key() -> None:
    request = calls.dry_run([SPEC])
    assert request.query == (("dryRun", "true"),)
    assert "Idempotency-Key" not in request.headers
    assert request.repeatable


def test_an_id_cannot_name_another_address() -> None:
    assert calls.show_job("../keys?x").path == "/v1/jobs/..%2Fkeys%3Fx"
    for text in ("", ".", ".."):
        with pytest.raises(ProblemError, match="not a job id"):
            calls.show_job(text)


def test_a_filter_is_written_as_the_api_reads_it() -> None:
    wanted = JobFilter(queue="a/b", states=("held", "queued"), labels={"team": "x"})
    query = calls.list_jobs(wanted, None, 10).query
    assert query == (("queue", "a/b"), ("state", "held"), ("state", "queued"), ("label", "team=x"), ("limit", "10"))
    assert wanted.to_wire() == {"queue": "a/b", "states": ["held", "queued"], "labels": {"team": "x"}}
    searched = JobFilter(priority_class="high", search="team=x")
    assert calls.list_jobs(searched, None, 10).query[:2] == (("priorityClass", "high"), ("search", "team=x"))
    assert searched.to_wire() == {"priorityClass": "high", "search": "team=x"}


def test_an_empty_text_of_a_filter_is_sent_as_it_would_select_all_jobs_otherwise() -> None:
    assert (
        calls.bulk("cancel", JobFilter(queue="a", search=""), dry_run=True).body
        == core.post("/v1/jobs/cancel", {"filter": {"queue": "a", "search": ""}, "dryRun": True}).body
    )


def test_what_json_cannot_hold_is_a_problem_and_no_crash() -> None:
    with pytest.raises(ProblemError) as caught:
        calls.submit([{"name": object()}])
    assert caught.value.code is Code.MALFORMED_BODY


# Answers


def test_a_problem_comes_back_as_the_error_it_was_made_from() -> None:
    error = ProblemError(
        Code.QUEUE_FULL, "full", mistakes=(Mistake(path="queue", message="full"),), extra={"requestId": "r"}
    )
    headers = {"content-type": "application/problem+json", "retry-after": "5"}
    read = core.read_error(Response(429, headers, json.dumps(error.to_problem()).encode()))
    assert isinstance(read, ProblemError)
    assert (read.code, read.detail, read.retry_after) == (Code.QUEUE_FULL, "full", 5.0)
    assert read.mistakes == error.mistakes
    assert read.extra == {"requestId": "r"}


@pytest.mark.parametrize(
    ("status", "code"), [(404, Code.NOT_FOUND), (418, Code.INVALID_PARAMETER), (599, Code.INTERNAL)]
)
def test_a_code_of_a_newer_dispatcher_is_taken_by_its_status(status: int, code: Code) -> None:
    assert core.read_problem({"code": "from-the-future", "detail": "d"}, status).code is code


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (Response(502, {"content-type": "text/html"}, b"<html>"), "502 Bad Gateway, text/html"),
        (Response(301, {"location": "https://x.test"}, b""), "redirects to https://x.test"),
        (Response(200, {"content-type": "text/html"}, b"<html>"), "not from a Trainmaster dispatcher"),
        (Response(500, {"content-type": "application/problem+json"}, b"{"), "not from a Trainmaster dispatcher"),
    ],
)
def test_what_no_dispatcher_sends_is_no_answer(response: Response, said: str) -> None:
    with pytest.raises(UnreachableError, match=said):
        core.read_value(response)


# Trying again


BAD_GATEWAY = StrangerError("a proxy", 502)


@pytest.mark.parametrize(
    ("request_", "left", "error", "again"),
    [
        (GET, 30, UnreachableError("gone"), True),
        (GET, 0, UnreachableError("gone"), False),
        (GET, 30, AddressError("no such scheme"), False),
        (GET, 30, BAD_GATEWAY, True),
        (GET, 30, StrangerError("a proxy", 504, retry_after=31), False),
        (GET, 30, StrangerError("a web page", 200), False),
        (GET, 30, ProblemError(Code.STORE_AWAY, ""), True),
        (GET, 30, ProblemError(Code.QUEUE_FULL, "", retry_after=3), True),
        (GET, 30, ProblemError(Code.QUEUE_FULL, ""), True),
        (GET, 30, ProblemError(Code.QUEUE_FULL, "", retry_after=600), False),
        (GET, 30, ProblemError(Code.INTERNAL, ""), False),
        (GET, 30, ProblemError(Code.CONFLICT, ""), False),
        (ONCE, 30, UnreachableError("gone"), False),
        (ONCE, 30, ProblemError(Code.STORE_AWAY, ""), False),
    ],
)
def test_only_what_may_pass_in_time_is_tried_again(
    request_: Request, left: float, error: TrainmasterError, again: bool
) -> None:
    assert (Retries().pause(request_, 1, error, left, 0.5) is not None) is again


def test_the_bound_of_pauses_doubles_up_to_a_cap_and_all_of_it_is_left_to_chance() -> None:
    retries = Retries(first_seconds=1, most_seconds=10)
    gone = UnreachableError("gone")
    assert [retries.pause(GET, tries, gone, 60, 1.0) for tries in (1, 2, 3, 4, 5, 90)] == [1, 2, 4, 8, 10, 10]
    assert [retries.pause(GET, 3, gone, 60, chance) for chance in (0.0, 0.5)] == [0, 2]


def test_a_pause_heeds_the_hint_and_ends_with_the_deadline() -> None:
    away = ProblemError(Code.STORE_AWAY, "", retry_after=7)
    assert Retries().pause(GET, 1, away, 60, 0.0) == 7
    assert Retries(first_seconds=10, most_seconds=10).pause(GET, 1, UnreachableError("gone"), 2.5, 1.0) == 2.5


def test_a_proxy_that_knows_when_to_come_back_is_heeded() -> None:
    bad = httpx.Response(503, headers={"Retry-After": "9"}, text="<html>")
    script = Script(bad, httpx.Response(200, json=job("queued")))
    assert script.client().job(JOB).state == "queued"
    assert script.pauses == [9]


def test_a_repeated_submission_carries_the_same_key_and_body() -> None:
    script = Script(
        httpx.ConnectError("Connection refused"),
        problem(Code.STORE_AWAY),
        httpx.ReadTimeout("slow"),
        httpx.Response(201, json={"jobs": [{"id": JOB}]}),
    )
    assert script.client().submit({"name": "bert"}) == [JOB]
    assert len({request.headers["idempotency-key"] for request in script.requests}) == 1
    assert {request.content for request in script.requests} == {b'{"jobs":[{"name":"bert"}]}'}
    assert len(script.pauses) == 3


def test_a_dispatcher_that_stays_away_is_unreachable_after_the_deadline() -> None:
    script = Script(then=httpx.ConnectError("Connection refused"))
    with pytest.raises(UnreachableError, match=r"cannot reach http://dispatcher\.test: connection refused"):
        script.client(Retries(deadline_seconds=20)).job(JOB)
    assert script.now == pytest.approx(20)
    assert len(script.requests) == len(script.pauses) + 1


def failed_connection(*causes: OSError) -> httpx.ConnectError:
    """Return the error of a connection that failed at each address of a host, as an event loop reports it."""
    attempts = OSError("All connection attempts failed")
    attempts.__cause__ = causes[0] if len(causes) == 1 else ExceptionGroup("several", causes)
    error = httpx.ConnectError(str(attempts))
    error.__cause__ = attempts
    return error


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        ([OSError(errno.EHOSTUNREACH, "Connect call failed")], "no route to host"),
        ([OSError(errno.ENETUNREACH, "Connect call failed"), OSError("other")], "network is unreachable"),
        ([OSError(errno.ECONNREFUSED, "Connect call failed")], "connection refused"),
    ],
)
def test_a_connection_that_fails_is_told_with_the_reason_of_the_operating_system(
    causes: list[OSError], words: str
) -> None:
    script = Script(then=failed_connection(*causes))
    with pytest.raises(UnreachableError, match=rf"cannot reach http://dispatcher\.test: {words}"):
        script.client(Retries(deadline_seconds=2)).job(JOB)


def test_no_try_may_outlast_the_deadline() -> None:
    script = Script(httpx.ReadTimeout("slow"), httpx.Response(200, json=job("queued")))
    script.client(Retries(deadline_seconds=8)).job(JOB)
    assert script.requests[0].extensions["timeout"] == {"connect": 5.0, "read": 8.0, "write": 8.0, "pool": 8.0}
    assert script.requests[1].extensions["timeout"]["read"] == pytest.approx(8 - script.now)


def test_a_removal_whose_answer_was_lost_has_been_done() -> None:
    script = Script(httpx.ReadError("reset"), problem(Code.NOT_FOUND))
    script.client().delete("Queue", "team-a")
    with pytest.raises(ProblemError):
        Script(problem(Code.NOT_FOUND)).client().delete("Queue", "team-a")


def test_a_removal_that_was_refused_before_has_not_been_done() -> None:
    with pytest.raises(ProblemError) as refused:
        Script(problem(Code.STORE_AWAY), problem(Code.NOT_FOUND)).client().delete("Queue", "team-a")
    assert refused.value.code is Code.NOT_FOUND


def test_an_empty_idempotency_key_is_refused_as_it_would_protect_nothing() -> None:
    script = Script()
    with pytest.raises(ProblemError, match="1 to 200 characters"):
        script.client().submit({"name": "bert"}, idempotency_key="")
    assert not script.requests


@pytest.mark.parametrize("job", [None, 7, "", ".."])
def test_what_is_no_job_id_is_refused_before_anything_is_sent(job: Any) -> None:
    script = Script()
    with pytest.raises(ProblemError, match="is not a job id"):
        script.client().job(job)
    assert not script.requests


def test_the_callers_own_idempotency_key_is_sent() -> None:
    done = httpx.Response(201, json={"jobs": [{"id": JOB}]})
    script = Script(done, done)
    client = script.client()
    client.submit({"name": "bert"}, idempotency_key="nightly-7")
    client.submit_parameters({"name": "bert"}, [{"lr": "0.1"}], idempotency_key="nightly-8")
    assert [request.headers["idempotency-key"] for request in script.requests] == ["nightly-7", "nightly-8"]


def test_a_table_of_parameters_goes_in_one_call() -> None:
    script = Script(httpx.Response(201, json={"jobs": [{"id": JOB}, {"id": "bert-0000002"}]}))
    assert script.client().submit_parameters(SPEC, [{"lr": "0.1"}, {"lr": 0.2}]) == [JOB, "bert-0000002"]
    assert json.loads(script.requests[0].content) == {
        "job": SPEC.to_wire(),
        "parameters": [{"lr": "0.1"}, {"lr": 0.2}],
    }


def test_specifications_may_be_models() -> None:
    script = Script(httpx.Response(201, json={"jobs": [{"id": JOB}, {"id": JOB}]}))
    script.client().submit([SPEC, {"name": "x"}])
    assert json.loads(script.requests[0].content) == {"jobs": [SPEC.to_wire(), {"name": "x"}]}


def test_a_key_is_asked_for_once_even_if_the_answer_is_lost() -> None:
    script = Script(httpx.ReadError("reset"))
    with pytest.raises(UnreachableError):
        script.client().make_key(KeySpec.model_validate({"name": "a", "role": "admin"}))
    assert len(script.requests) == 1


def test_pages_are_followed_to_the_last() -> None:
    script = Script(
        httpx.Response(200, json={"jobs": [job("queued")], "next": "c1"}),
        httpx.Response(200, json={"jobs": [job("running")], "next": None}),
    )
    assert [item.state for item in script.client().jobs()] == ["queued", "running"]
    assert script.requests[1].url.params["cursor"] == "c1"


@pytest.mark.parametrize(
    ("url", "through"), [("http://127.0.0.1:8470", False), ("http://localhost", False), (URL, True)]
)
def test_proxies_are_not_for_this_machine(url: str, through: bool) -> None:
    assert goes_through_proxies(url) is through


@pytest.mark.parametrize("url", ["https://localhost:8443", "https://127.0.0.1", "https://trainmaster.example.org"])
def test_certificates_of_ones_own_are_trusted_on_every_machine(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "ca.pem"
    bundle = Path(certifi.where()).read_text()
    authority.write_text(bundle[bundle.index("-----BEGIN") : bundle.index("-----END CERTIFICATE-----") + 25])
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    trusted = trusted_certificates(url)
    assert isinstance(trusted, ssl.SSLContext)
    assert len(trusted.get_ca_certs()) == 1


@pytest.mark.parametrize(("content", "why"), [(None, "No such file or directory"), ("no certificate", "")])
def test_certificates_that_cannot_be_read_are_told_with_their_variable(
    content: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(ConfigurationError, match=f"SSL_CERT_FILE={file}: the certificates .* cannot be read: .*{why}"):
        Client("https://trainmaster.example.org", "tmk_x")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://trainmaster.example.org", "trainmaster.example.org"),
        ("http://10.1.2.3:8470", "10.1.2.3"),
        ("https://trainmaster.example.org", None),
        ("http://localhost:8470", None),
        ("http://[::1]:8470", None),
    ],
)
def test_a_key_that_others_could_read_on_its_way_is_said(
    url: str, named: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    open_client(Context(url, "tmk_x")).close()
    words = capfd.readouterr().err
    assert (f"the API key goes to {named} over plain HTTP" in words) if named else not words
    monkeypatch.setenv("TRAINMASTER_PLAIN_HTTP", "1")
    open_client(Context(url, "tmk_x")).close()
    assert not capfd.readouterr().err


# The agent's side


async def test_the_agents_calls_say_what_the_protocol_says() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.url.path.endswith("/sync"):
            return httpx.Response(200, json={"number": 1, "epoch": "a:1", "leaseSeconds": 15})
        return httpx.Response(200, json={} if "streams" in request.url.path else {"version": 4})

    async with AgentClient(URL, "tmk_x", transport=httpx.MockTransport(answer)) as client:
        assert (await client.sync(SyncRequest(session="s", holder="h", number=1))).lease_seconds == 15
        assert (await client.desired("s", 3, 5.0)).version == 4
        await client.push("stream/1", StreamPush(session="s"))
    assert json.loads(seen[0].content)["heldCount"] == 0
    assert dict(seen[1].url.params) == {"session": "s", "after": "3", "wait": "5"}
    assert seen[1].extensions["timeout"]["read"] == 10.0
    assert seen[2].url.raw_path == b"/agent/v1/streams/stream%2F1"
    assert {request.headers["authorization"] for request in seen} == {"Bearer tmk_x"}


async def test_the_agents_calls_are_not_repeated() -> None:
    script = Script(httpx.ConnectError("Connection refused"), problem(Code.SESSION_SUPERSEDED))
    async with AgentClient(URL, "tmk_x", transport=httpx.MockTransport(script)) as client:
        with pytest.raises(UnreachableError):
            await client.desired("s", 0, 1)
        with pytest.raises(ProblemError) as caught:
            await client.desired("s", 0, 1)
    assert caught.value.code is Code.SESSION_SUPERSEDED
    assert len(script.requests) == 2


def test_a_number_that_json_cannot_hold_is_told_with_its_place() -> None:
    with pytest.raises(ProblemError) as refused:
        core.to_json({"roles": [{"template": {"resources": {"nvidia.com/gpu": 10**23}}}], "priority": -(2**63)})
    assert refused.value.code is Code.INVALID_SPEC
    assert [(one.path, one.message) for one in refused.value.mistakes] == [
        ('roles[0].template.resources["nvidia.com/gpu"]', "is a number with too many digits")
    ]
